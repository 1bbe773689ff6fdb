/* device_check.h - one operation on two devices: the CPU, which other tests have checked,
 * and the one under test, which must give the same.
 *
 * The device is "emu", or what RLENGINE_TEST_DEVICE names. A twin is a box (cpu_check.h)
 * with a copy of its whole memory on the device, the sentinels between and around its
 * elements included: after the operation ran on both, twin_check fetches the device's
 * memory and compares elements within a bound and every other byte exactly.
 *
 *   FOR_EACH_MODE(m) {                // orders of threads and kinds of streams; 1 on a
 * GPU box x = box_new(...), y = box_new(...);   box_fill(&x); twin dx = twin_of(&x), dy =
 * twin_of(&y); assert_int_equal(cpu->ops->unary(cpu, kind, &y.a, &x.a, 0, 0), RLE_OK);
 *       assert_int_equal(dev->ops->unary(dev, kind, &dy.a, &dx.a, 0, 0), RLE_OK);
 *       twin_check(&dy, 0, 0, "unary");     // ulps, absolute slack
 *       twin_free(&dx), twin_free(&dy), box_free(&x), box_free(&y);
 *   }
 *
 * Each test program calls device_setup first and device_finish last: every byte it took
 * on the device must be back. */
#ifndef RLE_TESTS_DEVICE_CHECK_H
#define RLE_TESTS_DEVICE_CHECK_H

#include "cpu_check.h"

#include "device/device.h"

static rle_device *cpu, *dev;

static inline int device_setup(void **state)
{
    (void)state;
    const char *name = getenv("RLENGINE_TEST_DEVICE");
    cpu = rle_device_cpu();
    if (rle_device_get(name && *name ? name : "emu", 0, &dev) != RLE_OK) {
        print_error("no device to test: %s\n", rle_message());
        return -1;
    }
    return 0;
}

static inline int device_finish(void **state)
{
    (void)state;
    rle_memory_stats stats;
    rle_device_memory(dev, &stats);
    if (stats.allocated || stats.blocks) {
        print_error("%zu bytes in %zu blocks are still allocated on %s\n",
                    stats.allocated, stats.blocks, dev->name);
        return -1;
    }
    return 0;
}

/* ---- modes of the emulation ---- */

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CHECK_SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(CHECK_SANITIZED)
/* Switching threads is slow under the sanitizer, and what it looks for shows in any order. */
static const char *const check_modes[] = {
    "order=forward streams=eager",
    "order=random streams=lazy",
};
#else
static const char *const check_modes[] = {
    "order=forward streams=eager", "order=reverse streams=eager",
    "order=random streams=eager",  "order=forward streams=lazy",
    "order=reverse streams=lazy",  "order=random streams=lazy",
};
#endif

/* All of them, or only the one whose number RLENGINE_CHECK_MODE says, where a run is not
 * about orders. */
static inline int check_only_mode(void)
{
    const char *only = getenv("RLENGINE_CHECK_MODE");
    return only && dev->type == RLE_DEVICE_EMU ? atoi(only) : -1;
}

/* Switch to mode m; false when there is none (a real device has one, its own). */
static inline bool check_mode(int m)
{
    if (dev->type != RLE_DEVICE_EMU) return m == 0;
    if (m < (int)(sizeof check_modes / sizeof *check_modes))
        return rle_device_emu_control(check_modes[m]) == RLE_OK;
    rle_device_emu_control(check_modes[0]);
    return false;
}

static inline int check_wanted_mode(int m)
{
    int only = check_only_mode(), all = (int)(sizeof check_modes / sizeof *check_modes);
    return only < 0 || m == only ? m : all;
}

#define FOR_EACH_MODE(m)                                                                 \
    for (int m = check_only_mode() > 0 ? check_only_mode() : 0;                          \
         check_mode(check_wanted_mode(m)); m++)

/* ---- twins ---- */

typedef struct {
    box *b;
    rle_block block;
    rle_array a; /* b->a on the device */
} twin;

/* The box's memory as it is now, on the device. Before the operation runs on the CPU. */
static inline twin twin_of(box *b)
{
    twin t = {.b = b, .a = b->a};
    if (rle_device_alloc(dev, b->bytes, &t.block) != RLE_OK ||
        dev->copy_in(dev, t.block.data, b->mem, b->bytes) != RLE_OK)
        fail_msg("%s", rle_message());
    t.a.data = (char *)t.block.data + ((unsigned char *)b->a.data - b->mem);
    return t;
}

static inline void twin_free(twin *t)
{
    rle_device_free(dev, &t->block);
}

/* The device's elements are the CPU's within `ulps` of the dtype or `slack`; all else is
 * equal. */
static inline void twin_check(const twin *t, double ulps, double slack, const char *what)
{
    box got = box_copy(t->b);
    if (dev->copy_out(dev, got.mem, t->block.data, got.bytes) != RLE_OK)
        fail_msg("%s: %s", what, rle_message());
    int64_t n = rle_array_numel(&got.a);
    size_t size = rle_dtype_size(got.a.dtype);
    for (int64_t i = 0; i < n; i++) {
        double x = get(&got.a, i), want = get(&t->b->a, i);
        bool same =
            memcmp(at(&got.a, i), at(&t->b->a, i), size) == 0 || (x != x && want != want);
        if (!same && rle_dtype_is_float(got.a.dtype))
            same = near(got.a.dtype, x, want, ulps, slack) &&
                   (x != 0 || want != 0 || ulps > 0);
        if (!same) {
            char shape[128];
            fail_msg("%s %s on %s: element %lld is %.17g, on the CPU %.17g", what,
                     rle_array_describe(&got.a, shape, sizeof shape), dev->name,
                     (long long)i, x, want);
        }
    }
    for (int64_t i = 0; i < n; i++) memcpy(at(&got.a, i), at(&t->b->a, i), size);
    for (size_t i = 0; i < got.bytes; i++)
        if (got.mem[i] != t->b->mem[i])
            fail_msg("%s on %s: byte %zu of %zu beside the elements was overwritten",
                     what, dev->name, i, got.bytes);
    box_free(&got);
}

#endif
