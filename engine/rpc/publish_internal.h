/* publish_internal.h - what publish.c and follow.c offer to the other files of this folder; the
 * last lines of rpc_internal.h include it. All functions want the loop's lock held. */
#ifndef RLE_RPC_PUBLISH_INTERNAL_H
#define RLE_RPC_PUBLISH_INTERNAL_H

/* ---- publish.c ---- */

void rle_body_release(rle_body *body); /* NULL is fine */

#define RLE_POLL_METHOD "rlengine.weights"
/* A call that asks for a version. */
bool rle_poll_is(const rle_call_head *head);
/* It has arrived; `d` stands at its arguments. INVALID_ARGUMENT: the peer breaks the rules. */
rle_status rle_poll_arrived(rle_conn *conn, const rle_frame *f, const rle_call_head *head,
                            rle_decoder *d);
bool rle_poll_cancel(rle_conn *conn, uint64_t id); /* false: there is no such one */
void rle_polls_conn_closed(rle_conn *conn);
void rle_publications_free_all(rle_rpc *rpc);

/* ---- follow.c ---- */

void rle_followers_ask(rle_conn *conn); /* it is open now */
/* The follower that asked by that call, or NULL. */
rle_follower *rle_follower_of(const rle_conn *conn, uint64_t id);
/* A block for an answer of so many bytes, NULL without memory; until it has arrived, or the
 * message is given up. */
uint8_t *rle_follower_lend(rle_follower *fo, size_t size);
rle_status rle_follower_arrived(rle_follower *fo, const rle_frame *f);
void rle_follower_undo(rle_follower *fo);
/* An answer that lies in one read, or an error. */
rle_status rle_follower_answered(rle_follower *fo, const rle_frame *f, rle_msg *m);
void rle_followers_empty_trash(rle_rpc *rpc);
void rle_followers_conn_closed(rle_conn *conn);
void rle_followers_free_all(rle_rpc *rpc);

#endif
