/* frame.h - the fixed header in front of every frame, version 1.
 *
 * A message is a header and a body: values (codec.h), zeros up to a multiple of 64, then the
 * bytes of its tensors, each starting at a multiple of 64. A body of more than
 * RLE_CHUNK_SIZE bytes travels in pieces: the first frame holds the first piece and says
 * MORE, CHUNK frames with the same id bring the others in order. Control frames may come
 * between pieces, and pieces of several messages may alternate.
 *
 * Header, 64 bytes, all integers little-endian:
 *    0  u32  magic "RLE1"
 *    4  u8   version of the header: 1
 *    5  u8   type
 *    6  u16  flags
 *    8  u64  id: number of the call, counted up by the caller on each connection
 *   16  u32  payload: bytes of this frame behind the header
 *   20  u32  values: bytes of values in the whole message
 *   24  u64  body: bytes of the whole message over all its frames
 *   32  u64  incarnation of the sender: random, new with each start of a worker
 *   40  u64  arg: CALL microseconds left until its deadline (0 = none); CHUNK place of this
 *            piece in the body; PING any stamp; PONG the stamp it answers
 *   48  u32  credit: further calls the receiver may open; PONG milliseconds the sender's
 *            Lua has been away from its event loop
 *   52  u16  tensors: how many the message holds
 *   54  u16  code: ERROR and GOAWAY, a status code
 *   56  u32  CRC-32C of the payload, when the flag BODY_CRC is set; else 0
 *   60  u32  CRC-32C of bytes 0 to 59
 */
#ifndef RLE_RPC_FRAME_H
#define RLE_RPC_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum {
    RLE_FRAME_HEADER = 64,
    RLE_FRAME_VERSION = 1,
    RLE_FRAME_MAX_PAYLOAD = 1 << 20, /* of one frame */
    RLE_CHUNK_SIZE = 256 << 10,      /* what we put into one frame */
    RLE_TENSOR_ALIGN = 64
};
#define RLE_FRAME_MAGIC 0x31454c52u /* "RLE1" */

typedef enum {
    RLE_FRAME_HELLO = 1, /* who I am, what I can do, a nonce */
    RLE_FRAME_HELLO_ACK, /* the same of the other side */
    RLE_FRAME_AUTH,      /* proof of the token; grants credits */
    RLE_FRAME_CALL,
    RLE_FRAME_RESULT,
    RLE_FRAME_ERROR,   /* of a call (id > 0) or of the connection (id 0) */
    RLE_FRAME_CHUNK,   /* the next piece of a message */
    RLE_FRAME_CREDIT,  /* grants calls, nothing else */
    RLE_FRAME_CANCEL,  /* nobody waits for this call any more */
    RLE_FRAME_PING,    /* answered at once, by C, whatever Lua does */
    RLE_FRAME_PONG,    /* while Lua is away, its body is what that was doing (base/note.h) */
    RLE_FRAME_RELEASE, /* (object u64, count u32) pairs */
    RLE_FRAME_GOAWAY,  /* no new calls, I am leaving; with a code: the session is over */
    RLE_FRAME_TYPES
} rle_frame_type;

enum {
    RLE_FLAG_MUST_UNDERSTAND = 1, /* of an unknown type: close instead of ignoring it */
    RLE_FLAG_MORE = 2,            /* CHUNK frames follow */
    RLE_FLAG_NESTED = 4,          /* the call was made by a handler */
    RLE_FLAG_BODY_CRC = 8,
    RLE_FLAG_REPLY = 16           /* CHUNK: of the receiver's call id, not the sender's */
};

typedef struct rle_frame {
    uint8_t type;
    uint16_t flags;
    uint64_t id;
    uint32_t payload, values;
    uint64_t body, incarnation, arg;
    uint32_t credit;
    uint16_t tensors, code;
    uint32_t crc; /* of the payload */
} rle_frame;

/* "CALL" and so on; "?" for unknown ones. */
const char *rle_frame_type_name(unsigned type);

/* The header in its 64 bytes, with its checksum. */
void rle_frame_encode(const rle_frame *f, uint8_t out[RLE_FRAME_HEADER]);

/* Parse and check one header. DATA_LOSS: magic ("not an rlengine peer") or checksum;
 * UNIMPLEMENTED: version; INVALID_ARGUMENT: fields that contradict each other;
 * RESOURCE_EXHAUSTED: payload or body over the limit. Nothing has been allocated then.
 * `max_body` bounds the message. */
rle_status rle_frame_decode(const uint8_t in[RLE_FRAME_HEADER], uint64_t max_body,
                            rle_frame *out);

static inline size_t rle_align64(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

#endif
