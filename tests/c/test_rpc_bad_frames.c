/* test_rpc_bad_frames.c - fault F16: what a peer may claim in a frame, what the log then
 * says or the caller hears, and how much memory that costs. */
#include "rpc_pair.h"

#include "figure.h"
#include "rpc/crc32c.h"

enum { REFUSED_MAX = 4096 }; /* bytes of the largest block a refused frame may ask for */

/* A header on the wire, bits changed by `spoil`, with a fresh checksum unless it changed
 * that. */
typedef struct bad_header {
    rle_frame f;
    size_t at; /* byte to change afterwards; 0 = none */
    uint8_t to;
    bool keep_crc; /* of the header as it was before */
    const char *log;
} bad_header;

static size_t most;

static void note_largest(void)
{
    size_t largest = rle_mem_largest();
    if (largest > most) most = largest;
    assert_true(largest <= REFUSED_MAX);
}

static void f16_a_header_that_lies_closes_the_connection(void **state)
{
    (void)state;
    static const bad_header cases[] = {
        {{.type = RLE_FRAME_CALL, .id = 1},
         4,
         2,
         false,
         "closed \"x\": frame of version 2, this is version 1"},
        {{.type = RLE_FRAME_CALL, .id = 1},
         8,
         9,
         true,
         "closed \"x\": frame checksum mismatch"},
        {{.type = RLE_FRAME_CALL, .id = 1},
         1,
         'X',
         false,
         "closed \"x\": not an rlengine peer (first bytes \"RXE1\")"},
        {{.type = RLE_FRAME_CALL, .id = 1, .body = 4294967295u, .flags = RLE_FLAG_MORE},
         0,
         0,
         false,
         "closed \"x\": frame of 4294967295 bytes is over the limit of 67108864"},
        {{.type = RLE_FRAME_CALL, .id = 1, .body = UINT64_MAX, .flags = RLE_FLAG_MORE},
         0,
         0,
         false,
         "closed \"x\": frame of 18446744073709551615 bytes is over the limit of "
         "67108864"},
        {{.type = RLE_FRAME_CALL, .id = 1, .payload = 2 << 20, .body = 2 << 20},
         0,
         0,
         false,
         "closed \"x\": frame of 2097152 bytes is over the limit of 1048576"},
        {{.type = RLE_FRAME_CALL, .id = 1, .payload = 64, .body = 128},
         0,
         0,
         false,
         "closed \"x\": CALL frame contradicts itself"},
        {{.type = 99, .flags = RLE_FLAG_MUST_UNDERSTAND},
         0,
         0,
         false,
         "closed \"x\": unexpected frame of type 99"},
    };
    rle_rpc *a = worker("a", NULL);
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    size_t bytes = rle_mem_bytes();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const bad_header *c = &cases[i];
        raw r = raw_join(a, "x");
        rle_frame f = c->f;
        uint8_t head[RLE_FRAME_HEADER];
        f.incarnation = r.incarnation;
        if (!f.values) f.values = (uint32_t)f.body;
        rle_frame_encode(&f, head);
        if (c->at) {
            head[c->at] = c->to;
            if (!c->keep_crc) rle_put32(head + 60, rle_crc32c(0, head, 60));
        }
        rle_mem_largest();
        raw_write(&r, head, sizeof head);
        note_largest();
        if (!logged(c->log)) fail_msg("case %zu: no line with: %s", i, c->log);
        uint8_t payload[256];
        assert_int_equal(raw_read(&r, &f, payload, sizeof payload), 0);
        raw_close(&r);
    }
    for (int i = 0; i < 3; i++) turn(a, NULL);
    if (rle_mem_bytes() > bytes) bytes = rle_mem_bytes(); /* the name "x" is remembered */
    raw r = raw_join(a, "x");
    raw_close(&r);
    for (int i = 0; i < 3; i++) turn(a, NULL);
    assert_int_equal(rle_mem_bytes(), bytes);
    figure("F16",
           "a header that lies: %zu kinds, each closes the connection; the largest "
           "block asked for has %zu bytes",
           sizeof cases / sizeof *cases, most);
    rle_rpc_free(a);
}

/* A call whose one argument is `values`, with `tensor` bytes behind it. */
static void send_call(raw *r, const uint8_t *argument, size_t n, size_t tensor)
{
    static const char head[] = "\0\0\0\0\0\0\0\0\0\1f\0\1";
    uint8_t body[1024] = {0};
    size_t values = 13 + n;
    memcpy(body, head, 13);
    memcpy(body + 13, argument, n);
    size_t size = tensor ? rle_align64(values) + tensor : values;
    assert_true(size <= sizeof body);
    raw_send(r,
             (rle_frame){.type = RLE_FRAME_CALL,
                         .id = 1,
                         .values = (uint32_t)values,
                         .tensors = tensor ? 1 : 0},
             body, size);
}

static void f16_values_that_lie_are_found_before_anything_is_allocated(void **state)
{
    (void)state;
    uint8_t nested[140];
    for (size_t i = 0; i < sizeof nested; i += 2) {
        nested[i] = 0x08;
        nested[i + 1] = i + 2 < sizeof nested;
    }
    static const uint8_t shape[] = {0x0a, 0, 2, 0x80, 0x80, 0x04, 0x80, 0x80, 0x04};
    static const uint8_t many[] = {0x08, 0xff, 0xff, 0xff, 0xff, 0x0f};
    static const uint8_t text[] = {0x07, 0x80, 0x80, 0x80, 0x80, 0x04};
    const struct {
        const uint8_t *values;
        size_t n, tensor;
        const char *words;
    } cases[] = {
        {shape, sizeof shape, 16,
         "tensor 1: shape 65536x65536 f32 needs 17179869184 bytes, frame has 16"},
        {nested, sizeof nested, 0, "value nested deeper than 64"},
        {many, sizeof many, 0, "malformed values"},
        {text, sizeof text, 0,
         "a string of 1073741824 bytes is over the limit of 1048576"},
    };
    rle_rpc *a = worker("a", NULL);
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        raw r = raw_join(a, "x");
        rle_mem_largest();
        send_call(&r, cases[i].values, cases[i].n, cases[i].tensor);
        /* The reader of the arguments meets it: here in place of a handler. */
        rle_incoming_info info;
        rle_decoder d;
        rle_incoming *in = rle_rpc_next_call(a, &info, &d);
        assert_non_null(in);
        assert_int_equal(rle_decode_skip(&d, NULL, NULL), RLE_INVALID_ARGUMENT);
        if (!strstr(rle_message(), cases[i].words))
            fail_msg("case %zu: %s", i, rle_message());
        note_largest();
        rle_incoming_read(a, in);
        rle_wire_error e = {.code = RLE_INVALID_ARGUMENT};
        rle_incoming_fail(a, in, &e);
        raw_close(&r);
        for (int k = 0; k < 3; k++) turn(a, NULL);
    }
    figure(
        "F16",
        "values that lie: %zu kinds, the call fails; the largest block asked for has %zu "
        "bytes",
        sizeof cases / sizeof *cases, most);
    rle_rpc_free(a);
}

/* A few bytes begin a message that holds memory until its end has come. */
static void f16_messages_that_are_only_begun_are_not_kept_without_end(void **state)
{
    (void)state;
    enum { BEGUN = 10000 };
    static const uint8_t byte;
    rle_rpc *a = worker("a", NULL);
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    raw r = raw_join(a, "x");
    size_t before = rle_mem_bytes(), held = 0;
    int n = 0;
    for (; n < BEGUN && rle_peer_connected(a, rle_rpc_peer(a, "x")); n++) {
        raw_send(&r,
                 (rle_frame){.type = RLE_FRAME_CALL,
                             .flags = RLE_FLAG_MORE,
                             .id = (uint64_t)n + 1,
                             .values = 2,
                             .body = 2},
                 &byte, 1);
        if (rle_mem_bytes() > before + held) held = rle_mem_bytes() - before;
    }
    assert_true(n < BEGUN);
    assert_true(logged("closed \"x\": unfinished messages of more than 134217728 bytes"));
    figure("F16", "messages that are only begun: closed after %d, which held %zu bytes",
           n, held);
    raw_close(&r);
    rle_rpc_free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(f16_a_header_that_lies_closes_the_connection,
                                        pair_setup, pair_teardown),
        cmocka_unit_test_setup_teardown(
            f16_values_that_lie_are_found_before_anything_is_allocated, pair_setup,
            pair_teardown),
        cmocka_unit_test_setup_teardown(
            f16_messages_that_are_only_begun_are_not_kept_without_end, pair_setup,
            pair_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
