/* note.h - what this process is doing, in few words, for others to be told while it does it.
 *
 * The thread that runs scripts notes: the step its environment is in, and words of the script's
 * own. Any thread may read, also while that one hangs. A step costs three plain stores. */
#ifndef RLE_BASE_NOTE_H
#define RLE_BASE_NOTE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { RLE_NOTE_MAX = 120 }; /* bytes of a note, with its end */

typedef struct rle_note_state {
    _Atomic int64_t step; /* since the last reset; 0: none yet, -1: never */
    _Atomic bool inside;
} rle_note_state;
extern rle_note_state rle_note;

/* An environment begins a reset, or step `step` (0: the next one). */
static inline void rle_note_reset(void)
{
    atomic_store_explicit(&rle_note.step, 0, memory_order_relaxed);
    atomic_store_explicit(&rle_note.inside, true, memory_order_relaxed);
}
static inline void rle_note_step(int64_t step)
{
    if (!step) {
        step = atomic_load_explicit(&rle_note.step, memory_order_relaxed) + 1;
        if (!step) step = 1;
    }
    atomic_store_explicit(&rle_note.step, step, memory_order_relaxed);
    atomic_store_explicit(&rle_note.inside, true, memory_order_relaxed);
}
/* It has come back from it. */
static inline void rle_note_back(void)
{
    atomic_store_explicit(&rle_note.inside, false, memory_order_relaxed);
}

/* Words of the script; "" for none. Cut where they are too long, unprintable ones replaced. */
void rle_note_say(const char *words);

/* "in step 217 of its environment", "after step 217 of its environment", with the script's words
 * in front: "loading level 3, in the reset of its environment". "" when nothing was ever noted. */
void rle_note_read(char text[RLE_NOTE_MAX]);

#endif
