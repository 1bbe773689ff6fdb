/* ops_reduce.c - reductions, softmax, running sums and sorting along dimensions. */
#include "tensor/ops.h"

#include <string.h>

static const char *const reduce_names[RLE_REDUCE_COUNT] = {
    "sum", "mean", "prod", "amax", "amin", "logsumexp", "sumsq", "any", "all"};

const char *rle_reduce_name(rle_reduce_kind kind)
{
    return reduce_names[kind];
}

/* Take the sizes of 1 that a reduction left in `dims` out of the shape of t (contiguous).
 */
static void drop_dims(rle_tensor *t, uint32_t dims)
{
    int n = 0;
    for (int i = 0; i < t->a.ndim; i++)
        if (!(dims >> i & 1)) t->a.shape[n++] = t->a.shape[i];
    t->a.ndim = n;
    rle_array_set_contiguous(&t->a);
}

static rle_status reduce_dtype(rle_reduce_kind kind, rle_dtype in, rle_dtype *out)
{
    switch (kind) {
    case RLE_REDUCE_SUM:
    case RLE_REDUCE_PROD:
        *out = rle_dtype_is_float(in) ? in : RLE_I64;
        return RLE_OK;
    case RLE_REDUCE_ANY:
    case RLE_REDUCE_ALL:
        *out = RLE_BOOL;
        return RLE_OK;
    case RLE_REDUCE_MAX:
    case RLE_REDUCE_MIN:
        *out = in;
        return RLE_OK;
    default:
        if (rle_dtype_is_float(in)) {
            *out = in;
            return RLE_OK;
        }
        return rle_fail(RLE_INVALID_ARGUMENT,
                        "%s: needs a float tensor, got %s; cast with "
                        ":to(\"f32\")",
                        reduce_names[kind], rle_dtype_name(in));
    }
}

rle_status rle_op_reduce(rle_reduce_kind kind, rle_tensor *t, uint32_t dims, bool keepdim,
                         rle_tensor **out)
{
    rle_dtype dtype = t->a.dtype;
    char text[128];
    if (!dims) dims = (1u << t->a.ndim) - 1;
    RLE_TRY(reduce_dtype(kind, t->a.dtype, &dtype));
    int64_t shape[RLE_MAX_DIMS];
    for (int i = 0; i < t->a.ndim; i++) {
        bool reduced = dims >> i & 1;
        shape[i] = reduced ? 1 : t->a.shape[i];
        bool has_empty = kind <= RLE_REDUCE_PROD || kind == RLE_REDUCE_LOGSUMEXP ||
                         kind >= RLE_REDUCE_SUMSQ;
        if (reduced && t->a.shape[i] == 0 && !has_empty)
            return rle_fail(
                RLE_INVALID_ARGUMENT, "%s of no elements: dimension %d of %s is empty",
                reduce_names[kind], i + 1, rle_array_describe(&t->a, text, sizeof text));
    }
    rle_tensor *r;
    RLE_TRY(rle_tensor_new(rle_tensor_device(t), dtype, t->a.ndim, shape, &r));
    rle_status status =
        rle_tensor_ops(t)->reduce(rle_tensor_device(t), kind, &r->a, &t->a, dims);
    if (status != RLE_OK) {
        rle_tensor_release(r);
        return status;
    }
    if (!keepdim) drop_dims(r, dims);
    *out = r;
    return RLE_OK;
}

/* A dimension of t, for operations along one; a scalar counts as one element. */
static rle_status check_dim(const char *what, const rle_tensor *t, int dim)
{
    char text[128];
    if (dim >= 0 && dim < t->a.ndim) return RLE_OK;
    return rle_fail(RLE_INVALID_ARGUMENT, "%s: %s has no dimension %d", what,
                    rle_array_describe(&t->a, text, sizeof text), dim + 1);
}

rle_status rle_op_arg_reduce(bool largest, rle_tensor *t, int dim, bool keepdim,
                             rle_tensor **values, rle_tensor **indices)
{
    const char *what = largest ? "max" : "min";
    RLE_TRY(check_dim(what, t, dim));
    char text[128];
    if (t->a.shape[dim] == 0)
        return rle_fail(RLE_INVALID_ARGUMENT,
                        "%s of no elements: dimension %d of %s is empty", what, dim + 1,
                        rle_array_describe(&t->a, text, sizeof text));
    int64_t shape[RLE_MAX_DIMS];
    memcpy(shape, t->a.shape, sizeof shape);
    shape[dim] = 1;
    rle_tensor *v = NULL, *i = NULL;
    rle_status status =
        rle_tensor_new(rle_tensor_device(t), RLE_I64, t->a.ndim, shape, &i);
    if (status == RLE_OK && values)
        status = rle_tensor_new(rle_tensor_device(t), t->a.dtype, t->a.ndim, shape, &v);
    if (status == RLE_OK)
        status = rle_tensor_ops(t)->arg_reduce(rle_tensor_device(t), largest,
                                               v ? &v->a : NULL, &i->a, &t->a, dim);
    if (status != RLE_OK) {
        rle_tensor_release(v);
        rle_tensor_release(i);
        return status;
    }
    if (!keepdim) {
        drop_dims(i, 1u << dim);
        if (v) drop_dims(v, 1u << dim);
    }
    if (values) *values = v;
    *indices = i;
    return RLE_OK;
}

static rle_status check_float(const char *what, const rle_tensor *t)
{
    if (rle_dtype_is_float(t->a.dtype)) return RLE_OK;
    return rle_fail(RLE_INVALID_ARGUMENT,
                    "%s: needs a float tensor, got %s; cast with "
                    ":to(\"f32\")",
                    what, rle_dtype_name(t->a.dtype));
}

rle_status rle_op_softmax(bool logarithm, rle_tensor *t, int dim, rle_tensor **out)
{
    const char *what = logarithm ? "log_softmax" : "softmax";
    RLE_TRY(check_dim(what, t, dim));
    RLE_TRY(check_float(what, t));
    rle_tensor *r;
    RLE_TRY(rle_tensor_new(rle_tensor_device(t), t->a.dtype, t->a.ndim, t->a.shape, &r));
    rle_status status =
        rle_tensor_ops(t)->softmax(rle_tensor_device(t), logarithm, &r->a, &t->a, dim);
    if (status != RLE_OK) {
        rle_tensor_release(r);
        return status;
    }
    *out = r;
    return RLE_OK;
}

rle_status rle_op_softmax_backward(bool logarithm, rle_tensor *gout, rle_tensor *y,
                                   int dim, rle_tensor **out)
{
    rle_tensor *r;
    RLE_TRY(rle_tensor_new(rle_tensor_device(y), y->a.dtype, y->a.ndim, y->a.shape, &r));
    rle_status status = rle_tensor_ops(y)->softmax_backward(
        rle_tensor_device(y), logarithm, &r->a, &gout->a, &y->a, dim);
    if (status != RLE_OK) {
        rle_tensor_release(r);
        return status;
    }
    *out = r;
    return RLE_OK;
}

rle_status rle_op_cumsum(rle_tensor *t, int dim, bool reverse, rle_tensor **out)
{
    RLE_TRY(check_dim("cumsum", t, dim));
    rle_dtype dtype = rle_dtype_is_float(t->a.dtype) ? t->a.dtype : RLE_I64;
    rle_tensor *in = rle_tensor_retain(t), *r = NULL;
    if (t->a.dtype != dtype) {
        rle_tensor_release(in);
        RLE_TRY(rle_op_to(t, rle_tensor_device(t), dtype, &in));
    }
    rle_status status =
        rle_tensor_new(rle_tensor_device(t), dtype, t->a.ndim, t->a.shape, &r);
    if (status == RLE_OK)
        status =
            rle_tensor_ops(t)->cumsum(rle_tensor_device(t), &r->a, &in->a, dim, reverse);
    rle_tensor_release(in);
    if (status != RLE_OK) {
        rle_tensor_release(r);
        return status;
    }
    *out = r;
    return RLE_OK;
}

rle_status rle_op_sort(rle_tensor *t, int dim, bool descending, rle_tensor **values,
                       rle_tensor **indices)
{
    RLE_TRY(check_dim("sort", t, dim));
    rle_tensor *v = NULL, *i = NULL;
    rle_status status =
        rle_tensor_new(rle_tensor_device(t), t->a.dtype, t->a.ndim, t->a.shape, &v);
    if (status == RLE_OK)
        status = rle_tensor_new(rle_tensor_device(t), RLE_I64, t->a.ndim, t->a.shape, &i);
    if (status == RLE_OK)
        status = rle_tensor_ops(t)->sort(rle_tensor_device(t), &v->a, &i->a, &t->a, dim,
                                         descending);
    if (status != RLE_OK) {
        rle_tensor_release(v);
        rle_tensor_release(i);
        return status;
    }
    *values = v;
    *indices = i;
    return RLE_OK;
}
