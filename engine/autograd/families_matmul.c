/* families_matmul.c - gradients of products. For y = a b: da = g b^T, db = a^T g. */
#include "autograd/autograd_internal.h"

rle_status rle_matmul_forward(int kind, rle_tensor *const *in, int nin,
                              const rle_op_args *args, rle_tensor **out)
{
    (void)kind, (void)nin, (void)args;
    return rle_op_matmul(in[0], in[1], out);
}

/* t with a dimension of size 1 at `at`; with its last two dimensions exchanged. */
static rle_status unit(rle_tensor *t, int at, rle_tensor **out)
{
    int64_t shape[RLE_MAX_DIMS];
    rle_array a = t->a;
    if (a.ndim == RLE_MAX_DIMS)
        return rle_fail(RLE_INVALID_ARGUMENT, "too many dimensions");
    for (int i = 0, j = 0; i <= a.ndim; i++) shape[i] = i == at ? 1 : t->a.shape[j++];
    return rle_op_reshape(t, a.ndim + 1, shape, out);
}

static rle_status flipped(rle_tensor *t, rle_tensor **out)
{
    int64_t order[RLE_MAX_DIMS];
    for (int i = 0; i < t->a.ndim; i++) order[i] = i;
    order[t->a.ndim - 1] = t->a.ndim - 2;
    order[t->a.ndim - 2] = t->a.ndim - 1;
    return rle_op_permute(t, order, out);
}

rle_status rle_matmul_backward(const rle_node *n, rle_tensor *gout, rle_tensor **gin)
{
    bool row = n->input[0].ndim == 1, column = n->input[1].ndim == 1;
    rle_tensor *g = NULL, *t = NULL;
    rle_status status = RLE_OK;
    /* g as a matrix, with the dimensions that matmul had taken out for vectors */
    if (row && column) {
        status = rle_op_reshape(gout, 2, (int64_t[]){1, 1}, &g);
    } else if (row) {
        status = unit(gout, gout->a.ndim - 1, &g);
    } else if (column) {
        status = unit(gout, gout->a.ndim, &g);
    } else {
        g = rle_tensor_retain(gout);
    }
    if (status == RLE_OK && rle_edge_wants(&n->edge[0])) {
        rle_tensor *b = NULL, *b2 = NULL, *bt = NULL, *da = NULL;
        status = rle_node_saved(n, 1, &b);
        if (status == RLE_OK)
            status = column ? unit(b, 1, &b2) : (b2 = rle_tensor_retain(b), RLE_OK);
        if (status == RLE_OK) status = flipped(b2, &bt);
        if (status == RLE_OK) status = rle_op_matmul(g, bt, &da);
        if (status == RLE_OK && row) { /* [..., 1, K] -> sum of leading -> [K] */
            status = rle_op_sum_to(da, 2, (int64_t[]){1, n->input[0].shape[0]}, &t);
            rle_tensor_release(da);
            da = NULL;
            if (status == RLE_OK) status = rle_op_reshape(t, 1, n->input[0].shape, &da);
            rle_tensor_release(t);
            t = NULL;
        }
        if (status == RLE_OK)
            status = rle_node_give(n, 0, da, gin);
        else
            rle_tensor_release(da);
        rle_tensor_release(b2);
        rle_tensor_release(bt);
    }
    if (status == RLE_OK && rle_edge_wants(&n->edge[1])) {
        rle_tensor *a = NULL, *a2 = NULL, *at = NULL, *db = NULL;
        status = rle_node_saved(n, 0, &a);
        if (status == RLE_OK)
            status = row ? unit(a, 0, &a2) : (a2 = rle_tensor_retain(a), RLE_OK);
        if (status == RLE_OK) status = flipped(a2, &at);
        if (status == RLE_OK) status = rle_op_matmul(at, g, &db);
        if (status == RLE_OK && column) { /* [..., K, 1] -> [K] */
            status = rle_op_sum_to(db, 2, (int64_t[]){n->input[1].shape[0], 1}, &t);
            rle_tensor_release(db);
            db = NULL;
            if (status == RLE_OK) status = rle_op_reshape(t, 1, n->input[1].shape, &db);
            rle_tensor_release(t);
        }
        if (status == RLE_OK)
            status = rle_node_give(n, 1, db, gin);
        else
            rle_tensor_release(db);
        rle_tensor_release(a2);
        rle_tensor_release(at);
    }
    rle_tensor_release(g);
    return status;
}

/* ---- linear: y = x W^T + b ---- */

rle_status rle_linear_forward(int kind, rle_tensor *const *in, int nin,
                              const rle_op_args *args, rle_tensor **out)
{
    (void)kind, (void)args;
    return rle_op_linear(in[0], in[1], nin > 2 ? in[2] : NULL, out);
}

/* A tensor as [rows, last size]: a view where strides allow. */
static rle_status as_matrix(rle_tensor *t, rle_tensor **out)
{
    int64_t shape[2] = {rle_row_count(&t->a), t->a.shape[t->a.ndim - 1]};
    return rle_op_reshape(t, 2, shape, out);
}

rle_status rle_linear_backward(const rle_node *n, rle_tensor *gout, rle_tensor **gin)
{
    rle_tensor *g = NULL, *x, *w, *r = NULL, *t = NULL, *rows = NULL;
    rle_status status = as_matrix(gout, &g);
    if (status == RLE_OK && rle_edge_wants(&n->edge[0])) { /* dx = g W */
        status = rle_node_saved(n, 1, &w);
        if (status == RLE_OK) status = rle_op_matmul(g, w, &t);
        if (status == RLE_OK)
            status = rle_op_reshape(t, n->input[0].ndim, n->input[0].shape, &r);
        rle_tensor_release(t);
        t = NULL;
        if (status == RLE_OK) status = rle_node_give(n, 0, r, gin);
    }
    if (status == RLE_OK && rle_edge_wants(&n->edge[1])) { /* dW = g^T x */
        r = NULL;
        status = rle_node_saved(n, 0, &x);
        if (status == RLE_OK) status = as_matrix(x, &rows);
        if (status == RLE_OK) status = flipped(g, &t);
        if (status == RLE_OK) status = rle_op_matmul(t, rows, &r);
        rle_tensor_release(t);
        rle_tensor_release(rows);
        if (status == RLE_OK) status = rle_node_give(n, 1, r, gin);
    }
    if (status == RLE_OK && n->nin > 2 &&
        rle_edge_wants(&n->edge[2])) { /* db = sum of rows */
        r = NULL;
        status = rle_op_reduce(RLE_REDUCE_SUM, g, 1, false, &r);
        if (status == RLE_OK) status = rle_node_give(n, 2, r, gin);
    }
    rle_tensor_release(g);
    return status;
}
