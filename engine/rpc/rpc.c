/* rpc.c - life of an rle_rpc, heartbeats, turns. */
#include "rpc/rpc.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/world.h"
#include "rpc/batch_internal.h"

#define BREATH (RLE_SECONDS / 100)

/* Of this process, for rle_rpc_wake_all. Changed only by the owner thread. */
static RLE_PER_PROCESS rle_rpc *_Atomic all_rpcs;

/* ---- entering ---- */

static void empty_trash(rle_rpc *rpc)
{
    while (rpc->orphan_count) rpc->drop_handle(rpc->orphans[--rpc->orphan_count]);
    rle_followers_empty_trash(rpc);
    while (rpc->discarded) {
        rle_future *f = rpc->discarded;
        rpc->discarded = f->next_discarded;
        rle_future_unref(f);
    }
    rle_refs_empty_trash(rpc);
}

void rle_rpc_enter(rle_rpc *rpc)
{
    rle_evloop_lock(&rpc->loop);
    if (rpc->trash_count || rpc->discarded || rpc->orphan_count || rpc->gone_followers)
        empty_trash(rpc);
}

static void throw_away(rle_rpc *rpc, rle_trash t)
{
    if (rpc->trash_count == rpc->trash_cap) {
        size_t cap = rpc->trash_cap ? rpc->trash_cap * 2 : 64;
        rle_trash *list = rle_realloc(rpc->trash, cap * sizeof *list);
        if (!list) return; /* the connection's end gives it back */
        rpc->trash = list;
        rpc->trash_cap = cap;
    }
    rpc->trash[rpc->trash_count++] = t;
}

void rle_ref_discard(rle_rpc *rpc, rle_peer *peer, uint64_t session, uint64_t object,
                     uint32_t count)
{
    throw_away(rpc, (rle_trash){RLE_TRASH_REF, peer, session, object, count});
}

void rle_export_discard(rle_rpc *rpc, uint64_t object)
{
    throw_away(rpc, (rle_trash){.kind = RLE_TRASH_EXPORT, .object = object});
}

/* ---- heartbeats ---- */

static int64_t tick_interval(const rle_rpc *rpc)
{
    int64_t interval = rpc->o.heartbeat / 4;
    if (interval < RLE_SECONDS / 50) interval = RLE_SECONDS / 50;
    return interval < RLE_SECONDS ? interval : RLE_SECONDS;
}

static void check_conn(rle_conn *conn, int64_t now)
{
    rle_rpc *rpc = conn->rpc;
    if (conn->active)
        conn->heard = now;
    else
        rle_conn_trim(conn);
    conn->active = false;
    int64_t silent = now - conn->heard;
    if (conn->out_over_since && now - conn->out_over_since > RLE_OUT_PATIENCE) {
        rle_conn_close(conn, "not reading: 8 MiB or more waited for 10.0 s", false);
        return;
    }
    /* It may talk, and take nothing of what we say. What the transport keeps has not
     * gone. */
    uint64_t gone = conn->bytes_out - rle_conn_unsent(conn);
    if (!conn->write_armed || gone != conn->out_seen) {
        conn->out_seen = gone;
        conn->out_still = now;
    } else if (now - conn->out_still > RLE_OUT_PATIENCE &&
               now - conn->out_still > rpc->o.peer_timeout) {
        char reason[64];
        snprintf(reason, sizeof reason, "not reading: nothing was taken for %.1f s",
                 (double)(now - conn->out_still) / RLE_SECONDS);
        rle_conn_close(conn, reason, false);
        return;
    }
    if (silent >= rpc->o.peer_timeout && conn->pinged) {
        char reason[64];
        snprintf(reason, sizeof reason, "did not answer for %.1f s",
                 (double)silent / RLE_SECONDS);
        /* A process that was stopped finds it when it goes on. */
        rle_conn_goaway(conn, RLE_UNAVAILABLE);
        rle_conn_close(conn, reason, false);
        return;
    }
    /* A busy worker with open calls is asked too, though it talks: for the busy log. */
    if (silent >= rpc->o.heartbeat &&
        (!conn->pinged || now - conn->pinged >= rpc->o.heartbeat)) {
        conn->pinged = now;
        rle_conn_control(conn, RLE_FRAME_PING, 0, (uint64_t)now, 0);
    }
}

static void tick(rle_timer *t)
{
    rle_rpc *rpc = (rle_rpc *)((char *)t - offsetof(rle_rpc, tick));
    int64_t now = rle_now(), interval = tick_interval(rpc);
    /* When nobody ran the loop for a while (the process was stopped), what others sent
     * has to be read before anybody is called silent. By the next time it is, however
     * late that comes. */
    bool late = now - t->at > interval && !rpc->tick_late;
    rpc->tick_late = late;
    for (rle_conn *conn = rpc->conns, *next; conn && !late; conn = next) {
        next = conn->next;
        if (conn->state == RLE_CONN_OPEN) check_conn(conn, now);
    }
    if (rpc->strangers) rle_strangers_count(rpc, now);
    rle_repeats_tell(rpc, now, false);
    rle_handover_expire(rpc, now);
    rle_timer_arm(&rpc->loop, t, now + interval);
}

/* ---- turns ---- */

static void before_turn(void *self)
{
    rle_rpc *rpc = self;
    rpc->turn_at = 0;
    rle_readers_turn(rpc);
    if (rpc->dirty) rle_conn_flush_dirty(rpc);
    if (rpc->long_turns) rle_conn_write_long(rpc, RLE_OUT_TURN);
    if (rpc->unread) rle_conn_read_held(rpc);
    if (rpc->dead) rle_conn_free_dead(rpc);
    if (rpc->borrowed_count) rle_message_settle(rpc);
    if (rpc->fresh) rle_server_arm_expiry(rpc);
    if (rpc->unarmed) rle_batches_arm(rpc);
}

static unsigned work(rle_rpc *rpc)
{
    return (rpc->ready ? RLE_WORK_READY : 0) | (rpc->cancelled ? RLE_WORK_CANCELLED : 0) |
           (rpc->changed ? RLE_WORK_MEMBER : 0) |
           (rle_rpc_can_start(rpc) ? RLE_WORK_CALL : 0) |
           (rpc->dropped_count ? RLE_WORK_DROPPED : 0) |
           (rpc->placements ? RLE_WORK_PLACE : 0) | (rpc->due ? RLE_WORK_BATCH : 0);
}

static void turn(rle_rpc *rpc, bool block)
{
    rpc->round++;
    rpc->look_due = false;
    rle_evloop_turn(&rpc->loop, block);
}

unsigned rle_rpc_turn(rle_rpc *rpc, bool block)
{
    rle_rpc_enter(rpc);
    if (rpc->idle_count > RLE_PEERS_REMEMBERED) rle_peers_forget(rpc);
    unsigned w = block ? work(rpc) : 0;
    if (!w) {
        turn(rpc, block);
        w = work(rpc);
    }
    rle_rpc_leave(rpc);
    return w;
}

void rle_rpc_breathe(rle_rpc *rpc)
{
    int64_t now = rle_now();
    if (now - rpc->last_turn < BREATH) return;
    rle_rpc_enter(rpc);
    turn(rpc, false);
    rpc->last_turn = now;
    rle_rpc_leave(rpc);
}

void rle_rpc_wake(rle_rpc *rpc)
{
    rle_evloop_wake(&rpc->loop);
}

void rle_rpc_wake_all(void)
{
    rle_rpc *rpc = all_rpcs;
    if (rpc) rle_evloop_wake(&rpc->loop);
}

uint64_t rle_rpc_wakes(rle_rpc *rpc)
{
    return rpc->loop.wakes; /* counted by turns of the owner only, who asks */
}

static void watched(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    *(bool *)arg = true;
}

rle_status rle_rpc_watch(rle_rpc *rpc, int fd, bool *readable)
{
    rle_status s = RLE_OK;
    rle_rpc_enter(rpc);
    rle_watch_free(rpc->watch);
    rpc->watch = NULL;
    if (fd >= 0) {
        /* Not persistent: the guard must not spin on something only the owner reads. */
        rpc->watch = rle_watch_new(&rpc->loop, fd, RLE_WATCH_READ | RLE_WATCH_ONCE,
                                   watched, readable);
        if (!rpc->watch || !rle_watch_on(rpc->watch))
            s = rle_oom(0, "watched descriptor");
    }
    rle_rpc_leave(rpc);
    return s;
}

/* ---- stopping ---- */

void rle_rpc_stop(rle_rpc *rpc)
{
    rle_rpc_enter(rpc);
    if (!rpc->stopping) {
        rpc->stopping = true;
        rle_link_end_all(rpc);
        rle_rpc_refuse_queued(rpc);
        rle_batches_stop(rpc);
        for (rle_conn *conn = rpc->conns, *next; conn; conn = next) {
            next = conn->next;
            if (conn->state == RLE_CONN_OPEN) rle_conn_goaway(conn, RLE_OK);
        }
        RLE_MAP_EACH(&rpc->peers, slot)
            for (rle_peer *p = slot->v.pointer; p; p = p->next_same)
                rle_peer_fail_held(p, RLE_UNAVAILABLE, "this worker is stopping and did not send ",
                                   " (outcome: not executed)");
    }
    rle_rpc_leave(rpc);
}

bool rle_rpc_stopping(const rle_rpc *rpc)
{
    return rpc->stopping;
}

void rle_rpc_open_calls(rle_rpc *rpc, size_t *serving, size_t *calling)
{
    rle_rpc_enter(rpc);
    *serving = rpc->serving + rpc->queued;
    *calling = 0;
    for (const rle_conn *conn = rpc->conns; conn; conn = conn->next)
        *calling += conn->calls.used;
    rle_rpc_leave(rpc);
}

bool rle_rpc_flushed(rle_rpc *rpc)
{
    bool all = true;
    rle_rpc_enter(rpc);
    rle_conn_flush_dirty(rpc);
    for (const rle_conn *conn = rpc->conns; conn; conn = conn->next)
        if (conn->state == RLE_CONN_OPEN && conn->write_armed) all = false;
    rle_rpc_leave(rpc);
    return all;
}

void rle_rpc_count(rle_rpc *rpc, rle_rpc_counters *out)
{
    rle_rpc_enter(rpc);
    *out = rpc->counters;
    out->exported_objects = rpc->exports.used;
    out->timers = rpc->loop.timers;
    rle_rpc_leave(rpc);
}

const char *rle_rpc_name(const rle_rpc *rpc)
{
    return rpc->name;
}

uint64_t rle_rpc_incarnation(const rle_rpc *rpc)
{
    return rpc->incarnation;
}

/* ---- life ---- */

static void defaults(rle_rpc_options *o)
{
    if (!o->max_concurrent) o->max_concurrent = 256;
    if (!o->max_credits) o->max_credits = 64;
    if (!o->peer_timeout) o->peer_timeout = 10 * RLE_SECONDS;
    if (!o->heartbeat) {
        o->heartbeat = o->peer_timeout / 3;
        if (o->heartbeat > 3 * RLE_SECONDS) o->heartbeat = 3 * RLE_SECONDS;
    }
    if (!o->call_timeout) o->call_timeout = 60 * RLE_SECONDS;
    if (!o->busy_after) o->busy_after = 30 * RLE_SECONDS;
    if (!o->join_timeout) o->join_timeout = 10 * RLE_SECONDS;
    if (!o->reconnect_for) o->reconnect_for = 60 * RLE_SECONDS;
    if (!o->busy_poll) o->busy_poll = 50000;
    if (!o->max_message) o->max_message = 64 << 20;
    if (!o->min_version) o->min_version = RLE_PROTOCOL_VERSION;
    if (!o->max_version) o->max_version = RLE_PROTOCOL_VERSION;
}

/* A worker is asked when it has said nothing for a heartbeat, and has to have time for
 * its answer before it is given up. */
static rle_status check_heartbeat(const rle_rpc_options *o)
{
    if (o->heartbeat <= o->peer_timeout / 2) return RLE_OK;
    double heartbeat = (double)o->heartbeat / RLE_SECONDS;
    double timeout = (double)o->peer_timeout / RLE_SECONDS;
    return rle_fail(
        RLE_INVALID_ARGUMENT,
        "heartbeat is %g s and timeout %g s: a worker is asked after a heartbeat and "
        "needs time to answer; set heartbeat to %g s or less (left out it is a third "
        "of the timeout), or timeout to %g s or more",
        heartbeat, timeout, timeout / 2, 2 * heartbeat);
}

rle_status rle_rpc_new(const rle_rpc_options *options, rle_rpc **out)
{
    const char *name = options->name;
    if (!name || !rle_name_ok(name, strlen(name)))
        return rle_fail(RLE_INVALID_ARGUMENT,
                        "a worker's name is 1 to %d letters, digits, \"_\", \".\" or \"-\", not "
                        "\"%.80s\"",
                        RLE_NAME_MAX, name ? name : "");
    rle_rpc_options o = *options;
    defaults(&o);
    RLE_TRY(check_heartbeat(&o));
    rle_rpc *rpc = rle_calloc(1, sizeof *rpc);
    if (!rpc) return rle_oom(sizeof *rpc, "rpc");
    rpc->o = o;
    snprintf(rpc->name, sizeof rpc->name, "%s", name);
    rpc->o.name = rpc->name;
    rpc->token = *options->token;
    rpc->turns_end = &rpc->turns;
    rle_handover_init(rpc);
    rpc->long_end = &rpc->long_turns;
    rpc->read_round = 1;
    rpc->ready_end = &rpc->ready;
    rpc->due_end = &rpc->due;
    rpc->changed_end = &rpc->changed;
    rpc->idle_end = &rpc->idle;
    rle_status s = rle_evloop_init(&rpc->loop);
    if (s != RLE_OK) {
        rle_token_forget(&rpc->token);
        rle_free(rpc);
        return s;
    }
    rpc->loop.before_turn = before_turn;
    rpc->loop.busy_poll = rpc->o.busy_poll;
    rpc->loop.self = rpc;
    rpc->scratch = rle_malloc(RLE_SCRATCH_SIZE);
    rpc->borrowed_cap = 64;
    rpc->borrowed = rle_malloc(rpc->borrowed_cap * sizeof *rpc->borrowed);
    rpc->guard_scratch = options->no_guard ? NULL : rle_malloc(RLE_SCRATCH_SIZE);
    if (options->allow_uid_count) {
        size_t size = (size_t)options->allow_uid_count * sizeof *rpc->allow_uids;
        rpc->allow_uids = rle_malloc(size);
        if (rpc->allow_uids) memcpy(rpc->allow_uids, options->allow_uids, size);
    }
    if (!rpc->scratch || !rpc->borrowed || (!options->no_guard && !rpc->guard_scratch) ||
        (options->allow_uid_count && !rpc->allow_uids) || !rle_peer_get(rpc, rpc->name))
        s = rle_oom(RLE_SCRATCH_SIZE, "rpc");
    rpc->o.tls = NULL; /* the caller's */
    if (s == RLE_OK && options->tls)
        s = rle_tls_new(options->tls, &rpc->token, &rpc->tls);
    while (s == RLE_OK && !rpc->incarnation)
        s = rle_random_bytes(&rpc->incarnation, sizeof rpc->incarnation);
    rpc->random = options->random_seed;
    while (s == RLE_OK && !rpc->random)
        s = rle_random_bytes(&rpc->random, sizeof rpc->random);
    rpc->tick.fire = tick;
    if (s == RLE_OK)
        s = rle_timer_arm(&rpc->loop, &rpc->tick, rle_now() + tick_interval(rpc));
    if (s == RLE_OK) s = rle_evloop_start(&rpc->loop, !options->no_guard);
    if (s != RLE_OK) {
        rle_rpc_free(rpc);
        return s;
    }
    rpc->next_rpc = all_rpcs;
    all_rpcs = rpc;
    *out = rpc;
    return RLE_OK;
}

static void unlist(rle_rpc *rpc)
{
    if (all_rpcs == rpc) {
        all_rpcs = rpc->next_rpc;
        return;
    }
    for (rle_rpc *r = all_rpcs; r; r = r->next_rpc)
        if (r->next_rpc == rpc) r->next_rpc = rpc->next_rpc;
}

void rle_rpc_free(rle_rpc *rpc)
{
    unlist(rpc);
    rle_rpc_enter(rpc);
    rpc->stopping = true;
    rle_link_end_all(rpc);
    while (rpc->conns) rle_conn_close(rpc->conns, "shut down", true);
    rle_repeats_tell(rpc, rle_now(), true);
    RLE_MAP_EACH(&rpc->peers, slot)
        for (rle_peer *p = slot->v.pointer; p; p = p->next_same)
            rle_peer_fail_held(p, RLE_UNAVAILABLE, "this worker is stopping and did not send ",
                               " (outcome: not executed)");
    if (rpc->service) rpc->service->closed(rpc->service);
    rpc->service = NULL;
    rle_rpc_leave(rpc);
    rle_rpc_enter(rpc); /* lets go of what the closing left */
    rle_timer_disarm(&rpc->loop, &rpc->tick);
    rle_timer_disarm(&rpc->loop, &rpc->accept_timer);
    rle_watch_free(rpc->watch);
    for (int i = 0; i < rpc->listener_count; i++) {
        struct rle_listener *l = &rpc->listeners[i];
        rle_watch_free(l->watch);
        rle_unlisten(l->fd, &l->address);
    }
    rpc->dirty = rpc->unread = NULL;
    rle_conn_free_dead(rpc);
    rle_handover_free_all(rpc);
    while (rpc->links) rle_link_free(rpc->links);
    rle_future_free_all(rpc);
    rle_followers_free_all(rpc);
    rle_publications_free_all(rpc);
    empty_trash(rpc); /* tensors of results nobody read */
    RLE_MAP_EACH(&rpc->peers, slot)
        for (rle_peer *p = slot->v.pointer, *next; p; p = next) {
            next = p->next_same;
            rle_peer_free(p);
        }
    RLE_MAP_EACH(&rpc->exports, slot) rle_free(slot->v.pointer);
    rle_map_fini(&rpc->exports);
    rle_map_fini(&rpc->peers);
    rle_incoming_free_pool(rpc);
    rle_rpc_leave(rpc);
    rle_evloop_fini(&rpc->loop);
    rle_free(rpc->borrowed);
    rle_free(rpc->dropped);
    rle_free(rpc->trash);
    rle_free(rpc->orphans);
    rle_free(rpc->scratch);
    rle_free(rpc->guard_scratch);
    rle_free(rpc->allow_uids);
    rle_tls_free(rpc->tls);
    rle_token_forget(&rpc->token);
    rle_free(rpc);
}
