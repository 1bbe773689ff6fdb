/* batch.h - how elementwise kernels go through a loop (rle_k_loop).
 *
 * A thread takes RLE_BATCH positions at a time, a block's width apart: its loads are
 * under way together, and neighbouring threads touch neighbouring elements. When the grid
 * has been through once it goes on behind itself.
 *
 *   for (int64_t first = rle_batch_first(); first < l.numel; first += rle_batch_step()) {
 *       int64_t at[RLE_BATCH][2];
 *       int n = rle_batch_offsets(l, first, at);    // positions there are, up to
 * RLE_BATCH T x[RLE_BATCH]; rle_load(l.data[1], at, 1, n, x);           // 0 beyond n
 *       ...
 *       rle_store(l.data[0], at, n, x);
 *   }
 *
 * Reading a batch before writing it lets an output be the very array of an input. */
#ifndef RLE_KERNELS_BATCH_H
#define RLE_KERNELS_BATCH_H

#include "launch.h"

enum { RLE_BATCH = 4, RLE_BATCH_THREADS = 256, RLE_BATCH_MOST_BLOCKS = 2048 };

static inline unsigned rle_batch_blocks(int64_t n)
{
    return rle_blocks(n, RLE_BATCH_THREADS * RLE_BATCH, RLE_BATCH_MOST_BLOCKS);
}

__device__ static inline int64_t rle_batch_first(void)
{
    return (int64_t)blockIdx.x * (RLE_BATCH_THREADS * RLE_BATCH) + threadIdx.x;
}

__device__ static inline int64_t rle_batch_step(void)
{
    return (int64_t)gridDim.x * (RLE_BATCH_THREADS * RLE_BATCH);
}

/* Offsets in the first N operands of the batch at `first`. */
template <int N>
__device__ static inline int rle_batch_offsets(const rle_k_loop &l, int64_t first,
                                               int64_t (&at)[RLE_BATCH][N])
{
    int n = 0;
#pragma unroll
    for (int k = 0; k < RLE_BATCH; k++) {
        int64_t i = first + k * RLE_BATCH_THREADS;
        if (i < l.numel) {
            rle_offsets(l, i, at[k]);
            n = k + 1;
        }
    }
    return n;
}

/* `operand` is its number in `at`. */
template <typename T, int N>
__device__ static inline void rle_load(const void *data,
                                       const int64_t (&at)[RLE_BATCH][N], int operand,
                                       int n, T (&x)[RLE_BATCH])
{
#pragma unroll
    for (int k = 0; k < RLE_BATCH; k++)
        x[k] = k < n ? static_cast<const T *>(data)[at[k][operand]] : T(0);
}

/* To operand 0. */
template <typename T, int N>
__device__ static inline void rle_store(void *data, const int64_t (&at)[RLE_BATCH][N],
                                        int n, const T (&y)[RLE_BATCH])
{
#pragma unroll
    for (int k = 0; k < RLE_BATCH; k++)
        if (k < n) static_cast<T *>(data)[at[k][0]] = y[k];
}

/* The same for an operand of bool: whether y is nonzero. */
template <typename T, int N>
__device__ static inline void rle_store_bool(void *data,
                                             const int64_t (&at)[RLE_BATCH][N], int n,
                                             const T (&y)[RLE_BATCH])
{
#pragma unroll
    for (int k = 0; k < RLE_BATCH; k++)
        if (k < n) static_cast<uint8_t *>(data)[at[k][0]] = y[k] != 0;
}

#endif
