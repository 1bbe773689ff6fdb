/* note.c - see note.h. */
#include "base/note.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/world.h"

enum { WORDS_MAX = 64 };

RLE_PER_PROCESS rle_note_state rle_note = {.step = -1};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static RLE_PER_PROCESS char said[WORDS_MAX];

void rle_note_say(const char *words)
{
    pthread_mutex_lock(&lock);
    size_t n = strlen(words);
    if (n > WORDS_MAX - 1) n = WORDS_MAX - 1;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)words[i];
        said[i] = c < 32 || c == 127 ? '?' : (char)c;
    }
    said[n] = 0;
    pthread_mutex_unlock(&lock);
}

void rle_note_read(char text[RLE_NOTE_MAX])
{
    int64_t step = atomic_load_explicit(&rle_note.step, memory_order_relaxed);
    bool inside = atomic_load_explicit(&rle_note.inside, memory_order_relaxed);
    char where[RLE_NOTE_MAX - WORDS_MAX - 2] = "";
    if (step > 0)
        snprintf(where, sizeof where, "%s step %lld of its environment",
                 inside ? "in" : "after", (long long)step);
    else if (step == 0)
        snprintf(where, sizeof where, "%s the reset of its environment",
                 inside ? "in" : "after");
    pthread_mutex_lock(&lock);
    snprintf(text, RLE_NOTE_MAX, "%s%s%s", said, said[0] && where[0] ? ", " : "", where);
    pthread_mutex_unlock(&lock);
}
