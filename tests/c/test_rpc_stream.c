/* test_rpc_stream.c - versions that pass, and everybody else meanwhile: calls pass between their
 * pieces, and who does not read holds little. */
#include <time.h>

#include "figure.h"
#include "rpc_weights.h"

/* Of this thread: what else the machine does has no part in it. */
static int64_t cpu_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * RLE_SECONDS + t.tv_nsec;
}

/* Calls of both directions pass while a version is under way, and it takes no credit. */
static void calls_pass_a_version(void **state)
{
    (void)state;
    pair p = make_pair(NULL, &(rle_rpc_options){.max_credits = 1});
    size_t n = 32 << 20;
    rle_publication *w = open_weights(p.a, "policy", "");
    rle_follower *fo = follow(p.b, p.to_a, "policy");
    turns(&p, 10);
    publish(w, n);
    int calls = 0;
    int64_t worst = 0, worst_cpu = 0;
    while (!take(fo, n)) {
        int64_t begin = rle_now(), cpu = cpu_now();
        rle_future *f = call(p.a, p.to_b, "small", calls);
        for (int i = 0; i < 2000 && rle_future_status(p.a, f) == RLE_FUTURE_PENDING; i++) {
            turn(p.a, p.b);
            serve_one(p.b);
        }
        assert_int_equal(rle_future_status(p.a, f), RLE_FUTURE_DONE);
        rle_future_release(p.a, f);
        if (rle_now() - begin > worst) worst = rle_now() - begin;
        if (cpu_now() - cpu > worst_cpu) worst_cpu = cpu_now() - cpu;
        calls++;
    }
    assert_true(calls > 8);
    figure("B21",
           "a small call while 32 MiB of weights pass: at most %.2f ms, %.2f ms of "
           "processor time of both ends (%d calls)",
           (double)worst / 1e6, (double)worst_cpu / 1e6, calls);
    free_pair(&p);
}

/* Weights to many are written a little at a time, to each in turn: a call of another one
 * waits for a turn of the loop that is short, however many there are and however fast
 * they read. */
static void f12_others_calls_pass_between_versions(void **state)
{
    (void)state;
    enum { MANY = 12 };
    size_t n = 4 << 20;
    rle_rpc *a = worker("a", NULL), *b[MANY], *c = worker("c", NULL);
    rle_conn *conn[MANY];
    rle_follower *fo[MANY];
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    rle_publication *w = open_weights(a, "policy", "");
    for (int i = 0; i < MANY; i++) {
        char name[16];
        snprintf(name, sizeof name, "b%d", i);
        b[i] = worker(name, NULL);
        fo[i] = follow(b[i], link_to(b[i], a), "policy");
        for (int k = 0; k < 5; k++) turn(a, b[i]);
        conn[i] = rle_rpc_peer(a, name)->conn;
    }
    rle_peer *to_a = link_to(c, a);
    publish(w, n);
    uint64_t most = 0, apart = 0;
    int turns = 0, calls = 0, arrived = 0;
    for (; turns < 4000 && arrived < MANY; turns++) {
        uint64_t before = 0, after = 0, first = UINT64_MAX, last = 0;
        rle_future *f = call(c, to_a, "f", turns);
        for (int i = 0; i < MANY; i++) before += conn[i]->bytes_out;
        rle_rpc_turn(a, false);
        calls += serve_one(a); /* it has come in this turn */
        for (int i = 0; i < MANY; i++) {
            uint64_t out = conn[i]->bytes_out;
            after += out;
            if (out < first) first = out;
            if (out > last) last = out;
        }
        if (after - before > most) most = after - before;
        if (last - first > apart) apart = last - first;
        rle_rpc_turn(c, false);
        assert_int_equal(result_of(f), turns + 1);
        rle_future_release(c, f);
        for (int i = 0; i < MANY; i++) {
            for (int k = 0; k < 3; k++) rle_rpc_turn(b[i], false);
            arrived += take(fo[i], n) == 1;
        }
    }
    assert_int_equal(arrived, MANY);
    assert_int_equal(calls, turns);
    assert_true(most <= RLE_OUT_TURN + RLE_CHUNK_SIZE);
    assert_true(apart <= 2 * (RLE_CHUNK_SIZE + 4096));
    figure("F12",
           "%d MiB to %d followers: at most %.0f KiB in a turn of the loop, and %.0f KiB "
           "between the one that got most and the one that got least; a call is served "
           "in each",
           (int)(n >> 20), MANY, (double)most / 1024, (double)apart / 1024);
    for (int i = 0; i < MANY; i++) rle_rpc_free(b[i]);
    rle_rpc_free(c);
    rle_rpc_free(a);
}

/* The same the other way round: many send long messages, and a little of them is read at
 * a time, of each in turn. */
static void others_calls_pass_between_long_calls(void **state)
{
    (void)state;
    enum { MANY = 12, SIZE = 3 << 20 };
    static uint8_t bytes[SIZE];
    rle_array array = {
        .data = bytes, .dtype = RLE_U8, .ndim = 1, .shape = {SIZE}, .stride = {1}};
    for (int tls = 0; tls < 2; tls++) {
        rle_tls_options psk = {.psk = true, .unix_too = true};
        rle_rpc_options o = {.tls = tls ? &psk : NULL};
        rle_rpc *a = worker("a", &o), *b[MANY], *c = worker("c", &o);
        rle_conn *conn[MANY];
        rle_future *f[MANY];
        assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
        rle_peer *to_a = link_to(c, a);
        for (int i = 0; i < MANY; i++) {
            char name[16];
            snprintf(name, sizeof name, "b%d", i);
            b[i] = worker(name, &o);
            rle_peer *peer = link_to(b[i], a);
            conn[i] = rle_rpc_peer(a, name)->conn;
            rle_encoder e;
            rle_encoder_init(&e);
            begin_call(&e, "put", 2);
            rle_encode_integer(&e, i);
            rle_encode_tensor(&e, &array, NULL);
            f[i] = call_with(b[i], peer, "put", &e, 0, false);
            rle_encoder_fini(&e);
        }
        uint64_t most = 0, seen[MANY] = {0};
        int done = 0, turns = 0, read_at[MANY] = {0}, longest = 0;
        for (; turns < 4000 && done < MANY; turns++) {
            uint64_t before = 0, after = 0;
            rle_future *small = call(c, to_a, "f", turns);
            for (int i = 0; i < MANY; i++) before += conn[i]->bytes_in;
            rle_rpc_turn(a, false);
            while (serve_one(a)) {
            }
            for (int i = 0; i < MANY; i++) {
                if (conn[i]->bytes_in > seen[i] || !conn[i]->late) read_at[i] = turns;
                if (turns - read_at[i] > longest) longest = turns - read_at[i];
                after += seen[i] = conn[i]->bytes_in;
            }
            if (after - before > most) most = after - before;
            rle_rpc_turn(c, false);
            assert_int_equal(result_of(small), turns + 1);
            rle_future_release(c, small);
            done = 0;
            for (int i = 0; i < MANY; i++) {
                for (int k = 0; k < 3; k++) rle_rpc_turn(b[i], false);
                done += rle_future_status(b[i], f[i]) == RLE_FUTURE_DONE;
            }
        }
        assert_int_equal(done, MANY);
        /* What begins a message is not long yet: 32 KiB of each at most. */
        assert_true(most <=
                    RLE_READ_LONG + RLE_READ_TURN + MANY * (RLE_READ_AHEAD + 4096));
        assert_true(longest <= MANY);
        assert_int_equal(a->late + a->late_next, 0);
        figure(
            "B21",
            "%s%d long calls at once: at most %.0f KiB are read in a turn of the loop, "
            "each waits for %d turns at most",
            tls ? "over TLS: " : "", MANY, (double)most / 1024, longest);
        for (int i = 0; i < MANY; i++) {
            assert_int_equal(result_of(f[i]), i + 1);
            rle_future_release(b[i], f[i]);
            rle_rpc_free(b[i]);
        }
        rle_rpc_free(c);
        rle_rpc_free(a);
    }
}

/* Over TCP each piece has a checksum, of the version that is sent and not of the one that
 * lay in the same block before. */
static void checksums_are_those_of_the_version(void **state)
{
    (void)state;
    rle_rpc *a = worker("a", NULL), *b[2];
    rle_follower *fo[2];
    char bound[RLE_ADDRESS_MAX];
    size_t n = 700000;
    assert_int_equal(rle_rpc_listen(a, "tcp://127.0.0.1:0", bound), RLE_OK);
    rle_publication *w = open_weights(a, "policy", "");
    for (int i = 0; i < 2; i++) {
        b[i] = worker(i ? "b1" : "b0", NULL);
        fo[i] = follow(b[i], link_to(b[i], a), "policy");
        for (int k = 0; k < 50; k++) turn(a, b[i]);
    }
    for (uint64_t version = 1; version <= 20; version++) {
        assert_int_equal(publish(w, n), version);
        bool has[2] = {false, false};
        for (int k = 0; k < 20000 && !(has[0] && has[1]); k++) {
            rle_rpc_turn(a, false);
            for (int i = 0; i < 2; i++) {
                rle_rpc_turn(b[i], false);
                has[i] = has[i] || take(fo[i], n) == version;
            }
        }
        assert_true(has[0] && has[1]);
    }
    assert_false(logged("checksum"));
    for (int i = 0; i < 2; i++) rle_rpc_free(b[i]);
    rle_rpc_free(a);
}

/* Stopped, it holds one version, however many are published. */
static void f12_a_stopped_follower_never_piles_up_versions(void **state)
{
    (void)state;
    rle_rpc *a = worker("a", NULL);
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    raw stopped = raw_join(a, "x");
    rle_encoder e;
    rle_encoder_init(&e);
    begin_call(&e, "rlengine.weights", 2);
    rle_encode_string(&e, "policy", 6);
    rle_encode_integer(&e, 0);
    raw_send(&stopped, (rle_frame){.type = RLE_FRAME_CALL, .flags = RLE_FLAG_NESTED, .id = 1},
             e.w.data + RLE_FRAME_HEADER, rle_encoder_values_size(&e));
    rle_encoder_fini(&e);
    rle_publication *w = open_weights(a, "policy", "");
    size_t n = 4 << 20, before = rle_mem_bytes(), most = 0;
    for (int i = 0; i < 200; i++) {
        publish(w, n);
        rle_rpc_turn(a, false);
        if (rle_mem_bytes() - before > most) most = rle_mem_bytes() - before;
    }
    rle_publication_info info;
    rle_publication_look(w, &info);
    assert_int_equal(info.sent, 1);
    assert_true(most < 2 * n + (64 << 10)); /* the one under way, and the newest */
    figure("F12", "200 versions of 4 MiB beside a stopped observer: %.1f MiB held",
           (double)most / (1 << 20));
    raw_close(&stopped);
    for (int i = 0; i < 5; i++) rle_rpc_turn(a, false);
    publish(w, n);
    assert_true(rle_mem_bytes() - before < 2 * n + (64 << 10));
    rle_rpc_free(a);
}

/* Who asks again before it has read what it was sent keeps no old versions alive. */
static void f12_who_asks_and_does_not_read_piles_nothing_up(void **state)
{
    (void)state;
    enum { ASKED = 200 };
    rle_rpc *a = worker("a", NULL);
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    raw r = raw_join(a, "x");
    rle_publication *w = open_weights(a, "policy", "");
    size_t n = 1 << 20;
    publish(w, n);
    size_t before = rle_mem_bytes(), most = 0;
    rle_publication_info info;
    for (int i = 1; i <= ASKED; i++) {
        rle_encoder e;
        rle_encoder_init(&e);
        begin_call(&e, "rlengine.weights", 2);
        rle_encode_string(&e, "policy", 6);
        rle_encode_integer(&e, 0);
        raw_send(&r,
                 (rle_frame){
                     .type = RLE_FRAME_CALL, .flags = RLE_FLAG_NESTED, .id = (uint64_t)i},
                 e.w.data + RLE_FRAME_HEADER, rle_encoder_values_size(&e));
        rle_encoder_fini(&e);
        publish(w, n);
        if (rle_mem_bytes() - before > most) most = rle_mem_bytes() - before;
    }
    rle_publication_look(w, &info);
    assert_in_range(info.sent, 1, 8);
    assert_true(most < 10 * n);
    figure("F12", "%d questions for versions of 1 MiB, no answer read: %.1f MiB held",
           ASKED, (double)most / (1 << 20));
    raw_close(&r);
    rle_rpc_free(a);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, pair_setup, pair_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(calls_pass_a_version),
        TEST(f12_others_calls_pass_between_versions),
        TEST(others_calls_pass_between_long_calls),
        TEST(checksums_are_those_of_the_version),
        TEST(f12_a_stopped_follower_never_piles_up_versions),
        TEST(f12_who_asks_and_does_not_read_piles_nothing_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
