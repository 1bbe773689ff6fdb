/* thread.h - threads beside the one that runs Lua: small ones, which no signal reaches.
 * Signals are for the thread that runs Lua. */
#ifndef RLE_BASE_THREAD_H
#define RLE_BASE_THREAD_H

#include <pthread.h>

#include "base/status.h"

/* Start one; it has 512 KiB of stack. `out` has to be joined; NULL: it goes when `run`
 * returns, and nobody waits for it. `what` it is for stands in the message.
 * RESOURCE_EXHAUSTED: `run` is not called. */
rle_status rle_thread_start(void *(*run)(void *self), void *self, const char *what,
                            pthread_t *out);

#endif
