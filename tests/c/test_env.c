/* test_env.c - the handle and the registry: order of calls, limits, bad actions,
 * failures of an environment, memory. With two environments written here, as a user
 * would. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "env/env.h"

/* ---- "Walk": a position moved by a Box action; ends by itself, fails on demand ---- */

typedef struct walk {
    double x;
    int *buffer; /* to see that fini runs */
} walk;

static int walk_step_count, fail_at, nan_at, nan_reward_at, truncate_at; /* 0: never */
static bool fail_reset, fail_init;

static rle_status walk_init(void *state)
{
    walk *w = state;
    if (fail_init) return rle_fail(RLE_UNAVAILABLE, "no floor");
    w->buffer = rle_malloc(64);
    return w->buffer ? RLE_OK : rle_oom(64, "walk");
}

static void walk_fini(void *state)
{
    rle_free(((walk *)state)->buffer);
}

static rle_status walk_reset(void *state, rle_pcg64 *rng, void *obs)
{
    walk *w = state;
    if (fail_reset) return rle_fail(RLE_INTERNAL, "reset broke");
    w->x = rle_pcg64_double(rng);
    walk_step_count = 0;
    ((double *)obs)[0] = w->x;
    return RLE_OK;
}

static rle_status walk_step(void *state, rle_pcg64 *rng, const void *action, void *obs,
                            rle_step *out)
{
    (void)rng;
    walk *w = state;
    walk_step_count++;
    if (walk_step_count == fail_at) return rle_fail(RLE_DATA_LOSS, "the floor gave way");
    w->x += (double)((const float *)action)[0] + (double)((const float *)action)[1];
    ((double *)obs)[0] = walk_step_count == nan_at ? NAN : w->x;
    out->reward = walk_step_count == nan_reward_at ? NAN : -1;
    out->truncated = walk_step_count == truncate_at;
    return RLE_OK;
}

static const rle_space position = {.kind = RLE_SPACE_BOX,
                                   .dtype = RLE_F64,
                                   .ndim = 1,
                                   .shape = {1},
                                   .low_all = -INFINITY,
                                   .high_all = INFINITY};
static const rle_space push = {.kind = RLE_SPACE_BOX,
                               .dtype = RLE_F32,
                               .ndim = 1,
                               .shape = {2},
                               .low_all = -1,
                               .high_all = 1};
static const rle_env_ops walk_ops = {
    .id = "Walk-v0",
    .observation_space = &position,
    .action_space = &push,
    .state_size = sizeof(walk),
    .init = walk_init,
    .fini = walk_fini,
    .reset = walk_reset,
    .step = walk_step,
};

static int before(void **state)
{
    (void)state;
    fail_at = nan_at = nan_reward_at = truncate_at = 0;
    fail_reset = fail_init = false;
    return 0;
}

static void message_has(const char *part)
{
    if (!strstr(rle_message(), part))
        fail_msg("\"%s\" is not in: %s", part, rle_message());
}

static rle_env *walk_env(int64_t limit)
{
    rle_env *e;
    assert_int_equal(rle_env_new(&walk_ops, limit, &e), RLE_OK);
    return e;
}

/* ---- order of calls ---- */

static void a_step_needs_an_episode(void **state)
{
    (void)state;
    rle_env *e;
    assert_int_equal(rle_env_make("CartPole-v1", &e), RLE_OK);
    float obs[4] = {1, 2, 3, 4}, seen[4] = {1, 2, 3, 4};
    rle_step step = {7, true, false};
    int64_t action = 1;
    assert_int_equal(rle_env_step(e, &action, obs, &step), RLE_FAILED_PRECONDITION);
    message_has("CartPole-v1");
    message_has("call reset");
    assert_memory_equal(obs, seen, sizeof obs);
    assert_true(step.reward == 7);

    uint64_t seed = 0;
    assert_int_equal(rle_env_reset(e, &seed, obs), RLE_OK);
    do {
        assert_int_equal(rle_env_step(e, &action, obs, &step), RLE_OK);
    } while (!step.terminated);
    assert_int_equal(rle_env_get_phase(e), RLE_ENV_ENDED);
    memcpy(seen, obs, sizeof obs);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(rle_env_step(e, &action, obs, &step), RLE_FAILED_PRECONDITION);
        message_has("terminated at step 8");
        message_has("call reset");
    }
    assert_memory_equal(obs, seen, sizeof obs);
    assert_int_equal(rle_env_elapsed(e), 8);
    assert_int_equal(rle_env_reset(e, NULL, obs), RLE_OK);
    assert_int_equal(rle_env_step(e, &action, obs, &step), RLE_OK);
    rle_env_release(e);
}

static void a_reset_without_seed_goes_on_in_the_stream(void **state)
{
    (void)state;
    rle_env *a = walk_env(0), *b = walk_env(0);
    double one[3], two[3];
    uint64_t seed = 12;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(rle_env_reset(a, i ? NULL : &seed, &one[i]), RLE_OK);
        assert_int_equal(rle_env_reset(b, i ? NULL : &seed, &two[i]), RLE_OK);
        assert_true(one[i] == two[i]);
    }
    assert_true(one[0] != one[1] && one[1] != one[2]);
    assert_int_equal(rle_env_reset(a, &seed, &one[1]), RLE_OK);
    assert_true(one[0] == one[1]);
    rle_env_release(a);
    rle_env_release(b);

    /* never seeded: two environments start apart */
    a = walk_env(0), b = walk_env(0);
    assert_int_equal(rle_env_reset(a, NULL, one), RLE_OK);
    assert_int_equal(rle_env_reset(b, NULL, two), RLE_OK);
    assert_true(one[0] != two[0]);
    rle_env_release(a);
    rle_env_release(b);
}

static void the_limit_truncates(void **state)
{
    (void)state;
    rle_env *e = walk_env(3);
    double obs;
    float action[2] = {0, 0};
    rle_step step;
    assert_int_equal(rle_env_limit(e), 3);
    for (int episode = 0; episode < 2; episode++) {
        assert_int_equal(rle_env_reset(e, NULL, &obs), RLE_OK);
        for (int t = 1; t <= 3; t++) {
            assert_int_equal(rle_env_step(e, action, &obs, &step), RLE_OK);
            assert_false(step.terminated);
            assert_int_equal(step.truncated, t == 3);
        }
        assert_int_equal(rle_env_step(e, action, &obs, &step), RLE_FAILED_PRECONDITION);
        message_has("truncated at step 3");
    }
    rle_env_release(e);

    e = walk_env(-1);  /* what the kind says: none */
    truncate_at = 700; /* by itself */
    assert_int_equal(rle_env_reset(e, NULL, &obs), RLE_OK);
    for (int t = 1; t <= 700; t++) {
        assert_int_equal(rle_env_step(e, action, &obs, &step), RLE_OK);
        assert_int_equal(step.truncated, t == 700);
    }
    rle_env_release(e);
}

/* ---- actions ---- */

static void bad_actions_change_nothing(void **state)
{
    (void)state;
    rle_env *e;
    assert_int_equal(rle_env_make("CartPole-v1", &e), RLE_OK);
    uint64_t seed = 3;
    float obs[4], kept[4];
    rle_step step = {0, false, false};
    assert_int_equal(rle_env_reset(e, &seed, obs), RLE_OK);
    int64_t good = 1;
    assert_int_equal(rle_env_step(e, &good, obs, &step), RLE_OK);
    memcpy(kept, obs, sizeof obs);
    const int64_t bad[] = {-1, 2, INT64_MIN, INT64_MAX};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(rle_env_step(e, &bad[i], obs, &step), RLE_INVALID_ARGUMENT);
        message_has("CartPole-v1: step 2: action ");
        message_has("Discrete(2)");
        message_has("from 0 to 1");
        assert_memory_equal(obs, kept, sizeof obs);
        assert_int_equal(rle_env_elapsed(e), 1);
    }
    assert_int_equal(rle_env_step(e, &good, obs, &step), RLE_OK);
    rle_env_release(e);

    e = walk_env(0);
    double x;
    assert_int_equal(rle_env_reset(e, NULL, &x), RLE_OK);
    float wild[2] = {0, 1.5f};
    assert_int_equal(rle_env_step(e, wild, &x, &step), RLE_INVALID_ARGUMENT);
    message_has("element 2 of the action is 1.5");
    message_has("from -1 to 1");
    wild[1] = NAN;
    assert_int_equal(rle_env_step(e, wild, &x, &step), RLE_INVALID_ARGUMENT);
    message_has("nan");
    rle_env_release(e);
}

/* ---- environments that fail ---- */

static void failures_keep_code_and_cause(void **state)
{
    (void)state;
    rle_env *e = walk_env(0);
    double x;
    float action[2] = {0, 0};
    rle_step step;
    fail_at = 2;
    assert_int_equal(rle_env_reset(e, NULL, &x), RLE_OK);
    assert_int_equal(rle_env_step(e, action, &x, &step), RLE_OK);
    assert_int_equal(rle_env_step(e, action, &x, &step), RLE_DATA_LOSS);
    assert_string_equal(rle_message(), "Walk-v0: step 2: the floor gave way");
    assert_int_equal(rle_env_step(e, action, &x, &step), RLE_FAILED_PRECONDITION);

    fail_reset = true;
    assert_int_equal(rle_env_reset(e, NULL, &x), RLE_INTERNAL);
    message_has("reset broke");
    assert_int_equal(rle_env_step(e, action, &x, &step), RLE_FAILED_PRECONDITION);
    fail_reset = false;

    fail_at = 0, nan_at = 3;
    assert_int_equal(rle_env_reset(e, NULL, &x), RLE_OK);
    for (int i = 0; i < 2; i++)
        assert_int_equal(rle_env_step(e, action, &x, &step), RLE_OK);
    assert_int_equal(rle_env_step(e, action, &x, &step), RLE_INTERNAL);
    assert_string_equal(rle_message(),
                        "Walk-v0: step 3: element 1 of the observation is NaN");
    nan_at = 0, nan_reward_at = 1;
    assert_int_equal(rle_env_reset(e, NULL, &x), RLE_OK);
    assert_int_equal(rle_env_step(e, action, &x, &step), RLE_INTERNAL);
    assert_string_equal(rle_message(), "Walk-v0: step 1: the reward is NaN");
    rle_env_release(e);
}

/* ---- registry ---- */

static void the_registry_takes_and_gives_back(void **state)
{
    (void)state;
    size_t bytes = rle_mem_bytes(), blocks = rle_mem_blocks();
    assert_null(rle_env_find("Walk-v0"));
    rle_env *e;
    assert_int_equal(rle_env_make("Walk-v0", &e), RLE_NOT_FOUND);
    message_has("CartPole-v1");
    assert_int_equal(rle_env_register(&walk_ops), RLE_OK);
    assert_ptr_equal(rle_env_find("Walk-v0"), &walk_ops);
    assert_int_equal(rle_env_register(&walk_ops), RLE_ALREADY_EXISTS);
    assert_int_equal(rle_env_register(&rle_env_cartpole_v1), RLE_ALREADY_EXISTS);
    assert_int_equal(rle_env_make("Walk-v0", &e), RLE_OK);
    assert_ptr_equal(rle_env_kind(e), &walk_ops);
    assert_int_equal(rle_env_unregister("Walk-v0"), RLE_OK);
    assert_int_equal(rle_env_unregister("Walk-v0"), RLE_NOT_FOUND);
    assert_int_equal(rle_env_unregister("CartPole-v1"), RLE_FAILED_PRECONDITION);
    rle_env_retain(e);
    rle_env_release(e);
    double x;
    assert_int_equal(rle_env_reset(e, NULL, &x), RLE_OK); /* lives on */
    rle_env_release(e);
    rle_env_release(NULL);
    assert_int_equal(rle_mem_bytes(), bytes);
    assert_int_equal(rle_mem_blocks(), blocks);
}

static void unusable_kinds_are_refused(void **state)
{
    (void)state;
    static const rle_space none = RLE_DISCRETE(0);
    rle_env_ops ops[7];
    for (int i = 0; i < 7; i++) ops[i] = walk_ops;
    ops[0].id = NULL;
    ops[1].id = "";
    ops[2].id = "has space-v0";
    ops[3].reset = NULL;
    ops[4].action_space = &none;
    ops[5].max_episode_steps = -1;
    ops[6].observation_space = NULL;
    for (int i = 0; i < 7; i++)
        assert_int_equal(rle_env_register(&ops[i]), RLE_INVALID_ARGUMENT);
    assert_int_equal(rle_env_register(&ops[4]), RLE_INVALID_ARGUMENT);
    message_has("Walk-v0: action space: Discrete: n is 0");
    rle_env *e = NULL;
    assert_int_equal(rle_env_new(&ops[4], 0, &e), RLE_INVALID_ARGUMENT);
    assert_null(e);
}

static void built_in_kinds_come_first(void **state)
{
    (void)state;
    assert_string_equal(rle_env_at(0)->id, "CartPole-v1");
    assert_string_equal(rle_env_at(1)->id, "CartPole-v0");
    assert_null(rle_env_at(2));
    assert_null(rle_env_at(-1));
    assert_true(rle_env_at(0)->reward_threshold == 475);
    assert_true(rle_env_at(1)->reward_threshold == 195);
}

/* ---- memory ---- */

/* Every allocation on the way fails once: a clean error, nothing left behind. */
static void running_out_of_memory_is_an_error(void **state)
{
    (void)state;
    size_t bytes = rle_mem_bytes(), blocks = rle_mem_blocks();
    int failures = 0;
    for (uint64_t nth = 1;; nth++) {
        rle_mem_fault(nth, false);
        rle_env *e = NULL;
        rle_status registered = rle_env_register(&walk_ops);
        rle_status made = registered == RLE_OK ? rle_env_make("Walk-v0", &e) : registered;
        rle_mem_fault(0, false);
        if (registered == RLE_OK) assert_int_equal(rle_env_unregister("Walk-v0"), RLE_OK);
        rle_env_release(e);
        assert_int_equal(rle_mem_bytes(), bytes);
        assert_int_equal(rle_mem_blocks(), blocks);
        if (made == RLE_OK) break;
        assert_int_equal(made, RLE_RESOURCE_EXHAUSTED);
        failures++;
    }
    assert_int_equal(failures, 3); /* registry, environment, its buffer */
    fail_init = true;
    rle_env *e = NULL;
    assert_int_equal(rle_env_new(&walk_ops, 0, &e), RLE_UNAVAILABLE);
    assert_null(e);
    assert_int_equal(rle_mem_bytes(), bytes);
}

static void a_loop_takes_nothing(void **state)
{
    (void)state;
    size_t bytes = rle_mem_bytes(), blocks = rle_mem_blocks();
    for (int i = 0; i < 1000; i++) {
        rle_env *e = walk_env(5);
        double x;
        float action[2] = {1, -1};
        rle_step step = {0, false, false};
        assert_int_equal(rle_env_reset(e, NULL, &x), RLE_OK);
        while (!step.truncated)
            assert_int_equal(rle_env_step(e, action, &x, &step), RLE_OK);
        rle_env_release(e);
    }
    assert_int_equal(rle_mem_bytes(), bytes);
    assert_int_equal(rle_mem_blocks(), blocks);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup(f, before)
    const struct CMUnitTest tests[] = {
        TEST(a_step_needs_an_episode),
        TEST(a_reset_without_seed_goes_on_in_the_stream),
        TEST(the_limit_truncates),
        TEST(bad_actions_change_nothing),
        TEST(failures_keep_code_and_cause),
        TEST(the_registry_takes_and_gives_back),
        TEST(unusable_kinds_are_refused),
        TEST(built_in_kinds_come_first),
        TEST(running_out_of_memory_is_an_error),
        TEST(a_loop_takes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
