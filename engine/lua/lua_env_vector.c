/* lua_env_vector.c - vectors of C environments for lua/rlengine/env/vector.lua. */
#include "lua/lua_env.h"

#include <string.h>

#include "base/note.h"
#include "env/vecenv.h"
#include "tensor/tensor.h"

typedef struct handle {
    rle_vecenv *v;                     /* NULL once closed */
    rle_space obs_batch, action_batch; /* N values as one; bounds are not used */
} handle;

static const char handle_key;

static handle *to_handle(lua_State *L)
{
    handle *h = rle_lua_env_userdata(L, 1, &handle_key);
    if (!h) rle_lua_fail(L, RLE_INVALID_ARGUMENT, "expected a vector of environments");
    return h;
}

static handle *check_handle(lua_State *L)
{
    handle *h = to_handle(L);
    if (!h->v) rle_lua_fail(L, RLE_FAILED_PRECONDITION, "the environments are closed");
    return h;
}

/* The space of n values of s, without bounds. */
static rle_status batch_of(const rle_space *s, int64_t n, rle_space *out)
{
    if (s->ndim == RLE_MAX_DIMS)
        return rle_fail(RLE_INVALID_ARGUMENT,
                        "a vector needs one dimension more, and there "
                        "may be %d",
                        RLE_MAX_DIMS);
    *out = (rle_space){.kind = RLE_SPACE_BOX, .dtype = s->dtype, .ndim = s->ndim + 1};
    out->shape[0] = n;
    memcpy(out->shape + 1, s->shape, (size_t)s->ndim * sizeof *s->shape);
    return rle_space_check(out);
}

/* env.vector_new(id, n, limit or nil, mode) -> handle, observation space, action space
 * (of one environment) */
static int vector_new(lua_State *L)
{
    rle_lua_enter(L);
    const char *id = luaL_checkstring(L, 1);
    int64_t n = rle_lua_check_integer(L, 2);
    int64_t limit = lua_isnoneornil(L, 3) ? -1 : rle_lua_check_integer(L, 3);
    const char *name = luaL_checkstring(L, 4);
    rle_autoreset mode = RLE_AUTORESET_NEXT_STEP;
    while (mode < RLE_AUTORESET_DISABLED && strcmp(name, rle_autoreset_name(mode)) != 0)
        mode++;
    const rle_env_ops *ops = rle_env_find(id);
    if (!ops) return rle_lua_fail(L, RLE_NOT_FOUND, "no environment \"%.64s\"", id);
    handle *h = lua_newuserdata(L, sizeof *h);
    h->v = NULL;
    rle_rawgetp(L, LUA_REGISTRYINDEX, &handle_key);
    lua_setmetatable(L, -2);
    rle_lua_check(L, rle_vecenv_new(ops, n, limit, mode, &h->v));
    rle_lua_check(L, batch_of(ops->observation_space, n, &h->obs_batch));
    rle_lua_check(L, batch_of(ops->action_space, n, &h->action_batch));
    rle_lua_push_space(L, ops->observation_space);
    rle_lua_push_space(L, ops->action_space);
    return 3;
}

static int handle_gc(lua_State *L)
{
    handle *h = lua_touserdata(L, 1);
    rle_vecenv_release(h->v);
    h->v = NULL;
    return 0;
}

static int vector_close(lua_State *L)
{
    rle_lua_enter(L);
    handle *h = to_handle(L);
    rle_vecenv_release(h->v);
    h->v = NULL;
    return 0;
}

/* env.vector_reset(handle, seed or nil, mask or nil, observations before or nil) ->
 * observations. Rows outside the mask are copied from `before`. */
static int vector_reset(lua_State *L)
{
    rle_lua_enter(L);
    handle *h = check_handle(L);
    const rle_space *batch = &h->obs_batch;
    uint64_t seed;
    bool seeded = rle_lua_env_seed(L, 2, rle_vecenv_kind(h->v)->id, &seed);
    lua_settop(L, 4);
    bool small[256], *mask = NULL;
    if (!lua_isnil(L, 3)) {
        rle_space flags = {.kind = RLE_SPACE_BOX,
                           .dtype = RLE_BOOL,
                           .ndim = 1,
                           .shape = {batch->shape[0]}};
        mask = rle_lua_scratch(L, small, sizeof small, (size_t)batch->shape[0]);
        rle_status status = rle_lua_read_value(L, 3, &flags, mask);
        if (status != RLE_OK) return rle_lua_fail(L, status, "mask: %s", rle_message());
        if (lua_isnil(L, 4))
            return rle_lua_fail(L, RLE_FAILED_PRECONDITION,
                                "%s: a reset with a mask comes after a whole one",
                                rle_vecenv_kind(h->v)->id);
    }
    rle_tensor *obs = rle_lua_push_env_tensor(L, batch->dtype, batch->ndim, batch->shape);
    if (mask) rle_lua_check(L, rle_lua_read_value(L, 4, batch, obs->a.data));
    rle_note_reset();
    rle_status status = rle_vecenv_reset(h->v, seeded ? &seed : NULL, mask, obs->a.data);
    rle_note_back();
    rle_lua_check(L, status);
    rle_lua_to_default(L, -1, 1);
    return 1;
}

/* env.vector_step(handle, actions) -> observations, rewards, terminated, truncated,
 * was_reset, final observations (nil but for same_step) */
static int vector_step(lua_State *L)
{
    rle_lua_enter(L);
    handle *h = check_handle(L);
    const rle_space *batch = &h->obs_batch;
    int64_t n = batch->shape[0];
    double small[128];
    lua_settop(L, 2);
    void *actions =
        rle_lua_scratch(L, small, sizeof small, rle_space_bytes(&h->action_batch));
    rle_status status = rle_lua_read_value(L, 2, &h->action_batch, actions);
    if (status != RLE_OK)
        return rle_lua_fail(L, status,
                            "%s: %lld actions are needed, one for each environment: "
                            "%s",
                            rle_vecenv_kind(h->v)->id, (long long)n, rle_message());
    rle_tensor *obs = rle_lua_push_env_tensor(L, batch->dtype, batch->ndim, batch->shape);
    rle_tensor *reward = rle_lua_push_env_tensor(L, RLE_F32, 1, &n);
    rle_tensor *terminated = rle_lua_push_env_tensor(L, RLE_BOOL, 1, &n);
    rle_tensor *truncated = rle_lua_push_env_tensor(L, RLE_BOOL, 1, &n);
    rle_tensor *was_reset = rle_lua_push_env_tensor(L, RLE_BOOL, 1, &n);
    rle_tensor *final = NULL;
    if (rle_vecenv_mode(h->v) == RLE_AUTORESET_SAME_STEP)
        final = rle_lua_push_env_tensor(L, batch->dtype, batch->ndim, batch->shape);
    else
        lua_pushnil(L);
    rle_vecstep out = {obs->a.data,       final ? final->a.data : NULL,
                       reward->a.data,    terminated->a.data,
                       truncated->a.data, was_reset->a.data};
    rle_note_step(0);
    status = rle_vecenv_step(h->v, actions, &out);
    rle_note_back();
    rle_lua_check(L, status);
    rle_lua_to_default(L, -6, 6);
    return 6;
}

/* ---- for vectors of environments written in Lua, and for the spaces of all ---- */

/* env.batch_space(space, n) -> the Box of n values of space */
static int batch_space(lua_State *L)
{
    rle_lua_enter(L);
    const rle_space *s = rle_lua_check_space(L, 1);
    rle_space batch;
    rle_lua_check(L, batch_of(s, rle_lua_check_integer(L, 2), &batch));
    if (s->kind == RLE_SPACE_DISCRETE) {
        batch.low_all = (double)s->start;
        batch.high_all = (double)(s->start + s->n - 1);
    } else if (!s->low && !s->high) {
        batch.low_all = s->low_all;
        batch.high_all = s->high_all;
    } else {
        int64_t all = rle_space_numel(&batch), one = rle_space_numel(s);
        double *low = lua_newuserdata(L, 2 * (size_t)all * sizeof *low),
               *high = low + all;
        for (int64_t i = 0; i < all; i++) {
            low[i] = rle_space_low(s, i % one);
            high[i] = rle_space_high(s, i % one);
        }
        batch.low = low;
        batch.high = high;
    }
    rle_lua_check(L, rle_space_check(&batch));
    rle_lua_push_space(L, &batch);
    return 1;
}

/* env.batch(space, list) -> tensor of the listed values of space, one a row */
static int batch_values(lua_State *L)
{
    rle_lua_enter(L);
    const rle_space *s = rle_lua_check_space(L, 1);
    luaL_checktype(L, 2, LUA_TTABLE);
    rle_space batch;
    rle_lua_check(L, batch_of(s, (int64_t)lua_rawlen(L, 2), &batch));
    rle_tensor *t = rle_lua_push_env_tensor(L, batch.dtype, batch.ndim, batch.shape);
    size_t row = rle_space_bytes(s);
    for (int64_t i = 0; i < batch.shape[0]; i++) {
        lua_rawgeti(L, 2, (int)(i + 1));
        rle_lua_check(L,
                      rle_lua_read_value(L, -1, s, (char *)t->a.data + (size_t)i * row));
        lua_pop(L, 1);
    }
    rle_lua_to_default(L, -1, 1);
    return 1;
}

static const luaL_Reg vector_functions[] = {
    {"batch_space", batch_space},
    {"batch", batch_values},
    {"vector_new", vector_new},
    {"vector_close", vector_close},
    {"vector_reset", vector_reset},
    {"vector_step", vector_step},
    {NULL, NULL},
};

void rle_lua_open_env_vector(lua_State *L)
{
    rle_lua_setfuncs(L, vector_functions);
    lua_newtable(L);
    lua_pushcfunction(L, handle_gc);
    lua_setfield(L, -2, "__gc");
    lua_pushliteral(L, "rlengine.VecEnv");
    lua_setfield(L, -2, "__name");
    rle_rawsetp(L, LUA_REGISTRYINDEX, &handle_key);
}
