/* peer.c - the workers an rle_rpc knows, by name, and who of them came and went.
 *
 * A worker that is gone is remembered: whoever calls it hears that it was here and how it
 * went. But a worker that runs for days may be met by ever new names. So of those that
 * nothing needs any more (no call, reference, search, follower) the last
 * RLE_PEERS_REMEMBERED are remembered, and the one that was lost before them is
 * forgotten. Who comes back after that is new here, but the numbers of its calls go on
 * above all that were forgotten: random streams hang on them. */
#include <stdio.h>
#include <string.h>

#include "base/words.h"
#include "rpc/batch_internal.h"

/* ---- idle ones ---- */

static void leave_idle(rle_peer *peer)
{
    rle_rpc *rpc = peer->rpc;
    if (!peer->idle_at) return;
    *peer->idle_at = peer->idle_next;
    if (peer->idle_next)
        peer->idle_next->idle_at = peer->idle_at;
    else
        rpc->idle_end = peer->idle_at;
    peer->idle_at = NULL;
    rpc->idle_count--;
}

static void join_idle(rle_peer *peer)
{
    rle_rpc *rpc = peer->rpc;
    peer->idle_next = NULL;
    peer->idle_at = rpc->idle_end;
    *rpc->idle_end = peer;
    rpc->idle_end = &peer->idle_next;
    rpc->idle_count++;
}

static bool needed(const rle_peer *peer)
{
    return peer->conn || peer->opening || peer->link || peer->contenders || peer->held ||
           peer->uses || peer->pins || peer->changed;
}

static void forget(rle_peer *peer)
{
    rle_rpc *rpc = peer->rpc;
    uint64_t key = rle_hash_name(peer->name);
    rle_map_slot *slot = rle_map_get(&rpc->peers, key);
    rle_peer *first = slot->v.pointer;
    if (first == peer) {
        slot->v.pointer = peer->next_same;
        if (!peer->next_same) rle_map_delete(&rpc->peers, key);
    } else {
        while (first->next_same != peer) first = first->next_same;
        first->next_same = peer->next_same;
    }
    rpc->peer_count--;
    if (peer->calls_from > rpc->calls_forgotten) rpc->calls_forgotten = peer->calls_from;
    rle_batches_forget(peer);
    leave_idle(peer);
    rle_peer_free(peer);
}

void rle_peers_forget(rle_rpc *rpc)
{
    enum { LOOKS = 64 }; /* in one turn */
    for (int i = 0; i < LOOKS && rpc->idle_count > RLE_PEERS_REMEMBERED; i++) {
        rle_peer *peer = rpc->idle;
        if (needed(peer)) {
            leave_idle(peer);
            join_idle(peer);
        } else {
            forget(peer);
        }
    }
}

void rle_peer_pin(rle_peer *peer)
{
    peer->pins++;
}

void rle_peer_unpin(rle_peer *peer)
{
    peer->pins--;
}

/* ---- by name ---- */

rle_peer *rle_peer_get(rle_rpc *rpc, const char *name)
{
    uint64_t key = rle_hash_name(name);
    rle_map_slot *slot = rle_map_get(&rpc->peers, key);
    for (rle_peer *p = slot ? slot->v.pointer : NULL; p; p = p->next_same)
        if (strcmp(p->name, name) == 0) return p;
    rle_peer *peer = rle_calloc(1, sizeof *peer);
    if (!peer) return NULL;
    slot = rle_map_put(&rpc->peers, key);
    if (!slot) {
        rle_free(peer);
        return NULL;
    }
    peer->rpc = rpc;
    snprintf(peer->name, sizeof peer->name, "%s", name);
    peer->held_end = &peer->held;
    peer->is_self = strcmp(name, rpc->name) == 0;
    peer->next_same = slot->v.pointer;
    slot->v.pointer = peer;
    rpc->peer_count++;
    peer->calls_from = rpc->calls_forgotten;
    if (!peer->is_self) join_idle(peer);
    return peer;
}

void rle_peer_listens(rle_peer *peer, const char (*addresses)[RLE_ADDRESS_MAX], int count)
{
    size_t size = (size_t)count * sizeof *addresses;
    char(*list)[RLE_ADDRESS_MAX] = count ? rle_malloc(size) : NULL;
    if (list) memcpy(list, addresses, size);
    rle_free(peer->address);
    peer->address = list;
    peer->addresses = list ? count : 0;
}

void rle_peer_free(rle_peer *peer)
{
    rle_free(peer->address);
    rle_free(peer);
}

rle_peer *rle_rpc_peer(rle_rpc *rpc, const char *name)
{
    rle_rpc_enter(rpc);
    rle_peer *peer = rle_peer_get(rpc, name);
    rle_rpc_leave(rpc);
    return peer;
}

const char *rle_peer_name(const rle_peer *peer)
{
    return peer->name;
}

bool rle_peer_is_self(const rle_peer *peer)
{
    return peer->is_self;
}

bool rle_peer_connected(rle_rpc *rpc, rle_peer *peer)
{
    rle_rpc_enter(rpc);
    bool yes = peer->conn && !peer->conn->going_away;
    rle_rpc_leave(rpc);
    return yes;
}

bool rle_peer_present(rle_rpc *rpc, rle_peer *peer)
{
    rle_rpc_enter(rpc);
    bool yes = peer->conn != NULL;
    rle_rpc_leave(rpc);
    return yes;
}

bool rle_peer_left(rle_rpc *rpc, rle_peer *peer)
{
    rle_rpc_enter(rpc);
    bool yes = peer->left || (peer->conn && peer->conn->going_away);
    rle_rpc_leave(rpc);
    return yes;
}

uint64_t rle_peer_incarnation(rle_rpc *rpc, rle_peer *peer)
{
    rle_rpc_enter(rpc);
    uint64_t incarnation = peer->conn ? peer->conn->incarnation : 0;
    rle_rpc_leave(rpc);
    return incarnation;
}

uint64_t rle_peer_session(rle_rpc *rpc, rle_peer *peer)
{
    rle_rpc_enter(rpc);
    uint64_t session = peer->conn ? peer->conn->session : 0;
    rle_rpc_leave(rpc);
    return session;
}

int rle_peer_addresses(rle_rpc *rpc, rle_peer *peer, char out[RLE_REF_ADDRESSES][RLE_ADDRESS_MAX])
{
    rle_rpc_enter(rpc);
    int n = peer->addresses;
    if (n) memcpy(out, peer->address, (size_t)n * sizeof *peer->address);
    rle_rpc_leave(rpc);
    return n;
}

int rle_rpc_own_addresses(rle_rpc *rpc, char out[RLE_REF_ADDRESSES][RLE_ADDRESS_MAX])
{
    int n = 0;
    for (; n < rpc->listener_count && n < RLE_REF_ADDRESSES; n++)
        memcpy(out[n], rpc->listeners[n].address.text, RLE_ADDRESS_MAX);
    return n;
}

void rle_peer_hint(rle_rpc *rpc, rle_peer *peer, const char *const *addresses, int count)
{
    rle_rpc_enter(rpc);
    if (!peer->conn && !peer->addresses) {
        char list[RLE_REF_ADDRESSES][RLE_ADDRESS_MAX];
        int n = count < RLE_REF_ADDRESSES ? count : RLE_REF_ADDRESSES;
        for (int i = 0; i < n; i++) snprintf(list[i], sizeof list[i], "%s", addresses[i]);
        rle_peer_listens(peer, (const char(*)[RLE_ADDRESS_MAX])list, n);
    }
    rle_rpc_leave(rpc);
}

size_t rle_rpc_peers(rle_rpc *rpc, rle_peer_info *out, size_t max)
{
    size_t n = 0;
    rle_rpc_enter(rpc);
    int64_t now = rle_now();
    RLE_MAP_EACH(&rpc->peers, slot) {
        for (const rle_peer *p = slot->v.pointer; p; p = p->next_same) {
            if (p->is_self || !p->known) continue;
            if (n++ >= max) continue;
            rle_peer_info *info = &out[n - 1];
            memset(info, 0, sizeof *info);
            memcpy(info->name, p->name, sizeof info->name);
            info->pid = p->pid;
            const rle_conn *conn = p->conn;
            info->connected = conn && !conn->going_away;
            info->sought = rle_link_seeks(p);
            info->left = p->left || (conn && conn->going_away);
            if (!conn) continue;
            info->incarnation = conn->incarnation;
            snprintf(info->address, sizeof info->address, "%s", conn->address.text);
            memcpy(info->note, p->note, sizeof info->note);
            info->silent = conn->active ? 0 : now - conn->heard;
            info->calls_to = conn->calls.used;
            info->calls_from = conn->incoming_count;
            info->references = conn->exported.used;
            info->bytes_in = conn->bytes_in;
            info->bytes_out = conn->bytes_out;
        }
    }
    rle_rpc_leave(rpc);
    return n;
}

/* ---- who is here, for people ---- */

enum { NAMES_SHOWN = 8 };

/* Put a name into the sorted list of the first NAMES_SHOWN ones. */
static int put_name(const char **names, int n, const char *name)
{
    int at = n;
    while (at && strcmp(names[at - 1], name) > 0) at--;
    if (at == NAMES_SHOWN) return n;
    if (n == NAMES_SHOWN) n--;
    memmove(names + at + 1, names + at, (size_t)(n - at) * sizeof *names);
    names[at] = name;
    return n + 1;
}

void rle_peers_here(const rle_rpc *rpc, const char *wanted, char *out, size_t size)
{
    const char *names[NAMES_SHOWN], *near = NULL;
    /* Names are short and alike: what is further away is another one. */
    int shown = 0, distance = 2 + (int)strlen(wanted) / 4;
    size_t all = 0, used = 0;
    RLE_MAP_EACH(&rpc->peers, slot)
    {
        for (const rle_peer *p = slot->v.pointer; p; p = p->next_same) {
            if (!p->conn || p->conn->going_away) continue;
            all++;
            shown = put_name(names, shown, p->name);
            int d = rle_word_distance(wanted, p->name);
            if (d > distance) continue;
            near = d < distance ? p->name : NULL; /* of two that are as near, neither */
            distance = d;
        }
    }
    out[0] = 0;
    if (!all) {
        snprintf(out, size, "; no other worker is here");
        return;
    }
    for (int i = 0; i < shown && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s\"%s\"",
                                 i ? ", " : "; here are ", names[i]);
    if (all > (size_t)shown && used < size)
        used += (size_t)snprintf(out + used, size - used, " and %zu more",
                                 all - (size_t)shown);
    if (near && used < size)
        snprintf(out + used, size - used, "; did you mean \"%s\"?", near);
}

void rle_rpc_who_is_here(rle_rpc *rpc, const char *wanted, char *out, size_t size)
{
    rle_rpc_enter(rpc);
    rle_peers_here(rpc, wanted, out, size);
    rle_rpc_leave(rpc);
}

/* ---- who came and went ---- */

uint64_t rle_rpc_membership(rle_rpc *rpc)
{
    return atomic_load_explicit(&rpc->membership, memory_order_relaxed);
}

void rle_peer_changed(rle_peer *peer)
{
    rle_rpc *rpc = peer->rpc;
    rpc->membership++;
    leave_idle(peer);
    if (!peer->conn) join_idle(peer);
    if (peer->changed || !rpc->o.members) return;
    peer->changed = true;
    peer->changed_next = NULL;
    *rpc->changed_end = peer;
    rpc->changed_end = &peer->changed_next;
}

bool rle_rpc_next_member(rle_rpc *rpc, rle_member_change *out)
{
    bool found = false;
    rle_rpc_enter(rpc);
    while (rpc->changed && !found) {
        rle_peer *peer = rpc->changed;
        const rle_conn *conn = peer->conn;
        rpc->changed = peer->changed_next;
        if (!rpc->changed) rpc->changed_end = &rpc->changed;
        peer->changed = false;
        bool leaving = conn && conn->going_away;
        uint64_t session = conn && !leaving ? conn->session : 0;
        if (session == peer->told_session) continue; /* came and went meanwhile */
        found = true;
        *out = (rle_member_change){.peer = peer,
                                   .left = peer->told_session ? peer->told_incarnation : 0,
                                   .joined = session ? conn->incarnation : 0,
                                   .goodbye = leaving || (!conn && peer->left)};
        peer->told_session = session;
        peer->told_incarnation = out->joined;
    }
    rle_rpc_leave(rpc);
    return found;
}
