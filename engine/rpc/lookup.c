/* lookup.c - names of hosts, looked up here or on a thread (lookup.h).
 *
 * Ownership: thread and owner hold one reference each to the look-up. Both have the
 * descriptor that wakes the loop, so that it is closed when neither can write to it.
 * Threads: the thread writes the answer and then `done`; nobody reads it before. */
#include "rpc/lookup.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/thread.h"

struct rle_lookup {
    _Atomic int refs;
    _Atomic bool done;
    int wake; /* an eventfd; -1: no thread was needed */
    char host[RLE_ADDRESS_MAX], service[8];
    int why; /* of getaddrinfo(3) */
    struct addrinfo *found;
    rle_watch *watch; /* the owner's */
    void (*known)(void *self);
    void *self;
};

/* ---- looking ---- */

static int ask(const char *host, const char *service, int flags, struct addrinfo **found)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_NUMERICSERV | flags};
    *found = NULL;
    return getaddrinfo(host, service, &hints, found);
}

bool rle_host_is_name(const char *host)
{
    struct addrinfo *found;
    if (strspn(host, "0123456789.") == strlen(host) || strchr(host, ':')) return false;
    if (ask(host, "0", AI_NUMERICHOST, &found) != 0) return true; /* others: 0x7f000001 */
    freeaddrinfo(found);
    return false;
}

static void take(const struct addrinfo *from, const char *host, rle_address *out)
{
    rle_address_from_sockaddr(from->ai_addr, from->ai_addrlen, out);
    snprintf(out->host, sizeof out->host, "%s", host);
}

static rle_status parse(const char *text, int flags, rle_address *out)
{
    char host[RLE_ADDRESS_MAX], service[8];
    RLE_TRY(rle_address_split(text, out, host, service));
    if (!host[0]) return RLE_OK;
    struct addrinfo *found;
    int why = ask(host, service, flags, &found);
    if (why != 0)
        return rle_fail(RLE_INVALID_ARGUMENT,
                        "address \"%.100s\": unknown host (%s); write unix:/path, "
                        "tcp://host:port or tcp://[ipv6]:port",
                        text, gai_strerror(why));
    take(found, host, out);
    freeaddrinfo(found);
    return RLE_OK;
}

rle_status rle_address_parse(const char *text, rle_address *out)
{
    return parse(text, 0, out);
}

rle_status rle_address_read(const char *text, rle_address *out)
{
    return parse(text, AI_NUMERICHOST, out);
}

/* ---- on a thread ---- */

static void unref(rle_lookup *l)
{
    if (atomic_fetch_sub_explicit(&l->refs, 1, memory_order_acq_rel) != 1) return;
    if (l->found) freeaddrinfo(l->found);
    if (l->wake >= 0) close(l->wake);
    rle_free(l);
}

static void look(rle_lookup *l)
{
    l->why = ask(l->host, l->service, 0, &l->found);
    atomic_store_explicit(&l->done, true, memory_order_release);
}

static void *run(void *self)
{
    rle_lookup *l = self;
    look(l);
    ssize_t put = write(l->wake, &(uint64_t){1}, sizeof(uint64_t));
    (void)put; /* there is room for the first one */
    unref(l);
    return NULL;
}

static rle_status start(rle_lookup *l)
{
    char what[RLE_ADDRESS_MAX + 32];
    snprintf(what, sizeof what, "looking up \"%s\"", l->host);
    l->refs = 2;
    rle_status s = rle_thread_start(run, l, what, NULL);
    if (s != RLE_OK) l->refs = 1;
    return s;
}

static void woken(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    rle_lookup *l = arg;
    rle_watch_off(l->watch); /* it stays readable */
    if (l->known) l->known(l->self);
}

rle_status rle_lookup_begin(rle_evloop *loop, const char *host, in_port_t port,
                            void (*known)(void *self), void *self, rle_lookup **out)
{
    rle_lookup *l = rle_calloc(1, sizeof *l);
    if (!l) return rle_oom(sizeof *l, "name");
    *l = (rle_lookup){.refs = 1, .wake = -1, .known = known, .self = self};
    snprintf(l->host, sizeof l->host, "%s", host);
    snprintf(l->service, sizeof l->service, "%u", ntohs(port));
    if (rle_simulated()) {
        look(l);
        *out = l;
        return RLE_OK;
    }
    rle_status s = RLE_OK;
    l->wake = rle_fault_io(EMFILE) ? -1 : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (l->wake < 0)
        s = rle_fail(RLE_RESOURCE_EXHAUSTED, "cannot look up \"%s\": %s", host,
                     strerror(errno));
    if (s == RLE_OK) {
        l->watch = rle_watch_new(loop, l->wake, RLE_WATCH_READ, woken, l);
        if (!l->watch || !rle_watch_on(l->watch)) s = rle_oom(0, "name");
    }
    if (s == RLE_OK) s = start(l);
    if (s != RLE_OK) {
        rle_lookup_end(l);
        return s;
    }
    *out = l;
    return RLE_OK;
}

bool rle_lookup_done(const rle_lookup *l)
{
    return atomic_load_explicit(&l->done, memory_order_acquire);
}

rle_status rle_lookup_found(const rle_lookup *l, rle_found *out)
{
    if (!rle_lookup_done(l))
        return rle_fail(RLE_UNAVAILABLE,
                        "the name \"%s\" does not resolve (no answer from the "
                        "name server)",
                        l->host);
    if (l->why != 0)
        return rle_fail(RLE_UNAVAILABLE, "the name \"%s\" does not resolve (%s)", l->host,
                        gai_strerror(l->why));
    out->count = 0;
    for (const struct addrinfo *at = l->found; at && out->count < RLE_FOUND_MAX;
         at = at->ai_next)
        take(at, l->host, &out->at[out->count++]);
    return RLE_OK;
}

void rle_lookup_end(rle_lookup *l)
{
    if (!l) return;
    rle_watch_free(l->watch);
    l->watch = NULL;
    unref(l);
}
