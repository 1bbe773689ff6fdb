/* world.h - what a process gets from outside of itself besides time (clock.h): chance and
 * its number; and where state lies of which every process has its own.
 *
 * A simulation (rpc/sim.h) runs several workers in one process. It puts another world in
 * the place of the real one before the first of them begins, and exchanges what is marked
 * RLE_PER_PROCESS when it goes from one to the next.
 *
 * Threads: the world is exchanged while there is one thread. */
#ifndef RLE_BASE_WORLD_H
#define RLE_BASE_WORLD_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/status.h"

typedef struct rle_world {
    void (*random)(void *out, size_t size);
    pid_t (*pid)(void);
    bool (*silent)(void); /* nobody is to see what this process says */
} rle_world;

extern const rle_world *rle_world_simulated; /* NULL: this is the real world */
static inline bool rle_simulated(void)
{
    return __builtin_expect(rle_world_simulated != NULL, 0);
}

/* Random bytes that nobody can foresee. UNAVAILABLE. */
rle_status rle_entropy(void *out, size_t size);

/* The number of this process. */
pid_t rle_process_number(void);

/* A variable of which each process, also each simulated one, has its own:
 *   static RLE_PER_PROCESS int called;
 * They lie side by side, which costs nothing when they are used. */
#define RLE_PER_PROCESS __attribute__((section("rle_process")))
void rle_process_section(void **begin, size_t *size);

#endif
