/* env.h - environments: what one has to provide, and the handle that runs one.
 *
 * An environment in C is one file: a state struct, `reset`, `step`, and an rle_env_ops
 * that names them (engine/env/cartpole.c is the pattern). rle_env_register makes it
 * known by its id, also to Lua's rl.env.make. The environment only knows its own rules;
 * the handle adds what every environment needs:
 *   - the random stream: reset with a seed starts numpy's stream of that seed, a reset
 *     without goes on in it (the first one without takes a seed from the system);
 *   - the time limit, which truncates: terminated (the task has ended) and truncated (we
 *     stopped watching) stay apart, and both may be true of one step;
 *   - order: a step before the first reset or after the end is an error, not undefined;
 *   - checks of actions, and of NaN in what an environment returns unless it vouches for
 *     it.
 *
 * Observations go to the caller's memory, rle_space_bytes(observation_space) of it;
 * nothing is kept. An rle_env belongs to one thread at a time. */
#ifndef RLE_ENV_ENV_H
#define RLE_ENV_ENV_H

#include "env/space.h"

/* What a step gives besides the observation. */
typedef struct rle_step {
    double reward;
    bool terminated; /* the task itself is over: nothing follows, its value is 0 */
    bool truncated;  /* stopped from outside: the value of the last observation counts */
} rle_step;

typedef struct rle_env_ops {
    const char *id; /* "CartPole-v1" */
    const rle_space *observation_space, *action_space;
    int64_t max_episode_steps; /* truncate after so many; 0: never */
    bool has_reward_threshold;
    double reward_threshold; /* mean return that counts as solved */
    bool finite;             /* never returns NaN: the handle need not look */

    size_t state_size; /* of the environment's struct, zeroed before init */
    /* Both may be NULL. fini runs once for every init that succeeded. */
    rle_status (*init)(void *state);
    void (*fini)(void *state);

    /* Start an episode; write the first observation. All randomness comes from rng. A
     * failure leaves the environment in need of a reset. */
    rle_status (*reset)(void *state, rle_pcg64 *rng, void *obs);
    /* One step. `action` is a value of action_space: an int64_t for Discrete, else
     * contiguous elements; it has been checked. `out` comes zeroed; set reward and
     * terminated (truncated only for a limit of the environment's own). */
    rle_status (*step)(void *state, rle_pcg64 *rng, const void *action, void *obs,
                       rle_step *out);
} rle_env_ops;

/* ---- the registry: process-wide, for the thread that owns the engine ---- */

/* Make an environment known by its id. `ops` and what it points to must stay valid until
 * unregistered. INVALID_ARGUMENT: an unusable id, space or function; ALREADY_EXISTS. */
rle_status rle_env_register(const rle_env_ops *ops);
/* Forget it; environments made of it live on. NOT_FOUND; built-in ones stay:
 * FAILED_PRECONDITION. */
rle_status rle_env_unregister(const char *id);
const rle_env_ops *rle_env_find(const char *id); /* NULL: not known */
/* The i-th, built-in ones first; NULL past the last. */
const rle_env_ops *rle_env_at(int64_t i);

extern const rle_env_ops rle_env_cartpole_v1, rle_env_cartpole_v0;

/* ---- one environment ---- */

typedef struct rle_env rle_env;

typedef enum {
    RLE_ENV_FRESH, /* not reset yet, or a reset or step failed */
    RLE_ENV_RUNNING,
    RLE_ENV_ENDED
} rle_env_phase;

/* New environment of a kind. max_episode_steps: 0 = no limit, negative = what ops says.
 * The caller holds the one reference. INVALID_ARGUMENT, RESOURCE_EXHAUSTED, or what init
 * failed with. */
rle_status rle_env_new(const rle_env_ops *ops, int64_t max_episode_steps, rle_env **out);
/* By id, with its own limit. NOT_FOUND names what there is. */
rle_status rle_env_make(const char *id, rle_env **out);
rle_env *rle_env_retain(rle_env *e);
void rle_env_release(rle_env *e); /* NULL is fine */

/* Start an episode, also in the middle of one. seed: NULL goes on in the stream. */
rle_status rle_env_reset(rle_env *e, const uint64_t *seed, void *obs);

/* INVALID_ARGUMENT: the action is not in the space (the message names space, value,
 * environment and step); FAILED_PRECONDITION: no episode runs. After either the
 * environment, obs and out are as they were. What the environment itself fails with, or
 * NaN from it (INTERNAL), ends the episode; obs and out are then undefined. */
rle_status rle_env_step(rle_env *e, const void *action, void *obs, rle_step *out);

/* INVALID_ARGUMENT for an action whose element i is outside the space (of
 * rle_space_outside), with that message: also for environments that are not run by a
 * handle. */
rle_status rle_env_bad_action(const rle_space *s, const char *id, int64_t step,
                              const void *action, int64_t i);

const rle_env_ops *rle_env_kind(const rle_env *e);
int64_t rle_env_limit(const rle_env *e);   /* 0: none */
int64_t rle_env_elapsed(const rle_env *e); /* steps of this episode */
rle_env_phase rle_env_get_phase(const rle_env *e);
/* The environment's own struct, and its stream: for tests, saving and restoring. */
void *rle_env_state(rle_env *e);
rle_pcg64 *rle_env_rng(rle_env *e);

#endif
