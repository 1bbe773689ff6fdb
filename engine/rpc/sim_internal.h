/* sim_internal.h - what the files of the simulation share.
 *
 *   sim.c          the seed, the clock, what happened, options
 *   sim_process.c  stacks, who runs next
 *   sim_net.c      streams and listeners
 *   sim_loop.c     the event loop's filling
 *   sim_fault.c    what goes wrong, and when
 *   sim_world.c    what processes ask the system for
 *
 * Times are nanoseconds of the simulation's clock. A running process is `ahead` of that
 * clock by what it has computed since it was given its turn; nothing that others do
 * meanwhile reaches it before its next turn. */
#ifndef RLE_RPC_SIM_INTERNAL_H
#define RLE_RPC_SIM_INTERNAL_H

#include <ucontext.h>

#include "base/context.h"
#include "rpc/loop.h"
#include "rpc/rpc.h"
#include "rpc/sim.h"
#include "rpc/transport.h"

#define RLE_NEVER INT64_MAX
#define RLE_SIM_MS INT64_C(1000000)
/* What rle_now() shows when the simulation begins. */
#define RLE_SIM_EPOCH (INT64_C(1000) * RLE_SECONDS)

typedef enum {
    RLE_SIM_NEW,     /* begins at `at` */
    RLE_SIM_READY,   /* goes on at `at` */
    RLE_SIM_BLOCKED, /* goes on when its loop has something to do, not before `at` */
    RLE_SIM_ASLEEP,  /* goes on at `until`, or when poked; not before `at` */
    RLE_SIM_LEAVING, /* main is over: its cleanup is to run */
    RLE_SIM_DEAD
} rle_sim_state;

struct rle_sim_process {
    rle_sim_process *next, *parent;
    int number, starts;
    char name[RLE_NAME_MAX + 1];
    rle_sim_program program;
    rle_sim_state state;
    int64_t at, until, ahead;
    int64_t stopped_until, refuses_until;
    rle_evloop *turning; /* BLOCKED: which loop */
    bool poked, killed, dying, island;
    rle_sim_end_of end;
    int end_code, end_signal; /* on its way out */
    void (*on_term)(int);
    FILE *out, *err;

    void *image; /* its RLE_PER_PROCESS variables while it does not run */
    rle_context *context;
    ucontext_t stack_at;
    void *stack, *cleanup_stack;
    void *fake_stack; /* of the address sanitizer */
};

typedef struct rle_sim_endpoint rle_sim_endpoint;

typedef struct rle_sim {
    rle_sim_options o;
    uint64_t rng[4], entropy[4];
    int64_t now;
    rle_sim_summary sum;
    rle_sim_process *processes, *running;
    int process_count;
    void *image;   /* RLE_PER_PROCESS variables of a process that begins */
    void *outside; /* of whoever called rle_sim_begin */
    ucontext_t scheduler;
    void *scheduler_stack;
    size_t scheduler_stack_size;
    void *scheduler_fake;
    FILE *out, *err;
    bool failed;
    int64_t fault_at[RLE_SIM_FAULTS];
    int64_t heals_at;             /* the present partition */
    rle_sim_endpoint **endpoints; /* by descriptor - RLE_SIM_FD */
    int endpoint_count, endpoint_capacity;
    int ports;
    struct rle_sim_text *marks, *asked;
} rle_sim;

extern rle_sim rle_sim_world;

enum { RLE_SIM_FD = 1 << 24 };

/* ---- sim.c ---- */
void rle_sim_entropy(void *out, size_t size);
uint64_t rle_sim_bits(void);
int64_t rle_sim_between(int64_t low, int64_t high); /* both included */
bool rle_sim_chance(int of_1000);
/* The running process's time. */
static inline int64_t rle_sim_time(void)
{
    return rle_sim_world.now + (rle_sim_world.running ? rle_sim_world.running->ahead : 0);
}

/* ---- sim_world.c ---- */
extern const rle_world rle_sim_as_world;
void rle_sim_free_texts(void);

/* ---- sim_process.c ---- */
void rle_sim_give_way(
    void); /* the running process stops here until its turn comes again */
void rle_sim_kill(rle_sim_process *p, int signal, int64_t again_at); /* RLE_NEVER: not */
void rle_sim_free_processes(void);

/* ---- sim_loop.c ---- */
int64_t rle_sim_loop_ready(rle_evloop *l); /* when it has something to do; RLE_NEVER */

/* ---- sim_net.c ---- */
int64_t rle_sim_readable(int fd), rle_sim_writable(int fd); /* since or from when on */
void rle_sim_net_close_all(rle_sim_process *p);
void rle_sim_net_free(void);
/* For faults: the n-th of the streams that are open at both ends, from the side that
 * connected. */
int rle_sim_stream_count(void);
void rle_sim_stream_cut(int n, bool both, bool lose);
void rle_sim_stream_silence(int n);
void rle_sim_stream_slow(int n);

/* ---- sim_fault.c ---- */
void rle_sim_faults_begin(void);
int64_t rle_sim_next_fault(void); /* when */
void rle_sim_do_faults(void);     /* those that are due */

#endif
