/* dense.h - chains of fully connected layers with their weights laid out for the CPU.
 *
 * For whoever evaluates the same weights many times (nn/mlp.h). Gives the bits of matmul
 * with a bias, then the function, from the table of operations. Host memory, f32. */
#ifndef RLE_DEVICE_CPU_DENSE_H
#define RLE_DEVICE_CPU_DENSE_H

#include "device/device.h"

typedef struct rle_cpu_dense {
    int64_t in, out;
    float *weight; /* rle_cpu_dense_floats(in, out) floats, 64-byte aligned */
    float *bias;   /* points into them; NULL: none is added */
    int function;  /* an rle_unary_kind or RLE_DENSE_... */
} rle_cpu_dense;

typedef struct rle_cpu_chain {
    int count;
    int64_t rows;         /* how many go through the chain at a time */
    float *between[2];    /* scratch, rows * the widest layer but the last; aligned */
    rle_cpu_dense *layer; /* [count] */
} rle_cpu_chain;

/* Floats that a layer needs for weights and bias. A multiple of 16. */
size_t rle_cpu_dense_floats(int64_t in, int64_t out);

/* Lay out weight [out, in] row-major and bias [out] or NULL in layer->weight, and set
 * layer->bias. */
void rle_cpu_dense_pack(rle_cpu_dense *layer, const float *weight, const float *bias);

/* y[rows, last layer's out] = chain of x[rows, first layer's in]; row-major, contiguous. */
void rle_cpu_chain_run(const rle_cpu_chain *chain, const float *x, int64_t rows, float *y);

#endif
