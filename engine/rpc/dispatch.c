/* dispatch.c - what a frame means: control frames are done here, messages go to future.c and
 * server.c. Runs on the owner or the guard, with the lock. */
#include <inttypes.h>

#include "base/log.h"
#include "rpc/rpc_internal.h"

enum { RELEASE_ENTRY = 12 }; /* u64 object, u32 count */

static rle_status check_before_open(const rle_conn *conn, const rle_frame *f)
{
    (void)conn;
    bool greeting = f->type == RLE_FRAME_HELLO || f->type == RLE_FRAME_HELLO_ACK ||
                    f->type == RLE_FRAME_AUTH || (f->type == RLE_FRAME_ERROR && f->id == 0);
    if (!greeting || (f->flags & RLE_FLAG_MORE))
        return rle_fail(RLE_FAILED_PRECONDITION, "%s frame before the handshake",
                        rle_frame_type_name(f->type));
    return RLE_OK;
}

static rle_status check_message(rle_conn *conn, const rle_frame *f)
{
    if (f->tensors > RLE_WIRE_TENSORS)
        return rle_fail(RLE_INVALID_ARGUMENT, "%u tensors in a message, the limit is %d",
                        f->tensors, RLE_WIRE_TENSORS);
    if (f->id == 0) return rle_fail(RLE_INVALID_ARGUMENT, "call without a number");
    if (f->type != RLE_FRAME_CALL) return RLE_OK;
    if (f->id <= conn->last_id)
        return rle_fail(RLE_INVALID_ARGUMENT, "request %" PRIu64 " repeated", f->id);
    conn->last_id = f->id;
    return RLE_OK;
}

rle_status rle_dispatch_check(rle_conn *conn, const rle_frame *f)
{
    if (conn->state != RLE_CONN_OPEN) return check_before_open(conn, f);
    if (f->incarnation != conn->incarnation)
        return rle_fail(RLE_INVALID_ARGUMENT, "frame of another incarnation");
    if (rle_frame_is_message(f)) return check_message(conn, f);
    if (f->type == RLE_FRAME_CHUNK) return RLE_OK;
    if ((f->flags & RLE_FLAG_MORE) || f->payload > RLE_CONTROL_MAX)
        return rle_fail(RLE_INVALID_ARGUMENT, "%s frame of %" PRIu64 " bytes",
                        rle_frame_type_name(f->type), f->body);
    switch (f->type) {
    case RLE_FRAME_CREDIT:
    case RLE_FRAME_CANCEL:
    case RLE_FRAME_PING:
        if (f->payload)
            return rle_fail(RLE_INVALID_ARGUMENT, "%s frame with a body",
                            rle_frame_type_name(f->type));
        return RLE_OK;
    case RLE_FRAME_PONG:
        if (f->payload >= RLE_NOTE_MAX)
            return rle_fail(RLE_INVALID_ARGUMENT, "PONG frame of %u bytes", f->payload);
        return RLE_OK;
    case RLE_FRAME_RELEASE:
        if (f->payload % RELEASE_ENTRY)
            return rle_fail(RLE_INVALID_ARGUMENT, "malformed RELEASE frame");
        return RLE_OK;
    case RLE_FRAME_GOAWAY:
    case RLE_FRAME_ERROR:
        return RLE_OK;
    default:
        if ((f->flags & RLE_FLAG_MUST_UNDERSTAND) || f->type == 0 ||
            f->type < RLE_FRAME_TYPES)
            return rle_fail(RLE_UNIMPLEMENTED, "unexpected frame of type %u", f->type);
        return RLE_OK; /* of a later version, and of no importance */
    }
}

static void give_credit(rle_conn *conn, uint32_t credit)
{
    if (!credit) return;
    conn->credits = credit > RLE_CALLS_HARD - conn->credits ? RLE_CALLS_HARD
                                                            : conn->credits + credit;
    if (conn->peer->held) rle_peer_send_held(conn->peer);
}

/* Answer a ping. While Lua computes: for how long it has, and what it noted. */
static void pong(rle_conn *conn, uint64_t stamp)
{
    const rle_evloop *l = &conn->rpc->loop;
    rle_frame f = {.type = RLE_FRAME_PONG, .arg = stamp};
    char text[RLE_NOTE_MAX] = "";
    if (l->guard_runs) {
        f.credit = (uint32_t)((rle_now() - l->away_since) / 1000000);
        rle_note_read(text);
    }
    struct iovec part = {text, strlen(text)};
    f.values = (uint32_t)part.iov_len;
    if (rle_conn_send(conn, &f, &part, part.iov_len ? 1 : 0, false, false) != RLE_OK)
        rle_conn_close(conn, "out of memory", false);
}

/* What the other side noted goes into messages: printable, whatever it is. */
static void keep_note(rle_peer *peer, const uint8_t *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        peer->note[i] = text[i] < 32 || text[i] == 127 ? '?' : (char)text[i];
    peer->note[n] = 0;
}

/* The other side answers pings while its Lua computes, and says for how long it has. */
static void note_absence(rle_conn *conn, uint32_t away_ms)
{
    rle_rpc *rpc = conn->rpc;
    if (away_ms * INT64_C(1000000) < rpc->o.busy_after) {
        conn->busy_logged = false;
        return;
    }
    if (conn->busy_logged) return;
    const rle_future *oldest = NULL;
    RLE_MAP_EACH(&conn->calls, slot) {
        const rle_future *f = slot->v.pointer;
        if (!oldest || f->id < oldest->id) oldest = f;
    }
    if (!oldest) return;
    conn->busy_logged = true;
    const rle_peer *peer = conn->peer;
    rle_log_about(rpc, RLE_LOG_WARN,
                  "worker \"%s\" is alive but \"%s\" has run for %.1f s (pid %d%s%s)",
                  peer->name, oldest->method,
                  (double)(rle_now() - oldest->started) / RLE_SECONDS, (int)conn->pid,
                  peer->note[0] ? ", " : "", peer->note);
}

static void goaway(rle_conn *conn, const rle_frame *f)
{
    char before[RLE_NAME_MAX + 32];
    if (f->code != RLE_OK) {
        conn->ending = RLE_ENDING_SAID;
        rle_conn_close(conn, "it ended the session", false);
        return;
    }
    conn->going_away = true;
    rle_peer_changed(conn->peer);
    snprintf(before, sizeof before, "\"%s\" is stopping and did not run ", conn->peer->name);
    rle_peer_fail_held(conn->peer, RLE_UNAVAILABLE, before, " (outcome: not executed)");
}

void rle_dispatch_control(rle_conn *conn, const rle_frame *f, const uint8_t *payload)
{
    if (conn->state != RLE_CONN_OPEN) {
        rle_handshake_frame(conn, f, payload);
        return;
    }
    switch (f->type) {
    case RLE_FRAME_CREDIT:
        give_credit(conn, f->credit);
        break;
    case RLE_FRAME_CANCEL:
        rle_incoming_cancel(conn, f->id);
        break;
    case RLE_FRAME_PING:
        pong(conn, f->arg);
        break;
    case RLE_FRAME_PONG:
        keep_note(conn->peer, payload, f->payload);
        note_absence(conn, f->credit);
        rle_contest_answered(conn, f->arg);
        break;
    case RLE_FRAME_RELEASE:
        for (uint32_t at = 0; at < f->payload; at += RELEASE_ENTRY)
            rle_export_released(conn, rle_get64(payload + at), rle_get32(payload + at + 8));
        break;
    case RLE_FRAME_GOAWAY:
        goaway(conn, f);
        break;
    case RLE_FRAME_ERROR: {
        rle_msg m = {.data = payload, .size = f->payload, .values = f->payload};
        rle_wire_error e;
        if (rle_error_decode(&m, &e) == RLE_OK)
            rle_fail(e.code, "it says: %.*s", (int)(e.message.n < 400 ? e.message.n : 400),
                     e.message.p);
        rle_conn_reject(conn);
        break;
    }
    default:
        break;
    }
}

void rle_dispatch_message(rle_conn *conn, const rle_frame *f, const uint8_t *body, void *block,
                          rle_placed *placed)
{
    rle_msg m = {.data = body,
                     .size = f->body,
                     .values = f->values,
                     .tensors = f->tensors,
                     .block = block,
                     .placed = placed};
    if (f->type == RLE_FRAME_CALL) {
        rle_incoming_new(conn, f, &m);
        return;
    }
    rle_follower *follower = conn->follows ? rle_follower_of(conn, f->id) : NULL;
    if (follower) {
        if (rle_follower_answered(follower, f, &m) == RLE_OK) return;
        rle_message_drop_bytes(conn->rpc, &m);
        rle_conn_reject(conn);
        return;
    }
    rle_future_result(conn, f, &m);
    if (conn->state == RLE_CONN_OPEN) give_credit(conn, f->credit);
}
