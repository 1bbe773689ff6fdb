/* vecenv.h - N environments of one kind, stepped together into [N, ...] arrays.
 *
 * What happens when an episode ends is the autoreset mode:
 *   NEXT_STEP  (Gymnasium's default) the step that ends an episode returns its last
 *              observation; the next step ignores that row's action, resets the row and
 *              returns the first observation, reward 0 and `was_reset` true. Such a row
 *              is no transition: leave it out of what is learnt from.
 *   SAME_STEP  the step that ends an episode resets the row at once: `obs` then has the
 *              first observation of the new episode. `final_obs` has, in every row, what
 *              followed the action: the last observation where an episode ended.
 *   DISABLED   nothing resets by itself; a step with a row that has ended is an error.
 *              Reset such rows with a mask.
 * In each mode the final observation is available: bootstrap a truncated episode from it.
 *
 * A reset with seed s seeds the rows s, s + 1, ..., so each row equals a single
 * environment with that seed. One thread at a time. */
#ifndef RLE_ENV_VECENV_H
#define RLE_ENV_VECENV_H

#include "env/env.h"

typedef struct rle_vecenv rle_vecenv;

typedef enum {
    RLE_AUTORESET_NEXT_STEP,
    RLE_AUTORESET_SAME_STEP,
    RLE_AUTORESET_DISABLED
} rle_autoreset;

/* Where a step writes; all arrays have one row for each environment. */
typedef struct rle_vecstep {
    void *obs;
    void *final_obs; /* SAME_STEP only, else may be NULL */
    float *reward;
    bool *terminated, *truncated;
    bool *was_reset; /* NEXT_STEP: the row was reset instead of stepped; else false */
} rle_vecstep;

/* n >= 1; max_episode_steps as in rle_env_new. The caller holds the one reference. */
rle_status rle_vecenv_new(const rle_env_ops *ops, int64_t n, int64_t max_episode_steps,
                          rle_autoreset mode, rle_vecenv **out);
rle_vecenv *rle_vecenv_retain(rle_vecenv *v);
void rle_vecenv_release(rle_vecenv *v); /* NULL is fine */

/* Start an episode in every row, or with a mask in the rows where it is true (obs of the
 * others are left alone). Seed and continuation as in rle_env_reset. A failed reset
 * leaves the row in need of one. */
rle_status rle_vecenv_reset(rle_vecenv *v, const uint64_t *seed, const bool *mask,
                            void *obs);

/* actions: n values of the action space. All rows are checked before any is stepped: a
 * bad action or a row without an episode changes nothing. A row that fails while
 * stepping fails the whole step (the message names it); rows before it have moved on. */
rle_status rle_vecenv_step(rle_vecenv *v, const void *actions, const rle_vecstep *out);

int64_t rle_vecenv_count(const rle_vecenv *v);
rle_autoreset rle_vecenv_mode(const rle_vecenv *v);
const rle_env_ops *rle_vecenv_kind(const rle_vecenv *v);
int64_t rle_vecenv_limit(const rle_vecenv *v);
rle_env *rle_vecenv_row(rle_vecenv *v, int64_t i); /* borrowed */

const char *rle_autoreset_name(rle_autoreset mode); /* "next_step" */

#endif
