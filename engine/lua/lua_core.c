/* lua_core.c - the module `rlengine.core`, and how an engine call finds its context.
 *
 * A coroutine that enters the engine gets an rle_context of its own, made at its first
 * entry with the modes of whoever was running then. Contexts live in a table with weak
 * keys, so they go with their coroutine; the coroutine whose context is current is also
 * held strongly, so that the current context can never dangle. */
#include "lua/lua_internal.h"

#include "base/mem.h"

static const char contexts_key, current_key, module_key;

static int context_gc(lua_State *L)
{
    rle_context *c = lua_touserdata(L, 1);
    rle_lua_scopes_leave(c);
    if (rle_context_current() == c) rle_context_switch(NULL);
    return 0;
}

/* Lines met lately, with their sites; 0 for a line of the engine's own files. Loops ask for
 * few lines, many times. An entry is believed when its text is still the chunk's: sources
 * are strings that the collector may replace. */
typedef struct recent {
    const char *source;
    int line;
    uint32_t site;
    char text[LUA_IDSIZE];
} recent;

static recent recents[64];

static uint32_t site_of(const lua_Debug *ar)
{
    size_t slot = ((uintptr_t)ar->source / 16 + (unsigned)ar->currentline) % 64;
    recent *r = &recents[slot];
    if (r->source == ar->source && r->line == ar->currentline &&
        strcmp(r->text, ar->short_src) == 0)
        return r->site;
    bool own = rle_lua_is_own_source(ar->source);
    r->site = own ? 0 : rle_site_intern(ar->short_src, ar->currentline);
    r->source = own || r->site ? ar->source : NULL; /* a full table is asked again */
    r->line = ar->currentline;
    memcpy(r->text, ar->short_src, sizeof r->text);
    return r->site;
}

/* The script line that runs now: the innermost Lua function that is not the engine's own. */
static uint32_t resolve_site(rle_context *c)
{
    lua_Debug ar;
    /* Level 0 is the C function that entered the engine. */
    for (int level = 1; lua_getstack(c->lua, level, &ar); level++) {
        lua_getinfo(c->lua, "Sl", &ar);
        uint32_t site = ar.currentline > 0 ? site_of(&ar) : 0;
        if (site) return site;
    }
    return 0;
}

/* Push the context userdata of coroutine L, making one if need be. */
static rle_context *push_context(lua_State *L)
{
    rle_rawgetp(L, LUA_REGISTRYINDEX, &contexts_key);
    lua_pushthread(L);
    lua_rawget(L, -2);
    rle_context *c = lua_touserdata(L, -1);
    if (!c) {
        lua_pop(L, 1);
        rle_context *parent = rle_context_current();
        c = lua_newuserdata(L, sizeof *c);
        rle_context_init(c);
        c->grad_enabled = parent->grad_enabled;
        c->owner = parent->owner;
        c->rng = parent->rng == &parent->own_rng ? &rle_default_rng : parent->rng;
        c->resolve = resolve_site;
        c->lua = L;
        lua_newtable(L);
        lua_pushcfunction(L, context_gc);
        lua_setfield(L, -2, "__gc");
        lua_setmetatable(L, -2);
        lua_pushthread(L);
        lua_pushvalue(L, -2);
        lua_rawset(L, -4);
    }
    lua_remove(L, -2);
    return c;
}

void rle_lua_switch_context(lua_State *L)
{
    luaL_checkstack(L, 6, "engine context");
    rle_context *c = push_context(L);
    lua_pop(L, 1);
    lua_pushthread(L);
    rle_rawsetp(L, LUA_REGISTRYINDEX, &current_key);
    rle_context_switch(c);
}

void rle_lua_hold(lua_State *L)
{
    lua_pushthread(L);
    rle_rawsetp(L, LUA_REGISTRYINDEX, &current_key);
}

void rle_lua_interrupted(lua_State *L)
{
    rle_interrupted = 0;
    rle_lua_fail(L, RLE_CANCELLED, "interrupted");
}

/* core.host_memory() -> bytes, blocks of the engine's own structures; script lines noted so
 * far, each of which keeps a block. */
static int core_host_memory(lua_State *L)
{
    lua_pushnumber(L, (lua_Number)rle_mem_bytes());
    lua_pushnumber(L, (lua_Number)rle_mem_blocks());
    lua_pushnumber(L, rle_site_count());
    return 3;
}

static const luaL_Reg core_functions[] = {
    {"host_memory", core_host_memory},
    {NULL, NULL},
};

static void open_into(lua_State *L, const char *name, void (*open)(lua_State *))
{
    open(L);
    lua_setfield(L, -2, name);
}

/* Opened twice in one state (package.loaded was cleared) the module is the same table:
 * metatables must not change under objects that exist. */
__attribute__((visibility("default"))) int luaopen_rlengine_core(lua_State *L)
{
    rle_rawgetp(L, LUA_REGISTRYINDEX, &module_key);
    if (lua_istable(L, -1)) return 1;
    lua_newtable(L);
    lua_newtable(L);
    lua_pushliteral(L, "k");
    lua_setfield(L, -2, "__mode");
    lua_setmetatable(L, -2);
    rle_rawsetp(L, LUA_REGISTRYINDEX, &contexts_key);

    lua_newtable(L);
    rle_lua_setfuncs(L, core_functions);
    open_into(L, "error", rle_lua_open_error);
    open_into(L, "device", rle_lua_open_device);
    open_into(L, "memory", rle_lua_open_memory);
    open_into(L, "tensor", rle_lua_open_tensor);
    open_into(L, "autograd", rle_lua_open_autograd);
    open_into(L, "nn", rle_lua_open_nn);
    open_into(L, "optim", rle_lua_open_optim);
    open_into(L, "rewards", rle_lua_open_rewards);
    open_into(L, "env", rle_lua_open_env);
    open_into(L, "rpc", rle_lua_open_rpc);
    open_into(L, "comm", rle_lua_open_comm);
    open_into(L, "io", rle_lua_open_io);
    open_into(L, "launch", rle_lua_open_launch);
    lua_pushvalue(L, -1);
    rle_rawsetp(L, LUA_REGISTRYINDEX, &module_key);
    return 1;
}
