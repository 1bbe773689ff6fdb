/* test_comm_limits.c - collectives of members that do not agree who they are, that are
 * too many at once, and for which there is no memory. */
#include "base/fault.h"
#include "comm_team.h"

/* A third one waits for neither of the two that do not agree. */
static void another_order_is_told(void **state)
{
    (void)state;
    team t = make_team(3);
    const char *turned[] = {"w0", "w2", "w1"};
    for (int r = 0; r < 3; r++)
        assert_int_equal(rle_comm_group_new(t.comm[r], r == 2 ? turned : names, 3,
                                            "order", &t.group[r]),
                         RLE_OK);
    rle_tensor *x[RANKS_MAX];
    rle_comm_work *w[RANKS_MAX] = {0};
    rle_comm_call call = sum_of("grads");
    for (int r = 2; r >= 0; r--) {
        x[r] = filled(RLE_F32, 100, r);
        w[r] = begin_with(&t, r, &call, &x[r]);
        for (int i = 0; i < 20; i++) turn_all(&t);
    }
    int64_t since = rle_now();
    wait_works(&t, w);
    assert_true(rle_now() - since < 10 * RLE_SECONDS);
    for (int r = 0; r < 3; r++)
        assert_failed(&t, r, w[r], RLE_INVALID_ARGUMENT,
                      "; give the same names in the same order everywhere", x[r]);
    assert_nothing_left(&t);
    for (int r = 0; r < 3; r++) rle_tensor_release(x[r]);
    free_team(&t);
}

/* A rank that is far ahead is told so by itself; nothing is lost by it. */
static void too_many_at_once(void **state)
{
    (void)state;
    enum { MOST = 1024 };
    static rle_comm_work *w[2][MOST];
    team t = make_team(2);
    rle_tensor *x[RANKS_MAX] = {filled(RLE_F32, 2, 0), filled(RLE_F32, 2, 1)};
    rle_comm_call call = {.kind = RLE_COMM_BARRIER};
    for (int i = 0; i < MOST; i++) w[1][i] = begin_with(&t, 1, &call, NULL);
    rle_comm_work *more = NULL;
    call.timeout = 20 * RLE_SECONDS;
    assert_int_equal(rle_comm_begin(t.group[1], &call, &more), RLE_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(rle_message(), "barrier number 1025: 1024 collectives of the "
                                          "group are not finished; wait for some"));
    for (int i = 0; i < MOST; i++) w[0][i] = begin_with(&t, 0, &call, NULL);
    for (int r = 0; r < 2; r++)
        for (int i = 0; i < MOST; i++) {
            rle_comm_work *both[RANKS_MAX] = {w[r][i]};
            if (r) both[1] = both[0], both[0] = NULL;
            wait_works(&t, both);
            assert_int_equal(rle_comm_finish(w[r][i], NULL), RLE_OK);
            rle_comm_work_free(w[r][i]);
        }
    assert_nothing_left(&t);
    run(&t, &(rle_comm_call){.kind = RLE_COMM_ALL_REDUCE, .count = 1}, x, NULL);
    for (int r = 0; r < 2; r++) rle_tensor_release(x[r]);
    free_team(&t);
}

/* Two ranks begin a good deal of a group that the third one makes later. */
static void many_early_ones(void **state)
{
    (void)state;
    enum { MANY = 600 };
    static rle_comm_work *w[3][MANY];
    team t = make_team(3);
    rle_comm_call call = {.kind = RLE_COMM_BARRIER};
    for (int r = 2; r >= 0; r--) {
        t.group[r] = join(&t, r, "late");
        for (int i = 0; i < MANY; i++) w[r][i] = begin_with(&t, r, &call, NULL);
        for (int i = 0; i < 100; i++) turn_all(&t);
    }
    for (int i = 0; i < MANY; i++) {
        rle_comm_work *all[RANKS_MAX] = {w[0][i], w[1][i], w[2][i]};
        wait_works(&t, all);
        for (int r = 0; r < 3; r++) {
            if (rle_comm_finish(all[r], NULL) != RLE_OK) fail_msg("%s", rle_message());
            rle_comm_work_free(all[r]);
        }
    }
    assert_nothing_left(&t);
    free_team(&t);
}

/* The n-th block of memory is not there: a collective is not begun, or it works all the
 * same, or fails at once at every rank. */
static bool without_block(uint64_t nth, int64_t n)
{
    team t = make_team(3);
    rle_tensor *x[RANKS_MAX];
    rle_comm_work *w[RANKS_MAX] = {0};
    rle_comm_call call = sum_of("grads");
    call.timeout = 60 * RLE_SECONDS; /* nobody waits for that */
    for (int r = 0; r < 3; r++) x[r] = filled(RLE_F32, n, r);
    rle_fault_order(RLE_FAULT_ALLOC, nth, false);
    int begun = 0;
    for (int r = 2; r >= 0; r--) {
        rle_comm_call own = call;
        own.tensors = &x[r];
        rle_status s = rle_comm_begin(t.group[r], &own, &w[r]);
        begun += s == RLE_OK;
        if (s != RLE_OK) assert_int_equal(s, RLE_RESOURCE_EXHAUSTED);
        for (int i = 0; i < 20; i++) turn_all(&t);
    }
    if (begun == 3) wait_works(&t, w);
    bool hit = rle_fault_left(RLE_FAULT_ALLOC) == 0;
    rle_fault_order(RLE_FAULT_ALLOC, 0, false);
    for (int r = 0; r < 3; r++) {
        if (!w[r]) continue;
        rle_status s = begun == 3 ? rle_comm_finish(w[r], NULL) : RLE_OK;
        if (s != RLE_OK && s != RLE_UNAVAILABLE)
            assert_int_equal(s, RLE_RESOURCE_EXHAUSTED);
        rle_comm_work_free(w[r]);
    }
    if (begun == 3) assert_nothing_left(&t);
    for (int r = 0; r < 3; r++) rle_tensor_release(x[r]);
    free_team(&t);
    return hit;
}

static void without_memory(void **state)
{
    (void)state;
    for (int64_t n = 100; n <= 100000; n *= 1000)
        for (uint64_t nth = 1; without_block(nth, n); nth++) continue;
}

/* A rank that takes short messages only: it fails everywhere, and nobody is lost. */
static void results_over_the_limit(void **state)
{
    (void)state;
    team t = make_team_with(3, &(rle_rpc_options){.max_message = 64 << 10});
    static const rle_comm_kind kinds[] = {RLE_COMM_BROADCAST, RLE_COMM_ALL_GATHER,
                                          RLE_COMM_ALL_REDUCE};
    rle_tensor *x[RANKS_MAX];
    for (int r = 0; r < 3; r++) x[r] = filled(RLE_F32, 100000, r);
    for (int k = 0; k < 3; k++) {
        rle_comm_work *w[RANKS_MAX] = {0};
        rle_comm_call call = {.kind = kinds[k], .count = 1, .name = "weights"};
        for (int r = 0; r < 3; r++) w[r] = begin_with(&t, r, &call, &x[r]);
        wait_works(&t, w);
        for (int r = 0; r < 3; r++)
            assert_failed(&t, r, w[r], RLE_RESOURCE_EXHAUSTED, "(max_message)", x[r]);
        assert_nothing_left(&t);
    }
    assert_false(logged("closed") || logged("lost"));
    for (int r = 0; r < 3; r++) rle_tensor_release(x[r]);
    run(&t, &(rle_comm_call){.kind = RLE_COMM_BARRIER}, x, NULL);
    free_team(&t);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, pair_setup, pair_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(another_order_is_told),
        TEST(too_many_at_once),
        TEST(many_early_ones),
        TEST(without_memory),
        TEST(results_over_the_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
