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

void rle_peer_lost(rle_conn *conn, const char *reason, bool quiet)
{
    rle_peer *peer = conn->peer;
    rle_rpc *rpc = conn->rpc;
    size_t failed = conn->calls.used;
    bool sought = rle_link_keeps(conn);
    peer->conn = NULL;
    peer->left = conn->going_away;
    rle_peer_changed(peer);
    snprintf(peer->lost_reason, sizeof peer->lost_reason, "%s", reason);
    bool silent = strncmp(reason, "did not answer", 14) == 0;
    const char *clogged = strncmp(reason, "not reading: ", 13) == 0 ? reason + 13 : NULL;
    RLE_MAP_EACH(&conn->calls, slot)
    {
        rle_future *f = slot->v.pointer;
        f->conn = NULL;
        rle_outcome outcome = f->sent ? RLE_OUTCOME_UNKNOWN : RLE_OUTCOME_NOT_EXECUTED;
        if (conn->ending == RLE_ENDING_SAID)
            rle_future_fail(f, RLE_UNAVAILABLE, outcome, "session ended by \"%s\"%s", peer->name,
                            sought ? "; reconnecting" : "");
        else if (clogged)
            rle_future_fail(f, RLE_RESOURCE_EXHAUSTED, outcome,
                            "worker \"%s\" is not reading: %s", peer->name, clogged);
        else if (!f->sent)
            rle_future_fail(
                f, RLE_UNAVAILABLE, outcome,
                "worker \"%s\" disconnected before \"%s\" was sent (outcome: not executed)",
                peer->name, f->method);
        else if (conn->ending == RLE_ENDING_REPLACED)
            rle_future_fail(
                f, RLE_UNAVAILABLE, outcome,
                "worker \"%s\" was replaced while \"%s\" was running (outcome: "
                "unknown)",
                peer->name, f->method);
        else if (silent)
            rle_future_fail(f, RLE_UNAVAILABLE, outcome,
                            "worker \"%s\" %s (outcome: unknown)", peer->name, reason);
        else
            rle_future_fail(
                f, RLE_UNAVAILABLE, outcome,
                "worker \"%s\" disconnected while \"%s\" was running (outcome: "
                "unknown)",
                peer->name, f->method);
        rle_future_unref(f);
    }
    rle_map_fini(&conn->calls);
    if (sought) {
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
    if (!quiet && conn->going_away && !failed)
        rle_log(RLE_LOG_DEBUG, "worker \"%s\" left", peer->name);
    else if (!quiet && conn->going_away && !clogged && !rpc->stopping && !rle_interrupted)
        rle_log_about(rpc, RLE_LOG_WARN,
                      "worker \"%s\" left; %zu call%s failed, %zu reference%s released",
                      peer->name, failed, failed == 1 ? "" : "s", released,
                      released == 1 ? "" : "s");
    else if (!quiet && !rpc->stopping && !rle_interrupted) /* asked to end: so are others */
        rle_log_about(rpc, RLE_LOG_WARN,
                      "worker \"%s\" %s: %s; %zu call%s failed, %zu reference%s released",
                      peer->name, clogged ? "dropped" : "lost",
                      clogged ? clogged : reason, failed, failed == 1 ? "" : "s",
                      released, released == 1 ? "" : "s");
    if (sought) rle_link_lost(peer, conn->ending == RLE_ENDING_REPLACED);
    rle_contest_settle(peer);
}
