/* dense.c - the layout of a layer's weights. isa/dense.c computes with it.
 *
 * At least 16 outputs: panels of 64 of them (the last as many as are left, in whole vectors
 * of 16), in a panel one row for each input. Fewer: one line for each output, filled up to a
 * multiple of 16. Then the bias, filled up likewise. What is filled up is 0. */
#include "device/cpu/dense.h"

#include <string.h>

#include "device/cpu/cpu_internal.h"

static size_t round_up(int64_t n) { return ((size_t)n + 15) / 16 * 16; }

size_t rle_cpu_dense_floats(int64_t in, int64_t out)
{
    size_t weights = out >= RLE_LANES ? (size_t)in * round_up(out) : round_up(in) * (size_t)out;
    return weights + round_up(out);
}

void rle_cpu_dense_pack(rle_cpu_dense *layer, const float *weight, const float *bias)
{
    int64_t in = layer->in, out = layer->out;
    float *to = layer->weight;
    memset(to, 0, rle_cpu_dense_floats(in, out) * sizeof(float));
    if (out >= RLE_LANES) {
        for (int64_t n0 = 0; n0 < out; n0 += 64) {
            int64_t columns = rle_min64(out - n0, 64);
            int64_t width = (int64_t)round_up(columns);
            for (int64_t c = 0; c < columns; c++)
                for (int64_t k = 0; k < in; k++)
                    to[k * width + c] = weight[(n0 + c) * in + k];
            to += in * width;
        }
    } else {
        for (int64_t n = 0; n < out; n++, to += round_up(in))
            memcpy(to, weight + n * in, (size_t)in * sizeof(float));
    }
    layer->bias = bias ? to : NULL;
    if (bias) memcpy(to, bias, (size_t)out * sizeof(float));
}

void rle_cpu_chain_run(const rle_cpu_chain *chain, const float *x, int64_t rows, float *y)
{
    rle_cpu_active->chain(chain, x, rows, y);
}
