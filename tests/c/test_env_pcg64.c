/* test_env_pcg64.c - the environments' stream against values that numpy gives. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "env/pcg64.h"

static void seeds_give_numpys_words(void **state)
{
    (void)state;
    static const struct {
        uint64_t seed, words[3];
    } table[] = {
        {0, {0xa30febcfd9c2825f, 0x4510bdf882d9d721, 0x0a7d3da94ecde8b8}},
        {1, {0x8306bdf37922e4ff, 0xf35196bbc152a866, 0x24e7a4f608ec18cd}},
        {2, {0x42f90348d66b58c1, 0x4c69ea631bfb7164, 0xd071191f69efb11e}},
        {42, {0xc621fbcd16d92688, 0x705a5661a791ffc1, 0xdbcd12c26eda1624}},
        {4294967295, {0x407f5fa930d8fd9f, 0x3814b22eb9684802, 0x498b7dcee8d8dc95}},
        {4294967296, {0xe3c5ebe285ac1625, 0x8ea09968fe31dbcc, 0xcd084ff84d8de9be}},
        {9007199254740992, {0x47cf26b9053e52e9, 0xfa5a1b9cfc46787f, 0xd9ee23dbca00eb13}},
        {9223372036854775813u,
         {0x7af08e89d1f1456d, 0xe777e80c301c2fd6, 0xa44875755450c1c0}},
        {UINT64_MAX, {0xae163a7a8c47568f, 0xd86659f5f3382359, 0x01e52b195bc2d24a}},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        rle_pcg64 rng;
        rle_pcg64_seed(&rng, table[i].seed);
        for (int j = 0; j < 3; j++)
            assert_int_equal(rle_pcg64_next(&rng), table[i].words[j]);
    }
}

static void a_long_stream_is_numpys(void **state)
{
    (void)state;
    rle_pcg64 rng;
    rle_pcg64_seed(&rng, 42);
    uint64_t all = 0;
    for (int i = 0; i < 100000; i++) all ^= rle_pcg64_next(&rng);
    assert_int_equal(all, 0x9f75dfb4289cf5c6);
}

static void doubles_and_uniforms_are_numpys(void **state)
{
    (void)state;
    rle_pcg64 rng;
    rle_pcg64_seed(&rng, 7);
    const double doubles[3] = {0x1.400c8353e3ca9p-1, 0x1.cb5f9b795e4cdp-1,
                               0x1.8d26acbf2815fp-1};
    for (int i = 0; i < 3; i++) assert_true(rle_pcg64_double(&rng) == doubles[i]);
    rle_pcg64_seed(&rng, 7);
    const double uniforms[3] = {-0x1.e6616511a4e23p-2, -0x1.aea68e9c40ae2p-2,
                                -0x1.c78a214d232a7p-2};
    for (int i = 0; i < 3; i++)
        assert_true(rle_pcg64_uniform(&rng, -0.6, -0.4) == uniforms[i]);
}

static void integers_are_numpys(void **state)
{
    (void)state;
    rle_pcg64 rng;
    rle_pcg64_seed(&rng, 7);
    const int coins[16] = {1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 0, 0, 1};
    for (int i = 0; i < 16; i++) assert_int_equal(rle_pcg64_integers(&rng, 2), coins[i]);
    assert_true(rle_pcg64_double(&rng) == 0x1.98197bf2434c3p-1);
    assert_int_equal(rle_pcg64_integers(&rng, 2), 0);

    /* A double in the middle of a pair of halves leaves the second half for later; ranges
     * of one choice, 32 bits, exactly 2^32, more, and nearly 2^63. */
    static const struct {
        uint64_t n, want;
    } draws[] = {
        {1, 0},
        {3, 2},
        {10, 0},
        {1000, 179},
        {2147483649u, 508546690},
        {2147483649u, 1866662802},
        {2147483649u, 713397379},
        {4294967295u, 1860266042},
        {4294967296u, 2668153314},
        {4294967297u, 686073414},
        {UINT64_C(1) << 40, 807676119473},
        {(UINT64_C(1) << 62) + (UINT64_C(1) << 61), 786329497436903519},
        {(UINT64_C(1) << 63) - 1, 3608443152246982990},
        {5, 2},
    };
    rle_pcg64_seed(&rng, 3);
    for (size_t i = 0; i < sizeof draws / sizeof draws[0]; i++)
        assert_int_equal(rle_pcg64_integers(&rng, draws[i].n), draws[i].want);
    assert_int_equal(rle_pcg64_next(&rng), 0x844915a8e3487fed);
}

static void a_copy_goes_on_alike(void **state)
{
    (void)state;
    rle_pcg64 rng, copy;
    rle_pcg64_seed(&rng, 9);
    rle_pcg64_next32(&rng);
    copy = rng;
    for (int i = 0; i < 10; i++)
        assert_int_equal(rle_pcg64_next32(&rng), rle_pcg64_next32(&copy));
}

static void system_seeds_differ(void **state)
{
    (void)state;
    rle_pcg64 a, b;
    assert_int_equal(rle_pcg64_seed_system(&a), RLE_OK);
    assert_int_equal(rle_pcg64_seed_system(&b), RLE_OK);
    assert_true(rle_pcg64_next(&a) != rle_pcg64_next(&b));
}

/* Mean and variance within five standard errors of what the distributions have. */
static void normal_and_exponential_have_their_moments(void **state)
{
    (void)state;
    enum { N = 200000 };
    rle_pcg64 rng;
    rle_pcg64_seed(&rng, 1);
    double sum[2] = {0, 0}, squares[2] = {0, 0};
    for (int i = 0; i < N; i++) {
        double v[2] = {rle_pcg64_normal(&rng), rle_pcg64_exponential(&rng)};
        assert_true(v[1] >= 0);
        for (int j = 0; j < 2; j++) {
            assert_true(isfinite(v[j]));
            sum[j] += v[j];
            squares[j] += v[j] * v[j];
        }
    }
    double error = 5 / sqrt(N);
    assert_true(fabs(sum[0] / N) < error);
    assert_true(fabs(squares[0] / N - 1) < error * sqrt(2));
    assert_true(fabs(sum[1] / N - 1) < error);
    assert_true(fabs(squares[1] / N - 2) < error * sqrt(20));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(seeds_give_numpys_words),
        cmocka_unit_test(a_long_stream_is_numpys),
        cmocka_unit_test(doubles_and_uniforms_are_numpys),
        cmocka_unit_test(integers_are_numpys),
        cmocka_unit_test(a_copy_goes_on_alike),
        cmocka_unit_test(system_seeds_differ),
        cmocka_unit_test(normal_and_exponential_have_their_moments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
