/* test_rpc_tls_bytes.c - TLS over a network that dribbles, cuts and changes bits; long
 * messages, full sockets, bytes that were read ahead; how small an idle connection is. */
#include "rpc_pair.h"

#include <malloc.h>

#include "base/fault.h"
#include "figure.h"
#include "shifted_clock.h"
#include "tls_certificates.h"

static const rle_tls_options psk = {.psk = true, .unix_too = true};

static bool full(void)
{
    return getenv("RLE_FULL") != NULL;
}

static void call_and_answer(rle_rpc *from, rle_rpc *to, rle_peer *peer, int64_t number)
{
    rle_future *f = call(from, peer, "f", number);
    for (int i = 0; i < 5000 && rle_future_status(from, f) == RLE_FUTURE_PENDING; i++) {
        turn(from, to);
        serve_one(to);
    }
    assert_int_equal(rle_future_status(from, f), RLE_FUTURE_DONE);
    assert_int_equal(result_of(f), number + 1);
    rle_future_release(from, f);
}

/* ---- a network between two workers ---- */

typedef struct net {
    int listener, client, server;
    size_t passed, cut_at, flip_at; /* SIZE_MAX = never */
    int flip_bit;
    bool cut;
} net;

static void net_open(net *n, char *address, size_t size)
{
    *n = (net){.client = -1, .server = -1, .cut_at = SIZE_MAX, .flip_at = SIZE_MAX};
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    snprintf(un.sun_path, sizeof un.sun_path, "%.60s/net.sock", test_folder);
    snprintf(address, size, "unix:%s", un.sun_path);
    unlink(un.sun_path);
    n->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(n->listener, (struct sockaddr *)&un, sizeof un), 0);
    assert_int_equal(listen(n->listener, 4), 0);
}

static void net_hang_up(net *n)
{
    if (n->client >= 0) close(n->client);
    if (n->server >= 0) close(n->server);
    n->client = n->server = -1;
}

static void net_close(net *n)
{
    char path[128];
    net_hang_up(n);
    close(n->listener);
    snprintf(path, sizeof path, "%s/net.sock", test_folder);
    unlink(path);
}

static void net_pass(net *n, int from, int to, size_t most)
{
    uint8_t bytes[16384];
    ssize_t got =
        recv(from, bytes, most < sizeof bytes ? most : sizeof bytes, MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN)) n->cut = true;
    if (got <= 0) return;
    size_t size = (size_t)got;
    if (n->cut_at != SIZE_MAX && n->passed + size >= n->cut_at) {
        size = n->cut_at - n->passed;
        n->cut = true;
    }
    if (n->flip_at >= n->passed && n->flip_at < n->passed + size)
        bytes[n->flip_at - n->passed] ^= (uint8_t)(1 << n->flip_bit);
    n->passed += size;
    for (size_t at = 0; at < size;) {
        ssize_t put = send(to, bytes + at, size - at, MSG_NOSIGNAL);
        if (put <= 0) {
            n->cut = true;
            return;
        }
        at += (size_t)put;
    }
}

/* Up to `most` bytes in each direction. */
static void net_turn(net *n, size_t most)
{
    if (n->client < 0 && !n->cut) {
        n->client = accept(n->listener, NULL, NULL);
        if (n->client < 0) return;
        struct sockaddr_un un = {.sun_family = AF_UNIX};
        snprintf(un.sun_path, sizeof un.sun_path, "%.80s", test_address + 5);
        n->server = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(connect(n->server, (struct sockaddr *)&un, sizeof un), 0);
    }
    if (n->client < 0) return;
    net_pass(n, n->client, n->server, most);
    if (!n->cut) net_pass(n, n->server, n->client, most);
    if (n->cut) net_hang_up(n);
}

/* Join over the network and make one call of `number`. Returns how often bytes were
 * passed on and whether the call came back; never with another result than the right one.
 */
static bool session(net *n, const rle_rpc_options *o, const char *address, size_t most)
{
    rle_rpc *a = worker("a", o), *b = worker("b", o);
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    rle_peer *peer = rle_rpc_peer(b, "a");
    rle_peer_hint(b, peer, &address, 1);
    rle_future *f = call(b, peer, "f", 41);
    for (int i = 0; i < 20000 && rle_future_status(b, f) == RLE_FUTURE_PENDING; i++) {
        turn(a, b);
        net_turn(n, most);
        serve_one(a);
        if (n->client < 0 && n->cut && i > 10) {
            for (int j = 0; j < 10; j++) turn(a, b);
            if (rle_future_status(b, f) == RLE_FUTURE_PENDING) break;
        }
        /* A length that was changed: the reader waits for bytes that never come. */
        if (n->flip_at < n->passed && i > 400) break;
    }
    bool done = rle_future_status(b, f) == RLE_FUTURE_DONE;
    if (done) assert_int_equal(result_of(f), 42);
    rle_future_release(b, f);
    rle_rpc_free(b);
    rle_rpc_free(a);
    return done;
}

static void a_byte_at_a_time_is_enough(void **state)
{
    (void)state;
    authority ours = new_authority("ours");
    char cert[128], key[128], ca[128];
    issue(&ours, test_folder, "a", NULL, -60, 3600);
    snprintf(cert, sizeof cert, "%s/a.crt", test_folder);
    snprintf(key, sizeof key, "%s/a.key", test_folder);
    snprintf(ca, sizeof ca, "%s/ca.crt", test_folder);
    write_certificate(ca, ours.cert);
    free_authority(&ours);
    rle_tls_options files = {.cert = cert, .key = key, .ca = ca, .unix_too = true};
    const rle_tls_options *both[] = {&psk, &files};
    for (int i = 0; i < 2; i++) {
        char address[128];
        net n;
        net_open(&n, address, sizeof address);
        assert_true(session(&n, &(rle_rpc_options){.tls = both[i]}, address, 1));
        net_close(&n);
    }
    unlink(cert);
    unlink(key);
    unlink(ca);
}

static void a_cut_anywhere_ends_cleanly(void **state)
{
    (void)state;
    char address[128];
    net n;
    net_open(&n, address, sizeof address);
    rle_rpc_options o = {.tls = &psk};
    assert_true(session(&n, &o, address, SIZE_MAX));
    size_t whole = n.passed;
    net_close(&n);
    size_t bytes = rle_mem_bytes(), blocks = rle_mem_blocks(), fds = open_fds();
    int cut = 0;
    for (size_t at = 0; at < whole; at += full() ? 1 : 41) {
        net_open(&n, address, sizeof address);
        n.cut_at = at;
        /* The last bytes say only that nothing more comes. */
        if (!session(&n, &o, address, SIZE_MAX)) cut++;
        net_close(&n);
        assert_int_equal(rle_mem_bytes(), bytes);
        assert_int_equal(rle_mem_blocks(), blocks);
        assert_int_equal(open_fds(), fds);
    }
    assert_true(cut > 0);
    figure("F03", "over TLS: a session of %zu bytes cut at each %dth byte, all noticed",
           whole, full() ? 1 : 41);
}

static void a_changed_bit_anywhere_is_noticed(void **state)
{
    (void)state;
    char address[128];
    net n;
    net_open(&n, address, sizeof address);
    rle_rpc_options o = {.tls = &psk};
    assert_true(session(&n, &o, address, SIZE_MAX));
    size_t whole = n.passed;
    net_close(&n);
    int wrong = 0, tried = 0;
    for (size_t bit = 3; bit < whole * 8; bit += full() ? 1 : 373) {
        net_open(&n, address, sizeof address);
        n.flip_at = bit / 8;
        n.flip_bit = (int)(bit % 8);
        if (session(&n, &o, address, SIZE_MAX)) wrong++;
        net_close(&n);
        tried++;
    }
    /* Only what is said behind the last result may be changed, and the version of the
     * outer record of a greeting, which nobody reads. */
    assert_true(wrong * 20 < tried);
    figure("F16",
           "over TLS: %d sessions with a bit changed, %d of them not to the result",
           tried, wrong);
}

/* ---- much at once ---- */

static rle_future *call_bytes(rle_rpc *from, rle_peer *to, const uint8_t *bytes,
                              size_t size)
{
    rle_encoder e;
    rle_encoder_init(&e);
    begin_call(&e, "f", 1);
    for (size_t at = 0; at < size; at += 1 << 20) {
        size_t n = size - at < 1 << 20 ? size - at : 1 << 20;
        rle_encode_string(&e, (const char *)bytes + at, n);
    }
    rle_future *f = call_with(from, to, "f", &e, 0, false);
    rle_encoder_fini(&e);
    return f;
}

enum { LONG = 12 << 20 };

static void expect_bytes(rle_decoder *d, const uint8_t *bytes)
{
    for (size_t at = 0; at < LONG; at += 1 << 20) {
        rle_value v;
        assert_int_equal(rle_decode(d, &v), RLE_OK);
        assert_int_equal(v.u.string.len, 1 << 20);
        assert_memory_equal(v.u.string.data, bytes + at, 1 << 20);
    }
}

/* Twelve strings as the one result: the count of arguments is of no matter here. */
static bool serve_bytes(rle_rpc *rpc, const uint8_t *bytes)
{
    rle_incoming_info info;
    rle_decoder d;
    rle_incoming *in = rle_rpc_next_call(rpc, &info, &d);
    if (!in) return false;
    expect_bytes(&d, bytes);
    rle_incoming_read(rpc, in);
    rle_encoder e;
    rle_encoder_init(&e);
    rle_encode_result_head(&e, 1);
    for (size_t at = 0; at < LONG; at += 1 << 20)
        rle_encode_string(&e, (const char *)bytes + at, 1 << 20);
    assert_int_equal(rle_incoming_reply(rpc, in, &e), RLE_OK);
    rle_encoder_fini(&e);
    return true;
}

static void long_messages_pass_both_ways_at_once(void **state)
{
    (void)state;
    uint8_t *bytes = malloc(LONG);
    uint32_t x = 1;
    for (size_t i = 0; i < LONG; i++)
        bytes[i] = (uint8_t)((x = x * 1664525 + 1013904223) >> 24);
    rle_rpc_options o = {.tls = &psk};
    for (int kind = 0; kind < 2; kind++) {
        rle_rpc *a = worker("a", &o), *b = worker("b", &o);
        const char *at = kind ? "tcp://127.0.0.1:0" : test_address;
        assert_int_equal(rle_rpc_listen(a, at, NULL), RLE_OK);
        rle_peer *to_a = link_to(b, a), *to_b = rle_rpc_peer(a, "b");
        rle_future *f = call_bytes(a, to_b, bytes, LONG),
                   *g = call_bytes(b, to_a, bytes, LONG);
        for (int i = 0; i < 200000 && (rle_future_status(a, f) == RLE_FUTURE_PENDING ||
                                       rle_future_status(b, g) == RLE_FUTURE_PENDING);
             i++) {
            turn(a, b);
            serve_bytes(a, bytes);
            serve_bytes(b, bytes);
        }
        assert_int_equal(rle_future_status(a, f), RLE_FUTURE_DONE);
        assert_int_equal(rle_future_status(b, g), RLE_FUTURE_DONE);
        const rle_msg *m = rle_future_message(f);
        rle_decoder d;
        uint16_t count;
        rle_decoder_init(&d, m->data, m->size, m->values, m->tensors);
        assert_int_equal(rle_decode_result_head(&d, &count), RLE_OK);
        expect_bytes(&d, bytes);
        rle_future_release(a, f);
        rle_future_release(b, g);
        rle_rpc_free(a);
        rle_rpc_free(b);
    }
    free(bytes);
}

/* What was decrypted but does not fit, or was read ahead, is not forgotten when the
 * socket has nothing more to say. */
static void what_was_read_ahead_is_not_forgotten(void **state)
{
    (void)state;
    enum { MANY = 400, SIZE = 1500 };
    rle_rpc_options o = {.tls = &psk};
    rle_rpc *a = worker("a", &o), *b = worker("b", &o);
    assert_int_equal(rle_rpc_listen(a, "tcp://127.0.0.1:0", NULL), RLE_OK);
    rle_peer *to_a = link_to(b, a);
    assert_true(rle_peer_connected(b, to_a));
    rle_future *f[MANY];
    char text[SIZE];
    memset(text, 'x', sizeof text);
    for (int i = 0; i < MANY; i++) {
        rle_encoder e;
        rle_encoder_init(&e);
        begin_call(&e, "f", 2);
        rle_encode_integer(&e, i);
        rle_encode_string(&e, text, sizeof text);
        f[i] = call_with(b, to_a, "f", &e, 0, true);
        rle_encoder_fini(&e);
    }
    for (int i = 0; i < 50; i++)
        rle_rpc_turn(b, false); /* it has sent what there is room for */
    int served = 0;
    for (int i = 0; i < 2000 && served < MANY; i++) {
        turn(a, i % 8 ? NULL : b);
        while (serve_one(a)) served++;
    }
    assert_int_equal(served, MANY);
    for (int i = 0; i < MANY; i++) {
        wait_for(a, b, b, f[i]);
        assert_int_equal(result_of(f[i]), i + 1);
        rle_future_release(b, f[i]);
    }
    assert_true(rle_rpc_flushed(a));
    rle_rpc_free(a);
    rle_rpc_free(b);
}

/* Bytes that waited for room in the socket go out although nothing else is said. */
static void what_waits_for_room_goes_out_by_itself(void **state)
{
    (void)state;
    enum { MANY = 40, SIZE = 100000 };
    rle_rpc_options o = {.tls = &psk};
    rle_rpc *a = worker("a", &o), *b = worker("b", &o);
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    rle_peer *to_a = link_to(b, a);
    rle_future *f[MANY];
    char *text = calloc(1, SIZE);
    for (int i = 0; i < MANY; i++) {
        rle_encoder e;
        rle_encoder_init(&e);
        begin_call(&e, "f", 2);
        rle_encode_integer(&e, i);
        rle_encode_string(&e, text, SIZE);
        f[i] = call_with(b, to_a, "f", &e, 0, true);
        rle_encoder_fini(&e);
    }
    free(text);
    assert_false(rle_rpc_flushed(b));
    for (int i = 0; i < 100; i++) rle_rpc_turn(b, false); /* nobody reads */
    assert_false(rle_rpc_flushed(b));
    for (int i = 0; i < 5000 && rle_future_status(b, f[MANY - 1]) == RLE_FUTURE_PENDING;
         i++) {
        turn(a, b);
        serve_one(a);
    }
    for (int i = 0; i < MANY; i++) {
        assert_int_equal(result_of(f[i]), i + 1);
        rle_future_release(b, f[i]);
    }
    assert_true(rle_rpc_flushed(b));
    rle_rpc_free(a);
    rle_rpc_free(b);
}

/* A quarter of a second passes; what the worker says has no part in this. */
static void quarter_later(rle_rpc *rpc, rle_peer *peer)
{
    clock_ahead += RLE_SECONDS / 4;
    rle_rpc_enter(rpc);
    if (peer->conn) peer->conn->heard = rle_now();
    rle_timers_fire(&rpc->loop);
    rle_rpc_leave(rpc);
    turn(rpc, NULL);
}

/* All of a message is encrypted and waits for room in the socket. Whoever reads it,
 * however slowly, is not taken for one that does not read. */
static void a_slow_reader_is_not_dropped(void **state)
{
    (void)state;
    enum { SIZE = 100000, SECONDS = 30 };
    char address[128], *text = calloc(1, SIZE);
    net n;
    net_open(&n, address, sizeof address);
    clock_ahead = 0;
    rle_clock clock = {shifted, NULL};
    rle_clock_set(&clock);
    rle_rpc_options o = {.tls = &psk, .heartbeat = 2 * RLE_SECONDS};
    rle_rpc *a = worker("a", &o), *b = worker("b", &o);
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    rle_peer *peer = rle_rpc_peer(b, "a");
    const char *addresses[] = {address};
    rle_peer_hint(b, peer, addresses, 1);
    rle_future *f = call(b, peer, "f", 1);
    for (int i = 0; i < 20000 && rle_future_status(b, f) == RLE_FUTURE_PENDING; i++) {
        turn(a, b);
        net_turn(&n, SIZE_MAX);
        serve_one(a);
    }
    rle_future_release(b, f);
    int room = 4096; /* of the socket: little of it is taken at a time */
    setsockopt(peer->conn->transport.fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    rle_encoder e;
    rle_encoder_init(&e);
    begin_call(&e, "f", 2);
    rle_encode_integer(&e, 1);
    rle_encode_string(&e, text, SIZE);
    f = call_with(b, peer, "f", &e, 300 * RLE_SECONDS, true);
    rle_encoder_fini(&e);
    free(text);
    uint64_t out = peer->conn->bytes_out;
    assert_true(out > SIZE);
    for (int i = 0; i < 4 * SECONDS && rle_peer_connected(b, peer); i++) {
        if (i % 4 == 0) net_pass(&n, n.client, n.server, 3000);
        quarter_later(b, peer);
    }
    assert_true(rle_peer_connected(b, peer));
    assert_int_equal(peer->conn->bytes_out, out);
    assert_true(rle_conn_unsent(peer->conn) > 0);
    /* And whoever reads no more is. */
    for (int i = 0; i < 4 * 15 && rle_peer_connected(b, peer); i++)
        quarter_later(b, peer);
    assert_false(rle_peer_connected(b, peer));
    assert_true(logged("worker \"a\" dropped: nothing was taken for 1"));
    rle_clock_set(NULL);
    rle_future_release(b, f);
    rle_rpc_free(a);
    rle_rpc_free(b);
    net_close(&n);
}

/* ---- failures of memory and of the system ---- */

/* Join and call while the nth allocation, or call of the system, fails. True when it was
 * never come to. Whatever happens is told, and nothing stays behind. */
static bool with_fault(rle_fault_kind kind, uint64_t nth, bool persistent, bool *called)
{
    rle_rpc_options o = {.tls = &psk};
    rle_rpc *a = worker("a", &o), *b = worker("b", &o);
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    rle_peer *peer = rle_rpc_peer(b, "a");
    const char *addresses[] = {test_address};
    rle_peer_hint(b, peer, addresses, 1);
    rle_encoder e;
    rle_encoder_init(&e);
    begin_call(&e, "f", 1);
    rle_encode_integer(&e, 41);
    rle_call_spec spec = {.peer = peer, .method = "f", .timeout = 20 * RLE_SECONDS};
    rle_future *f = NULL;
    rle_fault_order(kind, nth, persistent);
    rle_status s = rle_rpc_call(b, &spec, &e, &f);
    for (int i = 0; f && i < 300 && rle_future_status(b, f) == RLE_FUTURE_PENDING; i++) {
        turn(a, b);
        rle_incoming_info info;
        rle_decoder d;
        rle_value v;
        rle_incoming *in = rle_rpc_next_call(a, &info, &d);
        if (!in) continue;
        if (rle_decode(&d, &v) != RLE_OK) v.u.integer = 0;
        rle_incoming_read(a, in);
        rle_encoder r;
        rle_encoder_init(&r);
        rle_wire_error no = {.code = RLE_RESOURCE_EXHAUSTED, .message = {"no memory", 9}};
        rle_encode_result_head(&r, 1);
        rle_encode_integer(&r, v.u.integer + 1);
        if (rle_incoming_reply(a, in, &r) != RLE_OK) rle_incoming_fail(a, in, &no);
        rle_encoder_fini(&r);
    }
    bool passed = rle_fault_left(kind) > 1; /* it is still to come */
    rle_fault_order(kind, 0, false);
    assert_true(s == RLE_OK || s == RLE_RESOURCE_EXHAUSTED);
    *called = f && rle_future_status(b, f) == RLE_FUTURE_DONE;
    if (*called) assert_int_equal(result_of(f), 42);
    if (f) rle_future_release(b, f);
    rle_encoder_fini(&e);
    rle_rpc_free(b);
    rle_rpc_free(a);
    return passed;
}

static void f21_a_failure_at_every_place_leaves_nothing_behind(void **state)
{
    (void)state;
    static const rle_fault_kind kinds[] = {RLE_FAULT_ALLOC, RLE_FAULT_IO};
    bool called;
    with_fault(RLE_FAULT_ALLOC, 1000000, false,
               &called); /* what the first one takes for good */
    assert_true(called);
    size_t bytes = rle_mem_bytes(), blocks = rle_mem_blocks(), fds = open_fds();
    for (int k = 0; k < 2; k++) {
        for (int persistent = 0; persistent < 2; persistent++) {
            uint64_t n = 1;
            while (n < 400 && !with_fault(kinds[k], n, persistent, &called)) {
                assert_int_equal(rle_mem_bytes(), bytes);
                assert_int_equal(rle_mem_blocks(), blocks);
                assert_int_equal(open_fds(), fds);
                unlink(test_address + 5);
                n++;
            }
            assert_true(called);
            assert_in_range(n, 5, 399);
            figure("F21", "over TLS: %s, %s, at each of %d places: nothing left behind",
                   k ? "system calls" : "allocations", persistent ? "for good" : "once",
                   (int)n - 1);
        }
    }
}

static void an_idle_connection_is_small(void **state)
{
    (void)state;
    enum { COUNT = 40 };
    rle_rpc_options o = {.tls = &psk};
    rle_rpc *a = worker("a", &o), *b[COUNT];
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    size_t sum = 0;
    for (int i = 0; i < COUNT; i++) {
        char name[16];
        snprintf(name, sizeof name, "b%d", i);
        b[i] = worker(name, &o);
        size_t before = mallinfo2().uordblks;
        rle_peer *to_a = link_to(b[i], a);
        call_and_answer(b[i], a, to_a, i);
        if (i) sum += mallinfo2().uordblks - before;
    }
    size_t each = sum / (COUNT - 1) / 2; /* both ends are here */
    figure("F24", "over TLS: %zu bytes of an idle connection's end", each);
#ifndef __SANITIZE_ADDRESS__
    assert_true(each < 17 << 10); /* of which OpenSSL 3.0 takes 14.4 KiB */
#endif
    for (int i = 0; i < COUNT; i++) rle_rpc_free(b[i]);
    rle_rpc_free(a);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, pair_setup, pair_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_byte_at_a_time_is_enough),
        TEST(a_cut_anywhere_ends_cleanly),
        TEST(a_changed_bit_anywhere_is_noticed),
        TEST(long_messages_pass_both_ways_at_once),
        TEST(what_was_read_ahead_is_not_forgotten),
        TEST(what_waits_for_room_goes_out_by_itself),
        TEST(a_slow_reader_is_not_dropped),
        TEST(f21_a_failure_at_every_place_leaves_nothing_behind),
        TEST(an_idle_connection_is_small),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
