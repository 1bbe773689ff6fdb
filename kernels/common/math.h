/* math.h - elementary functions, the same bits on every machine. Shared by the CPU (all
 * instruction sets) and CUDA.
 *
 * libm's results differ between versions and machines. These are built from operations
 * that IEEE 754 fixes: +, -, *, /, sqrt, and in single precision an explicit fused
 * multiply-add. The compiler must not fuse on its own (-ffp-contract=off, nvcc -fmad=false)
 * nor flush denormals. Double precision does without fused operations, which the oldest
 * x86 lacks.
 *
 * There are no branches except where a comment says so: loops over these functions are
 * vectorised by the compiler (-fno-trapping-math -fno-math-errno).
 *
 * Errors, in units in the last place of the exact result, largest seen in dense sweeps of
 * tests/c/test_cpu_math.c (which also checks NaN, infinities, zeros and denormals):
 *              f32    f64                   f32    f64
 *   exp        0.8    0.9      tanh         1.6    2.5
 *   expm1      1.5    2.0      sigmoid      1.9    1.9
 *   log        1.0    1.0      softplus     1.8    1.8
 *   log1p      1.5    1.0      sin, cos     1.6    1.0
 *   pow        0.51   libm     atan2        0.51   libm
 *
 * The coefficients come from math_fit.py. */
#ifndef RLE_KERNELS_MATH_H
#define RLE_KERNELS_MATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "common/philox.h"

/* ---- bits ---- */

RLE_HD static inline uint32_t rle_bits32(float x)
{
    uint32_t b;
    memcpy(&b, &x, 4);
    return b;
}

RLE_HD static inline float rle_float32(uint32_t b)
{
    float x;
    memcpy(&x, &b, 4);
    return x;
}

RLE_HD static inline uint64_t rle_bits64(double x)
{
    uint64_t b;
    memcpy(&b, &x, 8);
    return b;
}

RLE_HD static inline double rle_float64(uint64_t b)
{
    double x;
    memcpy(&x, &b, 8);
    return x;
}

/* 2^k for a normal result. */
RLE_HD static inline float rle_exp2i32(int32_t k)
{
    return rle_float32((uint32_t)(k + 127) << 23);
}

RLE_HD static inline double rle_exp2i64(int32_t k)
{
    return rle_float64((uint64_t)(uint32_t)(k + 1023) << 52);
}

/* ---- fused multiply-add: a * b + c, rounded once ---- */

/* In double a*b is exact. The sum is rounded to odd there: its last bit is set when it is
 * not exact, so that the rounding to float sees on which side of a tie it lies. */
RLE_HD static inline float rle_fma_from_double(float a, float b, float c)
{
    double p = (double)a * (double)b, q = (double)c;
    double s = p + q;
    double t = s - p;
    double rest = (p - (s - t)) + (q - t);
    uint64_t bits = rle_bits64(s);
    uint64_t up = (rest > 0) == (s > 0) ? 1 : (uint64_t)-1;
    uint64_t inexact = (uint64_t)((rest > 0) | (rest < 0));
    bits += up * (inexact & ~bits & 1);
    return (float)rle_float64(bits);
}

#if defined(__CUDA_ARCH__) || defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define RLE_FMAF(a, b, c) fmaf(a, b, c)
#else
#define RLE_FMAF(a, b, c) rle_fma_from_double(a, b, c)
#endif

/* Adding and subtracting this rounds to an integer, which lies in the low bits of the sum. */
#define RLE_ROUND32 0x1.8p23f
#define RLE_ROUND64 0x1.8p52

/* ---- exp: x = n ln 2 + r; e^r is a polynomial; 2^n in two steps, for denormals ---- */

RLE_HD static inline float rle_expf(float x)
{
    x = x > 89.0f ? 89.0f : x; /* NaN passes */
    x = x < -104.0f ? -104.0f : x;
    float t = RLE_FMAF(x, 0x1.715476p0f, RLE_ROUND32);
    float n = t - RLE_ROUND32;
    float r = RLE_FMAF(n, -0x1.62e4p-1f, x);
    r = RLE_FMAF(n, -0x1.7f7d1cp-20f, r);
    float p = 0x1.6d7182p-10f;
    p = RLE_FMAF(p, r, 0x1.123ad6p-7f);
    p = RLE_FMAF(p, r, 0x1.5554c8p-5f);
    p = RLE_FMAF(p, r, 0x1.555490p-3f);
    p = RLE_FMAF(p, r, 0.5f);
    float sum = 1.0f + r, lost = r - (sum - 1.0f);
    p = sum + RLE_FMAF(p, r * r, lost);
    int32_t k = (int32_t)(rle_bits32(t) - rle_bits32(RLE_ROUND32));
    int32_t half = k >> 1;
    return p * rle_exp2i32(half) * rle_exp2i32(k - half);
}

RLE_HD static inline double rle_exp(double x)
{
    x = x > 710.0 ? 710.0 : x;
    x = x < -746.0 ? -746.0 : x;
    double t = x * 0x1.71547652b82fep0 + RLE_ROUND64;
    double n = t - RLE_ROUND64;
    double r = (x - n * 0x1.62e42ffp-1) + n * 0x1.718432a1b0e26p-35;
    double p = 0x1.1f58b29360873p-29;
    p = p * r + 0x1.af705bf2e75c1p-26;
    p = p * r + 0x1.27e4ea6574811p-22;
    p = p * r + 0x1.71dded80ac643p-19;
    p = p * r + 0x1.a01a01a0ca96cp-16;
    p = p * r + 0x1.a01a01b4934d0p-13;
    p = p * r + 0x1.6c16c16c172e4p-10;
    p = p * r + 0x1.111111110e97ap-7;
    p = p * r + 0x1.5555555555554p-5;
    p = p * r + 0x1.555555555555cp-3;
    p = p * r + 0.5;
    double sum = 1.0 + r, lost = r - (sum - 1.0);
    p = sum + (p * (r * r) + lost);
    int32_t k = (int32_t)(uint32_t)rle_bits64(t);
    int32_t half = k >> 1;
    return p * rle_exp2i64(half) * rle_exp2i64(k - half);
}

/* ---- expm1: 2^n (e^r - 1) + (2^n - 1), with 2^n halved so that it stays finite ---- */

RLE_HD static inline float rle_expm1f(float x)
{
    float y = x > 89.0f ? 89.0f : x;
    y = y < -30.0f ? -30.0f : y;
    float t = RLE_FMAF(y, 0x1.715476p0f, RLE_ROUND32);
    float n = t - RLE_ROUND32;
    float r = RLE_FMAF(n, -0x1.62e4p-1f, y);
    r = RLE_FMAF(n, -0x1.7f7d1cp-20f, r);
    float p = 0x1.a242c2p-13f;
    p = RLE_FMAF(p, r, 0x1.6d3c94p-10f);
    p = RLE_FMAF(p, r, 0x1.111004p-7f);
    p = RLE_FMAF(p, r, 0x1.5554f6p-5f);
    p = RLE_FMAF(p, r, 0x1.555556p-3f);
    p = RLE_FMAF(p, r, 0.5f);
    p = RLE_FMAF(p, r * r, r);
    float s = rle_exp2i32((int32_t)(rle_bits32(t) - rle_bits32(RLE_ROUND32)) - 1);
    float result = RLE_FMAF(p, s, s - 0.5f) * 2.0f;
    return fabsf(x) < 0x1p-25f ? x : result; /* keeps -0 and denormals */
}

RLE_HD static inline double rle_expm1(double x)
{
    double y = x > 710.0 ? 710.0 : x;
    y = y < -60.0 ? -60.0 : y;
    double t = y * 0x1.71547652b82fep0 + RLE_ROUND64;
    double n = t - RLE_ROUND64;
    double r = (y - n * 0x1.62e42ffp-1) + n * 0x1.718432a1b0e26p-35;
    double p = 0x1.7d3a16708121ep-33;
    p = p * r + 0x1.1f6fd622427eap-29;
    p = p * r + 0x1.ae500b55693b6p-26;
    p = p * r + 0x1.27e4dc9e8b556p-22;
    p = p * r + 0x1.71de3fd9bfa8cp-19;
    p = p * r + 0x1.a01a01a6acf98p-16;
    p = p * r + 0x1.a01a019ebc00bp-13;
    p = p * r + 0x1.6c16c16c16228p-10;
    p = p * r + 0x1.1111111111370p-7;
    p = p * r + 0x1.5555555555556p-5;
    p = p * r + 0x1.5555555555555p-3;
    p = p * r + 0.5;
    p = r + p * (r * r);
    double s = rle_exp2i64((int32_t)(uint32_t)rle_bits64(t) - 1);
    double result = (p * s + (s - 0.5)) * 2.0;
    return fabs(x) < 0x1p-54 ? x : result;
}

/* ---- log: x = 2^e m with m around 1 ---- */

/* log(1 + f) for f in [-1/3, 1/3]. */
RLE_HD static inline float rle_log_near_1f(float f)
{
    float p = -0x1.0e140ep-3f;
    p = RLE_FMAF(p, f, 0x1.1dee50p-3f);
    p = RLE_FMAF(p, f, -0x1.f041f0p-4f);
    p = RLE_FMAF(p, f, 0x1.1ef280p-3f);
    p = RLE_FMAF(p, f, -0x1.55b7dap-3f);
    p = RLE_FMAF(p, f, 0x1.99ce34p-3f);
    p = RLE_FMAF(p, f, -0x1.fffe5ep-3f);
    p = RLE_FMAF(p, f, 0x1.55550cp-2f);
    p = RLE_FMAF(p, f, -0.5f);
    return RLE_FMAF(p, f * f, f);
}

RLE_HD static inline float rle_logf(float x)
{
    float scaled = x < 0x1p-126f ? x * 0x1p23f : x;
    float e0 = x < 0x1p-126f ? -23.0f : 0.0f;
    uint32_t bits = rle_bits32(scaled);
    uint32_t above = bits - 0x3f2aaaabu; /* 2/3 */
    float e = (float)((int32_t)above >> 23) + e0;
    float f = rle_float32(bits - (above & 0xff800000u)) - 1.0f;
    float r = RLE_FMAF(e, 0x1.62e43p-1f, rle_log_near_1f(f));
    r = x == 0.0f ? -INFINITY : r;
    r = x < 0.0f ? NAN : r;
    return x < INFINITY ? r : x; /* infinity and NaN */
}

RLE_HD static inline float rle_log1pf(float x)
{
    float u = 1.0f + x;
    uint32_t bits = rle_bits32(u);
    uint32_t above = bits - 0x3f2aaaabu;
    int32_t e = (int32_t)above >> 23;
    /* 1 + f = (1 + x) / 2^e, from x itself: what u lost to rounding is in it. */
    float s = rle_exp2i32(e > 64 ? -64 : -e);
    float f = RLE_FMAF(x, s, s - 1.0f);
    f = e > 64 ? rle_float32(bits - (above & 0xff800000u)) - 1.0f : f;
    float r = RLE_FMAF((float)e, 0x1.62e43p-1f, rle_log_near_1f(f));
    r = x == -1.0f ? -INFINITY : r;
    r = x < -1.0f ? NAN : r;
    r = x < INFINITY ? r : x;
    return fabsf(x) < 0x1p-25f ? x : r;
}

/* k ln 2 + log(1 + f) + c for 1 + f in [sqrt 1/2, sqrt 2] and a tiny c. With s = f/(2+f),
 * log(1+f) = 2s + s^3 Q(s^2) = f - (f^2/2 - s (f^2/2 + s^2 Q(s^2))): f is exact. */
RLE_HD static inline double rle_log_near_1(double f, double k, double c)
{
    double s = f / (2.0 + f), z = s * s, h = 0.5 * f * f;
    double q = 0x1.2f14932cc1b35p-3;
    q = q * z + 0x1.39a04f8995457p-3;
    q = q * z + 0x1.74664c0f83f2ap-3;
    q = q * z + 0x1.c71c51ce16e64p-3;
    q = q * z + 0x1.2492494233749p-2;
    q = q * z + 0x1.999999997f994p-2;
    q = q * z + 0x1.5555555555593p-1;
    double low = s * (h + z * q) + (c - k * 0x1.718432a1b0e26p-35);
    return k * 0x1.62e42ffp-1 - ((h - low) - f);
}

/* Splits a positive normal number; `m` lies in [sqrt 1/2, sqrt 2). */
RLE_HD static inline void rle_split64(double x, double *m, double *e)
{
    uint64_t bits = rle_bits64(x);
    uint32_t above = (uint32_t)(bits >> 32) - 0x3fe6a09eu;
    *e = (double)((int32_t)above >> 20);
    *m = rle_float64(bits - ((uint64_t)(above & 0xfff00000u) << 32));
}

RLE_HD static inline double rle_log(double x)
{
    double m, e;
    rle_split64(x < 0x1p-1022 ? x * 0x1p54 : x, &m, &e);
    e += x < 0x1p-1022 ? -54.0 : 0.0;
    double r = rle_log_near_1(m - 1.0, e, 0.0);
    r = x == 0.0 ? -INFINITY : r;
    r = x < 0.0 ? NAN : r;
    return x < INFINITY ? r : x;
}

RLE_HD static inline double rle_log1p(double x)
{
    double u = 1.0 + x, m, e;
    rle_split64(u, &m, &e);
    double lost = x > 1.0 ? 1.0 - (u - x) : x - (u - 1.0); /* by rounding u */
    double r = rle_log_near_1(m - 1.0, e, lost / u);
    r = x == -1.0 ? -INFINITY : r;
    r = x < -1.0 ? NAN : r;
    r = x < INFINITY ? r : x;
    return fabs(x) < 0x1p-54 ? x : r;
}

/* ---- tanh, sigmoid, softplus ---- */

RLE_HD static inline float rle_tanhf(float x)
{
    float z = x * x;
    float p = -0x1.97792cp-8f;
    p = RLE_FMAF(p, z, 0x1.58a56ep-6f);
    p = RLE_FMAF(p, z, -0x1.b91884p-5f);
    p = RLE_FMAF(p, z, 0x1.110cd8p-3f);
    p = RLE_FMAF(p, z, -0x1.55554ap-2f);
    float small = RLE_FMAF(p * z, x, x);
    float large = 1.0f - 2.0f / (rle_expf(2.0f * fabsf(x)) + 1.0f);
    return fabsf(x) < 0.55f ? (x == 0.0f ? x : small) : copysignf(large, x);
}

RLE_HD static inline double rle_tanh(double x)
{
    double t = rle_expm1(2.0 * fabs(x));
    double small = t / (t + 2.0), large = 1.0 - 2.0 / (t + 2.0);
    return copysign(fabs(x) < 0.55 ? small : large, x);
}

/* With e = e^-|x| it is 1 / (1+e), or e / (1+e) for negative x. What the sum 1+e loses to
 * rounding is put right afterwards, through 1 / (1+e) = y or 1 - y. */
RLE_HD static inline float rle_sigmoidf(float x)
{
    float e = rle_expf(-fabsf(x));
    float sum = 1.0f + e, lost = e - (sum - 1.0f);
    float y = (x >= 0.0f ? 1.0f : e) / sum;
    return RLE_FMAF(-y * (x >= 0.0f ? y : 1.0f - y), lost, y);
}

RLE_HD static inline double rle_sigmoid(double x)
{
    double e = rle_exp(-fabs(x));
    double sum = 1.0 + e, lost = e - (sum - 1.0);
    double y = (x >= 0.0 ? 1.0 : e) / sum;
    return y - y * (x >= 0.0 ? y : 1.0 - y) * lost;
}

/* log(1 + e^x) */
RLE_HD static inline float rle_softplusf(float x)
{
    return (x < 0.0f ? 0.0f : x) + rle_log1pf(rle_expf(-fabsf(x)));
}

RLE_HD static inline double rle_softplus(double x)
{
    return (x < 0.0 ? 0.0 : x) + rle_log1p(rle_exp(-fabs(x)));
}

/* ---- sine and cosine: quadrant number and the angle left in it ---- */

/* Below this the reduction by three parts of pi/2 is exact enough. */
#define RLE_TRIG_LIMIT 0x1p20

/* sin (turn 0) or cos (turn 1) of quadrant*pi/2 + r, |r| <= pi/4. */
RLE_HD static inline float rle_quadrantf(int32_t quadrant, float r, int32_t turn)
{
    float z = r * r;
    float s = -0x1.9954a8p-13f;
    s = RLE_FMAF(s, z, 0x1.11077ap-7f);
    s = RLE_FMAF(s, z, -0x1.555546p-3f);
    s = RLE_FMAF(s * z, r, r);
    float c = 0x1.99e0ecp-16f;
    c = RLE_FMAF(c, z, -0x1.6c0c1ap-10f);
    c = RLE_FMAF(c, z, 0x1.55554ap-5f);
    c = RLE_FMAF(c, z, -0.5f);
    c = RLE_FMAF(c, z, 1.0f);
    uint32_t j = (uint32_t)quadrant + (uint32_t)turn;
    float v = j & 1 ? c : s;
    return rle_float32(rle_bits32(v) ^ (j & 2) << 30);
}

/* The same with the part of r that its last bit cannot hold. */
RLE_HD static inline double rle_quadrant(int32_t quadrant, double r, double tail, int32_t turn)
{
    double z = r * r;
    double s = 0x1.5d9265cb921dap-33;
    s = s * z + -0x1.ae5e64c4ed6a9p-26;
    s = s * z + 0x1.71de3576e3714p-19;
    s = s * z + -0x1.a01a019c12454p-13;
    s = s * z + 0x1.111111110f893p-7;
    s = s * z + -0x1.5555555555549p-3;
    s = r + (r * z * s + tail * (1.0 - 0.5 * z));
    double c = -0x1.8fb0083d0c777p-37;
    c = c * z + 0x1.1ee9ef590d945p-29;
    c = c * z + -0x1.27e4f81048157p-22;
    c = c * z + 0x1.a01a019cbcd88p-16;
    c = c * z + -0x1.6c16c16c15210p-10;
    c = c * z + 0x1.555555555554cp-5;
    double h = 0.5 * z, w = 1.0 - h;
    c = w + (((1.0 - w) - h) + (z * z * c - r * tail));
    uint32_t j = (uint32_t)quadrant + (uint32_t)turn;
    double v = j & 1 ? c : s;
    return rle_float64(rle_bits64(v) ^ (uint64_t)(j & 2) << 62);
}

/* |x| < RLE_TRIG_LIMIT */
RLE_HD static inline float rle_trig_near_0f(float x, int32_t turn)
{
    double t = (double)x * 0x1.45f306dc9c883p-1 + RLE_ROUND64;
    double n = t - RLE_ROUND64;
    double r = ((double)x - n * 0x1.921fb544p0) - n * 0x1.0b4611a626331p-34;
    float v = rle_quadrantf((int32_t)(uint32_t)rle_bits64(t), (float)r, turn);
    return turn == 0 && x == 0.0f ? x : v; /* sin(-0) = -0 */
}

RLE_HD static inline double rle_trig_near_0(double x, int32_t turn)
{
    double t = x * 0x1.45f306dc9c883p-1 + RLE_ROUND64;
    double n = t - RLE_ROUND64;
    double a = x - n * 0x1.921fb544p0; /* exact, as is the next product */
    double w = n * 0x1.0b4611a6p-34;
    double b = a - w;
    double lost = (a - b) - w;
    double w3 = n * 0x1.3198a2e037073p-69;
    double r = b - w3;
    double tail = ((b - r) - w3) + lost;
    double v = rle_quadrant((int32_t)(uint32_t)rle_bits64(t), r, tail, turn);
    return turn == 0 && x == 0.0 ? x : v;
}

/* Any x. Branches: a large x is multiplied with as many bits of 2/pi as matter for it. */
RLE_HD static inline float rle_trigf(float x, int32_t turn)
{
    if (fabsf(x) < (float)RLE_TRIG_LIMIT) return rle_trig_near_0f(x, turn);
    if (!(fabsf(x) < INFINITY)) return x - x; /* NaN */
    /* 32 zero bits, then 2/pi. */
    const uint32_t digits[8] = {0,           0xa2f9836eu, 0x4e441529u, 0xfc2757d1u,
                                0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu};
    uint32_t bits = rle_bits32(x);
    uint32_t m = (bits & 0x7fffffu) | 0x800000u;
    int32_t e = (int32_t)(bits >> 23 & 0xff) - 150; /* |x| = m 2^e */
    /* 96 bits of 2/pi * 2^e, from the one worth 2 on: multiples of 4 quadrants drop out. */
    int32_t first = e - 2 + 32, word = first >> 5, shift = first & 31;
    uint64_t high = (uint64_t)digits[word] << 32 | digits[word + 1];
    uint64_t low = (uint64_t)digits[word + 2] << 32 | digits[word + 3];
    if (shift) {
        high = high << shift | low >> (64 - shift);
        low <<= shift;
    }
    /* quadrants, 2 bits before the point and 62 behind it */
    uint64_t turns = high * m + ((low >> 32) * m >> 32);
    uint32_t quadrant = (uint32_t)(turns >> 62) + (uint32_t)(turns >> 61 & 1);
    double r = (double)(int64_t)(turns << 2) * 0x1p-64 * 0x1.921fb54442d18p0;
    float v = rle_quadrantf((int32_t)quadrant, (float)r, turn);
    return turn == 0 && x < 0 ? -v : v;
}

RLE_HD static inline float rle_sinf(float x) { return rle_trigf(x, 0); }
RLE_HD static inline float rle_cosf(float x) { return rle_trigf(x, 1); }

/* Beyond the limit double precision asks libm, whose last bit may differ between machines. */
RLE_HD static inline double rle_sin(double x)
{
    return fabs(x) < RLE_TRIG_LIMIT ? rle_trig_near_0(x, 0) : sin(x);
}

RLE_HD static inline double rle_cos(double x)
{
    return fabs(x) < RLE_TRIG_LIMIT ? rle_trig_near_0(x, 1) : cos(x);
}

/* ---- pow and atan2: single precision by way of double; double is libm's ---- */

RLE_HD static inline float rle_powf(float x, float y)
{
    double a = fabs((double)x), b = (double)y;
    double r = rle_exp(b * rle_log(a));
    r = a == 1.0 ? 1.0 : r; /* also 1^inf and 1^NaN; the sign comes below */
    double half = b * 0.5;
    int whole = floor(b) == b, odd = whole & (floor(half) != half);
    r = (rle_bits32(x) >> 31) && odd ? -r : r;
    r = ((x < 0.0f) & (x > -INFINITY) & !whole) ? NAN : r;
    r = x == 1.0f ? 1.0 : r;
    return y == 0.0f ? 1.0f : (float)r;
}

RLE_HD static inline double rle_pow(double x, double y) { return pow(x, y); }

RLE_HD static inline float rle_atan2f(float y, float x)
{
    double ax = fabs((double)x), ay = fabs((double)y);
    double big = ax > ay ? ax : ay, small = ax > ay ? ay : ax;
    double t = small / big;
    t = big == 0.0 ? 0.0 : t;
    t = ((small == big) & (big > 0.0)) ? 1.0 : t; /* inf / inf */
    double z = t * t;
    double p = 0x1.d6c3ffa971c5bp-12;
    p = p * z + -0x1.ba7aa0a87e20ap-9;
    p = p * z + 0x1.862f8a6e6a8e7p-7;
    p = p * z + -0x1.b61f5c4bf1763p-6;
    p = p * z + 0x1.6b6a74905ca8dp-5;
    p = p * z + -0x1.f11fc03cb96b7p-5;
    p = p * z + 0x1.33d355adc783cp-4;
    p = p * z + -0x1.72e3c682177d6p-4;
    p = p * z + 0x1.c6eaae0c6a8f7p-4;
    p = p * z + -0x1.249056b9f1ee9p-3;
    p = p * z + 0x1.999985e497110p-3;
    p = p * z + -0x1.555555326c137p-2;
    double a = t + t * z * p;
    a = ay > ax ? 0x1.921fb54442d18p0 - a : a;
    a = rle_bits32(x) >> 31 ? 0x1.921fb54442d18p1 - a : a;
    a = ((x != x) | (y != y)) ? NAN : a;
    return copysignf((float)a, y);
}

RLE_HD static inline double rle_atan2(double y, double x) { return atan2(y, x); }

/* ---- two independent standard normals (Box-Muller) ---- */

/* The first word makes the radius, from a uniform in (0, 1]; the second the angle. */
RLE_HD static inline void rle_normal_pair_f32(uint32_t w0, uint32_t w1, float *first,
                                              float *second)
{
    float u = (float)(int32_t)((w0 >> 8) + 1) * 0x1p-24f;
    float radius = sqrtf(-2.0f * rle_logf(u));
    /* The angle in quarter turns, split exactly: 0 .. 4 = quadrant + h, |h| <= 1/2. */
    float quarters = (float)(int32_t)(w1 >> 8) * 0x1p-22f;
    float t = quarters + RLE_ROUND32;
    float h = quarters - (t - RLE_ROUND32);
    float z = h * h;
    float s = -0x1.2da126p-8f;
    s = RLE_FMAF(s, z, 0x1.465ee8p-4f);
    s = RLE_FMAF(s, z, -0x1.4abbbap-1f);
    s = RLE_FMAF(s, z, -0x1.a1056p-25f);
    s = RLE_FMAF(h, 0x1.921fb6p0f, h * s);
    float c = 0x1.d46c48p-11f;
    c = RLE_FMAF(c, z, -0x1.55b130p-6f);
    c = RLE_FMAF(c, z, 0x1.03c1aep-2f);
    c = RLE_FMAF(c, z, -0x1.3bd3ccp0f);
    c = RLE_FMAF(c, z, 1.0f);
    uint32_t q = rle_bits32(t);
    float cosine = q & 1 ? s : c, sine = q & 1 ? c : s;
    cosine = rle_float32(rle_bits32(cosine) ^ ((q + 1) & 2) << 30);
    sine = rle_float32(rle_bits32(sine) ^ (q & 2) << 30);
    *first = radius * cosine;
    *second = radius * sine;
}

/* The same with two words (low, high) to a uniform. */
RLE_HD static inline void rle_normal_pair_f64(uint32_t w0, uint32_t w1, uint32_t w2,
                                              uint32_t w3, double *first, double *second)
{
    double u = rle_uniform_f64(w0, w1) + 0x1p-53;
    double radius = sqrt(-2.0 * rle_log(u));
    double quarters = rle_uniform_f64(w2, w3) * 4.0;
    double t = quarters + RLE_ROUND64;
    double r = (quarters - (t - RLE_ROUND64)) * 0x1.921fb54442d18p0;
    int32_t q = (int32_t)(uint32_t)rle_bits64(t);
    *first = radius * rle_quadrant(q, r, 0.0, 1);
    *second = radius * rle_quadrant(q, r, 0.0, 0);
}

#endif
