/* bench_cpu.c - the CPU's operations, one core: matrix products, elementwise functions,
 * reductions, random numbers; and one training step of a small policy as a sum of
 * operations. Minimum over repeats. RLENGINE_CPU=avx2 measures another instruction set.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "device/cpu/cpu.h"

static const rle_device_ops *ops;

/* Nanoseconds of one call, the least of several rounds. */
#define MEASURE(result, call)                                                            \
    do {                                                                                 \
        int64_t calls_ = 1;                                                              \
        for (;;) {                                                                       \
            int64_t start_ = rle_now();                                                  \
            for (int64_t i_ = 0; i_ < calls_; i_++) call;                                \
            if (rle_now() - start_ > 300000) break;                                      \
            calls_ *= 2;                                                                 \
        }                                                                                \
        (result) = 1e300;                                                                \
        for (int round_ = 0; round_ < 25; round_++) {                                    \
            int64_t start_ = rle_now();                                                  \
            for (int64_t i_ = 0; i_ < calls_; i_++) call;                                \
            double ns_ = (double)(rle_now() - start_) / (double)calls_;                  \
            if (ns_ < (result)) (result) = ns_;                                          \
        }                                                                                \
    } while (0)

static rle_array array(rle_dtype t, int64_t rows, int64_t cols)
{
    rle_array a = {.dtype = t, .ndim = 2, .shape = {rows, cols}};
    rle_array_set_contiguous(&a);
    size_t bytes = ((size_t)(rows * cols) * rle_dtype_size(t) + 63) / 64 * 64;
    a.data = aligned_alloc(64, bytes ? bytes : 64);
    memset(a.data, 0, bytes);
    rle_rng rng = {1, 1, 0};
    if (rle_dtype_is_float(t)) ops->random(NULL, RLE_RANDOM_NORMAL, &a, &rng, 0, 1);
    return a;
}

static rle_array transposed(const rle_array *a)
{
    rle_array t = *a;
    for (int d = 0; d < 2; d++) {
        t.shape[d] = a->shape[1 - d];
        t.stride[d] = a->stride[1 - d];
    }
    return t;
}

static void product(rle_dtype t, int64_t m, int64_t k, int64_t n, bool ta, bool tb)
{
    rle_array a = ta ? array(t, k, m) : array(t, m, k),
              b = tb ? array(t, n, k) : array(t, k, n);
    rle_array out = array(t, m, n);
    rle_array x = ta ? transposed(&a) : a, y = tb ? transposed(&b) : b;
    double ns;
    MEASURE(ns, ops->matmul(NULL, &out, &x, &y, NULL, false));
    printf("  %s %c[%4d,%4d] x %c[%4d,%4d]  %10.0f ns  %6.1f GFLOP/s\n",
           rle_dtype_name(t), ta ? 'T' : ' ', (int)m, (int)k, tb ? 'T' : ' ', (int)k,
           (int)n, ns, 2.0 * (double)m * (double)k * (double)n / ns);
    free(a.data);
    free(b.data);
    free(out.data);
}

static void products(void)
{
    printf("products\n");
    static const int64_t batches[] = {1, 64, 256, 1024};
    for (int i = 0; i < 4; i++) {
        product(RLE_F32, batches[i], 4, 128, false, true);
        product(RLE_F32, batches[i], 128, 2, false, true);
        product(RLE_F32, batches[i], 64, 64, false, true);
    }
    product(RLE_F32, 256, 2, 128, false, false); /* gradients of those at batch 256 */
    product(RLE_F32, 2, 256, 128, true, false);
    product(RLE_F32, 128, 256, 4, true, false);
    product(RLE_F32, 256, 64, 64, false, false);
    product(RLE_F32, 64, 256, 64, true, false);
    static const int64_t squares[] = {128, 256, 512, 1024};
    for (int i = 0; i < 4; i++) {
        product(RLE_F32, squares[i], squares[i], squares[i], false, false);
        product(RLE_F32, squares[i], squares[i], squares[i], false, true);
    }
    product(RLE_F64, 256, 64, 64, false, true);
    product(RLE_F64, 512, 512, 512, false, false);
}

static void elementwise(void)
{
    static const struct {
        const char *name;
        rle_unary_kind kind;
    } unary[] = {{"neg", RLE_UNARY_NEG},           {"relu", RLE_UNARY_RELU},
                 {"exp", RLE_UNARY_EXP},           {"log", RLE_UNARY_LOG},
                 {"tanh", RLE_UNARY_TANH},         {"sigmoid", RLE_UNARY_SIGMOID},
                 {"softplus", RLE_UNARY_SOFTPLUS}, {"sin", RLE_UNARY_SIN},
                 {"sqrt", RLE_UNARY_SQRT}};
    printf("functions, ns a call for 1, 16, 4096 elements (f32), 4096 (f64)\n");
    for (size_t i = 0; i < sizeof(unary) / sizeof(unary[0]); i++) {
        double ns[4];
        static const int64_t sizes[] = {1, 16, 4096, 4096};
        for (int s = 0; s < 4; s++) {
            rle_array x = array(s == 3 ? RLE_F64 : RLE_F32, 1, sizes[s]), y = x;
            y.data = aligned_alloc(64, 65536);
            MEASURE(ns[s], ops->unary(NULL, unary[i].kind, &y, &x, 0, 0));
            free(x.data);
            free(y.data);
        }
        printf("  %-9s %7.1f %7.1f %9.0f %9.0f\n", unary[i].name, ns[0], ns[1], ns[2],
               ns[3]);
    }
    rle_array a = array(RLE_F32, 256, 128), b = array(RLE_F32, 256, 128),
              row = array(RLE_F32, 1, 128), column = array(RLE_F32, 256, 1),
              out = array(RLE_F32, 256, 128), flags = array(RLE_BOOL, 256, 128);
    rle_array rows = row, columns = column, t = array(RLE_F32, 128, 256);
    rows.shape[0] = 256;
    rows.stride[0] = 0;
    columns.shape[1] = 128;
    columns.stride[1] = 0;
    t = transposed(&t);
    double ns[6];
    MEASURE(ns[0], ops->binary(NULL, RLE_BINARY_ADD, &out, &a, &b));
    MEASURE(ns[1], ops->binary(NULL, RLE_BINARY_ADD, &out, &a, &rows));
    MEASURE(ns[2], ops->binary(NULL, RLE_BINARY_ADD, &out, &a, &columns));
    MEASURE(ns[3], ops->binary(NULL, RLE_BINARY_ADD, &out, &a, &t));
    MEASURE(ns[4], ops->binary_scalar(NULL, RLE_BINARY_MUL, &out, &a, 2, 2, false));
    MEASURE(ns[5], ops->binary(NULL, RLE_BINARY_GT, &flags, &a, &b));
    printf(
        "[256,128] + same %.0f, + row %.0f, + column %.0f, + transposed %.0f, * 2 %.0f, "
        "> %.0f ns\n",
        ns[0], ns[1], ns[2], ns[3], ns[4], ns[5]);
    rle_array small = array(RLE_F32, 256, 2), bias = array(RLE_F32, 1, 2), pair = small;
    bias.shape[0] = 256;
    bias.stride[0] = 0;
    pair.data = out.data;
    MEASURE(ns[0], ops->binary(NULL, RLE_BINARY_ADD, &pair, &small, &bias));
    MEASURE(ns[1], ops->copy(NULL, &out, &t));
    printf("[256,2] + row %.0f ns; copy of a transposed [256,128] %.0f ns\n", ns[0],
           ns[1]);
}

static void reductions(void)
{
    printf("reductions of [256,128]: ");
    rle_array a = array(RLE_F32, 256, 128), col = array(RLE_F32, 1, 128),
              row = array(RLE_F32, 256, 1), all = array(RLE_F32, 1, 1),
              out = array(RLE_F32, 256, 128);
    double ns[4];
    MEASURE(ns[0], ops->reduce(NULL, RLE_REDUCE_SUM, &col, &a, 1));
    MEASURE(ns[1], ops->reduce(NULL, RLE_REDUCE_SUM, &row, &a, 2));
    MEASURE(ns[2], ops->reduce(NULL, RLE_REDUCE_SUM, &all, &a, 3));
    MEASURE(ns[3], ops->softmax(NULL, false, &out, &a, 1));
    printf("rows %.0f, columns %.0f, all %.0f, softmax %.0f ns\n", ns[0], ns[1], ns[2],
           ns[3]);
    rle_array p = array(RLE_F32, 256, 2), q = array(RLE_F32, 256, 2),
              one = array(RLE_F32, 1, 2), o = array(RLE_F32, 1, 2),
              sum = array(RLE_F32, 1, 1), i = array(RLE_I64, 256, 1);
    MEASURE(ns[0], ops->softmax(NULL, true, &q, &p, 1));
    MEASURE(ns[1], ops->softmax(NULL, true, &o, &one, 1));
    MEASURE(ns[2], ops->reduce(NULL, RLE_REDUCE_SUM, &sum, &one, 3));
    MEASURE(ns[3], ops->arg_reduce(NULL, true, NULL, &i, &p, 1));
    printf("log_softmax of [256,2] %.0f, of [1,2] %.0f; sum of 2 %.0f; argmax of [256,2] "
           "%.0f ns\n",
           ns[0], ns[1], ns[2], ns[3]);
}

static void randoms(void)
{
    rle_array a = array(RLE_F32, 64, 64), one = array(RLE_F32, 1, 4),
              x = array(RLE_F32, 256, 128), keys = array(RLE_I64, 1, 256);
    rle_array k = keys;
    k.ndim = 1;
    k.shape[0] = 256;
    k.stride[0] = 1;
    rle_rng rng = {1, 2, 0};
    double ns[5];
    MEASURE(ns[0], ops->random(NULL, RLE_RANDOM_UNIFORM, &a, &rng, 0, 1));
    MEASURE(ns[1], ops->random(NULL, RLE_RANDOM_NORMAL, &a, &rng, 0, 1));
    MEASURE(ns[2], ops->random(NULL, RLE_RANDOM_UNIFORM, &one, &rng, 0, 1));
    MEASURE(ns[3], ops->dropout(NULL, &x, &x, 0.5, 1, &k, 0));
    rle_array row = x;
    row.shape[0] = 1;
    k.shape[0] = 1;
    MEASURE(ns[4], ops->dropout(NULL, &row, &row, 0.5, 1, &k, 0));
    printf(
        "random: 4096 uniforms %.0f, normals %.0f; 4 uniforms %.0f; dropout of [256,128] "
        "%.0f, of [1,128] %.0f ns\n",
        ns[0], ns[1], ns[2], ns[3], ns[4]);
}

/* Linear(4,128) -> ReLU -> Linear(128,2), batch 256: forward, backward from a gradient of
 * the output, Adam; as the operations that autograd would call. */
static void training(void)
{
    enum { B = 256, I = 4, H = 128, O = 2 };
    rle_array x = array(RLE_F32, B, I), h = array(RLE_F32, B, H),
              y = array(RLE_F32, B, O), dy = array(RLE_F32, B, O),
              dh = array(RLE_F32, B, H);
    rle_array p[4] = {array(RLE_F32, H, I), array(RLE_F32, 1, H), array(RLE_F32, O, H),
                      array(RLE_F32, 1, O)};
    rle_array g[4], m[4], v[4];
    for (int i = 0; i < 4; i++) {
        g[i] = array(RLE_F32, p[i].shape[0], p[i].shape[1]);
        m[i] = array(RLE_F32, p[i].shape[0], p[i].shape[1]);
        v[i] = array(RLE_F32, p[i].shape[0], p[i].shape[1]);
        ops->fill(NULL, &m[i], 0, 0);
        ops->fill(NULL, &v[i], 0, 0);
    }
    rle_array w1 = transposed(&p[0]), w2 = transposed(&p[2]), xt = x,
              dht = transposed(&dh), dyt = transposed(&dy), b1 = p[1], b2 = p[3];
    b1.ndim = b2.ndim = 1;
    b1.shape[0] = H;
    b2.shape[0] = O;
    b1.stride[0] = b2.stride[0] = 1;
    rle_adam_args adam = {
        .lr = 1e-3, .beta1 = .9, .beta2 = .999, .eps = 1e-8, .step = 10};
    double ns[12];
    MEASURE(ns[0], ops->matmul(NULL, &h, &x, &w1, &b1, false));
    MEASURE(ns[1], ops->unary(NULL, RLE_UNARY_RELU, &h, &h, 0, 0));
    MEASURE(ns[2], ops->matmul(NULL, &y, &h, &w2, &b2, false));
    MEASURE(ns[3], ops->matmul(NULL, &g[2], &dyt, &h, NULL, false));
    MEASURE(ns[4], ops->reduce(NULL, RLE_REDUCE_SUM, &g[3], &dy, 1));
    MEASURE(ns[5], ops->matmul(NULL, &dh, &dy, &p[2], NULL, false));
    MEASURE(ns[6], ops->unary_backward(NULL, RLE_UNARY_RELU, &dh, &dh, NULL, &h, 0, 0));
    MEASURE(ns[7], ops->matmul(NULL, &g[0], &dht, &xt, NULL, false));
    MEASURE(ns[8], ops->reduce(NULL, RLE_REDUCE_SUM, &g[1], &dh, 1));
    MEASURE(ns[9], ops->adam(NULL, p, g, m, v, 4, &adam));
    static const char *const names[] = {"x W1 + b1", "relu",  "h W2 + b2", "dW2", "db2",
                                        "dh",        "relu'", "dW1",       "db1", "adam"};
    double sum = 0;
    printf("training step of 4-128-2, batch 256:\n ");
    for (int i = 0; i < 10; i++) {
        printf(" %s %.0f", names[i], ns[i]);
        sum += ns[i];
    }
    printf("\n  together %.1f us\n", sum / 1000);
}

int main(int argc, char **argv)
{
    ops = rle_cpu_ops();
    printf("instruction set: %s\n", rle_cpu_isa());
    const char *only = argc > 1 ? argv[1] : "";
    if (!*only || !strcmp(only, "products")) products();
    if (!*only || !strcmp(only, "elementwise")) elementwise();
    if (!*only || !strcmp(only, "reductions")) reductions();
    if (!*only || !strcmp(only, "random")) randoms();
    if (!*only || !strcmp(only, "training")) training();
    return 0;
}
