/* test_rpc_flip.c - recorded sessions in which every bit is flipped once, and the words
 * for frames that are wrong.
 *
 * RLE_FULL=1: all the sessions; else a few of them. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "figure.h"
#include "rpc_pair.h"
#include "rpc_sessions.h"

enum { QUICK = 4, BYTES_OF_A_PAYLOAD = 192 };

static rle_rpc *rpc;
static wire w;
static size_t tried, ended, largest;

static bool full(void)
{
    return getenv("RLE_FULL") != NULL;
}

static int make_rpc(void **state)
{
    if (pair_setup(state)) return -1;
    rpc = wire_rpc("a", 0);
    rle_rpc_set_drop_handle(rpc, wire_drop_handle);
    return rle_rpc_peer(rpc, "x") ? 0 : -1;
}

static int free_rpc(void **state)
{
    rle_rpc_free(rpc);
    return pair_teardown(state);
}

/* What a worker hears of it, as if it came from the one who shakes hands here. */
static void heard(stream *s)
{
    memmove(s->bytes, s->bytes + s->handshake, s->n - s->handshake);
    s->n -= s->handshake;
    wire_mend(s->bytes, s->n, WIRE_MEND_INCARNATION | WIRE_MEND_HEADER);
}

/* Headers whole, of long payloads the beginning. */
static bool worth_it(const stream *s, size_t byte)
{
    for (size_t at = 0; at + RLE_FRAME_HEADER <= s->n;) {
        size_t end = at + RLE_FRAME_HEADER + rle_get32(s->bytes + at + 16);
        if (byte < end) return byte < at + RLE_FRAME_HEADER + BYTES_OF_A_PAYLOAD;
        at = end;
    }
    return true;
}

/* Tell the stream to a worker with open calls. Returns whether the connection outlived
 * it; whatever it did, nothing is left of it. */
static bool tell(const uint8_t *bytes, size_t n, bool weights)
{
    static wire_served served;
    wire_calls calls;
    wire_weights ww;
    size_t blocks = wire_blocks(rpc), timers = rpc->loop.timers;
    wire_open(&w, rpc, "x");
    if (weights) wire_weights_begin(rpc, w.conn->peer, &ww);
    wire_call(&w, &calls);
    wire_feed(&w, bytes, n);
    for (int i = 0; i < 3; i++) {
        wire_place(rpc);
        wire_serve(rpc, &served);
        if (weights) wire_weights_take(&ww);
        if (w.conn && w.conn->write_armed) rle_conn_flush(w.conn);
    }
    bool alive = w.conn != NULL;
    wire_answer_open(rpc, &served);
    wire_shut(&w);
    if (weights) wire_weights_end(rpc, &ww);
    wire_read_results(rpc, &calls);
    wire_serve(rpc, &served);
    wire_answer_open(rpc, &served);
    wire_check_empty(rpc);
    assert_int_equal(wire_blocks(rpc), blocks);
    assert_int_equal(rpc->loop.timers, timers);
    tried++;
    ended += !alive;
    return alive;
}

static void flip_all(int number, const stream *s, bool mend)
{
    uint8_t *bytes = malloc(s->n);
    for (size_t bit = 0; bit < s->n * 8; bit++) {
        if (!worth_it(s, bit / 8)) continue;
        memcpy(bytes, s->bytes, s->n);
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        if (mend) wire_mend(bytes, s->n, WIRE_MEND_HEADER);
        bool alive = tell(bytes, s->n, talks[number].weights);
        /* With checksums no changed bit gets through. */
        if (!mend && alive)
            fail_msg("%s: bit %zu was not noticed", talks[number].name, bit);
    }
    free(bytes);
}

/* Each session as it was, then with every bit flipped. */
static void flip_sessions(bool checksums)
{
    tried = ended = 0;
    for (int i = 0; i < (full() ? (int)TALKS : QUICK); i++) {
        stream s[2];
        record_talk(i, checksums, s);
        for (int side = 0; side < 2; side++) {
            heard(&s[side]);
            if (!tell(s[side].bytes, s[side].n, talks[i].weights))
                fail_msg("%s was not understood", talks[i].name);
            flip_all(i, &s[side], !checksums);
            free(s[side].bytes);
        }
    }
}

static void f16_every_flipped_bit_is_noticed_with_checksums(void **state)
{
    (void)state;
    flip_sessions(true);
    figure("F16", "%zu bits flipped under checksums: all noticed, no crash", tried);
}

/* The header's checksum is made anew, so that the flipped bit is judged for what it says.
 */
static void f16_no_flipped_bit_does_harm_without_checksums(void **state)
{
    (void)state;
    flip_sessions(false);
    figure(
        "F16",
        "%zu bits flipped past the checksums: %zu connections closed, no crash, nothing "
        "left behind",
        tried, ended);
}

/* Each header of each session, every bit of it flipped: when it is refused, little was
 * asked of memory for it. */
static void f16_a_refused_frame_costs_4_kib(void **state)
{
    (void)state;
    size_t refused = 0;
    largest = 0;
    for (int i = 0; i < (int)TALKS; i++) {
        stream s[2];
        record_talk(i, false, s);
        for (int side = 0; side < 2; side++) {
            heard(&s[side]);
            const uint8_t *bytes = s[side].bytes;
            for (size_t at = 0; at + RLE_FRAME_HEADER <= s[side].n;) {
                for (int bit = 0; bit < RLE_FRAME_HEADER * 8; bit += full() ? 1 : 3) {
                    uint8_t head[RLE_FRAME_HEADER];
                    wire_open(&w, rpc, "x");
                    wire_feed(&w, bytes, at);
                    if (!w.conn) { /* an answer to a call that was not made, here */
                        wire_shut(&w);
                        break;
                    }
                    memcpy(head, bytes + at, sizeof head);
                    head[bit / 8] ^= (uint8_t)(1 << bit % 8);
                    wire_mend(head, sizeof head, WIRE_MEND_HEADER);
                    rle_mem_largest();
                    wire_feed(&w, head, sizeof head);
                    size_t wanted = rle_mem_largest();
                    if (!w.conn) {
                        refused++;
                        if (wanted > largest) largest = wanted;
                    }
                    wire_shut(&w);
                }
                at += RLE_FRAME_HEADER + rle_get32(bytes + at + 16);
            }
            free(s[side].bytes);
        }
    }
    assert_true(refused > 1000);
    assert_true(largest <= 4096);
    figure("F16", "%zu refused frames: at most %zu bytes asked for", refused, largest);
}

/* ---- words ---- */

static void tell_frame(rle_frame f, const void *payload, size_t n)
{
    static uint8_t bytes[RLE_FRAME_HEADER + 4096];
    test_log_count = 0;
    wire_open(&w, rpc, "obs_3");
    wire_feed(&w, bytes, wire_frame(bytes, f, payload, n));
}

static void f16_words_for_wrong_frames(void **state)
{
    (void)state;
    static const struct {
        rle_frame f;
        const char *line;
    } cases[] = {
        {{.type = RLE_FRAME_CALL, .id = 1, .body = 4294967295u},
         "closed \"obs_3\": frame of 4294967295 bytes is over the limit of 67108864"},
        {{.type = RLE_FRAME_CALL, .id = 1, .body = 2, .values = 1},
         "closed \"obs_3\": CALL frame contradicts itself"},
        {{.type = RLE_FRAME_CHUNK, .id = 1, .body = 100, .arg = 10},
         "closed \"obs_3\": chunk of message 1 out of order"},
        {{.type = 0}, "closed \"obs_3\": unexpected frame of type 0"},
        {{.type = 99, .flags = RLE_FLAG_MUST_UNDERSTAND},
         "closed \"obs_3\": unexpected frame of type 99"},
        {{.type = RLE_FRAME_AUTH}, "closed \"obs_3\": unexpected frame of type 3"},
        {{.type = RLE_FRAME_CALL, .id = 1, .crc = 1},
         "closed \"obs_3\": CALL frame contradicts itself"},
        {{.type = RLE_FRAME_CALL, .id = 1, .flags = RLE_FLAG_BODY_CRC, .crc = 1},
         "closed \"obs_3\": frame checksum mismatch"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tell_frame(cases[i].f, "abc", 3);
        if (test_log_count != 1 || strcmp(test_log[0], cases[i].line) != 0)
            fail_msg("case %zu: %d lines, the first is \"%s\", not \"%s\"", i,
                     test_log_count, test_log_count ? test_log[0] : "", cases[i].line);
        assert_null(w.conn);
        wire_shut(&w);
        memset(rpc->repeats, 0, sizeof rpc->repeats); /* the same line may come at once */
    }
    static const struct {
        const char *bytes, *line;
    } raws[] = {{"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
                 "closed unix:/wire: not an rlengine peer (first bytes \"GET \")"},
                {"\x16\x03\x01\x02",
                 "closed unix:/wire: the other side speaks tls, which is not set here; "
                 "set tls here too"}};
    for (size_t i = 0; i < 2; i++) {
        test_log_count = 0;
        wire_begin(&w, rpc, false);
        wire_feed(&w, (const uint8_t *)raws[i].bytes, strlen(raws[i].bytes));
        assert_null(w.conn);
        assert_string_equal(test_log[0], raws[i].line);
        assert_int_equal(test_log_count, 1);
        wire_shut(&w);
    }
    /* Another version, in a header that is whole otherwise. */
    uint8_t bytes[RLE_FRAME_HEADER];
    wire_open(&w, rpc, "obs_3");
    wire_frame(bytes, (rle_frame){.type = RLE_FRAME_PING}, NULL, 0);
    bytes[4] = 2;
    wire_mend(bytes, sizeof bytes, WIRE_MEND_HEADER);
    test_log_count = 0;
    wire_feed(&w, bytes, sizeof bytes);
    assert_string_equal(test_log[0],
                        "closed \"obs_3\": frame of version 2, this is version 1");
    wire_shut(&w);
    /* And one with a flipped bit. */
    wire_open(&w, rpc, "obs_3");
    bytes[20] ^= 4;
    test_log_count = 0;
    wire_feed(&w, bytes, sizeof bytes);
    assert_string_equal(test_log[0], "closed \"obs_3\": frame checksum mismatch");
    wire_shut(&w);
}

/* Who follows weights is told nothing, as a version and as the first piece of one. */
static void f16_answers_without_weights_leave_nothing(void **state)
{
    (void)state;
    uint8_t bytes[2 * RLE_FRAME_HEADER + 8];
    for (int whole = 0; whole < 2; whole++) {
        rle_frame f = {.type = RLE_FRAME_RESULT,
                       .id = 1,
                       .body = whole ? 0 : 100,
                       .values = whole ? 0 : 8,
                       .tensors = whole ? 0 : 1,
                       .flags = whole ? 0 : RLE_FLAG_MORE};
        if (tell(bytes, wire_frame(bytes, f, "12345678", whole ? 0 : 8), true) != !whole)
            fail_msg("case %d", whole);
    }
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_rpc, free_rpc)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(f16_every_flipped_bit_is_noticed_with_checksums),
        TEST(f16_no_flipped_bit_does_harm_without_checksums),
        TEST(f16_a_refused_frame_costs_4_kib),
        TEST(f16_words_for_wrong_frames),
        TEST(f16_answers_without_weights_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
