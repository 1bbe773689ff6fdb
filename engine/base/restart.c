/* restart.c - see restart.h. */
#include "base/restart.h"

#include <string.h>

#include "base/mem.h"

rle_status rle_restarts_init(rle_restarts *r, const rle_restart_policy *policy)
{
    *r = (rle_restarts){NULL, 0};
    if (policy->max <= 0) return RLE_OK;
    size_t room = (size_t)policy->max + 1;
    r->at = rle_calloc(room, sizeof *r->at);
    return r->at ? RLE_OK : rle_oom(room * sizeof *r->at, "restarts");
}

void rle_restarts_fini(rle_restarts *r)
{
    rle_free(r->at);
    *r = (rle_restarts){NULL, 0};
}

static void forget(rle_restarts *r, int64_t before)
{
    int old = 0;
    while (old < r->count && r->at[old] < before) old++;
    r->count -= old;
    memmove(r->at, r->at + old, (size_t)r->count * sizeof *r->at);
}

bool rle_restarts_failed(rle_restarts *r, const rle_restart_policy *policy, int64_t now,
                         int64_t *delay)
{
    if (policy->max <= 0) return false;
    forget(r, now - policy->within);
    if (r->count <= policy->max) r->at[r->count++] = now;
    if (r->count > policy->max) return false;
    int64_t longest = policy->within / (policy->max + 1), wait = policy->backoff;
    for (int i = 1; i < r->count && wait < longest; i++) wait *= 2;
    *delay = wait < longest ? wait : longest;
    return true;
}
