/* test_device_matmul.c - products on a device against the CPU: its bits, whatever the
 * layout and the number of rows. */
#include "device_check.h"

typedef struct {
    int64_t batches, m, k, n; /* batches 0: two dimensions */
} sizes;

/* Below and above 16 columns, which the order of sums depends on; few rows and many,
 * which choose between kernels; ends of tiles and one beyond. */
static const sizes products[] = {
    {0, 1, 4, 2},    {0, 1, 128, 15},  {0, 1, 16, 16},  {0, 1, 64, 64},  {0, 1, 257, 130},
    {0, 5, 33, 1},   {0, 8, 31, 32},   {0, 8, 40, 33},  {0, 9, 17, 31},  {0, 9, 1, 16},
    {0, 33, 16, 4},  {0, 33, 100, 15}, {0, 40, 70, 65}, {0, 64, 64, 64}, {0, 65, 129, 17},
    {0, 130, 20, 7}, {0, 3, 0, 20},    {0, 3, 0, 3},    {0, 0, 4, 4},    {0, 2, 5, 0},
    {1, 4, 5, 6},    {3, 7, 20, 5},    {3, 9, 20, 18},  {2, 1, 48, 40},  {4, 2, 0, 17},
    {0, 260, 9, 3},  {70, 2, 3, 4},    {5, 17, 33, 16},
};
enum { PRODUCTS = sizeof products / sizeof *products };

static box matrix(rle_dtype t, int64_t batches, int64_t rows, int64_t cols, layout how)
{
    int64_t shape[] = {batches, rows, cols};
    box b = box_new(t, batches ? 3 : 2, batches ? shape : shape + 1, how);
    box_fill(&b);
    return b;
}

static void one_product(const sizes *s, rle_dtype t, layout how_a, layout how_b,
                        layout how_out, bool with_bias, bool accumulate)
{
    box a = matrix(t, s->batches, s->m, s->k, how_a);
    box b = matrix(t, s->batches, s->k, s->n, how_b);
    box out = matrix(t, s->batches, s->m, s->n, how_out);
    box bias = box_new(t, 1, &s->n, (layout)below(LAYOUTS));
    box_fill(&bias);
    twin da = twin_of(&a), db = twin_of(&b), dout = twin_of(&out), dbias = twin_of(&bias);
    with_bias = with_bias && !s->batches;
    assert_int_equal(
        cpu->ops->matmul(cpu, &out.a, &a.a, &b.a, with_bias ? &bias.a : NULL, accumulate),
        RLE_OK);
    assert_int_equal(dev->ops->matmul(dev, &dout.a, &da.a, &db.a,
                                      with_bias ? &dbias.a : NULL, accumulate),
                     RLE_OK);
    twin_check(&dout, 0, 0, "matmul");
    twin_free(&da), twin_free(&db), twin_free(&dout), twin_free(&dbias);
    box_free(&a), box_free(&b), box_free(&out), box_free(&bias);
}

static void products_have_the_bits_of_the_cpu(void **state)
{
    (void)state;
    FOR_EACH_MODE(m)
    {
        for (int p = 0; p < PRODUCTS; p++)
            for (rle_dtype t = RLE_F32; t <= RLE_F64; t++)
                one_product(&products[p], t, (layout)below(LAYOUTS),
                            (layout)below(LAYOUTS), (layout)below(BROADCAST), below(2),
                            below(2));
        one_product(&(sizes){0, 70, 65, 66}, RLE_F32, DENSE, PERMUTED, DENSE, true,
                    false);
    }
}

/* Larger ones, one mode: the tiles for many rows and columns. */
static void large_products_have_the_bits_of_the_cpu(void **state)
{
    (void)state;
    one_product(&(sizes){0, 1500, 3, 700}, RLE_F32, DENSE, DENSE, DENSE, true, true);
    one_product(&(sizes){0, 1420, 17, 1540}, RLE_F32, DENSE, PERMUTED, PERMUTED, true,
                false);
    one_product(&(sizes){0, 700, 5, 800}, RLE_F64, DENSE, DENSE, DENSE, true, false);
    one_product(&(sizes){150, 20, 6, 20}, RLE_F32, SPREAD, SPREAD, SPREAD, false, true);
}

/* Row i of a large product is the product of row i, bit for bit: kernels are chosen by
 * the number of rows, the order of sums is not. */
static void a_row_does_not_depend_on_the_others(void **state)
{
    (void)state;
    static const sizes batches[] = {
        {0, 4096, 11, 20}, {0, 4096, 33, 4}, {0, 300, 64, 130}};
    FOR_EACH_MODE(m)
    {
        const sizes *s = &batches[m % 3];
        for (rle_dtype t = RLE_F32; t <= RLE_F64; t++) {
            box a = matrix(t, 0, s->m, s->k, DENSE),
                b = matrix(t, 0, s->k, s->n, PERMUTED);
            box out = matrix(t, 0, s->m, s->n, DENSE), bias = box_new(t, 1, &s->n, DENSE);
            box_fill(&bias);
            twin da = twin_of(&a), db = twin_of(&b), dout = twin_of(&out),
                 dbias = twin_of(&bias);
            assert_int_equal(
                dev->ops->matmul(dev, &dout.a, &da.a, &db.a, &dbias.a, false), RLE_OK);
            box all = box_copy(&out);
            assert_int_equal(dev->copy_out(dev, all.mem, dout.block.data, all.bytes),
                             RLE_OK);
            static const int64_t counts[] = {1, 3, 8, 9, 64, 200};
            for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
                int64_t rows = counts[c], first = below((int)(s->m - rows));
                rle_array x = da.a, y = dout.a, want = all.a;
                size_t size = rle_dtype_size(t);
                x.data = (char *)x.data + (size_t)(first * s->k) * size;
                x.shape[0] = y.shape[0] = want.shape[0] = rows;
                want.data = (char *)want.data + (size_t)(first * s->n) * size;
                assert_int_equal(dev->ops->matmul(dev, &y, &x, &db.a, &dbias.a, false),
                                 RLE_OK);
                box part = box_copy(&out);
                assert_int_equal(
                    dev->copy_out(dev, part.mem, dout.block.data, part.bytes), RLE_OK);
                part.a.shape[0] = rows;
                same_bits(&part.a, &want, "a few rows");
                box_free(&part);
            }
            twin_free(&da), twin_free(&db), twin_free(&dout), twin_free(&dbias);
            box_free(&a), box_free(&b), box_free(&out), box_free(&bias), box_free(&all);
        }
    }
}

/* Zeros of either sign, tiny sums, infinities and NaN go through both orders alike. */
static void special_values_come_through(void **state)
{
    (void)state;
    static const double odd[] = {0, -0.0, 1e-30, -1e-30, INFINITY, -INFINITY, NAN, 1, -2};
    static const int64_t columns[] = {3, 20};
    FOR_EACH_MODE(m)
    {
        for (int c = 0; c < 2; c++) {
            int64_t k = 19, n = columns[c];
            for (int round = 0; round < 8; round++) {
                box a = matrix(RLE_F32, 0, 5, k, DENSE),
                    b = matrix(RLE_F32, 0, k, n, DENSE);
                box out = matrix(RLE_F32, 0, 5, n, DENSE);
                int kinds = round < 4 ? 4 : 9;
                for (int64_t i = 0; i < 5 * k; i++) put(&a.a, i, odd[below(kinds)]);
                for (int64_t i = 0; i < k * n; i++) put(&b.a, i, odd[below(kinds)]);
                twin da = twin_of(&a), db = twin_of(&b), dout = twin_of(&out);
                assert_int_equal(cpu->ops->matmul(cpu, &out.a, &a.a, &b.a, NULL, false),
                                 RLE_OK);
                assert_int_equal(
                    dev->ops->matmul(dev, &dout.a, &da.a, &db.a, NULL, false), RLE_OK);
                twin_check(&dout, 0, 0, "special values");
                twin_free(&da), twin_free(&db), twin_free(&dout);
                box_free(&a), box_free(&b), box_free(&out);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_have_the_bits_of_the_cpu),
        cmocka_unit_test(large_products_have_the_bits_of_the_cpu),
        cmocka_unit_test(a_row_does_not_depend_on_the_others),
        cmocka_unit_test(special_values_come_through),
    };
    return cmocka_run_group_tests(tests, device_setup, device_finish);
}
