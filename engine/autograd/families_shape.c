/* families_shape.c - gradients of views, copies, indexing and joining. */
#include "autograd/autograd_internal.h"

#include <string.h>

/* Zeros of input 0's shape, for gradients that fill a part of it. */
static rle_status input_zeros(const rle_node *n, rle_tensor *like, rle_tensor **out)
{
    const rle_input *input = &n->input[0];
    return rle_tensor_zeros(rle_tensor_device(like), like->a.dtype, input->ndim,
                            input->shape, out);
}

/* ---- select and narrow: the gradient lands where the view looked ---- */

rle_status rle_select_forward(int kind, rle_tensor *const *in, int nin,
                              const rle_op_args *args, rle_tensor **out)
{
    (void)kind, (void)nin;
    return rle_op_select(in[0], args->dim, args->i0, out);
}

rle_status rle_select_backward(const rle_node *n, rle_tensor *gout, rle_tensor **gin)
{
    rle_tensor *g, *slot = NULL;
    RLE_TRY(input_zeros(n, gout, &g));
    rle_status status = rle_op_select(g, n->args.dim, n->args.i0, &slot);
    if (status == RLE_OK) status = rle_op_copy_into(slot, gout);
    rle_tensor_release(slot);
    if (status == RLE_OK) return rle_node_give(n, 0, g, gin);
    rle_tensor_release(g);
    return status;
}

rle_status rle_narrow_forward(int kind, rle_tensor *const *in, int nin,
                              const rle_op_args *args, rle_tensor **out)
{
    (void)kind, (void)nin;
    return rle_op_narrow(in[0], args->dim, args->i0, args->i1, out);
}

rle_status rle_narrow_backward(const rle_node *n, rle_tensor *gout, rle_tensor **gin)
{
    rle_tensor *g, *slot = NULL;
    RLE_TRY(input_zeros(n, gout, &g));
    rle_status status = rle_op_narrow(g, n->args.dim, n->args.i0, n->args.i1, &slot);
    if (status == RLE_OK) status = rle_op_copy_into(slot, gout);
    rle_tensor_release(slot);
    if (status == RLE_OK) return rle_node_give(n, 0, g, gin);
    rle_tensor_release(g);
    return status;
}

/* ---- permute, view, expand ---- */

rle_status rle_permute_forward(int kind, rle_tensor *const *in, int nin,
                               const rle_op_args *args, rle_tensor **out)
{
    (void)kind, (void)nin;
    return rle_op_permute(in[0], args->shape, out);
}

rle_status rle_permute_backward(const rle_node *n, rle_tensor *gout, rle_tensor **gin)
{
    int64_t back[RLE_MAX_DIMS];
    for (int i = 0; i < n->input[0].ndim; i++) back[n->args.shape[i]] = i;
    rle_tensor *g;
    RLE_TRY(rle_op_permute(gout, back, &g));
    return rle_node_give(n, 0, g, gin);
}

rle_status rle_view_forward(int kind, rle_tensor *const *in, int nin,
                            const rle_op_args *args, rle_tensor **out)
{
    (void)nin;
    if (kind == 1) return rle_op_reshape(in[0], args->ndim, args->shape, out);
    return rle_op_view(in[0], args->ndim, args->shape, out);
}

rle_status rle_view_backward(const rle_node *n, rle_tensor *gout, rle_tensor **gin)
{
    rle_tensor *g;
    RLE_TRY(rle_op_reshape(gout, n->input[0].ndim, n->input[0].shape, &g));
    return rle_node_give(n, 0, g, gin);
}

rle_status rle_expand_forward(int kind, rle_tensor *const *in, int nin,
                              const rle_op_args *args, rle_tensor **out)
{
    (void)kind, (void)nin;
    return rle_op_expand(in[0], args->ndim, args->shape, out);
}

rle_status rle_expand_backward(const rle_node *n, rle_tensor *gout, rle_tensor **gin)
{
    return rle_node_give(n, 0, rle_tensor_retain(gout), gin);
}

/* ---- clone, to ---- */

rle_status rle_copy_forward(int kind, rle_tensor *const *in, int nin,
                            const rle_op_args *args, rle_tensor **out)
{
    (void)kind, (void)nin, (void)args;
    return rle_op_clone(in[0], out);
}

rle_status rle_copy_backward(const rle_node *n, rle_tensor *gout, rle_tensor **gin)
{
    return rle_node_give(n, 0, rle_tensor_retain(gout), gin);
}

rle_status rle_to_forward(int kind, rle_tensor *const *in, int nin,
                          const rle_op_args *args, rle_tensor **out)
{
    (void)kind, (void)nin;
    return rle_op_to(in[0], args->device, args->dtype, out);
}

rle_status rle_to_backward(const rle_node *n, rle_tensor *gout, rle_tensor **gin)
{
    const rle_input *input = &n->input[0];
    rle_tensor *g;
    if (rle_tensor_device(gout) == input->device)
        g = rle_tensor_retain(gout); /* rle_node_give casts */
    else
        RLE_TRY(rle_op_to(gout, input->device, input->dtype, &g));
    return rle_node_give(n, 0, g, gin);
}

/* dst.copy_(src): all of the gradient belongs to src, none to what was overwritten. */
rle_status rle_copy_into_forward(int kind, rle_tensor *const *in, int nin,
                                 const rle_op_args *args, rle_tensor **out)
{
    (void)kind, (void)nin, (void)args;
    RLE_TRY(rle_op_copy_into(in[0], in[1]));
    if (!*out) *out = rle_tensor_retain(in[0]);
    return RLE_OK;
}

rle_status rle_copy_into_backward(const rle_node *n, rle_tensor *gout, rle_tensor **gin)
{
    if (rle_edge_wants(&n->edge[0])) {
        rle_tensor *zero;
        RLE_TRY(input_zeros(n, gout, &zero));
        RLE_TRY(rle_node_give(n, 0, zero, gin));
    }
    if (!rle_edge_wants(&n->edge[1])) return RLE_OK;
    rle_tensor *g;
    RLE_TRY(rle_op_to(gout, n->input[1].device, n->input[1].dtype, &g));
    return rle_node_give(n, 1, g, gin);
}

/* ---- gather, index_select ---- */

rle_status rle_gather_forward(int kind, rle_tensor *const *in, int nin,
                              const rle_op_args *args, rle_tensor **out)
{
    (void)kind, (void)nin;
    return rle_op_gather(in[0], args->dim, in[1], out);
}

rle_status rle_gather_backward(const rle_node *n, rle_tensor *gout, rle_tensor **gin)
{
    rle_tensor *index, *g;
    RLE_TRY(rle_node_saved(n, 1, &index));
    RLE_TRY(input_zeros(n, gout, &g));
    rle_status status = rle_op_scatter(g, n->args.dim, index, gout, false);
    if (status == RLE_OK) return rle_node_give(n, 0, g, gin);
    rle_tensor_release(g);
    return status;
}

rle_status rle_index_select_forward(int kind, rle_tensor *const *in, int nin,
                                    const rle_op_args *args, rle_tensor **out)
{
    (void)kind, (void)nin;
    return rle_op_index_select(in[0], args->dim, in[1], out);
}

rle_status rle_index_select_backward(const rle_node *n, rle_tensor *gout,
                                     rle_tensor **gin)
{
    rle_tensor *index, *g;
    RLE_TRY(rle_node_saved(n, 1, &index));
    RLE_TRY(input_zeros(n, gout, &g));
    rle_status status = rle_op_index_add(g, n->args.dim, index, gout);
    if (status == RLE_OK) return rle_node_give(n, 0, g, gin);
    rle_tensor_release(g);
    return status;
}

/* ---- cat and stack: each part gets its slice ---- */

rle_status rle_cat_forward(int kind, rle_tensor *const *in, int nin,
                           const rle_op_args *args, rle_tensor **out)
{
    return rle_op_cat(in, nin, args->dim, kind == 1, out);
}

rle_status rle_cat_backward(const rle_node *n, rle_tensor *gout, rle_tensor **gin)
{
    bool stack = n->op->kind == 1;
    int64_t at = 0;
    for (int i = 0; i < n->nin; i++) {
        int64_t size = stack ? 1 : n->input[i].shape[n->args.dim];
        if (rle_edge_wants(&n->edge[i])) {
            rle_tensor *g;
            if (stack)
                RLE_TRY(rle_op_select(gout, n->args.dim, at, &g));
            else
                RLE_TRY(rle_op_narrow(gout, n->args.dim, at, size, &g));
            RLE_TRY(rle_node_give(n, i, g, gin));
        }
        at += size;
    }
    return RLE_OK;
}

/* ---- dropout: the same mask on the gradient ---- */

rle_status rle_dropout_forward(int kind, rle_tensor *const *in, int nin,
                               const rle_op_args *args, rle_tensor **out)
{
    (void)kind, (void)nin;
    return rle_op_dropout(in[0], args->p0, in[1], args->draw, args->seed, out);
}

rle_status rle_dropout_backward(const rle_node *n, rle_tensor *gout, rle_tensor **gin)
{
    rle_tensor *keys, *g;
    RLE_TRY(rle_node_saved(n, 1, &keys));
    RLE_TRY(rle_op_dropout(gout, n->args.p0, keys, n->args.draw, n->args.seed, &g));
    return rle_node_give(n, 0, g, gin);
}

/* ---- an operation of a script's own ---- */

rle_status rle_custom_forward(int kind, rle_tensor *const *in, int nin,
                              const rle_op_args *args, rle_tensor **out)
{
    (void)kind, (void)in, (void)nin, (void)args, (void)out;
    return rle_fail(RLE_INTERNAL, "custom operations are computed by their script");
}

rle_status rle_custom_backward(const rle_node *n, rle_tensor *gout, rle_tensor **gin)
{
    RLE_TRY(n->custom->backward(n->custom, gout, n->nin, gin));
    for (int i = 0; i < n->nin; i++) {
        if (!gin[i]) continue;
        const rle_input *input = &n->input[i];
        bool same = gin[i]->a.ndim == input->ndim && gin[i]->a.dtype == input->dtype &&
                    memcmp(gin[i]->a.shape, input->shape,
                           (size_t)input->ndim * sizeof *input->shape) == 0;
        if (same) continue;
        rle_array want = {.dtype = input->dtype, .ndim = input->ndim};
        memcpy(want.shape, input->shape, (size_t)input->ndim * sizeof *input->shape);
        char have[128], need[128];
        return rle_fail(
            RLE_INVALID_ARGUMENT, "backward of %s: gradient %d is %s, the input was %s",
            n->custom->name, i + 1, rle_array_describe(&gin[i]->a, have, sizeof have),
            rle_array_describe(&want, need, sizeof need));
    }
    return RLE_OK;
}
