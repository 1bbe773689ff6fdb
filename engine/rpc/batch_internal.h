/* batch_internal.h - what batch.c and the other files of engine/rpc want of each other. All of it
 * wants the loop's lock held. */
#ifndef RLE_RPC_BATCH_INTERNAL_H
#define RLE_RPC_BATCH_INTERNAL_H

#include "rpc/rpc_internal.h"

/* ---- batch.c ---- */

/* A call that waits in a batch goes: by incoming_free, which every end comes to. */
void rle_batch_remove(rle_incoming *in);
/* The timers of those in rpc->unarmed. */
void rle_batches_arm(rle_rpc *rpc);
/* This worker stops: what waits is done at once. */
void rle_batches_stop(rle_rpc *rpc);
/* We have no call open to that worker any more. */
void rle_batches_episode_over(rle_peer *peer);
/* Its connection is gone, and so are its calls. */
void rle_batches_peer_lost(rle_peer *peer);
/* It is about to be freed, and has no calls. */
void rle_batches_forget(rle_peer *peer);

/* ---- server.c: answer a call that was not executed ---- */

/* Its time is over. */
void rle_incoming_expire(rle_incoming *in);
/* This worker stops. */
void rle_incoming_refuse_stopping(rle_incoming *in);
/* Nobody waits for it. */
void rle_incoming_abandon(rle_incoming *in);

#endif
