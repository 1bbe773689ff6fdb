/* lua_autograd.c - gradient modes, backward, row keys, and operations defined in Lua. */
#include "lua/lua_tensor.h"

#include "base/mem.h"

/* grad_mode([on]) -> what it was. */
static int autograd_mode(lua_State *L)
{
    rle_context *c = rle_lua_enter(L);
    lua_pushboolean(L, c->grad_enabled);
    if (!lua_isnoneornil(L, 1)) c->grad_enabled = lua_toboolean(L, 1);
    return 1;
}

/* backward(t [, gradient] [, {retain_graph=, gradient=}]) */
static int autograd_backward(lua_State *L)
{
    rle_lua_enter(L);
    rle_tensor *t = rle_lua_check_tensor(L, 1);
    static const char *const known[] = {"retain_graph", "gradient", "create_graph", NULL};
    rle_tensor *gradient = rle_lua_to_tensor(L, 2);
    int options = gradient || lua_isnil(L, 2) ? 3 : 2;
    bool retain = false;
    if (rle_lua_options(L, options, known)) {
        retain = rle_lua_opt_boolean(L, options, "retain_graph", false);
        if (rle_lua_opt_boolean(L, options, "create_graph", false))
            return rle_lua_fail(
                L, RLE_UNIMPLEMENTED,
                "second derivatives are not offered: backward records no graph "
                "of its own");
        lua_getfield(L, options, "gradient");
        if (!lua_isnil(L, -1)) gradient = rle_lua_check_tensor(L, lua_gettop(L));
    }
    rle_lua_check(L, rle_backward(t, gradient, retain));
    return 0;
}

/* t:requires_grad_([on]) -> t */
static int autograd_requires_grad(lua_State *L)
{
    rle_lua_enter(L);
    rle_tensor *t = rle_lua_check_tensor(L, 1);
    rle_lua_check(L,
                  rle_set_requires_grad(t, lua_isnoneornil(L, 2) || lua_toboolean(L, 2)));
    lua_settop(L, 1);
    return 1;
}

/* own(t, owner): account the storage to "weights", "optimizer", ...; -> t */
static int autograd_own(lua_State *L)
{
    rle_tensor *t = rle_lua_check_tensor(L, 1);
    const char *name = luaL_checkstring(L, 2);
    for (int o = 0; o < RLE_OWNER_COUNT; o++) {
        if (strcmp(rle_owner_name((rle_owner)o), name) != 0) continue;
        rle_device_reown(rle_tensor_device(t), &t->storage->block, (rle_owner)o);
        lua_settop(L, 1);
        return 1;
    }
    return rle_lua_fail(L, RLE_INVALID_ARGUMENT, "unknown owner \"%s\"", name);
}

/* owner([name]) -> what it was: the owner of blocks allocated from here on. */
static int autograd_owner(lua_State *L)
{
    rle_context *c = rle_lua_enter(L);
    uint8_t before = c->owner;
    if (!lua_isnoneornil(L, 1)) {
        const char *name = luaL_checkstring(L, 1);
        int o = 0;
        while (o < RLE_OWNER_COUNT && strcmp(rle_owner_name((rle_owner)o), name) != 0)
            o++;
        if (o == RLE_OWNER_COUNT)
            return rle_lua_fail(L, RLE_INVALID_ARGUMENT, "unknown owner \"%s\"", name);
        c->owner = (uint8_t)o;
    }
    lua_pushstring(L, rle_owner_name((rle_owner)before));
    return 1;
}

/* ---- row keys of a forward pass ---- */

/* The keys in force are a tensor that somebody on the Lua stack holds: set_row_keys
 * returns the former ones to be put back when that somebody leaves. */
static const char row_keys_key;

/* set_row_keys(keys | nil [, draws]) -> former keys | nil, former number of draws */
static int autograd_set_row_keys(lua_State *L)
{
    rle_context *c = rle_lua_enter(L);
    lua_settop(L, 2);
    rle_tensor *keys = lua_isnil(L, 1) ? NULL : rle_lua_check_tensor(L, 1);
    uint32_t draws = (uint32_t)luaL_optinteger(L, 2, 0);
    rle_rawgetp(L, LUA_REGISTRYINDEX, &row_keys_key);
    /* anchored per coroutine: handlers that wait inside a forward pass keep theirs */
    lua_pushthread(L);
    lua_rawget(L, -2);
    if (!c->row_keys) {
        lua_pop(L, 1);
        lua_pushnil(L);
    }
    lua_pushnumber(L, c->row_draws);
    lua_pushthread(L);
    lua_pushvalue(L, 1);
    lua_rawset(L, 3);
    c->row_keys = keys;
    c->row_draws = draws;
    return 2;
}

/* ---- operations of one's own ---- */

typedef struct lua_custom {
    rle_custom base;
    lua_State *L; /* the main state */
    int ref;      /* {backward, ctx} in the registry */
    char name[64];
} lua_custom;

static void custom_free(rle_custom *self)
{
    lua_custom *c = (lua_custom *)self;
    luaL_unref(c->L, LUA_REGISTRYINDEX, c->ref);
    rle_free(c);
}

typedef struct custom_call {
    const lua_custom *c;
    rle_tensor *gout;
    int nin;
    rle_tensor **gin;
    rle_status status;
} custom_call;

/* The error on top of L, that backward(ctx, grad) raised, as a status. */
static rle_status custom_error(lua_State *L, const lua_custom *c)
{
    rle_status code = RLE_UNKNOWN;
    if (rle_lua_is_error(L, -1)) {
        lua_getfield(L, -1, "code");
        int known = rle_status_from_name(lua_tostring(L, -1));
        if (known > 0) code = (rle_status)known;
        lua_getfield(L, -2, "message");
    }
    const char *text = lua_tostring(L, -1);
    return rle_fail(code, "backward of %s: %s", c->name, text ? text : "(no message)");
}

/* Protected: (light userdata custom_call) */
static int run_custom(lua_State *L)
{
    custom_call *call = lua_touserdata(L, 1);
    luaL_checkstack(L, call->nin + 8, "backward");
    lua_rawgeti(L, LUA_REGISTRYINDEX, call->c->ref);
    lua_rawgeti(L, -1, 1);
    lua_rawgeti(L, -2, 2);
    rle_lua_push_tensor(L, call->gout);
    if (lua_pcall(L, 2, call->nin, 0) != 0) {
        call->status = custom_error(L, call->c);
        return 0;
    }
    for (int i = 0; i < call->nin; i++) {
        int at = lua_gettop(L) - call->nin + 1 + i;
        rle_tensor *g = rle_lua_to_tensor(L, at);
        if (g) {
            call->gin[i] = rle_tensor_retain(g);
        } else if (!lua_isnil(L, at)) {
            call->status =
                rle_fail(RLE_INVALID_ARGUMENT,
                         "backward of %s: result %d must be a tensor or nil, got %s",
                         call->c->name, i + 1, luaL_typename(L, at));
            return 0;
        }
    }
    call->status = RLE_OK;
    return 0;
}

/* Calls backward(ctx, grad) in the coroutine that runs rl.backward. The pass owns what
 * lies between here and there, so nothing is raised, were it by a finalizer. */
static rle_status custom_backward(rle_custom *self, rle_tensor *gout, int nin,
                                  rle_tensor **gin)
{
    custom_call call = {.c = (lua_custom *)self, .gout = gout, .nin = nin, .gin = gin};
    rle_context *context = rle_context_current();
    lua_State *L = context->lua;
    bool mode = context->grad_enabled;
    if (!lua_checkstack(L, 4))
        return rle_fail(RLE_RESOURCE_EXHAUSTED, "no Lua stack left for backward of %s",
                        call.c->name);
    context->grad_enabled = false;
    if (rle_cpcall(L, run_custom, &call) != 0) {
        const char *text = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : NULL;
        call.status = rle_fail(RLE_UNKNOWN, "backward of %s: %s", call.c->name,
                               text ? text : "(no message)");
        lua_pop(L, 1);
    }
    rle_context_switch(context); /* it may have resumed coroutines */
    rle_lua_hold(L);
    context->grad_enabled = mode;
    context->site = 0;
    return call.status;
}

/* record_custom(out, {inputs...}, name, backward, ctx): give `out` a node. */
static int autograd_record_custom(lua_State *L)
{
    rle_lua_enter(L);
    rle_tensor *out = rle_lua_check_tensor(L, 1);
    luaL_checktype(L, 2, LUA_TTABLE);
    luaL_checktype(L, 4, LUA_TFUNCTION);
    rle_tensor *in[16];
    int n = (int)lua_rawlen(L, 2);
    if (n > 16)
        return rle_lua_fail(L, RLE_INVALID_ARGUMENT,
                            "an operation has at most 16 tensor inputs");
    for (int i = 0; i < n; i++) {
        lua_rawgeti(L, 2, i + 1);
        in[i] = rle_lua_check_tensor(L, lua_gettop(L));
        if (in[i] == out)
            return rle_lua_fail(
                L, RLE_INVALID_ARGUMENT,
                "forward returned its input; return a new tensor, for example "
                "x:clone()");
        lua_pop(L, 1);
    }
    if (out->grad_fn || out->is_view)
        return rle_lua_fail(
            L, RLE_INVALID_ARGUMENT,
            "forward returned a view or a recorded tensor; return a clone");
    lua_createtable(L, 2, 0);
    lua_pushvalue(L, 4);
    lua_rawseti(L, -2, 1);
    lua_pushvalue(L, 5);
    lua_rawseti(L, -2, 2);
    int ref = luaL_ref(L, LUA_REGISTRYINDEX);
    lua_custom *c = rle_calloc(1, sizeof *c);
    if (!c) {
        luaL_unref(L, LUA_REGISTRYINDEX, ref);
        rle_lua_check(L, rle_oom(sizeof *c, "custom operation"));
    }
    strncpy(c->name, luaL_checkstring(L, 3), sizeof c->name - 1);
    c->base =
        (rle_custom){.name = c->name, .backward = custom_backward, .free = custom_free};
    c->ref = ref;
    rle_rawgetp(L, LUA_REGISTRYINDEX, &autograd_record_custom);
    c->L = lua_tothread(L, -1);
    lua_pop(L, 1);
    rle_lua_check(L, rle_record_custom(&c->base, in, n, out));
    return 0;
}

/* ops() -> the table of operations: list of {name, family, differentiable}. For tests. */
static int autograd_ops(lua_State *L)
{
    lua_createtable(L, RLE_OP_COUNT, 0);
    for (int id = 0; id < RLE_OP_COUNT; id++) {
        lua_createtable(L, 0, 3);
        lua_pushstring(L, rle_ops[id].name);
        lua_setfield(L, -2, "name");
        lua_pushstring(L, rle_family_names[rle_ops[id].family]);
        lua_setfield(L, -2, "family");
        lua_pushboolean(L, rle_ops[id].differentiable);
        lua_setfield(L, -2, "differentiable");
        lua_rawseti(L, -2, id + 1);
    }
    return 1;
}

static const luaL_Reg autograd_functions[] = {
    {"ops", autograd_ops},
    {"grad_mode", autograd_mode},
    {"backward", autograd_backward},
    {"requires_grad_", autograd_requires_grad},
    {"own", autograd_own},
    {"owner", autograd_owner},
    {"set_row_keys", autograd_set_row_keys},
    {"record_custom", autograd_record_custom},
    {NULL, NULL},
};

void rle_lua_open_autograd(lua_State *L)
{
    lua_newtable(L);
    lua_newtable(L);
    lua_pushliteral(L, "k");
    lua_setfield(L, -2, "__mode");
    lua_setmetatable(L, -2);
    rle_rawsetp(L, LUA_REGISTRYINDEX, &row_keys_key);
    lua_pushthread(L); /* the state that opened the module outlives every node */
    rle_rawsetp(L, LUA_REGISTRYINDEX, (const char *)&autograd_record_custom);
    lua_newtable(L);
    rle_lua_setfuncs(L, autograd_functions);
}
