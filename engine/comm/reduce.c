/* reduce.c - the values of all ranks, combined element by element in the order of the
 * ranks.
 *
 * It goes block by block, and a block stays in the first cache while every rank's values
 * are added to it. Integers wrap around; a minimum or maximum with a NaN in it is NaN. */
#include <string.h>

#include "comm/comm_internal.h"

enum { BLOCK = 8192 }; /* bytes */

#define ADD(T, U, a, b) ((T)((U)(a) + (U)(b)))
#define MUL(T, U, a, b) ((T)((U)(a) * (U)(b)))
#define LEAST(T, U, a, b) ((a) < (b) || (a) != (a) ? (a) : (b))
#define MOST(T, U, a, b) ((a) > (b) || (a) != (a) ? (a) : (b))

/* `out` may be `a` or `b`, but does not overlap them otherwise. */
#define EACH(T, U, F) RLE_IVDEP for (size_t i = 0; i < n; i++) out[i] = F(T, U, a[i], b[i])

/* out = a op b, n elements. U: the type it is computed in. */
#define COMBINE(NAME, T, U)                                                              \
    static void NAME(rle_comm_op op, T *out, const T *a, const T *b, size_t n)           \
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

static void combine(rle_comm_op op, rle_dtype dtype, void *out, const void *a,
                    const void *b, size_t n)
{
    switch (dtype) {
    case RLE_F32:
        combine_f32(op, out, a, b, n);
        break;
    case RLE_F64:
        combine_f64(op, out, a, b, n);
        break;
    case RLE_I32:
        combine_i32(op, out, a, b, n);
        break;
    case RLE_I64:
        combine_i64(op, out, a, b, n);
        break;
    default:
        combine_u8(op, out, a, b, n);
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

/* Where the bytes of a message lie is up to the reader; this many at `p`, aligned. */
static const void *aligned(const uint8_t *p, size_t n, size_t width, void *room)
{
    return (uintptr_t)p % width ? memcpy(room, p, n) : p;
}

void rle_comm_combine(rle_comm_op op, rle_dtype dtype, const uint8_t *const *in,
                      int ranks, size_t size, uint8_t *out, uint8_t *copy)
{
    _Alignas(64) uint8_t acc[BLOCK];
    _Alignas(64) uint8_t one[BLOCK];
    _Alignas(64) uint8_t two[BLOCK];
    size_t width = rle_dtype_size(dtype);
    for (size_t at = 0; at < size; at += BLOCK) {
        size_t n = size - at < BLOCK ? size - at : BLOCK;
        /* `out` is one of the inputs, which may come later than the second. */
        bool there = ranks == 2 && (uintptr_t)(out + at) % width == 0;
        void *to = there ? out + at : acc;
        const void *a = aligned(in[0] + at, n, width, one);
        if (ranks == 1) memcpy(acc, a, n);
        for (int r = 1; r < ranks; r++) {
            combine(op, dtype, to, a, aligned(in[r] + at, n, width, two), n / width);
            a = to;
        }
        if (op == RLE_COMM_MEAN) divide(dtype, to, n / width, ranks);
        if (to == acc) memcpy(out + at, acc, n);
        if (copy) memcpy(copy + at, to, n);
    }
}
