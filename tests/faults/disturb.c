/* disturb.c - a library for LD_PRELOAD that makes the system around a program restless.
 *
 *   RLE_DISTURB=clock   the wall clock jumps by an hour, forth and back, every second
 *   RLE_DISTURB=storm   SIGALRM a thousand times a second, caught without SA_RESTART, so that
 *                       system calls end with EINTR; and SIGCHLD is caught likewise
 *
 * Only in programs called rlengine: what a script starts is left alone. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int jumping;

static int real_clock(clockid_t clock, struct timespec *t)
{
    return (int)syscall(SYS_clock_gettime, clock, t);
}

/* Which way the clock is off now; it changes with each second that really passes. */
static long offset(void)
{
    struct timespec t;
    real_clock(CLOCK_MONOTONIC, &t);
    return t.tv_sec % 2 ? 3600 : -3600;
}

int clock_gettime(clockid_t clock, struct timespec *t)
{
    int rc = real_clock(clock, t);
    if (rc == 0 && jumping && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        t->tv_sec += offset();
    return rc;
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone)
{
    struct timespec t;
    (void)zone;
    int rc = clock_gettime(CLOCK_REALTIME, &t);
    if (rc == 0) *tv = (struct timeval){t.tv_sec, t.tv_nsec / 1000};
    return rc;
}

time_t time(time_t *out)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (out) *out = t.tv_sec;
    return t.tv_sec;
}

static void nothing(int number)
{
    (void)number;
}

__attribute__((constructor)) static void begin(void)
{
    const char *what = getenv("RLE_DISTURB");
    if (!what || strcmp(program_invocation_short_name, "rlengine") != 0) return;
    jumping = strcmp(what, "clock") == 0;
    if (strcmp(what, "storm") != 0) return;
    struct sigaction caught = {.sa_handler = nothing};
    sigaction(SIGALRM, &caught, NULL);
    sigaction(SIGCHLD, &caught, NULL);
    struct itimerval each = {{0, 1000}, {0, 1000}};
    setitimer(ITIMER_REAL, &each, NULL);
}
