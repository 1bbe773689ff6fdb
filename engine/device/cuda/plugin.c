/* plugin.c - the plug-in's face: how many devices, what they are, opening one. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "device/cuda/cuda_internal.h"

#ifdef RLE_EMU
#include "emu_control.h"
#define DEVICE_TYPE "emu"

static rle_status control(const char *settings)
{
    const char *wrong = rle_emu_control(settings);
    return wrong ? rle_fail(RLE_INVALID_ARGUMENT, "%s", wrong) : RLE_OK;
}

const char *rle_cuda_detail(void)
{
    return rle_emu_message();
}
#else
#define DEVICE_TYPE "cuda"

const char *rle_cuda_detail(void)
{
    return "";
}
#endif

/* ---- libraries that are opened when needed ---- */

#ifdef RLE_EMU
void *rle_cuda_library(const char *file)
{
    return rle_emu_library(file);
}
void *rle_cuda_symbol(void *library, const char *name)
{
    return rle_emu_symbol(library, name);
}
#else
#include <dlfcn.h>
void *rle_cuda_library(const char *file)
{
    return dlopen(file, RTLD_NOW | RTLD_LOCAL);
}
void *rle_cuda_symbol(void *library, const char *name)
{
    return dlsym(library, name);
}
#endif

static int current = -1;

rle_status rle_cuda_enter(rle_device *dev)
{
    if (current == dev->index) return RLE_OK;
    RLE_TRY(rle_cuda_check_call(dev, "select the device", cudaSetDevice(dev->index)));
    current = dev->index;
    return RLE_OK;
}

/* The first call into the driver. Whatever is not success means that there is no CUDA
 * here. */
static rle_status count_devices(int *out)
{
    int count = 0;
    cudaError_t e = cudaGetDeviceCount(&count);
    if (e == cudaSuccess && count > 0) {
        *out = count;
        return RLE_OK;
    }
    (void)cudaGetLastError(); /* so that no launch finds it */
    switch ((int)e) {
    case 35: /* insufficient driver: what a machine without any says */
        return rle_fail(
            RLE_UNAVAILABLE,
            "no NVIDIA driver, or one older than CUDA %d.%d needs (CUDA error 35); "
            "install the driver (Debian: nvidia-driver) and try nvidia-smi",
            CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    case 0:
    case 100:
        return rle_fail(
            RLE_UNAVAILABLE,
            "the NVIDIA driver finds no GPU (CUDA error 100); see nvidia-smi and "
            "CUDA_VISIBLE_DEVICES");
    case cudaErrorInitializationError:
        return rle_fail(RLE_FAILED_PRECONDITION, "%s", RLE_CUDA_FORKED);
    default:
        return rle_fail(RLE_UNAVAILABLE,
                        "CUDA does not start: %s (CUDA error %d); try nvidia-smi",
                        cudaGetErrorString(e), (int)e);
    }
}

rle_status rle_cuda_properties(int index, rle_device_properties *out)
{
    struct cudaDeviceProp p;
    cudaError_t e = cudaGetDeviceProperties(&p, index);
    if (e != cudaSuccess) {
        (void)cudaGetLastError();
        return rle_fail(RLE_UNAVAILABLE, "device %d: %s (CUDA error %d)", index,
                        cudaGetErrorString(e), (int)e);
    }
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "%.95s", p.name);
    out->major = p.major;
    out->minor = p.minor;
    out->multiprocessors = p.multiProcessorCount;
    out->memory = p.totalGlobalMem;
    out->shared_memory = p.sharedMemPerBlock;
    cudaDriverGetVersion(&out->driver);
    cudaRuntimeGetVersion(&out->runtime);
    return RLE_OK;
}

/* ---- memory ---- */

static void *raw_alloc(rle_device *dev, size_t size)
{
    void *p = NULL;
    if (rle_host->fault("cuda") || rle_cuda_enter(dev) != RLE_OK) return NULL;
    cudaError_t e = cudaMalloc(&p, size);
    if (e == cudaSuccess) return p;
    rle_cuda_check_call(dev, "allocate", e);
    return NULL;
}

static void raw_free(rle_device *dev, void *p, size_t size)
{
    (void)size;
    rle_cuda_enter(dev);
    rle_cuda_check_call(dev, "free", cudaFree(p));
}

static rle_status synchronize(rle_device *dev)
{
    rle_cuda *c = rle_cuda_of(dev);
    rle_cuda_enter(dev);
    return rle_cuda_check_call(dev, "synchronize", cudaStreamSynchronize(c->stream));
}

/* What is in use before the first tensor: the driver's context and kernels, and other
 * processes. Nothing tells these apart. */
static rle_status measure_context(rle_device *dev)
{
    size_t free_bytes, total;
    RLE_TRY(rle_cuda_check_call(dev, "memory info", cudaMemGetInfo(&free_bytes, &total)));
    rle_cuda_of(dev)->context_bytes = total - free_bytes - RLE_CUDA_FIRST;
    return RLE_OK;
}

static rle_status figures(rle_device *dev, rle_device_figures *out)
{
    size_t free_bytes, total;
    rle_cuda_enter(dev);
    RLE_TRY(rle_cuda_check_call(dev, "memory info", cudaMemGetInfo(&free_bytes, &total)));
    memset(out, 0, sizeof *out);
    out->total = total;
    out->used = total - free_bytes;
    out->context = rle_cuda_of(dev)->context_bytes;
    return RLE_OK;
}

/* ---- life ---- */

static void close_device(rle_device *dev)
{
    rle_cuda *c = dev->impl;
    if (!c) return;
    rle_cuda_enter(dev);
    rle_cuda_blas_close(dev);
    rle_cuda_scratch_close(dev);
    if (c->stream) cudaStreamDestroy(c->stream);
    rle_cuda_staging_close(dev);
    rle_free(c);
    dev->impl = NULL;
}

/* One kernel for real: a GPU that there is no code for is found now, not in the middle.
 */
static rle_status try_kernel(rle_device *dev)
{
    unsigned long long *word;
    RLE_TRY(rle_cuda_flag_reset(dev, &word));
    rle_array a = {
        .data = word, .dtype = RLE_I64, .ndim = 1, .shape = {1}, .stride = {1}};
    RLE_TRY(rle_cuda_fill(dev, &a, 1, 1));
    return synchronize(dev);
}

static rle_status open_device(rle_device *dev)
{
    rle_cuda *c = rle_malloc(sizeof *c);
    if (!c) return rle_oom(sizeof *c, "a CUDA device");
    memset(c, 0, sizeof *c);
    c->index = dev->index;
    dev->impl = c;
    rle_status status = rle_cuda_enter(dev);
    if (status == RLE_OK)
        status = rle_cuda_check_call(
            dev, "create a stream",
            cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking));
    if (status == RLE_OK) status = rle_cuda_staging_open(dev);
    if (status == RLE_OK) status = rle_cuda_scratch_open(dev);
    if (status == RLE_OK) status = try_kernel(dev);
    if (status == RLE_OK) status = measure_context(dev);
    if (status != RLE_OK) {
        close_device(dev);
        return status;
    }
    dev->ops = &rle_cuda_ops;
    dev->raw_alloc = raw_alloc;
    dev->raw_free = raw_free;
    dev->copy_in = rle_cuda_copy_in;
    dev->copy_out = rle_cuda_copy_out;
    dev->synchronize = synchronize;
    dev->figures = figures;
    dev->streams = &rle_cuda_streams;
    dev->blas = rle_cuda_blas_settings;
    rle_cuda_blas_init(dev);
    return RLE_OK;
}

static const rle_plugin plugin = {
    .abi = RLE_PLUGIN_ABI,
    .size = sizeof(rle_plugin),
    .type = DEVICE_TYPE,
    .count = count_devices,
    .properties = rle_cuda_properties,
    .open = open_device,
    .close = close_device,
#ifdef RLE_EMU
    .control = control,
#endif
};

__attribute__((visibility("default"))) rle_plugin_entry_fn rle_plugin_entry;

const rle_plugin *rle_plugin_entry(uint32_t abi, const rle_plugin_host *host)
{
    if (abi != RLE_PLUGIN_ABI) return NULL;
    rle_host = host;
    return &plugin;
}
