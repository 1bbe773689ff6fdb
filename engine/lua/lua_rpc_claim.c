/* lua_rpc_claim.c - references that a third worker passed on: claimed from their owner
 * with the ticket that came along (rpc/handover.c).
 *
 * Until the owner has answered, a target's `pending` is the claim. Calls are held for it,
 * each with its own deadline; the claim has none, its end is the owner's answer or the
 * connection's end. One that failed is made anew by the next use when that may help, with
 * the same ticket. */
#include "lua/lua_rpc.h"

#include <stdio.h>

#include "base/mem.h"

#define NO_DEADLINE (INT64_C(1000000000) * RLE_SECONDS)

struct rle_lua_claim {
    uint64_t object, incarnation; /* of the owner */
    uint64_t sent_to;             /* life of the owner it went to last; 0: not known */
    uint64_t giver_incarnation;   /* 0: not known */
    char giver[RLE_NAME_MAX + 1];
    uint8_t ticket[RLE_TICKET_SIZE];
};

/* What came with the message that is being read. Arguments: owner, object, class,
 * incarnation, ticket. */
static rle_peer *read_claim(lua_State *L, rle_lua_claim *c)
{
    rle_lua_rpc *s = rle_lua_rpc_check(L);
    size_t size, length;
    rle_peer *owner = rle_rpc_peer(s->rpc, luaL_checkstring(L, 1));
    if (!owner) rle_lua_check(L, rle_oom(RLE_NAME_MAX, "worker"));
    *c = (rle_lua_claim){.object = (uint64_t)luaL_checknumber(L, 2)};
    const char *incarnation = luaL_checklstring(L, 4, &length);
    const char *ticket = luaL_checklstring(L, 5, &size);
    if (size != RLE_TICKET_SIZE || length != sizeof c->incarnation || !s->from)
        rle_lua_fail(L, RLE_INTERNAL, "malformed ticket");
    memcpy(&c->incarnation, incarnation, sizeof c->incarnation);
    memcpy(c->ticket, ticket, RLE_TICKET_SIZE);
    snprintf(c->giver, sizeof c->giver, "%s", rle_peer_name(s->from));
    if (rle_peer_session(s->rpc, s->from) == s->from_session)
        c->giver_incarnation = rle_peer_incarnation(s->rpc, s->from);
    return owner;
}

/* `construct`: the object that the answer names is wanted. */
static rle_future *send_claim(lua_State *L, rle_peer *owner, rle_lua_claim *c,
                              const char *class_name, bool construct)
{
    static const char method[] = "rlengine.claim";
    rle_lua_rpc *s = &rle_lua_rpc_state;
    rle_call_head head = {.method_len = sizeof method - 1, .args = 6};
    char what[RLE_NAME_MAX + 1]; /* in messages */
    memcpy(head.method, method, sizeof method - 1);
    snprintf(what, sizeof what, "reference %llu to a %s", (unsigned long long)c->object,
             class_name);
    rle_encoder *e = &s->encoder;
    rle_encoder_reset(e);
    rle_encode_call_head(e, &head);
    rle_encode_integer(e, (int64_t)c->object);
    rle_lua_check(L, rle_encode_string(e, (const char *)c->ticket, RLE_TICKET_SIZE));
    rle_lua_check(L, rle_encode_string(e, class_name, strlen(class_name)));
    rle_encode_u64(e, c->incarnation);
    rle_lua_check(L, rle_encode_string(e, c->giver, strlen(c->giver)));
    rle_encode_u64(e, c->giver_incarnation);
    rle_call_spec spec = {.peer = owner,
                          .method = what,
                          .timeout = NO_DEADLINE,
                          .nested = true,
                          .quiet = true,
                          .construct = construct,
                          .claim = construct,
                          .site = rle_context_site(rle_context_current())};
    rle_future *f;
    c->sent_to = rle_peer_incarnation(s->rpc, owner);
    rle_lua_check(L, rle_rpc_call(s->rpc, &spec, e, &f));
    return f;
}

/* claim(owner, object, class, incarnation, ticket) -> target of an object of another
 * worker that the sender of the message being read passed on. */
static int claim_new(lua_State *L)
{
    rle_lua_claim c;
    rle_lua_enter(L);
    rle_peer *owner = read_claim(L, &c);
    rle_lua_target *t = rle_lua_new_target(L, owner);
    rle_lua_target_set_class(t, luaL_checkstring(L, 3));
    rle_lua_target_note_age(t);
    t->claim = rle_malloc(sizeof c);
    if (!t->claim) rle_lua_check(L, rle_oom(sizeof c, "reference"));
    *t->claim = c;
    t->pending = send_claim(L, owner, t->claim, t->class_name, true);
    return 1;
}

/* return_ticket(owner, object, class, incarnation, ticket): the object is held here
 * already. */
static int claim_return_ticket(lua_State *L)
{
    rle_lua_claim c;
    rle_lua_enter(L);
    rle_peer *owner = read_claim(L, &c);
    rle_future *f = send_claim(L, owner, &c, luaL_checkstring(L, 3), false);
    rle_future_release(rle_lua_rpc_state.rpc, f); /* what it is answered with goes back */
    return 0;
}

/* is_of(target, incarnation) -> whether it is good, or may become so, and its object is
 * of that life of its owner. */
static int claim_is_of(lua_State *L)
{
    rle_lua_rpc *s = rle_lua_rpc_check(L);
    rle_lua_target *t = rle_lua_check_target(L, 1);
    uint64_t incarnation = 0;
    size_t length;
    const char *given = luaL_checklstring(L, 2, &length);
    if (length == sizeof incarnation) memcpy(&incarnation, given, length);
    bool pending = rle_lua_target_pending(s, t), good = false;
    if (t->released)
        good = false;
    else if (pending)
        good = t->claim && t->claim->incarnation == incarnation;
    else if (t->object)
        good = !rle_lua_target_gone(s, t) &&
               rle_peer_incarnation(s->rpc, t->peer) == incarnation;
    lua_pushboolean(L, good);
    return 1;
}

void rle_lua_claim_again(lua_State *L, rle_lua_target *t)
{
    rle_lua_rpc *s = &rle_lua_rpc_state;
    rle_lua_claim *c = t->claim;
    if (t->released || !t->pending) return;
    /* What went with its connection is gone, unless that led to another life of the
     * owner. */
    uint64_t session = rle_future_session(t->pending);
    bool over = session && session != rle_peer_session(s->rpc, t->peer);
    if (over && (!c->sent_to || c->sent_to == c->incarnation)) return;
    rle_future *f = send_claim(L, t->peer, c, t->class_name, true);
    rle_future_release(s->rpc, t->pending);
    t->pending = f;
}

bool rle_lua_claim_overtaken(rle_lua_rpc *s, rle_lua_target *t)
{
    if (rle_peer_incarnation(s->rpc, t->peer) != t->claim->incarnation ||
        rle_peer_session(s->rpc, t->peer) != s->from_session)
        return false;
    /* What the claim is answered with goes back by itself. */
    if (t->pending) rle_future_release(s->rpc, t->pending);
    t->pending = NULL;
    t->object = t->claim->object;
    t->session = s->from_session;
    rle_lua_claim_drop(t);
    return true;
}

void rle_lua_claim_drop(rle_lua_target *t)
{
    rle_free(t->claim);
    t->claim = NULL;
}

/* again(target): before it is waited for, see rle_lua_claim_again. */
static int claim_again(lua_State *L)
{
    rle_lua_enter(L);
    rle_lua_rpc *s = rle_lua_rpc_check(L);
    rle_lua_target *t = rle_lua_check_target(L, 1);
    if (!rle_lua_target_pending(s, t) && t->claim) rle_lua_claim_again(L, t);
    return 0;
}

/* ---- tickets ---- */

/* ticket() -> random string */
static int claim_ticket(lua_State *L)
{
    char bytes[RLE_TICKET_SIZE];
    rle_lua_check(L, rle_random_bytes(bytes, sizeof bytes));
    lua_pushlstring(L, bytes, sizeof bytes);
    return 1;
}

/* redeem(ticket) -> own object, whose hold is now the caller's to let go of; nil: no such
 * ticket. */
static int claim_redeem(lua_State *L)
{
    rle_lua_rpc *s = rle_lua_rpc_check(L);
    size_t n;
    const char *ticket = luaL_checklstring(L, 1, &n);
    if (n != RLE_TICKET_SIZE) rle_lua_fail(L, RLE_INVALID_ARGUMENT, "malformed ticket");
    uint64_t object = rle_ticket_claim(s->rpc, (const uint8_t *)ticket);
    if (object)
        lua_pushnumber(L, (lua_Number)object);
    else
        lua_pushnil(L);
    return 1;
}

static int claim_unhold(lua_State *L)
{
    rle_export_unhold(rle_lua_rpc_check(L)->rpc, (uint64_t)luaL_checknumber(L, 1));
    return 0;
}

const luaL_Reg rle_lua_rpc_claim_functions[] = {
    {"claim", claim_new},     {"return_ticket", claim_return_ticket},
    {"is_of", claim_is_of},   {"again", claim_again},
    {"ticket", claim_ticket}, {"redeem", claim_redeem},
    {"unhold", claim_unhold}, {NULL, NULL},
};
