/* rpc.h - remote calls between workers, without Lua: names, calls, futures, references.
 *
 * A worker has a name. It listens, connects to others, or both; over one connection both
 * sides call each other. The layer above (engine/lua) encodes arguments with codec.h, starts
 * calls, waits for futures, takes incoming calls and answers them.
 *
 * Threads: one thread owns an rle_rpc and calls the functions below; they take the lock of
 * the loop (loop.h) themselves. A guard thread runs the loop while the owner computes. The
 * owner must not hold the lock while it runs Lua.
 *
 * What the owner has to do after each turn: take waiters that are ready
 * (rle_rpc_next_ready), calls that may start (rle_rpc_next_call) and objects nobody refers
 * to any more (rle_rpc_next_dropped).
 *
 * Delivery: a call is executed at most once and never repeated by us. A failure says whether
 * the call was not executed or whether that is unknown. */
#ifndef RLE_RPC_RPC_H
#define RLE_RPC_RPC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/note.h"
#include "base/status.h"
#include "rpc/auth.h"
#include "rpc/codec.h"
#include "rpc/timer.h"
#include "rpc/tls.h"

typedef struct rle_rpc rle_rpc;
typedef struct rle_peer rle_peer;         /* another worker, known by name */
typedef struct rle_future rle_future;     /* a call of ours */
typedef struct rle_incoming rle_incoming; /* a call we serve */
typedef struct rle_publication rle_publication; /* weights of ours, a version at a time */
typedef struct rle_follower rle_follower;       /* those of another worker */

#define RLE_SECONDS INT64_C(1000000000) /* times are nanoseconds of rle_now() */

typedef struct rle_rpc_options {
    const char *name;
    const rle_token *token;
    int max_concurrent;        /* calls being served at once; 0 = 256 */
    int max_credits;           /* calls a peer may have open here; 0 = 64 */
    int64_t heartbeat;         /* a silent peer is pinged after this, at most half
                                * of peer_timeout; 0 = 3 s, at most a third of it */
    int64_t peer_timeout;      /* a peer silent for so long is gone; 0 = 10 s */
    int64_t call_timeout;      /* deadline of calls that give none; 0 = 60 s */
    uint64_t max_message;      /* bytes we accept; 0 = 64 MiB */
    const rle_tls_options *tls; /* for connections over TCP; NULL = none */
    bool insecure_network;     /* listen and connect beyond this machine without TLS */
    const uid_t *allow_uids;   /* users besides our own at Unix sockets */
    int allow_uid_count;
    int64_t busy_after;        /* log a call that keeps a peer's Lua so long; 0 = 30 s */
    int64_t join_timeout; /* a call waits so long for a worker never seen; 0 = 10 s */
    int64_t reconnect_for;     /* look so long for a worker we lost; 0 = 60 s, < 0: not */
    int64_t busy_poll;         /* a wait looks so long before it sleeps; 0 = 50 us, < 0: not */
    uint64_t random_seed;      /* of the pauses between attempts; 0 = from the system */
    int min_version, max_version; /* of the protocol; 0 = what this build speaks */
    bool members;              /* the owner takes rle_rpc_next_member */
    bool no_guard;             /* tests: nobody runs the loop but rle_rpc_turn */
} rle_rpc_options;

/* INVALID_ARGUMENT for a bad name; RESOURCE_EXHAUSTED. The options are copied. */
rle_status rle_rpc_new(const rle_rpc_options *options, rle_rpc **out);
/* Closes every connection at once: open futures fail, served calls lose their caller. The
 * owner must have let go of its futures and incoming calls. */
void rle_rpc_free(rle_rpc *rpc);

/* Listen at an address (transport.h). `bound` (may be NULL, RLE_ADDRESS_MAX bytes) gets the
 * address with its real port. */
rle_status rle_rpc_listen(rle_rpc *rpc, const char *address, char *bound);

/* Connect and shake hands. What may pass by itself, a host's name that does not resolve
 * included, is tried again until `timeout` has passed (the last attempt has half a
 * second, however late it begins); then UNAVAILABLE. From then on the worker is looked
 * for whenever its connection is lost without a goodbye, for options.reconnect_for; calls
 * to it are held meanwhile (rle_peer_link). At once: UNAUTHENTICATED, ALREADY_EXISTS,
 * UNIMPLEMENTED with what the other side says; FAILED_PRECONDITION when it is no worker,
 * or has TLS and we do not, or the other way round; CANCELLED when interrupted. */
rle_status rle_rpc_connect(rle_rpc *rpc, const char *address, int64_t timeout,
                           rle_peer **peer);

/* No new calls in either direction from now on; peers are told. */
void rle_rpc_stop(rle_rpc *rpc);
bool rle_rpc_stopping(const rle_rpc *rpc);
/* Calls being served or queued; calls of ours that are open. */
void rle_rpc_open_calls(rle_rpc *rpc, size_t *serving, size_t *calling);
/* True when nothing waits to be written. */
bool rle_rpc_flushed(rle_rpc *rpc);

/* Run the loop once. Returns what waits to be taken from the queues: a set of RLE_WORK_*.
 * `block`: until something happens; when something waits already, do nothing. */
enum {
    RLE_WORK_READY = 1,
    RLE_WORK_CANCELLED = 2,
    RLE_WORK_MEMBER = 4,
    RLE_WORK_CALL = 8,
    RLE_WORK_DROPPED = 16,
    RLE_WORK_PLACE = 32,
    RLE_WORK_BATCH = 64 /* batch.h; after calls, which may belong into it */
};
unsigned rle_rpc_turn(rle_rpc *rpc, bool block);
/* Read and write what is possible now when the loop has not run for 10 ms. Cheap. */
void rle_rpc_breathe(rle_rpc *rpc);
/* Every worker whose calls wait has had its turn since the loop ran, which was a while
 * ago: run it before the next call is taken, for others may have called meanwhile. Cheap.
 */
bool rle_rpc_look_due(const rle_rpc *rpc);
/* Make a blocked turn return; from any thread and from signal handlers. */
void rle_rpc_wake(rle_rpc *rpc);
/* The same for whichever rle_rpc the process has; does nothing without one. */
void rle_rpc_wake_all(void);
/* How many blocked or coming turns were woken so far. */
uint64_t rle_rpc_wakes(rle_rpc *rpc);
/* Watch a descriptor of somebody else's: turns return when it is readable, and *readable is
 * then set. -1 stops watching. */
rle_status rle_rpc_watch(rle_rpc *rpc, int fd, bool *readable);

/* From 0 to below 1, of options.random_seed: for pauses. */
double rle_rpc_random(rle_rpc *rpc);

/* What this worker is called, and the number of its present life. Borrowed. */
const char *rle_rpc_name(const rle_rpc *rpc);
uint64_t rle_rpc_incarnation(const rle_rpc *rpc);

/* ---- workers ---- */

typedef struct rle_peer_info {
    char name[RLE_NAME_MAX + 1];
    bool connected, left; /* left: it said goodbye */
    bool sought;          /* we lost it and look for it */
    uint64_t incarnation; /* of its connection, or 0 */
    pid_t pid;
    char address[RLE_ADDRESS_MAX];
    int64_t silent;       /* since anything was heard from it */
    char note[RLE_NOTE_MAX]; /* what keeps its Lua, as it said with its last answer to a ping */
    size_t calls_to, calls_from, references; /* open now */
    uint64_t bytes_in, bytes_out;
} rle_peer_info;

/* The worker of that name, known or not: borrowed. NULL when memory ran out. Our own name
 * gives a peer that is us. It lives as long as rpc while it is connected or looked for, a
 * future, call or follower of it is there, or it is pinned. Else, when a thousand others
 * have gone after it, a turn may forget it. */
rle_peer *rle_rpc_peer(rle_rpc *rpc, const char *name);
/* For the owner, also in finalizers: one that is pinned is not forgotten. */
void rle_peer_pin(rle_peer *peer);
void rle_peer_unpin(rle_peer *peer);
const char *rle_peer_name(const rle_peer *peer);
bool rle_peer_is_self(const rle_peer *peer);
bool rle_peer_connected(rle_rpc *rpc, rle_peer *peer);
/* There is a connection, though perhaps it has said goodbye and takes no new calls. */
bool rle_peer_present(rle_rpc *rpc, rle_peer *peer);
/* It said goodbye before it went, or is about to go. */
bool rle_peer_left(rle_rpc *rpc, rle_peer *peer);
/* Incarnation of its present connection, 0 when there is none. */
uint64_t rle_peer_incarnation(rle_rpc *rpc, rle_peer *peer);
/* Number of its present connection, never used again; 0 when there is none. References
 * are good for the connection they came over. */
uint64_t rle_peer_session(rle_rpc *rpc, rle_peer *peer);
typedef enum {
    RLE_LINK_NONE,    /* we did not connect to it (rle_rpc_connect), or look for nobody */
    RLE_LINK_UP,      /* connected, or gone with a goodbye */
    RLE_LINK_SEEKING, /* lost, and looked for */
    RLE_LINK_GIVEN_UP /* not found: the message is rle_message() */
} rle_link_state;
/* Is it looked for? *code: of the failure when it was given up. */
rle_link_state rle_peer_link(rle_rpc *rpc, rle_peer *peer, rle_status *code);
/* Where it listens, as it told us; how many were written. */
int rle_peer_addresses(rle_rpc *rpc, rle_peer *peer,
                       char out[RLE_REF_ADDRESSES][RLE_ADDRESS_MAX]);
int rle_rpc_own_addresses(rle_rpc *rpc, char out[RLE_REF_ADDRESSES][RLE_ADDRESS_MAX]);
/* Remember where a worker can be reached: calls to it connect by themselves. */
void rle_peer_hint(rle_rpc *rpc, rle_peer *peer, const char *const *addresses, int count);
/* Fill up to `max` records of the peers ever seen; returns how many there are. */
size_t rle_rpc_peers(rle_rpc *rpc, rle_peer_info *out, size_t max);
/* "; here are \"obs_0\", \"obs_1\"; did you mean \"obs_1\"?": who is connected, for
 * messages that a worker of that name is not. */
void rle_rpc_who_is_here(rle_rpc *rpc, const char *wanted, char *out, size_t size);
/* Changes with every worker that comes or goes. Cheap. */
uint64_t rle_rpc_membership(rle_rpc *rpc);

/* A worker that came, went, or was replaced by its next life since it was told of last. */
typedef struct rle_member_change {
    rle_peer *peer;
    uint64_t left, joined; /* incarnations; 0: it did not */
    bool goodbye;          /* it said that it leaves */
} rle_member_change;
/* The next one (RLE_WORK_MEMBER); false: none. */
bool rle_rpc_next_member(rle_rpc *rpc, rle_member_change *out);

enum { RLE_BATCH_REASONS = 4 }; /* as in batch.h */

typedef struct rle_rpc_counters {
    uint64_t calls_made, calls_served, late_results, expired_unstarted, refused_peers;
    uint64_t unsent_results; /* their caller's connection was gone */
    uint64_t batches, batch_calls, batch_rows, batch_reasons[RLE_BATCH_REASONS];
    size_t live_futures, live_incoming, exported_objects, timers;
} rle_rpc_counters;
/* Since the start, and live ones now. */
void rle_rpc_count(rle_rpc *rpc, rle_rpc_counters *out);
/* Connections, open futures with the lines that made them, calls served: as text. */
void rle_rpc_dump(rle_rpc *rpc, rle_writer *out);

/* ---- messages ---- */

/* Body of a received message. Its bytes may lie in the loop's own buffer; then the next turn
 * moves them to a block of their own, so look at `data` anew after each turn. */
typedef struct rle_msg {
    const uint8_t *data;
    size_t size;
    uint32_t values;
    int tensors;
    void *block;     /* owned memory, or NULL */
    size_t borrowed; /* place in the list of borrowed ones + 1, or 0 */
    rle_placed *placed; /* where its tensors lie when not behind the values, or NULL */
} rle_msg;

/* A decoder of its values. */
void rle_msg_decoder(const rle_msg *m, rle_decoder *d);

/* ---- where tensors of long messages go ----
 *
 * When the values of a message that comes in chunks are there, the owner is asked for memory
 * for its tensors, and they are read straight into it. The guard, which must not touch a
 * device, reads into blocks of its own. */

typedef struct rle_placement {
    uint64_t serial; /* of the message */
    bool is_call;    /* of another worker; else a result */
    rle_call_head head;
    rle_peer *caller;
    int count;
    rle_wire_tensor tensor[RLE_WIRE_TENSORS]; /* dtype, shape and size are set */
} rle_placement;

/* The next message that waits for it (RLE_WORK_PLACE); false: none. Then rle_rpc_place. */
bool rle_rpc_next_placement(rle_rpc *rpc, rle_placement *p);
/* Memory for each tensor, and a handle that stands for it; both NULL for those that have to
 * do with a block of ours. False when the message is gone: the handles stay the caller's. */
bool rle_rpc_place(rle_rpc *rpc, const rle_placement *p, void *const *data,
                   void *const *handles);
/* How a handle is let go that no reader has taken; called on the owner's thread. */
void rle_rpc_set_drop_handle(rle_rpc *rpc, void (*drop)(void *handle));
/* The reader takes the handle of a tensor over; NULL: its bytes are to be copied. */
static inline void *rle_take_handle(rle_decoder *d, const rle_wire_tensor *t)
{
    if (!d->placed || t->number >= d->placed->count) return NULL;
    void *handle = d->placed->tensor[t->number].handle;
    d->placed->tensor[t->number].handle = NULL;
    return handle;
}

/* An error as it crosses: the body of an ERROR frame. Texts are not terminated. */
typedef enum {
    RLE_OUTCOME_NONE, /* the handler ran and raised it */
    RLE_OUTCOME_NOT_EXECUTED,
    RLE_OUTCOME_UNKNOWN
} rle_outcome;

typedef struct rle_slice {
    const char *p;
    size_t n;
} rle_slice;

enum { RLE_ERROR_HOPS = 16 };

typedef struct rle_wire_error {
    rle_status code;
    rle_outcome outcome;
    rle_slice message, worker, method, where, traceback;
    rle_slice data; /* an encoded value (codec.h): further fields of the error object */
    int hops;
    rle_slice via[RLE_ERROR_HOPS]; /* workers it passed through, first one first */
} rle_wire_error;

/* One that says no more than this; the texts are borrowed. `worker`, `method`: NULL is
 * none. */
rle_wire_error rle_error_of(rle_status code, rle_outcome outcome, const char *message,
                            const char *worker, const char *method);
void rle_error_encode(rle_writer *w, const rle_wire_error *e);
/* INVALID_ARGUMENT when malformed. Slices point into the message. */
rle_status rle_error_decode(const rle_msg *m, rle_wire_error *out);

/* ---- calls we make ---- */

typedef struct rle_call_spec {
    rle_peer *peer;
    uint64_t session;     /* of the reference used; 0 = any */
    const char *method;   /* for messages; the encoder holds it already */
    int64_t timeout;      /* nanoseconds; 0 = the default */
    int64_t deadline;     /* absolute bound inherited from the call being served; 0 = none */
    bool nested;          /* made by a handler */
    rle_future *after;    /* its result names the object to call: hold until it is there */
    bool quiet;           /* nobody will ask for its error: do not log it */
    bool construct;       /* its result is a reference: the object it names is noted */
    bool claim; /* that reference was passed on by a third worker (handover.c) */
    uint32_t site;        /* script line, for reports */
} rle_call_spec;

/* Start a call whose values are in `e` (head included). On success *out holds a reference
 * for the caller, also when the call has failed already: what becomes of the call is found
 * in the future. Fails only for want of memory. */
rle_status rle_rpc_call(rle_rpc *rpc, const rle_call_spec *spec, rle_encoder *e,
                        rle_future **out);

typedef enum { RLE_FUTURE_PENDING, RLE_FUTURE_DONE, RLE_FUTURE_FAILED } rle_future_state;

/* A future without a call: the owner completes it. */
rle_status rle_future_new_local(rle_rpc *rpc, const char *method, uint32_t site,
                                rle_future **out);
void rle_future_complete_local(rle_rpc *rpc, rle_future *f, bool failed);

rle_future_state rle_future_status(rle_rpc *rpc, rle_future *f);
bool rle_future_is_local(const rle_future *f);
const char *rle_future_method(const rle_future *f);
rle_peer *rle_future_peer(const rle_future *f);       /* NULL for local ones */
uint64_t rle_future_session(const rle_future *f);     /* of the connection it went over */
uint32_t rle_future_site(const rle_future *f);
/* What a construction or claim made, once it is done; else 0. */
uint64_t rle_future_object(const rle_future *f);
/* Result or error, once the state is not pending; NULL for local futures and when read. */
rle_msg *rle_future_message(rle_future *f);
/* The values have been read: the bytes go, references in them are the reader's now. */
void rle_future_read(rle_rpc *rpc, rle_future *f);
/* The other side is told that nobody waits; the future fails CANCELLED unless it is over.
 * A call of which nothing is sent yet never is: its outcome is "not executed", as when
 * its time ends. */
void rle_future_cancel(rle_rpc *rpc, rle_future *f);
void rle_future_retain(rle_rpc *rpc, rle_future *f);
/* Without the last reference the call goes on; its result is dropped. */
void rle_future_release(rle_rpc *rpc, rle_future *f);
/* For finalizers: as release, at the next call of another function. */
void rle_future_discard(rle_rpc *rpc, rle_future *f);

/* ---- waiting ---- */

typedef enum { RLE_WAIT_ALL, RLE_WAIT_ANY, RLE_WAIT_ALL_OR_FAILURE } rle_wait_mode;

typedef struct rle_waiter rle_waiter;

typedef struct rle_wait_link {
    rle_waiter *waiter;
    struct rle_wait_link *next, **at; /* in the future's list; at NULL: in none */
} rle_wait_link;

/* Somebody who waits; lies in a structure of the layer above. Only `ready`, `timed_out`,
 * `cancelled` and `owner` are to be looked at. */
struct rle_waiter {
    void *owner;
    bool ready;     /* it is over; in the queue of rle_rpc_next_ready until taken from it */
    bool timed_out, cancelled;
    bool remote;    /* at least one future waits for another worker */
    rle_wait_mode mode;
    size_t remaining, link_count;
    rle_wait_link *links, one; /* links == &one for a single future */
    rle_waiter *next, **at;    /* in the queue of ready ones */
    rle_timer timer;
    rle_rpc *rpc;
};

/* Wait for `count` futures in the given mode, until `deadline` (0: for ever). A waiter that
 * has nothing to wait for is ready at once. RESOURCE_EXHAUSTED leaves it unused. */
rle_status rle_wait_begin(rle_rpc *rpc, rle_waiter *w, rle_future *const *futures, size_t count,
                          rle_wait_mode mode, int64_t deadline);
/* Take it out of every list; also when it is not ready. */
void rle_wait_end(rle_rpc *rpc, rle_waiter *w);
/* Make it ready with `cancelled` set. */
void rle_wait_cancel(rle_rpc *rpc, rle_waiter *w);
/* The next waiter that became ready, or NULL. It has been ended. */
rle_waiter *rle_rpc_next_ready(rle_rpc *rpc);

/* ---- calls we serve ---- */

typedef struct rle_incoming_info {
    rle_peer *caller;
    rle_call_head head;
    int64_t deadline;     /* 0 = none */
    uint64_t number;      /* counts the calls of that worker, over all its connections */
    uint64_t incarnation, session; /* of the caller, of its connection */
} rle_incoming_info;

/* The next call that may start, or NULL: the bound on concurrent calls holds it back, or
 * there is none. A call made by a handler starts beyond the bound when every call being
 * served waits for another worker: else two workers at their bounds would wait for each
 * other. *decoder stands at the arguments. */
rle_incoming *rle_rpc_next_call(rle_rpc *rpc, rle_incoming_info *info, rle_decoder *decoder);
/* With `hold` none starts, as when the bound is reached: this worker is not ready yet. */
void rle_rpc_hold_calls(rle_rpc *rpc, bool hold);
/* Its arguments once more: they may have moved when the loop was turned. */
void rle_incoming_decoder(rle_rpc *rpc, rle_incoming *in, rle_decoder *decoder);
/* Arguments have been read. */
void rle_incoming_read(rle_rpc *rpc, rle_incoming *in);
/* The handler waits for another worker, or no longer. */
void rle_incoming_waits(rle_rpc *rpc, rle_incoming *in, bool waits);
/* Nobody waits for it any more: cancelled, its time is over, or the caller is gone. */
bool rle_incoming_cancelled(rle_rpc *rpc, rle_incoming *in);
/* To be told by rle_rpc_next_cancelled; any pointer of the layer above. */
void rle_incoming_set_owner(rle_incoming *in, void *owner);
void *rle_rpc_next_cancelled(rle_rpc *rpc); /* NULL: none */
/* Answer and be done with it; nothing that `e` holds lies in its arguments.
 * RESOURCE_EXHAUSTED or NOT_FOUND when the result cannot be sent; then answer with an
 * error. */
rle_status rle_incoming_reply(rle_rpc *rpc, rle_incoming *in, rle_encoder *e);
void rle_incoming_fail(rle_rpc *rpc, rle_incoming *in, const rle_wire_error *error);

/* ---- versions for many ----
 *
 * Something large that changes as a whole, such as a policy's weights: the publisher encodes
 * each version once, whoever follows gets the newest, each at most once over a connection and
 * one at a time, the ones overtaken meanwhile never. Credits and queues of calls have no part
 * in it, and neither worker's Lua: it goes on while they compute.
 *
 * A version is a result of two values and more, of which the first is its number, and of one
 * tensor. */

/* ALREADY_EXISTS: the name is in use. `from`: who may follow, with * for anything; "": all.
 * `version` is that of the next one, less one. Lives until it is closed, or rpc is freed. */
rle_status rle_publication_new(rle_rpc *rpc, const char *name, const char *from, uint64_t version,
                               rle_publication **out);
/* A version of these values (result head included), whose tensor's bytes are then written
 * to *tensor; the pointer in the encoder is not looked at. On failure the newest one
 * stays, and so it does when there is no commit: what was staged is forgotten with the
 * next stage. `certain`: there will be one, so the newest's own block may be written to
 * where nobody reads it. */
rle_status rle_publication_stage(rle_publication *p, const rle_encoder *e, bool certain,
                                 uint8_t **tensor);
/* It is the newest now: sent to all that wait. Returns its number. */
uint64_t rle_publication_commit(rle_publication *p);
void rle_publication_close(rle_publication *p);

typedef struct rle_publication_info {
    uint64_t version; /* the newest */
    uint64_t sent;    /* how often any was sent */
    size_t bytes;     /* of the newest */
    size_t waiting;   /* followers that have it, or are getting their first */
    size_t bodies;    /* versions in memory: the newest, those under way, a spare block */
} rle_publication_info;
void rle_publication_look(rle_publication *p, rle_publication_info *out);

/* Follow what `peer` publishes under a name, now or later, over every connection to it.
 * FAILED_PRECONDITION: the peer is this worker. */
rle_status rle_follower_new(rle_rpc *rpc, rle_peer *peer, const char *name, rle_follower **out);
void rle_follower_discard(rle_follower *fo); /* as rle_ref_discard */
/* How many versions have arrived, while the newest is there to be taken; else 0. `failed`: the
 * last answer was an error. */
uint64_t rle_follower_look(rle_follower *fo, bool *failed, bool *connected);
/* The newest version and its number; its bytes stay until the next take or done. 0: none. */
uint64_t rle_follower_take(rle_follower *fo, rle_msg *m);
void rle_follower_done(rle_follower *fo);
/* The error, whose block is now the caller's to rle_free; the question is asked again. */
bool rle_follower_error(rle_follower *fo, rle_msg *m);

/* ---- references ----
 *
 * The owner of an object gives it a number. For each connection it counts how often the
 * number was sent there and given back; a lost connection gives everything back. An object
 * with no holder left, here or elsewhere, is dropped. */

uint64_t rle_export_new(rle_rpc *rpc); /* held once by the caller; 0 = no memory */
uint64_t rle_export_new_at(rle_rpc *rpc, uint32_t site); /* of the script, for reports */
bool rle_export_hold(rle_rpc *rpc, uint64_t object); /* false: it was dropped */
void rle_export_unhold(rle_rpc *rpc, uint64_t object);
/* For finalizers: done at the next call of another function. */
void rle_export_discard(rle_rpc *rpc, uint64_t object);
/* The next object without holders, or 0. */
uint64_t rle_rpc_next_dropped(rle_rpc *rpc);
/* A ticket lets its bearer claim a hold on the object over another connection. */
rle_status rle_ticket_grant(rle_rpc *rpc, uint64_t object,
                            const uint8_t ticket[RLE_TICKET_SIZE]);
/* The object, with the ticket's hold on it now the caller's; 0: no such ticket (yet). */
uint64_t rle_ticket_claim(rle_rpc *rpc, const uint8_t ticket[RLE_TICKET_SIZE]);

/* Give `count` holds on a peer's object back: from a finalizer, sent with the next turn. */
void rle_ref_discard(rle_rpc *rpc, rle_peer *peer, uint64_t session, uint64_t object,
                     uint32_t count);

typedef struct rle_export_info {
    uint64_t object;
    char holder[RLE_NAME_MAX + 1]; /* "" for this worker itself */
    uint64_t count;
    int64_t age;   /* since it was made, or sent to that holder */
    uint32_t site; /* script line that did; 0: not known */
} rle_export_info;
size_t rle_rpc_exports(rle_rpc *rpc, rle_export_info *out, size_t max);

#endif
