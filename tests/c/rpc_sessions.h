/* rpc_sessions.h - what two real workers say to each other, recorded: streams of bytes
 * that begin when the connection is open. test_rpc_flip.c flips their bits, tests/fuzz
 * starts from them.
 *
 * Each session is a conversation of "a" and "b" over two wires (rpc_wire.h); either side
 * makes at most WIRE_CALLS calls that are answered, so that the answers fit a worker that
 * has made those. */
#ifndef RLE_TESTS_RPC_SESSIONS_H
#define RLE_TESTS_RPC_SESSIONS_H

#include "rpc_wire.h"

typedef struct stream {
    uint8_t *bytes;
    size_t n, handshake; /* of the bytes: those up to the open connection */
} stream;

typedef struct talk {
    rle_rpc *a, *b;
    wire at_a, at_b; /* a's end and b's end of the connection */
    stream said[2];  /* by a, by b */
    rle_encoder e;
} talk;

static void stream_add(stream *s, const uint8_t *bytes, size_t n)
{
    s->bytes = realloc(s->bytes, s->n + n);
    must(s->bytes);
    memcpy(s->bytes + s->n, bytes, n);
    s->n += n;
}

/* What `from` has said goes to `to`; false: it has said nothing. */
static bool carry(wire *from, wire *to, stream *record)
{
    static uint8_t bytes[WIRE_OUT];
    size_t n = from->said;
    if (!n) return false;
    memcpy(bytes, from->out, n);
    from->said = 0;
    stream_add(record, bytes, n);
    wire_feed(to, bytes, n);
    if (from->conn && from->conn->write_armed) rle_conn_flush(from->conn);
    return true;
}

static void pump(talk *t)
{
    bool more = true;
    while (more) {
        t->a->loop.before_turn(t->a);
        t->b->loop.before_turn(t->b);
        more = carry(&t->at_a, &t->at_b, &t->said[0]);
        more |= carry(&t->at_b, &t->at_a, &t->said[1]);
    }
}

static talk *talk_begin(bool checksums)
{
    talk *t = calloc(1, sizeof *t);
    must(t);
    t->a = wire_rpc("a", 0);
    t->b = wire_rpc("b", 0);
    wire_begin(&t->at_a, t->a, false);
    wire_begin(&t->at_b, t->b, true);
    t->at_a.keeps = t->at_b.keeps = true;
    pump(t);
    must(t->at_a.conn && t->at_a.conn->state == RLE_CONN_OPEN);
    must(t->at_b.conn && t->at_b.conn->state == RLE_CONN_OPEN);
    t->said[0].handshake = t->said[0].n;
    t->said[1].handshake = t->said[1].n;
    t->at_a.conn->body_crc = t->at_b.conn->body_crc = checksums;
    rle_encoder_init(&t->e);
    return t;
}

/* The streams stay the caller's. */
static void talk_end(talk *t, stream out[2])
{
    pump(t);
    out[0] = t->said[0];
    out[1] = t->said[1];
    rle_encoder_fini(&t->e);
    wire_shut(&t->at_a);
    wire_shut(&t->at_b);
    rle_rpc_free(t->a);
    rle_rpc_free(t->b);
    free(t);
}

/* ---- calls ---- */

static void head_of(talk *t, const char *method, uint16_t args)
{
    rle_call_head head = {.method_len = (uint8_t)strlen(method), .args = args};
    memcpy(head.method, method, head.method_len);
    rle_encoder_reset(&t->e);
    rle_encode_call_head(&t->e, &head);
}

/* What the encoder holds, from a (or b) to the other. */
static rle_future *say_call(talk *t, bool by_a, bool nested)
{
    rle_rpc *rpc = by_a ? t->a : t->b;
    wire *w = by_a ? &t->at_a : &t->at_b;
    rle_call_spec spec = {.peer = w->conn->peer, .method = "f", .nested = nested};
    rle_future *f = NULL;
    must(rle_rpc_call(rpc, &spec, &t->e, &f) == RLE_OK);
    return f;
}

/* The other side answers what has come, each call with `answer`. */
static void say_answers(talk *t, bool by_a,
                        void (*answer)(talk *t, rle_rpc *, rle_incoming *))
{
    rle_rpc *rpc = by_a ? t->a : t->b;
    rle_incoming_info info;
    rle_decoder d;
    rle_incoming *in;
    pump(t);
    wire_place(rpc);
    while ((in = rle_rpc_next_call(rpc, &info, &d)) != NULL) {
        rle_incoming_read(rpc, in);
        answer(t, rpc, in);
    }
    pump(t);
}

static void answer_one(talk *t, rle_rpc *rpc, rle_incoming *in)
{
    rle_encoder_reset(&t->e);
    rle_encode_result_head(&t->e, 1);
    rle_encode_integer(&t->e, 1);
    must(rle_incoming_reply(rpc, in, &t->e) == RLE_OK);
}

static void answer_error(talk *t, rle_rpc *rpc, rle_incoming *in)
{
    (void)t;
    static const char message[] = "pole fell off", where[] = "env.lua:42";
    rle_wire_error e = {.code = RLE_UNKNOWN,
                        .message = {message, sizeof message - 1},
                        .where = {where, sizeof where - 1},
                        .traceback = {where, sizeof where - 1},
                        .hops = 1,
                        .via = {{"hub", 3}}};
    rle_incoming_fail(rpc, in, &e);
}

static void read_all(rle_rpc *rpc, rle_future **f, int n)
{
    for (int i = 0; i < n; i++) {
        rle_future_read(rpc, f[i]);
        rle_future_release(rpc, f[i]);
    }
}

/* ---- conversations ---- */

static void encode_plain(talk *t)
{
    head_of(t, "report", 3);
    rle_encode_integer(&t->e, 1);
    rle_encode_number(&t->e, -0.5);
    rle_encode_string(&t->e, "obs", 3);
}

static void encode_tables(talk *t)
{
    static const char longer[] =
        "a string of more than thirty-one bytes, with its length";
    head_of(t, "f", 2);
    rle_encode_table(&t->e, 2, 2);
    rle_encode_nil(&t->e);
    rle_encode_table(&t->e, 1, 0);
    rle_encode_i64(&t->e, -7);
    rle_encode_leave(&t->e);
    rle_encode_string(&t->e, "key", 3);
    rle_encode_u64(&t->e, 1ull << 63);
    rle_encode_bool(&t->e, true);
    rle_encode_string(&t->e, longer, sizeof longer - 1);
    rle_encode_leave(&t->e);
    rle_encode_error_mark(&t->e);
    rle_encode_table(&t->e, 0, 1);
    rle_encode_string(&t->e, "code", 4);
    rle_encode_integer(&t->e, 100000);
    rle_encode_leave(&t->e);
}

static void encode_tensors(talk *t)
{
    static float obs[4] = {0, 1, 2, 3};
    static uint8_t mask[6] = {1, 2, 3, 4, 5, 6};
    static int64_t one = 17;
    rle_array a[] = {{.data = obs, .dtype = RLE_F32, .ndim = 1, .shape = {4}},
                     {.data = mask, .dtype = RLE_U8, .ndim = 2, .shape = {3, 2}},
                     {.data = &one, .dtype = RLE_I64, .ndim = 0}};
    head_of(t, "policy.select_action", 3);
    for (int i = 0; i < 3; i++) must(rle_encode_tensor(&t->e, &a[i], NULL) == RLE_OK);
}

static void encode_long(talk *t)
{
    static uint8_t weights[300000];
    rle_array a = {
        .data = weights, .dtype = RLE_U8, .ndim = 1, .shape = {sizeof weights}};
    head_of(t, "load", 1);
    must(rle_encode_tensor(&t->e, &a, NULL) == RLE_OK);
}

static void talk_calls(talk *t, void (*encode)(talk *t))
{
    rle_future *f[2];
    for (int by_a = 0; by_a < 2; by_a++) {
        encode(t);
        f[by_a] = say_call(t, by_a, false);
        say_answers(t, !by_a, answer_one);
    }
    read_all(t->b, &f[0], 1);
    read_all(t->a, &f[1], 1);
}

static void talk_plain(talk *t)
{
    talk_calls(t, encode_plain);
}
static void talk_tables(talk *t)
{
    talk_calls(t, encode_tables);
}
static void talk_tensors(talk *t)
{
    talk_calls(t, encode_tensors);
}

static void talk_long(talk *t)
{
    encode_long(t);
    rle_future *f = say_call(t, false, false);
    rle_conn_control(t->at_b.conn, RLE_FRAME_PING, 0, 5, 0);
    say_answers(t, true, answer_one);
    read_all(t->b, &f, 1);
}

static void talk_errors(talk *t)
{
    rle_future *f[3];
    for (int i = 0; i < 3; i++) {
        encode_plain(t);
        f[i] = say_call(t, false, i == 1);
    }
    say_answers(t, true, answer_error);
    read_all(t->b, f, 3);
}

/* References go there and come back; one names a third worker's object. */
static void talk_references(talk *t)
{
    rle_wire_ref mine = {.kind = RLE_REF_SENDERS, .class_name = "Agent"};
    rle_wire_ref third = {.kind = RLE_REF_THIRD,
                          .object = 9,
                          .class_name = "Agent",
                          .owner = "c",
                          .ticket = "0123456789abcde",
                          .addresses = 1,
                          .address = {"tcp://127.0.0.1:29500"}};
    mine.object = rle_export_new(t->b);
    head_of(t, "hold", 2);
    rle_encode_ref(&t->e, &mine);
    rle_encode_ref(&t->e, &third);
    rle_future *f = say_call(t, false, false);
    say_answers(t, true, answer_one);
    read_all(t->b, &f, 1);
    rle_ref_discard(t->a, t->at_a.conn->peer, rle_rpc_incarnation(t->b), mine.object, 1);
    rle_rpc_enter(t->a);
    rle_rpc_leave(t->a);
    pump(t);
    rle_export_unhold(t->b, mine.object);
    while (rle_rpc_next_dropped(t->b)) {
    }
}

static void talk_cancel(talk *t)
{
    rle_future *f[2];
    for (int i = 0; i < 2; i++) {
        encode_plain(t);
        f[i] = say_call(t, false, false);
    }
    pump(t);
    rle_future_cancel(t->b, f[0]);
    say_answers(t, true, answer_one);
    read_all(t->b, f, 2);
}

/* A call of b is being served by a, which asks b back for it. */
static void talk_nested(talk *t)
{
    rle_incoming_info info;
    rle_decoder d;
    encode_plain(t);
    rle_future *f = say_call(t, false, false);
    pump(t);
    rle_incoming *in = rle_rpc_next_call(t->a, &info, &d);
    must(in);
    rle_incoming_read(t->a, in);
    encode_tables(t);
    rle_future *back = say_call(t, true, true);
    say_answers(t, false, answer_one);
    read_all(t->a, &back, 1);
    answer_one(t, t->a, in);
    pump(t);
    read_all(t->b, &f, 1);
}

static void talk_goodbye(talk *t)
{
    encode_plain(t);
    rle_future *f = say_call(t, false, false);
    pump(t);
    rle_rpc_stop(t->a);
    pump(t);
    rle_rpc_stop(t->b);
    read_all(t->b, &f, 1);
}

static void talk_pings(talk *t)
{
    rle_conn_control(t->at_a.conn, RLE_FRAME_PING, 0, 1, 0);
    rle_conn_control(t->at_b.conn, RLE_FRAME_PING, 0, 2, 0);
    rle_conn_control(t->at_a.conn, RLE_FRAME_CREDIT, 0, 0, 5);
    rle_frame unknown = {.type = 77, .values = 4};
    struct iovec part = {(char *)"abcd", 4};
    must(rle_conn_send(t->at_b.conn, &unknown, &part, 1, false, false) == RLE_OK);
    pump(t);
}

static void talk_weights(talk *t)
{
    wire_weights of_a, of_b;
    wire_weights_begin(t->a, t->at_a.conn->peer, &of_a);
    wire_weights_begin(t->b, t->at_b.conn->peer, &of_b);
    pump(t);
    wire_weights_take(&of_a);
    wire_weights_take(&of_b);
    wire_weights_commit(of_a.own, 2);
    pump(t);
    wire_weights_end(t->a, &of_a);
    wire_weights_end(t->b, &of_b);
    pump(t);
}

static const struct {
    const char *name;
    void (*speak)(talk *t);
    bool weights; /* to be told to somebody who publishes and follows */
} talks[] = {
    {"plain", talk_plain, false},     {"tables", talk_tables, false},
    {"tensors", talk_tensors, false}, {"references", talk_references, false},
    {"errors", talk_errors, false},   {"cancel", talk_cancel, false},
    {"nested", talk_nested, false},   {"goodbye", talk_goodbye, false},
    {"pings", talk_pings, false},     {"weights", talk_weights, true},
    {"long", talk_long, false},
};
enum { TALKS = sizeof talks / sizeof *talks };

/* Both sides of one conversation, with or without checksums of the payloads. Each
 * stream's bytes are to be freed. */
static void record_talk(int number, bool checksums, stream out[2])
{
    talk *t = talk_begin(checksums);
    talks[number].speak(t);
    talk_end(t, out);
}

#endif
