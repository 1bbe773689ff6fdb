/* stream.c - streams and events of any device: the plug-in's where there is one, else
 * none to wait for.
 *
 * A stream and an event own their handle in the plug-in. An event on the CPU holds the
 * time at which it was recorded. */
#include "device/stream.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

struct rle_stream {
    rle_device *dev;
    void *handle;
};

struct rle_event {
    rle_device *dev;
    void *handle;
    bool timed, recorded;
    int64_t at; /* on the CPU */
};

static void *handle_of(const rle_stream *stream)
{
    return stream ? stream->handle : NULL;
}

/* ---- streams ---- */

rle_status rle_stream_new(rle_device *dev, rle_stream **out)
{
    rle_stream *s = rle_malloc(sizeof *s);
    if (!s) return rle_oom(sizeof *s, "a stream");
    *s = (rle_stream){.dev = dev};
    rle_status status = dev->streams ? dev->streams->stream_new(dev, &s->handle) : RLE_OK;
    if (status != RLE_OK) {
        rle_free(s);
        return status;
    }
    *out = s;
    return RLE_OK;
}

void rle_stream_free(rle_stream *stream)
{
    if (!stream) return;
    if (stream->dev->streams)
        stream->dev->streams->stream_free(stream->dev, stream->handle);
    rle_free(stream);
}

rle_device *rle_stream_device(const rle_stream *stream)
{
    return stream->dev;
}

rle_status rle_stream_wait(rle_stream *stream, rle_event *event)
{
    const rle_stream_ops *ops = stream->dev->streams;
    if (stream->dev != event->dev)
        return rle_fail(RLE_INVALID_ARGUMENT, "a stream of %s waits for an event of %s",
                        stream->dev->name, event->dev->name);
    return ops ? ops->stream_wait(stream->dev, stream->handle, event->handle) : RLE_OK;
}

rle_status rle_stream_synchronize(rle_stream *stream)
{
    const rle_stream_ops *ops = stream->dev->streams;
    return ops ? ops->stream_synchronize(stream->dev, stream->handle) : RLE_OK;
}

rle_status rle_stream_query(rle_stream *stream, bool *done)
{
    const rle_stream_ops *ops = stream->dev->streams;
    if (ops) return ops->stream_query(stream->dev, stream->handle, done);
    *done = true;
    return RLE_OK;
}

rle_status rle_stream_copy_in(rle_stream *stream, void *dst, const void *host,
                              size_t size)
{
    rle_device *dev = stream->dev;
    if (!size) return RLE_OK;
    if (!dev->streams) return dev->copy_in(dev, dst, host, size);
    return dev->streams->copy_in(dev, stream->handle, dst, host, size);
}

rle_status rle_stream_copy_out(rle_stream *stream, void *host, const void *src,
                               size_t size)
{
    rle_device *dev = stream->dev;
    if (!size) return RLE_OK;
    if (!dev->streams) return dev->copy_out(dev, host, src, size);
    return dev->streams->copy_out(dev, stream->handle, host, src, size);
}

rle_status rle_pinned_alloc(rle_device *dev, size_t size, void **out)
{
    if (dev->streams) return dev->streams->pinned_alloc(dev, size, out);
    void *p = NULL;
    if (posix_memalign(&p, 64, size ? size : 1) != 0) return rle_oom(size, "host memory");
    *out = p;
    return RLE_OK;
}

void rle_pinned_free(rle_device *dev, void *p)
{
    if (!p) return;
    if (dev->streams)
        dev->streams->pinned_free(dev, p);
    else
        free(p);
}

rle_status rle_pinned_copy_in(rle_device *dev, void *dst, const void *host, size_t size)
{
    if (!size) return RLE_OK;
    if (!dev->streams) return dev->copy_in(dev, dst, host, size);
    return dev->streams->copy_in(dev, NULL, dst, host, size);
}

/* ---- events ---- */

rle_status rle_event_new(rle_device *dev, bool timed, rle_event **out)
{
    rle_event *e = rle_malloc(sizeof *e);
    if (!e) return rle_oom(sizeof *e, "an event");
    *e = (rle_event){.dev = dev, .timed = timed};
    rle_status status =
        dev->streams ? dev->streams->event_new(dev, timed, &e->handle) : RLE_OK;
    if (status != RLE_OK) {
        rle_free(e);
        return status;
    }
    *out = e;
    return RLE_OK;
}

void rle_event_free(rle_event *event)
{
    if (!event) return;
    if (event->dev->streams) event->dev->streams->event_free(event->dev, event->handle);
    rle_free(event);
}

rle_status rle_event_record(rle_event *event, rle_stream *stream)
{
    rle_device *dev = event->dev;
    if (stream && stream->dev != dev)
        return rle_fail(RLE_INVALID_ARGUMENT, "an event of %s in a stream of %s",
                        dev->name, stream->dev->name);
    if (dev->streams)
        RLE_TRY(dev->streams->event_record(dev, event->handle, handle_of(stream)));
    else
        event->at = rle_now();
    event->recorded = true;
    return RLE_OK;
}

rle_status rle_event_hold(rle_event *event)
{
    rle_device *dev = event->dev;
    return dev->streams ? dev->streams->stream_wait(dev, NULL, event->handle) : RLE_OK;
}

rle_status rle_event_synchronize(rle_event *event)
{
    rle_device *dev = event->dev;
    return dev->streams ? dev->streams->event_synchronize(dev, event->handle) : RLE_OK;
}

rle_status rle_event_query(rle_event *event, bool *done)
{
    rle_device *dev = event->dev;
    if (dev->streams) return dev->streams->event_query(dev, event->handle, done);
    *done = true;
    return RLE_OK;
}

rle_status rle_event_elapsed(rle_event *from, rle_event *to, double *seconds)
{
    rle_device *dev = from->dev;
    if (dev != to->dev)
        return rle_fail(RLE_INVALID_ARGUMENT, "events of %s and %s", dev->name,
                        to->dev->name);
    if (!from->timed || !to->timed || !from->recorded || !to->recorded)
        return rle_fail(
            RLE_FAILED_PRECONDITION, "%s: the time of an event that %s", dev->name,
            from->timed && to->timed ? "was never recorded" : "takes no time");
    if (dev->streams)
        return dev->streams->event_elapsed(dev, from->handle, to->handle, seconds);
    *seconds = (double)(to->at - from->at) * 1e-9;
    return RLE_OK;
}

/* ---- blocks ---- */

/* A guard of the allocator's: over when the event has happened. An error of the device is
 * no reason to keep the memory: it shows where the device is waited for. */
static bool use_is_over(void *arg, bool wait)
{
    rle_event *event = arg;
    bool done = true;
    if (wait)
        (void)rle_event_synchronize(event);
    else if (rle_event_query(event, &done) != RLE_OK)
        done = true;
    if (done) rle_event_free(event);
    return done;
}

rle_status rle_device_use_on(rle_device *dev, rle_block *block, rle_stream *stream)
{
    rle_event *event;
    if (!stream || !dev->streams) return RLE_OK; /* in order with what comes after */
    RLE_TRY(rle_event_new(dev, false, &event));
    rle_status status = rle_event_record(event, stream);
    if (status != RLE_OK) {
        rle_event_free(event);
        return status;
    }
    /* Without memory to remember it: wait now. */
    if (rle_device_guard(dev, block, use_is_over, event) != RLE_OK)
        (void)use_is_over(event, true);
    return RLE_OK;
}
