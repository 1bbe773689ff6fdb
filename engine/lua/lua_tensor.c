/* lua_tensor.c - the tensor handle: life, fields, arithmetic metamethods, conversions.
 *
 * lua/rlengine/tensor.lua completes the metatable with __index: methods first, then the
 * fields answered here. */
#include "lua/lua_tensor.h"

#include <math.h>
#include <stdio.h>

#include "base/mem.h"

enum { HANDLE_META = 0x726c6554 }; /* registry key of the metatable: a number is found faster */

/* ---- handles ---- */

struct rle_tensor **rle_lua_new_tensor(lua_State *L)
{
    if (rle_device_debt >= (size_t)1 << 20) rle_lua_pay_debt(L);
    rle_lua_handle *h = lua_newuserdata(L, sizeof *h);
    h->magic = RLE_HANDLE_MAGIC;
    h->t = NULL;
    h->closed_at = 0;
    h->by_scope = h->by_batch = false;
    h->scope = NULL;
    lua_rawgeti(L, LUA_REGISTRYINDEX, HANDLE_META);
    lua_setmetatable(L, -2);
    if (rle_context_current()->scope) rle_lua_scope_add(h);
    return &h->t;
}

void rle_lua_push_tensor(lua_State *L, struct rle_tensor *t)
{
    rle_tensor **slot = rle_lua_new_tensor(L); /* first: it may raise */
    *slot = rle_tensor_retain(t);
}

struct rle_tensor *rle_lua_to_tensor(lua_State *L, int idx)
{
    rle_lua_handle *h = rle_lua_to_handle(L, idx);
    return h ? h->t : NULL;
}

struct rle_tensor *rle_lua_check_tensor(lua_State *L, int arg)
{
    rle_lua_handle *h = rle_lua_to_handle(L, arg);
    if (h && h->t) return h->t;
    if (h && h->by_scope)
        rle_lua_fail(
            L, RLE_FAILED_PRECONDITION,
            "argument %d: this tensor was closed at the end of the rl.scope at %s; "
            "return it from the scope or pass it to rl.keep",
            arg, rle_site_name(h->closed_at));
    if (h && h->by_batch)
        rle_lua_fail(
            L, RLE_FAILED_PRECONDITION,
            "argument %d: this tensor was the rows of a batch that has been answered; "
            "keep a copy of it, t:clone()",
            arg);
    if (h)
        rle_lua_fail(L, RLE_FAILED_PRECONDITION,
                     "argument %d: this tensor was freed at %s", arg,
                     rle_site_name(h->closed_at));
    rle_lua_fail(L, RLE_INVALID_ARGUMENT, "argument %d: expected a tensor, got %s", arg,
                 lua_isnone(L, arg) ? "nothing" : luaL_typename(L, arg));
    return NULL;
}

static int handle_gc(lua_State *L)
{
    rle_lua_handle *h = rle_lua_to_handle(L, 1);
    if (!h) return 0;
    if (h->scope) rle_lua_scope_remove(h);
    rle_tensor *t = h->t;
    h->t = NULL;
    rle_tensor_release(t);
    return 0;
}

/* t:free(): give the reference back now. The memory goes when the graph lets go as well.
 */
static int tensor_free(lua_State *L)
{
    rle_context *c = rle_lua_enter(L);
    rle_lua_handle *h = rle_lua_to_handle(L, 1);
    if (!h) rle_lua_check_tensor(L, 1);
    if (!h->t) return 0;
    h->closed_at = rle_context_site(c);
    h->by_scope = false;
    return handle_gc(L);
}

int rle_lua_check_dim(lua_State *L, int arg, int ndim)
{
    int64_t d = rle_lua_check_integer(L, arg);
    if (d >= 1 && d <= ndim) return (int)d - 1;
    if (d <= -1 && d >= -ndim) return (int)d + ndim;
    if (d == 0)
        rle_lua_fail(L, RLE_INVALID_ARGUMENT,
                     "dimension 0: dimensions count from 1; -1 is the last");
    rle_lua_fail(L, RLE_INVALID_ARGUMENT, "dimension %d of a tensor of %d dimension%s",
                 (int)d, ndim, ndim == 1 ? "" : "s");
    return 0;
}

/* ---- fields ---- */

static void push_sizes(lua_State *L, const int64_t *v, int n)
{
    lua_createtable(L, n, 0);
    for (int i = 0; i < n; i++) {
        rle_push_count(L, v[i]);
        lua_rawseti(L, -2, i + 1);
    }
}

/* field(t, key): shape, dtype, device, grad, requires_grad, is_leaf; nil for others. */
static int tensor_field(lua_State *L)
{
    rle_lua_enter(L);
    rle_tensor *t = rle_lua_check_tensor(L, 1);
    if (lua_type(L, 2) != LUA_TSTRING) return rle_lua_tensor_index(L);
    const char *key = lua_tostring(L, 2);
    if (strcmp(key, "shape") == 0) {
        push_sizes(L, t->a.shape, t->a.ndim);
    } else if (strcmp(key, "dtype") == 0) {
        lua_pushstring(L, rle_dtype_name(t->a.dtype));
    } else if (strcmp(key, "device") == 0) {
        rle_lua_push_device(L, rle_tensor_device(t));
    } else if (strcmp(key, "grad") == 0) {
        if (t->grad)
            rle_lua_push_tensor(L, t->grad);
        else
            lua_pushnil(L);
    } else if (strcmp(key, "requires_grad") == 0) {
        lua_pushboolean(L, t->requires_grad);
    } else if (strcmp(key, "is_leaf") == 0) {
        lua_pushboolean(L, !t->grad_fn);
    } else if (strcmp(key, "grad_fn") == 0) {
        if (t->grad_fn)
            lua_pushstring(L, t->grad_fn->custom ? t->grad_fn->custom->name
                                                 : t->grad_fn->op->name);
        else
            lua_pushnil(L);
    } else {
        lua_pushnil(L);
    }
    return 1;
}

/* t.grad = nil or a tensor; t.requires_grad = boolean; t[i] = value. */
static int tensor_newindex(lua_State *L)
{
    rle_lua_enter(L);
    rle_tensor *t = rle_lua_check_tensor(L, 1);
    if (lua_type(L, 2) != LUA_TSTRING) return rle_lua_tensor_newindex(L);
    const char *key = lua_tostring(L, 2);
    if (strcmp(key, "grad") == 0) {
        rle_tensor *g = lua_isnil(L, 3) ? NULL : rle_lua_check_tensor(L, 3);
        if (g) {
            bool same = g->a.ndim == t->a.ndim && g->a.dtype == t->a.dtype;
            for (int i = 0; same && i < t->a.ndim; i++)
                same = g->a.shape[i] == t->a.shape[i];
            char have[128], want[128];
            if (!same)
                return rle_lua_fail(L, RLE_INVALID_ARGUMENT,
                                    "grad: the tensor is %s, got %s",
                                    rle_array_describe(&t->a, want, sizeof want),
                                    rle_array_describe(&g->a, have, sizeof have));
            rle_tensor_retain(g);
        }
        rle_tensor_release(t->grad);
        t->grad = g;
        return 0;
    }
    if (strcmp(key, "requires_grad") == 0) {
        rle_lua_check(L, rle_set_requires_grad(t, lua_toboolean(L, 3)));
        return 0;
    }
    return rle_lua_fail(L, RLE_INVALID_ARGUMENT, "a tensor has no field \"%.64s\" to set",
                        key);
}

static int tensor_size(lua_State *L)
{
    rle_lua_enter(L);
    rle_tensor *t = rle_lua_check_tensor(L, 1);
    if (!lua_isnoneornil(L, 2)) {
        rle_push_count(L, t->a.shape[rle_lua_check_dim(L, 2, t->a.ndim)]);
        return 1;
    }
    luaL_checkstack(L, t->a.ndim, "size");
    for (int i = 0; i < t->a.ndim; i++) rle_push_count(L, t->a.shape[i]);
    return t->a.ndim;
}

static int tensor_stride(lua_State *L)
{
    rle_lua_enter(L);
    rle_tensor *t = rle_lua_check_tensor(L, 1);
    push_sizes(L, t->a.stride, t->a.ndim);
    return 1;
}

static int tensor_dim(lua_State *L)
{
    lua_pushinteger(L, rle_lua_check_tensor(L, 1)->a.ndim);
    return 1;
}

static int tensor_numel(lua_State *L)
{
    rle_push_count(L, rle_tensor_numel(rle_lua_check_tensor(L, 1)));
    return 1;
}

static int tensor_is_contiguous(lua_State *L)
{
    lua_pushboolean(L, rle_tensor_is_contiguous(rle_lua_check_tensor(L, 1)));
    return 1;
}

static int tensor_len(lua_State *L)
{
    rle_tensor *t = rle_lua_check_tensor(L, 1);
    if (!t->a.ndim)
        return rle_lua_fail(L, RLE_INVALID_ARGUMENT,
                            "a scalar tensor has no length; use :item()");
    rle_push_count(L, t->a.shape[0]);
    return 1;
}

static int tensor_eq(lua_State *L)
{
    rle_lua_handle *a = rle_lua_to_handle(L, 1), *b = rle_lua_to_handle(L, 2);
    lua_pushboolean(L, a && b && a->t && a->t == b->t);
    return 1;
}

static int tensor_tostring(lua_State *L)
{
    rle_lua_handle *h = rle_lua_to_handle(L, 1);
    if (!h) rle_lua_check_tensor(L, 1);
    if (!h->t) {
        lua_pushliteral(L, "tensor(closed)");
        return 1;
    }
    rle_lua_enter(L);
    char *text;
    rle_lua_check(L, rle_tensor_format(h->t, &text));
    lua_pushstring(L, text);
    rle_free(text);
    return 1;
}

/* ---- values ---- */

static void push_element(lua_State *L, rle_dtype dtype, const void *data, int64_t i)
{
    switch (dtype) {
    case RLE_F32:
        lua_pushnumber(L, ((const float *)data)[i]);
        break;
    case RLE_F64:
        lua_pushnumber(L, ((const double *)data)[i]);
        break;
    case RLE_I32:
        lua_pushinteger(L, ((const int32_t *)data)[i]);
        break;
    case RLE_I64:
#if LUA_VERSION_NUM >= 503
        lua_pushinteger(L, (lua_Integer)((const int64_t *)data)[i]);
#else
        lua_pushnumber(L, (lua_Number)((const int64_t *)data)[i]);
#endif
        break;
    case RLE_BOOL:
        lua_pushboolean(L, ((const uint8_t *)data)[i]);
        break;
    default:
        lua_pushinteger(L, ((const uint8_t *)data)[i]);
        break;
    }
}

/* t:item() -> number or boolean, of a tensor of one element. */
static int tensor_item(lua_State *L)
{
    rle_lua_enter(L);
    rle_tensor *t = rle_lua_check_tensor(L, 1);
    double value;
    int64_t integer;
    rle_lua_check(L, rle_tensor_item(t, &value, &integer));
    if (t->a.dtype == RLE_BOOL)
        lua_pushboolean(L, integer != 0);
    else if (t->a.dtype == RLE_I64)
        push_element(L, RLE_I64, &integer, 0);
    else
        lua_pushnumber(L, value);
    return 1;
}

static int64_t push_nested(lua_State *L, const rle_array *a, int dim, const void *data,
                           int64_t at)
{
    if (dim == a->ndim) {
        push_element(L, a->dtype, data, at);
        return at + 1;
    }
    luaL_checkstack(L, 3, "totable");
    lua_createtable(L, (int)a->shape[dim], 0);
    for (int64_t i = 0; i < a->shape[dim]; i++) {
        at = push_nested(L, a, dim + 1, data, at);
        lua_rawseti(L, -2, (int)i + 1);
    }
    return at;
}

/* t:totable() -> nested tables of numbers (booleans); a number for a scalar. */
static int tensor_totable(lua_State *L)
{
    rle_lua_enter(L);
    rle_tensor *t = rle_lua_check_tensor(L, 1);
    size_t bytes = (size_t)rle_tensor_numel(t) * rle_dtype_size(t->a.dtype);
    void *host = lua_newuserdata(L, bytes ? bytes : 1); /* the collector frees it */
    rle_lua_check(L, rle_tensor_to_host(t, host, bytes));
    push_nested(L, &t->a, 0, host, 0);
    return 1;
}

/* t:pointer() -> address of the first element as a light userdata, for ffi.cast. CPU and
 * contiguous only; valid while the tensor lives: it is not moved from now on. */
static int tensor_pointer(lua_State *L)
{
    rle_tensor *t = rle_lua_check_tensor(L, 1);
    if (rle_tensor_device(t)->type != RLE_DEVICE_CPU)
        return rle_lua_fail(L, RLE_FAILED_PRECONDITION,
                            "the data lies on %s; copy it with :cpu() first",
                            rle_tensor_device(t)->name);
    if (!rle_tensor_is_contiguous(t))
        return rle_lua_fail(L, RLE_FAILED_PRECONDITION,
                            "the tensor is not contiguous; use :contiguous() first");
    t->storage->pointed = true;
    lua_pushlightuserdata(L, t->a.data);
    return 1;
}

/* bytes(t) -> row-major contents as a string. */
static int tensor_bytes(lua_State *L)
{
    rle_lua_enter(L);
    rle_tensor *t = rle_lua_check_tensor(L, 1);
    size_t bytes = (size_t)rle_tensor_numel(t) * rle_dtype_size(t->a.dtype);
    void *host = lua_newuserdata(L, bytes ? bytes : 1);
    rle_lua_check(L, rle_tensor_to_host(t, host, bytes));
    lua_pushlstring(L, host, bytes);
    return 1;
}

static int tensor_detach(lua_State *L)
{
    rle_lua_enter(L);
    rle_tensor *t = rle_lua_check_tensor(L, 1);
    rle_tensor **slot = rle_lua_new_tensor(L);
    rle_lua_check(L, rle_tensor_detach(t, slot));
    return 1;
}

static int tensor_is_tensor(lua_State *L)
{
    lua_pushboolean(L, rle_lua_to_handle(L, 1) != NULL);
    return 1;
}

/* version(t): how often the storage was changed in place. */
static int tensor_version(lua_State *L)
{
    lua_pushnumber(L, rle_lua_check_tensor(L, 1)->storage->version);
    return 1;
}

/* counts() -> live tensors, live tape nodes of this process. */
static int tensor_counts(lua_State *L)
{
    lua_pushnumber(L, (lua_Number)rle_tensor_count());
    lua_pushnumber(L, (lua_Number)rle_node_count());
    return 2;
}

static const luaL_Reg tensor_functions[] = {
    {"field", tensor_field},
    {"free", tensor_free},
    {"size", tensor_size},
    {"stride", tensor_stride},
    {"dim", tensor_dim},
    {"numel", tensor_numel},
    {"is_contiguous", tensor_is_contiguous},
    {"item", tensor_item},
    {"totable", tensor_totable},
    {"pointer", tensor_pointer},
    {"bytes", tensor_bytes},
    {"detach", tensor_detach},
    {"is_tensor", tensor_is_tensor},
    {"version", tensor_version},
    {"counts", tensor_counts},
    {NULL, NULL},
};

static const luaL_Reg handle_meta[] = {
    {"__gc", handle_gc},
    {"__len", tensor_len},
    {"__eq", tensor_eq},
    {"__tostring", tensor_tostring},
    {"__newindex", tensor_newindex},
    {NULL, NULL},
};

void rle_lua_open_tensor(lua_State *L)
{
    lua_newtable(L);
    rle_lua_setfuncs(L, tensor_functions);
    rle_lua_setfuncs(L, rle_lua_create_functions);
    rle_lua_setfuncs(L, rle_lua_shape_functions);
    rle_lua_setfuncs(L, rle_lua_index_functions);
    rle_lua_add_ops(L);
    lua_newtable(L);
    rle_lua_setfuncs(L, handle_meta);
    lua_pushliteral(L, "rlengine.Tensor");
    lua_setfield(L, -2, "__name");
    lua_pushvalue(L, -1);
    lua_rawseti(L, LUA_REGISTRYINDEX, HANDLE_META);
    lua_setfield(L, -2, "metatable");
}
