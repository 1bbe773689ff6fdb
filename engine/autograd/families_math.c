/* families_math.c - gradients of elementwise operations.
 *
 * Formulas: every comment gives d out / d in; g is the gradient of the output.
 * Broadcasting is undone by rle_node_give, which sums to the input's shape. */
#include "autograd/autograd_internal.h"

#include <math.h>

/* ---- unary ---- */

rle_status rle_unary_forward(int kind, rle_tensor *const *in, int nin,
                             const rle_op_args *args, rle_tensor **out)
{
    (void)nin;
    return rle_op_unary((rle_unary_kind)kind, in[0], args ? args->p0 : 0,
                        args ? args->p1 : 0, out);
}

rle_status rle_unary_backward(const rle_node *n, rle_tensor *gout, rle_tensor **gin)
{
    rle_tensor *x = NULL, *y = NULL, *g;
    rle_unary_kind kind = (rle_unary_kind)n->op->kind;
    if (n->op->saves & RLE_SAVE_IN0) RLE_TRY(rle_node_saved(n, 0, &x));
    if (n->op->saves & RLE_SAVE_OUT) RLE_TRY(rle_node_saved(n, 3, &y));
    if (kind == RLE_UNARY_NEG) {
        RLE_TRY(rle_op_unary(RLE_UNARY_NEG, gout, 0, 0, (g = NULL, &g)));
    } else if (kind == RLE_UNARY_SIGN ||
               (kind >= RLE_UNARY_FLOOR && kind <= RLE_UNARY_TRUNC)) {
        RLE_TRY(rle_tensor_zeros(rle_tensor_device(gout), gout->a.dtype, gout->a.ndim,
                                 gout->a.shape, &g));
    } else if (gout->refs == 1 && gout->storage->refs == 1 &&
               rle_tensor_is_contiguous(gout)) {
        /* A gradient that nobody else holds becomes the input's, in place. */
        RLE_TRY(rle_tensor_ops(gout)->unary_backward(
            rle_tensor_device(gout), kind, &gout->a, &gout->a, x ? &x->a : NULL,
            y ? &y->a : NULL, n->args.p0, n->args.p1));
        g = rle_tensor_retain(gout);
    } else {
        RLE_TRY(rle_op_unary_backward(kind, gout, x, y, n->args.p0, n->args.p1, &g));
    }
    return rle_node_give(n, 0, g, gin);
}

/* ---- binary ---- */

rle_status rle_binary_forward(int kind, rle_tensor *const *in, int nin,
                              const rle_op_args *args, rle_tensor **out)
{
    (void)nin;
    if (args && args->scalar)
        return rle_op_binary_scalar((rle_binary_kind)kind, in[0], args->p0,
                                    args->reversed, out);
    return rle_op_binary((rle_binary_kind)kind, in[0], in[1], out);
}

/* *t = *t op other, releasing the old *t; on failure too. */
static rle_status chain(rle_binary_kind kind, rle_tensor **t, rle_tensor *other)
{
    rle_tensor *r = NULL;
    rle_status status = rle_op_binary(kind, *t, other, &r);
    rle_tensor_release(*t);
    *t = r;
    return status;
}

static rle_status chain_scalar(rle_binary_kind kind, rle_tensor **t, double v,
                               bool reversed)
{
    rle_tensor *r = NULL;
    rle_status status = rle_op_binary_scalar(kind, *t, v, reversed, &r);
    rle_tensor_release(*t);
    *t = r;
    return status;
}

static rle_status chain_unary(rle_unary_kind kind, rle_tensor **t)
{
    rle_tensor *r = NULL;
    rle_status status = rle_op_unary(kind, *t, 0, 0, &r);
    rle_tensor_release(*t);
    *t = r;
    return status;
}

/* g where cond, else 0; takes cond over. */
static rle_status masked(rle_tensor *g, rle_tensor *cond, rle_tensor **out)
{
    rle_tensor *zero = NULL;
    rle_status status =
        rle_tensor_zeros(rle_tensor_device(g), g->a.dtype, 0, NULL, &zero);
    if (status == RLE_OK) status = rle_op_where(cond, g, zero, out);
    rle_tensor_release(zero);
    rle_tensor_release(cond);
    return status;
}

/* With one operand a number c: x op c, or c op x when reversed. */
static rle_status scalar_backward(const rle_node *n, rle_tensor *gout, rle_tensor **gin)
{
    double c = n->args.p0;
    bool reversed = n->args.reversed;
    rle_tensor *g = rle_tensor_retain(gout), *x = NULL, *y = NULL, *t = NULL;
    rle_status status = RLE_OK;
    rle_binary_kind kind = (rle_binary_kind)n->op->kind;
    switch (kind) {
    case RLE_BINARY_ADD:
        break;
    case RLE_BINARY_SUB: /* -1 when reversed */
        if (reversed) status = chain_unary(RLE_UNARY_NEG, &g);
        break;
    case RLE_BINARY_MUL:
        status = chain_scalar(RLE_BINARY_MUL, &g, c, false);
        break;
    case RLE_BINARY_DIV:
        if (!reversed) {
            status = chain_scalar(RLE_BINARY_DIV, &g, c, false);
            break;
        }
        /* c / x: -c / x^2 */
        status = rle_node_saved(n, 0, &x);
        if (status == RLE_OK) status = chain_scalar(RLE_BINARY_MUL, &g, -c, false);
        if (status == RLE_OK) status = chain(RLE_BINARY_DIV, &g, x);
        if (status == RLE_OK) status = chain(RLE_BINARY_DIV, &g, x);
        break;
    case RLE_BINARY_POW:
        status = rle_node_saved(n, 0, &x);
        if (status == RLE_OK) status = rle_node_saved(n, 3, &y);
        if (status != RLE_OK) break;
        if (!reversed) { /* x^c: c x^(c-1), 0 for c = 0 */
            if (c == 0) {
                status = chain_scalar(RLE_BINARY_MUL, &g, 0, false);
                break;
            }
            status = rle_op_binary_scalar(RLE_BINARY_POW, x, c - 1, false, &t);
            if (status == RLE_OK) status = chain_scalar(RLE_BINARY_MUL, &t, c, false);
        } else { /* c^x: c^x log c, 0 where c = 0 and x >= 0 */
            status =
                rle_op_binary_scalar(RLE_BINARY_MUL, y, c == 0 ? 0 : log(c), false, &t);
        }
        if (status == RLE_OK) status = chain(RLE_BINARY_MUL, &g, t);
        break;
    case RLE_BINARY_MAXIMUM:
    case RLE_BINARY_MINIMUM: {
        /* 1 where x wins, 1/2 on a tie */
        rle_tensor *half = NULL, *r = NULL;
        bool max = kind == RLE_BINARY_MAXIMUM;
        status = rle_node_saved(n, 0, &x);
        if (status == RLE_OK)
            status = rle_op_binary_scalar(max ? RLE_BINARY_GE : RLE_BINARY_LE, x, c,
                                          false, &t);
        if (status == RLE_OK) status = masked(g, t, &r);
        t = NULL;
        if (status == RLE_OK)
            status = rle_op_binary_scalar(RLE_BINARY_EQ, x, c, false, &t);
        if (status == RLE_OK)
            status = rle_op_binary_scalar(RLE_BINARY_MUL, r, 0.5, false, &half);
        if (status == RLE_OK) {
            rle_tensor_release(g);
            g = NULL;
            status = rle_op_where(t, half, r, &g);
        }
        rle_tensor_release(half);
        rle_tensor_release(r);
        break;
    }
    case RLE_BINARY_REMAINDER: /* x mod c: 1; c mod x: -floor(c / x) */
        if (!reversed) break;
        status = rle_node_saved(n, 0, &x);
        if (status == RLE_OK)
            status = rle_op_binary_scalar(RLE_BINARY_DIV, x, c, true, &t);
        if (status == RLE_OK) status = chain_unary(RLE_UNARY_FLOOR, &t);
        if (status == RLE_OK) status = chain(RLE_BINARY_MUL, &g, t);
        if (status == RLE_OK) status = chain_unary(RLE_UNARY_NEG, &g);
        break;
    case RLE_BINARY_ATAN2: { /* atan2(y, x): d y = x / (x^2 + y^2), d x = -y / (x^2 + y^2)
                              */
        status = rle_node_saved(n, 0, &x);
        if (status == RLE_OK) status = rle_op_unary(RLE_UNARY_SQUARE, x, 0, 0, &t);
        if (status == RLE_OK) status = chain_scalar(RLE_BINARY_ADD, &t, c * c, false);
        if (status == RLE_OK)
            status = chain_scalar(RLE_BINARY_MUL, &g, reversed ? -c : c, false);
        if (status == RLE_OK) status = chain(RLE_BINARY_DIV, &g, t);
        break;
    }
    default:
        status = rle_fail(RLE_INTERNAL, "no gradient for %s", n->op->name);
    }
    rle_tensor_release(t);
    if (status != RLE_OK) {
        rle_tensor_release(g);
        return status;
    }
    return rle_node_give(n, 0, g, gin);
}

/* d op / d input `i` (0 or 1) times g, into *g. */
static rle_status operand_gradient(const rle_node *n, int i, rle_tensor **g)
{
    rle_tensor *a = NULL, *b = NULL, *t = NULL, *y;
    rle_binary_kind kind = (rle_binary_kind)n->op->kind;
    /* Only what this gradient needs was kept; see needed_saves in node.c. */
    bool needs_own = kind != RLE_BINARY_MUL && !(kind == RLE_BINARY_DIV && i == 0);
    if (n->op->saves && (needs_own || i == 1)) RLE_TRY(rle_node_saved(n, 0, &a));
    if (n->op->saves && (needs_own || i == 0)) RLE_TRY(rle_node_saved(n, 1, &b));
    rle_status status = RLE_OK;
    switch (kind) {
    case RLE_BINARY_ADD:
        return RLE_OK;
    case RLE_BINARY_SUB:
        return i ? chain_unary(RLE_UNARY_NEG, g) : RLE_OK;
    case RLE_BINARY_MUL:
        return chain(RLE_BINARY_MUL, g, i ? a : b);
    case RLE_BINARY_DIV: /* 1 / b; -a / b^2 */
        RLE_TRY(chain(RLE_BINARY_DIV, g, b));
        if (!i) return RLE_OK;
        RLE_TRY(chain(RLE_BINARY_DIV, g, b));
        RLE_TRY(chain(RLE_BINARY_MUL, g, a));
        return chain_unary(RLE_UNARY_NEG, g);
    case RLE_BINARY_POW:
        if (!i) { /* b a^(b-1), and 0 where b = 0 */
            rle_tensor *less = NULL, *cond = NULL, *raw;
            status = rle_op_binary_scalar(RLE_BINARY_SUB, b, 1, false, &less);
            if (status == RLE_OK) status = rle_op_binary(RLE_BINARY_POW, a, less, &t);
            if (status == RLE_OK) status = chain(RLE_BINARY_MUL, &t, b);
            if (status == RLE_OK) status = chain(RLE_BINARY_MUL, g, t);
            if (status == RLE_OK)
                status = rle_op_binary_scalar(RLE_BINARY_NE, b, 0, false, &cond);
            if (status == RLE_OK) {
                raw = *g;
                *g = NULL;
                status = masked(raw, cond, g);
                rle_tensor_release(raw);
            }
            rle_tensor_release(less);
        } else { /* a^b log a, and 0 where a = 0 and b >= 0 */
            rle_tensor *cond = NULL, *raw;
            status = rle_node_saved(n, 3, &y);
            if (status == RLE_OK) status = rle_op_unary(RLE_UNARY_LOG, a, 0, 0, &t);
            if (status == RLE_OK) status = chain(RLE_BINARY_MUL, &t, y);
            if (status == RLE_OK) status = chain(RLE_BINARY_MUL, g, t);
            if (status == RLE_OK)
                status = rle_op_binary_scalar(RLE_BINARY_NE, a, 0, false, &cond);
            if (status == RLE_OK) {
                raw = *g;
                *g = NULL;
                status = masked(raw, cond, g);
                rle_tensor_release(raw);
            }
        }
        break;
    case RLE_BINARY_MAXIMUM:
    case RLE_BINARY_MINIMUM: {
        /* 1 where this operand wins, 1/2 on a tie */
        rle_tensor *own = i ? b : a, *other = i ? a : b, *r = NULL, *half = NULL;
        bool max = kind == RLE_BINARY_MAXIMUM;
        status = rle_op_binary(max ? RLE_BINARY_GE : RLE_BINARY_LE, own, other, &t);
        if (status == RLE_OK) status = masked(*g, t, &r);
        t = NULL;
        if (status == RLE_OK) status = rle_op_binary(RLE_BINARY_EQ, own, other, &t);
        if (status == RLE_OK)
            status = rle_op_binary_scalar(RLE_BINARY_MUL, r, 0.5, false, &half);
        if (status == RLE_OK) {
            rle_tensor_release(*g);
            *g = NULL;
            status = rle_op_where(t, half, r, g);
        }
        rle_tensor_release(r);
        rle_tensor_release(half);
        break;
    }
    case RLE_BINARY_ATAN2: { /* b / (a^2 + b^2); -a / (a^2 + b^2) */
        rle_tensor *bb = NULL;
        status = rle_op_unary(RLE_UNARY_SQUARE, a, 0, 0, &t);
        if (status == RLE_OK) status = rle_op_unary(RLE_UNARY_SQUARE, b, 0, 0, &bb);
        if (status == RLE_OK) status = chain(RLE_BINARY_ADD, &t, bb);
        if (status == RLE_OK) status = chain(RLE_BINARY_MUL, g, i ? a : b);
        if (status == RLE_OK) status = chain(RLE_BINARY_DIV, g, t);
        if (status == RLE_OK && i) status = chain_unary(RLE_UNARY_NEG, g);
        rle_tensor_release(bb);
        break;
    }
    case RLE_BINARY_REMAINDER: /* 1; -floor(a / b) */
        if (!i) return RLE_OK;
        status = rle_op_binary(RLE_BINARY_DIV, a, b, &t);
        if (status == RLE_OK) status = chain_unary(RLE_UNARY_FLOOR, &t);
        if (status == RLE_OK) status = chain(RLE_BINARY_MUL, g, t);
        if (status == RLE_OK) status = chain_unary(RLE_UNARY_NEG, g);
        break;
    default:
        status = rle_fail(RLE_INTERNAL, "no gradient for %s", n->op->name);
    }
    rle_tensor_release(t);
    return status;
}

rle_status rle_binary_backward(const rle_node *n, rle_tensor *gout, rle_tensor **gin)
{
    if (n->args.scalar) return scalar_backward(n, gout, gin);
    for (int i = 0; i < 2; i++) {
        if (!rle_edge_wants(&n->edge[i])) continue;
        rle_tensor *g = rle_tensor_retain(gout);
        rle_status status = operand_gradient(n, i, &g);
        if (status != RLE_OK) {
            rle_tensor_release(g);
            return status;
        }
        RLE_TRY(rle_node_give(n, i, g, gin));
    }
    return RLE_OK;
}

/* ---- where: the gradient goes to the side that was taken ---- */

rle_status rle_where_forward(int kind, rle_tensor *const *in, int nin,
                             const rle_op_args *args, rle_tensor **out)
{
    (void)kind, (void)nin, (void)args;
    return rle_op_where(in[0], in[1], in[2], out);
}

rle_status rle_where_backward(const rle_node *n, rle_tensor *gout, rle_tensor **gin)
{
    rle_tensor *cond, *zero;
    RLE_TRY(rle_node_saved(n, 0, &cond));
    RLE_TRY(rle_tensor_zeros(rle_tensor_device(gout), gout->a.dtype, 0, NULL, &zero));
    rle_status status = RLE_OK;
    for (int i = 1; i <= 2 && status == RLE_OK; i++) {
        if (!rle_edge_wants(&n->edge[i])) continue;
        rle_tensor *g = NULL;
        status = i == 1 ? rle_op_where(cond, gout, zero, &g)
                        : rle_op_where(cond, zero, gout, &g);
        if (status == RLE_OK) status = rle_node_give(n, i, g, gin);
    }
    rle_tensor_release(zero);
    return status;
}
