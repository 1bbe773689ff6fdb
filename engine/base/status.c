/* status.c - codes, their names, and the thread's last message. */
#include "base/status.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MESSAGE_SIZE = 2048 };

/* The text lies outside thread-local storage, which is scarce in a module that is opened
 * at run time. A thread's buffer is made at its first failure and freed when it ends;
 * when there is no memory for one, threads share `spare`. */
static _Thread_local char *slot;
static char spare[MESSAGE_SIZE];
static pthread_key_t slot_key;
static pthread_once_t slot_once = PTHREAD_ONCE_INIT;

static void make_key(void)
{
    pthread_key_create(&slot_key, free);
}

static char *own_slot(void)
{
    if (slot) return slot;
    pthread_once(&slot_once, make_key);
    char *fresh = malloc(MESSAGE_SIZE);
    if (!fresh || pthread_setspecific(slot_key, fresh) != 0) {
        free(fresh);
        return spare;
    }
    fresh[0] = 0;
    return slot = fresh;
}

static const char *const names[RLE_STATUS_COUNT] = {
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
};

rle_status rle_failv(rle_status code, const char *fmt, va_list args)
{
    /* The arguments may point into the old message, so format beside it first. */
    char fresh[MESSAGE_SIZE];
    vsnprintf(fresh, sizeof fresh, fmt, args);
    memcpy(own_slot(), fresh, strlen(fresh) + 1);
    return code;
}

rle_status rle_fail(rle_status code, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    rle_failv(code, fmt, args);
    va_end(args);
    return code;
}

const char *rle_message(void)
{
    return slot ? slot : spare;
}

const char *rle_status_name(rle_status code)
{
    if ((int)code < 0 || code >= RLE_STATUS_COUNT) return names[RLE_UNKNOWN];
    return names[code];
}

int rle_status_from_name(const char *name)
{
    for (int i = 0; i < RLE_STATUS_COUNT; i++)
        if (strcmp(names[i], name) == 0) return i;
    return -1;
}
