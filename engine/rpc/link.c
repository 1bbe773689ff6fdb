/* link.c - connections we made are kept: a worker that was lost without a goodbye is
 * looked for again.
 *
 * A link is made by rle_rpc_connect and belongs to the worker that was found at its
 * address. While the worker is away the link has a timer of the loop, so attempts go on
 * while the owner computes. The pauses before them double, and each is stretched by a
 * random factor: many workers that lost the same one do not come back at the same moment.
 * Whatever connection the worker comes back over ends the search.
 *
 * A worker that starts again may have another address under the same name. So a name is
 * looked up for each attempt; while that takes long, or fails, the address of before is
 * tried.
 *
 * The first pause is short only for a worker that stayed for a while. So a connection
 * that breaks as soon as it stands is not made ten times a second. */
#include <stdio.h>
#include <string.h>

#include "base/context.h"
#include "base/log.h"
#include "rpc/lookup.h"
#include "rpc/rpc_internal.h"

#define FIRST_PAUSE (RLE_SECONDS / 10)
#define LONGEST_PAUSE (5 * RLE_SECONDS)
#define STAYED RLE_SECONDS

struct rle_link {
    rle_rpc *rpc;
    rle_link *next; /* in rpc->links */
    rle_peer *peer; /* NULL until the connection stands */
    rle_address address;
    bool named;         /* its host is a name */
    rle_lookup *lookup; /* of it, or NULL */
    bool awaits;        /* the attempt waits for that */
    rle_timer timer; /* of the next attempt, or of the end of the search */
    int64_t since;   /* when the search began; 0: there is none */
    int64_t joined;  /* when the worker came last */
    int64_t pause;   /* before the next attempt, not yet stretched */
    int attempt;
    bool untold;         /* nobody has read of this search yet */
    char missed[96];     /* how the last attempt of this search ended */
    rle_status given_up; /* why nobody is looked for any more; RLE_OK: not so */
    char why[512];
};

/* splitmix64 */
static double random_part(rle_rpc *rpc)
{
    uint64_t x = rpc->random += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    x ^= x >> 31;
    return (double)(x >> 11) / (double)(UINT64_C(1) << 53);
}

double rle_rpc_random(rle_rpc *rpc)
{
    rle_rpc_enter(rpc);
    double part = random_part(rpc);
    rle_rpc_leave(rpc);
    return part;
}

static int64_t end_of_search(const rle_link *l)
{
    return l->since + l->rpc->o.reconnect_for;
}

/* ---- ending ---- */

static void end_search(rle_link *l)
{
    l->since = 0;
    l->awaits = false;
    rle_lookup_end(l->lookup);
    l->lookup = NULL;
    rle_timer_disarm(&l->rpc->loop, &l->timer);
}

/* Nobody is looked for any more. The message is rle_message(). */
static void give_up(rle_link *l, rle_status code)
{
    rle_peer *peer = l->peer;
    char before[sizeof l->why + 8];
    end_search(l);
    l->given_up = code;
    snprintf(l->why, sizeof l->why, "%s", rle_message());
    rle_log(RLE_LOG_WARN, "%s", l->why);
    snprintf(before, sizeof before, "%s; ", l->why);
    rle_peer_fail_held(peer, code, before, " was not sent (outcome: not executed)");
    if (peer->opening) rle_conn_close(peer->opening, "given up", true);
    l->rpc->membership++;
}

static void give_up_in_time(rle_link *l)
{
    rle_fail(RLE_UNAVAILABLE, "no worker \"%s\" at %s for %g s%s%s%s; giving up",
             l->peer->name, l->address.shown,
             (double)l->rpc->o.reconnect_for / RLE_SECONDS, l->missed[0] ? " (" : "",
             l->missed, l->missed[0] ? ")" : "");
    give_up(l, RLE_UNAVAILABLE);
}

void rle_link_refused(rle_peer *peer, rle_status code)
{
    give_up(peer->link, code);
}

void rle_link_end_all(rle_rpc *rpc)
{
    for (rle_link *l = rpc->links; l; l = l->next) end_search(l);
}

/* ---- looking ---- */

static void set_timer(rle_link *l, int64_t at)
{
    int64_t end = end_of_search(l);
    if (rle_timer_arm(&l->rpc->loop, &l->timer, at < end ? at : end) != RLE_OK)
        give_up(l, RLE_RESOURCE_EXHAUSTED);
}

/* The next attempt, if there is time for one. */
static void plan(rle_link *l)
{
    int64_t pause = (int64_t)((double)l->pause * (0.5 + random_part(l->rpc)));
    int64_t at = rle_now() + pause;
    l->pause = l->pause < LONGEST_PAUSE / 2 ? 2 * l->pause : LONGEST_PAUSE;
    if (at < end_of_search(l)) l->attempt++;
    if (at < end_of_search(l) && !l->untold && !rle_interrupted)
        rle_log(RLE_LOG_INFO, "reconnecting to \"%s\" in %.2f s (attempt %d)",
                l->peer->name, (double)pause / RLE_SECONDS, l->attempt);
    set_timer(l, at);
}

/* Take the address that was found, if there is one and we may go there. */
static void look_there(rle_link *l)
{
    rle_found found;
    if (!l->lookup || !rle_lookup_done(l->lookup)) return;
    if (rle_lookup_found(l->lookup, &found) == RLE_OK) {
        const rle_address *to = &found.at[(unsigned)l->attempt % found.count];
        bool tls = rle_tls_covers(l->rpc->tls, to) || l->rpc->o.insecure_network;
        if (rle_address_allowed(to, tls, "connect to") == RLE_OK) l->address = *to;
    }
    rle_lookup_end(l->lookup);
    l->lookup = NULL;
}

static void connect_now(rle_link *l)
{
    l->awaits = false;
    /* Until it is decided, only the end of the search is waited for. */
    set_timer(l, end_of_search(l));
    if (!l->since) return;
    look_there(l);
    l->peer->tried = RLE_REF_ADDRESSES; /* of this one alone */
    if (rle_connect_begin(l->rpc, &l->address, NULL, l->peer, NULL) != RLE_OK)
        rle_link_missed(l->peer, rle_message());
}

static void looked_up(void *self)
{
    rle_link *l = self;
    if (l->awaits && !l->peer->opening) connect_now(l);
}

static in_port_t port_of(const rle_address *at)
{
    return at->sa.ss_family == AF_INET
               ? ((const struct sockaddr_in *)&at->sa)->sin_port
               : ((const struct sockaddr_in6 *)&at->sa)->sin6_port;
}

static void attempt(rle_timer *t)
{
    rle_link *l = (rle_link *)((char *)t - offsetof(rle_link, timer));
    rle_peer *peer = l->peer;
    if (rle_now() >= end_of_search(l)) {
        give_up_in_time(l);
        return;
    }
    set_timer(l, end_of_search(l));
    if (!l->since || peer->opening) return;
    if (l->untold)
        rle_log(RLE_LOG_INFO, "reconnecting to \"%s\" (attempt %d)", peer->name,
                l->attempt);
    l->untold = false;
    if (l->named && !l->lookup &&
        rle_lookup_begin(&l->rpc->loop, l->address.host, port_of(&l->address), looked_up,
                         l, &l->lookup) == RLE_OK &&
        !rle_lookup_done(l->lookup)) {
        l->awaits = true;
        set_timer(l, rle_now() + RLE_LOOKUP_PATIENCE);
        return;
    }
    connect_now(l);
}

void rle_link_lost(rle_peer *peer, bool replaced)
{
    rle_link *l = peer->link;
    int64_t now = rle_now();
    l->since = now;
    l->attempt = 0;
    l->missed[0] = 0;
    /* Who took its place is at the door, and that was logged. */
    l->untold = replaced;
    if (now - l->joined >= STAYED) l->pause = FIRST_PAUSE;
    plan(l);
}

void rle_link_missed(rle_peer *peer, const char *why)
{
    if (!rle_link_seeks(peer)) return;
    snprintf(peer->link->missed, sizeof peer->link->missed, "%s", why);
    plan(peer->link);
}

void rle_link_joined(rle_peer *peer)
{
    rle_link *l = peer->link;
    if (!l) return;
    if ((l->since && !l->untold) || l->given_up)
        rle_log(RLE_LOG_INFO, "reconnected to \"%s\"", peer->name);
    end_search(l);
    l->given_up = RLE_OK;
    l->joined = rle_now();
}

/* ---- asking ---- */

bool rle_link_seeks(const rle_peer *peer)
{
    return peer->link && peer->link->since;
}

bool rle_link_keeps(const rle_conn *conn)
{
    return conn->peer->link && !conn->going_away && !conn->rpc->stopping;
}

rle_link_state rle_peer_link(rle_rpc *rpc, rle_peer *peer, rle_status *code)
{
    rle_link_state state = RLE_LINK_NONE;
    rle_rpc_enter(rpc);
    const rle_link *l = peer->link;
    if (l && l->given_up) {
        state = RLE_LINK_GIVEN_UP;
        *code = l->given_up;
        rle_fail(l->given_up, "%s", l->why);
    } else if (l) {
        state = l->since ? RLE_LINK_SEEKING : RLE_LINK_UP;
    }
    rle_rpc_leave(rpc);
    return state;
}

/* ---- life ---- */

rle_link *rle_link_new(rle_rpc *rpc, const rle_address *to, rle_status *s)
{
    *s = RLE_OK;
    if (rpc->o.reconnect_for < 0) return NULL;
    rle_link *l = rle_calloc(1, sizeof *l);
    if (!l) {
        *s = rle_oom(sizeof *l, "connection that is kept");
        return NULL;
    }
    l->rpc = rpc;
    l->address = *to;
    l->named = rle_host_is_name(to->host);
    l->timer.fire = attempt;
    l->pause = FIRST_PAUSE;
    return l;
}

void rle_link_aim(rle_link *l, const rle_address *to)
{
    if (l) l->address = *to;
}

void rle_link_attach(rle_link *l, rle_peer *peer)
{
    if (!l) return;
    rle_link_free(peer->link); /* it is at another address now */
    l->peer = peer;
    peer->link = l;
    l->next = l->rpc->links;
    l->rpc->links = l;
    l->joined = rle_now();
    if (!peer->conn && !peer->left) rle_link_lost(peer, false);
}

void rle_link_free(rle_link *l)
{
    if (!l) return;
    rle_lookup_end(l->lookup);
    if (l->peer) {
        rle_link **at = &l->rpc->links;
        while (*at != l) at = &(*at)->next;
        *at = l->next;
        l->peer->link = NULL;
    }
    rle_timer_disarm(&l->rpc->loop, &l->timer);
    rle_free(l);
}
