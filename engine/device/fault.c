/* fault.c - failures that tests order, by environment or by call.
 *
 * RL_FAULT is a list "cuda:3,io:1"; of it this file reads "cuda:<n>": the nth raw
 * allocation of device memory from the first one on fails, once. What other parts of the
 * list mean is up to whoever reads them. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "device/device_internal.h"

static uint64_t left; /* raw allocations until one fails; 0: none will */

void rle_device_fault(uint64_t nth)
{
    left = nth;
}

static void read_environment(void)
{
    static bool done;
    if (done) return;
    done = true;
    const char *list = getenv("RL_FAULT");
    for (const char *p = list; p && *p; p += strcspn(p, ","), p += *p == ',') {
        if (strncmp(p, "cuda:", 5) != 0) continue;
        char *end;
        unsigned long long n = strtoull(p + 5, &end, 10);
        if (p[5] < '0' || p[5] > '9' || n == 0 || (*end && *end != ','))
            rle_log(RLE_LOG_WARN, "RL_FAULT: \"%.*s\" is not cuda:<number from 1>",
                    (int)strcspn(p, ","), p);
        else if (!left)
            left = n;
    }
}

bool rle_device_fault_hits(const char *what)
{
    if (strcmp(what, "cuda") != 0) return false;
    read_environment();
    return left && --left == 0;
}
