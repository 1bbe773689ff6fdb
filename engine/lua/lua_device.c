/* lua_device.c - devices: rl.device, the default device, what a device is and can do.
 *
 * Every tensor that is made without a device being named is made on the default device:
 * by creation functions, by environments, from files and from remote calls. It belongs to
 * the process. Until a script sets it, it is what RLENGINE_DEVICE names when it is first
 * asked for, else the CPU. */
#include "lua/lua_tensor.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/world.h"

static const char meta_key;

/* `reason` is not empty for what "auto" picked. */
typedef struct box {
    rle_device *dev;
    char reason[512];
} box;

static RLE_PER_PROCESS rle_device *default_device; /* NULL: not asked for yet */
/* It is from the environment, not from the script. */
static RLE_PER_PROCESS bool default_is_ours;
/* Picks the GPU that RLENGINE_DEVICE names without index. */
static RLE_PER_PROCESS int process_rank;

/* ---- device values ---- */

static box *to_box(lua_State *L, int idx)
{
    if (lua_type(L, idx) != LUA_TUSERDATA || !lua_getmetatable(L, idx)) return NULL;
    rle_rawgetp(L, LUA_REGISTRYINDEX, &meta_key);
    bool same = lua_rawequal(L, -1, -2);
    lua_pop(L, 2);
    return same ? lua_touserdata(L, idx) : NULL;
}

bool rle_lua_is_device(lua_State *L, int idx)
{
    return to_box(L, idx) != NULL;
}

struct rle_device *rle_lua_check_device(lua_State *L, int idx)
{
    rle_device *dev;
    if (lua_type(L, idx) == LUA_TSTRING) {
        rle_lua_check(L, rle_device_get(lua_tostring(L, idx), 0, &dev));
        return dev;
    }
    box *b = to_box(L, idx);
    if (!b)
        rle_lua_fail(L, RLE_INVALID_ARGUMENT, "expected a device or its name, got %s",
                     luaL_typename(L, idx));
    return b->dev;
}

static void new_box(lua_State *L, rle_device *dev, const char *reason)
{
    box *b = lua_newuserdata(L, sizeof *b);
    b->dev = dev;
    snprintf(b->reason, sizeof b->reason, "%s", reason);
    rle_rawgetp(L, LUA_REGISTRYINDEX, &meta_key);
    lua_setmetatable(L, -2);
}

/* One userdata a device, so that equal devices are equal keys of tables too. */
void rle_lua_push_device(lua_State *L, struct rle_device *dev)
{
    rle_rawgetp(L, LUA_REGISTRYINDEX, dev);
    if (!lua_isnil(L, -1)) return;
    lua_pop(L, 1);
    new_box(L, dev, "");
    lua_pushvalue(L, -1);
    rle_rawsetp(L, LUA_REGISTRYINDEX, dev);
}

/* What "auto" picks for that rank, with why in `reason`. */
static rle_status pick(int rank, rle_device **out, char *reason, size_t size)
{
    int count;
    rle_status status = rle_device_available(RLE_DEVICE_CUDA, &count);
    if (status == RLE_OK) status = rle_device_get("cuda", rank, out);
    if (status == RLE_UNAVAILABLE) {
        snprintf(reason, size, "no GPU used: %s", rle_message());
        return rle_device_get("cpu", 0, out);
    }
    RLE_TRY(status);
    rle_device_properties p;
    RLE_TRY(rle_device_get_properties(*out, &p));
    snprintf(reason, size, "GPU %d of %d: %s", (*out)->index + 1, count, p.name);
    return RLE_OK;
}

static int check_rank(lua_State *L, int idx)
{
    int64_t rank = lua_isnoneornil(L, idx) ? 0 : rle_lua_check_integer(L, idx);
    if (rank < 0 || rank > INT32_MAX)
        rle_lua_fail(L, RLE_INVALID_ARGUMENT, "device: a rank counts from 0, got %lld",
                     (long long)rank);
    return (int)rank;
}

/* device.get(name or device [, rank]) -> device */
static int device_get(lua_State *L)
{
    rle_lua_enter(L);
    int rank = check_rank(L, 2);
    rle_device *dev;
    if (lua_type(L, 1) != LUA_TSTRING) {
        rle_lua_check_device(L, 1);
        lua_settop(L, 1);
    } else if (strcmp(lua_tostring(L, 1), "auto") == 0) {
        char reason[sizeof((box *)0)->reason];
        rle_lua_check(L, pick(rank, &dev, reason, sizeof reason));
        new_box(L, dev, reason);
    } else {
        rle_lua_check(L, rle_device_get(lua_tostring(L, 1), rank, &dev));
        rle_lua_push_device(L, dev);
    }
    return 1;
}

/* ---- what a device is ---- */

static const char *type_name(const rle_device *dev)
{
    return dev->type == RLE_DEVICE_CPU    ? "cpu"
           : dev->type == RLE_DEVICE_CUDA ? "cuda"
                                          : "emu";
}

/* device.count(type) -> how many there are; 0 and the reason when none. */
static int device_count(lua_State *L)
{
    rle_lua_enter(L);
    const char *name = luaL_checkstring(L, 1);
    rle_device_type type = RLE_DEVICE_CPU;
    if (strcmp(name, "cuda") == 0)
        type = RLE_DEVICE_CUDA;
    else if (strcmp(name, "emu") == 0)
        type = RLE_DEVICE_EMU;
    else if (strcmp(name, "cpu") != 0)
        return rle_lua_fail(
            L, RLE_INVALID_ARGUMENT,
            "device_count: no devices of type \"%.32s\"; there are \"cpu\", "
            "\"cuda\" and \"emu\"",
            name);
    int count;
    if (rle_device_available(type, &count) == RLE_OK) {
        lua_pushinteger(L, count);
        return 1;
    }
    lua_pushinteger(L, 0);
    lua_pushstring(L, rle_message());
    return 2;
}

static void set_number(lua_State *L, const char *key, size_t v)
{
    rle_push_count(L, (int64_t)v);
    lua_setfield(L, -2, key);
}

/* As "13.0"; no field where there is no version. */
static void set_version(lua_State *L, const char *key, int major, int minor)
{
    if (!major) return;
    lua_pushfstring(L, "%d.%d", major, minor);
    lua_setfield(L, -2, key);
}

/* dev:properties() -> {name, memory, multiprocessors, shared_memory, and for GPUs
 * compute_capability, driver, runtime} */
static int device_properties(lua_State *L)
{
    rle_lua_enter(L);
    rle_device_properties p;
    rle_lua_check(L, rle_device_get_properties(rle_lua_check_device(L, 1), &p));
    lua_createtable(L, 0, 7);
    lua_pushstring(L, p.name);
    lua_setfield(L, -2, "name");
    set_number(L, "memory", p.memory);
    set_number(L, "multiprocessors", (size_t)p.multiprocessors);
    set_number(L, "shared_memory", p.shared_memory);
    set_version(L, "compute_capability", p.major, p.minor);
    set_version(L, "driver", p.driver / 1000, p.driver % 1000 / 10);
    set_version(L, "runtime", p.runtime / 1000, p.runtime % 1000 / 10);
    return 1;
}

/* dev:synchronize(): wait for all that was given to it; raises the error of what failed.
 */
static int device_synchronize(lua_State *L)
{
    rle_lua_enter(L);
    rle_lua_check(L, rle_device_synchronize(rle_lua_check_device(L, 1)));
    return 0;
}

static bool bool_field(lua_State *L, const char *key, bool otherwise)
{
    lua_getfield(L, 2, key);
    bool v = lua_isnil(L, -1) ? otherwise : lua_toboolean(L, -1);
    lua_pop(L, 1);
    return v;
}

static double number_field(lua_State *L, const char *key, double otherwise)
{
    lua_getfield(L, 2, key);
    double v = lua_isnil(L, -1) ? otherwise : luaL_checknumber(L, -1);
    lua_pop(L, 1);
    if (!(v >= 0 && v <= 0x1p53 && v == floor(v)))
        rle_lua_fail(L, RLE_INVALID_ARGUMENT,
                     "matmul: %s must be a whole number from 0, got %.14g", key,
                     rle_lua_shown(v));
    return v;
}

/* device.matmul(dev [, {tf32, batch_invariant, workspace, threshold}]) -> all of them as
 * they are now, and backend: which library is at work, or why there is none */
static int device_matmul(lua_State *L)
{
    rle_lua_enter(L);
    rle_device *dev = rle_lua_check_device(L, 1);
    rle_blas_state now;
    rle_lua_check(L, rle_device_blas(dev, NULL, &now));
    if (lua_istable(L, 2)) {
        rle_blas_settings s = now.settings;
        s.tf32 = bool_field(L, "tf32", s.tf32);
        s.batch_invariant = bool_field(L, "batch_invariant", s.batch_invariant);
        s.workspace = (size_t)number_field(L, "workspace", (double)s.workspace);
        s.threshold = (int64_t)number_field(L, "threshold", (double)s.threshold);
        rle_lua_check(L, rle_device_blas(dev, &s, &now));
    }
    lua_createtable(L, 0, 5);
    lua_pushboolean(L, now.settings.tf32);
    lua_setfield(L, -2, "tf32");
    lua_pushboolean(L, now.settings.batch_invariant);
    lua_setfield(L, -2, "batch_invariant");
    set_number(L, "workspace", now.settings.workspace);
    set_number(L, "threshold", (size_t)now.settings.threshold);
    if (now.text[0]) {
        lua_pushstring(L, now.text);
        lua_setfield(L, -2, "backend");
    }
    return 1;
}

static int device_tostring(lua_State *L)
{
    box *b = to_box(L, 1);
    if (!b) rle_lua_check_device(L, 1);
    if (b->reason[0])
        lua_pushfstring(L, "%s (%s)", b->dev->name, b->reason);
    else
        lua_pushstring(L, b->dev->name);
    return 1;
}

static int device_concat(lua_State *L)
{
    for (int i = 1; i <= 2; i++) {
        if (!luaL_callmeta(L, i, "__tostring")) lua_pushstring(L, luaL_checkstring(L, i));
    }
    lua_concat(L, 2);
    return 1;
}

static int device_eq(lua_State *L)
{
    box *a = to_box(L, 1), *b = to_box(L, 2);
    lua_pushboolean(L, a && b && a->dev == b->dev);
    return 1;
}

/* Fields: name, type, index, reason; methods are the upvalue's. */
static int device_index(lua_State *L)
{
    box *b = to_box(L, 1);
    if (!b) rle_lua_check_device(L, 1);
    const char *key = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : "";
    if (strcmp(key, "name") == 0) {
        lua_pushstring(L, b->dev->name);
    } else if (strcmp(key, "type") == 0) {
        lua_pushstring(L, type_name(b->dev));
    } else if (strcmp(key, "index") == 0) {
        lua_pushinteger(L, b->dev->index);
    } else if (strcmp(key, "reason") == 0 && b->reason[0]) {
        lua_pushstring(L, b->reason);
    } else {
        lua_pushvalue(L, 2);
        lua_rawget(L, lua_upvalueindex(1));
    }
    return 1;
}

/* ---- the default device ---- */

struct rle_device *rle_lua_default_device(lua_State *L)
{
    if (default_device) return default_device;
    const char *name = getenv("RLENGINE_DEVICE");
    rle_device *dev;
    rle_status status = rle_device_get(name && *name ? name : "cpu", process_rank, &dev);
    if (status != RLE_OK) rle_lua_fail(L, status, "RLENGINE_DEVICE: %s", rle_message());
    default_is_ours = true;
    return default_device = dev;
}

/* device.default([device]) -> the default device, which is now that one. */
static int device_default(lua_State *L)
{
    rle_lua_enter(L);
    if (!lua_isnoneornil(L, 1)) {
        default_device = rle_lua_check_device(L, 1);
        default_is_ours = false;
    }
    rle_lua_push_device(L, rle_lua_default_device(L));
    return 1;
}

/* device.rank(n): the rank of this process among those that share the machine's GPUs. */
static int device_rank(lua_State *L)
{
    process_rank = check_rank(L, 1);
    if (default_is_ours) default_device = NULL;
    return 0;
}

void rle_lua_to_default(lua_State *L, int idx, int count)
{
    rle_device *dev = rle_lua_default_device(L);
    if (dev->type == RLE_DEVICE_CPU) return;
    idx = rle_absindex(L, idx);
    for (int i = 0; i < count; i++) {
        rle_lua_handle *h = rle_lua_to_handle(L, idx + i);
        if (!h || !h->t) continue;
        rle_context *c = rle_context_current();
        uint8_t owner = c->owner;
        rle_tensor *moved;
        c->owner = h->t->storage->block.owner;
        rle_status status = rle_op_to(h->t, dev, h->t->a.dtype, &moved);
        c->owner = owner;
        rle_lua_check(L, status);
        rle_tensor_release(h->t);
        h->t = moved;
    }
}

/* ---- opening ---- */

static const luaL_Reg functions[] = {
    {"get", device_get},   {"count", device_count},   {"default", device_default},
    {"rank", device_rank}, {"matmul", device_matmul}, {NULL, NULL},
};

static const luaL_Reg methods[] = {
    {"properties", device_properties},
    {"synchronize", device_synchronize},
    {NULL, NULL},
};

static const luaL_Reg meta[] = {
    {"__tostring", device_tostring},
    {"__concat", device_concat},
    {"__eq", device_eq},
    {NULL, NULL},
};

void rle_lua_open_device(lua_State *L)
{
    lua_newtable(L);
    rle_lua_setfuncs(L, meta);
    lua_newtable(L);
    rle_lua_setfuncs(L, methods);
    lua_pushcclosure(L, device_index, 1);
    lua_setfield(L, -2, "__index");
    lua_pushliteral(L, "rlengine.Device");
    lua_setfield(L, -2, "__name");
    rle_rawsetp(L, LUA_REGISTRYINDEX, &meta_key);
    lua_newtable(L);
    rle_lua_setfuncs(L, functions);
    rle_device *cpu;
    rle_lua_check(L, rle_device_get("cpu", 0, &cpu)); /* opened here or not at all */
}
