/* report.c - memory figures as text: sizes people read, and who holds what. */
#include "device/device_internal.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"

enum { REPORT_ROWS = 20, REPORT_SIZE = 4096 };

rle_status rle_bytes_parse(const char *text, size_t *out)
{
    char *end;
    double value = strtod(text, &end);
    while (*end == ' ') end++;
    static const struct {
        const char *name;
        double factor;
    } units[] = {{"", 1},         {"B", 1},        {"KiB", 1024}, {"MiB", 1048576},
                 {"GiB", 0x1p30}, {"TiB", 0x1p40}, {"KB", 1e3},   {"MB", 1e6},
                 {"GB", 1e9},     {"TB", 1e12},    {"K", 1024},   {"M", 1048576},
                 {"G", 0x1p30},   {"T", 0x1p40}};
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcasecmp(end, units[i].name) != 0 || end == text) continue;
        double bytes = value * units[i].factor;
        if (!(bytes >= 0) || bytes > 0x1p60) break;
        *out = (size_t)bytes;
        return RLE_OK;
    }
    return rle_fail(
        RLE_INVALID_ARGUMENT,
        "\"%.64s\" is no size; write a number of bytes or one with KiB, MiB, GiB, "
        "KB, MB or GB",
        text);
}

char *rle_bytes_format(double bytes, char *out, size_t size)
{
    static const char *const unit[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    int u = 0;
    while (fabs(bytes) >= 1024 && u < 4) {
        bytes /= 1024;
        u++;
    }
    snprintf(out, size, u ? "%.1f %s" : "%.0f %s", bytes, unit[u]);
    return out;
}

void rle_text_add(char *text, size_t size, size_t *used, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(text + *used, size - *used, fmt, args);
    va_end(args);
    if (n > 0) *used += (size_t)n < size - *used ? (size_t)n : size - *used - 1;
}

typedef struct table {
    char *text;
    size_t used;
} table;

/* A row that is no holder's: always when `shown`, else only if there is something. */
static void add_part(table *t, const char *name, int64_t bytes, bool shown,
                     const char *meaning)
{
    if (bytes || shown)
        rle_text_add(t->text, REPORT_SIZE, &t->used, "  %-12s %12lld %9s %s\n", name,
                     (long long)bytes, "", meaning);
}

static void add_holders(table *t, rle_device *dev, size_t allocated)
{
    rle_memory_row rows[REPORT_ROWS];
    size_t n = rle_device_report(dev, rows, REPORT_ROWS);
    size_t shown = n < REPORT_ROWS ? n : REPORT_ROWS, sum = 0;
    for (size_t i = 0; i < shown; i++) {
        sum += rows[i].bytes;
        rle_text_add(t->text, REPORT_SIZE, &t->used, "  %-12s %12zu %8zu  %.80s\n",
                     rle_owner_name(rows[i].owner), rows[i].bytes, rows[i].blocks,
                     rle_site_name(rows[i].site));
    }
    char meaning[40];
    snprintf(meaning, sizeof meaning, "(%zu more lines)", n - shown);
    add_part(t, "others", (int64_t)(allocated - sum), false, meaning);
}

rle_status rle_device_report_text(rle_device *dev, char **out)
{
    rle_memory_stats s;
    rle_memory_usage u;
    rle_device_memory(dev, &s);
    RLE_TRY(rle_device_usage(dev, &u));
    table t = {rle_malloc(REPORT_SIZE), 0};
    if (!t.text) return rle_oom(REPORT_SIZE, "memory report");
    char a[32], b[32], c[32], d[64];
    rle_text_add(t.text, REPORT_SIZE, &t.used,
                 "memory of %s: %s allocated, peak %s, reserved %s, limit %s\n"
                 "  %-12s %12s %8s  %s\n",
                 dev->name, rle_bytes_format((double)s.allocated, a, sizeof a),
                 rle_bytes_format((double)s.peak, b, sizeof b),
                 rle_bytes_format((double)s.reserved, c, sizeof c),
                 s.limit ? rle_bytes_format((double)s.limit, d, sizeof d) : "none",
                 "owner", "bytes", "blocks", "made at");
    add_holders(&t, dev, s.allocated);
    bool driver = u.total != 0;
    add_part(&t, "rounding", (int64_t)u.rounding, true, "blocks are rounded up");
    add_part(&t, "cache", (int64_t)u.cached, true, "free, reused by the next tensors");
    add_part(&t, "workspace", (int64_t)u.workspace, driver, "of libraries and kernels");
    add_part(&t, "context", (int64_t)u.context, driver,
             "in use at the start: driver, kernels, others");
    add_part(&t, "unaccounted", u.unaccounted, driver,
             "since then: other processes, the driver");
    snprintf(d, sizeof d, "in use on the device, of %s",
             rle_bytes_format((double)u.total, a, sizeof a));
    add_part(&t, "sum", (int64_t)u.used, true, driver ? d : "taken from the system");
    *out = t.text;
    return RLE_OK;
}
