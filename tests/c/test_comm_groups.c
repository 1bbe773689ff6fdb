/* test_comm_groups.c - groups that are closed and made again while others are in them,
 * and workers that do not mean the same group: whoever would wait for nothing hears of
 * it. */
#include "comm_team.h"
#include "figure.h"
#include "shifted_clock.h"

static void turns(team *t, int n)
{
    for (int i = 0; i < n; i++) turn_all(t);
}

static void begin_all(team *t, const rle_comm_call *call, rle_tensor **x,
                      rle_comm_work **w, int but)
{
    for (int r = 0; r < t->size; r++)
        w[r] = r == but ? NULL : begin_with(t, r, call, &x[r]);
}

static void release_all(team *t, rle_tensor **x)
{
    for (int r = 0; r < t->size; r++) rle_tensor_release(x[r]);
}

/* Rank 1 closes the group: before others come to a collective, or while they are in it.
 */
static void a_rank_that_has_closed_it(void **state)
{
    (void)state;
    double longest = 0;
    for (int inside = 0; inside < 2; inside++)
        for (int64_t n = 100; n <= 100000; n *= 1000) {
            team t = make_team(3);
            rle_tensor *x[RANKS_MAX], *none[RANKS_MAX] = {0};
            rle_comm_work *w[RANKS_MAX];
            rle_comm_call call = sum_of("grads");
            for (int i = 0; i < 2; i++)
                run(&t, &(rle_comm_call){.kind = RLE_COMM_BARRIER}, none, NULL);
            for (int r = 0; r < 3; r++) x[r] = filled(RLE_F32, n, r);
            if (inside) begin_all(&t, &call, x, w, 1);
            if (inside) turns(&t, 20);
            rle_comm_group_free(t.group[1]);
            int64_t since = rle_now();
            turns(&t, 20);
            if (!inside) begin_all(&t, &call, x, w, 1);
            wait_works(&t, w);
            double took = (double)(rle_now() - since) / RLE_SECONDS;
            if (took > longest) longest = took;
            assert_true(took < 10);
            for (int r = 0; r < 3; r += 2)
                assert_failed(
                    &t, r, w[r], RLE_CANCELLED,
                    "allreduce \"grads\": rank 1 (worker \"w1\") has closed the "
                    "group, after 2 collectives",
                    x[r]);
            /* ... and so it stays. */
            begin_all(&t, &call, x, w, 1);
            wait_works(&t, w);
            for (int r = 0; r < 3; r += 2)
                assert_failed(&t, r, w[r], RLE_CANCELLED, "after 2 collectives", x[r]);
            assert_nothing_left(&t);
            release_all(&t, x);
            free_team(&t);
        }
    figure("F14", "that a rank has closed the group is known %.1f ms later",
           longest * 1000);
}

/* It had made and closed it before the others made it; then all make it again. */
static void closed_before_it_is_made(void **state)
{
    (void)state;
    team t = make_team(3);
    rle_tensor *x[RANKS_MAX];
    rle_comm_work *w[RANKS_MAX];
    rle_comm_call call = sum_of("grads");
    for (int r = 0; r < 3; r++) x[r] = filled(RLE_F32, 100, r);
    for (int lives = 0; lives < 3; lives++) rle_comm_group_free(join(&t, 1, "late"));
    turns(&t, 50);
    for (int r = 0; r < 3; r += 2) t.group[r] = join(&t, r, "late");
    begin_all(&t, &call, x, w, 1);
    wait_works(&t, w);
    for (int r = 0; r < 3; r += 2)
        assert_failed(&t, r, w[r], RLE_CANCELLED,
                      "rank 1 (worker \"w1\") has closed the group, after 0 collectives",
                      x[r]);
    for (int r = 0; r < 3; r += 2) rle_comm_group_free(t.group[r]);
    for (int r = 2; r >= 0; r--) t.group[r] = join(&t, r, "late");
    run(&t, &call, x, NULL);
    for (int r = 0; r < 3; r++) rle_comm_group_free(t.group[r]);
    /* Who closes one that was not used, and makes it again, has it with the others. */
    for (int early = 0; early < 2; early++) {
        if (!early) t.group[0] = join(&t, 0, "late");
        rle_comm_group_free(join(&t, 1, "late"));
        turns(&t, early ? 20 : 0);
        t.group[1] = join(&t, 1, "late");
        turns(&t, 20);
        if (early) t.group[0] = join(&t, 0, "late");
        t.group[2] = join(&t, 2, "late");
        run(&t, &call, x, NULL);
        for (int r = 0; r < 3; r++) rle_comm_group_free(t.group[r]);
        turns(&t, 20);
    }
    release_all(&t, x);
    free_team(&t);
}

/* A long call of a collective that is given up goes on after the group was closed and
 * made again: it is not taken for one of the group as it is now. */
static void calls_of_a_life_that_is_over(void **state)
{
    (void)state;
    for (int before = 0; before < 12; before++) {
        team t = make_team(2);
        rle_tensor *old[RANKS_MAX], *x[RANKS_MAX];
        rle_comm_work *w[RANKS_MAX] = {0};
        turns(&t, 20);
        for (int r = 0; r < 2; r++) {
            old[r] = filled(RLE_F32, 3000000, r);
            x[r] = filled(RLE_F32, 3000000, r + 5);
        }
        rle_comm_call call = sum_of("grads");
        w[1] = begin_with(&t, 1, &call, &old[1]); /* its parts are on their way */
        for (int i = 0; i < before; i++) turn_all(&t);
        rle_comm_group_free(t.group[1]);
        t.group[1] = join(&t, 1, "test");
        for (int i = 0; i < before % 3; i++) turn_all(&t);
        rle_comm_group_free(t.group[0]);
        t.group[0] = join(&t, 0, "test");
        rle_comm_work *now[RANKS_MAX] = {begin_with(&t, 0, &call, &x[0]),
                                         begin_with(&t, 1, &call, &x[1])};
        wait_works(&t, now);
        for (int r = 0; r < 2; r++) {
            if (rle_comm_finish(now[r], NULL) != RLE_OK)
                fail_msg("rank %d after %d turns: %s", r, before, rle_message());
            rle_comm_work_free(now[r]);
            for (int64_t i = 0; i < 3000000; i += 1000)
                assert_true(value(x[r], i) == value(x[0], i));
        }
        assert_true(value(x[0], 1) != value(old[0], 1));
        assert_int_equal(rle_comm_finish(w[1], NULL), RLE_CANCELLED);
        rle_comm_work_free(w[1]);
        for (int i = 0; i < 1000 && rle_comm_works(t.comm[1]); i++) turn_all(&t);
        assert_nothing_left(&t);
        release_all(&t, x);
        release_all(&t, old);
        free_team(&t);
    }
}

/* ---- workers that do not mean the same ---- */

static const char *const turned[] = {"w1", "w0"}, *const three[] = {"w0", "w1", "w2"};
static const char *const another[] = {"w0", "w2", "w1"};

typedef struct view {
    const char *const *names;
    int count;
} view;

static void refused(view a, view b, const char *words)
{
    for (int first = 0; first < 2; first++) {
        team t = make_team(3);
        view views[] = {a, b};
        view *mine = &views[first], *theirs = &views[!first];
        rle_comm_group *g = NULL;
        assert_int_equal(
            rle_comm_group_new(t.comm[first], mine->names, mine->count, "odd", &g),
            RLE_OK);
        rle_comm_group *made = g;
        turns(&t, 20);
        int64_t since = rle_now();
        assert_int_equal(
            rle_comm_group_new(t.comm[!first], theirs->names, theirs->count, "odd", &g),
            RLE_INVALID_ARGUMENT);
        if (strcmp(rle_message(), words) != 0)
            fail_msg("%s\nnot %s", rle_message(), words);
        /* The other one has been told: what it begins fails at once. */
        rle_tensor *x = filled(RLE_F32, 100, first);
        rle_comm_call call = sum_of("grads");
        rle_comm_work *w[RANKS_MAX] = {0};
        turns(&t, 20);
        t.group[first] = made;
        w[first] = begin_with(&t, first, &call, &x);
        wait_works(&t, w);
        assert_true(rle_now() - since < 10 * RLE_SECONDS);
        assert_failed(&t, first, w[first], RLE_INVALID_ARGUMENT, words, x);
        rle_tensor_release(x);
        /* Both make it again, as it should be. */
        rle_comm_group_free(made);
        turns(&t, 20);
        rle_comm_call barrier = {.kind = RLE_COMM_BARRIER};
        w[2] = NULL;
        for (int r = 0; r < 2; r++) {
            assert_int_equal(rle_comm_group_new(t.comm[r], names, 2, "odd", &t.group[r]),
                             RLE_OK);
            w[r] = begin_with(&t, r, &barrier, NULL);
        }
        wait_works(&t, w);
        for (int r = 0; r < 2; r++) {
            assert_int_equal(rle_comm_finish(w[r], NULL), RLE_OK);
            rle_comm_work_free(w[r]);
        }
        free_team(&t);
    }
}

static void two_of_one_rank(void **state)
{
    (void)state;
    refused(
        (view){names, 2}, (view){turned, 2},
        "group \"odd\": worker \"w0\", for which it is w0, w1, and worker \"w1\", for "
        "which it is w1, w0, are both rank 0; give the same names in the same order "
        "everywhere");
}

static void two_sizes(void **state)
{
    (void)state;
    refused(
        (view){three, 3}, (view){names, 2},
        "group \"odd\" has 3 workers for \"w0\" (w0, w1, w2), and 2 for \"w1\" (w0, w1); "
        "give the same names in the same order everywhere");
}

static void two_orders(void **state)
{
    (void)state;
    refused(
        (view){three, 3}, (view){another, 3},
        "group \"odd\" has 3 workers for \"w0\" (w0, w1, w2), and 3 for \"w1\" (w0, w2, "
        "w1), which are not the same; give the same names in the same order everywhere");
}

/* A name is of one group of a worker; who is in none of that name waits for its turn. */
static void one_name_for_several(void **state)
{
    (void)state;
    team t = make_team(3);
    static const char *const last[] = {"w1", "w2"};
    rle_comm_group *g[3], *more;
    for (int r = 0; r < 2; r++)
        assert_int_equal(rle_comm_group_new(t.comm[r], names, 2, "pair", &g[r]), RLE_OK);
    assert_int_equal(rle_comm_group_new(t.comm[1], last, 2, "pair", &more),
                     RLE_ALREADY_EXISTS);
    assert_non_null(strstr(rle_message(),
                           "this worker is in a group \"pair\" already; close "
                           "that one, or give this one another name"));
    /* w2 is early: w1 has still the other pair. */
    assert_int_equal(rle_comm_group_new(t.comm[2], last, 2, "pair", &g[2]), RLE_OK);
    rle_comm_call barrier = {.kind = RLE_COMM_BARRIER};
    t.group[2] = g[2];
    rle_comm_work *early = begin_with(&t, 2, &barrier, NULL);
    turns(&t, 20);
    rle_comm_work *w[RANKS_MAX] = {0};
    for (int r = 0; r < 2; r++) {
        t.group[r] = g[r];
        w[r] = begin_with(&t, r, &barrier, NULL);
    }
    wait_works(&t, w);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(rle_comm_finish(w[r], NULL), RLE_OK);
        rle_comm_work_free(w[r]);
    }
    assert_false(over(&t, 2, early));
    rle_comm_group_free(g[1]);
    assert_int_equal(rle_comm_group_new(t.comm[1], last, 2, "pair", &t.group[1]), RLE_OK);
    w[0] = NULL;
    w[1] = begin_with(&t, 1, &barrier, NULL);
    w[2] = early;
    wait_works(&t, w);
    for (int r = 1; r < 3; r++) {
        assert_int_equal(rle_comm_finish(w[r], NULL), RLE_OK);
        rle_comm_work_free(w[r]);
    }
    assert_nothing_left(&t);
    free_team(&t);
}

/* w0 means a group of two, w1 and w2 one of three: without a name these are two groups.
 */
static void make_at_odds(team *t)
{
    for (int r = 0; r < 3; r++)
        assert_int_equal(
            rle_comm_group_new(t->comm[r], names, r ? 3 : 2, "#1", &t->group[r]), RLE_OK);
}

/* All wait, and after a while know why. */
static void learn_the_odds(team *t)
{
    turns(t, 20);
    assert_false(logged("has not made the group"));
    clock_ahead += 6 * RLE_SECONDS;
    for (int i = 0; i < 2000 && test_log_count < 3; i++) {
        turn_all(t);
        usleep(500);
    }
    assert_true(logged("a collective waits: worker \"w1\" has not made the group of 2 "
                       "workers (w0, w1) but one of 3 (w0, w1, w2); give the same names "
                       "everywhere"));
    assert_true(logged("a collective waits: worker \"w0\" has not made the group of 3 "
                       "workers (w0, w1, w2) but one of 2 (w0, w1); give the same names "
                       "everywhere"));
    assert_int_equal(test_log_count, 3); /* at each of them, once */
}

/* That a collective has failed waits for a while for who has not made the group. */
static void forget_what_was_told(team *t)
{
    turns(t, 20);
    clock_ahead += 60 * RLE_SECONDS;
    size_t live = 1;
    for (int i = 0; i < 5000 && live; i++) { /* alarms ring by the clock of the system */
        live = 0;
        turn_all(t);
        for (int r = 0; r < t->size; r++) {
            rle_rpc_counters c;
            rle_rpc_count(t->rpc[r], &c);
            live += c.live_futures + c.live_incoming;
        }
        usleep(1000);
    }
    assert_nothing_left(t);
}

static void groups_without_a_name_at_odds(void **state)
{
    (void)state;
    rle_clock clock = {shifted, NULL};
    rle_clock_set(&clock);
    team t = make_team(3);
    rle_tensor *x[RANKS_MAX];
    rle_comm_work *w[RANKS_MAX];
    rle_comm_call call = sum_of("grads");
    for (int r = 0; r < 3; r++) x[r] = filled(RLE_F32, 100, r);
    make_at_odds(&t);
    begin_all(&t, &call, x, w, -1);
    learn_the_odds(&t);
    for (int r = 0; r < 3; r++) assert_false(over(&t, r, w[r]));
    clock_ahead += 20 * RLE_SECONDS;
    wait_works(&t, w);
    assert_failed(
        &t, 0, w[0], RLE_DEADLINE_EXCEEDED,
        "allreduce \"grads\" not finished after 20 s: worker \"w1\" has not made "
        "the group of 2 workers (w0, w1) but one of 3 (w0, w1, w2)",
        x[0]);
    for (int r = 1; r < 3; r++)
        assert_failed(
            &t, r, w[r], RLE_DEADLINE_EXCEEDED,
            "allreduce \"grads\" not finished after 20 s: worker \"w0\" has not made "
            "the group of 3 workers (w0, w1, w2) but one of 2 (w0, w1)",
            x[r]);
    forget_what_was_told(&t);
    release_all(&t, x);
    free_team(&t);
    rle_clock_set(NULL);
}

/* It was no mistake: w0 makes the other one, too, only later. */
static void groups_that_only_seemed_at_odds(void **state)
{
    (void)state;
    rle_clock clock = {shifted, NULL};
    rle_clock_set(&clock);
    team t = make_team(3);
    rle_tensor *x[RANKS_MAX];
    rle_comm_work *w[RANKS_MAX];
    rle_comm_call call = sum_of("grads");
    call.timeout = 1000 * RLE_SECONDS;
    for (int r = 0; r < 3; r++) x[r] = filled(RLE_F32, 100, r);
    make_at_odds(&t);
    rle_comm_group *two = t.group[0];
    begin_all(&t, &call, x, w, -1);
    learn_the_odds(&t);
    rle_comm_work *of_two = w[0];
    assert_int_equal(rle_comm_group_new(t.comm[0], names, 3, "#1", &t.group[0]), RLE_OK);
    rle_tensor *y = filled(RLE_F32, 100, 0);
    w[0] = begin_with(&t, 0, &call, &y);
    wait_works(&t, w);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(rle_comm_finish(w[r], NULL), RLE_OK);
        rle_comm_work_free(w[r]);
    }
    assert_true(value(y, 7) == value(x[1], 7) && value(y, 7) == value(x[2], 7));
    /* A rank that is silent now is one that is silent. */
    call.timeout = 20 * RLE_SECONDS;
    begin_all(&t, &call, x, w, 0);
    clock_ahead += 30 * RLE_SECONDS;
    wait_works(&t, w);
    for (int r = 1; r < 3; r++) {
        assert_int_equal(rle_comm_finish(w[r], NULL), RLE_DEADLINE_EXCEEDED);
        assert_non_null(strstr(rle_message(), "(rank 0 silent?)"));
        rle_comm_work_free(w[r]);
    }
    rle_comm_group_free(two);
    assert_int_equal(rle_comm_finish(of_two, NULL), RLE_CANCELLED);
    rle_comm_work_free(of_two);
    forget_what_was_told(&t);
    rle_tensor_release(y);
    release_all(&t, x);
    free_team(&t);
    rle_clock_set(NULL);
}

/* Groups of ever new workers: those of one that was closed are forgotten. */
static void closed_groups_leave_no_workers(void **state)
{
    (void)state;
    enum { WARM = RLE_PEERS_REMEMBERED, ROUNDS = 3 * RLE_PEERS_REMEMBERED };
    team t = make_team(1);
    size_t warm = 0;
    for (int i = 0; i < ROUNDS; i++) {
        char new[2][32];
        const char *of[] = {"w0", new[0], new[1]};
        rle_comm_group *g = NULL;
        for (int k = 0; k < 2; k++) snprintf(new[k], sizeof new[k], "new_%d_%d", i, k);
        assert_int_equal(rle_comm_group_new(t.comm[0], of, 3, "test", &g),
                         RLE_ALREADY_EXISTS); /* also of one that could not be made */
        assert_int_equal(rle_comm_group_new(t.comm[0], of, 3, "more", &g), RLE_OK);
        turn_all(&t);
        rle_comm_group_free(g);
        if (i == WARM) warm = rle_mem_bytes();
    }
    turns(&t, 20);
    assert_true(t.rpc[0]->peer_count <= RLE_PEERS_REMEMBERED + 2);
    assert_true(rle_mem_bytes() < warm + (16 << 10));
    free_team(&t);
}

/* As long as a group is there, so are its workers, however many come and go. */
static void a_group_keeps_its_workers(void **state)
{
    (void)state;
    enum { OTHERS = 2 * RLE_PEERS_REMEMBERED };
    static const char *const of[] = {"w0", "absent"};
    team t = make_team(1);
    rle_comm_group *g = NULL, *other = NULL;
    assert_int_equal(rle_comm_group_new(t.comm[0], of, 2, "kept", &g), RLE_OK);
    rle_peer *absent = rle_rpc_peer(t.rpc[0], "absent");
    for (int i = 0; i < OTHERS; i++) {
        char name[32];
        const char *two[] = {"w0", name};
        snprintf(name, sizeof name, "new_%d", i);
        assert_int_equal(rle_comm_group_new(t.comm[0], two, 2, "more", &other), RLE_OK);
        rle_comm_group_free(other);
        turn_all(&t);
    }
    assert_ptr_equal(rle_rpc_peer(t.rpc[0], "absent"), absent);
    assert_int_equal(absent->uses, 1);
    rle_comm_group_free(g);
    assert_int_equal(absent->uses, 0);
    free_team(&t);
}

/* They have made it before they are connected: it is said then. */
static void told_when_they_meet(void **state)
{
    (void)state;
    team t = {.size = 2};
    char address[160];
    for (int i = 0; i < 2; i++) {
        t.rpc[i] = worker(names[i], NULL);
        snprintf(address, sizeof address, "unix:%s/%d.sock", test_folder, i);
        assert_int_equal(rle_rpc_listen(t.rpc[i], address, NULL), RLE_OK);
        assert_int_equal(rle_comm_open(t.rpc[i], &t.comm[i]), RLE_OK);
        assert_int_equal(
            rle_comm_group_new(t.comm[i], i ? turned : names, 2, "odd", &t.group[i]),
            RLE_OK);
    }
    rle_tensor *x[RANKS_MAX] = {filled(RLE_F32, 10, 0), filled(RLE_F32, 10, 1)};
    rle_comm_call call = sum_of("grads");
    rle_comm_work *w[RANKS_MAX];
    begin_all(&t, &call, x, w, -1);
    link_to(t.rpc[1], t.rpc[0]);
    wait_works(&t, w);
    for (int r = 0; r < 2; r++)
        assert_failed(&t, r, w[r], RLE_INVALID_ARGUMENT, "are both rank 0; give", x[r]);
    assert_nothing_left(&t);
    release_all(&t, x);
    free_team(&t);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, pair_setup, pair_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_rank_that_has_closed_it),
        TEST(closed_before_it_is_made),
        TEST(calls_of_a_life_that_is_over),
        TEST(two_of_one_rank),
        TEST(two_sizes),
        TEST(two_orders),
        TEST(one_name_for_several),
        TEST(groups_without_a_name_at_odds),
        TEST(groups_that_only_seemed_at_odds),
        TEST(closed_groups_leave_no_workers),
        TEST(a_group_keeps_its_workers),
        TEST(told_when_they_meet),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
