/* test_device.c - the allocator: figures that add up, reuse, limits, pressure, owners. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "device/device.h"

static rle_memory_stats stats(void)
{
    rle_memory_stats s;
    rle_device_memory(rle_device_cpu(), &s);
    return s;
}

static size_t rows_sum(void)
{
    size_t n = rle_device_report(rle_device_cpu(), NULL, 0), sum = 0;
    rle_memory_row *rows = calloc(n + 1, sizeof *rows);
    rle_device_report(rle_device_cpu(), rows, n);
    for (size_t i = 0; i < n; i++) sum += rows[i].bytes;
    free(rows);
    return sum;
}

static void a_million_random_blocks_add_up(void **state)
{
    (void)state;
    enum { LIVE = 512 };
    rle_device *dev = rle_device_cpu();
    static rle_block block[LIVE];
    size_t live = 0, peak = 0;
    uint64_t random = 88172645463325252u;
    for (int i = 0; i < 1000000; i++) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        rle_block *b = &block[random % LIVE];
        if (b->data) {
            live -= b->size;
            rle_device_free(dev, b);
        } else {
            size_t size = (random >> 20) % (random % 16 ? 5000 : 300000);
            assert_int_equal(rle_device_alloc(dev, size, b), RLE_OK);
            assert_true(b->reserved >= size && b->reserved <= size + size / 4 + 64);
            assert_int_equal((uintptr_t)b->data % 64, 0);
            memset(b->data, 0x5a, size < 64 ? size : 64);
            live += size;
        }
        if (live > peak) peak = live;
    }
    rle_memory_stats s = stats();
    assert_int_equal(s.allocated, live);
    assert_int_equal(rows_sum(), live);
    rle_device_empty_cache(dev);
    assert_true(stats().reserved <= peak + peak / 4);
    for (int i = 0; i < LIVE; i++)
        if (block[i].data) rle_device_free(dev, &block[i]);
    rle_device_empty_cache(dev);
    s = stats();
    assert_int_equal(s.allocated, 0);
    assert_int_equal(s.reserved, 0);
    assert_int_equal(s.blocks, 0);
    assert_int_equal(s.allocations, s.frees);
}

static void a_freed_block_is_reused(void **state)
{
    (void)state;
    rle_device *dev = rle_device_cpu();
    rle_block a, b;
    assert_int_equal(rle_device_alloc(dev, 1 << 20, &a), RLE_OK);
    void *where = a.data;
    rle_device_free(dev, &a);
    uint64_t before = stats().from_cache;
    assert_int_equal(rle_device_alloc(dev, (1 << 20) - 100, &b), RLE_OK);
    assert_ptr_equal(b.data, where);
    assert_int_equal(stats().from_cache, before + 1);
    rle_device_free(dev, &b);
    assert_true(rle_device_empty_cache(dev) >= 1 << 20);
}

static int pressures;
static rle_block victim;

static bool give_way(void *self, rle_device *dev, size_t wanted)
{
    (void)self, (void)wanted;
    pressures++;
    if (!victim.data) return false;
    rle_device_free(dev, &victim);
    return true;
}

static void the_limit_asks_first_and_refuses_with_the_holder(void **state)
{
    (void)state;
    rle_device *dev = rle_device_cpu();
    rle_block a, b;
    rle_device_set_limit(dev, 3 << 20);
    rle_device_on_pressure(give_way, NULL);
    rle_context_current()->site = rle_site_intern("train.lua", 88);
    assert_int_equal(rle_device_alloc(dev, 2 << 20, &victim), RLE_OK);
    assert_int_equal(rle_device_alloc(dev, 2 << 20, &a),
                     RLE_OK); /* the victim gave way */
    assert_int_equal(pressures, 1);
    assert_int_equal(rle_device_alloc(dev, 2 << 20, &b), RLE_RESOURCE_EXHAUSTED);
    assert_string_equal(
        rle_message(),
        "out of device memory: wanted 2.0 MiB, 1.0 MiB free of 3.0 MiB; most "
        "held by train.lua:88 (1 tensor, 2.0 MiB)");
    assert_non_null(strstr(rle_device_oom_report(), "train.lua:88"));
    rle_device_free(dev, &a);
    assert_int_equal(rle_device_alloc(dev, 2 << 20, &b), RLE_OK);
    rle_device_free(dev, &b);
    rle_context_current()->site = 0;
    rle_device_on_pressure(NULL, NULL);
    rle_device_set_limit(dev, 0);
    rle_device_empty_cache(dev);
}

static void the_cache_gives_way_to_the_limit(void **state)
{
    (void)state;
    rle_device *dev = rle_device_cpu();
    rle_block a, b;
    assert_int_equal(rle_device_alloc(dev, 2 << 20, &a), RLE_OK);
    rle_device_free(dev, &a); /* cached */
    rle_device_set_limit(dev, 3 << 20);
    assert_int_equal(rle_device_alloc(dev, (5 << 20) / 2, &b), RLE_OK);
    assert_true(stats().reserved <= 3 << 20);
    rle_device_free(dev, &b);
    rle_device_set_limit(dev, 0);
    rle_device_empty_cache(dev);
}

static void owners_move_with_their_bytes(void **state)
{
    (void)state;
    rle_device *dev = rle_device_cpu();
    rle_block a;
    rle_memory_row row;
    assert_int_equal(rle_device_alloc(dev, 1000, &a), RLE_OK);
    rle_device_reown(dev, &a, RLE_OWNER_WEIGHTS);
    assert_int_equal(rle_device_report(dev, &row, 1), 1);
    assert_int_equal(row.owner, RLE_OWNER_WEIGHTS);
    assert_int_equal(row.bytes, 1000);
    rle_device_free(dev, &a);
    assert_int_equal(rle_device_report(dev, &row, 1), 0);
}

static void *no_memory(rle_device *dev, size_t size)
{
    (void)dev, (void)size;
    return NULL;
}

static void a_failing_system_is_an_error_and_leaves_no_trace(void **state)
{
    (void)state;
    rle_device *dev = rle_device_cpu();
    rle_block a = {0};
    rle_device_empty_cache(dev); /* as a refusal does */
    rle_memory_stats before = stats();
    void *(*raw_alloc)(rle_device *, size_t) = dev->raw_alloc;
    dev->raw_alloc = no_memory;
    assert_int_equal(rle_device_alloc(dev, 1 << 20, &a), RLE_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(rle_message(), " free on this machine, 0 bytes in use here"));
    dev->raw_alloc = raw_alloc;
    assert_int_equal(rle_device_alloc(dev, (size_t)1 << 60, &a), RLE_RESOURCE_EXHAUSTED);
    assert_null(a.data);
    assert_int_equal(stats().allocated, before.allocated);
    assert_int_equal(stats().reserved, before.reserved);
}

static void sizes_are_read_and_written(void **state)
{
    (void)state;
    size_t n;
    char text[32];
    assert_int_equal(rle_bytes_parse("64MiB", &n), RLE_OK);
    assert_int_equal(n, (size_t)64 << 20);
    assert_int_equal(rle_bytes_parse("2 kb", &n), RLE_OK);
    assert_int_equal(n, 2000);
    static const char *const bad[] = {"", "MiB", "12 parsecs", "-1", "nan", "1e40"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(rle_bytes_parse(bad[i], &n), RLE_INVALID_ARGUMENT);
    assert_string_equal(rle_bytes_format(1.5 * (1 << 30), text, sizeof text), "1.5 GiB");
    assert_string_equal(rle_bytes_format(12, text, sizeof text), "12 bytes");
}

static void devices_have_names(void **state)
{
    (void)state;
    rle_device *dev;
    assert_int_equal(rle_device_get("cpu", 0, &dev), RLE_OK);
    assert_ptr_equal(dev, rle_device_cpu());
    assert_int_equal(rle_device_get("auto", 3, &dev), RLE_OK);
    assert_int_equal(rle_device_get("cuda:1", 0, &dev), RLE_UNAVAILABLE);
    assert_int_equal(rle_device_get("tpu", 0, &dev), RLE_INVALID_ARGUMENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_million_random_blocks_add_up),
        cmocka_unit_test(a_freed_block_is_reused),
        cmocka_unit_test(the_limit_asks_first_and_refuses_with_the_holder),
        cmocka_unit_test(the_cache_gives_way_to_the_limit),
        cmocka_unit_test(owners_move_with_their_bytes),
        cmocka_unit_test(a_failing_system_is_an_error_and_leaves_no_trace),
        cmocka_unit_test(sizes_are_read_and_written),
        cmocka_unit_test(devices_have_names),
    };
    return cmocka_run_group_tests_name("device", tests, NULL, NULL);
}
