/* fault.h - failures that tests order: the nth allocation, the nth call of the system.
 *
 * What can fail is counted apart by kind, over all threads. Nothing is counted until a
 * fault is ordered, so asking costs one load.
 *
 * In the environment of a program RL_FAULT is a list such as "alloc:12,io:3+": the 12th
 * allocation fails, once; the third call of the system and all after it. The kind "cuda"
 * is read in device/fault.c. Thread-safe. */
#ifndef RLE_BASE_FAULT_H
#define RLE_BASE_FAULT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef enum {
    RLE_FAULT_ALLOC, /* of the engine's own structures (mem.h) and libevent's */
    RLE_FAULT_LUA,   /* of Lua */
    RLE_FAULT_IO,    /* making, connecting, accepting, reading and writing descriptors */
    RLE_FAULT_KINDS
} rle_fault_kind;

/* The nth from now fails (1: the next one), with `persistent` all after it too; 0: none.
 */
void rle_fault_order(rle_fault_kind kind, uint64_t nth, bool persistent);
/* How many are still to go until the first that fails; 0: none is ordered, or it has
 * failed and was the only one. */
uint64_t rle_fault_left(rle_fault_kind kind);
/* What RL_FAULT orders, at the start of a program. */
void rle_fault_from_environment(void);

extern _Atomic bool rle_fault_armed[RLE_FAULT_KINDS];
/* One more of that kind, while a fault is ordered: it fails. */
bool rle_fault_count(rle_fault_kind kind);

/* To be asked before each: it fails. */
static inline bool rle_fault_hits(rle_fault_kind kind)
{
    return atomic_load_explicit(&rle_fault_armed[kind], memory_order_relaxed) &&
           rle_fault_count(kind);
}
/* The same for a call of the system; when it fails errno is `why`. */
bool rle_fault_io(int why);

#endif
