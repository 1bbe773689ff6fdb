/* test_rpc_codec.c - values and errors of messages: round trips, and refusal of everything
 * that is cut short, flipped or larger than allowed. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "rpc/codec.h"
#include "rpc/rpc.h"

/* One of everything; the tensor's bytes come behind the values as they do in a message. */
static void encode_all(rle_encoder *e, const float *data)
{
    rle_call_head head = {.object = 17, .method_len = 4, .args = 11};
    memcpy(head.method, "ping", 4);
    rle_encoder_reset(e);
    rle_encode_call_head(e, &head);
    rle_encode_nil(e);
    rle_encode_bool(e, true);
    rle_encode_number(e, 0.1);
    rle_encode_number(e, -77);
    rle_encode_i64(e, INT64_MIN);
    rle_encode_u64(e, UINT64_MAX);
    assert_int_equal(rle_encode_string(e, "short", 5), RLE_OK);
    char text[100];
    memset(text, 'x', sizeof text);
    assert_int_equal(rle_encode_string(e, text, sizeof text), RLE_OK);
    assert_int_equal(rle_encode_table(e, 2, 1), RLE_OK);
    rle_encode_number(e, 5);
    assert_int_equal(rle_encode_table(e, 0, 0), RLE_OK);
    rle_encode_leave(e);
    assert_int_equal(rle_encode_string(e, "key", 3), RLE_OK);
    rle_encode_bool(e, false);
    rle_encode_leave(e);
    rle_array a = {.data = (void *)data, .dtype = RLE_F32, .ndim = 2, .shape = {3, 5}};
    rle_array_set_contiguous(&a);
    assert_int_equal(rle_encode_tensor(e, &a, NULL), RLE_OK);
    rle_wire_ref ref = {.kind = RLE_REF_THIRD,
                        .object = 3,
                        .class_name = "Observer",
                        .owner = "obs_1",
                        .incarnation = 77,
                        .ticket = "0123456789abcde",
                        .addresses = 1,
                        .address = {"unix:/run/x"}};
    rle_encode_ref(e, &ref);
    assert_int_equal(rle_encoder_status(e), RLE_OK);
}

/* The message as it would lie in memory; the caller frees it. */
static uint8_t *message_of(const rle_encoder *e, size_t *size)
{
    struct iovec parts[RLE_ENCODER_PARTS];
    int n = rle_encoder_parts(e, parts);
    *size = rle_encoder_body_size(e);
    uint8_t *body = malloc(*size ? *size : 1), *at = body;
    for (int i = 0; i < n; i++) {
        memcpy(at, parts[i].iov_base, parts[i].iov_len);
        at += parts[i].iov_len;
    }
    assert_int_equal(at - body, *size);
    return body;
}

static rle_status walk(const uint8_t *body, size_t size, size_t values, int tensors)
{
    rle_decoder d;
    rle_call_head head;
    rle_decoder_init(&d, body, size, values, tensors);
    RLE_TRY(rle_decode_call_head(&d, &head));
    for (int i = 0; i < head.args; i++) RLE_TRY(rle_decode_skip(&d, NULL, NULL));
    return rle_decode_end(&d);
}

static void values_come_back_as_they_were(void **state)
{
    (void)state;
    float data[15];
    for (int i = 0; i < 15; i++) data[i] = (float)i * 0.5f;
    rle_encoder e;
    rle_encoder_init(&e);
    encode_all(&e, data);
    size_t size, values = rle_encoder_values_size(&e);
    uint8_t *body = message_of(&e, &size);
    rle_decoder d;
    rle_call_head head;
    rle_value v;
    rle_decoder_init(&d, body, size, values, 1);
    assert_int_equal(rle_decode_call_head(&d, &head), RLE_OK);
    assert_int_equal(head.object, 17);
    assert_string_equal(head.method, "ping");
    assert_int_equal(rle_decode(&d, &v), RLE_OK);
    assert_int_equal(v.kind, RLE_VALUE_NIL);
    rle_decode(&d, &v);
    assert_true(v.kind == RLE_VALUE_BOOL && v.u.boolean);
    rle_decode(&d, &v);
    assert_true(v.kind == RLE_VALUE_NUMBER && v.u.number == 0.1);
    rle_decode(&d, &v);
    assert_true(v.kind == RLE_VALUE_INTEGER && v.u.integer == -77);
    rle_decode(&d, &v);
    assert_true(v.kind == RLE_VALUE_I64 && v.u.integer == INT64_MIN);
    rle_decode(&d, &v);
    assert_true(v.kind == RLE_VALUE_U64 && v.u.u64 == UINT64_MAX);
    rle_decode(&d, &v);
    assert_true(v.kind == RLE_VALUE_STRING && v.u.string.len == 5);
    assert_memory_equal(v.u.string.data, "short", 5);
    rle_decode(&d, &v);
    assert_true(v.kind == RLE_VALUE_STRING && v.u.string.len == 100);
    rle_decode(&d, &v);
    assert_true(v.kind == RLE_VALUE_TABLE && v.u.table.list == 2 && v.u.table.pairs == 1);
    rle_decode(&d, &v);
    rle_decode(&d, &v);
    assert_true(v.kind == RLE_VALUE_TABLE && v.u.table.list == 0);
    rle_decode_leave(&d);
    assert_int_equal(rle_decode_key(&d, &v), RLE_OK);
    rle_decode(&d, &v);
    rle_decode_leave(&d);
    assert_int_equal(rle_decode(&d, &v), RLE_OK);
    assert_true(v.kind == RLE_VALUE_TENSOR && v.u.tensor.ndim == 2);
    assert_int_equal(v.u.tensor.shape[1], 5);
    assert_int_equal(v.u.tensor.at % RLE_TENSOR_ALIGN, 0);
    assert_memory_equal(v.u.tensor.data, data, sizeof data);
    assert_int_equal(rle_decode(&d, &v), RLE_OK);
    assert_true(v.kind == RLE_VALUE_REF && v.u.ref.kind == RLE_REF_THIRD);
    assert_string_equal(v.u.ref.owner, "obs_1");
    assert_string_equal(v.u.ref.class_name, "Observer");
    assert_string_equal(v.u.ref.address[0], "unix:/run/x");
    assert_int_equal(v.u.ref.incarnation, 77);
    assert_memory_equal(v.u.ref.ticket, "0123456789abcde", 16);
    assert_int_equal(rle_decode_end(&d), RLE_OK);
    free(body);
    rle_encoder_fini(&e);
}

static void numbers_keep_what_they_are(void **state)
{
    (void)state;
    static const double numbers[] = {0,    -0.0, 1,       -1,    127,     128,  -128, 1e15,
                                     9007199254740992.0, -9007199254740992.0, 1e16, 0.5, 1e300,
                                     -INFINITY, INFINITY, 5e-324};
    rle_encoder e;
    rle_encoder_init(&e);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        rle_encoder_reset(&e);
        rle_encode_number(&e, numbers[i]);
        rle_decoder d;
        rle_value v;
        size_t n = rle_encoder_values_size(&e);
        rle_decoder_init(&d, e.w.data + RLE_FRAME_HEADER, n, n, 0);
        assert_int_equal(rle_decode(&d, &v), RLE_OK);
        double back = v.kind == RLE_VALUE_INTEGER ? (double)v.u.integer : v.u.number;
        assert_memory_equal(&back, &numbers[i], sizeof back);
    }
    rle_encoder_fini(&e);
}

static void every_cut_of_a_message_is_refused(void **state)
{
    (void)state;
    float data[15] = {0};
    rle_encoder e;
    rle_encoder_init(&e);
    encode_all(&e, data);
    size_t size, values = rle_encoder_values_size(&e);
    uint8_t *body = message_of(&e, &size);
    assert_int_equal(walk(body, size, values, 1), RLE_OK);
    for (size_t cut = 0; cut < values; cut++) {
        /* In a block of just that size, so that an instrumented build sees a step beyond. */
        uint8_t *part = malloc(cut ? cut : 1);
        memcpy(part, body, cut);
        assert_int_not_equal(walk(part, cut, cut, 0), RLE_OK);
        assert_int_not_equal(walk(part, cut, cut, 1), RLE_OK);
        free(part);
    }
    for (size_t cut = 0; cut < size; cut++)
        assert_int_not_equal(walk(body, cut, values < cut ? values : cut, 1), RLE_OK);
    assert_int_not_equal(walk(body, size, values, 2), RLE_OK);
    assert_int_not_equal(walk(body, size, values, 0), RLE_OK);
    free(body);
    rle_encoder_fini(&e);
}

static void no_flipped_bit_of_a_message_leads_astray(void **state)
{
    (void)state;
    float data[15] = {0};
    rle_encoder e;
    rle_encoder_init(&e);
    encode_all(&e, data);
    size_t size, values = rle_encoder_values_size(&e), blocks = rle_mem_blocks();
    uint8_t *body = message_of(&e, &size);
    int refusals = 0;
    for (size_t bit = 0; bit < values * 8; bit++) {
        body[bit / 8] ^= (uint8_t)(1 << bit % 8);
        refusals += walk(body, size, values, 1) != RLE_OK;
        body[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    assert_true(refusals > 0);
    assert_int_equal(rle_mem_blocks(), blocks); /* looking allocates nothing */
    free(body);
    rle_encoder_fini(&e);
}

static rle_status decode_one(const void *bytes, size_t n, size_t body, int tensors)
{
    rle_decoder d;
    rle_decoder_init(&d, bytes, body, n, tensors);
    return rle_decode_skip(&d, NULL, NULL);
}

static void counts_and_sizes_are_believed_only_as_far_as_bytes_go(void **state)
{
    (void)state;
    /* a list of 2^32 values in 6 bytes; a table likewise; a string of 1 GiB */
    assert_int_not_equal(decode_one("\x08\xff\xff\xff\xff\x0f", 6, 6, 0), RLE_OK);
    assert_int_not_equal(decode_one("\x09\x00\xff\xff\xff\xff\x0f", 7, 7, 0), RLE_OK);
    assert_int_not_equal(decode_one("\x07\x80\x80\x80\x80\x04", 6, 6, 0), RLE_OK);
    assert_non_null(strstr(rle_message(), "over the limit of 1048576"));
    /* f32[65536,65536] */
    uint8_t big[] = {0x0a, 0, 2, 0x80, 0x80, 0x04, 0x80, 0x80, 0x04};
    assert_int_equal(decode_one(big, sizeof big, 64 + 16, 1), RLE_INVALID_ARGUMENT);
    assert_string_equal(
        rle_message(),
        "tensor 1: shape 65536x65536 f32 needs 17179869184 bytes, frame has 16");
    /* sizes whose product wraps around to something small */
    uint8_t wraps[] = {0x0a, 0, 2, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x40,
                       0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x40};
    assert_int_equal(decode_one(wraps, sizeof wraps, 1 << 20, 1), RLE_INVALID_ARGUMENT);
    /* more than 8 dimensions, an unknown dtype */
    assert_int_not_equal(decode_one("\x0a\x00\x09\x01\x01\x01\x01\x01\x01\x01\x01\x01", 12, 128,
                                    1), RLE_OK);
    assert_int_not_equal(decode_one("\x0a\x63\x00", 3, 128, 1), RLE_OK);
    /* NaN, nil and tables are no keys */
    assert_int_not_equal(decode_one("\x09\x00\x01\x03\0\0\0\0\0\0\xf8\x7f\x00", 13, 13, 0),
                         RLE_OK);
    assert_int_not_equal(decode_one("\x09\x00\x01\x00\x00", 5, 5, 0), RLE_OK);
    assert_int_not_equal(decode_one("\x09\x00\x01\x08\x00\x00", 6, 6, 0), RLE_OK);
    assert_int_not_equal(decode_one("\x0c\x01", 2, 2, 0), RLE_OK); /* error mark, no table */
}

static void nesting_ends_at_64(void **state)
{
    (void)state;
    uint8_t nested[200];
    for (int depth = 1; depth <= 80; depth++) {
        for (int i = 0; i < depth; i++) {
            nested[2 * i] = 0x08;
            nested[2 * i + 1] = i < depth - 1;
        }
        rle_status s = decode_one(nested, (size_t)depth * 2, (size_t)depth * 2, 0);
        assert_int_equal(s, depth <= 64 ? RLE_OK : RLE_INVALID_ARGUMENT);
        if (s != RLE_OK) assert_string_equal(rle_message(), "value nested deeper than 64");
    }
    rle_encoder e;
    rle_encoder_init(&e);
    for (int i = 0; i < 64; i++) assert_int_equal(rle_encode_table(&e, 1, 0), RLE_OK);
    assert_int_equal(rle_encode_table(&e, 1, 0), RLE_INVALID_ARGUMENT);
    rle_encoder_fini(&e);
}

static void a_message_holds_65536_values_and_64_tensors(void **state)
{
    (void)state;
    rle_encoder e;
    rle_encoder_init(&e);
    for (int i = 0; i < RLE_WIRE_VALUES; i++) rle_encode_nil(&e);
    assert_int_equal(rle_encoder_status(&e), RLE_OK);
    size_t n = rle_encoder_values_size(&e);
    rle_decoder d;
    rle_value v;
    rle_decoder_init(&d, e.w.data + RLE_FRAME_HEADER, n, n, 0);
    for (int i = 0; i < RLE_WIRE_VALUES; i++) assert_int_equal(rle_decode(&d, &v), RLE_OK);
    rle_encode_nil(&e);
    assert_int_equal(rle_encoder_status(&e), RLE_INVALID_ARGUMENT);
    n++;
    rle_decoder_init(&d, e.w.data + RLE_FRAME_HEADER, n, n, 0);
    for (int i = 0; i < RLE_WIRE_VALUES; i++) assert_int_equal(rle_decode(&d, &v), RLE_OK);
    assert_int_equal(rle_decode(&d, &v), RLE_INVALID_ARGUMENT);
    rle_encoder_reset(&e);
    float one = 1;
    rle_array a = {.data = &one, .dtype = RLE_F32, .ndim = 0};
    for (int i = 0; i < RLE_WIRE_TENSORS; i++)
        assert_int_equal(rle_encode_tensor(&e, &a, NULL), RLE_OK);
    assert_int_equal(rle_encode_tensor(&e, &a, NULL), RLE_INVALID_ARGUMENT);
    rle_encoder_fini(&e);
}

/* A frame has 32 bits to say how many there are. */
static void values_take_4_gib_at_most(void **state)
{
    (void)state;
    rle_encoder e;
    rle_encoder_init(&e);
    rle_encode_nil(&e);
    size_t n = e.w.len;
    e.w.len = RLE_FRAME_HEADER + (size_t)UINT32_MAX; /* as if they were there */
    assert_int_equal(rle_encoder_status(&e), RLE_OK);
    e.w.len++;
    assert_int_equal(rle_encoder_status(&e), RLE_INVALID_ARGUMENT);
    assert_non_null(strstr(rle_message(), "4294967296 bytes"));
    e.w.len = n;
    rle_encoder_fini(&e);
}

static void empty_tensors_take_no_bytes(void **state)
{
    (void)state;
    rle_encoder e;
    rle_encoder_init(&e);
    float one = 1;
    rle_array none = {.data = &one, .dtype = RLE_F32, .ndim = 2, .shape = {0, 1 << 30}};
    rle_array some = {.data = &one, .dtype = RLE_F32, .ndim = 0};
    assert_int_equal(rle_encode_tensor(&e, &none, NULL), RLE_OK);
    assert_int_equal(rle_encode_tensor(&e, &some, NULL), RLE_OK);
    size_t size, values = rle_encoder_values_size(&e);
    uint8_t *body = message_of(&e, &size);
    rle_decoder d;
    rle_decoder_init(&d, body, size, values, 2);
    assert_int_equal(rle_decode_skip(&d, NULL, NULL), RLE_OK);
    assert_int_equal(rle_decode_skip(&d, NULL, NULL), RLE_OK);
    assert_int_equal(rle_decode_end(&d), RLE_OK);
    free(body);
    /* The strides of some shapes without elements are beyond any number. */
    rle_encoder_reset(&e);
    none.ndim = 3;
    none.shape[1] = none.shape[2] = INT64_C(1) << 32;
    assert_int_equal(rle_encode_tensor(&e, &none, NULL), RLE_OK);
    body = message_of(&e, &size);
    rle_decoder_init(&d, body, size, rle_encoder_values_size(&e), 1);
    assert_int_equal(rle_decode_skip(&d, NULL, NULL), RLE_INVALID_ARGUMENT);
    assert_string_equal(
        rle_message(),
        "tensor 1: shape 0x4294967296x4294967296 f32 is larger than any memory");
    free(body);
    rle_encoder_fini(&e);
}

/* ---- errors ---- */

#define SLICE(text) ((rle_slice){text, sizeof(text) - 1})

static void errors_come_back_as_they_were(void **state)
{
    (void)state;
    rle_wire_error e = {.code = RLE_NOT_FOUND, .outcome = RLE_OUTCOME_UNKNOWN,
                        .message = SLICE("no such thing"), .worker = SLICE("obs_3"),
                        .method = SLICE("f"), .where = SLICE("a.lua:3"),
                        .traceback = SLICE("stack"), .data = SLICE("\x01"), .hops = 2,
                        .via = {SLICE("a"), SLICE("b")}};
    rle_writer w;
    rle_writer_init(&w);
    rle_error_encode(&w, &e);
    rle_msg m = {.data = w.data, .size = w.len, .values = (uint32_t)w.len};
    rle_wire_error back;
    assert_int_equal(rle_error_decode(&m, &back), RLE_OK);
    assert_int_equal(back.code, RLE_NOT_FOUND);
    assert_int_equal(back.outcome, RLE_OUTCOME_UNKNOWN);
    assert_int_equal(back.hops, 2);
    assert_memory_equal(back.via[1].p, "b", 1);
    assert_memory_equal(back.message.p, "no such thing", 13);
    for (size_t cut = 1; cut < w.len; cut++) {
        uint8_t *part = malloc(cut);
        memcpy(part, w.data, cut);
        m = (rle_msg){.data = part, .size = cut, .values = (uint32_t)cut};
        rle_error_decode(&m, &back);
        free(part);
    }
    for (size_t bit = 0; bit < w.len * 8; bit++) {
        w.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
        m = (rle_msg){.data = w.data, .size = w.len, .values = (uint32_t)w.len};
        if (rle_error_decode(&m, &back) == RLE_OK)
            assert_true(back.code > 0 && back.code < RLE_STATUS_COUNT);
        w.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    rle_writer_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_come_back_as_they_were),
        cmocka_unit_test(numbers_keep_what_they_are),
        cmocka_unit_test(every_cut_of_a_message_is_refused),
        cmocka_unit_test(no_flipped_bit_of_a_message_leads_astray),
        cmocka_unit_test(counts_and_sizes_are_believed_only_as_far_as_bytes_go),
        cmocka_unit_test(nesting_ends_at_64),
        cmocka_unit_test(a_message_holds_65536_values_and_64_tensors),
        cmocka_unit_test(values_take_4_gib_at_most),
        cmocka_unit_test(empty_tensors_take_no_bytes),
        cmocka_unit_test(errors_come_back_as_they_were),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
