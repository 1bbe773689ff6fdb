/* mlp.c - plans: memory for a chain of layers. device/cpu, or a device's `dense`,
 * evaluates it. */
#include "nn/mlp.h"

#include <inttypes.h>

#include "base/mem.h"
#include "device/cpu/cpu.h"

/* Bytes that the two buffers between layers should take together at most. */
#define BETWEEN_BYTES 24576
#define MOST_ROWS 96

struct rle_mlp {
    rle_device *dev;
    int count;
    rle_mlp_layer *layer; /* [count], as they were given */
    rle_cpu_chain chain;  /* on the CPU */
    void *memory;         /* layers, weights and buffers: one allocation */
};

static rle_status check_layers(const rle_mlp_layer *layers, int count)
{
    if (count < 1)
        return rle_fail(RLE_INVALID_ARGUMENT, "a plan needs at least one layer");
    for (int i = 0; i < count; i++) {
        const rle_mlp_layer *l = &layers[i];
        if (l->in < 1 || l->out < 1)
            return rle_fail(RLE_INVALID_ARGUMENT,
                            "layer %d has %" PRId64 " inputs and %" PRId64
                            " outputs; both must be at least 1",
                            i + 1, l->in, l->out);
        if (i > 0 && l->in != layers[i - 1].out)
            return rle_fail(RLE_INVALID_ARGUMENT,
                            "layer %d takes %" PRId64
                            " inputs, but the layer before it has %" PRId64 " outputs",
                            i + 1, l->in, layers[i - 1].out);
        if (l->function < RLE_MLP_LOG_SOFTMAX || l->function >= RLE_UNARY_COUNT ||
            l->function == RLE_UNARY_CLAMP ||
            (l->function >= 0 && rle_unary_gives_bool((rle_unary_kind)l->function)))
            return rle_fail(RLE_INVALID_ARGUMENT, "function %d cannot follow layer %d",
                            l->function, i + 1);
    }
    return RLE_OK;
}

static int64_t widest_between(const rle_mlp_layer *layers, int count)
{
    int64_t widest = 16;
    for (int i = 0; i + 1 < count; i++)
        if (layers[i].out > widest) widest = layers[i].out;
    return widest;
}

static rle_status new_plan(rle_device *dev, const rle_mlp_layer *layers, int count,
                           size_t bytes, rle_mlp **out)
{
    rle_mlp *m = rle_calloc(1, sizeof *m);
    if (!m) return rle_oom(sizeof *m, "a plan of layers");
    bytes += (size_t)count * sizeof *layers;
    m->memory = rle_malloc(bytes);
    if (!m->memory) {
        rle_free(m);
        return rle_oom(bytes, "the weights of a plan");
    }
    m->dev = dev;
    m->count = count;
    m->layer = m->memory;
    for (int i = 0; i < count; i++) m->layer[i] = layers[i];
    *out = m;
    return RLE_OK;
}

rle_status rle_mlp_new(rle_device *dev, const rle_mlp_layer *layers, int count,
                       rle_mlp **out)
{
    RLE_TRY(check_layers(layers, count));
    if (dev->type != RLE_DEVICE_CPU) return new_plan(dev, layers, count, 0, out);
    rle_cpu_ops(); /* the instruction set is chosen */
    int64_t widest = widest_between(layers, count);
    size_t floats = 0;
    for (int i = 0; i < count; i++)
        floats += rle_cpu_dense_floats(layers[i].in, layers[i].out);
    int64_t rows = BETWEEN_BYTES / (2 * widest * (int64_t)sizeof(float));
    rows = rows > MOST_ROWS ? MOST_ROWS : rows < 12 ? 12 : rows / 6 * 6;
    size_t between = ((size_t)(rows * widest) + 15) / 16 * 16;
    rle_mlp *m = NULL;
    RLE_TRY(new_plan(dev, layers, count,
                     (floats + 2 * between) * sizeof(float) + 64 +
                         (size_t)count * sizeof(rle_cpu_dense),
                     &m));
    float *p = (float *)(((uintptr_t)(m->layer + count) + 63) & ~(uintptr_t)63);
    m->chain = (rle_cpu_chain){.count = count, .rows = rows, .between = {p, p + between}};
    p += 2 * between;
    m->chain.layer = (rle_cpu_dense *)(p + floats);
    for (int i = 0; i < count; i++) {
        const rle_mlp_layer *l = &layers[i];
        m->chain.layer[i] = (rle_cpu_dense){
            .in = l->in, .out = l->out, .weight = p, .function = l->function};
        p += rle_cpu_dense_floats(l->in, l->out);
    }
    rle_mlp_pack(m);
    *out = m;
    return RLE_OK;
}

void rle_mlp_free(rle_mlp *mlp)
{
    if (!mlp) return;
    rle_free(mlp->memory);
    rle_free(mlp);
}

void rle_mlp_pack(rle_mlp *mlp)
{
    for (int i = 0; i < mlp->chain.count; i++)
        rle_cpu_dense_pack(&mlp->chain.layer[i], mlp->layer[i].weight,
                           mlp->layer[i].bias);
}

/* Layer by layer, through two buffers on the device. Work in its stream is in order, so
 * they may go when the last launch is made. */
static rle_status by_layers(const rle_mlp *m, const float *x, int64_t rows, float *y)
{
    rle_device *dev = m->dev;
    rle_block between[2];
    size_t size = (size_t)(rows * widest_between(m->layer, m->count)) * sizeof(float);
    int buffers = m->count > 2 ? 2 : m->count - 1, have = 0;
    rle_status status = RLE_OK;
    while (status == RLE_OK && have < buffers) {
        status = rle_device_alloc(dev, size, &between[have]);
        if (status == RLE_OK) have++;
    }
    for (int i = 0; i < m->count && status == RLE_OK; i++) {
        float *to = i + 1 == m->count ? y : between[i & 1].data;
        status = dev->ops->dense(dev, &m->layer[i], 1, x, rows, to, NULL);
        x = to;
    }
    while (have > 0) rle_device_free(dev, &between[--have]);
    return status;
}

rle_status rle_mlp_forward(const rle_mlp *mlp, const float *x, int64_t rows, float *y)
{
    rle_device *dev = mlp->dev;
    if (dev->type == RLE_DEVICE_CPU) {
        rle_cpu_chain_run(&mlp->chain, x, rows, y);
        return RLE_OK;
    }
    if (rows <= dev->ops->dense_rows(dev, mlp->layer, mlp->count))
        return dev->ops->dense(dev, mlp->layer, mlp->count, x, rows, y, NULL);
    return by_layers(mlp, x, rows, y);
}

bool rle_mlp_draws(const rle_mlp *mlp, int64_t rows)
{
    rle_device *dev = mlp->dev;
    return dev->ops->dense_rows &&
           rows <= dev->ops->dense_rows(dev, mlp->layer, mlp->count);
}

rle_status rle_mlp_draw(const rle_mlp *mlp, const float *x, int64_t rows,
                        const rle_dense_draw *draw)
{
    return mlp->dev->ops->dense(mlp->dev, mlp->layer, mlp->count, x, rows, NULL, draw);
}

int64_t rle_mlp_in(const rle_mlp *mlp)
{
    return mlp->layer[0].in;
}
int64_t rle_mlp_out(const rle_mlp *mlp)
{
    return mlp->layer[mlp->count - 1].out;
}
