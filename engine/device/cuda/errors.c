/* errors.c - the driver's error codes as the engine's. */
#include <stdio.h>

#include "device/cuda/cuda_internal.h"

/* After these the context is gone: every further call fails with the same code. */
static bool is_sticky(cudaError_t e)
{
    switch ((int)e) {
    case 700: /* illegal address */
    case 702: /* launch timeout */
    case 710: /* device-side assert */
    case 714: /* stack overflow in hardware */
    case 715: /* illegal instruction */
    case 716: /* misaligned address */
    case 717: /* invalid address space */
    case 718: /* invalid program counter */
    case 719: /* launch failure */
    case 46:  /* devices unavailable */
    case 214: /* uncorrectable ECC error */
    case 219: /* NVLink */
        return true;
    default:
        return false;
    }
}

rle_status rle_cuda_check(rle_device *dev, const char *op, cudaError_t error)
{
    rle_cuda *c = rle_cuda_of(dev);
    if (error == cudaSuccess) {
        c->last = op;
        return RLE_OK;
    }
    if (is_sticky(error)) {
        char text[256];
        snprintf(text, sizeof text, "GPU %d is unusable (CUDA error %d: %s at %s)",
                 dev->index, (int)error, cudaGetErrorString(error),
                 c->last ? c->last : op);
        rle_host->fatal(text);
    }
    if (error == cudaErrorInitializationError)
        return rle_fail(RLE_FAILED_PRECONDITION, "%s: %s: " RLE_CUDA_FORKED, dev->name,
                        op);
    (void)cudaGetLastError(); /* so that the next call does not find it */
    return rle_fail(error == cudaErrorMemoryAllocation ? RLE_RESOURCE_EXHAUSTED
                                                       : RLE_INTERNAL,
                    "%s: %s: %s (CUDA error %d)", dev->name, op,
                    cudaGetErrorString(error), (int)error);
}
