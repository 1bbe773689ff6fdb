/* test_rpc_threads.c - every way in which two threads meet in an rle_rpc: the owner that
 * comes and goes while the guard runs the loop, wake-ups from other threads, calls that
 * arrive, end, expire and are published while nobody is there. Run under ThreadSanitizer
 * too. */
#include "rpc_pair.h"

#include <pthread.h>

static _Atomic bool stop_waking;

static void *wake_often(void *rpc)
{
    while (!stop_waking) {
        rle_rpc_wake(rpc);
        rle_rpc_wake_all();
        usleep(3000);
    }
    return NULL;
}

static rle_rpc *guarded(const char *name)
{
    rle_rpc_options o = {.name = name,
                         .token = &test_token,
                         .heartbeat = RLE_SECONDS / 20,
                         .peer_timeout = 20 * RLE_SECONDS,
                         .busy_after = RLE_SECONDS / 10};
    rle_rpc *rpc = NULL;
    assert_int_equal(rle_rpc_new(&o, &rpc), RLE_OK);
    return rpc;
}

/* A version that is long enough to be written in pieces. */
static void publish(rle_publication *p, int64_t version)
{
    static uint8_t bytes[400000];
    rle_array a = {.data = bytes, .dtype = RLE_U8, .ndim = 1, .shape = {sizeof bytes}};
    rle_encoder e;
    uint8_t *to;
    rle_encoder_init(&e);
    rle_encode_result_head(&e, 2);
    rle_encode_integer(&e, version);
    assert_int_equal(rle_encode_tensor(&e, &a, NULL), RLE_OK);
    assert_int_equal(rle_publication_stage(p, &e, true, &to), RLE_OK);
    memset(to, (int)version, sizeof bytes);
    rle_publication_commit(p);
    rle_encoder_fini(&e);
}

/* A worker on a thread of its own, with its own guard: it serves, is away for a while in
 * the middle of everything, and serves again. */
static void *other_worker(void *address)
{
    rle_rpc *b = guarded("b");
    rle_peer *a = NULL;
    assert_int_equal(rle_rpc_connect(b, address, 10 * RLE_SECONDS, &a), RLE_OK);
    rle_future *f[4] = {0};
    rle_follower *weights = NULL;
    assert_int_equal(rle_follower_new(b, a, "policy", &weights), RLE_OK);
    for (int round = 0; rle_peer_present(b, a) && !rle_peer_left(b, a); round++) {
        for (int i = 0; i < 4; i++) {
            if (f[i]) rle_future_release(b, f[i]);
            f[i] = call(b, a, "g", i);
        }
        for (int i = 0; i < 20; i++) {
            rle_rpc_turn(b, false);
            while (serve_one(b)) {
            }
            usleep(500);
        }
        if (round % 3 == 1) usleep(130000); /* long enough for the guard to take over */
        rle_msg m;
        if (rle_follower_take(weights, &m)) rle_follower_done(weights);
        rle_future_cancel(b, f[0]);
        rle_rpc_breathe(b);
    }
    for (int i = 0; i < 4; i++)
        if (f[i]) rle_future_release(b, f[i]);
    rle_follower_discard(weights);
    rle_rpc_free(b);
    return NULL;
}

static void owner_guard_and_others_never_race(void **state)
{
    (void)state;
    rle_rpc *a = guarded("a");
    pthread_t waker, worker_thread;
    char bound[RLE_ADDRESS_MAX];
    rle_publication *weights = NULL;
    assert_int_equal(rle_rpc_listen(a, test_address, bound), RLE_OK);
    assert_int_equal(rle_publication_new(a, "policy", "", 0, &weights), RLE_OK);
    stop_waking = false;
    assert_int_equal(pthread_create(&waker, NULL, wake_often, a), 0);
    assert_int_equal(pthread_create(&worker_thread, NULL, other_worker, bound), 0);
    rle_peer *b = rle_rpc_peer(a, "b");
    int64_t end = rle_now() + 30 * RLE_SECONDS;
    while (!rle_peer_connected(a, b) && rle_now() < end) rle_rpc_turn(a, true);
    assert_true(rle_peer_connected(a, b));
    int done = 0;
    for (int round = 0; round < 12; round++) {
        rle_future *f[8];
        rle_waiter w = {0};
        for (int i = 0; i < 8; i++) f[i] = call(a, b, "f", i);
        publish(weights, round + 1);
        usleep(round % 4 == 0 ? 250000 : 20000);
        assert_int_equal(
            rle_wait_begin(a, &w, f, 8, RLE_WAIT_ALL, rle_now() + 20 * RLE_SECONDS),
            RLE_OK);
        while (!w.ready) {
            rle_rpc_turn(a, true);
            while (serve_one(a)) {
            }
            while (rle_rpc_next_ready(a)) {
            }
        }
        for (int i = 0; i < 8; i++) {
            assert_int_equal(result_of(f[i]), i + 1);
            done++;
            rle_future_release(a, f[i]);
        }
        rle_wait_end(a, &w);
        rle_peer_info info[4];
        rle_rpc_counters counters;
        rle_rpc_peers(a, info, 4);
        rle_rpc_count(a, &counters);
    }
    assert_int_equal(done, 96);
    rle_publication_close(weights);
    rle_rpc_stop(a);
    pthread_join(worker_thread, NULL);
    stop_waking = true;
    pthread_join(waker, NULL);
    rle_rpc_free(a);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, pair_setup, pair_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {TEST(owner_guard_and_others_never_race)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
