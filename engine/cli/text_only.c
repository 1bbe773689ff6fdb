/* text_only.c - only source text is ever loaded.
 *
 * LuaJIT trusts bytecode: a crafted chunk can read and write any memory. A script is a
 * program anyway, but what a script reads from elsewhere and passes to `load` need not be.
 * So every way from bytes to a function goes through the mode "t" here. This is no
 * sandbox: a script may still load C modules and use the FFI. */
#include "cli/cli_internal.h"

#include <stdio.h>

/* What LuaJIT says when the mode does not allow the chunk, and to bytecode behind a
 * shebang line, which it refuses by itself. */
static bool is_refusal(const char *message)
{
    return strcmp(message, "attempt to load chunk with wrong mode") == 0 ||
           strcmp(message, "cannot load malformed bytecode") == 0 ||
           strcmp(message, "cannot load incompatible bytecode") == 0;
}

/* The message on top is replaced when the reason was bytecode. */
static bool explain_refusal(lua_State *L, const char *name)
{
    const char *message = lua_tostring(L, -1);
    if (!message || !is_refusal(message)) return false;
    lua_pop(L, 1);
    lua_pushfstring(L, "%s: refused: Lua bytecode (only source text is loaded)", name);
    return true;
}

int rle_cli_load_file(lua_State *L, const char *path, bool *bytecode)
{
    int status;
    if (path) {
        status = luaL_loadfilex(L, path, "t");
    } else {
        luaL_Buffer b;
        luaL_buffinit(L, &b);
        size_t n;
        do {
            n = fread(luaL_prepbuffer(&b), 1, LUAL_BUFFERSIZE, stdin);
            luaL_addsize(&b, n);
        } while (n > 0);
        luaL_pushresult(&b);
        size_t size;
        const char *text = lua_tolstring(L, -1, &size);
        lua_getfield(L, LUA_REGISTRYINDEX, RLE_CLI_PROGRAM);
        lua_pushvalue(L, -2);
        lua_setfield(L, -2, "source");
        lua_pop(L, 1);
        status = luaL_loadbufferx(L, text, size, "=stdin", "t");
        if (ferror(stdin)) {
            lua_pop(L, 1);
            lua_pushliteral(L, "cannot read standard input");
            status = LUA_ERRFILE;
        }
        lua_remove(L, -2);
    }
    *bytecode = status != 0 && explain_refusal(L, path ? path : "stdin");
    return status;
}

/* Chunk names as people see them: "=name" and "@name" without the sign. */
static const char *shown_name(lua_State *L, int idx, const char *fallback)
{
    const char *name = lua_type(L, idx) == LUA_TSTRING ? lua_tostring(L, idx) : fallback;
    return name[0] == '=' || name[0] == '@' ? name + 1 : name;
}

/* Call the original function (upvalue 1) with the argument at `mode_arg` forced to text. */
static int load_as_text(lua_State *L, int mode_arg, const char *name)
{
    if (lua_gettop(L) < mode_arg) lua_settop(L, mode_arg);
    const char *mode = lua_tostring(L, mode_arg);
    lua_pushstring(L, !mode || strchr(mode, 't') ? "t" : "");
    lua_replace(L, mode_arg);
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_insert(L, 1);
    lua_call(L, lua_gettop(L) - 1, LUA_MULTRET);
    if (lua_gettop(L) == 2 && lua_isnil(L, 1)) explain_refusal(L, name);
    return lua_gettop(L);
}

/* load(chunk [, name [, mode [, env]]]), loadstring the same */
static int text_load(lua_State *L)
{
    int type = lua_type(L, 1);
    if (type != LUA_TSTRING && type != LUA_TFUNCTION && type != LUA_TNUMBER)
        return luaL_argerror(L, 1, "string or function expected");
    return load_as_text(L, 3, shown_name(L, 2, "load"));
}

/* loadfile([name [, mode [, env]]]) */
static int text_loadfile(lua_State *L)
{
    return load_as_text(L, 2, luaL_optstring(L, 1, "stdin"));
}

static int text_dofile(lua_State *L)
{
    const char *path = luaL_optstring(L, 1, NULL);
    lua_settop(L, 1);
    if (luaL_loadfilex(L, path, "t") != 0) {
        explain_refusal(L, path ? path : "stdin");
        return lua_error(L);
    }
    lua_call(L, 0, LUA_MULTRET);
    return lua_gettop(L) - 1;
}

/* Searcher for Lua files along package.path. Upvalues: package, package.searchpath. */
static int text_searcher(lua_State *L)
{
    const char *module = luaL_checkstring(L, 1);
    lua_pushvalue(L, lua_upvalueindex(2));
    lua_pushvalue(L, 1);
    lua_getfield(L, lua_upvalueindex(1), "path");
    if (!lua_isstring(L, -1)) return luaL_error(L, "'package.path' must be a string");
    lua_call(L, 2, 2);
    if (lua_isnil(L, -2)) return 1; /* where it was looked for */
    lua_pop(L, 1);
    const char *path = lua_tostring(L, -1);
    if (luaL_loadfilex(L, path, "t") != 0) {
        explain_refusal(L, path);
        return luaL_error(L, "error loading module '%s' from file '%s':\n\t%s", module, path,
                          lua_tostring(L, -1));
    }
    return 1;
}

static void wrap_global(lua_State *L, const char *name, lua_CFunction replacement)
{
    lua_getglobal(L, name);
    lua_pushcclosure(L, replacement, 1);
    lua_setglobal(L, name);
}

void rle_cli_text_only(lua_State *L)
{
    wrap_global(L, "load", text_load);
    wrap_global(L, "loadstring", text_load);
    wrap_global(L, "loadfile", text_loadfile);
    lua_pushcfunction(L, text_dofile);
    lua_setglobal(L, "dofile");

    lua_getglobal(L, "package");
    lua_getfield(L, -1, "loaders");
    lua_pushvalue(L, -2);
    lua_getfield(L, -1, "searchpath");
    lua_pushcclosure(L, text_searcher, 2);
    lua_rawseti(L, -2, 2);
    lua_pop(L, 2);
}
