/* output.c - frames out of one connection.
 *
 * A frame is written at once; only what the socket does not take is copied, and only then do
 * we ask to hear that there is room. Long messages wait apart and add a chunk whenever little
 * else waits, so control frames pass them. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "rpc/crc32c.h"
#include "rpc/rpc_internal.h"

enum { SMALL_FRAME = 1024 };

static size_t out_waiting(const rle_conn *conn)
{
    return conn->out_end - conn->out_begin;
}

static rle_status out_append(rle_conn *conn, const void *bytes, size_t n)
{
    if (conn->out_begin == conn->out_end) conn->out_begin = conn->out_end = 0;
    if (conn->out_cap - conn->out_end < n) {
        size_t have = out_waiting(conn);
        if (conn->out_begin) memmove(conn->out, conn->out + conn->out_begin, have);
        conn->out_begin = 0;
        conn->out_end = have;
        if (conn->out_cap - have < n) {
            size_t cap = conn->out_cap ? conn->out_cap : 4096;
            while (cap - have < n) cap *= 2;
            uint8_t *out = rle_realloc(conn->out, cap);
            if (!out) return rle_oom(cap, "output of a connection");
            conn->out = out;
            conn->out_cap = cap;
        }
    }
    memcpy(conn->out + conn->out_end, bytes, n);
    conn->out_end += n;
    return RLE_OK;
}

/* Queue the next piece of a long message; round robin over several. */
static rle_status out_next_chunk(rle_conn *conn)
{
    rle_out_message *m = conn->long_first;
    size_t n = m->size - m->sent;
    if (n > RLE_CHUNK_SIZE) n = RLE_CHUNK_SIZE;
    rle_frame f = m->head;
    f.payload = (uint32_t)n;
    f.credit = 0;
    if (m->sent) {
        f.flags = (uint16_t)(f.type == RLE_FRAME_CALL ? 0 : RLE_FLAG_REPLY);
        f.type = RLE_FRAME_CHUNK;
        f.arg = m->sent;
        f.code = 0;
    } else {
        f.flags |= RLE_FLAG_MORE;
        f.credit = m->head.credit;
    }
    f.crc = 0;
    if (conn->body_crc) {
        f.flags |= RLE_FLAG_BODY_CRC;
        f.crc = rle_crc32c(0, m->body + m->sent, n);
    }
    uint8_t head[RLE_FRAME_HEADER];
    rle_frame_encode(&f, head);
    RLE_TRY(out_append(conn, head, sizeof head));
    rle_status s = out_append(conn, m->body + m->sent, n);
    if (s != RLE_OK) {
        conn->out_end -= sizeof head;
        return s;
    }
    m->sent += n;
    conn->long_first = m->next;
    if (!m->next) conn->long_last = &conn->long_first;
    if (m->sent < m->size) {
        m->next = NULL;
        *conn->long_last = m;
        conn->long_last = &m->next;
    } else {
        rle_free(m->body);
        rle_free(m);
    }
    return RLE_OK;
}

void rle_conn_arm_write(rle_conn *conn, bool on)
{
    if (on == conn->write_armed) return;
    if (on ? rle_watch_on(conn->write_watch) : rle_watch_off(conn->write_watch))
        conn->write_armed = on;
}

static void write_failed(rle_conn *conn)
{
    rle_conn_close(conn, errno == EPIPE || errno == ECONNRESET ? "end of stream"
                                                               : strerror(errno), false);
}

void rle_conn_flush(rle_conn *conn)
{
    if (conn->state == RLE_CONN_DEAD || conn->state == RLE_CONN_CONNECTING) return;
    for (;;) {
        while (conn->long_first && out_waiting(conn) < RLE_OUT_LOW)
            if (out_next_chunk(conn) != RLE_OK) break;
        if (!out_waiting(conn)) break;
        struct iovec iov = {conn->out + conn->out_begin, out_waiting(conn)};
        ssize_t n = conn->transport.ops->writev(&conn->transport, &iov, 1);
        if (n < 0) {
            if (errno == EAGAIN) break;
            write_failed(conn);
            return;
        }
        conn->bytes_out += (uint64_t)n;
        conn->out_begin += (size_t)n;
        if ((size_t)n < iov.iov_len) break;
    }
    size_t waiting = out_waiting(conn);
    if (!waiting && !conn->long_first) {
        /* Nothing waits: an idle connection keeps no buffer. */
        if (conn->out_cap > 4096) {
            rle_free(conn->out);
            conn->out = NULL;
            conn->out_cap = 0;
        }
        conn->out_begin = conn->out_end = 0;
    }
    if (waiting <= RLE_OUT_SOFT) conn->out_over_since = 0;
    rle_conn_arm_write(conn, waiting || conn->long_first);
}

static rle_status send_long(rle_conn *conn, const rle_frame *f, const struct iovec *parts,
                            int count)
{
    rle_out_message *m = rle_malloc(sizeof *m);
    uint8_t *body = m ? rle_malloc(f->body) : NULL;
    if (!body) {
        rle_free(m);
        return rle_oom(f->body, "message to send");
    }
    size_t at = 0;
    for (int i = 0; i < count; i++) {
        memcpy(body + at, parts[i].iov_base, parts[i].iov_len);
        at += parts[i].iov_len;
    }
    *m = (rle_out_message){.head = *f, .body = body, .size = f->body};
    *conn->long_last = m;
    conn->long_last = &m->next;
    rle_conn_flush(conn);
    return RLE_OK;
}

/* Several blocks as one: cheaper than a gathering write when they are small. */
static int join(uint8_t *to, struct iovec *iov, int n)
{
    size_t at = 0;
    for (int i = 0; i < n; i++) {
        memcpy(to + at, iov[i].iov_base, iov[i].iov_len);
        at += iov[i].iov_len;
    }
    iov[0] = (struct iovec){to, at};
    return 1;
}

static void mark_dirty(rle_conn *conn)
{
    if (conn->dirty) return;
    conn->dirty = true;
    conn->dirty_next = conn->rpc->dirty;
    conn->rpc->dirty = conn;
}

void rle_conn_flush_dirty(rle_rpc *rpc)
{
    while (rpc->dirty) {
        rle_conn *conn = rpc->dirty;
        rpc->dirty = conn->dirty_next;
        conn->dirty = false;
        rle_conn_flush(conn);
    }
}

rle_status rle_conn_send_encoded(rle_conn *conn, rle_frame *f, rle_encoder *e, bool later)
{
    struct iovec parts[RLE_ENCODER_PARTS];
    int count = rle_encoder_parts(e, parts);
    f->values = (uint32_t)rle_encoder_values_size(e);
    f->tensors = (uint16_t)e->tensors;
    return rle_conn_send(conn, f, parts, count, true, later);
}

rle_status rle_conn_send(rle_conn *conn, rle_frame *f, const struct iovec *parts, int count,
                         bool room, bool later)
{
    if (conn->state == RLE_CONN_DEAD) return RLE_OK;
    size_t size = 0;
    for (int i = 0; i < count; i++) size += parts[i].iov_len;
    f->body = size;
    f->incarnation = conn->rpc->incarnation;
    f->crc = 0;
    if (size > RLE_CHUNK_SIZE) return send_long(conn, f, parts, count);

    f->payload = (uint32_t)size;
    if (conn->body_crc && size) {
        f->flags |= RLE_FLAG_BODY_CRC;
        for (int i = 0; i < count; i++)
            f->crc = rle_crc32c(f->crc, parts[i].iov_base, parts[i].iov_len);
    }
    uint8_t own_head[RLE_FRAME_HEADER];
    uint8_t *head = room ? (uint8_t *)parts[0].iov_base - RLE_FRAME_HEADER : own_head;
    rle_frame_encode(f, head);
    struct iovec iov[RLE_ENCODER_PARTS + 1];
    int n = 0;
    iov[n++] = (struct iovec){head, RLE_FRAME_HEADER};
    if (room) iov[0].iov_len += parts[0].iov_len;
    for (int i = room ? 1 : 0; i < count; i++) iov[n++] = parts[i];
    uint8_t small[SMALL_FRAME];
    if (n > 1 && size <= SMALL_FRAME - RLE_FRAME_HEADER) n = join(small, iov, n);

    size_t written = 0;
    if (!later && !out_waiting(conn) && !conn->long_first &&
        conn->state != RLE_CONN_CONNECTING) {
        ssize_t put = conn->transport.ops->writev(&conn->transport, iov, n);
        if (put < 0 && errno != EAGAIN) {
            write_failed(conn);
            return RLE_OK;
        }
        written = put > 0 ? (size_t)put : 0;
        conn->bytes_out += written;
        if (written == size + RLE_FRAME_HEADER) return RLE_OK;
    }
    size_t before = conn->out_end;
    for (int i = 0; i < n; i++) {
        if (written >= iov[i].iov_len) {
            written -= iov[i].iov_len;
            continue;
        }
        rle_status s = out_append(conn, (uint8_t *)iov[i].iov_base + written,
                                  iov[i].iov_len - written);
        if (s != RLE_OK) {
            /* Part of the frame may be out: the stream is spoiled. */
            if (i == 0 && written == 0)
                conn->out_end = before;
            else
                rle_conn_close(conn, "out of memory", false);
            return s;
        }
        written = 0;
    }
    if (out_waiting(conn) > RLE_OUT_HARD) {
        char reason[64];
        snprintf(reason, sizeof reason, "not reading: %d MiB waiting", RLE_OUT_HARD >> 20);
        rle_conn_close(conn, reason, false);
        return RLE_OK;
    }
    if (out_waiting(conn) > RLE_OUT_SOFT && !conn->out_over_since)
        conn->out_over_since = rle_now();
    if (later)
        mark_dirty(conn);
    else
        rle_conn_flush(conn);
    return RLE_OK;
}

void rle_conn_control(rle_conn *conn, rle_frame_type type, uint64_t id, uint64_t arg,
                      uint32_t credit)
{
    rle_frame f = {.type = (uint8_t)type, .id = id, .arg = arg, .credit = credit};
    if (rle_conn_send(conn, &f, NULL, 0, false, false) != RLE_OK)
        rle_conn_close(conn, "out of memory", false);
}
