/* test_rpc_guard.c - the thread that keeps a worker alive for others while its owner is busy,
 * and what happens to one that has no such thread left. */
#include "rpc_pair.h"

#include <fcntl.h>

#include "figure.h"

static size_t threads(void)
{
    size_t n = 0;
    DIR *d = opendir("/proc/self/task");
    for (struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

/* A worker with a guard; nobody turns its loop but that. */
static rle_rpc *guarded(const char *name)
{
    rle_rpc_options o = {.name = name, .token = &test_token};
    rle_rpc *rpc;
    assert_int_equal(rle_rpc_new(&o, &rpc), RLE_OK);
    assert_int_equal(rle_rpc_listen(rpc, test_address, NULL), RLE_OK);
    return rpc;
}

static void turn_for(rle_rpc *rpc, double seconds)
{
    int64_t end = rle_now() + (int64_t)(seconds * 1e9);
    while (rle_now() < end) {
        rle_rpc_turn(rpc, false);
        usleep(2000);
    }
}

static const rle_rpc_options quick = {.heartbeat = RLE_SECONDS / 10,
                                      .peer_timeout = RLE_SECONDS,
                                      .busy_after = RLE_SECONDS / 5};

static void a_busy_owner_is_not_taken_for_dead(void **state)
{
    (void)state;
    size_t before = threads(), bytes = rle_mem_bytes(), fds = open_fds();
    rle_rpc *busy = guarded("busy");
    assert_int_equal(threads(), before + 1);
    rle_rpc *b = worker("b", &quick);
    char list[RLE_REF_ADDRESSES][RLE_ADDRESS_MAX];
    rle_rpc_own_addresses(busy, list);
    const char *address = list[0];
    rle_peer *peer = rle_rpc_peer(b, "busy");
    rle_peer_hint(b, peer, &address, 1);
    /* Even joining works while the owner is away. */
    rle_future *f = call(b, peer, "run", 1);
    turn_for(b, 2.0);
    assert_true(rle_peer_connected(b, peer));
    assert_true(logged("worker \"busy\" is alive but \"run\" has run for "));
    /* On a machine that is very busy the guard may say so too late to be heard. */
    rle_wire_error err = {.outcome = RLE_OUTCOME_UNKNOWN};
    rle_encoder e;
    rle_encoder_init(&e);
    for (int i = 0; i < 20 && err.outcome == RLE_OUTCOME_UNKNOWN; i++) {
        begin_call(&e, "soon", 1);
        rle_encode_integer(&e, 1);
        rle_future *soon = call_with(b, peer, "soon", &e, RLE_SECONDS / 4, false);
        wait_for(NULL, b, b, soon);
        const char *why = error_of(soon, &err);
        if (err.outcome != RLE_OUTCOME_UNKNOWN)
            assert_string_equal(
                why,
                "\"soon\" on \"busy\" was not started in time (outcome: not executed)");
        rle_future_release(b, soon);
    }
    rle_encoder_fini(&e);
    assert_int_equal(err.outcome, RLE_OUTCOME_NOT_EXECUTED);
    assert_true(rle_peer_connected(b, peer));
    assert_int_equal(rle_future_status(b, f), RLE_FUTURE_PENDING);
    /* The owner comes back and finds the call. */
    assert_true(serve_one(busy));
    rle_rpc_turn(busy, false);
    wait_for(NULL, b, b, f);
    assert_int_equal(result_of(f), 2);
    rle_future_release(b, f);
    rle_rpc_free(b);
    rle_rpc_free(busy);
    assert_int_equal(threads(), before);
    assert_int_equal(open_fds(), fds);
    assert_int_equal(rle_mem_bytes(), bytes);
}

/* The owner goes in and out while the guard is in charge: nothing is lost, nobody waits. */
static void owner_and_guard_take_turns(void **state)
{
    (void)state;
    rle_rpc *a = guarded("a");
    rle_rpc *b = worker("b", NULL);
    rle_peer *peer = link_to(b, a);
    int served = 0;
    for (int round = 0; round < 30; round++) {
        rle_future *f[8];
        for (int i = 0; i < 8; i++) f[i] = call(b, peer, "f", i);
        turn_for(b, 0.005);
        if (round % 3 == 0) usleep(130000); /* long enough for the guard */
        for (int i = 0; i < 200 && served < 8 * (round + 1); i++) {
            served += serve_one(a);
            if (round % 2) rle_rpc_turn(a, false);
            turn_for(b, 0.001);
        }
        for (int i = 0; i < 8; i++) {
            wait_for(NULL, b, b, f[i]);
            assert_int_equal(result_of(f[i]), i + 1);
            rle_future_release(b, f[i]);
        }
    }
    rle_rpc_free(b);
    rle_rpc_free(a);
}

/* Many long messages arrive while the owner is away. */
static void the_guard_drains_sockets(void **state)
{
    (void)state;
    rle_rpc *a = guarded("a");
    rle_rpc *b = worker("b", NULL);
    rle_peer *peer = link_to(b, a);
    enum { COUNT = 20, SIZE = 1 << 20 };
    rle_future *f[COUNT];
    uint8_t *data = calloc(1, SIZE);
    for (int i = 0; i < COUNT; i++) {
        memset(data, i + 1, SIZE);
        rle_array array = {.data = data, .dtype = RLE_U8, .ndim = 1, .shape = {SIZE}};
        rle_array_set_contiguous(&array);
        rle_encoder e;
        rle_encoder_init(&e);
        begin_call(&e, "put", 1);
        assert_int_equal(rle_encode_tensor(&e, &array, NULL), RLE_OK);
        f[i] = call_with(b, peer, "put", &e, 0, false);
        rle_encoder_fini(&e);
    }
    for (int i = 0; i < 400 && !rle_rpc_flushed(b); i++) turn_for(b, 0.01);
    assert_true(rle_rpc_flushed(b));
    rle_encoder e;
    rle_encoder_init(&e);
    for (int i = 0; i < COUNT;) {
        rle_incoming_info info;
        rle_decoder d;
        rle_value v;
        rle_incoming *in = rle_rpc_next_call(a, &info, &d);
        if (!in) {
            rle_rpc_turn(a, false);
            continue;
        }
        assert_int_equal(rle_decode(&d, &v), RLE_OK);
        const uint8_t *got = v.u.tensor.data;
        for (int k = 0; k < SIZE; k += 4099) assert_int_equal(got[k], i + 1);
        rle_encoder_reset(&e);
        rle_encode_result_head(&e, 0);
        rle_incoming_reply(a, in, &e);
        i++;
    }
    rle_encoder_fini(&e);
    for (int i = 0; i < COUNT; i++) {
        wait_for(NULL, b, b, f[i]);
        assert_int_equal(rle_future_status(b, f[i]), RLE_FUTURE_DONE);
        rle_future_release(b, f[i]);
    }
    free(data);
    rle_rpc_free(b);
    rle_rpc_free(a);
}

static void a_silent_worker_is_given_up(void **state)
{
    (void)state;
    pair p = make_pair(NULL, &quick);
    rle_future *f = call(p.b, p.to_a, "run", 1);
    wait_for(NULL, p.b, p.b, f); /* nobody turns a's loop, and it has no guard */
    assert_true(silent_for(f, "a") >= 1.0);
    assert_true(logged("worker \"a\" lost: did not answer for "));
    assert_true(logged(" s; 1 call failed"));
    rle_future_release(p.b, f);
    free_pair(&p);
}

static void a_timeout_alone_is_kept(void **state)
{
    (void)state;
    pair p = make_pair(NULL, &(rle_rpc_options){.peer_timeout = RLE_SECONDS / 2});
    rle_future *f = call(p.b, p.to_a, "run", 1);
    int64_t before = rle_now();
    wait_for(NULL, p.b, p.b, f);
    double took = (double)(rle_now() - before) / RLE_SECONDS, said = silent_for(f, "a");
    figure("F04", "timeout 0.5 s, heartbeat not given: given up after %.2f s", took);
    assert_true(took >= 0.45 && took < 3);
    /* The time that passed. What came last did so up to one look before the call. */
    assert_true(said >= 0.5 && said < took + 0.2);
    rle_future_release(p.b, f);
    free_pair(&p);
}

static void who_is_always_late_notices_in_time_all_the_same(void **state)
{
    (void)state;
    pair p = make_pair(NULL, &quick);
    rle_future *f = call(p.b, p.to_a, "run", 1);
    enum { LATE_US = 60000 }; /* it should look every 25 ms */
    /* Nobody is given up who answers... */
    for (int i = 0; i < 30; i++) {
        turn(p.a, p.b);
        usleep(LATE_US);
        turn(p.a, NULL);
    }
    assert_int_equal(rle_future_status(p.b, f), RLE_FUTURE_PENDING);
    /* ...and who does not is. */
    int64_t before = rle_now();
    for (int i = 0; i < 200 && rle_future_status(p.b, f) == RLE_FUTURE_PENDING; i++) {
        turn(NULL, p.b);
        usleep(LATE_US);
    }
    double took = (double)(rle_now() - before) / RLE_SECONDS;
    figure("F04", "by one that looks too late every time: after %.2f s (timeout 1 s)",
           took);
    assert_true(silent_for(f, "a") >= 1.0 && took < 6);
    rle_future_release(p.b, f);
    free_pair(&p);
}

static void a_heartbeat_that_cannot_keep_the_timeout_is_refused(void **state)
{
    (void)state;
    static const struct {
        int64_t heartbeat, timeout;
        bool fine;
    } cases[] = {{5000, 1000, false}, {600, 1000, false}, {6000, 0, false},
                 {500, 1000, true},   {5000, 0, true},    {0, 10, true},
                 {0, 1000000, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rle_rpc_options o = {.name = "a",
                             .token = &test_token,
                             .no_guard = true,
                             .heartbeat = cases[i].heartbeat * 1000000,
                             .peer_timeout = cases[i].timeout * 1000000};
        rle_rpc *rpc = NULL;
        rle_status s = rle_rpc_new(&o, &rpc);
        assert_int_equal(s, cases[i].fine ? RLE_OK : RLE_INVALID_ARGUMENT);
        if (rpc) rle_rpc_free(rpc);
        if (i == 0)
            assert_string_equal(rle_message(),
                                "heartbeat is 5 s and timeout 1 s: a worker is asked "
                                "after a heartbeat and needs "
                                "time to answer; set heartbeat to 0.5 s or less (left "
                                "out it is a third of the "
                                "timeout), or timeout to 10 s or more");
    }
}

static void descriptors_are_closed_by_exec(void **state)
{
    (void)state;
    pair p = make_pair(NULL, NULL);
    for (int fd = 3; fd < 64; fd++) {
        int flags = fcntl(fd, F_GETFD);
        if (flags >= 0 && !(flags & FD_CLOEXEC)) {
            char link[64], path[128] = "";
            snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
            ssize_t n = readlink(link, path, sizeof path - 1);
            assert_false(n > 0 && (strstr(path, "socket") || strstr(path, "eventpoll") ||
                                   strstr(path, "eventfd")));
        }
    }
    free_pair(&p);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, pair_setup, pair_teardown)

static void *nothing(void *unused)
{
    return unused;
}

int main(void)
{
    /* A sanitizer starts a thread of its own with the first one. */
    pthread_t first;
    if (pthread_create(&first, NULL, nothing, NULL) == 0) pthread_join(first, NULL);
    const struct CMUnitTest tests[] = {
        TEST(a_busy_owner_is_not_taken_for_dead),
        TEST(owner_and_guard_take_turns),
        TEST(the_guard_drains_sockets),
        TEST(a_silent_worker_is_given_up),
        TEST(a_timeout_alone_is_kept),
        TEST(who_is_always_late_notices_in_time_all_the_same),
        TEST(a_heartbeat_that_cannot_keep_the_timeout_is_refused),
        TEST(descriptors_are_closed_by_exec),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
