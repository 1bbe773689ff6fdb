/* env_trace.c - plays CartPole and writes every step, for compare_gymnasium.py to replay.
 *
 *   env_trace <id> <seed> <steps>  > trace
 *
 * Episodes follow one another in one stream of starts (only the first reset has the seed).
 * Policies take turns: a coin, pushing to where the pole leans, balancing, balancing with
 * every eighth push by coin, alternating; so that episodes end by falling, by leaving the
 * track, and by the limit. Actions are part of the trace.
 *
 * A record is 64 bytes in the byte order of the machine; see below. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "env/cartpole.h"
#include "env/env.h"

typedef struct record {
    rle_cartpole state; /* after the step or reset */
    float obs[4];
    double reward;
    uint8_t is_reset, action, terminated, truncated, unused[4];
} record;

_Static_assert(sizeof(record) == 64, "the script reads 64 bytes a record");

static void must(int ok, const char *what)
{
    if (ok) return;
    fprintf(stderr, "env_trace: %s\n", what);
    exit(1);
}

static int64_t choose(int policy, int64_t t, const float *obs, rle_pcg64 *coin)
{
    bool balance = (double)obs[2] + 0.5 * (double)obs[3] > 0;
    switch (policy) {
    case 0: return (int64_t)rle_pcg64_integers(coin, 2);
    case 1: return obs[2] > 0;
    case 2: return balance;
    case 3:
        return rle_pcg64_integers(coin, 8) ? balance : (int64_t)rle_pcg64_integers(coin, 2);
    default: return t % 2;
    }
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: env_trace <id> <seed> <steps>\n");
        return 2;
    }
    uint64_t seed = strtoull(argv[2], NULL, 10);
    int64_t steps = atoll(argv[3]);
    rle_env *env;
    must(rle_env_make(argv[1], &env) == RLE_OK, rle_message());
    must(rle_env_kind(env)->state_size == sizeof(rle_cartpole), "this is no CartPole");
    rle_pcg64 coin;
    rle_pcg64_seed(&coin, seed + 1);

    record r;
    bool over = true;
    int policy = -1;
    for (int64_t t = 0; t < steps;) {
        memset(&r, 0, sizeof r);
        float obs[4];
        if (over) {
            must(rle_env_reset(env, policy < 0 ? &seed : NULL, obs) == RLE_OK,
                 rle_message());
            policy = (policy + 1) % 5;
            r.is_reset = 1;
            over = false;
        } else {
            int64_t action = choose(policy, t, obs, &coin);
            rle_step step;
            must(rle_env_step(env, &action, obs, &step) == RLE_OK, rle_message());
            r.action = (uint8_t)action;
            r.reward = step.reward;
            r.terminated = step.terminated;
            r.truncated = step.truncated;
            over = step.terminated || step.truncated;
            t++;
        }
        memcpy(&r.state, rle_env_state(env), sizeof r.state);
        memcpy(r.obs, obs, sizeof obs);
        must(fwrite(&r, sizeof r, 1, stdout) == 1, "cannot write");
    }
    rle_env_release(env);
    must(fflush(stdout) == 0, "cannot write");
    return 0;
}
