/* ops_elementwise.c - dtype rules and broadcasting around the elementwise families. */
#include "tensor/ops.h"

#include <math.h>
#include <string.h>

static const char *const unary_names[RLE_UNARY_COUNT] = {
    "neg",     "abs",         "sign",   "exp",        "log",     "log1p", "expm1",
    "sqrt",    "rsqrt",       "square", "reciprocal", "sin",     "cos",   "tanh",
    "sigmoid", "softplus",    "relu",   "floor",      "ceil",    "round", "trunc",
    "clamp",   "logical_not", "isnan",  "isinf",      "isfinite"};

static const char *const binary_names[RLE_BINARY_COUNT] = {
    "add",     "sub",         "mul",        "div",        "pow",
    "maximum", "minimum",     "atan2",      "remainder",  "floor_divide",
    "eq",      "ne",          "lt",         "le",         "gt",
    "ge",      "logical_and", "logical_or", "logical_xor"};

const char *rle_unary_name(rle_unary_kind kind)
{
    return unary_names[kind];
}

const char *rle_binary_name(rle_binary_kind kind)
{
    return binary_names[kind];
}

rle_dtype rle_promote(rle_dtype a, rle_dtype b)
{
    static const unsigned char rank[RLE_DTYPE_COUNT] = {
        [RLE_BOOL] = 0, [RLE_U8] = 1,   [RLE_I32] = 2, [RLE_I64] = 3,
        [RLE_F16] = 4,  [RLE_BF16] = 5, [RLE_F32] = 6, [RLE_F64] = 7};
    return rank[a] >= rank[b] ? a : b;
}

/* Kinds that make floats of integers, as in PyTorch. */
static bool unary_wants_float(rle_unary_kind k)
{
    return (k >= RLE_UNARY_EXP && k <= RLE_UNARY_RSQRT) ||
           (k >= RLE_UNARY_RECIPROCAL && k <= RLE_UNARY_SOFTPLUS);
}

static bool same_shape(const rle_array *a, int ndim, const int64_t *shape)
{
    return a->ndim == ndim && memcmp(a->shape, shape, (size_t)ndim * sizeof *shape) == 0;
}

/* The result tensor: a new one, or *out (in-place) if shape and dtype allow. */
static rle_status result(const char *what, rle_device *dev, rle_dtype dtype, int ndim,
                         const int64_t *shape, rle_tensor **out, rle_tensor **t)
{
    if (!*out) return rle_tensor_new(dev, dtype, ndim, shape, t);
    /* In place. */
    rle_array want = {.dtype = dtype, .ndim = ndim};
    memcpy(want.shape, shape, (size_t)ndim * sizeof *shape);
    char have[128], need[128];
    if (!same_shape(&(*out)->a, ndim, shape) || (*out)->a.dtype != dtype)
        return rle_fail(RLE_INVALID_ARGUMENT,
                        "%s_: the result is %s and does not fit into %s", what,
                        rle_array_describe(&want, need, sizeof need),
                        rle_array_describe(&(*out)->a, have, sizeof have));
    for (int i = 0; i < ndim; i++)
        if ((*out)->a.stride[i] == 0 && shape[i] > 1)
            return rle_fail(
                RLE_FAILED_PRECONDITION,
                "%s_: an expanded tensor has one element in many places; clone it "
                "first",
                what);
    *t = *out;
    return RLE_OK;
}

/* Hand over the result, or drop it after a failure. */
static rle_status finish(rle_status status, rle_tensor *t, rle_tensor **out)
{
    if (*out) {
        if (status == RLE_OK) t->storage->version++;
        return status;
    }
    if (status != RLE_OK) {
        rle_tensor_release(t);
        return status;
    }
    *out = t;
    return RLE_OK;
}

/* t in `dtype`: itself retained, or a cast copy. */
static rle_status cast(rle_tensor *t, rle_dtype dtype, rle_tensor **out)
{
    if (t->a.dtype != dtype) return rle_op_to(t, rle_tensor_device(t), dtype, out);
    *out = rle_tensor_retain(t);
    return RLE_OK;
}

rle_status rle_op_unary(rle_unary_kind kind, rle_tensor *t, double p0, double p1,
                        rle_tensor **out)
{
    rle_dtype dtype = t->a.dtype;
    if (dtype == RLE_BOOL && !rle_unary_gives_bool(kind) && !unary_wants_float(kind))
        return rle_fail(RLE_INVALID_ARGUMENT,
                        "%s: not for bool tensors; cast with :to(\"f32\")",
                        unary_names[kind]);
    if (unary_wants_float(kind) && !rle_dtype_is_float(dtype)) dtype = RLE_F32;
    rle_tensor *in, *r;
    RLE_TRY(cast(t, dtype, &in));
    rle_status status = result(unary_names[kind], rle_tensor_device(t),
                               rle_unary_gives_bool(kind) ? RLE_BOOL : dtype, t->a.ndim,
                               t->a.shape, out, &r);
    if (status == RLE_OK)
        status = finish(
            rle_tensor_ops(t)->unary(rle_tensor_device(t), kind, &r->a, &in->a, p0, p1),
            r, out);
    rle_tensor_release(in);
    return status;
}

rle_status rle_op_unary_backward(rle_unary_kind kind, rle_tensor *gout, rle_tensor *x,
                                 rle_tensor *y, double p0, double p1, rle_tensor **out)
{
    rle_tensor *g;
    RLE_TRY(rle_tensor_new(rle_tensor_device(gout), gout->a.dtype, gout->a.ndim,
                           gout->a.shape, &g));
    rle_tensor *none = NULL;
    rle_status status = rle_tensor_ops(gout)->unary_backward(
        rle_tensor_device(gout), kind, &g->a, &gout->a, x ? &x->a : NULL,
        y ? &y->a : NULL, p0, p1);
    status = finish(status, g, &none);
    if (status == RLE_OK) *out = none;
    return status;
}

static rle_dtype binary_dtype(rle_binary_kind kind, rle_dtype common)
{
    if (rle_dtype_is_float(common)) return common;
    if (kind == RLE_BINARY_DIV || kind == RLE_BINARY_ATAN2) return RLE_F32;
    /* Arithmetic on truth values counts, as in PyTorch's sum; comparisons stay. */
    if (common == RLE_BOOL && kind < RLE_BINARY_EQ) return RLE_I64;
    return common;
}

/* Two tensors of one float dtype and one shape need no rules: most pairs are such. */
static bool alike(const rle_tensor *a, const rle_tensor *b)
{
    return a->a.dtype == b->a.dtype && rle_dtype_is_float(a->a.dtype) &&
           same_shape(&a->a, b->a.ndim, b->a.shape);
}

static rle_status binary_alike(rle_binary_kind kind, rle_tensor *a, rle_tensor *b,
                               rle_tensor **out)
{
    rle_dtype dtype = rle_binary_gives_bool(kind) ? RLE_BOOL : a->a.dtype;
    rle_tensor *r;
    RLE_TRY(result(binary_names[kind], rle_tensor_device(a), dtype, a->a.ndim, a->a.shape,
                   out, &r));
    return finish(
        rle_tensor_ops(a)->binary(rle_tensor_device(a), kind, &r->a, &a->a, &b->a), r,
        out);
}

rle_status rle_op_binary(rle_binary_kind kind, rle_tensor *a, rle_tensor *b,
                         rle_tensor **out)
{
    RLE_TRY(rle_same_device(binary_names[kind], a, b));
    if (alike(a, b)) return binary_alike(kind, a, b, out);
    rle_dtype dtype = binary_dtype(kind, rle_promote(a->a.dtype, b->a.dtype));
    /* A number as a 0-d tensor does not lift a tensor of its own kind, as in PyTorch. */
    if (a->a.ndim && !b->a.ndim && rle_dtype_is_float(a->a.dtype))
        dtype = a->a.dtype;
    else if (b->a.ndim && !a->a.ndim && rle_dtype_is_float(b->a.dtype))
        dtype = b->a.dtype;
    int ndim;
    int64_t shape[RLE_MAX_DIMS];
    rle_status status = rle_broadcast(&a->a, &b->a, &ndim, shape);
    if (status != RLE_OK)
        return rle_fail(status, "%s: %s", binary_names[kind], rle_message());
    rle_tensor *x = NULL, *y = NULL, *r;
    status = cast(a, dtype, &x);
    if (status == RLE_OK) status = cast(b, dtype, &y);
    if (status == RLE_OK)
        status =
            result(binary_names[kind], rle_tensor_device(a),
                   rle_binary_gives_bool(kind) ? RLE_BOOL : dtype, ndim, shape, out, &r);
    if (status == RLE_OK) {
        rle_device *dev = rle_tensor_device(a);
        if (same_shape(&x->a, ndim, shape) && same_shape(&y->a, ndim, shape)) {
            status = dev->ops->binary(dev, kind, &r->a, &x->a, &y->a);
        } else {
            rle_array ex = rle_array_expanded(&x->a, ndim, shape);
            rle_array ey = rle_array_expanded(&y->a, ndim, shape);
            status = dev->ops->binary(dev, kind, &r->a, &ex, &ey);
        }
        status = finish(status, r, out);
    }
    rle_tensor_release(x);
    rle_tensor_release(y);
    return status;
}

rle_status rle_op_binary_scalar(rle_binary_kind kind, rle_tensor *t, double value,
                                bool reversed, rle_tensor **out)
{
    rle_dtype dtype = t->a.dtype;
    bool whole = value == floor(value) && fabs(value) <= 9007199254740992.0;
    if (!rle_dtype_is_float(dtype) && !whole) dtype = RLE_F32;
    if (dtype == RLE_BOOL && !(kind >= RLE_BINARY_EQ && (value == 0 || value == 1)))
        dtype = RLE_I64;
    dtype = binary_dtype(kind, dtype);
    rle_tensor *x, *r;
    RLE_TRY(cast(t, dtype, &x));
    rle_status status = result(binary_names[kind], rle_tensor_device(t),
                               rle_binary_gives_bool(kind) ? RLE_BOOL : dtype, t->a.ndim,
                               t->a.shape, out, &r);
    if (status == RLE_OK)
        status = finish(
            rle_tensor_ops(t)->binary_scalar(rle_tensor_device(t), kind, &r->a, &x->a,
                                             value, whole ? (int64_t)value : 0, reversed),
            r, out);
    rle_tensor_release(x);
    return status;
}

rle_status rle_op_where(rle_tensor *cond, rle_tensor *a, rle_tensor *b, rle_tensor **out)
{
    RLE_TRY(rle_same_device("where", cond, a));
    RLE_TRY(rle_same_device("where", a, b));
    if (cond->a.dtype != RLE_BOOL)
        return rle_fail(RLE_INVALID_ARGUMENT, "where: the condition must be bool, got %s",
                        rle_dtype_name(cond->a.dtype));
    rle_array both = {.dtype = RLE_F32}, all = {.dtype = RLE_F32};
    RLE_TRY(rle_broadcast(&a->a, &b->a, &both.ndim, both.shape));
    RLE_TRY(rle_broadcast(&cond->a, &both, &all.ndim, all.shape));
    rle_dtype dtype = rle_promote(a->a.dtype, b->a.dtype);
    rle_tensor *x = NULL, *y = NULL, *r = NULL;
    rle_status status = cast(a, dtype, &x);
    if (status == RLE_OK) status = cast(b, dtype, &y);
    if (status == RLE_OK)
        status = rle_tensor_new(rle_tensor_device(a), dtype, all.ndim, all.shape, &r);
    if (status == RLE_OK) {
        rle_array ec = rle_array_expanded(&cond->a, all.ndim, all.shape);
        rle_array ex = rle_array_expanded(&x->a, all.ndim, all.shape);
        rle_array ey = rle_array_expanded(&y->a, all.ndim, all.shape);
        rle_tensor *none = NULL;
        status =
            finish(rle_tensor_ops(a)->where(rle_tensor_device(a), &r->a, &ec, &ex, &ey),
                   r, &none);
        if (status == RLE_OK) *out = none;
    }
    rle_tensor_release(x);
    rle_tensor_release(y);
    return status;
}
