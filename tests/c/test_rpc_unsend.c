/* test_rpc_unsend.c - calls that are cancelled, or whose time is over, before they have arrived:
 * of those that wait unbegun behind long messages nothing is ever sent, and those that are on
 * their way do not run. */
#include "rpc_pair.h"

/* More than the socket takes: it fills it, and what is called then waits. */
enum { LONG = 4 << 20, MANY = 300 };

static rle_future *put_with(rle_rpc *a, rle_peer *peer, const char *method,
                            uint64_t object, size_t *lent, int64_t timeout)
{
    static uint8_t data[LONG];
    rle_array array = {.data = data, .dtype = RLE_U8, .ndim = 1, .shape = {LONG}};
    rle_array_set_contiguous(&array);
    rle_encoder e;
    rle_encoder_init(&e);
    begin_call(&e, method, object ? 2 : 1);
    e.lent = lent;
    assert_int_equal(rle_encode_tensor(&e, &array, NULL), RLE_OK);
    rle_wire_ref ref = {.kind = RLE_REF_SENDERS, .object = object, .class_name = "X"};
    if (object) rle_encode_ref(&e, &ref);
    rle_future *f = call_with(a, peer, method, &e, timeout, true);
    rle_encoder_fini(&e);
    return f;
}

static rle_future *put(rle_rpc *a, rle_peer *peer, const char *method)
{
    return put_with(a, peer, method, 0, NULL, 0);
}

static void answer(rle_rpc *rpc, rle_incoming *in)
{
    rle_encoder e;
    rle_encoder_init(&e);
    rle_encode_result_head(&e, 0);
    assert_int_equal(rle_incoming_reply(rpc, in, &e), RLE_OK);
    rle_encoder_fini(&e);
}

/* Serve what comes until `f`, the last call, is answered; the methods in their order. */
static const char *served(pair *p, rle_future *f)
{
    static char text[16 * MANY];
    size_t n = 0;
    text[0] = 0;
    for (int i = 0; i < 20000 && rle_future_status(p->b, f) == RLE_FUTURE_PENDING; i++) {
        rle_incoming_info info;
        rle_decoder d;
        turn(p->a, p->b);
        rle_incoming *in = rle_rpc_next_call(p->a, &info, &d);
        if (!in) continue;
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%s", n ? " " : "",
                              info.head.method);
        answer(p->a, in);
    }
    assert_int_equal(rle_future_status(p->b, f), RLE_FUTURE_DONE);
    return text;
}

static void assert_not_executed(rle_future *f, rle_status code, const char *text)
{
    rle_wire_error err;
    assert_string_equal(error_of(f, &err), text);
    assert_int_equal(err.code, code);
    assert_int_equal(err.outcome, RLE_OUTCOME_NOT_EXECUTED);
}

static void the_cancelled_is_never_sent(void **state)
{
    (void)state;
    pair p = make_pair(NULL, NULL);
    size_t lent = 0, begun = rle_mem_bytes();
    rle_future *first = put(p.b, p.to_a, "first");
    uint64_t object = rle_export_new(p.b);
    size_t before = rle_mem_bytes();
    rle_future *second = put_with(p.b, p.to_a, "second", object, NULL, 0);
    rle_export_unhold(p.b, object); /* only the message holds it */
    rle_future *third = put_with(p.b, p.to_a, "third", 0, &lent, 0);
    rle_future *small = call(p.b, p.to_a, "small", 1),
               *other = call(p.b, p.to_a, "other", 1);
    rle_future *last = put(p.b, p.to_a, "last");
    rle_conn *conn = p.to_a->conn;
    assert_int_equal(conn->calls_unbegun, 5);
    assert_int_equal(lent, 1);
    assert_int_equal(rle_rpc_next_dropped(p.b), 0);
    uint32_t credits = conn->credits;
    rle_future_cancel(p.b, small);
    assert_int_equal(conn->credits, credits + 1);
    rle_future_cancel(p.b, third);
    assert_int_equal(lent, 0);
    rle_future_cancel(p.b, second);
    assert_int_equal(rle_rpc_next_dropped(p.b), object);
    rle_future_cancel(p.b, last);
    assert_true(rle_mem_bytes() < before + (64 << 10));
    assert_not_executed(second, RLE_CANCELLED,
                        "\"second\" was cancelled (outcome: not executed)");
    assert_not_executed(third, RLE_CANCELLED,
                        "\"third\" was cancelled (outcome: not executed)");
    assert_not_executed(small, RLE_CANCELLED,
                        "\"small\" was cancelled (outcome: not executed)");
    assert_not_executed(last, RLE_CANCELLED,
                        "\"last\" was cancelled (outcome: not executed)");
    assert_int_equal(conn->calls_unbegun, 1);
    /* Numbers were left out; the end of the queue is where it belongs. */
    rle_future *after = put(p.b, p.to_a, "after");
    assert_string_equal(served(&p, after), "other first after");
    rle_future *all[] = {first, second, third, small, other, last, after};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) rle_future_release(p.b, all[i]);
    assert_true(rle_peer_connected(p.b, p.to_a));
    assert_int_equal(conn->credits, credits + 2);
    assert_int_equal(conn->calls.used, 0);
    rle_conn_trim(conn);
    rle_conn_trim(p.to_b->conn);
    assert_true(rle_mem_bytes() < begun + (64 << 10));
    free_pair(&p);
}

/* What has begun is sent to its end, but the other side hears in time that nobody waits. */
static void what_is_on_its_way_does_not_run(void **state)
{
    (void)state;
    pair p = make_pair(NULL, NULL);
    uint32_t credits = p.to_a->conn->credits;
    size_t before = rle_mem_bytes();
    rle_future *first = put(p.b, p.to_a, "first"), *second = put(p.b, p.to_a, "second");
    for (int i = 0; i < 4; i++) turn(p.a, p.b);
    rle_future_cancel(p.b, first);
    rle_wire_error err;
    assert_string_equal(error_of(first, &err), "\"first\" was cancelled (outcome: unknown)");
    assert_int_equal(err.outcome, RLE_OUTCOME_UNKNOWN);
    assert_string_equal(served(&p, second), "second");
    rle_rpc_counters c;
    for (int i = 0; i < 2000; i++) {
        rle_rpc_count(p.b, &c);
        if (c.late_results) break;
        turn(p.a, p.b);
    }
    assert_int_equal(c.late_results, 1); /* it was answered: not executed */
    rle_incoming_info info;
    rle_decoder d;
    assert_null(rle_rpc_next_call(p.a, &info, &d));
    rle_rpc_count(p.a, &c);
    assert_int_equal(c.live_incoming, 0);
    assert_int_equal(p.to_a->conn->credits, credits);
    rle_future_release(p.b, first);
    rle_future_release(p.b, second);
    rle_conn_trim(p.to_a->conn);
    rle_conn_trim(p.to_b->conn);
    assert_true(rle_mem_bytes() < before + (64 << 10));
    free_pair(&p);
}

static void whose_time_is_over_is_never_sent(void **state)
{
    (void)state;
    pair p = make_pair(NULL, NULL);
    rle_future *first = put(p.b, p.to_a, "first");
    rle_future *late = put_with(p.b, p.to_a, "late", 0, NULL, RLE_SECONDS / 50);
    rle_future *last = put(p.b, p.to_a, "last");
    for (int i = 0; i < 4000 && rle_future_status(p.b, late) == RLE_FUTURE_PENDING; i++) {
        usleep(1000);
        turn(NULL, p.b);
    }
    assert_not_executed(
        late, RLE_DEADLINE_EXCEEDED,
        "\"late\" on \"a\" was not started in time (outcome: not executed)");
    assert_string_equal(served(&p, last), "first last");
    rle_future_release(p.b, first);
    rle_future_release(p.b, late);
    rle_future_release(p.b, last);
    free_pair(&p);
}

/* Its credit is for the call that has waited longest for one. */
static void its_credit_goes_to_who_waits_for_one(void **state)
{
    (void)state;
    pair p = make_pair(&(rle_rpc_options){.max_credits = 2}, NULL);
    rle_future *first = put(p.b, p.to_a, "first"), *f[6] = {put(p.b, p.to_a, "second")};
    static const char *const names[] = {"", "one", "two", "three", "four", "five"};
    for (int i = 1; i < 6; i++) f[i] = call(p.b, p.to_a, names[i], i);
    assert_int_equal(p.to_a->held_count, 3);
    rle_future_cancel(p.b, f[1]);
    assert_int_equal(p.to_a->held_count, 2);
    rle_future_cancel(p.b, f[3]); /* which has just been sent */
    assert_int_equal(p.to_a->held_count, 1);
    rle_future_cancel(p.b, f[5]); /* held itself */
    assert_int_equal(p.to_a->held_count, 0);
    assert_int_equal(p.to_a->conn->credits, 0);
    for (int i = 1; i < 6; i += 2)
        assert_int_equal(rle_future_status(p.b, f[i]), RLE_FUTURE_FAILED);
    const char *order = served(&p, f[4]);
    assert_true(strstr(order, "two") < strstr(order, "four"));
    assert_non_null(strstr(order, "two"));
    assert_null(strstr(order, "one"));
    assert_null(strstr(order, "three"));
    served(&p, f[0]);
    served(&p, first);
    assert_int_equal(p.to_a->conn->credits, 2);
    rle_future_release(p.b, first);
    for (int i = 0; i < 6; i++) rle_future_release(p.b, f[i]);
    free_pair(&p);
}

/* A question for weights is a call, too. */
static void a_question_for_weights_is_taken_back(void **state)
{
    (void)state;
    pair p = make_pair(NULL, NULL);
    rle_publication *own;
    assert_int_equal(rle_publication_new(p.a, "w", "", 0, &own), RLE_OK);
    rle_future *first = put(p.b, p.to_a, "first"), *second = put(p.b, p.to_a, "second");
    rle_follower *fo;
    assert_int_equal(rle_follower_new(p.b, p.to_a, "w", &fo), RLE_OK);
    assert_int_equal(p.to_a->conn->calls_unbegun, 2);
    rle_follower_discard(fo);
    rle_rpc_enter(p.b);
    rle_rpc_leave(p.b);
    assert_int_equal(p.to_a->conn->calls_unbegun, 1);
    served(&p, second);
    assert_null(p.to_b->conn->polls);
    rle_publication_close(own);
    rle_future_release(p.b, first);
    rle_future_release(p.b, second);
    free_pair(&p);
}

/* The connection goes: what was not begun has not run, whatever became of the rest. */
static void what_was_not_begun_is_known_not_to_have_run(void **state)
{
    (void)state;
    pair p = make_pair(NULL, NULL);
    rle_future *f[] = {put(p.b, p.to_a, "first"), put(p.b, p.to_a, "second"),
                       call(p.b, p.to_a, "small", 1)};
    for (int i = 0; i < 2; i++) turn(p.a, p.b);
    rle_rpc_free(p.a); /* no goodbye */
    for (int i = 0; i < 10; i++) turn(NULL, p.b);
    rle_wire_error err;
    assert_string_equal(error_of(f[0], &err), "worker \"a\" disconnected while \"first\" was "
                                              "running (outcome: unknown)");
    assert_int_equal(err.outcome, RLE_OUTCOME_UNKNOWN);
    assert_not_executed(f[1], RLE_UNAVAILABLE, "worker \"a\" disconnected before \"second\" was "
                                               "sent (outcome: not executed)");
    assert_not_executed(f[2], RLE_UNAVAILABLE, "worker \"a\" disconnected before \"small\" was "
                                               "sent (outcome: not executed)");
    for (int i = 0; i < 3; i++) rle_future_release(p.b, f[i]);
    rle_rpc_free(p.b);
}

/* It is gone, which shows when it is written to; what is called before its end is read is not sent
 * either. */
static void what_nobody_reads_has_not_run(void **state)
{
    (void)state;
    pair p = make_pair(NULL, NULL);
    rle_rpc_free(p.a); /* no goodbye */
    rle_future *f[] = {call(p.b, p.to_a, "first", 1), call(p.b, p.to_a, "second", 2),
                       call(p.b, p.to_a, "third", 3)};
    assert_true(p.to_a->conn->deaf);
    rle_future_cancel(p.b, f[1]);
    for (int i = 0; i < 10; i++) turn(NULL, p.b);
    assert_not_executed(f[0], RLE_UNAVAILABLE, "worker \"a\" disconnected before \"first\" was "
                                               "sent (outcome: not executed)");
    assert_not_executed(f[1], RLE_CANCELLED,
                        "\"second\" was cancelled (outcome: not executed)");
    assert_not_executed(f[2], RLE_UNAVAILABLE, "worker \"a\" disconnected before \"third\" was "
                                               "sent (outcome: not executed)");
    for (int i = 0; i < 3; i++) rle_future_release(p.b, f[i]);
    rle_rpc_free(p.b);
}

/* In any order, and again and again: nothing is left of them. */
static void at_random_nothing_is_left(void **state)
{
    (void)state;
    pair p = make_pair(NULL, NULL);
    rle_future *f[MANY];
    uint32_t credits = p.to_a->conn->credits;
    unsigned r = 7, begun = 0, cancelled = 0;
    for (int i = 0; i < MANY; i++) {
        r = r * 1664525 + 1013904223;
        if (i % 50 == 0)
            f[i] = put(p.b, p.to_a, "put");
        else
            f[i] = call(p.b, p.to_a, "small", i);
        for (int k = 0; k < (int)(r >> 28); k++) {
            r = r * 1664525 + 1013904223;
            rle_future_cancel(p.b, f[(r >> 8) % (unsigned)(i + 1)]);
        }
        if (r >> 31) turn(NULL, p.b);
    }
    rle_future *last = put(p.b, p.to_a, "last");
    served(&p, last);
    for (int i = 0; i < 20; i++) turn(p.a, p.b);
    while (serve_one(p.a)) turn(p.a, p.b);
    for (int i = 0; i < 20; i++) turn(p.a, p.b);
    for (int i = 0; i < MANY; i++) {
        rle_wire_error err;
        assert_int_not_equal(rle_future_status(p.b, f[i]), RLE_FUTURE_PENDING);
        if (rle_future_status(p.b, f[i]) == RLE_FUTURE_FAILED) {
            error_of(f[i], &err);
            assert_int_equal(err.code, RLE_CANCELLED);
            cancelled += err.outcome == RLE_OUTCOME_NOT_EXECUTED;
            begun += err.outcome != RLE_OUTCOME_NOT_EXECUTED;
        }
        rle_future_release(p.b, f[i]);
    }
    rle_future_release(p.b, last);
    assert_true(cancelled > 50);
    assert_true(begun > 0);
    assert_int_equal(p.to_a->conn->credits, credits);
    assert_int_equal(p.to_a->conn->calls_unbegun, 0);
    assert_int_equal(p.to_a->conn->calls.used, 0);
    assert_null(p.to_a->held);
    assert_true(rle_peer_connected(p.b, p.to_a));
    free_pair(&p);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, pair_setup, pair_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_cancelled_is_never_sent),
        TEST(what_is_on_its_way_does_not_run),
        TEST(whose_time_is_over_is_never_sent),
        TEST(its_credit_goes_to_who_waits_for_one),
        TEST(a_question_for_weights_is_taken_back),
        TEST(what_was_not_begun_is_known_not_to_have_run),
        TEST(what_nobody_reads_has_not_run),
        TEST(at_random_nothing_is_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
