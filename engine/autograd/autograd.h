/* autograd.h - recording of operations and the backward pass.
 *
 * rle_apply() runs an operation of the table (op.h) and, when gradients are on and an
 * input wants one, appends a node to the tape. Nodes hold what backward needs and nothing
 * of Lua. Backward and the freeing of graphs are iterative: depth is bounded by memory
 * only. Every operation has one differentiable output. */
#ifndef RLE_AUTOGRAD_AUTOGRAD_H
#define RLE_AUTOGRAD_AUTOGRAD_H

#include "autograd/op.h"
#include "tensor/tensor.h"

enum {
    RLE_NODE_INLINE = 3, /* inputs, and ... */
    RLE_NODE_SIZES = 8,  /* ... their sizes together, that need no block of their own */
};

/* Where the gradient of an input goes: on to a node, or into a leaf's .grad. Both NULL:
 * the input wants none. Both pointers are owned. */
typedef struct rle_edge {
    struct rle_node *node;
    rle_tensor *leaf;
} rle_edge;

static inline bool rle_edge_wants(const rle_edge *e)
{
    return e->node || e->leaf;
}

/* A tensor kept for backward, and its version when it was kept. */
typedef struct rle_saved {
    rle_tensor *t;
    uint32_t version;
} rle_saved;

/* What an input looked like, to undo broadcasting and casts. */
typedef struct rle_input {
    int ndim;
    rle_dtype dtype;
    rle_device *device;
    int64_t *shape; /* within the node's `sizes` */
} rle_input;

/* An operation somebody else defines (the lua layer, for rl.autograd.Function). */
typedef struct rle_custom {
    const char *name;
    /* gin[i]: gradient of input i, a new reference, or NULL for none. */
    rle_status (*backward)(struct rle_custom *self, rle_tensor *gout, int nin,
                           rle_tensor **gin);
    void (*free)(struct rle_custom *self);
} rle_custom;

typedef struct rle_node {
    int32_t refs;
    const rle_op *op;
    int nin;
    bool freed;    /* saved tensors were given up by a backward pass */
    uint32_t site; /* script line that recorded it */
    rle_op_args args;
    rle_saved saved[4]; /* in0, in1, in2, out: by RLE_SAVE_* bit */
    rle_edge *edge;     /* [nin]; inline_edge unless there are more */
    rle_input *input;   /* [nin]; inline_input unless there are more */
    int64_t *sizes;     /* shapes of all inputs; inline_sizes unless there are more */
    rle_edge inline_edge[RLE_NODE_INLINE];
    rle_input inline_input[RLE_NODE_INLINE];
    int64_t inline_sizes[RLE_NODE_SIZES];
    rle_custom *custom; /* operations defined by a script; NULL otherwise */
    /* scratch of the running backward pass */
    uint32_t visit;
    int32_t pending;
    rle_tensor *grad;
    struct rle_node *next;
} rle_node;

/* Run an operation. *out is a new reference. */
rle_status rle_apply(rle_op_id id, rle_tensor *const *in, int nin, const rle_op_args *args,
                     rle_tensor **out);
/* in[0] = op(in...). While recording it is refused on a leaf that requires grad and on a
 * view that takes part in a gradient (FAILED_PRECONDITION). */
rle_status rle_apply_inplace(rle_op_id id, rle_tensor *const *in, int nin,
                             const rle_op_args *args);
/* Give `out`, computed by the caller without recording, a node with custom backward. Takes
 * over `custom`, also on failure. Nothing is recorded when no input wants a gradient. */
rle_status rle_record_custom(rle_custom *custom, rle_tensor *const *in, int nin,
                             rle_tensor *out);

/* d root / d leaf for every leaf, added into leaf->grad. gradient: of root's shape, or
 * NULL for a root of one element. FAILED_PRECONDITION: root has no graph, the graph was
 * freed by an earlier pass, or a saved tensor was changed in place. */
rle_status rle_backward(rle_tensor *root, rle_tensor *gradient, bool retain_graph);

/* Leaves only: start or stop collecting .grad. Floats only. */
rle_status rle_set_requires_grad(rle_tensor *t, bool on);

void rle_node_release(rle_node *n);
/* Live nodes of this process. */
size_t rle_node_count(void);

/* Compare backward's gradients of sum(op(in) * w), w random, with central differences in
 * f64, for every input marked in `wrt`. *worst: largest |a - b| / (1 + |b|). */
rle_status rle_gradcheck(rle_op_id id, rle_tensor *const *in, int nin, uint32_t wrt,
                         const rle_op_args *args, double *worst);

#endif
