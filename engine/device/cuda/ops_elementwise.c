/* ops_elementwise.c - slots that compute element by element. What there is for which
 * dtype, and the words for what there is not, are the CPU's. */
#include "device/cuda/cuda_internal.h"

rle_status rle_cuda_no_dtype(const char *what, rle_dtype t)
{
    return rle_fail(RLE_UNIMPLEMENTED, "%s is not defined for %s", what,
                    rle_dtype_name(t));
}

/* What errors of the driver call the operation. */
static const char *const unary_names[RLE_UNARY_COUNT] = {
    "neg",     "abs",         "sign",   "exp",        "log",      "log1p", "expm1",
    "sqrt",    "rsqrt",       "square", "reciprocal", "sin",      "cos",   "tanh",
    "sigmoid", "softplus",    "relu",   "floor",      "ceil",     "round", "trunc",
    "clamp",   "logical_not", "isnan",  "isinf",      "isfinite",
};
static const char *const gradient_names[RLE_UNARY_COUNT] = {
    "gradient of neg",      "gradient of abs",        "gradient of sign",
    "gradient of exp",      "gradient of log",        "gradient of log1p",
    "gradient of expm1",    "gradient of sqrt",       "gradient of rsqrt",
    "gradient of square",   "gradient of reciprocal", "gradient of sin",
    "gradient of cos",      "gradient of tanh",       "gradient of sigmoid",
    "gradient of softplus", "gradient of relu",       "gradient of floor",
    "gradient of ceil",     "gradient of round",      "gradient of trunc",
    "gradient of clamp",
};
static const char *const binary_names[RLE_BINARY_COUNT] = {
    "add",     "sub",         "mul",        "div",         "pow",
    "maximum", "minimum",     "atan2",      "remainder",   "floor_div",
    "eq",      "ne",          "lt",         "le",          "gt",
    "ge",      "logical_and", "logical_or", "logical_xor",
};

static bool is_real(rle_dtype t)
{
    return t == RLE_F32 || t == RLE_F64;
}

/* Functions that integers and bool have, too. */
static bool whole_unary(rle_unary_kind kind)
{
    switch (kind) {
    case RLE_UNARY_NEG:
    case RLE_UNARY_ABS:
    case RLE_UNARY_SIGN:
    case RLE_UNARY_SQUARE:
    case RLE_UNARY_RELU:
    case RLE_UNARY_FLOOR:
    case RLE_UNARY_CEIL:
    case RLE_UNARY_ROUND:
    case RLE_UNARY_TRUNC:
    case RLE_UNARY_CLAMP:
    case RLE_UNARY_NOT:
    case RLE_UNARY_ISNAN:
    case RLE_UNARY_ISINF:
    case RLE_UNARY_ISFINITE:
        return true;
    default:
        return false;
    }
}

static bool has_binary(rle_binary_kind kind, rle_dtype t)
{
    if (is_real(t)) return true;
    return t <= RLE_BOOL && kind != RLE_BINARY_DIV && kind != RLE_BINARY_ATAN2;
}

rle_status rle_cuda_fill(rle_device *dev, const rle_array *out, double value,
                         int64_t integer)
{
    if (out->dtype > RLE_BOOL) return rle_cuda_no_dtype("fill", out->dtype);
    rle_k_loop l;
    rle_cuda_loop(&l, 1, &out);
    if (!l.numel) return RLE_OK;
    rle_cuda_enter(dev);
    return rle_cuda_check(
        dev, "fill", rle_k_fill(out->dtype, &l, value, integer, rle_cuda_stream(dev)));
}

rle_status rle_cuda_copy(rle_device *dev, const rle_array *out, const rle_array *in)
{
    if (out->dtype > RLE_BOOL || in->dtype > RLE_BOOL)
        return rle_cuda_no_dtype("copy", in->dtype > RLE_BOOL ? in->dtype : out->dtype);
    const rle_array *operands[] = {out, in};
    rle_k_loop l;
    rle_cuda_loop(&l, 2, operands);
    if (!l.numel) return RLE_OK;
    rle_cuda_enter(dev);
    return rle_cuda_check(dev, "copy",
                          rle_k_copy(out->dtype, in->dtype, &l, rle_cuda_stream(dev)));
}

rle_status rle_cuda_unary(rle_device *dev, rle_unary_kind kind, const rle_array *out,
                          const rle_array *in, double p0, double p1)
{
    if (!is_real(in->dtype) && (in->dtype > RLE_BOOL || !whole_unary(kind)))
        return rle_cuda_no_dtype("this function of one tensor", in->dtype);
    const rle_array *operands[] = {out, in};
    rle_k_loop l;
    rle_cuda_loop(&l, 2, operands);
    if (!l.numel) return RLE_OK;
    rle_cuda_enter(dev);
    return rle_cuda_check(dev, unary_names[kind],
                          rle_k_unary(in->dtype, kind, &l, p0, p1, rle_cuda_stream(dev)));
}

rle_status rle_cuda_unary_backward(rle_device *dev, rle_unary_kind kind,
                                   const rle_array *gin, const rle_array *gout,
                                   const rle_array *x, const rle_array *y, double p0,
                                   double p1)
{
    if (!is_real(gin->dtype) || rle_unary_gives_bool(kind))
        return rle_cuda_no_dtype("the gradient of this function", gin->dtype);
    const rle_array *saved = rle_unary_from_output(kind) ? y : x;
    if (!saved) saved = gout; /* the kind needs neither */
    const rle_array *operands[] = {gin, gout, saved};
    rle_k_loop l;
    rle_cuda_loop(&l, 3, operands);
    if (!l.numel) return RLE_OK;
    rle_cuda_enter(dev);
    return rle_cuda_check(
        dev, gradient_names[kind],
        rle_k_unary_backward(gin->dtype, kind, &l, p0, p1, rle_cuda_stream(dev)));
}

static rle_status binary(rle_device *dev, rle_binary_kind kind, const rle_array *out,
                         const rle_array *a, const rle_array *b, double value,
                         int64_t integer)
{
    const rle_array *operands[] = {out, a, b};
    rle_k_loop l;
    rle_cuda_loop(&l, 3, operands);
    if (!l.numel) return RLE_OK;
    rle_cuda_enter(dev);
    return rle_cuda_check(
        dev, binary_names[kind],
        rle_k_binary(a->dtype, kind, &l, value, integer, rle_cuda_stream(dev)));
}

rle_status rle_cuda_binary(rle_device *dev, rle_binary_kind kind, const rle_array *out,
                           const rle_array *a, const rle_array *b)
{
    if (!has_binary(kind, a->dtype))
        return rle_cuda_no_dtype("this function of two tensors", a->dtype);
    return binary(dev, kind, out, a, b, 0, 0);
}

rle_status rle_cuda_binary_scalar(rle_device *dev, rle_binary_kind kind,
                                  const rle_array *out, const rle_array *a, double value,
                                  int64_t integer, bool reversed)
{
    if (!has_binary(kind, a->dtype))
        return rle_cuda_no_dtype("this function of a tensor and a number", a->dtype);
    /* An operand that is everywhere the same and lies nowhere. */
    rle_array number = *a;
    number.data = NULL;
    for (int d = 0; d < number.ndim; d++) number.stride[d] = 0;
    return binary(dev, kind, out, reversed ? &number : a, reversed ? a : &number, value,
                  integer);
}

rle_status rle_cuda_where(rle_device *dev, const rle_array *out, const rle_array *cond,
                          const rle_array *a, const rle_array *b)
{
    if (out->dtype > RLE_BOOL) return rle_cuda_no_dtype("where", out->dtype);
    const rle_array *operands[] = {out, cond, a, b};
    rle_k_loop l;
    rle_cuda_loop(&l, 4, operands);
    if (!l.numel) return RLE_OK;
    rle_cuda_enter(dev);
    return rle_cuda_check(dev, "where",
                          rle_k_where(out->dtype, &l, rle_cuda_stream(dev)));
}
