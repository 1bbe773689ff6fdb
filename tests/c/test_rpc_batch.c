/* test_rpc_batch.c - when a batch is due, who is waited for, who leaves: three callers of one
 * server, their loops turned by hand. */
#include "rpc_pair.h"

#include "base/fault.h"
#include "rpc/batch.h"

enum { CALLERS = 3 };

typedef struct group {
    rle_rpc *a, *caller[CALLERS];
    rle_peer *to_a[CALLERS], *from[CALLERS]; /* from: the callers, as a sees them */
    rle_batch *batch;
    rle_batch_calls calls;
} group;

static group make_group_of(rle_rpc *a, size_t size, int64_t delay)
{
    static const char *names[CALLERS] = {"b", "c", "d"};
    group g = {.a = a};
    assert_int_equal(rle_rpc_listen(g.a, test_address, NULL), RLE_OK);
    for (int i = 0; i < CALLERS; i++) {
        g.caller[i] = worker(names[i], NULL);
        g.to_a[i] = link_to(g.caller[i], g.a);
        g.from[i] = rle_rpc_peer(g.a, names[i]);
        assert_true(rle_peer_connected(g.a, g.from[i]));
    }
    rle_batch_options o = {.size = size, .delay = delay, .owner = names};
    assert_int_equal(rle_batch_new(g.a, &o, &g.batch), RLE_OK);
    assert_ptr_equal(rle_batch_owner(g.batch), names);
    return g;
}

static group make_group(size_t size, int64_t delay)
{
    return make_group_of(worker("a", NULL), size, delay);
}

static void turns(group *g, int n)
{
    for (; n > 0; n--) {
        turn(g->a, NULL);
        for (int i = 0; i < CALLERS; i++) turn(g->caller[i], NULL);
    }
}

static void free_group(group *g)
{
    rle_batch_free(g->a, g->batch);
    rle_rpc_free(g->a);
    for (int i = 0; i < CALLERS; i++)
        if (g->caller[i]) rle_rpc_free(g->caller[i]);
    rle_free(g->calls.list);
}

/* A call of caller i, in the batch with so many rows. */
static rle_future *join_with(group *g, int i, size_t rows, int64_t timeout)
{
    rle_encoder e;
    rle_encoder_init(&e);
    begin_call(&e, "act", 0);
    rle_future *f = call_with(g->caller[i], g->to_a[i], "act", &e, timeout, false);
    rle_encoder_fini(&e);
    rle_incoming_info info;
    rle_decoder d;
    rle_incoming *in = NULL;
    for (int k = 0; k < 100 && !in; k++) {
        turns(g, 1);
        in = rle_rpc_next_call(g->a, &info, &d);
    }
    assert_non_null(in);
    assert_ptr_equal(info.caller, g->from[i]);
    if (!rle_batch_knows(g->a, g->batch, info.caller))
        assert_int_equal(rle_batch_admit(g->a, g->batch, info.caller), RLE_OK);
    rle_incoming_read(g->a, in);
    rle_batch_call call = {.first = (size_t)i * 10, .rows = rows, .extra = (size_t)i};
    assert_int_equal(rle_batch_add(g->a, g->batch, in, &call), RLE_OK);
    return f;
}

static rle_future *join(group *g, int i, size_t rows)
{
    return join_with(g, i, rows, 0);
}

static bool due(group *g)
{
    return rle_rpc_next_batch(g->a) != NULL;
}

/* The guard is at work, which takes its time on a busy machine. */
static void wait_until_due(group *g)
{
    int64_t end = rle_now() + 20 * RLE_SECONDS;
    while (!due(g) && rle_now() < end) usleep(1000);
}

/* Take what waits and answer it; its reason. */
static rle_flush_reason flush(group *g, size_t calls, size_t rows)
{
    rle_rpc_counters before, after;
    rle_rpc_count(g->a, &before);
    assert_true(due(g));
    rle_batch_take(g->a, g->batch, RLE_FLUSH_IDLE, &g->calls);
    assert_false(due(g));
    assert_int_equal(g->calls.count, calls);
    assert_int_equal(g->calls.rows, rows);
    rle_encoder e;
    rle_encoder_init(&e);
    for (size_t k = 0; k < calls; k++) {
        const rle_batch_call *c = &g->calls.list[k];
        assert_ptr_equal(c->caller, g->from[c->extra]);
        assert_int_equal(c->first, c->extra * 10);
        rle_encoder_reset(&e);
        rle_encode_result_head(&e, 1);
        rle_encode_integer(&e, (int64_t)c->extra);
        assert_int_equal(rle_incoming_reply(g->a, c->in, &e), RLE_OK);
    }
    rle_encoder_fini(&e);
    turns(g, 3);
    rle_rpc_count(g->a, &after);
    assert_int_equal(after.batches, before.batches + 1);
    assert_int_equal(after.batch_rows, before.batch_rows + rows);
    for (int r = 0; r < RLE_FLUSH_REASONS; r++)
        if (after.batch_reasons[r] != before.batch_reasons[r]) return (rle_flush_reason)r;
    fail();
    return RLE_FLUSH_REASONS;
}

static void answered(group *g, int i, rle_future *f)
{
    assert_int_equal(rle_future_status(g->caller[i], f), RLE_FUTURE_DONE);
    assert_int_equal(result_of(f), i);
    rle_future_release(g->caller[i], f);
}

/* ---- when it is due ---- */

static void full_all_or_delayed(void **state)
{
    (void)state;
    group g = make_group(4, 20 * RLE_SECONDS);
    rle_future *f[CALLERS];
    /* The first is all that is waited for; then those who called are. */
    f[0] = join(&g, 0, 1);
    assert_int_equal(flush(&g, 1, 1), RLE_FLUSH_ALL);
    answered(&g, 0, f[0]);
    f[1] = join(&g, 1, 1);
    assert_false(due(&g));
    f[0] = join(&g, 0, 1);
    assert_int_equal(flush(&g, 2, 2), RLE_FLUSH_ALL);
    answered(&g, 0, f[0]);
    answered(&g, 1, f[1]);
    /* Rows count, not calls; more than the size do no harm. */
    f[2] = join(&g, 2, 3);
    assert_false(due(&g));
    f[1] = join(&g, 1, 1);
    assert_int_equal(flush(&g, 2, 4), RLE_FLUSH_FULL);
    answered(&g, 1, f[1]);
    answered(&g, 2, f[2]);
    f[2] = join(&g, 2, 100);
    assert_int_equal(flush(&g, 1, 100), RLE_FLUSH_FULL);
    answered(&g, 2, f[2]);
    /* Two calls of one caller do not stand for another's. */
    f[0] = join(&g, 0, 1);
    f[1] = join(&g, 0, 1);
    assert_false(due(&g));
    assert_int_equal(rle_batch_waiting(g.a, g.batch), 2);
    rle_batch_take(g.a, g.batch, RLE_FLUSH_FULL, &g.calls); /* due or not */
    assert_int_equal(g.calls.count, 2);
    for (size_t k = 0; k < 2; k++) {
        rle_wire_error e = {.code = RLE_ABORTED};
        rle_incoming_fail(g.a, g.calls.list[k].in, &e);
    }
    turns(&g, 3);
    rle_future_release(g.caller[0], f[0]);
    rle_future_release(g.caller[0], f[1]);
    free_group(&g);
}

static void who_is_absent_is_waited_for_once(void **state)
{
    (void)state;
    group g = make_group(100, RLE_SECONDS / 50);
    rle_future *f[CALLERS];
    for (int i = 0; i < CALLERS; i++) f[i] = join(&g, i, 1);
    assert_int_equal(flush(&g, 3, 3), RLE_FLUSH_ALL);
    for (int i = 0; i < CALLERS; i++) answered(&g, i, f[i]);
    f[0] = join(&g, 0, 1);
    f[1] = join(&g, 1, 1);
    int64_t began = rle_now();
    while (!due(&g)) {
        turns(&g, 1);
        assert_true(rle_now() - began < 10 * RLE_SECONDS);
    }
    assert_true(rle_now() - began > RLE_SECONDS / 100);
    assert_int_equal(flush(&g, 2, 2), RLE_FLUSH_DELAY);
    answered(&g, 0, f[0]);
    answered(&g, 1, f[1]);
    /* The two do without the third, until it calls again. */
    for (int k = 0; k < 3; k++) {
        f[1] = join(&g, 1, 1);
        assert_false(due(&g));
        f[0] = join(&g, 0, 1);
        assert_int_equal(flush(&g, 2, 2), RLE_FLUSH_ALL);
        answered(&g, 0, f[0]);
        answered(&g, 1, f[1]);
    }
    f[2] = join(&g, 2, 1);
    f[0] = join(&g, 0, 1);
    assert_false(due(&g));
    f[1] = join(&g, 1, 1);
    assert_int_equal(flush(&g, 3, 3), RLE_FLUSH_ALL);
    for (int i = 0; i < CALLERS; i++) answered(&g, i, f[i]);
    free_group(&g);
}

static void an_episode_that_ends_ends_the_wait(void **state)
{
    (void)state;
    group g = make_group(100, 20 * RLE_SECONDS);
    rle_future *f[CALLERS];
    /* We have a call open to d while it calls us. */
    rle_future *episode = call(g.a, g.from[2], "run_episode", 6);
    turns(&g, 3);
    for (int i = 0; i < CALLERS; i++) f[i] = join(&g, i, 1);
    assert_int_equal(flush(&g, 3, 3), RLE_FLUSH_ALL);
    for (int i = 0; i < CALLERS; i++) answered(&g, i, f[i]);
    f[0] = join(&g, 0, 1);
    f[1] = join(&g, 1, 1);
    assert_false(due(&g));
    assert_true(serve_one(g.caller[2]));
    turns(&g, 3);
    assert_int_equal(rle_future_status(g.a, episode), RLE_FUTURE_DONE);
    assert_int_equal(flush(&g, 2, 2), RLE_FLUSH_ALL);
    rle_future_release(g.a, episode);
    answered(&g, 0, f[0]);
    answered(&g, 1, f[1]);
    /* The same when we withdraw the call. */
    episode = call(g.a, g.from[1], "run_episode", 6);
    turns(&g, 3);
    f[1] = join(&g, 1, 1);
    f[0] = join(&g, 0, 1);
    assert_int_equal(flush(&g, 2, 2), RLE_FLUSH_ALL);
    answered(&g, 0, f[0]);
    answered(&g, 1, f[1]);
    f[0] = join(&g, 0, 1);
    assert_false(due(&g));
    rle_future_cancel(g.a, episode);
    assert_int_equal(flush(&g, 1, 1), RLE_FLUSH_ALL);
    answered(&g, 0, f[0]);
    rle_future_release(g.a, episode);
    free_group(&g);
}

/* An episode that is withdrawn ends before the call that it had in the batch. */
static void a_withdrawn_episode_is_not_waited_for(void **state)
{
    (void)state;
    group g = make_group(100, 20 * RLE_SECONDS);
    rle_future *f[CALLERS];
    f[0] = join(&g, 0, 1);
    assert_int_equal(flush(&g, 1, 1), RLE_FLUSH_ALL);
    answered(&g, 0, f[0]);
    rle_future *episode = call(g.a, g.from[1], "run_episode", 6);
    turns(&g, 3);
    f[1] = join(&g, 1, 1);
    assert_false(due(&g));
    rle_future_cancel(g.a, episode);
    rle_future_cancel(g.caller[1], f[1]);
    turns(&g, 3);
    assert_int_equal(rle_batch_waiting(g.a, g.batch), 0);
    f[0] = join(&g, 0, 1);
    assert_int_equal(flush(&g, 1, 1), RLE_FLUSH_ALL);
    answered(&g, 0, f[0]);
    rle_future_release(g.a, episode);
    rle_future_release(g.caller[1], f[1]);
    free_group(&g);
}

/* ---- who leaves ---- */

static void a_lost_caller_is_not_waited_for(void **state)
{
    (void)state;
    group g = make_group(100, 20 * RLE_SECONDS);
    rle_future *f[CALLERS];
    for (int i = 0; i < CALLERS; i++) f[i] = join(&g, i, 1);
    assert_int_equal(flush(&g, 3, 3), RLE_FLUSH_ALL);
    for (int i = 0; i < CALLERS; i++) answered(&g, i, f[i]);
    /* c is lost with a call in the batch, d without one. */
    f[1] = join(&g, 1, 5);
    f[0] = join(&g, 0, 1);
    assert_false(due(&g));
    rle_future_release(g.caller[1], f[1]);
    rle_rpc_free(g.caller[1]);
    g.caller[1] = NULL;
    turns(&g, 3);
    assert_int_equal(rle_batch_waiting(g.a, g.batch), 1);
    assert_false(due(&g));
    rle_rpc_free(g.caller[2]);
    g.caller[2] = NULL;
    turns(&g, 3);
    assert_int_equal(flush(&g, 1, 1), RLE_FLUSH_ALL);
    answered(&g, 0, f[0]);
    rle_rpc_counters c;
    rle_rpc_count(g.a, &c);
    assert_int_equal(c.live_incoming, 0);
    free_group(&g);
}

static void the_cancelled_and_the_late_are_not_executed(void **state)
{
    (void)state;
    group g = make_group(100, RLE_SECONDS);
    rle_future *f[CALLERS];
    for (int i = 0; i < CALLERS; i++) f[i] = join(&g, i, 1);
    assert_int_equal(flush(&g, 3, 3), RLE_FLUSH_ALL);
    for (int i = 0; i < CALLERS; i++) answered(&g, i, f[i]);
    f[0] = join(&g, 0, 1);
    f[1] = join_with(&g, 1, 2, RLE_SECONDS / 2);
    rle_future_cancel(g.caller[0], f[0]);
    turns(&g, 3);
    assert_int_equal(rle_batch_waiting(g.a, g.batch), 1);
    /* Its deadline ends it although nobody takes the batch. */
    wait_for(g.a, g.caller[1], g.caller[1], f[1]);
    rle_wire_error e;
    const char *why = error_of(f[1], &e);
    if (e.outcome ==
        RLE_OUTCOME_UNKNOWN) /* both were late: the answer came after the grace */
        assert_string_equal(
            why, "\"act\" on \"a\" took longer than 0.500 s (outcome: unknown)");
    else
        assert_string_equal(why, "\"act\" on \"a\" was not started in time (outcome: not "
                                 "executed)");
    assert_int_equal(rle_batch_waiting(g.a, g.batch), 0);
    usleep(600000);
    turns(&g, 3);
    assert_false(due(&g)); /* an empty one never is */
    rle_future_release(g.caller[0], f[0]);
    rle_future_release(g.caller[1], f[1]);
    /* One whose time is over when the batch is taken. */
    f[1] = join_with(&g, 1, 2, RLE_SECONDS / 20);
    f[0] = join(&g, 0, 1);
    usleep(60000);
    rle_batch_take(g.a, g.batch, RLE_FLUSH_FULL, &g.calls);
    assert_int_equal(g.calls.count, 1);
    assert_int_equal(g.calls.rows, 1);
    assert_ptr_equal(g.calls.list[0].caller, g.from[0]);
    rle_incoming_fail(g.a, g.calls.list[0].in, &(rle_wire_error){.code = RLE_ABORTED});
    turns(&g, 3);
    rle_future_release(g.caller[0], f[0]);
    rle_future_release(g.caller[1], f[1]);
    free_group(&g);
}

/* The owner computes; the guard hears meanwhile who leaves, and whose time is over. */
static void calls_leave_while_the_owner_is_away(void **state)
{
    (void)state;
    rle_rpc_options o = {.name = "a", .token = &test_token};
    rle_rpc *a = NULL;
    assert_int_equal(rle_rpc_new(&o, &a), RLE_OK);
    group g = make_group_of(a, 100, 100 * RLE_SECONDS);
    rle_future *f[CALLERS];
    for (int i = 0; i < CALLERS; i++) f[i] = join(&g, i, 1);
    wait_until_due(&g);
    assert_int_equal(flush(&g, 3, 3), RLE_FLUSH_ALL);
    for (int i = 0; i < CALLERS; i++) answered(&g, i, f[i]);
    f[0] = join(&g, 0, 1);
    f[1] = join(&g, 1, 2);
    /* Later than the guard, on any machine, finds that d is gone. */
    rle_future *late = join_with(&g, 0, 4, 2 * RLE_SECONDS);
    rle_future_cancel(g.caller[0], f[0]);
    rle_future_release(g.caller[2], call(g.caller[2], g.to_a[2], "queued", 1));
    rle_rpc_free(g.caller[2]); /* who was waited for dies, its call not taken yet */
    g.caller[2] = NULL;
    int64_t began = rle_now();
    while (rle_future_status(g.caller[0], late) == RLE_FUTURE_PENDING) {
        turn(g.caller[0], NULL);
        usleep(1000);
        assert_true(rle_now() - began < 20 * RLE_SECONDS);
    }
    wait_until_due(&g);
    /* When d was gone all others were there, the late one too. */
    assert_int_equal(rle_batch_waiting(g.a, g.batch), 1);
    assert_int_equal(flush(&g, 1, 2), RLE_FLUSH_ALL);
    answered(&g, 1, f[1]);
    rle_future_release(g.caller[0], f[0]);
    rle_future_release(g.caller[0], late);
    free_group(&g);
}

static void what_waits_is_answered_when_the_batch_goes(void **state)
{
    (void)state;
    group g = make_group(100, 20 * RLE_SECONDS);
    rle_future *f = join(&g, 0, 1);
    flush(&g, 1, 1);
    answered(&g, 0, f);
    rle_future *other = join(&g, 1, 1);
    rle_rpc_stop(g.a);
    assert_int_equal(flush(&g, 1, 1), RLE_FLUSH_DELAY); /* at once */
    answered(&g, 1, other);
    free_group(&g);
    assert_true(!logged("unhandled"));
}

static void want_of_memory_leaves_the_call_with_its_owner(void **state)
{
    (void)state;
    group g = make_group(100, 20 * RLE_SECONDS);
    rle_encoder e;
    rle_encoder_init(&e);
    begin_call(&e, "act", 0);
    rle_future *f = call_with(g.caller[0], g.to_a[0], "act", &e, 0, false);
    rle_encoder_fini(&e);
    turns(&g, 3);
    rle_incoming_info info;
    rle_decoder d;
    rle_incoming *in = rle_rpc_next_call(g.a, &info, &d);
    rle_incoming_read(g.a, in);
    rle_batch_call one = {.rows = 1};
    int failures = 0;
    rle_status s = RLE_RESOURCE_EXHAUSTED;
    for (; s != RLE_OK; failures++) {
        rle_fault_order(RLE_FAULT_ALLOC, (uint64_t)failures + 1, false);
        s = rle_batch_knows(g.a, g.batch, info.caller)
                ? RLE_OK
                : rle_batch_admit(g.a, g.batch, info.caller);
        if (s == RLE_OK) s = rle_batch_add(g.a, g.batch, in, &one);
        rle_fault_order(RLE_FAULT_ALLOC, 0, false);
        assert_int_equal(rle_batch_waiting(g.a, g.batch), s == RLE_OK);
    }
    assert_true(failures >= 2);
    assert_int_equal(flush(&g, 1, 1), RLE_FLUSH_ALL);
    answered(&g, 0, f);
    free_group(&g);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, pair_setup, pair_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(full_all_or_delayed),
        TEST(who_is_absent_is_waited_for_once),
        TEST(an_episode_that_ends_ends_the_wait),
        TEST(a_withdrawn_episode_is_not_waited_for),
        TEST(a_lost_caller_is_not_waited_for),
        TEST(the_cancelled_and_the_late_are_not_executed),
        TEST(calls_leave_while_the_owner_is_away),
        TEST(what_waits_is_answered_when_the_batch_goes),
        TEST(want_of_memory_leaves_the_call_with_its_owner),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
