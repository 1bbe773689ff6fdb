/* lua_env_space.c - spaces and random streams as userdata.
 *
 * The userdata of a space holds everything: the rle_space, its stream for sampling, and
 * the bounds that the space points at. So it needs no finalizer. */
#include "lua/lua_env.h"

#include <math.h>
#include <stdio.h>

#include "tensor/tensor.h"

typedef struct space_box {
    rle_space space;
    rle_pcg64 rng;
    bool seeded;
    double bounds[]; /* low, then high, of each element */
} space_box;

static const char space_key, rng_key;

/* ---- spaces ---- */

static space_box *to_box(lua_State *L, int idx)
{
    return rle_lua_env_userdata(L, idx, &space_key);
}

const rle_space *rle_lua_to_space(lua_State *L, int idx)
{
    space_box *b = to_box(L, idx);
    return b ? &b->space : NULL;
}

static space_box *check_box(lua_State *L, int idx)
{
    space_box *b = to_box(L, idx);
    if (!b) {
        char got[128];
        rle_lua_fail(
            L, RLE_INVALID_ARGUMENT,
            "argument %d: expected a space (rl.env.Box, rl.env.Discrete), got %s", idx,
            rle_lua_describe_value(L, idx, got, sizeof got));
    }
    return b;
}

const rle_space *rle_lua_check_space(lua_State *L, int idx)
{
    return &check_box(L, idx)->space;
}

/* A new userdata on top. `each`: bounds for each element, still to be filled; else one
 * for all, as s has them. */
static space_box *new_box(lua_State *L, const rle_space *s, bool each)
{
    size_t n = each ? (size_t)rle_space_numel(s) : 0;
    space_box *b = lua_newuserdata(L, sizeof *b + 2 * n * sizeof(double));
    b->space = *s;
    b->seeded = false;
    b->space.low = each ? b->bounds : NULL;
    b->space.high = each ? b->bounds + n : NULL;
    rle_rawgetp(L, LUA_REGISTRYINDEX, &space_key);
    lua_setmetatable(L, -2);
    return b;
}

void rle_lua_push_space(lua_State *L, const rle_space *s)
{
    bool each = s->low || s->high;
    space_box *b = new_box(L, s, each);
    if (!each) return;
    int64_t n = rle_space_numel(s);
    for (int64_t i = 0; i < n; i++) {
        b->bounds[i] = rle_space_low(s, i);
        b->bounds[n + i] = rle_space_high(s, i);
    }
}

/* env.discrete(n, start, seed) */
static int env_discrete(lua_State *L)
{
    rle_lua_enter(L);
    rle_space s = RLE_DISCRETE(rle_lua_check_integer(L, 1));
    if (!lua_isnoneornil(L, 2)) s.start = rle_lua_check_integer(L, 2);
    rle_lua_check(L, rle_space_check(&s));
    uint64_t seed;
    bool seeded = rle_lua_env_seed(L, 3, "Discrete", &seed);
    space_box *b = new_box(L, &s, false);
    b->seeded = seeded;
    if (seeded) rle_pcg64_seed(&b->rng, seed);
    return 1;
}

/* One bound of each element: a number for all, a table or a tensor of the shape. */
static void read_bounds(lua_State *L, int idx, const char *name, const rle_space *s,
                        double *out)
{
    rle_space as_f64 = *s;
    as_f64.dtype = RLE_F64;
    int64_t n = rle_space_numel(s);
    if (lua_type(L, idx) == LUA_TNUMBER) {
        for (int64_t i = 0; i < n; i++) out[i] = lua_tonumber(L, idx);
        return;
    }
    rle_status status = rle_lua_read_value(L, idx, &as_f64, out);
    if (status != RLE_OK) rle_lua_fail(L, status, "Box: %s: %s", name, rle_message());
}

/* env.box(low, high, shape, dtype, seed): shape a list of sizes. */
static int env_box(lua_State *L)
{
    rle_lua_enter(L);
    rle_space s = {.kind = RLE_SPACE_BOX};
    luaL_checktype(L, 3, LUA_TTABLE);
    if (lua_rawlen(L, 3) > RLE_MAX_DIMS)
        return rle_lua_fail(L, RLE_INVALID_ARGUMENT,
                            "Box: %d dimensions; there may be 0 to %d",
                            (int)lua_rawlen(L, 3), RLE_MAX_DIMS);
    s.ndim = (int)lua_rawlen(L, 3);
    for (int i = 0; i < s.ndim; i++) {
        lua_rawgeti(L, 3, i + 1);
        double size = lua_type(L, -1) == LUA_TNUMBER ? lua_tonumber(L, -1) : NAN;
        if (!(size == floor(size) && fabs(size) <= 0x1p53))
            return rle_lua_fail(L, RLE_INVALID_ARGUMENT,
                                "Box: shape must be a list of positive integers");
        s.shape[i] = (int64_t)size;
        lua_pop(L, 1);
    }
    rle_lua_check(L, rle_dtype_parse(luaL_checkstring(L, 4), &s.dtype));
    /* Sizes first, so that the bounds can be read; then all of it. */
    rle_lua_check(L, rle_space_check(&s));
    uint64_t seed;
    bool seeded = rle_lua_env_seed(L, 5, "Box", &seed);
    bool each = lua_type(L, 1) != LUA_TNUMBER || lua_type(L, 2) != LUA_TNUMBER;
    space_box *b = new_box(L, &s, each);
    if (each) {
        read_bounds(L, 1, "low", &s, b->bounds);
        read_bounds(L, 2, "high", &s, b->bounds + rle_space_numel(&s));
    } else {
        b->space.low_all = lua_tonumber(L, 1);
        b->space.high_all = lua_tonumber(L, 2);
    }
    rle_lua_check(L, rle_space_check(&b->space));
    b->seeded = seeded;
    if (seeded) rle_pcg64_seed(&b->rng, seed);
    return 1;
}

static int space_seed(lua_State *L)
{
    rle_lua_enter(L);
    space_box *b = check_box(L, 1);
    uint64_t seed;
    if (rle_lua_env_seed(L, 2, "space:seed", &seed))
        rle_pcg64_seed(&b->rng, seed);
    else
        rle_lua_check(L, rle_pcg64_seed_system(&b->rng));
    b->seeded = true;
    return 0;
}

static int space_sample(lua_State *L)
{
    rle_lua_enter(L);
    space_box *b = check_box(L, 1);
    if (!b->seeded) rle_lua_check(L, rle_pcg64_seed_system(&b->rng));
    b->seeded = true;
    if (b->space.kind == RLE_SPACE_DISCRETE) {
        int64_t v;
        rle_space_sample(&b->space, &b->rng, &v);
        rle_lua_push_value(L, &b->space, &v);
        return 1;
    }
    rle_tensor *t =
        rle_lua_push_env_tensor(L, b->space.dtype, b->space.ndim, b->space.shape);
    rle_space_sample(&b->space, &b->rng, t->a.data);
    rle_lua_to_default(L, -1, 1);
    return 1;
}

/* space:contains(value) -> true, or false and why not. */
static int space_contains(lua_State *L)
{
    rle_lua_enter(L);
    const rle_space *s = rle_lua_check_space(L, 1);
    double small[32];
    lua_settop(L, 2);
    void *value = rle_lua_scratch(L, small, sizeof small, rle_space_bytes(s));
    if (rle_lua_read_value(L, 2, s, value) != RLE_OK) {
        lua_pushboolean(L, 0);
        lua_pushstring(L, rle_message());
        return 2;
    }
    int64_t bad = rle_space_outside(s, value);
    lua_pushboolean(L, bad < 0);
    if (bad < 0) return 1;
    char text[128];
    if (s->kind == RLE_SPACE_DISCRETE)
        snprintf(text, sizeof text, "%lld is not from %lld to %lld",
                 (long long)*(int64_t *)value, (long long)s->start,
                 (long long)(s->start + s->n - 1));
    else
        snprintf(text, sizeof text, "element %lld is %g, not from %g to %g",
                 (long long)bad + 1, rle_element_get(s->dtype, value, bad),
                 rle_space_low(s, bad), rle_space_high(s, bad));
    lua_pushstring(L, text);
    return 2;
}

/* env.is_space(value) */
static int env_is_space(lua_State *L)
{
    lua_pushboolean(L, rle_lua_to_space(L, 1) != NULL);
    return 1;
}

/* space:copy(): the same space with a stream of its own, not seeded. */
static int space_copy(lua_State *L)
{
    rle_lua_enter(L);
    rle_lua_push_space(L, rle_lua_check_space(L, 1));
    return 1;
}

static int space_tostring(lua_State *L)
{
    char text[512];
    lua_pushstring(L, rle_space_describe(rle_lua_check_space(L, 1), text, sizeof text));
    return 1;
}

static int space_equal(lua_State *L)
{
    const rle_space *a = rle_lua_to_space(L, 1), *b = rle_lua_to_space(L, 2);
    lua_pushboolean(L, a && b && rle_space_equal(a, b));
    return 1;
}

static void push_bounds(lua_State *L, const rle_space *s,
                        double (*bound)(const rle_space *, int64_t))
{
    rle_tensor *t = rle_lua_push_env_tensor(L, s->dtype, s->ndim, s->shape);
    int64_t n = rle_space_numel(s);
    for (int64_t i = 0; i < n; i++) rle_element_set(s->dtype, t->a.data, i, bound(s, i));
    rle_lua_to_default(L, -1, 1);
}

/* Methods are looked up first (upvalue 1), then the fields. */
static int space_index(lua_State *L)
{
    lua_pushvalue(L, 2);
    lua_rawget(L, lua_upvalueindex(1));
    if (!lua_isnil(L, -1)) return 1;
    rle_lua_enter(L);
    const rle_space *s = rle_lua_check_space(L, 1);
    const char *key = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : "";
    bool box = s->kind == RLE_SPACE_BOX;
    if (strcmp(key, "dtype") == 0) {
        lua_pushstring(L, rle_dtype_name(s->dtype));
    } else if (strcmp(key, "kind") == 0) {
        lua_pushstring(L, box ? "Box" : "Discrete");
    } else if (strcmp(key, "shape") == 0) {
        lua_createtable(L, s->ndim, 0);
        for (int i = 0; i < s->ndim; i++) {
            lua_pushinteger(L, (lua_Integer)s->shape[i]);
            lua_rawseti(L, -2, i + 1);
        }
    } else if (!box && strcmp(key, "n") == 0) {
        lua_pushinteger(L, (lua_Integer)s->n);
    } else if (!box && strcmp(key, "start") == 0) {
        lua_pushinteger(L, (lua_Integer)s->start);
    } else if (box && strcmp(key, "low") == 0) {
        push_bounds(L, s, rle_space_low);
    } else if (box && strcmp(key, "high") == 0) {
        push_bounds(L, s, rle_space_high);
    } else {
        lua_pushnil(L);
    }
    return 1;
}

static const luaL_Reg space_methods[] = {
    {"seed", space_seed},
    {"sample", space_sample},
    {"contains", space_contains},
    {"copy", space_copy},
    {NULL, NULL},
};

/* ---- random streams ---- */

static rle_pcg64 *check_rng(lua_State *L)
{
    rle_pcg64 *rng = rle_lua_env_userdata(L, 1, &rng_key);
    if (!rng) rle_lua_fail(L, RLE_INVALID_ARGUMENT, "expected a stream of rl.env.rng");
    return rng;
}

static void start_rng(lua_State *L, int idx, const char *what, rle_pcg64 *rng)
{
    uint64_t seed;
    if (rle_lua_env_seed(L, idx, what, &seed))
        rle_pcg64_seed(rng, seed);
    else
        rle_lua_check(L, rle_pcg64_seed_system(rng));
}

/* env.rng(seed or nil) */
static int env_rng(lua_State *L)
{
    rle_lua_enter(L);
    rle_pcg64 fresh;
    start_rng(L, 1, "rl.env.rng", &fresh);
    rle_pcg64 *rng = lua_newuserdata(L, sizeof *rng);
    *rng = fresh;
    rle_rawgetp(L, LUA_REGISTRYINDEX, &rng_key);
    lua_setmetatable(L, -2);
    return 1;
}

static int rng_seed(lua_State *L)
{
    rle_lua_enter(L);
    start_rng(L, 2, "rng:seed", check_rng(L));
    return 0;
}

static int rng_random(lua_State *L)
{
    lua_pushnumber(L, rle_pcg64_double(check_rng(L)));
    return 1;
}

static double number_arg(lua_State *L, int idx, const char *what)
{
    double v = lua_type(L, idx) == LUA_TNUMBER ? lua_tonumber(L, idx) : NAN;
    if (!isfinite(v)) {
        char got[128];
        rle_lua_fail(L, RLE_INVALID_ARGUMENT, "%s must be a finite number, got %s", what,
                     rle_lua_describe_value(L, idx, got, sizeof got));
    }
    return v;
}

/* rng:uniform(low, high): low <= x < high. */
static int rng_uniform(lua_State *L)
{
    rle_pcg64 *rng = check_rng(L);
    double low = number_arg(L, 2, "rng:uniform: low"),
           high = number_arg(L, 3, "rng:uniform: high");
    lua_pushnumber(L, rle_pcg64_uniform(rng, low, high));
    return 1;
}

/* rng:integers(n): 0 <= i < n. */
static int rng_integers(lua_State *L)
{
    rle_pcg64 *rng = check_rng(L);
    double n = number_arg(L, 2, "rng:integers: n");
    if (!(n == floor(n) && n >= 1 && n <= 0x1p53))
        return rle_lua_fail(
            L, RLE_INVALID_ARGUMENT,
            "rng:integers: n must be an integer from 1 to 2^53, got %.14g", n);
    lua_pushinteger(L, (lua_Integer)rle_pcg64_integers(rng, (uint64_t)n));
    return 1;
}

static int rng_normal(lua_State *L)
{
    lua_pushnumber(L, rle_pcg64_normal(check_rng(L)));
    return 1;
}

static const luaL_Reg rng_methods[] = {
    {"seed", rng_seed},         {"random", rng_random}, {"uniform", rng_uniform},
    {"integers", rng_integers}, {"normal", rng_normal}, {NULL, NULL},
};

/* ---- opening ---- */

static const luaL_Reg functions[] = {
    {"discrete", env_discrete}, {"box", env_box}, {"rng", env_rng},
    {"is_space", env_is_space}, {NULL, NULL},
};

void rle_lua_open_env_space(lua_State *L)
{
    rle_lua_setfuncs(L, functions);

    lua_newtable(L);
    lua_newtable(L);
    rle_lua_setfuncs(L, space_methods);
    lua_pushcclosure(L, space_index, 1);
    lua_setfield(L, -2, "__index");
    lua_pushcfunction(L, space_tostring);
    lua_setfield(L, -2, "__tostring");
    lua_pushcfunction(L, space_equal);
    lua_setfield(L, -2, "__eq");
    lua_pushliteral(L, "rlengine.Space");
    lua_setfield(L, -2, "__name");
    rle_rawsetp(L, LUA_REGISTRYINDEX, &space_key);

    lua_newtable(L);
    lua_newtable(L);
    rle_lua_setfuncs(L, rng_methods);
    lua_setfield(L, -2, "__index");
    lua_pushliteral(L, "rlengine.EnvRng");
    lua_setfield(L, -2, "__name");
    rle_rawsetp(L, LUA_REGISTRYINDEX, &rng_key);
}
