/* server.c - calls we serve: queued as they come, started, answered once.
 *
 * Calls of one connection start in the order in which they came. Connections take turns,
 * a call each, so that one with many calls open keeps nobody waiting longer than one with
 * a single call would. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "rpc/batch_internal.h"

enum { POOL_MAX = 256 };
/* So long a worker may be served again and again before the others are looked for. */
#define ROUND_TIME (RLE_SECONDS / 10000)

/* ---- lists ---- */

static void leave_turns(rle_conn *conn)
{
    *conn->turn_at = conn->turn_next;
    if (conn->turn_next)
        conn->turn_next->turn_at = conn->turn_at;
    else
        conn->rpc->turns_end = conn->turn_at;
}

static void join_turns(rle_conn *conn)
{
    rle_rpc *rpc = conn->rpc;
    conn->turn_next = NULL;
    conn->turn_at = rpc->turns_end;
    *rpc->turns_end = conn;
    rpc->turns_end = &conn->turn_next;
}

static void queue_add(rle_incoming *in)
{
    rle_rpc *rpc = in->rpc;
    rle_conn *conn = in->conn;
    if (!conn->waiting) {
        conn->waiting_end = &conn->waiting;
        join_turns(conn);
    }
    in->queued = true;
    in->queue_next = NULL;
    in->queue_at = conn->waiting_end;
    *conn->waiting_end = in;
    conn->waiting_end = &in->queue_next;
    rpc->queued++;
    if (in->nested) rpc->queued_nested++;
    if (!in->deadline) return;
    in->fresh_next = rpc->fresh;
    in->fresh_at = &rpc->fresh;
    if (rpc->fresh) rpc->fresh->fresh_at = &in->fresh_next;
    rpc->fresh = in;
}

static void leave_fresh(rle_incoming *in)
{
    if (!in->fresh_at) return;
    *in->fresh_at = in->fresh_next;
    if (in->fresh_next) in->fresh_next->fresh_at = in->fresh_at;
    in->fresh_at = NULL;
}

/* While it has its connection. */
static void queue_remove(rle_incoming *in)
{
    rle_rpc *rpc = in->rpc;
    rle_conn *conn = in->conn;
    if (!in->queued) return;
    *in->queue_at = in->queue_next;
    if (in->queue_next)
        in->queue_next->queue_at = in->queue_at;
    else
        conn->waiting_end = in->queue_at;
    if (!conn->waiting) leave_turns(conn);
    in->queued = false;
    rpc->queued--;
    if (in->nested) rpc->queued_nested--;
    leave_fresh(in);
    rle_timer_disarm(&rpc->loop, &in->timer);
}

static void cancelled_remove(rle_incoming *in)
{
    if (!in->in_cancelled) return;
    *in->queue_at = in->queue_next;
    if (in->queue_next) in->queue_next->queue_at = in->queue_at;
    in->in_cancelled = false;
}

static void conn_remove(rle_incoming *in)
{
    rle_conn *conn = in->conn;
    if (!conn) return;
    *in->at = in->next;
    if (in->next) in->next->at = in->at;
    conn->incoming_count--;
    if (!in->nested) conn->incoming_counted--;
    in->conn = NULL;
}

static void incoming_free(rle_incoming *in)
{
    rle_rpc *rpc = in->rpc;
    if (in->batch) rle_batch_remove(in);
    if (in->service) rle_service_forget(in);
    queue_remove(in);
    cancelled_remove(in);
    rle_message_drop(rpc, in->conn, &in->message, false);
    conn_remove(in);
    if (in->started) {
        rpc->serving--;
        if (in->waits) rpc->serving_waits--;
    }
    in->peer->uses--;
    rpc->counters.live_incoming--;
    if (rpc->free_incoming_count >= POOL_MAX) {
        rle_free(in);
        return;
    }
    in->next = rpc->free_incoming;
    rpc->free_incoming = in;
    rpc->free_incoming_count++;
}

void rle_incoming_free_pool(rle_rpc *rpc)
{
    while (rpc->free_incoming) {
        rle_incoming *in = rpc->free_incoming;
        rpc->free_incoming = in->next;
        rle_free(in);
    }
    rpc->free_incoming_count = 0;
}

/* ---- answers ---- */

static rle_frame answer(const rle_incoming *in, rle_frame_type type)
{
    return (rle_frame){.type = (uint8_t)type, .id = in->id, .credit = in->nested ? 0 : 1};
}

void rle_conn_send_error(rle_conn *conn, rle_frame *f, const rle_wire_error *e)
{
    rle_writer w;
    rle_writer_init(&w);
    rle_error_encode(&w, e);
    f->code = (uint16_t)e->code;
    f->values = (uint32_t)w.len;
    struct iovec part = {w.data, w.len};
    if (w.failed || rle_conn_send(conn, f, &part, 1, false, false) != RLE_OK)
        rle_conn_close(conn, "out of memory", false);
    rle_writer_fini(&w);
}

/* The call goes first: when its error cannot be sent, the connection lets go of all it
 * has. */
void rle_incoming_fail_text(rle_incoming *in, rle_status code, rle_outcome outcome,
                            const char *text)
{
    rle_conn *conn = in->conn;
    const char *name = in->rpc->name;
    rle_call_head head = in->head;
    rle_frame f = answer(in, RLE_FRAME_ERROR);
    incoming_free(in);
    if (!conn) return;
    rle_wire_error e = rle_error_of(code, outcome, text, name, head.method);
    rle_conn_send_error(conn, &f, &e);
}

void rle_incoming_expire(rle_incoming *in)
{
    char text[256];
    snprintf(text, sizeof text, "\"%s\" on \"%s\" was not started in time (outcome: not executed)",
             in->head.method, in->rpc->name);
    in->rpc->counters.expired_unstarted++;
    rle_incoming_fail_text(in, RLE_DEADLINE_EXCEEDED, RLE_OUTCOME_NOT_EXECUTED, text);
}

static void expired(rle_timer *t)
{
    rle_incoming_expire((rle_incoming *)((char *)t - offsetof(rle_incoming, timer)));
}

void rle_incoming_refuse_stopping(rle_incoming *in)
{
    char text[256];
    snprintf(text, sizeof text, "\"%s\" is stopping (outcome: not executed)", in->rpc->name);
    rle_incoming_fail_text(in, RLE_UNAVAILABLE, RLE_OUTCOME_NOT_EXECUTED, text);
}

void rle_incoming_abandon(rle_incoming *in)
{
    char text[256];
    snprintf(text, sizeof text, "\"%s\" was cancelled (outcome: not executed)",
             in->head.method);
    rle_incoming_fail_text(in, RLE_CANCELLED, RLE_OUTCOME_NOT_EXECUTED, text);
}

/* ---- arriving ---- */

static rle_incoming *incoming_alloc(rle_rpc *rpc)
{
    rle_incoming *in = rpc->free_incoming;
    if (in) {
        rpc->free_incoming = in->next;
        rpc->free_incoming_count--;
    } else {
        in = rle_malloc(sizeof *in);
        if (!in) return NULL;
    }
    memset(in, 0, sizeof *in);
    return in;
}

static void refuse_call(rle_conn *conn, const rle_frame *f, rle_status code)
{
    rle_wire_error e = rle_error_of(code, RLE_OUTCOME_NOT_EXECUTED, rle_message(),
                                    conn->rpc->name, NULL);
    rle_frame answer_frame = {.type = RLE_FRAME_ERROR,
                              .id = f->id,
                              .credit = f->flags & RLE_FLAG_NESTED ? 0 : 1};
    rle_conn_send_error(conn, &answer_frame, &e);
}

void rle_incoming_new(rle_conn *conn, const rle_frame *f, rle_msg *m)
{
    rle_rpc *rpc = conn->rpc;
    bool nested = f->flags & RLE_FLAG_NESTED;
    rle_decoder d;
    rle_call_head head;
    rle_msg_decoder(m, &d);
    rle_status s = rle_decode_call_head(&d, &head);
    if (s == RLE_OK && rle_poll_is(&head)) {
        s = rle_poll_arrived(conn, f, &head, &d);
        rle_message_drop_bytes(rpc, m);
        if (s != RLE_OK) rle_conn_reject(conn);
        return;
    }
    if (s == RLE_OK && rle_handover_is(&head)) {
        s = rle_handover_arrived(conn, f, &head, &d);
        rle_message_drop_bytes(rpc, m);
        if (s != RLE_OK) rle_conn_reject(conn);
        return;
    }
    bool service = s == RLE_OK && nested && rle_service_is(rpc, &head);
    if (s == RLE_OK && !nested && conn->incoming_counted >= (size_t)rpc->o.max_credits)
        s = rle_fail(RLE_INVALID_ARGUMENT, "more than %d calls open", rpc->o.max_credits);
    if (s != RLE_OK) {
        rle_message_drop_bytes(rpc, m);
        rle_conn_reject(conn);
        return;
    }
    if (conn->incoming_count >= RLE_CALLS_HARD)
        s = rle_fail(RLE_RESOURCE_EXHAUSTED, "%d calls of \"%s\" are open", RLE_CALLS_HARD,
                     conn->peer->name);
    rle_incoming *in = s == RLE_OK ? incoming_alloc(rpc) : NULL;
    if (s == RLE_OK && !in) s = rle_oom(sizeof *in, "call to serve");
    if (in) {
        s = rle_message_keep(rpc, m, &in->message);
        if (s != RLE_OK) rle_free(in);
    }
    if (s != RLE_OK) {
        rle_message_drop_bytes(rpc, m);
        refuse_call(conn, f, s);
        return;
    }
    rpc->counters.live_incoming++;
    in->rpc = rpc;
    in->conn = conn;
    in->peer = conn->peer;
    in->peer->uses++;
    in->id = f->id;
    if (!service) in->number = ++conn->peer->calls_from; /* random streams hang on it */
    in->incarnation = conn->incarnation;
    in->session = conn->session;
    in->nested = nested;
    in->head = head;
    in->args_at = (size_t)(d.r.p - m->data);
    in->timer.fire = expired;
    if (f->arg) {
        uint64_t left = f->arg < UINT64_C(1) << 50 ? f->arg * 1000 : UINT64_C(1) << 60;
        in->deadline = rle_turn_time(rpc) + (int64_t)left;
    }
    in->next = conn->incoming;
    in->at = &conn->incoming;
    if (in->next) in->next->at = &in->next;
    conn->incoming = in;
    conn->incoming_count++;
    if (!nested) conn->incoming_counted++;
    if (f->code == RLE_CANCELLED) { /* while the rest of it was on its way */
        rle_incoming_abandon(in);
        return;
    }
    if (service) {
        rle_service_arrived(in);
        return;
    }
    queue_add(in);
    if (rpc->stopping) rle_incoming_refuse_stopping(in);
}

void rle_server_arm_expiry(rle_rpc *rpc)
{
    while (rpc->fresh) {
        /* Without memory it is tried again, or found out when its turn comes. */
        if (rle_timer_arm(&rpc->loop, &rpc->fresh->timer, rpc->fresh->deadline) != RLE_OK)
            return;
        leave_fresh(rpc->fresh);
    }
}

/* Its handler is to be told. */
static void tell_cancelled(rle_incoming *in)
{
    rle_rpc *rpc = in->rpc;
    in->in_cancelled = true;
    in->queue_next = rpc->cancelled;
    in->queue_at = &rpc->cancelled;
    if (in->queue_next) in->queue_next->queue_at = &in->queue_next;
    rpc->cancelled = in;
}

static void mark_cancelled(rle_incoming *in)
{
    if (in->cancelled) return;
    in->cancelled = true;
    if (in->started && in->owner) tell_cancelled(in);
}

void rle_incoming_cancel(rle_conn *conn, uint64_t id)
{
    if (conn->polls && rle_poll_cancel(conn, id)) return;
    for (rle_incoming *in = conn->incoming; in; in = in->next) {
        if (in->id != id) continue;
        if (in->started && !in->batch)
            mark_cancelled(in);
        else
            rle_incoming_abandon(in);
        return;
    }
    /* It may still be on its way; see rle_incoming_new. */
    for (rle_in_message *m = conn->partial; m; m = m->next)
        if (m->head.id == id && m->head.type == RLE_FRAME_CALL) m->head.code = RLE_CANCELLED;
}

void rle_incoming_orphan(rle_incoming *in)
{
    if (!in->started || in->batch) {
        incoming_free(in);
        return;
    }
    conn_remove(in);
    mark_cancelled(in);
}

/* ---- starting ---- */

/* Who is next, given the bound? */
static rle_incoming *pick(rle_rpc *rpc)
{
    if (!rpc->turns || rpc->holding) return NULL;
    if (rpc->serving < (size_t)rpc->o.max_concurrent) return rpc->turns->waiting;
    if (!rpc->queued_nested || rpc->serving_waits < rpc->serving) return NULL;
    for (const rle_conn *conn = rpc->turns; conn; conn = conn->turn_next)
        for (rle_incoming *in = conn->waiting; in; in = in->queue_next)
            if (in->nested) return in;
    return NULL;
}

void rle_rpc_hold_calls(rle_rpc *rpc, bool hold)
{
    rle_rpc_enter(rpc);
    rpc->holding = hold;
    rle_rpc_leave(rpc);
}

bool rle_rpc_can_start(rle_rpc *rpc)
{
    return pick(rpc) != NULL;
}

static void note_round(rle_rpc *rpc, int64_t now)
{
    if (rpc->noted_round != rpc->round) {
        rpc->noted_round = rpc->round;
        rpc->round_at = now;
    }
    rpc->look_due = rpc->turns && rpc->turns->served_round == rpc->round &&
                    now - rpc->round_at >= ROUND_TIME;
}

bool rle_rpc_look_due(const rle_rpc *rpc)
{
    return rpc->look_due;
}

void rle_incoming_args(const rle_incoming *in, rle_decoder *decoder)
{
    rle_msg_decoder(&in->message, decoder);
    decoder->r.p += in->args_at;
}

void rle_incoming_decoder(rle_rpc *rpc, rle_incoming *in, rle_decoder *decoder)
{
    rle_rpc_enter(rpc);
    rle_incoming_args(in, decoder);
    rle_rpc_leave(rpc);
}

rle_incoming *rle_rpc_next_call(rle_rpc *rpc, rle_incoming_info *info, rle_decoder *decoder)
{
    rle_incoming *in;
    rle_rpc_enter(rpc);
    while ((in = pick(rpc)) != NULL) {
        rle_conn *conn = in->conn;
        queue_remove(in);
        if (conn->waiting) { /* now the others */
            leave_turns(conn);
            join_turns(conn);
        }
        conn->served_round = rpc->round;
        /* The first one after a turn has not waited; the others may have, behind it. */
        int64_t now = rpc->turn_at && !in->timer.place ? rpc->turn_at : rle_now();
        rpc->turn_at = 0;
        if (in->deadline && now >= in->deadline) {
            rle_incoming_expire(in);
            continue;
        }
        in->started = true;
        rpc->serving++;
        rpc->counters.calls_served++;
        note_round(rpc, now);
        *info = (rle_incoming_info){.caller = in->peer,
                                    .head = in->head,
                                    .deadline = in->deadline,
                                    .number = in->number,
                                    .incarnation = in->incarnation,
                                    .session = in->session};
        rle_incoming_args(in, decoder);
        break;
    }
    rle_rpc_leave(rpc);
    return in;
}

void rle_incoming_read(rle_rpc *rpc, rle_incoming *in)
{
    if (!in->message.block && in->message.borrowed == 0) return;
    rle_rpc_enter(rpc);
    rle_message_drop_bytes(rpc, &in->message);
    rle_rpc_leave(rpc);
}

void rle_incoming_waits(rle_rpc *rpc, rle_incoming *in, bool waits)
{
    if (in->waits == waits) return;
    rle_rpc_enter(rpc);
    in->waits = waits;
    if (waits)
        rpc->serving_waits++;
    else
        rpc->serving_waits--;
    rle_rpc_leave(rpc);
}

bool rle_incoming_cancelled(rle_rpc *rpc, rle_incoming *in)
{
    rle_rpc_enter(rpc);
    bool over = in->cancelled || (in->deadline && rle_now() >= in->deadline);
    rle_rpc_leave(rpc);
    return over;
}

void rle_incoming_set_owner(rle_incoming *in, void *owner)
{
    rle_rpc *rpc = in->rpc;
    rle_rpc_enter(rpc);
    in->owner = owner;
    if (in->cancelled && !in->in_cancelled) tell_cancelled(in); /* before it had one */
    rle_rpc_leave(rpc);
}

void *rle_rpc_next_cancelled(rle_rpc *rpc)
{
    rle_rpc_enter(rpc);
    rle_incoming *in = rpc->cancelled;
    void *owner = in ? in->owner : NULL;
    if (in) cancelled_remove(in);
    rle_rpc_leave(rpc);
    return owner;
}

rle_status rle_incoming_reply(rle_rpc *rpc, rle_incoming *in, rle_encoder *e)
{
    /* Without memory for its values there is nothing behind the encoder. */
    RLE_TRY(rle_encoder_status(e));
    rle_status s = RLE_OK;
    rle_rpc_enter(rpc);
    rle_conn *conn = in->conn;
    if (conn) {
        size_t size = rle_encoder_body_size(e);
        if (size > conn->max_message)
            s = rle_fail(RLE_RESOURCE_EXHAUSTED,
                         "a result of %zu bytes is over the limit of %" PRIu64
                         " bytes of worker \"%s\" (max_message)",
                         size, conn->max_message, conn->peer->name);
        const uint8_t *values = e->w.data + RLE_FRAME_HEADER;
        size_t values_size = rle_encoder_values_size(e);
        if (s == RLE_OK && e->refs)
            s = rle_export_count_values(conn, values, values_size, true, e->tensors, 0);
        if (s == RLE_OK) {
            rle_frame f = answer(in, RLE_FRAME_RESULT);
            e->stays = true;
            s = rle_conn_send_encoded(conn, &f, e, false);
            e->stays = false;
            if (s != RLE_OK && e->refs)
                rle_export_uncount_values(conn, values, values_size, true, e->tensors);
        }
    } else {
        rpc->counters.unsent_results++;
    }
    /* Before the rest is copied: who has all of it meanwhile may call again at once. */
    if (s == RLE_OK) incoming_free(in);
    if (rpc->rest.body) rle_conn_copy_rest(rpc);
    rle_rpc_leave(rpc);
    return s;
}

void rle_incoming_answer(rle_incoming *in, rle_encoder *e)
{
    rle_conn *conn = in->conn;
    rle_frame f = answer(in, RLE_FRAME_RESULT);
    incoming_free(in);
    if (!conn) return;
    if (rle_encoder_status(e) != RLE_OK ||
        rle_conn_send_encoded(conn, &f, e, false) != RLE_OK)
        rle_conn_close(conn, "out of memory", false);
}

void rle_incoming_fail(rle_rpc *rpc, rle_incoming *in, const rle_wire_error *error)
{
    rle_rpc_enter(rpc);
    if (in->conn) {
        rle_frame f = answer(in, RLE_FRAME_ERROR);
        rle_conn_send_error(in->conn, &f, error);
    } else {
        rpc->counters.unsent_results++;
    }
    incoming_free(in);
    rle_rpc_leave(rpc);
}

void rle_rpc_refuse_queued(rle_rpc *rpc)
{
    while (rpc->turns) rle_incoming_refuse_stopping(rpc->turns->waiting);
}
