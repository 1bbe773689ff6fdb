/* scan.c - operations that go along one dimension in order: extremes with their position,
 * running sums. */
#include "device/cpu/cpu_internal.h"

/* ---- arg_reduce ---- */

/* The first best of a line; NaN beats all (x != x never holds for integers). */
#define BEST(name, T)                                                                    \
    static int64_t best_##name(const void *line, int64_t step, int64_t n, bool largest)  \
    {                                                                                    \
        const T *x = line;                                                               \
        int64_t at = 0;                                                                  \
        T best = x[0];                                                                   \
        for (int64_t i = 1; i < n && best == best; i++) {                                \
            T v = x[i * step];                                                           \
            if (largest ? v > best : v < best) {                                         \
                best = v;                                                                \
                at = i;                                                                  \
            } else if (v != v) {                                                         \
                return i;                                                                \
            }                                                                            \
        }                                                                                \
        return at;                                                                       \
    }
BEST(f32, float)
BEST(f64, double)
BEST(i32, int32_t)
BEST(i64, int64_t)
BEST(u8, uint8_t)

rle_status rle_cpu_arg_reduce(rle_device *dev, bool largest, const rle_array *values,
                              const rle_array *indices, const rle_array *in, int dim)
{
    static int64_t (*const best[6])(const void *, int64_t, int64_t, bool) = {
        best_f32, best_f64, best_i32, best_i64, best_u8, best_u8};
    if (in->dtype > RLE_BOOL) return rle_cpu_no_dtype("argmax", in->dtype);
    int size = (int)rle_dtype_size(in->dtype);
    int64_t n = in->shape[dim], step = in->stride[dim];
    const rle_array *arrays[3] = {indices, in, values};
    rle_walk w;
    rle_walk_init(&w, in, 1u << dim, values ? 3 : 2, arrays);
    for (; w.left > 0; rle_walk_next(&w)) {
        int64_t at = best[in->dtype](w.p[1], step, n, largest);
        *(int64_t *)w.p[0] = at;
        if (!values) continue;
        const char *from = w.p[1] + at * step * size;
        if (size == 4)
            *(uint32_t *)w.p[2] = *(const uint32_t *)from;
        else if (size == 8)
            *(uint64_t *)w.p[2] = *(const uint64_t *)from;
        else
            *w.p[2] = *from;
    }
    return RLE_OK;
}

/* ---- cumsum ---- */

/* Floats run in double and are rounded for each element. The order is that of
 * kernels/scan.cu, which many threads share: within blocks of 256 elements, each from the
 * sum of the blocks before it in its chunk of 256 and of the chunks before that. Integers
 * run in int64 and wrap. */
static void line_floats(char *out, int64_t out_step, const char *in, int64_t in_step,
                        int64_t n, int f)
{
    double chunks = 0, blocks = 0, start = 0, sum = 0;
    for (int64_t i = 0; i < n; i++) {
        if (i > 0 && i % RLE_REDUCE_BLOCK == 0) {
            blocks += sum;
            sum = 0;
            if (i % RLE_REDUCE_CHUNK == 0) {
                chunks += blocks;
                blocks = 0;
            }
            start = chunks + blocks;
        }
        if (f) {
            sum += ((const double *)in)[i * in_step];
            ((double *)out)[i * out_step] = start + sum;
        } else {
            sum += ((const float *)in)[i * in_step];
            ((float *)out)[i * out_step] = (float)(start + sum);
        }
    }
}

static void line_integers(char *out, int64_t out_step, rle_dtype to, const char *in,
                          int64_t in_step, rle_dtype from, int64_t n)
{
    uint64_t sum = 0;
    for (int64_t i = 0; i < n; i++) {
        switch (from) {
        case RLE_I32: sum += (uint64_t)(int64_t)((const int32_t *)in)[i * in_step]; break;
        case RLE_I64: sum += (uint64_t)((const int64_t *)in)[i * in_step]; break;
        default: sum += ((const uint8_t *)in)[i * in_step]; break;
        }
        switch (to) {
        case RLE_I32: ((int32_t *)out)[i * out_step] = (int32_t)sum; break;
        case RLE_I64: ((int64_t *)out)[i * out_step] = (int64_t)sum; break;
        default: ((uint8_t *)out)[i * out_step] = (uint8_t)sum; break;
        }
    }
}

rle_status rle_cpu_cumsum(rle_device *dev, const rle_array *out, const rle_array *in,
                          int dim, bool reverse)
{
    int f = rle_cpu_float(in->dtype);
    if (in->dtype > RLE_BOOL || out->dtype >= RLE_BOOL ||
        (f >= 0 ? out->dtype != in->dtype : rle_cpu_float(out->dtype) >= 0))
        return rle_cpu_no_dtype("cumsum", in->dtype);
    int64_t n = in->shape[dim], in_step = in->stride[dim], out_step = out->stride[dim];
    int64_t in_start = 0, out_start = 0;
    if (reverse) {
        in_start = (n - 1) * in_step * (int64_t)rle_dtype_size(in->dtype);
        out_start = (n - 1) * out_step * (int64_t)rle_dtype_size(out->dtype);
        in_step = -in_step;
        out_step = -out_step;
    }
    const rle_array *both[2] = {out, in};
    rle_walk w;
    rle_walk_init(&w, in, 1u << dim, 2, both);
    for (; w.left > 0 && n > 0; rle_walk_next(&w)) {
        if (f >= 0)
            line_floats(w.p[0] + out_start, out_step, w.p[1] + in_start, in_step, n, f);
        else
            line_integers(w.p[0] + out_start, out_step, out->dtype, w.p[1] + in_start,
                          in_step, in->dtype, n);
    }
    return RLE_OK;
}
