/* index.c - gather, scatter and their kin. Every index is checked before anything is
 * written. Elements are moved by size; only adding needs to know the dtype. */
#include "device/cpu/cpu_internal.h"

#include <inttypes.h>
#include <string.h>

static rle_status bad_index(int64_t value, int64_t position, int dim, int64_t extent)
{
    return rle_fail(RLE_OUT_OF_RANGE,
                    "index %" PRId64 " (element %" PRId64
                    " of the index tensor) is out of range for dimension %d "
                    "of size %" PRId64 "; indices count from 0, the rest from 1",
                    value, position + 1, dim + 1, extent);
}

/* All entries of `index` lie in 0 .. extent-1. */
static rle_status check_indices(const rle_array *index, int dim, int64_t extent)
{
    if (index->dtype != RLE_I64)
        return rle_fail(RLE_INVALID_ARGUMENT, "index tensors are i64, this one is %s",
                        rle_dtype_name(index->dtype));
    if (rle_array_is_contiguous(index)) {
        int64_t n = rle_array_numel(index);
        const int64_t *x = index->data;
        for (int64_t i = 0; i < n; i++)
            if ((uint64_t)x[i] >= (uint64_t)extent) return bad_index(x[i], i, dim, extent);
        return RLE_OK;
    }
    rle_walk w;
    rle_walk_init(&w, index, 0, 1, &index);
    for (int64_t i = 0; w.left > 0; rle_walk_next(&w), i++) {
        int64_t v = *(const int64_t *)w.p[0];
        if ((uint64_t)v >= (uint64_t)extent) return bad_index(v, i, dim, extent);
    }
    return RLE_OK;
}

static inline void set_one(char *dst, const char *src, int size)
{
    if (size == 4)
        memcpy(dst, src, 4);
    else if (size == 8)
        memcpy(dst, src, 8);
    else
        *dst = *src;
}

static inline void add_one(char *dst, const char *src, rle_dtype t)
{
    switch (t) {
    case RLE_F32: *(float *)dst += *(const float *)src; break;
    case RLE_F64: *(double *)dst += *(const double *)src; break;
    case RLE_I32: *(uint32_t *)dst += *(const uint32_t *)src; break;
    case RLE_I64: *(uint64_t *)dst += *(const uint64_t *)src; break;
    case RLE_U8: *(uint8_t *)dst = (uint8_t)(*(uint8_t *)dst + *(const uint8_t *)src); break;
    default: *(uint8_t *)dst |= *(const uint8_t *)src; break;
    }
}

/* `like` with the strides of `along` in the dimension left at 0, to be walked together
 * with the index: the caller adds index * stride. */
static rle_array without_dim(const rle_array *a, int dim)
{
    rle_array b = *a;
    b.stride[dim] = 0;
    return b;
}

rle_status rle_cpu_gather(rle_device *dev, const rle_array *out, const rle_array *in,
                          int dim, const rle_array *index)
{
    RLE_TRY(check_indices(index, dim, in->shape[dim]));
    int size = (int)rle_dtype_size(in->dtype);
    int64_t step = in->stride[dim] * size;
    rle_array from = without_dim(in, dim);
    const rle_array *arrays[3] = {out, &from, index};
    rle_walk w;
    rle_walk_init(&w, index, 0, 3, arrays);
    for (; w.left > 0; rle_walk_next(&w))
        set_one(w.p[0], w.p[1] + *(const int64_t *)w.p[2] * step, size);
    return RLE_OK;
}

rle_status rle_cpu_scatter(rle_device *dev, const rle_array *out, int dim,
                           const rle_array *index, const rle_array *src, bool assign)
{
    RLE_TRY(check_indices(index, dim, out->shape[dim]));
    if (out->dtype > RLE_BOOL) return rle_cpu_no_dtype("scatter", out->dtype);
    int size = (int)rle_dtype_size(out->dtype);
    int64_t step = out->stride[dim] * size;
    rle_array to = without_dim(out, dim);
    const rle_array *arrays[3] = {&to, src, index};
    rle_walk w;
    rle_walk_init(&w, index, 0, 3, arrays);
    for (; w.left > 0; rle_walk_next(&w)) {
        char *dst = w.p[0] + *(const int64_t *)w.p[2] * step;
        if (assign)
            set_one(dst, w.p[1], size);
        else
            add_one(dst, w.p[1], out->dtype);
    }
    return RLE_OK;
}

/* One side has the index's length in `dim`, the other is addressed through it. For each
 * index the remaining dimensions are a slice on both sides. */
static void by_slices(const rle_array *out, const rle_array *in, int dim,
                      const rle_array *index, bool add)
{
    int size = (int)rle_dtype_size(out->dtype);
    int64_t n = index->shape[0];
    const rle_array *indexed = add ? out : in;
    int64_t step = indexed->stride[dim] * size, run = 1;
    int64_t other_step = (add ? in : out)->stride[dim] * size;
    /* The innermost dimensions behind `dim` that are contiguous on both sides. */
    uint32_t skip = 1u << dim;
    for (int d = out->ndim - 1; d > dim; d--) {
        if (out->shape[d] != 1 && (out->stride[d] != run || in->stride[d] != run)) break;
        run *= out->shape[d];
        skip |= 1u << d;
    }
    const rle_array *both[2] = {out, in};
    rle_walk w;
    rle_walk_init(&w, out, skip, 2, both);
    for (; w.left > 0; rle_walk_next(&w)) {
        for (int64_t i = 0; i < n; i++) {
            int64_t j = ((const int64_t *)index->data)[i * index->stride[0]];
            char *dst = w.p[0] + (add ? j * step : i * other_step);
            const char *src = w.p[1] + (add ? i * other_step : j * step);
            if (add && out->dtype == RLE_F32)
                for (int64_t e = 0; e < run; e++) ((float *)dst)[e] += ((const float *)src)[e];
            else if (add)
                for (int64_t e = 0; e < run; e++)
                    add_one(dst + e * size, src + e * size, out->dtype);
            else if (run == 1)
                set_one(dst, src, size);
            else
                memcpy(dst, src, (size_t)(run * size));
        }
    }
}

rle_status rle_cpu_index_select(rle_device *dev, const rle_array *out,
                                const rle_array *in, int dim, const rle_array *index)
{
    RLE_TRY(check_indices(index, dim, in->shape[dim]));
    by_slices(out, in, dim, index, false);
    return RLE_OK;
}

rle_status rle_cpu_index_add(rle_device *dev, const rle_array *out, int dim,
                             const rle_array *index, const rle_array *src)
{
    RLE_TRY(check_indices(index, dim, out->shape[dim]));
    if (out->dtype > RLE_BOOL) return rle_cpu_no_dtype("index_add", out->dtype);
    by_slices(out, src, dim, index, true);
    return RLE_OK;
}
