/* lua_tensor.h - the tensor handle, between the files that bind tensors.
 *
 * A Lua tensor is a userdata with one reference on a C tensor. Handles made inside an
 * rl.scope stand in that scope's list and are closed when it ends. A closed handle keeps
 * the name of what closed it, for the error that its next use raises. */
#ifndef RLE_LUA_TENSOR_H
#define RLE_LUA_TENSOR_H

#include "lua/lua_internal.h"

#include "autograd/autograd.h"

#define RLE_HANDLE_MAGIC 0x726c652e54656e73u

typedef struct rle_lua_handle {
    uint64_t magic;
    rle_tensor *t;      /* NULL: closed */
    uint32_t closed_at; /* site of the scope or free() that closed it */
    bool by_scope;
    bool by_batch;               /* it was rows of a batch, which is over */
    struct rle_lua_scope *scope; /* NULL: in none */
    struct rle_lua_handle *prev, *next;
} rle_lua_handle;

/* The handle at idx, or NULL when the value is none. */
static inline rle_lua_handle *rle_lua_to_handle(lua_State *L, int idx)
{
    rle_lua_handle *h = lua_touserdata(L, idx);
    if (!h || lua_rawlen(L, idx) != sizeof *h) return NULL; /* light ones have no length */
    return h->magic == RLE_HANDLE_MAGIC ? h : NULL;
}

/* What a number fills integers and bools of `dtype` with: its whole part; for bool,
 * whether it is anything but 0. Raises for NaN and what `dtype` cannot hold;
 * lua_create.c. */
int64_t rle_lua_check_whole(lua_State *L, rle_dtype dtype, double v);

/* ---- options of creation functions: {dtype=, device=, requires_grad=} ---- */
typedef struct rle_lua_create {
    rle_dtype dtype;
    rle_device *device;
    bool requires_grad;
    bool has_dtype;
} rle_lua_create;
void rle_lua_check_create(lua_State *L, int idx, rle_dtype dtype, rle_device *device,
                          rle_lua_create *out);
/* Sizes from arguments first.. (numbers, or one table), up to an options table, whose index
 * (or 0) is returned. */
int rle_lua_check_shape(lua_State *L, int first, int *ndim, int64_t *shape);

/* Tables of functions to add to core.tensor. */
extern const luaL_Reg rle_lua_create_functions[]; /* lua_create.c */
extern const luaL_Reg rle_lua_shape_functions[];  /* lua_shape.c */
extern const luaL_Reg rle_lua_index_functions[];  /* lua_index.c */
void rle_lua_add_ops(lua_State *L);               /* lua_ops.c: into the table on top */

void rle_lua_add_plans(lua_State *L);             /* lua_plan.c: into the table on top */

/* t[key] and t[key] = value for positions and ranges; lua_index.c. */
int rle_lua_tensor_index(lua_State *L);
int rle_lua_tensor_newindex(lua_State *L);

/* Push the result of an operation. */
int rle_lua_apply(lua_State *L, rle_op_id id, rle_tensor *const *in, int nin,
                  const rle_op_args *args);

#endif
