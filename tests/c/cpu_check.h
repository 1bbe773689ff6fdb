/* cpu_check.h - what the tests of the CPU's operations share: arrays of any layout with
 * sentinels around and between their elements, and runs over all instruction sets. */
#ifndef RLE_TESTS_CPU_CHECK_H
#define RLE_TESTS_CPU_CHECK_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/cpu/cpu.h"

#define SENTINEL 0xA5
#define MARGIN 64

/* ---- a small generator, the same numbers in every run ---- */

static uint64_t check_state = 1;

static inline uint32_t rnd(void)
{
    check_state = check_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    uint64_t x = check_state;
    x ^= x >> 33;
    x *= UINT64_C(0xff51afd7ed558ccd);
    return (uint32_t)(x >> 32);
}

static inline int below(int n) { return (int)(rnd() % (uint32_t)n); }
static inline double unit(void) { return rnd() * 0x1p-32; }

/* ---- boxed arrays ---- */

typedef struct {
    rle_array a;
    unsigned char *mem;
    size_t bytes;
} box;

typedef enum { DENSE, PERMUTED, SPREAD, BROADCAST, LAYOUTS } layout;

/* BROADCAST gives some dimensions stride 0, so it is for inputs only. */
static inline box box_new(rle_dtype t, int ndim, const int64_t *shape, layout how)
{
    box b = {.a = {.dtype = t, .ndim = ndim}};
    int order[RLE_MAX_DIMS];
    for (int d = 0; d < ndim; d++) {
        b.a.shape[d] = shape[d];
        order[d] = d;
    }
    if (how == PERMUTED || how == SPREAD)
        for (int d = ndim - 1; d > 0; d--) {
            int e = below(d + 1), swap = order[d];
            order[d] = order[e];
            order[e] = swap;
        }
    int64_t stride = how == SPREAD ? 1 + below(3) : 1;
    for (int i = ndim - 1; i >= 0; i--) {
        int d = order[i];
        if (how == BROADCAST && below(2)) {
            b.a.stride[d] = 0;
            continue;
        }
        b.a.stride[d] = stride;
        stride *= shape[d];
        if (how == SPREAD) stride += below(3);
    }
    if (stride < 1) stride = 1;
    b.bytes = (size_t)stride * rle_dtype_size(t) + 2 * MARGIN;
    b.mem = malloc(b.bytes);
    memset(b.mem, SENTINEL, b.bytes);
    b.a.data = b.mem + MARGIN;
    return b;
}

static inline void box_free(box *b) { free(b->mem); }

/* Element number i, row-major, lies here. */
static inline void *at(const rle_array *a, int64_t i)
{
    int64_t offset = 0;
    for (int d = a->ndim - 1; d >= 0; d--) {
        offset += i % a->shape[d] * a->stride[d];
        i /= a->shape[d];
    }
    return (char *)a->data + offset * (int64_t)rle_dtype_size(a->dtype);
}

static inline double get(const rle_array *a, int64_t i)
{
    const void *p = at(a, i);
    switch (a->dtype) {
    case RLE_F32: return *(const float *)p;
    case RLE_F64: return *(const double *)p;
    case RLE_I32: return *(const int32_t *)p;
    case RLE_I64: return (double)*(const int64_t *)p;
    default: return *(const uint8_t *)p;
    }
}

static inline int64_t get_int(const rle_array *a, int64_t i)
{
    return a->dtype == RLE_I64 ? *(const int64_t *)at(a, i) : (int64_t)get(a, i);
}

static inline void put(const rle_array *a, int64_t i, double v)
{
    void *p = at(a, i);
    switch (a->dtype) {
    case RLE_F32: *(float *)p = (float)v; break;
    case RLE_F64: *(double *)p = v; break;
    case RLE_I32: *(int32_t *)p = (int32_t)v; break;
    case RLE_I64: *(int64_t *)p = (int64_t)v; break;
    case RLE_U8: *(uint8_t *)p = (uint8_t)v; break;
    default: *(uint8_t *)p = v != 0; break;
    }
}

static inline void put_int(const rle_array *a, int64_t i, int64_t v)
{
    if (a->dtype == RLE_I64)
        *(int64_t *)at(a, i) = v;
    else
        put(a, i, (double)v);
}

/* Fill with small numbers; floats of both signs, with fractions. */
static inline void box_fill(box *b)
{
    int64_t n = rle_array_numel(&b->a);
    for (int64_t i = 0; i < n; i++) {
        if (rle_dtype_is_float(b->a.dtype))
            put(&b->a, i, (unit() - 0.5) * 8);
        else if (b->a.dtype == RLE_U8)
            put(&b->a, i, below(9));
        else
            put(&b->a, i, below(17) - 8);
    }
}

/* Nothing but the elements was written. */
static inline void box_check(const box *b)
{
    unsigned char *written = calloc(b->bytes, 1);
    size_t size = rle_dtype_size(b->a.dtype);
    int64_t n = rle_array_numel(&b->a);
    for (int64_t i = 0; i < n; i++)
        memset(written + ((unsigned char *)at(&b->a, i) - b->mem), 1, size);
    for (size_t i = 0; i < b->bytes; i++)
        if (!written[i] && b->mem[i] != SENTINEL)
            fail_msg("byte %zu of %zu beside the elements was overwritten", i, b->bytes);
    free(written);
}

/* A box with the same layout and contents. */
static inline box box_copy(const box *b)
{
    box c = *b;
    c.mem = malloc(b->bytes);
    memcpy(c.mem, b->mem, b->bytes);
    c.a.data = c.mem + ((unsigned char *)b->a.data - b->mem);
    return c;
}

/* The same bits; any NaN equals any other. */
static inline void same_bits(const rle_array *x, const rle_array *y, const char *what)
{
    int64_t n = rle_array_numel(x);
    size_t size = rle_dtype_size(x->dtype);
    for (int64_t i = 0; i < n; i++) {
        if (memcmp(at(x, i), at(y, i), size) == 0) continue;
        double v = get(x, i), w = get(y, i);
        if (v != v && w != w) continue;
        fail_msg("%s: element %lld differs: %.17g and %.17g", what, (long long)i, v, w);
    }
}

/* |x - want| within `ulps` units in the last place of the dtype, or `slack` absolutely. */
static inline bool near(rle_dtype t, double x, double want, double ulps, double slack)
{
    if (want != want) return x != x;
    if (t == RLE_F32) want = (double)(float)want;
    if (x == want) return true;
    if (!isfinite(x) || !isfinite(want)) return false;
    double unit_size = t == RLE_F32 ? ldexp(1, ilogb(want) < -126 ? -149 : ilogb(want) - 23)
                                    : nextafter(fabs(want), INFINITY) - fabs(want);
    return fabs(x - want) <= ulps * unit_size + slack;
}

/* ---- instruction sets ---- */

static const char *const check_isas[] = {"baseline", "avx2", "avx512"};

/* for (FOR_EACH_ISA(i)): the sets this machine has, baseline first. */
#define FOR_EACH_ISA(i)                                                                  \
    int i = 0;                                                                           \
    i < 3;                                                                               \
    i++) if (rle_cpu_use(check_isas[i])

static inline void some_shape(int *ndim, int64_t *shape, int most)
{
    static const int64_t sizes[] = {1, 1, 2, 3, 4, 5, 7, 16, 17, 33};
    *ndim = below(5);
    for (;;) {
        int64_t n = 1;
        for (int d = 0; d < *ndim; d++) n *= shape[d] = sizes[below(10)];
        if (n <= most) return;
    }
}

#endif
