/* families_reduce.c - gradients of reductions, softmax and running sums. */
#include "autograd/autograd_internal.h"

#include <string.h>

rle_status rle_reduce_forward(int kind, rle_tensor *const *in, int nin,
                              const rle_op_args *args, rle_tensor **out)
{
    (void)nin;
    return rle_op_reduce((rle_reduce_kind)kind, in[0], args ? args->dims : 0,
                         args && args->keepdim, out);
}

static uint32_t reduced_dims(const rle_node *n)
{
    return n->args.dims ? n->args.dims : (1u << n->input[0].ndim) - 1;
}

/* t (an output or its gradient) with the reduced dimensions put back as sizes of 1 and
 * expanded to the input's shape: a view. */
static rle_status spread(const rle_node *n, rle_tensor *t, rle_tensor **out)
{
    uint32_t dims = reduced_dims(n);
    rle_array a = {.data = t->a.data, .dtype = t->a.dtype, .ndim = n->input[0].ndim};
    int from = 0;
    for (int i = 0; i < a.ndim; i++) {
        bool reduced = dims >> i & 1;
        a.shape[i] = n->input[0].shape[i];
        a.stride[i] = reduced ? 0 : t->a.stride[from];
        if (!reduced || n->args.keepdim) from++;
    }
    return rle_tensor_view(t, &a, out);
}

/* Columns from `start` on of a matrix [rows, n]. */
static rle_array columns(const rle_tensor *m, int64_t start, int64_t count)
{
    rle_array a = m->a;
    a.data = (double *)a.data + start;
    a.shape[1] = count;
    return a;
}

/* into[r,k] = product of v[r,j] over j < k, with `after` over j > k: f64 [rows, n]. In
 * doubling steps, so that it is a few calls of the device; `other` is scratch, and the
 * result may end up in either: the two change places. */
static rle_status others_on_one_side(const rle_tensor *v, bool after, rle_tensor **into,
                                     rle_tensor **other)
{
    rle_device *dev = rle_tensor_device(v);
    int64_t n = v->a.shape[1];
    /* Shifted by one: entry k has its first factor, the end has none. */
    rle_array edge = columns(*into, after ? n - 1 : 0, 1);
    rle_array rest = columns(*into, after ? 0 : 1, n - 1);
    rle_array from = columns(v, after ? 1 : 0, n - 1);
    RLE_TRY(dev->ops->fill(dev, &edge, 1, 1));
    if (n > 1) RLE_TRY(dev->ops->copy(dev, &rest, &from));
    for (int64_t step = 1; step < n; step *= 2) {
        rle_tensor *was = *into, *now = *other;
        rle_array done = columns(was, after ? n - step : 0, step);
        rle_array keep = columns(now, after ? n - step : 0, step);
        rle_array near = columns(was, after ? 0 : step, n - step);
        rle_array far = columns(was, after ? step : 0, n - step);
        rle_array both = columns(now, after ? 0 : step, n - step);
        RLE_TRY(dev->ops->copy(dev, &keep, &done));
        RLE_TRY(dev->ops->binary(dev, RLE_BINARY_MUL, &both, &near, &far));
        *into = now;
        *other = was;
    }
    return RLE_OK;
}

/* x [..., reduced...] (permuted) -> f64 [rows, n]. */
static rle_status as_rows(rle_tensor *t, const int64_t *order, int64_t rows, int64_t n,
                          rle_tensor **out)
{
    rle_tensor *p, *wide;
    RLE_TRY(rle_op_permute(t, order, &p));
    rle_status status = rle_op_to(p, rle_tensor_device(t), RLE_F64, &wide);
    rle_tensor_release(p);
    RLE_TRY(status);
    status = rle_op_view(wide, 2, (int64_t[]){rows, n}, out);
    rle_tensor_release(wide);
    return status;
}

/* Gradient of prod: for each element the product of the others, without dividing (zeros),
 * in f64 whatever the dtype. */
static rle_status prod_backward(const rle_node *n, rle_tensor *gout, rle_tensor **out)
{
    enum { V, G, BEFORE, AFTER, SPARE, PARTS };
    rle_tensor *x, *spread_g = NULL, *back = NULL, *part[PARTS] = {NULL};
    RLE_TRY(rle_node_saved(n, 0, &x));
    rle_device *dev = rle_tensor_device(x);
    if (!rle_tensor_numel(x))
        return rle_tensor_zeros(dev, x->a.dtype, x->a.ndim, x->a.shape, out);
    /* The reduced dimensions last; and the way back. */
    uint32_t dims = reduced_dims(n);
    int ndim = x->a.ndim, at = 0;
    int64_t order[RLE_MAX_DIMS], inverse[RLE_MAX_DIMS], count = 1, moved[RLE_MAX_DIMS];
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < ndim; i++)
            if ((int)(dims >> i & 1) == pass) order[at++] = i;
    for (int i = 0; i < ndim; i++) {
        inverse[order[i]] = i;
        moved[i] = x->a.shape[order[i]];
        if (dims >> i & 1) count *= x->a.shape[i];
    }
    int64_t rows = rle_tensor_numel(x) / count;
    rle_status status = as_rows(x, order, rows, count, &part[V]);
    if (status == RLE_OK) status = spread(n, gout, &spread_g);
    if (status == RLE_OK) status = as_rows(spread_g, order, rows, count, &part[G]);
    for (int i = BEFORE; i < PARTS && status == RLE_OK; i++)
        status = rle_tensor_new(dev, RLE_F64, 2, (int64_t[]){rows, count}, &part[i]);
    if (status == RLE_OK)
        status = others_on_one_side(part[V], false, &part[BEFORE], &part[SPARE]);
    if (status == RLE_OK)
        status = others_on_one_side(part[V], true, &part[AFTER], &part[SPARE]);
    rle_tensor *into = part[BEFORE];
    if (status == RLE_OK)
        status = rle_op_binary(RLE_BINARY_MUL, into, part[AFTER], &into);
    if (status == RLE_OK) status = rle_op_binary(RLE_BINARY_MUL, into, part[G], &into);
    rle_tensor *shaped = NULL;
    if (status == RLE_OK) status = rle_op_view(into, ndim, moved, &shaped);
    if (status == RLE_OK) status = rle_op_permute(shaped, inverse, &back);
    if (status == RLE_OK) status = rle_op_to(back, dev, x->a.dtype, out);
    rle_tensor_release(back);
    rle_tensor_release(shaped);
    rle_tensor_release(spread_g);
    for (int i = 0; i < PARTS; i++) rle_tensor_release(part[i]);
    return status;
}

rle_status rle_reduce_backward(const rle_node *n, rle_tensor *gout, rle_tensor **gin)
{
    rle_tensor *x = NULL, *y = NULL, *g = NULL, *wide = NULL, *t = NULL, *r = NULL;
    rle_reduce_kind kind = (rle_reduce_kind)n->op->kind;
    if (kind == RLE_REDUCE_PROD) {
        RLE_TRY(prod_backward(n, gout, &r));
        return rle_node_give(n, 0, r, gin);
    }
    if (n->op->saves & RLE_SAVE_IN0) RLE_TRY(rle_node_saved(n, 0, &x));
    if (n->op->saves & RLE_SAVE_OUT) RLE_TRY(rle_node_saved(n, 3, &y));
    rle_status status = spread(n, gout, &g);
    if (status == RLE_OK && y) status = spread(n, y, &wide);
    if (status == RLE_OK) {
        switch (kind) {
        case RLE_REDUCE_SUM:
            r = rle_tensor_retain(g);
            break;
        case RLE_REDUCE_MEAN: { /* g / count */
            int64_t count = 1;
            uint32_t dims = reduced_dims(n);
            for (int i = 0; i < n->input[0].ndim; i++)
                if (dims >> i & 1) count *= n->input[0].shape[i];
            rle_tensor *small = NULL;
            status =
                rle_op_binary_scalar(RLE_BINARY_DIV, gout, (double)count, false, &small);
            if (status == RLE_OK) status = spread(n, small, &r);
            rle_tensor_release(small);
            break;
        }
        case RLE_REDUCE_SUMSQ: /* 2 x g */
            status = rle_op_binary(RLE_BINARY_MUL, g, x, &t);
            if (status == RLE_OK)
                status = rle_op_binary_scalar(RLE_BINARY_MUL, t, 2, false, &r);
            break;
        case RLE_REDUCE_LOGSUMEXP: /* g exp(x - y) */
            status = rle_op_binary(RLE_BINARY_SUB, x, wide, &t);
            if (status == RLE_OK)
                status = rle_op_unary(RLE_UNARY_EXP, t, 0, 0, (r = NULL, &r));
            if (status == RLE_OK) {
                rle_tensor *p = r;
                r = NULL;
                status = rle_op_binary(RLE_BINARY_MUL, p, g, &r);
                rle_tensor_release(p);
            }
            break;
        case RLE_REDUCE_MAX:
        case RLE_REDUCE_MIN: { /* shared evenly among equals, as PyTorch's amax */
            rle_tensor *hit = NULL, *mask = NULL, *count = NULL, *share = NULL;
            status = rle_op_binary(RLE_BINARY_EQ, x, wide, &hit);
            if (status == RLE_OK)
                status = rle_op_to(hit, rle_tensor_device(x), x->a.dtype, &mask);
            if (status == RLE_OK)
                status = rle_op_reduce(RLE_REDUCE_SUM, mask, n->args.dims, true, &count);
            if (status == RLE_OK) status = rle_op_binary(RLE_BINARY_MUL, mask, g, &share);
            if (status == RLE_OK)
                status = rle_op_binary(RLE_BINARY_DIV, share, count, &r);
            rle_tensor_release(hit);
            rle_tensor_release(mask);
            rle_tensor_release(count);
            rle_tensor_release(share);
            break;
        }
        default:
            status = rle_fail(RLE_INTERNAL, "no gradient for %s", n->op->name);
        }
    }
    rle_tensor_release(t);
    rle_tensor_release(wide);
    rle_tensor_release(g);
    if (status != RLE_OK) {
        rle_tensor_release(r);
        return status;
    }
    return rle_node_give(n, 0, r, gin);
}

/* ---- softmax and log_softmax along a dimension ---- */

rle_status rle_softmax_forward(int kind, rle_tensor *const *in, int nin,
                               const rle_op_args *args, rle_tensor **out)
{
    (void)nin;
    return rle_op_softmax(kind == 1, in[0], args->dim, out);
}

rle_status rle_softmax_backward(const rle_node *n, rle_tensor *gout, rle_tensor **gin)
{
    rle_tensor *y, *g;
    RLE_TRY(rle_node_saved(n, 3, &y));
    RLE_TRY(rle_op_softmax_backward(n->op->kind == 1, gout, y, n->args.dim, &g));
    return rle_node_give(n, 0, g, gin);
}

/* ---- cumsum: the running sum of the gradient from the other end ---- */

rle_status rle_cumsum_forward(int kind, rle_tensor *const *in, int nin,
                              const rle_op_args *args, rle_tensor **out)
{
    (void)kind, (void)nin;
    return rle_op_cumsum(in[0], args->dim, false, out);
}

rle_status rle_cumsum_backward(const rle_node *n, rle_tensor *gout, rle_tensor **gin)
{
    rle_tensor *g;
    RLE_TRY(rle_op_cumsum(gout, n->args.dim, true, &g));
    return rle_node_give(n, 0, g, gin);
}
