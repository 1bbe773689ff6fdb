/* ops_index.c - picking elements by integer tensors. Indices inside tensors count from 0.
 */
#include "tensor/ops.h"

#include <inttypes.h>
#include <string.h>

/* Index tensors are i64 on the device; other integers are cast into *owned. */
static rle_status as_index(const char *what, rle_tensor *t, rle_tensor *index,
                           rle_tensor **owned)
{
    RLE_TRY(rle_same_device(what, t, index));
    rle_dtype d = index->a.dtype;
    if (d == RLE_I64) {
        *owned = rle_tensor_retain(index);
        return RLE_OK;
    }
    if (d == RLE_I32 || d == RLE_U8)
        return rle_op_to(index, rle_tensor_device(index), RLE_I64, owned);
    return rle_fail(RLE_INVALID_ARGUMENT, "%s: indices must be integers (i64), got %s",
                    what, rle_dtype_name(d));
}

static rle_status check_dim(const char *what, const rle_tensor *t, int dim)
{
    char text[128];
    if (dim >= 0 && dim < t->a.ndim) return RLE_OK;
    return rle_fail(RLE_INVALID_ARGUMENT, "%s: %s has no dimension %d", what,
                    rle_array_describe(&t->a, text, sizeof text), dim + 1);
}

/* index may be smaller than t in the other dimensions, never larger. */
static rle_status check_index_shape(const char *what, const rle_tensor *t, int dim,
                                    const rle_tensor *index)
{
    bool fits = t->a.ndim == index->a.ndim;
    for (int i = 0; fits && i < t->a.ndim; i++)
        fits = i == dim || index->a.shape[i] <= t->a.shape[i];
    if (fits) return RLE_OK;
    char left[128], right[128];
    return rle_fail(RLE_INVALID_ARGUMENT,
                    "%s along dimension %d: index %s does not fit into %s", what, dim + 1,
                    rle_array_describe(&index->a, right, sizeof right),
                    rle_array_describe(&t->a, left, sizeof left));
}

rle_status rle_op_gather(rle_tensor *t, int dim, rle_tensor *index, rle_tensor **out)
{
    RLE_TRY(check_dim("gather", t, dim));
    RLE_TRY(check_index_shape("gather", t, dim, index));
    rle_tensor *idx, *r = NULL;
    RLE_TRY(as_index("gather", t, index, &idx));
    rle_status status =
        rle_tensor_new(rle_tensor_device(t), t->a.dtype, idx->a.ndim, idx->a.shape, &r);
    if (status == RLE_OK)
        status =
            rle_tensor_ops(t)->gather(rle_tensor_device(t), &r->a, &t->a, dim, &idx->a);
    rle_tensor_release(idx);
    if (status != RLE_OK) {
        rle_tensor_release(r);
        return status;
    }
    *out = r;
    return RLE_OK;
}

rle_status rle_op_scatter(rle_tensor *into, int dim, rle_tensor *index, rle_tensor *src,
                          bool assign)
{
    const char *what = assign ? "scatter_" : "scatter_add_";
    RLE_TRY(check_dim(what, into, dim));
    RLE_TRY(check_index_shape(what, into, dim, index));
    RLE_TRY(check_index_shape(what, src, dim, index));
    if (src->a.dtype != into->a.dtype)
        return rle_fail(RLE_INVALID_ARGUMENT, "%s: source is %s, the tensor %s", what,
                        rle_dtype_name(src->a.dtype), rle_dtype_name(into->a.dtype));
    rle_tensor *idx;
    RLE_TRY(as_index(what, into, index, &idx));
    rle_array part = src->a; /* what index covers */
    memcpy(part.shape, idx->a.shape, sizeof part.shape);
    rle_status status = rle_tensor_ops(into)->scatter(rle_tensor_device(into), &into->a,
                                                      dim, &idx->a, &part, assign);
    rle_tensor_release(idx);
    if (status == RLE_OK) into->storage->version++;
    return status;
}

rle_status rle_op_index_select(rle_tensor *t, int dim, rle_tensor *index,
                               rle_tensor **out)
{
    RLE_TRY(check_dim("index_select", t, dim));
    if (index->a.ndim != 1)
        return rle_fail(RLE_INVALID_ARGUMENT,
                        "index_select: the index must have one dimension, it has %d",
                        index->a.ndim);
    rle_tensor *idx, *r = NULL;
    RLE_TRY(as_index("index_select", t, index, &idx));
    int64_t shape[RLE_MAX_DIMS];
    memcpy(shape, t->a.shape, sizeof shape);
    shape[dim] = idx->a.shape[0];
    rle_status status =
        rle_tensor_new(rle_tensor_device(t), t->a.dtype, t->a.ndim, shape, &r);
    if (status == RLE_OK)
        status = rle_tensor_ops(t)->index_select(rle_tensor_device(t), &r->a, &t->a, dim,
                                                 &idx->a);
    rle_tensor_release(idx);
    if (status != RLE_OK) {
        rle_tensor_release(r);
        return status;
    }
    *out = r;
    return RLE_OK;
}

rle_status rle_op_index_add(rle_tensor *into, int dim, rle_tensor *index, rle_tensor *src)
{
    RLE_TRY(check_dim("index_add_", into, dim));
    bool fits = index->a.ndim == 1 && src->a.ndim == into->a.ndim &&
                src->a.dtype == into->a.dtype;
    for (int i = 0; fits && i < into->a.ndim; i++)
        fits = src->a.shape[i] == (i == dim ? index->a.shape[0] : into->a.shape[i]);
    if (!fits) {
        char left[128], right[128];
        return rle_fail(RLE_INVALID_ARGUMENT,
                        "index_add_ along dimension %d: %s does not fit into %s", dim + 1,
                        rle_array_describe(&src->a, right, sizeof right),
                        rle_array_describe(&into->a, left, sizeof left));
    }
    rle_tensor *idx;
    RLE_TRY(as_index("index_add_", into, index, &idx));
    rle_status status = rle_tensor_ops(into)->index_add(rle_tensor_device(into), &into->a,
                                                        dim, &idx->a, &src->a);
    rle_tensor_release(idx);
    if (status == RLE_OK) into->storage->version++;
    return status;
}

rle_status rle_op_one_hot(rle_tensor *index, int64_t classes, rle_tensor **out)
{
    if (index->a.ndim == RLE_MAX_DIMS)
        return rle_fail(RLE_INVALID_ARGUMENT,
                        "one_hot: the index has %d dimensions already", RLE_MAX_DIMS);
    rle_tensor *idx;
    RLE_TRY(as_index("one_hot", index, index, &idx));
    rle_status status = RLE_OK;
    if (!classes) {
        rle_tensor *top = NULL;
        double value;
        int64_t largest = -1;
        if (rle_tensor_numel(idx)) {
            status = rle_op_reduce(RLE_REDUCE_MAX, idx, 0, false, &top);
            if (status == RLE_OK) status = rle_tensor_item(top, &value, &largest);
            rle_tensor_release(top);
        }
        classes = largest + 1;
    }
    rle_tensor *r = NULL, *ones = NULL;
    int64_t shape[RLE_MAX_DIMS];
    memcpy(shape, idx->a.shape, sizeof shape);
    shape[idx->a.ndim] = classes;
    rle_device *dev = rle_tensor_device(index);
    if (status == RLE_OK)
        status = rle_tensor_zeros(dev, RLE_I64, idx->a.ndim + 1, shape, &r);
    /* index with a last dimension of one, and a one for each of its elements */
    rle_array at = idx->a;
    at.shape[at.ndim] = 1;
    at.stride[at.ndim++] = 0;
    if (status == RLE_OK) status = rle_tensor_new(dev, RLE_I64, at.ndim, at.shape, &ones);
    if (status == RLE_OK) status = dev->ops->fill(dev, &ones->a, 1, 1);
    if (status == RLE_OK)
        status = dev->ops->scatter(dev, &r->a, at.ndim - 1, &at, &ones->a, true);
    rle_tensor_release(ones);
    rle_tensor_release(idx);
    if (status != RLE_OK) {
        rle_tensor_release(r);
        return status;
    }
    *out = r;
    return RLE_OK;
}
