/* service.h - calls that C makes and C answers, for a layer above that moves data between
 * workers by itself (engine/comm).
 *
 * A worker may have one service. Calls of its method do not wait for the owner's Lua:
 * they are handed over as they arrive, by whoever runs the loop, owner or guard. So are
 * the results of calls that the service makes. They take no credit and are bounded by
 * RLE_CALLS_HARD, and by what the service keeps of them.
 *
 * All functions here want the loop's lock held, and all callbacks are called with it.
 * rle_service_enter takes it, for the owner only. Callbacks may answer and make calls,
 * except where it says that they must not. */
#ifndef RLE_RPC_SERVICE_H
#define RLE_RPC_SERVICE_H

#include "rpc/rpc.h"

typedef struct rle_service rle_service;

struct rle_service {
    const char *method; /* as no script can register one */
    /* A call has arrived. It is the service's until it is answered or forgotten. */
    void (*call)(rle_service *s, rle_incoming *in, const rle_incoming_info *info);
    /* Nobody waits for it any more; it is freed when this returns. No calls, no answers.
     */
    void (*forget)(rle_service *s, rle_incoming *in);
    /* A worker has connected, or is back: calls go to it from now on. */
    void (*joined)(rle_service *s, rle_peer *peer);
    /* A worker's connection is no more; its calls were forgotten, ours to it have failed.
     * No calls, no answers. */
    void (*gone)(rle_service *s, rle_peer *peer, const char *reason, bool goodbye);
    /* The rle_rpc is about to be freed, its connections are closed. Called by the owner.
     */
    void (*closed)(rle_service *s);
};

/* The owner takes the lock, and gives it back. */
void rle_service_enter(rle_rpc *rpc);
/* The other half of rle_service_enter. */
void rle_service_leave(rle_rpc *rpc);

/* ALREADY_EXISTS. It stays until the rle_rpc is freed. */
rle_status rle_service_open(rle_rpc *rpc, rle_service *service);
/* The worker of that name, known or not, which is not forgotten until it is given back as
 * often as it was asked for; NULL when memory ran out. */
rle_peer *rle_service_peer(rle_rpc *rpc, const char *name);
void rle_service_peer_release(rle_peer *peer); /* NULL is fine */
/* There is a connection to it that takes calls. */
bool rle_service_connected(const rle_peer *peer);

/* ---- calls that are served ---- */

rle_peer *rle_service_caller(const rle_incoming *in);
/* Bytes of the longest message that its caller takes. */
uint64_t rle_service_limit(const rle_incoming *in);
/* At the arguments; their bytes may have moved since the last look. */
void rle_service_decoder(const rle_incoming *in, rle_decoder *d);
/* Either of these ends it, and does not call `forget`. A failure is the connection's end.
 */
void rle_service_reply(rle_incoming *in, rle_encoder *e);
void rle_service_fail(rle_incoming *in, rle_status code, const char *message);

/* ---- calls that are made ---- */

/* What becomes of a call. Once, perhaps before rle_service_call has returned. No calls to
 * the same worker unless the future is done, no answers unless it is. */
typedef void rle_service_over(rle_future *f, void *self);

/* As rle_rpc_call; `over` may be NULL. `encoder` begins with a call head of the method.
 */
rle_status rle_service_call(rle_rpc *rpc, const rle_call_spec *spec, rle_encoder *e,
                            rle_service_over *over, void *self, rle_future **out);
/* Whoever was to be told of its end is not any more; an open call is cancelled. Releases
 * it. */
void rle_service_drop(rle_future *f);
void rle_service_release(rle_future *f);
rle_future_state rle_service_status(const rle_future *f);
/* Complete a future without a call. */
void rle_service_complete(rle_future *f, bool failed);

/* ---- time ---- */

/* Call t->fire at that time; one that is set already is moved. RESOURCE_EXHAUSTED. */
rle_status rle_service_timer(rle_rpc *rpc, rle_timer *t, int64_t at);
/* No more; nothing when it is not set. */
void rle_service_timer_off(rle_rpc *rpc, rle_timer *t);

#endif
