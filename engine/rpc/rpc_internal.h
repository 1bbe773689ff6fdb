/* rpc_internal.h - what the files of engine/rpc share.
 *
 *   rpc.c         life of an rle_rpc, discarded things, turns
 *   peer.c        the workers it knows
 *   connection.c  bytes into one connection, its end
 *   reading.c     turns of those that send long messages
 *   output.c      frames out of it
 *   handshake.c   who may talk to us
 *   refusals.c    those who may not, and who is not answered any more
 *   owner.c       whose process is at the other end (owner_table.c: a slower way)
 *   repeats.c     lines of the log about workers that come and go
 *   listen.c      listening and connecting
 *   lookup.c      names of hosts (lookup.h)
 *   link.c        connections we made, looked for again when they are lost
 *   replace.c     a name that is taken: is its connection alive?
 *   lost.c        what the loss of a connection means for calls and references
 *   dispatch.c    what is done with each frame
 *   message.c     bodies of messages, memory for their tensors
 *   client.c      calls we make: held, sent
 *   future.c      their results
 *   wait.c        those who wait for them
 *   server.c      calls we serve
 *   batch.c       calls we serve together (batch_internal.h)
 *   remote_ref.c  who holds which of our objects
 *   handover.c    those that one worker passes on to another
 * What workers that come and go need is declared in joining_internal.h.
 *   dump.c        all of it as text
 *   publish.c     versions of weights for many workers
 *   follow.c      those of others
 *   service.c     calls that C makes and answers, for a layer above
 *
 * Functions without "lock" in their comment want the loop's lock held.
 *
 * Invariants
 *   1. an open call lies in its connection's table `calls` (by id), which holds one
 *      reference to the future; a call not yet sent lies in its worker's list `held`,
 *      which does too;
 *   2. an incoming call lies in its connection's list until it is answered or the
 *      connection ends; then `conn` is NULL and the answer goes nowhere;
 *   3. a connection is freed between turns only (rpc->dead), so callbacks may close it;
 *   4. a worker is freed by the owner only, between turns, and while nothing names it
 *      (peer.c);
 *   5. messages in `borrowed` lie in the owner's scratch block. It is written to by a
 * turn of the owner only, and before each turn they are moved out of it. */
#ifndef RLE_RPC_INTERNAL_H
#define RLE_RPC_INTERNAL_H

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/note.h"
#include "rpc/handshake_internal.h"
#include "rpc/loop.h"
#include "rpc/map.h"
#include "rpc/rpc.h"
#include "rpc/service.h"
#include "rpc/transport.h"

enum {
    RLE_PREAUTH_MAX = 1024, /* bytes of a frame before the handshake is done */
    RLE_PREAUTH_CONNECTIONS = 64,
    RLE_CONTROL_MAX = 64 << 10, /* payload of a control frame */
    RLE_SCRATCH_SIZE = 256 << 10,
    RLE_SCRATCH_MIN_READ = 16 << 10,
    RLE_READ_AHEAD = 32 << 10,  /* of what comes next: a long body is better in place */
    RLE_READ_TURN = 256 << 10,  /* about what is read from one peer in a turn */
    RLE_READ_LONG = 512 << 10,  /* of long messages from all of them */
    RLE_OUT_HARD = 64 << 20,    /* bytes that may wait for one peer */
    RLE_OUT_SOFT = 8 << 20,     /* for RLE_OUT_PATIENCE */
    RLE_OUT_LOW = 64 << 10,     /* below it the next chunk is begun */
    RLE_OUT_TURN = 256 << 10,   /* about what is written of long messages in a turn */
    RLE_OUT_BURST = 1 << 20,    /* about what is written at once by who sends one */
    RLE_PARTIAL_MIN = 64 << 10, /* what a message in several frames counts at least */
    RLE_CALLS_HARD = 10000,     /* open calls on one connection, nested ones included */
    RLE_LISTEN_MAX = 8,
    RLE_PROTOCOL_VERSION = 1
};
#define RLE_OUT_PATIENCE (10 * RLE_SECONDS)
#define RLE_HANDSHAKE_TIME (5 * RLE_SECONDS)
/* After its deadline a call waits this long for the other side to say that it was never
 * started. */
#define RLE_DEADLINE_GRACE (40 * RLE_SECONDS / 1000)

typedef struct rle_conn rle_conn;
typedef struct rle_batch rle_batch;
typedef struct rle_batch_caller rle_batch_caller;
typedef struct rle_link rle_link;

/* ---- messages ---- */

/* Keep a message that lies at m->data (in the running thread's scratch unless m->block) in
 * *keep: borrowed when the owner runs the loop, else copied. RESOURCE_EXHAUSTED. */
rle_status rle_message_keep(rle_rpc *rpc, const rle_msg *m, rle_msg *keep);
/* Move borrowed messages out of the scratch block. */
void rle_message_settle(rle_rpc *rpc);
void rle_message_drop_bytes(rle_rpc *rpc, rle_msg *m);
/* Also give references in it back to `conn` (may be NULL or dead). `results`: it is the
 * body of a RESULT, else of a CALL. */
void rle_message_drop(rle_rpc *rpc, rle_conn *conn, rle_msg *m, bool results);

/* ---- workers ---- */

struct rle_peer {
    rle_rpc *rpc;
    char name[RLE_NAME_MAX + 1];
    rle_peer *next_same; /* names of the same hash */
    rle_conn *conn;      /* open connection or NULL */
    rle_conn *opening;   /* a connection we started by ourselves */
    rle_link *link;      /* it is looked for when it is lost; or NULL */
    rle_handshake *contenders; /* of its name, while `conn` is asked whether it lives */
    bool is_self, known, left;
    pid_t pid;
    uint64_t calls_from; /* number of the last one it made */
    char note[RLE_NOTE_MAX]; /* what it was doing when it last answered a ping; "" nothing */
    int addresses;           /* where it listens */
    char (*address)[RLE_ADDRESS_MAX]; /* so many; owned */
    int tried;                        /* so many of them, by rle_peer_open */
    rle_future *held; /* not yet sent, oldest first */
    rle_future **held_end;
    size_t held_count, held_nested;
    char lost_reason[96]; /* of the last connection */
    rle_batch_caller *batches; /* that it calls */
    /* What was told of it, rle_rpc_next_member; it is in rpc->changed when that is not so. */
    uint64_t told_session, told_incarnation;
    rle_peer *changed_next;
    bool changed;
    /* What keeps it from being forgotten: futures, calls it makes, followers and what a
     * service asked for; the layer above, whose pins only the owner changes, also without
     * the lock. */
    size_t uses, pins;
    rle_peer *idle_next, **idle_at; /* in rpc->idle while it has no connection; or NULL */
};

/* ---- connections ---- */

typedef enum {
    RLE_CONN_CONNECTING, /* waits for the socket */
    RLE_CONN_SECURING,   /* the transport shakes hands */
    RLE_CONN_GREETING,   /* HELLO sent or awaited */
    RLE_CONN_PROVING,    /* AUTH sent or awaited */
    RLE_CONN_OPEN,
    RLE_CONN_DEAD        /* in rpc->dead */
} rle_conn_state;

/* How it came to its end, where that is more than a loss. */
typedef enum {
    RLE_ENDING_LOST,
    RLE_ENDING_SAID,    /* they ended the session */
    RLE_ENDING_REPLACED /* by another connection of the same name */
} rle_ending;

typedef struct rle_poll rle_poll;

/* Bytes that one message or several are made of. Counted under the loop's lock. */
typedef struct rle_body {
    unsigned refs;
    size_t size, ready; /* ready: up to here they are there, or out */
    uint8_t *data;
    void *block; /* that they lie in; owned */
    /* Where all of them lie that are not there: with who sends it, until he goes on, or with who
     * lends them (body.c). Or NULL. */
    const struct iovec *parts;
    int part_count;
    rle_publication *home; /* that may use it again, or NULL */
    /* With a home: checksums of its chunks, as far as any was sent with one; 0: not
     * known. Or NULL. They are the same for everybody. */
    uint32_t *sums;
    struct iovec lent_parts[2];
    size_t *lent; /* how many bodies somebody lends bytes of (codec.h), or NULL */
} rle_body;

/* A long message on its way out, a chunk at a time. */
typedef struct rle_out_message {
    struct rle_out_message *next;
    rle_frame head;
    rle_body *body;
    size_t sent;
} rle_out_message;

/* A message on its way in that does not lie in one read. */
typedef struct rle_in_message {
    struct rle_in_message *next;
    rle_frame head;
    uint8_t *body; /* owned: all of it; when split, the values */
    size_t got;    /* of frames that are complete */
    /* It comes in chunks and has tensors: they get memory when the values are there. */
    bool split;
    rle_placed *placed;
    uint64_t serial;
    rle_follower *follower; /* whose block `body` is, or NULL */
} rle_in_message;

struct rle_conn {
    rle_rpc *rpc;
    rle_conn *next, **at; /* in rpc->conns or rpc->dead */
    rle_transport transport;
    rle_watch *read_watch, *write_watch;
    bool write_armed, initiator, is_unix, body_crc;
    rle_conn_state state;
    rle_ending ending;
    struct {
        char *text;        /* as rle_address has them; owned */
        const char *shown; /* its end */
    } address;             /* of the other side, or where we connect to */
    rle_peer *peer;      /* once open */
    rle_handshake *handshake;
    rle_connect_result *result;
    uint64_t incarnation; /* theirs */
    uint64_t session;     /* its number among our connections, from 1 */
    uint64_t max_message; /* what they accept */
    pid_t pid;

    /* in */
    uint8_t head[RLE_FRAME_HEADER];
    size_t head_got;
    bool in_frame;
    rle_frame frame;         /* being read */
    size_t payload_got;
    uint32_t payload_crc;
    uint8_t *control;        /* payload of a control frame */
    rle_in_message *current; /* the message its payload belongs to, or NULL */
    rle_in_message *partial;
    uint64_t partial_bytes;
    /* `current` waits for rle_rpc_place; what was read behind its values is kept. */
    bool placing;
    uint8_t *kept;
    size_t kept_size;

    /* out */
    uint8_t *out;
    size_t out_begin, out_end, out_cap;
    rle_out_message *long_first, **long_last;
    size_t calls_unbegun;   /* of those: no byte of which is out yet */
    rle_out_message *chunk; /* of which a piece is being written, or NULL */
    size_t chunk_left;      /* bytes of that piece */
    size_t out_before;      /* bytes of `out` that go before it */
    rle_conn *long_next, **long_at; /* in rpc->long_turns */
    rle_conn *dirty_next, *unread_next;
    bool dirty;             /* in rpc->dirty: something was queued with `later` */
    bool deaf;              /* nobody reads what we write; the end is still to be read */
    bool unread;            /* in rpc->unread: the transport may hold bytes back */
    bool late;              /* waits to be read; see reading.c */
    uint64_t read_round;    /* in which it was read last */
    int64_t out_over_since; /* when more than RLE_OUT_SOFT began to wait; 0 = not */
    uint64_t out_seen; /* gone at `out_still`: something waits since, and none goes */
    int64_t out_still;

    /* calls we make */
    rle_map calls;
    uint64_t next_id;
    uint32_t credits;
    bool going_away; /* said by them */

    /* calls they make */
    rle_incoming *incoming;
    size_t incoming_count, incoming_counted; /* all; those bound by credits */
    uint64_t last_id;
    rle_incoming *waiting, **waiting_end; /* to be started, in the order they came */
    rle_conn *turn_next, **turn_at;       /* in rpc->turns, while there are any */
    uint64_t served_round;                /* in which one of them was started last */

    rle_map exported; /* object -> what they hold of it */

    rle_poll *polls;       /* versions of ours that they wait for */
    rle_follower *follows; /* of ours that wait for versions of theirs */

    int64_t heard;    /* about when bytes last came; the tick turns `active` into it */
    bool active;      /* bytes came since the last tick */
    int64_t pinged;   /* when we asked, since then; 0 = not */
    uint64_t bytes_in, bytes_out;
    bool busy_logged; /* of this absence of its owner */
};

/* ---- futures and incoming calls ---- */

struct rle_future {
    rle_rpc *rpc;
    rle_future *live_next, **live_at; /* in rpc->live */
    int refs;
    rle_future_state state;
    bool local, nested, looked_at, holds_refs;
    bool sent; /* some of it, or it waits in order among what goes out */
    rle_peer *peer;
    rle_conn *conn; /* while sent and open */
    uint64_t id;
    uint64_t session, want_session; /* of the connection it went over; has to go over */
    char method[RLE_NAME_MAX + 1];
    int64_t started, deadline, timeout;
    rle_timer timer;
    rle_msg message;
    rle_wait_link *waiters;
    uint32_t site;
    /* held back */
    rle_body *body; /* with room for a header in front */
    uint32_t body_values; /* bytes */
    uint16_t body_tensors;
    rle_future *after;      /* retained while it is waited for */
    rle_future *dependents; /* held until this one is done */
    rle_future *next_held, **held_at; /* in peer->held or after->dependents */
    bool in_peer_list;
    rle_future *next_discarded;
    bool construct, claim;
    uint64_t object; /* what a construction or claim made */
    rle_service_over *over; /* of service.c: told of its end, or NULL */
    void *over_self;
};

struct rle_incoming {
    rle_rpc *rpc;
    rle_conn *conn; /* NULL when the caller is gone */
    rle_peer *peer;
    rle_incoming *next, **at;       /* in conn->incoming */
    rle_incoming *queue_next, **queue_at; /* in conn->waiting or rpc->cancelled */
    rle_incoming *fresh_next, **fresh_at; /* in rpc->fresh */
    bool queued, started, nested, waits, cancelled, in_cancelled;
    bool service; /* it is the service's */
    uint64_t id, number, incarnation, session;
    int64_t deadline;
    rle_call_head head;
    size_t args_at; /* of the first argument in the values */
    rle_msg message;
    rle_timer timer;
    void *owner;
    rle_batch *batch; /* it waits in, at */
    size_t batch_slot;
};

/* The one message that the owner copies without the lock, see rle_conn_copy_rest. */
typedef struct rle_rest {
    rle_body *body;                        /* holds a reference to it; or NULL */
    rle_conn *conn;                        /* that it waits to be written to, or NULL */
    struct iovec parts[RLE_ENCODER_PARTS]; /* where its bytes lie */
} rle_rest;

typedef enum { RLE_TRASH_REF, RLE_TRASH_EXPORT } rle_trash_kind;

typedef struct rle_trash {
    rle_trash_kind kind;
    rle_peer *peer;
    uint64_t session, object;
    uint32_t count;
} rle_trash;

typedef struct rle_export {
    uint64_t object, total, own; /* own: holds of this worker */
    int64_t since;
    uint32_t site; /* script line that made the first reference */
} rle_export;

typedef struct rle_ticket rle_ticket;

typedef struct rle_tickets {
    rle_map by_bytes;
    rle_ticket *first, **end; /* in the order in which their time is over */
} rle_tickets;

struct rle_rpc {
    rle_evloop loop;
    rle_rpc_options o;
    char name[RLE_NAME_MAX + 1];
    rle_token token;
    rle_tls *tls; /* NULL = none */
    uid_t *allow_uids;
    uint64_t incarnation;

    struct rle_listener {
        rle_rpc *rpc;
        int fd;
        rle_watch *watch;
        rle_address address;
        bool paused;
    } listeners[RLE_LISTEN_MAX];
    int listener_count;
    rle_timer accept_timer;
    uint64_t contests; /* so far */
    size_t half_open;  /* accepted connections that are not open yet */
    bool crowded;     /* too many of them: nothing is accepted */
    struct rle_listener *short_of; /* descriptors or memory: where somebody waits */
    rle_refusals refusals[RLE_REFUSAL_ADDRESSES];
    rle_repeat repeats[RLE_REPEATS]; /* repeats.c: lines of the last second */
    int64_t lines_paid;              /* until then, if each takes a tenth of a second */
    uint64_t lines_unsaid;           /* there was no room for */
    int64_t strangers_since; /* refusals.c: those of this minute */
    uint32_t strangers;

    rle_conn *conns, *dead, *dirty, *unread;
    rle_conn *joining; /* that rle_rpc_connect waits for, until it is open; or NULL */
    rle_conn *long_turns, **long_end; /* with long messages to write, in that order */
    rle_rest rest;
    uint64_t long_read;               /* bytes of long messages, in this turn */
    bool long_idle;                   /* none in the last one */
    uint64_t read_round;              /* see reading.c */
    size_t late, late_next;           /* who waits in this round; for the next one */
    uint64_t sessions; /* connections that were opened, ever */
    rle_link *links;
    uint64_t random; /* state of rle_link's pauses */
    rle_map peers; /* by hash of the name */
    size_t peer_count;
    rle_peer *idle, **idle_end; /* those without a connection, longest first */
    size_t idle_count;
    uint64_t calls_forgotten;    /* most calls that a forgotten one had made */
    _Atomic uint64_t membership; /* read without the lock */
    rle_peer *changed, **changed_end;
    rle_peer *self;

    /* Scratch of the owner, of the guard. */
    uint8_t *scratch, *guard_scratch;
    size_t scratch_used;
    rle_msg **borrowed;
    bool no_borrow; /* what is being parsed does not lie in the scratch block */
    size_t borrowed_count, borrowed_cap;
    uint64_t borrows; /* so far */

    /* Connections with calls that wait to be started, and whose turn is next. */
    rle_conn *turns, **turns_end;
    rle_incoming
        *fresh; /* those among the calls that have no timer for their deadline yet */
    uint64_t round, noted_round; /* count the owner's turns of the loop; see server.c */
    int64_t round_at;            /* about when the last of them was over */
    bool look_due;
    size_t queued, queued_nested, serving, serving_waits;
    rle_incoming *cancelled;          /* started ones, to be told to their handler */

    rle_waiter *ready, **ready_end;

    rle_batch *batches, *unarmed; /* all; those whose timer the next turn arms */
    rle_batch *due, **due_end;

    rle_map exports; /* object -> rle_export */
    uint64_t next_object;
    uint64_t *dropped;
    size_t dropped_count, dropped_cap;
    rle_tickets granted, claimed; /* handover.c */

    rle_publication *publications;
    rle_follower *followers;
    rle_follower *gone_followers; /* left by finalizers, as `trash` */

    rle_service *service; /* or NULL */

    /* Tensors that nobody read, for the owner to let go of. */
    void **orphans;
    size_t orphan_count, orphan_cap;
    void (*drop_handle)(void *handle);
    size_t placements; /* connections that wait for rle_rpc_place */
    uint64_t serials;

    /* Left by finalizers, which may not lock; only the owner touches them. */
    rle_trash *trash;
    size_t trash_count, trash_cap;
    rle_future *discarded;

    rle_timer tick;
    bool tick_late;    /* the last one was, and judged nobody */
    int64_t turn_at;   /* a time within this turn, or 0 */
    int64_t last_turn; /* of rle_rpc_breathe */
    bool stopping, holding; /* holding: calls wait to be started */
    rle_watch *watch;
    rle_rpc_counters counters;
    rle_future *free_futures, *live;
    rle_incoming *free_incoming;
    size_t free_future_count, free_incoming_count;
    rle_rpc *next_rpc; /* of this process */
};

/* The time, read once a turn. Good for what arrives with it. */
static inline int64_t rle_turn_time(rle_rpc *rpc)
{
    if (!rpc->turn_at) rpc->turn_at = rle_now();
    return rpc->turn_at;
}

/* rpc.c: lock, and do what finalizers left. */
void rle_rpc_enter(rle_rpc *rpc);
static inline void rle_rpc_leave(rle_rpc *rpc)
{
    rle_evloop_unlock(&rpc->loop);
}

/* ---- connection.c ---- */

/* A connection over a socket; takes the descriptor over, also on failure. */
rle_status rle_conn_new(rle_rpc *rpc, int fd, const rle_address *address, bool initiator,
                        bool connecting, rle_conn **out);
/* Read in this turn what transports held back in the last one. */
void rle_conn_read_held(rle_rpc *rpc);
/* The other side has ended the stream. */
void rle_conn_ended(rle_conn *conn);
/* A read or write failed with errno `why`. */
void rle_conn_broken(rle_conn *conn, int why);
/* It is in the middle of a long message. May that be read in this turn? */
bool rle_conn_receives_long(const rle_conn *conn);
bool rle_conn_may_read(rle_conn *conn);
void rle_conn_leave_readers(rle_conn *conn);
void rle_readers_turn(rle_rpc *rpc); /* a new turn */
/* Close because of what the other side did; logged. The message is rle_message(). */
void rle_conn_reject(rle_conn *conn);
/* Close; `reason` ("end of stream") goes into messages and, unless `quiet`, the log. */
void rle_conn_close(rle_conn *conn, const char *reason, bool quiet);
void rle_conn_free_dead(rle_rpc *rpc);
/* Memory is there (or not: NULL): go on with what was kept. */
void rle_conn_placed(rle_conn *conn, rle_placed *placed);
void rle_conn_place_here(rle_rpc *rpc); /* all that wait: there is nobody to ask */
void rle_placed_free(rle_rpc *rpc, rle_placed *placed); /* NULL is fine */
const char *rle_conn_name(const rle_conn *conn); /* of the worker, or the address */

/* ---- dispatch.c ---- */

/* The header says that a frame comes: may it? RLE_OK, or the reason to close. */
rle_status rle_dispatch_check(rle_conn *conn, const rle_frame *f);
/* A control frame with its payload. */
void rle_dispatch_control(rle_conn *conn, const rle_frame *f, const uint8_t *payload);
/* A whole message. `block`: its memory, taken over; NULL: it lies in the scratch of the
 * thread that runs the loop. */
void rle_dispatch_message(rle_conn *conn, const rle_frame *f, const uint8_t *body, void *block,
                          rle_placed *placed);
static inline bool rle_frame_is_message(const rle_frame *f)
{
    return f->type == RLE_FRAME_CALL || f->type == RLE_FRAME_RESULT ||
           (f->type == RLE_FRAME_ERROR && f->id != 0);
}

/* ---- future.c ---- */

rle_future *rle_future_make(rle_rpc *rpc); /* NULL when memory ran out */
void rle_future_unref(rle_future *f);
void rle_future_drop_body(rle_future *f); /* the copy of a call that was held */
/* Complete with an error of ours. */
void rle_future_fail(rle_future *f, rle_status code, rle_outcome outcome, const char *fmt, ...)
    RLE_PRINTF(4, 5);
/* Complete with the error of another one that has failed. */
void rle_future_fail_as(rle_future *f, const rle_future *other);
void rle_future_result(rle_conn *conn, const rle_frame *f, rle_msg *m);
void rle_future_free_all(rle_rpc *rpc); /* with those that somebody still holds */

/* ---- client.c ---- */

/* Send what waits for this worker: it connected, or gave credits. */
void rle_peer_send_held(rle_peer *peer);
/* Fail all of it, not executed; the message is `before`, the method in quotes, `after`. */
void rle_peer_fail_held(rle_peer *peer, rle_status code, const char *before,
                        const char *after);
/* Fail those that use a reference: it went with the connection. */
void rle_peer_fail_held_refs(rle_peer *peer);
/* Its time is over, before that of the call; false: it waits on, for the worker is there.
 */
bool rle_future_unjoined(rle_future *f);
void rle_future_unhold(rle_future *f); /* out of the list it is held in, if any */
/* What it was held for is over: send it, or let it fail likewise. */
void rle_future_go_after(rle_future *f, rle_encoder *e, rle_future *after);

/* ---- wait.c ---- */

/* A future is over: its waiters. */
void rle_wait_future_over(rle_future *f);

/* ---- server.c ---- */

bool rle_rpc_can_start(rle_rpc *rpc);     /* rle_rpc_next_call would give something */
void rle_rpc_refuse_queued(rle_rpc *rpc); /* the worker is stopping */

void rle_incoming_new(rle_conn *conn, const rle_frame *f, rle_msg *m);
void rle_incoming_cancel(rle_conn *conn, uint64_t id);
/* The connection is gone. */
void rle_incoming_orphan(rle_incoming *in);
/* Calls that still wait when the loop turns get a timer for their deadline. */
void rle_server_arm_expiry(rle_rpc *rpc);
void rle_incoming_free_pool(rle_rpc *rpc);

/* ---- remote_ref.c ---- */

/* `site`: the script line that sends it, 0 when not known. */
rle_status rle_export_sent(rle_conn *conn, uint64_t object, uint32_t site);
void rle_export_released(rle_conn *conn, uint64_t object, uint64_t count);
/* Everything that was sent over this connection; returns how many objects. */
size_t rle_export_release_all(rle_conn *conn);
/* Count references in values that are about to be sent. */
rle_status rle_export_count_values(rle_conn *conn, const uint8_t *values, size_t size,
                                   bool results, int tensors, uint32_t site);
/* They could not be sent. */
void rle_export_uncount_values(rle_conn *conn, const uint8_t *values, size_t size,
                               bool results, int tensors);
void rle_refs_empty_trash(rle_rpc *rpc);
/* Hold (or let go of) each own object named in the values of a call. */
void rle_export_hold_values(rle_rpc *rpc, const uint8_t *values, size_t size, int tensors,
                            bool hold);
bool rle_export_hold_locked(rle_rpc *rpc, uint64_t object);
void rle_export_unhold_locked(rle_rpc *rpc, uint64_t object);

#include "rpc/handover_internal.h"

#include "rpc/output_internal.h"

#include "rpc/publish_internal.h"

#include "rpc/joining_internal.h"

#include "rpc/service_internal.h"

#endif
