/* lua_module.h - what the program takes from the Lua side of the engine.
 *
 * All of it runs on the thread that owns the Lua state. */
#ifndef RLE_LUA_MODULE_H
#define RLE_LUA_MODULE_H

#include <stdbool.h>

#include "base/status.h"
#include "lua/lua_compat.h"

/* The module `rlengine.core`: returns its table. */
int luaopen_rlengine_core(lua_State *L);

/* Push a new error object {code, message, where, traceback} without raising it.
 * `level`: the Lua stack level whose line is `where` (1 = caller of the C function). */
void rle_lua_push_error(lua_State *L, rle_status code, const char *message, int level);

/* True when the value at idx is an error object (of rle_lua_push_error). */
bool rle_lua_is_error(lua_State *L, int idx);

/* What a process ends with when nobody caught the error value at `idx`, after sysexits.h: 69
 * (UNAVAILABLE), 65 (ALREADY_EXISTS), 77 (UNAUTHENTICATED), 71 (no memory), the error
 * object's own exit_code (78: a setting that is refused), and 1 for all else. */
int rle_lua_exit_code(lua_State *L, int idx);

/* Serve remote calls until descriptor `fd` is readable or a signal arrives, then return
 * true; false at once when this process has no worker (no rpc.init), so that the caller
 * waits by itself. May raise. The prompt waits for keys in it. */
bool rle_lua_rpc_pump(lua_State *L, int fd);

/* The process is about to end well: tell the workers it is connected to that it leaves,
 * and send what waits to be sent, for half a second at most. Runs no Lua, waits for no
 * call. Does nothing without a worker, or in a child of the process that has it. */
void rle_lua_rpc_leave(void);

#endif
