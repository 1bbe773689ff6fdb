/* sim_loop.c - the event loop in a simulation: what it watches, and its turns.
 *
 * Whether a simulated descriptor is readable or writable is a matter of time (sim_net.c),
 * so nothing is queued: a turn asks each watch. It calls those that are ready in random
 * order and leaves some for the next turn, as an operating system may. */
#include "base/mem.h"
#include "rpc/sim_internal.h"

typedef struct rle_sim_watch {
    rle_evloop *loop;
    struct rle_sim_watch *next;
    int fd;
    unsigned what;
    bool on, rung;
    rle_watch_fn *ready;
    void *arg;
} rle_sim_watch;

/* Those that the present turn has found ready; freed ones become NULL. */
enum { READY_MAX = 256 };
static rle_sim_watch *found[READY_MAX];
static int found_count;

rle_watch *rle_sim_watch_new(rle_evloop *l, int fd, unsigned what, rle_watch_fn *ready,
                             void *arg)
{
    rle_sim_watch *w = rle_malloc(sizeof *w);
    if (!w) return NULL;
    *w = (rle_sim_watch){.loop = l, .fd = fd, .what = what, .ready = ready, .arg = arg};
    /* Behind the others: the order must not depend on where memory lies. */
    rle_sim_watch **at = &l->simulated;
    while (*at) at = &(*at)->next;
    *at = w;
    return (rle_watch *)w;
}

void rle_sim_watch_set(rle_watch *watch, bool on)
{
    ((rle_sim_watch *)watch)->on = on;
}

void rle_sim_watch_ring(rle_watch *watch)
{
    ((rle_sim_watch *)watch)->rung = true;
}

void rle_sim_watch_free(rle_watch *watch)
{
    rle_sim_watch *w = (rle_sim_watch *)watch;
    if (!w) return;
    for (int i = 0; i < found_count; i++)
        if (found[i] == w) found[i] = NULL;
    rle_sim_watch **at = &w->loop->simulated;
    while (*at != w) at = &(*at)->next;
    *at = w->next;
    rle_free(w);
}

static int64_t watch_ready(const rle_sim_watch *w)
{
    if (w->rung) return 0;
    if (!w->on || w->fd < RLE_SIM_FD) return RLE_NEVER;
    return w->what & RLE_WATCH_READ ? rle_sim_readable(w->fd) : rle_sim_writable(w->fd);
}

/* Timers count from another moment than the simulation. */
static int64_t timer_ready(const rle_evloop *l)
{
    return l->timers ? l->heap[0]->at - RLE_SIM_EPOCH : RLE_NEVER;
}

int64_t rle_sim_loop_ready(rle_evloop *l)
{
    if (l->woken) return 0;
    int64_t at = timer_ready(l);
    for (const rle_sim_watch *w = l->simulated; w; w = w->next) {
        int64_t ready = watch_ready(w);
        if (ready < at) at = ready;
    }
    return at;
}

static void call_ready(rle_evloop *l)
{
    int64_t now = rle_sim_time();
    found_count = 0;
    for (rle_sim_watch *w = l->simulated; w && found_count < READY_MAX; w = w->next) {
        if (watch_ready(w) > now) continue;
        int i = (int)rle_sim_random((uint64_t)++found_count);
        found[found_count - 1] = found[i];
        found[i] = w;
    }
    bool several = found_count > 1;
    for (int i = 0; i < found_count; i++) {
        rle_sim_watch *w = found[i];
        if (!w || (several && rle_sim_chance(125)) || watch_ready(w) > now) continue;
        if (w->what & RLE_WATCH_ONCE) w->on = false;
        w->rung = false;
        w->ready(w->fd, (short)(w->what & ~(unsigned)RLE_WATCH_ONCE), w->arg);
    }
    found_count = 0;
}

/* How long it computed since its last turn, beyond what looking at the clock took. */
static int64_t computed(void)
{
    int64_t r = (int64_t)rle_sim_random(1000);
    if (r < 900) return rle_sim_between(1000, 30000);
    if (r < 990) return rle_sim_between(30000, 500000);
    return r < 999 ? rle_sim_between(500000, 5 * RLE_SIM_MS)
                   : rle_sim_between(5 * RLE_SIM_MS, 60 * RLE_SIM_MS);
}

void rle_sim_turn(rle_evloop *l, bool block)
{
    rle_sim_process *p = rle_sim_world.running;
    if (p->dying) return;
    if (block || rle_sim_chance(500)) {
        p->state = block ? RLE_SIM_BLOCKED : RLE_SIM_READY;
        p->turning = l;
        p->at = rle_sim_time() + computed();
        p->ahead = 0;
        rle_sim_give_way();
    }
    if (l->woken) {
        l->woken = false;
        l->wakes++;
    }
    bool timers_first = rle_sim_chance(500);
    if (timers_first) rle_timers_fire(l);
    call_ready(l);
    if (!timers_first) rle_timers_fire(l);
}
