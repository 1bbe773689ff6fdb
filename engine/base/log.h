/* log.h - one line per event on standard error, prefixed with the process's name.
 *
 * With RLENGINE_LOG_TIME=1 the time stands in front of it, in seconds since 1970.
 *
 * The only other part of the engine that prints is cli. Thread-safe: a line is one
 * write(2), so lines of several processes do not mix. */
#ifndef RLE_BASE_LOG_H
#define RLE_BASE_LOG_H

#include "base/status.h"

typedef enum { RLE_LOG_DEBUG, RLE_LOG_INFO, RLE_LOG_WARN, RLE_LOG_ERROR } rle_log_level;

/* Print one line; `fmt` needs no newline. */
void rle_log(rle_log_level level, const char *fmt, ...) RLE_PRINTF(2, 3);

/* Lines below `level` are dropped; default RLE_LOG_INFO, or RLENGINE_LOG=debug|info|warn|error. */
void rle_log_set_level(rle_log_level level);

/* Name shown in front of each line ("agent_0"); "" for none. Cut at 63 bytes. */
void rle_log_set_name(const char *name);

/* Where lines go; NULL restores standard error. `line` has no newline. */
void rle_log_set_sink(void (*sink)(void *self, rle_log_level level, const char *line),
                      void *self);

#endif
