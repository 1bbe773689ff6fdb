/* reduce.c - the values of all ranks, combined element by element in the order of the
 * ranks.
 *
 * Bytes from messages lie at any address, so they go through a small block that stays in
 * the first cache. Integers wrap around; a minimum or maximum with a NaN in it is NaN. */
#include <string.h>

#include "comm/comm_internal.h"

enum { BLOCK = 2048 }; /* bytes */

#define ADD(T, U, a, b) ((T)((U)(a) + (U)(b)))
#define MUL(T, U, a, b) ((T)((U)(a) * (U)(b)))
#define LEAST(T, U, a, b) ((a) < (b) || (a) != (a) ? (a) : (b))
#define MOST(T, U, a, b) ((a) > (b) || (a) != (a) ? (a) : (b))

#define EACH(T, U, F)                                                                    \
    for (size_t i = 0; i < n; i++) acc[i] = F(T, U, acc[i], with[i])

/* acc = acc op with, for n elements. U: the type it is computed in. */
#define COMBINE(NAME, T, U)                                                              \
    static void NAME(rle_comm_op op, T *restrict acc, const T *restrict with, size_t n)  \
    {                                                                                    \
        switch (op) {                                                                    \
        case RLE_COMM_MIN:                                                               \
            EACH(T, U, LEAST);                                                           \
            break;                                                                       \
        case RLE_COMM_MAX:                                                               \
            EACH(T, U, MOST);                                                            \
            break;                                                                       \
        case RLE_COMM_PROD:                                                              \
            EACH(T, U, MUL);                                                             \
            break;                                                                       \
        default:                                                                         \
            EACH(T, U, ADD);                                                             \
            break;                                                                       \
        }                                                                                \
    }

COMBINE(combine_f32, float, float)
COMBINE(combine_f64, double, double)
COMBINE(combine_i32, int32_t, uint32_t)
COMBINE(combine_i64, int64_t, uint64_t)
COMBINE(combine_u8, uint8_t, unsigned)

static void combine(rle_comm_op op, rle_dtype dtype, void *acc, const void *with,
                    size_t n)
{
    switch (dtype) {
    case RLE_F32:
        combine_f32(op, acc, with, n);
        break;
    case RLE_F64:
        combine_f64(op, acc, with, n);
        break;
    case RLE_I32:
        combine_i32(op, acc, with, n);
        break;
    case RLE_I64:
        combine_i64(op, acc, with, n);
        break;
    default:
        combine_u8(op, acc, with, n);
        break;
    }
}

static void divide(rle_dtype dtype, void *acc, size_t n, int by)
{
    float *f = acc;
    double *d = acc;
    if (dtype == RLE_F32)
        for (size_t i = 0; i < n; i++) f[i] /= (float)by;
    else
        for (size_t i = 0; i < n; i++) d[i] /= (double)by;
}

void rle_comm_combine(rle_comm_op op, rle_dtype dtype, const uint8_t *const *in,
                      int ranks, size_t size, uint8_t *out)
{
    _Alignas(64) uint8_t acc[BLOCK];
    _Alignas(64) uint8_t with[BLOCK];
    size_t width = rle_dtype_size(dtype);
    for (size_t at = 0; at < size; at += BLOCK) {
        size_t n = size - at < BLOCK ? size - at : BLOCK;
        memcpy(acc, in[0] + at, n);
        for (int r = 1; r < ranks; r++) {
            memcpy(with, in[r] + at, n);
            combine(op, dtype, acc, with, n / width);
        }
        if (op == RLE_COMM_MEAN) divide(dtype, acc, n / width, ranks);
        memcpy(out + at, acc, n);
    }
}
