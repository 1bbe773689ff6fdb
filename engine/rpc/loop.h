/* loop.h - the event loop, who runs it, and timers.
 *
 * One loop per rle_rpc, one lock around it and everything it touches. Two threads may run
 * it, never at once:
 *   - the owner, which also runs Lua. It runs the loop when it waits, so a reply goes
 * from the socket to the waiting coroutine without a change of thread;
 *   - the guard, a small thread that takes over when the owner has not run the loop for
 *     100 ms (it computes), and hands it back as soon as the owner wants the lock. It
 *     answers pings, keeps deadlines and drains sockets into buffers of its own; it runs
 *     neither Lua nor device code.
 * The owner holds the lock while it runs the loop, never while it runs Lua.
 *
 * The lock is lopsided, because the owner takes it ten times a call and the guard once a
 * busy spell. The owner says `owner_in` with a plain store and then looks at `guard_in`;
 * the guard says `guard_in`, makes every running thread pass a memory barrier
 * (membarrier(2)), and then looks at `owner_in`. So one of them sees the other: the guard
 * gives up and comes back later, the owner asks for the lock and waits. Where there is no
 * membarrier the owner pays for a fence each time.
 *
 * What the loop watches are descriptors of libevent (rle_watch); only this folder
 * includes it.
 *
 * In a simulation (sim.h) the descriptors are simulated ones, time is virtual, turns are
 * sim_loop.c's and there is no guard. */
#ifndef RLE_RPC_LOOP_H
#define RLE_RPC_LOOP_H

#include <errno.h>
#include <event2/event.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/fault.h"
#include "base/status.h"
#include "base/world.h"
#include "rpc/timer.h"

typedef void rle_watch_fn(evutil_socket_t fd, short what, void *arg); /* with the lock */

/* Tells when a descriptor is readable, or writable, for as long as it is on. */
typedef struct rle_watch {
    struct rle_evloop *loop;
    rle_watch_fn *ready;
    void *arg;
    /* libevent's event lies behind it, in the same block */
} rle_watch;

typedef struct rle_evloop {
    struct event_base *base;

    /* The lock. */
    _Atomic int owner_in, guard_in, owner_wants;
    bool needs_fence; /* there is no membarrier */

    _Atomic uint64_t turns;    /* of the owner */
    _Atomic bool owner_inside; /* blocked in the loop, holding the lock */
    bool guard_runs;           /* the guard is in charge; written by the guard */
    int64_t away_since;        /* while guard_runs: about when the owner left */

    /* Looking again before sleeping; see rle_evloop_turn. Of the owner. */
    int64_t busy_poll;  /* so long, nanoseconds; <= 0: not at all */
    uint64_t told;      /* how often a watch told something, to whoever */
    unsigned at_once;   /* > 0: the first look has paid lately */
    unsigned waits;     /* that began without one */
    unsigned misses;    /* how often in a row nothing came; bounded */
    unsigned asleep;    /* so many waits sleep at once before the next look */
    uint64_t poll_hits; /* waits that ended while looking */

    /* The guard's sleep. Parked: no need to look while the owner is inside. */
    pthread_mutex_t guard_lock;
    pthread_cond_t guard_wake;
    _Atomic bool parked;
    _Atomic bool stop;
    bool have_guard;
    pthread_t guard;

    int wake_fd;
    uint64_t wakes; /* seen; changed under the lock */
    rle_watch *wake_watch;

    int alarm_fd; /* a timerfd: readable when the first timer is due */
    rle_watch *alarm_watch;
    int64_t alarm_at; /* what it is set to; INT64_MAX = not set */
    rle_timer **heap;
    size_t timers, timer_capacity;

    struct rle_sim_watch *simulated; /* watches, in a simulation */
    bool woken;                      /* there: rle_evloop_wake was called */

    /* Called with the lock before each turn; may be NULL. */
    void (*before_turn)(void *self);
    void *self;
} rle_evloop;

rle_status rle_evloop_init(rle_evloop *l);
/* Start the guard; with `false` there is none (tests that drive two ends by hand). */
rle_status rle_evloop_start(rle_evloop *l, bool guard);
void rle_evloop_fini(rle_evloop *l);

/* For the owner. When the guard has the lock: ask for it and wait. */
void rle_evloop_lock_slow(rle_evloop *l);
static inline void rle_evloop_lock(rle_evloop *l)
{
    atomic_store_explicit(&l->owner_in, 1, memory_order_relaxed);
    atomic_signal_fence(memory_order_seq_cst);
    if (l->needs_fence) atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&l->guard_in, memory_order_acquire)) rle_evloop_lock_slow(l);
}
static inline void rle_evloop_unlock(rle_evloop *l)
{
    atomic_store_explicit(&l->owner_in, 0, memory_order_release);
}

/* One turn by the owner, lock held: `block` waits until anything happened (a descriptor,
 * a timer, rle_evloop_wake), else only what is there now.
 *
 * A wait looks again and again for up to `busy_poll` before it sleeps, giving the
 * processor to whoever else wants it between two looks: waking a sleeping process takes
 * longer, on both sides, than a short call. When others had it for longer than a look
 * takes, it sleeps. When nothing comes in that time, or others kept the processor for ten
 * times as long, one wait sleeps at once, then three, seven and so on up to 63: who is
 * called seldom pays next to nothing, and who shares its core with others that compute is
 * woken before them instead of waiting for its turn. */
void rle_evloop_turn(rle_evloop *l, bool block);

/* The filling of a simulation. */
rle_watch *rle_sim_watch_new(rle_evloop *l, int fd, unsigned what, rle_watch_fn *ready,
                             void *arg);
void rle_sim_watch_set(rle_watch *w, bool on);
void rle_sim_watch_ring(rle_watch *w);
void rle_sim_watch_free(rle_watch *w);
void rle_sim_turn(rle_evloop *l, bool block);

/* Off at first. RLE_WATCH_ONCE: goes off by itself when it has told. NULL: no memory. */
enum { RLE_WATCH_READ = EV_READ, RLE_WATCH_WRITE = EV_WRITE, RLE_WATCH_ONCE = 0x100 };
rle_watch *rle_watch_new(rle_evloop *l, int fd, unsigned what, rle_watch_fn *ready,
                         void *arg);
void rle_watch_free(rle_watch *w); /* NULL is fine */
static inline struct event *rle_watch_event(rle_watch *w)
{
    return (struct event *)(w + 1);
}
static inline bool rle_watch_on(rle_watch *w) /* false: no memory */
{
    if (rle_simulated()) return rle_sim_watch_set(w, true), true;
    return !rle_fault_io(ENOSPC) && event_add(rle_watch_event(w), NULL) == 0;
}
static inline bool rle_watch_off(rle_watch *w)
{
    if (rle_simulated()) return rle_sim_watch_set(w, false), true;
    return event_del(rle_watch_event(w)) == 0;
}
/* As if it were readable now: told in the next turn. */
static inline void rle_watch_ring(rle_watch *w)
{
    if (rle_simulated())
        rle_sim_watch_ring(w);
    else
        event_active(rle_watch_event(w), EV_READ, 0);
}

/* Make a blocked turn return. From any thread and from signal handlers. */
void rle_evloop_wake(rle_evloop *l);

/* True on the thread of the guard. */
bool rle_evloop_on_guard(void);

/* Lock held. RESOURCE_EXHAUSTED. Arming an armed timer moves it. */
rle_status rle_timer_arm(rle_evloop *l, rle_timer *t, int64_t at);
void rle_timer_disarm(rle_evloop *l, rle_timer *t);
/* Call those whose time has come. */
void rle_timers_fire(rle_evloop *l);

#endif
