/* restart.h - how often, and how soon, something that keeps failing is begun again.
 *
 * After each failure it is begun again, later each time, until there were more than `max`
 * failures within `within` nanoseconds: then it is given up. Failures longer ago than
 * that are forgotten. The caller tells the time, so there is no clock in here. */
#ifndef RLE_BASE_RESTART_H
#define RLE_BASE_RESTART_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct rle_restart_policy {
    int max;         /* 0: never begun again */
    int64_t within;  /* nanoseconds */
    int64_t backoff; /* nanoseconds until the first new beginning; doubled with each
                        failure */
} rle_restart_policy;

typedef struct rle_restarts {
    int64_t *at; /* of the failures that count, oldest first; owned */
    int count;
} rle_restarts;

/* Room for what the policy has to remember. RESOURCE_EXHAUSTED. */
rle_status rle_restarts_init(rle_restarts *r, const rle_restart_policy *policy);
void rle_restarts_fini(rle_restarts *r);

/* It has failed, at `now`: how many failures count, with this one. True: begin again
 * after *delay nanoseconds; false: give up. Delays are short enough for max + 1 failures
 * to fit into `within`, or nothing would ever be given up. */
bool rle_restarts_failed(rle_restarts *r, const rle_restart_policy *policy, int64_t now,
                         int64_t *delay);

#endif
