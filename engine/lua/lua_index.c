/* lua_index.c - picking elements: by integer tensors (counting from 0, they are data) and
 * by positions in brackets (counting from 1, they are Lua's). */
#include "lua/lua_tensor.h"

#include <math.h>

/* A table where an index tensor belongs could be meant to count from 0 or from 1. */
static rle_tensor *check_index(lua_State *L, int arg)
{
    if (lua_istable(L, arg))
        rle_lua_fail(
            L, RLE_INVALID_ARGUMENT,
            "argument %d: a table of positions could count from 0 or 1; make it a "
            "tensor, rl.tensor({0, 2}, {dtype = \"i64\"}): integers inside tensors count "
            "from 0",
            arg);
    return rle_lua_check_tensor(L, arg);
}

/* t:gather(dim, index) */
static int index_gather(lua_State *L)
{
    rle_lua_enter(L);
    rle_tensor *in[2] = {rle_lua_check_tensor(L, 1), check_index(L, 3)};
    rle_op_args args;
    memset(&args, 0, sizeof args);
    args.dim = rle_lua_check_dim(L, 2, in[0]->a.ndim);
    return rle_lua_apply(L, RLE_OP_GATHER, in, 2, &args);
}

/* t:index_select(dim, index) */
static int index_select(lua_State *L)
{
    rle_lua_enter(L);
    rle_tensor *in[2] = {rle_lua_check_tensor(L, 1), check_index(L, 3)};
    rle_op_args args;
    memset(&args, 0, sizeof args);
    args.dim = rle_lua_check_dim(L, 2, in[0]->a.ndim);
    return rle_lua_apply(L, RLE_OP_INDEX_SELECT, in, 2, &args);
}

static void refuse_recording(lua_State *L, const char *what, rle_tensor *t,
                             rle_tensor *src)
{
    bool wants = t->requires_grad || (src && src->requires_grad);
    if (wants && rle_context_current()->grad_enabled)
        rle_lua_fail(L, RLE_FAILED_PRECONDITION,
                     "%s records no gradient; call it in rl.no_grad, or use gather",
                     what);
}

static int scatter(lua_State *L, bool assign)
{
    rle_lua_enter(L);
    rle_tensor *t = rle_lua_check_tensor(L, 1), *index = check_index(L, 3);
    int dim = rle_lua_check_dim(L, 2, t->a.ndim);
    rle_tensor *src = rle_lua_check_tensor(L, 4);
    refuse_recording(L, assign ? "scatter_" : "scatter_add_", t, src);
    rle_lua_check(L, rle_op_scatter(t, dim, index, src, assign));
    lua_settop(L, 1);
    return 1;
}

/* t:scatter_(dim, index, src), t:scatter_add_(dim, index, src) */
static int index_scatter(lua_State *L)
{
    return scatter(L, true);
}

static int index_scatter_add(lua_State *L)
{
    return scatter(L, false);
}

/* t:index_add_(dim, index, src) */
static int index_add(lua_State *L)
{
    rle_lua_enter(L);
    rle_tensor *t = rle_lua_check_tensor(L, 1), *index = check_index(L, 3);
    int dim = rle_lua_check_dim(L, 2, t->a.ndim);
    rle_tensor *src = rle_lua_check_tensor(L, 4);
    refuse_recording(L, "index_add_", t, src);
    rle_lua_check(L, rle_op_index_add(t, dim, index, src));
    lua_settop(L, 1);
    return 1;
}

/* one_hot(index [, classes]) -> i64 */
static int index_one_hot(lua_State *L)
{
    rle_lua_enter(L);
    rle_tensor *index = check_index(L, 1);
    int64_t classes = lua_isnoneornil(L, 2) ? 0 : rle_lua_check_integer(L, 2);
    rle_tensor **slot = rle_lua_new_tensor(L);
    rle_lua_check(L, rle_op_one_hot(index, classes, slot));
    return 1;
}

static int arg_reduce(lua_State *L, bool largest, bool want_values)
{
    rle_lua_enter(L);
    rle_tensor *t = rle_lua_check_tensor(L, 1);
    static const char *const known[] = {"keepdim", NULL};
    bool keepdim = lua_isboolean(L, 3) ? lua_toboolean(L, 3)
                                       : rle_lua_options(L, 3, known) &&
                                             rle_lua_opt_boolean(L, 3, "keepdim", false);
    if (lua_isnoneornil(L, 2)) { /* position in the flattened tensor */
        rle_tensor **flat = rle_lua_new_tensor(L);
        rle_lua_check(L, rle_op_reshape(t, 1, (int64_t[]){-1}, flat));
        rle_tensor **slot = rle_lua_new_tensor(L);
        rle_lua_check(L, rle_op_arg_reduce(largest, *flat, 0, false, NULL, slot));
        return 1;
    }
    int dim = rle_lua_check_dim(L, 2, t->a.ndim);
    if (!want_values) {
        rle_tensor **slot = rle_lua_new_tensor(L);
        rle_lua_check(L, rle_op_arg_reduce(largest, t, dim, keepdim, NULL, slot));
        return 1;
    }
    rle_tensor **values = rle_lua_new_tensor(L), **indices = rle_lua_new_tensor(L);
    bool record = t->requires_grad && rle_context_current()->grad_enabled;
    if (!record) {
        rle_lua_check(L, rle_op_arg_reduce(largest, t, dim, keepdim, values, indices));
        return 2;
    }
    /* With a gradient the values are gathered: it flows to the place that won. */
    rle_tensor **kept = rle_lua_new_tensor(L), **gathered = rle_lua_new_tensor(L);
    rle_op_args args;
    memset(&args, 0, sizeof args);
    args.dim = dim;
    rle_lua_check(L, rle_op_arg_reduce(largest, t, dim, true, NULL, kept));
    rle_tensor *in[2] = {t, *kept};
    rle_lua_check(L, rle_apply(RLE_OP_GATHER, in, 2, &args, gathered));
    if (keepdim) {
        *values = rle_tensor_retain(*gathered);
        *indices = rle_tensor_retain(*kept);
    } else {
        for (int i = 0; i < t->a.ndim; i++)
            if (i != dim) args.shape[args.ndim++] = t->a.shape[i];
        rle_lua_check(L, rle_apply(RLE_OP_VIEW, gathered, 1, &args, values));
        rle_lua_check(L, rle_op_view(*kept, args.ndim, args.shape, indices));
    }
    lua_pop(L, 2);
    return 2;
}

/* t:argmax([dim [, keepdim]]), t:argmin(...): i64, counting from 0 */
static int index_argmax(lua_State *L)
{
    return arg_reduce(L, true, false);
}

static int index_argmin(lua_State *L)
{
    return arg_reduce(L, false, false);
}

/* max(t): the largest; max(t, dim [, keepdim]): values, indices; max(t, other):
 * elementwise */
static int extreme(lua_State *L, bool largest)
{
    rle_lua_enter(L);
    rle_tensor *t = rle_lua_check_tensor(L, 1);
    if (rle_lua_to_tensor(L, 2)) {
        rle_tensor *in[2] = {t, rle_lua_check_tensor(L, 2)};
        return rle_lua_apply(L, largest ? RLE_OP_MAXIMUM : RLE_OP_MINIMUM, in, 2, NULL);
    }
    if (lua_isnoneornil(L, 2))
        return rle_lua_apply(L, largest ? RLE_OP_AMAX : RLE_OP_AMIN, &t, 1, NULL);
    return arg_reduce(L, largest, true);
}

static int index_max(lua_State *L)
{
    return extreme(L, true);
}

static int index_min(lua_State *L)
{
    return extreme(L, false);
}

/* sort(t [, dim [, descending]]) -> values, indices */
static int index_sort(lua_State *L)
{
    rle_lua_enter(L);
    rle_tensor *t = rle_lua_check_tensor(L, 1);
    int dim = lua_isnoneornil(L, 2) ? t->a.ndim - 1 : rle_lua_check_dim(L, 2, t->a.ndim);
    static const char *const known[] = {"descending", NULL};
    bool down = lua_isboolean(L, 3) ? lua_toboolean(L, 3)
                                    : rle_lua_options(L, 3, known) &&
                                          rle_lua_opt_boolean(L, 3, "descending", false);
    rle_tensor **values = rle_lua_new_tensor(L), **indices = rle_lua_new_tensor(L);
    rle_lua_check(L, rle_op_sort(t, dim, down, values, indices));
    if (t->requires_grad && rle_context_current()->grad_enabled) {
        rle_tensor *in[2] = {t, *indices};
        rle_op_args args;
        memset(&args, 0, sizeof args);
        args.dim = dim;
        rle_lua_apply(L, RLE_OP_GATHER, in, 2, &args);
        lua_replace(L, -3); /* the recorded values instead */
    }
    return 2;
}

/* ---- brackets ----
 *
 * t[2]            the second entry of the first dimension
 * t[-1]           the last
 * t[{2, 3}]       a position a dimension
 * t[{{1, 2}, {}}] a range (both ends included) a dimension; {} is all of it
 * t[mask]         not offered: its size depends on the data
 */

/* Apply one entry of a bracket to dimension *dim of the tensor handle on top: replaces
 * it. */
static void apply_entry(lua_State *L, int entry, int *dim)
{
    rle_tensor *t = rle_lua_check_tensor(L, lua_gettop(L));
    rle_op_args args;
    memset(&args, 0, sizeof args);
    args.dim = *dim;
    if (*dim >= t->a.ndim)
        rle_lua_fail(L, RLE_INVALID_ARGUMENT,
                     "more positions than the %d dimensions of the tensor", t->a.ndim);
    int64_t size = t->a.shape[*dim];
    if (lua_type(L, entry) == LUA_TNUMBER) {
        int64_t i = rle_lua_check_integer(L, entry);
        args.i0 = i < 0 ? i + size : i - 1;
        if (args.i0 < 0 || args.i0 >= size)
            rle_lua_fail(L, RLE_OUT_OF_RANGE, "position %lld is outside 1..%lld%s",
                         (long long)i, (long long)size,
                         i == 0 ? "; positions count from 1" : "");
        rle_lua_apply(L, RLE_OP_SELECT, &t, 1, &args);
        lua_remove(L, -2);
        return;
    }
    if (!lua_istable(L, entry))
        rle_lua_fail(
            L, RLE_INVALID_ARGUMENT,
            "a tensor is indexed by positions (t[2], t[{2, 3}]) or ranges (t[{{1, 2}, "
            "{}}]), not by %s",
            luaL_typename(L, entry));
    int n = (int)lua_rawlen(L, entry);
    (*dim)++;
    if (n == 0) return;
    int64_t ends[2];
    for (int k = 0; k < 2; k++) {
        lua_rawgeti(L, entry, n == 1 ? 1 : k + 1);
        ends[k] = rle_lua_check_integer(L, lua_gettop(L));
        if (ends[k] < 0) ends[k] += size + 1;
        lua_pop(L, 1);
    }
    if (n > 2 || ends[0] < 1 || ends[1] > size || ends[1] < ends[0] - 1)
        rle_lua_fail(L, RLE_OUT_OF_RANGE, "range {%lld, %lld} does not fit 1..%lld",
                     (long long)ends[0], (long long)ends[1], (long long)size);
    args.i0 = ends[0] - 1;
    args.i1 = ends[1] - ends[0] + 1;
    rle_lua_apply(L, RLE_OP_NARROW, &t, 1, &args);
    lua_remove(L, -2);
}

/* Leaves the indexed view on top. */
static void push_indexed(lua_State *L)
{
    int dim = 0;
    if (lua_isnil(L, 2) || lua_isboolean(L, 2))
        rle_lua_fail(L, RLE_INVALID_ARGUMENT, "a tensor cannot be indexed by %s",
                     luaL_typename(L, 2));
    if (rle_lua_to_handle(L, 2))
        rle_lua_fail(
            L, RLE_INVALID_ARGUMENT,
            "a tensor is not indexed by a tensor; use :index_select(dim, index), "
            ":gather(dim, index) or rl.where(mask, a, b)");
    lua_pushvalue(L, 1);
    if (!lua_istable(L, 2)) {
        apply_entry(L, 2, &dim);
        return;
    }
    int n = (int)lua_rawlen(L, 2);
    for (int i = 1; i <= n; i++) {
        lua_rawgeti(L, 2, i);
        lua_insert(L, -2);
        apply_entry(L, lua_gettop(L) - 1, &dim);
        lua_remove(L, -2);
    }
}

int rle_lua_tensor_index(lua_State *L)
{
    lua_settop(L, 2);
    push_indexed(L);
    return 1;
}

int rle_lua_tensor_newindex(lua_State *L)
{
    lua_settop(L, 3);
    rle_tensor *t = rle_lua_check_tensor(L, 1);
    rle_tensor *source = rle_lua_to_tensor(L, 3);
    bool recording = rle_context_current()->grad_enabled &&
                     (t->requires_grad || (source && source->requires_grad));
    if (recording)
        return rle_lua_fail(
            L, RLE_FAILED_PRECONDITION,
            "assigning to a part of a tensor records no gradient; do it in "
            "rl.no_grad, or build the result with rl.cat, rl.stack or rl.where");
    push_indexed(L);
    rle_tensor *part = rle_lua_check_tensor(L, 4);
    if (source) {
        rle_lua_check(L, rle_op_copy_into(part, source));
    } else if (lua_isnumber(L, 3) || lua_isboolean(L, 3)) {
        double v = lua_isboolean(L, 3) ? lua_toboolean(L, 3) : lua_tonumber(L, 3);
        rle_lua_check(L, rle_op_fill(part, v, rle_lua_check_whole(L, part->a.dtype, v)));
    } else {
        return rle_lua_fail(L, RLE_INVALID_ARGUMENT,
                            "only a number or a tensor can be assigned, got %s",
                            luaL_typename(L, 3));
    }
    return 0;
}

/* t:fill_(value), t:zero_() */
static int index_fill(lua_State *L)
{
    rle_lua_enter(L);
    rle_tensor *t = rle_lua_check_tensor(L, 1);
    double v = lua_isboolean(L, 2) ? lua_toboolean(L, 2) : luaL_checknumber(L, 2);
    refuse_recording(L, "fill_", t, NULL);
    rle_lua_check(L, rle_op_fill(t, v, rle_lua_check_whole(L, t->a.dtype, v)));
    lua_settop(L, 1);
    return 1;
}

static int index_zero(lua_State *L)
{
    lua_settop(L, 1);
    lua_pushinteger(L, 0);
    return index_fill(L);
}

const luaL_Reg rle_lua_index_functions[] = {
    {"gather", index_gather},    {"index_select", index_select},
    {"scatter_", index_scatter}, {"scatter_add_", index_scatter_add},
    {"index_add_", index_add},   {"one_hot", index_one_hot},
    {"argmax", index_argmax},    {"argmin", index_argmin},
    {"max", index_max},          {"min", index_min},
    {"sort", index_sort},        {"fill_", index_fill},
    {"zero_", index_zero},       {NULL, NULL},
};
