#pragma once
#pragma GCC diagnostic ignored "-Wshadow"
#include "cuda_runtime_api.h"
// ---- language shim ----------------------------------------------------------------------
#ifdef EMU_EXTERN_KERNELS
#define __global__ __attribute__((visibility("default")))
#else
#define __global__ static
#endif
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __constant__ static
#ifndef EMU_SHARED_ATTR
#define EMU_SHARED_ATTR __attribute__((section("emu_shared")))
#endif
#define __shared__ static EMU_SHARED_ATTR
struct uint3 { unsigned x, y, z; };
struct dim3 { unsigned x, y, z; constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {} };
struct uint2 { uint32_t x, y; };  struct alignas(16) uint4 { uint32_t x, y, z, w; };
struct alignas(8) float2 { float x, y; };  struct alignas(16) float4 { float x, y, z, w; };
static inline uint2 make_uint2(uint32_t a, uint32_t b) { return {a, b}; }
static inline uint4 make_uint4(uint32_t a, uint32_t b, uint32_t c, uint32_t d) { return {a, b, c, d}; }
static inline float2 make_float2(float a, float b) { return {a, b}; }
static inline float4 make_float4(float a, float b, float c, float d) { return {a, b, c, d}; }
namespace emu {
extern uint3 g_tid, g_bid; extern dim3 g_bdim, g_gdim; extern char *g_dyn; extern unsigned g_lin;
void sync_block(); uint64_t warp_xchg(unsigned mask, uint64_t v, int src, int op, int *pred);
struct Work { size_t smem; dim3 g, b; const char *name; unsigned nthreads; virtual void range() = 0; virtual ~Work() {} };
bool next_thread();                      // advances g_tid to the next not-started thread of the block
void exit_thread();
cudaError_t submit(Work *, cudaStream_t);
cudaError_t enqueue(cudaStream_t, void (*fn)(void *), void *arg);   // used by the cuBLAS shim
bool in_device(const void *, size_t);
template <class F> struct WorkF : Work { F f; WorkF(F f) : f(f) {} void range() override { while (next_thread()) { f(); exit_thread(); } } };
template <class F> inline cudaError_t launch(const char *name, dim3 g, dim3 b, size_t smem, cudaStream_t s, F f) {
  auto *w = new WorkF<F>(f); w->smem = smem; w->g = g; w->b = b; w->name = name; w->nthreads = b.x * b.y * b.z; return submit(w, s);
}
template <class T> static inline uint64_t bits(T v) { uint64_t u = 0; memcpy(&u, &v, sizeof v); return u; }
template <class T> static inline T unbits(uint64_t u) { T v; memcpy(&v, &u, sizeof v); return v; }
}
#define threadIdx (emu::g_tid)
#define blockIdx (emu::g_bid)
#define blockDim (emu::g_bdim)
#define gridDim (emu::g_gdim)
#define warpSize 32
#define RLE_DYNAMIC_SHARED(T, name) T *name = reinterpret_cast<T *>(emu::g_dyn)
#define EMU_UNPAREN(...) __VA_ARGS__
// arguments are captured by value, converted at call time exactly as a launch would
#define RLE_LAUNCH(k, grid, block, smem, stream, ...) \
  ([&]() -> cudaError_t { auto args_ = std::make_tuple(__VA_ARGS__); \
    return emu::launch(#k, (grid), (block), (smem), (stream), [=]() { std::apply([](auto... a) { k(a...); }, args_); }); }())
#include <tuple>
static inline void __syncthreads() { emu::sync_block(); }
static inline void __syncwarp(unsigned m = 0xffffffffu) { emu::warp_xchg(m, 0, -1, 1, nullptr); }
static inline void __threadfence() {}
static inline int emu_lane() { return emu::g_lin & 31; }
template <class T> static inline T __shfl_sync(unsigned m, T v, int src, int w = 32) { int l = emu_lane(); return emu::unbits<T>(emu::warp_xchg(m, emu::bits(v), (l & ~(w - 1)) + (src & (w - 1)), 2, nullptr)); }
template <class T> static inline T __shfl_down_sync(unsigned m, T v, unsigned d, int w = 32) { int l = emu_lane(); return emu::unbits<T>(emu::warp_xchg(m, emu::bits(v), (l & (w - 1)) + (int)d < w ? l + (int)d : l, 3, nullptr)); }
template <class T> static inline T __shfl_up_sync(unsigned m, T v, unsigned d, int w = 32) { int l = emu_lane(); return emu::unbits<T>(emu::warp_xchg(m, emu::bits(v), (l & (w - 1)) >= (int)d ? l - (int)d : l, 4, nullptr)); }
template <class T> static inline T __shfl_xor_sync(unsigned m, T v, int x, int w = 32) { int l = emu_lane(), s = l ^ x; return emu::unbits<T>(emu::warp_xchg(m, emu::bits(v), (s & ~(w - 1)) <= (l & ~(w - 1)) ? s : l, 5, nullptr)); }
static inline unsigned __ballot_sync(unsigned m, int p) { int b; emu::warp_xchg(m, !!p, -1, 6, &b); return (unsigned)b; }
static inline int __any_sync(unsigned m, int p) { return __ballot_sync(m, p) != 0; }
static inline int __all_sync(unsigned m, int p) { return __ballot_sync(m, p) == m; }
template <class T> static inline T atomicAdd(T *p, T v) { T o = *p; *p = o + v; return o; }
template <class T> static inline T atomicMax(T *p, T v) { T o = *p; if (v > o) *p = v; return o; }
template <class T> static inline T atomicMin(T *p, T v)
{
    T o = *p;
    if (v < o) *p = v;
    return o;
}
template <class T> static inline T atomicCAS(T *p, T c, T v) { T o = *p; if (o == c) *p = v; return o; }
template <class T> static inline T __ldg(const T *p) { return *p; }
static inline uint32_t __umulhi(uint32_t a, uint32_t b) { return (uint32_t)(((uint64_t)a * b) >> 32); }
static inline int __popc(unsigned v) { return __builtin_popcount(v); }
#define __expf expf   // glibc's math.h declares __expf, __logf,... as externs: only macros work
#define __logf logf
static inline float rsqrtf(float x) { return 1.f / sqrtf(x); }
