/* map.c - see map.h. At most three quarters of the slots are in use and, of a large
 * table, at least an eighth. */
#include "rpc/map.h"

#include "base/mem.h"

enum { KEPT = 256 }; /* slots of an empty table that stay allocated */

static size_t place(const rle_map *m, uint64_t key)
{
    return (size_t)((key * 0x9E3779B97F4A7C15u) >> 32) & (m->capacity - 1);
}

void rle_map_fini(rle_map *m)
{
    rle_free(m->slots);
    *m = (rle_map){NULL, 0, 0};
}

rle_map_slot *rle_map_get(const rle_map *m, uint64_t key)
{
    if (!m->used) return NULL;
    for (size_t i = place(m, key); m->slots[i].key; i = (i + 1) & (m->capacity - 1))
        if (m->slots[i].key == key) return &m->slots[i];
    return NULL;
}

static int resize(rle_map *m, size_t capacity)
{
    rle_map other = {NULL, m->used, capacity};
    other.slots = rle_calloc(other.capacity, sizeof *other.slots);
    if (!other.slots) return 0;
    RLE_MAP_EACH(m, slot) {
        size_t i = place(&other, slot->key);
        while (other.slots[i].key) i = (i + 1) & (other.capacity - 1);
        other.slots[i] = *slot;
    }
    rle_free(m->slots);
    *m = other;
    return 1;
}

rle_map_slot *rle_map_put(rle_map *m, uint64_t key)
{
    rle_map_slot *found = rle_map_get(m, key);
    if (found) return found;
    if ((m->used + 1) * 4 > m->capacity * 3 &&
        !resize(m, m->capacity ? m->capacity * 2 : 16))
        return NULL;
    size_t i = place(m, key);
    while (m->slots[i].key) i = (i + 1) & (m->capacity - 1);
    m->used++;
    m->slots[i].key = key;
    m->slots[i].v.count = 0;
    return &m->slots[i];
}

void rle_map_delete(rle_map *m, uint64_t key)
{
    rle_map_slot *found = rle_map_get(m, key);
    if (!found) return;
    size_t mask = m->capacity - 1, hole = (size_t)(found - m->slots);
    m->used--;
    for (size_t i = (hole + 1) & mask; m->slots[i].key; i = (i + 1) & mask) {
        /* Moving back is right unless the entry's own place lies between hole and i. */
        if (((i - place(m, m->slots[i].key)) & mask) < ((i - hole) & mask)) continue;
        m->slots[hole] = m->slots[i];
        hole = i;
    }
    m->slots[hole].key = 0;
    if (m->capacity <= KEPT) return;
    if (!m->used)
        rle_map_fini(m);
    else if (m->used < m->capacity / 8)
        resize(m, m->capacity / 2); /* without memory it stays as it is */
}

uint64_t rle_hash_name(const char *name)
{
    uint64_t h = 14695981039346656037u;
    for (; *name; name++) h = (h ^ (unsigned char)*name) * 1099511628211u;
    return h ? h : 1;
}
