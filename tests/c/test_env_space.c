/* test_env_space.c - definitions, membership, sampling and printing of spaces. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "env/env.h"

static rle_space box(rle_dtype dtype, int64_t n, double low, double high)
{
    return (rle_space){.kind = RLE_SPACE_BOX,
                       .dtype = dtype,
                       .ndim = 1,
                       .shape = {n},
                       .low_all = low,
                       .high_all = high};
}

static void unsound_definitions_are_refused(void **state)
{
    (void)state;
    rle_space s = RLE_DISCRETE(0);
    assert_int_equal(rle_space_check(&s), RLE_INVALID_ARGUMENT);
    s.n = INT64_MAX, s.start = 1;
    assert_int_equal(rle_space_check(&s), RLE_INVALID_ARGUMENT);
    s.start = 0;
    assert_int_equal(rle_space_check(&s), RLE_OK);

    const rle_space bad[] = {
        box(RLE_F32, 0, 0, 1),         box(RLE_F32, 2, 1, 0),   box(RLE_F32, 2, NAN, 1),
        box(RLE_U8, 2, -1, 255),       box(RLE_U8, 2, 0, 256),  box(RLE_BOOL, 1, 0, 2),
        box(RLE_I32, 1, -INFINITY, 0), box(RLE_I32, 1, 0, 0.5), box(RLE_F16, 1, 0, 1),
        box(RLE_I64, 1, 0, 0x1p60),
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(rle_space_check(&bad[i]), RLE_INVALID_ARGUMENT);
    const rle_space good[] = {
        box(RLE_F32, 1, -INFINITY, INFINITY),
        box(RLE_U8, 3, 0, 255),
        box(RLE_BOOL, 1, 0, 1),
        box(RLE_I64, 1, -5, 5),
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        assert_int_equal(rle_space_check(&good[i]), RLE_OK);

    s = box(RLE_F32, 1, 0, 1);
    s.ndim = 3;
    s.shape[0] = s.shape[1] = s.shape[2] = INT64_C(1) << 22;
    assert_int_equal(rle_space_check(&s), RLE_INVALID_ARGUMENT);
    s.ndim = RLE_MAX_DIMS + 1;
    assert_int_equal(rle_space_check(&s), RLE_INVALID_ARGUMENT);
    s.ndim = 0; /* a scalar */
    assert_int_equal(rle_space_check(&s), RLE_OK);
    assert_int_equal(rle_space_numel(&s), 1);
}

static void membership_has_its_bounds_inside(void **state)
{
    (void)state;
    const rle_space d = {.kind = RLE_SPACE_DISCRETE,
                         .dtype = RLE_I64,
                         .n = 3,
                         .start = -1};
    for (int64_t v = -3; v < 5; v++)
        assert_int_equal(rle_space_outside(&d, &v), v >= -1 && v <= 1 ? -1 : 0);
    int64_t least = INT64_MIN;
    assert_int_equal(rle_space_outside(&d, &least), 0);

    /* The bound of an f32 box is the f32 next to it: the extreme itself is a member. */
    const rle_space *s = rle_env_cartpole_v1.observation_space;
    float edge = (float)(2 * 12 * 2 * M_PI / 360);
    float obs[4] = {4.8f, 1e30f, -edge, -1e30f};
    assert_int_equal(rle_space_outside(s, obs), -1);
    obs[2] = -nextafterf(edge, 1);
    assert_int_equal(rle_space_outside(s, obs), 2);
    obs[2] = 0, obs[1] = NAN;
    assert_int_equal(rle_space_outside(s, obs), 1);
    assert_int_equal(rle_first_nan(RLE_F32, obs, 4), 1);
    assert_int_equal(rle_first_nan(RLE_F32, obs, 1), -1);

    const rle_space u = box(RLE_U8, 2, 1, 254);
    uint8_t bytes[2] = {1, 255};
    assert_int_equal(rle_space_outside(&u, bytes), 1);
}

static void samples_are_gymnasiums(void **state)
{
    (void)state;
    rle_pcg64 rng;
    rle_pcg64_seed(&rng, 37);
    const rle_space d = {.kind = RLE_SPACE_DISCRETE,
                         .dtype = RLE_I64,
                         .n = 3,
                         .start = -1};
    const int choices[12] = {-1, 1, 0, 0, -1, -1, 1, 1, -1, -1, 1, 0};
    for (int i = 0; i < 12; i++) {
        int64_t v;
        rle_space_sample(&d, &rng, &v);
        assert_int_equal(v, choices[i]);
    }
    rle_space b = box(RLE_F32, 2, -2, 5);
    b.ndim = 2;
    b.shape[1] = 3;
    const float want[6] = {-0x1.199a2ap+0f, 0x1.7eb4b8p+0f,  0x1.1af14ap+1f,
                           -0x1.cc96dcp+0f, -0x1.edd53ap-1f, 0x1.1fd6aap+2f};
    float values[6];
    rle_pcg64_seed(&rng, 11);
    rle_space_sample(&b, &rng, values);
    assert_memory_equal(values, want, sizeof want);

    const double low[3] = {0, -3, 1}, high[3] = {10, 3, 1};
    const rle_space integers = RLE_BOX_1D(RLE_I32, 3, low, high);
    int32_t got[3], first[3] = {8, 2, 1}, second[3] = {3, -3, 1};
    rle_pcg64_seed(&rng, 5);
    rle_space_sample(&integers, &rng, got);
    assert_memory_equal(got, first, sizeof got);
    rle_space_sample(&integers, &rng, got);
    assert_memory_equal(got, second, sizeof got);

    const rle_space bytes = box(RLE_U8, 4, 0, 255);
    uint8_t drawn[4], drawn_want[4] = {206, 206, 131, 73};
    rle_pcg64_seed(&rng, 5);
    rle_space_sample(&bytes, &rng, drawn);
    assert_memory_equal(drawn, drawn_want, 4);
}

static void samples_belong_to_the_space(void **state)
{
    (void)state;
    const double low[5] = {-INFINITY, -INFINITY, 2, -1, 7},
                 high[5] = {INFINITY, 3, INFINITY, 1, 7};
    const rle_space s = RLE_BOX_1D(RLE_F64, 5, low, high);
    rle_pcg64 rng;
    rle_pcg64_seed(&rng, 1);
    double v[5], smallest = 0, largest = 0;
    for (int i = 0; i < 2000; i++) {
        rle_space_sample(&s, &rng, v);
        assert_int_equal(rle_space_outside(&s, v), -1);
        assert_true(v[4] == 7);
        smallest = fmin(smallest, v[3]);
        largest = fmax(largest, v[3]);
    }
    assert_true(smallest < -0.99 && largest > 0.99);
}

static void equality_looks_at_everything(void **state)
{
    (void)state;
    const rle_space d = RLE_DISCRETE(2), e = RLE_DISCRETE(3);
    rle_space a = box(RLE_F32, 2, 0, 1), b = a;
    assert_true(rle_space_equal(&a, &b));
    assert_false(rle_space_equal(&a, &d));
    assert_false(rle_space_equal(&d, &e));
    b.dtype = RLE_F64;
    assert_false(rle_space_equal(&a, &b));
    b = box(RLE_F32, 3, 0, 1);
    assert_false(rle_space_equal(&a, &b));
    const double high[2] = {1, 1}, other[2] = {1, 2};
    b = a, b.high = high;
    assert_true(rle_space_equal(&a, &b));
    b.high = other;
    assert_false(rle_space_equal(&a, &b));
}

static void spaces_print(void **state)
{
    (void)state;
    char text[200];
    assert_string_equal(rle_space_describe(rle_env_cartpole_v1.action_space, text,
                                           sizeof text),
                        "Discrete(2)");
    assert_string_equal(
        rle_space_describe(rle_env_cartpole_v1.observation_space, text, sizeof text),
        "Box([-4.8, -inf, -0.418879, -inf], [4.8, inf, 0.418879, inf], {4}, f32)");
    rle_space s = box(RLE_U8, 84, 0, 255);
    s.ndim = 2, s.shape[1] = 84;
    assert_string_equal(rle_space_describe(&s, text, sizeof text),
                        "Box(0, 255, {84, 84}, u8)");
    double low[20];
    for (int i = 0; i < 20; i++) low[i] = -1 - i;
    s = (rle_space)RLE_BOX_1D(RLE_F32, 20, low, NULL);
    assert_string_equal(rle_space_describe(&s, text, sizeof text),
                        "Box([-1, -2, -3, -4, -5, -6, -7, -8, ...], 0, {20}, f32)");
    assert_string_equal(rle_space_describe(&s, text, 8), "Box([-1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unsound_definitions_are_refused),
        cmocka_unit_test(membership_has_its_bounds_inside),
        cmocka_unit_test(samples_are_gymnasiums),
        cmocka_unit_test(samples_belong_to_the_space),
        cmocka_unit_test(equality_looks_at_everything),
        cmocka_unit_test(spaces_print),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
