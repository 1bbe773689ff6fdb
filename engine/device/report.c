/* report.c - memory figures as text: sizes people read, and who holds what. */
#include "device/device_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"

enum { REPORT_ROWS = 20, REPORT_SIZE = 4096 };

static char *oom_report;

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

rle_status rle_device_report_text(rle_device *dev, char **out)
{
    char *text = rle_malloc(REPORT_SIZE);
    if (!text) return rle_oom(REPORT_SIZE, "memory report");
    rle_memory_stats s;
    rle_device_memory(dev, &s);
    char a[32], b[32], c[32], d[32];
    int used = snprintf(text, REPORT_SIZE,
                        "memory of %s: %s allocated, peak %s, reserved %s, limit %s\n"
                        "  %-10s %12s %8s  %s\n",
                        dev->name, rle_bytes_format((double)s.allocated, a, sizeof a),
                        rle_bytes_format((double)s.peak, b, sizeof b),
                        rle_bytes_format((double)s.reserved, c, sizeof c),
                        s.limit ? rle_bytes_format((double)s.limit, d, sizeof d) : "none",
                        "owner", "bytes", "blocks", "made at");
    rle_memory_row rows[REPORT_ROWS];
    size_t n = rle_device_report(dev, rows, REPORT_ROWS);
    size_t shown = n < REPORT_ROWS ? n : REPORT_ROWS;
    size_t sum = 0;
    for (size_t i = 0; i < shown && used < REPORT_SIZE - 160; i++) {
        sum += rows[i].bytes;
        used += snprintf(text + used, (size_t)(REPORT_SIZE - used),
                         "  %-10s %12zu %8zu  %.80s\n", rle_owner_name(rows[i].owner),
                         rows[i].bytes, rows[i].blocks, rle_site_name(rows[i].site));
    }
    if (sum < s.allocated)
        used += snprintf(text + used, (size_t)(REPORT_SIZE - used),
                         "  %-10s %12zu           (%zu more lines)\n", "others",
                         s.allocated - sum, n - shown);
    snprintf(text + used, (size_t)(REPORT_SIZE - used), "  %-10s %12zu           %s\n",
             "cache", s.reserved - s.allocated,
             "free or rounded up, reused by the next tensors");
    *out = text;
    return RLE_OK;
}

void rle_device_note_oom(rle_device *dev)
{
    rle_free(oom_report);
    if (rle_device_report_text(dev, &oom_report) != RLE_OK) oom_report = NULL;
}

const char *rle_device_oom_report(void)
{
    return oom_report;
}
