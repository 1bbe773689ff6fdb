/* lua_rpc_future.c - futures as userdata, and what they are waited for with. */
#include "lua/lua_rpc.h"

#include "base/clock.h"
#include "base/log.h"

#define FUTURE_MAGIC 0x726c652e46757475u

static const char future_meta_key;

typedef struct lua_future {
    uint64_t magic;
    uint32_t generation;
    rle_future *f;
    bool has_values; /* in the uservalue: [1..n] and n, or error */
    bool failed;     /* they are an error */
    bool looked_at;
} lua_future;

/* ---- results ---- */

void rle_lua_put_result(lua_State *L, rle_future *f)
{
    rle_lua_rpc *s = &rle_lua_rpc_state;
    rle_lua_handler *h = rle_lua_handler_of(L);
    rle_future **slot = h ? &h->future : &s->result;
    if (*slot) rle_future_release(s->rpc, *slot);
    *slot = f;
}

int rle_lua_push_results(lua_State *L, rle_future *f, rle_msg *m)
{
    rle_lua_rpc *s = &rle_lua_rpc_state;
    rle_decoder d;
    uint16_t count;
    rle_msg_decoder(m, &d);
    rle_lua_check(L, rle_decode_result_head(&d, &count));
    luaL_checkstack(L, count + 8, "results of a call");
    rle_peer *before = s->from; /* a finalizer may come here while others decode */
    uint64_t before_session = s->from_session;
    s->from = rle_future_peer(f);
    s->from_session = rle_future_session(f);
    for (int i = 0; i < count; i++) rle_lua_decode(L, &d);
    s->from = before;
    s->from_session = before_session;
    rle_lua_check(L, rle_decode_end(&d));
    return count;
}

static lua_future *new_future(lua_State *L, rle_future *f)
{
    lua_future *u = lua_newuserdata(L, sizeof *u);
    *u = (lua_future){.magic = FUTURE_MAGIC, .generation = rle_lua_rpc_state.generation, .f = f};
    rle_rawgetp(L, LUA_REGISTRYINDEX, &future_meta_key);
    lua_setmetatable(L, -2);
    return u;
}

/* The text of the error that a function of this worker raised and nobody asked for. */
static int unhandled_text(lua_State *L)
{
    rle_getuservalue(L, 1);
    lua_getfield(L, -1, "error");
    if (lua_isnil(L, -1)) return 0;
    if (!lua_tostring(L, -1)) {
        lua_getglobal(L, "tostring");
        lua_insert(L, -2);
        lua_call(L, 1, 1);
    }
    return 1;
}

/* A call's own error is logged by the engine, which knows it (rpc/future.c). */
static void log_unhandled(lua_State *L, const lua_future *u)
{
    if (u->looked_at || !u->has_values || !rle_future_is_local(u->f)) return;
    lua_pushcfunction(L, unhandled_text);
    lua_pushvalue(L, 1);
    if (lua_pcall(L, 1, 1, 0) == 0 && lua_tostring(L, -1))
        rle_log(RLE_LOG_WARN, "unhandled error in a future made at %s: %s",
                rle_site_name(rle_future_site(u->f)), lua_tostring(L, -1));
    lua_pop(L, 1);
}

static int future_gc(lua_State *L)
{
    lua_future *u = lua_touserdata(L, 1);
    rle_lua_rpc *s = &rle_lua_rpc_state;
    if (u->f && u->generation == s->generation && s->rpc && !s->forked)
        log_unhandled(L, u);
    if (u->f && u->generation == s->generation && s->rpc && !s->forked)
        rle_future_discard(s->rpc, u->f);
    u->f = NULL;
    u->magic = 0;
    return 0;
}

static lua_future *to_future(lua_State *L, int idx)
{
    if (lua_type(L, idx) != LUA_TUSERDATA || lua_rawlen(L, idx) != sizeof(lua_future))
        return NULL;
    lua_future *u = lua_touserdata(L, idx);
    return u->magic == FUTURE_MAGIC ? u : NULL;
}

static lua_future *check_future(lua_State *L, int idx)
{
    lua_future *u = to_future(L, idx);
    if (!u) rle_lua_fail(L, RLE_INVALID_ARGUMENT, "expected a future, got %s",
                         luaL_typename(L, idx));
    if (u->generation != rle_lua_rpc_state.generation && !u->has_values)
        rle_lua_fail(L, RLE_FAILED_PRECONDITION, "this future is from before rpc.shutdown");
    return u;
}

/* The next future that is made takes over what lies in the slot of results. */
rle_future *rle_lua_take_result(lua_State *L)
{
    rle_lua_handler *h = rle_lua_handler_of(L);
    rle_future **slot = h ? &h->future : &rle_lua_rpc_state.result;
    rle_future *f = *slot;
    *slot = NULL;
    return f;
}

void rle_lua_push_future(lua_State *L, rle_future *f, int values)
{
    /* A finalizer may come here while a result that lies in the slot is being read. */
    rle_future *read = rle_lua_take_result(L);
    rle_lua_put_result(L, f); /* should making the userdata raise, the future is not lost */
    lua_future *u = new_future(L, NULL);
    u->f = rle_lua_take_result(L);
    if (read) rle_lua_put_result(L, read);
    if (!values) return;
    lua_pushvalue(L, values);
    rle_setuservalue(L, -2);
    u->has_values = true;
}

int64_t rle_lua_wait_deadline(lua_State *L, int arg)
{
    if (lua_isnoneornil(L, arg)) return 0;
    double seconds = luaL_checknumber(L, arg);
    if (!(seconds >= 0))
        rle_lua_fail(L, RLE_INVALID_ARGUMENT, "timeout must be a number of seconds >= 0");
    return rle_now() + (int64_t)((seconds < 1e9 ? seconds : 1e9) * 1e9);
}

static rle_future_state state_of(lua_future *u)
{
    if (u->generation != rle_lua_rpc_state.generation)
        return u->failed ? RLE_FUTURE_FAILED : RLE_FUTURE_DONE;
    return rle_future_status(rle_lua_rpc_state.rpc, u->f);
}

/* status(future) -> "pending", "done" or "failed" */
static int call_status(lua_State *L)
{
    static const char *const names[] = {"pending", "done", "failed"};
    lua_pushstring(L, names[state_of(check_future(L, 1))]);
    return 1;
}

/* wait(future, seconds): until it is over or the time is; waited() tells. */
static int call_wait(lua_State *L)
{
    rle_lua_enter(L);
    rle_lua_rpc_check(L);
    lua_future *u = check_future(L, 1);
    int64_t deadline = rle_lua_wait_deadline(L, 2);
    if (state_of(u) != RLE_FUTURE_PENDING) return 0;
    rle_lua_check_wait(L, "wait");
    return rle_lua_wait(L, &u->f, 1, RLE_WAIT_ALL, deadline);
}

/* wait_many(list, mode, seconds): mode 0 all, 1 any, 2 all or the first failure. */
static int call_wait_many(lua_State *L)
{
    rle_lua_enter(L);
    rle_lua_rpc_check(L);
    luaL_checktype(L, 1, LUA_TTABLE);
    size_t n = lua_rawlen(L, 1), pending = 0;
    rle_wait_mode mode = (rle_wait_mode)luaL_checknumber(L, 2);
    int64_t deadline = rle_lua_wait_deadline(L, 3);
    rle_future **list = lua_newuserdata(L, (n + 1) * sizeof *list);
    bool any_over = false, any_failed = false;
    for (size_t i = 0; i < n; i++) {
        lua_rawgeti(L, 1, (int)i + 1);
        lua_future *u = to_future(L, -1);
        if (!u)
            rle_lua_fail(L, RLE_INVALID_ARGUMENT, "element %d is not a future but a %s",
                         (int)i + 1, luaL_typename(L, -1));
        u = check_future(L, -1);
        lua_pop(L, 1);
        rle_future_state state = state_of(u);
        if (state == RLE_FUTURE_PENDING) list[pending++] = u->f;
        any_over |= state != RLE_FUTURE_PENDING;
        any_failed |= state == RLE_FUTURE_FAILED;
    }
    if (!pending || (mode == RLE_WAIT_ANY && any_over) ||
        (mode == RLE_WAIT_ALL_OR_FAILURE && any_failed))
        return 0;
    rle_lua_check_wait(L, "wait");
    return rle_lua_wait(L, list, pending, mode, deadline);
}

/* Bring the values of a future that is over into its table, which is left on the stack:
 * [1..n] and n, or error. */
static void load_values(lua_State *L, int idx)
{
    rle_lua_rpc *s = &rle_lua_rpc_state;
    lua_future *u = lua_touserdata(L, idx);
    if (u->has_values) {
        rle_getuservalue(L, idx);
        return;
    }
    lua_newtable(L);
    int values = lua_gettop(L);
    if (rle_future_status(s->rpc, u->f) == RLE_FUTURE_FAILED) {
        rle_lua_push_remote_error(L, rle_future_message(u->f), 1);
        lua_setfield(L, values, "error");
        u->failed = true;
    } else {
        int n = rle_lua_push_results(L, u->f, rle_future_message(u->f));
        lua_pushinteger(L, n);
        lua_setfield(L, values, "n");
        for (int i = n; i >= 1; i--) lua_rawseti(L, values, i);
    }
    lua_pushvalue(L, values);
    rle_setuservalue(L, idx);
    u->has_values = true;
    rle_future_read(s->rpc, u->f);
}

static lua_future *check_over(lua_State *L)
{
    rle_lua_enter(L);
    lua_future *u = check_future(L, 1);
    if (!u->has_values) rle_lua_rpc_check(L);
    if (state_of(u) == RLE_FUTURE_PENDING)
        rle_lua_fail(L, RLE_FAILED_PRECONDITION, "this future is not done; call wait()");
    u->looked_at = true;
    lua_settop(L, 1);
    load_values(L, 1);
    return u;
}

/* values(future) -> its results, or raises its error. It must be over. */
static int call_values(lua_State *L)
{
    check_over(L);
    lua_getfield(L, 2, "error");
    if (!lua_isnil(L, -1)) return lua_error(L);
    lua_getfield(L, 2, "n");
    int n = (int)lua_tonumber(L, -1);
    lua_settop(L, 2);
    luaL_checkstack(L, n + 2, "results of a call");
    for (int i = 1; i <= n; i++) lua_rawgeti(L, 2, i);
    return n;
}

/* error_of(future) -> its error, or nil. It must be over. */
static int call_error_of(lua_State *L)
{
    check_over(L);
    lua_getfield(L, 2, "error");
    return 1;
}

static int call_cancel(lua_State *L)
{
    rle_lua_enter(L);
    lua_future *u = check_future(L, 1);
    rle_lua_rpc *s = rle_lua_rpc_check(L);
    if (u->generation != s->generation) return 0;
    if (rle_future_is_local(u->f))
        rle_lua_fail(L, RLE_UNIMPLEMENTED, "a function of this worker cannot be cancelled");
    rle_future_cancel(s->rpc, u->f);
    return 0;
}

static int future_tostring(lua_State *L)
{
    static const char *const names[] = {"pending", "done", "failed"};
    lua_future *u = to_future(L, 1);
    if (!u || !u->f || u->generation != rle_lua_rpc_state.generation || !rle_lua_rpc_state.rpc) {
        lua_pushliteral(L, "Future(closed)");
        return 1;
    }
    rle_peer *peer = rle_future_peer(u->f);
    const char *state = names[state_of(u)];
    if (peer)
        lua_pushfstring(L, "Future(\"%s\" on \"%s\", %s)", rle_future_method(u->f),
                        rle_peer_name(peer), state);
    else
        lua_pushfstring(L, "Future(%s, %s)", rle_future_method(u->f), state);
    return 1;
}

const luaL_Reg rle_lua_rpc_future_functions[] = {
    {"status", call_status},
    {"wait", call_wait},
    {"wait_many", call_wait_many},
    {"values", call_values},
    {"error_of", call_error_of},
    {"cancel", call_cancel},
    {NULL, NULL},
};

void rle_lua_rpc_open_future(lua_State *L)
{
    lua_newtable(L);
    lua_pushcfunction(L, future_gc);
    lua_setfield(L, -2, "__gc");
    lua_pushcfunction(L, future_tostring);
    lua_setfield(L, -2, "__tostring");
    lua_pushliteral(L, "rlengine.Future");
    lua_setfield(L, -2, "__name");
    lua_pushvalue(L, -1);
    rle_rawsetp(L, LUA_REGISTRYINDEX, &future_meta_key);
    /* rpc/futures.lua fills in the methods. */
    lua_newtable(L);
    lua_pushvalue(L, -1);
    lua_setfield(L, -3, "__index");
    lua_setfield(L, -3, "future_methods");
    lua_pop(L, 1);
}
