/* test_rpc_frame.c - readers and writers, checksums and headers: round trips, and refusal of
 * everything that is cut short, flipped or larger than allowed. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "rpc/crc32c.h"
#include "rpc/frame.h"

/* ---- buf ---- */

static void varints_take_their_shortest_form_only(void **state)
{
    (void)state;
    static const uint64_t values[] = {0,    1,          127,        128,          300,
                                      16383, 16384,     UINT32_MAX, 1ull << 63,   UINT64_MAX};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        rle_writer w;
        rle_writer_init(&w);
        rle_write_varint(&w, values[i]);
        rle_reader r;
        rle_reader_init(&r, w.data, w.len);
        assert_true(rle_read_varint(&r) == values[i]);
        assert_false(r.failed);
        assert_int_equal(rle_reader_left(&r), 0);
        for (size_t cut = 0; cut < w.len; cut++) {
            rle_reader_init(&r, w.data, cut);
            rle_read_varint(&r);
            assert_true(r.failed);
        }
        rle_writer_fini(&w);
    }
    static const uint8_t longer[] = {0x80, 0x00};
    static const uint8_t wider[] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02};
    rle_reader r;
    rle_reader_init(&r, longer, sizeof longer);
    rle_read_varint(&r);
    assert_true(r.failed);
    rle_reader_init(&r, wider, sizeof wider);
    rle_read_varint(&r);
    assert_true(r.failed);
}

static void writers_survive_a_lack_of_memory(void **state)
{
    (void)state;
    size_t bytes = rle_mem_bytes();
    rle_writer w;
    rle_writer_init(&w);
    rle_write_u32(&w, 7);
    rle_mem_fault(1, false);
    uint8_t block[4096] = {1};
    rle_write_bytes(&w, block, sizeof block);
    rle_mem_fault(0, false);
    assert_true(w.failed);
    assert_int_equal(w.len, 4);
    assert_int_equal(rle_writer_status(&w, "test"), RLE_RESOURCE_EXHAUSTED);
    rle_writer_reset(&w, 1 << 20);
    rle_write_bytes(&w, block, sizeof block);
    assert_int_equal(rle_writer_status(&w, "test"), RLE_OK);
    rle_writer_fini(&w);
    assert_int_equal(rle_mem_bytes(), bytes);
}

static void readers_never_leave_their_bytes(void **state)
{
    (void)state;
    uint8_t bytes[3] = {1, 2, 3};
    rle_reader r;
    rle_reader_init(&r, bytes, sizeof bytes);
    assert_int_equal(rle_read_u32(&r), 0);
    assert_true(r.failed);
    assert_int_equal(rle_read_u8(&r), 0); /* once failed, nothing more is given out */
    rle_reader_init(&r, bytes, sizeof bytes);
    assert_int_equal(rle_read_u16(&r), 0x0201);
    assert_int_equal(rle_read_u8(&r), 3);
    assert_false(r.failed);
}

/* ---- crc32c ---- */

static void checksums_are_those_of_rfc_3720(void **state)
{
    (void)state;
    uint8_t block[48];
    memset(block, 0, 32);
    assert_int_equal(rle_crc32c(0, block, 32), 0x8a9136aa);
    memset(block, 0xff, 32);
    assert_int_equal(rle_crc32c(0, block, 32), 0x62a8ab43);
    for (int i = 0; i < 32; i++) block[i] = (uint8_t)i;
    assert_int_equal(rle_crc32c(0, block, 32), 0x46dd794e);
    for (int i = 0; i < 32; i++) block[i] = (uint8_t)(31 - i);
    assert_int_equal(rle_crc32c(0, block, 32), 0x113fdb5c);
    static const uint8_t iscsi_read[48] = {
        0x01, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x14, 0, 0, 0, 0, 0, 0x04, 0,
        0, 0, 0, 0x14, 0, 0, 0, 0x18, 0x28, 0, 0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0, 0, 0, 0, 0};
    assert_int_equal(rle_crc32c(0, iscsi_read, 48), 0xd9963a56);
    assert_int_equal(rle_crc32c(0, "123456789", 9), 0xe3069283);
}

static void checksums_agree_with_and_without_the_instruction(void **state)
{
    (void)state;
    static uint8_t block[20000];
    for (size_t i = 0; i < sizeof block; i++)
        block[i] = (uint8_t)(i * 37 + (i >> 8) * 11);
    for (size_t n = 0; n < sizeof block; n += n < 300 ? 1 : 61) {
        uint32_t whole = rle_crc32c(0, block, n);
        assert_int_equal(whole, rle_crc32c_portable(0, block, n));
        size_t half = n / 3;
        assert_int_equal(whole, rle_crc32c(rle_crc32c(0, block, half), block + half, n - half));
    }
}

/* ---- frames ---- */

static const uint64_t LIMIT = 64 << 20;

static rle_frame sample_frame(void)
{
    return (rle_frame){.type = RLE_FRAME_CALL,
                       .flags = RLE_FLAG_NESTED,
                       .id = 0x1122334455667788u,
                       .payload = 1000,
                       .values = 900,
                       .body = 1000,
                       .incarnation = 0x99aabbccddeeff00u,
                       .arg = 60000000,
                       .credit = 1,
                       .tensors = 2};
}

static void headers_come_back_as_they_were(void **state)
{
    (void)state;
    rle_frame f = sample_frame(), g;
    uint8_t bytes[RLE_FRAME_HEADER];
    rle_frame_encode(&f, bytes);
    assert_memory_equal(bytes, "RLE1\x01\x04", 6);
    assert_int_equal(rle_frame_decode(bytes, LIMIT, &g), RLE_OK);
    assert_true(g.id == f.id && g.arg == f.arg && g.incarnation == f.incarnation);
    assert_int_equal(g.tensors, 2);
    uint8_t again[RLE_FRAME_HEADER];
    rle_frame_encode(&g, again);
    assert_memory_equal(bytes, again, sizeof bytes);
}

static void every_flipped_bit_of_a_header_is_noticed(void **state)
{
    (void)state;
    rle_frame f = sample_frame(), g;
    uint8_t bytes[RLE_FRAME_HEADER];
    for (int bit = 0; bit < RLE_FRAME_HEADER * 8; bit++) {
        rle_frame_encode(&f, bytes);
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        /* The first four bytes say that it is one at all. */
        assert_int_equal(rle_frame_decode(bytes, LIMIT, &g),
                         bit < 32 ? RLE_INVALID_ARGUMENT : RLE_DATA_LOSS);
    }
}

static rle_status refused(rle_frame f)
{
    rle_frame g;
    uint8_t bytes[RLE_FRAME_HEADER];
    size_t blocks = rle_mem_blocks();
    rle_frame_encode(&f, bytes);
    rle_status s = rle_frame_decode(bytes, LIMIT, &g);
    assert_int_equal(rle_mem_blocks(), blocks);
    return s;
}

static void headers_that_lie_are_refused(void **state)
{
    (void)state;
    rle_frame f = sample_frame();
    f.body = 4294967295u;
    assert_int_equal(refused(f), RLE_RESOURCE_EXHAUSTED);
    assert_string_equal(rle_message(),
                        "frame of 4294967295 bytes is over the limit of 67108864");
    f = sample_frame();
    f.payload = 2 << 20;
    f.body = 3 << 20;
    f.flags |= RLE_FLAG_MORE;
    assert_int_equal(refused(f), RLE_RESOURCE_EXHAUSTED);
    f = sample_frame();
    f.values = 1001;
    assert_int_equal(refused(f), RLE_INVALID_ARGUMENT);
    assert_string_equal(rle_message(), "CALL frame contradicts itself");
    f = sample_frame();
    f.payload = 999; /* less than the body, and no more to come */
    assert_int_equal(refused(f), RLE_INVALID_ARGUMENT);
    f = sample_frame();
    f.tensors = 0; /* bytes behind the values belong to no tensor */
    assert_int_equal(refused(f), RLE_INVALID_ARGUMENT);
    f = sample_frame();
    f.flags |= RLE_FLAG_MORE; /* and yet everything is here */
    assert_int_equal(refused(f), RLE_INVALID_ARGUMENT);
    f = sample_frame();
    f.crc = 5; /* without the flag */
    assert_int_equal(refused(f), RLE_INVALID_ARGUMENT);
    f = sample_frame();
    f.type = RLE_FRAME_CHUNK;
    f.arg = UINT64_MAX; /* place + length overflow */
    assert_int_equal(refused(f), RLE_INVALID_ARGUMENT);
    f.arg = 1;
    f.payload = 1000;
    assert_int_equal(refused(f), RLE_INVALID_ARGUMENT);
    f.payload = 0;
    assert_int_equal(refused(f), RLE_INVALID_ARGUMENT);
}

static void other_protocols_are_told_apart(void **state)
{
    (void)state;
    uint8_t bytes[RLE_FRAME_HEADER] = "GET / HTTP/1.1\r\nHost: x\r\n";
    rle_frame g;
    assert_int_equal(rle_frame_decode(bytes, LIMIT, &g), RLE_INVALID_ARGUMENT);
    assert_string_equal(rle_message(), "not an rlengine peer (first bytes \"GET \")");
    bytes[1] = '\n';
    bytes[2] = '"';
    rle_frame_decode(bytes, LIMIT, &g);
    assert_string_equal(rle_message(), "not an rlengine peer (first bytes \"G.. \")");
}

static void a_later_header_version_is_named(void **state)
{
    (void)state;
    rle_frame f = sample_frame(), g;
    uint8_t bytes[RLE_FRAME_HEADER];
    rle_frame_encode(&f, bytes);
    bytes[4] = 9;
    rle_put32(bytes + 60, rle_crc32c(0, bytes, 60));
    assert_int_equal(rle_frame_decode(bytes, LIMIT, &g), RLE_UNIMPLEMENTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(varints_take_their_shortest_form_only),
        cmocka_unit_test(writers_survive_a_lack_of_memory),
        cmocka_unit_test(readers_never_leave_their_bytes),
        cmocka_unit_test(checksums_are_those_of_rfc_3720),
        cmocka_unit_test(checksums_agree_with_and_without_the_instruction),
        cmocka_unit_test(headers_come_back_as_they_were),
        cmocka_unit_test(every_flipped_bit_of_a_header_is_noticed),
        cmocka_unit_test(headers_that_lie_are_refused),
        cmocka_unit_test(other_protocols_are_told_apart),
        cmocka_unit_test(a_later_header_version_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
