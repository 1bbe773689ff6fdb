/* test_cpu_elementwise.c - fill, copy, unary, binary, where of the CPU against plain C in
 * double precision: all dtypes, any strides, in place, on every instruction set. */
#include "cpu_check.h"

static const rle_dtype all_dtypes[] = {RLE_F32, RLE_F64, RLE_I32, RLE_I64, RLE_U8, RLE_BOOL};

static double from_dtype(rle_dtype t, double v) /* what a store into t leaves */
{
    switch (t) {
    case RLE_F32: return (double)(float)v;
    case RLE_I32: return (double)(int32_t)(int64_t)v;
    case RLE_U8: return (double)(uint8_t)(int64_t)v;
    case RLE_BOOL: return v != 0;
    default: return v;
    }
}

static double unary_reference(rle_unary_kind kind, double x, double lo, double hi)
{
    switch (kind) {
    case RLE_UNARY_NEG: return -x;
    case RLE_UNARY_ABS: return fabs(x);
    case RLE_UNARY_SIGN: return (x > 0) - (x < 0);
    case RLE_UNARY_EXP: return (double)expl(x);
    case RLE_UNARY_LOG: return (double)logl(x);
    case RLE_UNARY_LOG1P: return (double)log1pl(x);
    case RLE_UNARY_EXPM1: return (double)expm1l(x);
    case RLE_UNARY_SQRT: return sqrt(x);
    case RLE_UNARY_RSQRT: return 1 / sqrt(x);
    case RLE_UNARY_SQUARE: return x * x;
    case RLE_UNARY_RECIPROCAL: return 1 / x;
    case RLE_UNARY_SIN: return (double)sinl(x);
    case RLE_UNARY_COS: return (double)cosl(x);
    case RLE_UNARY_TANH: return (double)tanhl(x);
    case RLE_UNARY_SIGMOID: return (double)(1 / (1 + expl(-(long double)x)));
    case RLE_UNARY_SOFTPLUS:
        return x > 0 ? (double)(x + log1pl(expl(-(long double)x))) : (double)log1pl(expl(x));
    case RLE_UNARY_RELU: return x < 0 ? 0 : x;
    case RLE_UNARY_FLOOR: return floor(x);
    case RLE_UNARY_CEIL: return ceil(x);
    case RLE_UNARY_ROUND: return rint(x);
    case RLE_UNARY_TRUNC: return trunc(x);
    case RLE_UNARY_CLAMP: return x < lo ? lo : x > hi ? hi : x;
    case RLE_UNARY_NOT: return x == 0;
    case RLE_UNARY_ISNAN: return x != x;
    case RLE_UNARY_ISINF: return isinf(x) != 0;
    case RLE_UNARY_ISFINITE: return isfinite(x) != 0;
    default: return NAN;
    }
}

static bool integer_unary(rle_unary_kind k)
{
    return k == RLE_UNARY_NEG || k == RLE_UNARY_ABS || k == RLE_UNARY_SIGN ||
           k == RLE_UNARY_SQUARE || k >= RLE_UNARY_RELU;
}

static const double specials[] = {0.0, -0.0, INFINITY, -INFINITY, NAN, 1, -1, 0.5, 1e-40,
                                  -1e-40, 1e38, -1e38, 2.5, -2.5, 88.9, -104, 20, -20, 1e-8};
#define SPECIALS ((int)(sizeof(specials) / sizeof(specials[0])))

static void salt(box *b)
{
    int64_t n = rle_array_numel(&b->a);
    if (!rle_dtype_is_float(b->a.dtype) || below(2)) return;
    for (int64_t i = 0; i < n; i++)
        if (below(3) == 0) put(&b->a, i, specials[below(SPECIALS)]);
}

static void unary_matches_plain_c(void **state)
{
    (void)state;
    const rle_device_ops *ops = rle_cpu_ops();
    for (int round = 0; round < 60; round++) {
        for (int kind = 0; kind < RLE_UNARY_COUNT; kind++) {
            rle_dtype t = all_dtypes[below(6)];
            if (!rle_dtype_is_float(t) && !integer_unary(kind)) continue;
            int ndim;
            int64_t shape[RLE_MAX_DIMS];
            some_shape(&ndim, shape, 3000);
            box in = box_new(t, ndim, shape, (layout)below(LAYOUTS));
            box_fill(&in);
            salt(&in);
            rle_dtype to = rle_unary_gives_bool(kind) ? RLE_BOOL : t;
            box first = box_new(to, ndim, shape, (layout)below(BROADCAST));
            int64_t n = rle_array_numel(&in.a);
            double lo = -1.5, hi = below(3) ? 2.25 : INFINITY;
            if (t == RLE_BOOL || t == RLE_U8) lo = 0;
            bool started = false;
            for (FOR_EACH_ISA(i)) {
                box out = box_copy(&first);
                assert_int_equal(ops->unary(NULL, kind, &out.a, &in.a, lo, hi), RLE_OK);
                box_check(&out);
                if (started) {
                    same_bits(&out.a, &first.a, check_isas[i]);
                    box_free(&out);
                    continue;
                }
                started = true;
                box_free(&first);
                first = out;
                for (int64_t e = 0; e < n; e++) {
                    double x = get(&in.a, e), l = lo, h = hi;
                    if (!rle_dtype_is_float(t)) {
                        l = ceil(lo);
                        h = floor(hi);
                    }
                    double want = from_dtype(to, unary_reference(kind, x, l, h));
                    if (!near(to, get(&out.a, e), want, 3, 0))
                        fail_msg("unary %d of %s %.9g: %.9g, not %.9g", kind,
                                 rle_dtype_name(t), x, get(&out.a, e), want);
                }
            }
            if (in.a.data && to == t) { /* in place */
                box same = box_copy(&first);
                for (int64_t e = 0; e < n; e++)
                    memcpy(at(&same.a, e), at(&in.a, e), rle_dtype_size(t));
                assert_int_equal(ops->unary(NULL, kind, &same.a, &same.a, lo, hi),
                                 RLE_OK);
                same_bits(&same.a, &first.a, "in place");
                box_check(&same);
                box_free(&same);
            }
            box_free(&first);
            box_free(&in);
        }
    }
}

static double grad_reference(rle_unary_kind kind, double x, double y, double lo, double hi)
{
    switch (kind) {
    case RLE_UNARY_NEG: return -1;
    case RLE_UNARY_ABS: return (x > 0) - (x < 0);
    case RLE_UNARY_EXP: return y;
    case RLE_UNARY_LOG: return 1 / x;
    case RLE_UNARY_LOG1P: return 1 / (x + 1);
    case RLE_UNARY_EXPM1: return y + 1;
    case RLE_UNARY_SQRT: return 0.5 / y;
    case RLE_UNARY_RSQRT: return -0.5 * y * y * y;
    case RLE_UNARY_SQUARE: return 2 * x;
    case RLE_UNARY_RECIPROCAL: return -y * y;
    case RLE_UNARY_SIN: return cos(x);
    case RLE_UNARY_COS: return -sin(x);
    case RLE_UNARY_TANH: return 1 - y * y;
    case RLE_UNARY_SIGMOID: return y * (1 - y);
    case RLE_UNARY_SOFTPLUS: return 1 / (1 + exp(-x));
    case RLE_UNARY_RELU: return y > 0;
    case RLE_UNARY_CLAMP: return x > lo && x < hi;
    default: return 0;
    }
}

static bool needs_output(rle_unary_kind k)
{
    return k == RLE_UNARY_EXP || k == RLE_UNARY_SQRT || k == RLE_UNARY_RSQRT ||
           k == RLE_UNARY_RECIPROCAL || k == RLE_UNARY_TANH || k == RLE_UNARY_SIGMOID ||
           k == RLE_UNARY_EXPM1 || k == RLE_UNARY_RELU;
}

static void gradients_match_plain_c(void **state)
{
    (void)state;
    const rle_device_ops *ops = rle_cpu_ops();
    for (int round = 0; round < 40; round++) {
        for (int kind = 0; kind < RLE_UNARY_NOT; kind++) {
            rle_dtype t = below(2) ? RLE_F32 : RLE_F64;
            int ndim;
            int64_t shape[RLE_MAX_DIMS];
            some_shape(&ndim, shape, 2000);
            box x = box_new(t, ndim, shape, (layout)below(LAYOUTS));
            box g = box_new(t, ndim, shape, (layout)below(LAYOUTS));
            box_fill(&x);
            box_fill(&g);
            int64_t n = rle_array_numel(&x.a);
            bool by_y = needs_output(kind);
            box first = box_new(t, ndim, shape, (layout)below(BROADCAST));
            bool started = false;
            for (FOR_EACH_ISA(i)) {
                box out = box_copy(&first);
                assert_int_equal(ops->unary_backward(NULL, kind, &out.a, &g.a,
                                                     by_y ? NULL : &x.a,
                                                     by_y ? &x.a : NULL, -1, 2),
                                 RLE_OK);
                box_check(&out);
                if (started) {
                    same_bits(&out.a, &first.a, check_isas[i]);
                    box_free(&out);
                    continue;
                }
                started = true;
                box_free(&first);
                first = out;
                for (int64_t e = 0; e < n; e++) {
                    double v = get(&x.a, e);
                    double want = get(&g.a, e) * grad_reference(kind, v, v, -1, 2);
                    double slack = t == RLE_F32 ? 1e-5 : 1e-13;
                    if (!near(t, get(&out.a, e), want, 8, slack))
                        fail_msg("gradient of %d at %.9g: %.9g, not %.9g", kind, v,
                                 get(&out.a, e), want);
                }
            }
            box_free(&first);
            box_free(&x);
            box_free(&g);
        }
    }
}

static double float_binary(rle_binary_kind kind, double a, double b)
{
    double r;
    switch (kind) {
    case RLE_BINARY_ADD: return a + b;
    case RLE_BINARY_SUB: return a - b;
    case RLE_BINARY_MUL: return a * b;
    case RLE_BINARY_DIV: return a / b;
    case RLE_BINARY_POW: return pow(a, b);
    case RLE_BINARY_MAXIMUM: return a != a || b != b ? NAN : a > b ? a : b;
    case RLE_BINARY_MINIMUM: return a != a || b != b ? NAN : a < b ? a : b;
    case RLE_BINARY_ATAN2: return atan2(a, b);
    case RLE_BINARY_REMAINDER:
        r = fmod(a, b);
        return r != 0 && (r < 0) != (b < 0) ? r + b : r;
    case RLE_BINARY_FLOOR_DIV: /* as Python: 1 // -inf is -1 */
        if (isinf(b) && isfinite(a)) return a == 0 || (a < 0) == (b < 0) ? 0 : -1;
        return floor(a / b);
    case RLE_BINARY_EQ: return a == b;
    case RLE_BINARY_NE: return a != b;
    case RLE_BINARY_LT: return a < b;
    case RLE_BINARY_LE: return a <= b;
    case RLE_BINARY_GT: return a > b;
    case RLE_BINARY_GE: return a >= b;
    case RLE_BINARY_AND: return a != 0 && b != 0;
    case RLE_BINARY_OR: return a != 0 || b != 0;
    case RLE_BINARY_XOR: return (a != 0) != (b != 0);
    default: return NAN;
    }
}

static double integer_binary(rle_binary_kind kind, int64_t a, int64_t b)
{
    switch (kind) {
    case RLE_BINARY_POW:
        if (b < 0) return a == 1 ? 1 : a == -1 ? (b % 2 ? -1 : 1) : 0;
        return pow((double)a, (double)b);
    case RLE_BINARY_REMAINDER: return b == 0 ? 0 : (double)(((a % b) + b) % b);
    case RLE_BINARY_FLOOR_DIV: return b == 0 ? 0 : floor((double)a / (double)b);
    default: return float_binary(kind, (double)a, (double)b);
    }
}

static double binary_reference(rle_binary_kind kind, rle_dtype t, double a, double b)
{
    return rle_dtype_is_float(t) ? float_binary(kind, a, b)
                                 : integer_binary(kind, (int64_t)a, (int64_t)b);
}

static bool has_binary(rle_binary_kind kind, rle_dtype t)
{
    if (rle_dtype_is_float(t)) return true;
    return kind != RLE_BINARY_DIV && kind != RLE_BINARY_ATAN2;
}

static void check_binary(rle_binary_kind kind, rle_dtype t, rle_dtype to, double x, double y,
                         double got)
{
    double want = binary_reference(kind, t, x, y);
    if (!rle_dtype_is_float(t)) /* wraps around: compare in 64-bit arithmetic modulo */
        want = from_dtype(to, fmod(want, t == RLE_U8 ? 256 : 0x1p53));
    if (kind == RLE_BINARY_FLOOR_DIV && rle_dtype_is_float(t) && !isfinite(x / y)) return;
    double ulps = kind == RLE_BINARY_POW || kind == RLE_BINARY_ATAN2 ? 2 : 0.5;
    double slack = kind == RLE_BINARY_REMAINDER ? fabs(y) * (t == RLE_F32 ? 1e-7 : 1e-15) : 0;
    if (kind == RLE_BINARY_FLOOR_DIV && t == RLE_F32) slack = 0;
    if (!near(to, got, want, ulps, slack))
        fail_msg("binary %d of %s %.9g and %.9g: %.9g, not %.9g", kind, rle_dtype_name(t), x,
                 y, got, want);
}

static void binary_matches_plain_c(void **state)
{
    (void)state;
    const rle_device_ops *ops = rle_cpu_ops();
    for (int round = 0; round < 60; round++) {
        for (int kind = 0; kind < RLE_BINARY_COUNT; kind++) {
            rle_dtype t = all_dtypes[below(6)];
            if (!has_binary(kind, t)) continue;
            int ndim;
            int64_t shape[RLE_MAX_DIMS];
            some_shape(&ndim, shape, 2000);
            box a = box_new(t, ndim, shape, (layout)below(LAYOUTS));
            box b = box_new(t, ndim, shape, (layout)below(LAYOUTS));
            box_fill(&a);
            box_fill(&b);
            salt(&a);
            salt(&b);
            rle_dtype to = rle_binary_gives_bool(kind) ? RLE_BOOL : t;
            int64_t n = rle_array_numel(&a.a);
            box first = box_new(to, ndim, shape, (layout)below(BROADCAST));
            double number = rle_dtype_is_float(t) ? unit() * 4 - 2 : t == RLE_BOOL ? 1
                                                                                  : 1 + below(5);
            number = from_dtype(t, number);
            int form = below(3); /* two tensors, tensor and number, number and tensor */
            bool started = false;
            for (FOR_EACH_ISA(i)) {
                box out = box_copy(&first);
                rle_status s = form == 0
                                   ? ops->binary(NULL, kind, &out.a, &a.a, &b.a)
                                   : ops->binary_scalar(NULL, kind, &out.a, &a.a, number,
                                                        (int64_t)number, form == 2);
                assert_int_equal(s, RLE_OK);
                box_check(&out);
                if (started) {
                    same_bits(&out.a, &first.a, check_isas[i]);
                    box_free(&out);
                    continue;
                }
                started = true;
                box_free(&first);
                first = out;
                for (int64_t e = 0; e < n; e++) {
                    double x = get(&a.a, e), y = form == 0 ? get(&b.a, e) : number;
                    if (form == 2)
                        check_binary(kind, t, to, y, x, get(&out.a, e));
                    else
                        check_binary(kind, t, to, x, y, get(&out.a, e));
                }
            }
            if (to == t && form == 0) { /* in place of the first operand */
                box same = box_copy(&first);
                for (int64_t e = 0; e < n; e++)
                    memcpy(at(&same.a, e), at(&a.a, e), rle_dtype_size(t));
                assert_int_equal(ops->binary(NULL, kind, &same.a, &same.a, &b.a), RLE_OK);
                same_bits(&same.a, &first.a, "in place");
                box_free(&same);
            }
            box_free(&first);
            box_free(&a);
            box_free(&b);
        }
    }
}

static void integers_wrap_and_survive_their_ends(void **state)
{
    (void)state;
    const rle_device_ops *ops = rle_cpu_ops();
    int64_t a[4] = {INT64_MIN, INT64_MAX, INT64_MIN, 7}, b[4] = {-1, 1, 0, 0}, out[4];
    rle_array A = {a, RLE_I64, 1, {4}, {1}}, B = {b, RLE_I64, 1, {4}, {1}},
              O = {out, RLE_I64, 1, {4}, {1}};
    assert_int_equal(ops->binary(NULL, RLE_BINARY_FLOOR_DIV, &O, &A, &B), RLE_OK);
    assert_true(out[0] == INT64_MIN && out[1] == INT64_MAX && out[2] == 0 && out[3] == 0);
    assert_int_equal(ops->binary(NULL, RLE_BINARY_REMAINDER, &O, &A, &B), RLE_OK);
    assert_true(out[0] == 0 && out[1] == 0 && out[2] == 0 && out[3] == 0);
    assert_int_equal(ops->binary(NULL, RLE_BINARY_ADD, &O, &A, &B), RLE_OK);
    assert_true(out[0] == INT64_MAX && out[1] == INT64_MIN);
    assert_int_equal(ops->unary(NULL, RLE_UNARY_NEG, &O, &A, 0, 0), RLE_OK);
    assert_true(out[0] == INT64_MIN && out[1] == -INT64_MAX);
    assert_int_equal(ops->unary(NULL, RLE_UNARY_CLAMP, &O, &A, -INFINITY, 3.7), RLE_OK);
    assert_true(out[0] == INT64_MIN && out[1] == 3 && out[3] == 3);
    /* A number beyond 2^53 keeps its digits. */
    assert_int_equal(ops->fill(NULL, &O, 0, INT64_C(9007199254740993)), RLE_OK);
    assert_true(out[3] == INT64_C(9007199254740993));
    assert_int_equal(ops->binary_scalar(NULL, RLE_BINARY_SUB, &O, &O, 0,
                                        INT64_C(9007199254740992), false),
                     RLE_OK);
    assert_true(out[0] == 1);
}

static void copy_casts_and_keeps_any_layout(void **state)
{
    (void)state;
    const rle_device_ops *ops = rle_cpu_ops();
    for (int round = 0; round < 400; round++) {
        rle_dtype from = all_dtypes[below(6)], to = all_dtypes[below(6)];
        int ndim;
        int64_t shape[RLE_MAX_DIMS];
        some_shape(&ndim, shape, 3000);
        box in = box_new(from, ndim, shape, (layout)below(LAYOUTS));
        box out = box_new(to, ndim, shape, (layout)below(BROADCAST));
        box_fill(&in);
        assert_int_equal(ops->copy(NULL, &out.a, &in.a), RLE_OK);
        box_check(&out);
        int64_t n = rle_array_numel(&in.a);
        for (int64_t e = 0; e < n; e++) {
            double v = get(&in.a, e);
            double want = to == RLE_BOOL                ? v != 0
                          : rle_dtype_is_float(to)      ? from_dtype(to, v)
                          : rle_dtype_is_float(from)    ? (to == RLE_U8 && v < 0 ? 0 : trunc(v))
                                                        : from_dtype(to, v);
            if (get(&out.a, e) != want)
                fail_msg("%s %g became %s %g", rle_dtype_name(from), v, rle_dtype_name(to),
                         get(&out.a, e));
        }
        assert_int_equal(ops->fill(NULL, &out.a, 3.5, 3), RLE_OK);
        box_check(&out);
        for (int64_t e = 0; e < n; e++)
            assert_true(get(&out.a, e) ==
                        (to == RLE_BOOL ? 1 : rle_dtype_is_float(to) ? 3.5 : 3));
        box_free(&in);
        box_free(&out);
    }
    float wild[6] = {NAN, INFINITY, -INFINITY, 3e9f, -3e9f, 300};
    int32_t i32[6];
    int64_t i64[6];
    uint8_t u8[6];
    rle_array F = {wild, RLE_F32, 1, {6}, {1}}, I = {i32, RLE_I32, 1, {6}, {1}},
              L = {i64, RLE_I64, 1, {6}, {1}}, U = {u8, RLE_U8, 1, {6}, {1}};
    ops->copy(NULL, &I, &F);
    ops->copy(NULL, &L, &F);
    ops->copy(NULL, &U, &F);
    assert_true(i32[0] == 0 && i32[1] == INT32_MAX && i32[2] == INT32_MIN);
    assert_true(i32[3] == INT32_MAX && i32[4] == INT32_MIN && i32[5] == 300);
    assert_true(i64[0] == 0 && i64[1] == INT64_MAX && i64[2] == INT64_MIN &&
                i64[3] == 3000000000);
    assert_true(u8[0] == 0 && u8[1] == 255 && u8[2] == 0 && u8[3] == 255 && u8[5] == 255);
}

static void where_picks_by_condition(void **state)
{
    (void)state;
    const rle_device_ops *ops = rle_cpu_ops();
    for (int round = 0; round < 300; round++) {
        rle_dtype t = all_dtypes[below(6)];
        int ndim;
        int64_t shape[RLE_MAX_DIMS];
        some_shape(&ndim, shape, 3000);
        box c = box_new(RLE_BOOL, ndim, shape, (layout)below(LAYOUTS));
        box a = box_new(t, ndim, shape, (layout)below(LAYOUTS));
        box b = box_new(t, ndim, shape, (layout)below(LAYOUTS));
        box out = box_new(t, ndim, shape, (layout)below(BROADCAST));
        box_fill(&a);
        box_fill(&b);
        int64_t n = rle_array_numel(&a.a);
        for (int64_t e = 0; e < n; e++) put(&c.a, e, below(2));
        assert_int_equal(ops->where(NULL, &out.a, &c.a, &a.a, &b.a), RLE_OK);
        box_check(&out);
        for (int64_t e = 0; e < n; e++)
            assert_true(get(&out.a, e) == (get(&c.a, e) ? get(&a.a, e) : get(&b.a, e)));
        box_free(&a);
        box_free(&b);
        box_free(&c);
        box_free(&out);
    }
}

static void empty_arrays_are_left_alone(void **state)
{
    (void)state;
    const rle_device_ops *ops = rle_cpu_ops();
    rle_array e = {NULL, RLE_F32, 2, {0, 3}, {9, 2}};
    rle_array b = e;
    b.dtype = RLE_BOOL;
    assert_int_equal(ops->fill(NULL, &e, 1, 1), RLE_OK);
    assert_int_equal(ops->copy(NULL, &e, &e), RLE_OK);
    assert_int_equal(ops->unary(NULL, RLE_UNARY_EXP, &e, &e, 0, 0), RLE_OK);
    assert_int_equal(ops->binary(NULL, RLE_BINARY_ADD, &e, &e, &e), RLE_OK);
    assert_int_equal(ops->binary_scalar(NULL, RLE_BINARY_ADD, &e, &e, 1, 1, false),
                     RLE_OK);
    assert_int_equal(ops->where(NULL, &e, &b, &e, &e), RLE_OK);
}

static void dtypes_without_arithmetic_are_refused(void **state)
{
    (void)state;
    const rle_device_ops *ops = rle_cpu_ops();
    uint16_t half[2] = {0};
    rle_array h = {half, RLE_F16, 1, {2}, {1}};
    int32_t whole[2] = {1, 2};
    rle_array w = {whole, RLE_I32, 1, {2}, {1}};
    assert_int_equal(ops->unary(NULL, RLE_UNARY_EXP, &h, &h, 0, 0), RLE_UNIMPLEMENTED);
    assert_int_equal(ops->unary(NULL, RLE_UNARY_EXP, &w, &w, 0, 0), RLE_UNIMPLEMENTED);
    assert_int_equal(ops->binary(NULL, RLE_BINARY_ADD, &h, &h, &h), RLE_UNIMPLEMENTED);
    assert_int_equal(ops->copy(NULL, &w, &h), RLE_UNIMPLEMENTED);
    assert_int_equal(ops->fill(NULL, &h, 1, 1), RLE_UNIMPLEMENTED);
    assert_int_equal(whole[0], 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unary_matches_plain_c),
        cmocka_unit_test(gradients_match_plain_c),
        cmocka_unit_test(binary_matches_plain_c),
        cmocka_unit_test(integers_wrap_and_survive_their_ends),
        cmocka_unit_test(copy_casts_and_keeps_any_layout),
        cmocka_unit_test(where_picks_by_condition),
        cmocka_unit_test(empty_arrays_are_left_alone),
        cmocka_unit_test(dtypes_without_arithmetic_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
