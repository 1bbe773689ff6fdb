/* shifted_clock.h - a clock that a test can move forward: rle_clock_set with {shifted, NULL}, then
 * clock_ahead is so many nanoseconds. */
#ifndef TESTS_SHIFTED_CLOCK_H
#define TESTS_SHIFTED_CLOCK_H

#include <stdint.h>
#include <time.h>

static int64_t clock_ahead;
static inline int64_t shifted(void *self)
{
    (void)self;
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec + clock_ahead;
}

#endif
