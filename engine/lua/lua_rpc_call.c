/* lua_rpc_call.c - targets, and calls to them. */
#include "lua/lua_rpc.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/world.h"

#define TARGET_MAGIC 0x726c652e54617267u

static const char target_meta_key;

/* ---- targets ---- */

rle_lua_target *rle_lua_to_target(lua_State *L, int idx)
{
    if (lua_type(L, idx) != LUA_TUSERDATA || lua_rawlen(L, idx) != sizeof(rle_lua_target))
        return NULL;
    rle_lua_target *t = lua_touserdata(L, idx);
    return t->magic == TARGET_MAGIC ? t : NULL;
}

rle_lua_target *rle_lua_check_target(lua_State *L, int idx)
{
    rle_lua_target *t = rle_lua_to_target(L, idx);
    if (!t) rle_lua_fail(L, RLE_INVALID_ARGUMENT, "argument %d: expected a reference", idx);
    if (t->generation != rle_lua_rpc_state.generation)
        rle_lua_fail(L, RLE_FAILED_PRECONDITION, "this reference is from before rpc.shutdown");
    return t;
}

/* A reference is small here, but it keeps an object alive elsewhere that may be large. So
 * the collector is told of more than it sees. */
enum { REFS_PER_STEP = 64, STEP_KB = 64 };

rle_lua_target *rle_lua_new_target(lua_State *L, rle_peer *peer)
{
    static RLE_PER_PROCESS unsigned made;
    if (++made % REFS_PER_STEP == 0) lua_gc(L, LUA_GCSTEP, STEP_KB);
    rle_lua_target *t = lua_newuserdata(L, sizeof *t);
    *t = (rle_lua_target){.magic = TARGET_MAGIC,
                          .generation = rle_lua_rpc_state.generation,
                          .peer = peer,
                          .next = rle_lua_rpc_state.targets,
                          .at = &rle_lua_rpc_state.targets};
    if (t->next) t->next->at = &t->next;
    rle_lua_rpc_state.targets = t;
    rle_peer_pin(peer);
    rle_rawgetp(L, LUA_REGISTRYINDEX, &target_meta_key);
    lua_setmetatable(L, -2);
    return t;
}

void rle_lua_target_note_age(rle_lua_target *t)
{
    t->since = rle_now();
    t->site = rle_context_site(rle_context_current());
}

/* Its worker is no more. */
static bool of_the_past(const rle_lua_target *t)
{
    const rle_lua_rpc *s = &rle_lua_rpc_state;
    return t->generation != s->generation || !s->rpc || s->forked;
}

static void target_let_go(rle_lua_target *t)
{
    rle_lua_rpc *s = &rle_lua_rpc_state;
    rle_lua_claim_drop(t);
    if (of_the_past(t)) return;
    if (t->pending) rle_future_discard(s->rpc, t->pending);
    t->pending = NULL;
    if (t->own) rle_export_discard(s->rpc, t->object);
    t->own = false;
    if (t->count) rle_ref_discard(s->rpc, t->peer, t->session, t->object, t->count);
    t->count = 0;
}

static int target_gc(lua_State *L)
{
    rle_lua_target *t = lua_touserdata(L, 1);
    target_let_go(t);
    if (!of_the_past(t)) rle_peer_unpin(t->peer);
    *t->at = t->next;
    if (t->next) t->next->at = t->at;
    t->magic = 0;
    return 0;
}

bool rle_lua_target_pending(rle_lua_rpc *s, rle_lua_target *t)
{
    if (!t->pending) return false;
    rle_future_state state = rle_future_status(s->rpc, t->pending);
    if (state == RLE_FUTURE_PENDING) return true;
    if (state == RLE_FUTURE_FAILED || !rle_future_object(t->pending)) return false;
    t->object = rle_future_object(t->pending);
    t->session = rle_future_session(t->pending);
    t->count++; /* the one that came with the result */
    rle_future_read(s->rpc, t->pending);
    rle_future_release(s->rpc, t->pending);
    t->pending = NULL;
    rle_lua_claim_drop(t);
    return false;
}

bool rle_lua_target_gone(const rle_lua_rpc *s, const rle_lua_target *t)
{
    return t->object && !t->own && rle_peer_session(s->rpc, t->peer) != t->session;
}

void rle_lua_raise_gone(lua_State *L, const rle_lua_target *t)
{
    rle_lua_fail(L, RLE_UNAVAILABLE, "owner \"%s\" of this reference is gone",
                 rle_peer_name(t->peer));
}

static const char *check_name(lua_State *L, int idx, size_t *len)
{
    if (lua_type(L, idx) != LUA_TSTRING)
        rle_lua_fail(L, RLE_INVALID_ARGUMENT, "a worker's name is a string, not a %s",
                     luaL_typename(L, idx));
    const char *name = lua_tolstring(L, idx, len);
    if (!rle_name_ok(name, *len))
        rle_lua_fail(L, RLE_INVALID_ARGUMENT,
                     "a worker's name is 1 to %d letters, digits, \"_\", \".\" or \"-\", not "
                     "\"%.80s\"",
                     RLE_NAME_MAX, name);
    return name;
}

static rle_peer *peer_named(lua_State *L, rle_lua_rpc *s, int idx)
{
    size_t len;
    const char *name = check_name(L, idx, &len);
    rle_peer *peer = rle_rpc_peer(s->rpc, name);
    if (!peer) rle_lua_check(L, rle_oom(len, "worker"));
    return peer;
}

/* worker(name) -> target, is it this worker */
static int call_worker(lua_State *L)
{
    rle_lua_enter(L);
    rle_lua_rpc *s = rle_lua_rpc_check(L);
    rle_peer *peer = peer_named(L, s, 1);
    rle_lua_new_target(L, peer);
    lua_pushboolean(L, rle_peer_is_self(peer));
    return 2;
}

/* owner(target) -> target of the worker that owns the object, good for its present
 * connection only. */
static int call_owner(lua_State *L)
{
    rle_lua_enter(L);
    rle_lua_target *t = rle_lua_check_target(L, 1);
    rle_lua_new_target(L, t->peer)->session = t->session;
    return 1;
}

void rle_lua_target_set_class(rle_lua_target *t, const char *name)
{
    snprintf(t->class_name, sizeof t->class_name, "%s", name);
}

/* export(class) -> object number, target: a new number for an object of this worker. */
static int call_export(lua_State *L)
{
    rle_context *c = rle_lua_enter(L);
    rle_lua_rpc *s = rle_lua_rpc_check(L);
    rle_lua_target *t = rle_lua_new_target(L, rle_rpc_peer(s->rpc, rle_rpc_name(s->rpc)));
    rle_lua_target_set_class(t, luaL_optstring(L, 1, ""));
    t->object = rle_export_new_at(s->rpc, rle_context_site(c));
    if (!t->object) rle_lua_check(L, rle_oom(sizeof *t, "reference"));
    t->own = true;
    lua_pushnumber(L, (lua_Number)t->object);
    lua_insert(L, -2);
    return 2;
}

/* hold(object, class) -> target of an own object, or nil when it was dropped. */
static int call_hold(lua_State *L)
{
    rle_lua_enter(L);
    rle_lua_rpc *s = rle_lua_rpc_check(L);
    uint64_t object = (uint64_t)luaL_checknumber(L, 1);
    rle_lua_target *t = rle_lua_new_target(L, rle_rpc_peer(s->rpc, rle_rpc_name(s->rpc)));
    rle_lua_target_set_class(t, luaL_optstring(L, 2, ""));
    t->object = object;
    t->own = rle_export_hold(s->rpc, object);
    if (!t->own) lua_pushnil(L);
    return 1;
}

/* adopt(object, class) -> target of an object of the worker whose message is decoded. */
static int call_adopt(lua_State *L)
{
    rle_lua_rpc *s = rle_lua_rpc_check(L);
    if (!s->from) rle_lua_fail(L, RLE_INTERNAL, "no message is being read");
    rle_lua_target *t = rle_lua_new_target(L, s->from);
    rle_lua_target_set_class(t, luaL_optstring(L, 2, ""));
    t->object = (uint64_t)luaL_checknumber(L, 1);
    t->session = s->from_session;
    t->count = 1;
    rle_lua_target_note_age(t);
    lua_pushstring(L, rle_peer_name(s->from));
    return 2;
}

/* adopt_again(target) -> whether it is of this connection; then it counts once more. */
static int call_adopt_again(lua_State *L)
{
    rle_lua_rpc *s = rle_lua_rpc_check(L);
    rle_lua_target *t = rle_lua_check_target(L, 1);
    rle_lua_target_pending(s, t);
    bool same =
        !t->released && s->from == t->peer &&
        (t->claim ? rle_lua_claim_overtaken(s, t) : s->from_session == t->session);
    if (same) t->count++;
    lua_pushboolean(L, same);
    return 1;
}

/* sender() -> name of the worker whose message is being decoded. */
static int call_sender(lua_State *L)
{
    rle_lua_rpc *s = &rle_lua_rpc_state;
    if (s->from)
        lua_pushstring(L, rle_peer_name(s->from));
    else
        lua_pushnil(L);
    return 1;
}

/* describe(target) -> worker, class, object or nil, state: "ready", "pending", "failed",
 * "released", "gone", "closed" */
static int call_describe(lua_State *L)
{
    rle_lua_rpc *s = &rle_lua_rpc_state;
    rle_lua_target *t = rle_lua_to_target(L, 1);
    if (!t) return rle_lua_fail(L, RLE_INVALID_ARGUMENT, "expected a reference");
    if (!s->rpc || t->generation != s->generation) {
        lua_pushliteral(L, "?");
        lua_pushstring(L, t->class_name);
        lua_pushnil(L);
        lua_pushliteral(L, "closed");
        return 4;
    }
    bool pending = rle_lua_target_pending(s, t);
    const char *state = t->released ? "released" : pending ? "pending"
                        : t->pending ? "failed" : "ready";
    if (!t->released && rle_lua_target_gone(s, t)) state = "gone";
    lua_pushstring(L, rle_peer_name(t->peer));
    lua_pushstring(L, t->class_name);
    if (t->object)
        lua_pushnumber(L, (lua_Number)t->object);
    else
        lua_pushnil(L);
    lua_pushstring(L, state);
    return 4;
}

/* release(target): give it back now instead of when it is collected. */
static int call_release(lua_State *L)
{
    rle_lua_enter(L);
    rle_lua_target *t = rle_lua_check_target(L, 1);
    rle_lua_target_pending(&rle_lua_rpc_state, t);
    target_let_go(t);
    t->released = true;
    return 0;
}

/* ---- calls ---- */

/* Arguments: target, method, timeout (seconds; 0 = default), how, then the call's. */
enum { ARG_TARGET = 1, ARG_METHOD, ARG_TIMEOUT, ARG_HOW, ARG_FIRST };
enum {
    HOW_CALL,
    HOW_CONSTRUCT, /* make an object of the class named by the method */
    HOW_QUIET /* a call of ours: it takes no credit, nobody wants to hear of its failure
               */
};

static void raise_target(lua_State *L, rle_lua_target *t)
{
    if (t->released)
        rle_lua_fail(L, RLE_NOT_FOUND, "reference %llu was released",
                     (unsigned long long)t->object);
    if (t->pending) {
        /* What made it failed, and so does every use. */
        rle_lua_push_remote_error(L, rle_future_message(t->pending), 1);
        lua_error(L);
    }
    if (t->own || rle_peer_is_self(t->peer))
        rle_lua_fail(L, RLE_INTERNAL, "a call of this worker itself");
}

/* NULL: a reference among the arguments has to be prepared first. */
static rle_future *start_call(lua_State *L, bool note_site)
{
    rle_context *c = rle_lua_enter(L);
    rle_lua_rpc *s = rle_lua_rpc_check(L);
    rle_lua_target *t = rle_lua_check_target(L, ARG_TARGET);
    rle_call_head head = {0};
    size_t method_len;
    const char *method = luaL_checklstring(L, ARG_METHOD, &method_len);
    double timeout = luaL_checknumber(L, ARG_TIMEOUT);
    if (!rle_lua_target_pending(s, t) && t->claim) rle_lua_claim_again(L, t);
    if (t->released || t->own || rle_peer_is_self(t->peer)) raise_target(L, t);
    if (method_len < 1 || method_len > RLE_NAME_MAX || memchr(method, 0, method_len))
        rle_lua_fail(L, RLE_NOT_FOUND, "\"%s\" exports no \"%.100s\"", rle_peer_name(t->peer),
                     method);
    if (s->encoding) rle_lua_fail(L, RLE_FAILED_PRECONDITION, "remote call inside a finalizer");
    int top = lua_gettop(L);
    head.object = t->object;
    int how = (int)lua_tonumber(L, ARG_HOW);
    head.construct = how == HOW_CONSTRUCT;
    head.method_len = (uint8_t)method_len;
    memcpy(head.method, method, method_len);
    head.args = (uint16_t)(top - ARG_FIRST + 1);
    rle_encoder *e = &s->encoder;
    rle_encoder_reset(e);
    rle_encode_call_head(e, &head);
    if (!rle_lua_encode(L, e, ARG_FIRST, top, t->peer, "argument")) return NULL;
    rle_lua_handler *h = s->current;
    rle_call_spec spec = {.peer = t->peer,
                          .session = t->session ? t->session : s->home_session,
                          .method = method,
                          .timeout = timeout > 0 ? (int64_t)(timeout * 1e9) : 0,
                          .deadline = h ? h->deadline : 0,
                          .nested = (h && h->nested) || how == HOW_QUIET,
                          /* Failed or still pending: the call does likewise. */
                          .after = t->pending,
                          .construct = head.construct,
                          .quiet = how == HOW_QUIET,
                          .site = note_site || e->refs ? rle_context_site(c) : 0};
    if (timeout > 1e9) spec.timeout = INT64_C(1000000000) * RLE_SECONDS;
    rle_future *f;
    rle_lua_check(L, rle_rpc_call(s->rpc, &spec, e, &f));
    return f;
}

static void raise_unwanted(lua_State *L, const rle_lua_handler *h)
{
    rle_lua_fail(L, RLE_CANCELLED, "\"%s\" is no longer wanted by \"%s\"",
                 h->info.head.method,
                 h->info.caller ? rle_peer_name(h->info.caller) : "its caller");
}

/* sync(target, method, timeout, how, ...): call and wait; take() must follow. Returns true
 * when nothing was sent because an argument has to be prepared. */
static int call_sync(lua_State *L)
{
    rle_lua_check_wait(L, "rpc_sync");
    rle_lua_handler *self = rle_lua_handler_of(L);
    if (self && self->cancelled) raise_unwanted(L, self); /* before anything is sent */
    rle_future *f = start_call(L, false);
    if (!f) {
        lua_pushboolean(L, true);
        return 1;
    }
    rle_lua_put_result(L, f);
    rle_lua_handler *h = rle_lua_handler_of(L);
    if (h) return rle_lua_wait(L, &f, 1, RLE_WAIT_ALL, 0);
    /* Others may use the slot while the loop runs. */
    rle_lua_rpc *s = &rle_lua_rpc_state;
    s->result = NULL;
    rle_lua_wait(L, &f, 1, RLE_WAIT_ALL, 0);
    rle_lua_put_result(L, f);
    return 0;
}

/* take() -> results of what sync() waited for, or raises its error. */
static int call_take(lua_State *L)
{
    rle_lua_enter(L);
    rle_lua_rpc *s = rle_lua_rpc_check(L);
    rle_lua_handler *h = rle_lua_handler_of(L);
    rle_future **slot = h ? &h->future : &s->result;
    rle_future *f = *slot;
    if (!f) return rle_lua_fail(L, RLE_INTERNAL, "nothing was waited for");
    if (h && h->waiter.cancelled) {
        rle_future_cancel(s->rpc, f);
        raise_unwanted(L, h);
    }
    bool failed = rle_future_status(s->rpc, f) == RLE_FUTURE_FAILED;
    int n = 1;
    if (failed)
        rle_lua_push_remote_error(L, rle_future_message(f), 1);
    else
        n = rle_lua_push_results(L, f, rle_future_message(f));
    rle_future_read(s->rpc, f);
    *slot = NULL;
    rle_future_release(s->rpc, f);
    return failed ? lua_error(L) : n;
}

/* async(target, method, timeout, how, ...) -> future; true as with sync(). */
static int call_async(lua_State *L)
{
    rle_future *f = start_call(L, true);
    if (!f) {
        lua_pushboolean(L, true);
        return 1;
    }
    rle_lua_push_future(L, f, 0);
    rle_lua_rpc *s = &rle_lua_rpc_state;
    /* A loop of calls that never waits still reads what comes back. */
    if (!s->from) rle_rpc_breathe(s->rpc);
    return 1;
}

/* construct(worker target, class, timeout, how, ...) -> target of the object to come; true
 * as with sync(). */
static int call_construct(lua_State *L)
{
    rle_future *f = start_call(L, true);
    if (!f) {
        lua_pushboolean(L, true);
        return 1;
    }
    rle_future *read = rle_lua_take_result(L); /* as rle_lua_push_future */
    rle_lua_put_result(L, f);
    rle_lua_target *worker = rle_lua_to_target(L, ARG_TARGET);
    rle_lua_target *t = rle_lua_new_target(L, worker->peer);
    t->pending = rle_lua_take_result(L);
    if (read) rle_lua_put_result(L, read);
    rle_lua_target_note_age(t);
    rle_lua_target_set_class(t, lua_tostring(L, ARG_METHOD));
    return 1;
}

/* pending(target) -> whether its object is still being made. */
static int call_pending(lua_State *L)
{
    rle_lua_rpc *s = &rle_lua_rpc_state;
    rle_lua_target *t = rle_lua_to_target(L, 1);
    lua_pushboolean(L, t && s->rpc && t->generation == s->generation &&
                           rle_lua_target_pending(s, t));
    return 1;
}

/* wait_target(target, seconds): until its object is made or has failed. */
static int call_wait_target(lua_State *L)
{
    rle_lua_enter(L);
    rle_lua_rpc *s = rle_lua_rpc_check(L);
    rle_lua_target *t = rle_lua_check_target(L, 1);
    if (!rle_lua_target_pending(s, t)) return 0;
    rle_lua_check_wait(L, "wait");
    return rle_lua_wait(L, &t->pending, 1, RLE_WAIT_ALL, rle_lua_wait_deadline(L, 2));
}

typedef struct held {
    rle_peer *peer;
    uint64_t object;
    uint32_t count, site;
    int64_t since;
    char class_name[RLE_NAME_MAX + 1];
} held;

/* Copies, up to `max`: pushing anything may collect a target. */
static int list_held(rle_lua_rpc *s, held *out, int max)
{
    int n = 0;
    for (rle_lua_target *t = s->targets; t && n < max; t = t->next) {
        if (t->generation != s->generation || t->own || t->released) continue;
        if (rle_lua_target_pending(s, t) || !t->count) continue;
        if (rle_peer_session(s->rpc, t->peer) != t->session) continue;
        held *h = &out[n++];
        *h = (held){t->peer, t->object, t->count, t->site, t->since, ""};
        memcpy(h->class_name, t->class_name, sizeof h->class_name);
    }
    return n;
}

/* held() -> list of {owner=, object=, class=, count=, age=, line=}: objects of other workers. */
static int call_held(lua_State *L)
{
    rle_lua_enter(L);
    rle_lua_rpc *s = rle_lua_rpc_check(L);
    int max = 0;
    for (const rle_lua_target *t = s->targets; t; t = t->next) max++;
    held *list = lua_newuserdata(L, (size_t)max * sizeof *list + 1);
    int n = list_held(s, list, max);
    int64_t now = rle_now();
    lua_createtable(L, n, 0);
    for (int i = 0; i < n; i++) {
        const held *h = &list[i];
        lua_createtable(L, 0, 7);
        lua_pushstring(L, rle_peer_name(h->peer));
        lua_setfield(L, -2, "owner");
        lua_pushnumber(L, (lua_Number)h->object);
        lua_setfield(L, -2, "object");
        lua_pushstring(L, h->class_name);
        lua_setfield(L, -2, "class");
        lua_pushnumber(L, h->count);
        lua_setfield(L, -2, "count");
        lua_pushnumber(L, (double)(now - h->since) / 1e9);
        lua_setfield(L, -2, "age");
        lua_pushstring(L, rle_site_name(h->site));
        lua_setfield(L, -2, "line");
        lua_rawseti(L, -2, i + 1);
    }
    return 1;
}

/* check(target): raises what made it unusable. */
static int call_check(lua_State *L)
{
    rle_lua_enter(L);
    rle_lua_rpc *s = rle_lua_rpc_check(L);
    rle_lua_target *t = rle_lua_check_target(L, 1);
    bool pending = rle_lua_target_pending(s, t);
    if (t->released || (t->pending && !pending)) raise_target(L, t);
    if (rle_lua_target_gone(s, t)) rle_lua_raise_gone(L, t);
    return 0;
}

const luaL_Reg rle_lua_rpc_call_functions[] = {
    {"worker", call_worker},
    {"owner", call_owner},
    {"export", call_export},
    {"hold", call_hold},
    {"adopt", call_adopt},
    {"adopt_again", call_adopt_again},
    {"sender", call_sender},
    {"describe", call_describe},
    {"release", call_release},
    {"sync", call_sync},
    {"take", call_take},
    {"async", call_async},
    {"construct", call_construct},
    {"pending", call_pending},
    {"wait_target", call_wait_target},
    {"check", call_check},
    {"held", call_held},
    {NULL, NULL},
};

void rle_lua_rpc_open_call(lua_State *L)
{
    lua_newtable(L);
    lua_pushcfunction(L, target_gc);
    lua_setfield(L, -2, "__gc");
    lua_pushliteral(L, "rlengine.Target");
    lua_setfield(L, -2, "__name");
    rle_rawsetp(L, LUA_REGISTRYINDEX, &target_meta_key);
}
