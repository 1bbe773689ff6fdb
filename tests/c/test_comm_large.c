/* test_comm_large.c - collectives of large tensors, which are sent from where they are:
 * the memory they have afterwards, and that nobody sees what their owner writes into them
 * when it does not wait for the result any more. */
#include "comm_team.h"

enum { N = 1500000 };

static void spoil(rle_tensor *t)
{
    memset(t->a.data, 0x55, (size_t)rle_tensor_numel(t) * rle_dtype_size(t->a.dtype));
}

static void assert_sum(team *t, const rle_tensor *x)
{
    rle_tensor *was[RANKS_MAX];
    for (int r = 0; r < t->size; r++) was[r] = filled(RLE_F32, N, r);
    for (int64_t i = 0; i < N; i++) {
        float want = ((float *)was[0]->a.data)[i];
        for (int r = 1; r < t->size; r++) want += ((float *)was[r]->a.data)[i];
        if (((float *)x->a.data)[i] != want) fail_msg("element %d", (int)i);
    }
    for (int r = 0; r < t->size; r++) rle_tensor_release(was[r]);
}

/* The result's block becomes the tensor's memory; not when somebody knows where it was.
 */
static void the_memory_of_the_result(void **state)
{
    (void)state;
    for (int size = 2; size <= 3; size++) {
        team t = make_team(size);
        rle_memory_stats before, after;
        rle_tensor *x[RANKS_MAX], *view;
        void *was[RANKS_MAX];
        for (int r = 0; r < size; r++) {
            x[r] = filled(RLE_F32, N, r);
            was[r] = x[r]->a.data;
        }
        assert_int_equal(rle_tensor_view(x[0], &x[0]->a, &view), RLE_OK);
        if (size == 3) x[1]->storage->pointed = true;
        uint32_t version[2] = {x[0]->storage->version, x[size - 1]->storage->version};
        rle_device_memory(rle_device_cpu(), &before);
        rle_comm_call call = sum_of("grads");
        run(&t, &call, x, NULL);
        rle_device_memory(rle_device_cpu(), &after);
        assert_int_equal(after.allocated, before.allocated);
        for (int r = 0; r < size; r++) assert_sum(&t, x[r]);
        assert_ptr_equal(x[0]->a.data, was[0]);
        assert_ptr_equal(view->a.data, was[0]);
        if (size == 3) assert_ptr_equal(x[1]->a.data, was[1]);
        assert_ptr_not_equal(x[size - 1]->a.data, was[size - 1]);
        assert_true(x[0]->storage->version > version[0]);
        assert_true(x[size - 1]->storage->version > version[1]);
        rle_tensor_release(view);
        for (int r = 0; r < size; r++) rle_tensor_release(x[r]);
        free_team(&t);
    }
}

/* Rank 1 gives its work up, however much of it is out, and uses its tensor for something
 * else: the others have the sum of what it was. */
static void one_that_is_let_go_of(void **state)
{
    (void)state;
    for (int size = 2; size <= 3; size++)
        for (int turns = 0; turns < 60; turns += 7) {
            team t = make_team(size);
            rle_tensor *x[RANKS_MAX];
            rle_comm_work *w[RANKS_MAX] = {0};
            rle_comm_call call = sum_of("grads");
            for (int r = 0; r < size; r++) x[r] = filled(RLE_F32, N, r);
            w[1] = begin_with(&t, 1, &call, &x[1]);
            if (turns % 2)
                for (int r = 0; r < size; r++)
                    if (r != 1) w[r] = begin_with(&t, r, &call, &x[r]);
            for (int i = 0; i < turns; i++) turn_all(&t);
            rle_comm_work_free(w[1]);
            w[1] = NULL;
            rle_tensor *same = filled(RLE_F32, N, 1);
            assert_memory_equal(x[1]->a.data, same->a.data, N * sizeof(float));
            spoil(x[1]);
            for (int r = 0; r < size; r++)
                if (r != 1 && !w[r]) w[r] = begin_with(&t, r, &call, &x[r]);
            wait_works(&t, w);
            for (int r = 0; r < size; r++) {
                if (r == 1) continue;
                assert_int_equal(rle_comm_finish(w[r], NULL), RLE_OK);
                rle_comm_work_free(w[r]);
                assert_sum(&t, x[r]);
            }
            memset(same->a.data, 0x55, N * sizeof(float));
            assert_memory_equal(x[1]->a.data, same->a.data, N * sizeof(float));
            rle_tensor_release(same);
            for (int i = 0; i < 1000 && rle_comm_works(t.comm[1]); i++) turn_all(&t);
            assert_nothing_left(&t);
            for (int r = 0; r < size; r++) rle_tensor_release(x[r]);
            free_team(&t);
        }
}

/* One that has failed while it was being sent is the caller's again, as it was. */
static void one_that_fails(void **state)
{
    (void)state;
    for (int size = 2; size <= 3; size++) {
        team t = make_team(size);
        rle_tensor *x[RANKS_MAX];
        rle_comm_work *w[RANKS_MAX] = {0};
        rle_comm_call call = sum_of("grads");
        for (int r = 0; r < size; r++) x[r] = filled(RLE_F32, N, r);
        call.timeout = RLE_SECONDS / 10;
        w[1] = begin_with(&t, 1, &call, &x[1]);
        int64_t ends =
            rle_now() + 20 * RLE_SECONDS; /* nobody reads: it stays on its way */
        while (!over(&t, 1, w[1]) && rle_now() < ends) rle_rpc_turn(t.rpc[1], false);
        assert_failed(&t, 1, w[1], RLE_DEADLINE_EXCEEDED, "not finished after 0.1 s",
                      x[1]);
        spoil(x[1]);
        w[1] = NULL;
        for (int i = 0; i < 1000 && rle_comm_works(t.comm[1]); i++) turn_all(&t);
        assert_int_equal(rle_comm_works(t.comm[1]), 0);
        call.timeout = 0;
        for (int r = 0; r < size; r++)
            if (r != 1) w[r] = begin_with(&t, r, &call, &x[r]);
        wait_works(&t, w);
        for (int r = 0; r < size; r++)
            if (r != 1)
                assert_failed(&t, r, w[r], RLE_DEADLINE_EXCEEDED, "not finished", x[r]);
        assert_nothing_left(&t);
        for (int r = 0; r < size; r++) {
            rle_tensor_release(x[r]);
            x[r] = filled(RLE_F32, N, r);
        }
        run(&t, &call, x, NULL);
        for (int r = 0; r < size; r++) assert_sum(&t, x[r]);
        for (int r = 0; r < size; r++) rle_tensor_release(x[r]);
        free_team(&t);
    }
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, pair_setup, pair_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_memory_of_the_result),
        TEST(one_that_is_let_go_of),
        TEST(one_that_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
