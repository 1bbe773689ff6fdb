/* bench_env.c - CartPole stepped through the engine against a plain C loop.
 *
 *   build/bench/bench_env [steps, default 200000]
 *
 * The plain loop holds the state in locals, calls nothing but sin, cos and the random
 * words it needs at resets, and is compiled for this machine; it is the limit. Both run
 * the same policy (a coin from a xorshift, or push to where the pole leans), with
 * resets, one after the other in turns; the time of each is the least of its turns. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "env/env.h"
#include "env/vecenv.h"

enum { TURNS = 60 };

/* A coin from the top bit of a xorshift. */
#define COIN(x) ((x) ^= (x) << 13, (x) ^= (x) >> 7, (x) ^= (x) << 17, (x) >> 63)

typedef struct tally {
    double reward;
    int64_t episodes;
} tally;

/* Compiled twice, with the machine's newest instructions and without, because it depends
 * on the C library's sin and cos which is faster: the limit is the better of the two.
 * Pairing the four numbers of the state in vectors (gcc's SLP) makes both slower, so it
 * is off. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC push_options
#pragma GCC optimize("no-tree-slp-vectorize")
#endif
#define PLAIN plain_native
#include "env_plain.h"
#undef PLAIN
#if defined(__x86_64__) && !defined(__clang__)
#pragma GCC target("arch=x86-64")
#define PLAIN plain_baseline
#include "env_plain.h"
#undef PLAIN
#else
#define plain_baseline plain_native
#endif
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC pop_options
#endif

static void must(rle_status status)
{
    if (status == RLE_OK) return;
    fprintf(stderr, "%s\n", rle_message());
    exit(1);
}

static double engine(int64_t steps, bool random, tally *sum)
{
    rle_env *env;
    must(rle_env_make("CartPole-v1", &env));
    uint64_t bits = 88172645463325252u, seed = 1;
    float obs[4];
    must(rle_env_reset(env, &seed, obs));
    *sum = (tally){0, 0};
    int64_t start = rle_now();
    for (int64_t t = 0; t < steps; t++) {
        int64_t action = random ? (int64_t)COIN(bits) : obs[2] > 0;
        rle_step step;
        must(rle_env_step(env, &action, obs, &step));
        sum->reward += step.reward;
        if (step.terminated || step.truncated) {
            must(rle_env_reset(env, NULL, obs));
            sum->episodes++;
        }
    }
    double ns = (double)(rle_now() - start) / (double)steps;
    rle_env_release(env);
    return ns;
}

/* 64 environments at once: autoreset in the step that ends an episode. */
static double vector(int64_t steps, bool random, tally *sum)
{
    enum { N = 64 };
    rle_vecenv *envs;
    must(rle_vecenv_new(&rle_env_cartpole_v1, N, -1, RLE_AUTORESET_SAME_STEP, &envs));
    uint64_t bits = 88172645463325252u, seed = 1;
    static float obs[N][4], final_obs[N][4], reward[N];
    static bool terminated[N], truncated[N], was_reset[N];
    int64_t actions[N];
    must(rle_vecenv_reset(envs, &seed, NULL, obs));
    *sum = (tally){0, 0};
    rle_vecstep out = {obs, final_obs, reward, terminated, truncated, was_reset};
    int64_t start = rle_now();
    for (int64_t t = 0; t < steps; t += N) {
        for (int i = 0; i < N; i++)
            actions[i] = random ? (int64_t)COIN(bits) : obs[i][2] > 0;
        must(rle_vecenv_step(envs, actions, &out));
        for (int i = 0; i < N; i++) {
            sum->reward += (double)reward[i];
            sum->episodes += terminated[i] | truncated[i];
        }
    }
    double ns = (double)(rle_now() - start) / (double)steps;
    rle_vecenv_release(envs);
    return ns;
}

int main(int argc, char **argv)
{
    int64_t steps = argc > 1 ? atoll(argv[1]) : 200000;
    if (steps < 64) {
        fprintf(stderr, "usage: bench_env [steps >= 64]\n");
        return 2;
    }
    static const struct {
        const char *name;
        double (*run)(int64_t, bool, tally *);
    } loops[] = {
        {"plain loop, native", plain_native},
        {"plain loop, baseline", plain_baseline},
        {"rle_env_step", engine},
        {"rle_vecenv_step, 64", vector},
    };
    enum { LOOPS = sizeof loops / sizeof loops[0] };
    for (int random = 1; random >= 0; random--) {
        double best[LOOPS] = {INFINITY, INFINITY, INFINITY, INFINITY};
        tally sums[LOOPS];
        for (int turn = 0; turn < TURNS; turn++)
            for (int i = 0; i < LOOPS; i++)
                best[i] = fmin(best[i], loops[i].run(steps, random, &sums[i]));
        double plain_best = fmin(best[0], best[1]);
        printf("%s policy\n", random ? "random" : "leaning");
        for (int i = 0; i < LOOPS; i++)
            printf("  %-21s %6.2f ns/step  %5.1f M steps/s  %5.1f %% of plain  (%lld "
                   "episodes)\n",
                   loops[i].name, best[i], 1e3 / best[i], 100 * plain_best / best[i],
                   (long long)sums[i].episodes);
    }
    return 0;
}
