/* test_device_random.c - random numbers, permutations, keyed draws, dropout and sampling
 * on a device against the CPU: bit for bit. */
#include "device_check.h"

static const int64_t sizes[] = {0, 1, 2, 3, 4, 5, 7, 8, 255, 1000, 5001};
#define SIZES (int)(sizeof sizes / sizeof *sizes)

/* ---- sequential draws ---- */

typedef struct {
    rle_random_kind kind;
    const char *name;
    rle_dtype dtype;
    double p0, p1;
} draw;

static const draw draws[] = {
    {RLE_RANDOM_UNIFORM, "uniform", RLE_F32, 0, 1},
    {RLE_RANDOM_UNIFORM, "uniform", RLE_F32, -3, 7.5},
    {RLE_RANDOM_UNIFORM, "uniform", RLE_F64, -1e-3, 1e9},
    {RLE_RANDOM_NORMAL, "normal", RLE_F32, 0, 1},
    {RLE_RANDOM_NORMAL, "normal", RLE_F32, 5, 0.25},
    {RLE_RANDOM_NORMAL, "normal", RLE_F64, -1, 3},
    {RLE_RANDOM_INTEGER, "integer", RLE_I32, -7, 12},
    {RLE_RANDOM_INTEGER, "integer", RLE_I32, -0x1p31, 0x1p31},
    {RLE_RANDOM_INTEGER, "integer", RLE_U8, 3, 256},
    {RLE_RANDOM_INTEGER, "integer", RLE_I64, -5, 5},
    {RLE_RANDOM_INTEGER, "integer", RLE_I64, 0, 0x1p32},
    {RLE_RANDOM_INTEGER, "integer", RLE_I64, -0x1p40, 0x1p62},
};

/* Wherever the stream stands, also across its lower word and between blocks. */
static const uint64_t counters[] = {
    0, 4, 1, 2, 3, 1000, UINT64_C(0x3fffffffc), UINT64_C(0x3ffffffff)};

static void draws_are_the_cpus(void **state)
{
    (void)state;
    FOR_EACH_MODE(m)
    {
        for (size_t d = 0; d < sizeof draws / sizeof *draws; d++) {
            const draw *w = &draws[d];
            for (int i = 0; i < SIZES; i++) {
                rle_rng rng = {.seed = UINT64_C(0x9e3779b97f4a7c15) * (d + 1),
                               .stream = (uint64_t)rnd() << 20 | 5,
                               .counter = counters[below(8)]};
                box x = box_new(w->dtype, 1, &sizes[i], DENSE);
                twin dx = twin_of(&x);
                assert_int_equal(cpu->ops->random(cpu, w->kind, &x.a, &rng, w->p0, w->p1),
                                 RLE_OK);
                assert_int_equal(
                    dev->ops->random(dev, w->kind, &dx.a, &rng, w->p0, w->p1), RLE_OK);
                twin_check(&dx, 0, 0, w->name);
                twin_free(&dx), box_free(&x);
            }
        }
    }
}

/* An array that begins where whole groups of elements cannot be stored at once. */
static void draws_go_where_they_should(void **state)
{
    (void)state;
    FOR_EACH_MODE(m)
    {
        for (size_t d = 0; d < sizeof draws / sizeof *draws; d++) {
            const draw *w = &draws[d];
            int64_t n = 50;
            rle_rng rng = {.seed = 3, .stream = d, .counter = 8};
            box x = box_new(w->dtype, 1, &n, DENSE);
            twin dx = twin_of(&x);
            rle_array here = x.a, there = dx.a;
            size_t size = rle_dtype_size(w->dtype);
            here.data = (char *)here.data + size;
            there.data = (char *)there.data + size;
            here.shape[0] = there.shape[0] = n - 2;
            assert_int_equal(cpu->ops->random(cpu, w->kind, &here, &rng, w->p0, w->p1),
                             RLE_OK);
            assert_int_equal(dev->ops->random(dev, w->kind, &there, &rng, w->p0, w->p1),
                             RLE_OK);
            twin_check(&dx, 0, 0, w->name);
            twin_free(&dx), box_free(&x);
        }
    }
}

static void permutations_are_the_cpus(void **state)
{
    (void)state;
    FOR_EACH_MODE(m)
    {
        for (int i = 0; i < SIZES; i++) {
            for (int how = 0; how < BROADCAST; how++) {
                rle_rng rng = {.seed = rnd(), .stream = 9, .counter = counters[below(8)]};
                box x = box_new(RLE_I64, 1, &sizes[i], (layout)how);
                twin dx = twin_of(&x);
                assert_int_equal(cpu->ops->randperm(cpu, &x.a, &rng), RLE_OK);
                assert_int_equal(dev->ops->randperm(dev, &dx.a, &rng), RLE_OK);
                twin_check(&dx, 0, 0, "randperm");
                twin_free(&dx), box_free(&x);
            }
        }
    }
}

/* ---- keyed draws ---- */

static const int64_t matrices[][2] = {{0, 3}, {3, 0},  {1, 1},   {1, 4},   {5, 2},
                                      {7, 9}, {3, 64}, {130, 6}, {2, 1030}};
#define MATRICES (int)(sizeof matrices / sizeof *matrices)

static box some_keys(int64_t rows)
{
    box k = box_new(RLE_I64, 1, &rows, (layout)below(BROADCAST));
    for (int64_t r = 0; r < rows; r++)
        put_int(&k.a, r, (int64_t)((uint64_t)rnd() << 30 | rnd()));
    return k;
}

static void keyed_draws_are_the_cpus(void **state)
{
    (void)state;
    FOR_EACH_MODE(m)
    {
        for (int i = 0; i < MATRICES; i++) {
            box x = box_new(RLE_F32, 2, matrices[i], DENSE),
                k = some_keys(matrices[i][0]);
            twin dx = twin_of(&x), dk = twin_of(&k);
            uint32_t number = rnd();
            assert_int_equal(cpu->ops->random_keyed(cpu, &x.a, 77, &k.a, number), RLE_OK);
            assert_int_equal(dev->ops->random_keyed(dev, &dx.a, 77, &dk.a, number),
                             RLE_OK);
            twin_check(&dx, 0, 0, "random_keyed");
            twin_free(&dx), twin_free(&dk), box_free(&x), box_free(&k);
        }
    }
}

static void dropout_is_the_cpus(void **state)
{
    (void)state;
    static const double probabilities[] = {0, 0.1, 0.5, 0.9, 1};
    FOR_EACH_MODE(m)
    {
        for (int i = 0; i < MATRICES; i++) {
            for (int p = 0; p < 5; p++) {
                rle_dtype t = below(2) ? RLE_F32 : RLE_F64;
                box x = box_new(t, 2, matrices[i], DENSE),
                    y = box_new(t, 2, matrices[i], DENSE);
                box k = some_keys(matrices[i][0]);
                box_fill(&x);
                twin dx = twin_of(&x), dy = twin_of(&y), dk = twin_of(&k);
                double q = probabilities[p];
                assert_int_equal(cpu->ops->dropout(cpu, &y.a, &x.a, q, 5, &k.a, 2),
                                 RLE_OK);
                assert_int_equal(dev->ops->dropout(dev, &dy.a, &dx.a, q, 5, &dk.a, 2),
                                 RLE_OK);
                twin_check(&dy, 0, 0, "dropout");
                assert_int_equal(dev->ops->dropout(dev, &dx.a, &dx.a, q, 5, &dk.a, 2),
                                 RLE_OK);
                dx.b = &y;
                twin_check(&dx, 0, 0, "dropout in place");
                twin_free(&dx), twin_free(&dy), twin_free(&dk);
                box_free(&x), box_free(&y), box_free(&k);
            }
        }
    }
}

/* ---- sampling ---- */

static void samples_are_the_cpus(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {{0, 2, 1},  {1, 1, 1},    {1, 2, 3},   {64, 4, 1},
                                        {9, 18, 2}, {2, 1000, 7}, {300, 5, 1}, {3, 4, 0}};
    FOR_EACH_MODE(m)
    {
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            for (int how = 0; how < LAYOUTS; how++) {
                int64_t rows = shapes[i][0], classes = shapes[i][1], count = shapes[i][2];
                box p = box_new(below(2) ? RLE_F32 : RLE_F64, 2,
                                (int64_t[]){rows, classes}, (layout)how);
                box u = box_new(RLE_F32, 2, (int64_t[]){rows, count}, (layout)how);
                box x = box_new(RLE_I64, 2, (int64_t[]){rows, count},
                                (layout)below(BROADCAST));
                for (int64_t k = 0; k < rows * classes; k++)
                    put(&p.a, k,
                        how == BROADCAST || below(3) || k % classes == 0 ? 0.01 + unit()
                                                                         : 0);
                for (int64_t k = 0; k < rows * count; k++)
                    put(&u.a, k, below(6) ? unit() : below(2) ? 0 : 1 - 0x1p-24);
                twin dp = twin_of(&p), du = twin_of(&u), dx = twin_of(&x);
                assert_int_equal(cpu->ops->multinomial(cpu, &x.a, &p.a, &u.a), RLE_OK);
                assert_int_equal(dev->ops->multinomial(dev, &dx.a, &dp.a, &du.a), RLE_OK);
                twin_check(&dx, 0, 0, "multinomial");
                twin_free(&dp), twin_free(&du), twin_free(&dx);
                box_free(&p), box_free(&u), box_free(&x);
            }
        }
    }
}

/* The row and the class that the CPU names, in its words, and nothing is written. */
static void bad_rows_are_refused(void **state)
{
    (void)state;
    static const double bad[] = {NAN, INFINITY, -0.25, -INFINITY, 0};
    FOR_EACH_MODE(m)
    {
        for (int round = 0; round < 40; round++) {
            int64_t rows = 1 + below(70), classes = 1 + below(40);
            rle_dtype t = below(2) ? RLE_F32 : RLE_F64;
            box p = box_new(t, 2, (int64_t[]){rows, classes}, (layout)below(BROADCAST));
            box u = box_new(RLE_F32, 2, (int64_t[]){rows, 1}, DENSE);
            box x = box_new(RLE_I64, 2, (int64_t[]){rows, 1}, DENSE);
            box_fill(&u);
            for (int64_t k = 0; k < rows * classes; k++) put(&p.a, k, 0.5 + unit());
            for (int n = 1 + below(3); n > 0; n--) {
                double what = bad[below(5)];
                int64_t row = below((int)rows);
                if (what == 0)
                    for (int64_t c = 0; c < classes; c++) put(&p.a, row * classes + c, 0);
                else
                    put(&p.a, row * classes + below((int)classes), what);
            }
            twin dp = twin_of(&p), du = twin_of(&u), dx = twin_of(&x);
            assert_int_equal(cpu->ops->multinomial(cpu, &x.a, &p.a, &u.a),
                             RLE_INVALID_ARGUMENT);
            char words[256];
            snprintf(words, sizeof words, "%s", rle_message());
            assert_int_equal(dev->ops->multinomial(dev, &dx.a, &dp.a, &du.a),
                             RLE_INVALID_ARGUMENT);
            assert_string_equal(rle_message(), words);
            twin_check(&dx, 0, 0, "a refused multinomial");
            twin_free(&dp), twin_free(&du), twin_free(&dx);
            box_free(&p), box_free(&u), box_free(&x);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_are_the_cpus),
        cmocka_unit_test(draws_go_where_they_should),
        cmocka_unit_test(permutations_are_the_cpus),
        cmocka_unit_test(keyed_draws_are_the_cpus),
        cmocka_unit_test(dropout_is_the_cpus),
        cmocka_unit_test(samples_are_the_cpus),
        cmocka_unit_test(bad_rows_are_refused),
    };
    return cmocka_run_group_tests(tests, device_setup, device_finish);
}
