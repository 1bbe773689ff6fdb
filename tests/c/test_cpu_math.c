/* test_cpu_math.c - the elementary functions: their error against long double, what they
 * do with infinities, NaN, zeros and denormals, and equal bits on all instruction sets.
 */
#include "cpu_check.h"

#include "common/math.h"

/* ---- fused multiply-add without the instruction ---- */

static void emulated_fma_is_exact(void **state)
{
    (void)state;
    static const uint32_t edges[] = {0,          1,           0x80000000u, 0x80000001u,
                                     0x007fffff, 0x00800000,  0x00800001,  0x3f800000,
                                     0x3f800001, 0xbf800001,  0x7f7fffff,  0xff7fffffu,
                                     0x7f800000, 0xff800000u, 0x7fc00000,  0x33800000,
                                     0x34000000, 0x4b800001,  0x1a000001,  0x0d800003};
    const int n = sizeof(edges) / sizeof(edges[0]);
    for (int round = 0; round < 2000000; round++) {
        uint32_t b[3];
        for (int i = 0; i < 3; i++) b[i] = rnd();
        if (round < n * n * n) {
            b[0] = edges[round % n];
            b[1] = edges[round / n % n];
            b[2] = edges[round / n / n];
        } else if (round % 4 ==
                   1) { /* exponents close to each other: ties and cancellation */
            b[2] = (b[2] & 0x807fffffu) |
                   (((b[0] >> 23) + (b[1] >> 23) - 127 - 24 + b[2] % 49) & 0xff) << 23;
        } else if (round % 4 == 2) { /* few bits: exact ties */
            for (int i = 0; i < 3; i++) b[i] &= 0xfff80001u;
        }
        float x = rle_float32(b[0]), y = rle_float32(b[1]), z = rle_float32(b[2]);
        float want = fmaf(x, y, z), got = rle_fma_from_double(x, y, z);
        if (memcmp(&want, &got, 4) && !(want != want && got != got))
            fail_msg("fma(%a, %a, %a): %a, not %a", x, y, z, got, want);
    }
}

/* ---- errors ---- */

typedef long double (*exact_fn)(long double);

static long double sigmoidl(long double x)
{
    return 1 / (1 + expl(-x));
}
static long double softplusl(long double x)
{
    return x > 0 ? x + log1pl(expl(-x)) : log1pl(expl(x));
}

typedef struct {
    const char *name;
    rle_unary_kind kind;
    exact_fn exact;
    double bound32, bound64;
    double low, high; /* where it is swept densely */
} function;

static const function functions[] = {
    {"exp", RLE_UNARY_EXP, expl, 0.8, 0.9, -104, 89},
    {"expm1", RLE_UNARY_EXPM1, expm1l, 1.5, 2.0, -20, 89},
    {"log", RLE_UNARY_LOG, logl, 1.0, 1.0, 0, 10},
    {"log1p", RLE_UNARY_LOG1P, log1pl, 1.5, 1.0, -1, 10},
    {"tanh", RLE_UNARY_TANH, tanhl, 1.6, 2.5, -10, 10},
    {"sigmoid", RLE_UNARY_SIGMOID, sigmoidl, 1.9, 1.9, -90, 20},
    {"softplus", RLE_UNARY_SOFTPLUS, softplusl, 1.8, 1.8, -90, 30},
    {"sin", RLE_UNARY_SIN, sinl, 1.6, 1.0, -30, 30},
    {"cos", RLE_UNARY_COS, cosl, 1.6, 1.0, -30, 30},
};

static double ulps_off(rle_dtype t, double got, long double want)
{
    bool f32 = t == RLE_F32;
    if (want != want) return got != got ? 0 : INFINITY;
    if (isinf(got) || fabsl(want) > (f32 ? (long double)FLT_MAX : (long double)DBL_MAX)) {
        long double limit = f32 ? 0x1.ffffffp127L : 0x1.fffffffffffffcp1023L;
        return isinf(got) && fabsl(want) >= limit && (got > 0) == (want > 0) ? 0
               : isinf(got)
                   ? (isinf((double)want) && (got > 0) == (want > 0) ? 0 : INFINITY)
               : fabsl(want) < limit ? 0
                                     : INFINITY;
    }
    int e = want == 0 ? -5000 : ilogbl(want);
    int lowest = f32 ? -149 : -1074, digits = f32 ? 23 : 52;
    e = e - digits < lowest ? lowest : e - digits;
    return (double)fabsl(ldexpl((long double)got - want, -e));
}

static double value_at(rle_dtype t, const void *p, int64_t i)
{
    return t == RLE_F32 ? (double)((const float *)p)[i] : ((const double *)p)[i];
}

/* n arguments into x: dense over the interval, over all magnitudes, and around 1. */
static void arguments(rle_dtype t, const function *f, void *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double v;
        if (i % 4 == 0)
            v = f->low + (f->high - f->low) * unit();
        else if (i % 4 == 1)
            v = (below(2) ? 1 : -1) * exp2(-150 + 278 * unit());
        else if (i % 4 == 2)
            v = (below(2) ? 1 : -1) * (1 + (unit() - 0.5) * 0.9);
        else
            v = (below(2) ? 1 : -1) * exp2(-30 + 34 * unit());
        if (t == RLE_F64 && i % 16 == 1) v = exp2(-1074 + 2097 * unit());
        if (t == RLE_F64 && (f->kind == RLE_UNARY_SIN || f->kind == RLE_UNARY_COS) &&
            i % 8 == 3)
            v = 1048575 * (unit() * 2 - 1);
        if (t == RLE_F32)
            ((float *)x)[i] = (float)v;
        else
            ((double *)x)[i] = v;
    }
}

static void errors_stay_within_the_bounds(void **state)
{
    (void)state;
    const rle_device_ops *ops = rle_cpu_ops();
    enum { N = 1 << 16, ROUNDS = 4 };
    void *x = malloc(N * 8), *y = malloc(N * 8), *z = malloc(N * 8);
    bool show = getenv("RLE_TEST_SHOW") != NULL;
    for (size_t k = 0; k < sizeof(functions) / sizeof(functions[0]); k++) {
        const function *f = &functions[k];
        for (int t = RLE_F32; t <= RLE_F64; t++) {
            double worst = 0, where = 0;
            for (int round = 0; round < ROUNDS; round++) {
                arguments(t, f, x, N);
                rle_array in = {x, t, 1, {N}, {1}}, out = {y, t, 1, {N}, {1}},
                          other = {z, t, 1, {N}, {1}};
                rle_cpu_use("baseline");
                assert_int_equal(ops->unary(NULL, f->kind, &out, &in, 0, 0), RLE_OK);
                for (FOR_EACH_ISA(isa)) {
                    assert_int_equal(ops->unary(NULL, f->kind, &other, &in, 0, 0),
                                     RLE_OK);
                    same_bits(&other, &out, f->name);
                }
                for (int64_t i = 0; i < N; i++) {
                    double v = value_at(t, x, i);
                    double off = ulps_off(t, value_at(t, y, i), f->exact(v));
                    if (off > worst) {
                        worst = off;
                        where = v;
                    }
                }
            }
            double bound = t == RLE_F32 ? f->bound32 : f->bound64;
            if (show)
                print_message("%s %s: %.3f ulp at %a\n", f->name, rle_dtype_name(t),
                              worst, where);
            if (!(worst <= bound))
                fail_msg("%s of %s is off by %.3f ulp at %a (allowed: %g)", f->name,
                         rle_dtype_name(t), worst, where, bound);
        }
    }
    free(x);
    free(y);
    free(z);
}

static void pow_and_atan2_are_nearly_rounded(void **state)
{
    (void)state;
    double worst_pow = 0, worst_atan2 = 0;
    for (int i = 0; i < 400000; i++) {
        float x = (float)exp2(-40 + 80 * unit()), y = (float)((unit() - 0.5) * 12);
        if (i % 3 == 0) x = rle_float32(rnd() & 0x7fffffffu);
        double off = ulps_off(RLE_F32, rle_powf(x, y), powl(x, y));
        if (off > worst_pow) worst_pow = off;
        float a = (float)((unit() - 0.5) * exp2(20 * unit())),
              b = (float)((unit() - 0.5) * 4);
        off = ulps_off(RLE_F32, rle_atan2f(a, b), atan2l(a, b));
        if (off > worst_atan2) worst_atan2 = off;
    }
    assert_true(worst_pow < 0.51);
    assert_true(worst_atan2 < 0.51);
    static const float edges[] = {0.0f,     -0.0f,     1,    -1,     2,      -2,
                                  3,        -3,        0.5f, -0.5f,  1e30f,  -1e30f,
                                  INFINITY, -INFINITY, NAN,  1e-40f, -1e-40f};
    const int n = sizeof(edges) / sizeof(edges[0]);
    for (int i = 0; i < n * n; i++) {
        float x = edges[i % n], y = edges[i / n];
        float got = rle_powf(x, y), want = (float)powl(x, y);
        if (memcmp(&got, &want, 4) && !(got != got && want != want))
            fail_msg("pow(%g, %g): %g, not %g", x, y, got, want);
        got = rle_atan2f(x, y);
        want = (float)atan2l(x, y);
        if (memcmp(&got, &want, 4) && !(got != got && want != want))
            fail_msg("atan2(%g, %g): %.9g, not %.9g", x, y, got, want);
    }
}

static void special_arguments_give_what_c_gives(void **state)
{
    (void)state;
    const rle_device_ops *ops = rle_cpu_ops();
    static const double edges[] = {
        0.0,     -0.0,    INFINITY, -INFINITY, NAN,     1e-45,
        -1e-45,  1e-40,   -1e-40,   0x1p-126,  1,       -1,
        -1.5,    -2,      FLT_MAX,  -FLT_MAX,  88.7228, 88.7229,
        -103.97, -103.98, 709.7,    -745.13,   -745.14, 5e-324,
        -5e-324, 1e-310,  1e300,    -1e300,    0x1p-30, -0x1p-30,
        0x1p25,  0x1p24,  1e10,     -1e10,     3e38,    -0x1.fffffep-1};
    enum { N = sizeof(edges) / sizeof(edges[0]) };
    for (size_t k = 0; k < sizeof(functions) / sizeof(functions[0]); k++) {
        const function *f = &functions[k];
        bool trig = f->kind == RLE_UNARY_SIN || f->kind == RLE_UNARY_COS;
        for (int t = RLE_F32; t <= RLE_F64; t++) {
            for (FOR_EACH_ISA(isa)) {
                /* One at a time and all together: scalar and vector code. */
                float x32[N], y32[N];
                double x64[N], y64[N];
                for (int i = 0; i < N; i++) {
                    x32[i] = (float)edges[i];
                    x64[i] = edges[i];
                }
                for (int whole = 0; whole < 2; whole++) {
                    for (int i = 0; i < (whole ? 1 : N); i++) {
                        int n = whole ? N : 1;
                        rle_array in = {
                            t ? (void *)(x64 + i) : (void *)(x32 + i), t, 1, {n}, {1}};
                        rle_array out = {
                            t ? (void *)(y64 + i) : (void *)(y32 + i), t, 1, {n}, {1}};
                        assert_int_equal(ops->unary(NULL, f->kind, &out, &in, 0, 0),
                                         RLE_OK);
                    }
                    for (int i = 0; i < N; i++) {
                        double x = t ? x64[i] : (double)x32[i],
                               y = t ? y64[i] : (double)y32[i];
                        long double want = f->exact(x);
                        if (trig &&
                            fabs(x) > 1e15) { /* long double cannot reduce these */
                            assert_true(isfinite(x) ? fabs(y) <= 1 : y != y);
                            continue;
                        }
                        double off = ulps_off(t, y, want);
                        if (!(off <= (t ? f->bound64 : f->bound32)))
                            fail_msg("%s(%a) of %s: %a, not %La", f->name, x,
                                     rle_dtype_name(t), y, want);
                        if (want == 0 && signbit(y) != (signbit(want) != 0) && y == 0)
                            fail_msg("%s(%a) of %s lost the sign of zero", f->name, x,
                                     rle_dtype_name(t));
                    }
                }
            }
        }
    }
}

/* One number for the bits of many results; NaN counts as one value. */
static uint64_t digest(const rle_array *a, uint64_t h)
{
    size_t size = rle_dtype_size(a->dtype);
    for (int64_t i = 0; i < rle_array_numel(a); i++) {
        double v = get(a, i);
        uint64_t bits = 0;
        if (v == v)
            memcpy(&bits, at(a, i), size);
        else
            bits = 0x7ff8;
        h = (h ^ bits) * UINT64_C(0x9e3779b97f4a7c15);
        h ^= h >> 29;
    }
    return h;
}

/* The same bits wherever the engine is built: recorded once. */
static void bits_are_the_recorded_ones(void **state)
{
    (void)state;
    const rle_device_ops *ops = rle_cpu_ops();
    static const uint64_t recorded[3] = {
        UINT64_C(0x69c70c91177f2918), UINT64_C(0x3be3e7adf21d4bb4), UINT64_C(0xd2439eec8ca75842)};
    for (FOR_EACH_ISA(isa)) {
        enum { N = 20000 };
        check_state = 11;
        float *x32 = malloc(N * 4), *y32 = malloc(N * 4);
        double *x64 = malloc(N * 8), *y64 = malloc(N * 8);
        for (int i = 0; i < N; i++) {
            x32[i] = i % 2 ? rle_float32(rnd()) : (float)((int32_t)rnd() * 0x1p-27);
            uint64_t high = rnd();
            x64[i] = i % 2 ? rle_float64(high << 32 | rnd()) : (double)(int32_t)rnd() * 0x1p-27;
        }
        rle_array in32 = {x32, RLE_F32, 1, {N}, {1}}, out32 = {y32, RLE_F32, 1, {N}, {1}};
        rle_array in64 = {x64, RLE_F64, 1, {N}, {1}}, out64 = {y64, RLE_F64, 1, {N}, {1}};
        uint64_t h[3] = {0, 0, 0};
        for (size_t k = 0; k < sizeof(functions) / sizeof(functions[0]); k++) {
            assert_int_equal(ops->unary(NULL, functions[k].kind, &out32, &in32, 0, 0),
                             RLE_OK);
            h[0] = digest(&out32, h[0]);
            if (functions[k].kind == RLE_UNARY_SIN) /* beyond the limit f64 asks libm */
                for (int i = 1; i < N; i += 2) x64[i] = fmod(x64[i], RLE_TRIG_LIMIT);
            assert_int_equal(ops->unary(NULL, functions[k].kind, &out64, &in64, 0, 0),
                             RLE_OK);
            h[1] = digest(&out64, h[1]);
        }
        rle_array other = in32;
        other.data = x32 + 1;
        in32.shape[0] = out32.shape[0] = other.shape[0] = N - 1;
        ops->binary(NULL, RLE_BINARY_POW, &out32, &in32, &other);
        h[0] = digest(&out32, h[0]);
        ops->binary(NULL, RLE_BINARY_ATAN2, &out32, &in32, &other);
        h[0] = digest(&out32, h[0]);
        rle_rng rng = {7, 5, 3};
        ops->random(NULL, RLE_RANDOM_NORMAL, &out32, &rng, 0.5, 2);
        ops->random(NULL, RLE_RANDOM_NORMAL, &out64, &rng, 0.5, 2);
        h[2] = digest(&out64, digest(&out32, 0));
        for (int i = 0; i < 3; i++)
            if (h[i] != recorded[i])
                fail_msg("%s, %d: 0x%llx", check_isas[isa], i, (unsigned long long)h[i]);
        free(x32);
        free(x64);
        free(y32);
        free(y64);
    }
}

/* A large float is reduced with enough bits: compare with libm in double, which has more
 * than float needs. */
static void large_angles_are_reduced_fully(void **state)
{
    (void)state;
    for (int i = 0; i < 300000; i++) {
        float x = (float)((below(2) ? 1 : -1) * exp2(18 + 110 * unit()));
        double s = sin((double)x), c = cos((double)x);
        double off_s = ulps_off(RLE_F32, rle_sinf(x), s),
               off_c = ulps_off(RLE_F32, rle_cosf(x), c);
        if (off_s > 1.6 || off_c > 1.6)
            fail_msg("at %a: sin %.9g, not %.9g; cos %.9g, not %.9g", x, rle_sinf(x), s,
                     rle_cosf(x), c);
    }
    /* The float closest to a multiple of pi/2. */
    float hard = 16367173.0f * 0x1p72f;
    assert_true(ulps_off(RLE_F32, rle_cosf(hard), cos((double)hard)) <= 1.6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(emulated_fma_is_exact),
        cmocka_unit_test(errors_stay_within_the_bounds),
        cmocka_unit_test(pow_and_atan2_are_nearly_rounded),
        cmocka_unit_test(special_arguments_give_what_c_gives),
        cmocka_unit_test(bits_are_the_recorded_ones),
        cmocka_unit_test(large_angles_are_reduced_fully),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
