/* rpc_crowd.h - many workers in one process, for tests and benchmarks of scale: each is a
 * socket and a few hundred bytes that shake hands, answer pings and call, as many at a
 * time as they are told. The process that serves them is the one that started this one.
 *
 *   crowd c = crowd_start("/path/of/socket", &token);      forks
 *   crowd_command(&c, (crowd_order){.what = CROWD_CONNECT, .count = 1000});
 *   crowd_report r = crowd_serve(rpc, &c, 0);              until it has done that
 *   crowd_end(&c);
 *
 * Whatever goes wrong in the crowd ends its process with a line on standard error; the
 * answer is then empty. */
#ifndef TESTS_RPC_CROWD_H
#define TESTS_RPC_CROWD_H

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "rpc/auth.h"
#include "rpc/codec.h"
#include "rpc/frame.h"
#include "rpc/rpc.h"
#include "rpc_greeting.h"

enum { CROWD_CONNECT = 1, CROWD_CALL, CROWD_LEAVE, CROWD_REST };

typedef struct crowd_order {
    int what;
    int count;      /* CONNECT: workers to add; LEAVE: workers to take away */
    double seconds; /* CALL, REST: for so long */
    int greedy; /* CALL: calls that the first worker keeps open; the others one each */
} crowd_order;

typedef struct crowd_report {
    bool there;           /* the crowd has answered */
    double seconds;       /* it took */
    uint64_t calls;       /* all that were answered */
    uint64_t greedy;      /* those of the first worker, when it was greedy */
    uint64_t least, most; /* of the others: who got least, and most */
    double p50, p99;      /* seconds from call to answer, of the others */
} crowd_report;

typedef struct crowd {
    pid_t pid;
    int order, answer; /* our ends */
} crowd;

/* ---- the crowd's process ---- */

typedef struct crowd_member {
    int fd;
    bool joined;
    uint64_t id, served, incarnation;
    int open;          /* calls that have no answer yet */
    int64_t called_at; /* the last one */
    size_t have, hello_size;
    uint8_t in[1024], hello[256];
} crowd_member;

typedef struct crowd_self {
    const char *path;
    const rle_token *token;
    int epoll;
    crowd_member **members;
    int count, joined;
    bool calling;
    int greedy;
    rle_encoder call;
    float *latencies;
    size_t latency_count, latency_room;
} crowd_self;

__attribute__((format(printf, 1, 2), noreturn)) static inline void
crowd_die(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fprintf(stderr, "crowd: ");
    vfprintf(stderr, fmt, ap);
    fprintf(stderr, "\n");
    va_end(ap);
    _exit(1);
}

static inline void crowd_send(crowd_member *m, rle_frame f, const void *body, size_t n)
{
    uint8_t bytes[RLE_FRAME_HEADER + 512];
    f.payload = f.values = (uint32_t)n;
    f.body = n;
    f.incarnation = m->incarnation;
    rle_frame_encode(&f, bytes);
    memcpy(bytes + RLE_FRAME_HEADER, body, n);
    n += RLE_FRAME_HEADER;
    if (send(m->fd, bytes, n, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)n)
        crowd_die("cannot send: %s", strerror(errno));
}

static inline void crowd_call_one(crowd_self *s, crowd_member *m)
{
    m->called_at = rle_now();
    m->open++;
    crowd_send(m, (rle_frame){.type = RLE_FRAME_CALL, .id = ++m->id, .arg = 60000000},
               s->call.w.data + RLE_FRAME_HEADER, rle_encoder_values_size(&s->call));
}

/* False: the listener's queue is full. */
static inline bool crowd_join(crowd_self *s, int number)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    snprintf(un.sun_path, sizeof un.sun_path, "%s", s->path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) crowd_die("no socket for worker %d: %s", number, strerror(errno));
    if (connect(fd, (struct sockaddr *)&un, sizeof un) != 0) {
        int why = errno;
        close(fd);
        if (why == EAGAIN) return false;
        crowd_die("worker %d cannot connect: %s", number, strerror(why));
    }
    crowd_member *m = calloc(1, sizeof *m);
    if (!m) crowd_die("out of memory");
    m->fd = fd;
    m->incarnation = 1000 + (uint64_t)number;
    s->members[number] = m;
    rle_writer w;
    rle_writer_init(&w);
    char name[32];
    snprintf(name, sizeof name, "obs_%d_of_%d", number, (int)getpid());
    write_greeting(&w, m->incarnation, name, 1, 1);
    if (w.len > sizeof m->hello) crowd_die("a greeting of %zu bytes", w.len);
    memcpy(m->hello, w.data, w.len);
    m->hello_size = w.len;
    rle_writer_fini(&w);
    crowd_send(m, (rle_frame){.type = RLE_FRAME_HELLO}, m->hello, m->hello_size);
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = m};
    if (epoll_ctl(s->epoll, EPOLL_CTL_ADD, fd, &ev))
        crowd_die("epoll: %s", strerror(errno));
    return true;
}

static inline void crowd_note(crowd_self *s, double seconds)
{
    if (s->latency_count == s->latency_room) {
        s->latency_room = s->latency_room ? s->latency_room * 2 : 4096;
        s->latencies = realloc(s->latencies, s->latency_room * sizeof *s->latencies);
        if (!s->latencies) crowd_die("out of memory");
    }
    s->latencies[s->latency_count++] = (float)seconds;
}

static inline void crowd_frame(crowd_self *s, crowd_member *m, const rle_frame *f,
                               const uint8_t *payload)
{
    uint8_t proof[RLE_PROOF_SIZE];
    switch (f->type) {
    case RLE_FRAME_HELLO_ACK:
        if (rle_auth_proof(s->token, 'c', m->hello, m->hello_size, payload, f->payload,
                           proof))
            crowd_die("%s", rle_message());
        crowd_send(m, (rle_frame){.type = RLE_FRAME_AUTH, .credit = 64}, proof,
                   sizeof proof);
        return;
    case RLE_FRAME_AUTH:
        m->joined = true;
        s->joined++;
        return;
    case RLE_FRAME_PING:
        crowd_send(m, (rle_frame){.type = RLE_FRAME_PONG, .arg = f->arg}, NULL, 0);
        return;
    case RLE_FRAME_RESULT:
        m->open--;
        m->served++;
        if (m != s->members[0] || !s->greedy)
            crowd_note(s, (double)(rle_now() - m->called_at) * 1e-9);
        if (s->calling) crowd_call_one(s, m);
        return;
    case RLE_FRAME_ERROR:
        crowd_die("worker got an error: %.*s", (int)f->payload, (const char *)payload);
    default:
        return;
    }
}

static inline void crowd_read(crowd_self *s, crowd_member *m)
{
    static uint8_t bytes[sizeof m->in + 65536];
    memcpy(bytes, m->in, m->have);
    ssize_t n = recv(m->fd, bytes + m->have, 65536, MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) crowd_die("a worker was disconnected");
    size_t end = m->have + (size_t)n, at = 0;
    while (end - at >= RLE_FRAME_HEADER) {
        rle_frame f;
        if (rle_frame_decode(bytes + at, 1 << 20, &f)) crowd_die("%s", rle_message());
        if (end - at < RLE_FRAME_HEADER + f.payload) break;
        crowd_frame(s, m, &f, bytes + at + RLE_FRAME_HEADER);
        at += RLE_FRAME_HEADER + f.payload;
    }
    m->have = end - at;
    if (m->have > sizeof m->in) crowd_die("a frame of more than %zu bytes", sizeof m->in);
    memcpy(m->in, bytes + at, m->have);
}

/* One look at the sockets, waiting for at most `ms`. True: an order has come. */
static inline bool crowd_turn(crowd_self *s, int ms)
{
    struct epoll_event events[256];
    bool order = false;
    int n = epoll_wait(s->epoll, events, 256, ms);
    for (int i = 0; i < n; i++) {
        if (events[i].data.ptr)
            crowd_read(s, events[i].data.ptr);
        else
            order = true;
    }
    return order;
}

static inline void crowd_grow(crowd_self *s, int count)
{
    s->members = realloc(s->members, (size_t)(s->count + count) * sizeof *s->members);
    if (!s->members) crowd_die("out of memory");
    int begun = s->count;
    s->count += count;
    while (s->joined < s->count) {
        while (begun < s->count && crowd_join(s, begun)) begun++;
        crowd_turn(s, begun < s->count ? 1 : 100);
    }
}

static inline void crowd_shrink(crowd_self *s, int count)
{
    for (; count && s->count; count--) {
        crowd_member *m = s->members[--s->count];
        close(m->fd);
        free(m);
        s->joined--;
    }
}

static inline int crowd_compare(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

static inline void crowd_calls(crowd_self *s, const crowd_order *o, crowd_report *r)
{
    s->calling = true;
    s->greedy = o->greedy;
    s->latency_count = 0;
    for (int i = 0; i < s->count; i++) s->members[i]->served = 0;
    int64_t end = rle_now() + (int64_t)(o->seconds * 1e9);
    for (int i = 0; i < s->count; i++)
        for (int k = i == 0 && o->greedy ? o->greedy : 1; k > 0; k--)
            crowd_call_one(s, s->members[i]);
    while (rle_now() < end) crowd_turn(s, 10);
    s->calling = false;
    int first = o->greedy ? 1 : 0;
    if (first) r->greedy = s->members[0]->served;
    r->least = UINT64_MAX;
    for (int i = 0; i < s->count; i++) {
        uint64_t served = s->members[i]->served;
        r->calls += served;
        if (i < first) continue;
        if (served < r->least) r->least = served;
        if (served > r->most) r->most = served;
    }
    for (int i = 0; i < s->count; i++)
        while (s->members[i]->open) crowd_turn(s, 100);
    qsort(s->latencies, s->latency_count, sizeof *s->latencies, crowd_compare);
    if (!s->latency_count) return;
    r->p50 = (double)s->latencies[s->latency_count / 2];
    r->p99 = (double)s->latencies[s->latency_count - 1 - s->latency_count / 100];
}

__attribute__((noreturn)) static inline void crowd_main(crowd_self *s, int orders,
                                                        int answers)
{
    struct epoll_event ev = {.events = EPOLLIN};
    s->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (epoll_ctl(s->epoll, EPOLL_CTL_ADD, orders, &ev))
        crowd_die("epoll: %s", strerror(errno));
    rle_encoder_init(&s->call);
    rle_encoder_reset(&s->call);
    rle_call_head head = {.method_len = 4, .method = "ping", .args = 0};
    rle_encode_call_head(&s->call, &head);
    for (;;) {
        if (!crowd_turn(s, -1)) continue;
        crowd_order o;
        crowd_report r = {.there = true};
        if (read(orders, &o, sizeof o) != (ssize_t)sizeof o) _exit(0);
        int64_t begin = rle_now();
        if (o.what == CROWD_CONNECT) crowd_grow(s, o.count);
        if (o.what == CROWD_CALL) crowd_calls(s, &o, &r);
        if (o.what == CROWD_LEAVE) crowd_shrink(s, o.count);
        while (o.what == CROWD_REST && rle_now() < begin + (int64_t)(o.seconds * 1e9))
            crowd_turn(s, 10);
        r.seconds = (double)(rle_now() - begin) * 1e-9;
        if (write(answers, &r, sizeof r) != (ssize_t)sizeof r) _exit(0);
    }
}

/* ---- in the process that serves ---- */

/* So many descriptors, if the system grants them to a user. */
static inline bool crowd_descriptors(int wanted)
{
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    return limit.rlim_cur > (rlim_t)wanted + 64;
}

/* Fork it before the server has threads. pid -1: it could not be started. */
static inline crowd crowd_start(const char *path, const rle_token *token)
{
    crowd c = {.pid = -1};
    int orders[2], answers[2];
    if (pipe(orders) || pipe(answers)) return c;
    c.pid = fork();
    if (c.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(orders[1]);
        close(answers[0]);
        crowd_self self = {.path = path, .token = token};
        crowd_main(&self, orders[0], answers[1]);
    }
    close(orders[0]);
    close(answers[1]);
    c.order = orders[1];
    c.answer = answers[0];
    return c;
}

static inline void crowd_command(const crowd *c, crowd_order order)
{
    if (write(c->order, &order, sizeof order) != (ssize_t)sizeof order) perror("crowd");
}

static inline crowd_report crowd_answer(const crowd *c)
{
    crowd_report r = {0};
    if (read(c->answer, &r, sizeof r) != (ssize_t)sizeof r) return (crowd_report){0};
    return r;
}

/* Serve, each call for `work` nanoseconds, until the crowd has done what it was told. */
static inline crowd_report crowd_serve(rle_rpc *rpc, const crowd *c, int64_t work)
{
    bool answered = false;
    rle_encoder e;
    rle_encoder_init(&e);
    rle_rpc_watch(rpc, c->answer, &answered);
    while (!answered) {
        rle_rpc_turn(rpc, true);
        rle_incoming_info info;
        rle_decoder d;
        rle_incoming *in;
        for (;;) {
            if (rle_rpc_look_due(rpc)) rle_rpc_turn(rpc, false);
            in = rle_rpc_next_call(rpc, &info, &d);
            if (!in) break;
            rle_incoming_read(rpc, in);
            for (int64_t end = work ? rle_now() + work : 0; work && rle_now() < end;) {
            }
            rle_encoder_reset(&e);
            rle_encode_result_head(&e, 0);
            rle_incoming_reply(rpc, in, &e);
        }
    }
    rle_rpc_watch(rpc, -1, NULL);
    rle_encoder_fini(&e);
    return crowd_answer(c);
}

static inline void crowd_end(crowd *c)
{
    close(c->order);
    close(c->answer);
    kill(c->pid, SIGKILL);
    waitpid(c->pid, NULL, 0);
}

#endif
