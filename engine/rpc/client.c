/* client.c - calls we make, from the arguments to the wire.
 *
 * A call is sent at once when its worker is connected and has given credit for it. Else it
 * is held: in the list of its worker, or of the future whose result names the object to
 * call. Its deadline runs from the start in every case. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "rpc/rpc_internal.h"

static void submit(rle_future *f, rle_encoder *e, bool its_turn);
static void fail_unreachable(rle_future *f);

/* ---- being held ---- */

static void held_push(rle_future *f, rle_future **end)
{
    f->next_held = NULL;
    f->held_at = end;
    *end = f;
    f->refs++;
}

void rle_future_unhold(rle_future *f)
{
    if (!f->held_at) return;
    *f->held_at = f->next_held;
    if (f->next_held) f->next_held->held_at = f->held_at;
    if (f->in_peer_list) {
        if (f->peer->held_end == &f->next_held) f->peer->held_end = f->held_at;
        f->peer->held_count--;
        if (f->nested) f->peer->held_nested--;
    }
    f->held_at = NULL;
    f->next_held = NULL;
    f->in_peer_list = false;
    rle_future_unref(f);
}

/* A copy of the body, because the encoder is needed for the next call. */
static rle_status keep_body(rle_future *f, rle_encoder *e)
{
    if (f->body || !e) return RLE_OK;
    RLE_TRY(rle_body_of(f->rpc, e, &f->body));
    f->body_values = (uint32_t)rle_encoder_values_size(e);
    f->body_tensors = (uint16_t)e->tensors;
    if (e->refs) {
        f->holds_refs = true;
        rle_export_hold_values(f->rpc, f->body->data, f->body_values, f->body_tensors,
                               true);
    }
    return RLE_OK;
}

/* Nobody knows whether there will ever be a worker of that name. */
static bool may_never_come(const rle_peer *peer)
{
    return !peer->known && !peer->opening;
}

static void hold(rle_future *f, rle_encoder *e, rle_future *after)
{
    rle_status s = keep_body(f, e);
    int64_t until = f->deadline, join = f->started + f->rpc->o.join_timeout;
    if (!after && may_never_come(f->peer) && join < until) until = join;
    if (s == RLE_OK) s = rle_timer_arm(&f->rpc->loop, &f->timer, until);
    if (s != RLE_OK) {
        rle_future_fail(f, s, RLE_OUTCOME_NOT_EXECUTED, "%s", rle_message());
        return;
    }
    if (after) {
        rle_future **end = &after->dependents;
        while (*end) end = &(*end)->next_held;
        f->after = after;
        held_push(f, end);
        return;
    }
    rle_peer *peer = f->peer;
    held_push(f, peer->held_end);
    peer->held_end = &f->next_held;
    peer->held_count++;
    if (f->nested) peer->held_nested++;
    f->in_peer_list = true;
}

bool rle_future_unjoined(rle_future *f)
{
    rle_peer *peer = f->peer;
    char here[1024];
    bool early = rle_now() < f->deadline;
    if (early && !may_never_come(peer) &&
        rle_timer_arm(&f->rpc->loop, &f->timer, f->deadline) == RLE_OK)
        return false;
    rle_peers_here(f->rpc, peer->name, here, sizeof here);
    rle_future_fail(
        f, early ? RLE_NOT_FOUND : RLE_DEADLINE_EXCEEDED, RLE_OUTCOME_NOT_EXECUTED,
        "worker \"%s\" has not joined in %.3f s, \"%s\" was not sent (outcome: not "
        "executed)%s",
        peer->name, (double)(early ? f->rpc->o.join_timeout : f->timeout) / RLE_SECONDS,
        f->method, here);
    return true;
}

/* All that are held for it, or those that use a reference, into a list of the caller's:
 * whoever hears of their end may make calls and cancel others, which changes the worker's
 * own. */
static void take_held(rle_peer *peer, bool all, rle_future **list)
{
    rle_future **end = list;
    *list = NULL;
    for (rle_future *f = peer->held, *next; f; f = next) {
        next = f->next_held;
        if (!all && !f->want_session) continue;
        f->refs++;
        rle_future_unhold(f);
        held_push(f, end);
        end = &f->next_held;
        rle_future_unref(f);
    }
}

void rle_peer_fail_held(rle_peer *peer, rle_status code, const char *before,
                        const char *after)
{
    rle_future *list;
    take_held(peer, true, &list);
    while (list)
        rle_future_fail(list, code, RLE_OUTCOME_NOT_EXECUTED, "%s\"%s\"%s", before,
                        list->method, after);
}

void rle_peer_fail_held_refs(rle_peer *peer)
{
    rle_future *list;
    take_held(peer, false, &list);
    while (list) fail_unreachable(list);
}

/* ---- sending ---- */

static bool may_send(const rle_conn *conn, const rle_future *f)
{
    return f->nested ? conn->calls.used < RLE_CALLS_HARD : conn->credits > 0;
}

static void send_call(rle_conn *conn, rle_future *f, rle_encoder *e)
{
    rle_rpc *rpc = f->rpc;
    const uint8_t *values = e ? e->w.data + RLE_FRAME_HEADER : f->body->data;
    size_t values_size = e ? rle_encoder_values_size(e) : f->body_values;
    size_t size = e ? rle_encoder_body_size(e) : f->body->size;
    int tensors = e ? e->tensors : f->body_tensors;
    rle_status s = RLE_OK;
    if (size > conn->max_message)
        s = rle_fail(RLE_RESOURCE_EXHAUSTED,
                     "arguments of %zu bytes are over the limit of %" PRIu64
                     " bytes of worker \"%s\" (max_message)",
                     size, conn->max_message, f->peer->name);
    bool refs = s == RLE_OK && (e ? e->refs > 0 : f->holds_refs);
    if (refs)
        s = rle_export_count_values(conn, values, values_size, false, tensors, f->site);
    bool counted = refs && s == RLE_OK;
    rle_map_slot *slot = s == RLE_OK ? rle_map_put(&conn->calls, conn->next_id + 1) : NULL;
    if (s == RLE_OK && !slot) s = rle_oom(sizeof *slot, "open calls");
    if (s == RLE_OK) {
        s = rle_timer_arm(&rpc->loop, &f->timer, f->deadline + RLE_DEADLINE_GRACE);
        if (s != RLE_OK) rle_map_delete(&conn->calls, conn->next_id + 1);
    }
    if (s != RLE_OK) {
        if (counted) rle_export_uncount_values(conn, values, values_size, false, tensors);
        rle_future_fail(f, s, RLE_OUTCOME_NOT_EXECUTED, "%s", rle_message());
        return;
    }
    int64_t left = f->deadline - (e ? f->started : rle_now());
    f->id = ++conn->next_id;
    f->conn = conn;
    f->sent = true;
    f->session = conn->session;
    slot->v.pointer = f;
    f->refs++;
    if (!f->nested) conn->credits--;
    rpc->counters.calls_made++;
    uint64_t out = conn->bytes_out;
    rle_frame head = {.type = RLE_FRAME_CALL,
                      .flags = f->nested ? RLE_FLAG_NESTED : 0,
                      .id = f->id,
                      .arg = left > 1000 ? (uint64_t)left / 1000 : 1};
    if (e) {
        s = rle_conn_send_encoded(conn, &head, e, false);
    } else {
        head.values = f->body_values;
        head.tensors = f->body_tensors;
        struct iovec part = {f->body->data, size};
        s = size > RLE_CHUNK_SIZE ? rle_conn_send_body(conn, &head, f->body)
                                  : rle_conn_send(conn, &head, &part, 1, true, false);
    }
    /* Nobody reads it, and nothing of it went out. */
    if (conn->deaf && conn->bytes_out == out) f->sent = false;
    bool unsent = s != RLE_OK && f->conn; /* and not lost with its connection */
    if (unsent && counted)
        rle_export_uncount_values(conn, values, values_size, false, tensors);
    rle_future_drop_body(f);
    if (!unsent) return;
    rle_map_delete(&conn->calls, f->id);
    f->conn = NULL;
    if (!f->nested) conn->credits++;
    rle_future_fail(f, s, RLE_OUTCOME_NOT_EXECUTED, "%s", rle_message());
    rle_future_unref(f);
}

/* The first held call that may go: nested ones need no credit and do not wait behind those
 * that do. */
static rle_future *next_held(const rle_peer *peer)
{
    const rle_conn *conn = peer->conn;
    if (!conn || conn->state != RLE_CONN_OPEN) return NULL;
    if (conn->credits > 0 || !peer->held) return peer->held;
    rle_future *f = peer->held_nested ? peer->held : NULL;
    while (f && !may_send(conn, f)) f = f->next_held;
    return f;
}

void rle_peer_send_held(rle_peer *peer)
{
    rle_future *f;
    while ((f = next_held(peer)) != NULL) {
        f->refs++;
        rle_future_unhold(f);
        submit(f, NULL, true);
        rle_future_unref(f);
    }
}

static void fail_unreachable(rle_future *f)
{
    rle_peer *peer = f->peer;
    char here[1024];
    if (peer->is_self)
        rle_future_fail(f, RLE_FAILED_PRECONDITION, RLE_OUTCOME_NOT_EXECUTED,
                        "\"%s\" is this worker itself", peer->name);
    else if (f->want_session)
        rle_future_fail(f, RLE_UNAVAILABLE, RLE_OUTCOME_NOT_EXECUTED,
                        "owner \"%s\" of this reference is gone", peer->name);
    else if (peer->known)
        rle_future_fail(f, RLE_UNAVAILABLE, RLE_OUTCOME_NOT_EXECUTED,
                        "worker \"%s\" %s, \"%s\" was not sent (outcome: not executed)",
                        peer->name, peer->left ? "has left" : "is not connected",
                        f->method);
    else {
        rle_peers_here(f->rpc, peer->name, here, sizeof here);
        rle_future_fail(
            f, RLE_NOT_FOUND, RLE_OUTCOME_NOT_EXECUTED,
            "no worker \"%s\" is known here; this worker does not listen, so none "
            "can join%s",
            peer->name, here);
    }
}

/* Send it, hold it, or fail it. `e` NULL: the body is f's own. `its_turn`: nothing that is
 * held goes first. */
static void submit(rle_future *f, rle_encoder *e, bool its_turn)
{
    rle_peer *peer = f->peer;
    rle_rpc *rpc = f->rpc;
    rle_conn *conn = peer->conn;
    if (rpc->stopping) {
        rle_future_fail(f, RLE_UNAVAILABLE, RLE_OUTCOME_NOT_EXECUTED,
                        "\"%s\" is stopping and did not send \"%s\" (outcome: not executed)",
                        rpc->name, f->method);
        return;
    }
    if (conn && f->want_session && conn->session != f->want_session) {
        fail_unreachable(f);
        return;
    }
    if (!conn) {
        if (peer->is_self || f->want_session) {
            fail_unreachable(f);
            return;
        }
        bool sought = rle_link_seeks(peer);
        if (!sought && !peer->opening && peer->addresses) rle_peer_open(peer);
        /* A name never seen may be a worker that has yet to join. */
        if (sought && peer->held_count >= RLE_CALLS_HARD)
            rle_future_fail(f, RLE_RESOURCE_EXHAUSTED, RLE_OUTCOME_NOT_EXECUTED,
                            "%d calls wait for \"%s\" to come back, \"%s\" was not sent "
                            "(outcome: not executed)",
                            RLE_CALLS_HARD, peer->name, f->method);
        else if (sought || peer->opening || (!peer->known && rpc->listener_count))
            hold(f, e, NULL);
        else if (!peer->conn)
            fail_unreachable(f);
        else
            submit(f, e, its_turn);
        return;
    }
    if (conn->going_away) {
        rle_future_fail(f, RLE_UNAVAILABLE, RLE_OUTCOME_NOT_EXECUTED,
                        "\"%s\" is stopping and did not run \"%s\" (outcome: not executed)",
                        peer->name, f->method);
        return;
    }
    if (f->nested && conn->calls.used >= RLE_CALLS_HARD) {
        rle_future_fail(f, RLE_RESOURCE_EXHAUSTED, RLE_OUTCOME_NOT_EXECUTED,
                        "%d calls to \"%s\" are open", RLE_CALLS_HARD, peer->name);
        return;
    }
    if (may_send(conn, f) && (f->nested || its_turn || !peer->held))
        send_call(conn, f, e);
    else
        hold(f, e, NULL);
}

/* ---- starting ---- */

/* The object is known now: write it into the call, or give up. */
void rle_future_go_after(rle_future *f, rle_encoder *e, rle_future *after)
{
    if (after->state == RLE_FUTURE_DONE && after->object) {
        uint8_t *body = e ? e->w.data : f->body->data - RLE_FRAME_HEADER;
        rle_put64(body + RLE_CALL_OBJECT_AT, after->object);
        f->want_session = after->session;
        submit(f, e, false);
        return;
    }
    after->looked_at = true;
    rle_future_fail_as(f, after);
}

rle_status rle_rpc_call_locked(rle_rpc *rpc, const rle_call_spec *spec, rle_encoder *e,
                               rle_service_over *over, void *over_self, rle_future **out)
{
    RLE_TRY(rle_encoder_status(e));
    rle_future *f = rle_future_make(rpc);
    if (!f) return rle_oom(sizeof *f, "call");
    f->over = over;
    f->over_self = over_self;
    f->peer = spec->peer;
    f->peer->uses++;
    f->nested = spec->nested;
    f->construct = spec->construct;
    f->claim = spec->claim;
    f->looked_at = spec->quiet;
    f->want_session = spec->session;
    f->site = spec->site;
    size_t method_len = strnlen(spec->method, RLE_NAME_MAX);
    memcpy(f->method, spec->method, method_len); /* the rest is zeros */
    f->started = rle_now();
    f->timeout = spec->timeout > 0 ? spec->timeout : rpc->o.call_timeout;
    if (spec->deadline && spec->deadline - f->started < f->timeout)
        f->timeout = spec->deadline - f->started;
    f->deadline = f->started + f->timeout;
    if (f->timeout <= 0)
        rle_future_fail(f, RLE_DEADLINE_EXCEEDED, RLE_OUTCOME_NOT_EXECUTED,
                        "\"%s\" on \"%s\" was not started in time (outcome: not executed)",
                        f->method, f->peer->name);
    else if (spec->after && spec->after->state == RLE_FUTURE_PENDING)
        hold(f, e, spec->after);
    else if (spec->after)
        rle_future_go_after(f, e, spec->after);
    else
        submit(f, e, false);
    *out = f;
    return RLE_OK;
}

rle_status rle_rpc_call(rle_rpc *rpc, const rle_call_spec *spec, rle_encoder *e,
                        rle_future **out)
{
    rle_rpc_enter(rpc);
    e->stays = true;
    rle_status s = rle_rpc_call_locked(rpc, spec, e, NULL, NULL, out);
    e->stays = false;
    if (rpc->rest.body) rle_conn_copy_rest(rpc);
    rle_rpc_leave(rpc);
    return s;
}
