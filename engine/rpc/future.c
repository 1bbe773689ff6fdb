/* future.c - life of futures, their results and failures. How the call gets to its worker is
 * in client.c. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/context.h"
#include "base/log.h"
#include "rpc/batch_internal.h"

enum { POOL_MAX = 256 };

static void deadline_over(rle_timer *t);

/* ---- life ---- */

rle_future *rle_future_make(rle_rpc *rpc)
{
    rle_future *f = rpc->free_futures;
    if (f) {
        rpc->free_futures = f->next_held;
        rpc->free_future_count--;
    } else {
        f = rle_malloc(sizeof *f);
        if (!f) return NULL;
    }
    memset(f, 0, sizeof *f);
    f->rpc = rpc;
    f->refs = 1;
    f->timer.fire = deadline_over;
    f->live_next = rpc->live;
    f->live_at = &rpc->live;
    if (rpc->live) rpc->live->live_at = &f->live_next;
    rpc->live = f;
    rpc->counters.live_futures++;
    return f;
}

void rle_future_drop_body(rle_future *f)
{
    if (!f->body) return;
    /* The own objects it names were kept for it. */
    if (f->holds_refs)
        rle_export_hold_values(f->rpc, f->body->data, f->body_values, f->body_tensors,
                               false);
    f->holds_refs = false;
    rle_body_release(f->body);
    f->body = NULL;
}

void rle_future_free_all(rle_rpc *rpc)
{
    while (rpc->live) {
        rle_future *f = rpc->live;
        rpc->live = f->live_next;
        rle_timer_disarm(&rpc->loop, &f->timer);
        rle_message_drop_bytes(rpc, &f->message);
        rle_future_drop_body(f);
        rle_free(f);
    }
    while (rpc->free_futures) {
        rle_future *f = rpc->free_futures;
        rpc->free_futures = f->next_held;
        rle_free(f);
    }
    rpc->free_future_count = 0;
}

static void log_unhandled(const rle_future *f)
{
    rle_wire_error e;
    if (!f->message.data || rle_error_decode(&f->message, &e) != RLE_OK) return;
    rle_log(RLE_LOG_WARN, "unhandled error in a future made at %s: %s: %.*s",
            rle_site_name(f->site), rle_status_name(e.code),
            (int)(e.message.n < 1000 ? e.message.n : 1000), e.message.p);
}

void rle_future_unref(rle_future *f)
{
    if (--f->refs) return;
    rle_rpc *rpc = f->rpc;
    bool done = f->state == RLE_FUTURE_DONE;
    if (f->state == RLE_FUTURE_FAILED && !f->looked_at && !f->local && !rpc->stopping)
        log_unhandled(f);
    rle_conn *conn = done && f->peer ? f->peer->conn : NULL;
    rle_message_drop(rpc, conn && conn->session == f->session ? conn : NULL, &f->message,
                     true);
    rle_future_drop_body(f);
    if (f->peer) f->peer->uses--;
    *f->live_at = f->live_next;
    if (f->live_next) f->live_next->live_at = f->live_at;
    rpc->counters.live_futures--;
    if (rpc->free_future_count >= POOL_MAX) {
        rle_free(f);
        return;
    }
    f->next_held = rpc->free_futures;
    rpc->free_futures = f;
    rpc->free_future_count++;
}

rle_status rle_future_new_local(rle_rpc *rpc, const char *method, uint32_t site,
                                rle_future **out)
{
    rle_rpc_enter(rpc);
    rle_future *f = rle_future_make(rpc);
    if (f) {
        f->local = true;
        f->site = site;
        snprintf(f->method, sizeof f->method, "%s", method);
        f->started = rle_now();
    }
    rle_rpc_leave(rpc);
    if (!f) return rle_oom(sizeof *f, "future");
    *out = f;
    return RLE_OK;
}

/* ---- ending ---- */

static void note_object(rle_future *f)
{
    rle_decoder d;
    uint16_t count;
    rle_value v;
    rle_msg_decoder(&f->message, &d);
    if (rle_decode_result_head(&d, &count) == RLE_OK && count >= 1 &&
        rle_decode(&d, &v) == RLE_OK && v.kind == RLE_VALUE_REF &&
        v.u.ref.kind == RLE_REF_SENDERS)
        f->object = v.u.ref.object;
}

/* Pending no more: everybody who waits for it goes on. */
static void complete(rle_future *f, rle_future_state state)
{
    f->state = state;
    rle_timer_disarm(&f->rpc->loop, &f->timer);
    f->refs++;
    rle_future_unhold(f);
    rle_future_drop_body(f);
    if (f->construct && state == RLE_FUTURE_DONE) note_object(f);
    while (f->dependents) {
        rle_future *waits = f->dependents;
        waits->refs++;
        rle_future_unhold(waits);
        rle_future_go_after(waits, NULL, f);
        rle_future_unref(waits);
    }
    rle_wait_future_over(f);
    if (f->over) f->over(f, f->over_self);
    rle_future_unref(f);
}

void rle_future_fail(rle_future *f, rle_status code, rle_outcome outcome, const char *fmt, ...)
{
    if (f->state != RLE_FUTURE_PENDING) return;
    char text[2048];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    rle_wire_error e =
        rle_error_of(code, outcome, text, f->peer ? f->peer->name : NULL, f->method);
    rle_writer w;
    rle_writer_init(&w);
    rle_error_encode(&w, &e);
    rle_message_drop_bytes(f->rpc, &f->message);
    if (w.failed) {
        rle_writer_fini(&w); /* an error without text is RESOURCE_EXHAUSTED to its reader */
    } else {
        f->message.data = f->message.block = w.data;
        f->message.size = w.len;
        f->message.values = (uint32_t)w.len;
    }
    complete(f, RLE_FUTURE_FAILED);
}

void rle_future_fail_as(rle_future *f, const rle_future *other)
{
    const rle_msg *m = &other->message;
    bool has_error = other->state == RLE_FUTURE_FAILED && m->data;
    uint8_t *copy = has_error ? rle_malloc(m->size) : NULL;
    if (!copy) {
        rle_future_fail(f, RLE_FAILED_PRECONDITION, RLE_OUTCOME_NOT_EXECUTED,
                        "the object of this reference could not be made");
        return;
    }
    if (f->state != RLE_FUTURE_PENDING) {
        rle_free(copy);
        return;
    }
    memcpy(copy, m->data, m->size);
    f->message = (rle_msg){.data = copy, .size = m->size, .values = m->values, .block = copy};
    complete(f, RLE_FUTURE_FAILED);
}

void rle_future_result(rle_conn *conn, const rle_frame *frame, rle_msg *m)
{
    rle_rpc *rpc = conn->rpc;
    bool result = frame->type == RLE_FRAME_RESULT;
    rle_map_slot *slot = rle_map_get(&conn->calls, frame->id);
    if (!slot) {
        if (frame->id > conn->next_id) {
            rle_message_drop_bytes(rpc, m);
            rle_fail(RLE_INVALID_ARGUMENT, "answer to call %" PRIu64 ", which was not made",
                     frame->id);
            rle_conn_reject(conn);
            return;
        }
        rpc->counters.late_results++;
        if (result)
            rle_message_drop(rpc, conn, m, true);
        else
            rle_message_drop_bytes(rpc, m);
        return;
    }
    rle_future *f = slot->v.pointer;
    rle_map_delete(&conn->calls, frame->id);
    f->conn = NULL;
    if (!conn->calls.used && conn->peer->batches) rle_batches_episode_over(conn->peer);
    rle_status s = rle_message_keep(rpc, m, &f->message);
    if (s == RLE_OK)
        complete(f, result ? RLE_FUTURE_DONE : RLE_FUTURE_FAILED);
    else
        rle_future_fail(f, s, RLE_OUTCOME_UNKNOWN, "%s", rle_message());
    rle_future_unref(f);
}

/* Forget it. True: the other side, which is told, may have begun with it. What was not
 * begun to be sent is never sent; the number of it stays unused, for numbers need only
 * rise. */
static bool withdraw(rle_future *f)
{
    rle_conn *conn = f->conn;
    if (!conn) return f->sent; /* it goes with its connection, and this is heard first */
    f->conn = NULL;
    rle_map_delete(&conn->calls, f->id);
    if (!conn->calls.used && conn->peer->batches) rle_batches_episode_over(conn->peer);
    f->refs--; /* the table's; whoever calls holds another */
    if (!f->sent) return false; /* nobody reads there, so it never will be */
    if (!rle_conn_unsend(conn, f->id)) {
        rle_conn_control(conn, RLE_FRAME_CANCEL, f->id, 0, 0);
        return true;
    }
    if (f->nested) return false;
    conn->credits++; /* which nobody would give back */
    rle_peer_send_held(conn->peer);
    return false;
}

static void deadline_over(rle_timer *t)
{
    rle_future *f = (rle_future *)((char *)t - offsetof(rle_future, timer));
    f->refs++;
    bool sent = f->conn != NULL;
    if (withdraw(f)) {
        rle_future_fail(f, RLE_DEADLINE_EXCEEDED, RLE_OUTCOME_UNKNOWN,
                        "\"%s\" on \"%s\" took longer than %.3f s (outcome: unknown)", f->method,
                        f->peer->name, (double)f->timeout / RLE_SECONDS);
    } else if (f->after && f->after->claim) {
        rle_future_fail(f, RLE_DEADLINE_EXCEEDED, RLE_OUTCOME_NOT_EXECUTED,
                        "\"%s\" on \"%s\" was not started in time: \"%s\" has not yet "
                        "confirmed the reference, which another worker passed on "
                        "(outcome: not executed)",
                        f->method, f->peer->name, f->peer->name);
    } else if (sent || f->after ||
               (rle_now() >= f->deadline && (f->peer->conn || f->peer->known))) {
        rle_future_fail(f, RLE_DEADLINE_EXCEEDED, RLE_OUTCOME_NOT_EXECUTED,
                        "\"%s\" on \"%s\" was not started in time (outcome: not executed)",
                        f->method, f->peer->name);
    } else {
        rle_future_unjoined(f);
    }
    rle_future_unref(f);
}

void rle_future_withdraw(rle_future *f)
{
    if (f->state != RLE_FUTURE_PENDING) return;
    bool sent = withdraw(f);
    f->looked_at = true;
    rle_future_fail(f, RLE_CANCELLED,
                    sent ? RLE_OUTCOME_UNKNOWN : RLE_OUTCOME_NOT_EXECUTED,
                    "\"%s\" was cancelled (outcome: %s)", f->method,
                    sent ? "unknown" : "not executed");
}

void rle_future_cancel(rle_rpc *rpc, rle_future *f)
{
    rle_rpc_enter(rpc);
    rle_future_withdraw(f);
    rle_rpc_leave(rpc);
}

void rle_future_complete_locked(rle_future *f, bool failed)
{
    if (f->state == RLE_FUTURE_PENDING)
        complete(f, failed ? RLE_FUTURE_FAILED : RLE_FUTURE_DONE);
}

void rle_future_complete_local(rle_rpc *rpc, rle_future *f, bool failed)
{
    rle_rpc_enter(rpc);
    rle_future_complete_locked(f, failed);
    rle_rpc_leave(rpc);
}

/* ---- looking ---- */

rle_future_state rle_future_status(rle_rpc *rpc, rle_future *f)
{
    rle_rpc_enter(rpc);
    rle_future_state state = f->state;
    rle_rpc_leave(rpc);
    return state;
}

bool rle_future_is_local(const rle_future *f)
{
    return f->local;
}

const char *rle_future_method(const rle_future *f)
{
    return f->method;
}

rle_peer *rle_future_peer(const rle_future *f)
{
    return f->peer;
}

uint64_t rle_future_session(const rle_future *f)
{
    return f->session;
}

uint32_t rle_future_site(const rle_future *f)
{
    return f->site;
}

uint64_t rle_future_object(const rle_future *f)
{
    return f->object;
}

rle_msg *rle_future_message(rle_future *f)
{
    return f->message.data ? &f->message : NULL;
}

void rle_future_read(rle_rpc *rpc, rle_future *f)
{
    rle_rpc_enter(rpc);
    f->looked_at = true;
    rle_message_drop_bytes(rpc, &f->message);
    rle_rpc_leave(rpc);
}

void rle_future_retain(rle_rpc *rpc, rle_future *f)
{
    rle_rpc_enter(rpc);
    f->refs++;
    rle_rpc_leave(rpc);
}

void rle_future_release(rle_rpc *rpc, rle_future *f)
{
    rle_rpc_enter(rpc);
    rle_future_unref(f);
    rle_rpc_leave(rpc);
}

void rle_future_discard(rle_rpc *rpc, rle_future *f)
{
    f->next_discarded = rpc->discarded;
    rpc->discarded = f;
}
