/* lua_error.c - the error object and the checks of arguments that raise it.
 *
 * An error object is a table with the metatable `rlengine.Error`:
 *   code       gRPC's name of the status ("INVALID_ARGUMENT")
 *   message    one line
 *   where      "train.lua:88", the script line
 *   traceback  of the coroutine that failed
 * and, for remote calls, worker, method, outcome ("not executed", "unknown"), via (list
 * of workers it passed through); for out-of-memory, report; where a setting is refused,
 * exit_code. tostring gives "CODE: message". */
#include "lua/lua_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sysexits.h>

#include "base/words.h"
#include "device/device.h"

static const char error_meta_key;

static int error_tostring(lua_State *L)
{
    lua_getfield(L, 1, "code");
    lua_getfield(L, 1, "message");
    const char *code = lua_tostring(L, -2), *message = lua_tostring(L, -1);
    lua_pushfstring(L, "%s: %s", code ? code : "UNKNOWN", message ? message : "");
    return 1;
}

/* `"text" .. err` and `err .. "text"`, as with a plain message. */
static int error_concat(lua_State *L)
{
    for (int i = 1; i <= 2; i++) {
        if (rle_lua_is_error(L, i)) {
            lua_pushcfunction(L, error_tostring);
            lua_pushvalue(L, i);
            lua_call(L, 1, 1);
            lua_replace(L, i);
        }
    }
    lua_settop(L, 2);
    lua_concat(L, 2);
    return 1;
}

/* Lines of rlengine's own Lua files are not what a user wants to read: skip to the
 * script. Embedded files are named "=rlengine/..."; installed ones lie under
 * `own_prefix`, which lua/rlengine/init.lua sets from its own place. */
static char own_prefix[512];

bool rle_lua_is_own_source(const char *source)
{
    if (source[0] == '=') return strncmp(source, "=rlengine/", 10) == 0;
    return source[0] == '@' && own_prefix[0] &&
           strncmp(source, own_prefix, strlen(own_prefix)) == 0;
}

/* error.own_sources(prefix): chunk names that begin with `prefix` are the engine's. */
static int error_own_sources(lua_State *L)
{
    snprintf(own_prefix, sizeof own_prefix, "%s", luaL_checkstring(L, 1));
    return 0;
}

static void push_where(lua_State *L, int level)
{
    lua_Debug ar, first;
    bool have_first = false;
    for (int i = level; lua_getstack(L, i, &ar); i++) {
        lua_getinfo(L, "Sl", &ar);
        if (ar.currentline <= 0) continue;
        if (!rle_lua_is_own_source(ar.source)) {
            lua_pushfstring(L, "%s:%d", ar.short_src, ar.currentline);
            return;
        }
        if (!have_first) first = ar;
        have_first = true;
    }
    if (have_first)
        lua_pushfstring(L, "%s:%d", first.short_src, first.currentline);
    else
        lua_pushliteral(L, "?");
}

static void push_traceback(lua_State *L, int level)
{
#if LUA_VERSION_NUM >= 502 || defined(LUA_JITLIBNAME)
    luaL_traceback(L, L, NULL, level);
#else
    lua_getglobal(L, "debug");
    if (!lua_istable(L, -1)) {
        lua_pop(L, 1);
        lua_pushliteral(L, "");
        return;
    }
    lua_getfield(L, -1, "traceback");
    lua_remove(L, -2);
    lua_pushliteral(L, "");
    lua_pushinteger(L, level + 1);
    if (lua_pcall(L, 2, 1, 0) != 0) {
        lua_pop(L, 1);
        lua_pushliteral(L, "");
    }
#endif
}

void rle_lua_push_error(lua_State *L, rle_status code, const char *message, int level)
{
    luaL_checkstack(L, 8, "error object");
    lua_createtable(L, 0, 6);
    lua_pushstring(L, rle_status_name(code));
    lua_setfield(L, -2, "code");
    lua_pushstring(L, message);
    lua_setfield(L, -2, "message");
    push_where(L, level);
    lua_setfield(L, -2, "where");
    push_traceback(L, level);
    lua_setfield(L, -2, "traceback");
    rle_rawgetp(L, LUA_REGISTRYINDEX, &error_meta_key);
    lua_setmetatable(L, -2);
}

void rle_lua_set_error_meta(lua_State *L)
{
    rle_rawgetp(L, LUA_REGISTRYINDEX, &error_meta_key);
    lua_setmetatable(L, -2);
}

bool rle_lua_is_error(lua_State *L, int idx)
{
    if (!lua_istable(L, idx) || !lua_getmetatable(L, idx)) return false;
    rle_rawgetp(L, LUA_REGISTRYINDEX, &error_meta_key);
    bool same = lua_rawequal(L, -1, -2);
    lua_pop(L, 2);
    return same;
}

int rle_lua_raise(lua_State *L, rle_status code)
{
    char message[2048];
    snprintf(message, sizeof message, "%s", rle_message());
    rle_lua_push_error(L, code, message, 1);
    if (code == RLE_RESOURCE_EXHAUSTED && rle_device_oom_report() &&
        strncmp(message, "out of device memory", 20) == 0) {
        lua_pushstring(L, rle_device_oom_report());
        lua_setfield(L, -2, "report");
    }
    return lua_error(L);
}

int rle_lua_fail(lua_State *L, rle_status code, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    rle_failv(code, fmt, args);
    va_end(args);
    return rle_lua_raise(L, code);
}

/* error.new{code=, message=, ...} -> error object (not raised). Unknown code names are an
 * error; a missing code is UNKNOWN. Other fields are kept. */
static int error_new(lua_State *L)
{
    luaL_checktype(L, 1, LUA_TTABLE);
    lua_getfield(L, 1, "code");
    const char *name = lua_isnil(L, -1) ? "UNKNOWN" : lua_tostring(L, -1);
    int code = name ? rle_status_from_name(name) : -1;
    if (code <= 0)
        return rle_lua_fail(
            L, RLE_INVALID_ARGUMENT,
            "error.new: code must be the name of a gRPC status, not \"%s\"",
            name ? name : luaL_typename(L, -1));
    lua_getfield(L, 1, "message");
    const char *message = lua_tostring(L, -1);
    rle_lua_push_error(L, (rle_status)code, message ? message : "", 1);
    lua_pushnil(L);
    while (lua_next(L, 1)) {
        lua_pushvalue(L, -2);
        lua_insert(L, -2);
        lua_rawset(L, -4);
    }
    return 1;
}

static int error_is(lua_State *L)
{
    luaL_checkany(L, 1);
    lua_pushboolean(L, rle_lua_is_error(L, 1));
    return 1;
}

static int code_of_status(const char *code, const char *message)
{
    switch (rle_status_from_name(code)) {
    case RLE_UNAVAILABLE:
        return EX_UNAVAILABLE;
    case RLE_ALREADY_EXISTS:
        return EX_DATAERR;
    case RLE_UNAUTHENTICATED:
        return EX_NOPERM;
    case RLE_RESOURCE_EXHAUSTED:
        return strncmp(message, "out of memory", 13) == 0 ? EX_OSERR : EXIT_FAILURE;
    default:
        return EXIT_FAILURE;
    }
}

/* Lua's own words, also behind those of who passed them on, such as require. */
static bool says_no_memory(lua_State *L, int idx)
{
    static const char words[] = "not enough memory";
    size_t len;
    if (lua_type(L, idx) != LUA_TSTRING) return false;
    const char *text = lua_tolstring(L, idx, &len);
    return len >= sizeof words - 1 &&
           memcmp(text + len - (sizeof words - 1), words, sizeof words - 1) == 0;
}

int rle_lua_exit_code(lua_State *L, int idx)
{
    int code = EXIT_FAILURE, top = lua_gettop(L);
    if (says_no_memory(L, idx)) return EX_OSERR;
    if (!rle_lua_is_error(L, idx)) return code;
    lua_pushvalue(L, idx);
    lua_pushliteral(L, "exit_code");
    lua_rawget(L, -2);
    lua_pushliteral(L, "message");
    lua_rawget(L, top + 1);
    lua_pushliteral(L, "code");
    lua_rawget(L, top + 1);
    double own = lua_type(L, top + 2) == LUA_TNUMBER ? lua_tonumber(L, top + 2) : 0;
    const char *message = lua_tostring(L, top + 3), *name = lua_tostring(L, top + 4);
    if (own >= 1 && own <= 255)
        code = (int)own;
    else if (name)
        code = code_of_status(name, message ? message : "");
    lua_settop(L, top);
    return code;
}

/* error.exit_code(err) -> number */
static int error_exit_code(lua_State *L)
{
    luaL_checkany(L, 1);
    lua_pushinteger(L, rle_lua_exit_code(L, 1));
    return 1;
}

/* ---- options ---- */

const char *rle_lua_nearest(const char *word, const char *const *known)
{
    const char *best = NULL;
    int best_distance = (int)strlen(word) / 2 + 2;
    for (; *known; known++) {
        int d = rle_word_distance(word, *known);
        if (d < best_distance) {
            best_distance = d;
            best = *known;
        }
    }
    return best;
}

bool rle_lua_options(lua_State *L, int idx, const char *const *known)
{
    if (lua_isnoneornil(L, idx)) return false;
    if (!lua_istable(L, idx))
        rle_lua_fail(L, RLE_INVALID_ARGUMENT,
                     "argument %d: expected a table of options, got %s", idx,
                     luaL_typename(L, idx));
    lua_pushnil(L);
    while (lua_next(L, idx)) {
        lua_pop(L, 1);
        if (lua_type(L, -1) != LUA_TSTRING)
            rle_lua_fail(L, RLE_INVALID_ARGUMENT,
                         "argument %d: options are named, a %s is no key", idx,
                         luaL_typename(L, -1));
        const char *key = lua_tostring(L, -1);
        const char *const *k = known;
        while (*k && strcmp(*k, key) != 0) k++;
        if (*k) continue;
        const char *near = rle_lua_nearest(key, known);
        if (near)
            rle_lua_fail(L, RLE_INVALID_ARGUMENT,
                         "unknown option \"%.64s\"; did you mean \"%s\"?", key, near);
        rle_lua_fail(L, RLE_INVALID_ARGUMENT, "unknown option \"%.64s\"", key);
    }
    return true;
}

static bool opt_field(lua_State *L, int idx, const char *key)
{
    if (!lua_istable(L, idx)) return false;
    lua_getfield(L, idx, key);
    if (!lua_isnil(L, -1)) return true;
    lua_pop(L, 1);
    return false;
}

static void wrong_option(lua_State *L, const char *key, const char *want)
{
    rle_lua_fail(L, RLE_INVALID_ARGUMENT, "option \"%s\" must be %s, got %s", key, want,
                 luaL_typename(L, -1));
}

double rle_lua_opt_number(lua_State *L, int idx, const char *key, double fallback)
{
    if (!opt_field(L, idx, key)) return fallback;
    if (lua_type(L, -1) != LUA_TNUMBER) wrong_option(L, key, "a number");
    double v = lua_tonumber(L, -1);
    lua_pop(L, 1);
    return v;
}

int64_t rle_lua_opt_integer(lua_State *L, int idx, const char *key, int64_t fallback)
{
    if (!opt_field(L, idx, key)) return fallback;
    double v = lua_type(L, -1) == LUA_TNUMBER ? lua_tonumber(L, -1) : NAN;
    if (!(v == floor(v)) || fabs(v) > 9007199254740992.0)
        wrong_option(L, key, "an integer");
    lua_pop(L, 1);
    return (int64_t)v;
}

bool rle_lua_opt_boolean(lua_State *L, int idx, const char *key, bool fallback)
{
    if (!opt_field(L, idx, key)) return fallback;
    if (!lua_isboolean(L, -1)) wrong_option(L, key, "true or false");
    bool v = lua_toboolean(L, -1);
    lua_pop(L, 1);
    return v;
}

const char *rle_lua_opt_string(lua_State *L, int idx, const char *key,
                               const char *fallback)
{
    if (!opt_field(L, idx, key)) return fallback;
    if (lua_type(L, -1) != LUA_TSTRING) wrong_option(L, key, "a string");
    const char *v = lua_tostring(L, -1); /* the options table keeps it alive */
    lua_pop(L, 1);
    return v;
}

int64_t rle_lua_check_integer(lua_State *L, int arg)
{
#if LUA_VERSION_NUM >= 503
    if (lua_isinteger(L, arg)) return (int64_t)lua_tointeger(L, arg);
#endif
    double v = lua_type(L, arg) == LUA_TNUMBER ? lua_tonumber(L, arg) : NAN;
    if (!(v == floor(v)) || fabs(v) > 9007199254740992.0) {
        if (lua_type(L, arg) == LUA_TNUMBER)
            rle_lua_fail(L, RLE_INVALID_ARGUMENT,
                         "argument %d: expected an integer, got %.17g", arg, v);
        rle_lua_fail(L, RLE_INVALID_ARGUMENT, "argument %d: expected an integer, got %s",
                     arg, lua_isnone(L, arg) ? "nothing" : luaL_typename(L, arg));
    }
    return (int64_t)v;
}

/* error.nearest(word, list of words) -> the nearest one, or nil when none is near. */
static int error_nearest(lua_State *L)
{
    const char *word = luaL_checkstring(L, 1);
    luaL_checktype(L, 2, LUA_TTABLE);
    size_t n = lua_rawlen(L, 2);
    const char **known = lua_newuserdata(L, (n + 1) * sizeof *known);
    for (size_t i = 0; i < n; i++) {
        lua_rawgeti(L, 2, (int)i + 1);
        known[i] = luaL_checkstring(L, -1); /* the list keeps it alive */
        lua_pop(L, 1);
    }
    known[n] = NULL;
    lua_pushstring(L, rle_lua_nearest(word, known));
    return 1;
}

static const luaL_Reg error_functions[] = {
    {"new", error_new},         {"is", error_is}, {"own_sources", error_own_sources},
    {"nearest", error_nearest}, {"exit_code", error_exit_code}, {NULL, NULL},
};

void rle_lua_open_error(lua_State *L)
{
    lua_newtable(L);
    lua_pushcfunction(L, error_tostring);
    lua_setfield(L, -2, "__tostring");
    lua_pushcfunction(L, error_concat);
    lua_setfield(L, -2, "__concat");
    lua_pushliteral(L, "rlengine.Error");
    lua_setfield(L, -2, "__name");
    rle_rawsetp(L, LUA_REGISTRYINDEX, &error_meta_key);
    lua_newtable(L);
    rle_lua_setfuncs(L, error_functions);
}
