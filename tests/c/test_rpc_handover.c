/* test_rpc_handover.c - references that one worker passes on to another, as their owner
 * sees it: the grant and the claim come over different connections, in either order, late
 * or never. */
#include "rpc_pair.h"
#include "shifted_clock.h"

/* "a" owns, "g" gives, "b" gets. */
typedef struct three {
    rle_rpc *a, *g, *b;
    rle_peer *g_to_a, *b_to_a, *a_to_g;
    uint64_t object;
} three;

static void turn_all(three *w, int n)
{
    for (; n; n--) {
        turn(w->a, w->g);
        turn(w->b, NULL);
    }
}

/* g holds the object, which a itself has let go of. */
static three make_three(const rle_rpc_options *owner)
{
    three w = {.a = worker("a", owner), .g = worker("g", NULL), .b = worker("b", NULL)};
    assert_int_equal(rle_rpc_listen(w.a, test_address, NULL), RLE_OK);
    w.g_to_a = link_to(w.g, w.a);
    w.b_to_a = link_to(w.b, w.a);
    w.a_to_g = rle_rpc_peer(w.a, "g");
    w.object = rle_export_new(w.a);
    rle_encoder e;
    rle_encoder_init(&e);
    begin_call(&e, "take", 1);
    rle_encode_ref(&e, &(rle_wire_ref){.kind = RLE_REF_SENDERS, .object = w.object});
    rle_future *f = call_with(w.a, w.a_to_g, "take", &e, 0, true);
    turn_all(&w, 5);
    rle_incoming_info info;
    rle_decoder d;
    rle_incoming *in = rle_rpc_next_call(w.g, &info, &d);
    assert_non_null(in);
    rle_incoming_read(w.g, in);
    rle_encoder_reset(&e);
    rle_encode_result_head(&e, 0);
    assert_int_equal(rle_incoming_reply(w.g, in, &e), RLE_OK);
    turn_all(&w, 5);
    rle_future_release(w.a, f);
    rle_encoder_fini(&e);
    rle_export_unhold(w.a, w.object);
    return w;
}

static void free_three(three *w)
{
    if (w->a) rle_rpc_free(w->a);
    if (w->g) rle_rpc_free(w->g);
    if (w->b) rle_rpc_free(w->b);
}

static void g_gives_back(three *w)
{
    rle_ref_discard(w->g, w->g_to_a, rle_peer_session(w->g, w->g_to_a), w->object, 1);
    turn_all(w, 3);
}

static rle_future *grant_as(rle_rpc *who, rle_peer *to_a, uint64_t object, uint8_t ticket)
{
    uint8_t bytes[RLE_TICKET_SIZE] = {ticket};
    rle_encoder e;
    rle_encoder_init(&e);
    begin_call(&e, "rlengine.grant", 2);
    rle_encode_integer(&e, (int64_t)object);
    rle_encode_string(&e, (const char *)bytes, sizeof bytes);
    rle_future *f = call_with(who, to_a, "rlengine.grant", &e, 0, true);
    rle_encoder_fini(&e);
    return f;
}

static rle_future *grant(three *w, uint8_t ticket)
{
    return grant_as(w->g, w->g_to_a, w->object, ticket);
}

static rle_future *claim_of(three *w, uint8_t ticket, uint64_t life)
{
    uint8_t bytes[RLE_TICKET_SIZE] = {ticket};
    rle_encoder e;
    rle_encoder_init(&e);
    begin_call(&e, "rlengine.claim", 6);
    rle_encode_integer(&e, (int64_t)w->object);
    rle_encode_string(&e, (const char *)bytes, sizeof bytes);
    rle_encode_string(&e, "Thing", 5);
    rle_encode_u64(&e, life);
    rle_encode_string(&e, "g", 1);
    rle_encode_u64(&e, w->g ? rle_rpc_incarnation(w->g) : 1);
    rle_call_spec spec = {.peer = w->b_to_a,
                          .method = "reference 1 to a Thing",
                          .timeout = 1000000 * RLE_SECONDS,
                          .nested = true,
                          .construct = true,
                          .claim = true,
                          .quiet = true};
    rle_future *f = NULL;
    assert_int_equal(rle_rpc_call(w->b, &spec, &e, &f), RLE_OK);
    rle_encoder_fini(&e);
    return f;
}

static rle_future *claim(three *w, uint8_t ticket)
{
    return claim_of(w, ticket, rle_rpc_incarnation(w->a));
}

static bool over(three *w, rle_future *f)
{
    turn_all(w, 4);
    return rle_future_status(w->b, f) != RLE_FUTURE_PENDING;
}

/* Its claim ended with the object; then b lets go of it. */
static void check_got(three *w, rle_future *f)
{
    assert_true(over(w, f));
    assert_int_equal(rle_future_status(w->b, f), RLE_FUTURE_DONE);
    assert_int_equal(rle_future_object(f), w->object);
    rle_future_read(w->b, f);
    rle_future_release(w->b, f);
    rle_ref_discard(w->b, w->b_to_a, rle_peer_session(w->b, w->b_to_a), w->object, 1);
    turn_all(w, 3);
}

/* As what it failed with. */
static void check_failed(three *w, rle_future *f, rle_status code, const char *text)
{
    rle_wire_error e;
    assert_true(over(w, f));
    assert_int_equal(rle_future_status(w->b, f), RLE_FUTURE_FAILED);
    assert_string_equal(error_of(f, &e), text);
    assert_int_equal(e.code, code);
    assert_int_equal(e.outcome, RLE_OUTCOME_NOT_EXECUTED);
    rle_future_release(w->b, f);
}

static void the_object_is_gone(three *w)
{
    rle_export_info list[4];
    turn_all(w, 3);
    assert_int_equal(rle_rpc_exports(w->a, list, 4), 0);
    assert_int_equal(rle_rpc_next_dropped(w->a), w->object);
    assert_int_equal(rle_rpc_next_dropped(w->a), 0);
}

/* Neither needs a credit, a place or the owner's Lua: a turn of the loop does it. */
static void a_busy_owner_hands_over(void **state)
{
    (void)state;
    three w = make_three(&(rle_rpc_options){.max_credits = 1, .max_concurrent = 1});
    rle_future *busy[3] = {call(w.g, w.g_to_a, "f", 1), call(w.g, w.g_to_a, "f", 2),
                           call(w.b, w.b_to_a, "f", 3)};
    turn_all(&w, 5);
    rle_incoming_info info;
    rle_decoder d;
    rle_incoming *in = rle_rpc_next_call(w.a, &info, &d); /* not answered for now */
    assert_non_null(in);
    assert_null(rle_rpc_next_call(w.a, &info, &d));
    for (int claim_first = 0; claim_first < 2; claim_first++) {
        rle_future *got = claim_first ? claim(&w, 1) : NULL;
        if (claim_first) assert_false(over(&w, got));
        rle_future *granted = grant(&w, 1);
        turn_all(&w, 5);
        assert_int_equal(rle_future_status(w.g, granted), RLE_FUTURE_DONE);
        rle_future_release(w.g, granted);
        if (!claim_first) got = claim(&w, 1);
        check_got(&w, got);
    }
    /* A ticket is good for once. */
    rle_future *again = claim(&w, 1);
    assert_false(over(&w, again));
    rle_future_release(w.b, again);
    g_gives_back(&w);
    the_object_is_gone(&w);
    rle_incoming_fail(w.a, in, &(rle_wire_error){.code = RLE_ABORTED});
    for (int i = 0; i < 10; i++) {
        serve_one(w.a);
        turn_all(&w, 3);
    }
    rle_future_release(w.g, busy[0]);
    rle_future_release(w.g, busy[1]);
    rle_future_release(w.b, busy[2]);
    free_three(&w);
}

/* What the giver lets go of at once is held for who was given it. */
static void the_ticket_holds_the_object(void **state)
{
    (void)state;
    three w = make_three(NULL);
    rle_future_release(w.g, grant(&w, 1));
    g_gives_back(&w);
    assert_int_equal(rle_rpc_next_dropped(w.a), 0);
    check_got(&w, claim(&w, 1));
    the_object_is_gone(&w);
    free_three(&w);
}

static void who_claims_in_vain_reads_why(void **state)
{
    (void)state;
    rle_clock clock = {shifted, NULL};
    clock_ahead = 0;
    rle_clock_set(&clock);
    three w = make_three(&(rle_rpc_options){.heartbeat = RLE_SECONDS / 20,
                                            .peer_timeout = 1000 * RLE_SECONDS});
    check_failed(&w, claim_of(&w, 1, 4711), RLE_UNAVAILABLE,
                 "owner \"a\" of this reference is gone");
    rle_future *f = claim(&w, 2), *late = claim(&w, 3);
    assert_false(over(&w, f));
    clock_ahead = 31 * RLE_SECONDS;
    for (int i = 0; i < 2000 && !over(&w, late); i++) usleep(1000);
    static const char text[] = "reference 1 to a \"Thing\" of \"a\" did not arrive: "
                               "\"a\" has not heard of it from "
                               "\"g\" in 30 s, or it was read more than 60 s after it "
                               "was sent; ask for it again";
    check_failed(&w, f, RLE_DEADLINE_EXCEEDED, text);
    check_failed(&w, late, RLE_DEADLINE_EXCEEDED, text);
    /* Late, but not too late: the same ticket once more. */
    rle_future_release(w.g, grant(&w, 3));
    check_got(&w, claim(&w, 3));
    f = claim(&w, 4);
    late = claim(&w, 5);
    assert_false(over(&w, f));
    rle_rpc_free(w.g);
    w.g = NULL;
    static const char lost[] = "reference 1 to a \"Thing\" of \"a\" did not arrive: "
                               "\"g\", which passed it on, was "
                               "lost before \"a\" heard of it; ask somebody else for it";
    for (int i = 0; i < 2000 && !over(&w, late); i++) usleep(1000);
    check_failed(&w, f, RLE_UNAVAILABLE, lost);
    check_failed(&w, late, RLE_UNAVAILABLE, lost);
    check_failed(&w, claim(&w, 6), RLE_UNAVAILABLE, lost); /* at once */
    the_object_is_gone(&w);
    free_three(&w);
    rle_clock_set(NULL);
}

static void only_who_holds_it_may_grant(void **state)
{
    (void)state;
    three w = make_three(NULL);
    rle_wire_error e;
    rle_future *f = grant_as(w.b, w.b_to_a, w.object, 1);
    assert_true(over(&w, f));
    assert_string_equal(error_of(f, &e), "reference 1 of \"a\" is not held by \"b\"");
    assert_int_equal(e.code, RLE_NOT_FOUND);
    rle_future_release(w.b, f);
    g_gives_back(&w);
    the_object_is_gone(&w);
    free_three(&w);
}

/* b goes, or a does, while claims wait and tickets are held. */
static void nothing_is_left_of_who_went(void **state)
{
    (void)state;
    for (int owner = 0; owner < 2; owner++) {
        three w = make_three(NULL);
        enum { MANY = 300 };
        rle_future *f[MANY];
        for (int i = 0; i < MANY; i++)
            f[i] = claim(&w, (uint8_t)(i % 100 + 1)); /* thrice each */
        for (int i = 101; i < 200; i++) rle_future_release(w.g, grant(&w, (uint8_t)i));
        turn_all(&w, 20);
        rle_wire_error e;
        for (int i = 0; i < MANY; i++)
            assert_int_equal(rle_future_status(w.b, f[i]), RLE_FUTURE_PENDING);
        if (owner) {
            rle_rpc_free(w.a);
            w.a = NULL;
            turn_all(&w, 5);
            for (int i = 0; i < MANY; i++) {
                assert_string_equal(error_of(f[i], &e),
                                    "owner \"a\" of this reference is gone");
                rle_future_release(w.b, f[i]);
            }
        } else {
            for (int i = 0; i < MANY; i++) rle_future_release(w.b, f[i]);
            rle_rpc_free(w.b);
            w.b = NULL;
            turn_all(&w, 5);
            assert_null(w.a->claimed.first);
            assert_int_equal(w.a->claimed.by_bytes.used, 0);
            rle_future *g = grant(&w, 1); /* for nobody: kept for a minute */
            turn_all(&w, 5);
            assert_int_equal(rle_future_status(w.g, g), RLE_FUTURE_DONE);
            rle_future_release(w.g, g);
        }
        free_three(&w);
    }
}

/* Whichever allocation fails: the claim ends or may be repeated, and no hold is left. */
static void memory_may_run_out_anywhere(void **state)
{
    (void)state;
    int failed = 0;
    for (uint64_t nth = 1; nth < 14; nth++) {
        three w = make_three(NULL);
        bool claim_first = nth % 2;
        rle_future *f = claim_first ? claim(&w, 1) : NULL;
        rle_future *g = grant(&w, 1);
        if (!claim_first) {
            turn_all(&w, 3);
            f = claim(&w, 1);
        }
        rle_mem_fault((nth + 1) / 2, false);
        turn_all(&w, 6);
        rle_mem_fault(0, false);
        turn_all(&w, 6);
        if (rle_peer_connected(w.b, w.b_to_a) &&
            rle_future_status(w.b, f) == RLE_FUTURE_DONE) {
            check_got(&w, f);
        } else {
            failed++;
            rle_future_release(w.b, f);
        }
        rle_future_release(w.g, g);
        turn_all(&w, 3);
        if (rle_peer_connected(w.g, w.g_to_a)) g_gives_back(&w);
        turn_all(&w, 3);
        if (w.a->granted.first) { /* nobody came for it */
            uint8_t bytes[RLE_TICKET_SIZE] = {1};
            assert_int_equal(rle_ticket_claim(w.a, bytes), w.object);
            rle_export_unhold(w.a, w.object);
        }
        the_object_is_gone(&w);
        free_three(&w);
    }
    assert_true(failed > 0);
}

static void malformed_ones_end_the_connection(void **state)
{
    (void)state;
    for (int what = 0; what < 6; what++) {
        rle_rpc *a = worker("a", NULL);
        assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
        raw x = raw_join(a, "x");
        rle_encoder e;
        rle_encoder_init(&e);
        int args = what == 5 ? 1 : what % 2 ? 6 : 2;
        begin_call(&e, what % 2 ? "rlengine.claim" : "rlengine.grant", args);
        rle_encode_integer(&e, what == 2 ? 0 : 1);
        if (args > 1) rle_encode_string(&e, "0123456789abcdef", what == 0 ? 15 : 16);
        if (args > 2) {
            rle_encode_string(&e, "Thing", 5);
            if (what == 1)
                rle_encode_integer(&e, 1);
            else
                rle_encode_u64(&e, 1);
            rle_encode_string(&e, "g", 1);
            if (what == 3)
                rle_encode_nil(&e);
            else
                rle_encode_u64(&e, 1);
        }
        raw_send(&x,
                 (rle_frame){.type = RLE_FRAME_CALL,
                             .flags = what == 4 ? 0 : RLE_FLAG_NESTED,
                             .id = 1},
                 e.w.data + RLE_FRAME_HEADER, rle_encoder_values_size(&e));
        rle_encoder_fini(&e);
        rle_rpc_counters c;
        rle_rpc_count(a, &c);
        assert_int_equal(c.live_incoming, 0);
        assert_true(logged(what == 5 || what % 2 ? "malformed rlengine.claim"
                                                 : "malformed rlengine.grant"));
        assert_false(rle_peer_connected(a, rle_rpc_peer(a, "x")));
        test_log_count = 0;
        raw_close(&x);
        rle_rpc_free(a);
    }
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, pair_setup, pair_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_busy_owner_hands_over),           TEST(the_ticket_holds_the_object),
        TEST(who_claims_in_vain_reads_why),      TEST(only_who_holds_it_may_grant),
        TEST(nothing_is_left_of_who_went),       TEST(memory_may_run_out_anywhere),
        TEST(malformed_ones_end_the_connection),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
