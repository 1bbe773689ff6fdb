/* comm_internal.h - what the files of engine/comm share.
 *
 *   comm.c      tensors into a block of bytes and back
 *   comm_rpc.c  bytes over remote calls: groups, whose calls are for which collective
 *   message.c   what ranks call each other with
 *   early.c     what comes for a group before it is made here
 *   agree.c     whether all ranks mean the same group
 *   round.c     one collective of a group there: its parts, its end
 *   pieces.c    what is cut how
 *   reduce.c    sums
 *
 * How bytes move over remote calls
 *   The bytes of a collective are cut into parts, and each part has an owner among the
 * ranks: rank 0 all of what is short, the ranks in turns of what is long, the root of
 * what has one. Every other rank calls the owner, with what it contributes to the part;
 * when all calls are there, and the owner has come to that collective itself, it combines
 * them and answers each with the result. That is a reduce-scatter and an all-gather in
 * one exchange: each byte goes to its owner once and comes back once, no rank moves more
 * than any other, and there is nothing to acknowledge. A call says which collective of
 * the group it belongs to, counted from 1, and what that is called and made of; an owner
 * compares. Calls for a collective that the owner has not come to yet wait there.
 *
 * How one fails
 *   Whoever notices (a worker is gone, calls that differ, time is over) tells all others
 * by a call of its own and answers the calls it holds; each rank then forgets what it has
 * of that collective. Who has not come to it yet remembers only that it failed, and why.
 * Nothing is sent from within the callback that notices: the end of a connection is no
 * place for that. A timer that is due at once (rle_comm.settle) does it in the next turn
 * of the loop.
 *
 * Lives of a group
 *   Making and closing a group waits for nobody, and a rank may close it and make it
 * again while others are in it, or before they have made it. So each time it is made is a
 * life of the group at that rank, with a number that goes into every call; a rank tells
 * the others when one begins and ends. The first life that another rank hears of is the
 * one that its own life is together with, until both have closed it: what belongs to a
 * later one waits (early.c), and what is of an earlier one, like a long call that was
 * given up and goes on arriving, is refused.
 *
 * Functions want the loop's lock held where it says so. */
#ifndef RLE_COMM_COMM_INTERNAL_H
#define RLE_COMM_COMM_INTERNAL_H

#include "base/mem.h"
#include "comm/comm.h"
#include "rpc/map.h"
#include "rpc/service.h"

/* One collective, at this rank. */
typedef struct rle_comm_round rle_comm_round;
/* What waits for its group to be made. */
typedef struct rle_comm_early rle_comm_early;

/* A call of another rank that waits for its answer. */
typedef struct rle_comm_held {
    struct rle_comm_held *next;
    rle_incoming *in;
    int rank;
    int64_t part, deadline;
    double timeout; /* seconds, as its caller gave them */
} rle_comm_held;

/* In place of a part: what a call tells. It is answered at once. */
enum {
    RLE_COMM_FAILED = -1, /* the collective has; `code`, and `spec` says why */
    RLE_COMM_CLOSED = -2, /* the caller has closed the group before this collective */
    RLE_COMM_MADE =
        -3, /* ... has made it, of `number` workers; `spec`: a hash, their names */
    RLE_COMM_REFUSED = -4, /* ... means another group; `code`, and `spec` says how */
    RLE_COMM_VOID = -5,    /* ... was in a life of it with a life that you have closed:
                            * forget    that it has made that one */
    RLE_COMM_ODDS =
        -6, /* ... says of rank `number` - 1 what rle_comm_odds does: `spec` */
    RLE_COMM_LAST = RLE_COMM_ODDS
};

/* What stands in a call. Texts point into the message. */
typedef struct rle_comm_message {
    rle_slice group, title, spec;
    int64_t number, part;
    int64_t oldest; /* number of the first one that the caller has open */
    int rank;
    uint64_t life;        /* of the caller's group */
    double timeout, left; /* seconds: all it has, and until it is over */
    rle_status code;     /* of one that failed */
    const uint8_t *data; /* contribution */
    size_t size;
} rle_comm_message;

struct rle_comm {
    rle_service service; /* first */
    rle_rpc *rpc;
    rle_encoder encoder;
    rle_comm_group *groups;
    uint64_t lives; /* groups that were made, so far */
    rle_comm_early *early;
    rle_timer settle;
    rle_comm_work *works;
    size_t work_count;
    /* The rle_rpc goes: of every work only what Lua may still hold is left. NULL: none was. */
    void (*close_works)(rle_comm *comm);
};

typedef struct rle_comm_member {
    rle_peer *peer;
    bool gone; /* lost, and not known to be back */
    bool owed; /* ... and no collective has failed by that yet: the next one does */
    bool goodbye;
    char why[96];
    uint64_t oldest; /* it has no collective before this one open */
    uint64_t life;   /* of its group, as it has told; 0: it has not made it yet */
    bool announced;  /* that we have made it was told, over the connection there is */
    struct rle_comm_news *news;
    /* It has closed the group, after so many collectives. What it calls in a later life
     * of the group waits for us to make it again. */
    bool closed;
    uint64_t closed_after;
} rle_comm_member;

struct rle_comm_group {
    const rle_comm_ops *ops;
    rle_comm *comm;
    rle_comm_group *next;
    char id[2 * RLE_NAME_MAX];
    int rank, size;
    uint64_t life;  /* which one that this worker has made it is */
    uint64_t begun; /* collectives, so far */
    rle_comm_round *rounds;
    rle_status spoilt; /* not RLE_OK: its members do not mean the same group */
    char spoilt_why[512];
    int odds_rank; /* has made another group in place of this one: `odds` says it, or ""
                    */
    char odds[400];
    uint64_t failed; /* number of the last one that did */
    rle_status failed_code;
    char failed_why[512];
    rle_comm_member member[];
};

/* ---- reduce.c ---- */

/* out = in[0] op in[1] op ..., `size` bytes of whole elements; `out` may be one of them.
 * The same into `copy`, unless it is NULL; that may be none. */
void rle_comm_combine(rle_comm_op op, rle_dtype dtype, const uint8_t *const *in,
                      int ranks, size_t size, uint8_t *out, uint8_t *copy);

/* ---- comm_rpc.c, with the lock ---- */

enum { RLE_COMM_AHEAD_MAX = 1024 }; /* collectives that a rank may be ahead of this one */
extern const rle_comm_ops rle_comm_over_rpc;
rle_comm_group *rle_comm_find_group(const rle_comm *comm, const rle_slice *id);
/* A call for this group, which it keeps or answers. */
void rle_comm_group_call(rle_comm_group *g, rle_incoming *in, const rle_comm_message *m,
                         int64_t deadline);
/* What the worker of this rank tells of the group itself. */
void rle_comm_group_note(rle_comm_group *g, int rank, const rle_comm_message *m);
/* Does it come before its time? A rank has closed the group, and made it again; or it is
 * a call of a life of the group of which nothing was told yet. */
bool rle_comm_is_early(const rle_comm_group *g, int rank, const rle_comm_message *m);
/* -1: it is not in it. */
int rle_comm_rank_of(const rle_comm_group *g, const rle_peer *peer);
void rle_comm_refuse(rle_incoming *in, rle_status code, const char *fmt, ...)
    RLE_PRINTF(3, 4);

/* ---- agree.c, with the lock ---- */

/* Tell a rank, once it is connected, that we have made the group, and of whom. */
rle_status rle_comm_announce(rle_comm_group *g, int rank);
/* The same for all that do not know; without memory later. */
void rle_comm_announce_all(rle_comm_group *g);
/* Nobody is to hear any more what became of that. */
void rle_comm_announce_stop(rle_comm_group *g);
/* The worker of this rank has told it. If it means another group it and we are at odds:
 * nothing comes of the group, here and there. */
void rle_comm_compare(rle_comm_group *g, int rank, const rle_comm_message *m);
/* Nothing comes of it: every collective fails with these words. */
void rle_comm_group_spoil(rle_comm_group *g, rle_status code, const char *why, size_t n);

/* A rank may have made another group in place of one without a name: words for that,
 * which are logged once and told to the other ranks; or NULL, as far as anybody knows. */
const char *rle_comm_odds(rle_comm_group *g);
/* That rank was said to have. */
void rle_comm_note_odds(rle_comm_group *g, int rank, const char *words, size_t n);

/* Does this rank call what the one that came first does? Else it fails. */
void rle_comm_round_compare(rle_comm_round *round, int rank, const char *title,
                            size_t title_len, const char *spec, size_t spec_len);
/* If a member has closed the group before it, it fails. */
void rle_comm_round_closed(rle_comm_round *round);

/* ---- early.c, with the lock ---- */

/* Keep it until its group is made. Calls wait for their answer, and who called withdraws
 * them when their time is over; what is only told is copied and answered. */
void rle_comm_early_keep(rle_comm *comm, rle_incoming *in, const rle_comm_message *m,
                         int64_t deadline);
/* The group is made: it has what waits for it. */
void rle_comm_early_take(rle_comm_group *g);
/* This one waits no more; false: it was not here. */
bool rle_comm_early_forget(rle_comm *comm, const rle_incoming *in);
/* What the worker has told of a life of a group that is not for this one. */
void rle_comm_early_void(rle_comm *comm, const rle_peer *peer, const rle_comm_message *m);
/* The last group without a name that this worker has told of and that we have not made:
 * what it told (RLE_COMM_MADE), or NULL. */
const rle_comm_message *rle_comm_early_made(const rle_comm *comm, const rle_peer *peer);
/* What this worker told is of a life that is over. */
void rle_comm_early_gone(rle_comm *comm, const rle_peer *peer);
void rle_comm_early_close(rle_comm *comm);

/* ---- message.c, with the lock ---- */

#define RLE_COMM_METHOD "rlengine.comm"

/* What a call says; INVALID_ARGUMENT when malformed. */
rle_status rle_comm_read(const rle_incoming *in, rle_comm_message *m);
/* A call to a rank: a part of ours, or RLE_COMM_FAILED with the round's code and words.
 */
rle_status rle_comm_send(rle_comm_round *round, int rank, int64_t part,
                         const uint8_t *data, size_t size, rle_service_over *over,
                         void *self, rle_future **out);
/* Tell a rank something of the group itself, if it is connected and not this one. */
void rle_comm_tell(const rle_comm_group *g, int rank, int64_t part, uint64_t number,
                   rle_status code, const char *words);
/* The same to one that is, and `over` hears what became of it. */
rle_status rle_comm_tell_and_hear(const rle_comm_group *g, int rank, int64_t part,
                                  uint64_t number, rle_status code, const char *words,
                                  rle_service_over *over, void *self, rle_future **out);
/* One encoded answer for many, whose data is the round's; then rle_service_reply. */
rle_encoder *rle_comm_answer(rle_comm *comm, rle_comm_round *round, const uint8_t *data,
                             size_t size);
/* May an answer with so many bytes of data go to whoever made this call? Else the round
 * has failed. */
bool rle_comm_fits(rle_comm_round *round, const rle_comm_held *held, size_t size);
/* The number of the first collective that is open at this rank, or this one. */
int64_t rle_comm_oldest_open(const rle_comm_group *g, uint64_t number);

/* ---- round.c, with the lock ---- */

struct rle_comm_round {
    rle_comm_round *next;  /* in its group, until it is over */
    rle_comm_group *group; /* until then */
    rle_comm *comm;
    uint64_t number;
    bool entered; /* by this rank */
    bool done, settled;
    bool dropped; /* its result: nothing is written into c.data */
    bool again; /* calls to workers that had not joined are to be made again */
    /* It has failed: why, and whether the others know. */
    rle_status code;
    bool told;
    char why[512];
    int first_gone; /* the rank whose loss made it fail before the reason was known */
    /* As whoever came first has it. */
    int first;
    char title[RLE_COMM_TITLE], spec[RLE_COMM_SPEC];
    rle_comm_held *held;
    int64_t deadline; /* of this rank, once it is entered */
    int64_t wake;     /* when its time is over, for whoever waits first; 0: for nobody */
    int64_t look; /* before that the timer looks whether members are at odds; 0: not */
    rle_timer timer;
    double timeout; /* seconds; of who is waiting */

    /* Once it is entered. */
    rle_collective c;
    uint32_t parts, left;
    size_t lent; /* messages that are still written from c.data */
    struct rle_comm_part *part;
    struct rle_comm_lane *lane; /* of each owner */
    rle_future *future;         /* a local one */
};

/* ---- pieces.c ---- */

typedef struct rle_comm_piece {
    int owner;
    size_t put, put_size; /* what this rank contributes, in the data */
    size_t get, get_size; /* what the owner answers with */
} rle_comm_piece;
uint32_t rle_comm_count_parts(const rle_collective *c, int ranks);
rle_comm_piece rle_comm_piece_of(const rle_comm_round *round, uint32_t part);
bool rle_comm_lies_apart(const rle_comm_group *g, const rle_collective *c);
/* Where in `own` a part of this rank's is; and how much room all of them take. */
size_t rle_comm_own_at(const rle_comm_round *round, uint32_t part);
size_t rle_comm_own_size(const rle_comm_group *g, const rle_collective *c);

/* ---- message.c, of a piece ---- */

/* What its owner has answered, into the round's data. INTERNAL: it is no such piece. */
rle_status rle_comm_take_answer(const rle_comm_round *round, const rle_comm_piece *p,
                                rle_future *f);

/* ---- round.c ---- */

rle_comm_round *rle_comm_round_find(const rle_comm_group *g, uint64_t number);
rle_status rle_comm_round_new(rle_comm_group *g, uint64_t number, rle_comm_round **out);
/* This rank comes to it: c, the timeout and the future are set. */
void rle_comm_round_enter(rle_comm_round *round);
/* A call for it, which it keeps or answers. */
void rle_comm_round_call(rle_comm_round *round, rle_incoming *in,
                         const rle_comm_message *m, int64_t deadline);
/* A rank has it behind itself. If it has not contributed, it failed there: here as well.
 */
void rle_comm_round_passed(rle_comm_round *round, int rank);
void rle_comm_round_forget(rle_comm_round *round, const rle_comm_held *held);
/* A rank is gone: does it still need it? Then it fails: true. */
bool rle_comm_round_gone(rle_comm_round *round, int rank);
/* It has failed, unless it is over already; settled in the next turn. */
void rle_comm_round_fail(rle_comm_round *round, bool told, rle_status code,
                         const char *fmt, ...) RLE_PRINTF(4, 5);
/* Every round of that state that has failed: others are told, all it has goes. */
void rle_comm_settle(rle_comm *comm);
/* Forget calls, made and held, without a word to anybody. */
void rle_comm_round_stop(rle_comm_round *round);
/* Stop and free it. `dying`: its future goes with the rle_rpc. */
void rle_comm_round_free(rle_comm_round *round, bool dying);

#endif
