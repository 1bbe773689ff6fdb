/* test_env_cartpole.c - CartPole against Gymnasium's traces, starts and episode
 * lengths. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "env/cartpole.h"
#include "env/env.h"

static rle_env *make(const char *id)
{
    rle_env *e;
    assert_int_equal(rle_env_make(id, &e), RLE_OK);
    return e;
}

static void reset(rle_env *e, uint64_t seed, float obs[4])
{
    assert_int_equal(rle_env_reset(e, &seed, obs), RLE_OK);
}

static void seeds_give_gymnasiums_starts(void **state)
{
    (void)state;
    static const struct {
        uint64_t seed;
        double obs[4];
    } starts[] = {
        {0, {.01369617, -.02302133, -.04590265, -.04834723}},
        {1, {.00118216, .04504637, -.03558404, .04486495}},
        {2, {-.02383879, -.02015088, .03142257, -.04080841}},
        {42, {.02739560, -.00611216, .03585979, .01973680}},
    };
    rle_env *e = make("CartPole-v1");
    for (size_t i = 0; i < sizeof starts / sizeof starts[0]; i++) {
        float obs[4];
        reset(e, starts[i].seed, obs);
        for (int j = 0; j < 4; j++)
            assert_true(fabs((double)obs[j] - starts[i].obs[j]) <= 0.5001e-8);
        const rle_cartpole *s = rle_env_state(e);
        assert_true(obs[0] == (float)s->x && obs[3] == (float)s->theta_dot);
    }
    rle_env_release(e);
}

/* The trace is the state, in nine decimals. */
static void alternating_pushes_follow_the_trace(void **state)
{
    (void)state;
    static const double trace[6][4] = {
        {.027273362, -.201729537, .036254528, .323514752},
        {.023238771, -.007142078, .042724823, .042481862},
        {.023095929, -.202849821, .043574460, .348332859},
        {.019038933, -.008373846, .050541117, .069702633},
        {.018871456, -.204182590, .051935170, .377893462},
        {.014787804, -.009835217, .059493039, .102027545},
    };
    rle_env *e = make("CartPole-v1");
    float obs[4];
    reset(e, 42, obs);
    for (int64_t t = 0; t < 6; t++) {
        int64_t action = t % 2;
        rle_step step;
        assert_int_equal(rle_env_step(e, &action, obs, &step), RLE_OK);
        const rle_cartpole *now = rle_env_state(e);
        const double s[4] = {now->x, now->x_dot, now->theta, now->theta_dot};
        for (int j = 0; j < 4; j++) {
            assert_true(fabs(s[j] - trace[t][j]) <= 0.5001e-9);
            assert_true(obs[j] == (float)s[j]);
        }
        assert_true(step.reward == 1.0);
        assert_false(step.terminated || step.truncated);
    }
    rle_env_release(e);
}

static int64_t always_right(int64_t t, const float *obs)
{
    (void)t, (void)obs;
    return 1;
}

static int64_t alternating(int64_t t, const float *obs)
{
    (void)obs;
    return t % 2;
}

static int64_t leaning(int64_t t, const float *obs)
{
    (void)t;
    return obs[2] > 0;
}

static int64_t balancing(int64_t t, const float *obs)
{
    (void)t;
    return (double)obs[2] + 0.5 * (double)obs[3] > 0;
}

/* Length of an episode; how it ended in *last. */
static int64_t play(rle_env *e, uint64_t seed, int64_t (*policy)(int64_t, const float *),
                    rle_step *last)
{
    float obs[4];
    reset(e, seed, obs);
    int64_t t = 0;
    do {
        int64_t action = policy(t++, obs);
        assert_int_equal(rle_env_step(e, &action, obs, last), RLE_OK);
        assert_true(last->reward == 1.0);
        assert_int_equal(rle_space_outside(rle_env_kind(e)->observation_space, obs), -1);
    } while (!last->terminated && !last->truncated);
    assert_int_equal(rle_env_elapsed(e), t);
    return t;
}

static void policies_last_as_long_as_in_gymnasium(void **state)
{
    (void)state;
    static const uint64_t seeds[5] = {0, 1, 2, 42, 123};
    static const struct {
        int64_t (*policy)(int64_t, const float *);
        int64_t lengths[5];
        bool truncated;
    } table[] = {
        {always_right, {8, 9, 10, 10, 9}, false},
        {alternating, {39, 48, 27, 23, 89}, false},
        {leaning, {41, 51, 35, 55, 53}, false},
        {balancing, {500, 500, 500, 500, 500}, true},
    };
    rle_env *e = make("CartPole-v1");
    for (size_t p = 0; p < sizeof table / sizeof table[0]; p++)
        for (int s = 0; s < 5; s++) {
            rle_step last;
            assert_int_equal(play(e, seeds[s], table[p].policy, &last),
                             table[p].lengths[s]);
            assert_int_equal(last.truncated, table[p].truncated);
            assert_int_equal(last.terminated, !table[p].truncated);
        }
    rle_env_release(e);
    e = make("CartPole-v0");
    rle_step last;
    assert_int_equal(play(e, 0, balancing, &last), 200);
    assert_true(last.truncated && !last.terminated);
    rle_env_release(e);
}

/* Mean 22.6, sd 12.0: the mean of 4,000 episodes lies within five standard errors. */
static void a_random_policy_scores_as_in_gymnasium(void **state)
{
    (void)state;
    enum { EPISODES = 4000 };
    rle_env *e = make("CartPole-v1");
    rle_pcg64 coin;
    rle_pcg64_seed(&coin, 5);
    uint64_t seed = 1;
    double steps = 0;
    for (int i = 0; i < EPISODES; i++) {
        float obs[4];
        rle_step step;
        assert_int_equal(rle_env_reset(e, i ? NULL : &seed, obs), RLE_OK);
        do {
            int64_t action;
            rle_space_sample(rle_env_kind(e)->action_space, &coin, &action);
            assert_int_equal(rle_env_step(e, &action, obs, &step), RLE_OK);
            steps++;
        } while (!step.terminated && !step.truncated);
    }
    /* the two means 22.6 and 22.2 that different samples gave, and the error */
    assert_true(fabs(steps / EPISODES - 22.4) < 0.2 + 5 * 12.0 / sqrt(EPISODES));
    rle_env_release(e);
}

/* The limit and a fall in one step: both flags, as Gymnasium's TimeLimit gives them. */
static void a_fall_at_the_limit_is_both(void **state)
{
    (void)state;
    rle_env *e;
    assert_int_equal(rle_env_new(&rle_env_cartpole_v1, 8, &e), RLE_OK);
    rle_step last;
    assert_int_equal(play(e, 0, always_right, &last), 8);
    assert_true(last.terminated && last.truncated);
    rle_env_release(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(seeds_give_gymnasiums_starts),
        cmocka_unit_test(alternating_pushes_follow_the_trace),
        cmocka_unit_test(policies_last_as_long_as_in_gymnasium),
        cmocka_unit_test(a_random_policy_scores_as_in_gymnasium),
        cmocka_unit_test(a_fall_at_the_limit_is_both),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
