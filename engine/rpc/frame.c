/* frame.c - headers to bytes and back. */
#include "rpc/frame.h"

#include <ctype.h>
#include <inttypes.h>

#include "base/buf.h"
#include "rpc/crc32c.h"

static const char *const type_names[RLE_FRAME_TYPES] = {
    "?",      "HELLO", "HELLO_ACK", "AUTH", "CALL", "RESULT",  "ERROR",
    "CHUNK",  "CREDIT", "CANCEL",   "PING", "PONG", "RELEASE", "GOAWAY"};

const char *rle_frame_type_name(unsigned type)
{
    return type < RLE_FRAME_TYPES ? type_names[type] : "?";
}

void rle_frame_encode(const rle_frame *f, uint8_t out[RLE_FRAME_HEADER])
{
    rle_put32(out, RLE_FRAME_MAGIC);
    out[4] = RLE_FRAME_VERSION;
    out[5] = f->type;
    rle_put16(out + 6, f->flags);
    rle_put64(out + 8, f->id);
    rle_put32(out + 16, f->payload);
    rle_put32(out + 20, f->values);
    rle_put64(out + 24, f->body);
    rle_put64(out + 32, f->incarnation);
    rle_put64(out + 40, f->arg);
    rle_put32(out + 48, f->credit);
    rle_put16(out + 52, f->tensors);
    rle_put16(out + 54, f->code);
    rle_put32(out + 56, f->crc);
    rle_put32(out + 60, rle_crc32c(0, out, 60));
}

static rle_status not_a_peer(const uint8_t *in)
{
    if ((in[0] == 0x15 || in[0] == 0x16) && in[1] == 3)
        return rle_fail(
            RLE_INVALID_ARGUMENT,
            "the other side speaks tls, which is not set here; set tls here too");
    char first[5] = {0};
    for (int i = 0; i < 4; i++) first[i] = isprint(in[i]) && in[i] != '"' ? (char)in[i] : '.';
    return rle_fail(RLE_INVALID_ARGUMENT, "not an rlengine peer (first bytes \"%s\")",
                    first);
}

rle_status rle_frame_decode(const uint8_t in[RLE_FRAME_HEADER], uint64_t max_body,
                            rle_frame *out)
{
    if (rle_get32(in) != RLE_FRAME_MAGIC) return not_a_peer(in);
    if (rle_get32(in + 60) != rle_crc32c(0, in, 60))
        return rle_fail(RLE_DATA_LOSS, "frame checksum mismatch");
    if (in[4] != RLE_FRAME_VERSION)
        return rle_fail(RLE_UNIMPLEMENTED, "frame of version %d, this is version %d", in[4],
                        RLE_FRAME_VERSION);
    rle_frame f = {.type = in[5],
                   .flags = rle_get16(in + 6),
                   .id = rle_get64(in + 8),
                   .payload = rle_get32(in + 16),
                   .values = rle_get32(in + 20),
                   .body = rle_get64(in + 24),
                   .incarnation = rle_get64(in + 32),
                   .arg = rle_get64(in + 40),
                   .credit = rle_get32(in + 48),
                   .tensors = rle_get16(in + 52),
                   .code = rle_get16(in + 54),
                   .crc = rle_get32(in + 56)};
    if (f.body > max_body)
        return rle_fail(RLE_RESOURCE_EXHAUSTED,
                        "frame of %" PRIu64 " bytes is over the limit of %" PRIu64, f.body,
                        max_body);
    if (f.payload > RLE_FRAME_MAX_PAYLOAD)
        return rle_fail(RLE_RESOURCE_EXHAUSTED, "frame of %u bytes is over the limit of %d",
                        f.payload, RLE_FRAME_MAX_PAYLOAD);
    bool chunk = f.type == RLE_FRAME_CHUNK;
    bool whole = !chunk && !(f.flags & RLE_FLAG_MORE);
    if (f.values > f.body || f.payload > f.body || (whole && f.payload != f.body) ||
        (f.tensors == 0 && !chunk && f.values != f.body) ||
        (chunk && (f.payload == 0 || f.arg == 0 || f.arg > f.body - f.payload)) ||
        ((f.flags & RLE_FLAG_MORE) && (chunk || f.payload == f.body)) ||
        (!(f.flags & RLE_FLAG_BODY_CRC) && f.crc != 0))
        return rle_fail(RLE_INVALID_ARGUMENT, "%s frame contradicts itself",
                        rle_frame_type_name(f.type));
    *out = f;
    return RLE_OK;
}
