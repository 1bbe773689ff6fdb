/* elementwise_impl.h - kernels of one element at a time, for the type that real.h names.
 * The loops are plain: the functions of common/math.h have no branches, so the compiler
 * vectorises them. */
#include "device/cpu/isa/real.h"

/* ---- unary ---- */

#define MAP(kind, TO, expr)                                                              \
    static void map_##kind(void *out_, const void *in_, int64_t n, double p0, double p1) \
    {                                                                                    \
        TO *out = out_;                                                                  \
        const REAL *in = in_;                                                            \
        REAL lo = (REAL)p0, hi = (REAL)p1;                                               \
        (void)lo;                                                                        \
        (void)hi;                                                                        \
        RLE_IVDEP                                                                        \
        for (int64_t i = 0; i < n; i++) {                                                \
            REAL x = in[i];                                                              \
            out[i] = (TO)(expr);                                                         \
        }                                                                                \
    }

/* sin (turn 0) or cos (turn 1). A stretch without large arguments goes without branches. */
#define STRETCH 128
static void trig_run(REAL *out, const REAL *in, int64_t n, int turn)
{
    for (int64_t i = 0; i < n; i += STRETCH, in += STRETCH, out += STRETCH) {
        int64_t count = rle_min64(n - i, STRETCH);
        int large = 0;
        for (int64_t k = 0; k < count; k++)
            large |= !(LIBM(fabs)(in[k]) < (REAL)RLE_TRIG_LIMIT);
        if (large) {
            for (int64_t k = 0; k < count; k++) out[k] = turn ? M(cos)(in[k]) : M(sin)(in[k]);
        } else {
            RLE_IVDEP
            for (int64_t k = 0; k < count; k++) out[k] = M(trig_near_0)(in[k], turn);
        }
    }
}

static void map_sin(void *out, const void *in, int64_t n, double p0, double p1)
{
    (void)p0;
    (void)p1;
    trig_run(out, in, n, 0);
}

static void map_cos(void *out, const void *in, int64_t n, double p0, double p1)
{
    (void)p0;
    (void)p1;
    trig_run(out, in, n, 1);
}

MAP(neg, REAL, -x)
MAP(abs, REAL, LIBM(fabs)(x))
MAP(sign, REAL, (x > 0 ? (REAL)1 : (REAL)0) - (x < 0 ? (REAL)1 : (REAL)0))
MAP(exp, REAL, M(exp)(x))
MAP(log, REAL, M(log)(x))
MAP(log1p, REAL, M(log1p)(x))
MAP(expm1, REAL, M(expm1)(x))
MAP(sqrt, REAL, LIBM(sqrt)(x))
MAP(rsqrt, REAL, 1 / LIBM(sqrt)(x))
MAP(square, REAL, x *x)
MAP(reciprocal, REAL, 1 / x)
MAP(tanh, REAL, M(tanh)(x))
MAP(sigmoid, REAL, M(sigmoid)(x))
MAP(softplus, REAL, M(softplus)(x))
MAP(relu, REAL, 0 > x ? 0 : x)
MAP(floor, REAL, LIBM(floor)(x))
MAP(ceil, REAL, LIBM(ceil)(x))
MAP(round, REAL, LIBM(rint)(x))
MAP(trunc, REAL, LIBM(trunc)(x))
MAP(clamp, REAL, (x < lo ? lo : x) > hi ? hi : (x < lo ? lo : x))
MAP(not, uint8_t, x == 0)
MAP(isnan, uint8_t, x != x)
MAP(isinf, uint8_t, LIBM(fabs)(x) == LIBM(inf)())
MAP(isfinite, uint8_t, x - x == 0)

const rle_cpu_map K(rle_unary)[RLE_UNARY_COUNT] = {
    [RLE_UNARY_NEG] = map_neg,           [RLE_UNARY_ABS] = map_abs,
    [RLE_UNARY_SIGN] = map_sign,         [RLE_UNARY_EXP] = map_exp,
    [RLE_UNARY_LOG] = map_log,           [RLE_UNARY_LOG1P] = map_log1p,
    [RLE_UNARY_EXPM1] = map_expm1,       [RLE_UNARY_SQRT] = map_sqrt,
    [RLE_UNARY_RSQRT] = map_rsqrt,       [RLE_UNARY_SQUARE] = map_square,
    [RLE_UNARY_RECIPROCAL] = map_reciprocal, [RLE_UNARY_SIN] = map_sin,
    [RLE_UNARY_COS] = map_cos,           [RLE_UNARY_TANH] = map_tanh,
    [RLE_UNARY_SIGMOID] = map_sigmoid,   [RLE_UNARY_SOFTPLUS] = map_softplus,
    [RLE_UNARY_RELU] = map_relu,         [RLE_UNARY_FLOOR] = map_floor,
    [RLE_UNARY_CEIL] = map_ceil,         [RLE_UNARY_ROUND] = map_round,
    [RLE_UNARY_TRUNC] = map_trunc,       [RLE_UNARY_CLAMP] = map_clamp,
    [RLE_UNARY_NOT] = map_not,           [RLE_UNARY_ISNAN] = map_isnan,
    [RLE_UNARY_ISINF] = map_isinf,       [RLE_UNARY_ISFINITE] = map_isfinite,
};

/* ---- gradients: g is what comes from above, s the saved input (x) or output (y) ---- */

#define GRAD(kind, expr)                                                                 \
    static void grad_##kind(void *out_, const void *gout_, const void *saved_, int64_t n, \
                            double p0, double p1)                                        \
    {                                                                                    \
        REAL *out = out_;                                                                \
        const REAL *gout = gout_, *saved = saved_;                                       \
        REAL lo = (REAL)p0, hi = (REAL)p1;                                               \
        (void)lo;                                                                        \
        (void)hi;                                                                        \
        RLE_IVDEP                                                                        \
        for (int64_t i = 0; i < n; i++) {                                                \
            REAL g = gout[i], s = saved[i];                                              \
            (void)g;                                                                     \
            (void)s;                                                                     \
            out[i] = expr;                                                               \
        }                                                                                \
    }

GRAD(neg, -g)
GRAD(abs, g *((s > 0 ? (REAL)1 : (REAL)0) - (s < 0 ? (REAL)1 : (REAL)0)))
GRAD(zero, 0)
GRAD(exp, g *s)
GRAD(log, g / s)
GRAD(log1p, g / (s + 1))
GRAD(expm1, g *(s + 1))
GRAD(sqrt, g / (2 * s))
GRAD(rsqrt, (REAL)-0.5 * g * (s * s * s))
GRAD(square, g *(2 * s))
GRAD(reciprocal, -g *(s * s))
static void grad_sin(void *out_, const void *gout_, const void *saved_, int64_t n, double p0,
                     double p1)
{
    REAL *out = out_, slope[STRETCH];
    const REAL *gout = gout_, *saved = saved_;
    (void)p0;
    (void)p1;
    for (int64_t i = 0; i < n; i += STRETCH) {
        int64_t count = rle_min64(n - i, STRETCH);
        trig_run(slope, saved + i, count, 1);
        for (int64_t k = 0; k < count; k++) out[i + k] = gout[i + k] * slope[k];
    }
}

static void grad_cos(void *out_, const void *gout_, const void *saved_, int64_t n, double p0,
                     double p1)
{
    REAL *out = out_, slope[STRETCH];
    const REAL *gout = gout_, *saved = saved_;
    (void)p0;
    (void)p1;
    for (int64_t i = 0; i < n; i += STRETCH) {
        int64_t count = rle_min64(n - i, STRETCH);
        trig_run(slope, saved + i, count, 0);
        for (int64_t k = 0; k < count; k++) out[i + k] = gout[i + k] * -slope[k];
    }
}
GRAD(tanh, g *(1 - s * s))
GRAD(sigmoid, g *(1 - s) * s)
GRAD(softplus, g *M(sigmoid)(s))
GRAD(relu, s <= 0 ? 0 : g)
GRAD(clamp, ((s > lo) & (s < hi)) ? g : 0)

const rle_cpu_grad K(rle_grad)[RLE_UNARY_COUNT] = {
    [RLE_UNARY_NEG] = grad_neg,         [RLE_UNARY_ABS] = grad_abs,
    [RLE_UNARY_SIGN] = grad_zero,       [RLE_UNARY_EXP] = grad_exp,
    [RLE_UNARY_LOG] = grad_log,         [RLE_UNARY_LOG1P] = grad_log1p,
    [RLE_UNARY_EXPM1] = grad_expm1,     [RLE_UNARY_SQRT] = grad_sqrt,
    [RLE_UNARY_RSQRT] = grad_rsqrt,     [RLE_UNARY_SQUARE] = grad_square,
    [RLE_UNARY_RECIPROCAL] = grad_reciprocal, [RLE_UNARY_SIN] = grad_sin,
    [RLE_UNARY_COS] = grad_cos,         [RLE_UNARY_TANH] = grad_tanh,
    [RLE_UNARY_SIGMOID] = grad_sigmoid, [RLE_UNARY_SOFTPLUS] = grad_softplus,
    [RLE_UNARY_RELU] = grad_relu,       [RLE_UNARY_FLOOR] = grad_zero,
    [RLE_UNARY_CEIL] = grad_zero,       [RLE_UNARY_ROUND] = grad_zero,
    [RLE_UNARY_TRUNC] = grad_zero,      [RLE_UNARY_CLAMP] = grad_clamp,
};

/* ---- binary ---- */

/* As Python: the result has the divisor's sign. */
static inline REAL remainder_of(REAL a, REAL b)
{
    REAL r = LIBM(fmod)(a, b);
    return r != 0 && (b < 0) != (r < 0) ? r + b : r;
}

/* floor(a / b), but consistent with the remainder where the division rounds up. */
static inline REAL floor_div_of(REAL a, REAL b)
{
    if (b == 0) return a / b;
    REAL r = LIBM(fmod)(a, b);
    REAL q = (a - r) / b;
    if (r != 0 && (b < 0) != (r < 0)) q -= 1;
    if (q == 0) return LIBM(copysign)(0, a / b);
    REAL floored = LIBM(floor)(q);
    return q - floored > (REAL)0.5 ? floored + 1 : floored;
}

#define ZIP(kind, TO, expr)                                                              \
    static void zip_##kind(void *out_, const void *a_, const void *b_, int64_t n,        \
                           rle_cpu_one one)                                              \
    {                                                                                    \
        TO *out = out_;                                                                  \
        const REAL *ap = a_, *bp = b_;                                                   \
        if (one == RLE_ONE_B) {                                                          \
            REAL b = *bp;                                                                \
            RLE_IVDEP                                                                    \
            for (int64_t i = 0; i < n; i++) {                                            \
                REAL a = ap[i];                                                          \
                out[i] = (TO)(expr);                                                     \
            }                                                                            \
        } else if (one == RLE_ONE_A) {                                                   \
            REAL a = *ap;                                                                \
            RLE_IVDEP                                                                    \
            for (int64_t i = 0; i < n; i++) {                                            \
                REAL b = bp[i];                                                          \
                out[i] = (TO)(expr);                                                     \
            }                                                                            \
        } else {                                                                         \
            RLE_IVDEP                                                                    \
            for (int64_t i = 0; i < n; i++) {                                            \
                REAL a = ap[i], b = bp[i];                                               \
                out[i] = (TO)(expr);                                                     \
            }                                                                            \
        }                                                                                \
    }

ZIP(add, REAL, a + b)
ZIP(sub, REAL, a - b)
ZIP(mul, REAL, a *b)
ZIP(div, REAL, a / b)
ZIP(pow, REAL, M(pow)(a, b))
ZIP(maximum, REAL, ((a >= b) | (a != a)) ? a : b)
ZIP(minimum, REAL, ((a <= b) | (a != a)) ? a : b)
ZIP(atan2, REAL, M(atan2)(a, b))
ZIP(remainder, REAL, remainder_of(a, b))
ZIP(floor_div, REAL, floor_div_of(a, b))
ZIP(eq, uint8_t, a == b)
ZIP(ne, uint8_t, a != b)
ZIP(lt, uint8_t, a < b)
ZIP(le, uint8_t, a <= b)
ZIP(gt, uint8_t, a > b)
ZIP(ge, uint8_t, a >= b)
ZIP(and, uint8_t, (a != 0) & (b != 0))
ZIP(or, uint8_t, (a != 0) | (b != 0))
ZIP(xor, uint8_t, (a != 0) ^ (b != 0))

const rle_cpu_zip K(rle_binary)[RLE_BINARY_COUNT] = {
    [RLE_BINARY_ADD] = zip_add,
    [RLE_BINARY_SUB] = zip_sub,
    [RLE_BINARY_MUL] = zip_mul,
    [RLE_BINARY_DIV] = zip_div,
    [RLE_BINARY_POW] = zip_pow,
    [RLE_BINARY_MAXIMUM] = zip_maximum,
    [RLE_BINARY_MINIMUM] = zip_minimum,
    [RLE_BINARY_ATAN2] = zip_atan2,
    [RLE_BINARY_REMAINDER] = zip_remainder,
    [RLE_BINARY_FLOOR_DIV] = zip_floor_div,
    [RLE_BINARY_EQ] = zip_eq,
    [RLE_BINARY_NE] = zip_ne,
    [RLE_BINARY_LT] = zip_lt,
    [RLE_BINARY_LE] = zip_le,
    [RLE_BINARY_GT] = zip_gt,
    [RLE_BINARY_GE] = zip_ge,
    [RLE_BINARY_AND] = zip_and,
    [RLE_BINARY_OR] = zip_or,
    [RLE_BINARY_XOR] = zip_xor,
};
