/* lua_env.h - what the bindings of environments share (lua_env.c, lua_env_space.c,
 * lua_env_value.c, lua_env_vector.c): spaces as userdata, values of spaces to and from
 * Lua.
 *
 * In Lua a value of a Discrete space is a number, a value of a Box a tensor; scripts may
 * also hand over tables of numbers, or a number for a Box of one element, and tensors of
 * one integer for a Discrete. */
#ifndef RLE_LUA_ENV_H
#define RLE_LUA_ENV_H

#include "env/env.h"
#include "lua/lua_internal.h"

/* ---- spaces ---- */

/* Push a space of its own: a copy of `s` with its bounds. */
void rle_lua_push_space(lua_State *L, const rle_space *s);
/* The space at idx, or NULL. Borrowed: valid while the userdata is. */
const rle_space *rle_lua_to_space(lua_State *L, int idx);
const rle_space *rle_lua_check_space(lua_State *L, int idx);

/* ---- values ---- */

/* The value at idx into `out`, rle_space_bytes(s) of it. Checks type, shape and that each
 * number fits the dtype; not the bounds. On failure INVALID_ARGUMENT with a message that
 * says what was expected and what came, and `out` may be half written. Raises nothing. */
rle_status rle_lua_read_value(lua_State *L, int idx, const rle_space *s, void *out);
/* Push `value`: a number or a fresh tensor. */
void rle_lua_push_value(lua_State *L, const rle_space *s, const void *value);
/* Push `value` as a number or as nested tables of numbers. */
void rle_lua_push_plain(lua_State *L, const rle_space *s, const void *value);
/* env.plain(space, value) -> the same of a value that a script hands over; the bounds are
 * not checked. */
int rle_lua_env_plain(lua_State *L);
/* Push an uninitialised tensor on the CPU, counted as an environment's. Once it is filled
 * it moves: rle_lua_to_default. */
struct rle_tensor *rle_lua_push_env_tensor(lua_State *L, rle_dtype dtype, int ndim,
                                           const int64_t *shape);
/* "-1", "\"left\"", "nil", "a table", "a f32[4] tensor": the value at idx for a
 * message. */
char *rle_lua_describe_value(lua_State *L, int idx, char *out, size_t size);

/* The seed at idx: an integer from 0; raises naming `what`. False for nil and none. */
bool rle_lua_env_seed(lua_State *L, int idx, const char *what, uint64_t *seed);

/* Scratch memory of at least `size` bytes, aligned for any element: `small` when it is
 * large enough, else a userdata that is pushed and must stay on the stack while used.
 * Pushes exactly one value either way. */
void *rle_lua_scratch(lua_State *L, void *small, size_t small_size, size_t size);

/* True when the full userdata at idx has the metatable that was stored under `key`. */
void *rle_lua_env_userdata(lua_State *L, int idx, const void *key);

/* ---- openers: add their functions to the table on top ---- */

/* Box and Discrete; lua_env_space.c. */
void rle_lua_open_env_space(lua_State *L);
/* Vectors of environments; lua_env_vector.c. */
void rle_lua_open_env_vector(lua_State *L);

#endif
