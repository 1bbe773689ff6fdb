/* early.c - what comes for a group before this rank has made it.
 *
 * Ranks do not wait for each other to make a group: who has made it may call at once. The
 * calls wait here, and what a rank tells of the group (that it has made it, has closed
 * it) is noted, in the order in which it came. A rank may close the group and make it
 * again before this one has made it: whatever it calls then is of a later life of the
 * group, and stays until this rank has closed it, too. */
#include <stdio.h>
#include <string.h>

#include "comm/comm_internal.h"

enum {
    CALLS_MAX = 3 * RLE_COMM_AHEAD_MAX, /* of one worker */
    NOTES_MAX = 1024                    /* ... beyond which its oldest one goes */
};

struct rle_comm_early {
    struct rle_comm_early *next;
    rle_incoming *in; /* NULL: a note */
    rle_peer *peer;
    int64_t deadline;
    rle_comm_message note; /* its texts are in `text` */
    char text[];
};

static void drop(rle_comm_early **at)
{
    rle_comm_early *h = *at;
    *at = h->next;
    rle_free(h);
}

/* The worker's oldest note; NULL: it has less than NOTES_MAX. */
static rle_comm_early **oldest_of_many(rle_comm *comm, const rle_peer *peer)
{
    size_t notes = 0;
    rle_comm_early **first = NULL;
    for (rle_comm_early **at = &comm->early; *at; at = &(*at)->next) {
        if ((*at)->in || (*at)->peer != peer) continue;
        if (!notes++) first = at;
    }
    return notes < NOTES_MAX ? NULL : first;
}

static rle_comm_early *note(const rle_comm_message *m)
{
    rle_comm_early *h = rle_calloc(1, sizeof *h + m->group.n + m->spec.n);
    if (!h) return NULL; /* it waits for its time, then */
    h->note = *m;
    h->note.group.p = memcpy(h->text, m->group.p, m->group.n);
    h->note.spec.p = memcpy(h->text + m->group.n, m->spec.p, m->spec.n);
    h->note.title = (rle_slice){"", 0};
    return h;
}

void rle_comm_early_keep(rle_comm *comm, rle_incoming *in, const rle_comm_message *m,
                         int64_t deadline)
{
    rle_peer *peer = rle_service_caller(in);
    bool is_note = m->part < RLE_COMM_FAILED;
    rle_comm_early **oldest = is_note ? oldest_of_many(comm, peer) : NULL;
    if (oldest) drop(oldest);
    size_t calls = 0;
    rle_comm_early **at = &comm->early;
    for (; *at; at = &(*at)->next) calls += (*at)->in && (*at)->peer == peer;
    rle_comm_early *h = is_note             ? note(m)
                        : calls < CALLS_MAX ? rle_calloc(1, sizeof *h)
                                            : NULL;
    if (h) {
        h->in = is_note ? NULL : in;
        h->peer = peer;
        h->deadline = deadline;
        *at = h;
    }
    if (is_note)
        rle_service_reply(in, rle_comm_answer(comm, NULL, NULL, 0));
    else if (!h)
        rle_comm_refuse(in, RLE_RESOURCE_EXHAUSTED, "%.*s: \"%s\" has not made the group",
                        (int)m->title.n, m->title.p, rle_rpc_name(comm->rpc));
}

/* It is for this group, and for the life of it in which we are with the worker. */
static bool is_for(const rle_comm_group *g, const rle_comm_early *h, rle_comm_message *m)
{
    if (!h->in)
        *m = h->note;
    else if (rle_comm_read(h->in, m) != RLE_OK)
        return false;
    if (strlen(g->id) != m->group.n || memcmp(g->id, m->group.p, m->group.n) != 0)
        return false;
    int r = rle_comm_rank_of(g, h->peer);
    return r >= 0 && !rle_comm_is_early(g, r, m);
}

void rle_comm_early_take(rle_comm_group *g)
{
    rle_comm *comm = g->comm;
    for (rle_comm_early **at = &comm->early; *at;) {
        rle_comm_early *h = *at;
        rle_comm_message m;
        if (!is_for(g, h, &m)) {
            at = &h->next;
            continue;
        }
        *at = h->next;
        if (h->in)
            rle_comm_group_call(g, h->in, &m, h->deadline);
        else
            rle_comm_group_note(g, rle_comm_rank_of(g, h->peer), &m);
        rle_free(h);
        at = &comm->early; /* answers may end a connection, and with it others */
    }
}

bool rle_comm_early_forget(rle_comm *comm, const rle_incoming *in)
{
    for (rle_comm_early **at = &comm->early; *at; at = &(*at)->next)
        if ((*at)->in == in) {
            drop(at);
            return true;
        }
    return false;
}

void rle_comm_early_void(rle_comm *comm, const rle_peer *peer, const rle_comm_message *m)
{
    for (rle_comm_early **at = &comm->early; *at;) {
        const rle_comm_early *h = *at;
        const rle_slice *id = &h->note.group;
        if (!h->in && h->peer == peer && h->note.life == m->life && id->n == m->group.n &&
            memcmp(id->p, m->group.p, id->n) == 0)
            drop(at);
        else
            at = &(*at)->next;
    }
}

const rle_comm_message *rle_comm_early_made(const rle_comm *comm, const rle_peer *peer)
{
    const rle_comm_message *made = NULL;
    for (const rle_comm_early *h = comm->early; h; h = h->next) {
        const rle_comm_message *m = &h->note;
        if (h->in || h->peer != peer || !m->group.n || m->group.p[0] != '#') continue;
        if (m->part == RLE_COMM_MADE) made = m;
        if (m->part == RLE_COMM_CLOSED && made && made->life == m->life) made = NULL;
    }
    return made;
}

void rle_comm_early_gone(rle_comm *comm, const rle_peer *peer)
{
    for (rle_comm_early **at = &comm->early; *at;)
        if (!(*at)->in && (*at)->peer == peer)
            drop(at);
        else
            at = &(*at)->next;
}

void rle_comm_early_close(rle_comm *comm)
{
    while (comm->early) drop(&comm->early);
}
