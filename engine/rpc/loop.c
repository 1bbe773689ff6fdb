/* loop.c - turns of the event loop, what it watches, the guard thread, a heap of timers. */
#include "rpc/loop.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"

enum {
    GUARD_PATIENCE_MS = 100, /* the owner's absence until the guard takes over */
    GUARD_RETRY_MS = 5,      /* until it tries again after it had to give way */
    OTHERS_RAN = 8000,       /* ns between two looks: others wanted the processor */
    AT_ONCE = 8,             /* first looks for nothing until waits do without them */
    FIRST_LOOKS = 16,        /* then every so many waits try one */
    MISSES_MAX = 6, /* of looking before sleeping: 2^6 - 1 waits then sleep at once */
    LATE = 10,      /* times busy_poll: others compute while this one waits its turn */
    HEAP_MIN = 64
};

static _Thread_local bool on_guard;

bool rle_evloop_on_guard(void)
{
    return on_guard;
}

/* ---- what is watched ---- */

static void tell(evutil_socket_t fd, short what, void *arg)
{
    rle_watch *w = arg;
    w->loop->told++;
    w->ready(fd, what, w->arg); /* which may free it */
}

rle_watch *rle_watch_new(rle_evloop *l, int fd, unsigned what, rle_watch_fn *ready,
                         void *arg)
{
    if (rle_simulated()) return rle_sim_watch_new(l, fd, what, ready, arg);
    rle_watch *w = rle_malloc(sizeof *w + event_get_struct_event_size());
    if (!w) return NULL;
    *w = (rle_watch){.loop = l, .ready = ready, .arg = arg};
    unsigned once = what & RLE_WATCH_ONCE;
    event_assign(rle_watch_event(w), l->base, fd,
                 (short)(once ? what - once : what | EV_PERSIST), tell, w);
    return w;
}

void rle_watch_free(rle_watch *w)
{
    if (rle_simulated()) {
        rle_sim_watch_free(w);
    } else if (w) {
        event_del(rle_watch_event(w));
        rle_free(w);
    }
}

/* ---- timers: a binary heap, and a timerfd for its top ----
 *
 * libevent's own timers would give every wait of the loop a time limit, which costs the
 * kernel a timer of its own each time; a descriptor that becomes readable costs nothing
 * until it does. It is set anew only when something earlier comes; when it fires too early,
 * because what it was set for has gone, it is set again. So calls that end long before
 * their deadline cost no system call. */

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
    if (rle_simulated()) {
        l->alarm_at = at;
        return;
    }
    int64_t left = at - rle_now();
    if (left < 1) left = 1; /* 0 would switch it off */
    struct itimerspec spec = {
        .it_value = {.tv_sec = left / 1000000000, .tv_nsec = left % 1000000000}};
    if (timerfd_settime(l->alarm_fd, 0, &spec, NULL) == 0) l->alarm_at = at;
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
    if (at < l->alarm_at) set_alarm(l, at);
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
    (void)what;
    rle_evloop *l = arg;
    uint64_t count;
    ssize_t n = read(fd, &count, sizeof count);
    (void)n;
    rle_timers_fire(l);
}

void rle_timers_fire(rle_evloop *l)
{
    l->alarm_at = INT64_MAX;
    int64_t now = rle_now();
    while (l->timers && l->heap[0]->at <= now) {
        rle_timer *t = l->heap[0];
        rle_timer_disarm(l, t);
        t->fire(t);
    }
    if (l->timers && l->heap[0]->at < l->alarm_at) set_alarm(l, l->heap[0]->at);
}

/* ---- waking ---- */

void rle_evloop_wake(rle_evloop *l)
{
    if (rle_simulated()) {
        l->woken = true;
        return;
    }
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

/* ---- the lock ---- */

static void futex_wait(_Atomic int *word, int while_value)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, while_value, NULL, NULL, 0);
}

static void futex_wake(_Atomic int *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static bool have_membarrier(void)
{
    return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
}

void rle_evloop_lock_slow(rle_evloop *l)
{
    atomic_store(&l->owner_wants, 1);
    do {
        atomic_store(&l->owner_in, 0);
        rle_evloop_wake(l);
        while (atomic_load(&l->guard_in)) futex_wait(&l->guard_in, 1);
        atomic_store(&l->owner_in, 1);
    } while (atomic_load(&l->guard_in));
    atomic_store(&l->owner_wants, 0);
}

static void guard_unlock(rle_evloop *l)
{
    atomic_store(&l->guard_in, 0);
    futex_wake(&l->guard_in);
}

static bool guard_try_lock(rle_evloop *l)
{
    atomic_store(&l->guard_in, 1);
    if (!l->needs_fence) syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
    if (!atomic_load(&l->owner_in)) return true;
    guard_unlock(l);
    return false;
}

/* ---- the owner ---- */

/* Is anything there now? Tells it. */
static bool look(rle_evloop *l)
{
    /* Once: alone, EVLOOP_NONBLOCK goes on as long as anything is active, and a message
     * whose tensors wait for the owner to find them a place stays readable until then. */
    uint64_t told = l->told;
    event_base_loop(l->base, EVLOOP_NONBLOCK | EVLOOP_ONCE);
    return l->told != told;
}

/* Look before sleeping, where that has paid lately. True: something was there. */
static bool came_soon(rle_evloop *l)
{
    if (l->busy_poll <= 0) return false;
    if (l->asleep) {
        l->asleep--;
        return false;
    }
    /* Who is asked by many often finds something at once. Who waits for an answer never does,
     * and had better begin with giving the processor to who makes it. */
    bool came = (l->at_once || l->waits++ % FIRST_LOOKS == 0) && look(l);
    if (came)
        l->at_once = AT_ONCE;
    else if (l->at_once)
        l->at_once--;
    int64_t now = came ? 0 : rle_now(), end = now + l->busy_poll, before = now;
    while (!came && now < end && now - before < OTHERS_RAN) {
        before = now;
        sched_yield();
        came = look(l);
        now = rle_now();
    }
    if (came) l->poll_hits++;
    if (came && (now - end) / (LATE - 1) < l->busy_poll) {
        l->misses = 0;
    } else if (now >= end) {
        if (l->misses < MISSES_MAX) l->misses++;
        l->asleep = (1U << l->misses) - 1;
    }
    return came;
}

void rle_evloop_turn(rle_evloop *l, bool block)
{
    if (l->before_turn) l->before_turn(l->self);
    /* Only the owner counts, so that need be no atomic addition. */
    uint64_t turns = atomic_load_explicit(&l->turns, memory_order_relaxed);
    atomic_store_explicit(&l->turns, turns + 1, memory_order_relaxed);
    if (rle_simulated()) {
        rle_sim_turn(l, block);
        return;
    }
    if (!block) {
        look(l);
        return;
    }
    atomic_store_explicit(&l->owner_inside, true, memory_order_relaxed);
    if (!came_soon(l)) event_base_loop(l->base, EVLOOP_ONCE);
    atomic_store(&l->owner_inside, false); /* before the look at `parked`; see guard_park */
    if (atomic_load(&l->parked)) {
        pthread_mutex_lock(&l->guard_lock);
        atomic_store(&l->parked, false);
        pthread_cond_signal(&l->guard_wake);
        pthread_mutex_unlock(&l->guard_lock);
    }
}

/* ---- the guard ---- */

static void guard_sleep(rle_evloop *l, int milliseconds)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += milliseconds * 1000000L;
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

/* The owner is away: `turns` is still what it was. */
static bool owner_away(rle_evloop *l, uint64_t seen)
{
    return !atomic_load(&l->stop) && atomic_load(&l->turns) == seen &&
           !atomic_load(&l->owner_inside);
}

static void guard_in_charge(rle_evloop *l, uint64_t seen)
{
    int64_t away_since = rle_now() - GUARD_PATIENCE_MS * INT64_C(1000000);
    while (owner_away(l, seen)) {
        if (!guard_try_lock(l)) {
            guard_sleep(l, GUARD_RETRY_MS);
            continue;
        }
        l->guard_runs = true;
        l->away_since = away_since;
        while (owner_away(l, seen) && !atomic_load(&l->owner_wants)) {
            if (l->before_turn) l->before_turn(l->self);
            event_base_loop(l->base, EVLOOP_ONCE);
        }
        l->guard_runs = false;
        guard_unlock(l);
        /* It may only have come for a moment. */
        if (owner_away(l, seen)) guard_sleep(l, GUARD_RETRY_MS);
    }
}

static void *guard_main(void *arg)
{
    rle_evloop *l = arg;
    on_guard = true;
    while (!atomic_load(&l->stop)) {
        uint64_t seen = atomic_load(&l->turns);
        guard_sleep(l, GUARD_PATIENCE_MS);
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

static void event_says(int severity, const char *line)
{
    (void)severity; /* whoever called it reports what failed */
    rle_log(RLE_LOG_DEBUG, "libevent: %s", line);
}

/* libevent's memory fails when tests order it, and it prints nothing by itself. */
static void tame_libevent(void)
{
    event_set_log_callback(event_says);
    event_set_mem_functions(rle_malloc_for_others, rle_realloc_for_others, free);
}

/* The base, or NULL; errno tells why. */
static struct event_base *make_base(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, tame_libevent);
    errno = ENOMEM; /* where it does not say */
    return rle_fault_io(EMFILE) ? NULL : event_base_new();
}

static int fd_or_fault(int fd)
{
    if (fd < 0 || !rle_fault_io(EMFILE)) return fd;
    close(fd);
    errno = EMFILE;
    return -1;
}

rle_status rle_evloop_init(rle_evloop *l)
{
    memset(l, 0, sizeof *l);
    l->alarm_at = INT64_MAX;
    l->wake_fd = l->alarm_fd = -1;
    if (rle_simulated()) return RLE_OK;
    l->needs_fence = !have_membarrier();
    pthread_mutex_init(&l->guard_lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&l->guard_wake, &attr);
    pthread_condattr_destroy(&attr);
    l->base = make_base();
    l->wake_fd = l->base ? fd_or_fault(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) : -1;
    l->alarm_fd =
        l->wake_fd < 0
            ? -1
            : fd_or_fault(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
    if (l->base && l->wake_fd >= 0 && l->alarm_fd >= 0) {
        l->wake_watch = rle_watch_new(l, l->wake_fd, RLE_WATCH_READ, woken, l);
        l->alarm_watch = rle_watch_new(l, l->alarm_fd, RLE_WATCH_READ, alarm_rings, l);
    }
    if (!l->wake_watch || !l->alarm_watch || !rle_watch_on(l->wake_watch) ||
        !rle_watch_on(l->alarm_watch)) {
        rle_status s = errno == ENOMEM ? rle_oom(sizeof *l, "event loop")
                                       : rle_fail(RLE_RESOURCE_EXHAUSTED,
                                                  "no event loop: %s", strerror(errno));
        rle_evloop_fini(l);
        return s;
    }
    return RLE_OK;
}

rle_status rle_evloop_start(rle_evloop *l, bool guard)
{
    if (!guard || rle_simulated()) return RLE_OK;
    RLE_TRY(rle_thread_start(guard_main, l, "the guard", &l->guard));
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
        pthread_join(l->guard, NULL);
        l->have_guard = false;
    }
    rle_watch_free(l->wake_watch);
    rle_watch_free(l->alarm_watch);
    if (l->base) event_base_free(l->base);
    if (l->wake_fd >= 0) close(l->wake_fd);
    if (l->alarm_fd >= 0) close(l->alarm_fd);
    rle_free(l->heap);
    if (!rle_simulated()) {
        pthread_mutex_destroy(&l->guard_lock);
        pthread_cond_destroy(&l->guard_wake);
    }
    memset(l, 0, sizeof *l);
    l->wake_fd = l->alarm_fd = -1;
}
