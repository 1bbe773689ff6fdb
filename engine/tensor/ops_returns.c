/* ops_returns.c - advantages and returns of steps in time. Nothing here is
 * differentiable: what comes out has no history. */
#include "tensor/ops.h"

static bool same_shape(const rle_array *a, const rle_array *b)
{
    if (a->ndim != b->ndim) return false;
    for (int d = 0; d < a->ndim; d++)
        if (a->shape[d] != b->shape[d]) return false;
    return true;
}

/* Another input [T] or [T, N] of the same device, of the given dtype. */
static rle_status check_steps(const char *what, const char *name, rle_tensor *rewards,
                              rle_tensor *t, rle_dtype dtype)
{
    if (!t) return RLE_OK;
    RLE_TRY(rle_same_device(what, rewards, t));
    if (t->a.dtype == dtype && same_shape(&t->a, &rewards->a)) return RLE_OK;
    char text[128], other[128];
    return rle_fail(RLE_INVALID_ARGUMENT,
                    "%s: %s must be %s and have the shape of rewards, %s; got %s", what,
                    name, rle_dtype_name(dtype),
                    rle_array_describe(&rewards->a, text, sizeof text),
                    rle_array_describe(&t->a, other, sizeof other));
}

static rle_status check_last(const char *what, rle_tensor *rewards, rle_tensor *last)
{
    if (!last) return RLE_OK;
    RLE_TRY(rle_same_device(what, rewards, last));
    int64_t columns = rewards->a.ndim == 2 ? rewards->a.shape[1] : 1;
    bool fits = last->a.ndim == 1 ? last->a.shape[0] == columns
                                  : last->a.ndim == 0 && rewards->a.ndim == 1;
    if (fits && last->a.dtype == rewards->a.dtype) return RLE_OK;
    char text[128], other[128];
    return rle_fail(
        RLE_INVALID_ARGUMENT,
        "%s: last must have one value for each column of rewards, %s, in its dtype; "
        "got %s",
        what, rle_array_describe(&rewards->a, text, sizeof text),
        rle_array_describe(&last->a, other, sizeof other));
}

static rle_status check_factor(const char *what, const char *name, double x)
{
    if (x >= 0 && x <= 1) return RLE_OK;
    return rle_fail(RLE_INVALID_ARGUMENT, "%s: %s must be in 0..1, got %g", what, name,
                    x);
}

/* [T] as [T, 1]. */
static const rle_array *as_columns(rle_array *m, const rle_tensor *t)
{
    if (!t) return NULL;
    *m = t->a;
    if (m->ndim == 1) {
        m->ndim = 2;
        m->shape[1] = 1;
        m->stride[1] = 0;
    }
    return m;
}

/* A value a column as [1, N]. */
static const rle_array *as_row(rle_array *m, const rle_tensor *t)
{
    if (!t) return NULL;
    *m = t->a;
    m->shape[1] = m->ndim ? m->shape[0] : 1;
    m->stride[1] = m->ndim ? m->stride[0] : 0;
    m->shape[0] = 1;
    m->stride[0] = 0;
    m->ndim = 2;
    return m;
}

rle_status rle_op_gae(rle_tensor *rewards, rle_tensor *values, rle_tensor *dones,
                      rle_tensor *last, double gamma, double lambda, rle_tensor **out)
{
    const char *what = values ? "gae" : "discounted";
    char text[128];
    rle_dtype dtype = rewards->a.dtype;
    if (!rle_dtype_is_float(dtype) || rewards->a.ndim < 1 || rewards->a.ndim > 2)
        return rle_fail(RLE_INVALID_ARGUMENT,
                        "%s: rewards must be floats of shape [T] or [T, N], got %s", what,
                        rle_array_describe(&rewards->a, text, sizeof text));
    RLE_TRY(check_steps(what, "values", rewards, values, dtype));
    RLE_TRY(check_steps(what, "dones", rewards, dones, RLE_BOOL));
    RLE_TRY(check_last(what, rewards, last));
    RLE_TRY(check_factor(what, "gamma", gamma));
    RLE_TRY(check_factor(what, "lambda", lambda));
    rle_device *dev = rle_tensor_device(rewards);
    rle_tensor *r;
    RLE_TRY(rle_tensor_new(dev, dtype, rewards->a.ndim, rewards->a.shape, &r));
    rle_array ro, ri, rv, rd, rl;
    rle_status status = dev->ops->gae(dev, as_columns(&ro, r), as_columns(&ri, rewards),
                                      as_columns(&rv, values), as_columns(&rd, dones),
                                      as_row(&rl, last), gamma, lambda);
    if (status != RLE_OK) {
        rle_tensor_release(r);
        return status;
    }
    *out = r;
    return RLE_OK;
}
