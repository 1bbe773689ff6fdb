/* status.h - how every fallible function reports: a code, and a message on the side.
 *
 * A function that can fail returns rle_status and puts its outputs last. On failure it
 * leaves its arguments and outputs as they were. The text of the failure lies in a
 * thread-local slot until the next failure on that thread; code that only passes a
 * failure on does not touch it.
 *
 * The codes are gRPC's, with gRPC's numbers: they cross the network as they are. */
#ifndef RLE_BASE_STATUS_H
#define RLE_BASE_STATUS_H

#include <stdarg.h>

typedef enum {
    RLE_OK = 0,
    RLE_CANCELLED = 1,
    RLE_UNKNOWN = 2,
    RLE_INVALID_ARGUMENT = 3,
    RLE_DEADLINE_EXCEEDED = 4,
    RLE_NOT_FOUND = 5,
    RLE_ALREADY_EXISTS = 6,
    RLE_PERMISSION_DENIED = 7,
    RLE_RESOURCE_EXHAUSTED = 8,
    RLE_FAILED_PRECONDITION = 9,
    RLE_ABORTED = 10,
    RLE_OUT_OF_RANGE = 11,
    RLE_UNIMPLEMENTED = 12,
    RLE_INTERNAL = 13,
    RLE_UNAVAILABLE = 14,
    RLE_DATA_LOSS = 15,
    RLE_UNAUTHENTICATED = 16,
    RLE_STATUS_COUNT
} rle_status;

#if defined(__GNUC__)
#define RLE_PRINTF(fmt, first) __attribute__((format(printf, fmt, first)))
#else
#define RLE_PRINTF(fmt, first)
#endif

/* Set the message of this thread and return `code`: `return rle_fail(RLE_..., "...")`.
 * Messages longer than 2047 bytes are cut. */
rle_status rle_fail(rle_status code, const char *fmt, ...) RLE_PRINTF(2, 3);
rle_status rle_failv(rle_status code, const char *fmt, va_list args);

/* Message of the last failure on this thread; never NULL, valid until the next failure. */
const char *rle_message(void);

/* "INVALID_ARGUMENT" and so on; "CODE_<n>" is not produced: unknown numbers are UNKNOWN. */
const char *rle_status_name(rle_status code);

/* The code of that name, or -1. */
int rle_status_from_name(const char *name);

/* Return from the enclosing function when `expr` fails. */
#define RLE_TRY(expr)                                                                    \
    do {                                                                                 \
        rle_status try_status_ = (expr);                                                 \
        if (try_status_ != RLE_OK) return try_status_;                                   \
    } while (0)

#endif
