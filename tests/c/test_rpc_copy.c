/* test_rpc_copy.c - a long message is copied without the lock: whoever asks meanwhile
 * whether we are there gets an answer, however long the copy takes. Here it takes until
 * that answer comes: a page of the tensor is out of reach, and who is caught there asks.
 */
#include <signal.h>
#include <sys/mman.h>

#include "rpc_pair.h"

enum { LONG = 12 << 20, HOLE = 8 << 20, PAGE = 4096, PATIENCE_MS = 8000 };

static uint8_t *data;
static raw asker;
static int leaver = -1; /* this connection breaks meanwhile */
static raw *reader;     /* this one reads all of it, and calls again */
static uint8_t again[256];
static size_t again_size;
static volatile sig_atomic_t caught, answered;

static uint8_t pattern(size_t i)
{
    return (uint8_t)(i * 2654435761u >> 13);
}

/* Async-signal-safe. Ask, and wait for the answer; the thread of the guard gives it. */
static bool ask(void)
{
    rle_frame f = {.type = RLE_FRAME_PING, .arg = 77, .incarnation = asker.incarnation},
              got;
    uint8_t head[RLE_FRAME_HEADER];
    rle_frame_encode(&f, head);
    if (send(asker.fd, head, sizeof head, MSG_NOSIGNAL) != sizeof head) return false;
    for (int waited = 0; waited < PATIENCE_MS; waited += 50) {
        struct pollfd p = {.fd = asker.fd, .events = POLLIN};
        if (poll(&p, 1, 50) < 1) continue;
        if (recv(asker.fd, head, sizeof head, MSG_DONTWAIT | MSG_WAITALL) != sizeof head)
            return false;
        if (rle_frame_decode(head, 1 << 20, &got) != RLE_OK) return false;
        uint8_t note[RLE_NOTE_MAX];
        if (got.payload && recv(asker.fd, note, got.payload, MSG_WAITALL) < 1)
            return false;
        if (got.type == RLE_FRAME_PONG && got.arg == 77) return true;
    }
    return false;
}

/* All of the result, as the guard sends it; then the next call, at once. */
static bool read_and_call_again(raw *r)
{
    static uint8_t payload[RLE_CHUNK_SIZE];
    uint8_t bytes[RLE_FRAME_HEADER];
    rle_frame f = {.body = 1};
    for (size_t got = 0, all = 1; got < all; got += f.payload) {
        if (recv(r->fd, bytes, sizeof bytes, MSG_WAITALL) != sizeof bytes ||
            rle_frame_decode(bytes, 64 << 20, &f) != RLE_OK || f.payload > sizeof payload ||
            recv(r->fd, payload, f.payload, MSG_WAITALL) != (ssize_t)f.payload)
            return false;
        if (!got) all = f.body;
    }
    return send(r->fd, again, again_size, MSG_NOSIGNAL) == (ssize_t)again_size;
}

static void in_the_hole(int sig, siginfo_t *info, void *context)
{
    (void)context;
    uint8_t *at = info->si_addr;
    if (at < data + HOLE || at >= data + HOLE + PAGE) {
        signal(sig, SIG_DFL);
        return;
    }
    caught++;
    if (leaver >= 0) shutdown(leaver, SHUT_RDWR);
    if (reader) mprotect(data + HOLE, PAGE, PROT_READ | PROT_WRITE);
    answered += (!reader || read_and_call_again(reader)) && ask();
    mprotect(data + HOLE, PAGE, PROT_READ | PROT_WRITE);
}

static void dig(void)
{
    struct sigaction act = {.sa_sigaction = in_the_hole, .sa_flags = SA_SIGINFO};
    assert_int_equal(sigaction(SIGSEGV, &act, NULL), 0);
    for (size_t i = 0; i < LONG; i++) data[i] = pattern(i);
    assert_int_equal(mprotect(data + HOLE, PAGE, PROT_NONE), 0);
    caught = answered = 0;
}

/* What was sent is what was there at the call. */
static void spoil(void)
{
    assert_int_equal(caught, 1);
    assert_int_equal(answered, 1);
    memset(data, 0, LONG);
}

static void encode(rle_encoder *e)
{
    rle_array array = {.data = data, .dtype = RLE_U8, .ndim = 1, .shape = {LONG}};
    rle_array_set_contiguous(&array);
    assert_int_equal(rle_encode_tensor(e, &array, NULL), RLE_OK);
}

static rle_future *put(rle_rpc *b, rle_peer *to)
{
    rle_encoder e;
    rle_encoder_init(&e);
    begin_call(&e, "put", 1);
    encode(&e);
    rle_future *f = call_with(b, to, "put", &e, 0, false);
    rle_encoder_fini(&e);
    return f;
}

/* Read the message of type `first`, and compare its tensor. */
static void receive(raw *r, int first)
{
    uint8_t *body = NULL, *payload = malloc(RLE_CHUNK_SIZE);
    size_t got = 0;
    rle_frame f, head = {.body = 1};
    while (got < head.body) {
        assert_int_equal(raw_read(r, &f, payload, RLE_CHUNK_SIZE), 1);
        if (!got && f.type != first) continue;
        if (!got) head = f;
        if (!body) body = malloc(head.body);
        if (got && f.type != RLE_FRAME_CHUNK) continue;
        memcpy(body + got, payload, f.payload);
        got += f.payload;
    }
    size_t at = rle_align64(head.values), wrong = 0;
    assert_int_equal(at + LONG, head.body);
    for (size_t i = 0; i < LONG; i++) wrong += body[at + i] != pattern(i);
    assert_int_equal(wrong, 0);
    free(body);
    free(payload);
}

static int setup(void **state)
{
    data = mmap(NULL, LONG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return data == MAP_FAILED ? -1 : pair_setup(state);
}

static int teardown(void **state)
{
    signal(SIGSEGV, SIG_DFL);
    munmap(data, LONG);
    return pair_teardown(state);
}

/* With its guard. */
static rle_rpc *guarded_with(int max_credits)
{
    rle_rpc_options o = {.name = "b", .token = &test_token, .max_credits = max_credits};
    rle_rpc *rpc = NULL;
    assert_int_equal(rle_rpc_new(&o, &rpc), RLE_OK);
    assert_int_equal(rle_rpc_listen(rpc, test_address, NULL), RLE_OK);
    asker = raw_join(rpc, "asker");
    return rpc;
}

static rle_rpc *guarded(void)
{
    return guarded_with(0);
}

static void end(rle_rpc *b, raw *r, rle_future *f)
{
    assert_null(b->rest.body);
    if (f) rle_future_release(b, f);
    raw_close(r);
    raw_close(&asker);
    rle_rpc_free(b);
}

static void while_a_call_is_copied_others_are_answered(void **state)
{
    (void)state;
    rle_rpc *b = guarded();
    raw x = raw_join(b, "x");
    size_t bytes = rle_mem_bytes();
    dig();
    rle_future *f = put(b, rle_rpc_peer(b, "x"));
    spoil();
    receive(&x, RLE_FRAME_CALL);
    for (int i = 0; i < 5; i++) turn(b, NULL);
    assert_true(rle_mem_bytes() < bytes + (64 << 10));
    end(b, &x, f);
}

static void while_a_call_is_kept_others_are_answered(void **state)
{
    (void)state;
    rle_rpc *b = guarded();
    dig();
    rle_future *f = put(b, rle_rpc_peer(b, "x")); /* who has yet to join */
    spoil();
    raw x = raw_join(b, "x");
    receive(&x, RLE_FRAME_CALL);
    end(b, &x, f);
}

/* The bytes of a call. */
static size_t a_get(const raw *r, uint64_t id, uint8_t *out)
{
    rle_encoder e;
    rle_encoder_init(&e);
    begin_call(&e, "get", 0);
    size_t n = rle_encoder_values_size(&e);
    rle_frame f = {.type = RLE_FRAME_CALL, .id = id, .arg = 60000000, .body = n,
                   .values = (uint32_t)n, .payload = (uint32_t)n,
                   .incarnation = r->incarnation};
    rle_frame_encode(&f, out);
    memcpy(out + RLE_FRAME_HEADER, e.w.data + RLE_FRAME_HEADER, n);
    rle_encoder_fini(&e);
    return RLE_FRAME_HEADER + n;
}

static void send_get(raw *r)
{
    uint8_t bytes[256];
    raw_write(r, bytes, a_get(r, 1, bytes));
}

static void answer_get(rle_rpc *b)
{
    rle_incoming_info info;
    rle_decoder d;
    rle_encoder e;
    rle_incoming *in = rle_rpc_next_call(b, &info, &d);
    assert_non_null(in);
    rle_encoder_init(&e);
    rle_encoder_reset(&e);
    rle_encode_result_head(&e, 1);
    encode(&e);
    assert_int_equal(rle_incoming_reply(b, in, &e), RLE_OK);
    rle_encoder_fini(&e);
}

static void while_a_result_is_copied_others_are_answered(void **state)
{
    (void)state;
    rle_rpc *b = guarded();
    raw x = raw_join(b, "x");
    send_get(&x);
    dig();
    answer_get(b);
    spoil();
    receive(&x, RLE_FRAME_RESULT);
    end(b, &x, NULL);
}

/* Whoever has it all before the copying is over has the credit for another call. */
static void a_result_that_is_there_early_is_an_answer(void **state)
{
    (void)state;
    rle_rpc *b = guarded_with(1);
    raw x = raw_join(b, "x");
    send_get(&x);
    dig();
    reader = &x;
    again_size = a_get(&x, 2, again);
    answer_get(b);
    reader = NULL;
    spoil();
    assert_false(logged("more than 1 calls open"));
    turn(b, NULL);
    answer_get(b);
    end(b, &x, NULL);
}

/* Who is to get it goes meanwhile: nothing is left of it. */
static void what_it_is_for_may_end_meanwhile(void **state)
{
    (void)state;
    rle_rpc *b = guarded();
    raw x = raw_join(b, "x");
    size_t bytes = rle_mem_bytes();
    dig();
    leaver = x.fd;
    rle_future *f = put(b, rle_rpc_peer(b, "x"));
    leaver = -1;
    spoil();
    for (int i = 0; i < 1000 && rle_future_status(b, f) == RLE_FUTURE_PENDING; i++) {
        usleep(1000);
        turn(b, NULL);
    }
    rle_wire_error err;
    assert_non_null(strstr(error_of(f, &err), "worker \"x\" disconnected"));
    for (int i = 0; i < 5; i++) turn(b, NULL);
    assert_true(rle_mem_bytes() < bytes + (64 << 10));
    end(b, &x, f);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(while_a_call_is_copied_others_are_answered),
        TEST(while_a_call_is_kept_others_are_answered),
        TEST(while_a_result_is_copied_others_are_answered),
        TEST(a_result_that_is_there_early_is_an_answer),
        TEST(what_it_is_for_may_end_meanwhile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
