/* output_internal.h - what output.c offers to the other files of this folder: frames out of one
 * connection. The last lines of rpc_internal.h include it. All functions want the loop's lock
 * held. */
#ifndef RLE_RPC_OUTPUT_INTERNAL_H
#define RLE_RPC_OUTPUT_INTERNAL_H

/* Queue and write one frame. `f` needs type, flags, id, arg, credit, code; the rest is
 * filled in. The parts are the body; they are copied if they cannot be written at once.
 * `room`: in front of the first part lie RLE_FRAME_HEADER bytes that the header may be
 * written to. `later`: let it wait for the next frame to this peer. A connection that breaks
 * here is closed; that is no failure of the function. RESOURCE_EXHAUSTED only. */
rle_status rle_conn_send(rle_conn *conn, rle_frame *f, const struct iovec *parts, int count,
                         bool room, bool later);
/* The same with the body an encoder holds. */
rle_status rle_conn_send_encoded(rle_conn *conn, rle_frame *f, rle_encoder *e, bool later);
/* The same with a body of its own, which is shared, not copied. */
rle_status rle_conn_send_body(rle_conn *conn, rle_frame *f, rle_body *body);
/* For the owner, at the end of what may have sent or kept a message of an encoder that
 * stays: copy what is not written yet, without the lock, so that the guard answers others
 * meanwhile. */
void rle_conn_copy_rest(rle_rpc *rpc);
/* Take a call back that waits unbegun behind long messages, with the references it
 * counts. False: it is on its way, or lies among what goes out next. */
bool rle_conn_unsend(rle_conn *conn, uint64_t id);

/* ---- body.c ---- */

enum { RLE_BODY_BLOCKS = 8 };
/* One reference for the caller; the bytes are the caller's to fill. In front of them is
 * room for a header. */
rle_status rle_body_new(size_t size, rle_body **out);
/* What an encoder holds, copied; of a long one that stays only the values are, see
 * rle_conn_copy_rest. */
rle_status rle_body_of(rle_rpc *rpc, const rle_encoder *e, rle_body **out);
/* The values of an encoder that lends its one tensor (codec.h), and where that lies. */
rle_status rle_body_lent(const rle_encoder *e, rle_body **out);
/* Its bytes from `at` on, at most `n` of them, as up to RLE_BODY_BLOCKS blocks; returns how
 * many blocks, and in *got how many bytes. */
int rle_body_blocks(const rle_body *body, size_t at, size_t n, struct iovec *iov, size_t *got);
/* CRC-32C of the chunk that begins at `at`; of what goes to many it is kept. */
uint32_t rle_body_sum(rle_body *body, size_t at, size_t n);
/* What is with the sender yet and not out, at most `n` bytes of it; `sent`: up to there
 * it is out. False when there is nothing left to copy. */
bool rle_body_uncopied(const rle_body *body, size_t sent, size_t n, size_t *at,
                       size_t *end);
/* Copy that. It counts as ready when the caller says so. */
void rle_body_copy(const rle_body *body, size_t at, size_t end);

/* ---- output.c ---- */

void rle_out_message_free(rle_out_message *m); /* NULL is fine */
/* Write what `later` left behind, on every connection. */
void rle_conn_flush_dirty(rle_rpc *rpc);
/* An error; `f` needs what it needs there. */
void rle_conn_send_error(rle_conn *conn, rle_frame *f, const rle_wire_error *e);
/* A frame without body. */
void rle_conn_control(rle_conn *conn, rle_frame_type type, uint64_t id, uint64_t arg,
                      uint32_t credit);
/* We do not go on with it: with a code the session ends, without one we are leaving. */
void rle_conn_goaway(rle_conn *conn, rle_status code);
void rle_conn_drop_output(rle_conn *conn); /* whatever waits to be written */
void rle_conn_trim(rle_conn *conn); /* empty tables and buffers, kept for later use */
/* Write what waits; long messages when it is their turn. */
void rle_conn_flush(rle_conn *conn);
/* About `most` bytes of long messages, of one connection after another. */
void rle_conn_write_long(rle_rpc *rpc, size_t most);
void rle_conn_leave_long(rle_conn *conn);
/* Hear, or do not, when the socket has room. */
void rle_conn_arm_write(rle_conn *conn, bool on);
static inline size_t rle_conn_unsent(const rle_conn *conn)
{
    const rle_transport *t = &conn->transport;
    return t->ops->unsent ? t->ops->unsent(t) : 0;
}

#endif
