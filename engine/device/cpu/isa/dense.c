/* dense.c - chains of fully connected layers on weights that dense.h has laid out: the
 * tiles and so the bits of gemm_impl.h. A block of rows goes through all layers before the
 * next one starts, so that what passes between two layers stays in the innermost cache. */
#include "device/cpu/isa/tile.h"

/* One row at a time, as in acting, what counts is the latency: the tiles are spelled out
 * here, without calls and without what they do not need. */
RLE_INLINE void one_row_wide(const rle_cpu_dense *l, const float *x, float *y, bool relu)
{
    const float *w = l->weight, *bias = l->bias;
    rle_tile t = {.k = l->in, .a_col = 1, .relu = relu};
    int64_t out = l->out;
    for (; out >= 64; out -= 64, y += 64, w += 64 * t.k) {
        t.b_row = 64;
        tile_body(1, 4, &t, x, w, y, bias, 16);
        if (bias) bias += 64;
    }
    if (out > 0) {
        int vectors = (int)(out + 15) / 16;
        t.b_row = 16 * vectors;
        K(rle_tiles_run)(&t, x, w, y, bias, (int)out - 16 * (vectors - 1), 1, vectors);
    }
}

RLE_INLINE void one_row_narrow(const rle_cpu_dense *l, const float *x, float *y, bool relu)
{
    const float *w = l->weight, *bias = l->bias;
    int64_t line = (l->in + 15) / 16 * 16, left = l->out;
    rle_lanes t = {.b_col = line, .k = l->in, .out_col = 1, .bias_col = 1, .relu = relu};
    for (; left >= 2; left -= 2, w += 2 * line, y += 2) {
        lanes_body(1, 2, &t, x, w, NULL, y, bias);
        if (bias) bias += 2;
    }
    if (left) lanes_body(1, 1, &t, x, w, NULL, y, bias);
}

static void rows_wide(const rle_cpu_dense *l, const float *x, int64_t rows, float *y, bool relu)
{
    const float *w = l->weight, *bias = l->bias;
    rle_tile t = {.a_row = l->in, .a_col = 1, .out_row = l->out, .k = l->in, .relu = relu};
    for (int64_t n0 = 0; n0 < l->out; n0 += 64) {
        int columns = (int)rle_min64(l->out - n0, 64), vectors = (columns + 15) / 16;
        t.b_row = 16 * vectors;
        K(rle_tiles_run)(&t, x, w, y + n0, bias, columns - 16 * (vectors - 1), rows, vectors);
        w += l->in * t.b_row;
        if (bias) bias += 64;
    }
}

static void rows_narrow(const rle_cpu_dense *l, const float *x, int64_t rows, float *y,
                        bool relu)
{
    rle_lanes t = {.a_row = l->in,
                   .b_col = (l->in + 15) / 16 * 16,
                   .k = l->in,
                   .out_row = l->out,
                   .out_col = 1,
                   .bias = l->bias,
                   .bias_col = 1,
                   .relu = relu};
    K(rle_lanes_run)(&t, x, l->weight, NULL, y, rows, l->out);
}

static void follow(int function, float *y, int64_t rows, int64_t n)
{
    if (function >= 0) {
        RLE_NAME(rle_unary_f32)[function](y, y, rows * n, 0, 0);
        return;
    }
    for (int64_t r = 0; r < rows; r++, y += n)
        RLE_NAME(rle_softmax_row_f32)(function == RLE_DENSE_LOG_SOFTMAX, y, y, n);
}

void RLE_NAME(rle_chain)(const rle_cpu_chain *chain, const float *x, int64_t rows, float *y)
{
    int last = chain->count - 1;
    while (rows > 0) {
        int64_t n = rle_min64(rows, chain->rows);
        const float *from = x;
        for (int i = 0; i <= last; i++) {
            const rle_cpu_dense *l = &chain->layer[i];
            float *to = i == last ? y : chain->between[i & 1];
            bool relu = l->function == RLE_UNARY_RELU;
            bool narrow = l->out < RLE_LANES;
            if (n == 1 && narrow)
                one_row_narrow(l, from, to, relu);
            else if (n == 1)
                one_row_wide(l, from, to, relu);
            else if (narrow)
                rows_narrow(l, from, n, to, relu);
            else
                rows_wide(l, from, n, to, relu);
            if (!relu && l->function != RLE_DENSE_NONE) follow(l->function, to, n, l->out);
            from = to;
        }
        x += n * chain->layer[0].in;
        y += n * chain->layer[last].out;
        rows -= n;
    }
}
