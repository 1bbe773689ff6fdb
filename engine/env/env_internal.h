/* env_internal.h - the handle, for env.c and vecenv.c: a vector steps its rows without a
 * call for each check. */
#ifndef RLE_ENV_ENV_INTERNAL_H
#define RLE_ENV_ENV_INTERNAL_H

#include <stddef.h>

#include "env/env.h"

struct rle_env {
    const rle_env_ops *ops;
    rle_status (*step)(void *state, rle_pcg64 *rng, const void *action, void *obs,
                       rle_step *out);
    int64_t elapsed, limit; /* limit 0: none */
    int64_t first;          /* Discrete: the action is one int64_t in */
    uint64_t choices;       /* [first, first + choices); Box: 0 */
    uint8_t phase;          /* rle_env_phase */
    bool finite;            /* of ops */
    bool seeded;            /* rng has a seed */
    bool terminated;        /* how the last episode ended, for the message */
    int refs;
    rle_pcg64 rng;
    _Alignas(max_align_t) unsigned char state[];
};

/* The whole check, with messages. */
rle_status rle_env_may_step(const rle_env *e, const void *action);
/* What to do after ops->step failed, or to look for NaN. */
rle_status rle_env_step_failed(rle_env *e, rle_status status);
rle_status rle_env_check_finite(rle_env *e, const void *obs, double reward);

static inline bool rle_env_is_ready(const rle_env *e, const void *action)
{
    return e->phase == RLE_ENV_RUNNING && e->choices &&
           (uint64_t)*(const int64_t *)action - (uint64_t)e->first < e->choices;
}

/* The step itself, after the check. It writes straight into the caller's struct, and
 * reads the two flags back one by one: what was just written in parts must not be read in
 * one piece, which would stall the processor for longer than all the rest here takes. */
static inline rle_status rle_env_do_step(rle_env *e, const void *action, void *obs,
                                         rle_step *out)
{
    out->reward = 0;
    out->terminated = out->truncated = false;
    rle_status status = e->step(e->state, &e->rng, action, obs, out);
    e->elapsed++;
    if (status != RLE_OK) return rle_env_step_failed(e, status);
    if (!e->finite) RLE_TRY(rle_env_check_finite(e, obs, out->reward));
    bool terminated = out->terminated;
    bool truncated = out->truncated | (e->elapsed == e->limit);
    out->truncated = truncated;
    if (terminated | truncated) {
        e->phase = RLE_ENV_ENDED;
        e->terminated = terminated;
    }
    return RLE_OK;
}

#endif
