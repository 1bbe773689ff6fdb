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

/* Gradient of prod: for each element the product of the others, without dividing (zeros).
 * Exclusive running products from both ends along the reduced elements of each output. */
static rle_status prod_backward(const rle_node *n, rle_tensor *gout, rle_tensor **out)
{
    rle_tensor *x;
    RLE_TRY(rle_node_saved(n, 0, &x));
    rle_device *dev = rle_tensor_device(x);
    /* On the host, in f64: prod is rare, and this is exact about zeros. */
    int64_t numel = rle_tensor_numel(x);
    rle_tensor *x64 = NULL, *g64 = NULL, *wide = NULL, *r = NULL, *spread_g = NULL;
    rle_status status = rle_op_to(x, rle_device_cpu(), RLE_F64, &x64);
    if (status == RLE_OK) status = spread(n, gout, &spread_g);
    if (status == RLE_OK) status = rle_op_to(spread_g, rle_device_cpu(), RLE_F64, &g64);
    if (status == RLE_OK)
        status = rle_tensor_new(rle_device_cpu(), RLE_F64, x->a.ndim, x->a.shape, &wide);
    if (status == RLE_OK) {
        const double *v = x64->a.data, *g = g64->a.data;
        double *w = wide->a.data;
        uint32_t dims = reduced_dims(n);
        /* Flat offsets of the elements that one output multiplies, relative to its first.
         */
        int64_t count = 1;
        for (int i = 0; i < x->a.ndim; i++)
            if (dims >> i & 1) count *= x->a.shape[i];
        for (int64_t first = 0; first < numel; first++) {
            /* `first` starts a group when all its reduced coordinates are 0. */
            int64_t rest = first;
            bool starts = true;
            for (int i = x->a.ndim - 1; i >= 0; i--) {
                if ((dims >> i & 1) && rest % x->a.shape[i]) starts = false;
                rest /= x->a.shape[i];
            }
            if (!starts) continue;
            double before = 1;
            for (int pass = 0; pass < 2; pass++) {
                double running = 1;
                for (int64_t k = 0; k < count; k++) {
                    int64_t code = pass ? count - 1 - k : k, offset = first;
                    for (int i = x->a.ndim - 1; i >= 0; i--) {
                        if (!(dims >> i & 1)) continue;
                        offset += code % x->a.shape[i] * x64->a.stride[i];
                        code /= x->a.shape[i];
                    }
                    before = running;
                    running *= v[offset];
                    w[offset] = pass ? w[offset] * before * g[offset] : before;
                }
            }
        }
        status = rle_op_to(wide, dev, x->a.dtype, &r);
    }
    rle_tensor_release(x64);
    rle_tensor_release(g64);
    rle_tensor_release(wide);
    rle_tensor_release(spread_g);
    if (status == RLE_OK) *out = r;
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
