/* loop.c - strided operands of one shape in as few dimensions as they allow. */
#include "device/cuda/cuda_internal.h"

static int64_t magnitude(int64_t v)
{
    return v < 0 ? -v : v;
}

static void move_dim(rle_k_loop *l, int to, int from)
{
    l->shape[to] = l->shape[from];
    for (int o = 0; o < l->count; o++) l->stride[o][to] = l->stride[o][from];
}

/* Dimensions larger than 1, in the shape's order or with the largest strides of operand 0
 * first. */
static void collect(rle_k_loop *l, const rle_array *const *operands, bool in_order)
{
    const rle_array *first = operands[0];
    l->ndim = 0;
    for (int d = 0; d < first->ndim; d++) {
        if (first->shape[d] == 1) continue;
        int at = l->ndim++;
        int64_t key = magnitude(first->stride[d]);
        for (; !in_order && at > 0 && magnitude(l->stride[0][at - 1]) < key; at--)
            move_dim(l, at, at - 1);
        l->shape[at] = first->shape[d];
        for (int o = 0; o < l->count; o++) l->stride[o][at] = operands[o]->stride[d];
    }
    if (l->ndim == 0) {
        l->shape[0] = 1;
        for (int o = 0; o < l->count; o++) l->stride[o][0] = 1;
        l->ndim = 1;
    }
}

/* Merge a dimension with the one before when one step of that is a full run of this. */
static void merge(rle_k_loop *l)
{
    int kept = 0;
    for (int d = 1; d < l->ndim; d++) {
        bool merges = true;
        for (int o = 0; o < l->count && merges; o++)
            merges = l->stride[o][kept] == l->stride[o][d] * l->shape[d];
        int64_t extent = merges ? l->shape[kept] * l->shape[d] : l->shape[d];
        if (!merges) kept++;
        move_dim(l, kept, d);
        l->shape[kept] = extent;
    }
    l->ndim = kept + 1;
}

static void narrow(rle_k_loop *l)
{
    l->narrow = l->numel > 0 && l->numel <= INT32_MAX;
    for (int o = 0; o < l->count && l->narrow; o++) {
        int64_t reach = 0;
        for (int d = 0; d < l->ndim; d++) {
            /* One step past the last: nothing on the way overflows either. */
            int64_t step = magnitude(l->stride[o][d]);
            if (step > INT32_MAX) l->narrow = false;
            if (l->narrow) reach += step * l->shape[d];
        }
        l->narrow = l->narrow && reach <= INT32_MAX;
    }
    for (int d = 0; d < l->ndim && l->narrow; d++)
        l->divisor[d] = rle_divisor((uint32_t)l->shape[d]);
}

static void make(rle_k_loop *l, int count, const rle_array *const *operands,
                 bool in_order)
{
    l->count = count;
    l->numel = rle_array_numel(operands[0]);
    collect(l, operands, in_order);
    merge(l);
    narrow(l);
    l->dense = l->ndim == 1;
    for (int o = 0; o < count; o++) {
        l->data[o] = operands[o]->data;
        l->size[o] = (int)rle_dtype_size(operands[o]->dtype);
        l->dense = l->dense && (l->stride[o][0] == 1 || l->numel <= 1);
    }
}

void rle_cuda_loop(rle_k_loop *l, int count, const rle_array *const *operands)
{
    make(l, count, operands, false);
}

void rle_cuda_loop_in_order(rle_k_loop *l, int count, const rle_array *const *operands)
{
    make(l, count, operands, true);
}
