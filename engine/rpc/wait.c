/* wait.c - waiters: one or more futures, all or any of them, perhaps a deadline. */
#include "rpc/rpc_internal.h"

static void unlink_all(rle_waiter *w)
{
    for (size_t i = 0; i < w->link_count; i++) {
        rle_wait_link *link = &w->links[i];
        if (!link->at) continue;
        *link->at = link->next;
        if (link->next) link->next->at = link->at;
        link->at = NULL;
    }
    if (w->links != &w->one) rle_free(w->links);
    w->links = NULL;
    w->link_count = 0;
}

static void make_ready(rle_waiter *w)
{
    rle_rpc *rpc = w->rpc;
    unlink_all(w);
    rle_timer_disarm(&rpc->loop, &w->timer);
    w->ready = true;
    w->next = NULL;
    w->at = rpc->ready_end;
    *rpc->ready_end = w;
    rpc->ready_end = &w->next;
}

static void leave_queue(rle_waiter *w)
{
    if (!w->at) return;
    *w->at = w->next;
    if (w->next)
        w->next->at = w->at;
    else
        w->rpc->ready_end = w->at;
    w->at = NULL;
}

static void wait_timed_out(rle_timer *t)
{
    rle_waiter *w = (rle_waiter *)((char *)t - offsetof(rle_waiter, timer));
    w->timed_out = true;
    make_ready(w);
}

/* One of its futures is over: is that enough? */
static bool enough(rle_waiter *w, rle_future_state state)
{
    w->remaining--;
    return w->mode == RLE_WAIT_ANY || w->remaining == 0 ||
           (w->mode == RLE_WAIT_ALL_OR_FAILURE && state == RLE_FUTURE_FAILED);
}

void rle_wait_future_over(rle_future *f)
{
    while (f->waiters) {
        rle_wait_link *link = f->waiters;
        f->waiters = link->next;
        if (link->next) link->next->at = &f->waiters;
        link->at = NULL;
        if (enough(link->waiter, f->state)) make_ready(link->waiter);
    }
}

rle_status rle_wait_begin(rle_rpc *rpc, rle_waiter *w, rle_future *const *futures, size_t count,
                          rle_wait_mode mode, int64_t deadline)
{
    *w = (rle_waiter){.owner = w->owner, .rpc = rpc, .mode = mode, .remaining = count};
    w->links = &w->one;
    if (count > 1) {
        w->links = rle_calloc(count, sizeof *w->links);
        if (!w->links) return rle_oom(count * sizeof *w->links, "waiting");
    }
    w->link_count = count;
    w->timer.fire = wait_timed_out;
    rle_rpc_enter(rpc);
    rle_status s = deadline ? rle_timer_arm(&rpc->loop, &w->timer, deadline) : RLE_OK;
    if (s != RLE_OK) {
        unlink_all(w);
        rle_rpc_leave(rpc);
        return s;
    }
    bool over = count == 0 && !deadline;
    for (size_t i = 0; i < count && !over; i++) {
        rle_future *f = futures[i];
        if (f->state != RLE_FUTURE_PENDING) {
            over = enough(w, f->state);
            continue;
        }
        rle_wait_link *link = &w->links[i];
        link->waiter = w;
        link->next = f->waiters;
        link->at = &f->waiters;
        if (link->next) link->next->at = &link->next;
        f->waiters = link;
        w->remote = true;
    }
    if (over) make_ready(w);
    rle_rpc_leave(rpc);
    return RLE_OK;
}

void rle_wait_end(rle_rpc *rpc, rle_waiter *w)
{
    rle_rpc_enter(rpc);
    unlink_all(w);
    rle_timer_disarm(&rpc->loop, &w->timer);
    leave_queue(w);
    rle_rpc_leave(rpc);
}

void rle_wait_cancel(rle_rpc *rpc, rle_waiter *w)
{
    rle_rpc_enter(rpc);
    if (!w->ready) {
        w->cancelled = true;
        make_ready(w);
    }
    rle_rpc_leave(rpc);
}

rle_waiter *rle_rpc_next_ready(rle_rpc *rpc)
{
    rle_rpc_enter(rpc);
    rle_waiter *w = rpc->ready;
    if (w) leave_queue(w);
    rle_rpc_leave(rpc);
    return w;
}
