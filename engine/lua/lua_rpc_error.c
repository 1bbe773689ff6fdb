/* lua_rpc_error.c - error objects to bytes and back.
 *
 * What a peer gets of an error: code, one line, where and traceback, the worker and method
 * where it first happened, and the workers it passed through since. A plain error("...") of
 * a script is UNKNOWN, and its line says who failed. Further fields of an error object
 * (report) travel as an encoded value when they can be encoded. */
#include "lua/lua_rpc.h"

#include <stdio.h>

/* String field of the error table at idx, left on the stack so that it stays alive. */
static rle_slice field(lua_State *L, int idx, const char *name)
{
    rle_slice s = {NULL, 0};
    lua_pushstring(L, name);
    lua_rawget(L, idx);
    if (lua_type(L, -1) == LUA_TSTRING) s.p = lua_tolstring(L, -1, &s.n);
    return s;
}

static rle_slice text(const char *s)
{
    return (rle_slice){s, s ? strlen(s) : 0};
}

static const char *const known_fields[] = {"code",   "message", "where", "traceback", "worker",
                                           "method", "outcome", "via",   NULL};

static bool is_known(const char *name)
{
    for (const char *const *k = known_fields; *k; k++)
        if (strcmp(*k, name) == 0) return true;
    return false;
}

static int encode_extra(lua_State *L)
{
    rle_encoder *e = lua_touserdata(L, 2);
    lua_newtable(L);
    bool any = false;
    for (lua_pushnil(L); lua_next(L, 1); lua_pop(L, 1)) {
        if (lua_type(L, -2) != LUA_TSTRING || is_known(lua_tostring(L, -2))) continue;
        int type = lua_type(L, -1);
        if (type != LUA_TSTRING && type != LUA_TNUMBER && type != LUA_TBOOLEAN &&
            type != LUA_TTABLE)
            continue;
        lua_pushvalue(L, -2);
        lua_pushvalue(L, -2);
        lua_rawset(L, 3);
        any = true;
    }
    lua_pushboolean(L, any && rle_lua_encode(L, e, 3, 3, NULL, "error") && !e->refs);
    return 1;
}

/* Fields beyond the known ones, encoded; nothing when they cannot be. */
static void extra_fields(lua_State *L, int idx, rle_wire_error *out, rle_encoder *data)
{
    rle_encoder_reset(data);
    lua_pushcfunction(L, encode_extra);
    lua_pushvalue(L, idx);
    lua_pushlightuserdata(L, data);
    bool ok = lua_pcall(L, 2, 1, 0) == 0 && lua_toboolean(L, -1);
    lua_pop(L, 1);
    if (ok && !data->tensors)
        out->data = (rle_slice){(const char *)data->w.data + RLE_FRAME_HEADER,
                                rle_encoder_values_size(data)};
}

static void hops(lua_State *L, int idx, rle_wire_error *out)
{
    lua_pushliteral(L, "via");
    lua_rawget(L, idx);
    if (lua_istable(L, -1)) {
        int via = lua_gettop(L);
        int n = (int)lua_rawlen(L, via);
        luaL_checkstack(L, RLE_ERROR_HOPS + 2, "hops of an error");
        for (int i = 1; i <= n && out->hops < RLE_ERROR_HOPS - 1; i++) {
            lua_rawgeti(L, via, i);
            rle_slice s = {NULL, 0};
            if (lua_type(L, -1) == LUA_TSTRING) s.p = lua_tolstring(L, -1, &s.n);
            if (s.p) out->via[out->hops++] = s;
        }
    }
    out->via[out->hops++] = text(rle_rpc_name(rle_lua_rpc_state.rpc));
}

/* (error value): its text; what it has may raise. */
static int text_of(lua_State *L)
{
    luaL_callmeta(L, 1, "__tostring");
    return 1;
}

/* Push what the error value at idx says. */
static const char *push_text(lua_State *L, int idx)
{
    if (!lua_isstring(L, idx)) {
        lua_pushcfunction(L, text_of);
        lua_pushvalue(L, idx);
        if (lua_pcall(L, 1, 1, 0) == 0 && lua_isstring(L, -1)) return lua_tostring(L, -1);
        lua_pop(L, 1);
        return lua_pushfstring(L, "(error object is a %s value)", luaL_typename(L, idx));
    }
    lua_pushvalue(L, idx);
    return lua_tostring(L, -1);
}

void rle_lua_error_to_wire(lua_State *L, lua_State *co, const char *method, rle_wire_error *out,
                           rle_encoder *data)
{
    int idx = lua_gettop(L);
    const char *self = rle_rpc_name(rle_lua_rpc_state.rpc);
    *out = (rle_wire_error){.code = RLE_UNKNOWN};
    luaL_checkstack(L, 16, "error for another worker");
    if (lua_istable(L, idx)) {
        rle_slice code = field(L, idx, "code");
        int number = code.p ? rle_status_from_name(code.p) : -1;
        if (number > 0) out->code = (rle_status)number;
        out->message = field(L, idx, "message");
        out->where = field(L, idx, "where");
        out->traceback = field(L, idx, "traceback");
        out->worker = field(L, idx, "worker");
        out->method = field(L, idx, "method");
        rle_slice outcome = field(L, idx, "outcome");
        if (outcome.p)
            out->outcome = strcmp(outcome.p, "not executed") == 0 ? RLE_OUTCOME_NOT_EXECUTED
                                                                  : RLE_OUTCOME_UNKNOWN;
        if (out->worker.p) hops(L, idx, out);
        extra_fields(L, idx, out, data);
    }
    if (!out->traceback.p) {
#if LUA_VERSION_NUM >= 502 || defined(LUA_JITLIBNAME)
        luaL_traceback(L, co, NULL, 0);
        out->traceback = text(lua_tostring(L, -1));
#else
        (void)co;
#endif
    }
    if (!out->worker.p) {
        out->worker = text(self);
        out->method = text(method);
        /* The call itself was executed, whatever became of calls that it made. */
    }
    if (!lua_istable(L, idx) || !out->message.p) {
        const char *said = push_text(L, idx);
        lua_pushfstring(L, "\"%s\" on \"%s\" failed: %s", method, self, said);
        out->message = text(lua_tostring(L, -1));
    }
}

static void set_slice(lua_State *L, const char *name, rle_slice s)
{
    if (!s.n) return;
    lua_pushlstring(L, s.p, s.n);
    lua_setfield(L, -2, name);
}

static int decode_extra(lua_State *L)
{
    rle_decoder *d = lua_touserdata(L, 2);
    rle_lua_decode(L, d);
    if (!lua_istable(L, -1)) return 0;
    for (lua_pushnil(L); lua_next(L, -2); lua_pop(L, 1)) {
        if (lua_type(L, -2) != LUA_TSTRING || is_known(lua_tostring(L, -2))) continue;
        lua_pushvalue(L, -2);
        lua_pushvalue(L, -2);
        lua_rawset(L, 1);
    }
    return 0;
}

void rle_lua_push_remote_error(lua_State *L, const rle_msg *m, int level)
{
    rle_wire_error e;
    if (!m) {
        rle_lua_push_error(L, RLE_RESOURCE_EXHAUSTED,
                           "out of memory: a call failed, its error was lost", level);
        return;
    }
    if (rle_error_decode(m, &e) != RLE_OK) {
        rle_lua_push_error(L, RLE_DATA_LOSS, "the worker answered with a malformed error", level);
        return;
    }
    lua_pushlstring(L, e.message.p ? e.message.p : "", e.message.n);
    rle_lua_push_error(L, e.code, lua_tostring(L, -1), level);
    lua_remove(L, -2);
    int err = lua_gettop(L);
    set_slice(L, "worker", e.worker);
    set_slice(L, "method", e.method);
    set_slice(L, "where", e.where);
    if (e.traceback.n) {
        lua_getfield(L, err, "traceback");
        const char *here = lua_tostring(L, -1);
        lua_pushlstring(L, e.traceback.p, e.traceback.n);
        lua_pushfstring(L, "%s\n(called from)\n%s", lua_tostring(L, -1), here ? here : "");
        lua_setfield(L, err, "traceback");
        lua_pop(L, 2);
    }
    if (e.outcome != RLE_OUTCOME_NONE) {
        lua_pushstring(L, e.outcome == RLE_OUTCOME_NOT_EXECUTED ? "not executed" : "unknown");
        lua_setfield(L, err, "outcome");
    }
    if (e.hops) {
        lua_createtable(L, e.hops, 0);
        for (int i = 0; i < e.hops; i++) {
            lua_pushlstring(L, e.via[i].p ? e.via[i].p : "", e.via[i].n);
            lua_rawseti(L, -2, i + 1);
        }
        lua_setfield(L, err, "via");
    }
    if (e.data.n) {
        rle_decoder d;
        rle_decoder_init(&d, (const uint8_t *)e.data.p, e.data.n, e.data.n, 0);
        lua_pushcfunction(L, decode_extra);
        lua_pushvalue(L, err);
        lua_pushlightuserdata(L, &d);
        if (lua_pcall(L, 2, 0, 0) != 0) lua_pop(L, 1); /* the error itself is what counts */
    }
}
