/* remote_ref.c - who holds which of our objects. See "references" in rpc.h. */
#include <inttypes.h>
#include <string.h>

#include "base/log.h"
#include "rpc/rpc_internal.h"

enum { LIST_KEPT = 1024 }; /* entries of an empty list that stay allocated */

static rle_export *find(rle_rpc *rpc, uint64_t object)
{
    rle_map_slot *slot = rle_map_get(&rpc->exports, object);
    return slot ? slot->v.pointer : NULL;
}

/* What a worker holds of one object of ours, over its connection. */
typedef struct holding {
    uint64_t count;
    int64_t since;
    uint32_t site;
} holding;

/* Nobody holds it: the layer above lets the object go. */
static void drop(rle_rpc *rpc, rle_export *x)
{
    if (rpc->dropped_count == rpc->dropped_cap) {
        size_t cap = rpc->dropped_cap ? rpc->dropped_cap * 2 : 32;
        uint64_t *list = rle_realloc(rpc->dropped, cap * sizeof *list);
        if (!list) {
            rle_log(RLE_LOG_ERROR, "out of memory: an object stays alive");
            return;
        }
        rpc->dropped = list;
        rpc->dropped_cap = cap;
    }
    rpc->dropped[rpc->dropped_count++] = x->object;
    rle_map_delete(&rpc->exports, x->object);
    rle_free(x);
}

static void check(rle_rpc *rpc, rle_export *x)
{
    if (x->total == 0 && x->own == 0) drop(rpc, x);
}

uint64_t rle_export_new(rle_rpc *rpc)
{
    return rle_export_new_at(rpc, 0);
}

uint64_t rle_export_new_at(rle_rpc *rpc, uint32_t site)
{
    rle_export *x = rle_malloc(sizeof *x);
    if (!x) return 0;
    rle_rpc_enter(rpc);
    *x = (rle_export){
        .object = ++rpc->next_object, .own = 1, .since = rle_turn_time(rpc), .site = site};
    rle_map_slot *slot = rle_map_put(&rpc->exports, x->object);
    uint64_t object = slot ? x->object : 0;
    if (slot)
        slot->v.pointer = x;
    else
        rle_free(x);
    rle_rpc_leave(rpc);
    return object;
}

bool rle_export_hold_locked(rle_rpc *rpc, uint64_t object)
{
    rle_export *x = find(rpc, object);
    if (x) x->own++;
    return x != NULL;
}

void rle_export_unhold_locked(rle_rpc *rpc, uint64_t object)
{
    rle_export *x = find(rpc, object);
    if (!x || !x->own) return;
    x->own--;
    check(rpc, x);
}

bool rle_export_hold(rle_rpc *rpc, uint64_t object)
{
    rle_rpc_enter(rpc);
    bool there = rle_export_hold_locked(rpc, object);
    rle_rpc_leave(rpc);
    return there;
}

void rle_export_unhold(rle_rpc *rpc, uint64_t object)
{
    rle_rpc_enter(rpc);
    rle_export_unhold_locked(rpc, object);
    rle_rpc_leave(rpc);
}

uint64_t rle_rpc_next_dropped(rle_rpc *rpc)
{
    rle_rpc_enter(rpc);
    uint64_t object = rpc->dropped_count ? rpc->dropped[--rpc->dropped_count] : 0;
    if (!rpc->dropped_count && rpc->dropped_cap > LIST_KEPT) {
        rle_free(rpc->dropped);
        rpc->dropped = NULL;
        rpc->dropped_cap = 0;
    }
    rle_rpc_leave(rpc);
    return object;
}

/* ---- connections ---- */

rle_status rle_export_sent(rle_conn *conn, uint64_t object, uint32_t site)
{
    rle_export *x = find(conn->rpc, object);
    if (!x)
        return rle_fail(RLE_NOT_FOUND, "reference %" PRIu64 " was released", object);
    rle_map_slot *slot = rle_map_get(&conn->exported, object);
    holding *h = slot ? slot->v.pointer : rle_malloc(sizeof *h);
    if (!h) return rle_oom(sizeof *h, "references");
    if (!slot) {
        slot = rle_map_put(&conn->exported, object);
        if (!slot) {
            rle_free(h);
            return rle_oom(sizeof *slot, "references");
        }
        *h = (holding){.since = rle_turn_time(conn->rpc), .site = site ? site : x->site};
        slot->v.pointer = h;
    }
    h->count++;
    x->total++;
    return RLE_OK;
}

void rle_export_released(rle_conn *conn, uint64_t object, uint64_t count)
{
    rle_map_slot *slot = rle_map_get(&conn->exported, object);
    rle_export *x = find(conn->rpc, object);
    if (!slot || !x) return; /* released before: RELEASE may be repeated */
    holding *h = slot->v.pointer;
    if (count > h->count) count = h->count;
    h->count -= count;
    if (!h->count) {
        rle_map_delete(&conn->exported, object);
        rle_free(h);
    }
    x->total -= count;
    check(conn->rpc, x);
}

size_t rle_export_release_all(rle_conn *conn)
{
    size_t objects = conn->exported.used;
    RLE_MAP_EACH(&conn->exported, slot) {
        holding *h = slot->v.pointer;
        rle_export *x = find(conn->rpc, slot->key);
        if (x) {
            x->total -= h->count;
            check(conn->rpc, x);
        }
        rle_free(h);
    }
    rle_map_fini(&conn->exported);
    return objects;
}

/* Each reference among the values of a call or result, as far as they are well formed. */
static rle_status walk_values(const uint8_t *body, size_t size, size_t values, int tensors,
                              bool results, void (*visit)(void *, const rle_value *),
                              void *self)
{
    rle_decoder d;
    uint16_t count;
    rle_decoder_init(&d, body, size, values, tensors);
    if (results) {
        RLE_TRY(rle_decode_result_head(&d, &count));
    } else {
        rle_call_head head;
        RLE_TRY(rle_decode_call_head(&d, &head));
        count = head.args;
    }
    for (; count; count--) RLE_TRY(rle_decode_skip(&d, visit, self));
    return RLE_OK;
}

/* For values of ours, whose tensors nobody looks at. */
enum { TENSORS_ELSEWHERE = 1 << 30 };

typedef struct ref_walk {
    rle_conn *conn;
    uint32_t site;
    rle_status status;
    size_t sent, back; /* counted, and how many of those to take back */
} ref_walk;

static void count_ref(void *self, const rle_value *v)
{
    ref_walk *walk = self;
    if (v->kind != RLE_VALUE_REF || v->u.ref.kind != RLE_REF_SENDERS) return;
    if (walk->status == RLE_OK) walk->status =
            rle_export_sent(walk->conn, v->u.ref.object, walk->site);
    if (walk->status == RLE_OK) walk->sent++;
}

static void uncount_ref(void *self, const rle_value *v)
{
    ref_walk *walk = self;
    if (v->kind != RLE_VALUE_REF || v->u.ref.kind != RLE_REF_SENDERS || !walk->back) return;
    walk->back--;
    rle_export_released(walk->conn, v->u.ref.object, 1);
}

rle_status rle_export_count_values(rle_conn *conn, const uint8_t *values, size_t size,
                                   bool results, int tensors, uint32_t site)
{
    ref_walk walk = {.conn = conn, .site = site, .status = RLE_OK};
    rle_status s = walk_values(values, TENSORS_ELSEWHERE, size, tensors, results, count_ref,
                               &walk);
    if (s == RLE_OK) s = walk.status;
    if (s != RLE_OK && walk.sent) {
        walk.back = walk.sent;
        walk_values(values, TENSORS_ELSEWHERE, size, tensors, results, uncount_ref, &walk);
    }
    return s;
}

void rle_export_uncount_values(rle_conn *conn, const uint8_t *values, size_t size,
                               bool results, int tensors)
{
    ref_walk walk = {.conn = conn, .back = SIZE_MAX};
    walk_values(values, TENSORS_ELSEWHERE, size, tensors, results, uncount_ref, &walk);
}

static void hold_ref(void *self, const rle_value *v)
{
    if (v->kind == RLE_VALUE_REF && v->u.ref.kind == RLE_REF_SENDERS)
        rle_export_hold_locked(self, v->u.ref.object);
}

static void unhold_ref(void *self, const rle_value *v)
{
    if (v->kind == RLE_VALUE_REF && v->u.ref.kind == RLE_REF_SENDERS)
        rle_export_unhold_locked(self, v->u.ref.object);
}

void rle_export_hold_values(rle_rpc *rpc, const uint8_t *values, size_t size, int tensors,
                            bool hold)
{
    walk_values(values, TENSORS_ELSEWHERE, size, tensors, false, hold ? hold_ref : unhold_ref,
                rpc);
}

/* ---- messages nobody will read: their references go back ---- */

typedef struct drop_walk {
    rle_conn *conn;
    uint8_t entries[64 * 12];
    size_t len;
} drop_walk;

static void send_releases(drop_walk *walk)
{
    if (!walk->len || !walk->conn || walk->conn->state != RLE_CONN_OPEN) return;
    rle_frame f = {.type = RLE_FRAME_RELEASE, .values = (uint32_t)walk->len};
    struct iovec part = {walk->entries, walk->len};
    if (rle_conn_send(walk->conn, &f, &part, 1, false, true) != RLE_OK)
        rle_log(RLE_LOG_WARN, "references not given back to \"%s\": %s",
                rle_conn_name(walk->conn), rle_message());
    walk->len = 0;
}

static void release(drop_walk *walk, uint64_t object, uint32_t count)
{
    if (walk->len == sizeof walk->entries) send_releases(walk);
    rle_put64(walk->entries + walk->len, object);
    rle_put32(walk->entries + walk->len + 8, count);
    walk->len += 12;
}

static void drop_ref(void *self, const rle_value *v)
{
    drop_walk *walk = self;
    if (v->kind != RLE_VALUE_REF || v->u.ref.kind != RLE_REF_SENDERS) return;
    release(walk, v->u.ref.object, 1);
}

void rle_refs_empty_trash(rle_rpc *rpc)
{
    drop_walk walk = {0};
    while (rpc->trash_count) {
        rle_trash t = rpc->trash[--rpc->trash_count];
        if (t.kind == RLE_TRASH_EXPORT) {
            rle_export_unhold_locked(rpc, t.object);
            continue;
        }
        rle_conn *conn = t.peer->conn;
        if (!conn || conn->session != t.session) continue;
        if (conn != walk.conn) send_releases(&walk);
        walk.conn = conn;
        release(&walk, t.object, t.count);
    }
    send_releases(&walk);
    if (rpc->trash_cap <= LIST_KEPT) return;
    rle_free(rpc->trash);
    rpc->trash = NULL;
    rpc->trash_cap = 0;
}

void rle_message_drop(rle_rpc *rpc, rle_conn *conn, rle_msg *m, bool results)
{
    if (m->data && conn && conn->state == RLE_CONN_OPEN) {
        drop_walk walk = {.conn = conn};
        walk_values(m->data, m->size, m->values, m->tensors, results, drop_ref, &walk);
        send_releases(&walk);
    }
    rle_message_drop_bytes(rpc, m);
}

/* ---- looking ---- */

size_t rle_rpc_exports(rle_rpc *rpc, rle_export_info *out, size_t max)
{
    size_t n = 0;
    rle_rpc_enter(rpc);
    int64_t now = rle_now();
    RLE_MAP_EACH(&rpc->exports, slot) {
        const rle_export *x = slot->v.pointer;
        if (!x->own) continue;
        if (n++ >= max) continue;
        out[n - 1] = (rle_export_info){
            .object = x->object, .count = x->own, .age = now - x->since, .site = x->site};
    }
    for (const rle_conn *conn = rpc->conns; conn; conn = conn->next) {
        RLE_MAP_EACH(&conn->exported, slot) {
            if (n++ >= max) continue;
            const holding *h = slot->v.pointer;
            out[n - 1] = (rle_export_info){
                .object = slot->key, .count = h->count, .age = now - h->since, .site = h->site};
            memcpy(out[n - 1].holder, conn->peer->name, sizeof out->holder);
        }
    }
    rle_rpc_leave(rpc);
    return n;
}
