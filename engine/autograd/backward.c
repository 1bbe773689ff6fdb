/* backward.c - gradients of a root with respect to every leaf below it.
 *
 * Two passes over the graph, both with explicit stacks: count for each node how many
 * edges of the visited graph lead to it, then run nodes whose count has come down to
 * zero, newest last-in first-out. The order is a function of the graph alone, so sums of
 * gradients are the same bits every time.
 *
 * A pass that fails leaves no gradient buffers behind, but leaves that were reached
 * before the failure keep what they got. */
#include "autograd/autograd_internal.h"

#include <string.h>

#include "base/mem.h"

typedef struct stack {
    rle_node **item;
    size_t count, capacity;
} stack;

static rle_status push(stack *s, rle_node *n)
{
    if (s->count == s->capacity) {
        size_t capacity = s->capacity ? s->capacity * 2 : 256;
        rle_node **item = rle_realloc(s->item, capacity * sizeof *item);
        if (!item) return rle_oom(capacity * sizeof *item, "backward pass");
        s->item = item;
        s->capacity = capacity;
    }
    s->item[s->count++] = n;
    return RLE_OK;
}

rle_status rle_node_saved(const rle_node *n, int slot, rle_tensor **out)
{
    const rle_saved *s = &n->saved[slot];
    if (!s->t)
        return rle_fail(
            RLE_FAILED_PRECONDITION,
            "the graph of %s (recorded at %s) was freed by an earlier backward; call "
            "that one with {retain_graph = true} to go through it again",
            n->op->name, rle_site_name(n->site));
    if (s->version != s->t->storage->version)
        return rle_fail(
            RLE_FAILED_PRECONDITION,
            "a tensor that %s (recorded at %s) needs for its gradient was changed in "
            "place afterwards (version %u, expected %u)",
            n->op->name, rle_site_name(n->site), s->t->storage->version, s->version);
    *out = s->t;
    return RLE_OK;
}

rle_status rle_node_give(const rle_node *n, int i, rle_tensor *g, rle_tensor **gin)
{
    const rle_input *input = &n->input[i];
    rle_tensor *summed;
    rle_status status = rle_op_sum_to(g, input->ndim, input->shape, &summed);
    rle_tensor_release(g);
    if (status != RLE_OK) return status;
    if (summed->a.dtype != input->dtype) {
        rle_tensor *cast;
        status = rle_op_to(summed, rle_tensor_device(summed), input->dtype, &cast);
        rle_tensor_release(summed);
        if (status != RLE_OK) return status;
        summed = cast;
    }
    gin[i] = summed;
    return RLE_OK;
}

/* *sum += g, with *sum made on first use. Gradients may be shared between edges (add
 * gives one tensor to both its inputs), so a sum is only written to when it has one
 * holder. */
static rle_status accumulate(rle_tensor **sum, rle_tensor *g)
{
    if (!*sum) {
        *sum = rle_tensor_retain(g);
        return RLE_OK;
    }
    if ((*sum)->refs == 1 && (*sum)->storage->refs == 1 &&
        rle_tensor_is_contiguous(*sum)) {
        rle_tensor *into = *sum;
        return rle_op_binary(RLE_BINARY_ADD, into, g, &into);
    }
    rle_tensor *fresh = NULL;
    RLE_TRY(rle_op_binary(RLE_BINARY_ADD, *sum, g, &fresh));
    rle_tensor_release(*sum);
    *sum = fresh;
    return RLE_OK;
}

/* Add g into leaf->grad. The buffer belongs to the leaf alone and is contiguous. */
static rle_status accumulate_leaf(rle_tensor *leaf, rle_tensor *g)
{
    if (leaf->grad) {
        rle_tensor *into = leaf->grad;
        return rle_op_binary(RLE_BINARY_ADD, into, g, &into);
    }
    bool own = g->refs == 1 && g->storage->refs == 1 && rle_tensor_is_contiguous(g);
    rle_tensor *grad;
    if (own)
        grad = rle_tensor_retain(g);
    else
        RLE_TRY(rle_op_clone(g, &grad));
    rle_device_reown(grad->storage->device, &grad->storage->block, RLE_OWNER_GRADIENTS);
    leaf->grad = grad;
    return RLE_OK;
}

/* Count the edges that lead to each node reachable from root. */
static rle_status count_edges(rle_node *root, uint32_t visit, stack *work)
{
    root->visit = visit;
    root->pending = 0;
    RLE_TRY(push(work, root));
    while (work->count) {
        rle_node *n = work->item[--work->count];
        for (int i = 0; i < n->nin; i++) {
            rle_node *next = n->edge[i].node;
            if (!next) continue;
            if (next->visit != visit) {
                next->visit = visit;
                next->pending = 0;
                RLE_TRY(push(work, next));
            }
            next->pending++;
        }
    }
    return RLE_OK;
}

/* Run one node: its inputs' gradients go to their edges. */
static rle_status run(rle_node *n, bool retain_graph, stack *ready)
{
    rle_tensor *inline_gin[RLE_NODE_INLINE] = {NULL};
    rle_tensor **gin = inline_gin;
    if (n->freed)
        return rle_fail(
            RLE_FAILED_PRECONDITION,
            "the graph of %s (recorded at %s) was freed by an earlier backward; call "
            "that one with {retain_graph = true} to go through it again",
            n->op->name, rle_site_name(n->site));
    if (n->nin > RLE_NODE_INLINE) {
        gin = rle_calloc((size_t)n->nin, sizeof *gin);
        if (!gin) return rle_oom((size_t)n->nin * sizeof *gin, "backward pass");
    }
    rle_tensor *gout = n->grad;
    n->grad = NULL;
    rle_status status = RLE_OK;
    if (gout) status = rle_families[n->op->family].backward(n, gout, gin);
    rle_tensor_release(gout);
    if (status == RLE_OK && !retain_graph) rle_node_give_up_saved(n);

    for (int i = 0; i < n->nin; i++) {
        rle_edge *e = &n->edge[i];
        if (status == RLE_OK && gin[i] && e->leaf)
            status = accumulate_leaf(e->leaf, gin[i]);
        if (status == RLE_OK && gin[i] && e->node)
            status = accumulate(&e->node->grad, gin[i]);
        rle_tensor_release(gin[i]);
        if (status == RLE_OK && e->node && --e->node->pending == 0)
            status = push(ready, e->node);
    }
    if (gin != inline_gin) rle_free(gin);
    return status;
}

/* Gradients that a failed pass left on nodes. */
static void clear_grads(rle_node *root, uint32_t visit, stack *work)
{
    work->count = 0;
    if (push(work, root) != RLE_OK) return;
    while (work->count) {
        rle_node *n = work->item[--work->count];
        n->visit = 0;
        rle_tensor_release(n->grad);
        n->grad = NULL;
        for (int i = 0; i < n->nin; i++) {
            rle_node *next = n->edge[i].node;
            if (next && next->visit == visit && push(work, next) != RLE_OK) return;
        }
    }
}

static rle_status check_root(rle_tensor *root, rle_tensor *gradient)
{
    char text[128], other[128];
    if (!root->requires_grad)
        return rle_fail(
            RLE_FAILED_PRECONDITION,
            "backward: the tensor has no graph; was it computed in rl.no_grad, "
            "detached, or from tensors that do not require grad?");
    if (!gradient) {
        if (rle_tensor_numel(root) == 1) return RLE_OK;
        return rle_fail(
            RLE_INVALID_ARGUMENT,
            "backward: only a tensor of one element needs no gradient, this one is "
            "%s; reduce it with :sum() or pass a gradient of its shape",
            rle_array_describe(&root->a, text, sizeof text));
    }
    RLE_TRY(rle_same_device("backward", root, gradient));
    bool same = gradient->a.ndim == root->a.ndim && gradient->a.dtype == root->a.dtype;
    for (int i = 0; same && i < root->a.ndim; i++)
        same = gradient->a.shape[i] == root->a.shape[i];
    if (same) return RLE_OK;
    return rle_fail(RLE_INVALID_ARGUMENT, "backward: the gradient is %s, the tensor %s",
                    rle_array_describe(&gradient->a, other, sizeof other),
                    rle_array_describe(&root->a, text, sizeof text));
}

static uint32_t passes;

rle_status rle_backward(rle_tensor *root, rle_tensor *gradient, bool retain_graph)
{
    RLE_TRY(check_root(root, gradient));
    rle_tensor *seed;
    if (gradient) {
        seed = rle_tensor_retain(gradient);
    } else {
        RLE_TRY(rle_tensor_new(rle_tensor_device(root), root->a.dtype, root->a.ndim,
                               root->a.shape, &seed));
        rle_status status =
            rle_tensor_ops(root)->fill(rle_tensor_device(root), &seed->a, 1, 1);
        if (status != RLE_OK) {
            rle_tensor_release(seed);
            return status;
        }
    }
    if (!root->grad_fn) {
        rle_status status = accumulate_leaf(root, seed);
        rle_tensor_release(seed);
        return status;
    }
    rle_node *first = root->grad_fn;
    stack ready = {0};
    uint32_t visit = ++passes ? passes : ++passes;
    first->refs++; /* the root may lose it to a custom operation's script */
    rle_status status = count_edges(first, visit, &ready);
    if (status == RLE_OK) {
        rle_tensor_release(first->grad);
        first->grad = seed;
        seed = NULL;
        ready.count = 0;
        status = push(&ready, first);
    }
    while (status == RLE_OK && ready.count)
        status = run(ready.item[--ready.count], retain_graph, &ready);
    if (status != RLE_OK) {
        char message[1024];
        strncpy(message, rle_message(), sizeof message - 1);
        message[sizeof message - 1] = 0;
        clear_grads(first, visit, &ready);
        rle_fail(status, "%s", message);
    }
    rle_tensor_release(seed);
    rle_free(ready.item);
    rle_node_release(first);
    return status;
}
