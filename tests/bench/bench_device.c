/* bench_device.c - a device's operations as the engine calls them, each against what one
 * would write without the engine, in the same run.
 *
 *   bench_device DEVICE [--baseline cuda_baseline.so] [--quick]
 *
 * DEVICE is "cuda", "cuda:1", "emu" or "cpu". Prints the least time of several rounds
 * and, where there is one, its ratio to the baseline's and the baseline's name: CUDA's
 * calls and cuBLAS from cuda_baseline.cu, else the C library and the CPU's operations. A
 * ratio of 1.1 is a time 1.1 times as long. --quick takes small sizes and one round, to
 * see that everything runs. Times on "emu" say how fast the emulation is and nothing
 * else.
 *
 * Exit code 1: an operation failed, with its message. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "device/device.h"
#include "device_baseline.h"
#include "nn/mlp.h"

static rle_device *dev;
static bool quick;

static void check(rle_status status)
{
    if (status == RLE_OK) return;
    printf("FAILED: %s\n", rle_message());
    exit(1);
}

/* ---- timing ---- */

/* Seconds of one call in a row of them, the row waited for: the least of several rounds.
 */
#define MEASURE(result, call)                                                            \
    do {                                                                                 \
        int64_t calls_ = 1;                                                              \
        (result) = 1e300;                                                                \
        for (int round_ = -1; round_ < (quick ? 1 : 7); round_++) {                      \
            check(rle_device_synchronize(dev));                                          \
            int64_t start_ = rle_now();                                                  \
            for (int64_t i_ = 0; i_ < calls_; i_++) check(call);                         \
            check(rle_device_synchronize(dev));                                          \
            double took_ = (double)(rle_now() - start_) * 1e-9;                          \
            if (round_ < 0 && took_ < 2e-3 && calls_ < 1000000 && !quick) {              \
                calls_ *= 2;                                                             \
                round_--;                                                                \
            } else if (took_ / (double)calls_ < (result)) {                              \
                (result) = took_ / (double)calls_;                                       \
            }                                                                            \
        }                                                                                \
    } while (0)

/* ---- baselines ---- */

static const char *host_name(baseline_kind kind)
{
    static const char *const names[BASELINE_COUNT] = {
        [BASELINE_COPY] = "memcpy",     [BASELINE_COPY_IN] = "memcpy",
        [BASELINE_COPY_OUT] = "memcpy", [BASELINE_POOL] = "malloc",
        [BASELINE_ALLOC] = "malloc",    [BASELINE_PRODUCT] = "the CPU",
    };
    return names[kind];
}

static double host_run(baseline_kind kind, const int64_t *sizes, int calls)
{
    rle_device *cpu = rle_device_cpu();
    bool product = kind == BASELINE_PRODUCT;
    rle_array x[3];
    static const int dims[3][2] = {{0, 1}, {1, 2}, {0, 2}};
    for (int i = 0; i < 3; i++) {
        x[i] = (rle_array){
            .dtype = product ? RLE_F32 : RLE_U8, .ndim = 2, .shape = {1, sizes[0]}};
        if (product) x[i].shape[0] = sizes[dims[i][0]], x[i].shape[1] = sizes[dims[i][1]];
        rle_array_set_contiguous(&x[i]);
        x[i].data = calloc((size_t)rle_array_numel(&x[i]), rle_dtype_size(x[i].dtype));
        if (!x[i].data) exit(1);
    }
    int64_t start = rle_now();
    for (int i = 0; i < calls; i++) {
        if (product) {
            check(cpu->ops->matmul(cpu, &x[2], &x[0], &x[1], NULL, false));
        } else if (kind == BASELINE_POOL || kind == BASELINE_ALLOC) {
            void *volatile p = malloc((size_t)sizes[0]);
            free(p);
        } else {
            memcpy(x[1].data, x[0].data, (size_t)sizes[0]);
            memcpy(x[0].data, x[1].data, 1);
        }
    }
    double took = (double)(rle_now() - start) * 1e-9;
    for (int i = 0; i < 3; i++) free(x[i].data);
    return took;
}

static const device_baseline host = {host_name, host_run};
static const device_baseline *baseline = &host;

/* Seconds of one call; 0 when there is no such baseline. */
static double least(baseline_kind kind, const int64_t *sizes)
{
    int calls = 1;
    double best = 0;
    if (!baseline->name(kind)) return 0;
    for (int round = -1; round < (quick ? 1 : 7); round++) {
        double took = baseline->run(kind, sizes, calls);
        if (took < 0) return 0;
        if (round < 0 && took < 2e-3 && calls < 1000000 && !quick) {
            calls *= 2;
            round--;
        } else if (best == 0 || took / calls < best) {
            best = took / calls;
        }
    }
    return best;
}

/* ---- lines ---- */

/* One line: a time, `work` a second in `unit` when work > 0, and the ratio to `base`. */
static void line(const char *what, double seconds, double work, const char *unit,
                 double base, const char *base_name)
{
    printf("  %-40s %10.2f us", what, seconds * 1e6);
    if (work > 0)
        printf(" %8.1f %s", work / seconds * 1e-9, unit);
    else
        printf(" %15s", "");
    if (base > 0)
        printf("   %6.2f x %s (%.2f us)", seconds / base, base_name, base * 1e6);
    printf("\n");
    fflush(stdout);
}

/* The ratio of the line above to another baseline. */
static void also(double seconds, baseline_kind kind, int64_t size)
{
    double base = least(kind, &size);
    if (base > 0)
        printf("%71s   %6.2f x %s (%.2f us)\n", "", seconds / base, baseline->name(kind),
               base * 1e6);
}

/* A line against a baseline of its own. */
static void against(const char *what, double seconds, double work, const char *unit,
                    baseline_kind kind, int64_t s0, int64_t s1, int64_t s2)
{
    int64_t sizes[] = {s0, s1, s2};
    line(what, seconds, work, unit, least(kind, sizes), baseline->name(kind));
}

/* An operation that reads and writes `bytes`, against a copy that moves as many. */
static void moves(const char *what, double seconds, int64_t bytes)
{
    against(what, seconds, (double)bytes, "GB/s", BASELINE_COPY, bytes / 2, 0, 0);
}

/* ---- arrays ---- */

static rle_block blocks[256];
static int block_count;

static rle_array array(rle_dtype t, int64_t rows, int64_t cols)
{
    rle_array a = {.dtype = t, .ndim = 2, .shape = {rows, cols}};
    rle_array_set_contiguous(&a);
    rle_block *b = &blocks[block_count++];
    check(rle_device_alloc(dev, (size_t)(rows * cols) * rle_dtype_size(t), b));
    a.data = b->data;
    rle_rng rng = {1, 1, 0};
    if (rle_dtype_is_float(t))
        check(dev->ops->random(dev, RLE_RANDOM_NORMAL, &a, &rng, 0, 1));
    else
        check(dev->ops->fill(dev, &a, 0, 0));
    return a;
}

static rle_array vector(rle_dtype t, int64_t n)
{
    rle_array a = array(t, 1, n);
    a.ndim = 1;
    a.shape[0] = n;
    a.stride[0] = 1;
    return a;
}

static void free_arrays(void)
{
    while (block_count) rle_device_free(dev, &blocks[--block_count]);
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

/* One row as often as there are rows. */
static rle_array repeated(rle_array row, int64_t rows)
{
    row.shape[0] = rows;
    row.stride[0] = 0;
    return row;
}

/* ---- what is measured ---- */

static void launches(void)
{
    printf("launches, f32\n");
    rle_array one = array(RLE_F32, 1, 1), x = array(RLE_F32, 1, 1024);
    double s;
    MEASURE(s, dev->ops->fill(dev, &one, 1, 1));
    against("fill of 1, queued", s, 0, "", BASELINE_LAUNCH, 0, 0, 0);
    MEASURE(s, dev->ops->binary(dev, RLE_BINARY_ADD, &x, &x, &x));
    against("add of 1,024, queued", s, 0, "", BASELINE_LAUNCH, 0, 0, 0);
    MEASURE(s, (check(dev->ops->fill(dev, &one, 1, 1)), rle_device_synchronize(dev)));
    against("fill of 1, waited for", s, 0, "", BASELINE_WAIT, 0, 0, 0);
    free_arrays();
}

static void host_copies(void)
{
    printf("copies from and to host memory\n");
    static const int64_t sizes[] = {16, 4 << 10, 64 << 10, 1 << 20, 64 << 20};
    for (int i = 0; i < (quick ? 3 : 5); i++) {
        char what[64];
        rle_array a = array(RLE_U8, 1, sizes[i]);
        void *memory = calloc(1, (size_t)sizes[i]);
        double s;
        MEASURE(s, dev->copy_in(dev, a.data, memory, (size_t)sizes[i]));
        snprintf(what, sizeof what, "%lld bytes to the device", (long long)sizes[i]);
        against(what, s, (double)sizes[i], "GB/s", BASELINE_COPY_IN, sizes[i], 0, 0);
        if (baseline != &host) also(s, BASELINE_PINNED, sizes[i]);
        MEASURE(s, dev->copy_out(dev, memory, a.data, (size_t)sizes[i]));
        snprintf(what, sizeof what, "%lld bytes from the device", (long long)sizes[i]);
        against(what, s, (double)sizes[i], "GB/s", BASELINE_COPY_OUT, sizes[i], 0, 0);
        free(memory);
        free_arrays();
    }
}

static void elementwise(void)
{
    int64_t rows = quick ? 64 : 65536, cols = quick ? 32 : 1024, n = rows * cols;
    printf("elementwise, f32 [%lld,%lld]\n", (long long)rows, (long long)cols);
    const rle_device_ops *o = dev->ops;
    rle_array x = array(RLE_F32, rows, cols), y = array(RLE_F32, rows, cols),
              z = array(RLE_F32, rows, cols), row = array(RLE_F32, 1, cols),
              flags = array(RLE_BOOL, rows, cols);
    rle_array many = repeated(row, rows), square = array(RLE_F32, cols, rows),
              across = transposed(&square);
    double s;
    MEASURE(s, o->fill(dev, &z, 1, 1));
    moves("fill", s, 4 * n);
    MEASURE(s, o->copy(dev, &z, &x));
    moves("copy", s, 8 * n);
    MEASURE(s, o->copy(dev, &z, &across));
    moves("copy of a transposed", s, 8 * n);
    static const struct {
        const char *name;
        rle_unary_kind kind;
    } functions[] = {{"relu", RLE_UNARY_RELU},       {"exp", RLE_UNARY_EXP},
                     {"log1p", RLE_UNARY_LOG1P},     {"tanh", RLE_UNARY_TANH},
                     {"sigmoid", RLE_UNARY_SIGMOID}, {"softplus", RLE_UNARY_SOFTPLUS},
                     {"sin", RLE_UNARY_SIN}};
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        MEASURE(s, o->unary(dev, functions[i].kind, &z, &x, 0, 0));
        moves(functions[i].name, s, 8 * n);
    }
    MEASURE(s, o->unary_backward(dev, RLE_UNARY_TANH, &z, &x, NULL, &y, 0, 0));
    moves("tanh, backward", s, 12 * n);
    MEASURE(s, o->binary(dev, RLE_BINARY_ADD, &z, &x, &y));
    moves("add", s, 12 * n);
    MEASURE(s, o->binary(dev, RLE_BINARY_ADD, &z, &x, &many));
    moves("add a row", s, 8 * n);
    MEASURE(s, o->binary_scalar(dev, RLE_BINARY_MUL, &z, &x, 2, 2, false));
    moves("times a number", s, 8 * n);
    MEASURE(s, o->binary(dev, RLE_BINARY_GT, &flags, &x, &y));
    moves("greater than", s, 9 * n);
    MEASURE(s, o->where(dev, &z, &flags, &x, &y));
    moves("where", s, 13 * n);
    rle_rng rng = {1, 2, 0};
    MEASURE(s, o->random(dev, RLE_RANDOM_UNIFORM, &z, &rng, 0, 1));
    moves("uniform random numbers", s, 4 * n);
    MEASURE(s, o->random(dev, RLE_RANDOM_NORMAL, &z, &rng, 0, 1));
    moves("normal random numbers", s, 4 * n);
    free_arrays();
}

static void reductions(void)
{
    const rle_device_ops *o = dev->ops;
    static const int64_t shapes[][2] = {
        {65536, 1024}, {1 << 20, 64}, {1 << 22, 2}, {256, 128}};
    for (int i = 0; i < 4; i++) {
        int64_t rows = quick ? 64 : shapes[i][0], cols = shapes[i][1], n = rows * cols;
        if (quick && cols > 128) continue;
        printf("reductions, f32 [%lld,%lld]\n", (long long)rows, (long long)cols);
        rle_array x = array(RLE_F32, rows, cols), y = array(RLE_F32, rows, cols),
                  z = array(RLE_F32, rows, cols), row = array(RLE_F32, 1, cols),
                  column = array(RLE_F32, rows, 1), one = array(RLE_F32, 1, 1),
                  where = array(RLE_I64, rows, 1);
        double s;
        MEASURE(s, o->reduce(dev, RLE_REDUCE_SUM, &one, &x, 3));
        moves("sum of all", s, 4 * n);
        MEASURE(s, o->reduce(dev, RLE_REDUCE_SUM, &row, &x, 1));
        moves("sum over rows", s, 4 * n);
        MEASURE(s, o->reduce(dev, RLE_REDUCE_SUM, &column, &x, 2));
        moves("sum over columns", s, 4 * n);
        MEASURE(s, o->reduce(dev, RLE_REDUCE_LOGSUMEXP, &column, &x, 2));
        moves("logsumexp over columns", s, 4 * n);
        MEASURE(s, o->arg_reduce(dev, true, NULL, &where, &x, 1));
        moves("argmax over columns", s, 4 * n);
        MEASURE(s, o->softmax(dev, false, &y, &x, 1));
        moves("softmax", s, 8 * n);
        MEASURE(s, o->softmax(dev, true, &y, &x, 1));
        moves("log_softmax", s, 8 * n);
        MEASURE(s, o->softmax_backward(dev, true, &z, &x, &y, 1));
        moves("log_softmax, backward", s, 12 * n);
        free_arrays();
    }
}

/* Products by the engine's own kernels, or by a library where there is one. */
static void choose_library(bool library)
{
    rle_blas_state now;
    if (rle_device_blas(dev, NULL, &now) != RLE_OK) return; /* the device has no choice */
    now.settings.batch_invariant = !library;
    now.settings.threshold = library ? 0 : now.settings.threshold;
    check(rle_device_blas(dev, &now.settings, NULL));
}

static void product(int64_t m, int64_t k, int64_t n)
{
    rle_array a = array(RLE_F32, m, k), b = array(RLE_F32, k, n),
              out = array(RLE_F32, m, n);
    double s, work = 2.0 * (double)m * (double)k * (double)n;
    char what[64];
    MEASURE(s, dev->ops->matmul(dev, &out, &a, &b, NULL, false));
    snprintf(what, sizeof what, "[%lld,%lld] x [%lld,%lld]", (long long)m, (long long)k,
             (long long)k, (long long)n);
    against(what, s, work, "GFLOP/s", BASELINE_PRODUCT, m, k, n);
    free_arrays();
}

static void products(void)
{
    static const int64_t layers[][2] = {
        {4, 128}, {128, 2}, {64, 64}, {128, 128}, {256, 256}};
    static const int64_t batches[] = {1, 64, 256, 1024, 8192};
    static const int64_t squares[] = {512, 1024, 4096};
    rle_blas_state before;
    bool choice = rle_device_blas(dev, NULL, &before) == RLE_OK;
    for (int library = 0; library < (choice ? 2 : 1); library++) {
        choose_library(library);
        printf("products, f32, by %s\n",
               library ? "the library, through the engine" : "the engine's own kernels");
        for (int i = library ? 4 : 0; i < 5; i++)
            for (int j = 0; j < (quick ? 1 : 5); j++)
                product(batches[j], layers[i][0], layers[i][1]);
        for (int i = 0; i < (quick ? 0 : 3); i++)
            product(squares[i], squares[i], squares[i]);
    }
    if (choice) check(rle_device_blas(dev, &before.settings, NULL));
}

/* ---- policies ---- */

enum { MOST_LAYERS = 3 };

/* A chain of layers: what goes in, the result of each, what is drawn. */
typedef struct {
    int count;
    rle_array x[MOST_LAYERS + 1], weight[MOST_LAYERS], turned[MOST_LAYERS],
        bias[MOST_LAYERS];
    rle_array keys, u, action, log_prob;
    rle_mlp_layer layers[MOST_LAYERS];
} chain;

static void chain_new(chain *c, const int64_t *sizes, int64_t rows)
{
    c->x[0] = array(RLE_F32, rows, sizes[0]);
    for (c->count = 0; c->count < MOST_LAYERS && sizes[c->count + 1]; c->count++) {
        int l = c->count;
        int64_t in = sizes[l], out = sizes[l + 1];
        c->x[l + 1] = array(RLE_F32, rows, out);
        c->weight[l] = array(RLE_F32, out, in);
        check(dev->ops->binary_scalar(dev, RLE_BINARY_MUL, &c->weight[l], &c->weight[l],
                                      0.1, 0, false));
        c->turned[l] = transposed(&c->weight[l]);
        c->bias[l] = vector(RLE_F32, out);
        c->layers[l] =
            (rle_mlp_layer){in, out, c->weight[l].data, c->bias[l].data, RLE_UNARY_RELU};
    }
    c->layers[c->count - 1].function = RLE_MLP_SOFTMAX;
    c->keys = vector(RLE_I64, rows);
    c->u = array(RLE_F32, rows, 1);
    c->action = array(RLE_I64, rows, 1);
    c->log_prob = array(RLE_F32, rows, 1);
}

/* An operation after the other. */
static rle_status forward_apart(chain *c)
{
    const rle_device_ops *o = dev->ops;
    for (int l = 0; l < c->count; l++) {
        rle_array *y = &c->x[l + 1];
        RLE_TRY(o->matmul(dev, y, &c->x[l], &c->turned[l], &c->bias[l], false));
        RLE_TRY(l < c->count - 1 ? o->unary(dev, RLE_UNARY_RELU, y, y, 0, 0)
                                 : o->softmax(dev, false, y, y, 1));
    }
    return RLE_OK;
}

static rle_status act_apart(chain *c)
{
    const rle_device_ops *o = dev->ops;
    const rle_array *probs = &c->x[c->count];
    RLE_TRY(forward_apart(c));
    RLE_TRY(o->random_keyed(dev, &c->u, 1, &c->keys, 0));
    RLE_TRY(o->multinomial(dev, &c->action, probs, &c->u));
    RLE_TRY(o->gather(dev, &c->log_prob, probs, 1, &c->action));
    RLE_TRY(o->unary(dev, RLE_UNARY_LOG, &c->log_prob, &c->log_prob, 0, 0));
    return rle_device_synchronize(dev);
}

static void policies(void)
{
    printf("policies, f32: a plan of all layers against an operation each\n");
    static const int64_t networks[][MOST_LAYERS + 1] = {{4, 128, 2}, {64, 256, 256, 18}};
    static const int64_t batches[] = {1, 8, 64, 1024};
    for (int w = 0; w < 2; w++)
        for (int b = 0; b < (quick ? 2 : 4); b++) {
            int64_t rows = batches[b];
            chain c;
            chain_new(&c, networks[w], rows);
            rle_array y = array(RLE_F32, rows, c.x[c.count].shape[1]);
            rle_mlp *plan;
            check(rle_mlp_new(dev, c.layers, c.count, &plan));
            double apart, fused;
            char what[64];
            MEASURE(apart, forward_apart(&c));
            MEASURE(fused, rle_mlp_forward(plan, c.x[0].data, rows, y.data));
            snprintf(what, sizeof what, "%d layers, %lld rows", c.count, (long long)rows);
            line(what, fused, 0, "", apart, "apart");
            if (rle_mlp_draws(plan, rows)) {
                rle_dense_draw draw = {.action = c.action.data,
                                       .log_prob = c.log_prob.data,
                                       .keys = c.keys.data,
                                       .rng = {1, 0, 0}};
                MEASURE(apart, act_apart(&c));
                MEASURE(fused, rle_mlp_draw(plan, c.x[0].data, rows, &draw));
                line("  and an action each, waited for", fused, 0, "", apart, "apart");
            }
            rle_mlp_free(plan);
            free_arrays();
        }
}

/* Adam over the parameters of a network: in one call, and each in a call of its own. */
static void optimizers(void)
{
    enum { MOST = 16 };
    static const int64_t networks[][5] = {{4, 128, 2}, {64, 256, 256, 256, 18}};
    for (int w = 0; w < 2; w++) {
        rle_array p[MOST], g[MOST], m[MOST], v[MOST];
        int count = 0;
        int64_t numbers = 0;
        for (int l = 0; l < 4 && networks[w][l + 1]; l++)
            for (int bias = 0; bias < 2; bias++, count++) {
                int64_t rows = networks[w][l + 1], cols = bias ? 1 : networks[w][l];
                p[count] = array(RLE_F32, rows, cols);
                g[count] = array(RLE_F32, rows, cols);
                m[count] = array(RLE_F32, rows, cols);
                v[count] = array(RLE_F32, rows, cols);
                check(dev->ops->fill(dev, &v[count], 0, 0));
                numbers += rows * cols;
            }
        rle_adam_args adam = {
            .lr = 1e-3, .beta1 = .9, .beta2 = .999, .eps = 1e-8, .step = 10};
        double together, apart = 0;
        MEASURE(together, dev->ops->adam(dev, p, g, m, v, count, &adam));
        for (int i = 0; i < count; i++) {
            double s;
            MEASURE(s, dev->ops->adam(dev, p + i, g + i, m + i, v + i, 1, &adam));
            apart += s;
        }
        char what[64];
        snprintf(what, sizeof what, "Adam over %d parameters, %lld numbers", count,
                 (long long)numbers);
        line(what, together, 28.0 * (double)numbers, "GB/s", apart, "a call each");
        free_arrays();
    }
}

static rle_status take(int64_t size)
{
    rle_block b;
    rle_status status = rle_device_alloc(dev, (size_t)size, &b);
    if (status == RLE_OK) rle_device_free(dev, &b);
    return status;
}

static rle_status take_raw(int64_t size)
{
    void *p = dev->raw_alloc(dev, (size_t)size);
    if (!p) return rle_fail(RLE_RESOURCE_EXHAUSTED, "%lld bytes", (long long)size);
    dev->raw_free(dev, p, (size_t)size);
    return RLE_OK;
}

static void memory(void)
{
    printf("memory: a block taken and given back\n");
    static const int64_t sizes[] = {512, 64 << 10, 1 << 20, 64 << 20};
    for (int i = 0; i < 4; i++) {
        char what[64];
        double s;
        MEASURE(s, take(sizes[i]));
        snprintf(what, sizeof what, "%lld bytes, the engine's cache",
                 (long long)sizes[i]);
        against(what, s, 0, "", BASELINE_POOL, sizes[i], 0, 0);
        if (baseline != &host) also(s, BASELINE_ALLOC, sizes[i]);
        MEASURE(s, take_raw(sizes[i]));
        snprintf(what, sizeof what, "%lld bytes, from the driver", (long long)sizes[i]);
        against(what, s, 0, "", BASELINE_ALLOC, sizes[i], 0, 0);
    }
}

/* ---- ---- */

static void open_baseline(const char *path)
{
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    device_baseline_fn *entry = NULL;
    if (object) *(void **)&entry = dlsym(object, DEVICE_BASELINE_ENTRY);
    if (entry)
        baseline = entry();
    else
        printf("no baseline: %s\n", dlerror());
}

int main(int argc, char **argv)
{
    const char *name = NULL;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--quick"))
            quick = true;
        else if (!strcmp(argv[i], "--baseline") && i + 1 < argc)
            open_baseline(argv[++i]);
        else
            name = argv[i];
    }
    if (!name) {
        fprintf(stderr, "bench_device DEVICE [--baseline cuda_baseline.so] [--quick]\n");
        return 1;
    }
    check(rle_device_get(name, 0, &dev));
    rle_device_properties is;
    check(rle_device_get_properties(dev, &is));
    printf("%s: %s\n", dev->name, is.name);
    if (dev->type == RLE_DEVICE_EMU)
        printf("an emulation: that it runs is what this shows, the times mean nothing\n");
    launches();
    policies();
    products();
    host_copies();
    elementwise();
    reductions();
    printf("optimizers\n");
    optimizers();
    memory();
    return 0;
}
