/* ops_returns.c - the slot of advantages and returns. */
#include "device/cuda/cuda_internal.h"

static rle_k_columns columns_of(const rle_array *a)
{
    if (!a) return (rle_k_columns){0};
    return (rle_k_columns){a->data, a->stride[0], a->stride[1]};
}

rle_status rle_cuda_gae(rle_device *dev, const rle_array *out, const rle_array *rewards,
                        const rle_array *values, const rle_array *dones,
                        const rle_array *last, double gamma, double lambda)
{
    if (!rle_array_numel(out)) return RLE_OK;
    rle_k_returns r = {.steps = out->shape[0],
                       .columns = out->shape[1],
                       .gamma = gamma,
                       .decay = gamma * lambda,
                       .out = columns_of(out),
                       .rewards = columns_of(rewards),
                       .values = columns_of(values),
                       .dones = columns_of(dones),
                       .last = columns_of(last)};
    rle_cuda_enter(dev);
    return rle_cuda_check(dev, "gae", rle_k_gae(out->dtype, &r, rle_cuda_stream(dev)));
}
