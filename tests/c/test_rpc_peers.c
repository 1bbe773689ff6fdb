/* test_rpc_peers.c - a worker that is met by ever new names: those who are gone are
 * forgotten, but none that is still needed. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "rpc_wire.h"

enum { NAMES = 20000, WARM = 3000, MORE = RLE_PEERS_REMEMBERED + 100 };

static rle_rpc *rpc;
static wire w;
static uint64_t met;

static int setup(void **state)
{
    (void)state;
    rle_log_set_sink(wire_no_line, NULL);
    rpc = wire_rpc("a", 0);
    rpc->o.members = true;
    met = 0;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    rle_rpc_free(rpc);
    return 0;
}

static rle_peer *find(const char *name)
{
    rle_map_slot *slot = rle_map_get(&rpc->peers, rle_hash_name(name));
    for (rle_peer *p = slot ? slot->v.pointer : NULL; p; p = p->next_same)
        if (strcmp(p->name, name) == 0) return p;
    return NULL;
}

/* A call without arguments. */
static void call_in(uint64_t id)
{
    uint8_t bytes[1024];
    rle_encoder e;
    rle_encoder_init(&e);
    rle_call_head head = {.method_len = 1, .method = "f"};
    rle_encoder_reset(&e);
    rle_encode_call_head(&e, &head);
    wire_feed(&w, bytes,
              wire_frame(bytes, (rle_frame){.type = RLE_FRAME_CALL, .id = id},
                         e.w.data + RLE_FRAME_HEADER, rle_encoder_values_size(&e)));
    rle_encoder_fini(&e);
}

static void leave(void)
{
    rle_member_change change;
    wire_shut(&w);
    rle_rpc_turn(rpc, false);
    while (rle_rpc_next_member(rpc, &change))
        assert_non_null(find(rle_peer_name(change.peer)));
}

/* A worker joins, calls something that is batched, and goes. */
static void meet(const char *name, rle_batch *b)
{
    rle_incoming_info info;
    rle_decoder d;
    wire_open(&w, rpc, name);
    call_in(1);
    rle_incoming *in = rle_rpc_next_call(rpc, &info, &d);
    assert_non_null(in);
    if (b) assert_int_equal(rle_batch_admit(rpc, b, info.caller), RLE_OK);
    wire_answer(rpc, in);
    leave();
}

static void meet_many(size_t n, rle_batch *b)
{
    for (size_t i = 0; i < n; i++) {
        char name[RLE_NAME_MAX + 1];
        snprintf(name, sizeof name, "obs_%llu", (unsigned long long)met++);
        meet(name, b);
    }
}

static void ever_new_names_leave_memory_flat(void **state)
{
    (void)state;
    rle_batch *b;
    assert_int_equal(rle_batch_new(rpc, &(rle_batch_options){.size = 8}, &b), RLE_OK);
    meet_many(WARM, b);
    size_t warm = rle_mem_bytes();
    meet_many(NAMES - WARM, b);
    assert_true(rle_mem_bytes() < warm + (16 << 10));
    assert_true(rpc->peer_count <= RLE_PEERS_REMEMBERED + 2);
    assert_int_equal(rpc->idle_count + 1, rpc->peer_count);
    rle_batch_free(rpc, b);
}

static void the_last_ones_are_remembered(void **state)
{
    (void)state;
    meet_many(MORE, NULL);
    assert_null(find("obs_0"));
    for (size_t i = MORE - RLE_PEERS_REMEMBERED + 2; i < MORE; i++) {
        char name[32];
        snprintf(name, sizeof name, "obs_%zu", i);
        rle_peer *peer = find(name);
        assert_non_null(peer);
        assert_true(peer->known);
    }
}

static void who_comes_back_is_the_last_again(void **state)
{
    (void)state;
    meet("back", NULL);
    meet_many(MORE / 2, NULL);
    rle_peer *peer = find("back");
    assert_non_null(peer);
    meet("back", NULL);
    meet_many(MORE / 2, NULL);
    assert_ptr_equal(find("back"), peer);
    assert_int_equal(peer->calls_from, 2);
    meet_many(MORE / 2, NULL);
    assert_null(find("back"));
}

/* Random streams hang on the numbers of calls: none comes twice. */
static void numbers_of_calls_go_on(void **state)
{
    (void)state;
    wire_open(&w, rpc, "busy");
    rle_incoming_info info;
    rle_decoder d;
    for (uint64_t i = 1; i <= 7; i++) {
        call_in(i);
        rle_incoming *in = rle_rpc_next_call(rpc, &info, &d);
        assert_int_equal(info.number, i);
        wire_answer(rpc, in);
    }
    leave();
    meet_many(MORE, NULL);
    assert_null(find("busy"));
    wire_open(&w, rpc, "busy");
    call_in(1);
    rle_incoming *in = rle_rpc_next_call(rpc, &info, &d);
    assert_int_equal(info.number, 8);
    wire_answer(rpc, in);
    leave();
}

static void who_is_needed_is_not_forgotten(void **state)
{
    (void)state;
    rle_follower *fo;
    rle_peer *pinned = rle_rpc_peer(rpc, "pinned"), *kept = rle_service_peer(rpc, "kept");
    rle_peer_pin(pinned);
    assert_int_equal(rle_follower_new(rpc, rle_rpc_peer(rpc, "followed"), "w", &fo),
                     RLE_OK);
    /* A call of ours to one, over by its end, and one of theirs that still runs. */
    wire_open(&w, rpc, "called");
    wire_calls calls;
    wire_call(&w, &calls);
    leave();
    wire_open(&w, rpc, "calling");
    call_in(1);
    rle_incoming_info info;
    rle_decoder d;
    rle_incoming *in = rle_rpc_next_call(rpc, &info, &d);
    leave();
    meet_many(2 * MORE, NULL);
    assert_ptr_equal(find("pinned"), pinned);
    assert_ptr_equal(find("kept"), kept);
    assert_ptr_equal(find("called"), rle_future_peer(calls.future[0]));
    assert_ptr_equal(find("calling"), info.caller);
    assert_non_null(find("followed"));
    /* And then it is. */
    rle_peer_unpin(pinned);
    rle_service_peer_release(kept);
    rle_follower_discard(fo);
    for (int i = 0; i < WIRE_CALLS; i++) {
        rle_future_read(rpc, calls.future[i]);
        rle_future_release(rpc, calls.future[i]);
    }
    wire_answer(rpc, in);
    meet_many(2 * MORE, NULL);
    assert_null(find("pinned"));
    assert_null(find("kept"));
    assert_null(find("called"));
    assert_null(find("calling"));
    assert_null(find("followed"));
    assert_ptr_equal(find("a"), rle_rpc_peer(rpc, "a")); /* ourselves */
}

/* Names that nobody has are no better. */
static void names_that_never_came_are_forgotten(void **state)
{
    (void)state;
    rle_rpc_peer(rpc, "nobody");
    for (int i = 0; i < 3 * MORE; i++) {
        char name[32];
        snprintf(name, sizeof name, "x_%d", i);
        assert_non_null(rle_rpc_peer(rpc, name));
        rle_rpc_turn(rpc, false);
    }
    assert_null(find("nobody"));
    assert_true(rpc->peer_count <= RLE_PEERS_REMEMBERED + 2);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(ever_new_names_leave_memory_flat), TEST(the_last_ones_are_remembered),
        TEST(who_comes_back_is_the_last_again), TEST(numbers_of_calls_go_on),
        TEST(who_is_needed_is_not_forgotten),   TEST(names_that_never_came_are_forgotten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
