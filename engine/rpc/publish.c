/* publish.c - versions of something large, such as a policy's weights, for many workers.
 *
 * Who has it publishes it under a name. A version is encoded once; its bytes are shared by
 * every connection they go over. Who wants it follows: asks for a version newer than its own
 * (a call of "rlengine.weights" that takes no credit and has no deadline), and is answered as
 * soon as there is one. It asks again when the answer has arrived. So a version crosses a
 * connection once at most and one at a time, versions that were overtaken meanwhile are never
 * sent, and who comes new, or again, gets the newest at once.
 *
 * All of this is done with the lock, by whoever runs the loop: a worker whose Lua computes gives
 * versions, and takes them, all the same. This file is the publisher's side; who follows is
 * follow.c. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "rpc/rpc_internal.h"

enum {
    POLLS_MAX = 64,         /* open on one connection */
    UNDER_WAY_MAX = 4,      /* answers of one publication on their way over it */
    SHARED_FROM = 16 << 10, /* shorter bodies are as quickly copied */
    SPARE_MAX = 64 << 20    /* longer bodies are not kept for the next version */
};

#define METHOD RLE_POLL_METHOD

struct rle_publication {
    rle_rpc *rpc;
    rle_publication *next; /* in rpc->publications */
    char name[RLE_NAME_MAX + 1], from[RLE_NAME_MAX + 1];
    uint64_t version, sent;
    rle_body *newest, *staged, *spare;
    uint32_t newest_values, staged_values;
    size_t bodies; /* that name this as their home */
    bool closed;   /* freed with the last of them */
};

/* Somebody waits for a version newer than `have`. */
struct rle_poll {
    rle_poll *next; /* in conn->polls */
    uint64_t id, have;
    char name[RLE_NAME_MAX + 1];
};

/* ---- publishing ---- */

static rle_publication *find(rle_rpc *rpc, const char *name)
{
    rle_publication *p = rpc->publications;
    while (p && strcmp(p->name, name) != 0) p = p->next;
    return p;
}

/* "obs_*": stars stand for anything. */
static bool matches(const char *pattern, const char *name)
{
    for (; *pattern != '*'; pattern++, name++) {
        if (*pattern != *name) return false;
        if (!*name) return true;
    }
    do {
        if (matches(pattern + 1, name)) return true;
    } while (*name++);
    return false;
}

rle_status rle_publication_new(rle_rpc *rpc, const char *name, const char *from, uint64_t version,
                               rle_publication **out)
{
    if (!rle_name_ok(name, strlen(name)) || strlen(from) > RLE_NAME_MAX)
        return rle_fail(RLE_INVALID_ARGUMENT,
                        "a name of weights is 1 to %d letters, digits, \"_\", \".\" or \"-\", not "
                        "\"%.80s\"",
                        RLE_NAME_MAX, name);
    rle_rpc_enter(rpc);
    bool taken = find(rpc, name) != NULL;
    rle_publication *p = taken ? NULL : rle_calloc(1, sizeof *p);
    if (p) {
        p->rpc = rpc;
        p->version = version;
        snprintf(p->name, sizeof p->name, "%s", name);
        snprintf(p->from, sizeof p->from, "%s", from);
        p->next = rpc->publications;
        rpc->publications = p;
    }
    rle_rpc_leave(rpc);
    if (taken)
        return rle_fail(RLE_ALREADY_EXISTS, "weights \"%s\" are published here already", name);
    if (!p) return rle_oom(sizeof *p, "publication");
    *out = p;
    return RLE_OK;
}

static void free_body(rle_body *body)
{
    rle_publication *p = body->home;
    rle_free(body->sums);
    if (body->lent) --*body->lent;
    rle_free(body->block);
    rle_free(body);
    if (p && --p->bodies == 0 && p->closed) rle_free(p);
}

void rle_body_release(rle_body *body)
{
    if (!body || --body->refs) return;
    rle_publication *p = body->home;
    if (p && !p->closed && !p->spare && body->size <= SPARE_MAX)
        p->spare = body; /* without references, until the next version */
    else
        free_body(body);
}

static void close_publication(rle_publication *p)
{
    p->closed = true;
    p->bodies++; /* so that it outlives the next lines */
    rle_body_release(p->newest);
    rle_body_release(p->staged);
    if (p->spare) free_body(p->spare);
    if (--p->bodies == 0) rle_free(p);
}

void rle_publication_close(rle_publication *p)
{
    rle_rpc *rpc = p->rpc;
    rle_rpc_enter(rpc);
    rle_publication **at = &rpc->publications;
    while (*at != p) at = &(*at)->next;
    *at = p->next;
    close_publication(p);
    rle_rpc_leave(rpc);
}

/* A body of that size that nobody reads: the spare one, or the newest when it is not
 * under way and may go; else a new one. */
static rle_status body_to_fill(rle_publication *p, size_t size, bool newest_may_go,
                               rle_body **out)
{
    if (p->spare && p->spare->size != size) {
        free_body(p->spare);
        p->spare = NULL;
    }
    bool idle = p->newest && p->newest->refs == 1 && p->newest->size == size;
    rle_body **old = p->spare ? &p->spare : idle && newest_may_go ? &p->newest : NULL;
    if (old) {
        *out = *old;
        (*out)->refs = 1;
        rle_free((*out)->sums); /* of what was in it */
        (*out)->sums = NULL;
        *old = NULL;
        return RLE_OK;
    }
    RLE_TRY(rle_body_new(size, out));
    (*out)->home = p;
    p->bodies++;
    return RLE_OK;
}

rle_status rle_publication_stage(rle_publication *p, const rle_encoder *e, bool certain,
                                 uint8_t **tensor)
{
    size_t size = rle_encoder_body_size(e), values = rle_encoder_values_size(e);
    rle_rpc_enter(p->rpc);
    rle_body_release(p->staged);
    p->staged = NULL;
    rle_status s = body_to_fill(p, size, certain, &p->staged);
    rle_rpc_leave(p->rpc);
    if (s != RLE_OK) return s;
    memcpy(p->staged->data, e->w.data + RLE_FRAME_HEADER, values);
    memset(p->staged->data + values, 0, rle_align64(values) - values);
    p->staged_values = (uint32_t)values;
    *tensor = p->staged->data + rle_align64(values);
    return RLE_OK;
}

static void refuse(rle_conn *conn, uint64_t id, rle_status code, const char *text)
{
    rle_wire_error e =
        rle_error_of(code, RLE_OUTCOME_NOT_EXECUTED, text, conn->rpc->name, METHOD);
    rle_frame f = {.type = RLE_FRAME_ERROR, .id = id};
    rle_conn_send_error(conn, &f, &e);
}

/* Who asks again has read its last answer: else it keeps alive what it does not read. */
static bool too_many_under_way(const rle_conn *conn, const rle_publication *p)
{
    int n = conn->chunk && conn->chunk->body->home == p;
    for (const rle_out_message *m = conn->long_first; m; m = m->next)
        n += m->body->home == p;
    return n >= UNDER_WAY_MAX;
}

/* Answer with the newest version. */
static void answer(rle_conn *conn, uint64_t id, rle_publication *p)
{
    const char *peer = conn->peer->name;
    char text[3 * RLE_NAME_MAX + 128];
    if (p->from[0] && !matches(p->from, peer)) {
        snprintf(text, sizeof text, "\"%s\" may not follow \"%s\" of \"%s\"", peer, p->name,
                 conn->rpc->name);
        refuse(conn, id, RLE_PERMISSION_DENIED, text);
        return;
    }
    rle_body *body = p->newest;
    if (body->size > conn->max_message) {
        snprintf(text, sizeof text,
                 "weights \"%s\" of %zu bytes are over the limit of %" PRIu64
                 " bytes of worker \"%s\" (max_message)",
                 p->name, body->size, conn->max_message, peer);
        refuse(conn, id, RLE_RESOURCE_EXHAUSTED, text);
        return;
    }
    if (too_many_under_way(conn, p)) {
        snprintf(text, sizeof text, "\"%s\" has not read the \"%s\" that it was sent",
                 peer, p->name);
        refuse(conn, id, RLE_RESOURCE_EXHAUSTED, text);
        return;
    }
    rle_frame f = {.type = RLE_FRAME_RESULT, .id = id, .values = p->newest_values, .tensors = 1};
    rle_status s;
    if (body->size >= SHARED_FROM) {
        s = rle_conn_send_body(conn, &f, body);
    } else {
        struct iovec part = {body->data, body->size};
        s = rle_conn_send(conn, &f, &part, 1, false, false);
    }
    if (s != RLE_OK)
        rle_conn_close(conn, "out of memory", false);
    else
        p->sent++;
}

uint64_t rle_publication_commit(rle_publication *p)
{
    rle_rpc *rpc = p->rpc;
    rle_rpc_enter(rpc);
    rle_body_release(p->newest);
    p->newest = p->staged;
    p->newest_values = p->staged_values;
    p->staged = NULL;
    uint64_t version = ++p->version;
    for (rle_conn *conn = rpc->conns; conn;) {
        for (rle_poll **at = &conn->polls; *at;) {
            rle_poll *poll = *at;
            if (strcmp(poll->name, p->name) != 0) {
                at = &poll->next;
                continue;
            }
            *at = poll->next;
            uint64_t id = poll->id;
            rle_free(poll);
            answer(conn, id, p);
            if (conn->state == RLE_CONN_DEAD) break;
        }
        /* Its end may have been that of others: from the start, with who still waits. */
        conn = conn->state == RLE_CONN_DEAD ? rpc->conns : conn->next;
    }
    /* Who publishes may be away for long after it. */
    rle_conn_write_long(rpc, RLE_OUT_BURST);
    rle_rpc_leave(rpc);
    return version;
}

void rle_publication_look(rle_publication *p, rle_publication_info *out)
{
    rle_rpc_enter(p->rpc);
    *out = (rle_publication_info){.version = p->version,
                                  .sent = p->sent,
                                  .bytes = p->newest ? p->newest->size : 0,
                                  .bodies = p->bodies};
    for (const rle_conn *conn = p->rpc->conns; conn; conn = conn->next)
        for (const rle_poll *poll = conn->polls; poll; poll = poll->next)
            out->waiting += strcmp(poll->name, p->name) == 0;
    rle_rpc_leave(p->rpc);
}

/* ---- those who ask ---- */

bool rle_poll_is(const rle_call_head *head)
{
    return head->method_len == sizeof METHOD - 1 && head->object == 0 && !head->construct &&
           memcmp(head->method, METHOD, sizeof METHOD - 1) == 0;
}

rle_status rle_poll_arrived(rle_conn *conn, const rle_frame *f, const rle_call_head *head,
                            rle_decoder *d)
{
    rle_value name, have;
    if (head->args != 2 || !(f->flags & RLE_FLAG_NESTED) || rle_decode(d, &name) != RLE_OK ||
        name.kind != RLE_VALUE_STRING || !rle_name_ok(name.u.string.data, name.u.string.len) ||
        rle_decode(d, &have) != RLE_OK || have.kind != RLE_VALUE_INTEGER || have.u.integer < 0)
        return rle_fail(RLE_INVALID_ARGUMENT, "malformed %s", METHOD);
    rle_poll poll = {.id = f->id, .have = (uint64_t)have.u.integer};
    memcpy(poll.name, name.u.string.data, name.u.string.len);
    rle_publication *p = find(conn->rpc, poll.name);
    if (p && p->newest && p->version != poll.have) {
        answer(conn, poll.id, p);
        return RLE_OK;
    }
    int open = 0;
    for (const rle_poll *other = conn->polls; other; other = other->next) open++;
    rle_poll *kept = open < POLLS_MAX ? rle_malloc(sizeof *kept) : NULL;
    if (!kept) {
        refuse(conn, poll.id, RLE_RESOURCE_EXHAUSTED,
               open < POLLS_MAX ? "out of memory" : "too many weights are followed");
        return RLE_OK;
    }
    *kept = poll;
    kept->next = conn->polls;
    conn->polls = kept;
    return RLE_OK;
}

bool rle_poll_cancel(rle_conn *conn, uint64_t id)
{
    for (rle_poll **at = &conn->polls; *at; at = &(*at)->next) {
        rle_poll *poll = *at;
        if (poll->id != id) continue;
        *at = poll->next;
        rle_free(poll);
        return true;
    }
    return false;
}

void rle_polls_conn_closed(rle_conn *conn)
{
    while (conn->polls) {
        rle_poll *poll = conn->polls;
        conn->polls = poll->next;
        rle_free(poll);
    }
}

void rle_publications_free_all(rle_rpc *rpc)
{
    while (rpc->publications) {
        rle_publication *p = rpc->publications;
        rpc->publications = p->next;
        close_publication(p);
    }
}
