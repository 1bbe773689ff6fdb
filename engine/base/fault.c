/* fault.c - see fault.h. */
#include "base/fault.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

_Atomic bool rle_fault_armed[RLE_FAULT_KINDS];
static atomic_uint_fast64_t left[RLE_FAULT_KINDS];
static atomic_bool stays[RLE_FAULT_KINDS];

bool rle_fault_count(rle_fault_kind kind)
{
    uint64_t n = atomic_load(&left[kind]);
    while (n > 1)
        if (atomic_compare_exchange_weak(&left[kind], &n, n - 1)) return false;
    if (!atomic_load(&stays[kind])) return atomic_exchange(&rle_fault_armed[kind], false);
    return true;
}

bool rle_fault_io(int why)
{
    if (!rle_fault_hits(RLE_FAULT_IO)) return false;
    errno = why;
    return true;
}

void rle_fault_order(rle_fault_kind kind, uint64_t nth, bool persistent)
{
    atomic_store(&left[kind], nth);
    atomic_store(&stays[kind], persistent);
    atomic_store(&rle_fault_armed[kind], nth != 0);
}

uint64_t rle_fault_left(rle_fault_kind kind)
{
    return atomic_load(&rle_fault_armed[kind]) ? atomic_load(&left[kind]) : 0;
}

/* "alloc:12", "io:3+": false unless it is of that kind. */
static bool read_order(const char *p, size_t n, rle_fault_kind kind, const char *name)
{
    size_t len = strlen(name);
    if (n < len || strncmp(p, name, len) != 0) return false;
    char *end;
    unsigned long long nth = strtoull(p + len, &end, 10);
    bool persistent = *end == '+';
    if (p[len] < '0' || p[len] > '9' || nth == 0 || end + persistent != p + n)
        rle_log(RLE_LOG_WARN,
                "RL_FAULT: \"%.*s\" is not %s<number from 1>, perhaps with a +", (int)n,
                p, name);
    else
        rle_fault_order(kind, nth, persistent);
    return true;
}

void rle_fault_from_environment(void)
{
    const char *p = getenv("RL_FAULT");
    for (; p && *p; p += *p == ',') {
        size_t n = strcspn(p, ",");
        if (!read_order(p, n, RLE_FAULT_ALLOC, "alloc:") &&
            !read_order(p, n, RLE_FAULT_LUA, "lua:") &&
            !read_order(p, n, RLE_FAULT_IO, "io:") && strncmp(p, "cuda:", 5) != 0)
            rle_log(RLE_LOG_WARN, "RL_FAULT: \"%.*s\" is none of alloc, lua, io and cuda",
                    (int)n, p);
        p += n;
    }
}
