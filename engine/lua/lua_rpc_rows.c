/* lua_rpc_rows.c - the buffers of batches: rows in host memory, and their copies on the
 * device where the function runs.
 *
 * For a device the rows lie in memory that it reads itself, so that a batch is one copy
 * for each of its tensors, straight from where the messages were received, and nobody
 * waits for it. Such memory is dear to take: a buffer keeps its rows however long
 * somebody holds their copy on the device; then it is the copy that is made anew. Rows
 * are written again, or given back, only when they have been read: `copied` says so. */
#include "lua/lua_rpc_batch.h"

#include "base/mem.h"
#include "device/device.h"
#include "device/stream.h"

enum { KEPT_SIZES = 4 }; /* rows of a buffer that is kept, in sizes of a batch */

/* The device has read what it was given of these rows. */
static void wait_until_read(const rle_batch_buffer *buffer)
{
    /* An error of the device shows where its work is waited for. */
    if (buffer->copied) (void)rle_event_synchronize(buffer->copied);
}

void rle_batch_buffer_free(rle_batch_buffer *buffer)
{
    wait_until_read(buffer);
    for (int i = 0; i < RLE_BATCH_INPUTS; i++) {
        rle_tensor_release(buffer->host[i]);
        rle_tensor_release(buffer->device[i]);
    }
    rle_event_free(buffer->copied);
    rle_writer_fini(&buffer->values);
    rle_free(buffer->results);
    rle_free(buffer);
}

/* What a caller brought beyond that is not kept for the next batch. */
static bool fits(const rle_lua_batch *b, size_t capacity)
{
    return capacity / KEPT_SIZES <= b->size;
}

/* [rows, row...] of input i, as the rpc layer's: on `dev`, or in host memory that it
 * reads itself. */
static rle_status new_rows(const rle_batch_input *input, size_t rows, rle_device *dev,
                           bool pinned, rle_tensor **out)
{
    int64_t shape[RLE_MAX_DIMS];
    const rle_array *row = &input->row;
    rle_context *c = rle_context_current();
    uint8_t owner = c->owner;
    shape[0] = (int64_t)rows;
    memcpy(shape + 1, row->shape, sizeof shape - sizeof shape[0]);
    c->owner = RLE_OWNER_RPC;
    rle_status s = pinned
                       ? rle_tensor_new_pinned(dev, row->dtype, row->ndim + 1, shape, out)
                       : rle_tensor_new(dev, row->dtype, row->ndim + 1, shape, out);
    c->owner = owner;
    return s;
}

static rle_status allocate(const rle_lua_batch *b, rle_batch_buffer *buffer)
{
    bool copies = b->device->streams != NULL;
    if (copies) RLE_TRY(rle_event_new(b->device, false, &buffer->copied));
    for (int i = 0; i < b->inputs; i++) {
        if (b->input[i].any) continue;
        /* What is given back after one batch is not worth page-locking. */
        bool pinned = copies && fits(b, buffer->capacity);
        RLE_TRY(new_rows(&b->input[i], buffer->capacity,
                         pinned ? b->device : rle_device_cpu(), pinned,
                         &buffer->host[i]));
    }
    return RLE_OK;
}

rle_batch_buffer *rle_batch_buffer_new(rle_lua_batch *b, size_t capacity)
{
    while (b->spare) {
        rle_batch_buffer *buffer = b->spare;
        b->spare = buffer->next;
        b->spares--;
        if (buffer->capacity >= capacity) {
            wait_until_read(buffer);
            return buffer;
        }
        rle_batch_buffer_free(buffer);
    }
    rle_batch_buffer *buffer = rle_calloc(1, sizeof *buffer);
    if (!buffer) {
        rle_oom(sizeof *buffer, "batch");
        return NULL;
    }
    if (capacity < b->capacity) capacity = b->capacity;
    buffer->capacity = capacity;
    if (fits(b, capacity)) b->capacity = capacity;
    rle_writer_init(&buffer->values);
    if (allocate(b, buffer) == RLE_OK) return buffer;
    rle_batch_buffer_free(buffer);
    return NULL;
}

/* Does anybody but the buffer hold the tensor's memory? */
static bool is_held(const rle_tensor *t)
{
    return t && (t->storage->refs > 1 || t->refs > 1);
}

bool rle_batch_buffer_held(const rle_lua_batch *b, const rle_batch_buffer *buffer)
{
    for (int i = 0; i < b->inputs; i++)
        if (is_held(buffer->host[i])) return true;
    return false;
}

void rle_batch_buffer_done(rle_lua_batch *b, rle_batch_buffer *buffer)
{
    if (b->spares >= RLE_BATCH_SPARE || !fits(b, buffer->capacity) ||
        rle_batch_buffer_held(b, buffer)) {
        rle_batch_buffer_free(buffer);
        return;
    }
    for (int i = 0; i < b->inputs; i++) {
        if (!is_held(buffer->device[i])) continue;
        rle_tensor_release(buffer->device[i]);
        buffer->device[i] = NULL;
    }
    buffer->end = 0;
    rle_writer_reset(&buffer->values, 64 << 10);
    buffer->next = b->spare;
    b->spare = buffer;
    b->spares++;
}

static rle_status view_rows(rle_tensor *base, size_t rows, rle_tensor **out)
{
    rle_array a = base->a;
    a.shape[0] = (int64_t)rows;
    return rle_tensor_view(base, &a, out);
}

/* Their copy on the device, in the order of its own work. */
static rle_status send_rows(rle_lua_batch *b, rle_batch_buffer *buffer, int i,
                            size_t rows)
{
    rle_tensor *to = buffer->device[i];
    RLE_TRY(rle_pinned_copy_in(b->device, to->a.data, buffer->host[i]->a.data,
                               rows * b->input[i].row_bytes));
    rle_status s = rle_event_record(buffer->copied, NULL);
    if (s != RLE_OK) (void)rle_device_synchronize(b->device);
    to->storage->version++;
    return s;
}

rle_status rle_batch_buffer_rows(rle_lua_batch *b, rle_batch_buffer *buffer, int i,
                                 size_t rows, rle_tensor **out)
{
    if (!b->device->streams) {
        RLE_TRY(view_rows(buffer->host[i], rows, out));
        buffer->host[i]->storage->version++;
        return RLE_OK;
    }
    if (!buffer->device[i])
        RLE_TRY(new_rows(&b->input[i], buffer->capacity, b->device, false,
                         &buffer->device[i]));
    RLE_TRY(send_rows(b, buffer, i, rows));
    return view_rows(buffer->device[i], rows, out);
}
