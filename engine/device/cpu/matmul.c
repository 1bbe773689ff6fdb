/* matmul.c - products of matrices: batches are taken apart here, the arithmetic and the
 * order of its sums are in isa/gemm_*.c. */
#include "device/cpu/cpu_internal.h"

rle_status rle_cpu_matmul(rle_device *dev, const rle_array *out, const rle_array *a,
                          const rle_array *b, const rle_array *bias, bool accumulate)
{
    int f = rle_cpu_float(out->dtype);
    if (f < 0) return rle_cpu_no_dtype("matmul", out->dtype);
    int d = out->ndim - 2; /* 0, or 1 with a leading batch dimension */
    rle_cpu_gemm g = {
        .m = out->shape[d],
        .n = out->shape[d + 1],
        .k = a->shape[d + 1],
        .a = a->data,
        .b = b->data,
        .bias = bias ? bias->data : NULL,
        .out = out->data,
        .a_row = a->stride[d],
        .a_col = a->stride[d + 1],
        .b_row = b->stride[d],
        .b_col = b->stride[d + 1],
        .out_row = out->stride[d],
        .out_col = out->stride[d + 1],
        .bias_stride = bias ? bias->stride[0] : 0,
        .accumulate = accumulate,
    };
    if (g.m == 0 || g.n == 0) return RLE_OK;
    int64_t batches = d ? out->shape[0] : 1, size = f ? 8 : 4;
    for (int64_t i = 0; i < batches; i++) {
        if (d) {
            g.a = (const char *)a->data + i * a->stride[0] * size;
            g.b = (const char *)b->data + i * b->stride[0] * size;
            g.out = (char *)out->data + i * out->stride[0] * size;
        }
        rle_cpu_active->gemm[f](&g);
    }
    return RLE_OK;
}
