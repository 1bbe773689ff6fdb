/* simd.h - vectors of 16 elements, whatever the machine's width: one register of AVX-512,
 * two of AVX2, more elsewhere and in double precision.
 *
 * v_take(x, y, acc) is how a product enters a sum: fused in single precision, rounded
 * twice in double, on every machine. v_sum adds the lanes in the engine's order: lane i
 * takes in lane i+8, then i+4, i+2, i+1. v_relu(x) is 0 > x ? 0 : x. v_larger(a, x) is
 * a where a >= x or a is NaN, else x; v_smaller likewise. */
#ifndef RLE_CPU_ISA_SIMD_H
#define RLE_CPU_ISA_SIMD_H

#include "device/cpu/isa/real.h"

#define RLE_INLINE static inline __attribute__((always_inline, unused))

#if defined(__clang__)
#define RLE_UNROLL _Pragma("clang loop unroll(full)")
#else
#define RLE_UNROLL _Pragma("GCC unroll 16")
#endif

#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__FMA__))
#include <immintrin.h>
#endif

#if defined(__AVX512F__) && !defined(RLE_F64_KERNELS)

typedef __m512 v16;

RLE_INLINE __mmask16 v_mask(int n) { return (__mmask16)((1u << n) - 1); }
RLE_INLINE v16 v_set(float x) { return _mm512_set1_ps(x); }
RLE_INLINE v16 v_load(const float *p) { return _mm512_loadu_ps(p); }
RLE_INLINE v16 v_load_n(const float *p, int n) { return _mm512_maskz_loadu_ps(v_mask(n), p); }
RLE_INLINE void v_store(float *p, v16 v) { _mm512_storeu_ps(p, v); }
RLE_INLINE void v_store_n(float *p, v16 v, int n) { _mm512_mask_storeu_ps(p, v_mask(n), v); }
RLE_INLINE v16 v_add(v16 a, v16 b) { return _mm512_add_ps(a, b); }
RLE_INLINE v16 v_take(v16 x, v16 y, v16 acc) { return _mm512_fmadd_ps(x, y, acc); }
RLE_INLINE v16 v_relu(v16 x) { return _mm512_max_ps(_mm512_setzero_ps(), x); }
RLE_INLINE v16 v_mul(v16 a, v16 b) { return _mm512_mul_ps(a, b); }
RLE_INLINE v16 v_larger(v16 a, v16 x)
{
    __mmask16 keep = _mm512_cmp_ps_mask(a, x, _CMP_GE_OQ) | _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    return _mm512_mask_blend_ps(keep, x, a);
}
RLE_INLINE v16 v_smaller(v16 a, v16 x)
{
    __mmask16 keep = _mm512_cmp_ps_mask(a, x, _CMP_LE_OQ) | _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    return _mm512_mask_blend_ps(keep, x, a);
}

RLE_INLINE float v_sum8(__m256 v)
{
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

RLE_INLINE float v_sum(v16 v)
{
    return v_sum8(_mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1)));
}

#elif defined(__AVX2__) && defined(__FMA__) && !defined(RLE_F64_KERNELS)

typedef struct {
    __m256 h[2];
} v16;

RLE_INLINE __m256i v_mask(int n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
RLE_INLINE v16 v_set(float x) { return (v16){{_mm256_set1_ps(x), _mm256_set1_ps(x)}}; }
RLE_INLINE v16 v_load(const float *p)
{
    return (v16){{_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}};
}
RLE_INLINE v16 v_load_n(const float *p, int n)
{
    v16 v = {{_mm256_maskload_ps(p, v_mask(n)), _mm256_setzero_ps()}};
    if (n > 8) v.h[1] = _mm256_maskload_ps(p + 8, v_mask(n - 8));
    return v;
}
RLE_INLINE void v_store(float *p, v16 v)
{
    _mm256_storeu_ps(p, v.h[0]);
    _mm256_storeu_ps(p + 8, v.h[1]);
}
RLE_INLINE void v_store_n(float *p, v16 v, int n)
{
    _mm256_maskstore_ps(p, v_mask(n), v.h[0]);
    if (n > 8) _mm256_maskstore_ps(p + 8, v_mask(n - 8), v.h[1]);
}
RLE_INLINE v16 v_add(v16 a, v16 b)
{
    return (v16){{_mm256_add_ps(a.h[0], b.h[0]), _mm256_add_ps(a.h[1], b.h[1])}};
}
RLE_INLINE v16 v_take(v16 x, v16 y, v16 acc)
{
    return (v16){{_mm256_fmadd_ps(x.h[0], y.h[0], acc.h[0]),
                  _mm256_fmadd_ps(x.h[1], y.h[1], acc.h[1])}};
}
RLE_INLINE v16 v_relu(v16 x)
{
    __m256 z = _mm256_setzero_ps();
    return (v16){{_mm256_max_ps(z, x.h[0]), _mm256_max_ps(z, x.h[1])}};
}
RLE_INLINE v16 v_mul(v16 a, v16 b)
{
    return (v16){{_mm256_mul_ps(a.h[0], b.h[0]), _mm256_mul_ps(a.h[1], b.h[1])}};
}
#define V_KEEP(a, x, order)                                                              \
    _mm256_blendv_ps(x, a, _mm256_or_ps(_mm256_cmp_ps(a, x, order),                      \
                                        _mm256_cmp_ps(a, a, _CMP_UNORD_Q)))
RLE_INLINE v16 v_larger(v16 a, v16 x)
{
    return (v16){{V_KEEP(a.h[0], x.h[0], _CMP_GE_OQ), V_KEEP(a.h[1], x.h[1], _CMP_GE_OQ)}};
}
RLE_INLINE v16 v_smaller(v16 a, v16 x)
{
    return (v16){{V_KEEP(a.h[0], x.h[0], _CMP_LE_OQ), V_KEEP(a.h[1], x.h[1], _CMP_LE_OQ)}};
}
RLE_INLINE float v_sum(v16 v)
{
    __m256 s = _mm256_add_ps(v.h[0], v.h[1]);
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

#elif defined(RLE_F64_KERNELS) /* the compiler's vectors: no operation here is special */

#if defined(__AVX512F__)
#define V_BYTES 64
#elif defined(__AVX__)
#define V_BYTES 32
#else
#define V_BYTES 16
#endif
#define V_PARTS (128 / V_BYTES)
#define V_WIDTH (V_BYTES / 8)
typedef double v_part __attribute__((vector_size(V_BYTES)));
typedef int64_t v_ints __attribute__((vector_size(V_BYTES)));
typedef double v_unaligned __attribute__((vector_size(V_BYTES), aligned(8), may_alias));

typedef struct {
    v_part h[V_PARTS];
} v16;

#define V_EACH RLE_UNROLL for (int i = 0; i < V_PARTS; i++)

RLE_INLINE v16 v_set(double x)
{
    v16 v;
    V_EACH v.h[i] = x - (v_part){0};
    return v;
}
RLE_INLINE v16 v_load(const double *p)
{
    v16 v;
    V_EACH v.h[i] = *(const v_unaligned *)(p + i * V_WIDTH);
    return v;
}
RLE_INLINE void v_store(double *p, v16 v)
{
    V_EACH *(v_unaligned *)(p + i * V_WIDTH) = v.h[i];
}
RLE_INLINE v16 v_load_n(const double *p, int n)
{
    double all[16] = {0};
    for (int i = 0; i < n; i++) all[i] = p[i];
    return v_load(all);
}
RLE_INLINE void v_store_n(double *p, v16 v, int n)
{
    double all[16];
    v_store(all, v);
    for (int i = 0; i < n; i++) p[i] = all[i];
}
RLE_INLINE v16 v_add(v16 a, v16 b)
{
    V_EACH a.h[i] += b.h[i];
    return a;
}
RLE_INLINE v16 v_take(v16 x, v16 y, v16 acc)
{
    V_EACH acc.h[i] += x.h[i] * y.h[i];
    return acc;
}
RLE_INLINE v16 v_relu(v16 x)
{
    V_EACH x.h[i] = (v_part)((v_ints)x.h[i] & ~(v_ints)(x.h[i] < 0));
    return x;
}
RLE_INLINE v16 v_mul(v16 a, v16 b)
{
    V_EACH a.h[i] *= b.h[i];
    return a;
}
RLE_INLINE v_part v_choose(v_ints first, v_part a, v_part b)
{
    return (v_part)((first & (v_ints)a) | (~first & (v_ints)b));
}
RLE_INLINE v16 v_larger(v16 a, v16 x)
{
    V_EACH a.h[i] = v_choose((a.h[i] >= x.h[i]) | (a.h[i] != a.h[i]), a.h[i], x.h[i]);
    return a;
}
RLE_INLINE v16 v_smaller(v16 a, v16 x)
{
    V_EACH a.h[i] = v_choose((a.h[i] <= x.h[i]) | (a.h[i] != a.h[i]), a.h[i], x.h[i]);
    return a;
}
RLE_INLINE double v_sum(v16 v)
{
    double x[16];
    v_store(x, v);
    RLE_UNROLL for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++) x[i] += x[i + half];
    return x[0];
}

#else /* single precision without fused operations: an array */

typedef struct {
    float x[16];
} v16;

RLE_INLINE v16 v_set(float x)
{
    v16 v;
    for (int i = 0; i < 16; i++) v.x[i] = x;
    return v;
}
RLE_INLINE v16 v_load(const float *p)
{
    v16 v;
    for (int i = 0; i < 16; i++) v.x[i] = p[i];
    return v;
}
RLE_INLINE v16 v_load_n(const float *p, int n)
{
    v16 v;
    for (int i = 0; i < 16; i++) v.x[i] = i < n ? p[i] : 0;
    return v;
}
RLE_INLINE void v_store(float *p, v16 v)
{
    for (int i = 0; i < 16; i++) p[i] = v.x[i];
}
RLE_INLINE void v_store_n(float *p, v16 v, int n)
{
    for (int i = 0; i < n; i++) p[i] = v.x[i];
}
RLE_INLINE v16 v_add(v16 a, v16 b)
{
    for (int i = 0; i < 16; i++) a.x[i] += b.x[i];
    return a;
}
RLE_INLINE v16 v_take(v16 a, v16 b, v16 acc)
{
    for (int i = 0; i < 16; i++) acc.x[i] = RLE_FMAF(a.x[i], b.x[i], acc.x[i]);
    return acc;
}
RLE_INLINE v16 v_relu(v16 a)
{
    for (int i = 0; i < 16; i++) a.x[i] = 0 > a.x[i] ? 0 : a.x[i];
    return a;
}
RLE_INLINE v16 v_mul(v16 a, v16 b)
{
    for (int i = 0; i < 16; i++) a.x[i] *= b.x[i];
    return a;
}
RLE_INLINE v16 v_larger(v16 a, v16 b)
{
    for (int i = 0; i < 16; i++)
        a.x[i] = ((a.x[i] >= b.x[i]) | (a.x[i] != a.x[i])) ? a.x[i] : b.x[i];
    return a;
}
RLE_INLINE v16 v_smaller(v16 a, v16 b)
{
    for (int i = 0; i < 16; i++)
        a.x[i] = ((a.x[i] <= b.x[i]) | (a.x[i] != a.x[i])) ? a.x[i] : b.x[i];
    return a;
}
RLE_INLINE float v_sum(v16 v)
{
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++) v.x[i] += v.x[i + half];
    return v.x[0];
}

#endif

RLE_INLINE v16 v_zero(void) { return v_set(0); }

/* The first n of 16 elements at p, the others `fill`. */
RLE_INLINE v16 v_load_filled(const REAL *p, int n, REAL fill)
{
#if defined(__AVX512F__) && !defined(RLE_F64_KERNELS)
    return _mm512_mask_loadu_ps(v_set(fill), v_mask(n), p);
#else
    REAL all[16];
    for (int i = 0; i < 16; i++) all[i] = fill;
    for (int i = 0; i < n; i++) all[i] = p[i];
    return v_load(all);
#endif
}

#endif
