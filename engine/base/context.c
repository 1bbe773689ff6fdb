/* context.c - the current context of each thread, and the table of script lines. */
#include "base/context.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

volatile _Atomic int rle_interrupted;
rle_rng rle_default_rng;

static _Thread_local rle_context fallback;
static _Thread_local rle_context *current;

static const char *const owner_names[RLE_OWNER_COUNT] = {
    "tensors", "weights", "gradients", "optimizer", "graph", "env", "rpc", "workspace"};

const char *rle_owner_name(rle_owner owner)
{
    return (unsigned)owner < RLE_OWNER_COUNT ? owner_names[owner] : "?";
}

void rle_context_init(rle_context *c)
{
    memset(c, 0, sizeof *c);
    c->grad_enabled = true;
    c->rng = &rle_default_rng;
}

rle_context *rle_context_current(void)
{
    if (!current) {
        rle_context_init(&fallback);
        current = &fallback;
    }
    return current;
}

rle_context *rle_context_switch(rle_context *c)
{
    rle_context *before = rle_context_current();
    current = c ? c : &fallback;
    return before;
}

/* ---- sites: open addressing over a growing array of names ----
 *
 * Only the thread that owns the Lua state interns; other threads only read names of sites
 * they were given, which never move because each name is its own block. */

enum { SITE_MAX = 1 << 16 };

static struct {
    char **name;     /* [count + 1], index 0 unused */
    uint32_t *hash;  /* of each site */
    uint32_t *slots; /* site numbers, 0 = empty */
    uint32_t count, capacity, slot_count;
} sites;

static uint32_t site_hash(const char *source, int line)
{
    uint32_t h = 2166136261u ^ (uint32_t)line * 2654435761u;
    for (; *source; source++) h = (h ^ (unsigned char)*source) * 16777619u;
    return h;
}

static bool site_grow(void)
{
    uint32_t capacity = sites.capacity ? sites.capacity * 2 : 256;
    if (capacity > SITE_MAX) return false;
    char **name = rle_realloc(sites.name, (capacity + 1) * sizeof *name);
    if (!name) return false;
    sites.name = name;
    uint32_t *hash = rle_realloc(sites.hash, (capacity + 1) * sizeof *hash);
    if (!hash) return false;
    sites.hash = hash;
    uint32_t *slots = rle_calloc(capacity * 2, sizeof *slots);
    if (!slots) return false;
    for (uint32_t s = 1; s <= sites.count; s++) {
        uint32_t i = sites.hash[s] & (capacity * 2 - 1);
        while (slots[i]) i = (i + 1) & (capacity * 2 - 1);
        slots[i] = s;
    }
    rle_free(sites.slots);
    sites.slots = slots;
    sites.slot_count = capacity * 2;
    sites.capacity = capacity;
    return true;
}

uint32_t rle_site_intern(const char *source, int line)
{
    char name[256];
    uint32_t h = site_hash(source, line);
    uint32_t i = 0;
    bool formatted = false;
    if (sites.slot_count) {
        for (i = h & (sites.slot_count - 1); sites.slots[i];
             i = (i + 1) & (sites.slot_count - 1)) {
            uint32_t s = sites.slots[i];
            if (sites.hash[s] != h) continue;
            if (!formatted) snprintf(name, sizeof name, "%s:%d", source, line);
            formatted = true;
            if (strcmp(sites.name[s], name) == 0) return s;
        }
    }
    if (sites.count == sites.capacity) {
        if (!site_grow()) return 0;
        for (i = h & (sites.slot_count - 1); sites.slots[i];)
            i = (i + 1) & (sites.slot_count - 1);
    }
    if (!formatted) snprintf(name, sizeof name, "%s:%d", source, line);
    char *copy = rle_strdup(name);
    if (!copy) return 0;
    uint32_t s = ++sites.count;
    sites.name[s] = copy;
    sites.hash[s] = h;
    sites.slots[i] = s;
    return s;
}

const char *rle_site_name(uint32_t site)
{
    return site && site <= sites.count ? sites.name[site] : "?";
}

uint32_t rle_site_count(void)
{
    return sites.count;
}
