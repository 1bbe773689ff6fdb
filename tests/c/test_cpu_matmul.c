/* test_cpu_matmul.c - products of matrices on the CPU: right, and the same bits for one row
 * as for a batch, for any strides and on every instruction set. */
#include "cpu_check.h"

static const int64_t sizes[] = {1, 2, 3, 4, 5, 7, 8, 12, 13, 15, 16, 17, 24, 31, 32, 33, 48,
                                63, 64, 65, 70, 127, 128, 130, 257};

static int64_t some_size(int most)
{
    for (;;) {
        int64_t n = sizes[below((int)(sizeof(sizes) / sizeof(sizes[0])))];
        if (n <= most) return n;
    }
}

static void values_into(box *to, const box *from)
{
    int64_t n = rle_array_numel(&from->a);
    for (int64_t i = 0; i < n; i++)
        memcpy(at(&to->a, i), at(&from->a, i), rle_dtype_size(from->a.dtype));
}

static void check_product(const box *out, const box *a, const box *b, const box *bias,
                          const box *before)
{
    int64_t m = a->a.shape[0], k = a->a.shape[1], n = b->a.shape[1];
    rle_dtype t = out->a.dtype;
    double eps = t == RLE_F32 ? 0x1p-24 : 0x1p-53;
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++) {
            long double sum = 0;
            double size = 0;
            for (int64_t l = 0; l < k; l++) {
                double p = get(&a->a, i * k + l) * get(&b->a, l * n + j);
                sum += p;
                size += fabs(p);
            }
            if (bias) sum += get(&bias->a, j);
            if (before) sum += get(&before->a, i * n + j);
            double got = get(&out->a, i * n + j);
            if (fabs(got - (double)sum) > eps * (2 + (double)k) * (size + 16))
                fail_msg("[%lld,%lld]x[%lld,%lld] at %lld,%lld: %.9g, not %.9g",
                         (long long)m, (long long)k, (long long)k, (long long)n,
                         (long long)i, (long long)j, got, (double)sum);
        }
    }
}

static void products_match_plain_c(void **state)
{
    (void)state;
    const rle_device_ops *ops = rle_cpu_ops();
    for (int round = 0; round < 250; round++) {
        rle_dtype t = below(3) ? RLE_F32 : RLE_F64;
        int64_t m = below(2) ? 1 + below(70) : some_size(257), k = some_size(257),
                n = below(2) ? 1 + below(20) : some_size(257);
        if (m * n * k > 400000) m = 1 + below(5);
        int64_t as[2] = {m, k}, bs[2] = {k, n}, os[2] = {m, n};
        box a = box_new(t, 2, as, (layout)below(LAYOUTS));
        box b = box_new(t, 2, bs, (layout)below(LAYOUTS));
        box bias = box_new(t, 1, &n, (layout)below(LAYOUTS));
        box before = box_new(t, 2, os, (layout)below(BROADCAST));
        box_fill(&a);
        box_fill(&b);
        box_fill(&bias);
        box_fill(&before);
        bool with_bias = below(2), accumulate = below(2);
        box first = {0};
        bool started = false;
        for (FOR_EACH_ISA(i)) {
            box out = box_copy(&before);
            assert_int_equal(ops->matmul(NULL, &out.a, &a.a, &b.a,
                                         with_bias ? &bias.a : NULL, accumulate),
                             RLE_OK);
            box_check(&out);
            if (started) {
                same_bits(&out.a, &first.a, check_isas[i]);
                box_free(&out);
                continue;
            }
            started = true;
            first = out;
            check_product(&out, &a, &b, with_bias ? &bias : NULL, accumulate ? &before : NULL);
        }
        /* The same values with other strides, on the best instruction set. */
        box a2 = box_new(t, 2, as, (layout)below(BROADCAST));
        box b2 = box_new(t, 2, bs, (layout)below(BROADCAST));
        box out = box_new(t, 2, os, (layout)below(BROADCAST));
        values_into(&a2, &a);
        values_into(&b2, &b);
        values_into(&out, &before);
        assert_int_equal(ops->matmul(NULL, &out.a, &a2.a, &b2.a,
                                     with_bias ? &bias.a : NULL, accumulate),
                         RLE_OK);
        box_check(&out);
        same_bits(&out.a, &first.a, "other strides");
        box_free(&out);
        box_free(&a2);
        box_free(&b2);
        box_free(&first);
        box_free(&before);
        box_free(&bias);
        box_free(&a);
        box_free(&b);
    }
}

static void one_row_gives_the_bits_of_a_batch(void **state)
{
    (void)state;
    const rle_device_ops *ops = rle_cpu_ops();
    for (FOR_EACH_ISA(isa)) {
        for (int64_t m = 1; m <= 70; m++) {
            rle_dtype t = m % 4 ? RLE_F32 : RLE_F64;
            int64_t k = some_size(140), n = some_size(140);
            int64_t as[2] = {m, k}, bs[2] = {k, n}, os[2] = {m, n}, one[2] = {1, n};
            box a = box_new(t, 2, as, (layout)below(BROADCAST));
            box b = box_new(t, 2, bs, (layout)below(BROADCAST));
            box bias = box_new(t, 1, &n, DENSE);
            box out = box_new(t, 2, os, DENSE), row = box_new(t, 2, one, DENSE);
            box_fill(&a);
            box_fill(&b);
            box_fill(&bias);
            assert_int_equal(ops->matmul(NULL, &out.a, &a.a, &b.a, &bias.a, false),
                             RLE_OK);
            for (int64_t i = 0; i < m; i++) {
                rle_array x = a.a, want = out.a;
                x.data = at(&a.a, i * k);
                want.data = at(&out.a, i * n);
                x.shape[0] = want.shape[0] = 1;
                assert_int_equal(ops->matmul(NULL, &row.a, &x, &b.a, &bias.a, false),
                                 RLE_OK);
                same_bits(&row.a, &want, "one row");
            }
            box_check(&row);
            box_free(&row);
            box_free(&out);
            box_free(&bias);
            box_free(&a);
            box_free(&b);
        }
    }
}

/* The order that gemm_impl.h promises, spelled out. */
static double in_order(rle_dtype t, const box *a, const box *b, int64_t i, int64_t j)
{
    int64_t k = a->a.shape[1], n = b->a.shape[1], lanes = n >= 16 ? 1 : 16;
    double lane[16] = {0};
    for (int64_t l = 0; l < (k + lanes - 1) / lanes * lanes; l++) {
        double x = l < k ? get(&a->a, i * k + l) : 0, y = l < k ? get(&b->a, l * n + j) : 0;
        double *acc = &lane[l % lanes];
        *acc = t == RLE_F32 ? (double)fmaf((float)x, (float)y, (float)*acc) : *acc + x * y;
    }
    for (int64_t half = lanes / 2; half > 0; half /= 2)
        for (int64_t l = 0; l < half; l++)
            lane[l] = t == RLE_F32 ? (double)((float)lane[l] + (float)lane[l + half])
                                   : lane[l] + lane[l + half];
    return lane[0];
}

static void sums_have_the_documented_order(void **state)
{
    (void)state;
    const rle_device_ops *ops = rle_cpu_ops();
    for (int round = 0; round < 120; round++) {
        rle_dtype t = round % 2 ? RLE_F32 : RLE_F64;
        int64_t m = 1 + below(20), k = some_size(257), n = below(2) ? 1 + below(17) : some_size(70);
        int64_t as[2] = {m, k}, bs[2] = {k, n}, os[2] = {m, n};
        box a = box_new(t, 2, as, (layout)below(BROADCAST));
        box b = box_new(t, 2, bs, (layout)below(BROADCAST));
        box out = box_new(t, 2, os, (layout)below(BROADCAST));
        box_fill(&a);
        box_fill(&b);
        for (FOR_EACH_ISA(isa)) {
            assert_int_equal(ops->matmul(NULL, &out.a, &a.a, &b.a, NULL, false), RLE_OK);
            for (int64_t e = 0; e < m * n; e++)
                assert_true(get(&out.a, e) == in_order(t, &a, &b, e / n, e % n));
        }
        box_free(&a);
        box_free(&b);
        box_free(&out);
    }
}

static void batches_are_products_one_by_one(void **state)
{
    (void)state;
    const rle_device_ops *ops = rle_cpu_ops();
    for (int round = 0; round < 60; round++) {
        rle_dtype t = below(2) ? RLE_F32 : RLE_F64;
        int64_t batch = 1 + below(5), m = some_size(33), k = some_size(33), n = some_size(33);
        int64_t as[3] = {batch, m, k}, bs[3] = {batch, k, n}, os[3] = {batch, m, n};
        box a = box_new(t, 3, as, (layout)below(LAYOUTS));
        box b = box_new(t, 3, bs, (layout)below(LAYOUTS));
        box out = box_new(t, 3, os, (layout)below(BROADCAST));
        box_fill(&a);
        box_fill(&b);
        assert_int_equal(ops->matmul(NULL, &out.a, &a.a, &b.a, NULL, false), RLE_OK);
        box_check(&out);
        box one = box_new(t, 2, os + 1, DENSE);
        for (int64_t i = 0; i < batch; i++) {
            rle_array x[3] = {a.a, b.a, out.a};
            for (int o = 0; o < 3; o++) {
                x[o].data = at(&x[o], i * x[o].shape[1] * x[o].shape[2]);
                x[o].ndim = 2;
                for (int d = 0; d < 2; d++) {
                    x[o].shape[d] = x[o].shape[d + 1];
                    x[o].stride[d] = x[o].stride[d + 1];
                }
            }
            assert_int_equal(ops->matmul(NULL, &one.a, &x[0], &x[1], NULL, false),
                             RLE_OK);
            same_bits(&one.a, &x[2], "one of a batch");
        }
        box_free(&one);
        box_free(&a);
        box_free(&b);
        box_free(&out);
    }
}

static void empty_sums_and_infinities(void **state)
{
    (void)state;
    const rle_device_ops *ops = rle_cpu_ops();
    for (FOR_EACH_ISA(isa)) {
        for (int64_t n = 2; n <= 40; n += 19) {
            float a[80], b[40 * 40], bias[40], out[80];
            for (int i = 0; i < 80; i++) out[i] = 7;
            for (int i = 0; i < 40; i++) bias[i] = (float)i;
            rle_array A = {a, RLE_F32, 2, {2, 0}, {0, 1}}, B = {b, RLE_F32, 2, {0, n}, {n, 1}},
                      O = {out, RLE_F32, 2, {2, n}, {n, 1}}, C = {bias, RLE_F32, 1, {n}, {1}};
            assert_int_equal(ops->matmul(NULL, &O, &A, &B, &C, true), RLE_OK);
            assert_true(out[0] == 7 && out[n + 1] == 8);
            assert_int_equal(ops->matmul(NULL, &O, &A, &B, NULL, false), RLE_OK);
            assert_true(out[0] == 0 && out[2 * n - 1] == 0);
            /* 0 x inf is NaN and reaches only its own row. */
            A.shape[1] = B.shape[0] = A.stride[0] = 20;
            for (int i = 0; i < 40; i++) a[i] = i < 20 ? 0 : 1;
            for (int i = 0; i < 20 * n; i++) b[i] = i == n ? INFINITY : 1;
            assert_int_equal(ops->matmul(NULL, &O, &A, &B, NULL, false), RLE_OK);
            assert_true(out[0] != out[0] && out[1] == 0 && out[n] == INFINITY &&
                        out[n + 1] == 20);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_match_plain_c),
        cmocka_unit_test(one_row_gives_the_bits_of_a_batch),
        cmocka_unit_test(sums_have_the_documented_order),
        cmocka_unit_test(batches_are_products_one_by_one),
        cmocka_unit_test(empty_sums_and_infinities),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
