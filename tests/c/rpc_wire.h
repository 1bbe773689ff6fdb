/* rpc_wire.h - an open connection of a real rle_rpc whose bytes come from memory: what
 * the other side says is a block of bytes, and the other side may be anybody. For tests
 * that try many streams (test_rpc_flip.c) and for the fuzz targets (tests/fuzz).
 *
 * The rle_rpc has no guard, and no socket: a connection watches a descriptor that is
 * never readable, and wire_feed calls what libevent would. Several wires of one rle_rpc
 * may be alive. Nothing here is allocated but what wire_open says. One thread. */
#ifndef RLE_TESTS_RPC_WIRE_H
#define RLE_TESTS_RPC_WIRE_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "rpc/batch.h"
#include "rpc/crc32c.h"
#include "rpc/frame.h"
#include "rpc/rpc.h"
#include "rpc/rpc_internal.h"

/* What must hold whatever comes in; also in a build without assertions. */
#define must(condition)                                                                  \
    do {                                                                                 \
        if (!(condition)) {                                                              \
            fprintf(stderr, "%s:%d: this must hold: %s\n", __FILE__, __LINE__,           \
                    #condition);                                                         \
            abort();                                                                     \
        }                                                                                \
    } while (0)

enum { WIRE_OUT = 64 << 10, WIRE_INCARNATION = 4711 };

typedef struct wire {
    rle_rpc *rpc;
    rle_conn *conn; /* NULL once it was seen dead */
    const uint8_t *in;
    size_t size, at;
    size_t step; /* most bytes that one read gets; 0: all */
    bool ended;  /* after the last byte the stream ends */
    bool keeps;  /* what does not fit into `out` has to wait; else it is forgotten */
    uint8_t out[WIRE_OUT]; /* what it said */
    size_t said;
} wire;

static ssize_t wire_readv(rle_transport *t, const struct iovec *iov, int n)
{
    wire *w = t->self;
    size_t left = w->size - w->at, got = 0;
    if (!left && w->ended) return 0;
    if (!left) {
        errno = EAGAIN;
        return -1;
    }
    if (w->step && left > w->step) left = w->step;
    for (int i = 0; i < n && left; i++) {
        size_t take = iov[i].iov_len < left ? iov[i].iov_len : left;
        memcpy(iov[i].iov_base, w->in + w->at, take);
        w->at += take;
        got += take;
        left -= take;
    }
    return (ssize_t)got;
}

static ssize_t wire_writev(rle_transport *t, const struct iovec *iov, int n)
{
    wire *w = t->self;
    size_t put = 0;
    for (int i = 0; i < n; i++) {
        size_t room = WIRE_OUT - w->said,
               take = iov[i].iov_len < room ? iov[i].iov_len : room;
        memcpy(w->out + w->said, iov[i].iov_base, take);
        w->said += take;
        put += w->keeps ? take : iov[i].iov_len;
    }
    if (w->keeps && !put) errno = EAGAIN;
    return w->keeps && !put ? -1 : (ssize_t)put;
}

static void wire_close(rle_transport *t)
{
    wire *w = t->self;
    w->conn = NULL;
    t->fd = -1;
}

static const rle_transport_ops wire_transport = {
    .name = "memory", .readv = wire_readv, .writev = wire_writev, .close = wire_close};

/* ---- its rle_rpc ---- */

static rle_token wire_token;

static inline void wire_no_line(void *self, rle_log_level level, const char *line)
{
    (void)self;
    (void)level;
    (void)line;
}

/* A descriptor that is never readable. All connections of the process watch it. */
static inline int wire_fd(void)
{
    static int fd = -1;
    if (fd < 0) fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    must(fd >= 0);
    return fd;
}

static inline rle_rpc *wire_rpc(const char *name, uint64_t max_message)
{
    must(rle_token_from_bytes("0123456789abcdef0123456789abcdef", 32, "a test",
                              &wire_token) == RLE_OK);
    rle_rpc_options o = {
        .name = name, .token = &wire_token, .no_guard = true, .max_message = max_message};
    rle_rpc *rpc = NULL;
    must(rle_rpc_new(&o, &rpc) == RLE_OK);
    return rpc;
}

/* ---- feeding ---- */

static inline void wire_drop_handle(void *handle)
{
    rle_free(handle);
}

/* Memory for the tensors of long messages, by turns ours and that of the rpc. */
static inline void wire_place(rle_rpc *rpc)
{
    rle_placement p;
    while (rle_rpc_next_placement(rpc, &p)) {
        void *data[RLE_WIRE_TENSORS] = {0};
        for (int i = 0; i < p.count; i += 2) data[i] = rle_malloc(p.tensor[i].size);
        if (rle_rpc_place(rpc, &p, data, data)) continue;
        for (int i = 0; i < p.count; i += 2) rle_free(data[i]);
    }
}

/* What the loop calls when there is something to read. */
static inline void wire_readable(wire *w)
{
    rle_watch *watch = w->conn->read_watch;
    watch->ready(w->conn->transport.fd, EV_READ, watch->arg);
}

/* Everything that is there to be read is read, as often as libevent would say so. */
static inline void wire_feed(wire *w, const uint8_t *bytes, size_t n)
{
    w->in = bytes;
    w->size = n;
    w->at = 0;
    for (size_t before = 1; w->conn && (w->at < n || w->ended) && before != w->at;) {
        before = w->at;
        if (w->conn->placing) wire_place(w->rpc);
        if (!w->conn) break;
        w->rpc->loop.before_turn(w->rpc);
        wire_readable(w);
    }
    w->in = NULL;
    w->size = w->at = 0;
}

/* A new connection, before the handshake. */
static inline void wire_begin(wire *w, rle_rpc *rpc, bool initiator)
{
    rle_address address;
    memset(w, 0, offsetof(wire, out));
    w->said = 0;
    w->rpc = rpc;
    must(rle_address_parse("unix:/wire", &address) == RLE_OK);
    rle_conn *conn;
    must(rle_conn_new(rpc, wire_fd(), &address, initiator, false, &conn) == RLE_OK);
    conn->transport = (rle_transport){.ops = &wire_transport, .fd = wire_fd(), .self = w};
    w->conn = conn;
    rle_handshake_begin(conn);
}

/* ---- frames of the other side ---- */

/* One frame at `out`; returns its length. Lengths that are 0 are those of the payload. */
static inline size_t wire_frame(uint8_t *out, rle_frame f, const void *payload, size_t n)
{
    f.payload = (uint32_t)n;
    if (!f.body) f.body = n;
    if (!f.values) f.values = (uint32_t)n;
    f.incarnation = WIRE_INCARNATION;
    rle_frame_encode(&f, out);
    if (n) memcpy(out + RLE_FRAME_HEADER, payload, n);
    return RLE_FRAME_HEADER + n;
}

static inline size_t wire_greeting(uint8_t *out, const char *name)
{
    rle_writer w;
    rle_writer_init(&w);
    rle_write_u16(&w, 1); /* the version chosen; a HELLO's is not looked at */
    rle_write_u16(&w, 1);
    rle_write_u16(&w, 1);
    rle_write_u8(&w, 1);
    rle_write_u8(&w, 0);
    for (int i = 0; i < 6; i++) rle_write_u32(&w, 1000);
    rle_write_u64(&w, 64 << 20);
    rle_write_u64(&w, WIRE_INCARNATION);
    for (int i = 0; i < 4; i++) rle_write_u64(&w, 7);
    rle_write_u8(&w, (uint8_t)strlen(name));
    rle_write_bytes(&w, name, strlen(name));
    rle_write_u8(&w, 0);
    size_t n = w.len;
    memcpy(out, w.data, n);
    rle_writer_fini(&w);
    return n;
}

/* The payload of the first frame that was said; `n` gets its length. */
static inline const uint8_t *wire_said(const wire *w, size_t *n)
{
    must(w->said >= RLE_FRAME_HEADER);
    *n = rle_get32(w->out + 16);
    must(w->said >= RLE_FRAME_HEADER + *n);
    return w->out + RLE_FRAME_HEADER;
}

/* A connection with a worker called `name`, open. */
static inline void wire_open(wire *w, rle_rpc *rpc, const char *name)
{
    uint8_t bytes[1024], hello[512], proof[RLE_PROOF_SIZE];
    wire_begin(w, rpc, false);
    size_t n = wire_greeting(hello, name), ack_len;
    wire_feed(w, bytes,
              wire_frame(bytes, (rle_frame){.type = RLE_FRAME_HELLO}, hello, n));
    must(w->conn && w->said);
    const uint8_t *ack = wire_said(w, &ack_len);
    must(rle_auth_proof(&wire_token, 'c', hello, n, ack, ack_len, proof) == RLE_OK);
    wire_feed(w, bytes,
              wire_frame(bytes, (rle_frame){.type = RLE_FRAME_AUTH, .credit = 64}, proof,
                         sizeof proof));
    must(w->conn && w->conn->state == RLE_CONN_OPEN);
    w->said = 0;
}

static inline void wire_shut(wire *w)
{
    if (w->conn) rle_conn_close(w->conn, "the test is over", true);
    w->rpc->loop.before_turn(w->rpc);
}

/* ---- mending ----
 *
 * A changed header has a wrong checksum, and would be refused for that alone. So that the
 * changed field itself is judged, whoever changes a stream mends what is computed. */

enum {
    WIRE_MEND_HEADER = 1,      /* its checksum */
    WIRE_MEND_BODY = 2,        /* the checksum of the payload, where there is one */
    WIRE_MEND_INCARNATION = 4, /* the sender is who shook hands */
    WIRE_MEND_MAGIC = 8,
    WIRE_MEND_LENGTHS = 16 /* the payload ends within the stream and is the whole body */
};

static inline void wire_mend_lengths(uint8_t *head, size_t left)
{
    size_t payload = rle_get32(head + 16) & 0xfff;
    if (payload > left) payload = left;
    rle_put32(head + 16, (uint32_t)payload);
    rle_put64(head + 24, payload);
    if (!rle_get16(head + 52) || rle_get32(head + 20) > payload)
        rle_put32(head + 20, (uint32_t)payload);
    head[6] &= (uint8_t)~RLE_FLAG_MORE;
}

static inline void wire_mend(uint8_t *bytes, size_t n, unsigned what)
{
    for (size_t at = 0; n - at >= RLE_FRAME_HEADER;) {
        uint8_t *head = bytes + at;
        size_t left = n - at - RLE_FRAME_HEADER;
        if (what & WIRE_MEND_MAGIC) {
            rle_put32(head, RLE_FRAME_MAGIC);
            head[4] = RLE_FRAME_VERSION;
        }
        if ((what & WIRE_MEND_LENGTHS) && head[5] != RLE_FRAME_CHUNK &&
            !(head[6] & RLE_FLAG_MORE))
            wire_mend_lengths(head, left);
        if (what & WIRE_MEND_INCARNATION) rle_put64(head + 32, WIRE_INCARNATION);
        size_t payload = rle_get32(head + 16);
        if ((what & WIRE_MEND_BODY) && payload <= left)
            rle_put32(head + 56, head[6] & RLE_FLAG_BODY_CRC
                                     ? rle_crc32c(0, head + RLE_FRAME_HEADER, payload)
                                     : 0);
        if (what & WIRE_MEND_HEADER) rle_put32(head + 60, rle_crc32c(0, head, 60));
        if (payload > left) break;
        at += RLE_FRAME_HEADER + payload;
    }
}

/* ---- being a worker ---- */

/* Calls of ours to the other side, which it may answer: numbers 1 to WIRE_CALLS. Each
 * sends a reference to an object of its own, which may be given back. */
enum { WIRE_CALLS = 4 };

typedef struct wire_calls {
    rle_future *future[WIRE_CALLS];
    uint64_t object[WIRE_CALLS];
} wire_calls;

static inline void wire_call(wire *w, wire_calls *c)
{
    rle_encoder e;
    rle_encoder_init(&e);
    for (int i = 0; i < WIRE_CALLS; i++) {
        c->object[i] = rle_export_new(w->rpc);
        must(c->object[i]);
        rle_call_head head = {.method_len = 1, .method = "f", .args = 1};
        rle_wire_ref ref = {
            .kind = RLE_REF_SENDERS, .object = c->object[i], .class_name = "C"};
        rle_encoder_reset(&e);
        rle_encode_call_head(&e, &head);
        rle_encode_ref(&e, &ref);
        rle_call_spec spec = {.peer = w->conn->peer, .method = "f", .construct = i == 1};
        must(rle_rpc_call(w->rpc, &spec, &e, &c->future[i]) == RLE_OK);
        rle_export_unhold(w->rpc, c->object[i]);
    }
    rle_encoder_fini(&e);
}

static inline void wire_see(void *self, const rle_value *v)
{
    /* Every byte that a value says it has is looked at. */
    uint64_t *sum = self;
    if (v->kind == RLE_VALUE_STRING) {
        for (size_t i = 0; i < v->u.string.len; i++) *sum += (uint8_t)v->u.string.data[i];
    } else if (v->kind == RLE_VALUE_TENSOR) {
        const uint8_t *p = v->u.tensor.data;
        for (size_t i = 0; i < v->u.tensor.size; i++) *sum += p[i];
    }
}

static inline uint64_t wire_read_values(rle_decoder *d, unsigned count)
{
    uint64_t sum = 0;
    rle_status s = RLE_OK;
    for (; count && s == RLE_OK; count--) s = rle_decode_skip(d, wire_see, &sum);
    if (s == RLE_OK) rle_decode_end(d);
    return sum;
}

/* Weights that it publishes, and those of the other side that it follows (by its first
 * call). */
typedef struct wire_weights {
    rle_publication *own;
    rle_follower *theirs;
} wire_weights;

static inline void wire_weights_commit(rle_publication *p, int64_t version)
{
    static uint8_t bytes[64];
    rle_array a = {.data = bytes, .dtype = RLE_U8, .ndim = 1, .shape = {sizeof bytes}};
    uint8_t *to;
    rle_encoder e;
    rle_encoder_init(&e);
    rle_encode_result_head(&e, 2);
    rle_encode_integer(&e, version);
    must(rle_encode_tensor(&e, &a, NULL) == RLE_OK);
    must(rle_publication_stage(p, &e, true, &to) == RLE_OK);
    memset(to, (int)version, sizeof bytes);
    rle_publication_commit(p);
    rle_encoder_fini(&e);
}

static inline void wire_weights_begin(rle_rpc *rpc, rle_peer *peer, wire_weights *ww)
{
    must(rle_publication_new(rpc, "policy", "", 0, &ww->own) == RLE_OK);
    must(rle_follower_new(rpc, peer, "policy", &ww->theirs) == RLE_OK);
    wire_weights_commit(ww->own, 1);
}

static inline void wire_weights_take(wire_weights *ww)
{
    rle_msg m;
    if (!rle_follower_take(ww->theirs, &m)) return;
    rle_decoder d;
    uint16_t count;
    rle_msg_decoder(&m, &d);
    if (rle_decode_result_head(&d, &count) == RLE_OK) wire_read_values(&d, count);
    rle_follower_done(ww->theirs);
}

static inline void wire_weights_end(rle_rpc *rpc, wire_weights *ww)
{
    rle_msg m;
    if (rle_follower_error(ww->theirs, &m)) rle_free(m.block);
    rle_publication_close(ww->own);
    rle_follower_discard(ww->theirs);
    rle_rpc_enter(rpc);
    rle_rpc_leave(rpc);
}

/* Serve what may be served: calls are by turns answered, refused, left open as long as
 * the connection and, where there is a batch, put into it. */
typedef struct wire_served {
    rle_incoming *open[512];
    size_t count, seen;
    rle_batch *batch; /* or NULL */
    rle_batch_calls calls;
} wire_served;

static inline void wire_answer(rle_rpc *rpc, rle_incoming *in)
{
    rle_encoder e;
    rle_encoder_init(&e);
    rle_encode_result_head(&e, 1);
    rle_encode_integer(&e, 1);
    rle_status s = rle_incoming_reply(rpc, in, &e);
    rle_encoder_fini(&e);
    if (s == RLE_OK) return;
    /* Whoever takes no message of this length, as it said in its greeting, hears so. */
    must(s == RLE_RESOURCE_EXHAUSTED);
    rle_wire_error error = {.code = (uint16_t)s};
    rle_incoming_fail(rpc, in, &error);
}

static inline void wire_answer_batch(rle_rpc *rpc, wire_served *served, rle_batch *b)
{
    rle_batch_take(rpc, b, RLE_FLUSH_IDLE, &served->calls);
    for (size_t i = 0; i < served->calls.count; i++)
        wire_answer(rpc, served->calls.list[i].in);
}

static inline void wire_serve(rle_rpc *rpc, wire_served *served)
{
    rle_incoming_info info;
    rle_decoder d;
    rle_incoming *in;
    rle_batch *due;
    while (served->count < 512 && (in = rle_rpc_next_call(rpc, &info, &d)) != NULL) {
        must(info.head.method_len <= RLE_NAME_MAX);
        wire_read_values(&d, info.head.args);
        rle_incoming_read(rpc, in);
        size_t kind = served->seen++ % (served->batch ? 4 : 3);
        rle_batch_call call = {.first = kind, .rows = 1};
        if (kind == 0) {
            wire_answer(rpc, in);
        } else if (kind == 1) {
            rle_wire_error e = {.code = RLE_NOT_FOUND};
            rle_incoming_fail(rpc, in, &e);
        } else if (kind == 2 || !info.caller) {
            rle_incoming_set_owner(in, in);
            served->open[served->count++] = in;
        } else {
            if (!rle_batch_knows(rpc, served->batch, info.caller))
                must(rle_batch_admit(rpc, served->batch, info.caller) == RLE_OK);
            must(rle_batch_add(rpc, served->batch, in, &call) == RLE_OK);
        }
    }
    while ((due = rle_rpc_next_batch(rpc)) != NULL) wire_answer_batch(rpc, served, due);
    while (rle_rpc_next_cancelled(rpc)) {
    }
    while (rle_rpc_next_dropped(rpc)) {
    }
}

static inline void wire_answer_open(rle_rpc *rpc, wire_served *served)
{
    while (served->count) {
        rle_wire_error e = {.code = RLE_CANCELLED};
        rle_incoming_fail(rpc, served->open[--served->count], &e);
    }
}

/* Results and errors are read as whoever made the call would, and let go of. */
static inline void wire_read_results(rle_rpc *rpc, wire_calls *c)
{
    for (int i = 0; i < WIRE_CALLS; i++) {
        rle_future *f = c->future[i];
        if (!f) continue;
        rle_msg *m = rle_future_message(f);
        rle_wire_error e;
        rle_decoder d;
        uint16_t count;
        if (rle_future_status(rpc, f) == RLE_FUTURE_FAILED && m) {
            rle_error_decode(m, &e);
        } else if (m) {
            rle_msg_decoder(m, &d);
            if (rle_decode_result_head(&d, &count) == RLE_OK) wire_read_values(&d, count);
        }
        rle_future_read(rpc, f);
        rle_future_release(rpc, f);
        c->future[i] = NULL;
    }
}

/* Blocks in use, but for what is kept for the next time. */
static inline size_t wire_blocks(const rle_rpc *rpc)
{
    return rle_mem_blocks() - rpc->free_future_count - rpc->free_incoming_count -
           (rpc->trash != NULL) - (rpc->orphans != NULL) - (rpc->dropped != NULL) -
           (rpc->exports.slots != NULL);
}

/* Everything that belonged to one connection is gone. */
static inline void wire_check_empty(rle_rpc *rpc)
{
    rle_rpc_counters c;
    size_t serving, calling;
    rle_rpc_count(rpc, &c);
    rle_rpc_open_calls(rpc, &serving, &calling);
    must(c.live_futures == 0);
    must(c.live_incoming == 0);
    must(c.exported_objects == 0);
    must(serving == 0 && calling == 0);
    must(rpc->conns == NULL && rpc->dead == NULL);
    must(rpc->half_open == 0 && rpc->placements == 0 && rpc->borrowed_count == 0);
    must(rpc->serving == 0 && rpc->serving_waits == 0 && rpc->queued == 0);
    must(rpc->queued_nested == 0 && rpc->ready == NULL && rpc->cancelled == NULL);
}

#endif
