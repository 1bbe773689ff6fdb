/* vecenv.c - a row is an rle_env; a step is a loop over them that writes into the
 * arrays. */
#include "env/vecenv.h"

#include <string.h>

#include "base/mem.h"
#include "env/env_internal.h"

struct rle_vecenv {
    const rle_env_ops *ops;
    int64_t n;
    rle_autoreset mode;
    size_t obs_bytes, action_bytes; /* of one row */
    int refs;
    rle_env *rows[];
};

const char *rle_autoreset_name(rle_autoreset mode)
{
    static const char *const names[] = {"next_step", "same_step", "disabled"};
    return names[mode];
}

rle_status rle_vecenv_new(const rle_env_ops *ops, int64_t n, int64_t max_episode_steps,
                          rle_autoreset mode, rle_vecenv **out)
{
    if (n < 1 || n > INT32_MAX)
        return rle_fail(RLE_INVALID_ARGUMENT,
                        "%s: %lld environments; there must be 1 to %d", ops->id,
                        (long long)n, INT32_MAX);
    /* The batch, and its space, whose bounds a script sees as numbers in a table. */
    size_t batch =
        rle_space_bytes(ops->observation_space) + rle_space_bytes(ops->action_space);
    RLE_TRY(rle_mem_check(
        (size_t)n, sizeof(rle_env *) + sizeof(rle_env) + ops->state_size + 9 * batch,
        ops->id));
    size_t size = sizeof(rle_vecenv) + (size_t)n * sizeof(rle_env *);
    rle_vecenv *v = rle_calloc(1, size);
    if (!v) return rle_oom(size, ops->id);
    v->ops = ops;
    v->n = n;
    v->mode = mode;
    v->refs = 1;
    for (int64_t i = 0; i < n; i++) {
        rle_status status = rle_env_new(ops, max_episode_steps, &v->rows[i]);
        if (status != RLE_OK) {
            rle_vecenv_release(v);
            return status;
        }
    }
    v->obs_bytes = rle_space_bytes(ops->observation_space);
    v->action_bytes = rle_space_bytes(ops->action_space);
    *out = v;
    return RLE_OK;
}

rle_vecenv *rle_vecenv_retain(rle_vecenv *v)
{
    v->refs++;
    return v;
}

void rle_vecenv_release(rle_vecenv *v)
{
    if (!v || --v->refs) return;
    for (int64_t i = 0; i < v->n; i++) rle_env_release(v->rows[i]);
    rle_free(v);
}

int64_t rle_vecenv_count(const rle_vecenv *v)
{
    return v->n;
}

rle_autoreset rle_vecenv_mode(const rle_vecenv *v)
{
    return v->mode;
}

const rle_env_ops *rle_vecenv_kind(const rle_vecenv *v)
{
    return v->ops;
}

int64_t rle_vecenv_limit(const rle_vecenv *v)
{
    return rle_env_limit(v->rows[0]);
}

rle_env *rle_vecenv_row(rle_vecenv *v, int64_t i)
{
    return v->rows[i];
}

/* The failure of row i, with the row in the message. */
static rle_status in_row(rle_status status, int64_t i)
{
    return rle_fail(status, "environment %lld of the vector: %s", (long long)i + 1,
                    rle_message());
}

rle_status rle_vecenv_reset(rle_vecenv *v, const uint64_t *seed, const bool *mask,
                            void *obs)
{
    for (int64_t i = 0; i < v->n; i++) {
        if (mask && !mask[i]) continue;
        uint64_t own = seed ? *seed + (uint64_t)i : 0;
        rle_status status = rle_env_reset(v->rows[i], seed ? &own : NULL,
                                          (char *)obs + (size_t)i * v->obs_bytes);
        if (status != RLE_OK) return in_row(status, i);
    }
    return RLE_OK;
}

/* Would this row be reset rather than stepped? */
static bool awaits_reset(const rle_vecenv *v, const rle_env *row)
{
    return row->phase == RLE_ENV_ENDED && v->mode == RLE_AUTORESET_NEXT_STEP;
}

rle_status rle_vecenv_step(rle_vecenv *v, const void *actions, const rle_vecstep *out)
{
    const char *action = actions;
    for (int64_t i = 0; i < v->n; i++, action += v->action_bytes) {
        const rle_env *row = v->rows[i];
        if (rle_env_is_ready(row, action) || awaits_reset(v, row)) continue;
        rle_status status = rle_env_may_step(row, action);
        if (status != RLE_OK) return in_row(status, i);
    }

    char *obs = out->obs;
    action = actions;
    bool ended = false;
    for (int64_t i = 0; i < v->n; i++, action += v->action_bytes, obs += v->obs_bytes) {
        rle_env *row = v->rows[i];
        rle_step step = {0, false, false};
        bool reset = awaits_reset(v, row);
        rle_status status = reset ? rle_env_reset(row, NULL, obs)
                                  : rle_env_do_step(row, action, obs, &step);
        if (status != RLE_OK) return in_row(status, i);
        out->reward[i] = (float)step.reward;
        out->terminated[i] = step.terminated;
        out->truncated[i] = step.truncated;
        out->was_reset[i] = reset;
        ended |= row->phase == RLE_ENV_ENDED;
    }
    if (v->mode != RLE_AUTORESET_SAME_STEP) return RLE_OK;

    /* After all rows: to read a row back at once would wait for its step to be done, and
     * the steps of different rows could not overlap. */
    memcpy(out->final_obs, out->obs, (size_t)v->n * v->obs_bytes);
    for (int64_t i = 0; ended && i < v->n; i++) {
        if (v->rows[i]->phase != RLE_ENV_ENDED) continue;
        rle_status status =
            rle_env_reset(v->rows[i], NULL, (char *)out->obs + (size_t)i * v->obs_bytes);
        if (status != RLE_OK) return in_row(status, i);
    }
    return RLE_OK;
}
