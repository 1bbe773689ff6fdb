/* codec.h - values of messages: compact, tagged, bounded.
 *
 * What crosses: nil, booleans, numbers, integers of 64 bits, strings, tables of these
 * (without cycles or metatables), tensors as host bytes, and remote references. No code of
 * any form. Tags:
 *   00 nil  01 false  02 true
 *   03 number: f64
 *   04 number that is an integer: zigzag varint
 *   05 integer of 64 bits, signed: 8 bytes    06 unsigned: 8 bytes
 *   07 string: varint length, bytes
 *   08 list: varint n, n values
 *   09 table: varint n, varint m, n values of keys 1..n, m pairs of key and value
 *   0a tensor: u8 dtype, u8 ndim, varint per size; its bytes lie behind the values
 *   0b reference: u8 kind, then by kind (rle_wire_ref)
 *   0c error object: a table follows
 *   40-5f string of 0 to 31 bytes    80-ff number 0 to 127
 *
 * The decoder hands out one item at a time and checks it against what is left of the
 * message before anybody allocates for it: a count never exceeds the bytes that remain,
 * a tensor's bytes must be there. Whoever decodes a table reads its items next and calls
 * rle_decode_leave after them. No thread safety. */
#ifndef RLE_RPC_CODEC_H
#define RLE_RPC_CODEC_H

#include <sys/uio.h>

#include "base/buf.h"
#include "base/dtype.h"
#include "rpc/frame.h"

enum {
    RLE_WIRE_DEPTH = 64,
    RLE_WIRE_VALUES = 65536, /* in one message */
    RLE_WIRE_TENSORS = 64,
    RLE_WIRE_STRING = 1 << 20,
    RLE_NAME_MAX = 64, /* workers, functions, classes, methods */
    RLE_ADDRESS_MAX = 128,
    RLE_TICKET_SIZE = 16,
    RLE_REF_ADDRESSES = 4
};

/* 1 to 64 of [A-Za-z0-9_.-]. */
bool rle_name_ok(const char *name, size_t len);

typedef enum {
    RLE_REF_SENDERS = 0,   /* the sender owns the object */
    RLE_REF_RECEIVERS = 1, /* the receiver does: it comes home */
    RLE_REF_THIRD = 2      /* somebody else: owner, ticket, where the owner listens */
} rle_ref_kind;

typedef struct rle_wire_ref {
    rle_ref_kind kind;
    uint64_t object;
    char class_name[RLE_NAME_MAX + 1];
    /* RLE_REF_THIRD only */
    char owner[RLE_NAME_MAX + 1];
    uint64_t incarnation; /* of the owner: numbers of objects begin anew with it */
    uint8_t ticket[RLE_TICKET_SIZE];
    int addresses;
    char address[RLE_REF_ADDRESSES][RLE_ADDRESS_MAX];
} rle_wire_ref;

typedef enum {
    RLE_VALUE_NIL,
    RLE_VALUE_BOOL,
    RLE_VALUE_NUMBER,  /* f64 */
    RLE_VALUE_INTEGER, /* a number without fraction */
    RLE_VALUE_I64,     /* integer type of its own where there is one */
    RLE_VALUE_U64,
    RLE_VALUE_STRING,
    RLE_VALUE_TABLE,
    RLE_VALUE_TENSOR,
    RLE_VALUE_REF,
    RLE_VALUE_ERROR
} rle_value_kind;

typedef struct rle_wire_tensor {
    rle_dtype dtype;
    int ndim;
    int64_t shape[RLE_MAX_DIMS];
    size_t size;      /* bytes */
    size_t at;        /* place in the body, a multiple of 64 */
    const void *data; /* row-major, in the message or where it was received */
    int number;       /* among the message's tensors, from 0 */
} rle_wire_tensor;

/* Tensors of a long message that were received where they belong, instead of behind the
 * values: one entry each, or one for all of them. */
typedef struct rle_placed_tensor {
    size_t at, size; /* in the body */
    uint8_t *data;
    void *handle; /* of whoever gave the memory; NULL: it lies in `block`, or was taken */
} rle_placed_tensor;

typedef struct rle_placed {
    int count;
    uint8_t *block; /* memory of those without a giver */
    rle_placed_tensor tensor[];
} rle_placed;

typedef struct rle_value {
    rle_value_kind kind;
    union {
        bool boolean;
        double number;
        int64_t integer;
        uint64_t u64;
        struct {
            const char *data; /* in the message, not terminated */
            size_t len;
        } string;
        struct {
            uint32_t list, pairs;
        } table;
        rle_wire_tensor tensor;
        rle_wire_ref ref;
    } u;
} rle_value;

/* ---- writing ---- */

typedef struct rle_encoder {
    rle_writer w; /* RLE_FRAME_HEADER bytes of room, then values */
    uint32_t values;
    int depth;
    uint32_t refs; /* references among the values */
    int tensors;
    struct {
        const void *data; /* borrowed until the message is sent, unless `own` */
        size_t size;
        void *own;
    } tensor[RLE_WIRE_TENSORS];
    size_t tensor_bytes; /* with the padding between them */
    /* Not NULL: a long message's one tensor is written from where it lies, and its owner
     * keeps it there until *lent, which counts such messages, is back at 0. Never reset.
     */
    size_t *lent;
    /* Whoever sends it ends with rle_conn_copy_rest, and changes nothing before. Set anew
     * for each message. */
    bool stays;
} rle_encoder;

void rle_encoder_init(rle_encoder *e);
void rle_encoder_fini(rle_encoder *e);
void rle_encoder_reset(rle_encoder *e); /* also where it begins */

static inline size_t rle_encoder_values_size(const rle_encoder *e)
{
    return e->w.len - RLE_FRAME_HEADER;
}
/* The body as blocks: values, zeros, tensor, zeros, tensor ...; `out` has room for
 * RLE_ENCODER_PARTS. Returns how many. */
enum { RLE_ENCODER_PARTS = 2 * RLE_WIRE_TENSORS + 1 };
int rle_encoder_parts(const rle_encoder *e, struct iovec *out);
/* Bytes of the whole body. */
size_t rle_encoder_body_size(const rle_encoder *e);

void rle_encode_nil(rle_encoder *e);
void rle_encode_bool(rle_encoder *e, bool v);
void rle_encode_number(rle_encoder *e, double v); /* as an integer when it is one */
void rle_encode_f64(rle_encoder *e, double v);    /* never as an integer */
void rle_encode_integer(rle_encoder *e, int64_t v);
void rle_encode_i64(rle_encoder *e, int64_t v);
void rle_encode_u64(rle_encoder *e, uint64_t v);
/* INVALID_ARGUMENT over 1 MiB. */
rle_status rle_encode_string(rle_encoder *e, const char *s, size_t len);
/* Then write `list` values and `pairs` times a key and a value, then rle_encode_leave.
 * INVALID_ARGUMENT when nested too deep. */
rle_status rle_encode_table(rle_encoder *e, uint32_t list, uint32_t pairs);
rle_status rle_encode_error_mark(rle_encoder *e); /* a table must follow */
static inline void rle_encode_leave(rle_encoder *e)
{
    e->depth--;
}
/* `array` must be contiguous; its data is borrowed until the message is sent. With `own`
 * the encoder frees that block (rle_free) when it is reset; on failure it stays the
 * caller's. */
rle_status rle_encode_tensor(rle_encoder *e, const rle_array *array, void *own);
void rle_encode_ref(rle_encoder *e, const rle_wire_ref *ref);
/* OK, or what the encoder ran into: memory, too many values, or more bytes of them than
 * the 32 bits of a frame's `values` can say. */
rle_status rle_encoder_status(const rle_encoder *e);

/* ---- reading ---- */

typedef struct rle_decoder {
    rle_reader r;
    const uint8_t *body; /* of the whole message */
    size_t body_size, tensor_at;
    uint32_t values_left;
    int depth, tensors, tensors_declared;
    rle_placed *placed; /* NULL: the tensors lie in the body */
} rle_decoder;

/* `values` bytes of values at `body`, then tensors up to body_size. `body_size` may be more
 * than what has arrived: only `values` bytes are touched. */
void rle_decoder_init(rle_decoder *d, const uint8_t *body, size_t body_size, size_t values,
                      int tensors);
rle_status rle_decode(rle_decoder *d, rle_value *out);
/* A key of a table: a string, number (not NaN) or boolean. */
rle_status rle_decode_key(rle_decoder *d, rle_value *out);
static inline void rle_decode_leave(rle_decoder *d)
{
    d->depth--;
}
/* Read one value with everything in it; `visit` (may be NULL) sees each item. */
rle_status rle_decode_skip(rle_decoder *d, void (*visit)(void *self, const rle_value *v),
                           void *self);
/* After the last value: nothing may be left, every declared tensor must have been named. */
rle_status rle_decode_end(const rle_decoder *d);

/* ---- what stands in front of the values of a CALL ---- */

typedef struct rle_call_head {
    uint64_t object; /* 0: a function or class of the worker itself */
    uint8_t construct;
    uint8_t method_len;
    char method[RLE_NAME_MAX + 1];
    uint16_t args;
} rle_call_head;

/* The method is 1 to 64 bytes of any kind: whether it is exported is for the receiver's
 * table to say. */
void rle_encode_call_head(rle_encoder *e, const rle_call_head *head);
enum { RLE_CALL_OBJECT_AT = RLE_FRAME_HEADER }; /* where the object's u64 lies in e->w */
rle_status rle_decode_call_head(rle_decoder *d, rle_call_head *out);

/* A RESULT starts with how many values there are. */
void rle_encode_result_head(rle_encoder *e, uint16_t count);
/* Overwrite that number. */
void rle_encode_result_count(rle_encoder *e, uint16_t count);
rle_status rle_decode_result_head(rle_decoder *d, uint16_t *count);

#endif
