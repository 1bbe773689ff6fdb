/* lines.c - see lines.h. */
#include "base/lines.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"

/* A line longer than this comes out in pieces. */
#define LINE_LIMIT (64 * 1024)

bool rle_sink_put(rle_sink *s, const char *bytes, size_t n)
{
    if (s->broken) return true;
    if (s->start > 0 && s->end + n > s->room) {
        memmove(s->bytes, s->bytes + s->start, s->end - s->start);
        s->end -= s->start;
        s->start = 0;
    }
    if (s->end + n > s->room) {
        size_t room = s->room ? s->room : 4096;
        while (room < s->end + n) room *= 2;
        char *grown = rle_realloc(s->bytes, room);
        if (!grown) return false;
        s->bytes = grown;
        s->room = room;
    }
    memcpy(s->bytes + s->end, bytes, n);
    s->end += n;
    return true;
}

/* Write what a descriptor that poll called writable takes for certain without blocking.
 * Its mode is not ours to change: we share it with the processes and the shell. */
void rle_sink_write(rle_sink *s)
{
    size_t n = s->end - s->start;
    if (n > PIPE_BUF) n = PIPE_BUF;
    /* End at a line, so that lines of others do not fall into the middle of ours. */
    const char *newline = memrchr(s->bytes + s->start, '\n', n);
    if (newline) n = (size_t)(newline - (s->bytes + s->start)) + 1;
    ssize_t written = write(s->fd, s->bytes + s->start, n);
    if (written < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (written < 0) {
        s->broken = true;
        s->start = s->end = 0;
        return;
    }
    s->start += (size_t)written;
    if (s->start == s->end) s->start = s->end = 0;
}

bool rle_sink_pending(const rle_sink *s)
{
    return s->end > s->start && !s->broken;
}

/* When memory is short the line is lost, not the run. */
static void stream_emit(rle_stream *s)
{
    size_t mark = s->to->end - s->to->start;
    if (!rle_sink_put(s->to, s->name, strlen(s->name)) ||
        !rle_sink_put(s->to, " | ", 3) || !rle_sink_put(s->to, s->line, s->used) ||
        !rle_sink_put(s->to, "\n", 1))
        s->to->end = s->to->start + mark;
    s->used = 0;
}

static void stream_take(rle_stream *s, const char *bytes, size_t n)
{
    while (n > 0) {
        const char *newline = memchr(bytes, '\n', n);
        size_t part = newline ? (size_t)(newline - bytes) : n;
        if (part > LINE_LIMIT - s->used) part = LINE_LIMIT - s->used;
        memcpy(s->line + s->used, bytes, part);
        s->used += part;
        bytes += part;
        n -= part;
        if (n > 0 && *bytes == '\n') {
            stream_emit(s);
            bytes++;
            n--;
        } else if (s->used == LINE_LIMIT) {
            stream_emit(s);
        }
    }
}

void rle_stream_end(rle_stream *s)
{
    if (s->fd < 0) return;
    if (s->used > 0) stream_emit(s);
    s->fd = -1;
}

void rle_stream_read(rle_stream *s, bool all)
{
    char buffer[16 * 1024];
    while (s->fd >= 0) {
        ssize_t n = read(s->fd, buffer, sizeof buffer);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return;
        if (n <= 0) {
            rle_stream_end(s);
            return;
        }
        stream_take(s, buffer, (size_t)n);
        if (!all) return;
    }
}

rle_status rle_stream_init(rle_stream *s, int fd, rle_sink *to, const char *name)
{
    s->fd = fd;
    s->to = to;
    s->name = name;
    s->used = 0;
    if (fd < 0 || s->line) return RLE_OK;
    s->line = rle_malloc(LINE_LIMIT);
    return s->line ? RLE_OK : rle_oom(LINE_LIMIT, "a line of output");
}
