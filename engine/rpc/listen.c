/* listen.c - listening for workers, and connecting to them. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/context.h"
#include "base/log.h"
#include "rpc/lookup.h"
#include "rpc/rpc_internal.h"

enum { ACCEPTS_A_TURN = 16 };
#define ACCEPT_PAUSE (RLE_SECONDS / 10)
/* The time an attempt to connect has at least, however late it begins. */
#define LAST_ATTEMPT (RLE_SECONDS / 2)
#define FIRST_LOOKUP_PAUSE (RLE_SECONDS / 10)
#define LOOKUP_PAUSE RLE_SECONDS

/* ---- listening ---- */

static void accept_again(rle_timer *t);

/* Accept again after a while. False without memory for the timer: there is no pause then.
 */
static bool accept_later(rle_rpc *rpc)
{
    rpc->accept_timer.fire = accept_again;
    return rle_timer_arm(&rpc->loop, &rpc->accept_timer, rle_now() + ACCEPT_PAUSE) ==
           RLE_OK;
}

static void resume_accepting(rle_rpc *rpc)
{
    for (int i = 0; i < rpc->listener_count; i++) {
        struct rle_listener *listener = &rpc->listeners[i];
        if (!listener->paused) continue;
        listener->paused = !rle_watch_on(listener->watch);
        if (listener->paused) accept_later(rpc);
    }
}

static void accept_again(rle_timer *t)
{
    resume_accepting((rle_rpc *)((char *)t - offsetof(rle_rpc, accept_timer)));
}

void rle_half_open_less(rle_rpc *rpc)
{
    rpc->half_open--;
    if (!rpc->crowded || rpc->half_open > RLE_PREAUTH_CONNECTIONS / 2) return;
    rpc->crowded = false;
    resume_accepting(rpc);
}

static void stop_listening(struct rle_listener *listener)
{
    listener->paused = true;
    rle_watch_off(listener->watch);
}

/* Those who wait are in the kernel's queue; said once, until none of them waits any more.
 */
static void pause_accepting(struct rle_listener *listener, const char *why)
{
    rle_rpc *rpc = listener->rpc;
    if (!rpc->short_of) rle_log(RLE_LOG_WARN, "accepting paused: %s", why);
    if (!rpc->short_of) rpc->short_of = listener;
    if (accept_later(rpc)) stop_listening(listener);
}

/* accept(2) failed. */
static void accept_failed(struct rle_listener *listener, int why)
{
    rle_rpc *rpc = listener->rpc;
    char text[96];
    struct rlimit limit;
    if (why == EMFILE && getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        unsigned long long most = limit.rlim_cur;
        snprintf(text, sizeof text, "%llu of %llu file descriptors in use", most, most);
        pause_accepting(listener, text);
    } else if (why == EMFILE || why == ENFILE || why == ENOBUFS || why == ENOMEM) {
        pause_accepting(listener, strerror(why));
    } else if (why == EAGAIN && rpc->short_of == listener) {
        rpc->short_of = NULL;
        rle_log(RLE_LOG_INFO, "accepting again");
    } /* or a connection that is gone already */
}

static bool user_allowed(rle_rpc *rpc, uid_t uid)
{
    if (uid == geteuid()) return true;
    for (int i = 0; i < rpc->o.allow_uid_count; i++)
        if (rpc->allow_uids[i] == uid) return true;
    return false;
}

/* Before a byte is read: is there any reason to talk to it at all? */
static bool admit(rle_rpc *rpc, int fd, const rle_address *from, int64_t *pause)
{
    if (rle_refusal_banned(rpc, fd, from, pause)) return false;
    if (!from->is_unix) return true;
    pid_t pid;
    uid_t uid;
    if (rle_peer_credentials(fd, &pid, &uid) && user_allowed(rpc, uid)) return true;
    if (rle_stranger_told(rpc))
        rle_log(RLE_LOG_WARN,
                "refused a connection of user %u (allow_uids admits others)",
                (unsigned)uid);
    rpc->counters.refused_peers++;
    return false;
}

static void begin_now(rle_timer *t)
{
    rle_conn *conn =
        ((rle_handshake *)((char *)t - offsetof(rle_handshake, timer)))->conn;
    if (rle_watch_on(conn->read_watch)) {
        rle_handshake_begin(conn);
        return;
    }
    rle_oom(0, "connection");
    rle_conn_reject(conn);
}

/* Nothing is read from it until then. */
static void begin_after(rle_conn *conn, int64_t pause)
{
    rle_timer *t = &conn->handshake->timer;
    t->fire = begin_now;
    if (rle_watch_off(conn->read_watch) &&
        rle_timer_arm(&conn->rpc->loop, t, rle_now() + pause) == RLE_OK)
        return;
    rle_oom(0, "connection");
    rle_conn_reject(conn);
}

static void listener_readable(evutil_socket_t fd, short what, void *arg)
{
    (void)what;
    struct rle_listener *listener = arg;
    rle_rpc *rpc = listener->rpc;
    for (int i = 0; i < ACCEPTS_A_TURN; i++) {
        if (rpc->half_open >= RLE_PREAUTH_CONNECTIONS) {
            /* The others wait in the kernel's queue until some of these have proved
             * themselves, or were given up. */
            rpc->crowded = true;
            stop_listening(listener);
            return;
        }
        rle_address from;
        int got = rle_accept(fd, &from);
        if (got < 0) {
            accept_failed(listener, errno);
            return;
        }
        if (from.is_unix) from = listener->address;
        int64_t pause;
        if (!admit(rpc, got, &from, &pause)) {
            rle_close(got);
            continue;
        }
        rle_conn *conn;
        if (rle_conn_new(rpc, got, &from, false, false, &conn) != RLE_OK) {
            pause_accepting(listener, rle_message());
            return;
        }
        if (pause)
            begin_after(conn, pause);
        else
            rle_handshake_begin(conn);
    }
}

rle_status rle_rpc_listen(rle_rpc *rpc, const char *text, char *bound)
{
    rle_address at, real;
    RLE_TRY(rle_address_parse(text, &at));
    if (rpc->listener_count == RLE_LISTEN_MAX)
        return rle_fail(RLE_INVALID_ARGUMENT, "more than %d addresses to listen on",
                        RLE_LISTEN_MAX);
    int fd;
    bool tls = rle_tls_covers(rpc->tls, &at);
    RLE_TRY(rle_listen(&at, tls || rpc->o.insecure_network, &fd, &real));
    if (!real.is_loopback && !tls)
        rle_log(RLE_LOG_WARN,
                "listening on %s without tls: whoever can read this network can read and change "
                "what is sent",
                real.shown);
    rle_rpc_enter(rpc);
    struct rle_listener *listener = &rpc->listeners[rpc->listener_count];
    *listener = (struct rle_listener){.rpc = rpc, .fd = fd, .address = real};
    listener->watch =
        rle_watch_new(&rpc->loop, fd, RLE_WATCH_READ, listener_readable, listener);
    rle_status s = RLE_OK;
    if (!listener->watch || !rle_watch_on(listener->watch)) {
        rle_watch_free(listener->watch);
        rle_unlisten(fd, &real);
        s = rle_oom(sizeof *listener, "listener");
    } else {
        rpc->listener_count++;
        if (bound) snprintf(bound, RLE_ADDRESS_MAX, "%s", real.text);
    }
    rle_rpc_leave(rpc);
    return s;
}

/* ---- connecting ---- */

rle_status rle_connect_failed(const char *to, int why)
{
    rle_status code = RLE_FAILED_PRECONDITION;
    switch (why) {
    case ECONNREFUSED:
    case ENOENT: /* of a Unix socket that is yet to be made */
    case EAGAIN: /* of one whose queue is full */
    case ECONNRESET:
    case ECONNABORTED:
    case EPIPE:
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case EHOSTDOWN:
    case ENETUNREACH:
    case ENETDOWN:
    case ENETRESET:
    case EADDRNOTAVAIL: /* no port of ours is free */
        code = RLE_UNAVAILABLE;
        break;
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case ENOBUFS:
        code = RLE_RESOURCE_EXHAUSTED;
        break;
    default:
        break;
    }
    if (code == RLE_UNAVAILABLE) return rle_fail(code, "%s", strerror(why));
    return rle_fail(code, "cannot connect to %s: %s", to, strerror(why));
}

rle_status rle_connect_begin(rle_rpc *rpc, const rle_address *to,
                             rle_connect_result *result, rle_peer *peer, rle_conn **out)
{
    int fd;
    bool pending;
    rle_status s = rle_connect(to, &fd, &pending);
    if (s != RLE_OK) return rle_connect_failed(to->shown, errno);
    rle_conn *conn;
    RLE_TRY(rle_conn_new(rpc, fd, to, true, pending, &conn));
    conn->result = result;
    conn->peer = peer;
    if (out) *out = conn;
    if (peer) peer->opening = conn;
    if (!pending) {
        rle_handshake_begin(conn);
        return RLE_OK;
    }
    s = rle_handshake_time(conn);
    if (s != RLE_OK) rle_handshake_give_up(conn, s);
    return RLE_OK;
}

bool rle_peer_open_next(rle_peer *peer)
{
    rle_rpc *rpc = peer->rpc;
    while (peer->tried < peer->addresses && !peer->conn && !peer->opening &&
           !rpc->stopping) {
        const char *at = peer->address[peer->tried++];
        rle_address to;
        /* It comes from another worker: a number, or nobody looks it up. */
        if (rle_address_read(at, &to) != RLE_OK ||
            rle_address_allowed(&to,
                                rle_tls_covers(rpc->tls, &to) || rpc->o.insecure_network,
                                "connect to") != RLE_OK)
            continue;
        rle_connect_begin(rpc, &to, NULL, peer, NULL);
    }
    return peer->conn || peer->opening;
}

void rle_peer_open(rle_peer *peer)
{
    peer->tried = 0;
    rle_peer_open_next(peer);
}

/* A turn of an owner that waits here. Nobody is asked meanwhile where tensors go: what waits for
 * that would be readable in every turn. */
static void wait_a_turn(rle_rpc *rpc)
{
    bool any = rpc->placements > 0; /* then what is waited for may have happened */
    rle_conn_place_here(rpc);
    rle_evloop_turn(&rpc->loop, !any);
}

static void wake_up(rle_timer *t)
{
    (void)t; /* the turn has returned: that was all */
}

/* One attempt, waited for. Enters and leaves the loop's lock. */
static rle_status try_to_connect(rle_rpc *rpc, const rle_address *to, rle_link *link,
                                 rle_connect_result *result)
{
    rle_rpc_enter(rpc);
    rle_conn *conn = NULL;
    rle_status s = rle_connect_begin(rpc, to, result, NULL, &conn);
    if (s != RLE_OK) {
        snprintf(result->message, sizeof result->message, "%s", rle_message());
        result->lasting = s != RLE_UNAVAILABLE;
    }
    if (s == RLE_OK && !result->done) rpc->joining = conn;
    while (s == RLE_OK && !result->done && !rle_interrupted)
        wait_a_turn(rpc);
    if (s == RLE_OK && !result->done) {
        conn->result = NULL;
        rle_conn_close(conn, "interrupted", true);
        s = RLE_CANCELLED;
    } else if (s == RLE_OK) {
        s = result->status;
    }
    if (s == RLE_ABORTED && result->name[0]) {
        /* It has connected to us meanwhile, and one connection is enough. */
        rle_peer *peer = rle_peer_get(rpc, result->name);
        if (peer && peer->conn) {
            result->peer = peer;
            s = RLE_OK;
        }
    }
    if (s == RLE_OK) rle_link_attach(link, result->peer);
    rle_rpc_leave(rpc);
    return s;
}

/* Let the loop run for so long. False when interrupted, or without memory for the timer.
 */
static bool pause_between(rle_rpc *rpc, int64_t pause)
{
    rle_timer timer = {.fire = wake_up};
    rle_rpc_enter(rpc);
    bool armed = rle_timer_arm(&rpc->loop, &timer, rle_now() + pause) == RLE_OK;
    while (timer.place && !rle_interrupted) wait_a_turn(rpc);
    rle_timer_disarm(&rpc->loop, &timer);
    rle_rpc_leave(rpc);
    return armed && !rle_interrupted;
}

/* ---- where to ---- */

typedef struct target {
    const char *shown; /* as it was written */
    char host[RLE_ADDRESS_MAX], service[8];
    bool named;      /* the host is a name, which may lead elsewhere a moment later */
    rle_found found; /* at least one */
} target;

/* Look the name up, and wait for that. On failure the target stays as it was. */
static rle_status look_up(rle_rpc *rpc, target *t, int64_t until)
{
    rle_timer timer = {.fire = wake_up};
    rle_lookup *l = NULL;
    rle_found found;
    rle_rpc_enter(rpc);
    rle_status s = rle_lookup_begin(&rpc->loop, t->host,
                                    htons((in_port_t)atoi(t->service)), NULL, NULL, &l);
    if (s == RLE_OK) s = rle_timer_arm(&rpc->loop, &timer, until);
    while (s == RLE_OK && !rle_lookup_done(l) && timer.place && !rle_interrupted)
        wait_a_turn(rpc);
    if (s == RLE_OK) s = rle_lookup_found(l, &found);
    if (s != RLE_OK && rle_interrupted) s = RLE_CANCELLED;
    rle_timer_disarm(&rpc->loop, &timer);
    rle_lookup_end(l);
    rle_rpc_leave(rpc);
    if (s == RLE_OK) t->found = found;
    return s;
}

/* The name may be made together with what listens there: until `end` it is looked up
 * again. That somebody waits for it is said at once, for it may be misspelt. */
static rle_status wait_for_name(rle_rpc *rpc, target *t, int64_t end, int64_t timeout)
{
    double seconds = (double)timeout / RLE_SECONDS;
    int64_t pause = FIRST_LOOKUP_PAUSE;
    for (bool told = false;; told = true) {
        int64_t now = rle_now();
        rle_status s =
            look_up(rpc, t, end - now > LAST_ATTEMPT ? end : now + LAST_ATTEMPT);
        if (s == RLE_CANCELLED) return rle_fail(s, "interrupted");
        if (s != RLE_UNAVAILABLE) return s;
        int64_t left = end - rle_now();
        if (!told && left > 0)
            rle_log(RLE_LOG_WARN, "%s; trying again for %.1f s", rle_message(), seconds);
        char why[512];
        snprintf(why, sizeof why, "%s", rle_message());
        bool again = left > 0 && pause_between(rpc, pause < left ? pause : left);
        if (rle_interrupted) return rle_fail(RLE_CANCELLED, "interrupted");
        if (!again)
            return rle_fail(RLE_UNAVAILABLE,
                            "no worker at %s for %.1f s: %s; check how it is spelt, "
                            "/etc/hosts and the name server",
                            t->shown, seconds, why);
        if (pause < LOOKUP_PAUSE / 2) pause *= 2;
    }
}

static rle_status find_target(rle_rpc *rpc, const char *text, int64_t end,
                              int64_t timeout, target *t)
{
    t->shown = strncmp(text, "tcp://", 6) == 0 ? text + 6 : text;
    RLE_TRY(rle_address_split(text, &t->found.at[0], t->host, t->service));
    t->found.count = 1;
    t->named = rle_host_is_name(t->host);
    if (t->named) return wait_for_name(rpc, t, end, timeout);
    return rle_address_parse(text, &t->found.at[0]);
}

/* Of a target with several addresses the one of that number, if we may go there. */
static rle_status aim(rle_rpc *rpc, const target *t, unsigned number, rle_address *out)
{
    const rle_address *to = &t->found.at[number % t->found.count];
    bool tls = rle_tls_covers(rpc->tls, to);
    RLE_TRY(rle_address_allowed(to, tls || rpc->o.insecure_network, "connect to"));
    if (!to->is_loopback && !tls && number < t->found.count)
        rle_log(
            RLE_LOG_WARN,
            "connecting to %s without tls: whoever can read this network can read and "
            "change what is sent",
            to->shown);
    *out = *to;
    return RLE_OK;
}

/* The message of rle_rpc_connect's failure. */
static rle_status explain(rle_status s, const rle_connect_result *last,
                          const rle_address *to, int64_t timeout, const char *reason)
{
    if (s == RLE_CANCELLED) return rle_fail(s, "interrupted");
    if (!last->lasting)
        return rle_fail(RLE_UNAVAILABLE, "no worker at %s for %.1f s (%s)", to->shown,
                        (double)timeout / RLE_SECONDS, reason);
    /* No worker is there, or one that is set up otherwise. */
    if (s == RLE_INVALID_ARGUMENT)
        return rle_fail(RLE_FAILED_PRECONDITION, "connection to %s: %s", to->shown,
                        reason);
    return rle_fail(s, "%s", reason);
}

rle_status rle_rpc_connect(rle_rpc *rpc, const char *text, int64_t timeout, rle_peer **out)
{
    int64_t end = rle_now() + timeout, pause = RLE_SECONDS / 500;
    target at;
    RLE_TRY(find_target(rpc, text, end, timeout, &at));
    rle_address to;
    unsigned number = 0;
    RLE_TRY(aim(rpc, &at, 0, &to));
    rle_status s;
    rle_link *link = rle_link_new(rpc, &to, &s);
    RLE_TRY(s);
    rle_connect_result result;
    char reason[sizeof result.message] = "";
    for (;;) {
        int64_t now = rle_now();
        result = (rle_connect_result){
            .until = end - now > LAST_ATTEMPT ? end : now + LAST_ATTEMPT};
        s = try_to_connect(rpc, &to, link, &result);
        if (s == RLE_OK || s == RLE_CANCELLED) break;
        /* What the last attempt had no time to find out, those before it may have. */
        if (result.lasting || !reason[0] || rle_now() < end)
            snprintf(reason, sizeof reason, "%s", result.message);
        if (result.lasting || rle_now() + pause >= end) break;
        /* A name may have an address of each kind, and the worker listens at one of them.
         */
        if (++number % at.found.count == 0) {
            if (!pause_between(rpc, pause)) {
                if (rle_interrupted) s = RLE_CANCELLED;
                break;
            }
            if (pause < RLE_SECONDS / 5) pause *= 2;
            /* What comes up there may have got another address. */
            if (at.named) look_up(rpc, &at, rle_now() + RLE_LOOKUP_PATIENCE);
        }
        if (aim(rpc, &at, number, &to) != RLE_OK) break;
        rle_link_aim(link, &to);
    }
    if (s != RLE_OK) {
        rle_link_free(link);
        return explain(s, &result, &to, timeout, reason);
    }
    if (out) *out = result.peer;
    return RLE_OK;
}
