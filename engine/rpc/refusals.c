/* refusals.c - those who come and prove nothing: how many of them are told of, and who is not
 * answered any more for a while. */
#include <stdio.h>
#include <string.h>

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

static int64_t last_refusal(const rle_refusals *r)
{
    return r->count ? r->times[(r->next + RLE_REFUSALS_A_MINUTE - 1) % RLE_REFUSALS_A_MINUTE]
                    : INT64_MIN;
}

/* The record of an address; with `make` a new one, in place of the oldest. */
static rle_refusals *refusals_of(rle_rpc *rpc, const char *shown, bool is_unix, bool make)
{
    char from[RLE_ADDRESS_MAX];
    snprintf(from, sizeof from, "%s", shown);
    /* The port of a connecting socket says nothing. */
    char *colon = is_unix ? NULL : strrchr(from, ':');
    if (colon) *colon = 0;
    rle_refusals *oldest = &rpc->refusals[0];
    for (int i = 0; i < RLE_REFUSAL_ADDRESSES; i++) {
        rle_refusals *r = &rpc->refusals[i];
        if (r->count && strcmp(r->from, from) == 0) return r;
        if (last_refusal(r) < last_refusal(oldest)) oldest = r;
    }
    if (!make) return NULL;
    memset(oldest, 0, sizeof *oldest);
    memcpy(oldest->from, from, sizeof from);
    return oldest;
}

static int count_refusal(rle_rpc *rpc, const char *shown, bool is_unix)
{
    rle_refusals *r = refusals_of(rpc, shown, is_unix, true);
    int64_t now = rle_now();
    r->times[r->next] = now;
    r->next = (r->next + 1) % RLE_REFUSALS_A_MINUTE;
    if (r->count < RLE_REFUSALS_A_MINUTE) r->count++;
    int recent = 0;
    for (int i = 0; i < r->count; i++) recent += now - r->times[i] < 60 * RLE_SECONDS;
    if (recent >= RLE_REFUSALS_A_MINUTE && !is_unix)
        r->banned_until = now + 60 * RLE_SECONDS;
    return recent;
}

void rle_refusal_log(rle_conn *conn, const char *why)
{
    int recent = count_refusal(conn->rpc, conn->address.shown, conn->is_unix);
    /* At a Unix socket it is no stranger, and nobody is banned there. */
    if (conn->is_unix || rle_stranger_told(conn->rpc))
        rle_log(RLE_LOG_WARN, "refused %s: %s (%d in the last minute)",
                conn->address.shown, why, recent);
}

bool rle_refusal_banned(rle_rpc *rpc, const rle_address *address)
{
    rle_refusals *r =
        address->is_unix ? NULL : refusals_of(rpc, address->shown, false, false);
    return r && r->banned_until > rle_now();
}
