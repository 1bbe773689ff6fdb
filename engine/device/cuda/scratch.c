/* scratch.c - working memory of the device's own: one buffer that only grows, and one
 * word by which a check kernel tells the host what it found.
 *
 * Both belong to the stream: what a slot put there is valid until the next slot asks,
 * which is safe because the next one's kernels run after this one's. The word and a small
 * buffer share the first step of the driver's memory, which is taken when the device is
 * opened; larger buffers come when they are asked for. */
#include "device/cuda/cuda_internal.h"

enum { WORDS = 256 }; /* in front, which keeps what follows aligned */

static const size_t SMALL = RLE_CUDA_FIRST - WORDS;

/* At least `bytes`, in steps of 2 MiB, which is what the driver takes, and of a quarter
 * of a power of two: a slowly growing need grows the buffer a few times only, and at most
 * a fifth of a large one is spare. */
static size_t grown(size_t bytes)
{
    size_t step = RLE_CUDA_FIRST;
    while (step * 8 < bytes) step *= 2;
    return (bytes + step - 1) / step * step;
}

/* Work still in the stream may use it. */
static rle_status drop_large(rle_device *dev)
{
    rle_cuda *c = rle_cuda_of(dev);
    if (!c->large) return RLE_OK;
    /* not seen emulated: cudaFree waits too */
    RLE_TRY(rle_cuda_check_call(dev, "synchronize", cudaStreamSynchronize(c->stream)));
    rle_host->give(dev, c->large, c->large_bytes);
    c->large = NULL;
    c->large_bytes = 0;
    return RLE_OK;
}

static rle_status take_large(rle_device *dev, size_t bytes)
{
    static const rle_workspace use = {"the working memory of an operation",
                                      "a smaller batch needs less"};
    rle_cuda *c = rle_cuda_of(dev);
    size_t taken;
    void *p;
    RLE_TRY(rle_host->take(dev, &use, grown(bytes), bytes, &p, &taken));
    if (c->large_bytes >= bytes) { /* who ran while room was made took one, too */
        rle_host->give(dev, p, taken);
        return RLE_OK;
    }
    rle_status status = drop_large(dev);
    if (status != RLE_OK) {
        rle_host->give(dev, p, taken);
        return status;
    }
    c->large = p;
    c->large_bytes = taken;
    return RLE_OK;
}

rle_status rle_cuda_scratch(rle_device *dev, size_t bytes, void **out)
{
    rle_cuda *c = rle_cuda_of(dev);
    if (bytes <= SMALL) {
        *out = c->first + WORDS;
        return RLE_OK;
    }
    if (bytes > c->large_bytes) {
        if (bytes > SIZE_MAX / 2)
            return rle_fail(RLE_RESOURCE_EXHAUSTED, "%s: a workspace of %zu bytes",
                            dev->name, bytes);
        rle_cuda_enter(dev);
        RLE_TRY(drop_large(dev)); /* first, so that both are never held */
        RLE_TRY(take_large(dev, bytes));
    }
    *out = c->large;
    return RLE_OK;
}

rle_status rle_cuda_scratch_open(rle_device *dev)
{
    rle_cuda *c = rle_cuda_of(dev);
    void *host, *first;
    RLE_TRY(rle_cuda_check_call(dev, "page-locked memory", cudaMallocHost(&host, WORDS)));
    c->flag_host = host;
    RLE_TRY(rle_cuda_check_call(dev, "allocate a workspace",
                                cudaMalloc(&first, RLE_CUDA_FIRST)));
    c->first = first;
    c->flag = first;
    return rle_host->count(dev, NULL, RLE_CUDA_FIRST);
}

rle_status rle_cuda_flag_reset(rle_device *dev, unsigned long long **out)
{
    rle_cuda *c = rle_cuda_of(dev);
    rle_cuda_enter(dev);
    RLE_TRY(
        rle_cuda_check_call(dev, "reset a check",
                            cudaMemsetAsync(c->flag, 0xff, sizeof *c->flag, c->stream)));
    *out = c->flag;
    return RLE_OK;
}

rle_status rle_cuda_flag_read(rle_device *dev, const char *op, uint64_t *out)
{
    rle_cuda *c = rle_cuda_of(dev);
    rle_cuda_enter(dev);
    RLE_TRY(rle_cuda_check(dev, op,
                           cudaMemcpyAsync(c->flag_host, c->flag, sizeof *c->flag,
                                           cudaMemcpyDeviceToHost, c->stream)));
    RLE_TRY(rle_cuda_check(dev, op, cudaStreamSynchronize(c->stream)));
    *out = *c->flag_host;
    return RLE_OK;
}

void rle_cuda_scratch_close(rle_device *dev)
{
    rle_cuda *c = rle_cuda_of(dev);
    if (c->large) cudaFree(c->large);
    if (c->first) cudaFree(c->first);
    if (c->flag_host) cudaFreeHost(c->flag_host);
    c->large = NULL;
    c->large_bytes = 0;
    c->first = NULL;
    c->flag = c->flag_host = NULL;
}
