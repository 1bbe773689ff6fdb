/* lua_shape.c - views and copies: dimensions and positions count from 1, -1 is the last.
 */
#include "lua/lua_tensor.h"

#include <math.h>

static rle_op_args no_args(void)
{
    rle_op_args args;
    memset(&args, 0, sizeof args);
    return args;
}

/* Position 1..size or -1..-size -> 0..size-1. */
static int64_t check_position(lua_State *L, int arg, int64_t size)
{
    int64_t i = rle_lua_check_integer(L, arg);
    if (i >= 1 && i <= size) return i - 1;
    if (i <= -1 && i >= -size) return i + size;
    rle_lua_fail(L, RLE_OUT_OF_RANGE, "position %lld is outside 1..%lld%s", (long long)i,
                 (long long)size, i == 0 ? "; positions count from 1" : "");
    return 0;
}

/* t:select(dim, position) */
static int shape_select(lua_State *L)
{
    rle_lua_enter(L);
    rle_tensor *t = rle_lua_check_tensor(L, 1);
    rle_op_args args = no_args();
    args.dim = rle_lua_check_dim(L, 2, t->a.ndim);
    args.i0 = check_position(L, 3, t->a.shape[args.dim]);
    return rle_lua_apply(L, RLE_OP_SELECT, &t, 1, &args);
}

/* t:narrow(dim, start, length) */
static int shape_narrow(lua_State *L)
{
    rle_lua_enter(L);
    rle_tensor *t = rle_lua_check_tensor(L, 1);
    rle_op_args args = no_args();
    args.dim = rle_lua_check_dim(L, 2, t->a.ndim);
    int64_t size = t->a.shape[args.dim];
    args.i1 = rle_lua_check_integer(L, 4);
    /* an empty part may start just behind the end */
    args.i0 = args.i1 == 0 && rle_lua_check_integer(L, 3) == size + 1
                  ? size
                  : check_position(L, 3, size);
    return rle_lua_apply(L, RLE_OP_NARROW, &t, 1, &args);
}

static int permuted(lua_State *L, rle_tensor *t, rle_op_args *args)
{
    return rle_lua_apply(L, RLE_OP_PERMUTE, &t, 1, args);
}

/* t:transpose(dim, dim) */
static int shape_transpose(lua_State *L)
{
    rle_lua_enter(L);
    rle_tensor *t = rle_lua_check_tensor(L, 1);
    rle_op_args args = no_args();
    int a = rle_lua_check_dim(L, 2, t->a.ndim), b = rle_lua_check_dim(L, 3, t->a.ndim);
    for (int i = 0; i < t->a.ndim; i++) args.shape[i] = i == a ? b : i == b ? a : i;
    return permuted(L, t, &args);
}

/* t:t(): of a matrix; a vector stays */
static int shape_t(lua_State *L)
{
    rle_lua_enter(L);
    rle_tensor *t = rle_lua_check_tensor(L, 1);
    if (t->a.ndim > 2)
        return rle_lua_fail(L, RLE_INVALID_ARGUMENT,
                            "t() is for matrices, this tensor has %d dimensions; use "
                            ":transpose(a, b)",
                            t->a.ndim);
    rle_op_args args = no_args();
    for (int i = 0; i < t->a.ndim; i++) args.shape[i] = t->a.ndim - 1 - i;
    return permuted(L, t, &args);
}

/* t:permute(dim, dim, ...) or a table */
static int shape_permute(lua_State *L)
{
    rle_lua_enter(L);
    rle_tensor *t = rle_lua_check_tensor(L, 1);
    rle_op_args args = no_args();
    bool table = lua_istable(L, 2);
    int n = table ? (int)lua_rawlen(L, 2) : lua_gettop(L) - 1;
    if (n != t->a.ndim)
        return rle_lua_fail(L, RLE_INVALID_ARGUMENT,
                            "permute: %d dimensions named, the tensor has %d", n,
                            t->a.ndim);
    for (int i = 0; i < n; i++) {
        if (table)
            lua_rawgeti(L, 2, i + 1);
        else
            lua_pushvalue(L, i + 2);
        args.shape[i] = rle_lua_check_dim(L, lua_gettop(L), n);
        lua_pop(L, 1);
    }
    return permuted(L, t, &args);
}

static int shaped(lua_State *L, rle_op_id id)
{
    rle_lua_enter(L);
    rle_tensor *t = rle_lua_check_tensor(L, 1);
    rle_op_args args = no_args();
    rle_lua_check_shape(L, 2, &args.ndim, args.shape);
    return rle_lua_apply(L, id, &t, 1, &args);
}

/* t:view(sizes...), reshape(sizes...), expand(sizes...): numbers or one table; -1 as in
 * PyTorch */
static int shape_view(lua_State *L)
{
    return shaped(L, RLE_OP_VIEW);
}

static int shape_reshape(lua_State *L)
{
    return shaped(L, RLE_OP_RESHAPE);
}

static int shape_expand(lua_State *L)
{
    return shaped(L, RLE_OP_EXPAND);
}

/* t:view_as(other), expand_as(other), reshape_as(other) */
static int like(lua_State *L, rle_op_id id)
{
    rle_lua_enter(L);
    rle_tensor *t = rle_lua_check_tensor(L, 1), *other = rle_lua_check_tensor(L, 2);
    rle_op_args args = no_args();
    args.ndim = other->a.ndim;
    memcpy(args.shape, other->a.shape, sizeof args.shape);
    return rle_lua_apply(L, id, &t, 1, &args);
}

static int shape_view_as(lua_State *L)
{
    return like(L, RLE_OP_VIEW);
}

static int shape_expand_as(lua_State *L)
{
    return like(L, RLE_OP_EXPAND);
}

/* t:squeeze([dim]): without dim, every dimension of size 1 */
static int shape_squeeze(lua_State *L)
{
    rle_lua_enter(L);
    rle_tensor *t = rle_lua_check_tensor(L, 1);
    rle_op_args args = no_args();
    int only = lua_isnoneornil(L, 2) ? -1 : rle_lua_check_dim(L, 2, t->a.ndim);
    for (int i = 0; i < t->a.ndim; i++)
        if (t->a.shape[i] != 1 || (only >= 0 && i != only))
            args.shape[args.ndim++] = t->a.shape[i];
    return rle_lua_apply(L, RLE_OP_VIEW, &t, 1, &args);
}

/* t:unsqueeze(dim): dim up to ndim + 1 */
static int shape_unsqueeze(lua_State *L)
{
    rle_lua_enter(L);
    rle_tensor *t = rle_lua_check_tensor(L, 1);
    rle_op_args args = no_args();
    if (t->a.ndim == RLE_MAX_DIMS)
        return rle_lua_fail(L, RLE_INVALID_ARGUMENT,
                            "unsqueeze: the tensor has %d dimensions already",
                            RLE_MAX_DIMS);
    int at = rle_lua_check_dim(L, 2, t->a.ndim + 1);
    args.ndim = t->a.ndim + 1;
    for (int i = 0, j = 0; i < args.ndim; i++)
        args.shape[i] = i == at ? 1 : t->a.shape[j++];
    return rle_lua_apply(L, RLE_OP_VIEW, &t, 1, &args);
}

/* t:flatten([first [, last]]) */
static int shape_flatten(lua_State *L)
{
    rle_lua_enter(L);
    rle_tensor *t = rle_lua_check_tensor(L, 1);
    rle_op_args args = no_args();
    if (t->a.ndim == 0) {
        args.ndim = 1;
        args.shape[0] = 1;
        return rle_lua_apply(L, RLE_OP_RESHAPE, &t, 1, &args);
    }
    int first = lua_isnoneornil(L, 2) ? 0 : rle_lua_check_dim(L, 2, t->a.ndim);
    int last = lua_isnoneornil(L, 3) ? t->a.ndim - 1 : rle_lua_check_dim(L, 3, t->a.ndim);
    if (first > last)
        return rle_lua_fail(L, RLE_INVALID_ARGUMENT,
                            "flatten: dimension %d lies behind %d", first + 1, last + 1);
    for (int i = 0; i < t->a.ndim; i++) {
        if (i > first && i <= last)
            args.shape[args.ndim - 1] *= t->a.shape[i];
        else
            args.shape[args.ndim++] = t->a.shape[i];
    }
    return rle_lua_apply(L, RLE_OP_RESHAPE, &t, 1, &args);
}

/* t:contiguous(): itself when it is */
static int shape_contiguous(lua_State *L)
{
    rle_lua_enter(L);
    rle_tensor *t = rle_lua_check_tensor(L, 1);
    if (rle_tensor_is_contiguous(t)) {
        lua_settop(L, 1);
        return 1;
    }
    return rle_lua_apply(L, RLE_OP_CLONE, &t, 1, NULL);
}

/* t:to(dtype | device | tensor | {dtype=, device=} [, dtype]): itself when nothing
 * changes */
static int shape_to(lua_State *L)
{
    rle_lua_enter(L);
    rle_tensor *t = rle_lua_check_tensor(L, 1);
    rle_op_args args = no_args();
    args.dtype = t->a.dtype;
    args.device = rle_tensor_device(t);
    if (lua_isnoneornil(L, 2) && lua_isnoneornil(L, 3))
        return rle_lua_fail(L, RLE_INVALID_ARGUMENT,
                            "to: expected a device, a dtype, both, or a tensor that has "
                            "them, got %s",
                            lua_isnone(L, 2) ? "nothing" : "nil");
    for (int arg = 2; arg <= lua_gettop(L) && arg <= 3; arg++) {
        rle_tensor *other = rle_lua_to_tensor(L, arg);
        rle_lua_create c;
        if (lua_isnil(L, arg)) continue;
        if (other) {
            args.dtype = other->a.dtype;
            args.device = rle_tensor_device(other);
        } else if (lua_istable(L, arg)) {
            rle_lua_check_create(L, arg, args.dtype, args.device, &c);
            args.dtype = c.dtype;
            args.device = c.device;
        } else if (lua_type(L, arg) != LUA_TSTRING ||
                   rle_dtype_parse(lua_tostring(L, arg), &args.dtype) != RLE_OK) {
            args.device = rle_lua_check_device(L, arg);
        }
    }
    if (args.dtype == t->a.dtype && args.device == rle_tensor_device(t)) {
        lua_settop(L, 1);
        return 1;
    }
    return rle_lua_apply(L, RLE_OP_TO, &t, 1, &args);
}

const luaL_Reg rle_lua_shape_functions[] = {
    {"select", shape_select},
    {"narrow", shape_narrow},
    {"transpose", shape_transpose},
    {"t", shape_t},
    {"permute", shape_permute},
    {"view", shape_view},
    {"reshape", shape_reshape},
    {"expand", shape_expand},
    {"view_as", shape_view_as},
    {"expand_as", shape_expand_as},
    {"squeeze", shape_squeeze},
    {"unsqueeze", shape_unsqueeze},
    {"flatten", shape_flatten},
    {"contiguous", shape_contiguous},
    {"to", shape_to},
    {NULL, NULL},
};
