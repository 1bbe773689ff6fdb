/* emu_math.h - intrinsics of the CUDA language with their results in plain C++. */
#ifndef RLE_EMU_MATH_H
#define RLE_EMU_MATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

template <class T> static inline T __ldg(const T *p)
{
    return *p;
}
template <class T> static inline T __ldcs(const T *p)
{
    return *p;
}
template <class T> static inline void __stcs(T *p, T v)
{
    *p = v;
}

/* ---- bits ---- */

static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32);
}
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
static inline int __popc(unsigned v)
{
    return __builtin_popcount(v);
}
static inline int __popcll(unsigned long long v)
{
    return __builtin_popcountll(v);
}
static inline int __clz(int v)
{
    return v ? __builtin_clz(static_cast<unsigned>(v)) : 32;
}
static inline int __clzll(long long v)
{
    return v ? __builtin_clzll(static_cast<unsigned long long>(v)) : 64;
}
static inline int __ffs(int v)
{
    return __builtin_ffs(v);
}
static inline int __ffsll(long long v)
{
    return __builtin_ffsll(v);
}

template <class To, class From> static inline To rle_emu_cast(From v)
{
    static_assert(sizeof(To) == sizeof(From), "the same bits as another type");
    To out;
    memcpy(&out, &v, sizeof out);
    return out;
}
static inline int __float_as_int(float v)
{
    return rle_emu_cast<int>(v);
}
static inline unsigned __float_as_uint(float v)
{
    return rle_emu_cast<unsigned>(v);
}
static inline float __int_as_float(int v)
{
    return rle_emu_cast<float>(v);
}
static inline float __uint_as_float(unsigned v)
{
    return rle_emu_cast<float>(v);
}
static inline long long __double_as_longlong(double v)
{
    return rle_emu_cast<long long>(v);
}
static inline double __longlong_as_double(long long v)
{
    return rle_emu_cast<double>(v);
}

/* ---- arithmetic that is rounded once and never fused ---- */

static inline float __fadd_rn(float a, float b)
{
    return a + b;
}
static inline float __fmul_rn(float a, float b)
{
    return a * b;
}
static inline float __fdiv_rn(float a, float b)
{
    return a / b;
}
static inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}
static inline float __fsqrt_rn(float a)
{
    return sqrtf(a);
}
static inline double __dadd_rn(double a, double b)
{
    return a + b;
}
static inline double __dmul_rn(double a, double b)
{
    return a * b;
}
static inline double __fma_rn(double a, double b, double c)
{
    return fma(a, b, c);
}
static inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}
static inline double rsqrt(double x)
{
    return 1.0 / sqrt(x);
}

/* ---- min and max, for two values of one type ---- */

template <class T> static inline T min(T a, T b)
{
    return b < a ? b : a;
}
template <class T> static inline T max(T a, T b)
{
    return a < b ? b : a;
}

#endif
