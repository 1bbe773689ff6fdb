/* ops_matmul.c - products of matrices. */
#include "device/cuda/cuda_internal.h"

rle_status rle_cuda_gemm(rle_device *dev, rle_dtype t, const rle_k_gemm *g)
{
    rle_cuda_enter(dev);
    if (rle_cuda_blas_takes(dev, g->k, g->n)) {
        bool done;
        RLE_TRY(rle_cuda_blas_gemm(dev, t, g, &done));
        if (done) return RLE_OK;
    }
    return rle_cuda_check(dev, "matmul", rle_k_matmul(t, g, rle_cuda_stream(dev)));
}

rle_status rle_cuda_matmul(rle_device *dev, const rle_array *out, const rle_array *a,
                           const rle_array *b, const rle_array *bias, bool accumulate)
{
    if (!rle_dtype_is_float(out->dtype))
        return rle_fail(RLE_UNIMPLEMENTED, "matmul: not for %s",
                        rle_dtype_name(out->dtype));
    int d = out->ndim - 2; /* 0, or 1 with a leading batch dimension */
    rle_k_gemm g = {
        .m = out->shape[d],
        .n = out->shape[d + 1],
        .k = a->shape[d + 1],
        .batches = d ? out->shape[0] : 1,
        .a = a->data,
        .b = b->data,
        .bias = bias ? bias->data : NULL,
        .out = out->data,
        .a_batch = d ? a->stride[0] : 0,
        .a_row = a->stride[d],
        .a_col = a->stride[d + 1],
        .b_batch = d ? b->stride[0] : 0,
        .b_row = b->stride[d],
        .b_col = b->stride[d + 1],
        .out_batch = d ? out->stride[0] : 0,
        .out_row = out->stride[d],
        .out_col = out->stride[d + 1],
        .bias_col = bias ? bias->stride[0] : 0,
        .accumulate = accumulate,
        .function = RLE_DENSE_NONE,
    };
    return rle_cuda_gemm(dev, out->dtype, &g);
}
