/* test_restart.c - secondaries of a group that are started again, or given up. */
#include "process_check.h"

#include <fcntl.h>
#include <string.h>

#include "base/supervisor.h"

static char restart_folder[64];

/* Scripts find a folder of their own in $DIR; `joined` is there from the start. */
static rle_status run_restarting(rle_member *members, int count,
                                 rle_restart_policy policy, rle_group_result *result,
                                 char *err, size_t size)
{
    static const char *const argv[] = {"test_restart", "script", NULL};
    char joined[96], requests[96];
    snprintf(restart_folder, sizeof restart_folder, "/tmp/rle-test-XXXXXX");
    assert_non_null(mkdtemp(restart_folder));
    snprintf(joined, sizeof joined, "%s/joined", restart_folder);
    snprintf(requests, sizeof requests, "%s/requests", restart_folder);
    close(open(joined, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    setenv("DIR", restart_folder, 1);
    for (int i = 0; i < count; i++) {
        members[i].handoff_size = strlen(members[i].handoff) + 1;
        if (!members[i].joined) members[i].joined = joined;
    }
    rle_group group = {.argv = argv,
                       .members = members,
                       .count = count,
                       .restarts = policy,
                       .grace_ns = 300000000,
                       .requests = requests};
    capture c;
    capture_begin(&c, STDERR_FILENO);
    rle_status s = rle_group_run(&group, result);
    capture_end(&c, STDERR_FILENO, err, size);
    assert_int_equal(access(requests, F_OK), -1);
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", restart_folder);
    assert_int_equal(system(command), 0);
    return s;
}

#define MS INT64_C(1000000)
static const rle_restart_policy quickly = {
    .max = 2, .within = 600 * 1000 * MS, .backoff = 10 * MS};

static void a_secondary_that_dies_is_started_again(void **state)
{
    (void)state;
    char err[4096];
    rle_group_result r;
    /* The third life of the observer lets the trainer end. */
    rle_member members[] = {
        TRAINER("while [ ! -e $DIR/3 ]; do sleep 0.01; done; exit 0"),
        OBSERVER(
            "cd $DIR; if [ -e 2 ]; then touch 3; exec sleep 60; fi; if [ -e 1 ]; then "
            "touch 2; kill -SEGV $$; fi; touch 1; exit 3")};
    assert_int_equal(run_restarting(members, 2, quickly, &r, err, sizeof err), RLE_OK);
    assert_int_equal(r.exit_code, 0);
    assert_string_equal(
        err, "rlengine: observer \"obs_0_for_0\" failed (exit code 3); restart 1 "
             "of 2 in 0.0 s\n"
             "rlengine: observer \"obs_0_for_0\" died (signal 11); restart 2 of 2 "
             "in 0.0 s\n");
}

static void one_that_fails_too_often_is_given_up(void **state)
{
    (void)state;
    char err[4096];
    rle_group_result r;
    rle_member alone[] = {TRAINER("exec sleep 60"),
                          OBSERVER("echo x >>$DIR/lives; exit 7")};
    assert_int_equal(run_restarting(alone, 2, quickly, &r, err, sizeof err), RLE_OK);
    assert_int_equal(r.exit_code, 7);
    assert_int_equal(r.failed, 1);
    assert_string_equal(r.message, "observer \"obs_0_for_0\" failed (exit code 7)");
    assert_non_null(strstr(err, "restart 2 of 2"));
    assert_non_null(strstr(err,
                           "rlengine: observer \"obs_0_for_0\" failed 3 times in 600 s; "
                           "giving up on it\n"));
    /* As long as another one of its team is there, the run goes on. */
    rle_member two[] = {
        TRAINER("until [ -e $DIR/lives ] && [ $(wc -l <$DIR/lives) -ge 3 ]; do "
                "sleep 0.02; done; sleep 0.7; exit 0"),
        OBSERVER("echo x >>$DIR/lives; exit 7"),
        {.name = "obs_1_for_0", .role = "observer", .handoff = "exec sleep 60"}};
    assert_int_equal(run_restarting(two, 3, quickly, &r, err, sizeof err), RLE_OK);
    assert_int_equal(r.exit_code, 0);
    assert_non_null(strstr(err, "giving up on it"));
    /* But not one of another team. */
    rle_member teams[] = {TRAINER("exec sleep 60"),
                          OBSERVER("exit 7"),
                          {.name = "obs_0_for_1",
                           .role = "observer",
                           .team = 1,
                           .handoff = "exec sleep 60"}};
    assert_int_equal(run_restarting(teams, 3, quickly, &r, err, sizeof err), RLE_OK);
    assert_int_equal(r.exit_code, 7);
}

static void one_that_never_joined_fails_the_run(void **state)
{
    (void)state;
    char err[4096];
    rle_group_result r;
    rle_member members[] = {TRAINER("exec sleep 60"), OBSERVER("exit 7")};
    members[1].joined = "/no/such/file";
    assert_int_equal(run_restarting(members, 2, quickly, &r, err, sizeof err), RLE_OK);
    assert_int_equal(r.exit_code, 7);
    assert_string_equal(err, "");
}

static void a_primary_that_cannot_go_on_points_at_who_was_lost(void **state)
{
    (void)state;
    char err[4096];
    rle_group_result r;
    rle_restart_policy slowly = {
        .max = 5, .within = 600 * 1000 * MS, .backoff = 60 * 1000 * MS};
    rle_member members[] = {
        TRAINER("while [ ! -e $DIR/1 ]; do sleep 0.01; done; sleep 0.1; exit 69"),
        OBSERVER("touch $DIR/1; kill -9 $$")};
    assert_int_equal(run_restarting(members, 2, slowly, &r, err, sizeof err), RLE_OK);
    assert_int_equal(r.exit_code, 137);
    assert_string_equal(r.message, "observer \"obs_0_for_0\" died (signal 9)");
}

static void a_process_may_ask_for_anothers_end(void **state)
{
    (void)state;
    char err[4096];
    rle_group_result r;
    rle_member members[] = {
        TRAINER("while [ ! -e $DIR/1 ]; do sleep 0.01; done; "
                "echo 'kill obs_9 nobody' >$DIR/requests; echo nonsense >$DIR/requests; "
                "echo 'kill obs_0_for_0 no reply after deadline + 5.0 s' >$DIR/requests; "
                "while [ ! -e $DIR/2 ]; do sleep 0.01; done; exit 0"),
        OBSERVER("if [ -e $DIR/1 ]; then touch $DIR/2; fi; touch $DIR/1; while :; do "
                 "sleep 0.02; "
                 "done")};
    assert_int_equal(run_restarting(members, 2, quickly, &r, err, sizeof err), RLE_OK);
    assert_int_equal(r.exit_code, 0);
    assert_string_equal(
        err, "rlengine: observer \"obs_0_for_0\" killed: no reply after deadline "
             "+ 5.0 s; restart 1 of 2 in 0.0 s\n");
    assert_int_equal(rle_group_ask_kill("/no/such/pipe", "obs", "why"), RLE_UNAVAILABLE);
}

static void failures_are_counted_within_their_time(void **state)
{
    (void)state;
    rle_restart_policy policy = {.max = 5, .within = 60000 * MS, .backoff = 500 * MS};
    rle_restarts r;
    assert_int_equal(rle_restarts_init(&r, &policy), RLE_OK);
    int64_t delay = 0, now = 1000 * MS;
    static const int expected[] = {500, 1000, 2000, 4000, 8000};
    for (int i = 0; i < 5; i++) {
        assert_true(rle_restarts_failed(&r, &policy, now, &delay));
        assert_int_equal(delay / MS, expected[i]);
        assert_int_equal(r.count, i + 1);
        now += 1000 * MS;
    }
    assert_false(rle_restarts_failed(&r, &policy, now, &delay));
    assert_int_equal(r.count, 6);
    /* All but the last two are forgotten. */
    assert_true(rle_restarts_failed(&r, &policy, now + 59000 * MS, &delay));
    assert_int_equal(r.count, 3);
    assert_int_equal(delay / MS, 2000);
    rle_restarts_fini(&r);
    /* However many: they fit into the time, or it would never be given up. */
    policy.max = 100;
    assert_int_equal(rle_restarts_init(&r, &policy), RLE_OK);
    int64_t begin = now;
    while (rle_restarts_failed(&r, &policy, now, &delay)) now += delay;
    assert_true(now - begin <= policy.within);
    assert_int_equal(r.count, 101);
    rle_restarts_fini(&r);
}

int main(int argc, char **argv)
{
    (void)argv;
    if (argc > 1) return run_handoff();
#define TEST(f) cmocka_unit_test_setup_teardown(f, remember, compare)
    const struct CMUnitTest tests[] = {
        TEST(a_secondary_that_dies_is_started_again),
        TEST(one_that_fails_too_often_is_given_up),
        TEST(one_that_never_joined_fails_the_run),
        TEST(a_primary_that_cannot_go_on_points_at_who_was_lost),
        TEST(a_process_may_ask_for_anothers_end),
        TEST(failures_are_counted_within_their_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
