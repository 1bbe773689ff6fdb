/* test_rpc_relink.c - connections made again by many workers, and under random faults. */
#include <sys/resource.h>

#include "figure.h"
#include "rpc_link.h"

/* Many that lost the same worker do not come back all at once, nor try for nothing. */
static void f08_many_come_back_without_a_rush(void **state)
{
    (void)state;
    bool full = getenv("RLE_FULL") != NULL;
    int n = full ? 1000 : 64, there = 0, waited = 0;
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    if (files.rlim_max < 8000 && full) n = 64;
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    rle_rpc *a = listener(NULL), **b = calloc((size_t)n, sizeof *b);
    for (int i = 0; i < n; i++) {
        char name[16];
        snprintf(name, sizeof name, "obs_%d", i);
        b[i] = worker(name, NULL);
        join(b[i], test_address, a);
    }
    test_log_count = 0;
    rle_rpc_free(a);
    for (int64_t end = rle_now() + RLE_SECONDS / 2; rle_now() < end; usleep(1000))
        for (int i = 0; i < n; i++) turn(b[i], NULL);
    a = listener(NULL);
    int64_t back = rle_now();
    int attempts = test_log_count;
    while (there < n && waited++ < 20000) {
        there = 0;
        turn(a, NULL);
        for (int i = 0; i < n; i++) {
            turn(b[i], NULL);
            there += rle_peer_connected(b[i], rle_rpc_peer(b[i], "a"));
        }
        usleep(500);
    }
    assert_int_equal(there, n);
    /* One line each that it is back; whoever tried in vain has told of another attempt. */
    int connects = n + (test_log_count - attempts - n);
    figure("F08", "%d workers back %.2f s after the restart, %d connections were made", n,
           (double)(rle_now() - back) / RLE_SECONDS, connects);
    assert_true(connects <= 2 * n);
    rle_rpc_counters c;
    rle_rpc_count(a, &c);
    assert_int_equal(c.refused_peers, 0);
    for (int i = 0; i < n; i++) rle_rpc_free(b[i]);
    free(b);
    rle_rpc_free(a);
}

/* Connections cut at either end, restarts, rivals for the name, in random order: every
 * call ends once, and nothing stays. */
static void whatever_breaks_each_call_has_one_end(void **state)
{
    (void)state;
    enum { OPEN = 40 };
    size_t bytes = rle_mem_bytes(), blocks = rle_mem_blocks(), fds = open_fds();
    rle_clock clock = {shifted, NULL};
    rle_clock_set(&clock);
    rle_rpc_options o = {.random_seed = 5,
                         .call_timeout = 100000 * RLE_SECONDS,
                         .reconnect_for = 100000 * RLE_SECONDS,
                         .max_credits = 8,
                         .heartbeat = RLE_SECONDS / 20,
                         .peer_timeout = 100 * RLE_SECONDS};
    rle_rpc *a = listener(&o), *b = worker("b", &o);
    rle_peer *to_a = join(b, test_address, a);
    rle_future *f[OPEN] = {0};
    raw rival = {.fd = -1};
    uint64_t x = 88172645463325252u, made = 0, done = 0, failed = 0, sessions = 0;
    int rounds = getenv("RLE_FULL") ? 20000 : 1000;
    for (int round = 0; round < rounds; round++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        unsigned what = (unsigned)(x % 100);
        int i = (int)(x / 100 % OPEN);
        if (what < 50 && !f[i]) {
            f[i] = what < 40
                       ? call(b, to_a, "f", round)
                       : call_object(b, to_a, rle_peer_session(b, to_a) + x / 7 % 2);
            made++;
        } else if (what < 70) {
            serve_one(a);
        } else if (what < 73) {
            rle_peer *to_b = rle_rpc_peer(a, "b");
            if (to_b->conn) cut(a, to_b);
        } else if (what < 76) {
            if (to_a->conn) cut(b, to_a);
        } else if (what < 77) {
            if (rival.fd >= 0) close(rival.fd);
            rival.fd = -1;
            rle_rpc_free(a);
            a = listener(&o);
        } else if (what < 79 && rival.fd < 0) {
            rival = raw_connect(a);
            raw_hello_and_auth(&rival, "b", what < 78 ? -1 : 7);
        } else if (what < 81 && rival.fd >= 0) {
            close(rival.fd);
            rival.fd = -1;
        }
        turn(a, b);
        usleep(200);
        clock_ahead += RLE_SECONDS / 20;
        for (i = 0; i < OPEN; i++) {
            if (!f[i] || rle_future_status(b, f[i]) == RLE_FUTURE_PENDING) continue;
            rle_future_status(b, f[i]) == RLE_FUTURE_DONE ? done++ : failed++;
            rle_future_release(b, f[i]);
            f[i] = NULL;
        }
    }
    if (rival.fd >= 0) close(rival.fd);
    sessions = b->sessions;
    for (int open = OPEN, tries = 0; open && tries < 20000; tries++) {
        open = 0;
        for (int i = 0; i < OPEN; i++) {
            if (!f[i]) continue;
            if (rle_future_status(b, f[i]) == RLE_FUTURE_PENDING) {
                open++;
                continue;
            }
            rle_future_status(b, f[i]) == RLE_FUTURE_DONE ? done++ : failed++;
            rle_future_release(b, f[i]);
            f[i] = NULL;
        }
        serve_one(a);
        turn(a, b);
        usleep(100);
        clock_ahead += RLE_SECONDS / 100;
        /* A rival that got the name is gone: b has been told, and is looked for no more.
         */
        if (state_of(b, to_a) == RLE_LINK_GIVEN_UP) break;
    }
    figure("F08",
           "%d random faults and calls, %llu connections: %llu of %llu calls answered, "
           "the others failed, none twice",
           rounds, (unsigned long long)sessions, (unsigned long long)done,
           (unsigned long long)made);
    assert_true(sessions > 2);
    assert_true(done > 0 && failed > 0);
    rle_rpc_counters c;
    rle_rpc_count(b, &c);
    assert_int_equal(c.live_futures, made - done - failed);
    for (int i = 0; i < OPEN; i++)
        if (f[i]) rle_future_release(b, f[i]);
    rle_rpc_free(b);
    rle_rpc_free(a);
    rle_clock_set(NULL);
    assert_int_equal(rle_mem_bytes(), bytes);
    assert_int_equal(rle_mem_blocks(), blocks);
    assert_int_equal(open_fds(), fds);
}

int main(void)
{
#define TEST(fn) cmocka_unit_test_setup_teardown(fn, pair_setup, pair_teardown)
    const struct CMUnitTest tests[] = {
        TEST(f08_many_come_back_without_a_rush),
        TEST(whatever_breaks_each_call_has_one_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
