/* memory_host.h - a device made of host memory, whose driver the test plays.
 *
 * The driver gives memory in steps of 2 MiB up to a capacity, counts what it gave, and
 * writes down what it is asked, so that order and number of requests can be checked. */
#ifndef RLE_TESTS_MEMORY_HOST_H
#define RLE_TESTS_MEMORY_HOST_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "device/device_internal.h"

#define MIB ((size_t)1 << 20)

static struct {
    size_t capacity, used;
    int fail; /* so many of the next requests are refused */
    int takings, givings, waits;
    char log[4096];
} driver;

static inline void note(const char *what, size_t bytes)
{
    size_t n = strlen(driver.log);
    if (bytes)
        snprintf(driver.log + n, sizeof driver.log - n, "%s %zu; ", what, bytes / MIB);
    else
        snprintf(driver.log + n, sizeof driver.log - n, "%s; ", what);
}

static size_t steps(size_t size)
{
    return (size + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
}

static void *host_alloc(rle_device *dev, size_t size)
{
    (void)dev;
    note("take", size);
    if (driver.fail > 0) {
        driver.fail--;
        return NULL;
    }
    if (driver.used + steps(size) > driver.capacity) return NULL;
    void *p = NULL;
    if (posix_memalign(&p, 256, size)) return NULL;
    driver.used += steps(size);
    driver.takings++;
    return p;
}

static void host_free(rle_device *dev, void *p, size_t size)
{
    (void)dev;
    note("give", size);
    driver.used -= steps(size);
    driver.givings++;
    free(p);
}

static rle_status host_wait(rle_device *dev)
{
    (void)dev;
    note("wait", 0);
    driver.waits++;
    return RLE_OK;
}

static rle_status host_figures(rle_device *dev, rle_device_figures *out)
{
    (void)dev;
    *out = (rle_device_figures){
        .total = driver.capacity, .used = driver.used + 3 * MIB, .context = 2 * MIB};
    return RLE_OK;
}

static rle_device host = {
    .type = RLE_DEVICE_EMU,
    .name = "host:0",
    .raw_alloc = host_alloc,
    .raw_free = host_free,
    .synchronize = host_wait,
    .figures = host_figures,
};

static size_t bytes_before;

static inline int host_open(void **state)
{
    (void)state;
    memset(&driver, 0, sizeof driver);
    driver.capacity = (size_t)8 << 30;
    bytes_before = rle_mem_bytes();
    return rle_allocator_new(true, &host.allocator) == RLE_OK ? 0 : -1;
}

static inline int host_close(void **state)
{
    (void)state;
    rle_memory_stats s;
    rle_device_memory(&host, &s);
    rle_allocator_free(&host);
    if (s.allocated || s.blocks || driver.used) {
        print_error("%zu bytes live, the driver misses %zu\n", s.allocated, driver.used);
        return -1;
    }
    return 0;
}

static inline rle_memory_stats stats_of(rle_device *dev)
{
    rle_memory_stats s;
    rle_device_memory(dev, &s);
    return s;
}

static inline rle_block block_of(rle_device *dev, size_t size)
{
    rle_block b = {0};
    if (rle_device_alloc(dev, size, &b) != RLE_OK) fail_msg("%s", rle_message());
    return b;
}

/* ---- work on another stream, for guards ---- */

typedef struct work {
    bool over, gone;
    int waited;
} work;

static inline bool work_ready(void *arg, bool wait)
{
    work *w = arg;
    assert_false(w->gone); /* not asked again */
    if (wait) {
        note("guard", 0);
        w->waited++;
        w->over = true;
    }
    w->gone = w->over;
    return w->over;
}

static inline void at_line(int line)
{
    rle_context_current()->site = line ? rle_site_intern("train.lua", line) : 0;
}

#define HOST_TEST(name) cmocka_unit_test_setup_teardown(name, host_open, host_close)

#endif
