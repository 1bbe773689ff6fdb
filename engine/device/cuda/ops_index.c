/* ops_index.c - slots that address elements through an index. All entries are checked
 * before anything is written; that costs one wait for the stream. The words of an error
 * are the CPU's. */
#include <inttypes.h>

#include "device/cuda/cuda_internal.h"

/* What entry number `position` of the index is. */
static rle_status entry_of(rle_device *dev, const char *op, const rle_array *index,
                           int64_t position, int64_t *out)
{
    int64_t offset = 0, rest = position;
    for (int d = index->ndim - 1; d >= 0; d--) {
        offset += rest % index->shape[d] * index->stride[d];
        rest /= index->shape[d];
    }
    rle_cuda *c = rle_cuda_of(dev);
    RLE_TRY(
        rle_cuda_check(dev, op,
                       cudaMemcpyAsync(c->pinned, (int64_t *)index->data + offset,
                                       sizeof *out, cudaMemcpyDeviceToHost, c->stream)));
    RLE_TRY(rle_cuda_check(dev, op, cudaStreamSynchronize(c->stream)));
    *out = *(const int64_t *)c->pinned;
    return RLE_OK;
}

/* All entries of `index` lie in 0 .. extent-1. */
static rle_status check_indices(rle_device *dev, const char *op, const rle_array *index,
                                int dim, int64_t extent)
{
    if (index->dtype != RLE_I64)
        return rle_fail(RLE_INVALID_ARGUMENT, "index tensors are i64, this one is %s",
                        rle_dtype_name(index->dtype));
    rle_k_loop l;
    rle_cuda_loop_in_order(&l, 1, &index);
    if (!l.numel) return RLE_OK;
    unsigned long long *flag;
    uint64_t bad;
    RLE_TRY(rle_cuda_flag_reset(dev, &flag));
    RLE_TRY(rle_cuda_check(dev, op,
                           rle_k_check_index(&l, extent, flag, rle_cuda_stream(dev))));
    RLE_TRY(rle_cuda_flag_read(dev, op, &bad));
    if (bad == UINT64_MAX) return RLE_OK;
    int64_t value;
    RLE_TRY(entry_of(dev, op, index, (int64_t)bad, &value));
    return rle_fail(RLE_OUT_OF_RANGE,
                    "index %" PRId64 " (element %" PRId64
                    " of the index tensor) is out of range for dimension %d "
                    "of size %" PRId64 "; indices count from 0, the rest from 1",
                    value, (int64_t)bad + 1, dim + 1, extent);
}

/* An index of one dimension as one of `like`'s shape, the same for all its lines. */
static rle_array spread(const rle_array *index, const rle_array *like, int dim)
{
    rle_array a = *like;
    a.data = index->data;
    a.dtype = index->dtype;
    for (int d = 0; d < a.ndim; d++) a.stride[d] = 0;
    a.stride[dim] = index->stride[0];
    return a;
}

static rle_status gather(rle_device *dev, const char *op, const rle_array *out,
                         const rle_array *in, int dim, const rle_array *index)
{
    if (out->dtype > RLE_BOOL) return rle_cuda_no_dtype(op, out->dtype);
    rle_array from = *in; /* the kernel adds the index's steps */
    from.stride[dim] = 0;
    const rle_array *operands[] = {out, &from, index};
    rle_k_loop l;
    rle_cuda_loop(&l, 3, operands);
    if (!l.numel) return RLE_OK;
    rle_cuda_enter(dev);
    return rle_cuda_check(
        dev, op, rle_k_gather(out->dtype, &l, in->stride[dim], rle_cuda_stream(dev)));
}

static rle_status scatter(rle_device *dev, const char *op, const rle_array *out, int dim,
                          const rle_array *index, const rle_array *src, bool assign)
{
    if (out->dtype > RLE_BOOL) return rle_cuda_no_dtype(op, out->dtype);
    rle_k_scatter s = {.length = index->shape[dim],
                       .extent = out->shape[dim],
                       .out_step = out->stride[dim],
                       .src_step = src->stride[dim],
                       .index_step = index->stride[dim],
                       .shared = true};
    rle_array lines[3] = {*out, *src, *index};
    const rle_array *operands[3];
    for (int d = 0; d < index->ndim; d++)
        if (d != dim && index->shape[d] > 1 && index->stride[d] != 0) s.shared = false;
    for (int o = 0; o < 3; o++) {
        for (int d = 0; d < index->ndim; d++) lines[o].shape[d] = index->shape[d];
        lines[o].shape[dim] = 1;
        operands[o] = &lines[o];
    }
    rle_cuda_loop(&s.lines, 3, operands);
    if (!s.lines.numel || !s.length) return RLE_OK;
    rle_cuda_enter(dev);
    return rle_cuda_check(
        dev, op, rle_k_scatter_run(out->dtype, &s, assign, rle_cuda_stream(dev)));
}

rle_status rle_cuda_gather(rle_device *dev, const rle_array *out, const rle_array *in,
                           int dim, const rle_array *index)
{
    RLE_TRY(check_indices(dev, "gather", index, dim, in->shape[dim]));
    return gather(dev, "gather", out, in, dim, index);
}

rle_status rle_cuda_scatter(rle_device *dev, const rle_array *out, int dim,
                            const rle_array *index, const rle_array *src, bool assign)
{
    RLE_TRY(check_indices(dev, "scatter", index, dim, out->shape[dim]));
    return scatter(dev, "scatter", out, dim, index, src, assign);
}

rle_status rle_cuda_index_select(rle_device *dev, const rle_array *out,
                                 const rle_array *in, int dim, const rle_array *index)
{
    RLE_TRY(check_indices(dev, "index_select", index, dim, in->shape[dim]));
    rle_array all = spread(index, out, dim);
    return gather(dev, "index_select", out, in, dim, &all);
}

rle_status rle_cuda_index_add(rle_device *dev, const rle_array *out, int dim,
                              const rle_array *index, const rle_array *src)
{
    RLE_TRY(check_indices(dev, "index_add", index, dim, out->shape[dim]));
    rle_array all = spread(index, src, dim);
    return scatter(dev, "index_add", out, dim, &all, src, false);
}

rle_status rle_cuda_find_bad_row(rle_device *dev, const rle_array *in, bool nonnegative,
                                 int64_t *row)
{
    if (in->dtype != RLE_F32 && in->dtype != RLE_F64)
        return rle_cuda_no_dtype("this check", in->dtype);
    rle_k_loop l;
    rle_cuda_loop_in_order(&l, 1, &in);
    uint64_t bad = UINT64_MAX;
    if (l.numel) {
        unsigned long long *flag;
        RLE_TRY(rle_cuda_flag_reset(dev, &flag));
        RLE_TRY(
            rle_cuda_check(dev, "find_bad_row",
                           rle_k_find_bad_row(in->dtype, &l, in->shape[1], nonnegative,
                                              flag, rle_cuda_stream(dev))));
        RLE_TRY(rle_cuda_flag_read(dev, "find_bad_row", &bad));
    }
    *row = bad == UINT64_MAX ? -1 : (int64_t)bad;
    return RLE_OK;
}
