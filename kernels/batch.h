/* batch.h - how elementwise kernels go through a loop (rle_k_loop): a thread takes
 * RLE_BATCH elements at a time, so that its loads are under way together and its sums of
 * offsets are few. There are two ways, and a kernel is compiled for both:
 *
 *   packed: four neighbours along the last dimension, with one offset and one access of up
 *     to 16 bytes an operand. For operands that are contiguous along it, or the same for
 *     all of it: dense ones, a bias added to rows, a column, slices.
 *
 *   single: four positions a block's width apart, each with its own offsets, so that
 *     neighbouring threads touch neighbouring elements.
 *
 *   template <typename T, bool PACKED> __global__ void kernel(rle_k_loop l)
 *   {
 *       typedef rle_batch<2, PACKED> batch;             // 2 operands
 *       for (int64_t i = batch::first(); i < l.numel; i += batch::step()) {
 *           batch b(l, i);
 *           T x[RLE_BATCH];
 *           b.load(l, 1, x);                            // 0 where there is nothing
 *           ...
 *           b.store(l, x);                              // to operand 0
 *       }
 *   }
 *   return RLE_LAUNCH_BATCHES(kernel, T, l, stream);    // more arguments behind
 *
 * When the grid has been through once it goes on behind itself. Reading a batch before
 * writing it lets an output be the very array of an input. */
#ifndef RLE_KERNELS_BATCH_H
#define RLE_KERNELS_BATCH_H

#include "launch.h"

enum { RLE_BATCH = 4, RLE_BATCH_THREADS = 256, RLE_BATCH_MOST_BLOCKS = 2048 };

static inline unsigned rle_batch_blocks(int64_t elements)
{
    return rle_blocks(elements, RLE_BATCH_THREADS * RLE_BATCH, RLE_BATCH_MOST_BLOCKS);
}

/* The loop over packs, if `l` can be gone through so. Only the last pack of a loop of one
 * dimension may be short. */
static inline bool rle_packs(const rle_k_loop *l, rle_k_loop *packs)
{
    int last = l->ndim - 1;
    if (l->ndim > 1 && l->shape[last] % RLE_BATCH != 0) return false;
    *packs = *l;
    for (int o = 0; o < l->count; o++) {
        packs->once[o] = !l->data[o] || l->stride[o][last] == 0;
        if (packs->once[o]) continue;
        if (l->stride[o][last] != 1) return false;
        int bytes = l->size[o] * RLE_BATCH > 16 ? 16 : l->size[o] * RLE_BATCH;
        if ((uintptr_t)l->data[o] % (unsigned)bytes != 0) return false;
        for (int d = 0; d < last; d++)
            if (l->stride[o][d] % RLE_BATCH != 0) return false;
        packs->stride[o][last] = RLE_BATCH;
    }
    packs->shape[last] = (l->shape[last] + RLE_BATCH - 1) / RLE_BATCH;
    packs->numel = (l->numel + RLE_BATCH - 1) / RLE_BATCH;
    packs->tail = (int)(l->numel - (packs->numel - 1) * RLE_BATCH);
    if (l->narrow) packs->divisor[last] = rle_divisor((uint32_t)packs->shape[last]);
    return true;
}

#define RLE_LAUNCH_BATCHES(kernel, T, l, stream, ...)                                    \
    rle_launch_batches(                                                                  \
        l,                                                                               \
        [&](const rle_k_loop &packs, unsigned blocks) {                                  \
            return RLE_LAUNCH((kernel<T, true>), blocks,                                 \
                              rle_few(packs.numel, RLE_BATCH_THREADS), 0, stream, packs, \
                              ##__VA_ARGS__);                                            \
        },                                                                               \
        [&](const rle_k_loop &loop, unsigned blocks) {                                   \
            return RLE_LAUNCH((kernel<T, false>), blocks,                                \
                              rle_few(loop.numel, RLE_BATCH_THREADS), 0, stream, loop,   \
                              ##__VA_ARGS__);                                            \
        })

template <typename Packed, typename Single>
static inline cudaError_t rle_launch_batches(const rle_k_loop *l, Packed packed,
                                             Single single)
{
    rle_k_loop packs;
    unsigned blocks = rle_batch_blocks(l->numel);
    return rle_packs(l, &packs) ? packed(packs, blocks) : single(*l, blocks);
}

/* What one access takes. */
template <typename T>
struct alignas(RLE_BATCH * sizeof(T) > 16 ? 16 : RLE_BATCH * sizeof(T)) rle_pack {
    T x[RLE_BATCH];
};

template <int N, bool PACKED> struct rle_batch;

template <int N> struct rle_batch<N, true> {
    int n; /* elements there are */
    int64_t at[N];

    __device__ static int64_t first() { return rle_thread(); }
    __device__ static int64_t step() { return rle_threads(); }

    __device__ rle_batch(const rle_k_loop &l, int64_t i)
    {
        n = i == l.numel - 1 ? l.tail : RLE_BATCH;
        rle_offsets(l, i, at);
    }

    template <typename T>
    __device__ void load(const rle_k_loop &l, int operand, T (&x)[RLE_BATCH]) const
    {
        const T *p = static_cast<const T *>(l.data[operand]) + at[operand];
        rle_pack<T> pack;
        if (l.once[operand]) {
            for (int k = 0; k < RLE_BATCH; k++) pack.x[k] = *p;
        } else if (n == RLE_BATCH) {
            pack = *reinterpret_cast<const rle_pack<T> *>(p);
        } else {
            for (int k = 0; k < RLE_BATCH; k++) pack.x[k] = k < n ? p[k] : T(0);
        }
        for (int k = 0; k < RLE_BATCH; k++) x[k] = pack.x[k];
    }

    template <typename T>
    __device__ void store(const rle_k_loop &l, const T (&y)[RLE_BATCH]) const
    {
        T *p = static_cast<T *>(l.data[0]) + at[0];
        rle_pack<T> pack;
        for (int k = 0; k < RLE_BATCH; k++) pack.x[k] = y[k];
        if (n == RLE_BATCH) {
            *reinterpret_cast<rle_pack<T> *>(p) = pack;
        } else {
            for (int k = 0; k < RLE_BATCH; k++)
                if (k < n) p[k] = pack.x[k];
        }
    }
};

template <int N> struct rle_batch<N, false> {
    int n;
    int64_t at[RLE_BATCH][N];

    __device__ static int64_t first()
    {
        return (int64_t)blockIdx.x * (RLE_BATCH_THREADS * RLE_BATCH) + threadIdx.x;
    }
    __device__ static int64_t step()
    {
        return (int64_t)gridDim.x * (RLE_BATCH_THREADS * RLE_BATCH);
    }
    /* Which position element k of the batch at i is. */
    __device__ static int64_t position(int64_t i, int k)
    {
        return i + k * RLE_BATCH_THREADS;
    }

    __device__ rle_batch(const rle_k_loop &l, int64_t i)
    {
        n = 0;
#pragma unroll
        for (int k = 0; k < RLE_BATCH; k++)
            if (position(i, k) < l.numel) {
                rle_offsets(l, position(i, k), at[k]);
                n = k + 1;
            }
    }

    template <typename T>
    __device__ void load(const rle_k_loop &l, int operand, T (&x)[RLE_BATCH]) const
    {
#pragma unroll
        for (int k = 0; k < RLE_BATCH; k++)
            x[k] = k < n ? static_cast<const T *>(l.data[operand])[at[k][operand]] : T(0);
    }

    template <typename T>
    __device__ void store(const rle_k_loop &l, const T (&y)[RLE_BATCH]) const
    {
#pragma unroll
        for (int k = 0; k < RLE_BATCH; k++)
            if (k < n) static_cast<T *>(l.data[0])[at[k][0]] = y[k];
    }
};

/* To an operand 0 of bool: whether y is nonzero. */
template <typename T, typename Batch>
__device__ static inline void rle_store_bool(const Batch &b, const rle_k_loop &l,
                                             const T (&y)[RLE_BATCH])
{
    uint8_t truth[RLE_BATCH];
    for (int k = 0; k < RLE_BATCH; k++) truth[k] = y[k] != 0;
    b.store(l, truth);
}

#endif
