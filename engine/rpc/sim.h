/* sim.h - a simulated world: several workers in one process, one network, one clock, and
 * a seed from which everything that happens follows.
 *
 * Each simulated process has a stack of its own (and, in the program, a Lua state of its
 * own) and runs the same code as a real one: engine/rpc above the sockets, engine/lua,
 * the scripts. One runs at a time. It gives way where its event loop would wait, and now
 * and then where it only looks; what it computes takes a little virtual time, drawn at
 * random. While everybody waits the clock jumps to the next moment at which something
 * happens, so an hour of waiting takes no time at all.
 *
 * The network has latency, throughput and windows of its own for each stream; bytes
 * arrive in order within a stream and in any order between streams, reads and writes do a
 * part at a time. On top of that come the faults asked for. Within one build of the
 * program the same seed and faults give the same run, byte for byte.
 *
 * Not simulated: files, other programs, and the thread that answers for a worker that
 * computes long (a simulated one never computes for more than 60 ms at a stretch).
 *
 * Memory of a killed process that lay on its stack only is lost.
 *
 * One simulation at a time, in a process without other threads of the engine. */
#ifndef RLE_RPC_SIM_H
#define RLE_RPC_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"

typedef enum {
    RLE_SIM_CUT,       /* a stream breaks; both ends learn, or one */
    RLE_SIM_HALF_OPEN, /* a stream falls silent for good; nobody learns */
    RLE_SIM_PARTITION, /* some processes do not hear the others for 0.1 to 20 s */
    RLE_SIM_REFUSE,    /* a process refuses new connections for 0.05 to 3 s */
    RLE_SIM_SLOW,      /* a stream gets slow: latencies up to 0.3 s, few KiB a second */
    RLE_SIM_STOP,      /* a process stands still for 0.05 to 20 s */
    RLE_SIM_KILL,      /* a process that may be killed is; some begin anew within 5 s */
    RLE_SIM_FAULTS
} rle_sim_fault;

typedef struct rle_sim_options {
    uint64_t seed;
    double every[RLE_SIM_FAULTS]; /* mean of the seconds from one to the next; 0: never */
    double from;                  /* seconds before the first */
    double hours; /* of virtual time after which it counts as hung; 0: 24 */
    /* Every event, as a line without its end; NULL: not wanted. */
    void (*event)(void *self, const char *line);
    void *self;
} rle_sim_options;

/* "none", "all", or names with the mean of the seconds between two: "cut=20,stop,kill=5".
 * A name alone means 10 s; "from=3" and "hours=2" set those. INVALID_ARGUMENT. */
rle_status rle_sim_parse_faults(const char *text, rle_sim_options *o);

/* The world is simulated from here to rle_sim_end. RESOURCE_EXHAUSTED. */
rle_status rle_sim_begin(const rle_sim_options *o);

typedef struct rle_sim_summary {
    int64_t time; /* of the clock, nanoseconds */
    uint64_t sends, bytes, faults[RLE_SIM_FAULTS], all_faults;
    uint64_t trace; /* a hash of all that happened, in order */
} rle_sim_summary;

/* The real world is back. `out` (may be NULL) gets what happened. */
void rle_sim_end(rle_sim_summary *out);
/* As in rle_sim_parse_faults. */
const char *rle_sim_fault_name(rle_sim_fault fault);

/* ---- processes ---- */

typedef struct rle_sim_process rle_sim_process;

typedef struct rle_sim_program {
    const char *name; /* copied */
    /* Its return value is the exit code. */
    int (*main)(void *arg);
    /* Gives back what main holds. Called when main returned, when the process exits from
     * inside main, and when it was killed: then nothing that it does is seen by others.
     */
    void (*cleanup)(void *arg);
    void *arg;
    bool killable; /* by RLE_SIM_KILL */
    bool again;    /* it is then started again by itself */
} rle_sim_program;

/* A child of the running process, or of nobody. RESOURCE_EXHAUSTED. */
rle_status rle_sim_spawn(const rle_sim_program *program, rle_sim_process **out);

/* Run until every process has ended. ABORTED: none can go on, or the time is over. */
rle_status rle_sim_run(void);

typedef struct rle_sim_end_of {
    bool ended;
    int code, signal; /* signal: 0 unless one ended it */
} rle_sim_end_of;
rle_sim_end_of rle_sim_ended(const rle_sim_process *p);
const char *rle_sim_process_name(const rle_sim_process *p);
/* Later than any of its starts before: how often it was started. */
int rle_sim_starts(const rle_sim_process *p);

/* SIGTERM and SIGKILL; the former ends it too unless it asked to be told. */
void rle_sim_signal(rle_sim_process *p, int number);

struct rle_process_spec; /* base/process.h */
/* How rl.launch starts a process of this program. */
void rle_sim_set_starter(rle_status (*start)(const struct rle_process_spec *spec,
                                             rle_sim_process **out));

/* ---- for the running process ---- */

/* Another process ended, or a signal came, or the moment has. INT64_MAX: no such moment.
 */
void rle_sim_wait(int64_t until);
void rle_sim_on_term(void (*handler)(int));
/* Does not return. `orderly`: what cleanup does is seen by others. */
_Noreturn void rle_sim_exit(int code, int signal, bool orderly);
/* What it prints goes there: standard output and error while it runs. Borrowed. */
void rle_sim_streams(FILE *out, FILE *err);
/* Uniform in [0, n). */
uint64_t rle_sim_random(uint64_t n);
/* Something others cannot foresee happened: for the log and the trace. */
void rle_sim_note(const char *what, int64_t a, int64_t b, int64_t c);
/* From now on it may be killed, or not. */
void rle_sim_killable(bool yes);
bool rle_sim_dying(void); /* it was killed, and cleanup runs */

#endif
