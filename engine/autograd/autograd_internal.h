/* autograd_internal.h - between node.c, backward.c and the families. */
#ifndef RLE_AUTOGRAD_INTERNAL_H
#define RLE_AUTOGRAD_INTERNAL_H

#include "autograd/autograd.h"

/* Let go of what the node saved; a second backward through it is then an error. */
void rle_node_give_up_saved(rle_node *n);

/* The saved tensor of a slot (0..2 inputs, 3 output), checked for in-place changes. */
rle_status rle_node_saved(const rle_node *n, int slot, rle_tensor **out);

/* g summed to input i's shape and cast to its dtype, into gin[i]; takes over g. */
rle_status rle_node_give(const rle_node *n, int i, rle_tensor *g, rle_tensor **gin);

/* Forward and backward of each family; see families_*.c. */
#define RLE_FAMILY_DECLARE(name)                                                         \
    rle_status rle_##name##_forward(int kind, rle_tensor *const *in, int nin,            \
                                    const rle_op_args *args, rle_tensor **out);          \
    rle_status rle_##name##_backward(const rle_node *n, rle_tensor *gout, rle_tensor **gin);
RLE_FAMILY_DECLARE(unary)
RLE_FAMILY_DECLARE(binary)
RLE_FAMILY_DECLARE(reduce)
RLE_FAMILY_DECLARE(softmax)
RLE_FAMILY_DECLARE(cumsum)
RLE_FAMILY_DECLARE(where)
RLE_FAMILY_DECLARE(matmul)
RLE_FAMILY_DECLARE(linear)
RLE_FAMILY_DECLARE(select)
RLE_FAMILY_DECLARE(narrow)
RLE_FAMILY_DECLARE(permute)
RLE_FAMILY_DECLARE(view)
RLE_FAMILY_DECLARE(expand)
RLE_FAMILY_DECLARE(copy)
RLE_FAMILY_DECLARE(to)
RLE_FAMILY_DECLARE(gather)
RLE_FAMILY_DECLARE(index_select)
RLE_FAMILY_DECLARE(cat)
RLE_FAMILY_DECLARE(dropout)
RLE_FAMILY_DECLARE(copy_into)
RLE_FAMILY_DECLARE(custom)

#endif
