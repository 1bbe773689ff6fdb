/* loop.h - the event loop, who runs it, and timers.
 *
 * One loop per rle_rpc, one lock around it and everything it touches. Two threads may run
 * it, never at once:
 *   - the owner, which also runs Lua. It runs the loop when it waits, so a reply goes from
 *     the socket to the waiting coroutine without a change of thread;
 *   - the guard, a small thread that takes over when the owner has not run the loop for
 *     100 ms (it computes), and hands it back as soon as the owner wants the lock. It
 *     answers pings, keeps deadlines and drains sockets into buffers of its own; it runs
 *     neither Lua nor device code.
 * The owner holds the lock while it runs the loop, never while it runs Lua.
 *
 * Only this folder includes libevent. */
#ifndef RLE_RPC_LOOP_H
#define RLE_RPC_LOOP_H

#include <event2/event.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "rpc/timer.h"

typedef struct rle_evloop {
    struct event_base *base;
    pthread_mutex_t lock;
    pthread_cond_t owner_done; /* the owner let go of the lock; used while the guard runs */
    _Atomic int owner_wants;
    _Atomic uint64_t turns;    /* of the owner */
    _Atomic bool owner_inside; /* blocked in the loop, holding the lock */
    bool guard_runs;           /* the guard is in charge; changed under the lock */
    int64_t away_since;        /* while guard_runs: about when the owner left */

    /* The guard's sleep. Parked: no need to look while the owner is inside. */
    pthread_mutex_t guard_lock;
    pthread_cond_t guard_wake;
    _Atomic bool parked;
    _Atomic bool stop;
    bool have_guard;
    pthread_t guard;

    int wake_fd;
    uint64_t wakes; /* seen; changed under the lock */
    struct event *wake_event;

    struct event *timer_event;
    int64_t timer_armed; /* when libevent will call; INT64_MAX = not */
    rle_timer **heap;
    size_t timers, timer_capacity;

    /* Called with the lock before each turn; may be NULL. */
    void (*before_turn)(void *self);
    void *self;
} rle_evloop;

rle_status rle_evloop_init(rle_evloop *l);
/* Start the guard; with `false` there is none (tests that drive two ends by hand). */
rle_status rle_evloop_start(rle_evloop *l, bool guard);
void rle_evloop_fini(rle_evloop *l);

/* When the guard has the lock: ask for it and wait. */
void rle_evloop_lock_slow(rle_evloop *l);
static inline void rle_evloop_lock(rle_evloop *l)
{
    if (pthread_mutex_trylock(&l->lock) != 0) rle_evloop_lock_slow(l);
}
static inline void rle_evloop_unlock(rle_evloop *l)
{
    if (l->guard_runs) pthread_cond_signal(&l->owner_done);
    pthread_mutex_unlock(&l->lock);
}

/* One turn by the owner, lock held: `block` waits until anything happened (a descriptor, a
 * timer, rle_evloop_wake), else only what is there now. */
void rle_evloop_turn(rle_evloop *l, bool block);

/* Make a blocked turn return. From any thread and from signal handlers. */
void rle_evloop_wake(rle_evloop *l);

/* True on the thread of the guard. */
bool rle_evloop_on_guard(void);

/* Lock held. RESOURCE_EXHAUSTED. Arming an armed timer moves it. */
rle_status rle_timer_arm(rle_evloop *l, rle_timer *t, int64_t at);
void rle_timer_disarm(rle_evloop *l, rle_timer *t);

#endif
