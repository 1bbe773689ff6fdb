/* batch.h - calls of many workers that are answered together, and when their time has
 * come.
 *
 * Whoever serves calls puts them into a batch instead of starting them one by one. The
 * batch is due when
 *   - it holds as many rows as it may (RLE_FLUSH_FULL), or no further call may be served;
 *   - its oldest call has waited `delay` (RLE_FLUSH_DELAY);
 *   - every caller it waits for is in it (RLE_FLUSH_ALL);
 *   - the owner has nothing else to do, where that was asked for (RLE_FLUSH_IDLE).
 * It waits for a caller from its first call on, until that one is lost, was not there
 * when the delay was over (it counts again when it calls again), or its episode ends:
 * when we had a call open to it as it joined, that call (or another one) must still be
 * open. So who has died or hangs costs the others one delay, once.
 *
 * A call leaves the batch by itself when it is cancelled, its deadline passes or its
 * caller is lost: it was never executed, and its caller is told so. Rows that it had stay
 * where they are, as a gap.
 *
 * What the rows are, and where they lie, is the layer above's to know: a call has `first`
 * and `rows` of it, and `extra`, which means nothing here.
 *
 * All functions are for the owner's thread and take the lock; between them the guard may
 * take calls away, so look at a batch's calls only after rle_batch_take. */
#ifndef RLE_RPC_BATCH_H
#define RLE_RPC_BATCH_H

#include "rpc/rpc.h"

typedef struct rle_batch rle_batch;

typedef enum {
    RLE_FLUSH_FULL,
    RLE_FLUSH_DELAY,
    RLE_FLUSH_ALL,
    RLE_FLUSH_IDLE,
    RLE_FLUSH_REASONS
} rle_flush_reason;

typedef struct rle_batch_options {
    size_t size; /* rows that make it full */
    int64_t
        delay; /* its oldest call waits no longer; 0: as soon as it is the owner's turn */
    bool when_idle; /* do not wait while the owner has nothing else to do */
    void *owner;    /* of the layer above */
} rle_batch_options;

typedef struct rle_batch_call {
    rle_incoming *in;
    rle_peer *caller;
    uint64_t number;  /* counts the calls of that worker */
    int64_t deadline; /* 0 = none */
    size_t first, rows;
    size_t extra;
    bool single; /* one row, given without a dimension for rows */
} rle_batch_call;

/* Calls of one flush; keeps its block from one to the next. */
typedef struct rle_batch_calls {
    rle_batch_call *list;
    size_t count, capacity;
    size_t rows; /* of all of them together */
} rle_batch_calls;

/* RESOURCE_EXHAUSTED. */
rle_status rle_batch_new(rle_rpc *rpc, const rle_batch_options *options, rle_batch **out);
/* Calls that wait in it fail, not executed. */
void rle_batch_free(rle_rpc *rpc, rle_batch *b);
void *rle_batch_owner(const rle_batch *b);

/* May that worker call it? Noted by the layer above, once for each. */
bool rle_batch_knows(rle_rpc *rpc, const rle_batch *b, const rle_peer *peer);
rle_status rle_batch_admit(rle_rpc *rpc, rle_batch *b, rle_peer *peer);

/* Put a call that was started (rle_rpc_next_call) and whose caller is known into it; the
 * caller, number and deadline are taken from it. One that nobody waits for any more goes
 * at once. On failure (RESOURCE_EXHAUSTED) it stays the owner's to answer. */
rle_status rle_batch_add(rle_rpc *rpc, rle_batch *b, rle_incoming *in,
                         const rle_batch_call *call);
/* How many calls wait in it. */
size_t rle_batch_waiting(rle_rpc *rpc, const rle_batch *b);

/* The next batch that is due, or NULL. */
rle_batch *rle_rpc_next_batch(rle_rpc *rpc);
/* Every batch that may be is due because there is nothing else to do; true if one is. */
bool rle_rpc_batches_idle(rle_rpc *rpc);
/* A batch waits that is due as soon as there is nothing else to do. */
bool rle_rpc_batches_eager(rle_rpc *rpc);

/* The calls that wait in it are the owner's now, in the order in which they came, each to
 * be answered by rle_incoming_reply or _fail. `into->list` is what was left there by an
 * earlier flush, or NULL. Those whose deadline has passed are gone. `reason` counts
 * unless the batch was due already. */
void rle_batch_take(rle_rpc *rpc, rle_batch *b, rle_flush_reason reason,
                    rle_batch_calls *into);

#endif
