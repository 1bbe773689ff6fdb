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

/* ---- a library's products ---- */

/* Room for what another order of a sum of k products of numbers up to 4 may change. */
static double slack(rle_dtype t, int64_t k)
{
    return 16 * (double)(k + 1) * (double)(k + 1) * (t == RLE_F32 ? 0x1p-24 : 0x1p-53);
}

static void library_product(const sizes *s, rle_dtype t, layout how_a, layout how_b,
                            layout how_out, bool with_bias, bool accumulate, double more)
{
    box a = matrix(t, s->batches, s->m, s->k, how_a);
    box b = matrix(t, s->batches, s->k, s->n, how_b);
    box out = matrix(t, s->batches, s->m, s->n, how_out);
    box bias = box_new(t, 1, &s->n, (layout)below(LAYOUTS));
    box_fill(&bias);
    if (!accumulate) /* what is there must not be read */
        for (int64_t i = 0; i < rle_array_numel(&out.a); i++) put(&out.a, i, NAN);
    twin da = twin_of(&a), db = twin_of(&b), dout = twin_of(&out), dbias = twin_of(&bias);
    with_bias = with_bias && !s->batches;
    assert_int_equal(
        cpu->ops->matmul(cpu, &out.a, &a.a, &b.a, with_bias ? &bias.a : NULL, accumulate),
        RLE_OK);
    if (dev->ops->matmul(dev, &dout.a, &da.a, &db.a, with_bias ? &dbias.a : NULL,
                         accumulate) != RLE_OK)
        fail_msg("%s", rle_message());
    twin_check(&dout, 1, slack(t, s->k) + more, "a library's product");
    twin_free(&da), twin_free(&db), twin_free(&dout), twin_free(&dbias);
    box_free(&a), box_free(&b), box_free(&out), box_free(&bias);
}

/* The settings as they are; with `s` they become those. */
static rle_blas_state blas(const rle_blas_settings *s)
{
    rle_blas_state state;
    if (rle_device_blas(dev, s, &state) != RLE_OK) fail_msg("%s", rle_message());
    return state;
}

static rle_blas_settings usual; /* as the device was opened */

static size_t workspace(void)
{
    rle_memory_stats s;
    rle_device_memory(dev, &s);
    return s.workspace;
}

/* Nothing is opened before it is needed; then there is one workspace, of the size asked
 * for. */
static void the_library_is_opened_when_it_is_needed(void **state)
{
    (void)state;
    rle_blas_state now = blas(NULL);
    assert_false(now.open);
    assert_string_equal(now.text, "");
    assert_false(usual.tf32 || usual.batch_invariant);
    assert_true(usual.workspace >= 1 << 20 && usual.threshold == 1 << 17);
    size_t before = workspace();
    library_product(&(sizes){0, 3, 362, 362}, RLE_F32, DENSE, DENSE, DENSE, true, false,
                    0);
    assert_false(blas(NULL).open); /* 362^2 < 2^17 <= 363^2 */
    assert_int_equal(workspace(), before);
    library_product(&(sizes){0, 3, 363, 363}, RLE_F32, DENSE, DENSE, DENSE, true, false,
                    0);
    now = blas(NULL);
    if (dev->type == RLE_DEVICE_CUDA && !now.open) {
        print_message("# %s\n", now.text);
        skip();
    }
    assert_true(now.open);
    assert_non_null(strstr(now.text, "cuBLAS 1"));
    assert_true(workspace() >= before + usual.workspace);
    size_t open = workspace();
    rle_blas_settings s = usual;
    s.workspace = 1 << 16;
    blas(&s);
    /* What a real library takes besides is not the same each time. */
    if (dev->type == RLE_DEVICE_EMU)
        assert_int_equal(workspace(), open - usual.workspace + (2 << 20));
    library_product(&(sizes){0, 3, 363, 363}, RLE_F32, DENSE, DENSE, DENSE, true, false,
                    0);
    blas(&usual);
    if (dev->type == RLE_DEVICE_EMU) assert_int_equal(workspace(), open);
}

static void libraries_multiply_every_layout(void **state)
{
    (void)state;
    rle_blas_settings s = usual;
    s.threshold = 1;
    blas(&s);
    FOR_EACH_MODE(m)
    {
        for (int p = 0; p < PRODUCTS; p++)
            for (rle_dtype t = RLE_F32; t <= RLE_F64; t++)
                library_product(&products[p], t, (layout)below(LAYOUTS),
                                (layout)below(LAYOUTS), (layout)below(BROADCAST),
                                below(2), below(2), 0);
        static const layout ways[] = {DENSE, PERMUTED, SPREAD};
        for (int i = 0; i < 27; i++)
            library_product(&(sizes){0, 5, 7, 6}, RLE_F32, ways[i % 3], ways[i / 3 % 3],
                            ways[i / 9], i % 2, i % 4 > 1, 0);
    }
    blas(&usual);
}

/* The sums of the emulated library have another order than the engine's: where they agree
 * to the last bit they were the engine's. */
static void settings_choose_who_multiplies(void **state)
{
    (void)state;
    sizes large = {0, 4, 400, 400};
    rle_blas_settings s = usual;
    s.batch_invariant = true;
    blas(&s);
    one_product(&large, RLE_F32, DENSE, PERMUTED, DENSE, true, true);
    one_product(&large, RLE_F64, DENSE, PERMUTED, DENSE, true, true);
    s = usual;
    for (int i = 0; i < 2; i++) {
        s.threshold = i ? INT64_MAX : 400 * 400 + 1;
        blas(&s);
        one_product(&large, RLE_F32, DENSE, DENSE, DENSE, true, true);
    }
    s.threshold = 400 * 400;
    s.tf32 = true;
    blas(&s);
    library_product(&large, RLE_F32, DENSE, DENSE, DENSE, false, false,
                    400 * 16 * 0x1p-10);
    assert_true(blas(NULL).settings.tf32);
    /* Two factors that TF32 does not tell from 1. */
    rle_array one = {.dtype = RLE_F32, .ndim = 2, .shape = {1, 1}, .stride = {1, 1}};
    box x = box_new(RLE_F32, 2, one.shape, DENSE),
        y = box_new(RLE_F32, 2, one.shape, DENSE);
    put(&x.a, 0, 1 + 0x1p-14), put(&y.a, 0, 0);
    twin dx = twin_of(&x), dy = twin_of(&y);
    for (int tf32 = 0; tf32 < 2 && dev->type == RLE_DEVICE_EMU; tf32++) {
        s.threshold = 1;
        s.tf32 = tf32;
        blas(&s);
        assert_int_equal(dev->ops->matmul(dev, &dy.a, &dx.a, &dx.a, NULL, false), RLE_OK);
        box got = box_copy(&y);
        assert_int_equal(dev->copy_out(dev, got.mem, dy.block.data, got.bytes), RLE_OK);
        assert_true((get(&got.a, 0) == 1) == tf32);
        box_free(&got);
    }
    twin_free(&dx), twin_free(&dy), box_free(&x), box_free(&y);
    blas(&usual);
}

static void wrong_settings_are_refused(void **state)
{
    (void)state;
    rle_blas_settings bad[] = {usual, usual, usual};
    bad[0].workspace = 4096;
    bad[1].workspace += 8;
    bad[2].threshold = -1;
    for (int i = 0; i < 3; i++)
        assert_int_equal(rle_device_blas(dev, &bad[i], NULL), RLE_INVALID_ARGUMENT);
    rle_blas_state now = blas(NULL);
    assert_memory_equal(&now.settings, &usual, sizeof usual);
    assert_int_equal(rle_device_blas(cpu, NULL, NULL), RLE_UNIMPLEMENTED);
}

static void expect_matmul(rle_status wanted, const char *word)
{
    box a = matrix(RLE_F32, 0, 3, 20, DENSE), b = matrix(RLE_F32, 0, 20, 20, DENSE);
    box out = matrix(RLE_F32, 0, 3, 20, DENSE);
    twin da = twin_of(&a), db = twin_of(&b), dout = twin_of(&out);
    assert_int_equal(dev->ops->matmul(dev, &dout.a, &da.a, &db.a, NULL, false), wanted);
    if (wanted != RLE_OK) {
        if (!strstr(rle_message(), word)) fail_msg("%s", rle_message());
        twin_check(&dout, 0, 0, "a product that failed");
    }
    twin_free(&da), twin_free(&db), twin_free(&dout);
    box_free(&a), box_free(&b), box_free(&out);
}

/* Before anything has opened it. */
static void without_the_library_own_kernels_go_on(void **state)
{
    (void)state;
    usual = blas(NULL).settings;
    if (dev->type != RLE_DEVICE_EMU) skip();
    static const char *const trouble[] = {"cublas=off", "cublas=on fail_cublas=1:14"};
    static const char *const reasons[] = {"libcublas.so.13 is not there",
                                          "does not start"};
    rle_blas_settings s = usual;
    s.threshold = 1;
    size_t held = workspace();
    for (int i = 0; i < 2; i++) {
        blas(&s); /* forgets that there was none */
        assert_int_equal(rle_device_emu_control(trouble[i]), RLE_OK);
        for (int again = 0; again < 2; again++) {
            one_product(&(sizes){0, 9, 40, 50}, RLE_F32, DENSE, DENSE, DENSE, true, true);
            rle_blas_state now = blas(NULL);
            assert_false(now.open);
            if (!strstr(now.text, reasons[i])) fail_msg("%s", now.text);
            assert_int_equal(workspace(), held);
        }
    }
    /* A library that starts but cannot be set up is an error each time. */
    for (int call = 2; call <= 4; call++) {
        char order[32];
        snprintf(order, sizeof order, "fail_cublas=%d:14", call);
        blas(&s);
        assert_int_equal(rle_device_emu_control(order), RLE_OK);
        expect_matmul(RLE_INTERNAL,
                      "set up cuBLAS: cuBLAS says CUBLAS_STATUS_INTERNAL_ERROR");
        assert_int_equal(workspace(), held);
    }
    /* No memory for the workspace is an error, and the next time there may be some. */
    blas(&s);
    box a = matrix(RLE_F32, 0, 3, 20, DENSE), out = matrix(RLE_F32, 0, 3, 3, DENSE);
    rle_array t = a.a;
    t.shape[0] = 20, t.shape[1] = 3, t.stride[0] = 1, t.stride[1] = 20;
    twin da = twin_of(&a), dout = twin_of(&out);
    t.data = da.a.data;
    assert_int_equal(rle_device_emu_control("memory=1MiB"), RLE_OK);
    assert_int_equal(dev->ops->matmul(dev, &dout.a, &da.a, &t, NULL, false),
                     RLE_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(rle_message(), "out of device memory"));
    assert_non_null(strstr(rle_message(), "that was for the workspace of cuBLAS"));
    twin_check(&dout, 0, 0, "a product that failed");
    assert_int_equal(rle_device_emu_control("memory=1GiB"), RLE_OK);
    assert_int_equal(workspace(), held);
    twin_free(&da), twin_free(&dout), box_free(&a), box_free(&out);
    blas(&usual);
}

static void failures_of_the_library_are_errors(void **state)
{
    (void)state;
    if (dev->type != RLE_DEVICE_EMU) skip();
    rle_blas_settings s = usual;
    s.threshold = 1;
    blas(&s);
    expect_matmul(RLE_OK, "");
    assert_int_equal(rle_device_emu_control("fail_cublas=1"), RLE_OK);
    expect_matmul(RLE_INTERNAL,
                  "matmul: cuBLAS says CUBLAS_STATUS_EXECUTION_FAILED (13)");
    expect_matmul(RLE_OK, "");
    assert_int_equal(rle_device_emu_control("fail_cublas=1:3"), RLE_OK);
    expect_matmul(RLE_RESOURCE_EXHAUSTED, "CUBLAS_STATUS_ALLOC_FAILED");
    /* No memory for another workspace: the settings stay, the next product works. */
    size_t held = workspace();
    assert_int_equal(rle_device_emu_control("memory=64MiB"), RLE_OK);
    s.workspace = 64 << 20;
    assert_int_equal(rle_device_blas(dev, &s, NULL), RLE_RESOURCE_EXHAUSTED);
    s.workspace = 65 << 20; /* of which it would never have as much */
    assert_int_equal(rle_device_blas(dev, &s, NULL), RLE_INVALID_ARGUMENT);
    assert_int_equal(rle_device_emu_control("memory=1GiB"), RLE_OK);
    expect_matmul(RLE_OK, "");
    assert_int_equal(workspace(), held);
    /* Nor do settings change that the library refuses. */
    rle_blas_settings before = blas(NULL).settings;
    for (int call = 2; call <= 4; call++) {
        char order[32];
        snprintf(order, sizeof order, "fail_cublas=%d", call);
        assert_int_equal(rle_device_emu_control(order), RLE_OK);
        s.workspace = 1 << 20;
        s.tf32 = true;
        assert_int_equal(rle_device_blas(dev, &s, NULL), RLE_INTERNAL);
        expect_matmul(RLE_OK, "");
        assert_int_equal(workspace(), held);
        rle_blas_state now = blas(NULL);
        assert_memory_equal(&now.settings, &before, sizeof before);
    }
    expect_matmul(RLE_OK, "");
    /* One that finds no memory to start is asked again after room was made. */
    for (int code = 1; code <= 3; code += 2) {
        char order[32];
        rle_memory_stats earlier, later;
        rle_device_memory(dev, &earlier);
        snprintf(order, sizeof order, "fail_cublas=1:%d", code);
        assert_int_equal(rle_device_emu_control(order), RLE_OK);
        assert_true(blas(&before).open);
        rle_device_memory(dev, &later);
        assert_int_equal(later.retries, earlier.retries + 1);
    }
    /* What it takes by itself may stay unknown; the next launch hears nothing of that. */
    s = before;
    s.batch_invariant = true;
    for (int call = 1; call <= 2; call++) {
        assert_int_equal(
            rle_device_emu_control(call == 1 ? "fail_info=1" : "fail_info=2"), RLE_OK);
        assert_true(blas(&s).open);
        assert_int_equal(workspace(), held);
        one_product(&(sizes){0, 9, 40, 5}, RLE_F32, DENSE, DENSE, DENSE, true, true);
    }
    blas(&usual);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_have_the_bits_of_the_cpu),
        cmocka_unit_test(large_products_have_the_bits_of_the_cpu),
        cmocka_unit_test(a_row_does_not_depend_on_the_others),
        cmocka_unit_test(special_values_come_through),
        cmocka_unit_test(without_the_library_own_kernels_go_on),
        cmocka_unit_test(the_library_is_opened_when_it_is_needed),
        cmocka_unit_test(libraries_multiply_every_layout),
        cmocka_unit_test(settings_choose_who_multiplies),
        cmocka_unit_test(wrong_settings_are_refused),
        cmocka_unit_test(failures_of_the_library_are_errors),
    };
    return cmocka_run_group_tests(tests, device_setup, device_finish);
}
