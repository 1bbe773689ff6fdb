/* test_rpc_publish.c - versions for many followers: each sent once, one at a time, the newest
 * first, and nothing left behind when those who publish or follow come and go. */
#include "figure.h"
#include "rpc_weights.h"

static void a_version_arrives_whether_it_or_the_follower_came_first(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 5000, 100000, 300000, 3000000};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        pair p = make_pair(NULL, NULL);
        rle_publication *w = open_weights(p.a, "first", "");
        assert_int_equal(publish(w, sizes[i]), 1);
        rle_follower *first = follow(p.b, p.to_a, "first");
        rle_follower *later = follow(p.b, p.to_a, "later");
        assert_int_equal(arrives(&p, first, sizes[i]), 1);
        turns(&p, 5);
        assert_int_equal(take(later, sizes[i]), 0);
        assert_int_equal(publish(open_weights(p.a, "later", ""), sizes[i]), 1);
        assert_int_equal(arrives(&p, later, sizes[i]), 1);
        for (uint64_t v = 2; v < 300; v += v < 10 ? 1 : 100) {
            assert_int_equal(publish(w, sizes[i]), v < 10 ? v : 10 + (v - 10) / 100);
            assert_true(arrives(&p, first, sizes[i]) > 0);
        }
        free_pair(&p);
    }
}

/* What was overtaken while the follower was receiving is not sent; what it already has, no
 * second time. */
static void overtaken_versions_are_skipped(void **state)
{
    (void)state;
    pair p = make_pair(NULL, NULL);
    size_t n = 4 << 20;
    rle_publication *w = open_weights(p.a, "policy", "");
    rle_follower *fo = follow(p.b, p.to_a, "policy");
    turns(&p, 10);
    rle_publication_info info;
    for (int i = 1; i <= 50; i++) {
        publish(w, n);
        rle_rpc_turn(p.a, false); /* the other end stands still */
    }
    rle_publication_look(w, &info);
    assert_int_equal(info.version, 50);
    assert_int_equal(info.sent, 1);
    assert_true(info.bodies <= 3);
    assert_int_equal(arrives(&p, fo, n), 1);
    assert_int_equal(arrives(&p, fo, n), 50);
    turns(&p, 50);
    assert_int_equal(take(fo, n), 0);
    rle_publication_look(w, &info);
    assert_int_equal(info.sent, 2);
    assert_int_equal(info.waiting, 1);
    free_pair(&p);
}

/* A version that was not taken gives way to the next; nothing is allocated per version. */
static void nothing_is_allocated_for_later_versions(void **state)
{
    (void)state;
    pair p = make_pair(NULL, NULL);
    size_t n = 1 << 20;
    rle_publication *w = open_weights(p.a, "policy", "");
    rle_follower *fo = follow(p.b, p.to_a, "policy");
    size_t bytes = 0, fds = open_fds();
    for (int i = 1; i <= 400; i++) {
        publish(w, n);
        turns(&p, 30);
        if (i % 3 == 0) assert_int_equal(take(fo, n), i);
        if (i == 10) bytes = rle_mem_bytes();
        /* At most what is there already, and a message's own small things. */
        if (i > 10) assert_true(rle_mem_bytes() <= bytes + 4096);
    }
    assert_int_equal(open_fds(), fds);
    figure("B21", "400 versions of 1 MiB to one follower: %+ld bytes held after the 10th",
           (long)(rle_mem_bytes() - bytes));
    free_pair(&p);
}

/* Copying a version failed half-way: who comes gets the one before it, whole; and nothing
 * piles up. */
static void a_version_that_was_not_finished_changes_nothing(void **state)
{
    (void)state;
    pair p = make_pair(NULL, NULL);
    size_t n = 1 << 20;
    rle_publication *w = open_weights(p.a, "policy", "");
    publish(w, n);
    size_t bytes = rle_mem_bytes();
    for (int i = 0; i < 5; i++) {
        stage(w, n, false);
        assert_true(rle_mem_bytes() <= bytes + n + 4096);
    }
    rle_follower *fo = follow(p.b, p.to_a, "policy");
    assert_int_equal(arrives(&p, fo, n), 1);
    stage(w, n, false);
    assert_int_equal(rle_publication_commit(w), 2);
    assert_int_equal(arrives(&p, fo, n), 2);
    stage(w, 2 * n, false);
    stage(w, n, true);
    assert_int_equal(rle_publication_commit(w), 3);
    assert_int_equal(arrives(&p, fo, n), 3);
    rle_publication_info info;
    rle_publication_look(w, &info);
    assert_true(info.bodies <= 2);
    free_pair(&p);
}

/* All share one body: what many followers cost is not many bodies. */
static void followers_share_one_body(void **state)
{
    (void)state;
    enum { MANY = 16 };
    rle_rpc *a = worker("a", NULL), *b[MANY];
    rle_follower *fo[MANY];
    rle_peer *peer;
    size_t n = 8 << 20;
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    rle_publication *w = open_weights(a, "policy", "");
    for (int i = 0; i < MANY; i++) {
        char name[16];
        snprintf(name, sizeof name, "b%d", i);
        b[i] = worker(name, NULL);
        peer = link_to(b[i], a);
        fo[i] = follow(b[i], peer, "policy");
        for (int k = 0; k < 5; k++) turn(a, b[i]);
    }
    size_t before = rle_mem_bytes();
    publish(w, n);
    size_t grown = rle_mem_bytes() - before, most = grown;
    for (int k = 0; k < 3; k++) {
        rle_rpc_turn(a, false);
        if (rle_mem_bytes() - before > most) most = rle_mem_bytes() - before;
    }
    assert_true(most < n + MANY * 4096 + (64 << 10));
    figure("B21", "8 MiB to %d followers: %.2f MiB held by the sender", MANY,
           (double)most / (1 << 20));
    int done = 0;
    for (int k = 0; k < 4000 && done < MANY; k++) {
        rle_rpc_turn(a, false);
        for (int i = 0; i < MANY; i++) {
            rle_rpc_turn(b[i], false);
            done += take(fo[i], n) == 1;
        }
    }
    assert_int_equal(done, MANY);
    rle_publication_info info;
    rle_publication_look(w, &info);
    assert_int_equal(info.sent, MANY);
    for (int i = 0; i < MANY; i++) rle_rpc_free(b[i]);
    rle_rpc_free(a);
}

static void a_lost_worker_gets_the_newest_when_it_is_back(void **state)
{
    (void)state;
    size_t n = 600000, bytes = 0;
    rle_rpc *a = worker("a", NULL);
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    rle_publication *w = open_weights(a, "policy", "");
    size_t fds = open_fds();
    for (int round = 0; round < 200; round++) {
        rle_rpc *b = worker("b", NULL);
        rle_follower *fo = follow(b, link_to(b, a), "policy");
        publish(w, n);
        /* It dies before, during and after the version's crossing. */
        uint64_t version = 0;
        for (int i = 0; i < round % 20; i++) {
            turn(a, b);
            if (round % 3 == 0 && !version) version = take(fo, n);
        }
        if (version) assert_int_equal(version, round + 1);
        if (round % 7 == 0) rle_follower_discard(fo);
        rle_rpc_free(b);
        for (int i = 0; i < 100 && rle_peer_connected(a, rle_rpc_peer(a, "b")); i++)
            rle_rpc_turn(a, false);
        rle_rpc_turn(a, false);
        if (round == 40) bytes = rle_mem_bytes();
        if (round > 40) assert_true(rle_mem_bytes() <= bytes + n + 4096);
    }
    assert_int_equal(open_fds(), fds);
    rle_publication_info info;
    rle_publication_look(w, &info);
    assert_int_equal(info.waiting, 0);
    rle_rpc_free(a);
}

/* The follower lives on while the publisher comes back with another life. */
static void another_life_of_the_publisher_counts_anew(void **state)
{
    (void)state;
    pair p = make_pair(NULL, NULL);
    size_t n = 400000;
    rle_publication *w = open_weights(p.a, "policy", "");
    rle_follower *fo = follow(p.b, p.to_a, "policy");
    publish(w, n);
    publish(w, n);
    assert_int_equal(arrives(&p, fo, n), 2);
    rle_rpc_free(p.a);
    for (int i = 0; i < 5; i++) rle_rpc_turn(p.b, false);
    p.a = worker("a", NULL);
    assert_int_equal(rle_rpc_listen(p.a, test_address, NULL), RLE_OK);
    w = open_weights(p.a, "policy", "");
    publish(w, n);
    publish(w, n);
    p.to_a = link_to(p.b, p.a);
    assert_int_equal(arrives(&p, fo, n), 2);
    turns(&p, 20);
    assert_int_equal(take(fo, n), 0);
    free_pair(&p);
}

static void a_follower_that_goes_is_forgotten(void **state)
{
    (void)state;
    pair p = make_pair(NULL, NULL);
    size_t n = 2 << 20;
    rle_publication *w = open_weights(p.a, "policy", "");
    size_t bytes = rle_mem_bytes();
    for (int round = 0; round < 30; round++) {
        rle_follower *fo = follow(p.b, p.to_a, "policy");
        turns(&p, round % 4);
        publish(w, n);
        turns(&p, round % 9); /* also while it is received */
        rle_follower_discard(fo);
        turns(&p, 60);
        rle_publication_info info;
        rle_publication_look(w, &info);
        assert_int_equal(info.waiting, 0);
    }
    rle_publication_close(w);
    turns(&p, 20);
    assert_true(rle_mem_bytes() <= bytes + (16 << 10));
    assert_true(rle_peer_connected(p.b, p.to_a));
    free_pair(&p);
}

static const char *follow_error(pair *p, rle_follower *fo, rle_wire_error *e)
{
    static char text[512];
    bool failed = false, connected;
    for (int i = 0; i < 100 && !failed; i++) {
        turn(p->a, p->b);
        rle_follower_look(fo, &failed, &connected);
    }
    rle_msg m;
    assert_true(rle_follower_error(fo, &m));
    assert_int_equal(rle_error_decode(&m, e), RLE_OK);
    snprintf(text, sizeof text, "%.*s", (int)e->message.n, e->message.p);
    rle_free(m.block);
    return text;
}

static void what_a_follower_may_not_have_is_refused(void **state)
{
    (void)state;
    pair p = make_pair(NULL, &(rle_rpc_options){.max_message = 1 << 20});
    rle_wire_error e;
    publish(open_weights(p.a, "big", ""), 2 << 20);
    publish(open_weights(p.a, "ours", "obs_*"), 100);
    publish(open_weights(p.a, "theirs", "*"), 100);
    rle_follower *big = follow(p.b, p.to_a, "big");
    const char *text = follow_error(&p, big, &e);
    assert_non_null(strstr(text, "weights \"big\" of 2097"));
    assert_non_null(strstr(text, "over the limit of 1048576 bytes of worker \"b\" (max_message)"));
    assert_int_equal(e.code, RLE_RESOURCE_EXHAUSTED);
    rle_follower *ours = follow(p.b, p.to_a, "ours");
    assert_string_equal(follow_error(&p, ours, &e), "\"b\" may not follow \"ours\" of \"a\"");
    assert_int_equal(e.code, RLE_PERMISSION_DENIED);
    assert_int_equal(arrives(&p, follow(p.b, p.to_a, "theirs"), 100), 1);
    rle_publication *w = NULL;
    rle_follower *fo = NULL;
    assert_int_equal(rle_publication_new(p.a, "big", "", 0, &w), RLE_ALREADY_EXISTS);
    assert_int_equal(rle_publication_new(p.a, "no name", "", 0, &w), RLE_INVALID_ARGUMENT);
    assert_int_equal(rle_follower_new(p.a, rle_rpc_peer(p.a, "a"), "big", &fo),
                     RLE_FAILED_PRECONDITION);
    free_pair(&p);
}

/* Questions no worker of ours would ask. */
static void malformed_questions_end_the_connection(void **state)
{
    (void)state;
    rle_rpc *a = worker("a", NULL);
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    for (int kind = 0; kind < 5; kind++) {
        raw r = raw_join(a, "x");
        rle_encoder e;
        rle_encoder_init(&e);
        begin_call(&e, "rlengine.weights", kind == 0 ? 1 : 2);
        rle_encode_string(&e, kind == 1 ? "no name" : "policy", kind == 1 ? 7 : 6);
        if (kind == 2) rle_encode_bool(&e, true);
        else if (kind) rle_encode_integer(&e, kind == 3 ? -1 : 0);
        int flags = kind == 4 ? 0 : RLE_FLAG_NESTED;
        raw_send(&r, (rle_frame){.type = RLE_FRAME_CALL, .flags = (uint16_t)flags, .id = 1},
                 e.w.data + RLE_FRAME_HEADER, rle_encoder_values_size(&e));
        rle_encoder_fini(&e);
        rle_frame f;
        uint8_t payload[4096];
        assert_int_equal(raw_read(&r, &f, payload, sizeof payload), 0);
        assert_true(logged("closed \"x\": malformed rlengine.weights"));
        raw_close(&r);
    }
    rle_rpc_free(a);
}

/* Answers no publisher of ours would give: the connection ends, the follower stays. */
static void malformed_answers_end_the_connection(void **state)
{
    (void)state;
    rle_rpc *a = worker("a", NULL);
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    rle_follower *fo = follow(a, rle_rpc_peer(a, "x"), "policy");
    size_t bytes = 0;
    for (int kind = 0; kind < 5; kind++) {
        raw r = raw_join(a, "x");
        rle_frame f;
        static uint8_t payload[4096];
        assert_int_equal(raw_read(&r, &f, payload, sizeof payload), 1); /* it asks anew */
        assert_int_equal(f.type, RLE_FRAME_CALL);
        rle_frame answer = {.type = RLE_FRAME_RESULT, .id = f.id};
        rle_writer error;
        rle_writer_init(&error);
        rle_error_encode(&error, &(rle_wire_error){.code = RLE_INTERNAL, .message = {"no", 2}});
        memset(payload, 0, sizeof payload);
        if (kind == 0) {
            raw_send(&r, answer, payload, 100); /* no values */
        } else if (kind == 1) {
            raw_send(&r, answer, "\1\0\0", 3); /* the version is nil */
        } else {
            answer.flags = RLE_FLAG_MORE;
            answer.body = 10000;
            answer.values = 100;
            answer.tensors = 1;
            raw_send(&r, answer, payload, 4000);
            answer = (rle_frame){.type = RLE_FRAME_RESULT, .id = f.id};
            if (kind == 2) {
                answer.flags = RLE_FLAG_MORE;
                answer.body = 20000;
            } else if (kind == 4) {
                answer.type = RLE_FRAME_ERROR;
            }
            if (kind == 4)
                raw_send(&r, answer, error.data, error.len);
            else
                raw_send(&r, answer, payload, 4000);
        }
        rle_writer_fini(&error);
        assert_int_equal(raw_read(&r, &f, payload, sizeof payload), 0);
        raw_close(&r);
        assert_false(rle_peer_connected(a, rle_rpc_peer(a, "x")));
        bool failed, connected;
        assert_int_equal(rle_follower_look(fo, &failed, &connected), 0);
        assert_false(failed);
        if (kind == 2) bytes = rle_mem_bytes();
        if (kind > 2) assert_true(rle_mem_bytes() <= bytes + 4096);
    }
    rle_rpc_free(a);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, pair_setup, pair_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_version_arrives_whether_it_or_the_follower_came_first),
        TEST(overtaken_versions_are_skipped),
        TEST(nothing_is_allocated_for_later_versions),
        TEST(a_version_that_was_not_finished_changes_nothing),
        TEST(followers_share_one_body),
        TEST(a_lost_worker_gets_the_newest_when_it_is_back),
        TEST(another_life_of_the_publisher_counts_anew),
        TEST(a_follower_that_goes_is_forgotten),
        TEST(what_a_follower_may_not_have_is_refused),
        TEST(malformed_questions_end_the_connection),
        TEST(malformed_answers_end_the_connection),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
