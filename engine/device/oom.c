/* oom.c - what is said when a device has no memory left: one line for the error, and a
 * text (error.report) with what a reader needs to act: the figures, who holds most, what
 * grew since the plateau that a watch found, and what to try next. */
#include "device/device_internal.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

enum { HOLDERS = 5, TEXT_SIZE = 8192 };

static char *oom_report;

typedef struct refusal {
    rle_device *dev;
    size_t size;
    rle_memory_stats stats;
    size_t largest;     /* free block */
    size_t room, total; /* free bytes, of; total 0: of what the machine has */
    bool limited;       /* by the limit, not by the device */
    const rle_workspace *use; /* it was for a workspace; NULL: for a tensor */
    rle_memory_row holder[HOLDERS];
    size_t holders;
} refusal;

static refusal look(rle_device *dev, size_t size, const rle_workspace *use)
{
    refusal r = {.dev = dev, .size = size, .use = use};
    rle_device_memory(dev, &r.stats);
    r.largest = rle_device_largest_free(dev);
    size_t n = rle_device_report(dev, r.holder, HOLDERS);
    r.holders = n < HOLDERS ? n : HOLDERS;
    const rle_memory_stats *s = &r.stats;
    rle_memory_usage u;
    if (rle_device_usage(dev, &u) == RLE_OK && u.total) {
        r.total = u.total;
        r.room = u.total - u.used + s->cached;
    }
    size_t live = s->reserved - s->cached;
    if (!r.total) r.room = rle_mem_available();
    size_t left = s->limit > live ? s->limit - live : 0;
    if (s->limit && left < r.room) {
        r.limited = true;
        r.total = s->limit;
        r.room = left;
    }
    return r;
}

/* ---- what to try ---- */

static bool is_fragmented(const refusal *r)
{
    return r->total && r->room >= r->size && r->room - r->stats.cached < r->size;
}

/* What the driver gives at once for that size, where the limit has no room for so much;
 * else 0. */
static size_t too_coarse(const refusal *r)
{
    if (!r->limited || is_fragmented(r)) return 0;
    size_t taken = r->dev->type == RLE_DEVICE_CPU ? rle_classes_want(r->size)
                                                  : rle_segments_want(r->size, true);
    return r->room >= r->size && r->room < taken ? taken : 0;
}

/* What blocks are larger than the tensors in them, where that is much of all; else 0. */
static size_t much_rounding(const refusal *r)
{
    size_t live = r->stats.reserved - r->stats.workspace - r->stats.cached;
    size_t rounding = live - r->stats.allocated;
    return rounding >= live / 4 ? rounding : 0;
}

static void advise(const refusal *r, char *text, size_t *used)
{
    const rle_memory_row *top = r->holders ? &r->holder[0] : NULL;
    const char *site = top ? rle_site_name(top->site) : "?";
    rle_text_add(text, TEXT_SIZE, used, "try: ");
    if (r->use) {
        rle_text_add(text, TEXT_SIZE, used, "%s", r->use->help);
    } else if (r->total && r->size > r->total) {
        rle_text_add(text, TEXT_SIZE, used,
                     "a smaller tensor: this one alone is larger than %s",
                     r->limited ? "the limit" : "the device");
    } else if (is_fragmented(r) && r->stats.cached >= r->total / 4) {
        rle_text_add(text, TEXT_SIZE, used,
                     "making the largest tensors first: there is room, but in pieces");
    } else if (much_rounding(r) && (!top || top->owner == RLE_OWNER_TENSOR)) {
        rle_text_add(
            text, TEXT_SIZE, used,
            "fewer and larger tensors: each takes %d bytes here, however small it is; "
            "rl.stack makes one of many%s%s",
            r->dev->type == RLE_DEVICE_CPU ? 64 : 512,
            top ? ", first those made at " : "", top ? site : "");
    } else if (!top || top->bytes < r->stats.allocated / 4) {
        rle_text_add(text, TEXT_SIZE, used,
                     "a smaller batch: no single line of the script holds much");
    } else {
        switch (top->owner) {
        case RLE_OWNER_GRAPH:
            rle_text_add(
                text, TEXT_SIZE, used,
                "letting go of the results that %s keeps with their graph: call backward "
                "and drop them each episode, or keep t:detach() or t:item(); rl.no_grad "
                "where nothing is learned",
                site);
            break;
        case RLE_OWNER_WEIGHTS:
        case RLE_OWNER_GRADIENTS:
        case RLE_OWNER_OPTIMIZER:
            rle_text_add(text, TEXT_SIZE, used,
                         "a smaller network: its %s alone take most of the memory",
                         rle_owner_name(top->owner));
            break;
        case RLE_OWNER_ENV:
            rle_text_add(text, TEXT_SIZE, used, "fewer environments at once");
            break;
        case RLE_OWNER_RPC:
            rle_text_add(text, TEXT_SIZE, used,
                         "fewer calls at once, or smaller tensors in them");
            break;
        default:
            rle_text_add(text, TEXT_SIZE, used,
                         "letting go of what is made at %s: set it to nil, t:free(), or "
                         "make it inside rl.scope",
                         site);
        }
    }
    if (r->limited)
        rle_text_add(text, TEXT_SIZE, used,
                     "; or a higher limit (rl.memory.limit, RLENGINE_DEVICE_LIMIT)");
    rle_text_add(text, TEXT_SIZE, used, "\n");
}

/* ---- the report ---- */

static void add_figures(const refusal *r, char *text, size_t *used)
{
    const rle_memory_stats *s = &r->stats;
    const struct {
        const char *name;
        size_t bytes;
        bool shown;
    } part[] = {
        {"allocated", s->allocated, true},
        {"rounding", s->reserved - s->workspace - s->cached - s->allocated, true},
        {"free", s->cached, true},
        {"largest free block", r->largest, true},
        {"workspace", s->workspace, s->workspace != 0},
    };
    char limit[32] = "none", size[32];
    if (s->limit) rle_bytes_format((double)s->limit, limit, sizeof limit);
    rle_text_add(text, TEXT_SIZE, used, "%s: limit %s, reserved %s", r->dev->name, limit,
                 rle_bytes_format((double)s->reserved, size, sizeof size));
    for (size_t i = 0; i < sizeof part / sizeof *part; i++)
        if (part[i].shown)
            rle_text_add(text, TEXT_SIZE, used, "%s%s %s", i ? ", " : " (", part[i].name,
                         rle_bytes_format((double)part[i].bytes, size, sizeof size));
    rle_text_add(
        text, TEXT_SIZE, used,
        ")\ndone before: released what was dead, waited for the device, ran the "
        "collector, "
        "gave the cache back, asked once more (%llu times so far, %llu in vain)\n",
        (unsigned long long)s->retries, (unsigned long long)s->refused);
}

static void add_row(char *text, size_t *used, const rle_memory_row *row, double bytes)
{
    char size[32];
    rle_text_add(text, TEXT_SIZE, used, "  %12s  %-10s %7zu tensor%s %.80s\n",
                 rle_bytes_format(bytes, size, sizeof size), rle_owner_name(row->owner),
                 row->blocks, row->blocks == 1 ? " " : "s", rle_site_name(row->site));
}

static void add_growth(const refusal *r, char *text, size_t *used)
{
    rle_memory_row rows[HOLDERS];
    const char *since;
    size_t n = rle_device_growth(r->dev, rows, HOLDERS, &since);
    if (!n) return;
    rle_text_add(text, TEXT_SIZE, used, "grew most since %s:\n", since);
    for (size_t i = 0; i < n && i < HOLDERS; i++)
        add_row(text, used, &rows[i], (double)rows[i].growth);
}

static void note(const refusal *r, const char *line)
{
    rle_free(oom_report);
    oom_report = rle_malloc(TEXT_SIZE);
    if (!oom_report) return;
    size_t used = 0;
    rle_text_add(oom_report, TEXT_SIZE, &used, "%s\n", line);
    add_figures(r, oom_report, &used);
    rle_text_add(oom_report, TEXT_SIZE, &used, "hold most:\n");
    for (size_t i = 0; i < r->holders; i++)
        add_row(oom_report, &used, &r->holder[i], (double)r->holder[i].bytes);
    add_growth(r, oom_report, &used);
    advise(r, oom_report, &used);
    char *table;
    if (rle_device_report_text(r->dev, &table) == RLE_OK) {
        rle_text_add(oom_report, TEXT_SIZE, &used, "%s", table);
        rle_free(table);
    }
}

const char *rle_device_oom_report(void)
{
    return oom_report;
}

/* Two sizes that differ but are the same words. */
static bool look_alike(size_t a, size_t b)
{
    char x[32], y[32];
    return a != b && strcmp(rle_bytes_format((double)a, x, sizeof x),
                            rle_bytes_format((double)b, y, sizeof y)) == 0;
}

static const char *words(size_t bytes, bool exact, char *out, size_t size)
{
    if (!exact) return rle_bytes_format((double)bytes, out, size);
    snprintf(out, size, "%zu bytes", bytes);
    return out;
}

rle_status rle_device_refuse(rle_device *dev, size_t size, const rle_workspace *use)
{
    rle_device_count_refusal(dev);
    refusal r = look(dev, size, use);
    char line[512], wanted[32], room[32], total[32], held[32];
    size_t used = 0, coarse = too_coarse(&r);
    /* The comparisons that a reader makes must come out right. */
    bool exact = look_alike(size, r.room) || (coarse && look_alike(r.room, coarse)) ||
                 (is_fragmented(&r) && look_alike(size, r.largest));
    rle_text_add(line, sizeof line, &used, "out of device memory: wanted %s, ",
                 words(size, exact, wanted, sizeof wanted));
    if (r.total)
        rle_text_add(line, sizeof line, &used, "%s free of %s",
                     words(r.room, exact, room, sizeof room),
                     rle_bytes_format((double)r.total, total, sizeof total));
    else
        rle_text_add(line, sizeof line, &used, "%s free on this machine, %s in use here",
                     words(r.room, exact, room, sizeof room),
                     rle_bytes_format((double)(r.stats.reserved - r.stats.cached), total,
                                      sizeof total));
    if (coarse)
        rle_text_add(line, sizeof line, &used, ", but it is taken in pieces of %s here",
                     words(coarse, exact, held, sizeof held));
    else if (r.total && r.room >= r.size && !is_fragmented(&r))
        rle_text_add(line, sizeof line, &used, ", but the driver refused");
    if (is_fragmented(&r))
        rle_text_add(line, sizeof line, &used, " in pieces of at most %s",
                     words(r.largest, exact, held, sizeof held));
    if (much_rounding(&r))
        rle_text_add(line, sizeof line, &used,
                     "; %s of what is taken is the rounding of small tensors",
                     rle_bytes_format((double)much_rounding(&r), held, sizeof held));
    if (r.holders)
        rle_text_add(line, sizeof line, &used, "; most held by %s (%zu tensor%s, %s)",
                     rle_site_name(r.holder[0].site), r.holder[0].blocks,
                     r.holder[0].blocks == 1 ? "" : "s",
                     rle_bytes_format((double)r.holder[0].bytes, held, sizeof held));
    if (use)
        rle_text_add(line, sizeof line, &used, "; that was for %s, %s%s", use->what,
                     use->help, r.limited ? "; or it needs a higher limit" : "");
    note(&r, line);
    return rle_fail(RLE_RESOURCE_EXHAUSTED, "%s", line);
}
