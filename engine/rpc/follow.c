/* follow.c - versions of what another worker publishes, as they come. How it goes between the two
 * is told in publish.c.
 *
 * An answer is read straight into a block kept for it (rle_follower_lend); the owner takes it from
 * there when it likes. There are up to three: `taken`, which the owner reads; `arrived`, the
 * newest whole version; and the one that is being received. Those that are done with are kept
 * in `idle`, so in the steady state nothing is allocated. */
#include <stdio.h>
#include <string.h>

#include "rpc/rpc_internal.h"

#define METHOD RLE_POLL_METHOD

enum { STAGE_SLACK = 64 }; /* a later version's number may take more bytes */

typedef struct stage {
    uint8_t *data;
    size_t capacity, size;
    uint32_t values;
    int tensors;
    uint64_t version, incarnation; /* of whom it is from */
} stage;

struct rle_follower {
    rle_rpc *rpc;
    rle_follower *next; /* in rpc->followers */
    rle_peer *peer;
    char name[RLE_NAME_MAX + 1];
    rle_conn *conn;         /* over which it asks, or NULL */
    rle_follower *also;     /* in conn->follows */
    uint64_t id;            /* of the question */
    stage incoming, arrived, taken, idle[2];
    bool lent;              /* incoming.data belongs to a message that is being received */
    uint64_t serial;        /* versions that have arrived */
    rle_msg error;          /* the answer was an error; nothing is asked until it is read */
    rle_follower *next_discarded;
};

static void take_off(rle_conn *conn, rle_follower *fo)
{
    rle_follower **at = &conn->follows;
    while (*at && *at != fo) at = &(*at)->also;
    if (*at) *at = fo->also;
    fo->conn = NULL;
}

static void ask(rle_follower *fo)
{
    rle_conn *conn = fo->peer->conn;
    if (fo->conn || fo->error.data || !conn || conn->state != RLE_CONN_OPEN) return;
    rle_call_head head = {.method_len = sizeof METHOD - 1, .args = 2};
    memcpy(head.method, METHOD, sizeof METHOD - 1);
    rle_encoder e;
    rle_encoder_init(&e);
    rle_encoder_reset(&e);
    rle_encode_call_head(&e, &head);
    rle_status s = rle_encode_string(&e, fo->name, strlen(fo->name));
    /* Another life of that worker counts anew. */
    rle_encode_integer(&e, fo->arrived.incarnation == conn->incarnation
                               ? (int64_t)fo->arrived.version : 0);
    if (s == RLE_OK) s = rle_encoder_status(&e);
    if (s == RLE_OK) {
        fo->id = ++conn->next_id;
        fo->conn = conn;
        fo->also = conn->follows;
        conn->follows = fo;
        rle_frame f = {.type = RLE_FRAME_CALL, .flags = RLE_FLAG_NESTED, .id = fo->id};
        s = rle_conn_send_encoded(conn, &f, &e, false);
    }
    rle_encoder_fini(&e);
    if (s != RLE_OK && conn->state != RLE_CONN_DEAD)
        rle_conn_close(conn, "out of memory", false);
}

rle_status rle_follower_new(rle_rpc *rpc, rle_peer *peer, const char *name, rle_follower **out)
{
    if (!rle_name_ok(name, strlen(name)))
        return rle_fail(RLE_INVALID_ARGUMENT,
                        "a name of weights is 1 to %d letters, digits, \"_\", \".\" or \"-\", not "
                        "\"%.80s\"",
                        RLE_NAME_MAX, name);
    if (peer->is_self)
        return rle_fail(RLE_FAILED_PRECONDITION, "\"%s\" is this worker itself: its weights are "
                        "in its net", peer->name);
    rle_follower *fo = rle_calloc(1, sizeof *fo);
    if (!fo) return rle_oom(sizeof *fo, "follower");
    fo->rpc = rpc;
    fo->peer = peer;
    snprintf(fo->name, sizeof fo->name, "%s", name);
    rle_rpc_enter(rpc);
    peer->uses++;
    fo->next = rpc->followers;
    rpc->followers = fo;
    if (!peer->conn && !peer->opening && peer->addresses && !rpc->stopping) rle_peer_open(peer);
    ask(fo);
    rle_rpc_leave(rpc);
    *out = fo;
    return RLE_OK;
}

void rle_followers_ask(rle_conn *conn)
{
    for (rle_follower *fo = conn->rpc->followers; fo; fo = fo->next)
        if (fo->peer == conn->peer) ask(fo);
}

static void free_follower(rle_follower *fo)
{
    /* A message that is being received into its block keeps it. */
    if (fo->lent)
        for (rle_in_message *m = fo->conn->partial; m; m = m->next)
            if (m->follower == fo) m->follower = NULL;
    if (!fo->lent) rle_free(fo->incoming.data);
    if (fo->conn) take_off(fo->conn, fo);
    rle_free(fo->arrived.data);
    rle_free(fo->taken.data);
    rle_free(fo->idle[0].data);
    rle_free(fo->idle[1].data);
    rle_message_drop_bytes(fo->rpc, &fo->error);
    fo->peer->uses--;
    rle_free(fo);
}

static void unfollow(rle_follower *fo)
{
    rle_rpc *rpc = fo->rpc;
    rle_conn *conn = fo->conn;
    uint64_t id = fo->id;
    rle_follower **at = &rpc->followers;
    while (*at != fo) at = &(*at)->next;
    *at = fo->next;
    free_follower(fo);
    if (conn && !rle_conn_unsend(conn, id))
        rle_conn_control(conn, RLE_FRAME_CANCEL, id, 0, 0);
}

void rle_follower_discard(rle_follower *fo)
{
    fo->next_discarded = fo->rpc->gone_followers;
    fo->rpc->gone_followers = fo;
}

void rle_followers_empty_trash(rle_rpc *rpc)
{
    while (rpc->gone_followers) {
        rle_follower *fo = rpc->gone_followers;
        rpc->gone_followers = fo->next_discarded;
        unfollow(fo);
    }
}

void rle_followers_conn_closed(rle_conn *conn)
{
    while (conn->follows) take_off(conn, conn->follows);
}

void rle_followers_free_all(rle_rpc *rpc)
{
    while (rpc->followers) {
        rle_follower *fo = rpc->followers;
        rpc->followers = fo->next;
        free_follower(fo);
    }
    rpc->gone_followers = NULL;
}

/* ---- answers ---- */

rle_follower *rle_follower_of(const rle_conn *conn, uint64_t id)
{
    rle_follower *fo = conn->follows;
    while (fo && fo->id != id) fo = fo->also;
    return fo;
}

uint8_t *rle_follower_lend(rle_follower *fo, size_t size)
{
    stage *s = &fo->incoming;
    if (!s->data) {
        *s = fo->idle[0];
        fo->idle[0] = fo->idle[1];
        fo->idle[1] = (stage){0};
    }
    if (!s->data || s->capacity < size) { /* also for an answer of no bytes */
        rle_free(s->data);
        *s = (stage){.data = rle_malloc(size + STAGE_SLACK)};
        if (!s->data) return NULL;
        s->capacity = size + STAGE_SLACK;
    }
    fo->lent = true;
    return s->data;
}

void rle_follower_undo(rle_follower *fo)
{
    fo->lent = false;
}

/* A block that is done with. */
static void put_back(rle_follower *fo, stage *s)
{
    fo->idle[fo->idle[0].data ? 1 : 0] = *s; /* there are three in all */
    s->data = NULL;
    s->capacity = s->size = 0;
}

/* The version of a message; its values begin with it. */
static rle_status version_of(const rle_msg *m, uint64_t *version)
{
    rle_decoder d;
    uint16_t count;
    rle_value v;
    rle_decoder_init(&d, m->data, m->size, m->values, m->tensors);
    RLE_TRY(rle_decode_result_head(&d, &count));
    if (count < 1) return rle_fail(RLE_INVALID_ARGUMENT, "malformed weights");
    RLE_TRY(rle_decode(&d, &v));
    if (v.kind != RLE_VALUE_INTEGER || v.u.integer < 1)
        return rle_fail(RLE_INVALID_ARGUMENT, "malformed weights");
    *version = (uint64_t)v.u.integer;
    return RLE_OK;
}

rle_status rle_follower_arrived(rle_follower *fo, const rle_frame *f)
{
    rle_conn *conn = fo->conn;
    stage *in = &fo->incoming;
    rle_msg m = {.data = in->data, .size = f->body, .values = f->values, .tensors = f->tensors};
    fo->lent = false;
    RLE_TRY(version_of(&m, &in->version));
    in->size = f->body;
    in->values = f->values;
    in->tensors = f->tensors;
    in->incarnation = conn->incarnation;
    if (fo->arrived.data) put_back(fo, &fo->arrived);
    fo->arrived = *in;
    *in = (stage){0};
    fo->serial++;
    take_off(conn, fo);
    ask(fo);
    return RLE_OK;
}

rle_status rle_follower_answered(rle_follower *fo, const rle_frame *f, rle_msg *m)
{
    /* A longer answer is on its way into the block. */
    if (fo->lent) return rle_fail(RLE_INVALID_ARGUMENT, "weights were answered twice");
    if (f->type == RLE_FRAME_RESULT) {
        uint8_t *to = rle_follower_lend(fo, m->size);
        if (!to) return rle_oom(m->size, "weights");
        memcpy(to, m->data, m->size);
        rle_message_drop_bytes(fo->rpc, m);
        return rle_follower_arrived(fo, f);
    }
    take_off(fo->conn, fo);
    uint8_t *copy = rle_malloc(m->size);
    if (!copy) return rle_oom(m->size, "weights");
    memcpy(copy, m->data, m->size);
    fo->error = *m;
    fo->error.data = copy;
    fo->error.block = copy;
    fo->error.placed = NULL;
    rle_message_drop_bytes(fo->rpc, m);
    return RLE_OK;
}

/* ---- for the owner ---- */

uint64_t rle_follower_look(rle_follower *fo, bool *failed, bool *connected)
{
    rle_rpc_enter(fo->rpc);
    uint64_t serial = fo->arrived.data || fo->taken.data ? fo->serial : 0;
    *failed = fo->error.data != NULL;
    *connected = fo->peer->conn != NULL;
    rle_rpc_leave(fo->rpc);
    return serial;
}

uint64_t rle_follower_take(rle_follower *fo, rle_msg *m)
{
    rle_rpc_enter(fo->rpc);
    stage *a = &fo->arrived;
    if (a->data) {
        if (fo->taken.data) put_back(fo, &fo->taken);
        fo->taken = *a;
        a->data = NULL; /* its version is remembered */
        a->size = a->capacity = 0;
    }
    const stage *t = &fo->taken;
    *m = (rle_msg){.data = t->data, .size = t->size, .values = t->values, .tensors = t->tensors};
    uint64_t version = t->data ? t->version : 0;
    rle_rpc_leave(fo->rpc);
    return version;
}

void rle_follower_done(rle_follower *fo)
{
    rle_rpc_enter(fo->rpc);
    if (fo->taken.data) put_back(fo, &fo->taken);
    rle_rpc_leave(fo->rpc);
}

bool rle_follower_error(rle_follower *fo, rle_msg *m)
{
    rle_rpc_enter(fo->rpc);
    *m = fo->error;
    fo->error = (rle_msg){0};
    if (m->data) ask(fo);
    rle_rpc_leave(fo->rpc);
    return m->data != NULL;
}
