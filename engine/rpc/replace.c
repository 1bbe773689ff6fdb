/* replace.c - a worker joins under a name that has a connection already.
 *
 * The old connection may be half open: its process is frozen, or its machine gone, and we
 * have not noticed yet. So it is pinged. When it answers, the name is taken; when it does
 * not, it is closed and the new one takes its place. A process that connects again has
 * given its old connection up itself: that one is closed at once.
 *
 * Only who has proved the token comes here. Meanwhile the new connection waits in its
 * handshake, in the list of contenders of its name; there may be several. Whatever ends
 * the old connection lets them go on, one after the other: the first takes the name, the
 * next finds it taken again. */
#include <stdio.h>

#include "base/log.h"
#include "rpc/rpc_internal.h"

#define PATIENCE RLE_SECONDS
#define STOPPED                                                                          \
    (RLE_SECONDS / 5) /* a timer that fires so late: we did not run meanwhile */
#define CONTEST (UINT64_C(1) << 63) /* tells these pings from those of the heartbeat */

static int64_t patience(const rle_rpc *rpc)
{
    return rpc->o.peer_timeout < PATIENCE ? rpc->o.peer_timeout : PATIENCE;
}

static void no_answer(rle_timer *t);

static rle_status ask(rle_handshake *h, rle_conn *old)
{
    h->contest = CONTEST | ++h->rpc->contests;
    h->timer.fire = no_answer;
    RLE_TRY(rle_timer_arm(&h->rpc->loop, &h->timer, rle_now() + patience(h->rpc)));
    rle_conn_control(old, RLE_FRAME_PING, 0, h->contest, 0);
    return RLE_OK;
}

static void no_answer(rle_timer *t)
{
    rle_handshake *h = (rle_handshake *)((char *)t - offsetof(rle_handshake, timer));
    rle_rpc *rpc = h->rpc;
    rle_conn *old = h->contested->conn;
    if (rle_now() - t->at > STOPPED) {
        /* Its answer may lie in the socket. */
        rle_status s = ask(h, old);
        if (s != RLE_OK) rle_handshake_refuse(h->conn, s);
        return;
    }
    rle_log_about(rpc, RLE_LOG_WARN,
                  "worker \"%s\" replaced: the old connection did not answer a ping in "
                  "%.1f s",
                  old->peer->name, (double)patience(rpc) / RLE_SECONDS);
    old->ending = RLE_ENDING_REPLACED;
    rle_conn_goaway(old, RLE_UNAVAILABLE);
    rle_conn_close(old, "replaced", true); /* settles it */
}

bool rle_replace(rle_conn *conn, rle_conn *old)
{
    rle_handshake *h = conn->handshake;
    rle_peer *peer = old->peer;
    /* What we opened to it ourselves it may not have seen yet: that is no old connection.
     */
    if (old->incarnation == h->theirs.incarnation && !old->initiator) {
        rle_log_about(conn->rpc, RLE_LOG_INFO,
                      "worker \"%s\" replaced: it connected again", peer->name);
        old->ending = RLE_ENDING_REPLACED;
        rle_conn_close(old, "replaced", true);
        old = peer->conn; /* somebody else has waited for this */
        if (!old) return true;
    }
    h->contested = peer;
    h->contest_at = &peer->contenders;
    while (*h->contest_at) h->contest_at = &(*h->contest_at)->contest_next;
    h->contest_next = NULL;
    *h->contest_at = h;
    rle_status s = ask(h, old);
    if (s != RLE_OK) rle_handshake_refuse(conn, s);
    return false;
}

void rle_contest_leave(rle_handshake *h)
{
    if (!h->contest_at) return;
    *h->contest_at = h->contest_next;
    if (h->contest_next) h->contest_next->contest_at = h->contest_at;
    h->contest_at = NULL;
    h->contest = 0;
    rle_timer_disarm(&h->rpc->loop, &h->timer);
}

void rle_contest_answered(rle_conn *old, uint64_t number)
{
    if (!(number & CONTEST)) return;
    rle_handshake *h = old->peer->contenders;
    while (h && h->contest != number) h = h->contest_next;
    if (!h) return;
    rle_conn *conn = h->conn;
    if (h->theirs.incarnation == old->incarnation) {
        /* Both have connected to each other: one connection is enough. */
        rle_fail(RLE_ABORTED, "\"%s\" is connected to \"%s\" already", conn->rpc->name,
                 old->peer->name);
        rle_handshake_refuse(conn, RLE_ABORTED);
        return;
    }
    rle_fail(RLE_ALREADY_EXISTS,
             "\"%s\" is already connected from pid %d; pick another name",
             old->peer->name, (int)old->pid);
    rle_log_about(conn->rpc, RLE_LOG_WARN, "refused %s: %s", conn->address.shown,
                  rle_message());
    rle_handshake_refuse(conn, RLE_ALREADY_EXISTS);
}

void rle_contest_settle(rle_peer *peer)
{
    /* Who finds the name taken again goes to the end of the list: each has its turn once.
     */
    size_t n = 0;
    for (const rle_handshake *h = peer->contenders; h; h = h->contest_next) n++;
    for (; n && peer->contenders; n--) {
        rle_handshake *h = peer->contenders;
        rle_contest_leave(h);
        rle_handshake_admit(h->conn);
    }
}

/* ---- both connect to each other ---- */

rle_conn *rle_own_attempt(const rle_rpc *rpc, const rle_peer *peer,
                          const rle_greeting *theirs)
{
    rle_conn *c = rpc->joining;
    if (peer->opening || !c || c->state != RLE_CONN_PROVING) return peer->opening;
    const rle_greeting *met = &c->handshake->theirs;
    return met->incarnation == theirs->incarnation && strcmp(met->name, theirs->name) == 0
               ? c
               : NULL;
}

void rle_attempt_drop(rle_conn *mine, rle_peer *peer)
{
    if (peer->opening == mine) peer->opening = NULL;
    mine->peer = NULL;
    if (mine->result && !mine->result->done) {
        mine->result->done = true;
        mine->result->status = RLE_OK;
        mine->result->peer = peer;
    }
    rle_conn_close(mine, "the other side connected first", true);
}
