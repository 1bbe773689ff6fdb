/* allocator.c - a caching allocator that knows who holds what.
 *
 * Sizes are rounded to classes: multiples of 64 bytes up to 1 KiB, then four classes to
 * each power of two, so a block is at most a quarter larger than asked. Each class keeps
 * a stack of free blocks; memory that is reused stays warm.
 *
 * Invariants
 *   1. reserved = bytes of live blocks (as classes) + cached;
 *   2. allocated = sum over rows of their bytes = bytes of live blocks as asked;
 *   3. a row exists for every (owner, site) that ever held a block; rows are never
 * removed, so a block's row index stays valid;
 *   4. cached never exceeds CACHE_FLOOR + a quarter of what is live: beyond it a freed
 * block goes straight back to the system.
 *
 * One thread owns the devices; nothing here locks. */
#include "device/device_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum {
    CLASS_SMALL = 16,                   /* 64, 128, ... 1024 */
    CLASS_COUNT = CLASS_SMALL + 4 * 38, /* up to 2^48 */
};
static const size_t CACHE_FLOOR = (size_t)64 << 20;

typedef struct free_stack {
    void **block;
    uint32_t count, capacity;
} free_stack;

typedef struct memory_row {
    uint32_t site;
    uint8_t owner;
    size_t bytes, blocks;
} memory_row;

struct rle_allocator {
    rle_memory_stats stats;
    size_t cached;
    free_stack free[CLASS_COUNT];
    memory_row *row;
    uint32_t row_count, row_capacity;
    uint32_t *slot; /* open addressing: row index + 1 */
    uint32_t slot_count;
    uint32_t last_row; /* the row found last: lines allocate in bursts */
};

size_t rle_device_debt;

static bool (*pressure_fn)(void *, rle_device *, size_t);
static void *pressure_self;

/* ---- size classes ---- */

static int class_of(size_t size, size_t *rounded)
{
    if (size <= 1024) {
        int c = size ? (int)((size + 63) / 64) - 1 : 0;
        *rounded = ((size_t)c + 1) * 64;
        return c;
    }
    int top = 63 - __builtin_clzll((unsigned long long)(size - 1)); /* 2^top < size */
    size_t step = (size_t)1 << (top - 2);
    size_t quarters = (size - 1 - ((size_t)1 << top)) / step + 1; /* 1..4 */
    *rounded = ((size_t)1 << top) + quarters * step;
    return CLASS_SMALL + (top - 10) * 4 + (int)quarters - 1;
}

/* ---- rows ---- */

static uint32_t row_hash(uint32_t site, uint32_t owner)
{
    return (site * 8 + owner) * 2654435761u;
}

static bool rows_grow(struct rle_allocator *al)
{
    uint32_t capacity = al->row_capacity ? al->row_capacity * 2 : 64;
    memory_row *row = rle_realloc(al->row, capacity * sizeof *row);
    if (!row) return false;
    al->row = row;
    uint32_t *slot = rle_calloc((size_t)capacity * 2, sizeof *slot);
    if (!slot) return false;
    for (uint32_t r = 0; r < al->row_count; r++) {
        uint32_t i = row_hash(row[r].site, row[r].owner) & (capacity * 2 - 1);
        while (slot[i]) i = (i + 1) & (capacity * 2 - 1);
        slot[i] = r + 1;
    }
    rle_free(al->slot);
    al->slot = slot;
    al->slot_count = capacity * 2;
    al->row_capacity = capacity;
    return true;
}

/* The row of (owner, site); without memory for a new one, row 0, which is "?". */
static uint32_t row_of(struct rle_allocator *al, uint32_t site, uint8_t owner)
{
    memory_row *last = &al->row[al->last_row];
    if (last->site == site && last->owner == owner) return al->last_row;
    uint32_t i = row_hash(site, owner) & (al->slot_count - 1);
    for (; al->slot[i]; i = (i + 1) & (al->slot_count - 1)) {
        uint32_t r = al->slot[i] - 1;
        if (al->row[r].site == site && al->row[r].owner == owner) return al->last_row = r;
    }
    if (al->row_count == al->row_capacity) {
        if (!rows_grow(al)) return 0;
        i = row_hash(site, owner) & (al->slot_count - 1);
        while (al->slot[i]) i = (i + 1) & (al->slot_count - 1);
    }
    uint32_t r = al->row_count++;
    al->row[r] = (memory_row){.site = site, .owner = owner};
    al->slot[i] = r + 1;
    return al->last_row = r;
}

rle_status rle_allocator_new(struct rle_allocator **out)
{
    struct rle_allocator *al = rle_calloc(1, sizeof *al);
    if (!al || !rows_grow(al)) {
        if (al) rle_free(al->row);
        rle_free(al);
        return rle_oom(sizeof *al, "device allocator");
    }
    /* Row 0 takes what cannot be attributed. */
    al->row[0] = (memory_row){0};
    al->row_count = 1;
    al->slot[row_hash(0, 0) & (al->slot_count - 1)] = 1;
    *out = al;
    return RLE_OK;
}

/* ---- cache ---- */

static bool cache_push(struct rle_allocator *al, int class, void *p)
{
    free_stack *s = &al->free[class];
    if (s->count == s->capacity) {
        uint32_t capacity = s->capacity ? s->capacity * 2 : 8;
        void **block = rle_realloc(s->block, capacity * sizeof *block);
        if (!block) return false;
        s->block = block;
        s->capacity = capacity;
    }
    s->block[s->count++] = p;
    return true;
}

static size_t class_size(int class)
{
    if (class < CLASS_SMALL) return ((size_t) class + 1) * 64;
    int top = 10 + (class - CLASS_SMALL) / 4;
    size_t quarters = (size_t)((class - CLASS_SMALL) % 4) + 1;
    return ((size_t)1 << top) + quarters * ((size_t)1 << (top - 2));
}

size_t rle_device_empty_cache(rle_device *dev)
{
    struct rle_allocator *al = dev->allocator;
    size_t before = al->cached;
    for (int c = 0; c < CLASS_COUNT; c++) {
        free_stack *s = &al->free[c];
        while (s->count) dev->raw_free(dev, s->block[--s->count], class_size(c));
        rle_free(s->block);
        *s = (free_stack){0};
    }
    al->cached = 0;
    al->stats.reserved -= before;
    return before;
}

void rle_allocator_free(rle_device *dev)
{
    struct rle_allocator *al = dev->allocator;
    if (!al) return;
    rle_device_empty_cache(dev);
    rle_free(al->row);
    rle_free(al->slot);
    rle_free(al);
    dev->allocator = NULL;
}

/* ---- allocation ---- */

/* One try: the cache, then the system within the limit. */
static void *take(rle_device *dev, int class, size_t rounded)
{
    struct rle_allocator *al = dev->allocator;
    free_stack *s = &al->free[class];
    if (s->count) {
        al->cached -= rounded;
        al->stats.from_cache++;
        return s->block[--s->count];
    }
    size_t limit = al->stats.limit;
    if (limit && al->stats.reserved + rounded > limit) {
        if (al->stats.reserved - al->cached + rounded > limit) return NULL;
        rle_device_empty_cache(dev);
    }
    void *p = dev->raw_alloc(dev, rounded);
    if (p) al->stats.reserved += rounded;
    return p;
}

/* Most bytes of live blocks from one row. */
static const memory_row *largest_row(const struct rle_allocator *al)
{
    const memory_row *best = &al->row[0];
    for (uint32_t r = 1; r < al->row_count; r++)
        if (al->row[r].bytes > best->bytes) best = &al->row[r];
    return best;
}

static rle_status refuse(rle_device *dev, size_t size)
{
    struct rle_allocator *al = dev->allocator;
    char wanted[32], free_text[32], total[32], held[32], room[96];
    rle_bytes_format((double)size, wanted, sizeof wanted);
    size_t live = al->stats.reserved - al->cached;
    if (al->stats.limit) {
        size_t left = al->stats.limit > live ? al->stats.limit - live : 0;
        snprintf(room, sizeof room, "%s free of %s",
                 rle_bytes_format((double)left, free_text, sizeof free_text),
                 rle_bytes_format((double)al->stats.limit, total, sizeof total));
    } else {
        snprintf(room, sizeof room, "the system refused with %s in use",
                 rle_bytes_format((double)live, total, sizeof total));
    }
    rle_device_note_oom(dev);
    const memory_row *top = largest_row(al);
    if (!top->bytes)
        return rle_fail(RLE_RESOURCE_EXHAUSTED, "out of device memory: wanted %s, %s",
                        wanted, room);
    return rle_fail(
        RLE_RESOURCE_EXHAUSTED,
        "out of device memory: wanted %s, %s; most held by %s (%zu tensor%s, %s)", wanted,
        room, rle_site_name(top->site), top->blocks, top->blocks == 1 ? "" : "s",
        rle_bytes_format((double)top->bytes, held, sizeof held));
}

rle_status rle_device_alloc(rle_device *dev, size_t size, rle_block *out)
{
    struct rle_allocator *al = dev->allocator;
    if (size > (size_t)1 << 47)
        return rle_fail(RLE_RESOURCE_EXHAUSTED, "out of device memory: wanted %zu bytes",
                        size);
    size_t rounded;
    int class = class_of(size, &rounded);
    void *p = take(dev, class, rounded);
    if (!p && pressure_fn && pressure_fn(pressure_self, dev, rounded))
        p = take(dev, class, rounded);
    if (!p) {
        rle_device_empty_cache(dev);
        p = take(dev, class, rounded);
    }
    if (!p) return refuse(dev, size);

    rle_context *c = rle_context_current();
    uint32_t r = row_of(al, rle_context_site(c), c->owner);
    al->row[r].bytes += size;
    al->row[r].blocks++;
    al->stats.allocated += size;
    if (al->stats.allocated > al->stats.peak) al->stats.peak = al->stats.allocated;
    al->stats.allocations++;
    al->stats.blocks++;
    rle_device_debt += rounded;
    *out = (rle_block){
        .data = p, .size = size, .reserved = rounded, .row = r, .owner = c->owner};
    return RLE_OK;
}

void rle_device_free(rle_device *dev, rle_block *block)
{
    struct rle_allocator *al = dev->allocator;
    al->row[block->row].bytes -= block->size;
    al->row[block->row].blocks--;
    al->stats.allocated -= block->size;
    al->stats.blocks--;
    al->stats.frees++;
    size_t rounded, live = al->stats.reserved - al->cached - block->reserved;
    int class = class_of(block->size, &rounded);
    if (al->cached + rounded <= CACHE_FLOOR + live / 4 &&
        cache_push(al, class, block->data)) {
        al->cached += rounded;
    } else {
        dev->raw_free(dev, block->data, rounded);
        al->stats.reserved -= rounded;
    }
    *block = (rle_block){0};
}

void rle_device_reown(rle_device *dev, rle_block *block, rle_owner owner)
{
    if (block->owner == owner) return;
    struct rle_allocator *al = dev->allocator;
    uint32_t to = row_of(al, al->row[block->row].site, (uint8_t)owner);
    al->row[block->row].bytes -= block->size;
    al->row[block->row].blocks--;
    al->row[to].bytes += block->size;
    al->row[to].blocks++;
    block->row = to;
    block->owner = (uint8_t)owner;
}

/* ---- figures ---- */

void rle_device_memory(rle_device *dev, rle_memory_stats *out)
{
    *out = dev->allocator->stats;
}

void rle_device_reset_peak(rle_device *dev)
{
    dev->allocator->stats.peak = dev->allocator->stats.allocated;
}

void rle_device_set_limit(rle_device *dev, size_t bytes)
{
    dev->allocator->stats.limit = bytes;
}

static int by_bytes(const void *a, const void *b)
{
    size_t x = ((const rle_memory_row *)a)->bytes, y = ((const rle_memory_row *)b)->bytes;
    return x < y ? 1 : x > y ? -1 : 0;
}

size_t rle_device_report(rle_device *dev, rle_memory_row *rows, size_t max)
{
    struct rle_allocator *al = dev->allocator;
    size_t live = 0;
    for (uint32_t r = 0; r < al->row_count; r++) live += al->row[r].blocks != 0;
    rle_memory_row *all = rle_malloc((live ? live : 1) * sizeof *all);
    if (!all) return 0;
    size_t n = 0;
    for (uint32_t r = 0; r < al->row_count; r++)
        if (al->row[r].blocks)
            all[n++] = (rle_memory_row){.owner = (rle_owner)al->row[r].owner,
                                        .site = al->row[r].site,
                                        .bytes = al->row[r].bytes,
                                        .blocks = al->row[r].blocks};
    qsort(all, n, sizeof *all, by_bytes);
    if (max) memcpy(rows, all, (n < max ? n : max) * sizeof *rows);
    rle_free(all);
    return n;
}

void rle_device_on_pressure(bool (*fn)(void *, rle_device *, size_t), void *self)
{
    pressure_fn = fn;
    pressure_self = self;
}
