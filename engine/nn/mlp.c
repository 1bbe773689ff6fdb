/* mlp.c - plans: memory for a chain of layers. device/cpu evaluates it. */
#include "nn/mlp.h"

#include <inttypes.h>

#include "base/mem.h"
#include "device/cpu/cpu.h"

/* Bytes that the two buffers between layers should take together at most. */
#define BETWEEN_BYTES 24576
#define MOST_ROWS 96

typedef struct {
    const float *weight, *bias; /* the caller's */
} source;

struct rle_mlp {
    rle_cpu_chain chain;
    source *source; /* [count] */
    void *memory;   /* layers, sources, weights and buffers: one allocation */
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

rle_status rle_mlp_new(const rle_mlp_layer *layers, int count, rle_mlp **out)
{
    RLE_TRY(check_layers(layers, count));
    rle_cpu_ops(); /* the instruction set is chosen */
    int64_t widest = 16;
    size_t floats = 0;
    for (int i = 0; i < count; i++) {
        floats += rle_cpu_dense_floats(layers[i].in, layers[i].out);
        if (i + 1 < count && layers[i].out > widest) widest = layers[i].out;
    }
    int64_t rows = BETWEEN_BYTES / (2 * widest * (int64_t)sizeof(float));
    rows = rows > MOST_ROWS ? MOST_ROWS : rows < 12 ? 12 : rows / 6 * 6;
    size_t between = ((size_t)(rows * widest) + 15) / 16 * 16;
    size_t bytes = (floats + 2 * between) * sizeof(float) + 64 +
                   (size_t)count * (sizeof(rle_cpu_dense) + sizeof(source));
    rle_mlp *m = rle_malloc(sizeof(*m));
    if (!m) return rle_oom(sizeof(*m), "a plan of layers");
    m->memory = rle_malloc(bytes);
    if (!m->memory) {
        rle_free(m);
        return rle_oom(bytes, "the weights of a plan");
    }
    float *p = (float *)(((uintptr_t)m->memory + 63) & ~(uintptr_t)63);
    m->chain = (rle_cpu_chain){.count = count, .rows = rows, .between = {p, p + between}};
    p += 2 * between;
    m->chain.layer = (rle_cpu_dense *)(p + floats);
    m->source = (source *)(m->chain.layer + count);
    for (int i = 0; i < count; i++) {
        const rle_mlp_layer *l = &layers[i];
        m->chain.layer[i] = (rle_cpu_dense){
            .in = l->in, .out = l->out, .weight = p, .function = l->function};
        m->source[i] = (source){l->weight, l->bias};
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
        rle_cpu_dense_pack(&mlp->chain.layer[i], mlp->source[i].weight,
                           mlp->source[i].bias);
}

void rle_mlp_forward(const rle_mlp *mlp, const float *x, int64_t rows, float *y)
{
    rle_cpu_chain_run(&mlp->chain, x, rows, y);
}

int64_t rle_mlp_in(const rle_mlp *mlp)
{
    return mlp->chain.layer[0].in;
}
int64_t rle_mlp_out(const rle_mlp *mlp)
{
    return mlp->chain.layer[mlp->chain.count - 1].out;
}
