/* ops_reduce.c - slots that go along dimensions: reductions, extremes, softmax, running
 * sums, sort. Here shapes are brought into the form that the kernels take. */
#include "device/cuda/cuda_internal.h"

static int64_t distance(int64_t stride)
{
    return stride < 0 ? -stride : stride;
}

/* The kept dimensions, those in which the input is densest last, so that neighbouring
 * threads read neighbouring elements. Which output is which does not matter to the
 * kernels. */
static void keep_dims(rle_k_reduce *r, const rle_array *out, const rle_array *in,
                      uint32_t dims)
{
    int order[RLE_MAX_DIMS], n = 0;
    for (int d = 0; d < in->ndim; d++) {
        if (dims >> d & 1 || in->shape[d] == 1) continue;
        int at = n++;
        for (; at > 0 && distance(in->stride[order[at - 1]]) < distance(in->stride[d]);
             at--)
            order[at] = order[at - 1];
        order[at] = d;
    }
    r->kept = 0;
    r->outputs = 1;
    for (int i = 0; i < n; i++) {
        int64_t size = in->shape[order[i]], from = in->stride[order[i]];
        int64_t to = out->stride[order[i]];
        int last = r->kept - 1;
        r->outputs *= size;
        if (last >= 0 && r->in_stride[last] == from * size &&
            r->out_stride[last] == to * size) {
            r->kept_shape[last] *= size;
        } else {
            last = r->kept++;
            r->kept_shape[last] = size;
        }
        r->in_stride[last] = from;
        r->out_stride[last] = to;
    }
    if (r->kept) return;
    r->kept = 1;
    r->kept_shape[0] = 1;
    r->in_stride[0] = r->out_stride[0] = 0;
}

/* The reduced dimensions keep their order: it is the order of summation. */
static void reduce_dims(rle_k_reduce *r, const rle_array *in, uint32_t dims)
{
    r->reduced = 0;
    r->count = 1;
    for (int d = 0; d < in->ndim; d++) {
        if (!(dims >> d & 1)) continue;
        int64_t size = in->shape[d], stride = in->stride[d];
        int last = r->reduced - 1;
        r->count *= size;
        if (size == 1) continue;
        if (last >= 0 && r->stride[last] == stride * size) {
            r->shape[last] *= size;
        } else {
            last = r->reduced++;
            r->shape[last] = size;
        }
        r->stride[last] = stride;
    }
    if (r->reduced) return;
    r->reduced = 1;
    r->shape[0] = 1;
    r->stride[0] = 0;
}

rle_status rle_cuda_reduce(rle_device *dev, rle_reduce_kind kind, const rle_array *out,
                           const rle_array *in, uint32_t dims)
{
    for (int d = 0; d < in->ndim; d++)
        if (out->shape[d] != in->shape[d]) dims |= 1u << d;
    rle_k_reduce r = {.in = in->data, .out = out->data};
    keep_dims(&r, out, in, dims);
    reduce_dims(&r, in, dims);
    if (!r.outputs) return RLE_OK;
    r.side_by_side = r.outputs > 1 && distance(r.in_stride[r.kept - 1]) <
                                          distance(r.stride[r.reduced - 1]);
    void *scratch = NULL;
    size_t bytes = rle_k_reduce_scratch(kind, &r);
    if (bytes) RLE_TRY(rle_cuda_scratch(dev, bytes, &scratch));
    rle_cuda_enter(dev);
    return rle_cuda_check(
        dev, "reduce",
        rle_k_reduce_run(kind, out->dtype, in->dtype, &r, scratch, rle_cuda_stream(dev)));
}

/* ---- rows along one dimension ---- */

/* Rows of `arrays` along dim; outputs that have size 1 there are not stepped through. The
 * rows are numbered so that neighbours lie close in array `dense`. */
static void rows_of(rle_k_rows *r, const rle_array *in, int dim, int count,
                    const rle_array *const *arrays, int dense)
{
    int order[RLE_MAX_DIMS], n = 0;
    const int64_t *by = arrays[dense]->stride;
    for (int d = 0; d < in->ndim; d++) {
        if (d == dim || in->shape[d] == 1) continue;
        int at = n++;
        for (; at > 0 && distance(by[order[at - 1]]) < distance(by[d]); at--)
            order[at] = order[at - 1];
        order[at] = d;
    }
    *r = (rle_k_rows){.rows = 1, .length = in->shape[dim]};
    for (int i = 0; i < n; i++) {
        int64_t size = in->shape[order[i]];
        int last = r->ndim - 1;
        bool merges = last >= 0;
        for (int k = 0; k < count && merges; k++)
            merges = r->stride[k][last] == arrays[k]->stride[order[i]] * size;
        if (!merges) last = r->ndim++;
        r->shape[last] = merges ? r->shape[last] * size : size;
        for (int k = 0; k < count; k++) r->stride[k][last] = arrays[k]->stride[order[i]];
        r->rows *= size;
    }
    for (int k = 0; k < count; k++) {
        r->data[k] = arrays[k]->data;
        r->step[k] = arrays[k]->stride[dim];
    }
    if (r->ndim)
        r->side_by_side =
            distance(r->stride[dense][r->ndim - 1]) < distance(r->step[dense]);
    else
        r->shape[r->ndim++] = 1;
}

rle_status rle_cuda_arg_reduce(rle_device *dev, bool largest, const rle_array *values,
                               const rle_array *indices, const rle_array *in, int dim)
{
    const rle_array *arrays[] = {indices, in, values};
    rle_k_rows r;
    rows_of(&r, in, dim, values ? 3 : 2, arrays, 1);
    if (!r.rows || !r.length) return RLE_OK;
    void *scratch = NULL;
    size_t bytes = rle_k_extremes_scratch(&r);
    if (bytes) RLE_TRY(rle_cuda_scratch(dev, bytes, &scratch));
    rle_cuda_enter(dev);
    return rle_cuda_check(
        dev, largest ? "argmax" : "argmin",
        rle_k_extremes(in->dtype, largest, &r, scratch, rle_cuda_stream(dev)));
}

static rle_status softmax(rle_device *dev, bool logarithm, const rle_array *out,
                          const rle_array *a, const rle_array *b, int dim)
{
    const rle_array *arrays[] = {out, a, b};
    rle_k_rows r;
    rows_of(&r, out, dim, b ? 3 : 2, arrays, 1);
    if (!r.rows || !r.length) return RLE_OK;
    rle_cuda_enter(dev);
    return rle_cuda_check(
        dev, logarithm ? "log_softmax" : "softmax",
        rle_k_softmax(out->dtype, logarithm, b != NULL, &r, rle_cuda_stream(dev)));
}

rle_status rle_cuda_softmax(rle_device *dev, bool logarithm, const rle_array *out,
                            const rle_array *in, int dim)
{
    return softmax(dev, logarithm, out, in, NULL, dim);
}

rle_status rle_cuda_softmax_backward(rle_device *dev, bool logarithm,
                                     const rle_array *gin, const rle_array *gout,
                                     const rle_array *y, int dim)
{
    return softmax(dev, logarithm, gin, gout, y, dim);
}

rle_status rle_cuda_cumsum(rle_device *dev, const rle_array *out, const rle_array *in,
                           int dim, bool reverse)
{
    const rle_array *arrays[] = {out, in};
    rle_k_rows r;
    rows_of(&r, in, dim, 2, arrays, 1);
    if (!r.rows || !r.length) return RLE_OK;
    for (int k = 0; k < 2 && reverse; k++) {
        r.data[k] = (char *)r.data[k] + (r.length - 1) * r.step[k] *
                                            (int64_t)rle_dtype_size(arrays[k]->dtype);
        r.step[k] = -r.step[k];
    }
    void *scratch = NULL;
    size_t bytes = rle_k_cumsum_scratch(&r);
    if (bytes) RLE_TRY(rle_cuda_scratch(dev, bytes, &scratch));
    rle_cuda_enter(dev);
    return rle_cuda_check(
        dev, "cumsum",
        rle_k_cumsum(out->dtype, in->dtype, &r, scratch, rle_cuda_stream(dev)));
}

rle_status rle_cuda_sort(rle_device *dev, const rle_array *values,
                         const rle_array *indices, const rle_array *in, int dim,
                         bool descending)
{
    const rle_array *arrays[] = {values, indices, in};
    rle_k_rows r;
    rows_of(&r, in, dim, 3, arrays, 2);
    if (!r.rows || !r.length) return RLE_OK;
    void *scratch = NULL;
    size_t bytes = rle_k_sort_scratch(in->dtype, &r);
    if (bytes) RLE_TRY(rle_cuda_scratch(dev, bytes, &scratch));
    rle_cuda_enter(dev);
    return rle_cuda_check(
        dev, "sort",
        rle_k_sort(in->dtype, descending, &r, scratch, rle_cuda_stream(dev)));
}
