/* lua_rpc.h - what the files that bind remote calls share.
 *
 *   lua_rpc.c         init, shutdown
 *   lua_rpc_workers.c what is known about workers
 *   lua_rpc_values.c  Lua values to bytes and back
 *   lua_rpc_run.c     coroutines of handlers and spawned functions
 *   lua_rpc_wait.c    waiting: suspending a coroutine, or turning the loop
 *   lua_rpc_call.c    targets (a worker, or an object of one), calls
 *   lua_rpc_claim.c   references that a third worker passed on
 *   lua_rpc_future.c  futures
 *   lua_rpc_error.c   error objects to bytes and back
 *   lua_rpc_batch.h   batched functions: calls of many workers, answered together
 *   lua_rpc_weights.c weights that are published and followed
 *   lua/rlengine/rpc.lua and rpc/ have the rest: classes, what is exported, proxies.
 *
 * How a call runs
 *   rpc.lua:  return take(sync(target, method, timeout, ...))
 *   sync() encodes and sends, then waits. In a handler's coroutine it yields; the
 * scheduler (step) resumes it when the future is over. Anywhere else it runs the loop
 * itself, and with it whatever else is ready, until the future is over. take() decodes
 * the result or raises the error, in the coroutine that asked. A handler is a coroutine
 * from a pool that runs return reply(dispatch(args())) where args() decodes, dispatch
 * (rpc.lua) finds what is exported under that name, and reply() encodes. Everything that
 * may raise so runs inside a coroutine, whose end the scheduler sees.
 *
 * Only the thread of the Lua state comes here. */
#ifndef RLE_LUA_RPC_H
#define RLE_LUA_RPC_H

#include "lua/lua_internal.h"

#include "rpc/map.h"
#include "rpc/rpc.h"

enum { RLE_LUA_RPC_DEPTH = 30 }; /* waits inside each other outside of handlers */

typedef struct rle_lua_handler rle_lua_handler;
struct rle_lua_flush;

/* A coroutine that the scheduler runs: it serves a call or a batch of them, or is a
 * function spawned here. */
struct rle_lua_handler {
    lua_State *co;
    int co_ref;          /* in the registry */
    rle_context *ctx;    /* of the coroutine; it lives as long as that */
    rle_incoming *in;    /* being served; NULL when spawned */
    struct rle_lua_flush *flush; /* a batch being served */
    rle_incoming_info info;
    rle_decoder decoder;
    rle_future *future;  /* waited for by sync(), until take() */
    rle_waiter waiter;
    bool begun;          /* its function runs; before, it lies on the stack of co */
    bool parked;         /* has yielded to wait */
    bool cancelled;      /* its caller is gone or does not want it any more */
    int refused;         /* waits that ended with CANCELLED for that */
    int64_t deadline;    /* of the call; 0 = none */
    bool nested;         /* calls it makes are nested */
    int spawn_ref; /* the future of a spawned one; before there is one, its values */
    rle_future *spawned;
    rle_lua_handler *next;       /* pool, or runnable */
    rle_lua_handler *all_next, **all_at; /* every one that is not in the pool */
};

/* Batched functions that were called (lua_rpc_batch.h). */
typedef struct rle_lua_batches {
    struct rle_lua_batch *first; /* of all */
    rle_map by_key;              /* object and name -> the first of them */
    rle_map names; /* hashes of names that were declared as batched; they outlive a worker */
    size_t eager;  /* those that are due when there is nothing else to do */
    uint64_t flushes; /* so far */
} rle_lua_batches;

typedef struct rle_lua_rpc {
    rle_rpc *rpc; /* NULL: not running */
    uint32_t generation;
    rle_encoder encoder;
    bool encoding;
    rle_lua_handler *current; /* whose coroutine the scheduler resumed last */
    rle_lua_handler *pool, *all;
    rle_lua_handler *runnable, **runnable_end;
    size_t pooled;
    unsigned work;           /* what the last turn left to be taken, a set of RLE_WORK_* */
    unsigned steps;          /* since the last look at the sockets */
    int depth;
    rle_future *result;      /* left by sync() outside of handlers, for take() */
    bool stop_wanted;        /* rpc.shutdown was called where it cannot wait */
    bool forked;             /* this process is a child of the one that ran rpc.init */
    /* while values are decoded: where they come from */
    rle_peer *from;
    uint64_t from_session;
    struct rle_lua_target *targets; /* every one there is, of earlier generations too */
    /* of the references to objects of the receiver in what was encoded last; 0: none */
    uint64_t home_session;
    rle_lua_batches batched;
} rle_lua_rpc;

extern rle_lua_rpc rle_lua_rpc_state;

/* The running rle_rpc, or raises FAILED_PRECONDITION: call rpc.init first. */
rle_lua_rpc *rle_lua_rpc_check(lua_State *L);

/* What rpc.lua hands over (core.rpc.hooks), and C functions that are pushed often, or
 * when there is no memory to make them. */
typedef enum {
    RLE_HOOK_DISPATCH,   /* function(construct, object, method, caller, ...) */
    RLE_HOOK_ENTRY,      /* body of a handler's coroutine */
    RLE_HOOK_SPAWN,      /* body of a spawned coroutine */
    RLE_HOOK_MAKE_REF,   /* function(kind, object, class, owner, ticket, addresses,
                            incarnation) */
    RLE_HOOK_DROPPED,    /* function(object) */
    RLE_HOOK_INT64,      /* function(high, low, unsigned) -> int64 */
    RLE_HOOK_INT64_KIND, /* function(cdata) -> 1 signed, 2 unsigned, nil */
    RLE_HOOK_REF_META,   /* metatable of references */
    RLE_HOOK_SPENT,      /* empty list, for the encoder */
    RLE_HOOK_BATCH_FIND, /* function(object, method, caller) -> table, if it is batched */
    RLE_HOOK_BATCH_ENTRY, /* body of a flush's coroutine */
    RLE_HOOK_MEMBER,      /* function(worker, left or nil, goodbye, joined or nil) */
    RLE_HOOK_RUN,         /* run_until_ready */
    RLE_HOOK_COROUTINE,   /* rle_lua_rpc_new_coroutine */
    RLE_HOOK_FAILURE,     /* rle_lua_rpc_answer_failure */
    RLE_HOOK_COUNT
} rle_lua_hook;
extern int rle_lua_hook_ref[RLE_HOOK_COUNT]; /* in the registry */
static inline void rle_lua_push_hook(lua_State *L, rle_lua_hook hook)
{
    lua_rawgeti(L, LUA_REGISTRYINDEX, rle_lua_hook_ref[hook]);
}
/* The C functions of RLE_HOOK_RUN and those behind it. */
int rle_lua_rpc_run_until_ready(lua_State *L);
int rle_lua_rpc_new_coroutine(lua_State *L);
int rle_lua_rpc_answer_failure(lua_State *L);

/* ---- targets: userdata "rlengine.Target" ---- */
typedef struct rle_lua_claim rle_lua_claim;

typedef struct rle_lua_target {
    uint64_t magic;
    uint32_t generation;
    rle_peer *peer;
    uint64_t session;  /* of the connection the object came over; 0: any */
    uint64_t object;   /* 0: the worker itself, or not known yet */
    uint32_t count;    /* holds on a peer's object that are ours to give back */
    bool own;          /* an object of this worker, held */
    bool released;
    struct rle_lua_target *next, **at; /* in the list of all; at NULL: in none */
    int64_t since;
    uint32_t site;       /* script line that made it */
    rle_future *pending; /* its construction or claim, until its end was seen */
    rle_lua_claim
        *claim; /* passed on by a third worker; until the owner has confirmed it */
    char class_name[RLE_NAME_MAX + 1];
} rle_lua_target;
rle_lua_target *rle_lua_check_target(lua_State *L, int idx);
rle_lua_target *rle_lua_to_target(lua_State *L, int idx);
/* Look at `pending`: done, and the object is known; still pending: true. */
bool rle_lua_target_pending(rle_lua_rpc *s, rle_lua_target *t);
/* The connection its object came over is no more. */
bool rle_lua_target_gone(const rle_lua_rpc *s, const rle_lua_target *t);
void rle_lua_raise_gone(lua_State *L, const rle_lua_target *t);
/* Push a new one. */
rle_lua_target *rle_lua_new_target(lua_State *L, rle_peer *peer);
void rle_lua_target_set_class(rle_lua_target *t, const char *name);
/* For reports: an object of another worker is held from here on. */
void rle_lua_target_note_age(rle_lua_target *t);

/* ---- lua_rpc_claim.c ---- */

/* Its claim has failed, in a way that may have passed: claim it once more. */
void rle_lua_claim_again(lua_State *L, rle_lua_target *t);
/* The object has come straight from its owner meanwhile: is it that one? Then it is
 * there. */
bool rle_lua_claim_overtaken(rle_lua_rpc *s, rle_lua_target *t);
void rle_lua_claim_drop(rle_lua_target *t); /* nothing when there is none */
extern const luaL_Reg rle_lua_rpc_claim_functions[];

/* ---- futures ---- */

/* The future sync() waited for, or one on its way into a userdata: kept where take() of the
 * same coroutine finds it, so that nothing is lost when Lua raises in between. */
void rle_lua_put_result(lua_State *L, rle_future *f);
rle_future *rle_lua_take_result(lua_State *L); /* the reference is the caller's */
/* Decode a result onto the stack; returns how many values. */
int rle_lua_push_results(lua_State *L, rle_future *f, rle_msg *m);
/* Argument in seconds as a moment; 0 for none. */
int64_t rle_lua_wait_deadline(lua_State *L, int arg);
/* Push a userdata that takes the reference over. `values`: stack index of the table that
 * holds a local future's results, or 0. */
void rle_lua_push_future(lua_State *L, rle_future *f, int values);
/* Push an incarnation as scripts see it: 16 hexadecimal digits; nil for 0. */
void rle_lua_push_incarnation(lua_State *L, uint64_t incarnation);
extern const luaL_Reg rle_lua_rpc_worker_functions[], rle_lua_rpc_call_functions[],
    rle_lua_rpc_future_functions[];
/* The metatables; futures add `future_methods` to the table on top. */
void rle_lua_rpc_open_call(lua_State *L);
void rle_lua_rpc_open_future(lua_State *L);

/* The token that the options at 1 give, or the default one. Raises. */
void rle_lua_rpc_token(lua_State *L, rle_token *token);
/* The option tls of the table at `idx`, read into *out; NULL when there is none. Raises.
 */
const rle_tls_options *rle_lua_rpc_tls(lua_State *L, int idx, rle_tls_options *out);

/* ---- who comes and goes ---- */
void rle_lua_tell_member(lua_State *L, const rle_member_change *change);

/* ---- weights ---- */
extern const luaL_Reg rle_lua_rpc_weights_functions[];
void rle_lua_rpc_open_weights(lua_State *L);

/* ---- collectives: lua_comm.c ---- */
/* The worker that runs takes part in them. RESOURCE_EXHAUSTED. */
rle_status rle_lua_comm_begin(void);

/* ---- values ---- */
/* Values first..top of L into the encoder. `to`: the worker they are for (references to its
 * own objects go home). Raises; the encoder is then to be reset. False when a reference
 * among them has to be waited for or needs a ticket: rpc.lua does that and tries again. */
bool rle_lua_encode(lua_State *L, rle_encoder *e, int first, int top, rle_peer *to,
                    const char *what);
/* One value from the decoder onto the stack. Raises. */
void rle_lua_decode(lua_State *L, rle_decoder *d);

/* ---- errors ---- */
/* Push the error object of a failed future's message. */
void rle_lua_push_remote_error(lua_State *L, const rle_msg *m, int level);
/* Fill `out` from the error value on top of L, which stays there; what `out` points to
 * lives on the stack of L or in `data`. `co` is the coroutine that failed. */
void rle_lua_error_to_wire(lua_State *L, lua_State *co, const char *method,
                           rle_wire_error *out, rle_encoder *data);

/* ---- coroutines ---- */
extern const luaL_Reg rle_lua_rpc_run_functions[], rle_lua_rpc_wait_functions[];
/* Wait for futures (or time) in whatever coroutine L is. Returns what the C function has to
 * return: in a handler that is a yield; elsewhere the wait is over. `deadline` 0: for ever. */
int rle_lua_wait(lua_State *L, rle_future *const *futures, size_t count, rle_wait_mode mode,
                 int64_t deadline);
/* Raises unless L may wait: not in a finalizer, not inside a C function's callback. */
void rle_lua_check_wait(lua_State *L, const char *what);
/* The handler whose coroutine L is, or NULL. */
static inline rle_lua_handler *rle_lua_handler_of(lua_State *L)
{
    rle_lua_handler *h = rle_lua_rpc_state.current;
    return h && h->co == L ? h : NULL;
}
/* One that is not in use, or NULL when memory ran out; then run: its coroutine begins
 * with the function of that hook. */
rle_lua_handler *rle_lua_handler_take(lua_State *L);
void rle_lua_handler_run(lua_State *L, rle_lua_handler *h, rle_lua_hook entry);
/* First thing a handler's coroutine does: modes at their defaults, its deadline, and,
 * unless `stream` is NULL, the random stream of that name. */
void rle_lua_handler_context(lua_State *L, const char *stream, uint64_t counter);
uint64_t rle_lua_stream_of(const char *name); /* number of a random stream */
/* Do what is ready, one thing at a time, or turn the loop when there is nothing: waiting
 * for something to happen unless a coroutine can go on. */
void rle_lua_rpc_step(lua_State *L);
/* Free every coroutine; those that wait are abandoned. */
void rle_lua_rpc_drop_handlers(lua_State *L);

#endif
