/* comm_team.h - several workers in one process, with a group of all of them, for the tests
 * of collectives. */
#ifndef RLE_TESTS_COMM_TEAM_H
#define RLE_TESTS_COMM_TEAM_H

#include "comm/comm.h"
#include "rpc_pair.h"

enum { RANKS_MAX = 4 };

static const char *const names[] = {"w0", "w1", "w2", "w3"};

typedef struct team {
    int size;
    rle_rpc *rpc[RANKS_MAX];
    rle_comm *comm[RANKS_MAX];
    rle_comm_group *group[RANKS_MAX];
} team;

static inline void turn_all(team *t)
{
    for (int i = 0; i < t->size; i++)
        if (t->rpc[i]) rle_rpc_turn(t->rpc[i], false);
}

static inline rle_comm_group *join(team *t, int i, const char *tag)
{
    rle_comm_group *g = NULL;
    assert_int_equal(rle_comm_group_new(t->comm[i], names, t->size, tag, &g), RLE_OK);
    assert_int_equal(rle_comm_group_rank(g), i);
    assert_int_equal(rle_comm_group_size(g), t->size);
    return g;
}

/* The last rank with options of its own. */
static inline team make_team_with(int size, const rle_rpc_options *last)
{
    team t = {.size = size};
    for (int i = 0; i < size; i++) {
        char address[160];
        t.rpc[i] = worker(names[i], i == size - 1 ? last : NULL);
        snprintf(address, sizeof address, "unix:%s/%d.sock", test_folder, i);
        assert_int_equal(rle_rpc_listen(t.rpc[i], address, NULL), RLE_OK);
        assert_int_equal(rle_comm_open(t.rpc[i], &t.comm[i]), RLE_OK);
        for (int j = 0; j < i; j++) link_to(t.rpc[i], t.rpc[j]);
    }
    for (int k = 0; k < 50; k++) turn_all(&t);
    for (int i = 0; i < size; i++) t.group[i] = join(&t, i, "test");
    return t;
}

static inline team make_team(int size)
{
    return make_team_with(size, NULL);
}

static inline void free_team(team *t)
{
    for (int i = 0; i < t->size; i++)
        if (t->rpc[i]) rle_rpc_free(t->rpc[i]);
}

/* ---- collectives ---- */

static inline rle_tensor *filled(rle_dtype dtype, int64_t n, int rank)
{
    rle_tensor *t;
    assert_int_equal(rle_tensor_new(rle_device_cpu(), dtype, 1, &n, &t), RLE_OK);
    for (int64_t i = 0; i < n; i++) {
        double v = (double)((i * 7 + rank * 13) % 29) - (dtype == RLE_U8 ? 0 : 11);
        switch (dtype) {
        case RLE_F32:
            ((float *)t->a.data)[i] = (float)v * 0.37f + (float)rank * 1e-3f;
            break;
        case RLE_F64:
            ((double *)t->a.data)[i] = v * 0.37;
            break;
        case RLE_I32:
            ((int32_t *)t->a.data)[i] = (int32_t)v;
            break;
        case RLE_I64:
            ((int64_t *)t->a.data)[i] = (int64_t)v * (INT64_C(1) << 33);
            break;
        default:
            ((uint8_t *)t->a.data)[i] = (uint8_t)v;
            break;
        }
    }
    return t;
}

static inline rle_comm_work *begin_with(team *t, int rank, const rle_comm_call *given,
                                 rle_tensor **tensor)
{
    rle_comm_call call = *given;
    rle_comm_work *w = NULL;
    call.tensors = tensor;
    if (!call.timeout) call.timeout = 20 * RLE_SECONDS;
    assert_int_equal(rle_comm_begin(t->group[rank], &call, &w), RLE_OK);
    return w;
}

static inline bool over(team *t, int rank, rle_comm_work *w)
{
    return rle_future_status(t->rpc[rank], rle_comm_work_future(w)) != RLE_FUTURE_PENDING;
}

static inline void wait_works(team *t, rle_comm_work **w)
{
    for (int i = 0; i < 20000; i++) {
        bool all = true;
        turn_all(t);
        for (int r = 0; r < t->size; r++) all &= !w[r] || over(t, r, w[r]);
        if (all) return;
        if (i > 100) usleep(500);
    }
    fail_msg("a collective hangs");
}

static inline void assert_nothing_left(team *t)
{
    for (int k = 0; k < 20; k++) turn_all(t);
    for (int r = 0; r < t->size; r++) {
        rle_rpc_counters c;
        if (!t->rpc[r]) continue;
        assert_int_equal(rle_comm_works(t->comm[r]), 0);
        rle_rpc_count(t->rpc[r], &c);
        assert_int_equal(c.live_futures, 0);
        assert_int_equal(c.live_incoming, 0);
    }
}

/* Every rank runs it; `tensor[r]` has the result. */
static inline void run(team *t, const rle_comm_call *call, rle_tensor **tensor,
                rle_tensor **gathered)
{
    rle_comm_work *w[RANKS_MAX] = {0};
    for (int r = t->size - 1; r >= 0; r--) w[r] = begin_with(t, r, call, &tensor[r]);
    wait_works(t, w);
    for (int r = 0; r < t->size; r++) {
        rle_status s = rle_comm_finish(w[r], gathered ? &gathered[r] : NULL);
        if (s != RLE_OK) fail_msg("rank %d: %s", r, rle_message());
        rle_comm_work_free(w[r]);
    }
    assert_nothing_left(t);
}

static inline double value(const rle_tensor *t, int64_t i)
{
    switch (t->a.dtype) {
    case RLE_F32:
        return ((float *)t->a.data)[i];
    case RLE_F64:
        return ((double *)t->a.data)[i];
    case RLE_I32:
        return ((int32_t *)t->a.data)[i];
    case RLE_I64:
        return (double)((int64_t *)t->a.data)[i];
    default:
        return ((uint8_t *)t->a.data)[i];
    }
}

static inline rle_comm_call sum_of(const char *name)
{
    return (rle_comm_call){
        .kind = RLE_COMM_ALL_REDUCE, .op = RLE_COMM_SUM, .count = 1, .name = name};
}

/* Rank r's work has failed, with these words; its tensor is as it was. */
static inline void assert_failed(team *t, int r, rle_comm_work *w, rle_status code,
                          const char *words, const rle_tensor *tensor)
{
    assert_true(over(t, r, w));
    rle_status s = rle_comm_finish(w, NULL);
    if (s != code || !strstr(rle_message(), words))
        fail_msg("rank %d: %s: %s (wanted %s)", r, rle_status_name(s), rle_message(),
                 words);
    rle_comm_work_free(w);
    rle_tensor *was = filled(tensor->a.dtype, rle_tensor_numel(tensor), r);
    for (int64_t i = 0; i < rle_tensor_numel(tensor); i++)
        assert_true(value(tensor, i) == value(was, i));
    rle_tensor_release(was);
}

#endif
