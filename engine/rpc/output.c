/* output.c - frames out of one connection.
 *
 * A frame is written at once; only what the socket does not take is copied, and only then
 * do we ask to hear that there is room. Long messages wait apart and add a chunk whenever
 * little else waits, so control frames pass them. Their bodies are shared by every
 * connection they are sent over and written from where they lie: of a chunk on its way
 * (conn->chunk) only the header is in the buffer, and `out_before` says how much of the
 * buffer goes before its bytes.
 *
 * Connections with long messages take turns, a chunk each, and all together get
 * RLE_OUT_TURN bytes a turn of the loop: what is small, calls and their answers, passes
 * between, however many read weights and however fast.
 *
 * In this way what waits for a worker that reads nothing is bounded: small frames by
 * RLE_OUT_HARD, long messages by one body, which others share. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "rpc/crc32c.h"
#include "rpc/rpc_internal.h"

enum {
    SMALL_FRAME = 1024,
    COPY_STEP = 64 << 10, /* that is copied before the socket is tried again */
};

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
            /* The last step is a small one: more never waits. */
            enum { MOST = RLE_OUT_HARD + RLE_OUT_LOW };
            if (cap > MOST && have + n <= MOST) cap = MOST;
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

/* ---- long messages ---- */

void rle_out_message_free(rle_out_message *m)
{
    if (!m) return;
    rle_body_release(m->body);
    rle_free(m);
}

static size_t next_chunk(const rle_out_message *m)
{
    size_t n = m->body->size - m->sent;
    return n < RLE_CHUNK_SIZE ? n : RLE_CHUNK_SIZE;
}

/* Begin the next piece of a long message; round robin over several. */
static rle_status begin_chunk(rle_conn *conn)
{
    rle_out_message *m = conn->long_first;
    size_t n = next_chunk(m);
    rle_frame f = m->head;
    f.payload = (uint32_t)n;
    if (m->sent) {
        f.flags = (uint16_t)(f.type == RLE_FRAME_CALL ? 0 : RLE_FLAG_REPLY);
        f.type = RLE_FRAME_CHUNK;
        f.arg = m->sent;
        f.code = 0;
        f.credit = 0;
    } else if (n < m->body->size) {
        f.flags |= RLE_FLAG_MORE;
    }
    f.crc = 0;
    if (conn->body_crc) {
        f.flags |= RLE_FLAG_BODY_CRC;
        f.crc = rle_body_sum(m->body, m->sent, n);
    }
    uint8_t head[RLE_FRAME_HEADER];
    rle_frame_encode(&f, head);
    RLE_TRY(out_append(conn, head, sizeof head));
    if (!m->sent && m->head.type == RLE_FRAME_CALL) conn->calls_unbegun--;
    conn->long_first = m->next;
    if (!m->next) conn->long_last = &conn->long_first;
    conn->chunk = m;
    conn->chunk_left = n;
    conn->out_before = out_waiting(conn);
    return RLE_OK;
}

/* Its bytes are out. */
static void end_chunk(rle_conn *conn)
{
    rle_out_message *m = conn->chunk;
    conn->chunk = NULL;
    if (m->sent == m->body->size) {
        rle_out_message_free(m);
        return;
    }
    m->next = NULL;
    *conn->long_last = m;
    conn->long_last = &m->next;
}

/* What is to be written next: the buffer up to the chunk, the chunk, the rest of the
 * buffer. Of the chunk at most `most` bytes. */
static int gather(rle_conn *conn, size_t most, struct iovec iov[RLE_BODY_BLOCKS + 2])
{
    int n = 0;
    size_t before = conn->chunk ? conn->out_before : out_waiting(conn);
    size_t after = out_waiting(conn) - before;
    uint8_t *out = conn->out ? conn->out + conn->out_begin : NULL;
    if (before) iov[n++] = (struct iovec){out, before};
    size_t piece = 0;
    if (conn->chunk && most)
        n += rle_body_blocks(conn->chunk->body, conn->chunk->sent,
                             most < conn->chunk_left ? most : conn->chunk_left, iov + n,
                             &piece);
    if (after && piece == conn->chunk_left) iov[n++] = (struct iovec){out + before, after};
    return n;
}

/* `n` bytes of that are out. */
static void written(rle_conn *conn, size_t n)
{
    conn->bytes_out += n;
    if (conn->chunk) {
        size_t take = n < conn->out_before ? n : conn->out_before;
        conn->out_begin += take;
        conn->out_before -= take;
        n -= take;
        take = n < conn->chunk_left ? n : conn->chunk_left;
        conn->chunk->sent += take;
        conn->chunk_left -= take;
        n -= take;
        if (!conn->out_before && !conn->chunk_left) end_chunk(conn);
    }
    conn->out_begin += n;
}

void rle_conn_arm_write(rle_conn *conn, bool on)
{
    if (on == conn->write_armed) return;
    if (on ? rle_watch_on(conn->write_watch) : rle_watch_off(conn->write_watch))
        conn->write_armed = on;
}

void rle_conn_drop_output(rle_conn *conn)
{
    while (conn->long_first) {
        rle_out_message *m = conn->long_first;
        conn->long_first = m->next;
        rle_map_slot *call = m->sent || m->head.type != RLE_FRAME_CALL
                                 ? NULL
                                 : rle_map_get(&conn->calls, m->head.id);
        if (call) ((rle_future *)call->v.pointer)->sent = false;
        rle_out_message_free(m);
    }
    conn->long_last = &conn->long_first;
    if (conn->rpc->rest.conn == conn) conn->rpc->rest.conn = NULL;
    conn->calls_unbegun = 0;
    rle_out_message_free(conn->chunk);
    conn->chunk = NULL;
    rle_free(conn->out);
    conn->out = NULL;
    conn->out_begin = conn->out_end = conn->out_cap = 0;
    conn->out_before = conn->chunk_left = 0;
    conn->out_over_since = 0;
}

void rle_conn_trim(rle_conn *conn)
{
    if (!conn->calls.used) rle_map_fini(&conn->calls);
    if (!conn->exported.used) rle_map_fini(&conn->exported);
    if (!out_waiting(conn) && !conn->chunk && !conn->long_first)
        rle_conn_drop_output(conn);
}

/* Nobody is there to read it. What they said last may still wait to be read, and it says
 * more than a broken pipe does: the connection goes when its end is read. */
static void nobody_reads(rle_conn *conn)
{
    conn->deaf = true;
    rle_conn_drop_output(conn);
    rle_conn_arm_write(conn, false);
}

static void write_failed(rle_conn *conn)
{
    if (errno == EPIPE || errno == ECONNRESET)
        nobody_reads(conn);
    else
        rle_conn_broken(conn, errno);
}

/* A chunk can be begun. */
static bool chunk_due(const rle_conn *conn)
{
    const rle_out_message *m = conn->chunk ? NULL : conn->long_first;
    return m && (m->body->parts || m->sent + next_chunk(m) <= m->body->ready) &&
           out_waiting(conn) < RLE_OUT_LOW;
}

/* Write what waits, of long messages about `most` bytes. False: the socket is full, or it
 * is over. */
static bool write_out(rle_conn *conn, size_t most)
{
    bool room = true;
    if (conn->state == RLE_CONN_DEAD || conn->state == RLE_CONN_CONNECTING) return false;
    if (rle_conn_unsent(conn) &&
        conn->transport.ops->writev(&conn->transport, NULL, 0) < 0 && errno != EAGAIN) {
        write_failed(conn);
        return false;
    }
    while (room) {
        if (most && chunk_due(conn))
            begin_chunk(conn); /* without memory for its header it waits */
        struct iovec iov[RLE_BODY_BLOCKS + 2];
        int count = gather(conn, most, iov);
        if (!count) break;
        ssize_t n = conn->transport.ops->writev(&conn->transport, iov, count);
        if (n < 0) {
            if (errno != EAGAIN) {
                write_failed(conn);
                return false;
            }
            n = 0;
        }
        size_t all = 0;
        for (int i = 0; i < count; i++) all += iov[i].iov_len;
        written(conn, (size_t)n);
        most -= (size_t)n < most ? (size_t)n : most;
        room = (size_t)n == all;
    }
    size_t waiting = out_waiting(conn);
    bool more = waiting || conn->chunk || conn->long_first;
    if (!more) {
        /* Nothing waits: an idle connection keeps no buffer. */
        if (conn->out_cap > 4096) {
            rle_free(conn->out);
            conn->out = NULL;
            conn->out_cap = 0;
        }
        conn->out_begin = conn->out_end = 0;
    }
    if (waiting <= RLE_OUT_SOFT) conn->out_over_since = 0;
    rle_conn_arm_write(conn, more || rle_conn_unsent(conn) > 0);
    return room;
}

/* ---- turns of those with long messages ---- */

void rle_conn_leave_long(rle_conn *conn)
{
    if (!conn->long_at) return;
    *conn->long_at = conn->long_next;
    if (conn->long_next)
        conn->long_next->long_at = conn->long_at;
    else
        conn->rpc->long_end = conn->long_at;
    conn->long_at = NULL;
}

/* The same, and what is left of its long messages gets its turn while the socket has
 * room. */
static void write_and_join(rle_conn *conn, size_t most)
{
    rle_rpc *rpc = conn->rpc;
    if (!write_out(conn, most) || conn->long_at || !(conn->chunk || chunk_due(conn)))
        return;
    conn->long_next = NULL;
    conn->long_at = rpc->long_end;
    *rpc->long_end = conn;
    rpc->long_end = &conn->long_next;
}

void rle_conn_flush(rle_conn *conn)
{
    write_and_join(conn, 0);
}

void rle_conn_write_long(rle_rpc *rpc, size_t most)
{
    for (size_t put = 0; rpc->long_turns && put < most;) {
        rle_conn *conn = rpc->long_turns;
        uint64_t before = conn->bytes_out;
        rle_conn_leave_long(conn);
        write_and_join(conn, RLE_CHUNK_SIZE);
        size_t n = (size_t)(conn->bytes_out - before);
        if (!n) rle_conn_leave_long(conn); /* it hears when there is room; or memory */
        put += n;
    }
}

rle_status rle_conn_send_body(rle_conn *conn, rle_frame *f, rle_body *body)
{
    if (conn->state == RLE_CONN_DEAD || conn->deaf) return RLE_OK;
    rle_out_message *m = rle_malloc(sizeof *m);
    if (!m) return rle_oom(sizeof *m, "message to send");
    f->body = body->size;
    f->incarnation = conn->rpc->incarnation;
    body->refs++;
    *m = (rle_out_message){.head = *f, .body = body};
    if (f->type == RLE_FRAME_CALL) conn->calls_unbegun++;
    *conn->long_last = m;
    conn->long_last = &m->next;
    if (body == conn->rpc->rest.body) conn->rpc->rest.conn = conn;
    rle_conn_flush(conn);
    return RLE_OK;
}

bool rle_conn_unsend(rle_conn *conn, uint64_t id)
{
    if (!conn->calls_unbegun) return false;
    rle_out_message **at = &conn->long_first, *m;
    for (; (m = *at) != NULL; at = &m->next)
        if (m->head.id == id && m->head.type == RLE_FRAME_CALL) break;
    if (!m || m->sent) return false;
    *at = m->next;
    if (!m->next) conn->long_last = at;
    conn->calls_unbegun--;
    /* Its values are ours by now, also when its tensor is lent. */
    rle_export_uncount_values(conn, m->body->data, m->head.values, false,
                              m->head.tensors);
    rle_out_message_free(m);
    return true;
}

/* How far the first of its messages is out, `body` being that one's. */
static size_t sent_of(const rle_conn *conn, const rle_body *body)
{
    if (conn->chunk && conn->chunk->body == body) return conn->chunk->sent;
    for (const rle_out_message *m = conn->long_first; m; m = m->next)
        if (m->body == body) return m->sent;
    return body->size;
}

/* It is written from where its values lie, as far as the socket takes it. What it does
 * not take is copied, because the caller may change them afterwards; a piece at a time,
 * and then the socket is tried again: meanwhile the other side has read. So the more
 * slowly it reads, the more is copied, and never while it waits for us. `*conn` is what
 * it goes out over; NULL: it waits for that, or nobody reads it any more. `unlocked`: the
 * loop whose lock is given back while bytes are copied; NULL: it is kept. */
static void write_and_copy(rle_body *body, rle_conn *const *conn, rle_evloop *unlocked)
{
    for (size_t at, end;;) {
        if (*conn) write_and_join(*conn, RLE_OUT_BURST);
        size_t sent = *conn ? sent_of(*conn, body) : 0;
        if (body->refs == 1 || !rle_body_uncopied(body, sent, COPY_STEP, &at, &end))
            break;
        if (unlocked) rle_evloop_unlock(unlocked);
        rle_body_copy(body, at, end);
        if (unlocked) rle_evloop_lock(unlocked);
        body->ready = end;
    }
    body->parts = NULL;
    body->part_count = 0;
    if (*conn) write_and_join(*conn, RLE_OUT_BURST);
}

static rle_status send_long(rle_conn *conn, rle_frame *f, const struct iovec *parts, int count)
{
    rle_body *body;
    RLE_TRY(rle_body_new(f->body, &body));
    body->ready = 0;
    body->parts = parts;
    body->part_count = count;
    rle_status s = rle_conn_send_body(conn, f, body);
    if (s == RLE_OK) write_and_copy(body, &conn, NULL);
    rle_body_release(body);
    return s;
}

void rle_conn_copy_rest(rle_rpc *rpc)
{
    rle_rest *rest = &rpc->rest;
    rle_body *body = rest->body;
    write_and_copy(body, &rest->conn, &rpc->loop);
    rest->body = NULL;
    rest->conn = NULL;
    rle_body_release(body);
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
    bool lends = e->lent && e->tensors == 1;
    if ((lends || e->stays) && rle_encoder_body_size(e) > RLE_CHUNK_SIZE) {
        rle_body *body;
        RLE_TRY(lends ? rle_body_lent(e, &body) : rle_body_of(conn->rpc, e, &body));
        rle_status s = rle_conn_send_body(conn, f, body);
        rle_body_release(body);
        return s;
    }
    return rle_conn_send(conn, f, parts, count, true, later);
}

rle_status rle_conn_send(rle_conn *conn, rle_frame *f, const struct iovec *parts, int count,
                         bool room, bool later)
{
    if (conn->state == RLE_CONN_DEAD || conn->deaf) return RLE_OK;
    size_t size = 0;
    for (int i = 0; i < count; i++) size += parts[i].iov_len;
    f->body = size;
    f->incarnation = conn->rpc->incarnation;
    f->crc = 0;
    /* Numbers of calls go up: a short call may pass one that has begun, but not one that still
     * waits for its turn. */
    if (size > RLE_CHUNK_SIZE || (f->type == RLE_FRAME_CALL && conn->calls_unbegun))
        return send_long(conn, f, parts, count);

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

    size_t done = 0;
    if (!later && !out_waiting(conn) && !conn->chunk && !conn->long_first &&
        conn->state != RLE_CONN_CONNECTING) {
        ssize_t put = conn->transport.ops->writev(&conn->transport, iov, n);
        if (put < 0 && errno != EAGAIN) {
            write_failed(conn);
            return RLE_OK;
        }
        done = put > 0 ? (size_t)put : 0;
        conn->bytes_out += done;
        if (done == size + RLE_FRAME_HEADER) {
            if (rle_conn_unsent(conn)) rle_conn_arm_write(conn, true);
            return RLE_OK;
        }
    }
    if (out_waiting(conn) + size > RLE_OUT_HARD) {
        char reason[64];
        snprintf(reason, sizeof reason, "not reading: %d MiB waiting", RLE_OUT_HARD >> 20);
        rle_conn_close(conn, reason, false);
        return RLE_OK;
    }
    for (int i = 0; i < n; i++) {
        if (done >= iov[i].iov_len) {
            done -= iov[i].iov_len;
            continue;
        }
        rle_status s = out_append(conn, (uint8_t *)iov[i].iov_base + done, iov[i].iov_len - done);
        if (s != RLE_OK) {
            /* Part of the frame may be out: the stream is spoiled. */
            if (i > 0 || done > 0) rle_conn_close(conn, "out of memory", false);
            return s;
        }
        done = 0;
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

void rle_conn_goaway(rle_conn *conn, rle_status code)
{
    rle_frame f = {.type = RLE_FRAME_GOAWAY, .code = (uint16_t)code};
    if (rle_conn_send(conn, &f, NULL, 0, false, false) != RLE_OK)
        rle_conn_close(conn, "out of memory", false);
}
