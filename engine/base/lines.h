/* lines.h - what other processes write, passed on in whole lines with a name in front.
 *
 * A stream is the read end of one process's output; a sink is where lines of several
 * streams wait to be written. Nothing blocks: the caller polls, and reads and writes what
 * is ready. One thread. */
#ifndef RLE_BASE_LINES_H
#define RLE_BASE_LINES_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

/* Text that waits to be written to standard output or error. */
typedef struct rle_sink {
    int fd;
    char *bytes;
    size_t start, end, room;
    bool broken; /* nobody reads it any more */
} rle_sink;

/* The read end of a process's output, and its last unfinished line. */
typedef struct rle_stream {
    int fd; /* borrowed from the process; -1 once at its end */
    rle_sink *to;
    const char *name;
    char *line; /* owned */
    size_t used;
} rle_stream;

/* False when memory ran out; the text is then dropped. */
bool rle_sink_put(rle_sink *s, const char *bytes, size_t n);
/* The descriptor is writable: write a part of what waits. */
void rle_sink_write(rle_sink *s);
bool rle_sink_pending(const rle_sink *s);

/* `fd` -1: a stream that is at its end. A stream may be begun again after its end.
 * RESOURCE_EXHAUSTED. */
rle_status rle_stream_init(rle_stream *s, int fd, rle_sink *to, const char *name);
/* One read; `all`: until nothing is left for now, for a process that has ended. */
void rle_stream_read(rle_stream *s, bool all);
/* No more will come: an unfinished line comes out as it is. */
void rle_stream_end(rle_stream *s);

#endif
