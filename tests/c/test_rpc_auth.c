/* test_rpc_auth.c - what somebody without the token learns and reaches: nothing, in the same
 * words and the same time whatever was wrong. */
#include "rpc_door.h"

#include <math.h>

#include "figure.h"
#include "shifted_clock.h"

static bool full(void)
{
    return getenv("RLE_FULL") != NULL;
}

/* ---- wrong tokens ---- */

static void f33_each_bit_of_the_token_wrong_once(void **state)
{
    (void)state;
    rle_rpc *a = worker("a", NULL);
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    int refused = 0;
    for (int bit = 0; bit < (int)test_token.len * 8; bit++) {
        rle_token other = test_token;
        other.bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        snprintf(other.source, sizeof other.source, "~/.config/rlengine/token");
        rle_rpc *b = worker("b", &(rle_rpc_options){.token = &other});
        test_log_count = 0;
        assert_false(rle_peer_connected(b, link_to(b, a)));
        assert_true(logged("\"a\" refused the token in ~/.config/rlengine/token"));
        refused += logged("wrong token (");
        rle_rpc_free(b);
    }
    assert_int_equal(refused, test_token.len * 8);
    assert_int_equal(rle_rpc_peers(a, NULL, 0), 0);
    figure("F33", "a token with one bit wrong refused %d/%zu", refused, test_token.len * 8);
    rle_rpc_free(a);
}

/* "refused 127.0.0.1:41234: wrong token (3 in the last minute)" */
static void f33_refusals_are_counted_for_each_address(void **state)
{
    (void)state;
    rle_rpc *a = worker("a", NULL);
    char bound[RLE_ADDRESS_MAX];
    assert_int_equal(rle_rpc_listen(a, "tcp://127.0.0.1:0", bound), RLE_OK);
    rle_token other = test_token;
    other.bytes[5] ^= 1;
    for (int i = 1; i <= 3; i++) {
        rle_rpc *b = worker("b", &(rle_rpc_options){.token = &other});
        test_log_count = 0;
        link_to(b, a);
        unsigned port;
        int count, length = 0;
        bool found = false;
        for (int k = 0; k < test_log_count && !found; k++)
            found = sscanf(test_log[k],
                           "refused 127.0.0.1:%u: wrong token (%d in the last minute)%n", &port,
                           &count, &length) == 2 &&
                    test_log[k][length] == 0;
        assert_true(found);
        assert_int_equal(count, i);
        rle_rpc_free(b);
    }
    rle_rpc_free(a);
}

/* Is a wrong proof from that address of this machine looked at? It comes from nobody: its
 * process has closed the socket. */
static bool looked_at(rle_rpc *server, const char *source)
{
    uint64_t before = refused_by(server);
    fail_and_go(server, source);
    return refused_by(server) == before + 1;
}

static void f33_the_door_is_closed_to_one_address_for_a_minute(void **state)
{
    (void)state;
    rle_clock c = {shifted, NULL};
    clock_ahead = 0;
    rle_clock_set(&c);
    rle_rpc *a = worker("a", NULL);
    assert_int_equal(rle_rpc_listen(a, "tcp://127.0.0.1:0", NULL), RLE_OK);
    for (int i = 0; i < 10; i++) assert_true(looked_at(a, "127.0.0.1"));
    assert_false(looked_at(a, "127.0.0.1"));
    assert_true(looked_at(a, "127.0.0.2"));
    clock_ahead = 59 * RLE_SECONDS;
    assert_false(looked_at(a, "127.0.0.1"));
    clock_ahead = 62 * RLE_SECONDS;
    assert_true(looked_at(a, "127.0.0.1"));
    rle_rpc_free(a);
    rle_clock_set(NULL);
}

/* ---- the answer to a wrong proof ---- */

/* HELLO; returns the proof that would be right. */
static void begin_proof(raw *r, rle_writer *hello, uint8_t proof[RLE_PROOF_SIZE])
{
    rle_frame f;
    uint8_t ack[4096];
    rle_writer_init(hello);
    raw_greeting(hello, r, "x", 1, 1);
    raw_send(r, (rle_frame){.type = RLE_FRAME_HELLO}, hello->data, hello->len);
    assert_int_equal(raw_read(r, &f, ack, sizeof ack), 1);
    assert_int_equal(f.type, RLE_FRAME_HELLO_ACK);
    assert_int_equal(
        rle_auth_proof(&test_token, 'c', hello->data, hello->len, ack, f.payload, proof), RLE_OK);
}

/* Everything the other side sends from now on, up to the end. */
static size_t raw_rest(raw *r, uint8_t *to, size_t max)
{
    size_t got = 0;
    for (int i = 0; i < 200; i++) {
        turn(r->server, NULL);
        ssize_t n = recv(r->fd, to + got, max - got, MSG_DONTWAIT);
        if (n == 0) return got;
        if (n > 0) got += (size_t)n;
    }
    fail_msg("the connection was not closed");
    return 0;
}

static void f33_every_refusal_is_the_same(void **state)
{
    (void)state;
    enum { KINDS = 8 };
    rle_rpc *a = worker("a", NULL);
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    uint8_t stale[RLE_PROOF_SIZE], answers[KINDS][1024];
    size_t sizes[KINDS];
    rle_writer hello;
    raw first = raw_connect(a);
    begin_proof(&first, &hello, stale);
    rle_writer_fini(&hello);
    raw_close(&first);
    for (int kind = 0; kind < KINDS; kind++) {
        raw r = raw_connect(a);
        uint8_t proof[RLE_PROOF_SIZE + 1] = {0};
        size_t n = RLE_PROOF_SIZE;
        begin_proof(&r, &hello, proof);
        rle_writer_fini(&hello);
        switch (kind) {
        case 0: proof[0] ^= 1; break;                    /* wrong from the first byte */
        case 1: proof[31] ^= 0x80; break;                /* right up to the last bit */
        case 2: memcpy(proof, stale, sizeof stale); break;
        case 3: memset(proof, 0, sizeof proof); break;
        case 4: n = 31; break;                           /* all but one byte of the right one */
        case 5: n = 33; break;                           /* the right one and a byte */
        case 6: n = 0; break;
        default: {                                       /* what another token proves */
            rle_token other = test_token;
            other.bytes[0] ^= 1;
            rle_auth_proof(&other, 's', proof, 8, proof, 8, proof);
        }
        }
        raw_send(&r, (rle_frame){.type = RLE_FRAME_AUTH, .credit = 64}, proof, n);
        sizes[kind] = raw_rest(&r, answers[kind], sizeof answers[kind]);
        raw_close(&r);
        assert_true(sizes[kind] > RLE_FRAME_HEADER);
        assert_int_equal(sizes[kind], sizes[0]);
        assert_memory_equal(answers[kind], answers[0], sizes[0]);
    }
    rle_rpc_counters c;
    rle_rpc_count(a, &c);
    assert_int_equal(c.refused_peers, KINDS);
    assert_int_equal(rle_rpc_peers(a, NULL, 0), 0);
    rle_rpc_free(a);
}

static void f33_a_replayed_handshake_is_refused(void **state)
{
    (void)state;
    rle_rpc *a = worker("a", NULL);
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    rle_writer hello;
    uint8_t proof[RLE_PROOF_SIZE], answer[4096];
    raw first = raw_connect(a);
    begin_proof(&first, &hello, proof);
    raw_send(&first, (rle_frame){.type = RLE_FRAME_AUTH, .credit = 1}, proof, sizeof proof);
    rle_frame f;
    assert_int_equal(raw_read(&first, &f, answer, sizeof answer), 1);
    assert_int_equal(f.type, RLE_FRAME_AUTH);
    raw_close(&first);
    int times = full() ? 2000 : 50, refused = 0;
    for (int i = 0; i < times; i++) {
        raw r = raw_connect(a);
        raw_send(&r, (rle_frame){.type = RLE_FRAME_HELLO}, hello.data, hello.len);
        assert_int_equal(raw_read(&r, &f, answer, sizeof answer), 1);
        raw_send(&r, (rle_frame){.type = RLE_FRAME_AUTH, .credit = 1}, proof, sizeof proof);
        assert_int_equal(raw_read(&r, &f, answer, sizeof answer), 1);
        refused += f.type == RLE_FRAME_ERROR && f.code == RLE_UNAUTHENTICATED;
        raw_close(&r);
    }
    rle_writer_fini(&hello);
    assert_int_equal(refused, times);
    figure("F33", "a replayed handshake refused %d/%d", refused, times);
    rle_rpc_free(a);
}

/* ---- what can be reached ---- */

/* Each type of frame at each step before the proof is accepted: no call comes out of it. */
static void f33_nothing_is_reachable_before_the_proof(void **state)
{
    (void)state;
    enum { NOTHING, GREETED, REFUSED, STEPS };
    rle_rpc *a = worker("a", NULL);
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    rle_encoder e;
    rle_encoder_init(&e);
    begin_call(&e, "f", 0);
    struct iovec parts[RLE_ENCODER_PARTS];
    assert_int_equal(rle_encoder_parts(&e, parts), 1);
    int reached = 0, tried = 0;
    for (int step = NOTHING; step < STEPS; step++) {
        for (int type = 0; type <= RLE_FRAME_TYPES; type++) {
            raw r = raw_connect(a);
            rle_frame f;
            uint8_t payload[4096];
            if (step == GREETED) {
                rle_writer hello;
                begin_proof(&r, &hello, payload);
                rle_writer_fini(&hello);
            } else if (step == REFUSED) {
                raw_hello_and_auth(&r, "x", 7);
                assert_int_equal(raw_read(&r, &f, payload, sizeof payload), 1);
                assert_int_equal(f.type, RLE_FRAME_ERROR);
            }
            bool hello = type == RLE_FRAME_HELLO && step == NOTHING;
            if (!hello)
                raw_send(&r, (rle_frame){.type = (uint8_t)type, .id = 1}, parts[0].iov_base,
                         parts[0].iov_len);
            raw_send(&r, (rle_frame){.type = RLE_FRAME_CALL, .id = 2}, parts[0].iov_base,
                     parts[0].iov_len);
            rle_incoming_info info;
            rle_decoder d;
            reached += rle_rpc_next_call(a, &info, &d) != NULL;
            tried++;
            raw_close(&r);
        }
    }
    rle_encoder_fini(&e);
    assert_int_equal(reached, 0);
    assert_int_equal(rle_rpc_peers(a, NULL, 0), 0);
    figure("F33", "calls reached before authentication: %d of %d", reached, tried);
    /* The same call of somebody who has the token does arrive. */
    raw r = raw_join(a, "x");
    rle_encoder_init(&e);
    begin_call(&e, "f", 0);
    rle_encoder_parts(&e, parts);
    raw_send(&r, (rle_frame){.type = RLE_FRAME_CALL, .id = 1}, parts[0].iov_base,
             parts[0].iov_len);
    rle_encoder_fini(&e);
    rle_incoming_info info;
    rle_decoder d;
    rle_incoming *in = rle_rpc_next_call(a, &info, &d);
    assert_non_null(in);
    rle_wire_error done = {.code = RLE_UNKNOWN, .message = {"x", 1}};
    rle_incoming_fail(a, in, &done);
    raw_close(&r);
    rle_rpc_free(a);
}

/* ---- how long a comparison takes ---- */

/* What must not be done: stops at the first difference. */
static bool hasty_equal(const uint8_t *a, const uint8_t *b)
{
    const volatile uint8_t *p = a, *q = b;
    for (int i = 0; i < RLE_PROOF_SIZE; i++)
        if (p[i] != q[i]) return false;
    return true;
}

static bool careful_equal(const uint8_t *a, const uint8_t *b)
{
    return rle_auth_equal(a, b);
}

/* Welch's t of the times of two kinds of wrong proofs, tried in random order: wrong in the
 * first byte, and right up to the last one. The slowest tenth of all is left out: there
 * somebody else ran. */
static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static double t_of(bool (*equal)(const uint8_t *, const uint8_t *), int tries)
{
    enum { REPEAT = 8 };
    uint8_t want[RLE_PROOF_SIZE], wrong[2][RLE_PROOF_SIZE];
    assert_int_equal(rle_random_bytes(want, sizeof want), RLE_OK);
    for (int k = 0; k < 2; k++) memcpy(wrong[k], want, sizeof want);
    wrong[0][0] ^= 0x55;
    wrong[1][RLE_PROOF_SIZE - 1] ^= 0x55;
    float *times = malloc((size_t)tries * sizeof *times);
    float *sorted = malloc((size_t)tries * sizeof *sorted);
    uint8_t *kinds = malloc((size_t)tries);
    assert_int_equal(rle_random_bytes(kinds, (size_t)tries), RLE_OK);
    int accepted = 0;
    for (int i = 0; i < tries; i++) {
        uint8_t got[RLE_PROOF_SIZE]; /* the same place for both */
        memcpy(got, wrong[kinds[i] & 1], sizeof got);
        struct timespec from, to;
        clock_gettime(CLOCK_MONOTONIC, &from);
        for (int k = 0; k < REPEAT; k++) accepted += equal(want, got);
        clock_gettime(CLOCK_MONOTONIC, &to);
        times[i] = (float)((to.tv_sec - from.tv_sec) * 1000000000 + to.tv_nsec - from.tv_nsec);
    }
    assert_int_equal(accepted, 0);
    memcpy(sorted, times, (size_t)tries * sizeof *times);
    qsort(sorted, (size_t)tries, sizeof *sorted, by_value);
    float most = sorted[tries - tries / 10];
    double n[2] = {0}, sum[2] = {0}, squares[2] = {0};
    for (int i = 0; i < tries; i++) {
        int k = kinds[i] & 1;
        if (times[i] > most) continue;
        n[k]++;
        sum[k] += times[i];
        squares[k] += (double)times[i] * times[i];
    }
    double mean[2], spread = 0;
    for (int k = 0; k < 2; k++) {
        mean[k] = sum[k] / n[k];
        spread += (squares[k] / n[k] - mean[k] * mean[k]) / n[k];
    }
    free(times);
    free(sorted);
    free(kinds);
    return (mean[1] - mean[0]) / sqrt(spread + 1e-12);
}

static void f33_a_comparison_takes_as_long_wherever_it_differs(void **state)
{
    (void)state;
    int tries = full() ? 1000000 : 50000;
    /* One that stops early is told apart, or this test could not fail. */
    double hasty = fabs(t_of(hasty_equal, tries));
    assert_true(hasty > 4.5);
    /* A processor that changes its speed meanwhile makes two rounds differ, not three. */
    double t = 0;
    for (int round = 0; round < 3; round++) {
        t = fabs(t_of(careful_equal, tries));
        if (t < 4.5) break;
    }
    figure("F33", "comparison of proofs: |t| = %.2f over %d tries (one that stops early: %.0f)", t,
           tries, hasty);
    assert_true(t < 4.5);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, pair_setup, pair_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(f33_each_bit_of_the_token_wrong_once),
        TEST(f33_refusals_are_counted_for_each_address),
        TEST(f33_the_door_is_closed_to_one_address_for_a_minute),
        TEST(f33_every_refusal_is_the_same),
        TEST(f33_a_replayed_handshake_is_refused),
        TEST(f33_nothing_is_reachable_before_the_proof),
        TEST(f33_a_comparison_takes_as_long_wherever_it_differs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
