/* ops_elementwise.c - slots that compute element by element. */
#include "device/cuda/cuda_internal.h"

rle_status rle_cuda_fill(rle_device *dev, const rle_array *out, double value,
                         int64_t integer)
{
    rle_k_loop l;
    rle_cuda_loop(&l, 1, &out);
    if (!l.numel) return RLE_OK;
    rle_cuda_enter(dev);
    return rle_cuda_check(
        dev, "fill", rle_k_fill(out->dtype, &l, value, integer, rle_cuda_stream(dev)));
}

rle_status rle_cuda_copy(rle_device *dev, const rle_array *out, const rle_array *in)
{
    const rle_array *operands[] = {out, in};
    rle_k_loop l;
    rle_cuda_loop(&l, 2, operands);
    if (!l.numel) return RLE_OK;
    rle_cuda_enter(dev);
    return rle_cuda_check(dev, "copy",
                          rle_k_copy(out->dtype, in->dtype, &l, rle_cuda_stream(dev)));
}
