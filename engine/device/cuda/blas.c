/* blas.c - cuBLAS, for products that are large.
 *
 * The library is opened when a product first needs it, not before: loading it takes a
 * tenth of a second and 200 MB. There is one for the process, and for every device one
 * handle, on the device's stream, with one workspace that is ours: cuBLAS allocates
 * nothing on its own and, with one stream and one workspace, gives the same bits each
 * time. Where it cannot be had the engine's own kernels do all the work; the reason is
 * told once.
 *
 * Which products it gets depends on (K, N), the settings and the layout, never on the
 * number of rows: what is below the threshold has the same bits in every batch. */
#include <cublas_v2.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "device/cuda/cuda_internal.h"

/* A weight of 512 x 512 is the smallest power of two beyond it; gradients of weights,
 * whose sums run over the rows of a batch, pass it from a few hundred rows on. */
enum { THRESHOLD = 1 << 17, LEAST_WORKSPACE = 64 << 10 };

#define FUNCTIONS(X)                                                                     \
    X(cublasCreate_v2)                                                                   \
    X(cublasDestroy_v2)                                                                  \
    X(cublasGetVersion_v2)                                                               \
    X(cublasGetStatusString)                                                             \
    X(cublasSetStream_v2)                                                                \
    X(cublasSetWorkspace_v2)                                                             \
    X(cublasSetMathMode)                                                                 \
    X(cublasSgemm_v2)                                                                    \
    X(cublasDgemm_v2)                                                                    \
    X(cublasSgemmStridedBatched)                                                         \
    X(cublasDgemmStridedBatched)

static struct {
    void *object; /* what dlopen gave; NULL: not open */
#define DECLARE(f) __typeof__(&f) f;
    FUNCTIONS(DECLARE)
} api;

/* False: the reason is in `text`. */
static bool open_library(char *text, size_t size)
{
    char file[64];
    if (api.object) return true;
    snprintf(file, sizeof file, "libcublas.so.%d", CUDART_VERSION / 1000);
    void *library = rle_cuda_library(file);
    if (!library) library = rle_cuda_library("libcublas.so");
    if (!library) {
        snprintf(
            text, size,
            "%s is not there, the engine's own kernels multiply all matrices; to have "
            "it, install cuBLAS %d",
            file, CUDART_VERSION / 1000);
        return false;
    }
#define FIND(f)                                                                          \
    *(void **)&api.f = rle_cuda_symbol(library, #f);                                     \
    if (!api.f) {                                                                        \
        snprintf(text, size,                                                             \
                 "%s has no %s, the engine's own kernels multiply all "                  \
                 "matrices",                                                             \
                 file, #f);                                                              \
        return false;                                                                    \
    }
    FUNCTIONS(FIND)
    api.object = library;
    return true;
}

static rle_status check(rle_device *dev, const char *op, cublasStatus_t status)
{
    if (status == CUBLAS_STATUS_SUCCESS) return rle_cuda_check(dev, op, cudaSuccess);
    /* What the driver says is nearer to the cause, and may end the process. */
    RLE_TRY(rle_cuda_check(dev, op, cudaGetLastError()));
    return rle_fail(status == CUBLAS_STATUS_ALLOC_FAILED ? RLE_RESOURCE_EXHAUSTED
                                                         : RLE_INTERNAL,
                    "%s: %s: cuBLAS says %s (%d)", dev->name, op,
                    api.cublasGetStatusString(status), (int)status);
}

/* ---- the handle and its workspace ---- */

static void give_up(rle_cuda_blas *b, const char *name)
{
    char line[sizeof b->text + 32];
    b->failed = true;
    snprintf(line, sizeof line, "%s: %s", name, b->text);
    rle_host->warn(line);
}

static rle_status configure(rle_device *dev, cublasHandle_t h, void *workspace,
                            const rle_blas_settings *s)
{
    cublasStatus_t e = api.cublasSetStream_v2(h, rle_cuda_stream(dev));
    if (e == CUBLAS_STATUS_SUCCESS)
        e = api.cublasSetWorkspace_v2(h, workspace, s->workspace);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = api.cublasSetMathMode(h, s->tf32 ? CUBLAS_TF32_TENSOR_OP_MATH
                                             : CUBLAS_DEFAULT_MATH);
    return check(dev, "set up cuBLAS", e);
}

/* 0: the driver does not say. */
static size_t free_bytes(void)
{
    size_t bytes, total;
    if (cudaMemGetInfo(&bytes, &total) == cudaSuccess) return bytes;
    (void)cudaGetLastError();
    return 0;
}

static const rle_workspace of_workspace = {
    "the workspace of cuBLAS", "rl.cuda.matmul{workspace = ...} makes it smaller"};
static const rle_workspace of_library = {"what cuBLAS takes for itself",
                                         "rl.cuda.matmul{batch_invariant = true} "
                                         "does without it"};

/* The handle and the workspace go; the settings stay. */
static void drop(rle_device *dev)
{
    rle_cuda_blas *b = &rle_cuda_of(dev)->blas;
    if (b->handle) api.cublasDestroy_v2(b->handle);
    if (b->handle_bytes) rle_host->give(dev, NULL, b->handle_bytes);
    if (b->workspace) rle_host->give(dev, b->workspace, b->taken);
    b->handle = b->workspace = NULL;
    b->taken = b->handle_bytes = 0;
}

/* The workspace is there: the handle. *ready false, with RLE_OK: there is none to be had.
 */
static rle_status start(rle_device *dev, bool *ready)
{
    rle_cuda_blas *b = &rle_cuda_of(dev)->blas;
    cublasHandle_t h = NULL;
    size_t before = free_bytes();
    cublasStatus_t e = api.cublasCreate_v2(&h);
    if (e == CUBLAS_STATUS_NOT_INITIALIZED || e == CUBLAS_STATUS_ALLOC_FAILED) {
        /* Also what it says when it finds no memory: it may be free blocks that hold it.
         */
        (void)cudaGetLastError();
        rle_host->make_room(dev, 0);
        if (rle_cuda_enter(dev) == RLE_OK) {
            before = free_bytes();
            e = api.cublasCreate_v2(&h);
        }
    }
    if (e != CUBLAS_STATUS_SUCCESS) {
        snprintf(
            b->text, sizeof b->text,
            "cuBLAS does not start (%s), the engine's own kernels multiply all matrices",
            api.cublasGetStatusString(e));
        (void)cudaGetLastError();
        give_up(b, dev->name);
        return RLE_OK;
    }
    b->handle = h;
    size_t after = free_bytes(), own = after && before > after ? before - after : 0;
    RLE_TRY(rle_host->count(dev, own ? &of_library : NULL, own));
    b->handle_bytes = own;
    RLE_TRY(configure(dev, h, b->workspace, &b->settings));
    int version = 0;
    api.cublasGetVersion_v2(h, &version);
    snprintf(b->text, sizeof b->text, "cuBLAS %d.%d", version / 10000,
             version / 100 % 100);
    *ready = true;
    return RLE_OK;
}

/* *ready: there is a handle. False, with RLE_OK: there is none to be had. */
static rle_status prepare(rle_device *dev, bool *ready)
{
    rle_cuda_blas *b = &rle_cuda_of(dev)->blas;
    *ready = b->handle != NULL;
    if (b->handle || b->failed) return RLE_OK;
    if (b->workspace) return RLE_OK; /* asked while it starts, by who runs meanwhile */
    if (!open_library(b->text, sizeof b->text)) {
        give_up(b, dev->name);
        return RLE_OK;
    }
    void *workspace;
    size_t size = b->settings.workspace, taken;
    RLE_TRY(rle_host->take(dev, &of_workspace, size, size, &workspace, &taken));
    if (b->handle) { /* who ran while room was made had need of it, too */
        rle_host->give(dev, workspace, taken);
        *ready = true;
        return RLE_OK;
    }
    b->workspace = workspace;
    b->taken = taken;
    rle_status status = start(dev, ready);
    if (status != RLE_OK || !*ready) drop(dev);
    return status;
}

void rle_cuda_blas_init(rle_device *dev)
{
    struct cudaDeviceProp p;
    rle_cuda_blas *b = &rle_cuda_of(dev)->blas;
    bool large = cudaGetDeviceProperties(&p, dev->index) == cudaSuccess && p.major >= 9;
    (void)cudaGetLastError();
    b->settings = (rle_blas_settings){.workspace = (size_t)(large ? 32 : 4) << 20,
                                      .threshold = THRESHOLD};
}

void rle_cuda_blas_close(rle_device *dev)
{
    drop(dev);
}

/* ---- settings ---- */

static rle_status change(rle_device *dev, const rle_blas_settings *s)
{
    rle_cuda_blas *b = &rle_cuda_of(dev)->blas;
    if (s->workspace < LEAST_WORKSPACE || s->workspace % 256 || s->threshold < 0)
        return rle_fail(
            RLE_INVALID_ARGUMENT,
            "%s: the workspace of products must be at least %d KiB in steps of 256 "
            "bytes, and the threshold at least 0",
            dev->name, LEAST_WORKSPACE >> 10);
    rle_cuda_enter(dev);
    if (b->handle) {
        rle_blas_settings before = b->settings;
        /* Products that were given to the stream may still use the workspace.
         * (not seen emulated: cudaFree waits too) */
        RLE_TRY(rle_cuda_check_call(dev, "synchronize",
                                    cudaStreamSynchronize(rle_cuda_stream(dev))));
        drop(dev);
        b->settings = *s;
        bool ready;
        rle_status status = prepare(dev, &ready);
        if (status != RLE_OK) b->settings = before; /* the next product makes it anew */
        return status;
    }
    b->settings = *s;
    b->failed = false; /* it may have been installed by now */
    return RLE_OK;
}

rle_status rle_cuda_blas_settings(rle_device *dev, const rle_blas_settings *set,
                                  rle_blas_state *out)
{
    if (set) RLE_TRY(change(dev, set));
    const rle_cuda_blas *b = &rle_cuda_of(dev)->blas;
    if (!out) return RLE_OK;
    out->settings = b->settings;
    out->open = b->handle != NULL;
    snprintf(out->text, sizeof out->text, "%s", b->handle || b->failed ? b->text : "");
    return RLE_OK;
}

/* ---- products ---- */

bool rle_cuda_blas_takes(const rle_device *dev, int64_t k, int64_t n)
{
    const rle_cuda_blas *b = &rle_cuda_of(dev)->blas;
    if (b->settings.batch_invariant || b->failed || k < 1 || n < 1) return false;
    return k >= b->settings.threshold / n + (b->settings.threshold % n != 0);
}

/* A matrix in memory as cuBLAS sees it, which counts by columns: the transpose of one
 * whose rows are contiguous (OP_N gives that transpose), or itself. */
typedef struct view {
    const void *data;
    int64_t rows, cols, row, col;
    long long batch;
    cublasOperation_t op;
    int64_t ld;
} view;

static view transposed(view v)
{
    return (view){.data = v.data,
                  .rows = v.cols,
                  .cols = v.rows,
                  .row = v.col,
                  .col = v.row,
                  .batch = v.batch};
}

static bool lay_out(view *v)
{
    int64_t row = v->row, col = v->cols == 1 ? 1 : v->col;
    if (v->rows == 1) row = col == 1 ? v->cols : 1; /* never used: any that fits */
    if (v->rows > INT_MAX || v->cols > INT_MAX || v->batch < 0) return false;
    if (col == 1 && row >= v->cols) {
        v->op = CUBLAS_OP_N;
        v->ld = row;
    } else if (row == 1 && col >= v->rows) {
        v->op = CUBLAS_OP_T;
        v->ld = col;
    } else {
        return false;
    }
    return v->ld <= INT_MAX;
}

rle_status rle_cuda_blas_gemm(rle_device *dev, rle_dtype t, const rle_k_gemm *g,
                              bool *done)
{
    *done = false;
    if (!g->m || !g->batches || g->batches > INT_MAX) return RLE_OK;
    view a = {g->a, g->m, g->k, g->a_row, g->a_col, g->a_batch, CUBLAS_OP_N, 0};
    view b = {g->b, g->k, g->n, g->b_row, g->b_col, g->b_batch, CUBLAS_OP_N, 0};
    view c = {g->out, g->m, g->n, g->out_row, g->out_col, g->out_batch, CUBLAS_OP_N, 0};
    if (!lay_out(&c)) return RLE_OK;
    if (c.op == CUBLAS_OP_T) { /* out^T = b^T a^T, and out^T has contiguous rows */
        view swap = transposed(a);
        a = transposed(b);
        b = swap;
        c = transposed(c);
        if (!lay_out(&c) || c.op != CUBLAS_OP_N) return RLE_OK;
    }
    if (!lay_out(&a) || !lay_out(&b)) return RLE_OK;
    bool ready;
    RLE_TRY(prepare(dev, &ready));
    if (!ready) return RLE_OK;
    cublasHandle_t h = rle_cuda_of(dev)->blas.handle;
    int m = (int)c.rows, n = (int)c.cols, k = (int)a.cols, count = (int)g->batches;
    int lda = (int)a.ld, ldb = (int)b.ld, ldc = (int)c.ld;
    float one32 = 1, beta32 = g->accumulate;
    double one64 = 1, beta64 = g->accumulate;
    cublasStatus_t e;
    if (t == RLE_F32 && count == 1)
        e = api.cublasSgemm_v2(h, b.op, a.op, n, m, k, &one32, b.data, ldb, a.data, lda,
                               &beta32, g->out, ldc);
    else if (t == RLE_F32)
        e = api.cublasSgemmStridedBatched(h, b.op, a.op, n, m, k, &one32, b.data, ldb,
                                          b.batch, a.data, lda, a.batch, &beta32, g->out,
                                          ldc, c.batch, count);
    else if (count == 1)
        e = api.cublasDgemm_v2(h, b.op, a.op, n, m, k, &one64, b.data, ldb, a.data, lda,
                               &beta64, g->out, ldc);
    else
        e = api.cublasDgemmStridedBatched(h, b.op, a.op, n, m, k, &one64, b.data, ldb,
                                          b.batch, a.data, lda, a.batch, &beta64, g->out,
                                          ldc, c.batch, count);
    RLE_TRY(check(dev, "matmul", e));
    *done = true;
    if (!g->bias && g->function == RLE_DENSE_NONE) return RLE_OK;
    return rle_cuda_check(dev, "matmul", rle_k_bias_function(t, g, rle_cuda_stream(dev)));
}
