/* lookup.h - names of hosts.
 *
 * A name server may take its time, or be away for a while. So a name is looked up on a
 * thread of its own, which is there for no longer than that; numbers need none. Whoever
 * does not wait for it any more leaves it to end by itself.
 *
 * A name that does not resolve may do so a moment later, in a cluster for instance, where
 * it is made together with what listens there. So that is UNAVAILABLE, as nobody
 * listening is. */
#ifndef RLE_RPC_LOOKUP_H
#define RLE_RPC_LOOKUP_H

#include <netinet/in.h>

#include "base/clock.h"
#include "rpc/loop.h"
#include "rpc/transport.h"

enum { RLE_FOUND_MAX = 16 };

typedef struct rle_found {
    unsigned count;
    rle_address at[RLE_FOUND_MAX];
} rle_found;

typedef struct rle_lookup rle_lookup;

/* So long whoever knows an address of before waits for another one. */
#define RLE_LOOKUP_PATIENCE RLE_SECONDS

/* It is a name, neither a number nor what was meant as one; "" is none. */
bool rle_host_is_name(const char *host);

/* All below: with the loop's lock. */

/* `known` (may be NULL) is called by the loop, once, when rle_lookup_found has the
 * answer, unless it was ended before. RESOURCE_EXHAUSTED. */
rle_status rle_lookup_begin(rle_evloop *loop, const char *host, in_port_t port,
                            void (*known)(void *self), void *self, rle_lookup **out);
bool rle_lookup_done(const rle_lookup *l);
/* UNAVAILABLE: it does not resolve, or not yet. */
rle_status rle_lookup_found(const rle_lookup *l, rle_found *out);
void rle_lookup_end(rle_lookup *l); /* NULL is fine */

#endif
