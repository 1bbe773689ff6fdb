/* lua_env.c - environments of the C engine for lua/rlengine/env: handles, and the checks
 * of values that environments written in Lua share with them.
 *
 * A handle is a userdata that holds one reference to an rle_env; closing gives it up
 * early. lua/rlengine/env/ wraps it. Observations are fresh tensors at each call, so what
 * a script keeps never changes; step_into writes into a tensor of the script's, and the
 * functions of the FFI view (below) write into plain memory of LuaJIT's. */
#include "lua/lua_env.h"

#include <math.h>
#include <stdio.h>

#include "base/log.h"
#include "base/note.h"
#include "tensor/tensor.h"

#define HANDLE_MAGIC 0x726c652e456e7630u

typedef struct handle {
    uint64_t magic; /* tells a handle from other userdata, faster than a metatable */
    rle_env *env;   /* NULL once closed */
    const rle_space *observations, *actions;
} handle;

static const char handle_key;

/* ---- handles ---- */

static handle *to_handle(lua_State *L)
{
    handle *h = lua_type(L, 1) == LUA_TUSERDATA && lua_rawlen(L, 1) == sizeof *h
                    ? lua_touserdata(L, 1)
                    : NULL;
    if (!h || h->magic != HANDLE_MAGIC)
        rle_lua_fail(L, RLE_INVALID_ARGUMENT, "expected an environment");
    return h;
}

static handle *check_handle(lua_State *L)
{
    handle *h = to_handle(L);
    if (!h->env) rle_lua_fail(L, RLE_FAILED_PRECONDITION, "the environment is closed");
    return h;
}

/* env.new(id, limit or nil) -> handle, observation space, action space */
static int env_new(lua_State *L)
{
    rle_lua_enter(L);
    const char *id = luaL_checkstring(L, 1);
    int64_t limit = lua_isnoneornil(L, 2) ? -1 : rle_lua_check_integer(L, 2);
    const rle_env_ops *ops = rle_env_find(id);
    if (!ops) return rle_lua_fail(L, RLE_NOT_FOUND, "no environment \"%.64s\"", id);
    handle *h = lua_newuserdata(L, sizeof *h);
    h->magic = HANDLE_MAGIC;
    h->env = NULL;
    h->observations = ops->observation_space;
    h->actions = ops->action_space;
    rle_rawgetp(L, LUA_REGISTRYINDEX, &handle_key);
    lua_setmetatable(L, -2);
    rle_lua_check(L, rle_env_new(ops, limit, &h->env));
    rle_lua_push_space(L, ops->observation_space);
    rle_lua_push_space(L, ops->action_space);
    return 3;
}

static int handle_gc(lua_State *L)
{
    handle *h = lua_touserdata(L, 1);
    rle_env_release(h->env);
    h->env = NULL;
    return 0;
}

/* env.close(handle): closing twice is fine. */
static int env_close(lua_State *L)
{
    rle_lua_enter(L);
    handle *h = to_handle(L);
    rle_env_release(h->env);
    h->env = NULL;
    return 0;
}

/* env.state(handle) -> "closed", "not reset", "running" or "ended"; steps of the
 * episode */
static int env_state(lua_State *L)
{
    static const char *const names[] = {"not reset", "running", "ended"};
    handle *h = to_handle(L);
    lua_pushstring(L, h->env ? names[rle_env_get_phase(h->env)] : "closed");
    lua_pushinteger(L, h->env ? (lua_Integer)rle_env_elapsed(h->env) : 0);
    return 2;
}

/* env.kinds() -> list of {id, max_episode_steps (nil: none), reward_threshold (nil)} */
static int env_kinds(lua_State *L)
{
    rle_lua_enter(L);
    const rle_env_ops *ops;
    lua_newtable(L);
    for (int i = 0; (ops = rle_env_at(i)); i++) {
        lua_createtable(L, 0, 3);
        lua_pushstring(L, ops->id);
        lua_setfield(L, -2, "id");
        if (ops->max_episode_steps) {
            lua_pushinteger(L, (lua_Integer)ops->max_episode_steps);
            lua_setfield(L, -2, "max_episode_steps");
        }
        if (ops->has_reward_threshold) {
            lua_pushnumber(L, ops->reward_threshold);
            lua_setfield(L, -2, "reward_threshold");
        }
        lua_rawseti(L, -2, i + 1);
    }
    return 1;
}

/* ---- reading an action ---- */

/* The action at idx into `out`; the message names environment and step. */
static rle_status read_action(lua_State *L, int idx, const rle_space *s, const char *id,
                              int64_t step, void *out)
{
    if (s->kind == RLE_SPACE_DISCRETE && lua_type(L, idx) == LUA_TNUMBER) {
        double v = lua_tonumber(L, idx);
        if (fabs(v) <= 0x1p53 && v == (double)(int64_t)v) {
            *(int64_t *)out = (int64_t)v;
            return RLE_OK;
        }
    }
    rle_status status = rle_lua_read_value(L, idx, s, out);
    if (status == RLE_OK) return RLE_OK;
    if (s->kind == RLE_SPACE_DISCRETE)
        return rle_fail(status, "%s: step %lld: action %s", id, (long long)step,
                        rle_message());
    char space[256];
    return rle_fail(status, "%s: step %lld: the action must be in %s: %s", id,
                    (long long)step, rle_space_describe(s, space, sizeof space),
                    rle_message());
}

/* The action at index 2, in `small` or, when it is large, in a userdata that is
 * pushed. */
static const void *check_action(lua_State *L, handle *h, double small[16])
{
    void *action = small;
    size_t size = rle_space_bytes(h->actions);
    if (size > 16 * sizeof *small) {
        if (lua_gettop(L) < 2) lua_settop(L, 2);
        action = lua_newuserdata(L, size);
    }
    rle_lua_check(L, read_action(L, 2, h->actions, rle_env_kind(h->env)->id,
                                 rle_env_elapsed(h->env) + 1, action));
    return action;
}

/* ---- reset and step ---- */

/* Should it not come back, others are told where it is (base/note.h). */
static rle_status noted_reset(handle *h, const uint64_t *seed, void *obs)
{
    rle_note_reset();
    rle_status s = rle_env_reset(h->env, seed, obs);
    rle_note_back();
    return s;
}

static rle_status noted_step(handle *h, const void *action, void *obs, rle_step *out)
{
    rle_note_step(0);
    rle_status s = rle_env_step(h->env, action, obs, out);
    rle_note_back();
    return s;
}

/* env.reset(handle, seed or nil) -> observation */
static int env_reset(lua_State *L)
{
    rle_lua_enter(L);
    handle *h = check_handle(L);
    uint64_t seed;
    bool seeded = rle_lua_env_seed(L, 2, rle_env_kind(h->env)->id, &seed);
    if (h->observations->kind == RLE_SPACE_DISCRETE) {
        int64_t obs;
        rle_lua_check(L, noted_reset(h, seeded ? &seed : NULL, &obs));
        rle_lua_push_value(L, h->observations, &obs);
        return 1;
    }
    const rle_space *s = h->observations;
    rle_tensor *t = rle_lua_push_env_tensor(L, s->dtype, s->ndim, s->shape);
    rle_lua_check(L, noted_reset(h, seeded ? &seed : NULL, t->a.data));
    rle_lua_to_default(L, -1, 1);
    return 1;
}

/* Environments of the C engine have nothing to say in `info`. A new table at each step
 * would take a fifth of its time, so all get one, which cannot be written to. */
static int no_info_newindex(lua_State *L)
{
    return rle_lua_fail(L, RLE_FAILED_PRECONDITION,
                        "info of this environment is empty and shared by all steps; keep "
                        "\"%.64s\" in a table of your own",
                        lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : "that");
}

static void push_no_info(lua_State *L)
{
    lua_newtable(L);
    lua_newtable(L);
    lua_pushcfunction(L, no_info_newindex);
    lua_setfield(L, -2, "__newindex");
    lua_setmetatable(L, -2);
}

static int push_step(lua_State *L, const rle_step *step)
{
    lua_pushnumber(L, step->reward);
    lua_pushboolean(L, step->terminated);
    lua_pushboolean(L, step->truncated);
    lua_pushvalue(L, lua_upvalueindex(1));
    return 4;
}

/* env.step(handle, action) -> observation, reward, terminated, truncated, info */
static int env_step(lua_State *L)
{
    rle_lua_enter(L);
    handle *h = check_handle(L);
    double small[16];
    rle_step step;
    const void *action = check_action(L, h, small);
    const rle_space *s = h->observations;
    if (s->kind == RLE_SPACE_DISCRETE) {
        int64_t obs;
        rle_lua_check(L, noted_step(h, action, &obs, &step));
        rle_lua_push_value(L, s, &obs);
    } else {
        rle_tensor *t = rle_lua_push_env_tensor(L, s->dtype, s->ndim, s->shape);
        rle_lua_check(L, noted_step(h, action, t->a.data, &step));
        rle_lua_to_default(L, -1, 1);
    }
    return 1 + push_step(L, &step);
}

/* The tensor at idx, to be overwritten with observations of s. */
static rle_tensor *check_target(lua_State *L, int idx, const rle_space *s)
{
    rle_tensor *t = rle_lua_check_tensor(L, idx);
    bool same =
        s->kind == RLE_SPACE_BOX && t->a.dtype == s->dtype && t->a.ndim == s->ndim;
    for (int i = 0; same && i < s->ndim; i++) same = t->a.shape[i] == s->shape[i];
    if (!same) {
        char array[100], space[256];
        rle_lua_fail(L, RLE_INVALID_ARGUMENT,
                     "step_into: a tensor %s cannot take an observation of %s",
                     rle_array_describe(&t->a, array, sizeof array),
                     rle_space_describe(s, space, sizeof space));
    }
    if (t->requires_grad)
        rle_lua_fail(L, RLE_FAILED_PRECONDITION,
                     "step_into: the tensor requires grad and cannot be overwritten");
    return t;
}

/* env.step_into(handle, action, tensor) -> reward, terminated, truncated, info */
static int env_step_into(lua_State *L)
{
    rle_lua_enter(L);
    handle *h = check_handle(L);
    double small[16], small_obs[16];
    rle_step step;
    rle_tensor *t = check_target(L, 3, h->observations);
    const void *action = check_action(L, h, small);
    if (rle_tensor_device(t) == rle_device_cpu() && rle_tensor_is_contiguous(t)) {
        rle_lua_check(L, noted_step(h, action, t->a.data, &step));
        t->storage->version++; /* autograd sees that a saved tensor has changed */
    } else {
        size_t bytes = rle_space_bytes(h->observations);
        void *obs = rle_lua_scratch(L, small_obs, sizeof small_obs, bytes);
        rle_lua_check(L, noted_step(h, action, obs, &step));
        rle_lua_check(L, rle_tensor_write_host(t, h->observations->dtype, obs));
    }
    return push_step(L, &step);
}

/* ---- for environments written in Lua ---- */

/* env.observation(space, value, id, step) -> number or fresh tensor; step 0 is the
 * reset. */
static int env_observation(lua_State *L)
{
    rle_lua_enter(L);
    const rle_space *s = rle_lua_check_space(L, 1);
    const char *id = luaL_checkstring(L, 3);
    long long step = (long long)luaL_checknumber(L, 4);
    char space[256], when[40];
    if (!step) rle_note_reset(); /* it has just been */
    rle_note_back();
    snprintf(when, sizeof when, step ? "step %lld" : "reset", step);
    if (s->kind == RLE_SPACE_DISCRETE) {
        int64_t v;
        rle_status status = rle_lua_read_value(L, 2, s, &v);
        if (status != RLE_OK)
            return rle_lua_fail(L, status, "%s: %s: observation %s", id, when,
                                rle_message());
        rle_lua_push_value(L, s, &v);
        return 1;
    }
    rle_tensor *t = rle_lua_push_env_tensor(L, s->dtype, s->ndim, s->shape);
    rle_status status = rle_lua_read_value(L, 2, s, t->a.data);
    if (status != RLE_OK)
        return rle_lua_fail(L, status, "%s: %s: the observation must be in %s: %s", id,
                            when, rle_space_describe(s, space, sizeof space),
                            rle_message());
    int64_t bad = rle_first_nan(s->dtype, t->a.data, rle_space_numel(s));
    if (bad >= 0)
        return rle_lua_fail(L, RLE_INTERNAL,
                            "%s: %s: element %lld of the observation is NaN", id, when,
                            (long long)bad + 1);
    rle_lua_to_default(L, -1, 1);
    return 1;
}

/* env.action(space, value, id, step) -> the action as a number or (nested) table of
 * numbers */
static int env_action(lua_State *L)
{
    rle_lua_enter(L);
    const rle_space *s = rle_lua_check_space(L, 1);
    const char *id = luaL_checkstring(L, 3);
    int64_t step = (int64_t)luaL_checknumber(L, 4);
    double small[32];
    void *action = rle_lua_scratch(L, small, sizeof small, rle_space_bytes(s));
    rle_lua_check(L, read_action(L, 2, s, id, step, action));
    int64_t bad = rle_space_outside(s, action);
    if (bad >= 0) rle_lua_check(L, rle_env_bad_action(s, id, step, action, bad));
    rle_lua_push_plain(L, s, action);
    rle_note_step(step); /* is what follows */
    return 1;
}

/* env.warn(message): a line in the log. */
static int env_warn(lua_State *L)
{
    rle_log(RLE_LOG_WARN, "%s", luaL_checkstring(L, 1));
    return 0;
}

/* ---- the view for LuaJIT's FFI ----
 *
 * Called from compiled Lua through function pointers: they must not enter Lua, so they
 * return a status and leave the message for env.raise. They take the handle, not the
 * rle_env, because the environment may be closed while a view of it lives. */

static rle_status view_ready(const handle *h)
{
    if (rle_interrupted) return rle_fail(RLE_CANCELLED, "interrupted");
    if (!h->env) return rle_fail(RLE_FAILED_PRECONDITION, "the environment is closed");
    return RLE_OK;
}

static rle_status view_reset(handle *h, double seed, void *obs)
{
    RLE_TRY(view_ready(h));
    uint64_t number = seed < 0 ? 0 : (uint64_t)seed;
    return noted_reset(h, seed < 0 ? NULL : &number, obs);
}

static rle_status view_step(handle *h, double action, void *obs, rle_step *out)
{
    RLE_TRY(view_ready(h));
    int64_t choice = fabs(action) <= 0x1p53 ? (int64_t)action : INT64_MIN;
    if (action != (double)choice)
        return rle_fail(RLE_INVALID_ARGUMENT, "%s: step %lld: action %.14g is no integer",
                        rle_env_kind(h->env)->id, (long long)rle_env_elapsed(h->env) + 1,
                        action);
    return noted_step(h, &choice, obs, out);
}

static rle_status view_step_box(handle *h, const void *action, void *obs, rle_step *out)
{
    RLE_TRY(view_ready(h));
    return noted_step(h, action, obs, out);
}

/* env.view(handle) -> the handle and the functions above as light userdata: handle,
 * reset, step, step_box; elements and dtype of an observation and of an action */
static int env_view(lua_State *L)
{
    rle_lua_enter(L);
    handle *h = check_handle(L);
    lua_pushlightuserdata(L, h);
    lua_pushlightuserdata(L, (void *)view_reset);
    lua_pushlightuserdata(L, (void *)view_step);
    lua_pushlightuserdata(L, (void *)view_step_box);
    lua_pushinteger(L, (lua_Integer)rle_space_numel(h->observations));
    lua_pushstring(L, rle_dtype_name(h->observations->dtype));
    lua_pushinteger(L, (lua_Integer)rle_space_numel(h->actions));
    lua_pushstring(L, rle_dtype_name(h->actions->dtype));
    return 8;
}

/* env.raise(status): the failure that a function of a view has just reported. */
static int env_raise(lua_State *L)
{
    rle_status status = (rle_status)luaL_checkinteger(L, 1);
    rle_lua_enter(L); /* raises when it was Ctrl-C */
    return rle_lua_raise(L, status);
}

static const luaL_Reg env_functions[] = {
    {"new", env_new},       {"close", env_close},
    {"state", env_state},   {"kinds", env_kinds},
    {"reset", env_reset},   {"observation", env_observation},
    {"action", env_action}, {"plain", rle_lua_env_plain},
    {"warn", env_warn},     {"view", env_view},
    {"raise", env_raise},   {NULL, NULL},
};

void rle_lua_open_env(lua_State *L)
{
    lua_newtable(L);
    lua_pushcfunction(L, handle_gc);
    lua_setfield(L, -2, "__gc");
    lua_pushliteral(L, "rlengine.Env");
    lua_setfield(L, -2, "__name");
    rle_rawsetp(L, LUA_REGISTRYINDEX, &handle_key);

    lua_newtable(L);
    rle_lua_setfuncs(L, env_functions);
    push_no_info(L);
    lua_pushvalue(L, -1);
    lua_setfield(L, -3, "no_info");
    lua_pushvalue(L, -1);
    lua_pushcclosure(L, env_step, 1);
    lua_setfield(L, -3, "step");
    lua_pushcclosure(L, env_step_into, 1);
    lua_setfield(L, -2, "step_into");
    rle_lua_open_env_space(L);
    rle_lua_open_env_vector(L);
}
