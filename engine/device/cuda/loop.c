/* loop.c - strided operands of one shape in as few dimensions as they allow. */
#include "device/cuda/cuda_internal.h"

void rle_cuda_loop(rle_k_loop *l, int count, const rle_array *const *operands)
{
    const rle_array *first = operands[0];
    int ndim = 0;
    l->count = count;
    l->numel = rle_array_numel(first);
    for (int d = 0; d < first->ndim; d++) {
        if (first->shape[d] == 1) continue;
        /* Merge with the dimension before when one step of that is a full run of this. */
        bool merges = ndim > 0;
        for (int o = 0; o < count && merges; o++)
            merges = l->stride[o][ndim - 1] == operands[o]->stride[d] * first->shape[d];
        if (merges)
            l->shape[ndim - 1] *= first->shape[d];
        else
            l->shape[ndim++] = first->shape[d];
        for (int o = 0; o < count; o++) l->stride[o][ndim - 1] = operands[o]->stride[d];
    }
    if (ndim == 0) {
        l->shape[0] = 1;
        for (int o = 0; o < count; o++) l->stride[o][0] = 1;
        ndim = 1;
    }
    l->ndim = ndim;
    l->dense = ndim == 1;
    for (int o = 0; o < count; o++) {
        l->data[o] = operands[o]->data;
        l->dense = l->dense && (l->stride[o][0] == 1 || l->numel <= 1);
    }
}
