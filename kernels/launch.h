/* launch.h - what a kernel file needs: the CUDA language, from nvcc or from the
 * emulation, and the few things that the emulation cannot imitate, as macros.
 *
 *   RLE_LAUNCH(kernel, grid, block, shared, stream, arguments...) -> cudaError_t
 *     instead of kernel<<<...>>>(...). A template with commas goes in parentheses. Only a
 * bad configuration shows here; what goes wrong inside the kernel shows when the stream
 * is waited for. RLE_DYNAMIC_SHARED(type, name) instead of extern __shared__: the shared
 * memory whose size the launch gives.
 *
 * Rules for kernels: fused multiply-adds are written out (fmaf, fma) and the compiler
 * adds none (-fmad=false); elementary functions come from common/math.h; every thread of
 * a block reaches every __syncthreads; atomics only where the order cannot be seen in the
 * result. */
#ifndef RLE_KERNELS_LAUNCH_H
#define RLE_KERNELS_LAUNCH_H

#include <cuda_runtime.h>

#include "common/math.h"
#include "kernels.h"

#ifndef RLE_EMU
#define RLE_LAUNCH(kernel, grid, block, shared, stream, ...)                             \
    (kernel<<<(grid), (block), (shared), (stream)>>>(__VA_ARGS__), cudaGetLastError())
#define RLE_DYNAMIC_SHARED(type, name)                                                   \
    extern __shared__ __align__(16) unsigned char rle_dynamic_shared_[];                 \
    type *name = reinterpret_cast<type *>(rle_dynamic_shared_)
#endif

#ifdef __CUDACC__
#define RLE_NOINLINE __noinline__
#else
#define RLE_NOINLINE __attribute__((noinline))
#define __grid_constant__
#endif

/* Blocks of `threads` for n elements, at most `most`: kernels go on in steps of the grid.
 */
static inline unsigned rle_blocks(int64_t n, int threads, int64_t most)
{
    int64_t blocks = (n + threads - 1) / threads;
    return (unsigned)(blocks < 1 ? 1 : blocks > most ? most : blocks);
}

/* Threads of a block for n elements: `threads`, or as many warps as fewer elements need. */
static inline unsigned rle_few(int64_t n, int threads)
{
    return (unsigned)(n >= threads ? threads : n <= 32 ? 32 : (n + 31) / 32 * 32);
}

/* This thread's place in the grid, and the grid's size, in elements. */
__device__ static inline int64_t rle_thread(void)
{
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}
__device__ static inline int64_t rle_threads(void)
{
    return (int64_t)gridDim.x * blockDim.x;
}

__device__ static inline uint32_t rle_divide(uint32_t n, rle_k_divisor d)
{
    uint32_t high = (uint32_t)((uint64_t)n * d.factor >> 32);
    return (high + n) >> d.shift;
}

/* Element offsets of position i, counted row-major in the loop's dimensions, in the first
 * N operands. One or two dimensions (contiguous operands, a number, a bias by columns)
 * cost a few instructions; 64-bit divisions only where 32 bits are not enough. */
template <int N>
__device__ static inline void rle_offsets(const rle_k_loop &l, int64_t i,
                                          int64_t (&at)[N])
{
    if (l.ndim == 1) {
        for (int k = 0; k < N; k++) at[k] = i * l.stride[k][0];
    } else if (l.narrow) {
        uint32_t rest = (uint32_t)i;
        int32_t sum[N] = {0};
#pragma unroll 1
        for (int d = l.ndim - 1; d > 0; d--) {
            uint32_t next = rle_divide(rest, l.divisor[d]);
            int32_t here = (int32_t)(rest - next * (uint32_t)l.shape[d]);
            for (int k = 0; k < N; k++) sum[k] += here * (int32_t)l.stride[k][d];
            rest = next;
        }
        for (int k = 0; k < N; k++)
            at[k] = sum[k] + (int32_t)rest * (int32_t)l.stride[k][0];
    } else {
        for (int k = 0; k < N; k++) at[k] = 0;
#pragma unroll 1
        for (int d = l.ndim - 1; d > 0; d--) {
            int64_t next = i / l.shape[d], here = i - next * l.shape[d];
            for (int k = 0; k < N; k++) at[k] += here * l.stride[k][d];
            i = next;
        }
        for (int k = 0; k < N; k++) at[k] += i * l.stride[k][0];
    }
}

#endif
