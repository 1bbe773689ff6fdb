/* errors.c - the driver's error codes as the engine's. */
#include <stdio.h>
#include <string.h>

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
    case 721: /* tensor memory that a kernel did not give back */
    case 214: /* uncorrectable ECC error */
    case 220: /* uncorrectable NVLink error */
    case 226: /* an error of the hardware, contained in this process */
    case 810: /* ended by the MPS server */
    case 911: /* an error of a device beside the GPU */
        return true;
    default:
        return false;
    }
}

/* There is no code for this GPU: it is older than what was built for, or the driver is too
 * old to compile the PTX. */
static bool is_foreign(cudaError_t e)
{
    switch ((int)e) {
    case 98:  /* invalid device function */
    case 209: /* no kernel image */
    case 218: /* invalid PTX */
    case 222: /* PTX of a newer toolkit */
        return true;
    default:
        return false;
    }
}

/* What CUDA says of an error without the words that only make it a sentence: "illegal
 * memory access". */
static const char *what_is(cudaError_t error, char *out, size_t size)
{
    static const char tail[] = " was encountered";
    const char *text = cudaGetErrorString(error);
    if (strncmp(text, "an ", 3) == 0) text += 3;
    snprintf(out, size, "%s", text);
    size_t n = strlen(out), t = sizeof tail - 1;
    if (n > t && strcmp(out + n - t, tail) == 0) out[n - t] = 0;
    return out;
}

static rle_status fail(rle_device *dev, const char *op, const char *at, cudaError_t error)
{
    char what[128];
    const char *detail = rle_cuda_detail();
    const char *colon = *detail ? ": " : "";
    what_is(error, what, sizeof what);
    if (is_sticky(error)) {
        char text[1024];
        snprintf(text, sizeof text, "GPU %d is unusable (CUDA error %d: %s at %s)%s%s",
                 dev->index, (int)error, what, at, colon, detail);
        rle_host->fatal(text);
    }
    if (error == cudaErrorInitializationError)
        return rle_fail(RLE_FAILED_PRECONDITION, "%s: %s: " RLE_CUDA_FORKED, dev->name,
                        op);
    if (error == cudaErrorDevicesUnavailable) {
        (void)cudaGetLastError();
        return rle_fail(
            RLE_UNAVAILABLE,
            "%s: %s: GPU %d is busy or closed to this process (CUDA error 46); "
            "see its processes and its compute mode in nvidia-smi",
            dev->name, op, dev->index);
    }
    if (is_foreign(error)) {
        rle_device_properties p;
        (void)cudaGetLastError();
        RLE_TRY(rle_cuda_properties(dev->index, &p));
        return rle_fail(RLE_UNAVAILABLE,
                        "GPU %d (%s, compute capability %d.%d) is none that this was built "
                        "for (CUDA error %d: %s); build with -DRLE_CUDA_ARCHITECTURES=%d%d, or "
                        "update the driver",
                        dev->index, p.name, p.major, p.minor, (int)error, what, p.major,
                        p.minor);
    }
    rle_status code =
        error == cudaErrorMemoryAllocation ? RLE_RESOURCE_EXHAUSTED : RLE_INTERNAL;
    code = rle_fail(code, "%s: %s: %s (CUDA error %d)%s%s", dev->name, op, what,
                    (int)error, colon, detail);
    (void)cudaGetLastError(); /* so that the next call does not find it */
    return code;
}

rle_status rle_cuda_check_call(rle_device *dev, const char *what, cudaError_t error)
{
    rle_cuda *c = rle_cuda_of(dev);
    if (error == cudaSuccess) return RLE_OK;
    return fail(dev, what, c->last ? c->last : what, error);
}

rle_status rle_cuda_check(rle_device *dev, const char *op, cudaError_t error)
{
    rle_cuda *c = rle_cuda_of(dev);
    if (error != cudaSuccess) return rle_cuda_check_call(dev, op, error);
    c->last = op;
    return RLE_OK;
}
