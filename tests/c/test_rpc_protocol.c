/* test_rpc_protocol.c - frames no worker sends, and memory that runs out. */
#include "rpc_pair.h"

#include "rpc/crc32c.h"

static void turns(pair *p, int n)
{
    for (int i = 0; i < n; i++) turn(p->a, p->b);
}

static void check_alive(rle_rpc *a, const char *name)
{
    rle_peer *peer = rle_rpc_peer(a, name);
    assert_false(rle_peer_connected(a, peer));
}

static void protocol_errors_close_the_connection(void **state)
{
    (void)state;
    rle_rpc *a = worker("a", NULL);
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    static const struct {
        rle_frame f;
        const char *payload;
        size_t n;
        const char *log;
    } cases[] = {
        {{.type = RLE_FRAME_CALL, .id = 0}, "abc", 3, "closed \"x\": call without a number"},
        {{.type = RLE_FRAME_CALL, .id = 5}, "abc", 3, "closed \"x\": malformed values: cut short"},
        {{.type = RLE_FRAME_RESULT, .id = 5}, "\0\0", 2,
         "closed \"x\": answer to call 5, which was not made"},
        {{.type = RLE_FRAME_CHUNK, .id = 5, .arg = 1, .body = 100}, "abc", 3,
         "closed \"x\": chunk of message 5 out of order"},
        {{.type = RLE_FRAME_HELLO}, "abc", 3, "unexpected frame of type 1"},
        {{.type = 77, .flags = RLE_FLAG_MUST_UNDERSTAND}, "", 0, "unexpected frame of type 77"},
        {{.type = RLE_FRAME_PING}, "abc", 3, "PING frame with a body"},
        {{.type = RLE_FRAME_RELEASE}, "abc", 3, "malformed RELEASE frame"},
        {{.type = RLE_FRAME_CALL, .id = 1, .tensors = 65, .values = 1}, "abc", 3,
         "65 tensors in a message, the limit is 64"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        raw r = raw_join(a, "x");
        raw_send(&r, cases[i].f, cases[i].payload, cases[i].n);
        if (!logged(cases[i].log)) fail_msg("case %zu: no line with: %s", i, cases[i].log);
        rle_frame f;
        uint8_t payload[256];
        assert_int_equal(raw_read(&r, &f, payload, sizeof payload), 0);
        raw_close(&r);
        check_alive(a, "x");
    }
    /* An unknown type of no importance is skipped, with its body. */
    raw r = raw_join(a, "x");
    raw_send(&r, (rle_frame){.type = 77}, "abcdef", 6);
    raw_send(&r, (rle_frame){.type = RLE_FRAME_PING, .arg = 4711}, NULL, 0);
    rle_frame f;
    uint8_t payload[256];
    assert_int_equal(raw_read(&r, &f, payload, sizeof payload), 1);
    assert_int_equal(f.type, RLE_FRAME_PONG);
    assert_int_equal(f.arg, 4711);
    /* A repeated request. */
    static const char head[] = "\0\0\0\0\0\0\0\0\0\1f\0\0";
    raw_send(&r, (rle_frame){.type = RLE_FRAME_CALL, .id = 17}, head, 13);
    raw_send(&r, (rle_frame){.type = RLE_FRAME_CALL, .id = 17}, head, 13);
    assert_true(logged("closed \"x\": request 17 repeated"));
    raw_close(&r);
    /* More calls than it was allowed. */
    r = raw_join(a, "x");
    for (int i = 1; i <= 65; i++)
        raw_send(&r, (rle_frame){.type = RLE_FRAME_CALL, .id = (uint64_t)i}, head, 13);
    assert_true(logged("closed \"x\": more than 64 calls open"));
    raw_close(&r);
    /* A frame of somebody's former life. */
    r = raw_join(a, "x");
    r.incarnation++;
    raw_send(&r, (rle_frame){.type = RLE_FRAME_PING}, NULL, 0);
    assert_true(logged("closed \"x\": frame of another incarnation"));
    raw_close(&r);
    rle_rpc_free(a);
}

static void long_messages_may_not_pile_up(void **state)
{
    (void)state;
    rle_rpc *a = worker("a", &(rle_rpc_options){.max_message = 1 << 20});
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    raw r = raw_join(a, "x");
    for (uint64_t i = 1; i <= 3; i++)
        raw_send(&r, (rle_frame){.type = RLE_FRAME_CALL, .id = i, .flags = RLE_FLAG_MORE,
                                 .body = 1 << 20, .values = 100, .tensors = 1},
                 "abcd", 4);
    assert_true(logged("unfinished messages of more than 2097152 bytes"));
    raw_close(&r);
    r = raw_join(a, "x");
    raw_send(&r, (rle_frame){.type = RLE_FRAME_CALL, .id = 1, .body = (1 << 20) + 1,
                             .flags = RLE_FLAG_MORE, .values = 4, .tensors = 1},
             "abcd", 4);
    assert_true(logged("frame of 1048577 bytes is over the limit of 1048576"));
    raw_close(&r);
    rle_rpc_free(a);
}

/* Every bit of a recorded exchange is flipped, one at a time, with and without the checksum
 * of the body: nothing but closed connections and error answers may come of it. */
static void no_flipped_bit_of_a_session_does_harm(void **state)
{
    (void)state;
    rle_rpc *a = worker("a", NULL);
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    rle_encoder e;
    rle_encoder_init(&e);
    begin_call(&e, "f", 3);
    rle_encode_integer(&e, 1);
    rle_encode_table(&e, 1, 1);
    rle_encode_bool(&e, true);
    rle_encode_string(&e, "key", 3);
    rle_encode_number(&e, 0.5);
    rle_encode_leave(&e);
    rle_wire_ref ref = {.kind = RLE_REF_SENDERS, .object = 3, .class_name = "C"};
    rle_encode_ref(&e, &ref);
    size_t n = rle_encoder_values_size(&e);
    uint8_t session[4 * RLE_FRAME_HEADER + 512];
    for (int with_crc = 0; with_crc < 2; with_crc++) {
        for (size_t bit = 0;; bit++) {
            raw r = raw_join(a, "x");
            rle_frame f = {.type = RLE_FRAME_CALL, .id = 1, .payload = (uint32_t)n,
                           .values = (uint32_t)n, .body = n, .incarnation = r.incarnation};
            if (with_crc) {
                f.flags = RLE_FLAG_BODY_CRC;
                f.crc = rle_crc32c(0, e.w.data + RLE_FRAME_HEADER, n);
            }
            size_t size = 0;
            rle_frame_encode(&f, session);
            memcpy(session + RLE_FRAME_HEADER, e.w.data + RLE_FRAME_HEADER, n);
            size += RLE_FRAME_HEADER + n;
            f = (rle_frame){.type = RLE_FRAME_CANCEL, .id = 1, .incarnation = r.incarnation};
            rle_frame_encode(&f, session + size);
            size += RLE_FRAME_HEADER;
            f = (rle_frame){.type = RLE_FRAME_RELEASE, .payload = 12, .values = 12, .body = 12,
                            .incarnation = r.incarnation};
            rle_frame_encode(&f, session + size);
            memcpy(session + size + RLE_FRAME_HEADER, "\1\0\0\0\0\0\0\0\1\0\0\0", 12);
            size += RLE_FRAME_HEADER + 12;
            if (bit >= size * 8) {
                raw_close(&r);
                break;
            }
            session[bit / 8] ^= (uint8_t)(1 << bit % 8);
            raw_write(&r, session, size);
            rle_incoming_info info;
            rle_decoder d;
            rle_incoming *in;
            while ((in = rle_rpc_next_call(a, &info, &d)) != NULL) {
                rle_status s = RLE_OK;
                for (int i = 0; i < info.head.args && s == RLE_OK; i++)
                    s = rle_decode_skip(&d, NULL, NULL);
                if (with_crc) assert_int_equal(s, RLE_OK); /* it would have been noticed */
                rle_wire_error err = {.code = RLE_NOT_FOUND};
                rle_incoming_fail(a, in, &err);
            }
            raw_close(&r);
            turn(a, NULL);
        }
    }
    rle_encoder_fini(&e);
    for (int i = 0; i < 5; i++) turn(a, NULL);
    rle_rpc_counters c;
    rle_rpc_count(a, &c);
    assert_int_equal(c.live_incoming, 0);
    rle_rpc_free(a);
}

/* Cut after every byte: the message is never seen, the line says how far it came. */
static void every_cut_of_a_frame_is_noticed(void **state)
{
    (void)state;
    rle_rpc *a = worker("a", NULL);
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    uint8_t bytes[RLE_FRAME_HEADER + 13];
    static const char head[] = "\0\0\0\0\0\0\0\0\0\1f\0\0";
    for (size_t cut = 1; cut < sizeof bytes; cut++) {
        raw r = raw_join(a, "x");
        rle_frame f = {.type = RLE_FRAME_CALL, .id = 1, .payload = 13, .values = 13, .body = 13,
                       .incarnation = r.incarnation};
        rle_frame_encode(&f, bytes);
        memcpy(bytes + RLE_FRAME_HEADER, head, 13);
        raw_write(&r, bytes, cut);
        test_log_count = 0;
        raw_close(&r);
        rle_incoming_info info;
        rle_decoder d;
        assert_null(rle_rpc_next_call(a, &info, &d));
        char want[128];
        snprintf(want, sizeof want, "end of stream inside a frame (%zu of %d bytes)", cut,
                 cut < RLE_FRAME_HEADER ? RLE_FRAME_HEADER : RLE_FRAME_HEADER + 13);
        if (!logged(want)) fail_msg("no line with: %s", want);
    }
    rle_rpc_free(a);
}

/* One byte at a time it is the same message. */
static void a_trickle_is_put_together(void **state)
{
    (void)state;
    rle_rpc *a = worker("a", NULL);
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    raw r = raw_join(a, "x");
    rle_encoder e;
    rle_encoder_init(&e);
    begin_call(&e, "f", 1);
    rle_encode_integer(&e, 41);
    size_t n = rle_encoder_values_size(&e);
    rle_frame f = {.type = RLE_FRAME_CALL, .id = 1, .payload = (uint32_t)n,
                   .values = (uint32_t)n, .body = n, .incarnation = r.incarnation};
    rle_frame_encode(&f, e.w.data);
    for (size_t i = 0; i < e.w.len; i++) raw_write(&r, e.w.data + i, 1);
    rle_encoder_fini(&e);
    assert_true(serve_one(a));
    uint8_t payload[64];
    assert_int_equal(raw_read(&r, &f, payload, sizeof payload), 1);
    assert_int_equal(f.type, RLE_FRAME_RESULT);
    assert_int_equal(f.credit, 1);
    raw_close(&r);
    rle_rpc_free(a);
}

/* ---- memory running out ---- */

static void every_allocation_may_fail(void **state)
{
    (void)state;
    size_t bytes = rle_mem_bytes();
    for (uint64_t nth = 1; nth < 400; nth++) {
        pair p = make_pair(NULL, NULL);
        rle_future *f = NULL;
        rle_encoder e;
        rle_encoder_init(&e);
        begin_call(&e, "f", 1);
        rle_encode_integer(&e, 1);
        rle_call_spec spec = {.peer = p.to_a, .method = "f"};
        rle_mem_fault(nth, false);
        rle_status s = rle_rpc_call(p.b, &spec, &e, &f);
        for (int i = 0; i < 6; i++) {
            turns(&p, 1);
            rle_incoming_info info;
            rle_decoder d;
            rle_incoming *in = rle_rpc_next_call(p.a, &info, &d);
            if (!in) continue;
            rle_incoming_read(p.a, in);
            rle_encoder_reset(&e);
            rle_encode_result_head(&e, 1);
            rle_encode_integer(&e, 2);
            if (rle_encoder_status(&e) != RLE_OK ||
                rle_incoming_reply(p.a, in, &e) != RLE_OK) {
                rle_wire_error err = {.code = RLE_RESOURCE_EXHAUSTED};
                rle_incoming_fail(p.a, in, &err);
            }
        }
        rle_mem_fault(0, false);
        rle_encoder_fini(&e);
        turns(&p, 5);
        if (s == RLE_OK) {
            assert_int_not_equal(rle_future_status(p.b, f), RLE_FUTURE_PENDING);
            rle_future_release(p.b, f);
        }
        /* After it the next call works, unless the connection had to go. */
        if (rle_peer_connected(p.b, p.to_a) && rle_peer_connected(p.a, p.to_b)) {
            f = call(p.b, p.to_a, "f", 5);
            for (int i = 0; i < 6; i++) {
                turns(&p, 1);
                serve_one(p.a);
            }
            assert_int_equal(result_of(f), 6);
            rle_future_release(p.b, f);
        }
        free_pair(&p);
        assert_int_equal(rle_mem_bytes(), bytes);
        if (nth > 40 && nth < 390) nth += 30; /* few allocations are left that far */
    }
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, pair_setup, pair_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(protocol_errors_close_the_connection),
        TEST(long_messages_may_not_pile_up),
        TEST(no_flipped_bit_of_a_session_does_harm),
        TEST(every_cut_of_a_frame_is_noticed),
        TEST(a_trickle_is_put_together),
        TEST(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
