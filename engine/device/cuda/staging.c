/* staging.c - copies between host memory and the device.
 *
 * Small ones go through a ring of page-locked slots: into one by memcpy, from there to
 * the device in the stream's order, while the host goes on. An event says when the device
 * has read a slot; only who comes round to a slot before that waits. So a small copy_in
 * costs no waiting, and the caller's memory is free at once. Large ones go straight and
 * wait.
 *
 * What comes back is waited for in any case; through a slot it needs no page-locking by
 * the driver. */
#include <string.h>

#include "device/cuda/cuda_internal.h"

enum {
    SLOT_SIZE = RLE_CUDA_PINNED / RLE_CUDA_SLOTS,
    MOST_STAGED = RLE_CUDA_PINNED / 2, /* larger copies go straight */
};

rle_status rle_cuda_staging_open(rle_device *dev)
{
    rle_cuda *c = rle_cuda_of(dev);
    RLE_TRY(rle_cuda_check_call(dev, "page-locked memory",
                                cudaMallocHost(&c->pinned, RLE_CUDA_PINNED)));
    for (int i = 0; i < RLE_CUDA_SLOTS; i++)
        RLE_TRY(rle_cuda_check_call(
            dev, "create an event",
            cudaEventCreateWithFlags(&c->slot_read[i], cudaEventDisableTiming)));
    return RLE_OK;
}

void rle_cuda_staging_close(rle_device *dev)
{
    rle_cuda *c = rle_cuda_of(dev);
    for (int i = 0; i < RLE_CUDA_SLOTS; i++)
        if (c->slot_read[i]) cudaEventDestroy(c->slot_read[i]);
    if (c->pinned) cudaFreeHost(c->pinned);
    c->pinned = NULL;
}

/* The next slot, when the device has read what it held. */
static rle_status take_slot(rle_device *dev, int *slot, char **memory)
{
    rle_cuda *c = rle_cuda_of(dev);
    *slot = c->next_slot;
    *memory = (char *)c->pinned + (size_t)*slot * SLOT_SIZE;
    RLE_TRY(rle_cuda_check_call(dev, "wait for a copy",
                                cudaEventSynchronize(c->slot_read[*slot])));
    c->next_slot = (*slot + 1) % RLE_CUDA_SLOTS;
    return RLE_OK;
}

rle_status rle_cuda_copy_in(rle_device *dev, void *dst, const void *host, size_t size)
{
    static const char op[] = "copy to the device";
    rle_cuda *c = rle_cuda_of(dev);
    if (!size) return RLE_OK;
    rle_cuda_enter(dev);
    if (size > MOST_STAGED) {
        RLE_TRY(rle_cuda_check_call(
            dev, op,
            cudaMemcpyAsync(dst, host, size, cudaMemcpyHostToDevice, c->stream)));
        return rle_cuda_check_call(dev, op, cudaStreamSynchronize(c->stream));
    }
    for (size_t at = 0; at < size; at += SLOT_SIZE) {
        size_t n = size - at < SLOT_SIZE ? size - at : SLOT_SIZE;
        int slot;
        char *memory;
        RLE_TRY(take_slot(dev, &slot, &memory));
        memcpy(memory, (const char *)host + at, n);
        RLE_TRY(rle_cuda_check_call(dev, op,
                                    cudaMemcpyAsync((char *)dst + at, memory, n,
                                                    cudaMemcpyHostToDevice, c->stream)));
        RLE_TRY(
            rle_cuda_check_call(dev, op, cudaEventRecord(c->slot_read[slot], c->stream)));
    }
    return RLE_OK;
}

rle_status rle_cuda_copy_out(rle_device *dev, void *host, const void *src, size_t size)
{
    static const char op[] = "copy from the device";
    rle_cuda *c = rle_cuda_of(dev);
    if (!size) return RLE_OK;
    rle_cuda_enter(dev);
    int slot;
    char *memory = NULL;
    if (size <= SLOT_SIZE) RLE_TRY(take_slot(dev, &slot, &memory));
    RLE_TRY(rle_cuda_check_call(dev, op,
                                cudaMemcpyAsync(memory ? memory : host, src, size,
                                                cudaMemcpyDeviceToHost, c->stream)));
    RLE_TRY(rle_cuda_check_call(dev, op, cudaStreamSynchronize(c->stream)));
    if (memory) memcpy(host, memory, size);
    return RLE_OK;
}
