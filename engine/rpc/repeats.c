/* repeats.c - what is logged of workers that come and go, however often they do.
 *
 * A line is written at once; when the same one comes again within a second it is only counted,
 * and what was counted is said when the second is over. Whoever makes each line another one, by
 * a new name or a new way to break off, is bounded too: a thousand lines may come at once, and
 * ten a second for good; those left out are counted. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "rpc/rpc_internal.h"

#define ALONE RLE_SECONDS /* so long a line stands alone */

enum { LINES_AT_ONCE = 1000 };
#define LINE_EVERY (RLE_SECONDS / 10)

/* One line more: is there room for it? */
static bool has_room(rle_rpc *rpc, int64_t now)
{
    if (rpc->lines_paid < now) rpc->lines_paid = now;
    if (rpc->lines_paid - now > LINES_AT_ONCE * LINE_EVERY) return false;
    rpc->lines_paid += LINE_EVERY;
    return true;
}

static void put(rle_rpc *rpc, int64_t now, rle_log_level level, const char *text,
                uint32_t more)
{
    if (!has_room(rpc, now))
        rpc->lines_unsaid += more ? more : 1;
    else if (more)
        rle_log(level, "%s (%u time%s more within a second)", text, more, more == 1 ? "" : "s");
    else
        rle_log(level, "%s", text);
}

static void tell_repeats(rle_rpc *rpc, rle_repeat *r, int64_t now)
{
    uint32_t more = r->left_out;
    if (!more) return;
    r->left_out = 0;
    r->at = now;
    put(rpc, now, r->level, r->text, more);
}

void rle_log_about(rle_rpc *rpc, rle_log_level level, const char *fmt, ...)
{
    char text[sizeof rpc->repeats[0].text];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    int64_t now = rle_now();
    rle_repeat *r = &rpc->repeats[0], *same = NULL;
    for (int i = 0; i < RLE_REPEATS; i++) {
        rle_repeat *each = &rpc->repeats[i];
        if (each->at && strcmp(each->text, text) == 0) same = each;
        if (each->at < r->at) r = each; /* the oldest makes room */
    }
    if (same && (same->left_out || now - same->at < ALONE)) {
        same->left_out++;
        if (now - same->at >= ALONE) tell_repeats(rpc, same, now);
        return;
    }
    if (same) r = same;
    tell_repeats(rpc, r, now);
    r->level = level;
    r->at = now;
    memcpy(r->text, text, sizeof text);
    put(rpc, now, level, text, 0);
}

void rle_repeats_tell(rle_rpc *rpc, int64_t now, bool all)
{
    for (int i = 0; i < RLE_REPEATS; i++) {
        rle_repeat *r = &rpc->repeats[i];
        if (r->left_out && (all || now - r->at >= ALONE)) tell_repeats(rpc, r, now);
    }
    if (!rpc->lines_unsaid) return;
    if (!all && rpc->lines_paid - now > (LINES_AT_ONCE - 100) * LINE_EVERY) return;
    rle_log(RLE_LOG_WARN, "%" PRIu64 " more line%s about workers that come and go %s left out",
            rpc->lines_unsaid, rpc->lines_unsaid == 1 ? "" : "s",
            rpc->lines_unsaid == 1 ? "was" : "were");
    rpc->lines_unsaid = 0;
}
