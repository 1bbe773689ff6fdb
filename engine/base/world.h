/* world.h - what a process gets from outside of itself besides time (clock.h): chance and
 * its number; and where state lies of which every process has its own.
 *
 * A simulation (rpc/sim.h) runs several workers in one process. It puts another world in
 * the place of the real one before the first of them begins, and exchanges what is marked
 * RLE_PER_PROCESS when it goes from one to the next.
 *
 * There is no private folder in a simulated world: its path is only a name, and the files
 * in it that say how far a process came are marks of the world.
 *
 * Threads: the world is exchanged while there is one thread. */
#ifndef RLE_BASE_WORLD_H
#define RLE_BASE_WORLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/status.h"

struct rle_process_spec;

typedef struct rle_world {
    void (*random)(void *out, size_t size);
    pid_t (*pid)(void);
    bool (*silent)(void); /* nobody is to see what this process says */

    /* What supervisor.h needs of the system. Times are rle_now()'s. */
    rle_status (*start)(const struct rle_process_spec *spec, pid_t *pid);
    void (*signal)(pid_t pid, int number);
    bool (*ended)(pid_t pid, int *wait_status);
    void (*rest)(int64_t until); /* or until a child ends, or asks */
    void (*mark)(const char *path);
    bool (*marked)(const char *path);
    void (*ask)(const char *where, const char *line);
    bool (*asked)(const char *where, char *line, size_t size); /* takes the next line */
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

/* kill(2); waitpid(2) that does not wait; whether a file is there. */
void rle_send_signal(pid_t pid, int number);
pid_t rle_collect(pid_t pid, int *status);
bool rle_is_there(const char *path);

/* A variable of which each process, also each simulated one, has its own:
 *   static RLE_PER_PROCESS int called;
 * They lie side by side, which costs nothing when they are used. */
#define RLE_PER_PROCESS __attribute__((section("rle_process")))
void rle_process_section(void **begin, size_t *size);

#endif
