/* integer.c - elementwise kernels of integers and bool, and conversions between dtypes.
 *
 * Integers wrap around. Bool counts as 0 and 1, and what comes out of arithmetic on it is
 * again 0 or 1 (so + is or, and * is and). Compiled once: nothing here can round. */
#include "device/cpu/cpu_internal.h"

#include <math.h>

/* ---- arithmetic with defined overflow ---- */

#define WRAPPING(name, T, U, IS_SIGNED)                                                  \
    static inline T neg_##name(T x) { return (T)(0 - (U)x); }                            \
    static inline T add_##name(T a, T b) { return (T)((U)a + (U)b); }                    \
    static inline T sub_##name(T a, T b) { return (T)((U)a - (U)b); }                    \
    static inline T mul_##name(T a, T b) { return (T)((U)a * (U)b); }                    \
    static inline T rem_##name(T a, T b)                                                 \
    {                                                                                    \
        if (b == 0 || (IS_SIGNED && b == (T)-1)) return 0;                               \
        T r = (T)(a % b);                                                                \
        return IS_SIGNED && r != 0 && ((r ^ b) >> (sizeof(T) * 8 - 1)) ? (T)(r + b) : r; \
    }                                                                                    \
    static inline T floor_div_##name(T a, T b)                                           \
    {                                                                                    \
        if (b == 0) return 0;                                                            \
        if (IS_SIGNED && b == (T)-1) return neg_##name(a);                               \
        T q = (T)(a / b);                                                                \
        return IS_SIGNED && a % b != 0 && ((a ^ b) >> (sizeof(T) * 8 - 1)) ? (T)(q - 1)  \
                                                                           : q;          \
    }                                                                                    \
    /* A negative exponent gives the integer part of 1 / base^|b|. */                    \
    static inline T pow_##name(T base, T b)                                              \
    {                                                                                    \
        if (IS_SIGNED && b >> (sizeof(T) * 8 - 1)) {                                     \
            if (base == 1) return 1;                                                     \
            if (base == (T)-1) return b % 2 == 0 ? 1 : (T)-1;                            \
            return 0;                                                                    \
        }                                                                                \
        T result = 1;                                                                    \
        for (uint64_t e = (uint64_t)b; e; e >>= 1) {                                     \
            if (e & 1) result = mul_##name(result, base);                                \
            base = mul_##name(base, base);                                               \
        }                                                                                \
        return result;                                                                   \
    }

WRAPPING(i32, int32_t, uint32_t, 1)
WRAPPING(i64, int64_t, uint64_t, 1)
WRAPPING(u8, uint8_t, uint32_t, 0)

/* The end of an integer clamp that lies nearest to p; NaN is no bound. */
static int64_t clamp_low(double p, int64_t lowest, int64_t highest)
{
    if (!(p > (double)lowest)) return lowest;
    return p >= (double)highest ? highest : (int64_t)ceil(p);
}

static int64_t clamp_high(double p, int64_t lowest, int64_t highest)
{
    if (!(p < (double)highest)) return highest;
    return p <= (double)lowest ? lowest : (int64_t)floor(p);
}

/* ---- unary ---- */

#define AS_IS(x) (x)
#define AS_BOOL(x) ((x) != 0)

#define MAP(name, T, kind, TO, expr)                                                     \
    static void map_##kind##_##name(void *out_, const void *in_, int64_t n, double p0,   \
                                    double p1)                                           \
    {                                                                                    \
        TO *out = out_;                                                                  \
        const T *in = in_;                                                               \
        (void)p0;                                                                        \
        (void)p1;                                                                        \
        RLE_IVDEP                                                                        \
        for (int64_t i = 0; i < n; i++) {                                                \
            T x = in[i];                                                                 \
            (void)x;                                                                     \
            out[i] = (TO)(expr);                                                         \
        }                                                                                \
    }

#define UNARY(name, T, calc, lowest, highest, NORM)                                      \
    MAP(name, T, neg, T, NORM(neg_##calc(x)))                                            \
    MAP(name, T, abs, T, x > 0 ? x : neg_##calc(x))                                      \
    MAP(name, T, sign, T, x > 0 ? 1 : x == 0 ? 0 : -1)                                   \
    MAP(name, T, square, T, NORM(mul_##calc(x, x)))                                      \
    MAP(name, T, relu, T, x > 0 ? x : 0)                                                 \
    MAP(name, T, same, T, x)                                                             \
    MAP(name, T, not, uint8_t, x == 0)                                                   \
    MAP(name, T, no, uint8_t, 0)                                                         \
    MAP(name, T, yes, uint8_t, 1)                                                        \
    static void map_clamp_##name(void *out_, const void *in_, int64_t n, double p0,      \
                                 double p1)                                              \
    {                                                                                    \
        T *out = out_;                                                                   \
        const T *in = in_;                                                               \
        T lo = (T)clamp_low(p0, lowest, highest), hi = (T)clamp_high(p1, lowest, highest); \
        RLE_IVDEP                                                                        \
        for (int64_t i = 0; i < n; i++) {                                                \
            T x = in[i] < lo ? lo : in[i];                                               \
            out[i] = x > hi ? hi : x;                                                    \
        }                                                                                \
    }                                                                                    \
    static rle_cpu_map unary_##name(rle_unary_kind kind)                                 \
    {                                                                                    \
        switch (kind) {                                                                  \
        case RLE_UNARY_NEG: return map_neg_##name;                                       \
        case RLE_UNARY_ABS: return map_abs_##name;                                       \
        case RLE_UNARY_SIGN: return map_sign_##name;                                     \
        case RLE_UNARY_SQUARE: return map_square_##name;                                 \
        case RLE_UNARY_RELU: return map_relu_##name;                                     \
        case RLE_UNARY_FLOOR:                                                            \
        case RLE_UNARY_CEIL:                                                             \
        case RLE_UNARY_ROUND:                                                            \
        case RLE_UNARY_TRUNC: return map_same_##name;                                    \
        case RLE_UNARY_CLAMP: return map_clamp_##name;                                   \
        case RLE_UNARY_NOT: return map_not_##name;                                       \
        case RLE_UNARY_ISNAN:                                                            \
        case RLE_UNARY_ISINF: return map_no_##name;                                      \
        case RLE_UNARY_ISFINITE: return map_yes_##name;                                  \
        default: return NULL;                                                            \
        }                                                                                \
    }

UNARY(i32, int32_t, i32, INT32_MIN, INT32_MAX, AS_IS)
UNARY(i64, int64_t, i64, INT64_MIN, INT64_MAX, AS_IS)
UNARY(u8, uint8_t, u8, 0, UINT8_MAX, AS_IS)
UNARY(b8, uint8_t, u8, 0, 1, AS_BOOL)

rle_cpu_map rle_cpu_integer_unary(rle_unary_kind kind, rle_dtype t)
{
    switch (t) {
    case RLE_I32: return unary_i32(kind);
    case RLE_I64: return unary_i64(kind);
    case RLE_U8: return unary_u8(kind);
    case RLE_BOOL: return unary_b8(kind);
    default: return NULL;
    }
}

/* ---- binary ---- */

#define ZIP(name, T, kind, TO, expr)                                                     \
    static void zip_##kind##_##name(void *out_, const void *a_, const void *b_, int64_t n, \
                                    rle_cpu_one one)                                     \
    {                                                                                    \
        TO *out = out_;                                                                  \
        const T *ap = a_, *bp = b_;                                                      \
        if (one == RLE_ONE_B) {                                                          \
            T b = *bp;                                                                   \
            RLE_IVDEP                                                                    \
            for (int64_t i = 0; i < n; i++) {                                            \
                T a = ap[i];                                                             \
                out[i] = (TO)(expr);                                                     \
            }                                                                            \
        } else if (one == RLE_ONE_A) {                                                   \
            T a = *ap;                                                                   \
            RLE_IVDEP                                                                    \
            for (int64_t i = 0; i < n; i++) {                                            \
                T b = bp[i];                                                             \
                out[i] = (TO)(expr);                                                     \
            }                                                                            \
        } else {                                                                         \
            RLE_IVDEP                                                                    \
            for (int64_t i = 0; i < n; i++) {                                            \
                T a = ap[i], b = bp[i];                                                  \
                out[i] = (TO)(expr);                                                     \
            }                                                                            \
        }                                                                                \
    }

#define ARITHMETIC(name, T, calc, NORM)                                                  \
    ZIP(name, T, add, T, NORM(add_##calc(a, b)))                                         \
    ZIP(name, T, sub, T, NORM(sub_##calc(a, b)))                                         \
    ZIP(name, T, mul, T, NORM(mul_##calc(a, b)))                                         \
    ZIP(name, T, pow, T, NORM(pow_##calc(a, b)))                                         \
    ZIP(name, T, rem, T, NORM(rem_##calc(a, b)))                                         \
    ZIP(name, T, floor_div, T, NORM(floor_div_##calc(a, b)))

#define ORDER(name, T)                                                                   \
    ZIP(name, T, max, T, a > b ? a : b)                                                  \
    ZIP(name, T, min, T, a < b ? a : b)                                                  \
    ZIP(name, T, eq, uint8_t, a == b)                                                    \
    ZIP(name, T, ne, uint8_t, a != b)                                                    \
    ZIP(name, T, lt, uint8_t, a < b)                                                     \
    ZIP(name, T, le, uint8_t, a <= b)                                                    \
    ZIP(name, T, gt, uint8_t, a > b)                                                     \
    ZIP(name, T, ge, uint8_t, a >= b)                                                    \
    ZIP(name, T, and, uint8_t, (a != 0) & (b != 0))                                      \
    ZIP(name, T, or, uint8_t, (a != 0) | (b != 0))                                       \
    ZIP(name, T, xor, uint8_t, (a != 0) ^ (b != 0))

#define BINARY(name, ordered)                                                            \
    static rle_cpu_zip binary_##name(rle_binary_kind kind)                               \
    {                                                                                    \
        switch (kind) {                                                                  \
        case RLE_BINARY_ADD: return zip_add_##name;                                      \
        case RLE_BINARY_SUB: return zip_sub_##name;                                      \
        case RLE_BINARY_MUL: return zip_mul_##name;                                      \
        case RLE_BINARY_POW: return zip_pow_##name;                                      \
        case RLE_BINARY_REMAINDER: return zip_rem_##name;                                \
        case RLE_BINARY_FLOOR_DIV: return zip_floor_div_##name;                          \
        case RLE_BINARY_MAXIMUM: return zip_max_##ordered;                               \
        case RLE_BINARY_MINIMUM: return zip_min_##ordered;                               \
        case RLE_BINARY_EQ: return zip_eq_##ordered;                                     \
        case RLE_BINARY_NE: return zip_ne_##ordered;                                     \
        case RLE_BINARY_LT: return zip_lt_##ordered;                                     \
        case RLE_BINARY_LE: return zip_le_##ordered;                                     \
        case RLE_BINARY_GT: return zip_gt_##ordered;                                     \
        case RLE_BINARY_GE: return zip_ge_##ordered;                                     \
        case RLE_BINARY_AND: return zip_and_##ordered;                                   \
        case RLE_BINARY_OR: return zip_or_##ordered;                                     \
        case RLE_BINARY_XOR: return zip_xor_##ordered;                                   \
        default: return NULL;                                                            \
        }                                                                                \
    }

ARITHMETIC(i32, int32_t, i32, AS_IS)
ARITHMETIC(i64, int64_t, i64, AS_IS)
ARITHMETIC(u8, uint8_t, u8, AS_IS)
ARITHMETIC(b8, uint8_t, u8, AS_BOOL)
ORDER(i32, int32_t)
ORDER(i64, int64_t)
ORDER(u8, uint8_t)
BINARY(i32, i32)
BINARY(i64, i64)
BINARY(u8, u8)
BINARY(b8, u8)

rle_cpu_zip rle_cpu_integer_binary(rle_binary_kind kind, rle_dtype t)
{
    switch (t) {
    case RLE_I32: return binary_i32(kind);
    case RLE_I64: return binary_i64(kind);
    case RLE_U8: return binary_u8(kind);
    case RLE_BOOL: return binary_b8(kind);
    default: return NULL;
    }
}

/* ---- conversions ---- */

/* C leaves the conversion of a float that does not fit open; here it saturates. */
#define SATURATE(name, T, lowest, highest)                                               \
    static inline T name##_from_double(double x)                                         \
    {                                                                                    \
        if (x != x) return 0;                                                            \
        if (x <= (double)(lowest)) return lowest;                                        \
        if (x >= (double)(highest)) return highest;                                      \
        return (T)x;                                                                     \
    }
SATURATE(i32, int32_t, INT32_MIN, INT32_MAX)
SATURATE(i64, int64_t, INT64_MIN, INT64_MAX)
SATURATE(u8, uint8_t, 0, UINT8_MAX)

#define CAST(to, TO, from, FROM, expr)                                                   \
    static void cast_##to##_##from(void *out_, const void *in_, int64_t n)               \
    {                                                                                    \
        TO *restrict out = out_;                                                         \
        const FROM *restrict in = in_;                                                   \
        for (int64_t i = 0; i < n; i++) {                                                \
            FROM x = in[i];                                                              \
            out[i] = (TO)(expr);                                                         \
        }                                                                                \
    }
#define CASTS_FROM_FLOAT(from, FROM)                                                     \
    CAST(f32, float, from, FROM, x)                                                      \
    CAST(f64, double, from, FROM, x)                                                     \
    CAST(i32, int32_t, from, FROM, i32_from_double(x))                                   \
    CAST(i64, int64_t, from, FROM, i64_from_double(x))                                   \
    CAST(u8, uint8_t, from, FROM, u8_from_double(x))                                     \
    CAST(b8, uint8_t, from, FROM, x != 0)
#define CASTS_FROM_INTEGER(from, FROM)                                                   \
    CAST(f32, float, from, FROM, x)                                                      \
    CAST(f64, double, from, FROM, x)                                                     \
    CAST(i32, int32_t, from, FROM, x)                                                    \
    CAST(i64, int64_t, from, FROM, x)                                                    \
    CAST(u8, uint8_t, from, FROM, x)                                                     \
    CAST(b8, uint8_t, from, FROM, x != 0)
CASTS_FROM_FLOAT(f32, float)
CASTS_FROM_FLOAT(f64, double)
CASTS_FROM_INTEGER(i32, int32_t)
CASTS_FROM_INTEGER(i64, int64_t)
CASTS_FROM_INTEGER(u8, uint8_t)

#define CASTERS(to)                                                                      \
    {                                                                                    \
        cast_##to##_f32, cast_##to##_f64, cast_##to##_i32, cast_##to##_i64, cast_##to##_u8, \
            cast_##to##_u8                                                               \
    }

rle_cpu_cast rle_cpu_caster(rle_dtype to, rle_dtype from)
{
    static const rle_cpu_cast table[6][6] = {CASTERS(f32), CASTERS(f64), CASTERS(i32),
                                             CASTERS(i64), CASTERS(u8),  CASTERS(b8)};
    if (to > RLE_BOOL || from > RLE_BOOL) return NULL;
    return table[to][from];
}
