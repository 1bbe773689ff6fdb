/* connection.c - one connection: bytes in, and its beginning and end.
 *
 * A read goes into the loop's scratch block, and frames that lie in it whole are handed
 * on in place; what a message still misses is read straight into its own block. So a call of
 * some hundred bytes costs one read and no copy, and an idle connection owns no buffer. What
 * goes out is in output.c. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "rpc/crc32c.h"
#include "rpc/rpc_internal.h"

const char *rle_conn_name(const rle_conn *conn)
{
    return conn->peer ? conn->peer->name : conn->address.shown;
}

/* ---- in ---- */

static rle_in_message **find_partial(rle_conn *conn, const rle_frame *f)
{
    bool reply = f->type == RLE_FRAME_CHUNK ? (f->flags & RLE_FLAG_REPLY) != 0
                                            : f->type != RLE_FRAME_CALL;
    rle_in_message **at = &conn->partial;
    for (; *at; at = &(*at)->next)
        if ((*at)->head.id == f->id && ((*at)->head.type != RLE_FRAME_CALL) == reply) break;
    return at;
}

/* Memory for a message that comes in pieces, or does not lie in one read. */
static rle_status begin_message(rle_conn *conn, const rle_frame *f, rle_in_message **out)
{
    if (*find_partial(conn, f))
        return rle_fail(RLE_INVALID_ARGUMENT, "message %" PRIu64 " begins twice", f->id);
    uint64_t limit = conn->rpc->o.max_message;
    if (conn->partial_bytes + f->body > 2 * limit)
        return rle_fail(RLE_RESOURCE_EXHAUSTED,
                        "unfinished messages of more than %" PRIu64 " bytes", 2 * limit);
    rle_in_message *m = rle_malloc(sizeof *m);
    uint8_t *body = m ? rle_malloc(f->body) : NULL;
    if (!body) {
        rle_free(m);
        return rle_oom(f->body, "frame body");
    }
    *m = (rle_in_message){.next = conn->partial, .head = *f, .body = body};
    conn->partial = m;
    conn->partial_bytes += f->body;
    *out = m;
    return RLE_OK;
}

static void end_message(rle_conn *conn, rle_in_message *m)
{
    rle_in_message **at = &conn->partial;
    while (*at != m) at = &(*at)->next;
    *at = m->next;
    conn->partial_bytes -= m->head.body;
    rle_free(m);
}

/* A chunk: which message, and is it the piece that is due? */
static rle_status continue_message(rle_conn *conn, const rle_frame *f, rle_in_message **out)
{
    rle_in_message *m = *find_partial(conn, f);
    if (!m || m->head.body != f->body || m->got != f->arg)
        return rle_fail(RLE_INVALID_ARGUMENT, "chunk of message %" PRIu64 " out of order",
                        f->id);
    *out = m;
    return RLE_OK;
}

/* The header in `f` is good: where does the payload go? */
static rle_status choose_target(rle_conn *conn)
{
    rle_frame *f = &conn->frame;
    conn->current = NULL;
    conn->payload_got = 0;
    if (f->type == RLE_FRAME_CHUNK) {
        RLE_TRY(continue_message(conn, f, &conn->current));
    } else if (rle_frame_is_message(f)) {
        RLE_TRY(begin_message(conn, f, &conn->current));
    } else {
        conn->target = rle_malloc(f->payload);
        if (!conn->target) return rle_oom(f->payload, "control frame");
        return RLE_OK;
    }
    conn->target = conn->current->body + conn->current->got;
    return RLE_OK;
}

static rle_status check_payload(const rle_frame *f, const uint8_t *payload)
{
    if ((f->flags & RLE_FLAG_BODY_CRC) && rle_crc32c(0, payload, f->payload) != f->crc)
        return rle_fail(RLE_DATA_LOSS, "frame checksum mismatch");
    return RLE_OK;
}

/* A frame whose payload has been gathered in conn->target. */
static rle_status finish_frame(rle_conn *conn)
{
    rle_frame f = conn->frame;
    uint8_t *payload = conn->target;
    rle_in_message *m = conn->current;
    conn->in_frame = false;
    conn->target = NULL;
    conn->current = NULL;
    rle_status s = check_payload(&f, payload);
    if (!m) {
        if (s == RLE_OK) rle_dispatch_control(conn, &f, payload);
        rle_free(payload);
        return s;
    }
    if (s != RLE_OK) return s;
    m->got += f.payload;
    if (m->got < m->head.body) return RLE_OK;
    rle_frame head = m->head;
    uint8_t *body = m->body;
    end_message(conn, m);
    rle_dispatch_message(conn, &head, body, body);
    return RLE_OK;
}

/* A frame that lies whole in what was read. */
static rle_status whole_frame(rle_conn *conn, const uint8_t *payload)
{
    rle_frame *f = &conn->frame;
    RLE_TRY(check_payload(f, payload));
    if (rle_frame_is_message(f) && !(f->flags & RLE_FLAG_MORE)) {
        rle_dispatch_message(conn, f, payload, NULL);
        return RLE_OK;
    }
    if (!rle_frame_is_message(f) && f->type != RLE_FRAME_CHUNK) {
        rle_dispatch_control(conn, f, payload);
        return RLE_OK;
    }
    RLE_TRY(choose_target(conn));
    memcpy(conn->target, payload, f->payload);
    conn->frame.flags &= (uint16_t)~RLE_FLAG_BODY_CRC; /* checked above */
    return finish_frame(conn);
}

static rle_status header_arrived(rle_conn *conn, const uint8_t *head)
{
    bool open = conn->state == RLE_CONN_OPEN;
    RLE_TRY(rle_frame_decode(head, open ? conn->rpc->o.max_message : RLE_PREAUTH_MAX,
                             &conn->frame));
    return rle_dispatch_check(conn, &conn->frame);
}

/* Frames out of `n` bytes at `p`. Stops early when the connection is closed. */
static rle_status parse(rle_conn *conn, const uint8_t *p, size_t n)
{
    const uint8_t *end = p + n;
    while (conn->state != RLE_CONN_DEAD) {
        if (conn->in_frame) {
            size_t miss = conn->frame.payload - conn->payload_got;
            size_t take = miss < (size_t)(end - p) ? miss : (size_t)(end - p);
            memcpy(conn->target + conn->payload_got, p, take);
            conn->payload_got += take;
            p += take;
            if (take < miss) return RLE_OK;
            RLE_TRY(finish_frame(conn));
            continue;
        }
        const uint8_t *head = p;
        if (conn->head_got || end - p < RLE_FRAME_HEADER) {
            size_t miss = RLE_FRAME_HEADER - conn->head_got;
            size_t take = miss < (size_t)(end - p) ? miss : (size_t)(end - p);
            memcpy(conn->head + conn->head_got, p, take);
            conn->head_got += take;
            p += take;
            if (take < miss) {
                /* Whoever speaks another protocol need not send 64 bytes to be told. */
                if (conn->head_got >= 4 && rle_get32(conn->head) != RLE_FRAME_MAGIC) {
                    memset(conn->head + conn->head_got, 0, miss - take);
                    return rle_frame_decode(conn->head, 0, &conn->frame);
                }
                return RLE_OK;
            }
            head = conn->head;
            conn->head_got = 0;
        } else {
            p += RLE_FRAME_HEADER;
        }
        RLE_TRY(header_arrived(conn, head));
        if ((size_t)(end - p) >= conn->frame.payload) {
            RLE_TRY(whole_frame(conn, p));
            p += conn->frame.payload;
        } else {
            RLE_TRY(choose_target(conn));
            conn->in_frame = true;
        }
    }
    return RLE_OK;
}

static void end_of_stream(rle_conn *conn)
{
    char reason[96] = "end of stream";
    if (conn->in_frame)
        snprintf(reason, sizeof reason, "end of stream inside a frame (%zu of %zu bytes)",
                 conn->payload_got + RLE_FRAME_HEADER,
                 (size_t)conn->frame.payload + RLE_FRAME_HEADER);
    else if (conn->head_got)
        snprintf(reason, sizeof reason, "end of stream inside a frame (%zu of %d bytes)",
                 conn->head_got, RLE_FRAME_HEADER);
    rle_conn_close(conn, reason, false);
}

static void conn_readable(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    rle_conn *conn = arg;
    rle_rpc *rpc = conn->rpc;
    bool guard = rle_evloop_on_guard();
    for (int round = 0; round < 4 && conn->state != RLE_CONN_DEAD; round++) {
        size_t used = guard ? 0 : rpc->scratch_used;
        size_t room = RLE_SCRATCH_SIZE - used;
        if (room < RLE_SCRATCH_MIN_READ) return; /* the next turn has it all again */
        uint8_t *scratch = (guard ? rpc->guard_scratch : rpc->scratch) + used;
        struct iovec iov[2];
        int n = 0;
        size_t miss = 0;
        if (conn->in_frame) {
            miss = conn->frame.payload - conn->payload_got;
            iov[n++] = (struct iovec){conn->target + conn->payload_got, miss};
        }
        iov[n++] = (struct iovec){scratch, room};
        ssize_t got = conn->transport.ops->readv(&conn->transport, iov, n);
        if (got < 0) {
            if (errno == EAGAIN) return;
            rle_conn_close(conn, errno == ECONNRESET ? "end of stream" : strerror(errno), false);
            return;
        }
        if (got == 0) {
            end_of_stream(conn);
            return;
        }
        conn->bytes_in += (uint64_t)got;
        conn->active = true;
        conn->pinged = 0;
        size_t direct = miss < (size_t)got ? miss : (size_t)got;
        size_t more = (size_t)got - direct;
        size_t borrowed = rpc->borrowed_count;
        rle_status s = RLE_OK;
        if (direct) {
            conn->payload_got += direct;
            if (conn->payload_got == conn->frame.payload) s = finish_frame(conn);
        }
        if (s == RLE_OK && more) s = parse(conn, scratch, more);
        /* Messages left in the scratch block: the next read goes behind them. */
        if (!guard && rpc->borrowed_count > borrowed)
            rpc->scratch_used = (used + more + 63) & ~(size_t)63;
        if (s != RLE_OK) {
            rle_conn_reject(conn);
            return;
        }
        if (more < room) return;
    }
}

static void conn_writable(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    rle_conn *conn = arg;
    if (conn->state == RLE_CONN_CONNECTING) {
        rle_conn_arm_write(conn, false);
        rle_handshake_begin(conn);
        return;
    }
    rle_conn_flush(conn);
}

/* ---- life ---- */

rle_status rle_conn_new(rle_rpc *rpc, int fd, const rle_address *address, bool initiator,
                        bool connecting, rle_conn **out)
{
    rle_transport transport = {.ops = &rle_socket_transport, .fd = fd};
    rle_conn *conn = rle_calloc(1, sizeof *conn);
    rle_handshake *handshake = conn ? rle_calloc(1, sizeof *handshake) : NULL;
    if (!handshake) {
        rle_free(conn);
        transport.ops->close(&transport);
        return rle_oom(sizeof *conn, "connection");
    }
    handshake->rpc = rpc;
    handshake->conn = conn;
    conn->rpc = rpc;
    conn->handshake = handshake;
    conn->transport = transport;
    conn->address = *address;
    conn->is_unix = address->is_unix;
    conn->body_crc = !address->is_unix;
    conn->initiator = initiator;
    conn->state = connecting ? RLE_CONN_CONNECTING : RLE_CONN_GREETING;
    conn->long_last = &conn->long_first;
    conn->heard = rle_now();
    conn->read_event =
        event_new(rpc->loop.base, fd, EV_READ | EV_PERSIST, conn_readable, conn);
    conn->write_event =
        event_new(rpc->loop.base, fd, EV_WRITE | EV_PERSIST, conn_writable, conn);
    if (!conn->read_event || !conn->write_event ||
        event_add(connecting ? conn->write_event : conn->read_event, NULL) != 0) {
        if (conn->read_event) event_free(conn->read_event);
        if (conn->write_event) event_free(conn->write_event);
        transport.ops->close(&conn->transport);
        rle_free(handshake);
        rle_free(conn);
        return rle_oom(sizeof *conn, "connection");
    }
    conn->write_armed = connecting;
    conn->next = rpc->conns;
    conn->at = &rpc->conns;
    if (conn->next) conn->next->at = &conn->next;
    rpc->conns = conn;
    rpc->half_open++;
    rle_socket_tune(fd, conn->is_unix);
    *out = conn;
    return RLE_OK;
}

static void drop_buffers(rle_conn *conn)
{
    while (conn->long_first) {
        rle_out_message *m = conn->long_first;
        conn->long_first = m->next;
        rle_free(m->body);
        rle_free(m);
    }
    conn->long_last = &conn->long_first;
    if (conn->in_frame && !conn->current) rle_free(conn->target);
    conn->in_frame = false;
    while (conn->partial) {
        rle_in_message *m = conn->partial;
        conn->partial = m->next;
        rle_free(m->body);
        rle_free(m);
    }
    rle_free(conn->out);
    conn->out = NULL;
    conn->out_begin = conn->out_end = conn->out_cap = 0;
}

void rle_conn_reject(rle_conn *conn)
{
    if (conn->state == RLE_CONN_DEAD) return;
    char reason[512];
    snprintf(reason, sizeof reason, "%s", rle_message());
    if (conn->peer)
        rle_log(RLE_LOG_WARN, "closed \"%s\": %s", conn->peer->name, reason);
    else
        rle_log(RLE_LOG_WARN, "closed %s: %s", conn->address.shown, reason);
    rle_conn_close(conn, reason, true);
}

/* What a lost worker's callers and log readers learn. */
static void lose_peer(rle_conn *conn, const char *reason, bool quiet)
{
    rle_peer *peer = conn->peer;
    rle_rpc *rpc = conn->rpc;
    size_t failed = conn->calls.used;
    peer->conn = NULL;
    peer->left = conn->going_away;
    rpc->membership++;
    snprintf(peer->lost_reason, sizeof peer->lost_reason, "%s", reason);
    bool silent = strncmp(reason, "did not answer", 14) == 0;
    bool clogged = strncmp(reason, "not reading", 11) == 0;
    RLE_MAP_EACH(&conn->calls, slot) {
        rle_future *f = slot->v.pointer;
        f->conn = NULL;
        if (silent)
            rle_future_fail(f, RLE_UNAVAILABLE, RLE_OUTCOME_UNKNOWN,
                            "worker \"%s\" %s (outcome: unknown)", peer->name, reason);
        else if (clogged)
            rle_future_fail(f, RLE_RESOURCE_EXHAUSTED, RLE_OUTCOME_UNKNOWN,
                            "worker \"%s\" is %s", peer->name, reason);
        else
            rle_future_fail(f, RLE_UNAVAILABLE, RLE_OUTCOME_UNKNOWN,
                            "worker \"%s\" disconnected while \"%s\" was running (outcome: "
                            "unknown)",
                            peer->name, f->method);
        rle_future_unref(f);
    }
    rle_map_fini(&conn->calls);
    if (!peer->opening) {
        char before[RLE_NAME_MAX + 48];
        snprintf(before, sizeof before, "worker \"%s\" disconnected before ", peer->name);
        rle_peer_fail_held(peer, RLE_UNAVAILABLE, before, " was sent (outcome: not executed)");
    }
    while (conn->incoming) rle_incoming_orphan(conn->incoming);
    size_t released = rle_export_release_all(conn);
    if (quiet) return;
    if (conn->going_away && !failed)
        rle_log(RLE_LOG_DEBUG, "worker \"%s\" left", peer->name);
    else if (!rpc->stopping)
        rle_log(RLE_LOG_WARN,
                "worker \"%s\" lost: %s; %zu call%s failed, %zu reference%s released",
                peer->name, reason, failed, failed == 1 ? "" : "s", released,
                released == 1 ? "" : "s");
}

void rle_conn_close(rle_conn *conn, const char *reason, bool quiet)
{
    if (conn->state == RLE_CONN_DEAD) return;
    rle_rpc *rpc = conn->rpc;
    rle_conn_state was = conn->state;
    conn->state = RLE_CONN_DEAD;
    event_free(conn->read_event);
    event_free(conn->write_event);
    conn->transport.ops->close(&conn->transport);
    *conn->at = conn->next;
    if (conn->next) conn->next->at = conn->at;
    conn->next = rpc->dead;
    rpc->dead = conn;
    drop_buffers(conn);
    if (was != RLE_CONN_OPEN) {
        rpc->half_open--;
        if (conn->result && !conn->result->done) {
            conn->result->done = true;
            conn->result->status = RLE_UNAVAILABLE;
            snprintf(conn->result->message, sizeof conn->result->message,
                     "connection to %s: %s", conn->address.shown, reason);
        }
        rle_peer *wanted = conn->initiator ? conn->peer : NULL;
        rle_handshake_free(conn);
        if (wanted && wanted->opening == conn) {
            char before[RLE_NAME_MAX + 48];
            wanted->opening = NULL;
            snprintf(before, sizeof before, "cannot reach worker \"%s\" for ", wanted->name);
            rle_peer_fail_held(wanted, RLE_UNAVAILABLE, before, " (outcome: not executed)");
        }
        return;
    }
    if (conn->peer->conn == conn) lose_peer(conn, reason, quiet);
}

void rle_conn_free_dead(rle_rpc *rpc)
{
    while (rpc->dead) {
        rle_conn *conn = rpc->dead;
        rpc->dead = conn->next;
        rle_map_fini(&conn->calls);
        rle_map_fini(&conn->exported);
        rle_free(conn);
    }
}
