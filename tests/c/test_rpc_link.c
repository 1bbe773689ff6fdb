/* test_rpc_link.c - a worker that was connected to and lost is looked for again. */
#include "figure.h"
#include "rpc_link.h"

/* ---- coming back ---- */

static void f08_a_worker_that_starts_again_is_found(void **state)
{
    (void)state;
    size_t bytes = rle_mem_bytes(), blocks = rle_mem_blocks(), fds = open_fds();
    rle_rpc *a = listener(NULL), *b = worker("b", NULL);
    rle_peer *to_a = join(b, test_address, a);
    uint64_t before = rle_peer_incarnation(b, to_a), session = rle_peer_session(b, to_a);
    assert_int_equal(state_of(b, to_a), RLE_LINK_UP);
    rle_future *open = call(b, to_a, "select_action", 1);
    turn(b, a);
    rle_rpc_free(a);
    assert_true(until_connected(b, to_a, false, NULL));
    assert_int_equal(state_of(b, to_a), RLE_LINK_SEEKING);
    expect_error(
        b, open, RLE_UNAVAILABLE, RLE_OUTCOME_UNKNOWN,
        "worker \"a\" disconnected while \"select_action\" was running (outcome: "
        "unknown)");
    expect_error(b, call_object(b, to_a, session), RLE_UNAVAILABLE,
                 RLE_OUTCOME_NOT_EXECUTED, "owner \"a\" of this reference is gone");
    rle_future *held = call(b, to_a, "f", 5);
    assert_int_equal(rle_future_status(b, held), RLE_FUTURE_PENDING);
    for (int i = 0; i < 300 && !logged("(attempt 2)"); i++) {
        turn(b, NULL);
        usleep(1000);
    }
    a = listener(NULL);
    int64_t back = rle_now();
    assert_true(until_connected(b, to_a, true, a));
    figure("F08", "1 worker back %.2f s after the restart",
           (double)(rle_now() - back) / 1e9);
    assert_true(rle_peer_incarnation(b, to_a) != before);
    assert_true(rle_peer_session(b, to_a) != session);
    for (int i = 0; i < 50 && rle_future_status(b, held) == RLE_FUTURE_PENDING; i++) {
        turn(b, a);
        serve_one(a);
    }
    assert_int_equal(result_of(held), 6); /* sent after all */
    rle_future_release(b, held);
    expect_error(b, call_object(b, to_a, session), RLE_UNAVAILABLE,
                 RLE_OUTCOME_NOT_EXECUTED, "owner \"a\" of this reference is gone");
    assert_int_equal(
        times_logged("worker \"a\" lost: end of stream; 1 call failed, 0 references "
                     "released"),
        1);
    assert_int_equal(times_logged("reconnecting to \"a\" in 0."),
                     times_logged("reconnecting"));
    assert_int_equal(times_logged("(attempt 1)"), 1);
    assert_int_equal(times_logged("reconnected to \"a\""), 1);
    rle_rpc_free(b);
    rle_rpc_free(a);
    assert_int_equal(rle_mem_bytes(), bytes);
    assert_int_equal(rle_mem_blocks(), blocks);
    assert_int_equal(open_fds(), fds);
}

/* The owner computes: nobody turns a loop here. */
static void the_guard_looks_for_it(void **state)
{
    (void)state;
    rle_rpc_options o = {.name = "a", .token = &test_token};
    rle_rpc *a, *b;
    rle_peer *to_a;
    assert_int_equal(rle_rpc_new(&o, &a), RLE_OK);
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    o.name = "b";
    assert_int_equal(rle_rpc_new(&o, &b), RLE_OK);
    assert_int_equal(rle_rpc_connect(b, test_address, 5 * RLE_SECONDS, &to_a), RLE_OK);
    rle_rpc_free(a);
    for (int i = 0; i < 5000 && rle_peer_present(b, to_a); i++) usleep(1000);
    o.name = "a";
    assert_int_equal(rle_rpc_new(&o, &a), RLE_OK);
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    for (int i = 0; i < 5000 && !rle_peer_present(b, to_a); i++) usleep(1000);
    assert_true(rle_peer_connected(b, to_a));
    rle_rpc_free(b);
    rle_rpc_free(a);
}

static void a_goodbye_is_taken_at_its_word(void **state)
{
    (void)state;
    rle_rpc *a = listener(NULL), *b = worker("b", NULL);
    rle_peer *to_a = join(b, test_address, a);
    rle_rpc_stop(a);
    for (int i = 0; i < 20; i++) turn(b, a);
    rle_rpc_free(a);
    assert_true(until_connected(b, to_a, false, NULL));
    for (int i = 0; i < 50; i++) {
        turn(b, NULL);
        usleep(1000);
    }
    assert_int_equal(state_of(b, to_a), RLE_LINK_UP);
    assert_true(rle_peer_left(b, to_a));
    assert_false(logged("reconnecting"));
    rle_rpc_free(b);
}

static void nobody_is_looked_for_unless_wanted(void **state)
{
    (void)state;
    rle_rpc *a = listener(NULL),
            *b = worker("b", &(rle_rpc_options){.reconnect_for = -1});
    rle_peer *to_a = join(b, test_address, a);
    assert_int_equal(state_of(b, to_a), RLE_LINK_NONE);
    rle_rpc_free(a);
    assert_true(until_connected(b, to_a, false, NULL));
    expect_error(
        b, call(b, to_a, "f", 1), RLE_UNAVAILABLE, RLE_OUTCOME_NOT_EXECUTED,
        "worker \"a\" is not connected, \"f\" was not sent (outcome: not executed)");
    assert_false(logged("reconnecting"));
    rle_rpc_free(b);
}

/* ---- giving up ---- */

static void f09_a_worker_gone_for_good_is_given_up(void **state)
{
    (void)state;
    rle_rpc *a = listener(NULL);
    rle_rpc *b = worker("b", &(rle_rpc_options){.reconnect_for = RLE_SECONDS / 2});
    rle_peer *to_a = join(b, test_address, a);
    rle_rpc_free(a);
    assert_true(until_connected(b, to_a, false, NULL));
    int64_t lost = rle_now();
    rle_future *held = call(b, to_a, "f", 1);
    uint64_t membership = rle_rpc_membership(b);
    for (int i = 0; i < 10000 && state_of(b, to_a) == RLE_LINK_SEEKING; i++) {
        turn(b, NULL);
        usleep(500);
    }
    double took = (double)(rle_now() - lost) / RLE_SECONDS;
    figure("F09", "given up %.2f s after the loss (0.5 s asked)", took);
    assert_true(took > 0.4);
    rle_status code = RLE_OK;
    char want[512], line[256];
    snprintf(line, sizeof line,
             "no worker \"a\" at %s for 0.5 s (No such file or directory); giving up",
             test_address);
    assert_int_equal(rle_peer_link(b, to_a, &code), RLE_LINK_GIVEN_UP);
    assert_int_equal(code, RLE_UNAVAILABLE);
    assert_string_equal(rle_message(), line);
    assert_int_equal(times_logged(line), 1);
    assert_true(rle_rpc_membership(b) != membership); /* who serves learns of it */
    snprintf(want, sizeof want, "%s; \"f\" was not sent (outcome: not executed)", line);
    expect_error(b, held, RLE_UNAVAILABLE, RLE_OUTCOME_NOT_EXECUTED, want);
    /* A call that comes later finds it all the same when it is there again. */
    a = listener(NULL);
    held = call(b, to_a, "f", 1);
    for (int i = 0; i < 100 && rle_future_status(b, held) == RLE_FUTURE_PENDING; i++) {
        turn(b, a);
        serve_one(a);
    }
    assert_int_equal(result_of(held), 2);
    rle_future_release(b, held);
    assert_int_equal(state_of(b, to_a), RLE_LINK_UP);
    rle_rpc_free(b);
    rle_rpc_free(a);
}

/* Something listens there and says nothing. */
static void an_attempt_that_hangs_ends_with_the_search(void **state)
{
    (void)state;
    size_t fds = open_fds();
    rle_rpc *a = listener(NULL);
    rle_rpc *b = worker("b", &(rle_rpc_options){.reconnect_for = RLE_SECONDS / 2});
    rle_peer *to_a = join(b, test_address, a);
    rle_rpc_free(a);
    assert_true(until_connected(b, to_a, false, NULL));
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    snprintf(un.sun_path, sizeof un.sun_path, "%.80s", test_address + 5);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&un, sizeof un), 0);
    assert_int_equal(listen(fd, 5), 0);
    for (int i = 0; i < 10000 && state_of(b, to_a) == RLE_LINK_SEEKING; i++) {
        turn(b, NULL);
        usleep(500);
    }
    assert_int_equal(state_of(b, to_a), RLE_LINK_GIVEN_UP);
    rle_rpc_free(b);
    close(fd);
    unlink(un.sun_path);
    assert_int_equal(open_fds(), fds);
}

static void a_refusal_ends_the_search(void **state)
{
    (void)state;
    rle_rpc *a = listener(NULL), *b = worker("b", NULL);
    rle_peer *to_a = join(b, test_address, a);
    rle_rpc_free(a);
    assert_true(until_connected(b, to_a, false, NULL));
    rle_future *held = call(b, to_a, "f", 1);
    rle_token other = test_token;
    other.bytes[3] ^= 1;
    a = listener(&(rle_rpc_options){.token = &other});
    for (int i = 0; i < 5000 && state_of(b, to_a) == RLE_LINK_SEEKING; i++) {
        turn(b, a);
        usleep(1000);
    }
    rle_status code = RLE_OK;
    assert_int_equal(rle_peer_link(b, to_a, &code), RLE_LINK_GIVEN_UP);
    assert_int_equal(code, RLE_UNAUTHENTICATED);
    assert_string_equal(rle_message(), "\"a\" refused the token in a test");
    expect_error(b, held, RLE_UNAUTHENTICATED, RLE_OUTCOME_NOT_EXECUTED,
                 "\"a\" refused the token in a test; \"f\" was not sent (outcome: not "
                 "executed)");
    assert_int_equal(times_logged("wrong token (1 in the last minute)"), 1);
    rle_rpc_free(b);
    rle_rpc_free(a);
}

/* ---- pauses ---- */

/* The pauses logged until the search ends, in seconds. */
static int pauses(uint64_t seed, double *out, int max)
{
    rle_clock c = {shifted, NULL};
    rle_clock_set(&c);
    rle_rpc_options o = {.random_seed = seed, .heartbeat = RLE_SECONDS / 20};
    rle_rpc *a = listener(NULL), *b = worker("b", &o);
    rle_peer *to_a = join(b, test_address, a);
    rle_rpc_free(a);
    test_log_count = 0;
    /* The loop looks at its timers every 20 ms for the heartbeat. */
    for (int i = 0; i < 2000 && !logged("giving up"); i++) {
        turn(b, NULL);
        usleep(5000);
        if (!rle_peer_present(b, to_a)) clock_ahead += RLE_SECONDS / 2;
    }
    assert_true(logged("giving up"));
    int n = 0;
    for (int i = 0; i < test_log_count; i++) {
        double pause;
        int attempt;
        if (sscanf(test_log[i], "reconnecting to \"a\" in %lf s (attempt %d)", &pause,
                   &attempt) != 2)
            continue;
        assert_true(n < max);
        assert_int_equal(attempt, n + 1);
        out[n++] = pause;
    }
    rle_rpc_free(b);
    rle_clock_set(NULL);
    return n;
}

static void pauses_double_up_to_5_seconds_and_are_stretched(void **state)
{
    (void)state;
    double one[40], again[40], other[40], expected = 0.1;
    int n = pauses(7, one, 40), m = pauses(7, again, 40), k = pauses(8, other, 40);
    assert_true(n >= 10 && n <= 30);
    int same = 0;
    for (int i = 0; i < n; i++) {
        assert_true(one[i] >= 0.5 * expected - 0.01 && one[i] <= 1.5 * expected + 0.01);
        expected = expected * 2 < 5 ? expected * 2 : 5;
        if (i < m) assert_true(one[i] == again[i]); /* a seed makes it repeatable */
        same += i < k && one[i] == other[i];
    }
    assert_true(same < n / 2);
}

/* ---- the old life ---- */

static rle_future *result_with_reference(rle_rpc *b, rle_peer *to_a, rle_rpc *a,
                                         uint64_t object)
{
    rle_future *f = call(b, to_a, "f", 0);
    rle_incoming_info info;
    rle_decoder d;
    rle_incoming *in = NULL;
    for (int i = 0; i < 50 && !in; i++) {
        turn(b, a);
        in = rle_rpc_next_call(a, &info, &d);
    }
    rle_encoder e;
    rle_encoder_init(&e);
    rle_encode_result_head(&e, 1);
    rle_wire_ref ref = {.kind = RLE_REF_SENDERS, .object = object};
    rle_encode_ref(&e, &ref);
    assert_int_equal(rle_incoming_reply(a, in, &e), RLE_OK);
    rle_encoder_fini(&e);
    wait_for(a, b, b, f);
    return f;
}

static uint64_t held_by_b(rle_rpc *a)
{
    rle_export_info info[8];
    size_t n = rle_rpc_exports(a, info, 8);
    for (size_t i = 0; i < n; i++)
        if (strcmp(info[i].holder, "b") == 0) return info[i].count;
    return 0;
}

/* The same two workers, over a new connection: what is left of the old one counts no
 * more. */
static void nothing_of_an_old_connection_is_applied(void **state)
{
    (void)state;
    rle_rpc *a = listener(NULL), *b = worker("b", NULL);
    rle_peer *to_a = join(b, test_address, a), *to_b = rle_rpc_peer(a, "b");
    uint64_t object = rle_export_new(a), session = rle_peer_session(b, to_a);
    rle_future *unread = result_with_reference(b, to_a, a, object);
    assert_int_equal(held_by_b(a), 1);
    rle_future *serving = call(b, to_a, "g", 1);
    rle_incoming_info info;
    rle_decoder d;
    rle_incoming *in = NULL;
    for (int i = 0; i < 50 && !in; i++) {
        turn(b, a);
        in = rle_rpc_next_call(a, &info, &d);
    }
    cut(a, to_b);
    assert_int_equal(held_by_b(a), 0);
    assert_true(until_connected(b, to_a, false, a));
    assert_true(until_connected(b, to_a, true, a));
    assert_int_equal(rle_peer_incarnation(b, to_a), rle_rpc_incarnation(a));
    rle_future *again = result_with_reference(b, to_a, a, object);
    assert_int_equal(held_by_b(a), 1);
    /* A result nobody read, a reference given back, an answer: all of the old one. */
    rle_future_release(b, unread);
    rle_ref_discard(b, to_a, session, object, 1);
    rle_encoder e;
    rle_encoder_init(&e);
    rle_encode_result_head(&e, 0);
    assert_int_equal(rle_incoming_reply(a, in, &e), RLE_OK);
    rle_encoder_fini(&e);
    rle_rpc_breathe(b);
    for (int i = 0; i < 20; i++) turn(b, a);
    rle_rpc_counters counters;
    rle_rpc_count(a, &counters);
    assert_int_equal(counters.unsent_results, 1);
    assert_int_equal(held_by_b(a), 1);
    assert_int_equal(rle_future_status(b, serving), RLE_FUTURE_FAILED);
    rle_future_release(b, serving);
    rle_ref_discard(b, to_a, rle_peer_session(b, to_a), object, 1);
    for (int i = 0; i < 20; i++) {
        rle_rpc_breathe(b);
        turn(b, a);
    }
    assert_int_equal(held_by_b(a), 0);
    rle_future_read(b, again);
    rle_future_release(b, again);
    rle_export_unhold(a, object);
    assert_int_equal(rle_rpc_next_dropped(a), object);
    rle_rpc_free(b);
    rle_rpc_free(a);
}

/* Calls that waited for credit when the connection broke were never sent: they still are,
 * but not those on an object of the old life. */
static void calls_not_sent_yet_go_over_the_new_connection(void **state)
{
    (void)state;
    rle_rpc *a = listener(&(rle_rpc_options){.max_credits = 1}), *b = worker("b", NULL);
    rle_peer *to_a = join(b, test_address, a), *to_b = rle_rpc_peer(a, "b");
    rle_future *sent = call(b, to_a, "f", 1), *waits = call(b, to_a, "f", 2);
    rle_future *object = call_object(b, to_a, rle_peer_session(b, to_a));
    for (int i = 0; i < 10; i++) turn(b, a);
    cut(a, to_b);
    assert_true(until_connected(b, to_a, false, a));
    expect_error(b, sent, RLE_UNAVAILABLE, RLE_OUTCOME_UNKNOWN,
                 "worker \"a\" disconnected while \"f\" was running (outcome: unknown)");
    expect_error(b, object, RLE_UNAVAILABLE, RLE_OUTCOME_NOT_EXECUTED,
                 "owner \"a\" of this reference is gone");
    assert_true(until_connected(b, to_a, true, a));
    for (int i = 0; i < 100 && rle_future_status(b, waits) == RLE_FUTURE_PENDING; i++) {
        turn(b, a);
        serve_one(a);
    }
    assert_int_equal(result_of(waits), 3);
    rle_future_release(b, waits);
    rle_rpc_counters c;
    rle_rpc_count(a, &c);
    assert_int_equal(c.calls_served,
                     1); /* the first one was dropped with its connection */
    rle_rpc_free(b);
    rle_rpc_free(a);
}

static void only_so_many_calls_wait_for_its_return(void **state)
{
    (void)state;
    rle_rpc *a = listener(NULL), *b = worker("b", NULL);
    rle_peer *to_a = join(b, test_address, a);
    rle_rpc_free(a);
    assert_true(until_connected(b, to_a, false, NULL));
    for (int i = 0; i < RLE_CALLS_HARD; i++) {
        rle_future *f = call(b, to_a, "f", i);
        assert_int_equal(rle_future_status(b, f), RLE_FUTURE_PENDING);
        rle_future_release(b, f);
    }
    expect_error(b, call(b, to_a, "f", 1), RLE_RESOURCE_EXHAUSTED, RLE_OUTCOME_NOT_EXECUTED,
                 "10000 calls wait for \"a\" to come back, \"f\" was not sent (outcome: not "
                 "executed)");
    rle_rpc_free(b);
}

static void a_call_waits_no_longer_than_its_deadline(void **state)
{
    (void)state;
    rle_rpc *a = listener(NULL), *b = worker("b", NULL);
    rle_peer *to_a = join(b, test_address, a);
    rle_rpc_free(a);
    assert_true(until_connected(b, to_a, false, NULL));
    rle_encoder e;
    rle_encoder_init(&e);
    begin_call(&e, "f", 0);
    rle_future *f = call_with(b, to_a, "f", &e, RLE_SECONDS / 10, false);
    rle_encoder_fini(&e);
    wait_for(NULL, b, b, f);
    expect_error(b, f, RLE_DEADLINE_EXCEEDED, RLE_OUTCOME_NOT_EXECUTED,
                 "\"f\" on \"a\" was not started in time (outcome: not executed)");
    f = call(b, to_a, "f", 1);
    rle_rpc_stop(b);
    expect_error(
        b, f, RLE_UNAVAILABLE, RLE_OUTCOME_NOT_EXECUTED,
        "this worker is stopping and did not send \"f\" (outcome: not executed)");
    for (int i = 0; i < 30; i++) {
        turn(b, NULL);
        usleep(10000);
    }
    assert_true(times_logged("reconnecting") <= 2); /* and looks for nobody */
    rle_rpc_free(b);
}

int main(void)
{
#define TEST(fn) cmocka_unit_test_setup_teardown(fn, pair_setup, pair_teardown)
    const struct CMUnitTest tests[] = {
        TEST(f08_a_worker_that_starts_again_is_found),
        TEST(the_guard_looks_for_it),
        TEST(a_goodbye_is_taken_at_its_word),
        TEST(nobody_is_looked_for_unless_wanted),
        TEST(f09_a_worker_gone_for_good_is_given_up),
        TEST(an_attempt_that_hangs_ends_with_the_search),
        TEST(a_refusal_ends_the_search),
        TEST(pauses_double_up_to_5_seconds_and_are_stretched),
        TEST(nothing_of_an_old_connection_is_applied),
        TEST(calls_not_sent_yet_go_over_the_new_connection),
        TEST(only_so_many_calls_wait_for_its_return),
        TEST(a_call_waits_no_longer_than_its_deadline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
