/* test_comm.c - collectives of several workers in one process, their loops turned by
 * hand: results against plain loops, calls that differ, members that are lost, time that
 * is over; and that nothing is left of any of it. */
#include "comm_team.h"
#include "figure.h"

/* The same by a plain loop, in the dtype. */
static double plain(rle_comm_op op, rle_dtype dtype, rle_tensor **in, int ranks,
                    int64_t i)
{
    double acc = value(in[0], i);
    for (int r = 1; r < ranks; r++) {
        double v = value(in[r], i);
        double next = op == RLE_COMM_MIN    ? (v < acc ? v : acc)
                      : op == RLE_COMM_MAX  ? (v > acc ? v : acc)
                      : op == RLE_COMM_PROD ? acc * v
                                            : acc + v;
        acc = dtype == RLE_F32  ? (float)next
              : dtype == RLE_U8 ? (uint8_t)(int)next
                                : next;
    }
    if (op == RLE_COMM_MEAN)
        acc = dtype == RLE_F32 ? (float)acc / (float)ranks : acc / ranks;
    return acc;
}

static void check_all_reduce(team *t, rle_comm_op op, rle_dtype dtype, int64_t n)
{
    rle_tensor *in[RANKS_MAX], *copy[RANKS_MAX];
    for (int r = 0; r < t->size; r++) {
        in[r] = filled(dtype, n, r);
        copy[r] = filled(dtype, n, r);
    }
    run(t,
        &(rle_comm_call){.kind = RLE_COMM_ALL_REDUCE, .op = op, .count = 1, .name = "x"},
        in, NULL);
    for (int64_t i = 0; i < n; i++) {
        double want = plain(op, dtype, copy, t->size, i);
        for (int r = 0; r < t->size; r++)
            if (value(in[r], i) != want)
                fail_msg("%s of %s, rank %d, element %d: %.9g, not %.9g",
                         rle_comm_op_name(op), rle_dtype_name(dtype), r, (int)i,
                         value(in[r], i), want);
    }
    for (int r = 0; r < t->size; r++) {
        rle_tensor_release(in[r]);
        rle_tensor_release(copy[r]);
    }
}

static void all_reduce_is_a_plain_loop(void **state)
{
    (void)state;
    for (int size = 1; size <= RANKS_MAX; size++) {
        team t = make_team(size);
        for (int op = 0; op <= RLE_COMM_PROD; op++)
            for (int dtype = RLE_F32; dtype <= RLE_U8; dtype++) {
                if (op == RLE_COMM_MEAN && dtype > RLE_F64) continue;
                if (op == RLE_COMM_PROD && dtype == RLE_I64) continue; /* wraps */
                check_all_reduce(&t, (rle_comm_op)op, (rle_dtype)dtype, 1);
                check_all_reduce(&t, (rle_comm_op)op, (rle_dtype)dtype, 1000);
            }
        check_all_reduce(&t, RLE_COMM_SUM, RLE_F32, 0);
        check_all_reduce(&t, RLE_COMM_SUM, RLE_F32, 16385);    /* just long */
        check_all_reduce(&t, RLE_COMM_MEAN, RLE_F32, 1 << 20); /* parts of a megabyte */
        check_all_reduce(&t, RLE_COMM_MAX, RLE_F64, 1234567);
        free_team(&t);
    }
}

static void the_others(void **state)
{
    (void)state;
    team t = make_team(3);
    const int64_t sizes[] = {0, 5, 40000, 1 << 19};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        int64_t n = sizes[k];
        rle_tensor *in[RANKS_MAX], *was[RANKS_MAX], *all[RANKS_MAX];
        for (int r = 0; r < 3; r++) {
            in[r] = filled(RLE_F32, n, r);
            was[r] = filled(RLE_F32, n, r);
        }
        run(&t,
            &(rle_comm_call){
                .kind = RLE_COMM_REDUCE, .op = RLE_COMM_SUM, .root = 2, .count = 1},
            in, NULL);
        for (int64_t i = 0; i < n; i++) {
            assert_true(value(in[2], i) == plain(RLE_COMM_SUM, RLE_F32, was, 3, i));
            assert_true(value(in[0], i) == value(was[0], i));
            assert_true(value(in[1], i) == value(was[1], i));
        }
        run(&t, &(rle_comm_call){.kind = RLE_COMM_ALL_GATHER, .count = 1}, was, all);
        for (int r = 0; r < 3; r++) {
            assert_int_equal(all[r]->a.ndim, 2);
            assert_int_equal(all[r]->a.shape[0], 3);
            assert_int_equal(all[r]->a.shape[1], n);
            for (int64_t i = 0; i < 3 * n; i++)
                assert_true(value(all[r], i) == value(was[i / n], i % n));
        }
        run(&t, &(rle_comm_call){.kind = RLE_COMM_BROADCAST, .root = 1, .count = 1}, was,
            NULL);
        for (int r = 0; r < 3; r++) {
            rle_tensor *from = filled(RLE_F32, n, 1);
            for (int64_t i = 0; i < n; i++)
                assert_true(value(was[r], i) == value(from, i));
            rle_tensor_release(from);
            rle_tensor_release(in[r]);
            rle_tensor_release(was[r]);
            rle_tensor_release(all[r]);
        }
    }
    rle_tensor *none[RANKS_MAX] = {0};
    run(&t, &(rle_comm_call){.kind = RLE_COMM_BARRIER}, none, NULL);
    free_team(&t);
}

/* ---- failures ---- */

static void calls_that_differ(void **state)
{
    (void)state;
    /* Of the two that differ whoever came first, and the first one that differed from it.
     */
    static const char *const words[] = {
        "rank 0 (worker \"w0\") calls allreduce \"grads\" sum of f32[100], rank 1 "
        "(worker \"w1\") "
        "calls allreduce \"weights\" sum of f32[100]",
        "rank 1 (worker \"w1\") calls allreduce \"weights\" sum of f32[100], rank 2 "
        "(worker "
        "\"w2\") calls allreduce \"grads\" sum of f32[100]",
        "collective 1 of the group is not the same everywhere: rank "};
    for (int first = 0; first < 3; first++)
        for (int64_t n = 100; n <= 100000; n *= 1000) {
            team t = make_team(3);
            rle_tensor *x[RANKS_MAX];
            rle_comm_work *w[RANKS_MAX] = {0};
            for (int r = 0; r < 3; r++) x[r] = filled(RLE_F32, n, r);
            for (int k = 0; k < 3; k++) {
                int r = (first + k) % 3;
                rle_comm_call call = sum_of(r == 1 ? "weights" : "grads");
                w[r] = begin_with(&t, r, &call, &x[r]);
                for (int i = 0; i < 20; i++) turn_all(&t);
            }
            wait_works(&t, w);
            for (int r = 0; r < 3; r++)
                assert_failed(&t, r, w[r], RLE_INVALID_ARGUMENT,
                              words[n == 100 && first < 2 ? first : 2], x[r]);
            assert_nothing_left(&t);
            run(&t, &(rle_comm_call){.kind = RLE_COMM_ALL_REDUCE, .count = 1}, x, NULL);
            for (int r = 0; r < 3; r++) rle_tensor_release(x[r]);
            free_team(&t);
        }
}

static void who_is_silent_is_named(void **state)
{
    (void)state;
    for (int64_t n = 100; n <= 100000; n *= 1000) {
        team t = make_team(3);
        rle_tensor *x[RANKS_MAX];
        rle_comm_work *w[RANKS_MAX] = {0};
        for (int r = 0; r < 3; r++) x[r] = filled(RLE_F32, n, r);
        rle_comm_call call = sum_of("grads");
        call.timeout = RLE_SECONDS / 5;
        w[0] = begin_with(&t, 0, &call, &x[0]);
        w[2] = begin_with(&t, 2, &call, &x[2]);
        int64_t since = rle_now();
        wait_works(&t, w);
        assert_true(rle_now() - since >= RLE_SECONDS / 5);
        const char *words =
            "allreduce \"grads\" not finished after 0.2 s (rank 1 silent?)";
        assert_failed(&t, 0, w[0], RLE_DEADLINE_EXCEEDED, words, x[0]);
        assert_failed(&t, 2, w[2], RLE_DEADLINE_EXCEEDED, words, x[2]);
        /* Who comes to it later is told at once. */
        w[1] = begin_with(&t, 1, &call, &x[1]);
        assert_failed(&t, 1, w[1], RLE_DEADLINE_EXCEEDED, words, x[1]);
        assert_nothing_left(&t);
        call.timeout = 0;
        run(&t, &call, x, NULL);
        for (int r = 0; r < 3; r++) rle_tensor_release(x[r]);
        free_team(&t);
    }
}

static void a_lost_member(void **state)
{
    (void)state;
    for (int lost = 0; lost < 3; lost++)
        for (int when = 0; when < 3; when++)
            for (int64_t n = 100; n <= 2000000; n *= 20000) {
                team t = make_team(3);
                rle_tensor *x[RANKS_MAX];
                rle_comm_work *w[RANKS_MAX] = {0};
                for (int r = 0; r < 3; r++) x[r] = filled(RLE_F32, n, r);
                rle_comm_call call = sum_of("grads");
                int other = (lost + 1) % 3, last = (lost + 2) % 3;
                w[other] = begin_with(&t, other, &call, &x[other]);
                if (when == 1) {
                    w[lost] = begin_with(&t, lost, &call, &x[lost]);
                    for (int i = 0; i < 3; i++) turn_all(&t);
                }
                if (when == 2) w[last] = begin_with(&t, last, &call, &x[last]);
                turn_all(&t);
                w[lost] = NULL;
                rle_rpc_free(t.rpc[lost]);
                t.rpc[lost] = NULL;
                for (int i = 0; i < 20; i++) turn_all(&t);
                if (!w[last]) w[last] = begin_with(&t, last, &call, &x[last]);
                wait_works(&t, w);
                char words[128];
                snprintf(words, sizeof words,
                         "allreduce \"grads\": rank %d (worker \"w%d\") was lost", lost,
                         lost);
                assert_failed(&t, other, w[other], RLE_UNAVAILABLE, words, x[other]);
                assert_failed(&t, last, w[last], RLE_UNAVAILABLE, words, x[last]);
                assert_nothing_left(&t);
                for (int r = 0; r < 3; r++) rle_tensor_release(x[r]);
                free_team(&t);
            }
}

/* A rank may be ahead, and may make its group first. */
static void early_calls_wait(void **state)
{
    (void)state;
    team t = make_team(2);
    rle_tensor *x[2][RANKS_MAX];
    rle_comm_work *w[2][RANKS_MAX] = {{0}};
    rle_comm_call call = sum_of("grads");
    t.group[1] = join(&t, 1, "later");
    for (int k = 0; k < 2; k++)
        for (int r = 0; r < 2; r++) x[k][r] = filled(RLE_F32, 1000, r);
    for (int k = 0; k < 2; k++) w[k][1] = begin_with(&t, 1, &call, &x[k][1]);
    for (int i = 0; i < 50; i++) turn_all(&t);
    assert_false(over(&t, 1, w[0][1]));
    t.group[0] = join(&t, 0, "later");
    for (int k = 0; k < 2; k++) w[k][0] = begin_with(&t, 0, &call, &x[k][0]);
    for (int k = 0; k < 2; k++) {
        wait_works(&t, w[k]);
        for (int r = 0; r < 2; r++) {
            assert_int_equal(rle_comm_finish(w[k][r], NULL), RLE_OK);
            rle_comm_work_free(w[k][r]);
            rle_tensor_release(x[k][r]);
        }
    }
    assert_nothing_left(&t);
    free_team(&t);
}

/* What failed before this rank made its group is known as soon as it comes to it. */
static void early_failures_wait(void **state)
{
    (void)state;
    team t = make_team(3);
    rle_tensor *x[RANKS_MAX];
    rle_comm_work *w[RANKS_MAX] = {0};
    rle_comm_call call = sum_of("grads");
    call.timeout = RLE_SECONDS / 10;
    for (int r = 0; r < 3; r++) x[r] = filled(RLE_F32, 1000, r);
    for (int r = 1; r < 3; r++) t.group[r] = join(&t, r, "later");
    for (int r = 1; r < 3; r++) w[r] = begin_with(&t, r, &call, &x[r]);
    wait_works(&t, w);
    const char *words = "allreduce \"grads\" not finished after 0.1 s (rank 0 silent?)";
    for (int r = 1; r < 3; r++)
        assert_failed(&t, r, w[r], RLE_DEADLINE_EXCEEDED, words, x[r]);
    for (int i = 0; i < 20; i++) turn_all(&t);
    t.group[0] = join(&t, 0, "later");
    w[1] = w[2] = NULL;
    call.timeout = 0;
    w[0] = begin_with(&t, 0, &call, &x[0]);
    wait_works(&t, w);
    assert_failed(&t, 0, w[0], RLE_DEADLINE_EXCEEDED, words, x[0]);
    assert_nothing_left(&t);
    run(&t, &call, x, NULL);
    for (int r = 0; r < 3; r++) rle_tensor_release(x[r]);
    free_team(&t);
}

static void one_that_is_let_go_of_goes_on(void **state)
{
    (void)state;
    team t = make_team(2);
    rle_tensor *x[RANKS_MAX];
    rle_comm_work *w[RANKS_MAX] = {0};
    rle_comm_call call = sum_of("grads");
    for (int r = 0; r < 2; r++) x[r] = filled(RLE_F32, 300000, r);
    w[1] = begin_with(&t, 1, &call, &x[1]);
    rle_comm_work_free(w[1]);
    assert_int_equal(rle_comm_works(t.comm[1]), 1);
    w[1] = NULL;
    w[0] = begin_with(&t, 0, &call, &x[0]);
    wait_works(&t, w);
    assert_int_equal(rle_comm_finish(w[0], NULL), RLE_OK);
    rle_comm_work_free(w[0]);
    assert_nothing_left(&t);
    rle_tensor *was = filled(RLE_F32, 300000, 1);
    for (int64_t i = 0; i < 300000; i++) assert_true(value(x[1], i) == value(was, i));
    rle_tensor_release(was);
    for (int r = 0; r < 2; r++) rle_tensor_release(x[r]);
    free_team(&t);
}

static void a_closed_group_is_told(void **state)
{
    (void)state;
    team t = make_team(3);
    rle_tensor *x[RANKS_MAX];
    rle_comm_work *w[RANKS_MAX] = {0};
    rle_comm_call call = sum_of("grads");
    for (int r = 0; r < 3; r++) x[r] = filled(RLE_F32, 1000, r);
    for (int r = 0; r < 2; r++) w[r] = begin_with(&t, r, &call, &x[r]);
    rle_comm_group_free(t.group[1]);
    wait_works(&t, w);
    for (int r = 0; r < 2; r++)
        assert_failed(&t, r, w[r], RLE_CANCELLED,
                      "allreduce \"grads\": rank 1 (worker \"w1\") has closed the group",
                      x[r]);
    assert_nothing_left(&t);
    for (int r = 0; r < 3; r++) rle_tensor_release(x[r]);
    free_team(&t);
}

static void what_it_does_not_take(void **state)
{
    (void)state;
    team t = make_team(2);
    rle_comm_work *w = NULL;
    rle_tensor *list[2] = {filled(RLE_F32, 4, 0), filled(RLE_I64, 4, 0)};
    rle_comm_call call = {
        .kind = RLE_COMM_ALL_REDUCE, .tensors = list, .count = 2, .timeout = 1};
    assert_int_equal(rle_comm_begin(t.group[0], &call, &w), RLE_INVALID_ARGUMENT);
    assert_non_null(strstr(rle_message(), "tensor 2 is i64 and tensor 1 f32"));
    call.count = 0;
    assert_int_equal(rle_comm_begin(t.group[0], &call, &w), RLE_INVALID_ARGUMENT);
    call = (rle_comm_call){.kind = RLE_COMM_ALL_REDUCE,
                           .op = RLE_COMM_MEAN,
                           .tensors = list + 1,
                           .count = 1,
                           .timeout = 1};
    assert_int_equal(rle_comm_begin(t.group[0], &call, &w), RLE_INVALID_ARGUMENT);
    assert_non_null(strstr(rle_message(), "there is no mean of i64; take the sum"));
    call = (rle_comm_call){
        .kind = RLE_COMM_BROADCAST, .root = 2, .tensors = list, .count = 1, .timeout = 1};
    assert_int_equal(rle_comm_begin(t.group[0], &call, &w), RLE_INVALID_ARGUMENT);
    assert_non_null(strstr(rle_message(), "no rank 2 in a group of 2"));
    list[0]->requires_grad = true;
    call = (rle_comm_call){.kind = RLE_COMM_ALL_REDUCE,
                           .tensors = list,
                           .count = 1,
                           .timeout = 1,
                           .grad_enabled = true};
    assert_int_equal(rle_comm_begin(t.group[0], &call, &w), RLE_FAILED_PRECONDITION);
    assert_non_null(strstr(rle_message(), "tensor 1 records gradients"));
    rle_comm_group *g;
    const char *twice[] = {"w0", "w0"}, *strangers[] = {"w1", "w2"};
    assert_int_equal(rle_comm_group_new(t.comm[0], twice, 2, "", &g),
                     RLE_INVALID_ARGUMENT);
    assert_int_equal(rle_comm_group_new(t.comm[0], strangers, 2, "", &g),
                     RLE_INVALID_ARGUMENT);
    assert_int_equal(rle_comm_group_new(t.comm[0], names, 2, "test", &g),
                     RLE_ALREADY_EXISTS);
    for (int i = 0; i < 2; i++) rle_tensor_release(list[i]);
    assert_nothing_left(&t);
    free_team(&t);
}

/* Names in another order are another group's: said at once, to both. */
static void another_order(void **state)
{
    (void)state;
    team t = make_team(2);
    const char *turned[] = {"w1", "w0"};
    rle_comm_group *g;
    assert_int_equal(rle_comm_group_new(t.comm[0], names, 2, "order", &t.group[0]),
                     RLE_OK);
    assert_int_equal(rle_comm_group_new(t.comm[1], turned, 2, "order", &g), RLE_OK);
    t.group[1] = g;
    rle_tensor *x[RANKS_MAX];
    rle_comm_work *w[RANKS_MAX] = {0};
    rle_comm_call call = sum_of("grads");
    for (int r = 0; r < 2; r++) {
        x[r] = filled(RLE_F32, 100000, r);
        w[r] = begin_with(&t, r, &call, &x[r]);
    }
    wait_works(&t, w);
    for (int r = 0; r < 2; r++)
        assert_failed(
            &t, r, w[r], RLE_INVALID_ARGUMENT,
            "group \"order\": worker \"w0\", for which it is w0, w1, and worker "
            "\"w1\", for which it is w1, w0, are both rank 0; give the same names "
            "in the same order everywhere",
            x[r]);
    for (int r = 0; r < 2; r++) rle_tensor_release(x[r]);
    free_team(&t);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, pair_setup, pair_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(all_reduce_is_a_plain_loop),
        TEST(the_others),
        TEST(calls_that_differ),
        TEST(who_is_silent_is_named),
        TEST(a_lost_member),
        TEST(early_calls_wait),
        TEST(early_failures_wait),
        TEST(one_that_is_let_go_of_goes_on),
        TEST(a_closed_group_is_told),
        TEST(what_it_does_not_take),
        TEST(another_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
