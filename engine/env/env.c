/* env.c - the handle: random stream, time limit, order of calls, checks around the
 * functions of one environment. */
#include "env/env_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

rle_status rle_env_new(const rle_env_ops *ops, int64_t max_episode_steps, rle_env **out)
{
    RLE_TRY(rle_space_check(ops->observation_space));
    RLE_TRY(rle_space_check(ops->action_space));
    size_t size = sizeof(rle_env) + ops->state_size;
    rle_env *e = rle_calloc(1, size);
    if (!e) return rle_oom(size, ops->id);
    e->ops = ops;
    e->limit = max_episode_steps < 0 ? ops->max_episode_steps : max_episode_steps;
    e->phase = RLE_ENV_FRESH;
    e->refs = 1;
    e->step = ops->step;
    e->finite = ops->finite;
    if (ops->action_space->kind == RLE_SPACE_DISCRETE) {
        e->first = ops->action_space->start;
        e->choices = (uint64_t)ops->action_space->n;
    }
    rle_status status = ops->init ? ops->init(e->state) : RLE_OK;
    if (status != RLE_OK) {
        rle_free(e);
        return status;
    }
    *out = e;
    return RLE_OK;
}

rle_env *rle_env_retain(rle_env *e)
{
    e->refs++;
    return e;
}

void rle_env_release(rle_env *e)
{
    if (!e || --e->refs) return;
    if (e->ops->fini) e->ops->fini(e->state);
    rle_free(e);
}

const rle_env_ops *rle_env_kind(const rle_env *e)
{
    return e->ops;
}

int64_t rle_env_limit(const rle_env *e)
{
    return e->limit;
}

int64_t rle_env_elapsed(const rle_env *e)
{
    return e->elapsed;
}

rle_env_phase rle_env_get_phase(const rle_env *e)
{
    return e->phase;
}

void *rle_env_state(rle_env *e)
{
    return e->state;
}

rle_pcg64 *rle_env_rng(rle_env *e)
{
    return &e->rng;
}

/* ---- what can be wrong ---- */

static rle_status nan_found(rle_env *e, const char *what, int64_t i)
{
    long long step = (long long)e->elapsed;
    e->phase = RLE_ENV_FRESH;
    return i < 0 ? rle_fail(RLE_INTERNAL, "%s: step %lld: the %s is NaN", e->ops->id,
                            step, what)
                 : rle_fail(RLE_INTERNAL, "%s: step %lld: element %lld of the %s is NaN",
                            e->ops->id, step, (long long)i + 1, what);
}

rle_status rle_env_check_finite(rle_env *e, const void *obs, double reward)
{
    const rle_space *s = e->ops->observation_space;
    if (isnan(reward)) return nan_found(e, "reward", -1);
    int64_t bad = rle_first_nan(s->dtype, obs, rle_space_numel(s));
    return bad < 0 ? RLE_OK : nan_found(e, "observation", bad);
}

static rle_status no_episode(const rle_env *e)
{
    if (e->phase == RLE_ENV_ENDED)
        return rle_fail(
            RLE_FAILED_PRECONDITION,
            "%s: the episode is over (%s at step %lld): call reset before the "
            "next step",
            e->ops->id, e->terminated ? "terminated" : "truncated",
            (long long)e->elapsed);
    return rle_fail(RLE_FAILED_PRECONDITION,
                    "%s: no episode has begun: call reset before the "
                    "first step",
                    e->ops->id);
}

rle_status rle_env_bad_action(const rle_space *s, const char *id, int64_t step,
                              const void *action, int64_t i)
{
    char space[256];
    rle_space_describe(s, space, sizeof space);
    if (s->kind == RLE_SPACE_DISCRETE)
        return rle_fail(
            RLE_INVALID_ARGUMENT,
            "%s: step %lld: action %lld is not in %s: it must be an integer from "
            "%lld to %lld",
            id, (long long)step, (long long)*(const int64_t *)action, space,
            (long long)s->start, (long long)(s->start + s->n - 1));
    return rle_fail(
        RLE_INVALID_ARGUMENT,
        "%s: step %lld: element %lld of the action is %g, which is not in %s: it "
        "must be from %g to %g",
        id, (long long)step, (long long)i + 1, rle_element_get(s->dtype, action, i),
        space, rle_space_low(s, i), rle_space_high(s, i));
}

static rle_status bad_action(const rle_env *e, const void *action, int64_t i)
{
    return rle_env_bad_action(e->ops->action_space, e->ops->id, e->elapsed + 1, action,
                              i);
}

rle_status rle_env_may_step(const rle_env *e, const void *action)
{
    if (e->phase != RLE_ENV_RUNNING) return no_episode(e);
    int64_t bad = rle_space_outside(e->ops->action_space, action);
    return bad < 0 ? RLE_OK : bad_action(e, action, bad);
}

rle_status rle_env_step_failed(rle_env *e, rle_status status)
{
    e->phase = RLE_ENV_FRESH;
    return rle_fail(status, "%s: step %lld: %s", e->ops->id, (long long)e->elapsed,
                    rle_message());
}

/* ---- episodes ---- */

rle_status rle_env_reset(rle_env *e, const uint64_t *seed, void *obs)
{
    if (seed)
        rle_pcg64_seed(&e->rng, *seed);
    else if (!e->seeded)
        RLE_TRY(rle_pcg64_seed_system(&e->rng));
    e->seeded = true;
    e->elapsed = 0;
    e->phase = RLE_ENV_FRESH;
    RLE_TRY(e->ops->reset(e->state, &e->rng, obs));
    if (!e->ops->finite) RLE_TRY(rle_env_check_finite(e, obs, 0));
    e->phase = RLE_ENV_RUNNING;
    return RLE_OK;
}

rle_status rle_env_step(rle_env *e, const void *action, void *obs, rle_step *out)
{
    if (!rle_env_is_ready(e, action)) RLE_TRY(rle_env_may_step(e, action));
    return rle_env_do_step(e, action, obs, out);
}
