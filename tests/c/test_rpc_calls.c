/* test_rpc_calls.c - calls between two workers: results, errors, order, bounds, deadlines,
 * cancelling, references, lost connections. */
#include "rpc_pair.h"
#include "shifted_clock.h"

static void turns(pair *p, int n)
{
    for (int i = 0; i < n; i++) turn(p->a, p->b);
}

/* Answer a call with an error. */
static void fail_one(rle_rpc *rpc, rle_status code, const char *text)
{
    rle_incoming_info info;
    rle_decoder d;
    rle_incoming *in = rle_rpc_next_call(rpc, &info, &d);
    assert_non_null(in);
    rle_wire_error e = {.code = code, .message = {text, strlen(text)}};
    rle_incoming_fail(rpc, in, &e);
}

static void results_and_errors_come_back(void **state)
{
    (void)state;
    pair p = make_pair(NULL, NULL);
    size_t bytes = 0, blocks = 0;
    for (int round = 0; round < 2000; round++) {
        rle_future *f = call(p.b, p.to_a, "f", round), *g = call(p.a, p.to_b, "g", -round);
        turns(&p, 2);
        assert_true(serve_one(p.a));
        if (round % 7)
            assert_true(serve_one(p.b));
        else
            fail_one(p.b, RLE_NOT_FOUND, "nothing here");
        turns(&p, 2);
        assert_int_equal(rle_future_status(p.b, f), RLE_FUTURE_DONE);
        assert_int_equal(result_of(f), round + 1);
        rle_future_read(p.b, f);
        if (round % 7) {
            assert_int_equal(result_of(g), -round + 1);
        } else {
            rle_wire_error e;
            assert_string_equal(error_of(g, &e), "nothing here");
            assert_int_equal(e.code, RLE_NOT_FOUND);
        }
        rle_future_read(p.a, g);
        rle_future_release(p.b, f);
        rle_future_release(p.a, g);
        if (round == 100) {
            bytes = rle_mem_bytes();
            blocks = rle_mem_blocks();
        }
    }
    assert_int_equal(rle_mem_bytes(), bytes);
    assert_int_equal(rle_mem_blocks(), blocks);
    rle_rpc_counters c;
    rle_rpc_count(p.a, &c);
    assert_int_equal(c.live_futures, 0);
    assert_int_equal(c.live_incoming, 0);
    free_pair(&p);
}

static void calls_start_in_order_and_credits_bound_them(void **state)
{
    (void)state;
    pair p = make_pair(&(rle_rpc_options){.max_credits = 8}, NULL);
    rle_future *f[50];
    for (int i = 0; i < 50; i++) f[i] = call(p.b, p.to_a, "f", i);
    turns(&p, 5);
    size_t serving, calling;
    rle_rpc_open_calls(p.a, &serving, &calling);
    assert_int_equal(serving, 8);
    rle_rpc_open_calls(p.b, &serving, &calling);
    assert_int_equal(calling, 8);
    /* Nested calls need no credit and pass those that wait for it. */
    rle_encoder e;
    rle_encoder_init(&e);
    begin_call(&e, "n", 1);
    rle_encode_integer(&e, 1000);
    rle_future *nested = call_with(p.b, p.to_a, "n", &e, 0, true);
    rle_encoder_fini(&e);
    turns(&p, 2);
    rle_rpc_open_calls(p.a, &serving, &calling);
    assert_int_equal(serving, 9);
    int64_t expect = 0;
    for (int i = 0; i < 200 && expect < 51; i++) {
        rle_incoming_info info;
        rle_decoder d;
        rle_value v;
        rle_incoming *in = rle_rpc_next_call(p.a, &info, &d);
        if (in) {
            rle_decode(&d, &v);
            int64_t want = expect < 8 ? expect : expect == 8 ? 1000 : expect - 1;
            assert_int_equal(v.u.integer, want);
            expect++;
            rle_incoming_read(p.a, in);
            rle_encoder_init(&e);
            rle_encode_result_head(&e, 1);
            rle_encode_integer(&e, v.u.integer + 1);
            rle_incoming_reply(p.a, in, &e);
            rle_encoder_fini(&e);
        }
        turns(&p, 1);
    }
    turns(&p, 4);
    for (int i = 0; i < 50; i++) {
        assert_int_equal(result_of(f[i]), i + 1);
        rle_future_release(p.b, f[i]);
    }
    assert_int_equal(result_of(nested), 1001);
    rle_future_release(p.b, nested);
    free_pair(&p);
}

static void the_bound_on_concurrent_calls_cannot_lock_two_workers(void **state)
{
    (void)state;
    pair p = make_pair(&(rle_rpc_options){.max_concurrent = 2}, NULL);
    rle_future *f[3];
    for (int i = 0; i < 3; i++) f[i] = call(p.b, p.to_a, "f", i);
    turns(&p, 3);
    rle_incoming_info info;
    rle_decoder d;
    rle_incoming *one = rle_rpc_next_call(p.a, &info, &d), *two = rle_rpc_next_call(p.a, &info, &d);
    assert_non_null(one);
    assert_non_null(two);
    assert_null(rle_rpc_next_call(p.a, &info, &d)); /* two at once */
    rle_encoder e;
    rle_encoder_init(&e);
    begin_call(&e, "n", 1);
    rle_encode_integer(&e, 5);
    rle_future *nested = call_with(p.b, p.to_a, "n", &e, 0, true);
    turns(&p, 3);
    rle_incoming_waits(p.a, one, true);
    assert_null(rle_rpc_next_call(p.a, &info, &d)); /* the other may still finish */
    rle_incoming_waits(p.a, two, true);
    rle_incoming *three = rle_rpc_next_call(p.a, &info, &d);
    assert_non_null(three); /* all wait for others: one more, or nothing would ever move */
    assert_string_equal(info.head.method, "n");
    assert_null(rle_rpc_next_call(p.a, &info, &d)); /* but not the third ordinary one */
    rle_encode_result_head(&e, 0);
    rle_incoming *all[] = {three, two, one};
    for (int i = 0; i < 3; i++) {
        rle_encoder_reset(&e);
        rle_encode_result_head(&e, 1);
        rle_encode_integer(&e, 0);
        assert_int_equal(rle_incoming_reply(p.a, all[i], &e), RLE_OK);
    }
    assert_true(serve_one(p.a));
    rle_encoder_fini(&e);
    turns(&p, 5);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(rle_future_status(p.b, f[i]), RLE_FUTURE_DONE);
        rle_future_release(p.b, f[i]);
    }
    rle_future_release(p.b, nested);
    free_pair(&p);
}

static void deadlines_end_a_call_on_both_sides(void **state)
{
    (void)state;
    rle_clock clock = {shifted, NULL};
    clock_ahead = 0;
    rle_clock_set(&clock);
    rle_rpc_options quick = {.heartbeat = RLE_SECONDS / 10, .peer_timeout = 1000 * RLE_SECONDS};
    pair p = make_pair(&quick, &quick);
    rle_encoder e;
    rle_encoder_init(&e);
    begin_call(&e, "run", 1);
    rle_encode_integer(&e, 1);
    rle_future *running = call_with(p.b, p.to_a, "run", &e, 2 * RLE_SECONDS, false);
    begin_call(&e, "late", 1);
    rle_encode_integer(&e, 2);
    rle_future *queued = call_with(p.b, p.to_a, "late", &e, 2 * RLE_SECONDS, false);
    turns(&p, 3);
    rle_incoming_info info;
    rle_decoder d;
    rle_incoming *in = rle_rpc_next_call(p.a, &info, &d);
    assert_non_null(in);
    assert_true(info.deadline > rle_now() + RLE_SECONDS);
    clock_ahead = 2 * RLE_SECONDS;
    for (int i = 0; i < 40; i++) {
        usleep(10000);
        turn(p.a, NULL); /* the server says first what it did not start */
        turn(NULL, p.b);
    }
    rle_wire_error err;
    assert_string_equal(error_of(running, &err),
                        "\"run\" on \"a\" took longer than 2.000 s (outcome: unknown)");
    assert_int_equal(err.code, RLE_DEADLINE_EXCEEDED);
    assert_int_equal(err.outcome, RLE_OUTCOME_UNKNOWN);
    assert_string_equal(error_of(queued, &err),
                        "\"late\" on \"a\" was not started in time (outcome: not executed)");
    assert_int_equal(err.outcome, RLE_OUTCOME_NOT_EXECUTED);
    assert_null(rle_rpc_next_call(p.a, &info, &d)); /* it never runs */
    assert_true(rle_incoming_cancelled(p.a, in));
    /* The late result is dropped and counted. */
    rle_encoder_reset(&e);
    rle_encode_result_head(&e, 0);
    assert_int_equal(rle_incoming_reply(p.a, in, &e), RLE_OK);
    turns(&p, 3);
    rle_rpc_counters c;
    rle_rpc_count(p.b, &c);
    assert_int_equal(c.late_results, 1);
    rle_rpc_count(p.a, &c);
    assert_int_equal(c.expired_unstarted, 1);
    rle_future_release(p.b, running);
    rle_future_release(p.b, queued);
    /* A deadline that is over already is refused here. */
    begin_call(&e, "f", 0);
    rle_call_spec spec = {.peer = p.to_a, .method = "f", .deadline = rle_now() - 1};
    rle_future *f;
    assert_int_equal(rle_rpc_call(p.b, &spec, &e, &f), RLE_OK);
    assert_string_equal(error_of(f, &err),
                        "\"f\" on \"a\" was not started in time (outcome: not executed)");
    rle_future_release(p.b, f);
    /* A call inherits the smaller of both. */
    begin_call(&e, "f", 0);
    spec.deadline = rle_now() + RLE_SECONDS;
    spec.timeout = 100 * RLE_SECONDS;
    assert_int_equal(rle_rpc_call(p.b, &spec, &e, &f), RLE_OK);
    turns(&p, 2);
    assert_non_null(in = rle_rpc_next_call(p.a, &info, &d));
    assert_true(info.deadline < rle_now() + 3 * RLE_SECONDS / 2);
    rle_encoder_reset(&e);
    rle_encode_result_head(&e, 0);
    rle_incoming_reply(p.a, in, &e);
    turns(&p, 2);
    rle_future_release(p.b, f);
    rle_encoder_fini(&e);
    free_pair(&p);
    rle_clock_set(NULL);
}

static void cancelling_reaches_the_handler(void **state)
{
    (void)state;
    pair p = make_pair(NULL, NULL);
    rle_future *running = call(p.b, p.to_a, "run", 1), *queued = call(p.b, p.to_a, "q", 2);
    turns(&p, 3);
    rle_incoming_info info;
    rle_decoder d;
    rle_incoming *in = rle_rpc_next_call(p.a, &info, &d);
    int owner;
    rle_incoming_set_owner(in, &owner);
    rle_future_cancel(p.b, running);
    rle_future_cancel(p.b, queued);
    rle_wire_error err;
    assert_string_equal(error_of(running, &err), "\"run\" was cancelled (outcome: unknown)");
    assert_int_equal(err.code, RLE_CANCELLED);
    turns(&p, 3);
    assert_ptr_equal(rle_rpc_next_cancelled(p.a), &owner);
    assert_null(rle_rpc_next_cancelled(p.a));
    assert_true(rle_incoming_cancelled(p.a, in));
    assert_null(rle_rpc_next_call(p.a, &info, &d)); /* the queued one is gone */
    rle_encoder e;
    rle_encoder_init(&e);
    rle_encode_result_head(&e, 0);
    rle_incoming_reply(p.a, in, &e);
    rle_encoder_fini(&e);
    turns(&p, 3);
    rle_future_release(p.b, running);
    rle_future_release(p.b, queued);
    /* Its credit came back all the same. */
    for (int i = 0; i < 70; i++) {
        rle_future *f = call(p.b, p.to_a, "f", i);
        turns(&p, 1);
        assert_true(serve_one(p.a));
        turns(&p, 1);
        assert_int_equal(result_of(f), i + 1);
        rle_future_release(p.b, f);
    }
    free_pair(&p);
}

static void a_call_cancelled_as_it_starts_reaches_its_handler(void **state)
{
    (void)state;
    pair p = make_pair(NULL, NULL);
    rle_future *f = call(p.b, p.to_a, "run", 1);
    turns(&p, 3);
    rle_incoming_info info;
    rle_decoder d;
    rle_incoming *in = rle_rpc_next_call(p.a, &info, &d);
    rle_future_cancel(p.b, f);
    turns(&p, 3); /* the guard may run the loop just here */
    assert_null(rle_rpc_next_cancelled(p.a));
    int owner;
    rle_incoming_set_owner(in, &owner);
    assert_int_equal(rle_rpc_turn(p.a, false), RLE_WORK_CANCELLED);
    assert_ptr_equal(rle_rpc_next_cancelled(p.a), &owner);
    assert_null(rle_rpc_next_cancelled(p.a));
    rle_encoder e;
    rle_encoder_init(&e);
    rle_encode_result_head(&e, 0);
    assert_int_equal(rle_incoming_reply(p.a, in, &e), RLE_OK);
    rle_encoder_fini(&e);
    rle_future_release(p.b, f);
    free_pair(&p);
}

static void a_lost_worker_fails_its_calls_and_frees_its_own(void **state)
{
    (void)state;
    pair p = make_pair(NULL, NULL);
    uint64_t object = rle_export_new(p.a);
    rle_encoder e;
    rle_encoder_init(&e);
    begin_call(&e, "take", 1);
    rle_wire_ref ref = {.kind = RLE_REF_SENDERS, .object = object, .class_name = "X"};
    rle_encode_ref(&e, &ref);
    rle_future *f = call_with(p.a, p.to_b, "take", &e, 0, false);
    rle_encoder_fini(&e);
    rle_export_unhold(p.a, object); /* now only b holds it */
    rle_future *from_b = call(p.b, p.to_a, "run", 1);
    turns(&p, 3);
    rle_incoming_info info;
    rle_decoder d;
    rle_incoming *served = rle_rpc_next_call(p.a, &info, &d);
    int owner;
    rle_incoming_set_owner(served, &owner);
    assert_int_equal(rle_rpc_next_dropped(p.a), 0);
    rle_future_release(p.b, from_b);
    rle_rpc_free(p.b); /* no goodbye */
    for (int i = 0; i < 5; i++) turn(p.a, NULL);
    rle_wire_error err;
    assert_string_equal(error_of(f, &err), "worker \"b\" disconnected while \"take\" was running "
                                           "(outcome: unknown)");
    assert_int_equal(err.code, RLE_UNAVAILABLE);
    assert_true(logged("worker \"b\" lost: end of stream; 1 call failed, 1 reference released"));
    assert_ptr_equal(rle_rpc_next_cancelled(p.a), &owner);
    assert_int_equal(rle_rpc_next_dropped(p.a), object);
    rle_encoder_init(&e);
    rle_encode_result_head(&e, 0);
    assert_int_equal(rle_incoming_reply(p.a, served, &e), RLE_OK); /* to nobody */
    rle_encoder_fini(&e);
    rle_future_release(p.a, f);
    f = call(p.a, p.to_b, "again", 1);
    assert_string_equal(error_of(f, &err), "worker \"b\" is not connected, \"again\" was not sent "
                                           "(outcome: not executed)");
    rle_future_release(p.a, f);
    rle_rpc_counters c;
    rle_rpc_count(p.a, &c);
    assert_int_equal(c.live_futures + c.live_incoming + c.exported_objects, 0);
    rle_rpc_free(p.a);
}

static void goodbyes_are_no_losses(void **state)
{
    (void)state;
    pair p = make_pair(NULL, NULL);
    rle_rpc_stop(p.a);
    turns(&p, 3);
    assert_false(rle_peer_connected(p.b, p.to_a));
    assert_true(rle_peer_left(p.b, p.to_a));
    rle_future *f = call(p.b, p.to_a, "f", 1);
    rle_wire_error err;
    assert_string_equal(error_of(f, &err),
                        "\"a\" is stopping and did not run \"f\" (outcome: not executed)");
    rle_future_release(p.b, f);
    rle_rpc_free(p.a);
    for (int i = 0; i < 3; i++) turn(NULL, p.b);
    assert_false(logged("lost"));
    rle_rpc_free(p.b);
}

/* ---- references ---- */

static void references_are_counted_by_connection(void **state)
{
    (void)state;
    pair p = make_pair(NULL, NULL);
    uint64_t object = rle_export_new(p.a);
    for (int i = 0; i < 3; i++) {
        rle_encoder e;
        rle_encoder_init(&e);
        begin_call(&e, "take", 1);
        rle_wire_ref ref = {.kind = RLE_REF_SENDERS, .object = object, .class_name = "X"};
        rle_encode_ref(&e, &ref);
        rle_future *f = call_with(p.a, p.to_b, "take", &e, 0, false);
        rle_encoder_fini(&e);
        turns(&p, 2);
        if (i < 2) {
            /* Read by b, which now holds two. */
            rle_incoming_info info;
            rle_decoder d;
            rle_incoming *in = rle_rpc_next_call(p.b, &info, &d);
            rle_incoming_read(p.b, in);
            rle_encoder_init(&e);
            rle_encode_result_head(&e, 0);
            rle_incoming_reply(p.b, in, &e);
            rle_encoder_fini(&e);
        } else {
            fail_one(p.b, RLE_NOT_FOUND, "no"); /* never read: it goes back by itself */
        }
        turns(&p, 3);
        rle_future_release(p.a, f);
    }
    rle_export_info info[4];
    assert_int_equal(rle_rpc_exports(p.a, info, 4), 2);
    rle_export_unhold(p.a, object);
    assert_int_equal(rle_rpc_exports(p.a, info, 4), 1);
    assert_string_equal(info[0].holder, "b");
    assert_int_equal(info[0].count, 2);
    uint64_t session = rle_peer_session(p.b, p.to_a);
    rle_ref_discard(p.b, p.to_a, session, object, 1);
    turns(&p, 3);
    assert_int_equal(rle_rpc_next_dropped(p.a), 0);
    rle_ref_discard(p.b, p.to_a, session + 1, object, 1); /* of another connection */
    turns(&p, 3);
    assert_int_equal(rle_rpc_next_dropped(p.a), 0);
    rle_ref_discard(p.b, p.to_a, session, object, 1);
    turns(&p, 3);
    assert_int_equal(rle_rpc_next_dropped(p.a), object);
    rle_ref_discard(p.b, p.to_a, session, object, 100); /* too many: no harm */
    turns(&p, 3);
    assert_int_equal(rle_rpc_exports(p.a, info, 4), 0);
    free_pair(&p);
}

static void tickets_are_good_once(void **state)
{
    (void)state;
    rle_rpc *a = worker("a", NULL);
    uint8_t ticket[RLE_TICKET_SIZE] = {1}, other[RLE_TICKET_SIZE] = {2};
    uint64_t object = rle_export_new(a);
    assert_int_equal(rle_ticket_grant(a, object, ticket), RLE_OK);
    rle_export_unhold(a, object);
    assert_int_equal(rle_rpc_next_dropped(a), 0); /* the ticket holds it */
    assert_int_equal(rle_ticket_claim(a, other), 0);
    assert_int_equal(rle_ticket_claim(a, ticket), object);
    assert_int_equal(rle_ticket_claim(a, ticket), 0);
    rle_export_unhold(a, object);
    assert_int_equal(rle_rpc_next_dropped(a), object);
    assert_int_equal(rle_ticket_grant(a, object, ticket), RLE_NOT_FOUND);
    rle_rpc_free(a);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, pair_setup, pair_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(results_and_errors_come_back),
        TEST(calls_start_in_order_and_credits_bound_them),
        TEST(the_bound_on_concurrent_calls_cannot_lock_two_workers),
        TEST(deadlines_end_a_call_on_both_sides),
        TEST(cancelling_reaches_the_handler),
        TEST(a_call_cancelled_as_it_starts_reaches_its_handler),
        TEST(a_lost_worker_fails_its_calls_and_frees_its_own),
        TEST(goodbyes_are_no_losses),
        TEST(references_are_counted_by_connection),
        TEST(tickets_are_good_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
