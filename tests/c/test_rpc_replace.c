/* test_rpc_replace.c - names that are taken, sessions that are ended: who stays. */
#include "figure.h"
#include "rpc_link.h"

#define FROZEN_TIMEOUT (3 * RLE_SECONDS / 10)

/* ---- helpers ---- */

/* Begin to join under a name; the result comes with turns. */
static rle_conn *begin_join(rle_rpc *from, rle_connect_result *result)
{
    rle_address to;
    rle_conn *conn = NULL;
    memset(result, 0, sizeof *result);
    assert_int_equal(rle_address_parse(test_address, &to), RLE_OK);
    rle_rpc_enter(from);
    assert_int_equal(rle_connect_begin(from, &to, result, NULL, &conn), RLE_OK);
    rle_rpc_leave(from);
    return conn;
}

static void turn_until(rle_rpc *a, rle_rpc *b, const bool *done)
{
    for (int i = 0; i < 10000 && !*done; i++) {
        turn(a, b);
        usleep(500);
    }
    assert_true(*done);
}

static void turn_for(rle_rpc *a, rle_rpc *b, int64_t time)
{
    for (int64_t end = rle_now() + time; rle_now() < end;) {
        turn(a, b);
        usleep(1000);
    }
}

/* Frames of that type that a bare socket gets before nothing comes; -1: the stream ended.
 */
static int frames(raw *r, unsigned type, rle_frame *last)
{
    uint8_t payload[4096];
    rle_frame f;
    int n = 0, got;
    while ((got = raw_read(r, &f, payload, sizeof payload)) == 1) {
        if (f.type != type) continue;
        *last = f;
        n++;
    }
    return n ? n : got == 0 ? -1 : 0;
}

static void serve_and_expect(rle_rpc *a, rle_peer *to_b, rle_rpc *b)
{
    rle_future *f = call(a, to_b, "f", 1);
    for (int i = 0; i < 100 && rle_future_status(a, f) == RLE_FUTURE_PENDING; i++) {
        turn(a, b);
        serve_one(b);
    }
    assert_int_equal(result_of(f), 2);
    rle_future_release(a, f);
}

/* ---- names ---- */

static void f31_a_living_worker_keeps_its_name(void **state)
{
    (void)state;
    rle_rpc *a = listener(NULL), *b = worker("b", NULL), *second = worker("b", NULL);
    join(b, test_address, a);
    rle_peer *to_b = rle_rpc_peer(a, "b");
    uint64_t session = rle_peer_session(a, to_b);
    rle_future *open = call(a, to_b, "f", 1);
    rle_connect_result result;
    int64_t began = rle_now();
    begin_join(second, &result);
    for (int i = 0; i < 1000 && !result.done; i++) {
        turn(a, second);
        turn(b, NULL);
    }
    figure("F31", "refused after %.1f ms", (double)(rle_now() - began) / 1e6);
    char want[128];
    snprintf(want, sizeof want,
             "\"b\" is already connected from pid %d; pick another name", (int)getpid());
    assert_int_equal(result.status, RLE_ALREADY_EXISTS);
    assert_string_equal(result.message, want);
    assert_int_equal(times_logged(want), 1);
    assert_false(logged("replaced"));
    assert_int_equal(rle_peer_session(a, to_b), session); /* the first is undisturbed */
    serve_one(b);
    wait_for(a, b, a, open);
    assert_int_equal(result_of(open), 2);
    rle_future_release(a, open);
    rle_rpc_free(second);
    rle_rpc_free(b);
    rle_rpc_free(a);
}

/* Each call to the one that has refused it tries again, and learns why in vain; the log
 * is not filled by that. */
static void calls_of_who_was_refused_say_why(void **state)
{
    (void)state;
    rle_rpc *a = listener(NULL), *b = worker("b", NULL), *second = worker("b", NULL);
    join(b, test_address, a);
    rle_peer *to_a = rle_rpc_peer(second, "a");
    rle_peer_hint(second, to_a, (const char *const[]){test_address}, 1);
    char want[192], line[192];
    snprintf(line, sizeof line, "%s: \"b\" is already connected from pid", test_address);
    snprintf(want, sizeof want,
             "cannot reach worker \"a\" (\"b\" is already connected from pid %d; pick "
             "another name) for \"f\" (outcome: not executed)",
             (int)getpid());
    for (int i = 0; i < 5; i++) {
        rle_future *f = call(second, to_a, "f", 1);
        for (int k = 0; k < 1000 && rle_future_status(second, f) == RLE_FUTURE_PENDING;
             k++) {
            turn(a, second);
            turn(b, NULL);
        }
        expect_error(second, f, RLE_UNAVAILABLE, RLE_OUTCOME_NOT_EXECUTED, want);
    }
    assert_int_equal(times_logged(line), 2); /* one of each side */
    rle_rpc_free(second);
    assert_int_equal(times_logged("(4 times more within a second)"), 1);
    rle_rpc_free(b);
    rle_rpc_free(a);
    assert_int_equal(times_logged("(4 times more within a second)"), 2);
}

static void f11_a_frozen_worker_is_replaced(void **state)
{
    (void)state;
    size_t bytes = rle_mem_bytes(), blocks = rle_mem_blocks(), fds = open_fds();
    rle_rpc *a = listener(&(rle_rpc_options){.max_credits = 1});
    raw frozen = raw_join(a, "b");
    rle_peer *to_b = rle_rpc_peer(a, "b");
    rle_future *open = call(a, to_b, "run_episode", 1);
    rle_rpc *b = worker("b", NULL);
    rle_connect_result result;
    int64_t began = rle_now();
    begin_join(b, &result);
    turn_until(a, b, &result.done);
    double took = (double)(rle_now() - began) / RLE_SECONDS;
    figure("F11", "accepted after %.2f s", took);
    assert_true(took > 0.9);
    assert_int_equal(result.status, RLE_OK);
    assert_int_equal(
        times_logged("worker \"b\" replaced: the old connection did not answer a "
                     "ping in 1.0 s"),
        1);
    assert_false(logged("lost"));
    expect_error(a, open, RLE_UNAVAILABLE, RLE_OUTCOME_UNKNOWN,
                 "worker \"b\" was replaced while \"run_episode\" was running (outcome: "
                 "unknown)");
    /* The frozen one learns it when it goes on. */
    rle_frame f = {0};
    assert_int_equal(frames(&frozen, RLE_FRAME_GOAWAY, &f), 1);
    assert_int_equal(f.code, RLE_UNAVAILABLE);
    raw_close(&frozen);
    serve_and_expect(a, to_b, b);
    rle_rpc_free(b);
    rle_rpc_free(a);
    assert_int_equal(rle_mem_bytes(), bytes);
    assert_int_equal(rle_mem_blocks(), blocks);
    assert_int_equal(open_fds(), fds);
}

static void a_process_that_connects_again_takes_its_place_at_once(void **state)
{
    (void)state;
    rle_rpc *a = listener(NULL);
    raw old = raw_join(a, "b"), again = raw_join(a, "b");
    rle_peer *to_b = rle_rpc_peer(a, "b");
    assert_int_equal(times_logged("worker \"b\" replaced: it connected again"), 1);
    assert_true(rle_peer_connected(a, to_b));
    rle_frame f;
    assert_int_equal(frames(&old, RLE_FRAME_PING, &f),
                     -1); /* closed, without questions */
    raw_send(&again, (rle_frame){.type = RLE_FRAME_PING, .arg = 3}, NULL, 0);
    assert_int_equal(frames(&again, RLE_FRAME_PONG, &f), 1);
    raw_close(&old);
    raw_close(&again);
    rle_rpc_free(a);
}

/* We look for a worker that is lost; one that was replaced is not: its next life is here.
 */
static void a_replaced_worker_is_not_looked_for(void **state)
{
    (void)state;
    for (int frozen = 0; frozen < 2; frozen++) {
        rle_rpc *a = listener(NULL), *b = worker("b", NULL);
        char address[sizeof test_address + 8];
        snprintf(address, sizeof address, "%s.b", test_address);
        assert_int_equal(rle_rpc_listen(b, address, NULL), RLE_OK);
        rle_peer *to_b = join(a, address, b);
        raw again = {.fd = -1};
        rle_rpc *next = NULL;
        if (frozen) {
            /* b does not run any more; its next life joins. */
            rle_connect_result result;
            next = worker("b", NULL);
            begin_join(next, &result);
            turn_until(a, next, &result.done);
            assert_int_equal(result.status, RLE_OK);
            serve_and_expect(a, to_b, next);
        } else {
            /* The same process, over a connection of its own, has come again. */
            rle_rpc_enter(a);
            to_b->conn->initiator = false;
            rle_rpc_leave(a);
            again = raw_connect(a);
            again.incarnation = to_b->conn->incarnation;
            raw_hello_and_auth(&again, "b", -1);
        }
        assert_true(rle_peer_connected(a, to_b));
        assert_int_equal(state_of(a, to_b), RLE_LINK_UP);
        assert_int_equal(times_logged("worker \"b\" replaced: "), 1);
        assert_int_equal(times_logged("reconnect"), 0);
        /* When that one is lost, it is looked for and found as ever. */
        cut(a, to_b);
        if (next) rle_rpc_free(next);
        if (again.fd >= 0) raw_close(&again);
        assert_true(until_connected(a, to_b, true, b));
        assert_true(times_logged("reconnecting to \"b\" in 0.") >= 1);
        assert_int_equal(times_logged("reconnected to \"b\""), 1);
        rle_rpc_free(b);
        rle_rpc_free(a);
        test_log_count = 0;
    }
}

static void who_does_not_know_the_token_replaces_nobody(void **state)
{
    (void)state;
    rle_rpc *a = listener(NULL); /* by itself it asks after 3 s */
    raw old = raw_join(a, "b");
    rle_peer *to_b = rle_rpc_peer(a, "b");
    uint64_t session = rle_peer_session(a, to_b);
    for (int same = 0; same < 2; same++) {
        raw stranger = raw_connect(a);
        if (!same) stranger.incarnation = 99;
        raw_hello_and_auth(&stranger, "b", 17);
        rle_frame f;
        assert_int_equal(frames(&stranger, RLE_FRAME_ERROR, &f), 1);
        assert_int_equal(f.code, RLE_UNAUTHENTICATED);
        raw_close(&stranger);
    }
    turn_for(a, NULL, 6 * RLE_SECONDS / 5);
    rle_frame f;
    assert_int_equal(frames(&old, RLE_FRAME_PING, &f), 0); /* it is not even asked */
    assert_int_equal(rle_peer_session(a, to_b), session);
    assert_false(logged("replaced"));
    raw_close(&old);
    rle_rpc_free(a);
}

static void of_two_at_once_one_gets_the_name(void **state)
{
    (void)state;
    rle_rpc *a = listener(&(rle_rpc_options){.peer_timeout = FROZEN_TIMEOUT});
    raw frozen = raw_join(a, "b");
    rle_rpc *one = worker("b", NULL), *two = worker("b", NULL);
    rle_connect_result first, second;
    begin_join(one, &first);
    for (int i = 0; i < 5; i++) turn(a, one);
    begin_join(two, &second);
    for (int i = 0; i < 10000 && !(first.done && second.done); i++) {
        turn(a, one);
        turn(two, NULL);
        usleep(500);
    }
    assert_int_equal(first.status, RLE_OK);
    assert_int_equal(second.status, RLE_ALREADY_EXISTS);
    assert_int_equal(times_logged("replaced"), 1);
    serve_and_expect(a, rle_rpc_peer(a, "b"), one);
    raw_close(&frozen);
    rle_rpc_free(two);
    rle_rpc_free(one);
    rle_rpc_free(a);
}

static void a_contender_that_goes_changes_nothing(void **state)
{
    (void)state;
    rle_rpc *a = listener(NULL);
    raw old = raw_join(a, "b");
    uint64_t session = rle_peer_session(a, rle_rpc_peer(a, "b"));
    raw contender = raw_connect(a);
    contender.incarnation = 99;
    raw_hello_and_auth(&contender, "b", -1);
    turn_for(a, NULL, RLE_SECONDS / 20);
    raw_close(&contender);
    turn_for(a, NULL, 5 * RLE_SECONDS / 4); /* it would have been replaced by now */
    assert_int_equal(rle_peer_session(a, rle_rpc_peer(a, "b")), session);
    assert_false(logged("replaced"));
    /* One that says more than it should while it waits. */
    contender = raw_connect(a);
    contender.incarnation = 99;
    raw_hello_and_auth(&contender, "b", -1);
    raw_send(&contender, (rle_frame){.type = RLE_FRAME_AUTH}, "0123456789", 10);
    rle_frame f;
    assert_int_equal(frames(&contender, RLE_FRAME_AUTH, &f), -1);
    assert_true(logged("AUTH frame out of place"));
    raw_close(&contender);
    raw_close(&old);
    rle_rpc_free(a);
}

static void when_the_old_connection_ends_the_next_one_is_in(void **state)
{
    (void)state;
    rle_rpc *a = listener(NULL), *b = worker("b", NULL);
    raw old = raw_join(a, "b");
    rle_connect_result result;
    begin_join(b, &result);
    for (int i = 0; i < 20; i++) turn(a, b);
    assert_false(result.done);
    raw_close(&old);
    turn_until(a, b, &result.done);
    assert_int_equal(result.status, RLE_OK);
    assert_int_equal(times_logged("worker \"b\" lost: end of stream"), 1);
    assert_false(logged("replaced"));
    serve_and_expect(a, rle_rpc_peer(a, "b"), b);
    rle_rpc_free(b);
    rle_rpc_free(a);
}

/* The owner of the worker that is joined computes. */
static void the_guard_decides_as_well(void **state)
{
    (void)state;
    rle_rpc_options o = {.name = "a", .token = &test_token};
    rle_rpc *a, *b, *second;
    rle_peer *peer;
    assert_int_equal(rle_rpc_new(&o, &a), RLE_OK);
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    raw frozen = raw_join(a, "b");
    o.name = "b";
    assert_int_equal(rle_rpc_new(&o, &b), RLE_OK);
    assert_int_equal(rle_rpc_connect(b, test_address, 5 * RLE_SECONDS, &peer), RLE_OK);
    assert_int_equal(times_logged("worker \"b\" replaced: the old connection did not answer a "
                                  "ping in 1.0 s"), 1);
    assert_int_equal(rle_rpc_new(&o, &second), RLE_OK);
    /* Asked is b, whose owner does nothing either. */
    assert_int_equal(rle_rpc_connect(second, test_address, 5 * RLE_SECONDS, &peer),
                     RLE_ALREADY_EXISTS);
    assert_true(rle_peer_connected(a, rle_rpc_peer(a, "b")));
    close(frozen.fd);
    rle_rpc_free(second);
    rle_rpc_free(b);
    rle_rpc_free(a);
}

/* The worker ends while somebody waits; a process that connects again takes its own place
 * before those who wait for it. */
static void whoever_waits_is_told_the_end(void **state)
{
    (void)state;
    size_t blocks = rle_mem_blocks();
    rle_rpc *a = listener(NULL), *b = worker("b", NULL);
    raw old = raw_join(a, "b");
    rle_connect_result result;
    begin_join(b, &result);
    for (int i = 0; i < 20; i++) turn(a, b);
    rle_rpc_free(a);
    turn_until(NULL, b, &result.done);
    close(old.fd);
    rle_rpc_free(b);

    a = listener(&(rle_rpc_options){.peer_timeout = FROZEN_TIMEOUT});
    b = worker("b", NULL);
    old = raw_join(a, "b");
    begin_join(b, &result);
    for (int i = 0; i < 20; i++) turn(a, b);
    raw again = raw_connect(a);
    raw_hello_and_auth(&again, "b", -1); /* the old one's process: that connection goes */
    turn_until(a, b, &result.done);
    assert_int_equal(result.status, RLE_OK); /* b has waited longer */
    rle_frame f = {0};
    uint8_t payload[4096];
    int got;
    for (int i = 0; i < 100 && (got = raw_read(&again, &f, payload, sizeof payload)) < 0;
         i++)
        turn(a, b); /* b answers the ping */
    assert_int_equal(got, 1);
    assert_int_equal(f.code, RLE_ALREADY_EXISTS);
    raw_close(&old);
    raw_close(&again);
    rle_rpc_free(b);
    rle_rpc_free(a);
    assert_int_equal(rle_mem_blocks(), blocks);
}

/* Frames put together, to be sent in one write, while the server does not run. */
static void add_frame(rle_writer *w, const raw *r, rle_frame f, const void *payload,
                      size_t n)
{
    uint8_t head[RLE_FRAME_HEADER];
    f.payload = f.values = (uint32_t)n;
    f.body = n;
    f.incarnation = r->incarnation;
    rle_frame_encode(&f, head);
    rle_write_bytes(w, head, sizeof head);
    rle_write_bytes(w, payload, n);
}

static void add_call(rle_writer *w, const raw *r, uint64_t id, size_t size)
{
    static const char text[4096];
    rle_encoder e;
    rle_encoder_init(&e);
    begin_call(&e, "f", 2);
    rle_encode_integer(&e, (int64_t)id);
    rle_encode_string(&e, text, size);
    add_frame(w, r, (rle_frame){.type = RLE_FRAME_CALL, .id = id},
              e.w.data + RLE_FRAME_HEADER, rle_encoder_values_size(&e));
    rle_encoder_fini(&e);
}

static void send_all(raw *r, rle_writer *w)
{
    assert_int_equal(send(r->fd, w->data, w->len, MSG_NOSIGNAL), w->len);
    w->len = 0;
}

/* In one turn a call comes, its connection is replaced, which drops it, a call of the new
 * one comes, and then those of another worker: each message keeps its place until it is
 * read. */
static void what_is_dropped_leaves_the_others_where_they_are(void **state)
{
    (void)state;
    rle_rpc *a = listener(NULL);
    raw old = raw_join(a, "b"), other = raw_join(a, "c"), again = raw_connect(a);
    rle_writer w, hello;
    rle_writer_init(&w);
    rle_writer_init(&hello);
    raw_greeting(&hello, &again, "b", 1, 1);
    raw_send(&again, (rle_frame){.type = RLE_FRAME_HELLO}, hello.data, hello.len);
    rle_frame f;
    uint8_t ack[4096], proof[RLE_PROOF_SIZE];
    assert_int_equal(raw_read(&again, &f, ack, sizeof ack), 1);
    assert_int_equal(
        rle_auth_proof(&test_token, 'c', hello.data, hello.len, ack, f.payload, proof),
        RLE_OK);
    add_call(&w, &old, 100, 10);
    send_all(&old, &w);
    add_frame(&w, &again, (rle_frame){.type = RLE_FRAME_AUTH, .credit = 64}, proof,
              sizeof proof);
    add_call(&w, &again, 1, 10);
    send_all(&again, &w);
    for (uint64_t id = 11; id <= 13; id++) add_call(&w, &other, id, 4000);
    send_all(&other, &w);
    turn(a, NULL);
    assert_true(logged("worker \"b\" replaced: it connected again"));
    int served = 0;
    for (rle_incoming *in; served < 10; served++) {
        rle_incoming_info info;
        rle_decoder d;
        rle_value id, text;
        in = rle_rpc_next_call(a, &info, &d);
        if (!in) break;
        assert_int_equal(rle_decode(&d, &id), RLE_OK);
        assert_int_equal(rle_decode(&d, &text), RLE_OK);
        bool from_b = strcmp(rle_peer_name(info.caller), "b") == 0;
        assert_true(from_b ? id.u.integer == 1
                           : id.u.integer >= 11 && id.u.integer <= 13);
        assert_int_equal(text.u.string.len, from_b ? 10 : 4000);
        rle_incoming_read(a, in);
        rle_wire_error e = {.code = RLE_UNAVAILABLE};
        rle_incoming_fail(a, in, &e);
    }
    assert_int_equal(served, 4);
    rle_writer_fini(&w);
    rle_writer_fini(&hello);
    raw_close(&old);
    raw_close(&again);
    raw_close(&other);
    rle_rpc_free(a);
}

/* ---- sessions ---- */

/* b does not run for a while: a gives it up; when b goes on, it learns why, and is back.
 */
static void f04_a_stopped_worker_learns_that_its_session_ended(void **state)
{
    (void)state;
    rle_rpc *a = listener(&(rle_rpc_options){.heartbeat = RLE_SECONDS / 10,
                                             .peer_timeout = FROZEN_TIMEOUT});
    rle_rpc *b = worker("b", NULL);
    rle_peer *to_a = join(b, test_address, a), *to_b = rle_rpc_peer(a, "b");
    rle_future *ours = call(a, to_b, "run_episode", 1);
    rle_future *theirs = call(b, to_a, "select_action", 1);
    int64_t stopped = rle_now();
    for (int i = 0; i < 10000 && rle_peer_connected(a, to_b); i++) {
        turn(a, NULL);
        usleep(1000);
    }
    figure("F04", "given up after %.2f s (0.3 s asked)",
           (double)(rle_now() - stopped) / RLE_SECONDS);
    assert_true(silent_for(ours, "b") >= 0.3);
    rle_future_release(a, ours);
    assert_true(until_connected(b, to_a, false, NULL));
    expect_error(b, theirs, RLE_UNAVAILABLE, RLE_OUTCOME_UNKNOWN,
                 "session ended by \"a\"; reconnecting");
    assert_int_equal(
        times_logged("worker \"a\" lost: it ended the session; 1 call failed, 0 "
                     "references released"),
        1);
    /* It had begun to serve the call: its answer goes nowhere. */
    assert_true(serve_one(b) == false);
    int64_t went_on = rle_now();
    assert_true(until_connected(b, to_a, true, a));
    figure("F04", "back %.2f s after it went on",
           (double)(rle_now() - went_on) / RLE_SECONDS);
    serve_and_expect(a, to_b, b);
    rle_rpc_free(b);
    rle_rpc_free(a);

    /* Without a link nobody is reconnecting. */
    a = listener(NULL);
    raw other = raw_join(a, "c");
    rle_peer *to_c = rle_rpc_peer(a, "c");
    rle_future *f = call(a, to_c, "f", 1);
    raw_send(&other, (rle_frame){.type = RLE_FRAME_GOAWAY, .code = RLE_UNAVAILABLE}, NULL,
             0);
    expect_error(a, f, RLE_UNAVAILABLE, RLE_OUTCOME_UNKNOWN, "session ended by \"c\"");
    raw_close(&other);
    rle_rpc_free(a);
}

/* What was said before the end is read, though writing has failed already. */
static void last_words_are_read_behind_a_broken_pipe(void **state)
{
    (void)state;
    rle_rpc *a = listener(NULL);
    raw other = raw_join(a, "c");
    rle_peer *to_c = rle_rpc_peer(a, "c");
    rle_future *f = call(a, to_c, "f", 1);
    rle_frame ping = {.type = RLE_FRAME_PING, .incarnation = other.incarnation};
    rle_frame away = {.type = RLE_FRAME_GOAWAY,
                      .code = RLE_UNAVAILABLE,
                      .incarnation = other.incarnation};
    uint8_t bytes[2 * RLE_FRAME_HEADER], ignored[4096];
    rle_frame_encode(&ping, bytes);
    rle_frame_encode(&away, bytes + RLE_FRAME_HEADER);
    while (recv(other.fd, ignored, sizeof ignored, MSG_DONTWAIT) > 0) {
    }
    assert_int_equal(send(other.fd, bytes, sizeof bytes, 0), sizeof bytes);
    close(other.fd);
    rle_future *late = call(a, to_c, "g", 1); /* nobody reads it */
    for (int i = 0; i < 10; i++) turn(a, NULL);
    expect_error(a, f, RLE_UNAVAILABLE, RLE_OUTCOME_UNKNOWN, "session ended by \"c\"");
    expect_error(a, late, RLE_UNAVAILABLE, RLE_OUTCOME_NOT_EXECUTED, "session ended by \"c\"");
    rle_rpc_free(a);
}

int main(void)
{
#define TEST(fn) cmocka_unit_test_setup_teardown(fn, pair_setup, pair_teardown)
    const struct CMUnitTest tests[] = {
        TEST(f31_a_living_worker_keeps_its_name),
        TEST(calls_of_who_was_refused_say_why),
        TEST(f11_a_frozen_worker_is_replaced),
        TEST(a_process_that_connects_again_takes_its_place_at_once),
        TEST(a_replaced_worker_is_not_looked_for),
        TEST(who_does_not_know_the_token_replaces_nobody),
        TEST(of_two_at_once_one_gets_the_name),
        TEST(a_contender_that_goes_changes_nothing),
        TEST(when_the_old_connection_ends_the_next_one_is_in),
        TEST(the_guard_decides_as_well),
        TEST(whoever_waits_is_told_the_end),
        TEST(what_is_dropped_leaves_the_others_where_they_are),
        TEST(f04_a_stopped_worker_learns_that_its_session_ended),
        TEST(last_words_are_read_behind_a_broken_pipe),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
