/* batch.c - see batch.h.
 *
 * Invariants, with the lock
 *   1. a call with in->batch lies in b->calls at in->batch_slot; slots of calls that left
 *      have in == NULL;
 *   2. b->awaited counts callers with `awaited`, b->missing those of them without a call
 * in the batch;
 *   3. a batch with calls is either in rpc->due, or its timer is armed, or it stands in
 *      rpc->unarmed and the next turn arms it. So a batch that is full, or whole, before
 * the loop is run costs no timer. */
#include "rpc/batch.h"

#include <stdio.h>
#include <string.h>

#include "rpc/batch_internal.h"

_Static_assert((int)RLE_FLUSH_REASONS == (int)RLE_BATCH_REASONS, "counters of rpc.h");

struct rle_batch {
    rle_rpc *rpc;
    rle_batch_options o;
    rle_batch *next, **at; /* in rpc->batches */
    rle_map callers;       /* peer -> rle_batch_caller */
    size_t awaited, missing;
    rle_batch_calls calls; /* count: slots, with those of calls that left */
    size_t live;           /* calls */
    int64_t due_at;
    rle_timer timer;
    bool due, in_unarmed;
    rle_flush_reason reason;
    rle_batch *due_next, *unarmed_next;
};

struct rle_batch_caller {
    rle_batch *batch;
    rle_peer *peer;
    rle_batch_caller *next_of_peer, **at;
    size_t waiting; /* its calls in the batch */
    bool awaited;
    bool episode; /* we had a call open to it when it joined */
};

static uint64_t key_of(const rle_peer *peer)
{
    return (uint64_t)(uintptr_t)peer;
}

static rle_batch_caller *caller_of(const rle_batch *b, const rle_peer *peer)
{
    rle_map_slot *slot = rle_map_get(&b->callers, key_of(peer));
    return slot ? slot->v.pointer : NULL;
}

/* ---- when it is due ---- */

static void set_due(rle_batch *b, rle_flush_reason reason)
{
    if (b->due || !b->live) return;
    rle_rpc *rpc = b->rpc;
    rle_timer_disarm(&rpc->loop, &b->timer);
    b->due = true;
    b->reason = reason;
    b->due_next = NULL;
    *rpc->due_end = b;
    rpc->due_end = &b->due_next;
}

static void unset_due(rle_batch *b)
{
    if (!b->due) return;
    rle_rpc *rpc = b->rpc;
    rle_batch **at = &rpc->due;
    while (*at != b) at = &(*at)->due_next;
    *at = b->due_next;
    if (rpc->due_end == &b->due_next) rpc->due_end = at;
    b->due = false;
}

static void look(rle_batch *b)
{
    if (!b->live) return;
    if (b->calls.rows >= b->o.size || b->rpc->serving >= (size_t)b->rpc->o.max_concurrent)
        set_due(b, RLE_FLUSH_FULL);
    else if (b->awaited && !b->missing)
        set_due(b, RLE_FLUSH_ALL);
    else if (b->o.delay == 0)
        set_due(b, RLE_FLUSH_DELAY);
}

static void delay_over(rle_timer *t)
{
    set_due((rle_batch *)((char *)t - offsetof(rle_batch, timer)), RLE_FLUSH_DELAY);
}

void rle_batches_arm(rle_rpc *rpc)
{
    while (rpc->unarmed) {
        rle_batch *b = rpc->unarmed;
        rpc->unarmed = b->unarmed_next;
        b->in_unarmed = false;
        if (!b->live || b->due) continue;
        /* Without memory for a timer it does not wait. */
        if (rle_timer_arm(&rpc->loop, &b->timer, b->due_at) != RLE_OK)
            set_due(b, RLE_FLUSH_DELAY);
    }
}

static void leave_unarmed(rle_batch *b)
{
    if (!b->in_unarmed) return;
    rle_batch **at = &b->rpc->unarmed;
    while (*at != b) at = &(*at)->unarmed_next;
    *at = b->unarmed_next;
    b->in_unarmed = false;
}

void rle_batches_stop(rle_rpc *rpc)
{
    for (rle_batch *b = rpc->batches; b; b = b->next) set_due(b, RLE_FLUSH_DELAY);
}

/* ---- who is waited for ---- */

static void await(rle_batch_caller *c)
{
    const rle_conn *conn = c->peer->conn;
    c->episode = conn && conn->calls.used > 0;
    if (c->awaited) return;
    c->awaited = true;
    c->batch->awaited++;
    if (!c->waiting) c->batch->missing++;
}

static void forget(rle_batch_caller *c)
{
    if (!c->awaited) return;
    c->awaited = false;
    c->batch->awaited--;
    if (!c->waiting) c->batch->missing--;
    look(c->batch);
}

/* Its episode has ended since it joined. */
static bool episode_over(const rle_batch_caller *c)
{
    return c->episode && (!c->peer->conn || !c->peer->conn->calls.used);
}

void rle_batches_episode_over(rle_peer *peer)
{
    for (rle_batch_caller *c = peer->batches; c; c = c->next_of_peer)
        if (!c->waiting && episode_over(c)) forget(c);
}

void rle_batches_peer_lost(rle_peer *peer)
{
    for (rle_batch_caller *c = peer->batches; c; c = c->next_of_peer) forget(c);
}

void rle_batches_forget(rle_peer *peer)
{
    while (peer->batches) {
        rle_batch_caller *c = peer->batches;
        peer->batches = c->next_of_peer;
        forget(c);
        rle_map_delete(&c->batch->callers, key_of(peer));
        rle_free(c);
    }
}

/* A call of this worker has come that nobody has taken yet: the owner was away. */
static bool has_queued_call(const rle_peer *peer)
{
    if (!peer->conn) return false;
    for (const rle_incoming *in = peer->conn->incoming; in; in = in->next)
        if (in->queued) return true;
    return false;
}

/* After a flush: none of its callers has a call in the batch now. */
static void settle_callers(rle_batch *b, bool drop_absent)
{
    RLE_MAP_EACH(&b->callers, slot)
    {
        rle_batch_caller *c = slot->v.pointer;
        bool came = c->waiting > 0;
        c->waiting = 0;
        if (!c->awaited) continue;
        if (episode_over(c) || (drop_absent && !came && !has_queued_call(c->peer))) {
            c->awaited = false;
            b->awaited--;
        }
    }
    b->missing = b->awaited;
}

bool rle_batch_knows(rle_rpc *rpc, const rle_batch *b, const rle_peer *peer)
{
    (void)rpc; /* only the owner adds callers */
    return caller_of(b, peer) != NULL;
}

rle_status rle_batch_admit(rle_rpc *rpc, rle_batch *b, rle_peer *peer)
{
    rle_status s = RLE_OK;
    rle_batch_caller *c = caller_of(b, peer) ? NULL : rle_calloc(1, sizeof *c);
    rle_rpc_enter(rpc);
    if (!caller_of(b, peer)) {
        rle_map_slot *slot = c ? rle_map_put(&b->callers, key_of(peer)) : NULL;
        if (slot) {
            *c = (rle_batch_caller){.batch = b,
                                    .peer = peer,
                                    .next_of_peer = peer->batches,
                                    .at = &peer->batches};
            if (c->next_of_peer) c->next_of_peer->at = &c->next_of_peer;
            peer->batches = c;
            slot->v.pointer = c;
        } else {
            rle_free(c);
            s = rle_oom(sizeof *c, "caller of a batch");
        }
    }
    rle_rpc_leave(rpc);
    return s;
}

/* ---- calls ---- */

static rle_status grow(rle_batch_calls *calls)
{
    if (calls->count < calls->capacity) return RLE_OK;
    size_t capacity = calls->capacity ? calls->capacity * 2 : 16;
    rle_batch_call *list = rle_realloc(calls->list, capacity * sizeof *list);
    if (!list) return rle_oom(capacity * sizeof *list, "calls of a batch");
    calls->list = list;
    calls->capacity = capacity;
    return RLE_OK;
}

rle_status rle_batch_add(rle_rpc *rpc, rle_batch *b, rle_incoming *in,
                         const rle_batch_call *call)
{
    rle_rpc_enter(rpc);
    rle_status s = RLE_OK;
    if (!in->conn || in->cancelled) {
        rle_incoming_abandon(in);
    } else if ((s = grow(&b->calls)) == RLE_OK) {
        rle_batch_call *slot = &b->calls.list[b->calls.count];
        *slot = *call;
        slot->in = in;
        slot->caller = in->peer;
        slot->number = in->number;
        slot->deadline = in->deadline;
        in->batch = b;
        in->batch_slot = b->calls.count++;
        if (b->live++ == 0) {
            b->due_at = rle_turn_time(rpc) + b->o.delay;
            if (!b->in_unarmed) {
                b->in_unarmed = true;
                b->unarmed_next = rpc->unarmed;
                rpc->unarmed = b;
            }
        }
        b->calls.rows += call->rows;
        /* Without memory for a timer it is found out when the batch is taken. */
        if (in->deadline && in->deadline < b->due_at)
            rle_timer_arm(&rpc->loop, &in->timer, in->deadline);
        rle_batch_caller *c = caller_of(b, in->peer);
        await(c);
        if (c->waiting++ == 0) b->missing--;
        look(b);
    }
    rle_rpc_leave(rpc);
    return s;
}

void rle_batch_remove(rle_incoming *in)
{
    rle_batch *b = in->batch;
    rle_batch_call *slot = &b->calls.list[in->batch_slot];
    rle_batch_caller *c = caller_of(b, in->peer);
    rle_timer_disarm(&b->rpc->loop, &in->timer);
    slot->in = NULL;
    in->batch = NULL;
    b->calls.rows -= slot->rows;
    if (--c->waiting == 0 && c->awaited) b->missing++;
    b->live--;
    /* Its episode may have ended while its call was here. */
    if (!c->waiting && episode_over(c)) forget(c);
    if (b->live) return;
    /* Nothing is left that could be flushed. */
    rle_timer_disarm(&b->rpc->loop, &b->timer);
    unset_due(b);
    b->calls.count = 0;
}

size_t rle_batch_waiting(rle_rpc *rpc, const rle_batch *b)
{
    rle_rpc_enter(rpc);
    size_t n = b->live;
    rle_rpc_leave(rpc);
    return n;
}

/* ---- flushing ---- */

rle_batch *rle_rpc_next_batch(rle_rpc *rpc)
{
    rle_rpc_enter(rpc);
    rle_batch *b = rpc->due;
    rle_rpc_leave(rpc);
    return b;
}

bool rle_rpc_batches_eager(rle_rpc *rpc)
{
    bool any = false;
    rle_rpc_enter(rpc);
    for (const rle_batch *b = rpc->batches; b && !any; b = b->next)
        any = b->o.when_idle && b->live;
    rle_rpc_leave(rpc);
    return any;
}

bool rle_rpc_batches_idle(rle_rpc *rpc)
{
    rle_rpc_enter(rpc);
    for (rle_batch *b = rpc->batches; b; b = b->next)
        if (b->o.when_idle) set_due(b, RLE_FLUSH_IDLE);
    bool any = rpc->due != NULL;
    rle_rpc_leave(rpc);
    return any;
}

/* Deadlines that have passed, slots of calls that left. */
static void tidy(rle_batch *b)
{
    int64_t now = rle_now();
    for (size_t i = 0; i < b->calls.count; i++) {
        rle_incoming *in = b->calls.list[i].in;
        if (in && in->deadline && now >= in->deadline) rle_incoming_expire(in);
    }
    size_t kept = 0;
    for (size_t i = 0; i < b->calls.count; i++) {
        rle_incoming *in = b->calls.list[i].in;
        if (!in) continue;
        rle_timer_disarm(&b->rpc->loop, &in->timer);
        in->batch = NULL;
        b->calls.list[kept++] = b->calls.list[i];
    }
    b->calls.count = kept;
}

void rle_batch_take(rle_rpc *rpc, rle_batch *b, rle_flush_reason reason,
                    rle_batch_calls *into)
{
    rle_rpc_enter(rpc);
    if (b->due) reason = b->reason;
    rpc->turn_at = 0; /* handlers may have computed since it was read */
    tidy(b);
    unset_due(b);
    rle_timer_disarm(&rpc->loop, &b->timer);
    rle_batch_calls calls = b->calls;
    b->calls = (rle_batch_calls){.list = into->list, .capacity = into->capacity};
    *into = calls;
    b->live = 0;
    if (into->count) {
        settle_callers(b, reason == RLE_FLUSH_DELAY && b->o.delay > 0);
        rpc->counters.batches++;
        rpc->counters.batch_calls += into->count;
        rpc->counters.batch_rows += into->rows;
        rpc->counters.batch_reasons[reason]++;
    }
    rle_rpc_leave(rpc);
}

/* ---- life ---- */

rle_status rle_batch_new(rle_rpc *rpc, const rle_batch_options *options, rle_batch **out)
{
    rle_batch *b = rle_calloc(1, sizeof *b);
    if (!b) return rle_oom(sizeof *b, "batch");
    b->rpc = rpc;
    b->o = *options;
    b->timer.fire = delay_over;
    rle_rpc_enter(rpc);
    b->next = rpc->batches;
    b->at = &rpc->batches;
    if (b->next) b->next->at = &b->next;
    rpc->batches = b;
    rle_rpc_leave(rpc);
    *out = b;
    return RLE_OK;
}

void rle_batch_free(rle_rpc *rpc, rle_batch *b)
{
    rle_rpc_enter(rpc);
    for (size_t i = 0; i < b->calls.count; i++) {
        rle_incoming *in = b->calls.list[i].in;
        if (in) rle_incoming_refuse_stopping(in);
    }
    leave_unarmed(b);
    *b->at = b->next;
    if (b->next) b->next->at = b->at;
    RLE_MAP_EACH(&b->callers, slot)
    {
        rle_batch_caller *c = slot->v.pointer;
        *c->at = c->next_of_peer;
        if (c->next_of_peer) c->next_of_peer->at = c->at;
        rle_free(c);
    }
    rle_rpc_leave(rpc);
    rle_map_fini(&b->callers);
    rle_free(b->calls.list);
    rle_free(b);
}

void *rle_batch_owner(const rle_batch *b)
{
    return b->o.owner;
}
