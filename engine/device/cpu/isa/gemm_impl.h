/* gemm_impl.h - products of matrices.
 *
 * The order of the sums, a function of (K, N) alone:
 *   N >= 16: acc starts at 0 and takes in k = 0, 1, 2, ...;
 *   N <  16: 16 lanes, lane l takes in k = l, l+16, ... (K is filled up with zeros to a
 *            multiple of 16), then lane i takes in lane i+8, i+4, i+2, i+1.
 * f32 takes a product in with one fused multiply-add, f64 with a multiplication and an
 * addition (a fused one in double cannot be had everywhere). The bias, then the old value
 * of out, are added to the finished sum. */
#include "device/cpu/isa/real.h"

#ifdef RLE_F64_KERNELS
#define TAKE(acc, x, y) ((acc) + (x) * (y))
#else
#define TAKE(acc, x, y) RLE_FMAF(x, y, acc)
#endif

void K(rle_gemm)(const rle_cpu_gemm *g)
{
    for (int64_t i = 0; i < g->m; i++) {
        for (int64_t j = 0; j < g->n; j++) {
            const REAL *a = (const REAL *)g->a + i * g->a_row;
            const REAL *b = (const REAL *)g->b + j * g->b_col;
            REAL *out = (REAL *)g->out + i * g->out_row + j * g->out_col;
            REAL sum = 0;
            if (g->n >= RLE_LANES) {
                for (int64_t k = 0; k < g->k; k++)
                    sum = TAKE(sum, a[k * g->a_col], b[k * g->b_row]);
            } else {
                REAL acc[RLE_LANES] = {0};
                for (int64_t k = 0; k < (g->k + 15) / 16 * 16; k++) {
                    REAL x = k < g->k ? a[k * g->a_col] : 0;
                    REAL y = k < g->k ? b[k * g->b_row] : 0;
                    acc[k % RLE_LANES] = TAKE(acc[k % RLE_LANES], x, y);
                }
                for (int half = RLE_LANES / 2; half > 0; half /= 2)
                    for (int l = 0; l < half; l++) acc[l] += acc[l + half];
                sum = acc[0];
            }
            if (g->bias) sum += ((const REAL *)g->bias)[j * g->bias_stride];
            if (g->accumulate) sum += *out;
            *out = sum;
        }
    }
}
