/* fuzz_handshake.c - bytes into a connection that is not open yet: of the side that
 * accepted it, or of the side that began it.
 *
 * The first byte: bit 0 the side, bit 1 AUTH frames of the right length carry the right
 * proof (so that what comes after it is reached), bits 2 to 6 what is mended, bit 7 the
 * stream ends. The second byte: how many bytes one read gets. */
#include "../c/rpc_wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static rle_rpc *rpc;

/* The worker forgets whom it has met: each input finds it new. */
static void forget_peers(void)
{
    RLE_MAP_EACH(&rpc->peers, slot)
    for (rle_peer *p = slot->v.pointer, *next; p; p = next) {
        next = p->next_same;
        must(p->conn == NULL && p->opening == NULL && p->held == NULL);
        rle_peer_free(p);
    }
    rle_map_fini(&rpc->peers);
    rpc->peer_count = 0;
    rpc->idle = NULL;
    rpc->idle_end = &rpc->idle;
    rpc->idle_count = 0;
    must(rle_peer_get(rpc, rpc->name));
    memset(rpc->refusals, 0, sizeof rpc->refusals);
}

/* Frame after frame, so that a proof can be made of what was said before it. */
static void converse(wire *w, uint8_t *bytes, size_t n, bool prove, unsigned mend)
{
    uint8_t proof[RLE_PROOF_SIZE];
    const uint8_t *greeting = NULL;
    size_t greeting_len = 0;
    while (n && w->conn) {
        size_t take = n;
        wire_mend(bytes, n, mend);
        if (n >= RLE_FRAME_HEADER && rle_get32(bytes + 16) <= n - RLE_FRAME_HEADER)
            take = RLE_FRAME_HEADER + rle_get32(bytes + 16);
        uint8_t *payload = bytes + RLE_FRAME_HEADER;
        if (take >= RLE_FRAME_HEADER && bytes[5] <= RLE_FRAME_HELLO_ACK && !greeting) {
            greeting = payload;
            greeting_len = take - RLE_FRAME_HEADER;
        }
        if (prove && take == RLE_FRAME_HEADER + sizeof proof &&
            bytes[5] == RLE_FRAME_AUTH && greeting && w->said) {
            bool initiator = w->conn->initiator;
            size_t mine_len;
            const uint8_t *mine = wire_said(w, &mine_len);
            must(rle_auth_proof(
                     &wire_token, initiator ? 's' : 'c', initiator ? mine : greeting,
                     initiator ? mine_len : greeting_len, initiator ? greeting : mine,
                     initiator ? greeting_len : mine_len, proof) == RLE_OK);
            memcpy(payload, proof, sizeof proof);
            wire_mend(bytes, take, mend);
        }
        wire_feed(w, bytes, take);
        bytes += take;
        n -= take;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static size_t blocks, timers;
    static wire w;
    static wire_served served;
    if (!rpc) {
        rle_log_set_sink(wire_no_line, NULL);
        rpc = wire_rpc("a", 1 << 20);
        blocks = wire_blocks(rpc);
        timers = rpc->loop.timers;
    }
    if (size < 2 || size > 1 << 14) return 0;
    size_t n = size - 2;
    uint8_t *bytes = malloc(n + 1);
    memcpy(bytes, data + 2, n);
    rle_connect_result result = {0};
    wire_begin(&w, rpc, data[0] & 1);
    if (w.conn->initiator) w.conn->result = &result;
    w.step = data[1];
    converse(&w, bytes, n, data[0] & 2,
             (data[0] >> 2) & 31 & ~(unsigned)WIRE_MEND_INCARNATION);
    wire_serve(rpc, &served);
    if (data[0] & 128) {
        w.ended = true;
        wire_feed(&w, bytes, 0);
    }
    if (w.conn && w.conn->result) w.conn->result = NULL;
    wire_answer_open(rpc, &served);
    wire_shut(&w);
    wire_check_empty(rpc);
    forget_peers();
    must(wire_blocks(rpc) == blocks);
    must(rpc->loop.timers == timers);
    free(bytes);
    return 0;
}
