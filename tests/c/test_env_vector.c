/* test_env_vector.c - rows equal single environments; the three autoreset modes;
 * refusals. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <string.h>

#include "base/mem.h"
#include "env/vecenv.h"

enum { N = 5 };

typedef struct arrays {
    float obs[N][4], final_obs[N][4], reward[N];
    bool terminated[N], truncated[N], was_reset[N];
} arrays;

static rle_vecstep out_of(arrays *a)
{
    return (rle_vecstep){a->obs,        a->final_obs, a->reward,
                         a->terminated, a->truncated, a->was_reset};
}

static rle_vecenv *make(rle_autoreset mode, int64_t limit)
{
    rle_vecenv *v;
    assert_int_equal(rle_vecenv_new(&rle_env_cartpole_v1, N, limit, mode, &v), RLE_OK);
    return v;
}

static void message_has(const char *part)
{
    if (!strstr(rle_message(), part))
        fail_msg("\"%s\" is not in: %s", part, rle_message());
}

/* A row of the vector against an environment of its own seed, 300 steps of a fixed
 * pattern of pushes that ends episodes at different times in different rows. */
static void rows_equal_single_environments(rle_autoreset mode)
{
    rle_vecenv *v = make(mode, 15);
    rle_env *single[N];
    float obs[N][4];
    arrays a;
    uint64_t seed = 40;
    assert_int_equal(rle_vecenv_reset(v, &seed, NULL, a.obs), RLE_OK);
    for (int i = 0; i < N; i++) {
        assert_int_equal(rle_env_new(&rle_env_cartpole_v1, 15, &single[i]), RLE_OK);
        uint64_t own = seed + (uint64_t)i;
        assert_int_equal(rle_env_reset(single[i], &own, obs[i]), RLE_OK);
    }
    assert_memory_equal(a.obs, obs, sizeof obs);
    int ends = 0, truncations = 0, resets = 0;
    bool over[N] = {false};
    for (int t = 0; t < 300; t++) {
        int64_t actions[N];
        for (int i = 0; i < N; i++) actions[i] = (t * (i + 3) / 2) % 3 == 0;
        rle_vecstep out = out_of(&a);
        assert_int_equal(rle_vecenv_step(v, actions, &out), RLE_OK);
        for (int i = 0; i < N; i++) {
            if (over[i]) { /* NEXT_STEP: this step only resets */
                assert_int_equal(rle_env_reset(single[i], NULL, obs[i]), RLE_OK);
                assert_true(a.was_reset[i] && a.reward[i] == 0.0f);
                assert_false(a.terminated[i] || a.truncated[i]);
                over[i] = false;
                resets++;
            } else {
                rle_step step;
                assert_int_equal(rle_env_step(single[i], &actions[i], obs[i], &step),
                                 RLE_OK);
                assert_false(a.was_reset[i]);
                assert_true(a.reward[i] == 1.0f);
                assert_int_equal(a.terminated[i], step.terminated);
                assert_int_equal(a.truncated[i], step.truncated);
                if (mode == RLE_AUTORESET_SAME_STEP)
                    assert_memory_equal(a.final_obs[i], obs[i], sizeof obs[i]);
                if (step.terminated || step.truncated) {
                    ends++;
                    truncations += step.truncated;
                    if (mode == RLE_AUTORESET_SAME_STEP) {
                        assert_int_equal(rle_env_reset(single[i], NULL, obs[i]), RLE_OK);
                    } else {
                        over[i] = true;
                    }
                }
            }
            assert_memory_equal(a.obs[i], obs[i], sizeof obs[i]);
        }
    }
    assert_true(ends > 50 && truncations > 5 && truncations < ends);
    assert_true(mode == RLE_AUTORESET_SAME_STEP ? resets == 0 : resets > 50);
    for (int i = 0; i < N; i++) rle_env_release(single[i]);
    rle_vecenv_release(v);
}

static void next_step_returns_the_last_observation_then_resets(void **state)
{
    (void)state;
    rows_equal_single_environments(RLE_AUTORESET_NEXT_STEP);
}

static void same_step_keeps_the_last_observation_aside(void **state)
{
    (void)state;
    rows_equal_single_environments(RLE_AUTORESET_SAME_STEP);
}

static void disabled_wants_a_masked_reset(void **state)
{
    (void)state;
    rle_vecenv *v = make(RLE_AUTORESET_DISABLED, 8);
    arrays a, kept;
    uint64_t seed = 0;
    int64_t actions[N] = {0, 1, 0, 1, 0};
    rle_vecstep out = out_of(&a);
    out.final_obs = NULL;
    assert_int_equal(rle_vecenv_reset(v, &seed, NULL, a.obs), RLE_OK);
    for (int t = 0; t < 4; t++)
        assert_int_equal(rle_vecenv_step(v, actions, &out), RLE_OK);
    /* rows 1 and 3 begin anew in the middle, the others reach the limit four steps
     * later */
    const bool some[N] = {false, true, false, true, false};
    kept = a;
    assert_int_equal(rle_vecenv_reset(v, NULL, some, a.obs), RLE_OK);
    for (int i = 0; i < N; i++)
        assert_int_equal(memcmp(a.obs[i], kept.obs[i], sizeof a.obs[i]) != 0, some[i]);
    for (int t = 0; t < 4; t++)
        assert_int_equal(rle_vecenv_step(v, actions, &out), RLE_OK);
    for (int i = 0; i < N; i++) assert_int_equal(a.truncated[i], !some[i]);
    kept = a;
    assert_int_equal(rle_vecenv_step(v, actions, &out), RLE_FAILED_PRECONDITION);
    message_has("environment 1 of the vector");
    assert_memory_equal(&a, &kept, sizeof a);
    assert_int_equal(rle_env_elapsed(rle_vecenv_row(v, 1)), 4);
    rle_vecenv_release(v);
}

static void a_bad_action_moves_no_row(void **state)
{
    (void)state;
    rle_vecenv *v = make(RLE_AUTORESET_NEXT_STEP, -1);
    arrays a, kept;
    int64_t actions[N] = {0, 1, 0, 2, 0};
    rle_vecstep out = out_of(&a);
    memset(&a, 0, sizeof a);
    assert_int_equal(rle_vecenv_step(v, actions, &out), RLE_FAILED_PRECONDITION);
    assert_int_equal(rle_vecenv_reset(v, NULL, NULL, a.obs), RLE_OK);
    kept = a;
    assert_int_equal(rle_vecenv_step(v, actions, &out), RLE_INVALID_ARGUMENT);
    message_has("environment 4 of the vector: CartPole-v1: step 1: action 2");
    assert_memory_equal(&a, &kept, sizeof a);
    for (int i = 0; i < N; i++)
        assert_int_equal(rle_env_elapsed(rle_vecenv_row(v, i)), 0);
    rle_vecenv_release(v);
}

static void sizes_are_checked_and_memory_returns(void **state)
{
    (void)state;
    size_t bytes = rle_mem_bytes(), blocks = rle_mem_blocks();
    rle_vecenv *v = NULL;
    assert_int_equal(rle_vecenv_new(&rle_env_cartpole_v1, 0, -1, 0, &v),
                     RLE_INVALID_ARGUMENT);
    assert_int_equal(rle_vecenv_new(&rle_env_cartpole_v1, INT64_MAX, -1, 0, &v),
                     RLE_INVALID_ARGUMENT);
    assert_null(v);
    for (uint64_t nth = 1; nth <= 4; nth++) {
        rle_mem_fault(nth, false);
        rle_status status = rle_vecenv_new(&rle_env_cartpole_v1, 3, -1, 0, &v);
        rle_mem_fault(0, false);
        assert_int_equal(status, RLE_RESOURCE_EXHAUSTED);
        assert_int_equal(rle_mem_bytes(), bytes);
    }
    v = make(RLE_AUTORESET_SAME_STEP, 7);
    assert_int_equal(rle_vecenv_count(v), N);
    assert_int_equal(rle_vecenv_limit(v), 7);
    assert_int_equal(rle_vecenv_mode(v), RLE_AUTORESET_SAME_STEP);
    assert_string_equal(rle_autoreset_name(rle_vecenv_mode(v)), "same_step");
    assert_ptr_equal(rle_vecenv_kind(v), &rle_env_cartpole_v1);
    rle_vecenv_retain(v);
    rle_vecenv_release(v);
    rle_vecenv_release(v);
    rle_vecenv_release(NULL);
    assert_int_equal(rle_mem_bytes(), bytes);
    assert_int_equal(rle_mem_blocks(), blocks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(next_step_returns_the_last_observation_then_resets),
        cmocka_unit_test(same_step_keeps_the_last_observation_aside),
        cmocka_unit_test(disabled_wants_a_masked_reset),
        cmocka_unit_test(a_bad_action_moves_no_row),
        cmocka_unit_test(sizes_are_checked_and_memory_returns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
