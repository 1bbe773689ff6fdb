/* dump.c - all that a worker is busy with, as text: for the prompt, and for what hangs.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/context.h"
#include "rpc/rpc_internal.h"

RLE_PRINTF(2, 3)
static void line(rle_writer *w, const char *fmt, ...)
{
    char text[1024];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(text, sizeof text - 1, fmt, args);
    va_end(args);
    if (n > (int)sizeof text - 2) n = (int)sizeof text - 2;
    text[n++] = '\n';
    rle_write_bytes(w, text, (size_t)n);
}

static double seconds(int64_t span)
{
    return (double)span / RLE_SECONDS;
}

static const char *state_name(const rle_conn *conn)
{
    switch (conn->state) {
    case RLE_CONN_CONNECTING:
        return "connecting";
    case RLE_CONN_OPEN:
        return "open";
    case RLE_CONN_DEAD:
        return "closed";
    default:
        return "shaking hands";
    }
}

static void one_future(rle_writer *w, const rle_future *f, int64_t now)
{
    const char *how = f->local          ? "runs here"
                      : f->conn         ? "sent"
                      : f->after        ? "waits for its object"
                      : f->in_peer_list ? "held back"
                                        : "not sent";
    char left[48] = "no deadline";
    if (f->deadline)
        snprintf(left, sizeof left, "%.3f s left", seconds(f->deadline - now));
    line(w, "  future \"%s\"%s%s%s made at %s: %s, open for %.3f s, %s%s", f->method,
         f->peer ? " on \"" : "", f->peer ? f->peer->name : "", f->peer ? "\"" : "",
         rle_site_name(f->site), how, seconds(now - f->started), left,
         f->waiters ? ", waited for" : "");
}

static void one_incoming(rle_writer *w, const rle_incoming *in, int64_t now)
{
    char left[48] = "no deadline";
    if (in->deadline)
        snprintf(left, sizeof left, "%.3f s left", seconds(in->deadline - now));
    const char *state = in->batch ? "in a batch" : in->started ? "started" : "queued";
    line(w, "    serves %" PRIu64 " \"%.*s\": %s%s%s, %s", in->id, in->head.method_len,
         in->head.method, state, in->waits ? ", waits" : "", in->cancelled ? ", cancelled" : "",
         left);
}

static void one_conn(rle_writer *w, const rle_conn *conn, int64_t now)
{
    size_t waiting = conn->out_end - conn->out_begin, messages = 0, partial = 0;
    if (conn->chunk) waiting += conn->chunk->body->size - conn->chunk->sent, messages++;
    for (const rle_out_message *m = conn->long_first; m; m = m->next, messages++)
        waiting += m->body->size - m->sent;
    for (const rle_in_message *m = conn->partial; m; m = m->next) partial++;
    line(w,
         "  connection %s \"%s\" %s: %s%s, heard %.3f s ago%s, in %" PRIu64
         ", out %" PRIu64
         " bytes, %zu wait in %zu messages, %zu half received, %u calls more allowed",
         conn->initiator ? "to" : "from", conn->peer ? conn->peer->name : "?",
         conn->address.shown, state_name(conn), conn->going_away ? ", leaving" : "",
         seconds(conn->active ? 0 : now - conn->heard), conn->pinged ? ", pinged" : "",
         conn->bytes_in, conn->bytes_out, waiting, messages, partial, conn->credits);
    line(w, "    %zu calls open, %zu served, holds %zu of our objects", conn->calls.used,
         conn->incoming_count, conn->exported.used);
    for (const rle_incoming *in = conn->incoming; in; in = in->next)
        one_incoming(w, in, now);
}

void rle_rpc_dump(rle_rpc *rpc, rle_writer *w)
{
    rle_rpc_enter(rpc);
    int64_t now = rle_now();
    line(w, "worker \"%s\", life %016" PRIx64 "%s", rpc->name, rpc->incarnation,
         rpc->stopping ? ", stopping" : "");
    line(w,
         "  calls: %zu queued, %zu running, of which %zu wait; %zu objects with "
         "references; "
         "%zu timers",
         rpc->queued, rpc->serving, rpc->serving_waits, rpc->exports.used,
         rpc->loop.timers);
    for (const rle_conn *conn = rpc->conns; conn; conn = conn->next)
        one_conn(w, conn, now);
    RLE_MAP_EACH(&rpc->peers, slot)
    for (const rle_peer *p = slot->v.pointer; p; p = p->next_same)
        if (!p->is_self && !p->conn)
            line(w, "  worker \"%s\" is not connected%s%s%s; %zu calls held back", p->name,
                 p->lost_reason[0] ? ": " : "", p->lost_reason,
                 rle_link_seeks(p) ? ", looked for" : "", p->held_count);
    for (const rle_future *f = rpc->live; f; f = f->live_next)
        if (f->state == RLE_FUTURE_PENDING) one_future(w, f, now);
    rle_rpc_leave(rpc);
}
