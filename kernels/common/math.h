/* math.h - elementary functions. */
#ifndef RLE_KERNELS_MATH_H
#define RLE_KERNELS_MATH_H
#include <math.h>
#include <stdint.h>
#include "common/philox.h"
#define RLE_FMAF(a, b, c) fmaf(a, b, c)
#define RLE_LIBM(name) \
    static inline float rle_##name##f(float x) { return name##f(x); } \
    static inline double rle_##name(double x) { return name(x); }
RLE_LIBM(exp)
RLE_LIBM(log)
RLE_LIBM(log1p)
RLE_LIBM(expm1)
RLE_LIBM(tanh)
RLE_LIBM(sin)
RLE_LIBM(cos)
static inline float rle_powf(float a, float b) { return powf(a, b); }
static inline double rle_pow(double a, double b) { return pow(a, b); }
static inline float rle_atan2f(float a, float b) { return atan2f(a, b); }
static inline double rle_atan2(double a, double b) { return atan2(a, b); }
static inline float rle_sigmoidf(float x) { return x < 0 ? expf(x) / (1 + expf(x)) : 1 / (1 + expf(-x)); }
static inline double rle_sigmoid(double x) { return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x)); }
static inline float rle_softplusf(float x) { return (0 > x ? 0 : x) + log1pf(expf(-fabsf(x))); }
static inline double rle_softplus(double x) { return (0 > x ? 0 : x) + log1p(exp(-fabs(x))); }
static inline void rle_normal_pair_f32(uint32_t w0, uint32_t w1, float *c, float *s)
{
    float r = sqrtf(-2 * logf((float)((w0 >> 8) + 1) * 0x1p-24f));
    float a = 6.28318530718f * rle_uniform_f32(w1);
    *c = r * cosf(a);
    *s = r * sinf(a);
}
static inline void rle_normal_pair_f64(uint32_t w0, uint32_t w1, uint32_t w2, uint32_t w3, double *c, double *s)
{
    double r = sqrt(-2 * log(rle_uniform_f64(w0, w1) + 0x1p-53));
    double a = 6.283185307179586 * rle_uniform_f64(w2, w3);
    *c = r * cos(a);
    *s = r * sin(a);
}
#endif
