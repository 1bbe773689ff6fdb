/* mem.c - counting allocator over malloc. The size of a block is what malloc itself says
 * it is, so that blocks need no header of ours and stay aligned as malloc aligns them. */
#include "base/mem.h"

#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"

static atomic_size_t live_bytes, live_blocks, largest;

static bool fault_hits(void)
{
    return rle_fault_hits(RLE_FAULT_ALLOC);
}

static void *counted(void *p)
{
    if (!p) return NULL;
    atomic_fetch_add_explicit(&live_bytes, malloc_usable_size(p), memory_order_relaxed);
    atomic_fetch_add_explicit(&live_blocks, 1, memory_order_relaxed);
    return p;
}

static void uncounted(void *p)
{
    atomic_fetch_sub_explicit(&live_bytes, malloc_usable_size(p), memory_order_relaxed);
    atomic_fetch_sub_explicit(&live_blocks, 1, memory_order_relaxed);
}

static void note(size_t size)
{
    if (size > atomic_load_explicit(&largest, memory_order_relaxed))
        atomic_store_explicit(&largest, size, memory_order_relaxed);
}

void *rle_malloc(size_t size)
{
    note(size);
    if (fault_hits()) return NULL;
    return counted(malloc(size ? size : 1));
}

void *rle_calloc(size_t count, size_t size)
{
    note(count * size);
    if (fault_hits()) return NULL;
    return counted(calloc(count ? count : 1, size ? size : 1));
}

void *rle_realloc(void *p, size_t size)
{
    if (!p) return rle_malloc(size);
    note(size);
    if (fault_hits()) return NULL;
    size_t before = malloc_usable_size(p);
    void *q = realloc(p, size ? size : 1);
    if (!q) return NULL;
    size_t after = malloc_usable_size(q);
    atomic_fetch_add_explicit(&live_bytes, after - before, memory_order_relaxed);
    return q;
}

void rle_free(void *p)
{
    if (!p) return;
    uncounted(p);
    free(p);
}

void *rle_malloc_for_others(size_t size)
{
    return fault_hits() ? NULL : malloc(size);
}

void *rle_realloc_for_others(void *p, size_t size)
{
    return fault_hits() ? NULL : realloc(p, size);
}

char *rle_strdup(const char *s)
{
    size_t n = strlen(s) + 1;
    char *copy = rle_malloc(n);
    if (copy) memcpy(copy, s, n);
    return copy;
}

rle_status rle_oom(size_t size, const char *what)
{
    return rle_fail(RLE_RESOURCE_EXHAUSTED, "out of memory: wanted %zu bytes for \"%s\"",
                    size, what);
}

size_t rle_mem_bytes(void)
{
    return atomic_load(&live_bytes);
}

size_t rle_mem_blocks(void)
{
    return atomic_load(&live_blocks);
}

size_t rle_mem_largest(void)
{
    return atomic_exchange(&largest, 0);
}

void rle_mem_fault(uint64_t nth, bool persistent)
{
    rle_fault_order(RLE_FAULT_ALLOC, nth, persistent);
}
