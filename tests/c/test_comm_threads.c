/* test_comm_threads.c - the bytes of collectives move on the guard's thread while their
 * owner computes, begins others, lets go of some and closes the group: for
 * ThreadSanitizer, too, so it is without tensors. */
#include "comm/comm_internal.h"
#include "rpc_pair.h"

enum { ROUNDS = 16, LONG = 700000 };

typedef struct rank {
    rle_rpc *rpc;
    rle_comm *comm;
    rle_comm_group *group;
    rle_comm_task *task;
    int32_t *data, *input, *own;
} rank;

static rank make_rank(const char *name, bool guard)
{
    rle_rpc_options o = {.name = name, .token = &test_token, .no_guard = !guard};
    rank r = {.data = calloc(LONG, sizeof(int32_t)),
              .input = calloc(LONG, sizeof(int32_t)),
              .own = calloc(2 * LONG, sizeof(int32_t))};
    assert_int_equal(rle_rpc_new(&o, &r.rpc), RLE_OK);
    assert_int_equal(rle_comm_open(r.rpc, &r.comm), RLE_OK);
    return r;
}

static void free_rank(rank *r)
{
    rle_rpc_free(r->rpc);
    free(r->data);
    free(r->input);
    free(r->own);
}

static void begin(rank *r, int number, size_t n)
{
    rle_collective c = {.kind = RLE_COMM_ALL_REDUCE,
                        .op = RLE_COMM_SUM,
                        .dtype = RLE_I32,
                        .size = n * sizeof(int32_t),
                        .data = (uint8_t *)r->data,
                        .input = (uint8_t *)r->input,
                        .own = (uint8_t *)r->own,
                        .timeout = 60 * RLE_SECONDS};
    snprintf(c.title, sizeof c.title, "sum %d", number);
    for (size_t i = 0; i < n; i++) r->input[i] = number + (int32_t)(i % 7);
    if (r->group->ops->own_size(r->group, &c) > 2 * LONG * sizeof(int32_t)) fail();
    assert_int_equal(r->group->ops->begin(r->group, &c, &r->task), RLE_OK);
}

static bool is_over(const rank *r)
{
    return r->group->ops->over(r->task);
}

/* While the guard of one moves its bytes, whose owner is away, the other's loop is
 * turned. */
static void wait_for_both(rank *r, bool (*over)(const rank *))
{
    for (int i = 0; i < 40000 && !(over(&r[0]) && over(&r[1])); i++) {
        rle_rpc_turn(r[1].rpc, false);
        usleep(over(&r[1]) ? 500 : 20);
    }
    assert_true(over(&r[0]) && over(&r[1]));
}

static bool is_idle(const rank *r)
{
    return r->group->ops->idle(r->task);
}

static void the_guard_moves_them(void **state)
{
    (void)state;
    static const char *const names[] = {"a", "b"};
    rank r[2] = {make_rank("a", true), make_rank("b", false)};
    assert_int_equal(rle_rpc_listen(r[0].rpc, test_address, NULL), RLE_OK);
    link_to(r[1].rpc, r[0].rpc);
    for (int k = 0; k < 2; k++)
        assert_int_equal(rle_comm_group_new(r[k].comm, names, 2, "test", &r[k].group),
                         RLE_OK);
    for (int number = 1; number <= ROUNDS; number++) {
        size_t n = number % 4 ? (size_t)number * 10 : LONG;
        bool dropped = number % 8 == 0;
        for (int k = 0; k < 2; k++) begin(&r[k], number, n);
        if (dropped) r[0].group->ops->let_go(r[0].task);
        wait_for_both(r, is_over);
        for (size_t i = 0; i < n; i++)
            for (int k = dropped; k < 2; k++)
                if (r[k].data[i] != 2 * (number + (int32_t)(i % 7)))
                    fail_msg("round %d, rank %d, element %d", number, k, (int)i);
        wait_for_both(r, is_idle);
        for (int k = 0; k < 2; k++) {
            assert_int_equal(r[k].group->ops->outcome(r[k].task), RLE_OK);
            r[k].group->ops->free_task(r[k].task);
        }
    }
    /* The owner comes back, and closes what the other is in. */
    begin(&r[1], ROUNDS + 1, LONG);
    r[0].group->ops->free_group(r[0].group);
    for (int i = 0; i < 40000 && !is_over(&r[1]); i++) {
        rle_rpc_turn(r[1].rpc, false);
        usleep(100);
    }
    assert_int_equal(r[1].group->ops->outcome(r[1].task), RLE_CANCELLED);
    for (int i = 0; i < 40000 && !is_idle(&r[1]); i++) rle_rpc_turn(r[1].rpc, false);
    r[1].group->ops->free_task(r[1].task);
    for (int k = 1; k >= 0; k--) free_rank(&r[k]);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, pair_setup, pair_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {TEST(the_guard_moves_them)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
