/* test_rpc_reading.c - whose turn it is to be read, of those that send long messages: who
 * has nothing long to send any more is not waited for. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "rpc_wire.h"

/* ODD lies in one read: a message in tiny pieces, all but the last of its bytes. */
enum { LONG = 8 << 20, ODD = 40000, PIECE = 200, ODD_READ = 30000 };

static void next_turn(rle_rpc *rpc)
{
    rpc->loop.before_turn(rpc);
}

/* The message `f` in pieces of `piece` bytes; returns the length of it all. */
static size_t in_pieces(uint8_t *out, rle_frame f, size_t first, size_t piece)
{
    static uint8_t zeros[RLE_CHUNK_SIZE];
    f.flags = RLE_FLAG_MORE;
    size_t n = wire_frame(out, f, zeros, first);
    for (size_t at = first; at < f.body; at += piece) {
        rle_frame chunk = f;
        size_t size = f.body - at < piece ? (size_t)f.body - at : piece;
        chunk.type = RLE_FRAME_CHUNK;
        chunk.flags = 0;
        chunk.arg = at;
        n += wire_frame(out + n, chunk, zeros, size);
    }
    return n;
}

static void who_sends_nothing_long_any_more_is_not_waited_for(void **state)
{
    (void)state;
    rle_rpc *rpc = wire_rpc("a", 64 << 20);
    rle_rpc_set_drop_handle(rpc, wire_drop_handle);
    wire *odd = malloc(sizeof *odd), *other = malloc(sizeof *other);
    wire_open(odd, rpc, "odd");
    wire_open(other, rpc, "other");
    uint8_t *stream = malloc(LONG + (64 << 10)), *pieces = malloc(4 * ODD);
    rle_frame f = {.type = RLE_FRAME_CALL, .id = 1, .values = LONG, .body = LONG};
    other->size = in_pieces(stream, f, RLE_CHUNK_SIZE, RLE_CHUNK_SIZE);
    other->in = stream;
    f = (rle_frame){
        .type = RLE_FRAME_CALL, .id = 1, .values = 64, .tensors = 1, .body = ODD};
    in_pieces(pieces, f, 128, PIECE);
    odd->in = pieces;
    odd->size = ODD_READ;

    /* Its tensor waits for memory, and the other one uses up this turn. */
    next_turn(rpc);
    wire_readable(odd);
    assert_true(odd->conn->placing);
    assert_true(rle_conn_receives_long(odd->conn));
    for (int i = 0; i < 10 && rpc->long_read < RLE_READ_LONG; i++) wire_readable(other);
    assert_true(rpc->long_read >= RLE_READ_LONG);
    wire_readable(odd);
    assert_true(odd->conn->late);
    wire_place(rpc);
    assert_false(rle_conn_receives_long(odd->conn));

    /* From now on the other one is read in every turn. */
    next_turn(rpc);
    wire_readable(other);
    for (int i = 0; i < 8; i++) {
        uint64_t before = other->conn->bytes_in;
        next_turn(rpc);
        wire_readable(other);
        assert_true(other->conn->bytes_in > before);
    }
    assert_false(odd->conn->late);
    assert_int_equal(rpc->late + rpc->late_next, 0);
    wire_shut(odd);
    wire_shut(other);
    rle_rpc_free(rpc);
    free(odd);
    free(other);
    free(stream);
    free(pieces);
}

int main(void)
{
    rle_log_set_sink(wire_no_line, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_sends_nothing_long_any_more_is_not_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
