/* loop.c - turns of the event loop, the guard thread, a heap of timers. */
#include "rpc/loop.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"

enum {
    GUARD_PATIENCE_MS = 100, /* the owner's absence until the guard takes over */
    HEAP_MIN = 64
};

static _Thread_local bool on_guard;

bool rle_evloop_on_guard(void)
{
    return on_guard;
}

/* ---- timers: a binary heap, and one libevent timer for its top ----
 *
 * The libevent timer is moved only when something earlier comes; when it fires too early,
 * because what it was for has gone, it is set again. So calls that end long before their
 * deadline cost no system call and no work in libevent. */

static void heap_set(rle_evloop *l, size_t i, rle_timer *t)
{
    l->heap[i] = t;
    t->place = i + 1;
}

static void heap_up(rle_evloop *l, size_t i, rle_timer *t)
{
    while (i > 0 && l->heap[(i - 1) / 2]->at > t->at) {
        heap_set(l, i, l->heap[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    heap_set(l, i, t);
}

static void heap_down(rle_evloop *l, size_t i, rle_timer *t)
{
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= l->timers) break;
        if (child + 1 < l->timers && l->heap[child + 1]->at < l->heap[child]->at) child++;
        if (l->heap[child]->at >= t->at) break;
        heap_set(l, i, l->heap[child]);
        i = child;
    }
    heap_set(l, i, t);
}

static void set_alarm(rle_evloop *l, int64_t at)
{
    int64_t left = at - rle_now();
    if (left < 0) left = 0;
    struct timeval tv = {.tv_sec = left / 1000000000,
                         .tv_usec = (left % 1000000000 + 999) / 1000};
    if (tv.tv_usec == 1000000) {
        tv.tv_sec++;
        tv.tv_usec = 0;
    }
    if (event_add(l->timer_event, &tv) == 0) l->timer_armed = at;
}

rle_status rle_timer_arm(rle_evloop *l, rle_timer *t, int64_t at)
{
    rle_timer_disarm(l, t);
    if (l->timers == l->timer_capacity) {
        size_t capacity = l->timer_capacity ? l->timer_capacity * 2 : HEAP_MIN;
        rle_timer **heap = rle_realloc(l->heap, capacity * sizeof *heap);
        if (!heap) return rle_oom(capacity * sizeof *heap, "timers");
        l->heap = heap;
        l->timer_capacity = capacity;
    }
    t->at = at;
    heap_up(l, l->timers++, t);
    if (at < l->timer_armed) set_alarm(l, at);
    return RLE_OK;
}

/* After a burst: a smaller block, or the old one when memory is short. */
static void heap_shrink(rle_evloop *l)
{
    size_t capacity = l->timer_capacity / 2;
    rle_timer **heap = rle_realloc(l->heap, capacity * sizeof *heap);
    if (!heap) return;
    l->heap = heap;
    l->timer_capacity = capacity;
}

void rle_timer_disarm(rle_evloop *l, rle_timer *t)
{
    if (!t->place) return;
    size_t i = t->place - 1;
    t->place = 0;
    rle_timer *last = l->heap[--l->timers];
    if (last != t) {
        if (i > 0 && l->heap[(i - 1) / 2]->at > last->at)
            heap_up(l, i, last);
        else
            heap_down(l, i, last);
    }
    if (l->timer_capacity > HEAP_MIN && l->timers < l->timer_capacity / 4) heap_shrink(l);
}

static void alarm_rings(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    rle_evloop *l = arg;
    l->timer_armed = INT64_MAX;
    int64_t now = rle_now();
    while (l->timers && l->heap[0]->at <= now) {
        rle_timer *t = l->heap[0];
        rle_timer_disarm(l, t);
        t->fire(t);
    }
    if (l->timers && l->heap[0]->at < l->timer_armed) set_alarm(l, l->heap[0]->at);
}

/* ---- waking ---- */

void rle_evloop_wake(rle_evloop *l)
{
    uint64_t one = 1;
    int before = errno;
    ssize_t n = write(l->wake_fd, &one, sizeof one);
    (void)n; /* full means that a wake-up is on its way already */
    errno = before;
}

static void woken(evutil_socket_t fd, short what, void *arg)
{
    (void)what;
    rle_evloop *l = arg;
    uint64_t count;
    ssize_t n = read(fd, &count, sizeof count);
    (void)n;
    if (!on_guard) l->wakes++;
}

/* ---- the owner ---- */

void rle_evloop_lock_slow(rle_evloop *l)
{
    /* Only the guard can be in there; it lets go when its turn ends. */
    atomic_fetch_add(&l->owner_wants, 1);
    rle_evloop_wake(l);
    pthread_mutex_lock(&l->lock);
    atomic_fetch_sub(&l->owner_wants, 1);
}

void rle_evloop_turn(rle_evloop *l, bool block)
{
    if (l->before_turn) l->before_turn(l->self);
    atomic_fetch_add_explicit(&l->turns, 1, memory_order_relaxed);
    if (!block) {
        event_base_loop(l->base, EVLOOP_NONBLOCK);
        return;
    }
    atomic_store(&l->owner_inside, true);
    event_base_loop(l->base, EVLOOP_ONCE);
    atomic_store(&l->owner_inside, false);
    if (atomic_load(&l->parked)) {
        pthread_mutex_lock(&l->guard_lock);
        atomic_store(&l->parked, false);
        pthread_cond_signal(&l->guard_wake);
        pthread_mutex_unlock(&l->guard_lock);
    }
}

/* ---- the guard ---- */

static void guard_sleep(rle_evloop *l)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += GUARD_PATIENCE_MS * 1000000L;
    if (until.tv_nsec >= 1000000000L) {
        until.tv_nsec -= 1000000000L;
        until.tv_sec++;
    }
    pthread_mutex_lock(&l->guard_lock);
    while (!atomic_load(&l->stop) &&
           pthread_cond_timedwait(&l->guard_wake, &l->guard_lock, &until) != ETIMEDOUT) {}
    pthread_mutex_unlock(&l->guard_lock);
}

/* The owner sits in the loop and nothing happens: sleep until it leaves. */
static void guard_park(rle_evloop *l)
{
    pthread_mutex_lock(&l->guard_lock);
    atomic_store(&l->parked, true);
    /* Either the owner sees `parked` when it leaves, or we see that it has left. */
    if (!atomic_load(&l->owner_inside)) atomic_store(&l->parked, false);
    while (atomic_load(&l->parked) && !atomic_load(&l->stop))
        pthread_cond_wait(&l->guard_wake, &l->guard_lock);
    atomic_store(&l->parked, false);
    pthread_mutex_unlock(&l->guard_lock);
}

static void guard_in_charge(rle_evloop *l, uint64_t seen)
{
    pthread_mutex_lock(&l->lock);
    l->guard_runs = true;
    l->away_since = rle_now() - GUARD_PATIENCE_MS * INT64_C(1000000);
    while (!atomic_load(&l->stop) && atomic_load(&l->turns) == seen) {
        if (atomic_load(&l->owner_wants)) {
            pthread_cond_wait(&l->owner_done, &l->lock);
            continue;
        }
        if (l->before_turn) l->before_turn(l->self);
        event_base_loop(l->base, EVLOOP_ONCE);
    }
    l->guard_runs = false;
    pthread_mutex_unlock(&l->lock);
}

static void *guard_main(void *arg)
{
    rle_evloop *l = arg;
    on_guard = true;
    while (!atomic_load(&l->stop)) {
        uint64_t seen = atomic_load(&l->turns);
        guard_sleep(l);
        if (atomic_load(&l->stop)) break;
        if (atomic_load(&l->turns) != seen) continue;
        if (atomic_load(&l->owner_inside))
            guard_park(l);
        else
            guard_in_charge(l, seen);
    }
    return NULL;
}

/* ---- life ---- */

rle_status rle_evloop_init(rle_evloop *l)
{
    memset(l, 0, sizeof *l);
    l->timer_armed = INT64_MAX;
    l->wake_fd = -1;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->owner_done, NULL);
    pthread_mutex_init(&l->guard_lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&l->guard_wake, &attr);
    pthread_condattr_destroy(&attr);
    l->base = event_base_new();
    l->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (l->base) {
        l->timer_event = evtimer_new(l->base, alarm_rings, l);
        if (l->wake_fd >= 0)
            l->wake_event = event_new(l->base, l->wake_fd, EV_READ | EV_PERSIST, woken, l);
    }
    if (!l->timer_event || !l->wake_event || event_add(l->wake_event, NULL) != 0) {
        rle_status s = rle_fail(RLE_RESOURCE_EXHAUSTED, "no event loop: %s", strerror(errno));
        rle_evloop_fini(l);
        return s;
    }
    return RLE_OK;
}

rle_status rle_evloop_start(rle_evloop *l, bool guard)
{
    if (!guard) return RLE_OK;
    /* Signals are for the thread that runs Lua. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 512 << 10);
    int rc = pthread_create(&l->guard, &attr, guard_main, l);
    pthread_attr_destroy(&attr);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0)
        return rle_fail(RLE_RESOURCE_EXHAUSTED, "no thread for the guard: %s", strerror(rc));
    l->have_guard = true;
    return RLE_OK;
}

void rle_evloop_fini(rle_evloop *l)
{
    if (l->have_guard) {
        pthread_mutex_lock(&l->guard_lock);
        atomic_store(&l->stop, true);
        pthread_cond_signal(&l->guard_wake);
        pthread_mutex_unlock(&l->guard_lock);
        rle_evloop_wake(l);
        pthread_cond_signal(&l->owner_done);
        pthread_join(l->guard, NULL);
        l->have_guard = false;
    }
    if (l->wake_event) event_free(l->wake_event);
    if (l->timer_event) event_free(l->timer_event);
    if (l->base) event_base_free(l->base);
    if (l->wake_fd >= 0) close(l->wake_fd);
    rle_free(l->heap);
    pthread_mutex_destroy(&l->lock);
    pthread_cond_destroy(&l->owner_done);
    pthread_mutex_destroy(&l->guard_lock);
    pthread_cond_destroy(&l->guard_wake);
    memset(l, 0, sizeof *l);
    l->wake_fd = -1;
}
