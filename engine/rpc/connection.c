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

/* What an unfinished message counts: one that is only begun costs more than its few
 * bytes. */
static uint64_t weight(const rle_frame *f)
{
    return (f->flags & RLE_FLAG_MORE) && f->body < RLE_PARTIAL_MIN ? RLE_PARTIAL_MIN
                                                                   : f->body;
}

/* Memory for a message that does not lie in one read. */
static rle_status begin_message(rle_conn *conn, const rle_frame *f, rle_in_message **out)
{
    if (*find_partial(conn, f))
        return rle_fail(RLE_INVALID_ARGUMENT, "message %" PRIu64 " begins twice", f->id);
    uint64_t limit = conn->rpc->o.max_message;
    if (conn->partial_bytes + weight(f) > 2 * limit)
        return rle_fail(RLE_RESOURCE_EXHAUSTED,
                        "unfinished messages of more than %" PRIu64 " bytes", 2 * limit);
    rle_follower *follower = conn->follows && f->type == RLE_FRAME_RESULT
                                 ? rle_follower_of(conn, f->id) : NULL;
    bool split = (f->flags & RLE_FLAG_MORE) && f->tensors && !follower;
    size_t size = split ? f->values : f->body;
    rle_in_message *m = rle_malloc(sizeof *m);
    uint8_t *body = !m ? NULL : follower ? rle_follower_lend(follower, size) : rle_malloc(size);
    if (!body) {
        rle_free(m);
        return rle_oom(size, "frame body");
    }
    *m = (rle_in_message){.next = conn->partial,
                          .head = *f,
                          .body = body,
                          .split = split,
                          .serial = ++conn->rpc->serials,
                          .follower = follower};
    conn->partial = m;
    conn->partial_bytes += weight(f);
    *out = m;
    return RLE_OK;
}

static void end_message(rle_conn *conn, rle_in_message *m)
{
    rle_in_message **at = &conn->partial;
    while (*at != m) at = &(*at)->next;
    *at = m->next;
    conn->partial_bytes -= weight(&m->head);
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

/* The header in conn->frame is good: its payload comes now. */
static rle_status begin_frame(rle_conn *conn)
{
    rle_frame *f = &conn->frame;
    conn->current = NULL;
    conn->control = NULL;
    conn->payload_got = 0;
    conn->payload_crc = 0;
    if (f->type == RLE_FRAME_CHUNK) {
        RLE_TRY(continue_message(conn, f, &conn->current));
    } else if (rle_frame_is_message(f)) {
        RLE_TRY(begin_message(conn, f, &conn->current));
    } else {
        conn->control = rle_malloc(f->payload);
        if (!conn->control) return rle_oom(f->payload, "control frame");
    }
    conn->in_frame = true;
    return RLE_OK;
}

/* The values of `current` are there, its tensors need memory. */
static bool needs_place(const rle_conn *conn)
{
    const rle_in_message *m = conn->current;
    return m && m->split && !m->placed &&
           m->got + conn->payload_got >= rle_align64(m->head.values);
}

/* What lies between tensors; nobody reads it. */
static _Thread_local uint8_t padding[RLE_TENSOR_ALIGN];

/* Where the next bytes of a split message go: at most `n`, as one block. */
static struct iovec split_target(const rle_in_message *m, size_t at, size_t n)
{
    size_t end = m->head.values;
    uint8_t *to = m->body + at;
    if (at >= end) {
        /* Padding up to the next tensor, or the tensor that `at` lies in. */
        to = padding;
        end = rle_align64(at + 1);
        for (int i = 0; m->placed && i < m->placed->count; i++) {
            const rle_placed_tensor *t = &m->placed->tensor[i];
            if (at < t->at || at >= t->at + t->size) continue;
            to = t->data + (at - t->at);
            end = t->at + t->size;
        }
    }
    return (struct iovec){to, end - at < n ? end - at : n};
}

/* Where the next `n` bytes of the payload go, or as many of them as lie in one block. */
static struct iovec target(const rle_conn *conn, size_t n)
{
    const rle_in_message *m = conn->current;
    if (!m) return (struct iovec){conn->control + conn->payload_got, n};
    size_t at = m->got + conn->payload_got;
    return m->split ? split_target(m, at, n) : (struct iovec){m->body + at, n};
}

static void advance(rle_conn *conn, const void *bytes, size_t n)
{
    if (conn->frame.flags & RLE_FLAG_BODY_CRC)
        conn->payload_crc = rle_crc32c(conn->payload_crc, bytes, n);
    conn->payload_got += n;
}

static rle_status checksum_mismatch(void)
{
    return rle_fail(RLE_DATA_LOSS, "frame checksum mismatch");
}

/* All of the payload is there. */
static rle_status finish_frame(rle_conn *conn)
{
    rle_frame f = conn->frame;
    uint8_t *control = conn->control;
    rle_in_message *m = conn->current;
    bool good = !(f.flags & RLE_FLAG_BODY_CRC) || conn->payload_crc == f.crc;
    conn->in_frame = false;
    conn->control = NULL;
    conn->current = NULL;
    if (!m) {
        if (good) rle_dispatch_control(conn, &f, control);
        rle_free(control);
        return good ? RLE_OK : checksum_mismatch();
    }
    if (!good) return checksum_mismatch();
    m->got += f.payload;
    if (m->got < m->head.body) return RLE_OK;
    rle_frame head = m->head;
    uint8_t *body = m->body;
    rle_placed *placed = m->placed;
    rle_follower *follower = m->follower;
    end_message(conn, m);
    if (follower) return rle_follower_arrived(follower, &head);
    rle_dispatch_message(conn, &head, body, body, placed);
    return RLE_OK;
}

/* A frame that lies whole in what was read, and is no part of a longer message. */
static rle_status whole_frame(rle_conn *conn, const uint8_t *payload)
{
    const rle_frame *f = &conn->frame;
    if ((f->flags & RLE_FLAG_BODY_CRC) && rle_crc32c(0, payload, f->payload) != f->crc)
        return checksum_mismatch();
    if (rle_frame_is_message(f))
        rle_dispatch_message(conn, f, payload, NULL, NULL);
    else
        rle_dispatch_control(conn, f, payload);
    return RLE_OK;
}

/* ---- places for tensors ---- */

/* The owner is asked when its turn is over; what has been read already is kept. */
static rle_status ask_for_place(rle_conn *conn, const uint8_t *p, size_t n)
{
    if (n) {
        conn->kept = rle_malloc(n);
        if (!conn->kept) return rle_oom(n, "frame body");
        memcpy(conn->kept, p, n);
        conn->kept_size = n;
    }
    conn->placing = true;
    conn->rpc->placements++;
    return RLE_OK;
}

/* Without the owner: one block of our own, the tensors in it as they lie in the body. */
static rle_status place_here(rle_conn *conn)
{
    rle_in_message *m = conn->current;
    size_t begin = rle_align64(m->head.values), size = m->head.body - begin;
    rle_placed *placed = rle_malloc(sizeof *placed + sizeof(rle_placed_tensor));
    uint8_t *block = placed ? rle_malloc(size) : NULL;
    if (!block) {
        rle_free(placed);
        return rle_oom(size, "frame body");
    }
    *placed = (rle_placed){.count = 1, .block = block};
    placed->tensor[0] = (rle_placed_tensor){.at = begin, .size = size, .data = block};
    m->placed = placed;
    return RLE_OK;
}

static rle_status header_arrived(rle_conn *conn, const uint8_t *head)
{
    bool open = conn->state == RLE_CONN_OPEN;
    RLE_TRY(rle_frame_decode(head, open ? conn->rpc->o.max_message : RLE_PREAUTH_MAX,
                             &conn->frame));
    return rle_dispatch_check(conn, &conn->frame);
}

static rle_status parse_payload(rle_conn *conn, const uint8_t **at, const uint8_t *end)
{
    const uint8_t *p = *at;
    while (conn->payload_got < conn->frame.payload && p < end) {
        if (needs_place(conn)) {
            if (!rle_evloop_on_guard() && conn->rpc->drop_handle) {
                *at = end;
                return ask_for_place(conn, p, (size_t)(end - p));
            }
            RLE_TRY(place_here(conn));
        }
        size_t miss = conn->frame.payload - conn->payload_got;
        struct iovec to = target(conn, miss < (size_t)(end - p) ? miss : (size_t)(end - p));
        memcpy(to.iov_base, p, to.iov_len);
        advance(conn, p, to.iov_len);
        p += to.iov_len;
    }
    *at = p;
    return conn->payload_got == conn->frame.payload ? finish_frame(conn) : RLE_OK;
}

/* Frames out of `n` bytes at `p`. Stops early when the connection is closed. */
static rle_status parse(rle_conn *conn, const uint8_t *p, size_t n)
{
    const uint8_t *end = p + n;
    while (conn->state != RLE_CONN_DEAD) {
        if (conn->in_frame) {
            if (p == end) return RLE_OK;
            RLE_TRY(parse_payload(conn, &p, end));
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
        bool piece = conn->frame.type == RLE_FRAME_CHUNK || (conn->frame.flags & RLE_FLAG_MORE);
        if (!piece && (size_t)(end - p) >= conn->frame.payload) {
            RLE_TRY(whole_frame(conn, p));
            p += conn->frame.payload;
        } else {
            RLE_TRY(begin_frame(conn));
        }
    }
    return RLE_OK;
}

void rle_conn_placed(rle_conn *conn, rle_placed *placed)
{
    uint8_t *kept = conn->kept;
    size_t n = conn->kept_size;
    conn->placing = false;
    conn->rpc->placements--;
    conn->kept = NULL;
    conn->kept_size = 0;
    conn->current->placed = placed;
    rle_status s = placed ? RLE_OK : place_here(conn);
    conn->rpc->no_borrow = true; /* `kept` goes away */
    if (s == RLE_OK && n) s = parse(conn, kept, n);
    conn->rpc->no_borrow = false;
    rle_free(kept);
    if (s != RLE_OK) rle_conn_reject(conn);
    /* What was kept may have been the rest of what is long. */
    if (conn->late && !rle_conn_receives_long(conn)) rle_conn_leave_readers(conn);
}

void rle_conn_place_here(rle_rpc *rpc)
{
    while (rpc->placements) {
        rle_conn *conn = rpc->conns;
        while (!conn->placing) conn = conn->next;
        rle_conn_placed(conn, NULL);
    }
}

static void read_some(rle_conn *conn)
{
    rle_rpc *rpc = conn->rpc;
    bool guard = rle_evloop_on_guard();
    bool is_long = conn->partial && rle_conn_receives_long(conn);
    uint64_t end = conn->bytes_in + RLE_READ_TURN;
    if (is_long && !rle_conn_may_read(conn)) return;
    for (int i = 0; i < 4 && conn->state != RLE_CONN_DEAD && conn->bytes_in < end; i++) {
        size_t used = guard ? 0 : rpc->scratch_used;
        size_t room = RLE_SCRATCH_SIZE - used;
        if (room < RLE_SCRATCH_MIN_READ) return; /* the next turn has it all again */
        if (room > RLE_READ_AHEAD) room = RLE_READ_AHEAD;
        uint8_t *scratch = (guard ? rpc->guard_scratch : rpc->scratch) + used;
        if (conn->placing) {
            if (!guard) return; /* the owner is asked first */
            rle_conn_placed(conn, NULL);
            continue;
        }
        struct iovec iov[2];
        int n = 0;
        size_t miss = 0;
        if (conn->in_frame && !needs_place(conn)) {
            iov[n] = target(conn, conn->frame.payload - conn->payload_got);
            miss = iov[n++].iov_len;
        }
        /* What follows the frame goes into the scratch block; but not what follows this
         * block of a frame whose next one lies elsewhere. */
        if (conn->payload_got + miss == conn->frame.payload || !miss)
            iov[n++] = (struct iovec){scratch, room};
        else
            room = 0;
        ssize_t got = conn->transport.ops->readv(&conn->transport, iov, n);
        if (got < 0) {
            if (errno != EAGAIN) rle_conn_broken(conn, errno);
            return;
        }
        if (got == 0) {
            rle_conn_ended(conn);
            return;
        }
        conn->bytes_in += (uint64_t)got;
        if (is_long) rpc->long_read += (uint64_t)got;
        conn->active = true;
        conn->pinged = 0;
        size_t direct = miss < (size_t)got ? miss : (size_t)got;
        size_t more = (size_t)got - direct;
        uint64_t borrows = rpc->borrows;
        rle_status s = RLE_OK;
        if (direct) {
            advance(conn, iov[0].iov_base, direct);
            if (conn->payload_got == conn->frame.payload) s = finish_frame(conn);
        }
        if (s == RLE_OK && more) s = parse(conn, scratch, more);
        /* Messages left in the scratch block: the next read goes behind them. */
        if (!guard && rpc->borrows != borrows && rpc->borrowed_count)
            rpc->scratch_used = (used + more + 63) & ~(size_t)63;
        if (s != RLE_OK) {
            rle_handshake_spoiled(conn, s);
            return;
        }
        if ((size_t)got < miss + room) return;
        if (!is_long && conn->partial && rle_conn_receives_long(conn))
            return; /* in its turn */
    }
}

static void conn_readable(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    rle_conn *conn = arg;
    if (conn->state == RLE_CONN_SECURING) rle_handshake_secure(conn);
    if (conn->state == RLE_CONN_SECURING || conn->state == RLE_CONN_DEAD) return;
    read_some(conn);
    const rle_transport *t = &conn->transport;
    if (!t->ops->pending || conn->state == RLE_CONN_DEAD || conn->unread ||
        !t->ops->pending(t))
        return;
    conn->unread = true;
    conn->unread_next = conn->rpc->unread;
    conn->rpc->unread = conn;
}

void rle_conn_read_held(rle_rpc *rpc)
{
    while (rpc->unread) {
        rle_conn *conn = rpc->unread;
        rpc->unread = conn->unread_next;
        conn->unread = false;
        if (conn->state != RLE_CONN_DEAD) rle_watch_ring(conn->read_watch);
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
    char *text = handshake ? rle_strdup(address->text) : NULL;
    rle_status s = text ? RLE_OK : rle_oom(sizeof *conn, "connection");
    bool tls = rle_tls_covers(rpc->tls, address);
    if (s == RLE_OK && tls) s = rle_tls_wrap(rpc->tls, &transport, address, initiator);
    if (s != RLE_OK) {
        rle_free(text);
        rle_free(handshake);
        rle_free(conn);
        transport.ops->close(&transport);
        return s;
    }
    handshake->rpc = rpc;
    handshake->conn = conn;
    conn->rpc = rpc;
    conn->handshake = handshake;
    conn->transport = transport;
    conn->address.text = text;
    conn->address.shown = text + strlen(text) - strlen(address->shown);
    conn->is_unix = address->is_unix;
    conn->body_crc = !address->is_unix && !tls;
    conn->initiator = initiator;
    conn->state = connecting ? RLE_CONN_CONNECTING
                  : tls      ? RLE_CONN_SECURING
                             : RLE_CONN_GREETING;
    conn->long_last = &conn->long_first;
    conn->heard = rle_now();
    conn->read_watch = rle_watch_new(&rpc->loop, fd, RLE_WATCH_READ, conn_readable, conn);
    conn->write_watch =
        rle_watch_new(&rpc->loop, fd, RLE_WATCH_WRITE, conn_writable, conn);
    if (!conn->read_watch || !conn->write_watch ||
        !rle_watch_on(connecting ? conn->write_watch : conn->read_watch)) {
        rle_watch_free(conn->read_watch);
        rle_watch_free(conn->write_watch);
        transport.ops->close(&conn->transport);
        rle_free(text);
        rle_free(handshake);
        rle_free(conn);
        return rle_oom(sizeof *conn, "connection");
    }
    conn->write_armed = connecting;
    conn->next = rpc->conns;
    conn->at = &rpc->conns;
    if (conn->next) conn->next->at = &conn->next;
    rpc->conns = conn;
    rpc->half_open += !initiator;
    rle_socket_tune(fd, conn->is_unix);
    *out = conn;
    return RLE_OK;
}

static void drop_buffers(rle_conn *conn)
{
    rle_conn_drop_output(conn);
    rle_free(conn->control);
    rle_free(conn->kept);
    conn->control = conn->kept = NULL;
    conn->kept_size = 0;
    if (conn->placing) conn->rpc->placements--;
    conn->placing = conn->in_frame = false;
    while (conn->partial) {
        rle_in_message *m = conn->partial;
        conn->partial = m->next;
        rle_placed_free(conn->rpc, m->placed);
        if (m->follower)
            rle_follower_undo(m->follower);
        else
            rle_free(m->body);
        rle_free(m);
    }
}

void rle_conn_reject(rle_conn *conn)
{
    if (conn->state == RLE_CONN_DEAD) return;
    char reason[512];
    snprintf(reason, sizeof reason, "%s", rle_message());
    if (conn->peer)
        rle_log_about(conn->rpc, RLE_LOG_WARN, "closed \"%s\": %s", conn->peer->name,
                      reason);
    else if (conn->initiator || rle_stranger_told(conn->rpc))
        rle_log(RLE_LOG_WARN, "closed %s: %s", conn->address.shown, reason);
    rle_conn_close(conn, reason, true);
}

void rle_conn_close(rle_conn *conn, const char *reason, bool quiet)
{
    if (conn->state == RLE_CONN_DEAD) return;
    rle_rpc *rpc = conn->rpc;
    rle_conn_state was = conn->state;
    conn->state = RLE_CONN_DEAD;
    if (rpc->joining == conn) rpc->joining = NULL;
    rle_watch_free(conn->read_watch);
    rle_watch_free(conn->write_watch);
    conn->transport.ops->close(&conn->transport);
    *conn->at = conn->next;
    if (conn->next) conn->next->at = conn->at;
    rle_conn_leave_long(conn);
    rle_conn_leave_readers(conn);
    conn->next = rpc->dead;
    rpc->dead = conn;
    drop_buffers(conn);
    rle_polls_conn_closed(conn);
    rle_handover_conn_closed(conn);
    rle_followers_conn_closed(conn);
    if (was != RLE_CONN_OPEN) {
        if (!conn->initiator) rle_half_open_less(rpc);
        if (conn->result && !conn->result->done) {
            conn->result->done = true;
            conn->result->status = RLE_UNAVAILABLE;
            snprintf(conn->result->message, sizeof conn->result->message,
                     "%s in the handshake", reason);
        }
        rle_peer *wanted = conn->initiator ? conn->peer : NULL;
        rle_handshake_free(conn);
        if (wanted && wanted->opening == conn) {
            char before[RLE_NAME_MAX + 560];
            wanted->opening = NULL;
            if (rle_link_seeks(wanted)) {
                rle_link_missed(wanted, reason);
                return;
            }
            if (rle_peer_open_next(wanted)) return;
            snprintf(before, sizeof before, "cannot reach worker \"%s\" (%.500s) for ",
                     wanted->name, reason);
            rle_peer_fail_held(wanted, RLE_UNAVAILABLE, before, " (outcome: not executed)");
        }
        return;
    }
    if (conn->peer->conn == conn) rle_peer_lost(conn, reason, quiet);
}

void rle_conn_free_dead(rle_rpc *rpc)
{
    while (rpc->dead) {
        rle_conn *conn = rpc->dead;
        rpc->dead = conn->next;
        rle_map_fini(&conn->calls);
        rle_map_fini(&conn->exported);
        rle_free(conn->address.text);
        rle_free(conn);
    }
}
