/* lua_env_value.c - values of spaces from Lua to C and back.
 *
 * What a script hands over (numbers, nested tables, tensors) is read into plain memory,
 * with the shape and the dtype of the space; what fails says where in the value. */
#include "lua/lua_env.h"

#include <math.h>
#include <stdio.h>

#include "base/mem.h"
#include "tensor/tensor.h"

void *rle_lua_env_userdata(lua_State *L, int idx, const void *key)
{
    void *p = lua_touserdata(L, idx);
    if (!p || !lua_getmetatable(L, idx)) return NULL;
    rle_rawgetp(L, LUA_REGISTRYINDEX, key);
    bool same = lua_rawequal(L, -1, -2);
    lua_pop(L, 2);
    return same ? p : NULL;
}

void *rle_lua_scratch(lua_State *L, void *small, size_t small_size, size_t size)
{
    if (size <= small_size) {
        lua_pushnil(L);
        return small;
    }
    return lua_newuserdata(L, size);
}

bool rle_lua_env_seed(lua_State *L, int idx, const char *what, uint64_t *seed)
{
    if (lua_isnoneornil(L, idx)) return false;
    double v = lua_type(L, idx) == LUA_TNUMBER ? lua_tonumber(L, idx) : NAN;
    if (!(v == floor(v) && v >= 0 && v <= 0x1p53)) {
        char got[128];
        rle_lua_fail(L, RLE_INVALID_ARGUMENT,
                     "%s: seed must be an integer from 0 to 2^53, got %s", what,
                     rle_lua_describe_value(L, idx, got, sizeof got));
    }
    *seed = (uint64_t)v;
    return true;
}

/* ---- values from Lua ---- */

char *rle_lua_describe_value(lua_State *L, int idx, char *out, size_t size)
{
    switch (lua_type(L, idx)) {
    case LUA_TNONE:
    case LUA_TNIL: snprintf(out, size, "nil"); return out;
    case LUA_TBOOLEAN:
        snprintf(out, size, lua_toboolean(L, idx) ? "true" : "false");
        return out;
    case LUA_TNUMBER: snprintf(out, size, "%.14g", lua_tonumber(L, idx)); return out;
    case LUA_TSTRING: snprintf(out, size, "\"%.60s\"", lua_tostring(L, idx)); return out;
    default: break;
    }
    rle_tensor *t = rle_lua_to_tensor(L, idx);
    if (t) {
        char array[100];
        snprintf(out, size, "a tensor %s",
                 rle_array_describe(&t->a, array, sizeof array));
    } else {
        snprintf(out, size, "a %s", luaL_typename(L, idx));
    }
    return out;
}

static rle_status read_number(double v, const rle_space *s, void *out, int64_t i)
{
    static const struct {
        double low, high;
    } range[RLE_DTYPE_COUNT] = {
        [RLE_I32] = {INT32_MIN, INT32_MAX},
        [RLE_I64] = {-0x1p53, 0x1p53},
        [RLE_U8] = {0, 255},
        [RLE_BOOL] = {0, 1},
    };
    if (!rle_dtype_is_float(s->dtype) &&
        !(v == floor(v) && v >= range[s->dtype].low && v <= range[s->dtype].high))
        return rle_fail(RLE_INVALID_ARGUMENT,
                        "element %lld is %.14g, which %s does not hold", (long long)i + 1,
                        v, rle_dtype_name(s->dtype));
    rle_element_set(s->dtype, out, i, v);
    return RLE_OK;
}

/* Nested tables by the dimensions of the space, from dimension `dim` on. */
static rle_status read_table(lua_State *L, int idx, const rle_space *s, int dim,
                             void *out, int64_t *next)
{
    char got[128];
    if (dim == s->ndim) {
        if (lua_type(L, idx) == LUA_TNUMBER)
            return read_number(lua_tonumber(L, idx), s, out, (*next)++);
        if (lua_type(L, idx) == LUA_TBOOLEAN && s->dtype == RLE_BOOL)
            return read_number(lua_toboolean(L, idx), s, out, (*next)++);
        rle_tensor *t = rle_lua_to_tensor(L, idx);
        if (t && rle_tensor_numel(t) == 1) {
            double v;
            int64_t integer;
            RLE_TRY(rle_tensor_item(t, &v, &integer));
            return read_number(v, s, out, (*next)++);
        }
        return rle_fail(RLE_INVALID_ARGUMENT, "element %lld is %s, not a number",
                        (long long)*next + 1,
                        rle_lua_describe_value(L, idx, got, sizeof got));
    }
    if (!lua_istable(L, idx) || (int64_t)lua_rawlen(L, idx) != s->shape[dim]) {
        if (lua_istable(L, idx))
            return rle_fail(RLE_INVALID_ARGUMENT,
                            "a table of %lld where dimension %d has %lld elements",
                            (long long)lua_rawlen(L, idx), dim + 1,
                            (long long)s->shape[dim]);
        return rle_fail(RLE_INVALID_ARGUMENT,
                        "%s where a table of %lld elements was expected",
                        rle_lua_describe_value(L, idx, got, sizeof got),
                        (long long)s->shape[dim]);
    }
    if (!lua_checkstack(L, 4)) return rle_oom(4, "Lua stack");
    for (int64_t i = 0; i < s->shape[dim]; i++) {
        lua_rawgeti(L, idx, (int)(i + 1));
        rle_status status = read_table(L, lua_gettop(L), s, dim + 1, out, next);
        lua_pop(L, 1);
        RLE_TRY(status);
    }
    return RLE_OK;
}

static rle_status read_tensor(rle_tensor *t, const rle_space *s, void *out)
{
    bool same = t->a.ndim == s->ndim;
    for (int i = 0; same && i < s->ndim; i++) same = t->a.shape[i] == s->shape[i];
    if (!same) {
        char array[100], space[256];
        return rle_fail(RLE_INVALID_ARGUMENT,
                        "a tensor %s, which has not the shape of %s",
                        rle_array_describe(&t->a, array, sizeof array),
                        rle_space_describe(s, space, sizeof space));
    }
    if (t->a.dtype == s->dtype) return rle_tensor_to_host(t, out, rle_space_bytes(s));
    int64_t n = rle_space_numel(s);
    size_t bytes = (size_t)n * rle_dtype_size(t->a.dtype);
    void *host = rle_malloc(bytes);
    if (!host) return rle_oom(bytes, "value of a space");
    rle_status status = rle_tensor_to_host(t, host, bytes);
    for (int64_t i = 0; status == RLE_OK && i < n; i++)
        status = read_number(rle_element_get(t->a.dtype, host, i), s, out, i);
    rle_free(host);
    return status;
}

static rle_status read_choice(lua_State *L, int idx, const rle_space *s, int64_t *out)
{
    rle_tensor *t;
    if (lua_type(L, idx) == LUA_TNUMBER) {
        double v = lua_tonumber(L, idx);
        if (v == floor(v) && fabs(v) <= 0x1p53) {
            *out = (int64_t)v;
            return RLE_OK;
        }
    } else if ((t = rle_lua_to_tensor(L, idx)) && !rle_dtype_is_float(t->a.dtype) &&
               t->a.dtype != RLE_BOOL && rle_tensor_numel(t) == 1) {
        double v;
        return rle_tensor_item(t, &v, out);
    }
    char got[128], space[64];
    return rle_fail(RLE_INVALID_ARGUMENT,
                    "%s is not in %s: it must be an integer from %lld to %lld",
                    rle_lua_describe_value(L, idx, got, sizeof got),
                    rle_space_describe(s, space, sizeof space), (long long)s->start,
                    (long long)(s->start + s->n - 1));
}

rle_status rle_lua_read_value(lua_State *L, int idx, const rle_space *s, void *out)
{
    if (s->kind == RLE_SPACE_DISCRETE) return read_choice(L, idx, s, out);
    idx = rle_absindex(L, idx);
    rle_tensor *t = rle_lua_to_tensor(L, idx);
    if (t) return read_tensor(t, s, out);
    if (lua_type(L, idx) == LUA_TNUMBER && rle_space_numel(s) == 1)
        return read_number(lua_tonumber(L, idx), s, out, 0);
    int64_t next = 0;
    return read_table(L, idx, s, 0, out, &next);
}

/* ---- values to Lua ---- */

rle_tensor *rle_lua_push_env_tensor(lua_State *L, rle_dtype dtype, int ndim,
                                    const int64_t *shape)
{
    rle_tensor **slot = rle_lua_new_tensor(L);
    rle_context *c = rle_context_current();
    uint8_t owner = c->owner;
    c->owner = RLE_OWNER_ENV;
    rle_status status = rle_tensor_new(rle_device_cpu(), dtype, ndim, shape, slot);
    c->owner = owner;
    rle_lua_check(L, status);
    return *slot;
}

void rle_lua_push_value(lua_State *L, const rle_space *s, const void *value)
{
    if (s->kind == RLE_SPACE_DISCRETE) {
        lua_pushinteger(L, (lua_Integer)*(const int64_t *)value);
        return;
    }
    rle_tensor *t = rle_lua_push_env_tensor(L, s->dtype, s->ndim, s->shape);
    memcpy(t->a.data, value, rle_space_bytes(s));
    rle_lua_to_default(L, -1, 1);
}

static void push_plain(lua_State *L, const rle_space *s, int dim, const void *value,
                       int64_t *next)
{
    if (dim == s->ndim) {
        double v = rle_element_get(s->dtype, value, (*next)++);
        if (rle_dtype_is_float(s->dtype))
            lua_pushnumber(L, v);
        else
            lua_pushinteger(L, (lua_Integer)v);
        return;
    }
    luaL_checkstack(L, 3, "nested table");
    lua_createtable(L, (int)s->shape[dim], 0);
    for (int64_t i = 0; i < s->shape[dim]; i++) {
        push_plain(L, s, dim + 1, value, next);
        lua_rawseti(L, -2, (int)(i + 1));
    }
}

void rle_lua_push_plain(lua_State *L, const rle_space *s, const void *value)
{
    int64_t next = 0;
    push_plain(L, s, 0, value, &next);
}

/* env.plain(space, value) -> a number or nested tables of numbers; bounds are not
 * checked. */
int rle_lua_env_plain(lua_State *L)
{
    rle_lua_enter(L);
    const rle_space *s = rle_lua_check_space(L, 1);
    double small[32];
    lua_settop(L, 2);
    void *value = rle_lua_scratch(L, small, sizeof small, rle_space_bytes(s));
    rle_lua_check(L, rle_lua_read_value(L, 2, s, value));
    rle_lua_push_plain(L, s, value);
    return 1;
}
