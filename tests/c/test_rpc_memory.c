/* test_rpc_memory.c - what a connection holds: while it has proved nothing, and when it
 * is idle again after it was not. */
#include "rpc_pair.h"

#include <malloc.h>

#include "figure.h"

static const rle_tls_options psk = {.psk = true, .unix_too = true};

/* All of this process, with what libraries take; under a sanitizer only the engine's own.
 */
static size_t held(void)
{
#ifdef __SANITIZE_ADDRESS__
    return rle_mem_bytes();
#else
    return mallinfo2().uordblks;
#endif
}

/* ---- half-open ones ---- */

enum { STRANGERS = 16 }; /* fewer than are told of in a minute */

/* Each of so many connections says these bytes and no more: what one costs. */
static size_t each_costs(rle_rpc *a, const void *bytes, size_t n)
{
    raw r[STRANGERS];
    size_t before = held();
    for (int i = 0; i < STRANGERS; i++) {
        r[i] = raw_connect(a);
        raw_write(&r[i], bytes, n);
    }
    assert_int_equal(a->half_open, STRANGERS);
    size_t cost = (held() - before) / STRANGERS;
    for (int i = 0; i < STRANGERS; i++) raw_close(&r[i]);
    for (int i = 0; i < 10; i++) turn(a, NULL);
    assert_int_equal(a->half_open, 0);
    return cost;
}

static void f17_half_open_connections_are_small(void **state)
{
    (void)state;
    rle_rpc *a = worker("a", NULL);
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    each_costs(a, "", 0); /* what the first ones take for good */
    size_t bytes = rle_mem_bytes();
    uint8_t all[RLE_FRAME_HEADER + RLE_PREAUTH_MAX] = {0};
    rle_frame hello = {.type = RLE_FRAME_HELLO,
                       .payload = RLE_PREAUTH_MAX,
                       .values = RLE_PREAUTH_MAX,
                       .body = RLE_PREAUTH_MAX,
                       .incarnation = 5};
    rle_frame_encode(&hello, all);
    size_t nothing = each_costs(a, "", 0), little = each_costs(a, all, 20),
           most = each_costs(a, all, sizeof all - 1);
    /* A whole greeting, answered, as long as one may be. */
    rle_writer w;
    rle_writer_init(&w);
    write_greeting(&w, 5, "obs", 1, 1);
    memcpy(all + RLE_FRAME_HEADER, w.data, w.len);
    rle_writer_fini(&w);
    size_t greeted = each_costs(a, all, sizeof all);
    assert_true(nothing <= 2048 + 512);
    assert_true(little <= 2048 + 512);
    assert_true(most <= 4096);
    assert_true(greeted <= 4096);
    assert_int_equal(rle_mem_bytes(), bytes);
    figure("F17",
           "a connection that says nothing: %zu bytes, with most of a greeting %zu, with "
           "all "
           "of the longest one and its answer %zu",
           nothing, most, greeted);
    rle_rpc_free(a);
}

static void f17_half_open_connections_over_tls_are_small(void **state)
{
    (void)state;
    rle_rpc *a = worker("a", &(rle_rpc_options){.tls = &psk});
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    /* The head of a record of 600 bytes, and most of it. */
    uint8_t record[5 + 599] = {0x16, 3, 1, 600 >> 8, 600 & 255};
    each_costs(a, record, sizeof record);
    size_t bytes = rle_mem_bytes(), nothing = each_costs(a, "", 0),
           little = each_costs(a, record, 3), most = each_costs(a, record, sizeof record);
    assert_true(nothing <= 4096);
    assert_true(little <= 4096);
    assert_true(most <= 4096);
    assert_int_equal(rle_mem_bytes(), bytes);
    figure(
        "F17",
        "over TLS: a connection that says nothing %zu bytes, with most of a greeting %zu",
        nothing, most);
    /* What announces more than is read before somebody has proved anything is not waited
     * for. */
    raw r = raw_connect(a);
    static const uint8_t huge[] = {0x16, 3, 1, 0x3f, 0xff};
    raw_write(&r, huge, sizeof huge);
    for (int i = 0; i < 3; i++) turn(a, NULL);
    assert_int_equal(a->half_open, 0);
    assert_true(logged("tls: more than 4096 bytes before the handshake was done"));
    raw_close(&r);
    rle_rpc_free(a);
}

/* ---- idle ones, after use ---- */

static rle_future *send_bytes(rle_rpc *from, rle_peer *to, size_t n)
{
    uint8_t *data = calloc(1, n);
    rle_array array = {.data = data, .dtype = RLE_U8, .ndim = 1, .shape = {(int64_t)n}};
    rle_array_set_contiguous(&array);
    rle_encoder e;
    rle_encoder_init(&e);
    begin_call(&e, "put", 2);
    rle_encode_integer(&e, 1);
    rle_encode_tensor(&e, &array, NULL);
    rle_future *f = call_with(from, to, "put", &e, 0, true);
    rle_encoder_fini(&e);
    free(data);
    return f;
}

/* A message of n bytes, there and back. */
static void exchange(pair *p, size_t n)
{
    rle_future *there = send_bytes(p->a, p->to_b, n),
               *back = send_bytes(p->b, p->to_a, n);
    for (int i = 0; i < 20000 && (rle_future_status(p->a, there) == RLE_FUTURE_PENDING ||
                                  rle_future_status(p->b, back) == RLE_FUTURE_PENDING);
         i++) {
        turn(p->a, p->b);
        serve_one(p->a);
        serve_one(p->b);
    }
    assert_int_equal(result_of(there), 2);
    assert_int_equal(result_of(back), 2);
    rle_future_release(p->a, there);
    rle_future_release(p->b, back);
}

/* So many calls of either side open at once; all are answered. */
static void open_calls(pair *p, int count)
{
    rle_future **f = calloc((size_t)count * 2, sizeof *f);
    rle_encoder e;
    rle_encoder_init(&e);
    begin_call(&e, "f", 1);
    rle_encode_integer(&e, 1);
    for (int i = 0; i < count; i++) {
        f[2 * i] = call_with(p->a, p->to_b, "f", &e, 0, true);
        f[2 * i + 1] = call_with(p->b, p->to_a, "f", &e, 0, true);
    }
    rle_encoder_fini(&e);
    for (int i = 0; i < 100; i++) turn(p->a, p->b);
    for (int i = 0;
         i < 100000 && (p->to_b->conn->calls.used || p->to_a->conn->calls.used); i++) {
        turn(p->a, p->b);
        while (serve_one(p->a) || serve_one(p->b)) {
        }
    }
    for (int i = 0; i < count; i++) {
        assert_int_equal(result_of(f[2 * i]), 2);
        assert_int_equal(result_of(f[2 * i + 1]), 2);
        rle_future_release(p->a, f[2 * i]);
        rle_future_release(p->b, f[2 * i + 1]);
    }
    free(f);
}

/* Silent for two ticks and more. */
static void rest(pair *p)
{
    for (int i = 0; i < 30; i++) {
        usleep(5000);
        turn(p->a, p->b);
    }
}

static void an_idle_connection_is_small_again_after_use(void **state)
{
    (void)state;
    rle_rpc_options o = {.heartbeat = RLE_SECONDS / 10, .peer_timeout = 60 * RLE_SECONDS};
    for (int tls = 0; tls < 2; tls++) {
        o.tls = tls ? &psk : NULL;
        pair p = make_pair(&o, &o);
        open_calls(&p,
                   5000); /* fills what a worker keeps for the calls of all its peers */
        rest(&p);
        size_t bytes = rle_mem_bytes(), libraries = held() - bytes, most = 0;
        exchange(&p, tls ? 8 << 20 : 60 << 20);
        size_t busy = rle_mem_bytes();
        rest(&p);
        size_t after_long = rle_mem_bytes() - bytes;
        open_calls(&p, 10000);
        rest(&p);
        size_t after_many = rle_mem_bytes() - bytes;
        most = after_long > after_many ? after_long : after_many;
        assert_true(busy >= bytes);
        assert_true((ssize_t)after_long <= 1024);
        assert_true((ssize_t)after_many <= 1024);
        /* The allocator keeps some freed blocks at hand, which count as held. */
        assert_true((ssize_t)(held() - rle_mem_bytes() - libraries) <= 8192);
        assert_null(p.to_b->conn->calls.slots);
        assert_null(p.to_b->conn->out);
        figure(
            "F24",
            "%sidle again after messages of %d MiB and 10,000 open calls both ways: %+zd "
            "bytes",
            tls ? "over TLS: " : "", tls ? 8 : 60, (ssize_t)most);
        free_pair(&p);
    }
}

/* One call that stays open must not keep the table of all those that were. */
static void a_table_shrinks_with_what_is_in_it(void **state)
{
    (void)state;
    rle_map m = {0};
    size_t bytes = rle_mem_bytes();
    for (uint64_t i = 1; i <= 100000; i++) rle_map_put(&m, i * 7919)->v.count = i;
    for (uint64_t i = 2; i <= 100000; i++) {
        rle_map_delete(&m, i * 7919);
        if (i % 1000) continue;
        assert_int_equal(rle_map_get(&m, 7919)->v.count, 1);
        for (uint64_t k = i + 1; k <= 100000; k += 997)
            assert_int_equal(rle_map_get(&m, k * 7919)->v.count, k);
    }
    assert_int_equal(m.used, 1);
    assert_true(rle_mem_bytes() - bytes <= 8192);
    rle_map_delete(&m, 7919);
    assert_null(rle_map_get(&m, 7919));
    rle_map_fini(&m);
    assert_int_equal(rle_mem_bytes(), bytes);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, pair_setup, pair_teardown)

int main(void)
{
    mallopt(M_MMAP_MAX, 0); /* blocks of any size count in mallinfo2().uordblks */
    const struct CMUnitTest tests[] = {
        TEST(f17_half_open_connections_are_small),
        TEST(f17_half_open_connections_over_tls_are_small),
        TEST(an_idle_connection_is_small_again_after_use),
        TEST(a_table_shrinks_with_what_is_in_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
