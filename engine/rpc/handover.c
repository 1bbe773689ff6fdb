/* handover.c - references that one worker passes on to another, seen by the owner of the
 * object.
 *
 * Who passes one on makes a ticket, tells the owner ("rlengine.grant") and only then the
 * third worker, which shows the ticket ("rlengine.claim") and is answered with a
 * reference of its own. The two come over different connections, so the claim may be
 * first. Then it waits, until the grant comes, or cannot come any more because whoever
 * gave the reference is gone, or CLAIM_PATIENCE is over. A ticket that nobody shows holds
 * its object for TICKET_LIFE.
 *
 * Both calls are answered here, with the lock, by whoever runs the loop: they take no
 * credit and no place among the calls being served, and do not wait for Lua. So a
 * reference arrives although its owner computes, or has as many calls as it takes.
 *
 * A ticket lies in rpc->granted, or in rpc->claimed when the claim was first; never in
 * both. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "rpc/rpc_internal.h"

#define TICKET_LIFE (60 * RLE_SECONDS)
/* The grant is on its way before the claim is: longer than that it only takes when the
 * connection it goes over hangs, and then that is closed. */
#define CLAIM_PATIENCE (30 * RLE_SECONDS)

struct rle_ticket {
    rle_ticket *same;       /* whose first bytes are the same */
    rle_ticket *next, **at; /* by time */
    int64_t expires;
    uint64_t object; /* held, when it was granted */
    uint8_t bytes[RLE_TICKET_SIZE];
};

typedef struct claim {
    rle_ticket t;
    rle_conn *conn; /* who waits */
    uint64_t id;    /* its call */
    char class_name[RLE_NAME_MAX + 1];
    char giver[RLE_NAME_MAX + 1];
    uint64_t giver_incarnation; /* 0: not known */
    bool giver_lost;
} claim;

/* ---- tables ---- */

static uint64_t key_of(const uint8_t *bytes)
{
    uint64_t key = rle_get64(bytes);
    return key ? key : 1;
}

static rle_ticket *find(const rle_tickets *all, const uint8_t *bytes)
{
    rle_map_slot *slot = rle_map_get(&all->by_bytes, key_of(bytes));
    rle_ticket *t = slot ? slot->v.pointer : NULL;
    while (t && !rle_auth_same(t->bytes, bytes, RLE_TICKET_SIZE)) t = t->same;
    return t;
}

static rle_status put(rle_tickets *all, rle_ticket *t)
{
    rle_map_slot *slot = rle_map_put(&all->by_bytes, key_of(t->bytes));
    if (!slot) return rle_oom(sizeof *slot, "ticket");
    t->same = slot->v.pointer;
    slot->v.pointer = t;
    t->next = NULL;
    t->at = all->end;
    *all->end = t;
    all->end = &t->next;
    return RLE_OK;
}

static void leave_order(rle_tickets *all, rle_ticket *t)
{
    *t->at = t->next;
    if (t->next)
        t->next->at = t->at;
    else
        all->end = t->at;
}

static void take_out(rle_tickets *all, rle_ticket *t)
{
    uint64_t key = key_of(t->bytes);
    rle_map_slot *slot = rle_map_get(&all->by_bytes, key);
    rle_ticket *before = slot->v.pointer;
    if (before == t) {
        slot->v.pointer = t->same;
        if (!t->same) rle_map_delete(&all->by_bytes, key);
    } else {
        while (before->same != t) before = before->same;
        before->same = t->same;
    }
    leave_order(all, t);
}

void rle_handover_init(rle_rpc *rpc)
{
    rpc->granted.end = &rpc->granted.first;
    rpc->claimed.end = &rpc->claimed.first;
}

static void free_all(rle_tickets *all)
{
    while (all->first) {
        rle_ticket *t = all->first;
        take_out(all, t);
        rle_free(t);
    }
    rle_map_fini(&all->by_bytes);
}

void rle_handover_free_all(rle_rpc *rpc)
{
    free_all(&rpc->granted);
    free_all(&rpc->claimed);
}

/* ---- answers ---- */

static void refuse(rle_conn *conn, uint64_t id, rle_status code, const char *method,
                   const char *text)
{
    rle_wire_error e =
        rle_error_of(code, RLE_OUTCOME_NOT_EXECUTED, text, conn->rpc->name, method);
    rle_frame f = {.type = RLE_FRAME_ERROR, .id = id};
    rle_conn_send_error(conn, &f, &e);
}

/* A result: a reference to that object, or nothing for 0. */
static void answer(rle_conn *conn, uint64_t id, uint64_t object)
{
    rle_frame f = {.type = RLE_FRAME_RESULT, .id = id};
    rle_encoder e;
    rle_encoder_init(&e);
    rle_encoder_reset(&e);
    rle_encode_result_head(&e, object ? 1 : 0);
    if (object)
        rle_encode_ref(&e, &(rle_wire_ref){.kind = RLE_REF_SENDERS, .object = object});
    rle_status s = rle_encoder_status(&e);
    if (s == RLE_OK) s = rle_conn_send_encoded(conn, &f, &e, false);
    rle_encoder_fini(&e);
    if (s != RLE_OK) rle_conn_close(conn, "out of memory", false);
}

/* The claim is answered with a reference, which is counted before it goes. */
static rle_status hand_over(rle_conn *conn, uint64_t id, uint64_t object)
{
    RLE_TRY(rle_export_sent(conn, object, 0));
    answer(conn, id, object);
    return RLE_OK;
}

/* ---- grants ---- */

static rle_status grant(rle_rpc *rpc, uint64_t object, const uint8_t *bytes)
{
    claim *c = (claim *)find(&rpc->claimed, bytes);
    if (c) {
        take_out(&rpc->claimed, &c->t);
        rle_status s = hand_over(c->conn, c->id, object);
        if (s != RLE_OK) refuse(c->conn, c->id, s, RLE_CLAIM_METHOD, rle_message());
        rle_free(c);
        return s;
    }
    rle_ticket *t = rle_malloc(sizeof *t);
    if (!t) return rle_oom(sizeof *t, "ticket");
    *t = (rle_ticket){.object = object, .expires = rle_now() + TICKET_LIFE};
    memcpy(t->bytes, bytes, RLE_TICKET_SIZE);
    rle_status s = put(&rpc->granted, t);
    if (s == RLE_OK && !rle_export_hold_locked(rpc, object)) {
        take_out(&rpc->granted, t);
        s = rle_fail(RLE_NOT_FOUND, "reference %" PRIu64 " was released", object);
    }
    if (s != RLE_OK) rle_free(t);
    return s;
}

rle_status rle_ticket_grant(rle_rpc *rpc, uint64_t object,
                            const uint8_t ticket[RLE_TICKET_SIZE])
{
    rle_rpc_enter(rpc);
    rle_status s = grant(rpc, object, ticket);
    rle_rpc_leave(rpc);
    return s;
}

uint64_t rle_ticket_claim(rle_rpc *rpc, const uint8_t ticket[RLE_TICKET_SIZE])
{
    uint64_t object = 0;
    rle_rpc_enter(rpc);
    rle_ticket *t = find(&rpc->granted, ticket);
    if (t) {
        object = t->object; /* the ticket's hold becomes the caller's */
        take_out(&rpc->granted, t);
        rle_free(t);
    }
    rle_rpc_leave(rpc);
    return object;
}

static bool read_ticket(rle_decoder *d, uint64_t *object, const uint8_t **bytes)
{
    rle_value number, ticket;
    if (rle_decode(d, &number) != RLE_OK || number.kind != RLE_VALUE_INTEGER ||
        number.u.integer < 1 || rle_decode(d, &ticket) != RLE_OK ||
        ticket.kind != RLE_VALUE_STRING || ticket.u.string.len != RLE_TICKET_SIZE)
        return false;
    *object = (uint64_t)number.u.integer;
    *bytes = (const uint8_t *)ticket.u.string.data;
    return true;
}

static rle_status grant_arrived(rle_conn *conn, uint64_t id, rle_decoder *d)
{
    uint64_t object;
    const uint8_t *bytes;
    if (!read_ticket(d, &object, &bytes))
        return rle_fail(RLE_INVALID_ARGUMENT, "malformed %s", RLE_GRANT_METHOD);
    rle_status s = RLE_NOT_FOUND;
    if (rle_map_get(&conn->exported, object))
        s = grant(conn->rpc, object, bytes);
    else
        rle_fail(s, "reference %" PRIu64 " of \"%s\" is not held by \"%s\"", object,
                 conn->rpc->name, conn->peer->name);
    if (conn->state != RLE_CONN_OPEN) return RLE_OK; /* it claimed it itself, in vain */
    if (s == RLE_OK)
        answer(conn, id, 0);
    else
        refuse(conn, id, s, RLE_GRANT_METHOD, rle_message());
    return RLE_OK;
}

/* ---- claims ---- */

static bool read_name(rle_decoder *d, char out[RLE_NAME_MAX + 1])
{
    rle_value v;
    if (rle_decode(d, &v) != RLE_OK || v.kind != RLE_VALUE_STRING ||
        v.u.string.len > RLE_NAME_MAX)
        return false;
    memcpy(out, v.u.string.data, v.u.string.len);
    out[v.u.string.len] = 0;
    return true;
}

static bool read_u64(rle_decoder *d, uint64_t *out)
{
    rle_value v;
    if (rle_decode(d, &v) != RLE_OK || v.kind != RLE_VALUE_U64) return false;
    *out = v.u.u64;
    return true;
}

static bool is_there(const rle_rpc *rpc, const claim *c)
{
    const rle_conn *conn = rpc->conns;
    while (conn &&
           !(conn->state == RLE_CONN_OPEN && strcmp(conn->peer->name, c->giver) == 0 &&
             (!c->giver_incarnation || conn->incarnation == c->giver_incarnation)))
        conn = conn->next;
    return conn != NULL;
}

static void refuse_claim(const claim *c)
{
    char text[512];
    const char *owner = c->conn->rpc->name;
    if (c->giver_lost)
        snprintf(text, sizeof text,
                 "reference %" PRIu64
                 " to a \"%s\" of \"%s\" did not arrive: \"%s\", which passed "
                 "it on, was lost before \"%s\" heard of it; ask somebody else for it",
                 c->t.object, c->class_name, owner, c->giver, owner);
    else
        snprintf(text, sizeof text,
                 "reference %" PRIu64
                 " to a \"%s\" of \"%s\" did not arrive: \"%s\" has not heard "
                 "of it from \"%s\" in %.0f s, or it was read more than %.0f s after it "
                 "was sent; "
                 "ask for it again",
                 c->t.object, c->class_name, owner, owner, c->giver,
                 (double)CLAIM_PATIENCE / RLE_SECONDS, (double)TICKET_LIFE / RLE_SECONDS);
    refuse(c->conn, c->id, c->giver_lost ? RLE_UNAVAILABLE : RLE_DEADLINE_EXCEEDED,
           RLE_CLAIM_METHOD, text);
}

static void wait_for_grant(const claim *given)
{
    rle_rpc *rpc = given->conn->rpc;
    claim *c = rle_malloc(sizeof *c);
    if (c) *c = *given;
    if (c && put(&rpc->claimed, &c->t) == RLE_OK) return;
    rle_free(c);
    refuse(given->conn, given->id, RLE_RESOURCE_EXHAUSTED, RLE_CLAIM_METHOD,
           "out of memory");
}

static rle_status claim_arrived(rle_conn *conn, uint64_t id, rle_decoder *d)
{
    rle_rpc *rpc = conn->rpc;
    claim c = {.conn = conn, .id = id};
    const uint8_t *bytes;
    uint64_t incarnation;
    if (!read_ticket(d, &c.t.object, &bytes) || !read_name(d, c.class_name) ||
        !read_u64(d, &incarnation) || !read_name(d, c.giver) ||
        !read_u64(d, &c.giver_incarnation))
        return rle_fail(RLE_INVALID_ARGUMENT, "malformed %s", RLE_CLAIM_METHOD);
    if (incarnation != rpc->incarnation) {
        char text[RLE_NAME_MAX + 64];
        snprintf(text, sizeof text, "owner \"%s\" of this reference is gone", rpc->name);
        refuse(conn, id, RLE_UNAVAILABLE, RLE_CLAIM_METHOD, text);
        return RLE_OK;
    }
    rle_ticket *t = find(&rpc->granted, bytes);
    if (t) {
        uint64_t object = t->object;
        rle_status s = rle_export_sent(conn, object, 0);
        if (s != RLE_OK) { /* it may be claimed again */
            refuse(conn, id, s, RLE_CLAIM_METHOD, rle_message());
            return RLE_OK;
        }
        take_out(&rpc->granted, t);
        rle_free(t);
        answer(conn, id, object);
        rle_export_unhold_locked(rpc, object);
        return RLE_OK;
    }
    memcpy(c.t.bytes, bytes, RLE_TICKET_SIZE);
    c.t.expires = rle_now() + CLAIM_PATIENCE;
    c.giver_lost = !is_there(rpc, &c);
    if (c.giver_lost)
        refuse_claim(&c);
    else
        wait_for_grant(&c);
    return RLE_OK;
}

bool rle_handover_is(const rle_call_head *head)
{
    enum { LENGTH = sizeof RLE_GRANT_METHOD - 1 };
    _Static_assert(sizeof RLE_CLAIM_METHOD == sizeof RLE_GRANT_METHOD,
                   "one length for both");
    return head->method_len == LENGTH && head->object == 0 && !head->construct &&
           (memcmp(head->method, RLE_GRANT_METHOD, LENGTH) == 0 ||
            memcmp(head->method, RLE_CLAIM_METHOD, LENGTH) == 0);
}

rle_status rle_handover_arrived(rle_conn *conn, const rle_frame *f,
                                const rle_call_head *head, rle_decoder *d)
{
    bool grants = memcmp(head->method, RLE_GRANT_METHOD, head->method_len) == 0;
    if (head->args != (grants ? 2 : 6) || !(f->flags & RLE_FLAG_NESTED))
        return rle_fail(RLE_INVALID_ARGUMENT, "malformed %.*s", head->method_len,
                        head->method);
    return grants ? grant_arrived(conn, f->id, d) : claim_arrived(conn, f->id, d);
}

/* ---- time, and ends ---- */

void rle_handover_expire(rle_rpc *rpc, int64_t now)
{
    rle_ticket *t;
    while ((t = rpc->granted.first) && t->expires <= now) {
        take_out(&rpc->granted, t);
        rle_export_unhold_locked(rpc, t->object);
        rle_free(t);
    }
    /* The answer may close its connection, which takes others out. */
    while ((t = rpc->claimed.first) && t->expires <= now) {
        take_out(&rpc->claimed, t);
        refuse_claim((claim *)t);
        rle_free(t);
    }
}

void rle_handover_conn_closed(rle_conn *conn)
{
    rle_tickets *all = &conn->rpc->claimed;
    for (rle_ticket *t = all->first, *next; t; t = next) {
        claim *c = (claim *)t;
        next = t->next;
        if (c->conn == conn) {
            take_out(all, t);
            rle_free(t);
        } else if (conn->peer && conn->peer->conn == conn && !c->giver_lost &&
                   strcmp(c->giver, conn->peer->name) == 0) {
            /* It hears so with the next tick, of which it is the first. */
            c->giver_lost = true;
            t->expires = 0;
            leave_order(all, t);
            t->next = all->first;
            t->at = &all->first;
            if (t->next)
                t->next->at = &t->next;
            else
                all->end = &t->next;
            all->first = t;
        }
    }
}
