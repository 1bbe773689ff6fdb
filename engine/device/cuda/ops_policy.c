/* ops_policy.c - chains of fully connected layers: all in one launch for a few rows,
 * layer by layer for many. */
#include <inttypes.h>

#include "device/cuda/cuda_internal.h"

int64_t rle_cuda_dense_rows(rle_device *dev, const rle_dense *layers, int count)
{
    int64_t widest = layers[0].in;
    if (count > RLE_K_LAYERS) return 0;
    for (int i = 0; i < count; i++) {
        if (!rle_k_policy_knows(layers[i].function)) return 0;
        if (rle_cuda_blas_takes(dev, layers[i].in, layers[i].out))
            return 0; /* other bits */
        if (layers[i].out > widest) widest = layers[i].out;
    }
    return rle_k_policy_rows(widest);
}

static rle_status all_layers(rle_device *dev, const rle_dense *layers, int count,
                             const float *x, int64_t rows, float *y,
                             const rle_dense_draw *draw)
{
    rle_k_policy p = {
        .count = count, .widest = (int)layers[0].in, .rows = rows, .x = x, .y = y};
    for (int i = 0; i < count; i++) {
        const rle_dense *l = &layers[i];
        p.layer[i].in = (int)l->in;
        p.layer[i].out = (int)l->out;
        p.layer[i].function = l->function;
        p.layer[i].weight = l->weight;
        p.layer[i].bias = l->bias;
        if (l->out > p.widest) p.widest = (int)l->out;
    }
    if (draw) {
        p.logits = layers[count - 1].function != RLE_DENSE_SOFTMAX;
        p.action = draw->action;
        p.log_prob = draw->log_prob;
        p.keys = draw->keys;
        p.draw = draw->draw;
        p.seed = draw->rng.seed;
        p.stream = draw->rng.stream;
        p.position = draw->rng.counter;
        RLE_TRY(rle_cuda_flag_reset(dev, &p.bad));
    }
    RLE_TRY(rle_cuda_check(dev, "layers", rle_k_policy_run(&p, rle_cuda_stream(dev))));
    if (!draw) return RLE_OK;
    uint64_t bad;
    RLE_TRY(rle_cuda_flag_read(dev, "layers", &bad));
    if (bad == UINT64_MAX) return RLE_OK;
    return rle_fail(RLE_INVALID_ARGUMENT,
                    "act: row %" PRIu64
                    ": the layers' probabilities are not finite, nothing can be "
                    "drawn",
                    bad + 1);
}

/* A layer by itself: a product that adds the bias, and the cheapest functions. */
static rle_status one_layer(rle_device *dev, const rle_dense *l, const float *x,
                            int64_t rows, float *y)
{
    bool fused = rle_k_policy_knows(l->function) && l->function != RLE_DENSE_SOFTMAX &&
                 l->function != RLE_DENSE_LOG_SOFTMAX;
    rle_k_gemm g = {
        .m = rows,
        .n = l->out,
        .k = l->in,
        .batches = 1,
        .a = x,
        .b = l->weight,
        .bias = l->bias,
        .out = y,
        .a_row = l->in,
        .a_col = 1,
        .b_row = 1,
        .b_col = l->in,
        .out_row = l->out,
        .out_col = 1,
        .bias_col = 1,
        .function = fused ? l->function : RLE_DENSE_NONE,
    };
    RLE_TRY(rle_cuda_gemm(dev, RLE_F32, &g));
    if (fused) return RLE_OK;
    rle_array out = {.data = y,
                     .dtype = RLE_F32,
                     .ndim = 2,
                     .shape = {rows, l->out},
                     .stride = {l->out, 1}};
    if (l->function >= 0)
        return dev->ops->unary(dev, (rle_unary_kind)l->function, &out, &out, 0, 0);
    return dev->ops->softmax(dev, l->function == RLE_DENSE_LOG_SOFTMAX, &out, &out, 1);
}

rle_status rle_cuda_dense(rle_device *dev, const rle_dense *layers, int count,
                          const float *x, int64_t rows, float *y,
                          const rle_dense_draw *draw)
{
    if (!rows) return RLE_OK;
    rle_cuda_enter(dev);
    if (rows <= rle_cuda_dense_rows(dev, layers, count))
        return all_layers(dev, layers, count, x, rows, y, draw);
    if (count == 1 && !draw) return one_layer(dev, layers, x, rows, y);
    return rle_fail(RLE_INVALID_ARGUMENT,
                    "%s: %" PRId64 " rows are too many for %d layers at once", dev->name,
                    rows, count);
}
