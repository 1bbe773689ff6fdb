/* refusals.c - those who come and prove nothing: how many of them are told of, and who is not
 * answered any more for a while. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "rpc/rpc_internal.h"

/* ---- strangers ---- */

/* Of those who come and prove nothing so many are told of; then only how many they were,
 * or they would fill the log. */
enum { STRANGERS_A_MINUTE = 100 };

void rle_strangers_count(rle_rpc *rpc, int64_t now)
{
    if (now - rpc->strangers_since < 60 * RLE_SECONDS) return;
    if (rpc->strangers > STRANGERS_A_MINUTE)
        rle_log(RLE_LOG_WARN, "%u more connection%s closed or refused within a minute",
                rpc->strangers - STRANGERS_A_MINUTE,
                rpc->strangers - STRANGERS_A_MINUTE == 1 ? " was" : "s were");
    rpc->strangers = 0;
}

bool rle_stranger_told(rle_rpc *rpc)
{
    int64_t now = rle_now();
    rle_strangers_count(rpc, now);
    if (!rpc->strangers) rpc->strangers_since = now;
    if (rpc->strangers < UINT32_MAX) rpc->strangers++;
    return rpc->strangers <= STRANGERS_A_MINUTE;
}

/* ---- refusals ---- */

/* Who has failed is known by the address, and within this machine by the user: they all
 * have the same address there, and one must not shut the others out. Where the system
 * does not tell them apart nobody is shut out, but all of them are answered late. */
enum {
    NOBODY = -1, /* of another machine, or gone already */
    ANYBODY = -2 /* of this one: who is not known */
};
#define LATE RLE_SECONDS

typedef struct stranger {
    char from[RLE_ADDRESS_MAX];
    int64_t user;
} stranger;

static stranger stranger_at(const char *shown, bool is_unix)
{
    stranger s = {.user = NOBODY};
    struct in6_addr in;
    snprintf(s.from, sizeof s.from, "%s", shown);
    /* The port of a connecting socket says nothing. */
    char *colon = is_unix ? NULL : strrchr(s.from, ':');
    if (!colon) return s;
    *colon = 0;
    if (s.from[0] != '[' || colon[-1] != ']') return s;
    colon[-1] = 0;
    if (inet_pton(AF_INET6, s.from + 1, &in) == 1 && !IN6_IS_ADDR_LOOPBACK(&in) &&
        !IN6_IS_ADDR_V4MAPPED(&in))
        /* Whoever has an address there has the others of its network, too. */
        memset(in.s6_addr + 8, 0, 8);
    inet_ntop(AF_INET6, &in, s.from, sizeof s.from);
    return s;
}

/* Find out the user; false: it is no stranger, for it could read the token itself. */
static bool tell_user(stranger *s, int fd)
{
    uid_t uid;
    rle_end_owner found = rle_socket_owner(fd, &uid);
    if (found == RLE_OWNER_UNKNOWN) s->user = ANYBODY;
    if (found != RLE_OWNER_TOLD) return true;
    s->user = uid;
    return uid != geteuid() && uid != 0;
}

static int64_t last_refusal(const rle_refusals *r)
{
    return r->count ? r->times[(r->next + RLE_REFUSALS_A_MINUTE - 1) % RLE_REFUSALS_A_MINUTE]
                    : INT64_MIN;
}

/* The record of a stranger; with `make` a new one, in place of the oldest. */
static rle_refusals *refusals_of(rle_rpc *rpc, const stranger *s, bool make)
{
    rle_refusals *oldest = &rpc->refusals[0];
    for (int i = 0; i < RLE_REFUSAL_ADDRESSES; i++) {
        rle_refusals *r = &rpc->refusals[i];
        if (r->count && r->user == s->user && strcmp(r->from, s->from) == 0) return r;
        if (last_refusal(r) < last_refusal(oldest)) oldest = r;
    }
    if (!make) return NULL;
    memset(oldest, 0, sizeof *oldest);
    memcpy(oldest->from, s->from, sizeof oldest->from);
    oldest->user = s->user;
    return oldest;
}

static int count_refusal(rle_conn *conn)
{
    stranger s = stranger_at(conn->address.shown, conn->is_unix);
    bool strange = !conn->is_unix && tell_user(&s, conn->transport.fd);
    rle_refusals *r = refusals_of(conn->rpc, &s, true);
    int64_t now = rle_now();
    r->times[r->next] = now;
    r->next = (r->next + 1) % RLE_REFUSALS_A_MINUTE;
    if (r->count < RLE_REFUSALS_A_MINUTE) r->count++;
    int recent = 0;
    for (int i = 0; i < r->count; i++) recent += now - r->times[i] < 60 * RLE_SECONDS;
    if (recent >= RLE_REFUSALS_A_MINUTE && strange) {
        if (s.user == ANYBODY && r->banned_until < now)
            rle_log(
                RLE_LOG_WARN,
                "whoever connects from %s waits for %g s: there were %d refusals in the "
                "last minute, and this system does not tell of which user",
                s.from, (double)LATE / RLE_SECONDS, recent);
        r->banned_until = now + 60 * RLE_SECONDS;
    }
    return recent;
}

void rle_refusal_log(rle_conn *conn, const char *why)
{
    int recent = count_refusal(conn);
    /* At a Unix socket it is no stranger, and nobody is banned there. */
    if (conn->is_unix || rle_stranger_told(conn->rpc))
        rle_log(RLE_LOG_WARN, "refused %s: %s (%d in the last minute)",
                conn->address.shown, why, recent);
}

bool rle_refusal_banned(rle_rpc *rpc, int fd, const rle_address *address, int64_t *pause)
{
    *pause = 0;
    if (address->is_unix) return false;
    stranger s = stranger_at(address->shown, false);
    int64_t now = rle_now();
    bool somebody = false;
    for (int i = 0; i < RLE_REFUSAL_ADDRESSES && !somebody; i++) {
        const rle_refusals *r = &rpc->refusals[i];
        somebody = r->banned_until > now && strcmp(r->from, s.from) == 0;
    }
    /* The kernel is asked only while there is somebody at that address to be told apart.
     */
    if (!somebody || !tell_user(&s, fd)) return false;
    const rle_refusals *r = refusals_of(rpc, &s, false);
    if (!r || r->banned_until <= now) return false;
    if (s.user == ANYBODY) *pause = LATE;
    return s.user != ANYBODY;
}
