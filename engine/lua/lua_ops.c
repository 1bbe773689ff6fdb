/* lua_ops.c - the table of operations as Lua functions, bound by the shape of their
 * arguments: one C function a signature, with the row of the table as its upvalue.
 *
 * Elementwise rows also appear as `name_`, which works in place. */
#include "lua/lua_tensor.h"

#include <math.h>
#include <stdio.h>

#include "base/mem.h"

static rle_op_id upvalue_op(lua_State *L)
{
    return (rle_op_id)lua_tointeger(L, lua_upvalueindex(1));
}

static bool upvalue_inplace(lua_State *L)
{
    return lua_toboolean(L, lua_upvalueindex(2));
}

int rle_lua_apply(lua_State *L, rle_op_id id, rle_tensor *const *in, int nin,
                  const rle_op_args *args)
{
    rle_tensor **slot = rle_lua_new_tensor(L);
    rle_lua_check(L, rle_apply(id, in, nin, args, slot));
    return 1;
}

/* In place: the result is the first argument's own handle. */
static int apply_either(lua_State *L, rle_op_id id, bool inplace, rle_tensor *const *in,
                        int nin, const rle_op_args *args)
{
    if (!inplace) return rle_lua_apply(L, id, in, nin, args);
    rle_lua_check(L, rle_apply_inplace(id, in, nin, args));
    lua_settop(L, 1);
    return 1;
}

/* ---- signatures ---- */

/* op(t) */
static int op_unary(lua_State *L)
{
    rle_lua_enter(L);
    rle_tensor *t = rle_lua_check_tensor(L, 1);
    return apply_either(L, upvalue_op(L), upvalue_inplace(L), &t, 1, NULL);
}

/* op(a, b): tensors or, one of them, a number */
static int op_binary(lua_State *L)
{
    rle_lua_enter(L);
    rle_op_id id = upvalue_op(L);
    rle_op_args args;
    rle_tensor *in[2];
    int left = lua_type(L, 1), right = lua_type(L, 2);
    if (right == LUA_TNUMBER || right == LUA_TBOOLEAN) {
        in[0] = rle_lua_check_tensor(L, 1);
        memset(&args, 0, sizeof args);
        args.scalar = true;
        args.p0 = right == LUA_TNUMBER ? lua_tonumber(L, 2) : lua_toboolean(L, 2);
        return apply_either(L, id, upvalue_inplace(L), in, 1, &args);
    }
    if (left == LUA_TNUMBER || left == LUA_TBOOLEAN) {
        in[0] = rle_lua_check_tensor(L, 2);
        memset(&args, 0, sizeof args);
        args.scalar = args.reversed = true;
        args.p0 = left == LUA_TNUMBER ? lua_tonumber(L, 1) : lua_toboolean(L, 1);
        return rle_lua_apply(L, id, in, 1, &args);
    }
    in[0] = rle_lua_check_tensor(L, 1);
    in[1] = rle_lua_check_tensor(L, 2);
    return apply_either(L, id, upvalue_inplace(L), in, 2, NULL);
}

/* clamp(t, low, high) or clamp(t, {min=, max=}); nil leaves an end open */
static int op_clamp(lua_State *L)
{
    rle_lua_enter(L);
    rle_tensor *t = rle_lua_check_tensor(L, 1);
    rle_op_args args;
    memset(&args, 0, sizeof args);
    static const char *const known[] = {"min", "max", NULL};
    if (lua_istable(L, 2)) {
        rle_lua_options(L, 2, known);
        args.p0 = rle_lua_opt_number(L, 2, "min", -INFINITY);
        args.p1 = rle_lua_opt_number(L, 2, "max", INFINITY);
    } else {
        args.p0 = luaL_optnumber(L, 2, -INFINITY);
        args.p1 = luaL_optnumber(L, 3, INFINITY);
    }
    return apply_either(L, upvalue_op(L), upvalue_inplace(L), &t, 1, &args);
}

/* Dimensions at `arg`: nil (all), a number or a table of numbers; 0 = all. */
static uint32_t check_dims(lua_State *L, int arg, int ndim)
{
    if (lua_isnoneornil(L, arg)) return 0;
    if (!lua_istable(L, arg)) return 1u << rle_lua_check_dim(L, arg, ndim);
    uint32_t dims = 0;
    int n = (int)lua_rawlen(L, arg);
    for (int i = 1; i <= n; i++) {
        lua_rawgeti(L, arg, i);
        int dim = rle_lua_check_dim(L, lua_gettop(L), ndim);
        lua_pop(L, 1);
        if (dims >> dim & 1)
            rle_lua_fail(L, RLE_INVALID_ARGUMENT, "dimension %d is named twice", dim + 1);
        dims |= 1u << dim;
    }
    return dims;
}

/* keepdim at `arg`: a boolean or {keepdim=}. */
static bool check_keepdim(lua_State *L, int arg)
{
    static const char *const known[] = {"keepdim", NULL};
    if (lua_isboolean(L, arg)) return lua_toboolean(L, arg);
    return rle_lua_options(L, arg, known) &&
           rle_lua_opt_boolean(L, arg, "keepdim", false);
}

/* op(t [, dim | dims [, keepdim]]) */
static int op_reduce(lua_State *L)
{
    rle_lua_enter(L);
    rle_tensor *t = rle_lua_check_tensor(L, 1);
    rle_op_args args;
    memset(&args, 0, sizeof args);
    if (lua_gettop(L) == 2 && lua_istable(L, 2) && lua_rawlen(L, 2) == 0) {
        args.keepdim = check_keepdim(L, 2); /* sum{keepdim = true} */
    } else {
        args.dims = check_dims(L, 2, t->a.ndim);
        args.keepdim = check_keepdim(L, 3);
    }
    return rle_lua_apply(L, upvalue_op(L), &t, 1, &args);
}

/* op(t, dim); dim defaults to the last */
static int op_along(lua_State *L)
{
    rle_lua_enter(L);
    rle_tensor *t = rle_lua_check_tensor(L, 1);
    rle_op_args args;
    memset(&args, 0, sizeof args);
    args.dim = lua_isnoneornil(L, 2) ? t->a.ndim - 1 : rle_lua_check_dim(L, 2, t->a.ndim);
    return rle_lua_apply(L, upvalue_op(L), &t, 1, &args);
}

/* matmul(a, b) */
static int op_two(lua_State *L)
{
    rle_lua_enter(L);
    rle_tensor *in[2] = {rle_lua_check_tensor(L, 1), rle_lua_check_tensor(L, 2)};
    return rle_lua_apply(L, upvalue_op(L), in, 2, NULL);
}

/* linear(x, weight [, bias]) */
static int op_linear(lua_State *L)
{
    rle_lua_enter(L);
    rle_tensor *in[3] = {rle_lua_check_tensor(L, 1), rle_lua_check_tensor(L, 2), NULL};
    if (!lua_isnoneornil(L, 3)) in[2] = rle_lua_check_tensor(L, 3);
    return rle_lua_apply(L, RLE_OP_LINEAR, in, in[2] ? 3 : 2, NULL);
}

/* A tensor operand that may be a number: then a scalar tensor on dev, of `like`'s dtype,
 * in a handle that stays on the stack. */
static rle_tensor *tensor_or_number(lua_State *L, int arg, const rle_tensor *like,
                                    rle_device *dev)
{
    int type = lua_type(L, arg);
    if (type != LUA_TNUMBER && type != LUA_TBOOLEAN) return rle_lua_check_tensor(L, arg);
    double v = type == LUA_TNUMBER ? lua_tonumber(L, arg) : lua_toboolean(L, arg);
    rle_dtype dtype = like ? like->a.dtype : type == LUA_TBOOLEAN ? RLE_BOOL : RLE_F32;
    rle_tensor **slot = rle_lua_new_tensor(L);
    rle_lua_check(L, rle_tensor_new(dev, dtype, 0, NULL, slot));
    rle_lua_check(L, rle_op_fill(*slot, v, rle_lua_check_whole(L, (*slot)->a.dtype, v)));
    return *slot;
}

/* where(cond, a, b): a, b tensors or numbers */
static int op_where(lua_State *L)
{
    rle_lua_enter(L);
    rle_tensor *cond = rle_lua_check_tensor(L, 1);
    rle_tensor *like = rle_lua_to_tensor(L, 2);
    if (!like) like = rle_lua_to_tensor(L, 3);
    rle_device *dev = rle_tensor_device(like ? like : cond);
    rle_tensor *in[3] = {cond, tensor_or_number(L, 2, like, dev),
                         tensor_or_number(L, 3, like, dev)};
    return rle_lua_apply(L, RLE_OP_WHERE, in, 3, NULL);
}

/* cat(list [, dim]), stack(list [, dim]); dim defaults to 1 */
static int op_join(lua_State *L)
{
    rle_lua_enter(L);
    rle_op_id id = upvalue_op(L);
    const char *what = rle_ops[id].name;
    lua_settop(L, 2);
    if (!lua_istable(L, 1))
        return rle_lua_fail(L, RLE_INVALID_ARGUMENT,
                            "%s: expected a table of tensors, got %s", what,
                            luaL_typename(L, 1));
    int n = (int)lua_rawlen(L, 1);
    if (n == 0)
        return rle_lua_fail(L, RLE_INVALID_ARGUMENT, "%s: the table is empty", what);
    lua_settop(L, 2);
    rle_tensor **in = lua_newuserdata(L, (size_t)n * sizeof *in);
    for (int i = 0; i < n; i++) {
        lua_rawgeti(L, 1, i + 1);
        in[i] = rle_lua_to_tensor(L, -1); /* the table holds it */
        if (!in[i])
            return rle_lua_fail(L, RLE_INVALID_ARGUMENT,
                                "%s: entry %d is no tensor but %s", what, i + 1,
                                luaL_typename(L, -1));
        lua_pop(L, 1);
    }
    rle_op_args args;
    memset(&args, 0, sizeof args);
    int ndim = in[0]->a.ndim + (id == RLE_OP_STACK);
    if (!lua_isnoneornil(L, 2)) args.dim = rle_lua_check_dim(L, 2, ndim);
    return rle_lua_apply(L, id, in, n, &args);
}

/* copy_(t, source): source a tensor or number */
static int op_copy(lua_State *L)
{
    rle_lua_enter(L);
    rle_tensor *in[2];
    in[0] = rle_lua_check_tensor(L, 1);
    in[1] = tensor_or_number(L, 2, in[0], rle_tensor_device(in[0]));
    rle_lua_check(L, rle_apply_inplace(RLE_OP_COPY, in, 2, NULL));
    lua_settop(L, 1);
    return 1;
}

/* dropout(t, p [, keys [, draw [, seed]]]): without keys, of the running forward pass
 * (rl.nn sets them) or fresh ones. */
static int op_dropout(lua_State *L)
{
    rle_context *c = rle_lua_enter(L);
    rle_tensor *in[2] = {rle_lua_check_tensor(L, 1), NULL};
    rle_op_args args;
    memset(&args, 0, sizeof args);
    args.p0 = luaL_checknumber(L, 2);
    args.seed = c->rng->seed;
    if (!lua_isnoneornil(L, 3)) {
        in[1] = rle_lua_check_tensor(L, 3);
        args.draw = (uint32_t)luaL_optinteger(L, 4, 0);
    } else if (c->row_keys) {
        in[1] = c->row_keys;
        args.draw = c->row_draws++;
    } else {
        /* Keys that nobody sees get no handle: the node holds them. */
        rle_tensor **slot = rle_lua_new_tensor(L);
        rle_lua_check(L, rle_op_row_keys(rle_tensor_device(in[0]),
                                         rle_row_count(&in[0]->a), &in[1]));
        rle_status status = rle_apply(RLE_OP_DROPOUT, in, 2, &args, slot);
        rle_tensor_release(in[1]);
        rle_lua_check(L, status);
        return 1;
    }
    return rle_lua_apply(L, RLE_OP_DROPOUT, in, 2, &args);
}

/* ---- the table ---- */

static void add(lua_State *L, rle_op_id id, const char *name, bool inplace,
                lua_CFunction fn)
{
    lua_pushinteger(L, id);
    lua_pushboolean(L, inplace);
    lua_pushcclosure(L, fn, 2);
    lua_setfield(L, -2, name);
}

void rle_lua_add_ops(lua_State *L)
{
    for (int id = 0; id < RLE_OP_COUNT; id++) {
        const rle_op *op = &rle_ops[id];
        lua_CFunction fn = NULL;
        switch (op->family) {
        case RLE_FAMILY_UNARY:
            fn = id == RLE_OP_CLAMP ? op_clamp : op_unary;
            break;
        case RLE_FAMILY_BINARY:
            fn = op_binary;
            break;
        case RLE_FAMILY_REDUCE:
            fn = op_reduce;
            break;
        case RLE_FAMILY_SOFTMAX:
        case RLE_FAMILY_CUMSUM:
            fn = op_along;
            break;
        case RLE_FAMILY_MATMUL:
            fn = op_two;
            break;
        case RLE_FAMILY_LINEAR:
            fn = op_linear;
            break;
        case RLE_FAMILY_WHERE:
            fn = op_where;
            break;
        case RLE_FAMILY_CAT:
            fn = op_join;
            break;
        case RLE_FAMILY_COPY:
            fn = op_unary;
            break;
        case RLE_FAMILY_DROPOUT:
            fn = op_dropout;
            break;
        default:
            break; /* shapes, indexing: lua_shape.c, lua_index.c */
        }
        if (!fn) continue;
        add(L, (rle_op_id)id, op->name, false, fn);
        bool elementwise =
            op->family == RLE_FAMILY_UNARY || op->family == RLE_FAMILY_BINARY;
        if (elementwise) {
            char name[40];
            snprintf(name, sizeof name, "%s_", op->name);
            add(L, (rle_op_id)id, name, true, fn);
        }
    }
    lua_pushcfunction(L, op_copy);
    lua_setfield(L, -2, "copy_");
}
