/* log.c - formats a line and writes it with a single write(2). */
#include "base/log.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/world.h"

/* The owner and the guard may both be the first to say something; they read the same. */
static RLE_PER_PROCESS _Atomic int threshold = -1;
static RLE_PER_PROCESS atomic_bool with_time;
static RLE_PER_PROCESS char name[64];
static void (*sink_fn)(void *, rle_log_level, const char *);
static void *sink_self;

static int level_from_env(void)
{
    const char *want = getenv("RLENGINE_LOG");
    if (!want) return RLE_LOG_INFO;
    static const char *const levels[] = {"debug", "info", "warn", "error"};
    for (int i = 0; i < 4; i++)
        if (strcmp(want, levels[i]) == 0) return i;
    return RLE_LOG_INFO;
}

static void read_env(void)
{
    const char *time = getenv("RLENGINE_LOG_TIME");
    with_time = time && *time && strcmp(time, "0") != 0;
    threshold = level_from_env();
}

/* Seconds since 1970, so that lines of several processes can be put in order. */
static int stamp(char *line, size_t size)
{
    struct timespec t = {0};
    if (rle_simulated())
        t.tv_sec = rle_now() / 1000000000, t.tv_nsec = rle_now() % 1000000000;
    else
        clock_gettime(CLOCK_REALTIME, &t);
    return snprintf(line, size, "%lld.%06ld ", (long long)t.tv_sec, t.tv_nsec / 1000);
}

/* A line stays one, whatever others put into it: they cannot write lines of ours. */
static void keep_one_line(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < ' ' && *text != '\t') *text = ' ';
}

void rle_log(rle_log_level level, const char *fmt, ...)
{
    if (threshold < 0) read_env();
    if ((int)level < threshold) return;
    char line[2304];
    int used = 0;
    if (!sink_fn) {
        if (with_time) used = stamp(line, sizeof line);
        used += snprintf(line + used, sizeof line - (size_t)used,
                         "rlengine%s%s: ", name[0] ? " " : "", name);
    }
    va_list args;
    va_start(args, fmt);
    vsnprintf(line + used, sizeof line - (size_t)used - 1, fmt, args);
    va_end(args);
    keep_one_line(line + used);
    if (sink_fn) {
        sink_fn(sink_self, level, line);
        return;
    }
    if (rle_simulated()) {
        /* To what stands for the standard error of the present process. */
        if (!rle_world_simulated->silent()) fprintf(stderr, "%s\n", line);
        return;
    }
    size_t n = strlen(line);
    line[n++] = '\n';
    /* Nothing sensible can be done when standard error is gone. */
    ssize_t written = write(STDERR_FILENO, line, n);
    (void)written;
}

void rle_log_set_level(rle_log_level level)
{
    if (threshold < 0) read_env();
    threshold = level;
}

void rle_log_set_name(const char *new_name)
{
    snprintf(name, sizeof name, "%s", new_name);
}

void rle_log_set_sink(void (*sink)(void *, rle_log_level, const char *), void *self)
{
    sink_fn = sink;
    sink_self = self;
}
