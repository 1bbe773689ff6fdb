/* lost.c - the connection of a worker is over: what its callers and the log's readers
 * learn.
 *
 * Whoever waits for a call to it hears at once; calls not sent yet wait on when the
 * worker is looked for (link.c), except those that use a reference, which went with the
 * connection. */
#include <stdio.h>
#include <string.h>

#include "base/context.h"
#include "base/log.h"
#include "rpc/batch_internal.h"

/* In what a reason begins with. */
static const char silent[] = "did not answer", clogged[] = "not reading: ";

static const char *without(const char *reason, const char *beginning)
{
    size_t n = strlen(beginning);
    return strncmp(reason, beginning, n) == 0 ? reason + n : NULL;
}

static void fail_call(const rle_conn *conn, rle_future *f, const char *reason,
                      bool sought)
{
    const char *worker = conn->peer->name, *full = without(reason, clogged);
    rle_outcome outcome = f->sent ? RLE_OUTCOME_UNKNOWN : RLE_OUTCOME_NOT_EXECUTED;
    if (conn->ending == RLE_ENDING_SAID)
        rle_future_fail(f, RLE_UNAVAILABLE, outcome, "session ended by \"%s\"%s", worker,
                        sought ? "; reconnecting" : "");
    else if (f->claim)
        rle_future_fail(f, RLE_UNAVAILABLE, RLE_OUTCOME_NOT_EXECUTED,
                        "owner \"%s\" of this reference is gone", worker);
    else if (full)
        rle_future_fail(f, RLE_RESOURCE_EXHAUSTED, outcome,
                        "worker \"%s\" is not reading: %s", worker, full);
    else if (!f->sent)
        rle_future_fail(
            f, RLE_UNAVAILABLE, outcome,
            "worker \"%s\" disconnected before \"%s\" was sent (outcome: not executed)",
            worker, f->method);
    else if (conn->ending == RLE_ENDING_REPLACED)
        rle_future_fail(
            f, RLE_UNAVAILABLE, outcome,
            "worker \"%s\" was replaced while \"%s\" was running (outcome: unknown)",
            worker, f->method);
    else if (without(reason, silent))
        rle_future_fail(f, RLE_UNAVAILABLE, outcome,
                        "worker \"%s\" %s (outcome: unknown)", worker, reason);
    else
        rle_future_fail(
            f, RLE_UNAVAILABLE, outcome,
            "worker \"%s\" disconnected while \"%s\" was running (outcome: unknown)",
            worker, f->method);
}

/* First none of them is this connection's any more; then each fails. So whoever hears of
 * that may make calls, cancel or release any of them and stop this worker: no table
 * changes that is walked here, and each stays until its turn, for it is retained from
 * here. The worker that is lost stays, too: workers are forgotten between turns only. */
static void fail_calls(rle_conn *conn, const char *reason)
{
    bool sought = rle_link_keeps(conn);
    rle_map calls = conn->calls;
    conn->calls = (rle_map){0};
    RLE_MAP_EACH(&calls, slot)((rle_future *)slot->v.pointer)->conn = NULL;
    RLE_MAP_EACH(&calls, slot)
    {
        fail_call(conn, slot->v.pointer, reason, sought);
        rle_future_unref(slot->v.pointer);
    }
    rle_map_fini(&calls);
}

void rle_peer_lost(rle_conn *conn, const char *reason, bool quiet)
{
    rle_peer *peer = conn->peer;
    rle_rpc *rpc = conn->rpc;
    size_t failed = conn->calls.used;
    peer->conn = NULL;
    peer->left = conn->going_away;
    rle_peer_changed(peer);
    snprintf(peer->lost_reason, sizeof peer->lost_reason, "%s", reason);
    fail_calls(conn, reason);
    if (rle_link_keeps(conn)) {
        rle_peer_fail_held_refs(peer);
    } else if (!peer->opening) {
        char before[RLE_NAME_MAX + 48];
        snprintf(before, sizeof before, "worker \"%s\" disconnected before ", peer->name);
        rle_peer_fail_held(peer, RLE_UNAVAILABLE, before,
                           " was sent (outcome: not executed)");
    }
    while (conn->incoming) rle_incoming_orphan(conn->incoming);
    rle_batches_peer_lost(peer);
    if (rpc->service) rpc->service->gone(rpc->service, peer, reason, conn->going_away);
    size_t released = rle_export_release_all(conn);
    const char *full = without(reason, clogged);
    if (!quiet && conn->going_away && !failed)
        rle_log(RLE_LOG_DEBUG, "worker \"%s\" left", peer->name);
    else if (!quiet && conn->going_away && !full && !rpc->stopping && !rle_interrupted)
        rle_log_about(rpc, RLE_LOG_WARN,
                      "worker \"%s\" left; %zu call%s failed, %zu reference%s released",
                      peer->name, failed, failed == 1 ? "" : "s", released,
                      released == 1 ? "" : "s");
    else if (!quiet && !rpc->stopping && !rle_interrupted) /* asked to end: so are others */
        rle_log_about(rpc, RLE_LOG_WARN,
                      "worker \"%s\" %s: %s; %zu call%s failed, %zu reference%s released",
                      peer->name, full ? "dropped" : "lost", full ? full : reason, failed,
                      failed == 1 ? "" : "s", released, released == 1 ? "" : "s");
    if (rle_link_keeps(conn)) rle_link_lost(peer, conn->ending == RLE_ENDING_REPLACED);
    rle_contest_settle(peer);
}
