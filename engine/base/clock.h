/* clock.h - the engine's one clock, replaceable so that a simulated world can drive it.
 *
 * All deadlines and timers use rle_now(): nanoseconds of CLOCK_MONOTONIC. Wall-clock time
 * appears only in log stamps. Thread-safe as long as the source is replaced before
 * threads start. */
#ifndef RLE_BASE_CLOCK_H
#define RLE_BASE_CLOCK_H

#include <stdint.h>

typedef struct rle_clock {
    int64_t (*now)(void *self); /* nanoseconds, never going back */
    void *self;
} rle_clock;

/* Nanoseconds since some fixed moment. */
int64_t rle_now(void);

/* Replace the source; NULL goes back to CLOCK_MONOTONIC. */
void rle_clock_set(const rle_clock *source);

#endif
