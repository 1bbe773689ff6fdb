/* sim_net.c - the simulated network: listeners, and streams between two ends.
 *
 * A stream has two endpoints. What is written at one lies, in pieces with the moment of
 * their arrival, in a queue of the other; the moments never go back, so bytes stay in
 * order. An end of the stream is a piece of its own behind them. Nothing happens when a
 * piece arrives: who asks whether there is something to read compares with the clock.
 *
 * An endpoint belongs to the process that has its descriptor. When one side closes, the
 * other keeps what is on its way. Freed when both sides are closed. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/mem.h"
#include "rpc/sim_internal.h"

enum { FIRST_PORT = 20000 };

typedef struct piece {
    struct piece *next;
    int64_t at;
    size_t size, read;
    bool end; /* of the stream */
    uint8_t bytes[];
} piece;

struct rle_sim_endpoint {
    int fd;
    bool open; /* its process has not closed it */
    rle_sim_process *owner;
    rle_address address; /* of the listener; of whoever connected, for accept */
    /* of a listener */
    bool listens;
    rle_sim_endpoint *waiting; /* to be accepted, by next_waiting, oldest first */
    /* of a stream */
    bool connected_by_us;
    rle_sim_endpoint *other; /* NULL once that has been freed */
    rle_sim_endpoint *next_waiting;
    int64_t arrives_at; /* at the listener */
    bool queued;        /* there, not accepted yet */
    int64_t decided_at; /* of connecting */
    int connect_error;
    int64_t broken_at;   /* from then on reads and writes fail */
    bool broken_quietly; /* reads see the end of the stream instead */
    bool silent;         /* nothing comes in any more */
    piece *first, **last;
    size_t unread;
    /* of what comes in */
    int64_t latency, jitter, free_at, last_at;
    double seconds_per_byte;
    size_t window;
};

static rle_sim *const world = &rle_sim_world;

static rle_sim_endpoint *of(int fd)
{
    int i = fd - RLE_SIM_FD;
    return i >= 0 && i < world->endpoint_count ? world->endpoints[i] : NULL;
}

static rle_sim_endpoint *make(rle_sim_process *owner)
{
    int slot = 0; /* the lowest that is free, as the kernel does */
    while (slot < world->endpoint_count && world->endpoints[slot]) slot++;
    if (slot == world->endpoint_capacity) {
        int capacity = world->endpoint_capacity ? world->endpoint_capacity * 2 : 64;
        rle_sim_endpoint **list =
            rle_realloc(world->endpoints, (size_t)capacity * sizeof *list);
        if (!list) return NULL;
        world->endpoints = list;
        world->endpoint_capacity = capacity;
    }
    rle_sim_endpoint *e = rle_calloc(1, sizeof *e);
    if (!e) return NULL;
    e->fd = RLE_SIM_FD + slot;
    e->open = true;
    e->owner = owner;
    e->last = &e->first;
    e->broken_at = RLE_NEVER;
    world->endpoints[slot] = e;
    if (slot == world->endpoint_count) world->endpoint_count++;
    return e;
}

static void drop_pieces(rle_sim_endpoint *e)
{
    while (e->first) {
        piece *p = e->first;
        e->first = p->next;
        rle_free(p);
    }
    e->last = &e->first;
    e->unread = 0;
}

static void free_endpoint(rle_sim_endpoint *e)
{
    if (e->other) e->other->other = NULL;
    drop_pieces(e);
    world->endpoints[e->fd - RLE_SIM_FD] = NULL;
    rle_free(e);
}

/* How fast things are for what comes in at `e`: most streams are quick, some are far. */
static void draw_pace(rle_sim_endpoint *e)
{
    static const int64_t latencies[] = {5000, 50000, 500000, 5 * RLE_SIM_MS,
                                        40 * RLE_SIM_MS};
    int64_t most = latencies[rle_sim_random(5)];
    e->latency = rle_sim_between(most / 5, most);
    e->jitter = most / 2;
    e->seconds_per_byte = 1.0 / (double)rle_sim_between(1 << 20, INT64_C(4) << 30);
    e->window = (size_t)rle_sim_between(2 << 10, 256 << 10);
}

/* ---- partitions ---- */

/* A moment at which something would reach `a` from `b`, given who hears whom. */
static int64_t across(const rle_sim_process *a, const rle_sim_process *b, int64_t at)
{
    if (!a || !b || a->island == b->island || at >= world->heals_at) return at;
    return world->heals_at;
}

/* ---- listening and connecting ---- */

int rle_sim_listen(const rle_address *at, rle_address *bound)
{
    rle_address real = *at;
    if (!at->is_unix) {
        struct sockaddr_storage sa = at->sa;
        in_port_t *port = sa.ss_family == AF_INET
                              ? &((struct sockaddr_in *)&sa)->sin_port
                              : &((struct sockaddr_in6 *)&sa)->sin6_port;
        if (!*port) *port = htons((in_port_t)(FIRST_PORT + world->ports++ % 20000));
        rle_address_from_sockaddr((struct sockaddr *)&sa, at->len, &real);
    }
    for (int i = 0; i < world->endpoint_count; i++) {
        const rle_sim_endpoint *e = world->endpoints[i];
        if (!e || !e->listens || strcmp(e->address.text, real.text) != 0) continue;
        errno = EADDRINUSE;
        return -1;
    }
    rle_sim_endpoint *e = make(world->running);
    if (!e) {
        errno = ENOMEM;
        return -1;
    }
    e->listens = true;
    e->address = *bound = real;
    rle_sim_note("listen", e->fd - RLE_SIM_FD, 0, 0);
    return e->fd;
}

static rle_sim_endpoint *listener_at(const rle_address *to)
{
    for (int i = 0; i < world->endpoint_count; i++) {
        rle_sim_endpoint *e = world->endpoints[i];
        if (e && e->listens && strcmp(e->address.text, to->text) == 0) return e;
    }
    return NULL;
}

/* Each process has an address of its own on the loopback network. */
static void address_of(const rle_sim_process *p, bool is_unix, rle_address *out)
{
    if (is_unix) {
        struct sockaddr_un un = {.sun_family = AF_UNIX};
        rle_address_from_sockaddr((struct sockaddr *)&un, sizeof un.sun_family, out);
        return;
    }
    struct sockaddr_in in = {.sin_family = AF_INET};
    int number = p ? p->number : 0;
    in.sin_port = htons((in_port_t)(40000 + world->ports++ % 20000));
    in.sin_addr.s_addr = htonl(0x7f000001u + (uint32_t)number);
    rle_address_from_sockaddr((struct sockaddr *)&in, sizeof in, out);
}

static int refused(int why)
{
    rle_sim_note("refused", why, 0, 0);
    errno = why;
    return -1;
}

int rle_sim_connect(const rle_address *to, bool *pending)
{
    rle_sim_process *p = world->running;
    int64_t now = rle_sim_time();
    rle_sim_endpoint *listener = listener_at(to);
    bool there = listener && listener->owner->refuses_until <= now;
    if (p && p->dying) return refused(ECONNREFUSED);
    /* A Unix socket decides at once, most often. */
    bool at_once = to->is_unix && rle_sim_chance(700);
    if (!there && at_once) return refused(listener ? ECONNREFUSED : ENOENT);
    rle_sim_endpoint *mine = make(p),
                     *theirs = mine && there ? make(listener->owner) : NULL;
    if (!mine || (there && !theirs)) {
        if (mine) free_endpoint(mine);
        return refused(ENOMEM);
    }
    mine->connected_by_us = true;
    draw_pace(mine);
    *pending = !at_once;
    if (!there) {
        mine->connect_error = listener || !to->is_unix ? ECONNREFUSED : ENOENT;
        mine->decided_at = now + mine->latency;
        return mine->fd;
    }
    draw_pace(theirs);
    mine->other = theirs;
    theirs->other = mine;
    theirs->arrives_at = across(listener->owner, p, now + theirs->latency);
    mine->decided_at = at_once ? 0 : theirs->arrives_at + mine->latency;
    address_of(p, to->is_unix, &theirs->address);
    rle_sim_endpoint **at = &listener->waiting;
    while (*at) at = &(*at)->next_waiting;
    *at = theirs;
    theirs->queued = true;
    rle_sim_note("connect", mine->fd - RLE_SIM_FD, theirs->fd - RLE_SIM_FD,
                 mine->decided_at);
    return mine->fd;
}

int rle_sim_connect_error(int fd)
{
    const rle_sim_endpoint *e = of(fd);
    return e->broken_at <= rle_sim_time() ? ECONNRESET : e->connect_error;
}

int rle_sim_accept(int fd, rle_address *peer)
{
    rle_sim_endpoint *listener = of(fd), *e = listener->waiting;
    if (!e || e->arrives_at > rle_sim_time()) {
        errno = EAGAIN;
        return -1;
    }
    listener->waiting = e->next_waiting;
    e->queued = false;
    *peer = e->address;
    rle_sim_note("accept", e->fd - RLE_SIM_FD, 0, 0);
    return e->fd;
}

void rle_sim_credentials(int fd, pid_t *pid, uid_t *uid)
{
    const rle_sim_endpoint *e = of(fd);
    *pid = 1000 + (e->other && e->other->owner ? e->other->owner->number : 0);
    *uid = geteuid();
}

/* ---- what is ready ---- */

/* When its first piece arrives. */
static int64_t first_comes(const rle_sim_endpoint *e)
{
    if (!e->first || e->silent) return RLE_NEVER;
    return across(e->owner, e->other ? e->other->owner : NULL, e->first->at);
}

int64_t rle_sim_readable(int fd)
{
    const rle_sim_endpoint *e = of(fd);
    if (!e) return RLE_NEVER;
    if (e->listens) return e->waiting ? e->waiting->arrives_at : RLE_NEVER;
    int64_t comes = first_comes(e);
    return comes < e->broken_at ? comes : e->broken_at;
}

int64_t rle_sim_writable(int fd)
{
    const rle_sim_endpoint *e = of(fd);
    if (!e) return RLE_NEVER;
    if (e->decided_at > rle_sim_time())
        return e->decided_at < e->broken_at ? e->decided_at : e->broken_at;
    if (!e->other || e->connect_error || e->other->unread < e->other->window) return 0;
    return e->broken_at;
}

/* ---- bytes ---- */

static piece *add_piece(rle_sim_endpoint *to, size_t size, int64_t at)
{
    piece *p = rle_malloc(sizeof *p + size);
    if (!p) return NULL;
    *p = (piece){.at = at > to->last_at ? at : to->last_at, .size = size};
    to->last_at = p->at;
    to->unread += size;
    *to->last = p;
    to->last = &p->next;
    return p;
}

/* A killed process has no descriptors any more, though its cleanup still names them. */
static bool dying(void)
{
    return world->running && world->running->dying;
}

ssize_t rle_sim_readv(int fd, const struct iovec *iov, int n)
{
    if (dying()) return 0;
    rle_sim_endpoint *e = of(fd);
    int64_t now = rle_sim_time();
    size_t room = 0, got = 0;
    for (int i = 0; i < n; i++) room += iov[i].iov_len;
    /* Often less than there is. */
    size_t most = rle_sim_chance(300) ? 1 + (size_t)rle_sim_random(room) : room;
    bool ended = false;
    for (int i = 0; i < n && got < most && !ended; i++) {
        size_t filled = 0;
        while (filled < iov[i].iov_len && got < most && first_comes(e) <= now) {
            piece *p = e->first;
            ended = p->end;
            if (ended) break;
            size_t take = p->size - p->read;
            if (take > iov[i].iov_len - filled) take = iov[i].iov_len - filled;
            if (take > most - got) take = most - got;
            memcpy((uint8_t *)iov[i].iov_base + filled, p->bytes + p->read, take);
            p->read += take;
            filled += take;
            got += take;
            e->unread -= take;
            if (p->read < p->size) break;
            e->first = p->next;
            if (!e->first) e->last = &e->first;
            rle_free(p);
        }
    }
    if (got) {
        rle_sim_note("read", fd - RLE_SIM_FD, (int64_t)got, 0);
        return (ssize_t)got;
    }
    if (ended || (e->broken_at <= now && e->broken_quietly)) return 0;
    errno = e->broken_at <= now ? ECONNRESET : EAGAIN;
    return -1;
}

ssize_t rle_sim_writev(int fd, const struct iovec *iov, int n)
{
    rle_sim_endpoint *e = dying() ? NULL : of(fd), *to = e ? e->other : NULL;
    int64_t now = rle_sim_time();
    if (!e || e->broken_at <= now) {
        errno = EPIPE;
        return -1;
    }
    size_t size = 0;
    for (int i = 0; i < n; i++) size += iov[i].iov_len;
    if (!to || !to->open) {
        /* The other side is gone: this side learns when word of that is here. */
        if (!to || rle_sim_readable(fd) <= now) {
            errno = EPIPE;
            return -1;
        }
        return (ssize_t)size;
    }
    size_t room = to->unread < to->window ? to->window - to->unread : 0;
    if (!room || rle_sim_chance(10)) {
        errno = EAGAIN;
        return -1;
    }
    if (size > room) size = room;
    if (rle_sim_chance(150)) size = 1 + (size_t)rle_sim_random(size);
    if (to->free_at < now) to->free_at = now;
    to->free_at += (int64_t)((double)size * to->seconds_per_byte * 1e9);
    piece *p =
        add_piece(to, size, to->free_at + to->latency + rle_sim_between(0, to->jitter));
    if (!p) {
        errno = ENOMEM;
        return -1;
    }
    size_t put = 0;
    for (int i = 0; i < n && put < size; i++) {
        size_t take = iov[i].iov_len < size - put ? iov[i].iov_len : size - put;
        memcpy(p->bytes + put, iov[i].iov_base, take);
        put += take;
    }
    world->sum.sends++;
    world->sum.bytes += size;
    rle_sim_note("write", fd - RLE_SIM_FD, (int64_t)size, p->at);
    return (ssize_t)size;
}

/* ---- closing ---- */

static void break_stream(rle_sim_endpoint *e, int64_t at, bool quietly)
{
    if (at < e->broken_at) {
        e->broken_at = at;
        e->broken_quietly = quietly;
    }
}

static void close_stream(rle_sim_endpoint *e)
{
    rle_sim_endpoint *other = e->other;
    bool lost = e->unread > 0;
    e->open = false;
    drop_pieces(e);
    if (!other || !other->open) {
        if (other) free_endpoint(other);
        free_endpoint(e);
        return;
    }
    int64_t at = rle_sim_time() + other->latency + rle_sim_between(0, other->jitter);
    piece *p = add_piece(other, 0, at);
    if (p) p->end = true;
    /* Closed with bytes unread: the other side is told so, perhaps before the rest
     * reached it. */
    if (!p || (lost && rle_sim_chance(500)))
        break_stream(other, across(other->owner, e->owner, at), false);
}

static void close_endpoint(int fd)
{
    rle_sim_endpoint *e = of(fd);
    if (!e->open) return;
    rle_sim_note("close", fd - RLE_SIM_FD, 0, 0);
    if (!e->listens) {
        close_stream(e);
        return;
    }
    while (e->waiting) {
        rle_sim_endpoint *w = e->waiting;
        e->waiting = w->next_waiting;
        w->queued = false;
        close_stream(w);
    }
    free_endpoint(e);
}

void rle_sim_close(int fd)
{
    if (!dying()) close_endpoint(fd);
}

void rle_sim_net_close_all(rle_sim_process *p)
{
    for (int i = 0; i < world->endpoint_count; i++) {
        rle_sim_endpoint *e = world->endpoints[i];
        /* What a listener has not accepted goes with it. */
        if (e && e->open && !e->queued && e->owner == p) close_endpoint(e->fd);
    }
}

void rle_sim_net_free(void)
{
    for (int i = 0; i < world->endpoint_count; i++)
        if (world->endpoints[i]) free_endpoint(world->endpoints[i]);
    rle_free(world->endpoints);
}

/* ---- faults ---- */

static rle_sim_endpoint *nth_stream(int n, int *count)
{
    *count = 0;
    for (int i = 0; i < world->endpoint_count; i++) {
        rle_sim_endpoint *e = world->endpoints[i];
        if (!e || !e->open || !e->connected_by_us || !e->other || !e->other->open)
            continue;
        if ((*count)++ == n) return e;
    }
    return NULL;
}

int rle_sim_stream_count(void)
{
    int count;
    nth_stream(-1, &count);
    return count;
}

void rle_sim_stream_cut(int n, bool both, bool lose)
{
    int count;
    rle_sim_endpoint *e = nth_stream(n, &count), *ends[2] = {e, e->other};
    int first = (int)rle_sim_random(2);
    for (int i = 0; i < 2; i++) {
        rle_sim_endpoint *x = ends[(first + i) % 2];
        if (i && !both) {
            x->silent = true; /* it does not learn */
            continue;
        }
        int64_t at = world->now + rle_sim_between(0, x->latency + x->jitter);
        break_stream(x, at, rle_sim_chance(500));
        if (lose) drop_pieces(x);
    }
}

void rle_sim_stream_silence(int n)
{
    int count;
    rle_sim_endpoint *e = nth_stream(n, &count);
    e->silent = e->other->silent = true;
}

void rle_sim_stream_slow(int n)
{
    int count;
    rle_sim_endpoint *e = nth_stream(n, &count), *ends[2] = {e, e->other};
    for (int i = 0; i < 2; i++) {
        ends[i]->latency = rle_sim_between(RLE_SIM_MS, 300 * RLE_SIM_MS);
        ends[i]->jitter = ends[i]->latency / 2;
        ends[i]->seconds_per_byte = 1.0 / (double)rle_sim_between(4 << 10, 256 << 10);
    }
}
