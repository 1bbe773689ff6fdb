/* lua_internal.h - what the files of engine/lua share.
 *
 * Each lua_<layer>.c binds one layer and exports one `rle_lua_open_<layer>` that leaves a
 * table of functions on the stack; lua_core.c collects them into the module
 * `rlengine.core`. Scripts never see that module: lua/rlengine/ wraps it.
 *
 * Rules
 *   - every bound function begins with rle_lua_enter(L): it notices Ctrl-C, makes the
 *     coroutine's engine context current and forgets the last script line;
 *   - a failed rle_status is raised with rle_lua_check(L, status): no function returns it;
 *   - Lua errors unwind by longjmp: own nothing that is not anchored in a userdata or freed
 *     before the call that may raise. Finalizers never raise. */
#ifndef RLE_LUA_INTERNAL_H
#define RLE_LUA_INTERNAL_H

#include "lua/lua_compat.h"
#include "lua/lua_module.h"

#include "base/context.h"
#include "base/status.h"

/* ---- entry and errors: lua_core.c, lua_error.c ---- */

void rle_lua_switch_context(lua_State *L); /* slow path of rle_lua_enter */
/* L goes on after a coroutine that will not: that one, with all that is on its stack, is
 * not held any more for being the last that entered. */
void rle_lua_hold(lua_State *L);
void rle_lua_interrupted(lua_State *L);    /* raises CANCELLED: interrupted */

static inline rle_context *rle_lua_enter(lua_State *L)
{
    if (rle_interrupted) rle_lua_interrupted(L);
    rle_context *c = rle_context_current();
    if (c->lua != L) {
        rle_lua_switch_context(L);
        c = rle_context_current();
    }
    c->site = 0;
    return c;
}

/* Raise rle_message() as an error object unless status is RLE_OK. */
int rle_lua_raise(lua_State *L, rle_status code);
static inline void rle_lua_check(lua_State *L, rle_status status)
{
    if (status != RLE_OK) rle_lua_raise(L, status);
}

/* Raise an error object with a formatted message. Never returns. */
int rle_lua_fail(lua_State *L, rle_status code, const char *fmt, ...) RLE_PRINTF(3, 4);

/* Make the table on top an error object. */
void rle_lua_set_error_meta(lua_State *L);

/* True for chunk names (lua_Debug.source) of the engine's own Lua files. */
bool rle_lua_is_own_source(const char *source);

/* A number for a message: the NaN of x86's 0/0 has a sign, which printf would show. */
static inline double rle_lua_shown(double v)
{
    return v != v ? __builtin_nan("") : v;
}

/* ---- tables of options ---- */

/* The value at idx must be a table (or none/nil) whose keys are among `known` (NULL-ended);
 * otherwise INVALID_ARGUMENT naming the key and the nearest known one. True if a table. */
bool rle_lua_options(lua_State *L, int idx, const char *const *known);
/* Fields of an options table; `fallback` when absent. Wrong type raises naming the field. */
double rle_lua_opt_number(lua_State *L, int idx, const char *key, double fallback);
int64_t rle_lua_opt_integer(lua_State *L, int idx, const char *key, int64_t fallback);
bool rle_lua_opt_boolean(lua_State *L, int idx, const char *key, bool fallback);
const char *rle_lua_opt_string(lua_State *L, int idx, const char *key, const char *fallback);

/* Nearest of `known` (NULL-ended) to `word` by edit distance; NULL when none is near. */
const char *rle_lua_nearest(const char *word, const char *const *known);

/* Integer argument: a number without fraction within +-2^53, or an int64 cdata/integer. */
int64_t rle_lua_check_integer(lua_State *L, int arg);

/* ---- tensors, for the other bindings: lua_tensor.c ---- */
struct rle_tensor;
struct rle_tensor *rle_lua_check_tensor(lua_State *L, int arg); /* borrowed; raises */
struct rle_tensor *rle_lua_to_tensor(lua_State *L, int idx);    /* borrowed; NULL if not one */
/* Push an empty handle and return where to put the tensor's reference. The safe way to
 * make one: compute into the slot, then check the status; a handle left empty is garbage. */
struct rle_tensor **rle_lua_new_tensor(lua_State *L);
/* Push a handle with a reference of its own. */
void rle_lua_push_tensor(lua_State *L, struct rle_tensor *t);
/* Positions: dimension argument 1..ndim or -1..-ndim -> 0..ndim-1. */
int rle_lua_check_dim(lua_State *L, int arg, int ndim);

/* ---- devices: lua_device.c ---- */
struct rle_device;
/* Device argument: a name, or the userdata of rl.device. */
struct rle_device *rle_lua_check_device(lua_State *L, int idx);
bool rle_lua_is_device(lua_State *L, int idx); /* the userdata */
void rle_lua_push_device(lua_State *L, struct rle_device *dev);
/* Where tensors are made when no device is named. Raises when RLENGINE_DEVICE names one
 * that is not there. */
struct rle_device *rle_lua_default_device(lua_State *L);
/* The `count` values from idx on: those that are tensors, all fresh, on the CPU and
 * without history, move to the default device, on the account of the same owner. */
void rle_lua_to_default(lua_State *L, int idx, int count);

/* ---- scopes: lua_scope.c ---- */
struct rle_lua_handle;
void rle_lua_scope_add(struct rle_lua_handle *h); /* to the running one */
void rle_lua_scope_remove(struct rle_lua_handle *h);
/* The context goes: what scopes it still has belong to none. */
void rle_lua_scopes_leave(rle_context *c);
void rle_lua_add_scopes(lua_State *L); /* into core.memory, the table on top */

/* ---- the collector: lua_collector.c ---- */
/* Collector work for the bytes allocated since the last call. Raises what a finalizer
 * raises. */
void rle_lua_pay_debt(lua_State *L);
/* A device that is full has garbage collected. */
void rle_lua_open_collector(lua_State *L);

/* ---- one opener a layer ---- */
void rle_lua_open_error(lua_State *L);
void rle_lua_open_device(lua_State *L);
void rle_lua_open_memory(lua_State *L);
void rle_lua_open_tensor(lua_State *L);
void rle_lua_open_nn(lua_State *L);
void rle_lua_open_autograd(lua_State *L);
void rle_lua_open_optim(lua_State *L);
void rle_lua_open_rewards(lua_State *L);
void rle_lua_open_env(lua_State *L);
void rle_lua_open_rpc(lua_State *L);
void rle_lua_open_comm(lua_State *L);
void rle_lua_open_io(lua_State *L);
void rle_lua_open_launch(lua_State *L);

#endif
