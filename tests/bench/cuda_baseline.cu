/* cuda_baseline.cu - CUDA's own calls and cuBLAS, for bench_device to compare with.
 *
 *   nvcc -std=c++17 -O2 -arch=native -shared -Xcompiler=-fPIC -Itests/bench \
 *     -o build/bench/cuda_baseline.so tests/bench/cuda_baseline.cu
 *
 * cuBLAS is opened by name, so that this builds without it. It runs with f32 as it is (no
 * TF32), as the engine does unless told otherwise. */
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device_baseline.h"

namespace {

__global__ void nothing() {}

double now()
{
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

cudaStream_t stream;

/* ---- cuBLAS ---- */

typedef int (*create_fn)(void **handle);
typedef int (*set_stream_fn)(void *handle, cudaStream_t stream);
typedef int (*sgemm_fn)(void *handle, int ta, int tb, int m, int n, int k, const float *alpha,
                        const float *a, int lda, const float *b, int ldb, const float *beta,
                        float *c, int ldc);
void *blas;
sgemm_fn sgemm;

bool open_blas()
{
    static bool tried;
    if (tried) return sgemm != nullptr;
    tried = true;
    void *lib = nullptr;
    static const char *const names[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so"};
    for (size_t i = 0; i < sizeof names / sizeof *names && !lib; i++)
        lib = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!lib) return false;
    create_fn create = reinterpret_cast<create_fn>(dlsym(lib, "cublasCreate_v2"));
    set_stream_fn set_stream =
        reinterpret_cast<set_stream_fn>(dlsym(lib, "cublasSetStream_v2"));
    sgemm_fn fn = reinterpret_cast<sgemm_fn>(dlsym(lib, "cublasSgemm_v2"));
    if (!create || !set_stream || !fn || create(&blas) != 0 || set_stream(blas, stream) != 0)
        return false;
    sgemm = fn;
    return true;
}

double product(const int64_t *sizes, int calls)
{
    int m = static_cast<int>(sizes[0]), k = static_cast<int>(sizes[1]),
        n = static_cast<int>(sizes[2]);
    float *p[3];
    size_t bytes[] = {sizeof(float) * m * k, sizeof(float) * k * n, sizeof(float) * m * n};
    for (int i = 0; i < 3; i++)
        if (cudaMalloc(&p[i], bytes[i]) != cudaSuccess ||
            cudaMemsetAsync(p[i], 0, bytes[i], stream) != cudaSuccess)
            return -1;
    const float one = 1, zero = 0;
    double begin = 0;
    int failed = 0;
    for (int call = -3; call < calls; call++) { /* three to choose and load its kernel */
        if (call == 0) {
            cudaStreamSynchronize(stream);
            begin = now();
        }
        /* Columns first: its transposed product is ours. */
        failed |= sgemm(blas, 0, 0, n, m, k, &one, p[1], n, p[0], k, &zero, p[2], n);
    }
    failed |= cudaStreamSynchronize(stream) != cudaSuccess;
    double took = now() - begin;
    for (int i = 0; i < 3; i++) cudaFree(p[i]);
    return failed ? -1 : took;
}

/* ---- copies and memory ---- */

double copy(baseline_kind kind, size_t bytes, int calls)
{
    void *device = nullptr, *other = nullptr, *host = nullptr;
    bool pinned = kind == BASELINE_PINNED;
    if (cudaMalloc(&device, bytes) != cudaSuccess || cudaMalloc(&other, bytes) != cudaSuccess)
        return -1;
    if (pinned ? cudaMallocHost(&host, bytes) != cudaSuccess
               : (host = calloc(1, bytes)) == nullptr)
        return -1;
    cudaError_t e = cudaMemsetAsync(device, 0, bytes, stream);
    cudaStreamSynchronize(stream);
    double begin = now();
    for (int i = 0; i < calls && e == cudaSuccess; i++) {
        switch (kind) {
        case BASELINE_COPY:
            e = cudaMemcpyAsync(other, device, bytes, cudaMemcpyDeviceToDevice, stream);
            break;
        case BASELINE_COPY_OUT:
            e = cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream);
            cudaStreamSynchronize(stream);
            break;
        default:
            e = cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream);
            cudaStreamSynchronize(stream);
            break;
        }
    }
    if (e == cudaSuccess) e = cudaStreamSynchronize(stream);
    double took = now() - begin;
    cudaFree(device);
    cudaFree(other);
    if (pinned)
        cudaFreeHost(host);
    else
        free(host);
    return e == cudaSuccess ? took : -1;
}

double memory(bool pool, size_t bytes, int calls)
{
    cudaMemPool_t driver_pool;
    int device;
    uint64_t keep = UINT64_MAX; /* the pool gives nothing back to the system, as ours */
    cudaError_t e = cudaGetDevice(&device);
    if (e == cudaSuccess) e = cudaDeviceGetDefaultMemPool(&driver_pool, device);
    if (e == cudaSuccess)
        e = cudaMemPoolSetAttribute(driver_pool, cudaMemPoolAttrReleaseThreshold, &keep);
    double begin = now();
    for (int i = 0; i < calls && e == cudaSuccess; i++) {
        void *p;
        e = pool ? cudaMallocAsync(&p, bytes, stream) : cudaMalloc(&p, bytes);
        if (e == cudaSuccess) e = pool ? cudaFreeAsync(p, stream) : cudaFree(p);
    }
    cudaStreamSynchronize(stream);
    double took = now() - begin;
    return e == cudaSuccess ? took : -1;
}

double launches(bool wait, int calls)
{
    cudaStreamSynchronize(stream);
    double begin = now();
    for (int i = 0; i < calls; i++) {
        nothing<<<1, 32, 0, stream>>>();
        if (wait) cudaStreamSynchronize(stream);
    }
    cudaError_t e = cudaStreamSynchronize(stream);
    double took = now() - begin;
    return e == cudaSuccess && cudaGetLastError() == cudaSuccess ? took : -1;
}

/* ---- the table ---- */

const char *name(baseline_kind kind)
{
    static const char *const names[BASELINE_COUNT] = {
        "empty kernel", "empty kernel", "cudaMemcpyAsync", "cudaMemcpyAsync", "cudaMemcpyAsync",
        "pinned",       "cudaMallocAsync", "cudaMalloc",   "cublasSgemm"};
    if (!stream && cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess)
        return nullptr;
    if (kind == BASELINE_PRODUCT && !open_blas()) return nullptr;
    return names[kind];
}

double run(baseline_kind kind, const int64_t *sizes, int calls)
{
    switch (kind) {
    case BASELINE_LAUNCH:
    case BASELINE_WAIT:
        return launches(kind == BASELINE_WAIT, calls);
    case BASELINE_POOL:
    case BASELINE_ALLOC:
        return memory(kind == BASELINE_POOL, static_cast<size_t>(sizes[0]), calls);
    case BASELINE_PRODUCT:
        return product(sizes, calls);
    default:
        return copy(kind, static_cast<size_t>(sizes[0]), calls);
    }
}

const device_baseline table = {name, run};

} // namespace

extern "C" const device_baseline *device_baseline_entry(void)
{
    return &table;
}
