/* proxy_io.h - what the fault proxy puts its bytes and addresses in. For proxy.c only. */
#ifndef TESTS_FAULTS_PROXY_IO_H
#define TESTS_FAULTS_PROXY_IO_H

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

static _Noreturn void die(const char *what)
{
    fprintf(stderr, "fault_proxy: %s: %s\n", what, strerror(errno));
    exit(1);
}

typedef struct buffer {
    uint8_t *data;
    size_t begin, end, cap;
} buffer;

static inline uint8_t *buffer_room(buffer *b, size_t n)
{
    if (b->begin == b->end) b->begin = b->end = 0;
    if (b->end + n > b->cap) {
        if (b->begin) memmove(b->data, b->data + b->begin, b->end - b->begin);
        b->end -= b->begin;
        b->begin = 0;
        if (b->end + n > b->cap) {
            b->cap = (b->end + n) * 2;
            b->data = realloc(b->data, b->cap);
            if (!b->data) die("memory");
        }
    }
    return b->data + b->end;
}

static inline void buffer_add(buffer *b, const void *bytes, size_t n)
{
    if (!n) return;
    memcpy(buffer_room(b, n), bytes, n);
    b->end += n;
}

static inline size_t buffer_size(const buffer *b)
{
    return b->end - b->begin;
}

static inline void buffer_free(buffer *b)
{
    free(b->data);
    *b = (buffer){0};
}

/* Bytes up to `upto` may go at `at`; a ring, oldest first. */
typedef struct marks {
    struct mark {
        uint64_t upto;
        int64_t at;
    } ring[1024];
    unsigned first, count;
    uint64_t ready; /* bytes up to this one may go */
} marks;

static inline void marks_add(marks *m, uint64_t upto, int64_t at)
{
    struct mark *last = &m->ring[(m->first + m->count - 1) % 1024];
    if (m->count && last->at > at) at = last->at; /* bytes stay in order */
    if (m->count == 1024)
        last->upto = upto;
    else
        m->ring[(m->first + m->count++) % 1024] = (struct mark){upto, at};
}

/* How many bytes behind `sent` may go now. */
static inline size_t marks_ready(marks *m, uint64_t sent, int64_t now)
{
    for (; m->count && m->ring[m->first % 1024].at <= now; m->first++, m->count--)
        m->ready = m->ring[m->first % 1024].upto;
    if (!m->count) return SIZE_MAX;
    return m->ready > sent ? (size_t)(m->ready - sent) : 0;
}

static inline void set_nodelay(int fd, int family)
{
    int one = 1;
    if (family != AF_UNIX) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static inline void parse_address(const char *text, struct sockaddr_storage *out,
                                 socklen_t *len)
{
    memset(out, 0, sizeof *out);
    char host[64];
    unsigned port;
    if (strncmp(text, "unix:", 5) == 0) {
        struct sockaddr_un *un = (struct sockaddr_un *)out;
        un->sun_family = AF_UNIX;
        snprintf(un->sun_path, sizeof un->sun_path, "%s", text + 5);
        *len = sizeof *un;
    } else if (sscanf(text, "tcp://%63[0-9.]:%u", host, &port) == 2) {
        struct sockaddr_in *in = (struct sockaddr_in *)out;
        in->sin_family = AF_INET;
        in->sin_port = htons((uint16_t)port);
        if (inet_pton(AF_INET, host, &in->sin_addr) != 1) die(text);
        *len = sizeof *in;
    } else {
        errno = EINVAL;
        die(text);
    }
}

#endif
