/* allocator.c - one accounting for the memory of every device.
 *
 * A block comes from the cache, else from the driver within the limit, else from what can
 * be let go of (let_go). Who holds it is in the ledger, what is free in classes or
 * segments; here are the totals.
 *
 * Invariants
 *   1. reserved = bytes of live blocks as handed out + cached + workspaces = what the
 * driver gave;
 *   2. allocated = sum over the ledger's rows = bytes of live blocks as asked for;
 *   3. on the CPU cached never exceeds CACHE_FLOOR + a quarter of what is live: beyond it
 * a freed block goes straight back to the system. Other devices keep what they took until
 * they are asked for it: taking it again would make them wait.
 *
 * One thread owns the devices; nothing here locks. */
#include "device/device_internal.h"

#include <stdio.h>

#include "base/mem.h"
#include "base/world.h"
#include "device/stream.h"

static const size_t CACHE_FLOOR = (size_t)64 << 20;

struct rle_allocator {
    rle_memory_stats stats;
    rle_ledger ledger;
    rle_classes *classes;   /* NULL, or ... */
    rle_segments *segments; /* ... this is */
    char mark[32];          /* name of the ledger's mark; "" = none */
};

RLE_PER_PROCESS size_t rle_device_debt;

static RLE_PER_PROCESS bool (*pressure_fn)(void *, rle_device *, size_t);
static RLE_PER_PROCESS void *pressure_self;

rle_status rle_allocator_new(bool segments, struct rle_allocator **out)
{
    struct rle_allocator *al = rle_calloc(1, sizeof *al);
    if (!al) return rle_oom(sizeof *al, "device allocator");
    rle_status status = rle_ledger_init(&al->ledger);
    if (status == RLE_OK) {
        if (segments)
            al->segments = rle_segments_new();
        else
            al->classes = rle_classes_new();
        if (al->segments || al->classes) {
            *out = al;
            return RLE_OK;
        }
        rle_ledger_fini(&al->ledger);
        status = rle_oom(sizeof *al, "device allocator");
    }
    rle_free(al);
    return status;
}

void rle_allocator_free(rle_device *dev)
{
    struct rle_allocator *al = dev->allocator;
    if (!al) return;
    if (al->segments) rle_segments_settle(al->segments, true);
    rle_device_empty_cache(dev);
    if (al->segments) rle_segments_drop(al->segments);
    rle_free(al->classes);
    rle_ledger_fini(&al->ledger);
    rle_free(al);
    dev->allocator = NULL;
}

/* ---- where a block comes from ---- */

typedef struct taken {
    void *data;
    size_t reserved;
    rle_piece *piece; /* NULL on the CPU */
} taken;

static bool piece_taken(struct rle_allocator *al, rle_piece *piece, taken *out)
{
    if (!piece) return false;
    *out = (taken){rle_piece_data(piece), rle_piece_size(piece), piece};
    al->stats.cached -= out->reserved;
    return true;
}

static bool from_cache(struct rle_allocator *al, size_t size, bool from_any, taken *out)
{
    if (al->segments) {
        if (!piece_taken(al, rle_segments_take(al->segments, size, from_any), out))
            return false;
    } else {
        size_t rounded;
        void *p = rle_classes_take(al->classes, size, &rounded);
        if (!p) return false;
        *out = (taken){p, rounded, NULL};
        al->stats.cached -= rounded;
    }
    al->stats.from_cache++;
    return true;
}

/* So much more may be taken from the driver. The cache gives way to the limit. */
static bool within_limit(rle_device *dev, size_t bytes)
{
    const rle_memory_stats *s = &dev->allocator->stats;
    if (!s->limit || s->reserved + bytes <= s->limit) return true;
    if (s->reserved - s->cached + bytes > s->limit) return false;
    rle_device_empty_cache(dev);
    return s->reserved + bytes <= s->limit;
}

static void *take_raw(rle_device *dev, size_t bytes)
{
    rle_memory_stats *s = &dev->allocator->stats;
    if (!within_limit(dev, bytes)) return NULL;
    s->from_driver++;
    void *p = dev->raw_alloc(dev, bytes);
    if (p) s->reserved += bytes;
    return p;
}

static bool new_segment(rle_device *dev, size_t size, bool least)
{
    struct rle_allocator *al = dev->allocator;
    size_t bytes = rle_segments_want(size, least);
    void *base = take_raw(dev, bytes);
    if (!base) return false;
    if (rle_segments_add(al->segments, base, bytes, size)) {
        al->stats.cached += bytes;
        return true;
    }
    dev->raw_free(dev, base, bytes);
    al->stats.reserved -= bytes;
    return false;
}

static bool from_driver(rle_device *dev, size_t size, taken *out)
{
    struct rle_allocator *al = dev->allocator;
    if (al->segments) {
        if (!new_segment(dev, size, false) &&
            (rle_segments_want(size, true) == rle_segments_want(size, false) ||
             !new_segment(dev, size, true)))
            return false;
        return piece_taken(al, rle_segments_take(al->segments, size, false), out);
    }
    size_t rounded;
    void *p =
        rle_classes_take(al->classes, size, &rounded); /* for the size: it is empty */
    if (!p) p = take_raw(dev, rounded);
    *out = (taken){p, rounded, NULL};
    return p != NULL;
}

/* The driver or the limit refused: let go of what can be let go of, the cheapest first.
 * True as soon as the cache has a block of `size` (*out); with out NULL all is let go of.
 */
static bool let_go(rle_device *dev, size_t size, taken *out)
{
    struct rle_allocator *al = dev->allocator;
    al->stats.retries++;
    if (out && from_cache(al, size, true, out))
        return true; /* what is dead but held too */
    if (dev->synchronize) {
        (void)rle_device_synchronize(dev); /* who waits next hears of its error */
        if (al->segments && rle_segments_settle(al->segments, true) && out &&
            from_cache(al, size, true, out))
            return true;
    }
    if (pressure_fn && pressure_fn(pressure_self, dev, size) && out &&
        from_cache(al, size, true, out))
        return true;
    rle_device_empty_cache(dev);
    return false;
}

void rle_device_make_room(rle_device *dev, size_t size)
{
    (void)let_go(dev, size, NULL);
}

/* ---- workspaces ---- */

/* Bytes that were taken; 0: none could be. */
static size_t workspace_from_driver(rle_device *dev, size_t size, size_t least,
                                    void **out)
{
    size_t bytes = rle_segments_want(size, true), fewer = rle_segments_want(least, true);
    void *p = take_raw(dev, bytes);
    if (!p && fewer < bytes) p = take_raw(dev, bytes = fewer);
    if (!p) return 0;
    dev->allocator->stats.workspace += bytes;
    *out = p;
    return bytes;
}

rle_status rle_device_take_workspace(rle_device *dev, const rle_workspace *use,
                                     size_t size, size_t least, void **out, size_t *got)
{
    if (size > (size_t)1 << 47) return rle_device_refuse(dev, size, use);
    size_t bytes = workspace_from_driver(dev, size, least, out);
    if (!bytes) {
        rle_device_make_room(dev, size);
        bytes = workspace_from_driver(dev, size, least, out);
    }
    if (!bytes) return rle_device_refuse(dev, rle_segments_want(least, true), use);
    *got = bytes;
    return RLE_OK;
}

rle_status rle_device_count_workspace(rle_device *dev, const rle_workspace *use,
                                      size_t size)
{
    rle_memory_stats *s = &dev->allocator->stats;
    if (use && !within_limit(dev, size)) {
        rle_device_make_room(dev, size);
        if (!within_limit(dev, size)) return rle_device_refuse(dev, size, use);
    }
    s->reserved += size;
    s->workspace += size;
    return RLE_OK;
}

void rle_device_give_workspace(rle_device *dev, void *p, size_t got)
{
    rle_memory_stats *s = &dev->allocator->stats;
    if (p) dev->raw_free(dev, p, got);
    s->reserved -= got;
    s->workspace -= got;
}

/* ---- blocks ---- */

/* The current context's owner and site have it from now on. */
static void enter(struct rle_allocator *al, size_t size, const taken *t, rle_block *out)
{
    rle_context *c = rle_context_current();
    uint32_t r = rle_ledger_row_of(&al->ledger, rle_context_site(c), c->owner);
    al->ledger.row[r].bytes += size;
    al->ledger.row[r].blocks++;
    al->stats.allocated += size;
    if (al->stats.allocated > al->stats.peak) al->stats.peak = al->stats.allocated;
    al->stats.allocations++;
    al->stats.blocks++;
    rle_device_debt += t->reserved;
    *out = (rle_block){.data = t->data,
                       .size = size,
                       .reserved = t->reserved,
                       .piece = t->piece,
                       .row = r,
                       .owner = c->owner};
}

rle_status rle_device_alloc(rle_device *dev, size_t size, rle_block *out)
{
    struct rle_allocator *al = dev->allocator;
    taken t;
    if (size > (size_t)1 << 47) return rle_device_refuse(dev, size, NULL);
    if (!from_cache(al, size, false, &t) && !from_driver(dev, size, &t) &&
        !let_go(dev, size, &t) && !from_driver(dev, size, &t))
        return rle_device_refuse(dev, size, NULL);
    enter(al, size, &t, out);
    return RLE_OK;
}

rle_status rle_device_alloc_pinned(rle_device *dev, size_t size, rle_block *out)
{
    rle_device *cpu = rle_device_cpu();
    rle_memory_stats *s = &cpu->allocator->stats;
    taken t = {.reserved = size};
    if (!dev->streams || (s->limit && s->reserved + size > s->limit) ||
        rle_pinned_alloc(dev, size, &t.data) != RLE_OK)
        return rle_device_alloc(cpu, size, out);
    s->reserved += size;
    s->from_driver++;
    enter(cpu->allocator, size, &t, out);
    out->pinned = dev;
    return RLE_OK;
}

/* A block of the CPU's into the cache. What lies there in larger blocks gives way first:
 * nobody asked for it while the cache filled up. */
static void cache_block(rle_device *dev, void *p, size_t bytes)
{
    struct rle_allocator *al = dev->allocator;
    size_t live = al->stats.reserved - al->stats.cached - bytes;
    size_t most = CACHE_FLOOR + live / 4, evicted;
    while (al->stats.cached + bytes > most &&
           (evicted = rle_classes_evict(al->classes, dev, bytes)) != 0) {
        al->stats.cached -= evicted;
        al->stats.reserved -= evicted;
    }
    if (al->stats.cached + bytes <= most && rle_classes_give(al->classes, p, bytes)) {
        al->stats.cached += bytes;
    } else {
        dev->raw_free(dev, p, bytes);
        al->stats.reserved -= bytes;
    }
}

void rle_device_free(rle_device *dev, rle_block *block)
{
    struct rle_allocator *al = dev->allocator;
    al->ledger.row[block->row].bytes -= block->size;
    al->ledger.row[block->row].blocks--;
    al->stats.allocated -= block->size;
    al->stats.blocks--;
    al->stats.frees++;
    if (block->piece) {
        rle_segments_give(al->segments, block->piece);
        al->stats.cached += block->reserved;
    } else if (block->pinned) {
        rle_pinned_free(block->pinned, block->data);
        al->stats.reserved -= block->reserved;
    } else {
        cache_block(dev, block->data, block->reserved);
    }
    *block = (rle_block){0};
}

rle_status rle_device_guard(rle_device *dev, rle_block *block, rle_ready_fn *ready,
                            void *arg)
{
    (void)dev;
    if (block->piece) return rle_segments_guard(block->piece, ready, arg);
    (void)ready(arg, true);
    return RLE_OK;
}

void rle_device_reown(rle_device *dev, rle_block *block, rle_owner owner)
{
    if (block->owner == owner) return;
    rle_ledger *l = &dev->allocator->ledger;
    uint32_t to = rle_ledger_row_of(l, l->row[block->row].site, (uint8_t)owner);
    l->row[block->row].bytes -= block->size;
    l->row[block->row].blocks--;
    l->row[to].bytes += block->size;
    l->row[to].blocks++;
    block->row = to;
    block->owner = (uint8_t)owner;
}

size_t rle_device_empty_cache(rle_device *dev)
{
    struct rle_allocator *al = dev->allocator;
    size_t given = al->segments ? rle_segments_trim(al->segments, dev)
                                : rle_classes_trim(al->classes, dev);
    al->stats.cached -= given;
    al->stats.reserved -= given;
    return given;
}

/* ---- figures ---- */

void rle_device_memory(rle_device *dev, rle_memory_stats *out)
{
    *out = dev->allocator->stats;
}

void rle_device_reset_peak(rle_device *dev)
{
    dev->allocator->stats.peak = dev->allocator->stats.allocated;
}

void rle_device_set_limit(rle_device *dev, size_t bytes)
{
    dev->allocator->stats.limit = bytes;
}

size_t rle_device_report(rle_device *dev, rle_memory_row *rows, size_t max)
{
    return rle_ledger_rows(&dev->allocator->ledger, false, rows, max);
}

rle_status rle_device_usage(rle_device *dev, rle_memory_usage *out)
{
    rle_memory_stats s = dev->allocator->stats;
    rle_memory_usage u = {.allocated = s.allocated,
                          .rounding = s.reserved - s.workspace - s.cached - s.allocated,
                          .cached = s.cached,
                          .workspace = s.workspace,
                          .used = s.reserved};
    if (dev->figures) {
        rle_device_figures f;
        RLE_TRY(dev->figures(dev, &f));
        u.context = f.context;
        u.used = f.used;
        u.total = f.total;
        u.unaccounted = (int64_t)f.used - (int64_t)(s.reserved + f.context);
    }
    *out = u;
    return RLE_OK;
}

void rle_device_count_refusal(rle_device *dev)
{
    dev->allocator->stats.refused++;
}

size_t rle_device_largest_free(rle_device *dev)
{
    struct rle_allocator *al = dev->allocator;
    return al->segments ? rle_segments_largest(al->segments)
                        : rle_classes_largest(al->classes);
}

void rle_device_mark(rle_device *dev, const char *name)
{
    struct rle_allocator *al = dev->allocator;
    snprintf(al->mark, sizeof al->mark, "%s", name);
    rle_ledger_mark(&al->ledger);
}

size_t rle_device_growth(rle_device *dev, rle_memory_row *rows, size_t max,
                         const char **since)
{
    struct rle_allocator *al = dev->allocator;
    *since = al->mark[0] ? al->mark : NULL;
    return *since ? rle_ledger_rows(&al->ledger, true, rows, max) : 0;
}

void rle_device_on_pressure(bool (*fn)(void *, rle_device *, size_t), void *self)
{
    pressure_fn = fn;
    pressure_self = self;
}
