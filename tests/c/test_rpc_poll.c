/* test_rpc_poll.c - a wait that looks before it sleeps: nothing that comes while it looks
 * is missed, and looking that does not pay becomes rare. */
#include "rpc_pair.h"

#include <sys/eventfd.h>

#include "rpc/loop.h"

typedef struct bell {
    rle_evloop loop;
    rle_watch *watch;
    int fd, rings;
} bell;

static void rings(evutil_socket_t fd, short what, void *arg)
{
    (void)what;
    bell *b = arg;
    uint64_t count;
    assert_int_equal(read(fd, &count, sizeof count), sizeof count);
    b->rings += (int)count;
}

static void begin(bell *b, int64_t busy_poll)
{
    memset(b, 0, sizeof *b);
    assert_int_equal(rle_evloop_init(&b->loop), RLE_OK);
    b->loop.busy_poll = busy_poll;
    b->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    b->watch = rle_watch_new(&b->loop, b->fd, RLE_WATCH_READ, rings, b);
    assert_non_null(b->watch);
    assert_true(rle_watch_on(b->watch));
}

static void end(bell *b)
{
    rle_watch_free(b->watch);
    close(b->fd);
    rle_evloop_fini(&b->loop);
}

static void ring(bell *b)
{
    uint64_t one = 1;
    assert_int_equal(write(b->fd, &one, sizeof one), sizeof one);
}

static void *ring_later(void *arg)
{
    usleep(20000);
    ring(arg);
    return NULL;
}

static void *wake_later(void *arg)
{
    bell *b = arg;
    usleep(20000);
    rle_evloop_wake(&b->loop);
    return NULL;
}

/* A wait while another thread does something 20 ms later. */
static void wait_beside(bell *b, void *(*other)(void *))
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, other, b), 0);
    rle_evloop_lock(&b->loop);
    rle_evloop_turn(&b->loop, true);
    rle_evloop_unlock(&b->loop);
    pthread_join(thread, NULL);
}

static void nothing_is_missed(void **state)
{
    (void)state;
    size_t blocks = rle_mem_blocks(), fds = open_fds();
    /* Not at all, shorter than it takes, longer than it takes. */
    int64_t times[] = {-1, 1000, 10 * RLE_SECONDS};
    for (int i = 0; i < 3; i++) {
        bell b;
        begin(&b, times[i]);
        /* There already: a second event, which would be needed if it were missed, never
         * comes. */
        ring(&b);
        rle_evloop_lock(&b.loop);
        rle_evloop_turn(&b.loop, true);
        rle_evloop_unlock(&b.loop);
        assert_int_equal(b.rings, 1);
        assert_int_equal(b.loop.poll_hits, times[i] > 0);
        wait_beside(&b, ring_later);
        assert_int_equal(b.rings, 2);
        wait_beside(&b, wake_later);
        assert_int_equal(b.rings, 2);
        assert_int_equal(b.loop.wakes, 1);
        end(&b);
    }
    assert_int_equal(rle_mem_blocks(), blocks);
    assert_int_equal(open_fds(), fds);
}

static void nothing(rle_timer *t)
{
    (void)t;
}

static void looking_that_does_not_pay_becomes_rare(void **state)
{
    (void)state;
    bell b;
    begin(&b, 1000);
    rle_timer timer = {.fire = nothing};
    unsigned looked = 0;
    rle_evloop_lock(&b.loop);
    for (int i = 0; i < 130; i++) {
        unsigned asleep = b.loop.asleep;
        assert_int_equal(rle_timer_arm(&b.loop, &timer, rle_now() + RLE_SECONDS / 1000),
                         RLE_OK);
        while (timer.place) rle_evloop_turn(&b.loop, true);
        looked += b.loop.asleep >= asleep; /* else there is one less to sleep */
    }
    /* At waits 1, 3, 7, 15, 31, 63 and 127; unless this process itself had to wait for a
     * processor while it looked, so long that the timer was due. */
    if (b.loop.poll_hits == 0) {
        assert_int_equal(looked, 7);
        assert_int_equal(b.loop.misses, 6);
    }
    assert_true(b.loop.asleep < 64);
    /* The first that pays again: every wait looks from then on. (However long this
     * process has to wait for a processor.) */
    b.loop.busy_poll = RLE_SECONDS;
    while (b.loop.asleep) {
        ring(&b);
        rle_evloop_turn(&b.loop, true);
    }
    uint64_t hits = b.loop.poll_hits;
    for (int i = 0; i < 10; i++) {
        ring(&b);
        rle_evloop_turn(&b.loop, true);
    }
    assert_int_equal(b.loop.poll_hits, hits + 10);
    assert_int_equal(b.loop.misses, 0);
    rle_evloop_unlock(&b.loop);
    end(&b);
}

/* What came while others had the processor for long would have come without looking,
 * sooner: the process would have been woken. */
static void what_comes_late_does_not_pay(void **state)
{
    (void)state;
    int64_t times[] = {1, RLE_SECONDS}; /* nanoseconds: everything is late, nothing is */
    for (int i = 0; i < 2; i++) {
        bell b;
        begin(&b, times[i]);
        rle_evloop_lock(&b.loop);
        for (unsigned n = 1; n <= 8; n++) {
            b.loop.asleep = b.loop.at_once = 0;
            b.loop.waits = 1; /* others first */
            ring(&b);
            rle_evloop_turn(&b.loop, true);
            assert_int_equal(b.rings, n);
            assert_int_equal(b.loop.poll_hits, n);
            assert_int_equal(b.loop.misses, i ? 0 : n < 6 ? n : 6);
            assert_int_equal(b.loop.asleep, i ? 0 : (1U << b.loop.misses) - 1);
        }
        rle_evloop_unlock(&b.loop);
        end(&b);
    }
}

/* Waits that sleep and waits that look answer the same calls. */
static void calls_are_answered_either_way(void **state)
{
    (void)state;
    int64_t times[] = {-1, 20000, RLE_SECONDS};
    for (int i = 0; i < 3; i++) {
        rle_rpc_options o = {.busy_poll = times[i]};
        rle_rpc *a = worker("a", &o), *b = worker("b", &o);
        assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
        rle_peer *peer = link_to(b, a);
        for (int k = 0; k < 50; k++) {
            rle_future *f = call(b, peer, "next", k);
            while (!serve_one(a)) turn(b, a);
            turn(a, NULL);
            while (rle_future_status(b, f) == RLE_FUTURE_PENDING) rle_rpc_turn(b, true);
            assert_int_equal(result_of(f), k + 1);
            rle_future_release(b, f);
        }
        rle_rpc_free(b);
        rle_rpc_free(a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_missed),
        cmocka_unit_test(looking_that_does_not_pay_becomes_rare),
        cmocka_unit_test(what_comes_late_does_not_pay),
        cmocka_unit_test_setup_teardown(calls_are_answered_either_way, pair_setup,
                                        pair_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
