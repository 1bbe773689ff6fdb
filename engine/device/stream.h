/* stream.h - copies beside a device's own work, and events that say how far work is.
 *
 * Operations of the table go onto the device's own stream, one after another. A
 * rle_stream is a further line of copies that run beside it; an event orders the two:
 * record it in one, wait for it in the other. Nothing else orders them.
 *
 *   rle_event_record(ready, NULL);              // after what the device was given so far
 *   rle_stream_wait(side, ready);
 *   rle_stream_copy_out(side, host, block.data, size);
 *   rle_device_use_on(dev, &block, side);       // before rle_device_free
 *
 * In place of a stream NULL means the device's own one. On the CPU everything is done
 * when it is asked for: streams and events are there, and have nothing to wait for. All
 * of it belongs to the thread that owns the devices. */
#ifndef RLE_DEVICE_STREAM_H
#define RLE_DEVICE_STREAM_H

#include "device/device.h"

typedef struct rle_stream rle_stream;
typedef struct rle_event rle_event;

/* ---- streams ---- */

/* RESOURCE_EXHAUSTED, or what the driver says. */
rle_status rle_stream_new(rle_device *dev, rle_stream **out);
/* Waits for nothing: what it was given is still done. NULL is fine. */
void rle_stream_free(rle_stream *stream);
rle_device *rle_stream_device(const rle_stream *stream);
/* What is given to `stream` from now on runs after what the event recorded last. An event
 * that was never recorded has happened. */
rle_status rle_stream_wait(rle_stream *stream, rle_event *event);
/* Wait for all that the stream was given; an error of that work is returned here. */
rle_status rle_stream_synchronize(rle_stream *stream);
/* Is all done? Does not wait. */
rle_status rle_stream_query(rle_stream *stream, bool *done);

/* Copy between host memory and a block, in the stream's order. The host memory must stay
 * as it is until then; from rle_pinned_alloc it is copied while the host goes on,
 * elsewhere the call may wait. */
rle_status rle_stream_copy_in(rle_stream *stream, void *dst, const void *host,
                              size_t size);
rle_status rle_stream_copy_out(rle_stream *stream, void *host, const void *src,
                               size_t size);

/* Host memory that the device reads and writes itself: page-locked. Ordinary memory on
 * the CPU. Aligned to 64 bytes at least. */
rle_status rle_pinned_alloc(rle_device *dev, size_t size, void **out);
void rle_pinned_free(rle_device *dev, void *p);
/* A copy of such memory into a block, in the order of the device's own work and without
 * waiting: it must stay as it is until an event recorded after this has happened. From
 * other memory the call may wait. */
rle_status rle_pinned_copy_in(rle_device *dev, void *dst, const void *host, size_t size);

/* ---- events ---- */

/* `timed`: for rle_event_elapsed. */
rle_status rle_event_new(rle_device *dev, bool timed, rle_event **out);
/* Waits for nothing; who waits for the event goes on waiting. NULL is fine. */
void rle_event_free(rle_event *event);
/* It happens when all that `stream` was given so far is done; NULL: the device's own. */
rle_status rle_event_record(rle_event *event, rle_stream *stream);
/* The device's own stream waits, not the host. */
rle_status rle_event_hold(rle_event *event);
rle_status rle_event_synchronize(rle_event *event);
rle_status rle_event_query(rle_event *event, bool *done);
/* Seconds from one event to another; both timed and happened, else FAILED_PRECONDITION.
 */
rle_status rle_event_elapsed(rle_event *from, rle_event *to, double *seconds);

/* The block is used by what `stream` was given so far: after rle_device_free its memory
 * is given to nobody before that is done. */
rle_status rle_device_use_on(rle_device *dev, rle_block *block, rle_stream *stream);

/* ---- what a plug-in fills in: rle_device.streams ---- */

/* Handles are the plug-in's; a stream of NULL is the device's own. query: RLE_OK and
 * *done. */
typedef struct rle_stream_ops {
    rle_status (*stream_new)(rle_device *dev, void **out);
    void (*stream_free)(rle_device *dev, void *stream);
    rle_status (*stream_wait)(rle_device *dev, void *stream, void *event);
    rle_status (*stream_synchronize)(rle_device *dev, void *stream);
    rle_status (*stream_query)(rle_device *dev, void *stream, bool *done);
    rle_status (*copy_in)(rle_device *dev, void *stream, void *dst, const void *host,
                          size_t size);
    rle_status (*copy_out)(rle_device *dev, void *stream, void *host, const void *src,
                           size_t size);
    rle_status (*pinned_alloc)(rle_device *dev, size_t size, void **out);
    void (*pinned_free)(rle_device *dev, void *p);
    rle_status (*event_new)(rle_device *dev, bool timed, void **out);
    void (*event_free)(rle_device *dev, void *event);
    rle_status (*event_record)(rle_device *dev, void *event, void *stream);
    rle_status (*event_synchronize)(rle_device *dev, void *event);
    rle_status (*event_query)(rle_device *dev, void *event, bool *done);
    rle_status (*event_elapsed)(rle_device *dev, void *from, void *to, double *seconds);
} rle_stream_ops;

#endif
