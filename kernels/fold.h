/* fold.h - the engine's order of summation, for kernels.
 *
 * The elements that fall into one output are numbered. Element k belongs to block k /
 * 256; in a block it belongs to lane k mod 16; a lane goes through its (at most 16)
 * elements in order, starting from the identity; then lane i takes in lane i + 8, then i
 * + 4, i + 2, i + 1. The blocks' results are added up in double: 256 of them, in order,
 * to a chunk, then the chunks. engine/device/cpu/reduce.c does the same, so results are
 * equal bit for bit, and which threads do the work is free:
 *
 *   fold_block_by_lanes   16 neighbouring threads are the 16 lanes: elements side by side
 *   fold_block_alone      one thread has all lanes in registers: outputs side by side
 *
 * An operation says what the elements are and what is done with them:
 *
 *   struct op {
 *       typedef ... lane;              // what a block is folded in
 *       typedef ... wide;              // what blocks are put together in
 *       static constexpr int at_once;  // elements in flight; 1 where the order is free
 *       lane identity() const;
 *       lane take(lane, lane) const;   // a lane and an element
 *       lane join(lane, lane) const;   // two lanes
 *       wide combine(wide, wide) const;
 *   };
 *
 * Lanes without an element stay identities and change nothing: a sum that starts from 0
 * is never -0. */
#ifndef RLE_KERNELS_FOLD_H
#define RLE_KERNELS_FOLD_H

#include "launch.h"

constexpr int FOLD_LANES = 16, FOLD_BLOCK = 256, FOLD_CHUNK = 256 /* blocks */;

/* Of `count` things from `start` on, those of the same block (or chunk: both have 256).
 */
__device__ static inline int fold_part(int64_t count, int64_t start)
{
    return count - start < FOLD_BLOCK ? static_cast<int>(count - start) : FOLD_BLOCK;
}

/* ---- the functions of math.h by type ---- */

__device__ static inline float real_exp(float x)
{
    return rle_expf(x);
}
__device__ static inline double real_exp(double x)
{
    return rle_exp(x);
}
__device__ static inline float real_log(float x)
{
    return rle_logf(x);
}
__device__ static inline double real_log(double x)
{
    return rle_log(x);
}
__device__ static inline float real_infinity(float)
{
    return rle_float32(0x7f800000u);
}
__device__ static inline double real_infinity(double)
{
    return rle_float64(UINT64_C(0x7ff0000000000000));
}

/* ---- operations on floats ---- */

template <typename T> struct fold_sum {
    typedef T lane;
    typedef double wide;
    static constexpr int at_once = FOLD_LANES;
    __device__ lane identity() const { return 0; }
    __device__ lane take(lane a, lane x) const { return a + x; }
    __device__ lane join(lane a, lane b) const { return a + b; }
    __device__ wide combine(wide a, wide b) const { return a + b; }
};
template <typename T> struct fold_sumsq : fold_sum<T> {
    __device__ T take(T a, T x) const { return a + x * x; }
};
template <typename T> struct fold_prod {
    typedef T lane;
    typedef double wide;
    static constexpr int at_once = FOLD_LANES;
    __device__ lane identity() const { return 1; }
    __device__ lane take(lane a, lane x) const { return a * x; }
    __device__ lane join(lane a, lane b) const { return a * b; }
    __device__ wide combine(wide a, wide b) const { return a * b; }
};
/* The first NaN stays. */
template <typename T> struct fold_max {
    typedef T lane;
    typedef double wide;
    static constexpr int at_once = FOLD_LANES;
    __device__ lane identity() const { return -real_infinity(T()); }
    __device__ lane take(lane a, lane x) const { return a >= x || a != a ? a : x; }
    __device__ lane join(lane a, lane b) const { return take(a, b); }
    __device__ wide combine(wide a, wide b) const { return a >= b || a != a ? a : b; }
};
template <typename T> struct fold_min {
    typedef T lane;
    typedef double wide;
    static constexpr int at_once = FOLD_LANES;
    __device__ lane identity() const { return real_infinity(T()); }
    __device__ lane take(lane a, lane x) const { return a <= x || a != a ? a : x; }
    __device__ lane join(lane a, lane b) const { return take(a, b); }
    __device__ wide combine(wide a, wide b) const { return a <= b || a != a ? a : b; }
};

/* ---- one block ---- */

/* The lanes of 16 neighbouring threads joined; every one of them gets the result. All
 * threads of the warp come here together. */
template <typename Op>
__device__ typename Op::lane fold_join(const Op &op, typename Op::lane acc)
{
    for (int half = FOLD_LANES / 2; half > 0; half /= 2)
        acc = op.join(acc, __shfl_down_sync(0xffffffffu, acc, half, FOLD_LANES));
    return __shfl_sync(0xffffffffu, acc, 0, FOLD_LANES);
}

/* This thread is lane threadIdx.x % 16; get(k) is element k of the block, k < n <= 256.
 */
template <typename Op, typename Get>
__device__ typename Op::lane fold_block_by_lanes(const Op &op, int n, Get get)
{
    typename Op::lane acc = op.identity();
    int k = threadIdx.x % FOLD_LANES;
    if (Op::at_once > 1 && n == FOLD_BLOCK) {
        typename Op::lane x[Op::at_once]; /* all loads before the first use */
#pragma unroll
        for (int j = 0; j < Op::at_once; j++) x[j] = get(j * FOLD_LANES + k);
#pragma unroll
        for (int j = 0; j < Op::at_once; j++) acc = op.take(acc, x[j]);
    } else {
#pragma unroll 1
        for (; k < n; k += FOLD_LANES) acc = op.take(acc, get(k));
    }
    return fold_join(op, acc);
}

template <typename Op, typename Get>
__device__ typename Op::lane fold_block_alone(const Op &op, int n, Get get)
{
    typename Op::lane acc[FOLD_LANES];
#pragma unroll
    for (int l = 0; l < Op::at_once; l++) acc[l] = op.identity();
#pragma unroll 1
    for (int k = 0; k < n; k += Op::at_once) {
#pragma unroll
        for (int l = 0; l < Op::at_once; l++)
            if (k + l < n) acc[l] = op.take(acc[l], get(k + l));
    }
#pragma unroll
    for (int half = FOLD_LANES / 2; half > 0; half /= 2)
#pragma unroll
        for (int l = 0; l < FOLD_LANES / 2; l++)
            if (l < half && half < Op::at_once) acc[l] = op.join(acc[l], acc[l + half]);
    return acc[0];
}

/* ---- blocks to chunks, chunks to the result ---- */

template <typename Op> struct fold_total {
    typename Op::wide chunks, blocks;

    __device__ explicit fold_total(const Op &op)
        : chunks(op.identity()), blocks(op.identity())
    {
    }
    /* Block b of the elements, from 0 on. */
    __device__ void add(const Op &op, int64_t b, typename Op::wide x)
    {
        if (b % FOLD_CHUNK != 0) {
            blocks = op.combine(blocks, x);
            return;
        }
        if (b > 0) chunks = b == FOLD_CHUNK ? blocks : op.combine(chunks, blocks);
        blocks = x;
    }
    /* After `count` blocks. */
    __device__ typename Op::wide result(const Op &op, int64_t count) const
    {
        return count <= FOLD_CHUNK ? blocks : op.combine(chunks, blocks);
    }
};

__host__ __device__ static inline int64_t fold_blocks(int64_t count)
{
    return (count + FOLD_BLOCK - 1) / FOLD_BLOCK;
}

#endif
