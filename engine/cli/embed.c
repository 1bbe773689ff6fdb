/* embed.c - `require` for the Lua files that are part of the program.
 *
 * The searcher stands right behind package.preload, so the program never picks up another
 * version of its own files from LUA_PATH. Chunks are named "=rlengine/<file>", by which
 * errors and memory reports know the engine's lines from the script's. */
#include "cli/cli_internal.h"

#include <stdio.h>

static const rle_embedded_file *find(const char *name)
{
    for (const rle_embedded_file *f = rle_embedded_files; f->name; f++)
        if (strcmp(f->name, name) == 0) return f;
    return NULL;
}

static int searcher(lua_State *L)
{
    const char *module = luaL_checkstring(L, 1);
    char path[128], name[sizeof path + 16];
    if (strncmp(module, "rlengine", 8) != 0 || strlen(module) >= sizeof path) return 0;
    snprintf(path, sizeof path, "%s", module);
    for (char *p = path; *p; p++)
        if (*p == '.') *p = '/';
    snprintf(name, sizeof name, "%s.lua", path);
    const rle_embedded_file *f = find(name);
    if (!f) {
        snprintf(name, sizeof name, "%s/init.lua", path);
        f = find(name);
    }
    if (!f) {
        lua_pushfstring(L, "\n\tno file '%s.lua' inside the program", path);
        return 1;
    }
    lua_pushfstring(L, "=%s", f->name);
    if (luaL_loadbufferx(L, f->text, (size_t)(f->end - f->text), lua_tostring(L, -1), "t") != 0)
        return luaL_error(L, "error loading module '%s':\n\t%s", module, lua_tostring(L, -1));
    return 1;
}

void rle_cli_embed(lua_State *L)
{
    lua_getglobal(L, "package");
    lua_getfield(L, -1, "preload");
    lua_pushcfunction(L, luaopen_rlengine_core);
    lua_setfield(L, -2, "rlengine.core");
    lua_pop(L, 1);

    lua_getfield(L, -1, "loaders");
    for (int i = (int)lua_rawlen(L, -1); i >= 2; i--) {
        lua_rawgeti(L, -1, i);
        lua_rawseti(L, -2, i + 1);
    }
    lua_pushcfunction(L, searcher);
    lua_rawseti(L, -2, 2);
    lua_pop(L, 2);
}
