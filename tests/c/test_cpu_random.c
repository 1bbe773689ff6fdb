/* test_cpu_random.c - random numbers of the CPU: the words that the counter names, the
 * same bits on every instruction set, and distributions that are what they say. */
#include "cpu_check.h"

#include "common/philox.h"

static void philox_matches_its_known_answers(void **state)
{
    (void)state;
    /* Random123's known answer vectors for philox4x32-10. */
    rle_philox_block zero = rle_philox(0, 0, 0, 0, 0, 0);
    assert_true(zero.word[0] == 0x6627e8d5u && zero.word[1] == 0xe169c58du &&
                zero.word[2] == 0xbc57ac4cu && zero.word[3] == 0x9b00dbd8u);
    rle_philox_block ones = rle_philox(~0u, ~0u, ~0u, ~0u, ~0u, ~0u);
    assert_true(ones.word[0] == 0x408f276du && ones.word[1] == 0x41c83b0eu &&
                ones.word[2] == 0xa20bc7c6u && ones.word[3] == 0x6d5451fdu);
    rle_philox_block pi = rle_philox(0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u,
                                     0xa4093822u, 0x299f31d0u);
    assert_true(pi.word[0] == 0xd16cfe09u && pi.word[1] == 0x94fdccebu &&
                pi.word[2] == 0x5001e420u && pi.word[3] == 0x24126ea1u);
}

static uint32_t word_at(const rle_rng *rng, uint64_t position)
{
    return rle_philox_stream(rng->seed, rng->stream, position / 4).word[position % 4];
}

static void draws_use_the_words_they_should(void **state)
{
    (void)state;
    const rle_device_ops *ops = rle_cpu_ops();
    static const uint64_t starts[] = {
        0, 4, 1, 6, 1023, UINT64_C(0xfffffffff), UINT64_C(0x3fffffffe)};
    for (size_t s = 0; s < sizeof(starts) / sizeof(starts[0]); s++) {
        rle_rng rng = {UINT64_C(0x123456789abcdef), UINT64_C(0x7766554433221100),
                       starts[s]};
        for (int64_t n = 1; n < 2600; n = n * 3 + 1) {
            box f = box_new(RLE_F32, 1, &n, DENSE), d = box_new(RLE_F64, 1, &n, DENSE);
            box i32 = box_new(RLE_I32, 1, &n, DENSE),
                i64 = box_new(RLE_I64, 1, &n, DENSE);
            for (FOR_EACH_ISA(isa)) {
                assert_int_equal(ops->random(NULL, RLE_RANDOM_UNIFORM, &f.a, &rng, 0, 1),
                                 RLE_OK);
                assert_int_equal(ops->random(NULL, RLE_RANDOM_UNIFORM, &d.a, &rng, 0, 1),
                                 RLE_OK);
                assert_int_equal(
                    ops->random(NULL, RLE_RANDOM_INTEGER, &i32.a, &rng, -3, 7), RLE_OK);
                assert_int_equal(
                    ops->random(NULL, RLE_RANDOM_INTEGER, &i64.a, &rng, -5, 0x1p40),
                    RLE_OK);
                box_check(&f);
                box_check(&d);
                box_check(&i32);
                box_check(&i64);
                for (int64_t i = 0; i < n; i++) {
                    uint32_t w = word_at(&rng, starts[s] + (uint64_t)i);
                    uint32_t lo = word_at(&rng, starts[s] + 2 * (uint64_t)i);
                    uint32_t hi = word_at(&rng, starts[s] + 2 * (uint64_t)i + 1);
                    assert_true(get(&f.a, i) == (w >> 8) * 0x1p-24);
                    uint64_t both = (uint64_t)hi << 32 | lo;
                    assert_true(get(&d.a, i) == (double)(both >> 11) * 0x1p-53);
                    assert_int_equal(get_int(&i32.a, i),
                                     -3 + (int64_t)((uint64_t)w * 10 >> 32));
                    unsigned __int128 wide =
                        (unsigned __int128)both * ((UINT64_C(1) << 40) + 5);
                    assert_true(get_int(&i64.a, i) == -5 + (int64_t)(wide >> 64));
                }
            }
            box_free(&f);
            box_free(&d);
            box_free(&i32);
            box_free(&i64);
        }
    }
}

static void normals_are_box_muller_and_the_same_bits(void **state)
{
    (void)state;
    const rle_device_ops *ops = rle_cpu_ops();
    for (int t = 0; t < 2; t++) {
        rle_dtype dtype = t ? RLE_F64 : RLE_F32;
        for (int64_t n = 1; n < 5000; n = n * 2 + 1) {
            rle_rng rng = {42, 7, (uint64_t)(n % 5)};
            box first = box_new(dtype, 1, &n, DENSE);
            bool started = false;
            for (FOR_EACH_ISA(isa)) {
                box out = box_copy(&first);
                assert_int_equal(ops->random(NULL, RLE_RANDOM_NORMAL, &out.a, &rng, 1, 3),
                                 RLE_OK);
                box_check(&out);
                if (started) same_bits(&out.a, &first.a, check_isas[isa]);
                box_free(&first);
                first = out;
                started = true;
            }
            for (int64_t i = 0; i < n; i++) {
                uint64_t p = rng.counter + (uint64_t)(i & ~INT64_C(1)) * (t ? 2 : 1);
                uint32_t w[4];
                for (int k = 0; k < 4; k++) w[k] = word_at(&rng, p + (uint64_t)k);
                double u =
                    t ? (double)((((uint64_t)w[1] << 32 | w[0]) >> 11) + 1) * 0x1p-53
                      : ((w[0] >> 8) + 1) * 0x1p-24;
                double v = t ? (double)(((uint64_t)w[3] << 32 | w[2]) >> 11) * 0x1p-53
                             : (w[1] >> 8) * 0x1p-24;
                double angle = 2 * 3.14159265358979323846 * v, r = sqrt(-2 * log(u));
                double want = 1 + 3 * r * (i % 2 ? sin(angle) : cos(angle));
                if (fabs(get(&first.a, i) - want) > (t ? 1e-14 : 4e-6))
                    fail_msg("normal %lld: %.17g, not %.17g", (long long)i,
                             get(&first.a, i), want);
            }
            /* A shorter draw is the start of a longer one. */
            int64_t half = (n + 1) / 2;
            box start = box_new(dtype, 1, &half, DENSE);
            ops->random(NULL, RLE_RANDOM_NORMAL, &start.a, &rng, 1, 3);
            assert_memory_equal(start.a.data, first.a.data,
                                (size_t)half * rle_dtype_size(dtype));
            box_free(&start);
            box_free(&first);
        }
    }
}

static void distributions_have_their_moments(void **state)
{
    (void)state;
    const rle_device_ops *ops = rle_cpu_ops();
    int64_t n = 200000;
    box x = box_new(RLE_F32, 1, &n, DENSE);
    rle_rng rng = {1, 2, 0};
    ops->random(NULL, RLE_RANDOM_NORMAL, &x.a, &rng, 0, 1);
    double sum[5] = {0};
    for (int64_t i = 0; i < n; i++)
        for (int p = 1; p < 5; p++) sum[p] += pow(get(&x.a, i), p) / (double)n;
    assert_true(fabs(sum[1]) < 0.01 && fabs(sum[2] - 1) < 0.02 && fabs(sum[3]) < 0.05 &&
                fabs(sum[4] - 3) < 0.1);
    ops->random(NULL, RLE_RANDOM_UNIFORM, &x.a, &rng, -2, 3);
    double mean = 0, low = 9, high = -9;
    for (int64_t i = 0; i < n; i++) {
        double v = get(&x.a, i);
        mean += v / (double)n;
        low = v < low ? v : low;
        high = v > high ? v : high;
    }
    assert_true(fabs(mean - 0.5) < 0.02 && low >= -2 && low < -1.99 && high < 3 &&
                high > 2.99);
    box_free(&x);
}

static void permutations_are_permutations(void **state)
{
    (void)state;
    const rle_device_ops *ops = rle_cpu_ops();
    for (int64_t n = 0; n < 5000; n = n * 3 + 1) {
        box p = box_new(RLE_I64, 1, &n, SPREAD);
        rle_rng rng = {9, 9, 3};
        assert_int_equal(ops->randperm(NULL, &p.a, &rng), RLE_OK);
        box_check(&p);
        char *seen = calloc((size_t)n + 1, 1);
        int64_t fixed = 0;
        for (int64_t i = 0; i < n; i++) {
            int64_t v = get_int(&p.a, i);
            assert_true(v >= 0 && v < n && !seen[v]);
            seen[v] = 1;
            fixed += v == i;
        }
        assert_true(n < 100 || fixed < 10);
        free(seen);
        box_free(&p);
    }
    /* Every order of three comes up about equally often. */
    int64_t three[3];
    rle_array a = {three, RLE_I64, 1, {3}, {1}};
    int count[27] = {0};
    for (uint64_t s = 0; s < 6000; s++) {
        rle_rng rng = {s, 0, 0};
        ops->randperm(NULL, &a, &rng);
        count[three[0] * 9 + three[1] * 3 + three[2]]++;
    }
    int orders = 0;
    for (int i = 0; i < 27; i++)
        if (count[i]) {
            orders++;
            assert_in_range(count[i], 870, 1130);
        }
    assert_int_equal(orders, 6);
}

static void keyed_rows_do_not_depend_on_the_batch(void **state)
{
    (void)state;
    const rle_device_ops *ops = rle_cpu_ops();
    for (int64_t cols = 1; cols < 140; cols += cols < 9 ? 1 : 43) {
        int64_t rows = 33, shape[2] = {rows, cols};
        box keys = box_new(RLE_I64, 1, &rows, SPREAD),
            u = box_new(RLE_F32, 2, shape, DENSE);
        for (int64_t r = 0; r < rows; r++)
            put_int(&keys.a, r, (int64_t)((uint64_t)rnd() << 32 | rnd()));
        for (FOR_EACH_ISA(isa)) {
            assert_int_equal(ops->random_keyed(NULL, &u.a, 99, &keys.a, 5), RLE_OK);
            box_check(&u);
            for (int64_t i = 0; i < rows * cols; i++) {
                int64_t r = i / cols, j = i % cols;
                uint64_t key = (uint64_t)get_int(&keys.a, r);
                uint32_t w = rle_philox_keyed(99, key, 5, (uint32_t)j / 4).word[j % 4];
                assert_true(get(&u.a, i) == (w >> 8) * 0x1p-24);
            }
            for (int t = 0; t < 2; t++) {
                rle_dtype dtype = t ? RLE_F64 : RLE_F32;
                box x = box_new(dtype, 2, shape, DENSE),
                    y = box_new(dtype, 2, shape, DENSE);
                box_fill(&x);
                put(&x.a, 0, NAN);
                double p = 0.25;
                assert_int_equal(ops->dropout(NULL, &y.a, &x.a, p, 99, &keys.a, 5),
                                 RLE_OK);
                box_check(&y);
                for (int64_t i = 0; i < rows * cols; i++) {
                    double want = get(&u.a, i) >= p ? get(&x.a, i) / (1 - p) : 0;
                    if (!near(dtype, get(&y.a, i), want, 1, 0))
                        fail_msg("dropout: %.9g, not %.9g", get(&y.a, i), want);
                }
                /* One row alone, and in place. */
                rle_array row = x.a, key = keys.a;
                row.shape[0] = key.shape[0] = 1;
                row.data = at(&x.a, 3 * cols);
                key.data = at(&keys.a, 3);
                assert_int_equal(ops->dropout(NULL, &row, &row, p, 99, &key, 5), RLE_OK);
                rle_array want = row;
                want.data = at(&y.a, 3 * cols);
                same_bits(&row, &want, "one row");
                assert_int_equal(ops->dropout(NULL, &x.a, &x.a, 1, 99, &keys.a, 5),
                                 RLE_OK);
                for (int64_t i = 0; i < rows * cols; i++) assert_true(get(&x.a, i) == 0);
                box_free(&x);
                box_free(&y);
            }
        }
        box_free(&keys);
        box_free(&u);
    }
}

static void multinomial_inverts_the_distribution(void **state)
{
    (void)state;
    const rle_device_ops *ops = rle_cpu_ops();
    for (int round = 0; round < 200; round++) {
        rle_dtype t = below(2) ? RLE_F32 : RLE_F64;
        int64_t rows = 1 + below(20), classes = 1 + below(9), draws = 1 + below(6);
        int64_t ps[2] = {rows, classes}, us[2] = {rows, draws};
        box p = box_new(t, 2, ps, (layout)below(BROADCAST));
        box u = box_new(RLE_F32, 2, us, (layout)below(BROADCAST));
        box out = box_new(RLE_I64, 2, us, (layout)below(BROADCAST));
        for (int64_t i = 0; i < rows * classes; i++)
            put(&p.a, i, below(3) && i % classes ? 0 : 0.25 * (1 + below(4)));
        for (int64_t i = 0; i < rows * draws; i++)
            put(&u.a, i, below(5) ? unit() * 0.999 : below(2) ? 0 : 0x1.fffffep-1);
        assert_int_equal(ops->multinomial(NULL, &out.a, &p.a, &u.a), RLE_OK);
        box_check(&out);
        for (int64_t i = 0; i < rows * draws; i++) {
            int64_t r = i / draws, c = get_int(&out.a, i);
            double total = 0, below_c = 0;
            for (int64_t k = 0; k < classes; k++) {
                total += get(&p.a, r * classes + k);
                if (k < c) below_c += get(&p.a, r * classes + k);
            }
            double x = get(&u.a, i) * total, mine = get(&p.a, r * classes + c);
            assert_true(mine > 0 && below_c <= x && x < below_c + mine);
        }
        /* A bad row is named and nothing is written. */
        box kept = box_copy(&out);
        int64_t row = below((int)rows);
        char name[32];
        snprintf(name, sizeof(name), "row %d:", (int)row + 1);
        static const double bad[] = {NAN, INFINITY, -0.25, 0};
        int which = below(4);
        for (int64_t k = 0; k < classes; k++) put(&p.a, row * classes + k, bad[which]);
        assert_int_equal(ops->multinomial(NULL, &out.a, &p.a, &u.a),
                         RLE_INVALID_ARGUMENT);
        assert_non_null(strstr(rle_message(), name));
        same_bits(&out.a, &kept.a, "after a bad row");
        int64_t found = -2;
        assert_int_equal(ops->find_bad_row(NULL, &p.a, true, &found), RLE_OK);
        assert_int_equal(found, which == 3 ? -1 : row);
        assert_int_equal(ops->find_bad_row(NULL, &p.a, false, &found), RLE_OK);
        assert_int_equal(found, which >= 2 ? -1 : row);
        box_free(&kept);
        box_free(&p);
        box_free(&u);
        box_free(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_matches_its_known_answers),
        cmocka_unit_test(draws_use_the_words_they_should),
        cmocka_unit_test(normals_are_box_muller_and_the_same_bits),
        cmocka_unit_test(distributions_have_their_moments),
        cmocka_unit_test(permutations_are_permutations),
        cmocka_unit_test(keyed_rows_do_not_depend_on_the_batch),
        cmocka_unit_test(multinomial_inverts_the_distribution),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
