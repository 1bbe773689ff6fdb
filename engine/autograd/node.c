/* node.c - life of tape nodes, and recording.
 *
 * A node owns its edges and saved tensors. Releasing the last holder of a long chain must
 * not recurse: dying nodes go on a worklist that the outermost release drains. */
#include "autograd/autograd_internal.h"

#include <string.h>

#include "base/mem.h"

#if defined(__SANITIZE_ADDRESS__)
enum { POOL_MAX = 0 };
#else
enum { POOL_MAX = 4096 };
#endif

static void *pool[POOL_MAX + 1];
static int pool_count;
static size_t live_nodes;

const rle_op rle_ops[RLE_OP_COUNT] = {
#define RLE_OP_ROW(id, name, family, kind, diff, saves)                                  \
    [RLE_OP_##id] = {name, RLE_FAMILY_##family, kind, diff, saves},
    RLE_OPS(RLE_OP_ROW)
#undef RLE_OP_ROW
};

size_t rle_node_count(void)
{
    return live_nodes;
}

/* ---- saved tensors: their storage is the graph's while they are kept ---- */

static void hold(rle_storage *s)
{
    if (s->graph_holds++ == 0 && s->block.owner == RLE_OWNER_TENSOR)
        rle_device_reown(s->device, &s->block, RLE_OWNER_GRAPH);
}

static void unhold(rle_storage *s)
{
    if (--s->graph_holds == 0 && s->block.owner == RLE_OWNER_GRAPH)
        rle_device_reown(s->device, &s->block, RLE_OWNER_TENSOR);
}

static void drop_saved(rle_node *n)
{
    for (int i = 0; i < 4; i++) {
        rle_tensor *t = n->saved[i].t;
        if (!t) continue;
        n->saved[i].t = NULL;
        unhold(t->storage);
        rle_tensor_release(t);
    }
}

/* ---- life ---- */

static rle_node *dying;
static bool draining;

static void destroy(rle_node *n)
{
    drop_saved(n);
    for (int i = 0; i < n->nin; i++) {
        if (n->edge[i].node) rle_node_release(n->edge[i].node);
        if (n->edge[i].leaf) rle_tensor_release(n->edge[i].leaf);
    }
    if (n->edge != n->inline_edge) rle_free(n->edge);
    if (n->input != n->inline_input) rle_free(n->input);
    if (n->sizes != n->inline_sizes) rle_free(n->sizes);
    if (n->custom) n->custom->free(n->custom);
    if (n->grad) rle_tensor_release(n->grad);
    live_nodes--;
    if (pool_count < POOL_MAX)
        pool[pool_count++] = n;
    else
        rle_free(n);
}

void rle_node_release(rle_node *n)
{
    if (--n->refs) return;
    n->next = dying;
    dying = n;
    if (draining) return;
    draining = true;
    while (dying) {
        rle_node *first = dying;
        dying = first->next;
        destroy(first);
    }
    draining = false;
}

/* A node with room for `nin` inputs of `sizes` dimensions together. */
static rle_status node_new(const rle_op *op, int nin, int sizes, rle_node **out)
{
    rle_node *n = pool_count ? pool[--pool_count] : rle_malloc(sizeof *n);
    if (!n) return rle_oom(sizeof *n, "autograd node");
    n->refs = 1;
    n->op = op;
    n->nin = 0; /* until the edges are there */
    n->freed = false;
    n->custom = NULL;
    n->visit = 0;
    n->pending = 0;
    n->grad = NULL;
    n->next = NULL;
    memset(n->saved, 0, sizeof n->saved);
    n->edge = n->inline_edge;
    n->input = n->inline_input;
    n->sizes = n->inline_sizes;
    live_nodes++;
    if (nin > RLE_NODE_INLINE) {
        n->edge = rle_malloc((size_t)nin * sizeof *n->edge);
        n->input = rle_malloc((size_t)nin * sizeof *n->input);
    }
    if (sizes > RLE_NODE_SIZES) n->sizes = rle_malloc((size_t)sizes * sizeof *n->sizes);
    if (!n->edge || !n->input || !n->sizes) {
        rle_node_release(n); /* frees those that are there */
        return rle_oom((size_t)nin * sizeof *n->edge, "autograd node");
    }
    memset(n->edge, 0, (size_t)nin * sizeof *n->edge);
    n->nin = nin;
    *out = n;
    return RLE_OK;
}

/* ---- recording ---- */

/* The value this view was recorded with has been changed in place through another tensor:
 * its graph would give the gradient of a value that is gone. */
static rle_status check_stale_view(const rle_tensor *t)
{
    if (!t->grad_fn || !t->is_view || t->grad_version == t->storage->version)
        return RLE_OK;
    return rle_fail(
        RLE_FAILED_PRECONDITION,
        "a view made by %s at %s is used after the tensor it shows was changed in "
        "place; make the view again, or clone before changing",
        t->grad_fn->op->name, rle_site_name(t->grad_fn->site));
}

static bool wants_grad(rle_tensor *const *in, int nin)
{
    for (int i = 0; i < nin; i++)
        if (in[i] && in[i]->requires_grad) return true;
    return false;
}

static rle_status save(rle_node *n, int slot, rle_tensor *t, bool alias)
{
    if (alias) {
        /* The output's node holds it: an alias without history breaks the circle. */
        RLE_TRY(rle_tensor_detach(t, &n->saved[slot].t));
    } else {
        n->saved[slot].t = rle_tensor_retain(t);
    }
    n->saved[slot].version = t->storage->version;
    hold(t->storage);
    return RLE_OK;
}

/* What the gradients that are wanted really need: less than the row says when an operand
 * of a product wants none. Holding less is both memory and freedom to change in place. */
static unsigned needed_saves(const rle_op *op, rle_tensor *const *in, int nin,
                             const rle_op_args *args)
{
    bool product = op->family == RLE_FAMILY_MATMUL || op->family == RLE_FAMILY_LINEAR ||
                   (op->family == RLE_FAMILY_BINARY && op->kind == RLE_BINARY_MUL);
    bool quotient = op->family == RLE_FAMILY_BINARY && op->kind == RLE_BINARY_DIV;
    if (!product && !quotient) return op->saves;
    if (args && args->scalar) return quotient && args->reversed ? RLE_SAVE_IN0 : 0;
    unsigned saves = 0;
    if (nin > 1 && in[1]->requires_grad)
        saves |= RLE_SAVE_IN0 | (quotient ? RLE_SAVE_IN1 : 0);
    if (in[0]->requires_grad) saves |= RLE_SAVE_IN1;
    return saves;
}

/* A value that the operation itself is about to overwrite: kept as a copy. */
static rle_status save_copy(rle_node *n, int slot, rle_tensor *t)
{
    rle_tensor *copy;
    RLE_TRY(rle_op_clone(t, &copy));
    rle_status status = save(n, slot, copy, false);
    rle_tensor_release(copy);
    return status;
}

/* A node for op(in), with inputs saved; the output is attached afterwards. `self` is the
 * tensor that will get the node (in-place), or NULL: it must not hold itself. */
static rle_status record(const rle_op *op, rle_tensor *const *in, int nin,
                         const rle_op_args *args, const rle_tensor *self, rle_node **out)
{
    rle_node *n = NULL;
    int sizes = 0;
    for (int i = 0; i < nin; i++) sizes += in[i] ? in[i]->a.ndim : 0;
    RLE_TRY(node_new(op, nin, sizes, &n));
    sizes = 0;
    if (args)
        n->args = *args;
    else
        memset(&n->args, 0, sizeof n->args);
    n->site = rle_context_site(rle_context_current());
    for (int i = 0; i < nin; i++) {
        if (!in[i]) continue;
        rle_input *input = &n->input[i];
        input->ndim = in[i]->a.ndim;
        input->dtype = in[i]->a.dtype;
        input->device = in[i]->storage->device;
        input->shape = n->sizes + sizes;
        sizes += input->ndim;
        for (int d = 0; d < input->ndim; d++) input->shape[d] = in[i]->a.shape[d];
        if (!in[i]->requires_grad) continue;
        if (in[i]->grad_fn) {
            n->edge[i].node = in[i]->grad_fn;
            in[i]->grad_fn->refs++;
        } else {
            n->edge[i].leaf = rle_tensor_retain(in[i]);
        }
    }
    unsigned saves = needed_saves(op, in, nin, args);
    for (int i = 0; i < nin && i < 3; i++) {
        if (!(saves >> i & 1)) continue;
        rle_status status =
            in[i] == self ? save_copy(n, i, in[i]) : save(n, i, in[i], false);
        if (status != RLE_OK) {
            rle_node_release(n);
            return status;
        }
    }
    *out = n;
    return RLE_OK;
}

static rle_status attach(rle_node *n, rle_tensor *out)
{
    if (n->op->saves & RLE_SAVE_OUT) {
        rle_status status = save(n, 3, out, true);
        if (status != RLE_OK) {
            rle_node_release(n);
            return status;
        }
    }
    if (out->grad_fn) rle_node_release(out->grad_fn);
    out->grad_fn = n;
    out->requires_grad = true;
    out->grad_version = out->storage->version;
    return RLE_OK;
}

rle_status rle_apply(rle_op_id id, rle_tensor *const *in, int nin,
                     const rle_op_args *args, rle_tensor **out)
{
    const rle_op *op = &rle_ops[id];
    const rle_family *family = &rle_families[op->family];
    rle_tensor *t = NULL;
    bool recording =
        op->differentiable && rle_context_current()->grad_enabled && wants_grad(in, nin);
    if (recording)
        for (int i = 0; i < nin; i++)
            if (in[i]) RLE_TRY(check_stale_view(in[i]));
    RLE_TRY(family->forward(op->kind, in, nin, args, &t));
    if (recording && rle_dtype_is_float(t->a.dtype)) {
        if (t->requires_grad && t == in[0]) { /* contiguous, reshape: nothing happened */
            *out = t;
            return RLE_OK;
        }
        rle_node *n = NULL;
        rle_status status = record(op, in, nin, args, NULL, &n);
        if (status == RLE_OK) status = attach(n, t);
        if (status != RLE_OK) {
            rle_tensor_release(t);
            return status;
        }
    }
    *out = t;
    return RLE_OK;
}

rle_status rle_apply_inplace(rle_op_id id, rle_tensor *const *in, int nin,
                             const rle_op_args *args)
{
    const rle_op *op = &rle_ops[id];
    const rle_family *family = &rle_families[op->family];
    rle_tensor *self = in[0];
    bool recording = op->differentiable && rle_context_current()->grad_enabled &&
                     wants_grad(in, nin) && rle_dtype_is_float(self->a.dtype);
    rle_node *n = NULL;
    if (recording) {
        if (self->requires_grad && !self->grad_fn)
            return rle_fail(
                RLE_FAILED_PRECONDITION,
                "%s_: a leaf that requires grad cannot be changed in place; do it "
                "in rl.no_grad, or on a clone",
                op->name);
        if (self->is_view)
            return rle_fail(RLE_FAILED_PRECONDITION,
                            "%s_: a view cannot be changed in place where gradients are "
                            "recorded; change a clone, or do it in rl.no_grad",
                            op->name);
        for (int i = 0; i < nin; i++)
            if (in[i]) RLE_TRY(check_stale_view(in[i]));
        RLE_TRY(record(op, in, nin, args, self, &n));
    }
    rle_tensor *into = self;
    rle_status status = family->forward(op->kind, in, nin, args, &into);
    if (status != RLE_OK) {
        if (n) rle_node_release(n);
        return status;
    }
    return n ? attach(n, self) : RLE_OK;
}

rle_status rle_record_custom(rle_custom *custom, rle_tensor *const *in, int nin,
                             rle_tensor *out)
{
    if (!rle_context_current()->grad_enabled || !wants_grad(in, nin) ||
        !rle_dtype_is_float(out->a.dtype)) {
        custom->free(custom);
        return RLE_OK;
    }
    rle_node *n = NULL;
    rle_status status = record(&rle_ops[RLE_OP_CUSTOM], in, nin, NULL, NULL, &n);
    if (status != RLE_OK) {
        custom->free(custom);
        return status;
    }
    n->custom = custom;
    return attach(n, out);
}

rle_status rle_set_requires_grad(rle_tensor *t, bool on)
{
    if (on && !rle_dtype_is_float(t->a.dtype))
        return rle_fail(RLE_INVALID_ARGUMENT,
                        "only float tensors can require grad, this one is %s",
                        rle_dtype_name(t->a.dtype));
    if (!on && t->grad_fn)
        return rle_fail(
            RLE_FAILED_PRECONDITION,
            "only leaves can stop requiring grad; this tensor was computed by %s; "
            "use :detach()",
            t->grad_fn->op->name);
    if (on) rle_tensor_release_node = rle_node_release;
    if (t->grad_fn) return RLE_OK;
    t->requires_grad = on;
    return RLE_OK;
}

void rle_node_give_up_saved(rle_node *n)
{
    if (n->op->saves || n->custom) n->freed = true;
    drop_saved(n);
}
