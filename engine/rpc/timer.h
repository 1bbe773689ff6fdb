/* timer.h - a moment at which something is to be done; lies in the structure it is for. */
#ifndef RLE_RPC_TIMER_H
#define RLE_RPC_TIMER_H

#include <stddef.h>
#include <stdint.h>

typedef struct rle_timer {
    int64_t at;                        /* rle_now() of the end */
    size_t place;                      /* in the loop's heap + 1; 0 = not armed */
    void (*fire)(struct rle_timer *t); /* with the loop's lock; no longer armed then */
} rle_timer;

#endif
