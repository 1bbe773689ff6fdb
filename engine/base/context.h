/* context.h - engine state that belongs to a coroutine, not to the process.
 *
 * Remote handlers are coroutines on one thread. What `rl.no_grad`, `rl.scope`, a random
 * stream, a deadline or an owner label mean must not leak from a handler that waits into
 * the one that runs meanwhile. So all of it lies in an rle_context; whoever resumes a
 * coroutine makes its context current and puts the old one back afterwards.
 *
 * Each thread has a current context; a thread that never set one has a default of its own. */
#ifndef RLE_BASE_CONTEXT_H
#define RLE_BASE_CONTEXT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Who a block of tensor memory belongs to in reports. */
typedef enum {
    RLE_OWNER_TENSOR,    /* made by a script or an operation */
    RLE_OWNER_WEIGHTS,   /* parameters of a module */
    RLE_OWNER_GRADIENTS, /* .grad of a leaf */
    RLE_OWNER_OPTIMIZER, /* moments, momentum */
    RLE_OWNER_GRAPH,     /* held by the autograd graph */
    RLE_OWNER_ENV,       /* observations and state of environments */
    RLE_OWNER_RPC,       /* message buffers, batches */
    RLE_OWNER_WORKSPACE, /* packing buffers, cuBLAS */
    RLE_OWNER_COUNT
} rle_owner;

/* "weights" and so on, as reports print it; "?" for what is none. */
const char *rle_owner_name(rle_owner owner);

/* A position in a counter-based random stream: draw number `counter` of `stream` under
 * `seed`. See kernels/common/philox.h for what a draw is. */
typedef struct rle_rng {
    uint64_t seed, stream, counter;
} rle_rng;

/* The stream of everything that has none of its own; seeded by rl.manual_seed. */
extern rle_rng rle_default_rng;

typedef struct rle_context {
    bool grad_enabled; /* operations are recorded */
    uint8_t owner;     /* rle_owner of new blocks */

    rle_rng *rng; /* where random numbers come from: the process's stream or `own_rng` */
    rle_rng own_rng;

    /* Row keys of the running forward pass (nn's dropout), an rle_tensor or NULL, and how
     * many keyed draws it has made so far. */
    void *row_keys;
    uint32_t row_draws;

    void *scope;         /* innermost rl.scope, owned by the lua layer */
    int64_t deadline;    /* rle_now() at which the running call is over; 0 = none */
    void *call;          /* the remote call being served, owned by rpc; NULL = none */

    /* Script line of the running operation. `site` is 0 until somebody asks; then
     * `resolve` finds it. The lua layer resets `site` at each entry. */
    uint32_t site;
    uint32_t (*resolve)(struct rle_context *self);
    void *lua; /* the coroutine's lua_State */
} rle_context;

void rle_context_init(rle_context *c);
rle_context *rle_context_current(void); /* never NULL */
/* Make `c` current (NULL: the thread's default) and return what was current. */
rle_context *rle_context_switch(rle_context *c);

/* Site of the operation now running; 0 = unknown. */
static inline uint32_t rle_context_site(rle_context *c)
{
    if (!c->site && c->resolve) c->site = c->resolve(c);
    return c->site;
}

/* Script lines, as small numbers. The table only grows, by one entry per line of script
 * that ever allocated. `source` is copied. Returns 0 when the table is full or memory is. */
uint32_t rle_site_intern(const char *source, int line);
/* "train.lua:88", or "?" for 0. */
const char *rle_site_name(uint32_t site);
uint32_t rle_site_count(void); /* sites are 1 .. count */

/* Ctrl-C: set by a signal handler, looked at on every entry into the engine. */
extern volatile _Atomic int rle_interrupted;
/* Makes a loop that waits notice it; set by the layer that waits. Safe in signal handlers. */
extern void (*volatile rle_interrupt_wake)(void);

/* What a signal handler calls. */
static inline void rle_interrupt(void)
{
    rle_interrupted = 1;
    void (*wake)(void) = rle_interrupt_wake;
    if (wake) wake();
}

#endif
