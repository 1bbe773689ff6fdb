/* lua_nn.c - what lua/rlengine/nn needs of C: facts about parameters, filling and replacing
 * their data outside any graph, and the row keys of a forward pass. */
#include "lua/lua_tensor.h"

#include "nn/distribution.h"
#include "nn/init.h"

/* nn.is_trainable_leaf(value): a tensor that requires grad and was not computed. */
static int nn_is_trainable_leaf(lua_State *L)
{
    rle_tensor *t = rle_lua_to_tensor(L, 1);
    lua_pushboolean(L, t && t->requires_grad && !t->grad_fn);
    return 1;
}

/* nn.own_as_weights(tensor): its bytes are reported as weights. */
static int nn_own_as_weights(lua_State *L)
{
    rle_lua_enter(L);
    rle_tensor *t = rle_lua_check_tensor(L, 1);
    rle_device_reown(rle_tensor_device(t), &t->storage->block, RLE_OWNER_WEIGHTS);
    return 0;
}

/* nn.copy_data(into, from): values only, cast and moved; no graph. */
static int nn_copy_data(lua_State *L)
{
    rle_lua_enter(L);
    rle_tensor *into = rle_lua_check_tensor(L, 1), *from = rle_lua_check_tensor(L, 2);
    rle_device *dev = rle_tensor_device(into);
    rle_tensor *here = NULL;
    rle_status status = RLE_OK;
    if (rle_tensor_device(from) != dev) {
        status = rle_op_to(from, dev, into->a.dtype, &here);
        from = here;
    }
    if (status == RLE_OK) status = rle_op_copy_into(into, from);
    rle_tensor_release(here);
    rle_lua_check(L, status);
    return 0;
}

/* The two exchange what they show; each keeps its identity. */
static void swap_data(rle_tensor *t, rle_tensor *u)
{
    rle_array a = t->a;
    t->a = u->a;
    u->a = a;
    rle_storage *s = t->storage;
    t->storage = u->storage;
    u->storage = s;
}

/* nn.set_data(leaf, tensor, gradient or nil): the leaf becomes the tensor in its memory,
 * shape and type, and stays the object that modules and optimizers hold. */
static int nn_set_data(lua_State *L)
{
    rle_lua_enter(L);
    rle_tensor *t = rle_lua_check_tensor(L, 1), *u = rle_lua_check_tensor(L, 2);
    rle_tensor *grad = lua_isnoneornil(L, 3) ? NULL : rle_lua_check_tensor(L, 3);
    if (t->grad_fn || u->grad_fn)
        rle_lua_fail(L, RLE_FAILED_PRECONDITION, "only leaves can be given other data");
    if (t->storage == u->storage) return 0;
    if (t->storage->graph_holds)
        rle_lua_fail(L, RLE_FAILED_PRECONDITION,
                     "a graph of an earlier forward pass still needs these weights; call "
                     "backward or let go of the loss before moving them");
    swap_data(t, u);
    rle_device_reown(rle_tensor_device(t), &t->storage->block, RLE_OWNER_WEIGHTS);
    if (t->grad) {
        rle_tensor_release(t->grad);
        t->grad = grad ? rle_tensor_retain(grad) : NULL;
        if (grad)
            rle_device_reown(rle_tensor_device(grad), &grad->storage->block,
                             RLE_OWNER_GRADIENTS);
    }
    return 0;
}

/* nn.fill_uniform(tensor, low, high), nn.fill_normal(tensor, mean, std) */
static int fill_random(lua_State *L, rle_random_kind kind)
{
    rle_lua_enter(L);
    rle_tensor *t = rle_lua_check_tensor(L, 1);
    rle_lua_check(L, rle_op_random(kind, t, luaL_checknumber(L, 2), luaL_checknumber(L, 3)));
    return 0;
}

static int nn_fill_uniform(lua_State *L) { return fill_random(L, RLE_RANDOM_UNIFORM); }
static int nn_fill_normal(lua_State *L) { return fill_random(L, RLE_RANDOM_NORMAL); }

static int nn_fill_constant(lua_State *L)
{
    rle_lua_enter(L);
    double value = luaL_checknumber(L, 2);
    rle_tensor *t = rle_lua_check_tensor(L, 1);
    rle_lua_check(L, rle_op_fill(t, value, rle_lua_check_whole(L, t->a.dtype, value)));
    return 0;
}

static int nn_fill_orthogonal(lua_State *L)
{
    rle_lua_enter(L);
    rle_lua_check(L, rle_init_orthogonal(rle_lua_check_tensor(L, 1), luaL_checknumber(L, 2)));
    return 0;
}

/* ---- row keys ---- */

/* nn.row_keys(x) -> fresh keys, one for each row of x (all dimensions but the last) */
static int nn_row_keys(lua_State *L)
{
    rle_lua_enter(L);
    rle_tensor *x = rle_lua_check_tensor(L, 1), **slot = rle_lua_new_tensor(L);
    rle_lua_check(L, rle_op_row_keys(rle_tensor_device(x), rle_row_count(&x->a), slot));
    return 1;
}

/* ---- distributions ---- */

/* nn.check_parameter("Categorical: probs", kind, value [, least dimensions]): a float tensor
 * whose rows are as `kind` (rle_rows_kind) wants them. */
static int nn_check_parameter(lua_State *L)
{
    rle_lua_enter(L);
    rle_tensor *t = rle_lua_to_tensor(L, 3);
    const char *what = lua_tostring(L, 1);
    int least = (int)lua_tointeger(L, 4);
    if (!t)
        return rle_lua_fail(L, RLE_INVALID_ARGUMENT, "%s must be a tensor, got %s", what,
                            luaL_typename(L, 3));
    if (!rle_dtype_is_float(t->a.dtype))
        return rle_lua_fail(L, RLE_INVALID_ARGUMENT, "%s must be floats, got %s", what,
                            rle_dtype_name(t->a.dtype));
    if (t->a.ndim < least)
        return rle_lua_fail(L, RLE_INVALID_ARGUMENT, "%s need a dimension of classes", what);
    rle_lua_check(L, rle_check_rows(what, (rle_rows_kind)lua_tointeger(L, 2), t));
    return 0;
}

/* nn.categorical_log_prob(x, is_logits, action tensor or number) */
static int nn_categorical_log_prob(lua_State *L)
{
    rle_lua_enter(L);
    rle_tensor *x = rle_lua_check_tensor(L, 1), *action, *number = NULL, **slot;
    bool logits = lua_toboolean(L, 2);
    if (lua_type(L, 3) == LUA_TNUMBER) {
        int64_t value = rle_lua_check_integer(L, 3);
        slot = rle_lua_new_tensor(L);
        rle_lua_check(L, rle_tensor_from_host(rle_tensor_device(x), RLE_I64, 0, NULL, &value,
                                              &number));
        action = number;
    } else {
        action = rle_lua_check_tensor(L, 3);
        slot = rle_lua_new_tensor(L);
    }
    rle_status status = rle_categorical_log_prob(x, logits, action, slot);
    rle_tensor_release(number);
    rle_lua_check(L, status);
    return 1;
}

/* nn.sample(probs, draws, keys or nil, draw): classes by rows; see rle_op_multinomial */
static int nn_sample(lua_State *L)
{
    rle_lua_enter(L);
    rle_tensor *probs = rle_lua_check_tensor(L, 1);
    int64_t draws = rle_lua_check_integer(L, 2);
    rle_tensor *keys = lua_isnoneornil(L, 3) ? NULL : rle_lua_check_tensor(L, 3);
    uint32_t draw = (uint32_t)luaL_optnumber(L, 4, 0);
    rle_tensor **slot = rle_lua_new_tensor(L);
    rle_status status = rle_op_multinomial(probs, draws, keys, draw, slot);
    /* The device names a row and no values. */
    if (status == RLE_INVALID_ARGUMENT && probs->a.ndim)
        rle_lua_check(L, rle_name_bad_row("sample: probs", RLE_ROWS_PROBS, probs));
    rle_lua_check(L, status);
    return 1;
}

static const luaL_Reg functions[] = {
    {"check_parameter", nn_check_parameter},
    {"categorical_log_prob", nn_categorical_log_prob},
    {"sample", nn_sample},
    {"is_trainable_leaf", nn_is_trainable_leaf},
    {"own_as_weights", nn_own_as_weights},
    {"copy_data", nn_copy_data},
    {"set_data", nn_set_data},
    {"fill_uniform", nn_fill_uniform},
    {"fill_normal", nn_fill_normal},
    {"fill_constant", nn_fill_constant},
    {"fill_orthogonal", nn_fill_orthogonal},
    {"row_keys", nn_row_keys},
    {NULL, NULL},
};

void rle_lua_open_nn(lua_State *L)
{
    lua_newtable(L);
    rle_lua_setfuncs(L, functions);
    rle_lua_add_plans(L);
}
