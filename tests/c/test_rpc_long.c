/* test_rpc_long.c - messages that do not lie in one read: chunks, limits, and tensors that are
 * received where they belong. */
#include "rpc_pair.h"

static void turns(pair *p, int n)
{
    for (int i = 0; i < n; i++) turn(p->a, p->b);
}

static rle_future *put(rle_rpc *a, rle_peer *peer, size_t n)
{
    uint8_t *data = calloc(1, n);
    rle_array array = {.data = data, .dtype = RLE_U8, .ndim = 1, .shape = {(int64_t)n}};
    rle_array_set_contiguous(&array);
    rle_encoder e;
    rle_encoder_init(&e);
    begin_call(&e, "put", 1);
    rle_encode_tensor(&e, &array, NULL);
    rle_future *f = call_with(a, peer, "put", &e, 0, true);
    rle_encoder_fini(&e);
    free(data);
    return f;
}

static void long_messages_travel_in_pieces(void **state)
{
    (void)state;
    pair p = make_pair(NULL, NULL);
    static const size_t sizes[] = {1,       200000,        RLE_CHUNK_SIZE - 200, RLE_CHUNK_SIZE,
                                   RLE_CHUNK_SIZE + 1, 3 * RLE_CHUNK_SIZE + 77, 8 << 20};
    turns(&p, 10);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t n = sizes[i];
        uint8_t *data = malloc(n);
        for (size_t k = 0; k < n; k++) data[k] = (uint8_t)(k * 2654435761u >> 13);
        rle_array a = {.data = data, .dtype = RLE_U8, .ndim = 1, .shape = {(int64_t)n}};
        rle_array_set_contiguous(&a);
        rle_encoder e;
        rle_encoder_init(&e);
        begin_call(&e, "put", 2);
        assert_int_equal(rle_encode_tensor(&e, &a, NULL), RLE_OK);
        rle_encode_integer(&e, 7);
        rle_future *f = call_with(p.b, p.to_a, "put", &e, 0, false);
        rle_encoder_fini(&e);
        uint8_t *copy = malloc(n);
        memcpy(copy, data, n);
        memset(data, 0, n); /* what was sent is what it was at the call */
        free(data);
        rle_incoming_info info;
        rle_decoder d;
        rle_value v;
        rle_incoming *in = NULL;
        bool overtaken = false;
        for (int k = 0; k < 3000 && !in; k++) {
            if (n > (4 << 20) && k == 3) {
                rle_future *small = call(p.b, p.to_a, "small", 1);
                for (int j = 0; j < 40 && !overtaken; j++) {
                    turns(&p, 1);
                    overtaken = serve_one(p.a);
                }
                turns(&p, 3);
                assert_int_equal(rle_future_status(p.b, small), RLE_FUTURE_DONE);
                rle_future_release(p.b, small);
            }
            turns(&p, 1);
            in = rle_rpc_next_call(p.a, &info, &d);
        }
        assert_non_null(in);
        if (n > (4 << 20)) assert_true(overtaken);
        assert_int_equal(rle_decode(&d, &v), RLE_OK);
        assert_int_equal(v.kind, RLE_VALUE_TENSOR);
        assert_int_equal(v.u.tensor.size, n);
        assert_memory_equal(v.u.tensor.data, copy, n);
        assert_int_equal(rle_decode(&d, &v), RLE_OK);
        assert_int_equal(v.u.integer, 7);
        assert_int_equal(rle_decode_end(&d), RLE_OK);
        rle_encoder_init(&e);
        rle_encode_result_head(&e, 0);
        assert_int_equal(rle_incoming_reply(p.a, in, &e), RLE_OK);
        rle_encoder_fini(&e);
        turns(&p, 3);
        assert_int_equal(rle_future_status(p.b, f), RLE_FUTURE_DONE);
        rle_future_release(p.b, f);
        free(copy);
    }
    free_pair(&p);
}

/* The receiver takes calls whose numbers do not rise for repeated ones. */
static void short_calls_keep_their_place_behind_long_ones(void **state)
{
    (void)state;
    pair p = make_pair(NULL, NULL);
    rle_future *f[12];
    for (int i = 0; i < 12; i++)
        f[i] = i % 2 ? call(p.b, p.to_a, "small", i) : put(p.b, p.to_a, 3000000);
    int served = 0, last_small = 0;
    for (int k = 0; k < 20000 && served < 12; k++) {
        rle_incoming_info info;
        rle_decoder d;
        rle_value v;
        turns(&p, 1);
        rle_incoming *in = rle_rpc_next_call(p.a, &info, &d);
        if (!in) continue;
        assert_int_equal(rle_decode(&d, &v), RLE_OK);
        if (v.kind == RLE_VALUE_INTEGER) {
            assert_true(v.u.integer > last_small);
            last_small = (int)v.u.integer;
        }
        rle_encoder e;
        rle_encoder_init(&e);
        rle_encode_result_head(&e, 0);
        assert_int_equal(rle_incoming_reply(p.a, in, &e), RLE_OK);
        rle_encoder_fini(&e);
        served++;
    }
    turns(&p, 10);
    assert_int_equal(served, 12);
    for (int i = 0; i < 12; i++) {
        assert_int_equal(rle_future_status(p.b, f[i]), RLE_FUTURE_DONE);
        rle_future_release(p.b, f[i]);
    }
    assert_true(rle_peer_connected(p.b, p.to_a));
    free_pair(&p);
}

static void messages_over_the_receivers_limit_are_not_sent(void **state)
{
    (void)state;
    pair p = make_pair(&(rle_rpc_options){.max_message = 1 << 20}, NULL);
    static uint8_t data[2 << 20];
    rle_array a = {.data = data, .dtype = RLE_U8, .ndim = 1, .shape = {sizeof data}};
    rle_array_set_contiguous(&a);
    rle_encoder e;
    rle_encoder_init(&e);
    begin_call(&e, "put", 1);
    rle_encode_tensor(&e, &a, NULL);
    rle_future *f = call_with(p.b, p.to_a, "put", &e, 0, false);
    rle_encoder_fini(&e);
    rle_wire_error err;
    assert_non_null(strstr(error_of(f, &err), "over the limit of 1048576 bytes of worker \"a\""));
    assert_int_equal(err.code, RLE_RESOURCE_EXHAUSTED);
    assert_int_equal(err.outcome, RLE_OUTCOME_NOT_EXECUTED);
    rle_future_release(p.b, f);
    assert_true(rle_peer_connected(p.b, p.to_a));
    free_pair(&p);
}

/* ---- tensors received where they belong ---- */

static int handles_live;

static void drop_handle(void *handle)
{
    handles_live--;
    free(handle);
}

/* A call with three tensors of n bytes, each filled with its number. */
static rle_future *send_tensors(pair *p, size_t n)
{
    rle_encoder e;
    uint8_t *data[3];
    rle_encoder_init(&e);
    begin_call(&e, "put", 3);
    for (int i = 0; i < 3; i++) {
        data[i] = malloc(n);
        memset(data[i], i + 1, n);
        rle_array a = {.data = data[i], .dtype = RLE_U8, .ndim = 1, .shape = {(int64_t)n}};
        rle_array_set_contiguous(&a);
        assert_int_equal(rle_encode_tensor(&e, &a, NULL), RLE_OK);
    }
    rle_future *f = call_with(p->b, p->to_a, "put", &e, 0, false);
    rle_encoder_fini(&e);
    for (int i = 0; i < 3; i++) free(data[i]);
    return f;
}

/* Serve what is asked for: memory for the tensors whose bit is set in `give`. */
static void give_places(rle_rpc *rpc, int give, int *asked)
{
    rle_placement placement;
    while (rle_rpc_next_placement(rpc, &placement)) {
        void *data[RLE_WIRE_TENSORS], *handles[RLE_WIRE_TENSORS];
        *asked += placement.count;
        for (int i = 0; i < placement.count; i++) {
            data[i] = handles[i] = give >> i & 1 ? malloc(placement.tensor[i].size) : NULL;
            handles_live += handles[i] != NULL;
        }
        if (rle_rpc_place(rpc, &placement, data, handles)) continue;
        for (int i = 0; i < placement.count; i++)
            if (handles[i]) drop_handle(handles[i]);
    }
}

static void tensors_of_long_messages_get_memory_first(void **state)
{
    (void)state;
    pair p = make_pair(NULL, NULL);
    rle_rpc_set_drop_handle(p.a, drop_handle);
    handles_live = 0;
    for (int give = 0; give < 8; give++) {
        size_t n = 300001;
        int asked = 0;
        rle_future *f = send_tensors(&p, n);
        rle_incoming_info info;
        rle_decoder d;
        rle_incoming *in = NULL;
        for (int i = 0; i < 2000 && !in; i++) {
            turns(&p, 1);
            give_places(p.a, give, &asked);
            in = rle_rpc_next_call(p.a, &info, &d);
        }
        assert_non_null(in);
        assert_int_equal(asked, 3);
        for (int i = 0; i < 3; i++) {
            rle_value v;
            assert_int_equal(rle_decode(&d, &v), RLE_OK);
            const uint8_t *got = v.u.tensor.data;
            for (size_t k = 0; k < n; k++) assert_int_equal(got[k], i + 1);
            void *handle = i == 1 ? rle_take_handle(&d, &v.u.tensor) : NULL;
            if (i == 1) assert_true((handle != NULL) == (give >> 1 & 1));
            if (handle) {
                assert_ptr_equal(handle, got);
                drop_handle(handle); /* the reader's now */
            }
        }
        assert_int_equal(rle_decode_end(&d), RLE_OK);
        rle_incoming_read(p.a, in);
        rle_encoder e;
        rle_encoder_init(&e);
        rle_encode_result_head(&e, 0);
        assert_int_equal(rle_incoming_reply(p.a, in, &e), RLE_OK);
        rle_encoder_fini(&e);
        turns(&p, 3);
        rle_future_release(p.b, f);
        assert_int_equal(handles_live, 0); /* those not taken were let go of */
    }
    /* The sender dies while a message is under way, before and after memory was given. */
    for (int round = 0; round < 6; round++) {
        rle_future *f = send_tensors(&p, 300001);
        rle_future_release(p.b, f);
        int asked = 0;
        for (int i = 0; i < round; i++) {
            rle_rpc_turn(p.a, false);
            if (i > 1) give_places(p.a, 5, &asked);
        }
        rle_rpc_free(p.b);
        /* A message that waits for memory holds up the news of the sender's end. */
        for (int i = 0; i < 100 && rle_peer_connected(p.a, rle_rpc_peer(p.a, "b")); i++) {
            rle_rpc_turn(p.a, false);
            give_places(p.a, 7, &asked);
        }
        assert_false(rle_peer_connected(p.a, rle_rpc_peer(p.a, "b")));
        rle_rpc_turn(p.a, false);
        rle_incoming_info info;
        rle_decoder d;
        assert_null(rle_rpc_next_call(p.a, &info, &d));
        assert_int_equal(handles_live, 0);
        p.b = worker("b", NULL);
        p.to_a = link_to(p.b, p.a);
    }
    free_pair(&p);
    assert_int_equal(handles_live, 0);
}

/* Somebody who has joined and then reads nothing. */
static void a_worker_that_does_not_read_is_dropped(void **state)
{
    (void)state;
    rle_rpc *a = worker("a", NULL);
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    raw r = raw_join(a, "x");
    rle_peer *peer = rle_rpc_peer(a, "x");
    static uint8_t data[200000];
    rle_array array = {.data = data, .dtype = RLE_U8, .ndim = 1, .shape = {sizeof data}};
    rle_array_set_contiguous(&array);
    size_t bytes = rle_mem_bytes();
    enum { MANY = 500 };
    rle_future *f[MANY];
    for (int i = 0; i < MANY; i++) {
        rle_encoder e;
        rle_encoder_init(&e);
        begin_call(&e, "put", 1);
        rle_encode_tensor(&e, &array, NULL);
        f[i] = call_with(a, peer, "put", &e, 0, true);
        rle_encoder_fini(&e);
        turn(a, NULL);
        assert_true(rle_mem_bytes() - bytes < (size_t)66 << 20);
    }
    assert_false(rle_peer_connected(a, peer));
    rle_wire_error err;
    assert_string_equal(error_of(f[0], &err), "worker \"x\" is not reading: 64 MiB waiting");
    assert_int_equal(err.code, RLE_RESOURCE_EXHAUSTED);
    assert_true(logged("worker \"x\" dropped: 64 MiB waiting; "));
    for (int i = 0; i < MANY; i++) rle_future_release(a, f[i]);
    raw_close(&r);
    rle_rpc_free(a);
}

/* Turn until the worker is dropped. */
static void until_dropped(rle_rpc *a, rle_peer *peer)
{
    for (int i = 0; i < 4000 && rle_peer_connected(a, peer); i++) {
        turn(a, NULL);
        usleep(1000);
    }
    assert_false(rle_peer_connected(a, peer));
}

/* Less than that may wait for ten seconds: they are over in this test when it says so. */
static void f12_what_waits_too_long_ends_it(void **state)
{
    (void)state;
    rle_rpc *a = worker("a", &(rle_rpc_options){.heartbeat = RLE_SECONDS / 10,
                                                .peer_timeout = 5 * RLE_SECONDS});
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    /* 9 MiB in small frames. */
    raw r = raw_join(a, "x");
    rle_peer *peer = rle_rpc_peer(a, "x");
    rle_future *f[100];
    for (int i = 0; i < 100; i++) f[i] = put(a, peer, 95000);
    assert_true(peer->conn->out_over_since > 0);
    peer->conn->out_over_since -= 11 * RLE_SECONDS;
    until_dropped(a, peer);
    rle_wire_error err;
    assert_string_equal(error_of(f[0], &err),
                        "worker \"x\" is not reading: 8 MiB or more waited for 10.0 s");
    assert_int_equal(err.code, RLE_RESOURCE_EXHAUSTED);
    assert_true(logged("worker \"x\" dropped: 8 MiB or more waited for 10.0 s; 100 calls failed"));
    for (int i = 0; i < 100; i++) rle_future_release(a, f[i]);
    raw_close(&r);
    /* One long message, of which little waits at a time; the peer talks, and does not read. */
    r = raw_join(a, "y");
    peer = rle_rpc_peer(a, "y");
    size_t bytes = rle_mem_bytes();
    f[0] = put(a, peer, 40 << 20);
    for (int i = 0; i < 20; i++) turn(a, NULL);
    assert_true(peer->conn->out_over_since == 0);
    raw_send(&r, (rle_frame){.type = RLE_FRAME_PONG}, NULL, 0);
    for (int i = 0; i < 1000 && peer->conn->out_seen != peer->conn->bytes_out; i++) {
        usleep(1000);
        turn(a, NULL);
    }
    peer->conn->out_still -= 11 * RLE_SECONDS;
    until_dropped(a, peer);
    const char *text = error_of(f[0], &err);
    assert_non_null(strstr(text, "worker \"y\" is not reading: nothing was taken for 1"));
    assert_true(logged("worker \"y\" dropped: nothing was taken for 1"));
    rle_future_release(a, f[0]);
    turn(a, NULL);
    assert_true(rle_mem_bytes() < bytes + (64 << 10));
    raw_close(&r);
    rle_rpc_free(a);
}

/* The header of a message of 1 GiB, to a worker that takes 64 MiB. */
static void a_header_over_the_limit_costs_nothing(void **state)
{
    (void)state;
    rle_rpc *a = worker("a", NULL);
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    raw r = raw_join(a, "x");
    size_t bytes = rle_mem_bytes();
    uint8_t head[RLE_FRAME_HEADER];
    rle_frame f = {.type = RLE_FRAME_CALL,
                   .flags = RLE_FLAG_MORE,
                   .id = 1,
                   .payload = RLE_CHUNK_SIZE,
                   .values = 100,
                   .tensors = 1,
                   .body = 1 << 30,
                   .incarnation = r.incarnation};
    rle_frame_encode(&f, head);
    raw_write(&r, head, sizeof head);
    assert_true(logged("closed \"x\": frame of 1073741824 bytes is over the limit of 67108864"));
    assert_true(rle_mem_bytes() <= bytes);
    raw_close(&r);
    rle_rpc_free(a);
}

static void let_go_of_nothing(void *handle)
{
    (void)handle;
}

/* Who waits for a worker that is not there yet receives what others send meanwhile. */
static void tensors_arrive_while_their_owner_connects(void **state)
{
    (void)state;
    pair p = make_pair(NULL, NULL);
    rle_rpc_set_drop_handle(p.a, let_go_of_nothing);
    rle_future *f = put(p.b, p.to_a, 3 << 20);
    for (int i = 0; i < 1000 && !p.a->placements; i++) turns(&p, 1);
    assert_int_equal(p.a->placements, 1);
    uint64_t before = p.a->loop.turns;
    assert_int_equal(rle_rpc_connect(p.a, "127.0.0.1:1", RLE_SECONDS, NULL), RLE_UNAVAILABLE);
    assert_int_equal(p.a->placements, 0);
    assert_in_range(p.a->loop.turns - before, 1, 1000);
    for (int i = 0; i < 3000 && !serve_one(p.a); i++) turns(&p, 1);
    turns(&p, 3);
    assert_int_not_equal(rle_future_status(p.b, f), RLE_FUTURE_PENDING);
    rle_future_release(p.b, f);
    free_pair(&p);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, pair_setup, pair_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(long_messages_travel_in_pieces),
        TEST(tensors_arrive_while_their_owner_connects),
        TEST(short_calls_keep_their_place_behind_long_ones),
        TEST(messages_over_the_receivers_limit_are_not_sent),
        TEST(a_worker_that_does_not_read_is_dropped),
        TEST(tensors_of_long_messages_get_memory_first),
        TEST(f12_what_waits_too_long_ends_it),
        TEST(a_header_over_the_limit_costs_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
