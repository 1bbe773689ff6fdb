/* lua_rewards.c - what lua/rlengine/rewards.lua needs of C: returns of tensors. */
#include "lua/lua_tensor.h"

#include "tensor/ops.h"

static rle_tensor *optional(lua_State *L, int arg)
{
    return lua_isnoneornil(L, arg) ? NULL : rle_lua_check_tensor(L, arg);
}

/* A number stands for itself in every column: its tensor takes its place on the stack. */
static void number_to_last(lua_State *L, int arg, const rle_tensor *rewards)
{
    if (lua_type(L, arg) != LUA_TNUMBER) return;
    double value = lua_tonumber(L, arg);
    const int64_t *columns = rewards->a.ndim == 2 ? &rewards->a.shape[1] : NULL;
    rle_tensor **t = rle_lua_new_tensor(L);
    rle_lua_check(L, rle_tensor_new(rle_tensor_device(rewards), rewards->a.dtype,
                                    columns ? 1 : 0, columns, t));
    rle_lua_check(L,
                  rle_op_fill(*t, value, rle_lua_check_whole(L, (*t)->a.dtype, value)));
    lua_replace(L, arg);
}

/* rewards.gae(rewards, values or nil, dones or nil, last or nil (a number is for all),
 * gamma, lambda) -> advantages */
static int rewards_gae(lua_State *L)
{
    rle_lua_enter(L);
    double gamma = luaL_checknumber(L, 5), lambda = luaL_checknumber(L, 6);
    rle_tensor *rewards = rle_lua_check_tensor(L, 1), *values = optional(L, 2);
    rle_tensor *dones = optional(L, 3);
    number_to_last(L, 4, rewards);
    rle_tensor *last = optional(L, 4);
    rle_tensor **out = rle_lua_new_tensor(L);
    rle_lua_check(L, rle_op_gae(rewards, values, dones, last, gamma, lambda, out));
    return 1;
}

static const luaL_Reg functions[] = {
    {"gae", rewards_gae},
    {NULL, NULL},
};

void rle_lua_open_rewards(lua_State *L)
{
    lua_newtable(L);
    rle_lua_setfuncs(L, functions);
}
