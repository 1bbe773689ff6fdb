/* ledger.c - who holds what: one row for each (owner, script line) that ever held a
 * block.
 *
 * Rows are never removed, so a block's row number stays valid; there are as many as lines
 * of script that allocate. Row 0 is "?": what cannot be attributed, for want of memory
 * for a new row. */
#include "device/device_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static uint32_t row_hash(uint32_t site, uint32_t owner)
{
    return (site * 8 + owner) * 2654435761u;
}

static bool grow(rle_ledger *l)
{
    uint32_t capacity = l->capacity ? l->capacity * 2 : 64;
    rle_ledger_row *row = rle_realloc(l->row, capacity * sizeof *row);
    if (!row) return false;
    l->row = row;
    uint32_t *slot = rle_calloc((size_t)capacity * 2, sizeof *slot);
    if (!slot) return false;
    for (uint32_t r = 0; r < l->count; r++) {
        uint32_t i = row_hash(row[r].site, row[r].owner) & (capacity * 2 - 1);
        while (slot[i]) i = (i + 1) & (capacity * 2 - 1);
        slot[i] = r + 1;
    }
    rle_free(l->slot);
    l->slot = slot;
    l->slot_count = capacity * 2;
    l->capacity = capacity;
    return true;
}

rle_status rle_ledger_init(rle_ledger *l)
{
    *l = (rle_ledger){0};
    if (!grow(l)) {
        rle_free(l->row);
        return rle_oom(64 * sizeof *l->row, "who holds device memory");
    }
    l->row[0] = (rle_ledger_row){0};
    l->count = 1;
    l->slot[row_hash(0, 0) & (l->slot_count - 1)] = 1;
    return RLE_OK;
}

void rle_ledger_fini(rle_ledger *l)
{
    rle_free(l->row);
    rle_free(l->slot);
    *l = (rle_ledger){0};
}

uint32_t rle_ledger_row_of(rle_ledger *l, uint32_t site, uint8_t owner)
{
    rle_ledger_row *last = &l->row[l->last];
    if (last->site == site && last->owner == owner) return l->last;
    uint32_t i = row_hash(site, owner) & (l->slot_count - 1);
    for (; l->slot[i]; i = (i + 1) & (l->slot_count - 1)) {
        uint32_t r = l->slot[i] - 1;
        if (l->row[r].site == site && l->row[r].owner == owner) return l->last = r;
    }
    if (l->count == l->capacity) {
        if (!grow(l)) return 0;
        i = row_hash(site, owner) & (l->slot_count - 1);
        while (l->slot[i]) i = (i + 1) & (l->slot_count - 1);
    }
    uint32_t r = l->count++;
    l->row[r] = (rle_ledger_row){.site = site, .owner = owner};
    l->slot[i] = r + 1;
    return l->last = r;
}

/* ---- what callers see ---- */

static int by_bytes(const void *a, const void *b)
{
    size_t x = ((const rle_memory_row *)a)->bytes, y = ((const rle_memory_row *)b)->bytes;
    return x < y ? 1 : x > y ? -1 : 0;
}

static int by_growth(const void *a, const void *b)
{
    int64_t x = ((const rle_memory_row *)a)->growth;
    int64_t y = ((const rle_memory_row *)b)->growth;
    return x < y ? 1 : x > y ? -1 : 0;
}

size_t rle_ledger_rows(const rle_ledger *l, bool growth, rle_memory_row *rows, size_t max)
{
    rle_memory_row *all = rle_malloc(l->count * sizeof *all);
    if (!all) return 0;
    size_t n = 0;
    for (uint32_t r = 0; r < l->count; r++) {
        const rle_ledger_row *row = &l->row[r];
        int64_t grown = (int64_t)row->bytes - (int64_t)row->marked;
        if (growth ? grown <= 0 : !row->blocks) continue;
        all[n++] = (rle_memory_row){.owner = (rle_owner)row->owner,
                                    .site = row->site,
                                    .bytes = row->bytes,
                                    .blocks = row->blocks,
                                    .growth = grown};
    }
    qsort(all, n, sizeof *all, growth ? by_growth : by_bytes);
    if (max) memcpy(rows, all, (n < max ? n : max) * sizeof *rows);
    rle_free(all);
    return n;
}

void rle_ledger_mark(rle_ledger *l)
{
    for (uint32_t r = 0; r < l->count; r++) l->row[r].marked = l->row[r].bytes;
}
