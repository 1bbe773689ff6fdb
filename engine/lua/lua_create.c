/* lua_create.c - tensors from numbers, tables, ranges and random streams. */
#include "lua/lua_tensor.h"

#include <math.h>
#include <stdlib.h>

void rle_lua_check_create(lua_State *L, int idx, rle_dtype dtype, rle_device *device,
                          rle_lua_create *out)
{
    static const char *const known[] = {"dtype", "device", "requires_grad", NULL};
    *out = (rle_lua_create){.dtype = dtype, .device = device};
    if (!idx || !rle_lua_options(L, idx, known)) {
        if (!device) out->device = rle_lua_default_device(L);
        return;
    }
    const char *name = rle_lua_opt_string(L, idx, "dtype", NULL);
    if (name) {
        rle_lua_check(L, rle_dtype_parse(name, &out->dtype));
        out->has_dtype = true;
    }
    out->requires_grad = rle_lua_opt_boolean(L, idx, "requires_grad", false);
    lua_getfield(L, idx, "device");
    if (!lua_isnil(L, -1)) out->device = rle_lua_check_device(L, lua_gettop(L));
    lua_pop(L, 1);
    if (!out->device) out->device = rle_lua_default_device(L);
}

static int64_t check_size(lua_State *L, int arg, int position)
{
    double v = lua_type(L, arg) == LUA_TNUMBER ? lua_tonumber(L, arg) : NAN;
    if (!(v == floor(v)) || v > 0x1p53 || v < -1)
        rle_lua_fail(L, RLE_INVALID_ARGUMENT, "size %d must be a whole number, not %s",
                     position,
                     lua_type(L, arg) == LUA_TNUMBER ? lua_tostring(L, arg)
                                                     : luaL_typename(L, arg));
    return (int64_t)v;
}

int rle_lua_check_shape(lua_State *L, int first, int *ndim, int64_t *shape)
{
    int top = lua_gettop(L), n = 0, arg = first;
    if (lua_istable(L, first) && (lua_rawlen(L, first) > 0 || top > first)) {
        int count = (int)lua_rawlen(L, first);
        if (count > RLE_MAX_DIMS)
            rle_lua_fail(L, RLE_INVALID_ARGUMENT,
                         "a tensor has at most %d dimensions, got %d", RLE_MAX_DIMS,
                         count);
        for (; n < count; n++) {
            lua_rawgeti(L, first, n + 1);
            shape[n] = check_size(L, lua_gettop(L), n + 1);
            lua_pop(L, 1);
        }
        arg = first + 1;
    } else {
        for (; arg <= top && !lua_istable(L, arg) && !lua_isnil(L, arg); arg++, n++) {
            if (n == RLE_MAX_DIMS)
                rle_lua_fail(L, RLE_INVALID_ARGUMENT,
                             "a tensor has at most %d dimensions", RLE_MAX_DIMS);
            shape[n] = check_size(L, arg, n + 1);
        }
    }
    *ndim = n;
    return arg <= top && !lua_isnil(L, arg) ? arg : 0;
}

static void require_grad_if(lua_State *L, const rle_lua_create *c, rle_tensor *t)
{
    if (c->requires_grad) rle_lua_check(L, rle_set_requires_grad(t, true));
}

/* ---- numbers into tensors ---- */

/* Whether its whole part is one of dtype's numbers. */
static bool holds(rle_dtype dtype, double v)
{
    switch (dtype) {
    case RLE_U8:
        return v > -1 && v < 256;
    case RLE_I32:
        return v > -0x1p31 - 1 && v < 0x1p31;
    case RLE_I64:
        return v >= -0x1p63 && v < 0x1p63;
    default:
        return true;
    }
}

static const char *range_of(rle_dtype dtype)
{
    return dtype == RLE_U8    ? "0 to 255"
           : dtype == RLE_I32 ? "-2147483648 to 2147483647"
                              : "-2^63 to 2^63 - 1";
}

int64_t rle_lua_check_whole(lua_State *L, rle_dtype dtype, double v)
{
    if (dtype == RLE_BOOL) return v != 0;
    if (!holds(dtype, v))
        rle_lua_fail(L, RLE_INVALID_ARGUMENT, "%.14g does not fit into %s, which is %s",
                     rle_lua_shown(v), rle_dtype_name(dtype), range_of(dtype));
    return rle_dtype_is_float(dtype) ? 0 : (int64_t)v;
}

/* ---- tensor{...} ---- */

/* Sizes of the nested table at idx, by its first entries. */
static int table_shape(lua_State *L, int idx, int64_t *shape)
{
    int ndim = 0;
    lua_pushvalue(L, idx);
    while (lua_istable(L, -1)) {
        if (ndim == RLE_MAX_DIMS)
            rle_lua_fail(L, RLE_INVALID_ARGUMENT, "tables nested deeper than %d",
                         RLE_MAX_DIMS);
        shape[ndim++] = (int64_t)lua_rawlen(L, -1);
        if (shape[ndim - 1] == 0) break;
        lua_rawgeti(L, -1, 1);
        lua_remove(L, -2);
    }
    lua_pop(L, 1);
    return ndim;
}

typedef struct fill {
    double *number;
    int64_t at;
    bool all_bool;
} fill;

static void read_table(lua_State *L, fill *f, int ndim, const int64_t *shape, int dim)
{
    if (dim == ndim) {
        int type = lua_type(L, -1);
        if (type == LUA_TBOOLEAN) {
            f->number[f->at++] = lua_toboolean(L, -1);
            return;
        }
        f->all_bool = false;
        rle_tensor *t = type == LUA_TUSERDATA ? rle_lua_to_tensor(L, -1) : NULL;
        double v = 0;
        int64_t integer;
        if (t) {
            rle_lua_check(L, rle_tensor_item(t, &v, &integer));
        } else if (type == LUA_TNUMBER) {
            v = lua_tonumber(L, -1);
        } else {
            rle_lua_fail(
                L, RLE_INVALID_ARGUMENT,
                "tensor: element %d is %s; expected numbers or booleans, all at the "
                "same depth",
                (int)f->at + 1, luaL_typename(L, -1));
        }
        f->number[f->at++] = v;
        return;
    }
    if (!lua_istable(L, -1) || (int64_t)lua_rawlen(L, -1) != shape[dim])
        rle_lua_fail(L, RLE_INVALID_ARGUMENT,
                     "tensor: the tables of dimension %d differ in length (%d and %d)",
                     dim + 1, (int)shape[dim],
                     lua_istable(L, -1) ? (int)lua_rawlen(L, -1) : 0);
    for (int64_t i = 1; i <= shape[dim]; i++) {
        lua_rawgeti(L, -1, (int)i);
        read_table(L, f, ndim, shape, dim + 1);
        lua_pop(L, 1);
    }
}

/* Doubles into t, cast; integers beyond 2^53 are exact as far as a Lua number is. */
static void write_numbers(lua_State *L, rle_tensor *t, const double *number)
{
    rle_lua_check(L, rle_tensor_write_host(t, RLE_F64, number));
    t->storage->version = 0;
}

/* tensor(number | boolean | nested table | tensor [, {dtype, device, requires_grad}]).
 * Numbers that dtype cannot hold are refused; t:to(dtype) takes the nearest end instead.
 */
static int create_tensor(lua_State *L)
{
    rle_lua_enter(L);
    rle_lua_create c;
    int options = lua_isnoneornil(L, 2) ? 0 : 2;
    rle_tensor *source = rle_lua_to_tensor(L, 1);
    if (source) { /* a copy without history */
        rle_lua_check_create(L, options, source->a.dtype, rle_tensor_device(source), &c);
        rle_tensor **copy = rle_lua_new_tensor(L);
        rle_lua_check(L, rle_op_to(source, c.device, c.dtype, copy));
        require_grad_if(L, &c, *copy);
        return 1;
    }
    int64_t shape[RLE_MAX_DIMS];
    int ndim = table_shape(L, 1, shape);
    int64_t numel = 1;
    for (int i = 0; i < ndim; i++)
        if (__builtin_mul_overflow(numel, shape[i], &numel)) numel = INT64_MAX / 16;
    luaL_checkstack(L, RLE_MAX_DIMS + 4, "tensor");
    double small[16];
    fill f = {.number = small, .all_bool = numel > 0};
    if (numel > 16) f.number = lua_newuserdata(L, (size_t)numel * sizeof *f.number);
    lua_pushvalue(L, 1);
    if (numel > 0) read_table(L, &f, ndim, shape, 0);
    lua_pop(L, 1);
    rle_lua_check_create(L, options, f.all_bool ? RLE_BOOL : RLE_F32, NULL, &c);
    for (int64_t i = 0; i < numel; i++)
        if (!holds(c.dtype, f.number[i]))
            rle_lua_fail(L, RLE_INVALID_ARGUMENT,
                         "tensor: element %lld, %.14g, does not fit into %s, which is %s",
                         (long long)i + 1, rle_lua_shown(f.number[i]),
                         rle_dtype_name(c.dtype), range_of(c.dtype));
    rle_tensor **slot = rle_lua_new_tensor(L);
    rle_lua_check(L, rle_tensor_new(c.device, c.dtype, ndim, shape, slot));
    if (numel > 0) write_numbers(L, *slot, f.number);
    require_grad_if(L, &c, *slot);
    return 1;
}

/* from_bytes(string, dtype, sizes...): the inverse of bytes. */
static int create_from_bytes(lua_State *L)
{
    rle_lua_enter(L);
    size_t length;
    const char *data = luaL_checklstring(L, 1, &length);
    rle_dtype dtype;
    rle_lua_check(L, rle_dtype_parse(luaL_checkstring(L, 2), &dtype));
    int ndim;
    int64_t shape[RLE_MAX_DIMS];
    rle_lua_check_shape(L, 3, &ndim, shape);
    rle_array want = {.dtype = dtype, .ndim = ndim};
    memcpy(want.shape, shape, sizeof shape);
    if ((size_t)rle_array_numel(&want) * rle_dtype_size(dtype) != length)
        return rle_lua_fail(L, RLE_INVALID_ARGUMENT,
                            "from_bytes: %d bytes do not fill the shape", (int)length);
    rle_tensor **slot = rle_lua_new_tensor(L);
    rle_lua_check(L, rle_tensor_from_host(rle_lua_default_device(L), dtype, ndim, shape,
                                          data, slot));
    return 1;
}

/* ---- constant tensors ---- */

static int create_filled(lua_State *L, int first, bool fill_it, double value,
                         rle_dtype dtype)
{
    int ndim;
    int64_t shape[RLE_MAX_DIMS];
    rle_lua_create c;
    int options = rle_lua_check_shape(L, first, &ndim, shape);
    rle_lua_check_create(L, options, dtype, NULL, &c);
    rle_tensor **slot = rle_lua_new_tensor(L);
    rle_lua_check(L, rle_tensor_new(c.device, c.dtype, ndim, shape, slot));
    if (fill_it)
        rle_lua_check(L,
                      rle_op_fill(*slot, value, rle_lua_check_whole(L, c.dtype, value)));
    require_grad_if(L, &c, *slot);
    return 1;
}

static int create_empty(lua_State *L)
{
    rle_lua_enter(L);
    return create_filled(L, 1, false, 0, RLE_F32);
}

static int create_zeros(lua_State *L)
{
    rle_lua_enter(L);
    return create_filled(L, 1, true, 0, RLE_F32);
}

static int create_ones(lua_State *L)
{
    rle_lua_enter(L);
    return create_filled(L, 1, true, 1, RLE_F32);
}

/* full(sizes, value [, options]) with sizes a table */
static int create_full(lua_State *L)
{
    rle_lua_enter(L);
    luaL_checktype(L, 1, LUA_TTABLE);
    bool truth = lua_isboolean(L, 2);
    double value = truth ? lua_toboolean(L, 2) : luaL_checknumber(L, 2);
    lua_remove(L, 2);
    return create_filled(L, 1, true, value, truth ? RLE_BOOL : RLE_F32);
}

/* arange([start,] stop [, step] [, options]): stop excluded. i64 when all are whole. */
static int create_arange(lua_State *L)
{
    rle_lua_enter(L);
    int numbers = 0;
    while (lua_type(L, numbers + 1) == LUA_TNUMBER && numbers < 3) numbers++;
    if (!numbers)
        return rle_lua_fail(L, RLE_INVALID_ARGUMENT, "arange: expected a number");
    double start = numbers > 1 ? lua_tonumber(L, 1) : 0;
    double stop = lua_tonumber(L, numbers > 1 ? 2 : 1);
    double step = numbers > 2 ? lua_tonumber(L, 3) : 1;
    if (step == 0 || !isfinite(start) || !isfinite(stop) || !isfinite(step) ||
        (stop - start) / step < 0)
        return rle_lua_fail(L, RLE_INVALID_ARGUMENT,
                            "arange: cannot go from %g to %g in steps of %g", start, stop,
                            step);
    bool whole = start == floor(start) && stop == floor(stop) && step == floor(step);
    rle_lua_create c;
    rle_lua_check_create(L, lua_isnoneornil(L, numbers + 1) ? 0 : numbers + 1,
                         whole ? RLE_I64 : RLE_F32, NULL, &c);
    double count = ceil((stop - start) / step);
    if (count > 0x1p40)
        return rle_lua_fail(L, RLE_INVALID_ARGUMENT, "arange: %.0f elements are too many",
                            count);
    int64_t n = (int64_t)count;
    double *v = lua_newuserdata(L, (size_t)(n ? n : 1) * sizeof *v);
    for (int64_t i = 0; i < n; i++) v[i] = start + (double)i * step;
    rle_tensor **slot = rle_lua_new_tensor(L);
    rle_lua_check(L, rle_tensor_new(c.device, c.dtype, 1, &n, slot));
    if (n) write_numbers(L, *slot, v);
    require_grad_if(L, &c, *slot);
    return 1;
}

/* linspace(start, stop, count [, options]): both ends included. */
static int create_linspace(lua_State *L)
{
    rle_lua_enter(L);
    double start = luaL_checknumber(L, 1), stop = luaL_checknumber(L, 2);
    int64_t n = rle_lua_check_integer(L, 3);
    if (n < 0 || n > (int64_t)1 << 40)
        return rle_lua_fail(L, RLE_INVALID_ARGUMENT,
                            "linspace: the number of points is from 0 to 2^40, got %lld",
                            (long long)n);
    rle_lua_create c;
    rle_lua_check_create(L, lua_isnoneornil(L, 4) ? 0 : 4, RLE_F32, NULL, &c);
    double *v = lua_newuserdata(L, (size_t)(n ? n : 1) * sizeof *v);
    double step = n > 1 ? (stop - start) / (double)(n - 1) : 0;
    for (int64_t i = 0; i < n; i++) /* from the nearer end, so that both are exact */
        v[i] = i < n / 2 ? start + step * (double)i : stop - step * (double)(n - 1 - i);
    if (n == 1) v[0] = start;
    rle_tensor **slot = rle_lua_new_tensor(L);
    rle_lua_check(L, rle_tensor_new(c.device, c.dtype, 1, &n, slot));
    if (n) write_numbers(L, *slot, v);
    require_grad_if(L, &c, *slot);
    return 1;
}

/* eye(n [, m] [, options]) */
static int create_eye(lua_State *L)
{
    rle_lua_enter(L);
    int64_t shape[2] = {rle_lua_check_integer(L, 1), 0};
    bool two = lua_type(L, 2) == LUA_TNUMBER;
    shape[1] = two ? rle_lua_check_integer(L, 2) : shape[0];
    rle_lua_create c;
    int at = two ? 3 : 2;
    rle_lua_check_create(L, lua_isnoneornil(L, at) ? 0 : at, RLE_F32, NULL, &c);
    rle_tensor **slot = rle_lua_new_tensor(L);
    rle_lua_check(L, rle_tensor_zeros(c.device, c.dtype, 2, shape, slot));
    rle_array diagonal = {.data = (*slot)->a.data, .dtype = c.dtype, .ndim = 1};
    diagonal.shape[0] = shape[0] < shape[1] ? shape[0] : shape[1];
    diagonal.stride[0] = shape[1] + 1;
    rle_lua_check(L, c.device->ops->fill(c.device, &diagonal, 1, 1));
    require_grad_if(L, &c, *slot);
    return 1;
}

/* ---- random tensors ---- */

/* manual_seed(n): seed the process's stream; the same numbers follow on every machine. */
static int random_seed(lua_State *L)
{
    rle_lua_enter(L);
    rle_random_seed((uint64_t)rle_lua_check_integer(L, 1));
    return 0;
}

static int create_random(lua_State *L, int first, rle_random_kind kind, double p0,
                         double p1, rle_dtype dtype)
{
    int ndim;
    int64_t shape[RLE_MAX_DIMS];
    rle_lua_create c;
    int options = rle_lua_check_shape(L, first, &ndim, shape);
    rle_lua_check_create(L, options, dtype, NULL, &c);
    rle_tensor **slot = rle_lua_new_tensor(L);
    rle_lua_check(L, rle_tensor_new(c.device, c.dtype, ndim, shape, slot));
    rle_lua_check(L, rle_op_random(kind, *slot, p0, p1));
    (*slot)->storage->version = 0;
    require_grad_if(L, &c, *slot);
    return 1;
}

/* rand(sizes...): uniform in [0, 1) */
static int create_rand(lua_State *L)
{
    rle_lua_enter(L);
    return create_random(L, 1, RLE_RANDOM_UNIFORM, 0, 1, RLE_F32);
}

/* randn(sizes...): standard normal */
static int create_randn(lua_State *L)
{
    rle_lua_enter(L);
    return create_random(L, 1, RLE_RANDOM_NORMAL, 0, 1, RLE_F32);
}

/* randint([low,] high, sizes-table [, options]): low <= n < high, i64 */
static int create_randint(lua_State *L)
{
    rle_lua_enter(L);
    bool both = lua_type(L, 2) == LUA_TNUMBER;
    double low = both ? (double)rle_lua_check_integer(L, 1) : 0;
    double high = (double)rle_lua_check_integer(L, both ? 2 : 1);
    int first = both ? 3 : 2;
    if (!lua_istable(L, first))
        return rle_lua_fail(L, RLE_INVALID_ARGUMENT,
                            "randint: sizes must be a table: randint(low, high, {2, 3})");
    return create_random(L, first, RLE_RANDOM_INTEGER, low, high, RLE_I64);
}

/* randperm(n [, {device}]) */
static int create_randperm(lua_State *L)
{
    rle_lua_enter(L);
    int64_t n = rle_lua_check_integer(L, 1);
    rle_lua_create c;
    rle_lua_check_create(L, lua_isnoneornil(L, 2) ? 0 : 2, RLE_I64, NULL, &c);
    rle_tensor **slot = rle_lua_new_tensor(L);
    rle_lua_check(L, rle_op_randperm(c.device, n, slot));
    return 1;
}

/* bernoulli(probs): 0 or 1 */
static int create_bernoulli(lua_State *L)
{
    rle_lua_enter(L);
    rle_tensor *p = rle_lua_check_tensor(L, 1);
    rle_tensor **slot = rle_lua_new_tensor(L);
    rle_lua_check(L, rle_op_bernoulli(p, slot));
    return 1;
}

/* multinomial(probs [, draws [, keys [, draw]]]): draws nil: one class a row, [...] */
static int create_multinomial(lua_State *L)
{
    rle_lua_enter(L);
    rle_tensor *p = rle_lua_check_tensor(L, 1);
    int64_t draws = lua_isnoneornil(L, 2) ? 0 : rle_lua_check_integer(L, 2);
    rle_tensor *keys = lua_isnoneornil(L, 3) ? NULL : rle_lua_check_tensor(L, 3);
    uint32_t draw = (uint32_t)luaL_optinteger(L, 4, 0);
    rle_tensor **slot = rle_lua_new_tensor(L);
    rle_lua_check(L, rle_op_multinomial(p, draws, keys, draw, slot));
    return 1;
}

/* row_keys(rows [, device]): i64[rows] fresh keys of keyed draws */
static int create_row_keys(lua_State *L)
{
    rle_lua_enter(L);
    int64_t rows = rle_lua_check_integer(L, 1);
    rle_device *dev =
        lua_isnoneornil(L, 2) ? rle_lua_default_device(L) : rle_lua_check_device(L, 2);
    rle_tensor **slot = rle_lua_new_tensor(L);
    rle_lua_check(L, rle_op_row_keys(dev, rows, slot));
    return 1;
}

static int random_into(lua_State *L, rle_random_kind kind, double p0, double p1)
{
    rle_tensor *t = rle_lua_check_tensor(L, 1);
    if (t->requires_grad && rle_context_current()->grad_enabled)
        return rle_lua_fail(
            L, RLE_FAILED_PRECONDITION,
            "a tensor that requires grad cannot be filled in place; do it in "
            "rl.no_grad");
    rle_lua_check(L, rle_op_random(kind, t, p0, p1));
    lua_settop(L, 1);
    return 1;
}

/* t:uniform_([low, high]) */
static int random_uniform(lua_State *L)
{
    rle_lua_enter(L);
    return random_into(L, RLE_RANDOM_UNIFORM, luaL_optnumber(L, 2, 0),
                       luaL_optnumber(L, 3, 1));
}

/* t:normal_([mean, sd]) */
static int random_normal(lua_State *L)
{
    rle_lua_enter(L);
    return random_into(L, RLE_RANDOM_NORMAL, luaL_optnumber(L, 2, 0),
                       luaL_optnumber(L, 3, 1));
}

/* t:random_([low,] high): integers low <= n < high */
static int random_integer(lua_State *L)
{
    rle_lua_enter(L);
    bool both = !lua_isnoneornil(L, 3);
    double low = both ? (double)rle_lua_check_integer(L, 2) : 0;
    return random_into(L, RLE_RANDOM_INTEGER, low,
                       (double)rle_lua_check_integer(L, both ? 3 : 2));
}

const luaL_Reg rle_lua_create_functions[] = {
    {"tensor", create_tensor},
    {"from_bytes", create_from_bytes},
    {"empty", create_empty},
    {"zeros", create_zeros},
    {"ones", create_ones},
    {"full", create_full},
    {"arange", create_arange},
    {"linspace", create_linspace},
    {"eye", create_eye},
    {"manual_seed", random_seed},
    {"rand", create_rand},
    {"randn", create_randn},
    {"randint", create_randint},
    {"randperm", create_randperm},
    {"bernoulli", create_bernoulli},
    {"multinomial", create_multinomial},
    {"row_keys", create_row_keys},
    {"uniform_", random_uniform},
    {"normal_", random_normal},
    {"random_", random_integer},
    {NULL, NULL},
};
