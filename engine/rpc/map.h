/* map.h - a small hash table from 64-bit numbers to pointers or counts: open addressing,
 * linear probing, deletion by shifting back. Key 0 is not allowed. No thread safety. */
#ifndef RLE_RPC_MAP_H
#define RLE_RPC_MAP_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct rle_map_slot {
    uint64_t key; /* 0 = empty */
    union {
        void *pointer;
        uint64_t count;
    } v;
} rle_map_slot;

typedef struct rle_map {
    rle_map_slot *slots;
    size_t used, capacity; /* a power of two, or 0 */
} rle_map;

void rle_map_fini(rle_map *m); /* frees the slots; the map is then empty */
/* The slot of `key`, or NULL. Valid until the next put or delete. */
rle_map_slot *rle_map_get(const rle_map *m, uint64_t key);
/* The slot of `key`, made with value 0 when it is new. NULL when memory ran out. */
rle_map_slot *rle_map_put(rle_map *m, uint64_t key);
/* Nothing when it is not there. A table that was large shrinks with its entries. */
void rle_map_delete(rle_map *m, uint64_t key);

/* For every slot in use; the body must not change the table. */
#define RLE_MAP_EACH(m, slot)                                                            \
    for (rle_map_slot *slot = (m)->slots,                                                \
                      *slot##_end = slot ? slot + (m)->capacity : NULL;                  \
         slot < slot##_end; slot++)                                                      \
        if (slot->key)

/* FNV-1a of a name, never 0. */
uint64_t rle_hash_name(const char *name);

#endif
