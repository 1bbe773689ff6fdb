/* test_rpc_alloc.c - memory and the system fail at every place in turn, once or from then
 * on, while two workers start, meet, call each other, exchange references and weights,
 * and stop.
 *
 * Whatever fails: nothing crashes, no future stays open, what both took is given back,
 * and when there is memory again the next call works. */
#include "figure.h"
#include "rpc_pair.h"

#include <openssl/crypto.h>

#include "base/fault.h"

enum { LONG = 300000, TURNS = 40 };

typedef struct scene {
    rle_rpc *a, *b;
    rle_peer *to_a, *to_b; /* b's name for a, a's for b */
    bool listens;
    rle_future *futures[8];
    rle_rpc *of[8]; /* whose they are */
    int count;
    rle_publication *weights;
    rle_follower *follower;
    int taken; /* versions that arrived */
} scene;

static uint8_t long_bytes[LONG];
static bool with_tls, with_guard;

/* ---- OpenSSL's memory ---- */

static uint64_t ssl_left; /* until an allocation of OpenSSL fails; 0: none will */
static bool ssl_stays;

static bool ssl_fails(void)
{
    if (!ssl_left) return false;
    if (ssl_left > 1) {
        ssl_left--;
        return false;
    }
    if (!ssl_stays) ssl_left = 0;
    return true;
}

static void *ssl_malloc(size_t n, const char *file, int line)
{
    (void)file;
    (void)line;
    return ssl_fails() ? NULL : malloc(n);
}

static void *ssl_realloc(void *p, size_t n, const char *file, int line)
{
    (void)file;
    (void)line;
    return ssl_fails() ? NULL : realloc(p, n);
}

static void ssl_free(void *p, const char *file, int line)
{
    (void)file;
    (void)line;
    free(p);
}

/* ---- the scene ---- */

static rle_rpc *try_worker(const char *name)
{
    static const rle_tls_options psk = {.psk = true, .unix_too = true};
    rle_rpc_options o = {.name = name,
                         .token = &test_token,
                         .no_guard = !with_guard || name[0] != 'a',
                         .tls = with_tls ? &psk : NULL};
    rle_rpc *rpc = NULL;
    return rle_rpc_new(&o, &rpc) == RLE_OK ? rpc : NULL;
}

static void scene_start(scene *s)
{
    if (!s->a) s->a = try_worker("a");
    if (!s->b) s->b = try_worker("b");
    if (s->a && !s->listens)
        s->listens = rle_rpc_listen(s->a, test_address, NULL) == RLE_OK;
    if (s->a && !s->to_b) s->to_b = rle_rpc_peer(s->a, "b");
    if (s->b && !s->to_a) s->to_a = rle_rpc_peer(s->b, "a");
}

static bool ready(const scene *s)
{
    return s->a && s->b && s->listens && s->to_a && s->to_b;
}

static bool connected(const scene *s)
{
    return rle_peer_connected(s->b, s->to_a) && rle_peer_connected(s->a, s->to_b);
}

/* Everything a handler would do: answer with the number of values, and give references in
 * the arguments back. */
static void serve_all(rle_rpc *rpc)
{
    rle_incoming_info info;
    rle_decoder d;
    rle_incoming *in;
    while ((in = rle_rpc_next_call(rpc, &info, &d)) != NULL) {
        rle_incoming_read(rpc, in);
        rle_encoder e;
        rle_encoder_init(&e);
        rle_encode_result_head(&e, 1);
        rle_encode_integer(&e, info.head.args);
        rle_status s = rle_encoder_status(&e);
        if (s == RLE_OK) s = rle_incoming_reply(rpc, in, &e);
        if (s != RLE_OK) {
            rle_wire_error err = {.code = s};
            rle_incoming_fail(rpc, in, &err);
        }
        rle_encoder_fini(&e);
    }
    while (rle_rpc_next_dropped(rpc)) {
    }
}

static void work(scene *s, int n)
{
    for (int i = 0; i < n; i++) {
        if (s->a) rle_rpc_turn(s->a, false);
        if (s->b) rle_rpc_turn(s->b, false);
        if (s->a) serve_all(s->a);
        if (s->b) serve_all(s->b);
    }
}

static void scene_meet(scene *s)
{
    for (int tries = 0; tries < 3 && !connected(s); tries++) {
        char list[RLE_REF_ADDRESSES][RLE_ADDRESS_MAX];
        if (rle_rpc_own_addresses(s->a, list) == 0) return;
        const char *addresses[] = {list[0]};
        rle_peer_hint(s->b, s->to_a, addresses, 1);
        rle_rpc_enter(s->b);
        if (!s->to_a->conn && !s->to_a->opening) rle_peer_open(s->to_a);
        rle_rpc_leave(s->b);
        work(s, TURNS);
    }
}

/* `method` with a number, a reference and, if `n`, a tensor of so many bytes. */
static void begin(scene *s, bool by_a, size_t n, bool nested)
{
    rle_rpc *rpc = by_a ? s->a : s->b;
    uint64_t object = rle_export_new(rpc);
    if (!object) return;
    rle_encoder e;
    rle_encoder_init(&e);
    begin_call(&e, "f", n ? 3 : 2);
    rle_encode_integer(&e, 1);
    rle_wire_ref ref = {.kind = RLE_REF_SENDERS, .object = object, .class_name = "C"};
    rle_encode_ref(&e, &ref);
    rle_array array = {
        .data = long_bytes, .dtype = RLE_U8, .ndim = 1, .shape = {(int64_t)n}};
    if (n) rle_encode_tensor(&e, &array, NULL);
    rle_call_spec spec = {
        .peer = by_a ? s->to_b : s->to_a, .method = "f", .nested = nested};
    if (rle_encoder_status(&e) == RLE_OK &&
        rle_rpc_call(rpc, &spec, &e, &s->futures[s->count]) == RLE_OK)
        s->of[s->count++] = rpc;
    rle_encoder_fini(&e);
    rle_export_unhold(rpc, object);
}

static void scene_call(scene *s)
{
    begin(s, false, 0, false);
    begin(s, true, 16, true);
    work(s, 6);
    begin(s, false, LONG, false);
    work(s, 10);
}

static void scene_references(scene *s)
{
    uint8_t ticket[RLE_TICKET_SIZE];
    uint64_t object = rle_export_new(s->a);
    if (!object) return;
    if (rle_ticket_grant(s->a, object, ticket) == RLE_OK &&
        rle_ticket_claim(s->a, ticket) == object)
        rle_export_unhold(s->a, object);
    rle_ref_discard(s->b, s->to_a, rle_peer_incarnation(s->b, s->to_a), object, 1);
    rle_export_discard(s->a, object);
    work(s, 4);
}

static void scene_weights(scene *s)
{
    rle_array array = {.data = long_bytes, .dtype = RLE_U8, .ndim = 1, .shape = {LONG}};
    uint8_t *tensor;
    rle_msg m;
    rle_encoder e;
    if (rle_publication_new(s->a, "policy", "", 0, &s->weights) != RLE_OK)
        s->weights = NULL;
    if (rle_follower_new(s->b, s->to_a, "policy", &s->follower) != RLE_OK)
        s->follower = NULL;
    work(s, 6);
    rle_encoder_init(&e);
    for (int version = 0; version < 2 && s->weights; version++) {
        rle_encoder_reset(&e);
        rle_encode_result_head(&e, 2);
        rle_encode_integer(&e, version + 1);
        if (rle_encode_tensor(&e, &array, NULL) == RLE_OK &&
            rle_encoder_status(&e) == RLE_OK &&
            rle_publication_stage(s->weights, &e, true, &tensor) == RLE_OK) {
            memset(tensor, 1, LONG);
            rle_publication_commit(s->weights);
        }
        work(s, 10);
        if (s->follower && rle_follower_take(s->follower, &m)) {
            s->taken++;
            rle_follower_done(s->follower);
        }
    }
    rle_encoder_fini(&e);
    if (s->weights) rle_publication_close(s->weights);
    if (s->follower) rle_follower_discard(s->follower);
    s->weights = NULL;
    s->follower = NULL;
}

static bool scene_all(scene *s)
{
    scene_start(s);
    if (!ready(s)) return false;
    scene_meet(s);
    scene_call(s);
    scene_references(s);
    scene_weights(s);
    return true;
}

/* Nothing fails any more: every future is over, and a call works. */
static void scene_recover(scene *s)
{
    scene_start(s);
    assert_true(ready(s));
    for (int i = 0; i < 400 && !connected(s); i++) {
        scene_meet(s);
        if (!connected(s)) usleep(5000); /* accepting is paused for a while */
    }
    assert_true(connected(s));
    work(s, TURNS);
    for (int i = 0; i < s->count; i++) {
        assert_int_not_equal(rle_future_status(s->of[i], s->futures[i]),
                             RLE_FUTURE_PENDING);
        rle_future_read(s->of[i], s->futures[i]);
        rle_future_release(s->of[i], s->futures[i]);
    }
    rle_future *f = call(s->b, s->to_a, "f", 5);
    work(s, TURNS);
    assert_int_equal(rle_future_status(s->b, f), RLE_FUTURE_DONE);
    assert_int_equal(result_of(f), 1);
    rle_future_read(s->b, f);
    rle_future_release(s->b, f);
}

static void scene_stop(scene *s)
{
    if (s->b) rle_rpc_stop(s->b);
    work(s, 3);
    if (s->a) rle_rpc_stop(s->a);
    work(s, 3);
    if (s->b) rle_rpc_free(s->b);
    if (s->a) rle_rpc_free(s->a);
}

/* Fail at the nth place; false: there are not so many. */
static bool fail_at(rle_fault_kind kind, uint64_t nth, bool persistent, bool stop_too)
{
    size_t bytes = rle_mem_bytes(), fds = open_fds();
    scene s = {0};
    if (!stop_too) rle_fault_order(kind, nth, persistent);
    scene_all(&s);
    bool hit = rle_fault_left(kind) == 0 || (persistent && rle_fault_left(kind) == 1);
    rle_fault_order(kind, 0, false);
    if (stop_too || !hit) { /* nothing has failed: all of it was done */
        assert_int_equal(s.count, 3);
        assert_int_equal(s.taken, 2);
        for (int i = 0; i < 3; i++)
            assert_int_equal(rle_future_status(s.of[i], s.futures[i]), RLE_FUTURE_DONE);
    }
    scene_recover(&s);
    if (stop_too) rle_fault_order(kind, nth, persistent);
    scene_stop(&s);
    if (stop_too)
        hit = rle_fault_left(kind) == 0 || (persistent && rle_fault_left(kind) == 1);
    rle_fault_order(kind, 0, false);
    if (rle_mem_bytes() != bytes || open_fds() != fds)
        fail_msg("at %llu%s: %zu bytes and %zu descriptors are left",
                 (unsigned long long)nth, persistent ? " and on" : "",
                 rle_mem_bytes() - bytes, open_fds() - fds);
    return hit;
}

static void fail_everywhere(rle_fault_kind kind, const char *what)
{
    bool full = getenv("RLE_FULL") != NULL;
    uint64_t places = 0, scenes = 0;
    for (int stop = 0; stop < (with_tls ? 1 : 2); stop++)
        for (int persistent = 0; persistent < (with_tls && !full ? 1 : 2); persistent++) {
            uint64_t nth = 1;
            while (fail_at(kind, nth, persistent, stop)) {
                nth++;
                scenes++;
                if (nth > 5000) fail_msg("no end of places where %s can fail", what);
            }
            if (!persistent) places += nth - 1;
        }
    assert_true(places > 20);
    figure("F21",
           "%s fails at each of %llu places of start, handshake, calls, references, "
           "weights%s (%llu runs): no crash, nothing left, the next call works",
           what, (unsigned long long)places,
           with_tls && !full ? "" : " and stop, once and for good",
           (unsigned long long)scenes);
}

static void f21_memory_may_fail_anywhere(void **state)
{
    (void)state;
    fail_everywhere(RLE_FAULT_ALLOC, "memory");
}

static void f21_the_system_may_fail_anywhere(void **state)
{
    (void)state;
    fail_everywhere(RLE_FAULT_IO, "the system");
}

static void f21_memory_and_the_system_may_fail_anywhere_with_tls(void **state)
{
    (void)state;
    with_tls = true;
    fail_everywhere(RLE_FAULT_ALLOC, "memory, with TLS,");
    fail_everywhere(RLE_FAULT_IO, "the system, with TLS,");
    with_tls = false;
}

/* b's owner alone works for a while. */
static void work_b(scene *s, int n)
{
    for (int i = 0; i < n; i++) {
        rle_rpc_turn(s->b, false);
        serve_all(s->b);
        usleep(1000);
    }
}

/* a's owner is away: its guard accepts, shakes hands and reads while memory lacks. */
static bool guard_fails_at(uint64_t nth, bool persistent)
{
    size_t bytes = rle_mem_bytes(), fds = open_fds();
    scene s = {0};
    scene_start(&s);
    assert_true(ready(&s));
    char list[RLE_REF_ADDRESSES][RLE_ADDRESS_MAX];
    assert_true(rle_rpc_own_addresses(s.a, list) == 1);
    const char *addresses[] = {list[0]};
    rle_peer_hint(s.b, s.to_a, addresses, 1);
    usleep(110000); /* the guard takes over */
    rle_fault_order(RLE_FAULT_ALLOC, nth, persistent);
    begin(&s, false, 0, false); /* joins, then is sent */
    work_b(&s, 15);
    begin(&s, false, LONG, false);
    begin(&s, false, 16, true);
    work_b(&s, 15);
    uint64_t left = rle_fault_left(RLE_FAULT_ALLOC);
    bool hit = left == 0 || (persistent && left == 1);
    rle_fault_order(RLE_FAULT_ALLOC, 0, false);
    scene_recover(&s);
    scene_stop(&s);
    if (rle_mem_bytes() != bytes || open_fds() != fds)
        fail_msg("at %llu: %zu bytes and %zu descriptors are left",
                 (unsigned long long)nth, rle_mem_bytes() - bytes, open_fds() - fds);
    return hit;
}

static void f21_memory_may_fail_under_the_guard(void **state)
{
    (void)state;
    uint64_t runs = 0;
    with_guard = true;
    for (int persistent = 0; persistent < 2; persistent++)
        for (uint64_t nth = 1 + (uint64_t)persistent; guard_fails_at(nth, persistent);
             nth += getenv("RLE_FULL") ? 1 : 5)
            runs++;
    with_guard = false;
    assert_true(runs > 5);
    figure(
        "F21",
        "memory fails in %llu places while a worker's guard joins and reads: no crash, "
        "nothing left, the next call works",
        (unsigned long long)runs);
}

/* OpenSSL allocates thousands of times: a sample of the places, all with RLE_FULL. */
static void f21_openssl_may_lack_memory(void **state)
{
    (void)state;
    uint64_t runs = 0, last = 0;
    with_tls = true;
    for (int persistent = 0; persistent < 2; persistent++) {
        bool hit = true;
        for (uint64_t nth = 1; hit; nth += getenv("RLE_FULL") ? 1 : nth / 16 + 1) {
            size_t bytes = rle_mem_bytes(), fds = open_fds();
            scene s = {0};
            ssl_stays = persistent;
            ssl_left = nth;
            scene_all(&s);
            hit = persistent ? ssl_left == 1 : ssl_left == 0;
            ssl_left = 0;
            scene_recover(&s);
            scene_stop(&s);
            if (rle_mem_bytes() != bytes || open_fds() != fds)
                fail_msg("at %llu: %zu bytes and %zu descriptors are left",
                         (unsigned long long)nth, rle_mem_bytes() - bytes,
                         open_fds() - fds);
            runs++;
            last = nth;
        }
    }
    with_tls = false;
    assert_true(last > 100);
    figure(
        "F21",
        "OpenSSL lacks memory at %llu of its about %llu allocations: no crash, nothing "
        "left, the next call works",
        (unsigned long long)runs, (unsigned long long)last);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, pair_setup, pair_teardown)

int main(void)
{
    CRYPTO_set_mem_functions(ssl_malloc, ssl_realloc, ssl_free);
    const struct CMUnitTest tests[] = {
        TEST(f21_memory_may_fail_anywhere),
        TEST(f21_the_system_may_fail_anywhere),
        TEST(f21_memory_and_the_system_may_fail_anywhere_with_tls),
        TEST(f21_memory_may_fail_under_the_guard),
        TEST(f21_openssl_may_lack_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
