/* lua_optim.c - optimizers for lua/rlengine/optim.lua: one userdata a group of parameters.
 *
 * Hyperparameters are arguments of a step, because scripts change them between steps. */
#include "lua/lua_internal.h"

#include "optim/optim.h"

static const char meta_key;

typedef struct handle {
    rle_optim *o; /* NULL until it is made */
} handle;

static rle_optim *check_optim(lua_State *L, int arg)
{
    handle *h = lua_touserdata(L, arg);
    if (h && lua_getmetatable(L, arg)) {
        rle_rawgetp(L, LUA_REGISTRYINDEX, &meta_key);
        bool same = lua_rawequal(L, -1, -2);
        lua_pop(L, 2);
        if (same && h->o) return h->o;
    }
    rle_lua_fail(L, RLE_INVALID_ARGUMENT, "argument %d: expected an optimizer's group", arg);
    return NULL;
}

static int optim_gc(lua_State *L)
{
    handle *h = lua_touserdata(L, 1);
    rle_optim_free(h->o);
    h->o = NULL;
    return 0;
}

/* The tensors of the list at `arg`, borrowed from it; the array is a userdata left on the
 * stack. Raises naming the position of what is no tensor. */
static rle_tensor **check_list(lua_State *L, int arg, int *count)
{
    luaL_checktype(L, arg, LUA_TTABLE);
    int n = (int)lua_rawlen(L, arg);
    rle_tensor **list = lua_newuserdata(L, ((size_t)n + 1) * sizeof *list);
    for (int i = 0; i < n; i++) {
        lua_rawgeti(L, arg, i + 1);
        list[i] = rle_lua_to_tensor(L, -1);
        if (!list[i])
            rle_lua_fail(L, RLE_INVALID_ARGUMENT, "parameter %d: expected a tensor, got %s",
                         i + 1, luaL_typename(L, -1));
        lua_pop(L, 1);
    }
    *count = n;
    return list;
}

/* optim.new(list of tensors) -> group */
static int optim_new(lua_State *L)
{
    rle_lua_enter(L);
    int count;
    rle_tensor **list = check_list(L, 1, &count);
    handle *h = lua_newuserdata(L, sizeof *h);
    h->o = NULL;
    rle_rawgetp(L, LUA_REGISTRYINDEX, &meta_key);
    lua_setmetatable(L, -2);
    rle_lua_check(L, rle_optim_new(list, count, &h->o));
    return 1;
}

/* optim.sgd(group, lr, momentum, dampening, weight_decay, nesterov) */
static int optim_sgd(lua_State *L)
{
    rle_lua_enter(L);
    rle_sgd_args args = {
        .lr = luaL_checknumber(L, 2),
        .momentum = luaL_checknumber(L, 3),
        .dampening = luaL_checknumber(L, 4),
        .weight_decay = luaL_checknumber(L, 5),
        .nesterov = lua_toboolean(L, 6),
    };
    rle_lua_check(L, rle_optim_sgd(check_optim(L, 1), &args));
    return 0;
}

/* optim.adam(group, lr, beta1, beta2, eps, weight_decay, decoupled) */
static int optim_adam(lua_State *L)
{
    rle_lua_enter(L);
    rle_adam_args args = {
        .lr = luaL_checknumber(L, 2),
        .beta1 = luaL_checknumber(L, 3),
        .beta2 = luaL_checknumber(L, 4),
        .eps = luaL_checknumber(L, 5),
        .weight_decay = luaL_checknumber(L, 6),
        .decoupled = lua_toboolean(L, 7),
    };
    rle_lua_check(L, rle_optim_adam(check_optim(L, 1), &args));
    return 0;
}

/* optim.rmsprop(group, lr, alpha, eps, weight_decay, momentum, centered) */
static int optim_rmsprop(lua_State *L)
{
    rle_lua_enter(L);
    rle_rmsprop_args args = {
        .lr = luaL_checknumber(L, 2),
        .alpha = luaL_checknumber(L, 3),
        .eps = luaL_checknumber(L, 4),
        .weight_decay = luaL_checknumber(L, 5),
        .momentum = luaL_checknumber(L, 6),
        .centered = lua_toboolean(L, 7),
    };
    rle_lua_check(L, rle_optim_rmsprop(check_optim(L, 1), &args));
    return 0;
}

/* optim.zero_grad(group, keep): gradients go; with keep they become zeros. */
static int optim_zero_grad(lua_State *L)
{
    rle_lua_enter(L);
    rle_lua_check(L, rle_optim_zero_grad(check_optim(L, 1), lua_toboolean(L, 2)));
    return 0;
}

static int check_index(lua_State *L, int arg, const rle_optim *o)
{
    int64_t i = rle_lua_check_integer(L, arg);
    if (i < 1 || i > rle_optim_count(o))
        rle_lua_fail(L, RLE_OUT_OF_RANGE, "no parameter %lld in a group of %d", (long long)i,
                     rle_optim_count(o));
    return (int)i - 1;
}

/* optim.state(group, i) -> steps, then RLE_OPTIM_STATES tensors or nil */
static int optim_state(lua_State *L)
{
    rle_lua_enter(L);
    rle_optim *o = check_optim(L, 1);
    int i = check_index(L, 2, o);
    lua_pushnumber(L, (lua_Number)rle_optim_steps(o, i));
    for (int k = 0; k < RLE_OPTIM_STATES; k++) {
        rle_tensor *t = rle_optim_state(o, i, k);
        if (t)
            rle_lua_push_tensor(L, t);
        else
            lua_pushnil(L);
    }
    return 1 + RLE_OPTIM_STATES;
}

/* optim.set_state(group, i, steps, tensor or nil, ...): copies the tensors. */
static int optim_set_state(lua_State *L)
{
    rle_lua_enter(L);
    rle_optim *o = check_optim(L, 1);
    int i = check_index(L, 2, o);
    int64_t steps = rle_lua_check_integer(L, 3);
    lua_settop(L, 3 + RLE_OPTIM_STATES);
    for (int k = 0; k < RLE_OPTIM_STATES; k++) {
        rle_tensor *t = lua_isnil(L, 4 + k) ? NULL : rle_lua_check_tensor(L, 4 + k);
        rle_lua_check(L, rle_optim_set_state(o, i, steps, k, t));
    }
    return 0;
}

/* optim.clip_grad_norm(list, max_norm, norm_type) -> norm before */
static int optim_clip_grad_norm(lua_State *L)
{
    rle_lua_enter(L);
    int count;
    rle_tensor **list = check_list(L, 1, &count);
    double norm;
    rle_lua_check(L, rle_clip_grad_norm(list, count, luaL_checknumber(L, 2),
                                        luaL_optnumber(L, 3, 2), &norm));
    lua_pushnumber(L, norm);
    return 1;
}

/* optim.clip_grad_value(list, limit) */
static int optim_clip_grad_value(lua_State *L)
{
    rle_lua_enter(L);
    int count;
    rle_tensor **list = check_list(L, 1, &count);
    rle_lua_check(L, rle_clip_grad_value(list, count, luaL_checknumber(L, 2)));
    return 0;
}

static const luaL_Reg functions[] = {
    {"new", optim_new},
    {"sgd", optim_sgd},
    {"adam", optim_adam},
    {"rmsprop", optim_rmsprop},
    {"zero_grad", optim_zero_grad},
    {"state", optim_state},
    {"set_state", optim_set_state},
    {"clip_grad_norm", optim_clip_grad_norm},
    {"clip_grad_value", optim_clip_grad_value},
    {NULL, NULL},
};

void rle_lua_open_optim(lua_State *L)
{
    lua_newtable(L);
    lua_pushcfunction(L, optim_gc);
    lua_setfield(L, -2, "__gc");
    rle_rawsetp(L, LUA_REGISTRYINDEX, &meta_key);
    lua_newtable(L);
    rle_lua_setfuncs(L, functions);
}
