/* stream.c - streams beside the device's own, events, page-locked memory for scripts of
 * copies (device/stream.h). */
#include "device/cuda/cuda_internal.h"

static cudaStream_t stream_of(const rle_device *dev, void *stream)
{
    return stream ? stream : rle_cuda_stream(dev);
}

static rle_status stream_new(rle_device *dev, void **out)
{
    cudaStream_t s = NULL;
    rle_cuda_enter(dev);
    RLE_TRY(rle_cuda_check_call(dev, "create a stream",
                                cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking)));
    *out = s;
    return RLE_OK;
}

static void stream_free(rle_device *dev, void *stream)
{
    rle_cuda_enter(dev);
    (void)rle_cuda_check_call(dev, "destroy a stream", cudaStreamDestroy(stream));
}

static rle_status stream_wait(rle_device *dev, void *stream, void *event)
{
    rle_cuda_enter(dev);
    return rle_cuda_check_call(dev, "wait for an event",
                               cudaStreamWaitEvent(stream_of(dev, stream), event, 0));
}

static rle_status stream_synchronize(rle_device *dev, void *stream)
{
    rle_cuda_enter(dev);
    return rle_cuda_check_call(dev, "synchronize a stream",
                               cudaStreamSynchronize(stream_of(dev, stream)));
}

/* cudaErrorNotReady is an answer; but the driver remembers it as an error, and the next
 * launch would find it. */
static rle_status answer(rle_device *dev, const char *op, cudaError_t e, bool *done)
{
    if (e == cudaErrorNotReady)
        (void)cudaGetLastError();
    else
        RLE_TRY(rle_cuda_check_call(dev, op, e));
    *done = e == cudaSuccess;
    return RLE_OK;
}

static rle_status stream_query(rle_device *dev, void *stream, bool *done)
{
    rle_cuda_enter(dev);
    return answer(dev, "ask a stream", cudaStreamQuery(stream_of(dev, stream)), done);
}

static rle_status copy_in(rle_device *dev, void *stream, void *dst, const void *host,
                          size_t size)
{
    rle_cuda_enter(dev);
    return rle_cuda_check_call(
        dev, "copy to the device",
        cudaMemcpyAsync(dst, host, size, cudaMemcpyHostToDevice, stream_of(dev, stream)));
}

static rle_status copy_out(rle_device *dev, void *stream, void *host, const void *src,
                           size_t size)
{
    rle_cuda_enter(dev);
    return rle_cuda_check_call(
        dev, "copy from the device",
        cudaMemcpyAsync(host, src, size, cudaMemcpyDeviceToHost, stream_of(dev, stream)));
}

static rle_status pinned_alloc(rle_device *dev, size_t size, void **out)
{
    void *p = NULL;
    rle_cuda_enter(dev);
    RLE_TRY(rle_cuda_check_call(dev, "page-locked memory",
                                cudaMallocHost(&p, size ? size : 1)));
    *out = p;
    return RLE_OK;
}

static void pinned_free(rle_device *dev, void *p)
{
    rle_cuda_enter(dev);
    (void)rle_cuda_check_call(dev, "free page-locked memory", cudaFreeHost(p));
}

static rle_status event_new(rle_device *dev, bool timed, void **out)
{
    cudaEvent_t e = NULL;
    rle_cuda_enter(dev);
    RLE_TRY(rle_cuda_check_call(
        dev, "create an event",
        cudaEventCreateWithFlags(&e, timed ? cudaEventDefault : cudaEventDisableTiming)));
    *out = e;
    return RLE_OK;
}

static void event_free(rle_device *dev, void *event)
{
    rle_cuda_enter(dev);
    (void)rle_cuda_check_call(dev, "destroy an event", cudaEventDestroy(event));
}

static rle_status event_record(rle_device *dev, void *event, void *stream)
{
    rle_cuda_enter(dev);
    return rle_cuda_check_call(dev, "record an event",
                               cudaEventRecord(event, stream_of(dev, stream)));
}

static rle_status event_synchronize(rle_device *dev, void *event)
{
    rle_cuda_enter(dev);
    return rle_cuda_check_call(dev, "wait for an event", cudaEventSynchronize(event));
}

static rle_status event_query(rle_device *dev, void *event, bool *done)
{
    rle_cuda_enter(dev);
    return answer(dev, "ask an event", cudaEventQuery(event), done);
}

static rle_status event_elapsed(rle_device *dev, void *from, void *to, double *seconds)
{
    float ms = 0;
    rle_cuda_enter(dev);
    cudaError_t e = cudaEventElapsedTime(&ms, from, to);
    if (e == cudaErrorNotReady) {
        (void)cudaGetLastError();
        return rle_fail(RLE_FAILED_PRECONDITION, "%s: the time of an event to come",
                        dev->name);
    }
    RLE_TRY(rle_cuda_check_call(dev, "time between events", e));
    *seconds = (double)ms * 1e-3;
    return RLE_OK;
}

const rle_stream_ops rle_cuda_streams = {
    .stream_new = stream_new,
    .stream_free = stream_free,
    .stream_wait = stream_wait,
    .stream_synchronize = stream_synchronize,
    .stream_query = stream_query,
    .copy_in = copy_in,
    .copy_out = copy_out,
    .pinned_alloc = pinned_alloc,
    .pinned_free = pinned_free,
    .event_new = event_new,
    .event_free = event_free,
    .event_record = event_record,
    .event_synchronize = event_synchronize,
    .event_query = event_query,
    .event_elapsed = event_elapsed,
};
