/* cuda_internal.h - what the files of device/cuda share. They are compiled twice: by the
 * C compiler against CUDA's headers into rlengine_cuda.so, and against
 * kernels/emu/include into rlengine_emu.so. Nothing here may know which.
 *
 * Everything a device does goes onto its one stream, in order. Errors of the driver
 * become messages that name the operation; an error after which the driver refuses all
 * further work
 * ("sticky") ends the process (rle_cuda_check). One thread owns all devices. */
#ifndef RLE_DEVICE_CUDA_INTERNAL_H
#define RLE_DEVICE_CUDA_INTERNAL_H

#include <cuda_runtime_api.h>

#include "device/plugin.h"
#include "kernels.h"

/* A device's side in the plug-in: rle_device.impl. */
typedef struct rle_cuda {
    int index;
    cudaStream_t stream;
    const char *last; /* operation launched last: what an error found later happened at or
                         before */
    size_t context_bytes;
    void *pinned; /* RLE_CUDA_PINNED bytes of page-locked host memory, for small copies */
} rle_cuda;

enum { RLE_CUDA_PINNED = 64 << 10 };

extern const rle_plugin_host *rle_host;

static inline rle_cuda *rle_cuda_of(const rle_device *dev)
{
    return dev->impl;
}
static inline cudaStream_t rle_cuda_stream(const rle_device *dev)
{
    return rle_cuda_of(dev)->stream;
}

/* Make dev the device of the calls that follow. */
void rle_cuda_enter(rle_device *dev);

/* RLE_OK for cudaSuccess, else the message "<device>: <op>: <what CUDA says> (CUDA error
 * n)". Out of memory is RESOURCE_EXHAUSTED, the rest INTERNAL. A sticky error does not
 * return. */
rle_status rle_cuda_check(rle_device *dev, const char *op, cudaError_t error);

/* The operands, of one shape, as the kernels take them. */
void rle_cuda_loop(rle_k_loop *l, int count, const rle_array *const *operands);

/* ---- slots of the table, by file ---- */

/* ops_elementwise.c */
rle_status rle_cuda_fill(rle_device *dev, const rle_array *out, double value,
                         int64_t integer);
rle_status rle_cuda_copy(rle_device *dev, const rle_array *out, const rle_array *in);

/* The table with every slot. */
extern const rle_device_ops rle_cuda_ops;

#endif
