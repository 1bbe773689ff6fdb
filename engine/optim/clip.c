/* clip.c - bounds on the gradients of a list of tensors. */
#include "optim/optim.h"

#include <math.h>

#include "tensor/ops.h"

/* sum |g|^p for finite p, max |g| for infinity. */
static rle_status gradient_power(rle_tensor *g, double p, double *out)
{
    rle_tensor *t = NULL, *r = NULL;
    int64_t integer;
    if (rle_tensor_numel(g) == 0) {
        *out = 0;
        return RLE_OK;
    }
    if (p == 2) {
        RLE_TRY(rle_op_reduce(RLE_REDUCE_SUMSQ, g, 0, false, &r));
    } else {
        RLE_TRY(rle_op_unary(RLE_UNARY_ABS, g, 0, 0, &t));
        rle_status status = RLE_OK;
        if (!isinf(p) && p != 1)
            status = rle_op_binary_scalar(RLE_BINARY_POW, t, p, false, &t);
        if (status == RLE_OK)
            status = rle_op_reduce(isinf(p) ? RLE_REDUCE_MAX : RLE_REDUCE_SUM, t, 0, false, &r);
        rle_tensor_release(t);
        RLE_TRY(status);
    }
    rle_status status = rle_tensor_item(r, out, &integer);
    rle_tensor_release(r);
    return status;
}

rle_status rle_clip_grad_norm(rle_tensor *const *params, int count, double max_norm,
                              double norm_type, double *norm)
{
    if (!(norm_type >= 1))
        return rle_fail(RLE_INVALID_ARGUMENT, "norm_type must be at least 1, got %g", norm_type);
    if (!(max_norm >= 0))
        return rle_fail(RLE_INVALID_ARGUMENT, "max_norm must not be negative, got %g", max_norm);
    double total = 0;
    for (int i = 0; i < count; i++) {
        if (!params[i]->grad) continue;
        double part;
        RLE_TRY(gradient_power(params[i]->grad, norm_type, &part));
        if (!isinf(norm_type))
            total += part;
        else if (part > total || isnan(part)) /* NaN stays: nothing is larger */
            total = part;
    }
    if (norm_type == 2)
        total = sqrt(total);
    else if (!isinf(norm_type))
        total = pow(total, 1 / norm_type);
    double coefficient = max_norm / (total + 1e-6);
    if (!(coefficient >= 1)) { /* also NaN: it must show */
        for (int i = 0; i < count; i++) {
            rle_tensor *g = params[i]->grad;
            if (g) RLE_TRY(rle_op_binary_scalar(RLE_BINARY_MUL, g, coefficient, false, &g));
        }
    }
    *norm = total;
    return RLE_OK;
}

rle_status rle_clip_grad_value(rle_tensor *const *params, int count, double limit)
{
    if (!(limit >= 0))
        return rle_fail(RLE_INVALID_ARGUMENT, "the limit must not be negative, got %g", limit);
    for (int i = 0; i < count; i++) {
        rle_tensor *g = params[i]->grad;
        if (g) RLE_TRY(rle_op_unary(RLE_UNARY_CLAMP, g, -limit, limit, &g));
    }
    return RLE_OK;
}
