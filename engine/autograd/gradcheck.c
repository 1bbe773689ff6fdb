/* gradcheck.c - backward compared with central differences, for any row of the table. */
#include "autograd/autograd.h"

#include <math.h>

#include "base/mem.h"

/* loss = sum of out * w, with w fixed pseudo-random numbers in [0.5, 1.5). */
static rle_status weigh(rle_tensor *out, rle_tensor **w)
{
    RLE_TRY(rle_tensor_new(rle_tensor_device(out), out->a.dtype, out->a.ndim,
                           out->a.shape, w));
    rle_context *c = rle_context_current();
    rle_rng fixed = {.seed = 7, .stream = 1}, *before = c->rng;
    c->rng = &fixed;
    rle_status status = rle_op_random(RLE_RANDOM_UNIFORM, *w, 0.5, 1.5);
    c->rng = before;
    return status;
}

static rle_status loss_of(rle_op_id id, rle_tensor *const *in, int nin,
                          const rle_op_args *args, double *loss)
{
    rle_tensor *out = NULL, *w = NULL, *product = NULL, *sum = NULL;
    int64_t integer;
    rle_status status = rle_apply(id, in, nin, args, &out);
    if (status == RLE_OK) status = weigh(out, &w);
    if (status == RLE_OK) status = rle_op_binary(RLE_BINARY_MUL, out, w, &product);
    if (status == RLE_OK) status = rle_op_reduce(RLE_REDUCE_SUM, product, 0, false, &sum);
    if (status == RLE_OK) status = rle_tensor_item(sum, loss, &integer);
    rle_tensor_release(out);
    rle_tensor_release(w);
    rle_tensor_release(product);
    rle_tensor_release(sum);
    return status;
}

static rle_status analytic(rle_op_id id, rle_tensor *const *in, int nin,
                           const rle_op_args *args)
{
    rle_tensor *out = NULL, *w = NULL;
    rle_status status = rle_apply(id, in, nin, args, &out);
    if (status == RLE_OK) status = weigh(out, &w);
    if (status == RLE_OK) status = rle_backward(out, w, false);
    rle_tensor_release(out);
    rle_tensor_release(w);
    return status;
}

/* The loss with input i at v, host memory. */
static rle_status loss_at(rle_op_id id, rle_tensor *const *in, int nin, int i,
                          const double *v, const rle_op_args *args, double *loss)
{
    RLE_TRY(rle_tensor_write_host(in[i], RLE_F64, v));
    return loss_of(id, in, nin, args, loss);
}

/* Compare input i, element by element. */
static rle_status compare(rle_op_id id, rle_tensor *const *in, int nin, int i,
                          const rle_op_args *args, double *worst)
{
    rle_tensor *x = in[i];
    size_t bytes = (size_t)rle_tensor_numel(x) * sizeof(double);
    double *host = rle_malloc(2 * bytes + 1), *v = host, *g = host + rle_tensor_numel(x);
    if (!host) return rle_oom(2 * bytes, "gradcheck");
    rle_status status = rle_tensor_to_host(x, v, bytes);
    if (status == RLE_OK) status = rle_tensor_to_host(x->grad, g, bytes);
    for (int64_t k = 0; k < rle_tensor_numel(x) && status == RLE_OK; k++) {
        double h = 1e-6 * (1 + fabs(v[k])), at = v[k], up, down;
        v[k] = at + h;
        status = loss_at(id, in, nin, i, v, args, &up);
        v[k] = at - h;
        if (status == RLE_OK) status = loss_at(id, in, nin, i, v, args, &down);
        v[k] = at;
        if (status != RLE_OK) break;
        double slope = (up - down) / (2 * h);
        double error = fabs(slope - g[k]) / (1 + fabs(slope));
        if (!(error <= *worst)) *worst = error;
    }
    rle_status restored = rle_tensor_write_host(x, RLE_F64, v);
    rle_free(host);
    return status != RLE_OK ? status : restored;
}

rle_status rle_gradcheck(rle_op_id id, rle_tensor *const *in, int nin, uint32_t wrt,
                         const rle_op_args *args, double *worst)
{
    *worst = 0;
    for (int i = 0; i < nin; i++) {
        if (!(wrt >> i & 1)) continue;
        if (in[i]->a.dtype != RLE_F64)
            return rle_fail(RLE_INVALID_ARGUMENT, "gradcheck: input %d must be f64",
                            i + 1);
        rle_tensor_release(in[i]->grad);
        in[i]->grad = NULL;
        RLE_TRY(rle_set_requires_grad(in[i], true));
    }
    RLE_TRY(analytic(id, in, nin, args));
    rle_context *c = rle_context_current();
    bool mode = c->grad_enabled;
    c->grad_enabled = false;
    rle_status status = RLE_OK;
    for (int i = 0; i < nin && status == RLE_OK; i++) {
        if (!(wrt >> i & 1)) continue;
        if (!in[i]->grad)
            status = rle_fail(RLE_INTERNAL, "gradcheck: %s gave input %d no gradient",
                              rle_ops[id].name, i + 1);
        else
            status = compare(id, in, nin, i, args, worst);
    }
    c->grad_enabled = mode;
    return status;
}
