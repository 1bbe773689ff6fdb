/* cublas.cc - cuBLAS on the emulated device: plain loops, as work of the handle's stream.
 *
 * Arguments are checked as cuBLAS does, and more: matrices must lie in the device's memory
 * to their last element. Sums are taken in double and rounded once, so that they differ in
 * the last bits from the engine's own kernels, as the real library's do. With TF32 the
 * factors are rounded to 10 bits behind the point. */
#include <math.h>
#include <string.h>

#include "cublas_v2.h"
#include "emu_control.h"
#include "emu_internal.h"

using namespace emu;

struct emuBlas {
    Device *device;
    cudaStream_t stream;
    cublasMath_t math;
};

namespace
{

struct Matrix {
    const void *data;
    cublasOperation_t op;
    int64_t rows, cols, ld; /* of op(matrix); ld of the matrix */
    long long stride;
};

/* cuBLAS demands ld to be at least as long as a column, 1 if that is empty. */
template <typename T> bool fits(const Device *d, const Matrix &m, int count)
{
    int64_t rows = m.op == CUBLAS_OP_N ? m.rows : m.cols;
    int64_t cols = m.op == CUBLAS_OP_N ? m.cols : m.rows;
    if (m.ld < (rows > 1 ? rows : 1) || m.stride < 0) return false;
    if (!rows || !cols || !count) return true;
    size_t last = static_cast<size_t>(m.ld * (cols - 1) + rows - 1 + m.stride * (count - 1));
    return within_block(d, m.data, (last + 1) * sizeof(T));
}

double rounded(double x, bool) { return x; }
double rounded(float x, bool tf32)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if (tf32 && isfinite(x)) bits = (bits + 0xfffu + (bits >> 13 & 1)) & ~0x1fffu;
    memcpy(&x, &bits, 4);
    return static_cast<double>(x);
}

template <typename T> T element(const Matrix &m, int batch, int64_t i, int64_t j)
{
    const T *p = static_cast<const T *>(m.data) + batch * m.stride;
    return m.op == CUBLAS_OP_N ? p[i + j * m.ld] : p[j + i * m.ld];
}

/* The start of every call with a handle. */
cublasStatus_t begin(cublasHandle_t handle)
{
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    return static_cast<cublasStatus_t>(ordered_failure(FAIL_CUBLAS));
}

template <typename T>
cublasStatus_t multiply(cublasHandle_t handle, T alpha, Matrix a, Matrix b, T beta, Matrix c,
                        int count)
{
    cublasStatus_t status = begin(handle);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    Device *d;
    if (enter("cublasGemm", &d) != cudaSuccess) return CUBLAS_STATUS_EXECUTION_FAILED;
    if (c.rows < 0 || c.cols < 0 || a.cols < 0 || count < 0 || d != handle->device ||
        !fits<T>(d, a, count) || !fits<T>(d, b, count) || !fits<T>(d, c, count))
        return CUBLAS_STATUS_INVALID_VALUE;
    bool tf32 = handle->math == CUBLAS_TF32_TENSOR_OP_MATH;
    cudaError_t e = push(handle->stream, [=](Device *) {
        for (int batch = 0; batch < count; batch++)
            for (int64_t j = 0; j < c.cols; j++)
                for (int64_t i = 0; i < c.rows; i++) {
                    double sum = 0;
                    for (int64_t k = 0; k < a.cols; k++)
                        sum += rounded(element<T>(a, batch, i, k), tf32) *
                               rounded(element<T>(b, batch, k, j), tf32);
                    T *out = static_cast<T *>(const_cast<void *>(c.data)) + batch * c.stride +
                             i + j * c.ld;
                    sum *= static_cast<double>(alpha);
                    /* With beta 0 what is there is not read: it may be NaN. */
                    if (beta != 0) sum += static_cast<double>(beta) * static_cast<double>(*out);
                    *out = static_cast<T>(sum);
                }
    });
    return e == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

} // namespace

extern "C" cublasStatus_t cublasCreate_v2(cublasHandle_t *handle)
{
    Device *d;
    if (enter("cublasCreate", &d) != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
    int ordered = ordered_failure(FAIL_CUBLAS);
    if (ordered) return static_cast<cublasStatus_t>(ordered);
    *handle = new emuBlas{d, nullptr, CUBLAS_DEFAULT_MATH};
    return CUBLAS_STATUS_SUCCESS;
}

extern "C" cublasStatus_t cublasDestroy_v2(cublasHandle_t handle)
{
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

extern "C" cublasStatus_t cublasGetVersion_v2(cublasHandle_t, int *version)
{
    *version = CUDART_VERSION * 10;
    return CUBLAS_STATUS_SUCCESS;
}

extern "C" cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream)
{
    cublasStatus_t status = begin(handle);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    handle->stream = stream;
    return CUBLAS_STATUS_SUCCESS;
}

extern "C" cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void *workspace, size_t size)
{
    cublasStatus_t status = begin(handle);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    if (reinterpret_cast<uintptr_t>(workspace) % 256 ||
        !within_block(handle->device, workspace, size))
        return CUBLAS_STATUS_INVALID_VALUE;
    return CUBLAS_STATUS_SUCCESS;
}

extern "C" cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode)
{
    cublasStatus_t status = begin(handle);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    if (mode != CUBLAS_DEFAULT_MATH && mode != CUBLAS_TF32_TENSOR_OP_MATH)
        return CUBLAS_STATUS_INVALID_VALUE;
    handle->math = mode;
    return CUBLAS_STATUS_SUCCESS;
}

extern "C" const char *cublasGetStatusString(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR: return "CUBLAS_STATUS_INTERNAL_ERROR";
    default: return "CUBLAS_STATUS_NOT_SUPPORTED";
    }
}

#define GEMM(NAME, BATCHED, T)                                                           \
    extern "C" cublasStatus_t BATCHED(                                                   \
        cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m,    \
        int n, int k, const T *alpha, const T *a, int lda, long long stride_a,           \
        const T *b, int ldb, long long stride_b, const T *beta, T *c, int ldc,           \
        long long stride_c, int count)                                                   \
    {                                                                                    \
        return multiply<T>(handle, *alpha, {a, op_a, m, k, lda, stride_a},               \
                           {b, op_b, k, n, ldb, stride_b}, *beta,                        \
                           {c, CUBLAS_OP_N, m, n, ldc, stride_c}, count);                \
    }                                                                                    \
    extern "C" cublasStatus_t NAME(cublasHandle_t handle, cublasOperation_t op_a,        \
                                   cublasOperation_t op_b, int m, int n, int k,          \
                                   const T *alpha, const T *a, int lda, const T *b,      \
                                   int ldb, const T *beta, T *c, int ldc)                \
    {                                                                                    \
        return BATCHED(handle, op_a, op_b, m, n, k, alpha, a, lda, 0, b, ldb, 0, beta,   \
                       c, ldc, 0, 1);                                                    \
    }
GEMM(cublasSgemm_v2, cublasSgemmStridedBatched, float)
GEMM(cublasDgemm_v2, cublasDgemmStridedBatched, double)

/* ---- what stands for dlopen and dlsym ---- */

extern "C" void *rle_emu_library(const char *file)
{
    static char self;
    return settings.cublas && strncmp(file, "libcublas.so", 12) == 0 ? &self : nullptr;
}

extern "C" void *rle_emu_symbol(void *, const char *name)
{
#define SYMBOL(f) {#f, reinterpret_cast<void *>(f)}
    static const struct {
        const char *name;
        void *function;
    } symbols[] = {
        SYMBOL(cublasCreate_v2),           SYMBOL(cublasDestroy_v2),
        SYMBOL(cublasGetVersion_v2),       SYMBOL(cublasSetStream_v2),
        SYMBOL(cublasSetWorkspace_v2),     SYMBOL(cublasSetMathMode),
        SYMBOL(cublasGetStatusString),     SYMBOL(cublasSgemm_v2),
        SYMBOL(cublasDgemm_v2),            SYMBOL(cublasSgemmStridedBatched),
        SYMBOL(cublasDgemmStridedBatched),
    };
    for (auto &s : symbols)
        if (strcmp(s.name, name) == 0) return s.function;
    return nullptr;
}
