/* lua_compat.h - one spelling for LuaJIT, PUC Lua 5.1 and 5.4.
 *
 * Code in engine/lua is written against the 5.2+ names below. */
#ifndef RLE_LUA_COMPAT_H
#define RLE_LUA_COMPAT_H

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

#include <stdint.h>
#include <string.h>

#if LUA_VERSION_NUM < 502

#define lua_rawlen(L, i) lua_objlen((L), (i))
#define rle_absindex(L, i) ((i) > 0 || (i) <= LUA_REGISTRYINDEX ? (i) : lua_gettop(L) + (i) + 1)
#define rle_rawgetp(L, i, p)                                                             \
    (lua_pushlightuserdata((L), (void *)(p)), lua_rawget((L), (i)))
/* Value on top becomes t[p]; `i` must not be relative. */
#define rle_rawsetp(L, i, p)                                                             \
    (lua_pushlightuserdata((L), (void *)(p)), lua_insert((L), -2), lua_rawset((L), (i)))
#define rle_setuservalue(L, i) lua_setfenv((L), (i))
#define rle_getuservalue(L, i) lua_getfenv((L), (i))

static inline int rle_resume(lua_State *co, lua_State *from, int nargs, int *nresults)
{
    (void)from;
    int status = lua_resume(co, nargs);
    *nresults = lua_gettop(co);
    return status;
}

#else

#define rle_absindex(L, i) lua_absindex((L), (i))
#define rle_rawgetp(L, i, p) lua_rawgetp((L), (i), (p))
#define rle_rawsetp(L, i, p) lua_rawsetp((L), (i), (p))
#define rle_setuservalue(L, i) lua_setuservalue((L), (i))
#define rle_getuservalue(L, i) lua_getuservalue((L), (i))

static inline int rle_resume(lua_State *co, lua_State *from, int nargs, int *nresults)
{
#if LUA_VERSION_NUM >= 504
    return lua_resume(co, from, nargs, nresults);
#else
    int status = lua_resume(co, from, nargs);
    *nresults = lua_gettop(co);
    return status;
#endif
}

#endif

/* f, with ud as its light userdata, protected: nothing that may raise goes before it.
 * Takes two places of the stack; an error is left on top. */
static inline int rle_cpcall(lua_State *L, lua_CFunction f, void *ud)
{
#if LUA_VERSION_NUM >= 502
    lua_pushcfunction(L, f);
    lua_pushlightuserdata(L, ud);
    return lua_pcall(L, 1, 0, 0);
#else
    return lua_cpcall(L, f, ud);
#endif
}

/* A size or count: an integer where Lua has them, so that it prints as one. */
static inline void rle_push_count(lua_State *L, int64_t n)
{
#if LUA_VERSION_NUM >= 503
    lua_pushinteger(L, (lua_Integer)n);
#else
    lua_pushnumber(L, (lua_Number)n);
#endif
}

/* Own, because PUC 5.1 has no luaL_setfuncs: functions of `l` into the table on top. */
static inline void rle_lua_setfuncs(lua_State *L, const luaL_Reg *l)
{
    for (; l->name; l++) {
        lua_pushcfunction(L, l->func);
        lua_setfield(L, -2, l->name);
    }
}

#endif
