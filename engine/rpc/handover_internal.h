/* handover_internal.h - what handover.c offers to the other files of this folder; the
 * last lines of rpc_internal.h include it. All functions want the loop's lock held. */
#ifndef RLE_RPC_HANDOVER_INTERNAL_H
#define RLE_RPC_HANDOVER_INTERNAL_H

#define RLE_GRANT_METHOD "rlengine.grant"
#define RLE_CLAIM_METHOD "rlengine.claim"
/* A call of either. */
bool rle_handover_is(const rle_call_head *head);
/* It has arrived; `d` stands at its arguments. INVALID_ARGUMENT: the peer breaks the
 * rules. */
rle_status rle_handover_arrived(rle_conn *conn, const rle_frame *f,
                                const rle_call_head *head, rle_decoder *d);
/* Let go of what nobody has come for in time, and tell those who came in vain. */
void rle_handover_expire(rle_rpc *rpc, int64_t now);
void rle_handover_conn_closed(rle_conn *conn);
void rle_handover_init(rle_rpc *rpc);
void rle_handover_free_all(rle_rpc *rpc);

#endif
