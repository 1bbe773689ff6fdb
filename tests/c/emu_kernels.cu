/* emu_kernels.cu - kernels that do one thing each, right or wrong, for test_emu.c. */
#include <cuda_runtime.h>

#include "emu_kernels.h"

namespace
{

dim3 shape(dim3_c s)
{
    return dim3(s.x, s.y, s.z);
}

/* ---- mistakes ---- */

__device__ int deeper(volatile int *p, int n)
{
    volatile int room[64];
    room[n & 63] = *p + n;
    if (n < 0) return room[0];
    return deeper(p, n + 1) + room[n & 63];
}

__global__ void wrong(wrong_kind kind, int *out)
{
    unsigned t = threadIdx.x, last = blockDim.x - 1;
    switch (kind) {
    case WRONG_DIVERGE:
        if (t < blockDim.x / 2)
            __syncthreads();
        else
            __syncthreads();
        break;
    case WRONG_RETURN_FIRST:
        if (t == 0) return;
        __syncthreads();
        break;
    case WRONG_RETURN_LAST:
        if (t == last) return;
        __syncthreads();
        break;
    case WRONG_LANE_AWAY:
        if (t == 0) __syncthreads();
        out[t] = __shfl_sync(0xffffffffu, static_cast<int>(t), 0);
        if (t != 0) __syncthreads();
        break;
    case WRONG_NOT_IN_MASK:
        __syncwarp(2u << t);
        break;
    case WRONG_MASKS:
        __syncwarp(t == 0 ? 0xffffffffu : 0x0000ffffu | 1u << t);
        break;
    case WRONG_WARP_LINES:
        if (t % 2)
            out[t] = __any_sync(0xffffffffu, 1);
        else
            out[t] = __any_sync(0xffffffffu, 0);
        break;
    case WRONG_BEYOND:
        out[(1 << 20) + t] = 1;
        break;
    case WRONG_NULL:
        out[t] = 1;
        break;
    case WRONG_DIVIDE:
        out[1] = static_cast<int>(t + 7) / out[0];
        break;
    case WRONG_STACK:
        out[1] = deeper(out, 0);
        break;
    default:
        RLE_DYNAMIC_SHARED(volatile int, room);
        room[16 + t] = 1; /* of 64 bytes */
        break;
    }
}

/* ---- barriers ---- */

template <bool BARRIERS> __global__ void sum(float *out, const float *in, int n)
{
    __shared__ float part[256];
    unsigned t = threadIdx.x;
    float s = 0;
    for (int i = static_cast<int>(t); i < n; i += 256) s += in[blockIdx.x * n + i];
    part[t] = s;
    if (BARRIERS) __syncthreads();
    for (unsigned half = 128; half; half /= 2) {
        if (t < half) part[t] += part[t + half];
        if (BARRIERS) __syncthreads();
    }
    if (t == 0) out[blockIdx.x] = part[0];
}

template <bool SECOND> __global__ void rotate(int *data, int rounds)
{
    RLE_DYNAMIC_SHARED(int, room);
    unsigned t = threadIdx.x, n = blockDim.x;
    int mine = data[t];
    for (int r = 0; r < rounds; r++) {
        room[t] = mine;
        __syncthreads();
        mine = room[(t + 1) % n];
        if (SECOND) __syncthreads();
    }
    data[t] = mine;
}

template <bool SECOND> __global__ void rotate_warp(int *data, int rounds)
{
    __shared__ int room[32];
    unsigned t = threadIdx.x;
    int mine = data[t];
    for (int r = 0; r < rounds; r++) {
        room[t] = mine;
        __syncwarp();
        mine = room[(t + 1) % 32];
        if (SECOND) __syncwarp();
    }
    data[t] = mine;
}

/* ---- order, shared memory ---- */

__global__ void order(unsigned *out, unsigned *counter)
{
    unsigned b = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    unsigned t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    out[b * blockDim.x * blockDim.y * blockDim.z + t] = atomicAdd(counter, 1u);
}

template <class T> __device__ T *of_a_template()
{
    __shared__ T x[3];
    return x;
}

__global__ void unwritten(unsigned *out)
{
    __shared__ unsigned y[5];
    RLE_DYNAMIC_SHARED(unsigned, z);
    unsigned *x = of_a_template<unsigned>(), *o = out + 4 * blockIdx.x;
    o[0] = x[2], o[1] = y[4], o[2] = z[0], o[3] = z[7];
    x[2] = y[4] = z[0] = z[7] = blockIdx.x;
}

/* ---- warps ---- */

__global__ void warp(unsigned *out)
{
    const unsigned all = 0xffffffffu;
    unsigned l = threadIdx.x, v = 100 + l;
    unsigned *o = out + l;
    *o = __shfl_sync(all, v, 5), o += 32;
    *o = __shfl_sync(all, v, 2, 8), o += 32;
    *o = __shfl_down_sync(all, v, 4), o += 32;
    *o = __shfl_up_sync(all, v, 4, 16), o += 32;
    *o = __shfl_xor_sync(all, v, 1), o += 32;
    *o = __shfl_xor_sync(all, v, 24, 8), o += 32;
    *o = static_cast<unsigned>(__shfl_down_sync(all, 1.0 * v, 1)), o += 32;
    *o = __ballot_sync(all, l % 3 == 0), o += 32;
    *o = static_cast<unsigned>(__any_sync(all, l == 9)), o += 32;
    *o = static_cast<unsigned>(__any_sync(all, 0)), o += 32;
    *o = static_cast<unsigned>(__all_sync(all, 1)), o += 32;
    *o = static_cast<unsigned>(__all_sync(all, l != 9)), o += 32;
    *o = __match_any_sync(all, l / 4), o += 32;
    *o = static_cast<unsigned>(__syncthreads_count(l < 7)), o += 32;
    *o = static_cast<unsigned>(__syncthreads_or(l == 31)), o += 32;
    *o = static_cast<unsigned>(__syncthreads_and(l != 31)), o += 32;
    /* Two halves on their own. */
    unsigned half = l < 16 ? 0x0000ffffu : 0xffff0000u;
    *o = __ballot_sync(half, l % 2);
}

__global__ void warp_partial(unsigned *out)
{
    unsigned l = threadIdx.x;
    if (l >= 24) return; /* 40 threads: the second warp has 8 */
    out[l] = __shfl_down_sync(0xffffffffu, l, 8);
    if (l < 8) out[32 + l] = __shfl_xor_sync(0x000000ffu, l, 8);
    out[64 + l] = __ballot_sync(0x00ffffffu, 1);
}

/* ---- atomics ---- */

struct Words {
    int add, least, most, last, swapped;
    unsigned uadd, uleast, umost, all_bits, any_bits, odd_bits;
    unsigned long long wide_add, wide_least, wide_most, wide_swapped;
    long long sleast, smost;
    float fadd;
    double dadd;
};

__global__ void atomics(Words *w)
{
    int t = static_cast<int>(threadIdx.x);
    unsigned u = threadIdx.x;
    atomicAdd(&w->add, t);
    atomicMin(&w->least, t - 100);
    atomicMax(&w->most, t - 100);
    if (atomicCAS(&w->swapped, 0, t + 1) == 0) atomicExch(&w->last, t);
    atomicAdd(&w->uadd, u);
    atomicMin(&w->uleast, u + 3);
    atomicMax(&w->umost, u + 3);
    atomicAnd(&w->all_bits, u | 0xf00u);
    atomicOr(&w->any_bits, u);
    atomicXor(&w->odd_bits, u);
    atomicAdd(&w->wide_add, 1ull << 40 | u);
    atomicMin(&w->wide_least, 7ull + u);
    atomicMax(&w->wide_most, 7ull + u);
    atomicCAS(&w->wide_swapped, static_cast<unsigned long long>(u), u + 1ull);
    atomicMin(&w->sleast, 5ll - t);
    atomicMax(&w->smost, 5ll - t);
    atomicAdd(&w->fadd, 0.5f);
    atomicAdd(&w->dadd, 0.25);
}

/* ---- the rest ---- */

__global__ void read(int *out, const int *address)
{
    out[0] = *address;
}

__global__ void add(int *out, int n, int value)
{
    int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) out[i] = value ? value : out[i] + 1;
}

__global__ void count_threads(unsigned *out)
{
    atomicAdd(out, 1u);
}

__global__ void intrinsics(int *out)
{
    bool right[K_INTRINSICS] = {
        __umulhi(0x80000000u, 6u) == 3,
        __umul64hi(1ull << 63, 6ull) == 3,
        __popc(0xf0u) == 4,
        __popcll(0xf0000000000ull) == 4,
        __clz(1) == 31 && __clz(0) == 32,
        __clzll(1) == 63 && __clzll(0) == 64,
        __ffs(8) == 4 && __ffs(0) == 0,
        __ffsll(1ll << 40) == 41,
        __float_as_int(1.0f) == 0x3f800000,
        __float_as_uint(-1.0f) == 0xbf800000u,
        __int_as_float(0x3f800000) == 1.0f,
        __uint_as_float(0xbf800000u) == -1.0f,
        __double_as_longlong(1.0) == 0x3ff0000000000000ll,
        __longlong_as_double(0x3ff0000000000000ll) == 1.0,
        __fadd_rn(1.0f, 2.0f) == 3.0f && __dadd_rn(1.0, 2.0) == 3.0,
        __fmul_rn(3.0f, 2.0f) == 6.0f && __dmul_rn(3.0, 2.0) == 6.0,
        __fdiv_rn(1.0f, 3.0f) == 1.0f / 3.0f,
        __fmaf_rn(2.0f, 3.0f, 4.0f) == 10.0f && __fma_rn(2.0, 3.0, 4.0) == 10.0,
        __fsqrt_rn(9.0f) == 3.0f,
        rsqrtf(4.0f) == 0.5f && rsqrt(4.0) == 0.5,
        min(2, 3) == 2 && max(2, 3) == 3,
        __ldg(out) == 0 && __ldcs(out) == 0,
        sizeof(float4) == 16 && alignof(float4) == 16 && alignof(uint2) == 8,
        make_float4(1, 2, 3, 4).w == 4 && make_int2(1, 2).y == 2,
        warpSize == 32,
    };
    for (int i = 0; i < K_INTRINSICS; i++) __stcs(out + i, static_cast<int>(right[i]));
}

} // namespace

cudaError_t k_wrong(wrong_kind kind, int *out, int threads, cudaStream_t stream)
{
    return RLE_LAUNCH(wrong, 3, static_cast<unsigned>(threads), 64, stream, kind,
                      kind == WRONG_NULL ? nullptr : out);
}

cudaError_t k_sum(float *out, const float *in, int blocks, int n, bool barriers,
                  cudaStream_t stream)
{
    unsigned b = static_cast<unsigned>(blocks);
    return barriers ? RLE_LAUNCH(sum<true>, b, 256, 0, stream, out, in, n)
                    : RLE_LAUNCH(sum<false>, b, 256, 0, stream, out, in, n);
}

cudaError_t k_rotate(int *data, int n, int rounds, bool second, cudaStream_t stream)
{
    unsigned t = static_cast<unsigned>(n);
    return second ? RLE_LAUNCH(rotate<true>, 1, t, t * 4, stream, data, rounds)
                  : RLE_LAUNCH(rotate<false>, 1, t, t * 4, stream, data, rounds);
}

cudaError_t k_rotate_warp(int *data, int rounds, bool second, cudaStream_t stream)
{
    return second ? RLE_LAUNCH(rotate_warp<true>, 1, 32, 0, stream, data, rounds)
                  : RLE_LAUNCH(rotate_warp<false>, 1, 32, 0, stream, data, rounds);
}

cudaError_t k_order(unsigned *out, unsigned *counter, dim3_c blocks, dim3_c threads,
                    cudaStream_t stream)
{
    return RLE_LAUNCH(order, shape(blocks), shape(threads), 0, stream, out, counter);
}

cudaError_t k_unwritten(unsigned *out, int blocks, cudaStream_t stream)
{
    return RLE_LAUNCH(unwritten, static_cast<unsigned>(blocks), 1, 32, stream, out);
}

cudaError_t k_warp(unsigned *out, cudaStream_t stream)
{
    return RLE_LAUNCH(warp, 1, 32, 0, stream, out);
}

cudaError_t k_warp_partial(unsigned *out, cudaStream_t stream)
{
    return RLE_LAUNCH(warp_partial, 1, 40, 0, stream, out);
}

cudaError_t k_atomics(void *out, cudaStream_t stream)
{
    return RLE_LAUNCH(atomics, 1, 256, 0, stream, static_cast<Words *>(out));
}

cudaError_t k_read(int *out, const int *address, cudaStream_t stream)
{
    return RLE_LAUNCH(read, 1, 1, 0, stream, out, address);
}

cudaError_t k_add(int *out, int n, int value, cudaStream_t stream)
{
    return RLE_LAUNCH(add, static_cast<unsigned>(n + 63) / 64, 64, 0, stream, out, n,
                      value);
}

cudaError_t k_shape(unsigned *out, dim3_c blocks, dim3_c threads, size_t shared,
                    cudaStream_t stream)
{
    return RLE_LAUNCH(count_threads, shape(blocks), shape(threads), shared, stream, out);
}

cudaError_t k_intrinsics(int *out, cudaStream_t stream)
{
    return RLE_LAUNCH(intrinsics, 1, 1, 0, stream, out);
}
