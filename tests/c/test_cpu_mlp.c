/* test_cpu_mlp.c - a compiled chain of layers gives the bits of the operations it stands for. */
#include "cpu_check.h"

#include "base/mem.h"
#include "nn/mlp.h"

static rle_array view(float *data, int64_t rows, int64_t cols)
{
    rle_array a = {data, RLE_F32, 2, {rows, cols}, {cols, 1}};
    return a;
}

/* The chain as operations. */
static void by_operations(const rle_mlp_layer *layers, int count, const float *x, int64_t rows,
                          float *y)
{
    const rle_device_ops *ops = rle_cpu_ops();
    float *from = malloc((size_t)(rows * layers[0].in) * 4);
    memcpy(from, x, (size_t)(rows * layers[0].in) * 4);
    for (int i = 0; i < count; i++) {
        const rle_mlp_layer *l = &layers[i];
        float *to = malloc((size_t)(rows * l->out) * 4);
        rle_array a = view(from, rows, l->in), b = view((float *)l->weight, l->in, l->out),
                  o = view(to, rows, l->out);
        b.stride[0] = 1;
        b.stride[1] = l->in;
        rle_array bias = {(void *)l->bias, RLE_F32, 1, {l->out}, {1}};
        assert_int_equal(ops->matmul(NULL, &o, &a, &b, l->bias ? &bias : NULL, false),
                         RLE_OK);
        if (l->function >= 0)
            ops->unary(NULL, l->function, &o, &o, 0, 0);
        else if (l->function != RLE_MLP_NONE)
            ops->softmax(NULL, l->function == RLE_MLP_LOG_SOFTMAX, &o, &o, 1);
        free(from);
        from = to;
    }
    memcpy(y, from, (size_t)(rows * layers[count - 1].out) * 4);
    free(from);
}

static float *numbers(int64_t n)
{
    float *p = malloc((size_t)n * 4);
    for (int64_t i = 0; i < n; i++) p[i] = (float)(unit() - 0.5);
    return p;
}

static void chains_equal_their_operations(void **state)
{
    (void)state;
    static const int64_t widths[] = {1, 2, 3, 4, 6, 15, 16, 17, 30, 64, 65, 100, 128, 200};
    static const int functions[] = {RLE_UNARY_RELU, RLE_UNARY_TANH, RLE_UNARY_SIGMOID,
                                    RLE_UNARY_SOFTPLUS, RLE_MLP_NONE, RLE_MLP_SOFTMAX,
                                    RLE_MLP_LOG_SOFTMAX};
    assert_non_null(rle_device_cpu()); /* open, before blocks are counted */
    for (int round = 0; round < 60; round++) {
        rle_mlp_layer layers[4];
        int count = 1 + below(4);
        int64_t width = widths[below(14)];
        for (int i = 0; i < count; i++) {
            int64_t next = widths[below(14)];
            layers[i] = (rle_mlp_layer){width, next, numbers(width * next),
                                        below(3) ? numbers(next) : NULL, functions[below(7)]};
            width = next;
        }
        size_t blocks = rle_mem_blocks();
        rle_mlp *mlp = NULL;
        assert_int_equal(rle_mlp_new(rle_device_cpu(), layers, count, &mlp), RLE_OK);
        assert_int_equal(rle_mlp_in(mlp), layers[0].in);
        assert_int_equal(rle_mlp_out(mlp), width);
        static const int64_t batches[] = {1, 2, 7, 64, 131};
        for (int b = 0; b < 5; b++) {
            int64_t rows = batches[b];
            float *x = numbers(rows * layers[0].in);
            size_t bytes = (size_t)(rows * width) * 4;
            float *want = malloc(bytes), *got = malloc(bytes + 64), *first = malloc(bytes);
            bool started = false;
            for (FOR_EACH_ISA(isa)) {
                memset(got, SENTINEL, bytes + 64);
                by_operations(layers, count, x, rows, want);
                size_t before = rle_mem_blocks();
                assert_int_equal(rle_mlp_forward(mlp, x, rows, got), RLE_OK);
                assert_int_equal(rle_mem_blocks(), before);
                assert_memory_equal(got, want, bytes);
                for (int i = 0; i < 64; i++)
                    assert_int_equal(((unsigned char *)got)[bytes + (size_t)i], SENTINEL);
                if (started) assert_memory_equal(got, first, bytes);
                memcpy(first, got, bytes);
                started = true;
            }
            free(x);
            free(want);
            free(got);
            free(first);
        }
        rle_mlp_free(mlp);
        assert_int_equal(rle_mem_blocks(), blocks);
        for (int i = 0; i < count; i++) {
            free((void *)layers[i].weight);
            free((void *)layers[i].bias);
        }
    }
}

static void changed_weights_count_after_packing(void **state)
{
    (void)state;
    float w[2] = {1, 2}, x[2] = {3, 4}, y = 0;
    rle_mlp_layer l = {2, 1, w, NULL, RLE_MLP_NONE};
    rle_mlp *mlp;
    assert_int_equal(rle_mlp_new(rle_device_cpu(), &l, 1, &mlp), RLE_OK);
    rle_mlp_forward(mlp, x, 1, &y);
    assert_true(y == 11);
    w[0] = 10;
    rle_mlp_forward(mlp, x, 1, &y);
    assert_true(y == 11);
    rle_mlp_pack(mlp);
    rle_mlp_forward(mlp, x, 1, &y);
    assert_true(y == 38);
    rle_mlp_free(mlp);
}

static void bad_chains_are_refused(void **state)
{
    (void)state;
    float w[12] = {0};
    rle_mlp_layer fits[2] = {{2, 3, w, NULL, RLE_UNARY_RELU}, {3, 4, w, NULL, RLE_MLP_NONE}};
    rle_mlp *mlp = NULL;
    assert_int_equal(rle_mlp_new(rle_device_cpu(), fits, 0, &mlp), RLE_INVALID_ARGUMENT);
    rle_mlp_layer bad[2] = {fits[0], fits[1]};
    bad[1].in = 2;
    assert_int_equal(rle_mlp_new(rle_device_cpu(), bad, 2, &mlp), RLE_INVALID_ARGUMENT);
    assert_non_null(strstr(rle_message(), "layer 2 takes 2 inputs"));
    bad[1] = fits[1];
    bad[1].function = RLE_UNARY_ISNAN;
    assert_int_equal(rle_mlp_new(rle_device_cpu(), bad, 2, &mlp), RLE_INVALID_ARGUMENT);
    bad[1].function = RLE_UNARY_CLAMP;
    assert_int_equal(rle_mlp_new(rle_device_cpu(), bad, 2, &mlp), RLE_INVALID_ARGUMENT);
    bad[1].function = -4;
    assert_int_equal(rle_mlp_new(rle_device_cpu(), bad, 2, &mlp), RLE_INVALID_ARGUMENT);
    bad[1] = fits[1];
    bad[1].out = 0;
    assert_int_equal(rle_mlp_new(rle_device_cpu(), bad, 2, &mlp), RLE_INVALID_ARGUMENT);
    size_t blocks = rle_mem_blocks();
    for (uint64_t n = 1; n <= 2; n++) {
        rle_mem_fault(n, false);
        assert_int_equal(rle_mlp_new(rle_device_cpu(), fits, 2, &mlp),
                         RLE_RESOURCE_EXHAUSTED);
        rle_mem_fault(0, false);
        assert_int_equal(rle_mem_blocks(), blocks);
    }
    assert_null(mlp);
    rle_mlp_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chains_equal_their_operations),
        cmocka_unit_test(changed_weights_count_after_packing),
        cmocka_unit_test(bad_chains_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
