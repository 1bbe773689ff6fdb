/* status.c - codes, their names, and the thread's last message. */
#include "base/status.h"

#include <stdio.h>
#include <string.h>

static _Thread_local char message[2048];

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
    char fresh[sizeof message];
    vsnprintf(fresh, sizeof fresh, fmt, args);
    memcpy(message, fresh, strlen(fresh) + 1);
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
    return message;
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
