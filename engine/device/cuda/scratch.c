/* scratch.c - working memory of the device's own: one buffer that only grows, and one
 * word by which a check kernel tells the host what it found.
 *
 * Both belong to the stream: what a slot put there is valid until the next slot asks,
 * which is safe because the next one's kernels run after this one's. They are made when
 * first asked for and live as long as the device. */
#include "device/cuda/cuda_internal.h"

enum { SMALLEST = 2 << 20, WORDS = 64 };

/* At least `bytes`, in steps of 2 MiB, which is what the driver takes, and of a quarter
 * of a power of two: a slowly growing need grows the buffer a few times only, and at most
 * a fifth of a large one is spare. */
static size_t grown(size_t bytes)
{
    size_t step = SMALLEST;
    while (step * 8 < bytes) step *= 2;
    return (bytes + step - 1) / step * step;
}

rle_status rle_cuda_take(rle_device *dev, const char *what, size_t size, void **out)
{
    void *p = NULL;
    for (int again = 0;; again++) {
        /* Also the second time: to make room the collector runs, which may let go of what
         * other devices hold. */
        RLE_TRY(rle_cuda_enter(dev));
        cudaError_t e =
            rle_host->fault("cuda") ? cudaErrorMemoryAllocation : cudaMalloc(&p, size);
        if (e != cudaErrorMemoryAllocation) {
            if (e == cudaSuccess) *out = p;
            return rle_cuda_check_call(dev, what, e);
        }
        (void)cudaGetLastError();
        if (again) return rle_host->refuse(dev, size);
        rle_host->make_room(dev, size);
    }
}

rle_status rle_cuda_scratch(rle_device *dev, size_t bytes, void **out)
{
    rle_cuda *c = rle_cuda_of(dev);
    if (bytes > c->scratch_bytes) {
        if (bytes > SIZE_MAX / 2)
            return rle_fail(RLE_RESOURCE_EXHAUSTED, "%s: a workspace of %zu bytes",
                            dev->name, bytes);
        size_t size = grown(bytes);
        rle_cuda_enter(dev);
        /* The old one goes first, so that both are never held; work still in the stream
         * may use it until then. */
        if (c->scratch) {
            /* not seen emulated: cudaFree waits too */
            RLE_TRY(rle_cuda_check_call(dev, "synchronize",
                                        cudaStreamSynchronize(c->stream)));
            void *old = c->scratch;
            c->scratch = NULL;
            c->scratch_bytes = 0;
            RLE_TRY(rle_cuda_check_call(dev, "free the workspace", cudaFree(old)));
        }
        void *p = NULL;
        RLE_TRY(rle_cuda_take(dev, "allocate a workspace", size, &p));
        c->scratch = p;
        c->scratch_bytes = size;
    }
    *out = c->scratch;
    return RLE_OK;
}

rle_status rle_cuda_flag_reset(rle_device *dev, unsigned long long **out)
{
    rle_cuda *c = rle_cuda_of(dev);
    rle_cuda_enter(dev);
    if (!c->flag_host)
        RLE_TRY(rle_cuda_check_call(dev, "page-locked memory",
                                    cudaMallocHost((void **)&c->flag_host, WORDS)));
    if (!c->flag)
        RLE_TRY(rle_cuda_check_call(dev, "allocate a workspace",
                                    cudaMalloc((void **)&c->flag, WORDS)));
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

size_t rle_cuda_scratch_held(const rle_device *dev)
{
    const rle_cuda *c = rle_cuda_of(dev);
    return c->scratch_bytes + (c->flag ? WORDS : 0);
}

void rle_cuda_scratch_close(rle_device *dev)
{
    rle_cuda *c = rle_cuda_of(dev);
    if (c->scratch) cudaFree(c->scratch);
    if (c->flag) cudaFree(c->flag);
    if (c->flag_host) cudaFreeHost(c->flag_host);
    c->scratch = NULL;
    c->scratch_bytes = 0;
    c->flag = c->flag_host = NULL;
}
