/* dtype.h - element types and the strided array that layers hand to each other.
 *
 * The numbers are part of the RPC frame format: append, never reorder. f16 and bf16 have
 * their place but no arithmetic yet. */
#ifndef RLE_BASE_DTYPE_H
#define RLE_BASE_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef enum {
    RLE_F32 = 0,
    RLE_F64 = 1,
    RLE_I32 = 2,
    RLE_I64 = 3,
    RLE_U8 = 4,
    RLE_BOOL = 5, /* one byte, 0 or 1 */
    RLE_F16 = 6,
    RLE_BF16 = 7,
    RLE_DTYPE_COUNT
} rle_dtype;

#define RLE_DTYPE_BIT(t) (1u << (t))
#define RLE_DTYPES_FLOAT (RLE_DTYPE_BIT(RLE_F32) | RLE_DTYPE_BIT(RLE_F64))
#define RLE_DTYPES_INT                                                                   \
    (RLE_DTYPE_BIT(RLE_I32) | RLE_DTYPE_BIT(RLE_I64) | RLE_DTYPE_BIT(RLE_U8))
#define RLE_DTYPES_NUM (RLE_DTYPES_FLOAT | RLE_DTYPES_INT)
#define RLE_DTYPES_ALL (RLE_DTYPES_NUM | RLE_DTYPE_BIT(RLE_BOOL))

#define RLE_MAX_DIMS 8

/* For the compiler, in front of a loop over elements: its iterations are independent. An output
 * may be the very array of an input, never shifted against it. Clang warns where it stays scalar
 * nevertheless (-Wno-pass-failed). */
#if defined(__clang__)
#define RLE_IVDEP _Pragma("clang loop vectorize(assume_safety)")
#else
#define RLE_IVDEP _Pragma("GCC ivdep")
#endif

static inline size_t rle_dtype_size(rle_dtype t)
{
    static const unsigned char size[RLE_DTYPE_COUNT] = {4, 8, 4, 8, 1, 1, 2, 2};
    return size[t];
}

static inline bool rle_dtype_is_float(rle_dtype t)
{
    return t == RLE_F32 || t == RLE_F64 || t == RLE_F16 || t == RLE_BF16;
}

const char *rle_dtype_name(rle_dtype t);
/* INVALID_ARGUMENT names what there is. */
rle_status rle_dtype_parse(const char *name, rle_dtype *out);

/* A strided array somebody else owns. Strides count elements and may be 0 (broadcast).
 * data points at element [0,...,0]. */
typedef struct rle_array {
    void *data;
    rle_dtype dtype;
    int ndim;
    int64_t shape[RLE_MAX_DIMS];
    int64_t stride[RLE_MAX_DIMS];
} rle_array;

static inline int64_t rle_array_numel(const rle_array *a)
{
    int64_t n = 1;
    for (int i = 0; i < a->ndim; i++) n *= a->shape[i];
    return n;
}

static inline bool rle_array_is_contiguous(const rle_array *a)
{
    int64_t want = 1;
    for (int i = a->ndim - 1; i >= 0; i--) {
        if (a->shape[i] != 1 && a->stride[i] != want) return false;
        want *= a->shape[i];
    }
    return true;
}

/* Row-major strides for the array's shape. */
static inline void rle_array_set_contiguous(rle_array *a)
{
    int64_t stride = 1;
    for (int i = a->ndim - 1; i >= 0; i--) {
        a->stride[i] = stride;
        stride *= a->shape[i];
    }
}

/* "f32[2,3]" into `out`; returns `out`. */
char *rle_array_describe(const rle_array *a, char *out, size_t size);

#endif
