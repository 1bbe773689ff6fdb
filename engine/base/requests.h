/* requests.h - the named pipe at which processes of a group ask whoever runs it for
 * something: a line each, short enough to come whole (supervisor.h says what they may
 * ask).
 *
 * One thread reads; any process of this user that may enter the pipe's folder writes. */
#ifndef RLE_BASE_REQUESTS_H
#define RLE_BASE_REQUESTS_H

#include <stddef.h>

#include "base/status.h"

typedef struct rle_requests {
    int fd;           /* our end, to be polled; -1: there is none */
    const char *path; /* borrowed */
    char line[256];   /* being read */
    size_t used;
} rle_requests;

/* Make the pipe, for this user alone. UNAVAILABLE. */
rle_status rle_requests_open(rle_requests *r, const char *path);
/* Read what is there; `obey` gets each line without its end, and may change it. */
void rle_requests_read(rle_requests *r, void (*obey)(void *self, char *line), void *self);
/* Also takes the pipe away. Nothing where there is none. */
void rle_requests_close(rle_requests *r);

#endif
