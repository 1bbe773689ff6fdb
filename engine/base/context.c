/* context.c - the current context of each thread, and the table of script lines. */
#include "base/context.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/world.h"

RLE_PER_PROCESS volatile _Atomic int rle_interrupted;
RLE_PER_PROCESS void (*volatile rle_interrupt_wake)(void);
RLE_PER_PROCESS rle_rng rle_default_rng;

/* The module is a shared object: initial-exec spares the call that finds a thread's copy.
 * Such space is scarce (some hundred bytes), so only the pointer has it. */
static _Thread_local rle_context fallback;
static _Thread_local rle_context *current __attribute__((tls_model("initial-exec")));

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

/* ---- sites: open addressing over a growing array of lines ----
 *
 * Only the thread that owns the Lua state interns; other threads only read names of sites
 * they were given, which never move because each name is its own block. */

enum { SITE_MAX = 1 << 16 };

typedef struct site {
    char *name; /* "source:line" */
    uint32_t hash;
    int line;
    uint32_t source_length; /* of `name` */
} site;

static struct {
    site *item;      /* [capacity + 1], index 0 unused */
    uint32_t *slots; /* site numbers, 0 = empty */
    uint32_t count, capacity, slot_count;
} sites;

/* Eight bytes at a time: sources are paths of some dozens of bytes, hashed for every
 * tensor that is made. */
static uint32_t site_hash(const char *source, size_t length, int line)
{
    uint64_t h = (uint64_t)(uint32_t)line * 0x9E3779B97F4A7C15u + length;
    for (; length >= 8; source += 8, length -= 8) {
        uint64_t word;
        memcpy(&word, source, 8);
        h = (h ^ word) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    for (; length; source++, length--) h = (h ^ (unsigned char)*source) * 0x100000001b3u;
    h *= 0xff51afd7ed558ccdu;
    return (uint32_t)(h >> 32);
}

static bool site_grow(void)
{
    uint32_t capacity = sites.capacity ? sites.capacity * 2 : 256;
    if (capacity > SITE_MAX) return false;
    site *item = rle_realloc(sites.item, (capacity + 1) * sizeof *item);
    if (!item) return false;
    sites.item = item;
    uint32_t *slots = rle_calloc(capacity * 2, sizeof *slots);
    if (!slots) return false;
    for (uint32_t s = 1; s <= sites.count; s++) {
        uint32_t i = item[s].hash & (capacity * 2 - 1);
        while (slots[i]) i = (i + 1) & (capacity * 2 - 1);
        slots[i] = s;
    }
    rle_free(sites.slots);
    sites.slots = slots;
    sites.slot_count = capacity * 2;
    sites.capacity = capacity;
    return true;
}

static bool site_is(const site *s, uint32_t hash, const char *source, size_t length,
                    int line)
{
    return s->hash == hash && s->line == line && s->source_length == length &&
           memcmp(s->name, source, length) == 0;
}

uint32_t rle_site_intern(const char *source, int line)
{
    size_t length = strlen(source);
    uint32_t h = site_hash(source, length, line), i = 0;
    if (sites.slot_count) {
        for (i = h & (sites.slot_count - 1); sites.slots[i];
             i = (i + 1) & (sites.slot_count - 1))
            if (site_is(&sites.item[sites.slots[i]], h, source, length, line))
                return sites.slots[i];
    }
    if (sites.count == sites.capacity) {
        if (!site_grow()) return 0;
        for (i = h & (sites.slot_count - 1); sites.slots[i];)
            i = (i + 1) & (sites.slot_count - 1);
    }
    char *name = rle_malloc(length + 16);
    if (!name) return 0;
    snprintf(name, length + 16, "%s:%d", source, line);
    uint32_t s = ++sites.count;
    sites.item[s] = (site){name, h, line, (uint32_t)length};
    sites.slots[i] = s;
    return s;
}

const char *rle_site_name(uint32_t number)
{
    return number && number <= sites.count ? sites.item[number].name : "?";
}

uint32_t rle_site_count(void)
{
    return sites.count;
}
