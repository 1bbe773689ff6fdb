/* fuzz_frames.c - a stream of frames into an open connection of a worker that makes
 * calls, serves calls and has sent references.
 *
 * The first byte says what of the stream is mended (rpc_wire.h), the second how many bytes
 * one read gets (6 bits), whether calls are put into a batch, and whether it publishes
 * weights and follows the other side's. After each stream nothing may be left of the
 * connection. */
#include "../c/rpc_wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static rle_rpc *rpc;
    static size_t blocks, timers;
    static wire w;
    static wire_served served;
    if (!rpc) {
        rle_log_set_sink(wire_no_line, NULL);
        rpc = wire_rpc("a", 1 << 20);
        rle_rpc_set_drop_handle(rpc, wire_drop_handle);
        must(rle_rpc_peer(rpc, "x"));
        blocks = wire_blocks(rpc);
        timers = rpc->loop.timers;
    }
    if (size < 2 || size > 1 << 16) return 0;
    unsigned mode = data[0];
    size_t step = data[1] & 63;
    bool weights = data[1] & 128;
    size_t n = size - 2;
    uint8_t *bytes = malloc(n + 1); /* of its own, so that a read behind it is seen */
    memcpy(bytes, data + 2, n);
    wire_mend(bytes, n, mode & 31);

    wire_calls calls;
    wire_weights ww;
    wire_open(&w, rpc, "x");
    if (weights) wire_weights_begin(rpc, w.conn->peer, &ww);
    wire_call(&w, &calls);
    w.step = step;
    served.seen = mode >> 5;
    rle_batch_options batch = {.size = 3, .delay = RLE_SECONDS};
    if (data[1] & 64) must(rle_batch_new(rpc, &batch, &served.batch) == RLE_OK);
    /* In two halves, with the owner's work between them. */
    size_t half = mode & 128 ? n / 2 : n;
    for (size_t at = 0; at < n || at == 0; at = half, half = n) {
        wire_feed(&w, bytes + at, half - at);
        for (int i = 0; i < 3; i++) {
            wire_place(rpc);
            wire_serve(rpc, &served);
            if (weights) wire_weights_take(&ww);
        }
        if (half == n) break;
    }
    if (mode & 64) {
        w.ended = true;
        wire_feed(&w, bytes, 0);
    }
    wire_answer_open(rpc, &served);
    if (served.batch && (mode & 32)) wire_answer_batch(rpc, &served, served.batch);
    wire_shut(&w);
    if (served.batch) rle_batch_free(rpc, served.batch);
    served.batch = NULL;
    if (weights) wire_weights_end(rpc, &ww);
    wire_read_results(rpc, &calls);
    wire_serve(rpc, &served);
    wire_answer_open(rpc, &served);
    rle_rpc_enter(rpc);
    rle_rpc_leave(rpc);
    wire_check_empty(rpc);
    must(wire_blocks(rpc) - (served.calls.list != NULL) == blocks);
    must(rpc->loop.timers == timers);
    free(bytes);
    return 0;
}
