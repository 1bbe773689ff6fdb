/* lua_memory.c - memory as scripts see it: figures and limits. */
#include "lua/lua_tensor.h"

#include <stdio.h>

#include "base/mem.h"

/* ---- figures ---- */

static rle_device *opt_device(lua_State *L, int arg)
{
    return lua_isnoneornil(L, arg) ? rle_lua_default_device(L)
                                   : rle_lua_check_device(L, arg);
}

static int push_bytes(lua_State *L, size_t bytes)
{
    rle_push_count(L, (int64_t)bytes);
    return 1;
}

static int memory_allocated(lua_State *L)
{
    rle_lua_enter(L);
    rle_memory_stats s;
    rle_device_memory(opt_device(L, 1), &s);
    return push_bytes(L, s.allocated);
}

static int memory_reserved(lua_State *L)
{
    rle_lua_enter(L);
    rle_memory_stats s;
    rle_device_memory(opt_device(L, 1), &s);
    return push_bytes(L, s.reserved);
}

static int memory_peak(lua_State *L)
{
    rle_lua_enter(L);
    rle_memory_stats s;
    rle_device_memory(opt_device(L, 1), &s);
    return push_bytes(L, s.peak);
}

static int memory_reset_peak(lua_State *L)
{
    rle_lua_enter(L);
    rle_device_reset_peak(opt_device(L, 1));
    return 0;
}

static int memory_empty_cache(lua_State *L)
{
    rle_lua_enter(L);
    return push_bytes(L, rle_device_empty_cache(opt_device(L, 1)));
}

/* limit(dev [, bytes | "64MiB" | false]) -> the limit in force, or nil */
static int memory_limit(lua_State *L)
{
    rle_lua_enter(L);
    rle_device *dev = opt_device(L, 1);
    if (!lua_isnoneornil(L, 2)) {
        size_t bytes = 0;
        if (lua_type(L, 2) == LUA_TSTRING) {
            rle_lua_check(L, rle_bytes_parse(lua_tostring(L, 2), &bytes));
        } else if (lua_type(L, 2) == LUA_TNUMBER && lua_tonumber(L, 2) >= 0 &&
                   lua_tonumber(L, 2) <= 0x1p53) {
            bytes = (size_t)lua_tonumber(L, 2);
        } else if (!lua_isboolean(L, 2) || lua_toboolean(L, 2)) {
            return rle_lua_fail(
                L, RLE_INVALID_ARGUMENT,
                "limit: expected bytes, a size such as \"64MiB\", or false for "
                "none");
        }
        if (!bytes && !lua_isboolean(L, 2))
            return rle_lua_fail(L, RLE_INVALID_ARGUMENT,
                                "limit: %s is less than a byte; false removes the limit",
                                lua_tostring(L, 2));
        rle_device_set_limit(dev, bytes);
    }
    rle_memory_stats s;
    rle_device_memory(dev, &s);
    if (!s.limit) {
        lua_pushnil(L);
        return 1;
    }
    return push_bytes(L, s.limit);
}

static void set_number(lua_State *L, const char *key, int64_t v)
{
    rle_push_count(L, v);
    lua_setfield(L, -2, key);
}

/* stats(dev) -> {allocated, reserved, cached, peak, limit, blocks, tensors, nodes}, and
 * counters {allocations, frees, from_cache, from_driver, retries, refused} */
static int memory_stats(lua_State *L)
{
    rle_lua_enter(L);
    rle_memory_stats s;
    rle_device_memory(opt_device(L, 1), &s);
    lua_createtable(L, 0, 14);
    set_number(L, "allocated", (int64_t)s.allocated);
    set_number(L, "reserved", (int64_t)s.reserved);
    set_number(L, "cached", (int64_t)s.cached);
    set_number(L, "peak", (int64_t)s.peak);
    if (s.limit) set_number(L, "limit", (int64_t)s.limit);
    set_number(L, "allocations", (int64_t)s.allocations);
    set_number(L, "frees", (int64_t)s.frees);
    set_number(L, "from_cache", (int64_t)s.from_cache);
    set_number(L, "from_driver", (int64_t)s.from_driver);
    set_number(L, "retries", (int64_t)s.retries);
    set_number(L, "refused", (int64_t)s.refused);
    set_number(L, "blocks", (int64_t)s.blocks);
    set_number(L, "tensors", (int64_t)rle_tensor_count());
    set_number(L, "nodes", (int64_t)rle_node_count());
    return 1;
}

/* usage(dev) -> {device, rounding, cached, workspace, context, unaccounted, used}, and
 * total where the driver says it: what with `allocated` adds up to `used` */
static int memory_usage(lua_State *L)
{
    rle_lua_enter(L);
    rle_device *dev = opt_device(L, 1);
    rle_memory_usage u;
    rle_lua_check(L, rle_device_usage(dev, &u));
    lua_createtable(L, 0, 8);
    lua_pushstring(L, dev->name);
    lua_setfield(L, -2, "device");
    set_number(L, "rounding", (int64_t)u.rounding);
    set_number(L, "cached", (int64_t)u.cached);
    set_number(L, "workspace", (int64_t)u.workspace);
    set_number(L, "context", (int64_t)u.context);
    set_number(L, "unaccounted", (int64_t)u.unaccounted);
    set_number(L, "used", (int64_t)u.used);
    if (u.total) set_number(L, "total", (int64_t)u.total);
    return 1;
}

/* mark(dev, name): what grows from now on is told when the device is full */
static int memory_mark(lua_State *L)
{
    rle_lua_enter(L);
    rle_device_mark(opt_device(L, 1), luaL_checkstring(L, 2));
    return 0;
}

/* rows(dev) -> list of {owner, site, bytes, blocks}, largest first */
static int memory_rows(lua_State *L)
{
    rle_lua_enter(L);
    rle_device *dev = opt_device(L, 1);
    size_t n = rle_device_report(dev, NULL, 0);
    rle_memory_row *rows = lua_newuserdata(L, (n ? n : 1) * sizeof *rows);
    size_t now = rle_device_report(dev, rows, n);
    if (now < n) n = now;
    lua_createtable(L, (int)n, 0);
    for (size_t i = 0; i < n; i++) {
        lua_createtable(L, 0, 4);
        lua_pushstring(L, rle_owner_name(rows[i].owner));
        lua_setfield(L, -2, "owner");
        lua_pushstring(L, rle_site_name(rows[i].site));
        lua_setfield(L, -2, "site");
        set_number(L, "bytes", (int64_t)rows[i].bytes);
        set_number(L, "blocks", (int64_t)rows[i].blocks);
        lua_rawseti(L, -2, (int)i + 1);
    }
    return 1;
}

static int memory_report_text(lua_State *L)
{
    rle_lua_enter(L);
    char *text;
    rle_lua_check(L, rle_device_report_text(opt_device(L, 1), &text));
    lua_pushstring(L, text);
    rle_free(text);
    return 1;
}

/* parse(size [, what]) -> bytes; errors say what it is the size of. format(bytes) -> text
 */
static int memory_parse(lua_State *L)
{
    const char *what = lua_isnoneornil(L, 2) ? "parse" : luaL_checkstring(L, 2);
    size_t bytes;
    if (lua_type(L, 1) == LUA_TNUMBER) {
        double v = lua_tonumber(L, 1);
        if (!(v >= 0 && v <= 0x1p60))
            return rle_lua_fail(L, RLE_INVALID_ARGUMENT,
                                "%s: expected bytes, from 0 on, got %.14g", what,
                                rle_lua_shown(v));
        lua_settop(L, 1);
        return 1;
    }
    if (lua_type(L, 1) != LUA_TSTRING)
        return rle_lua_fail(L, RLE_INVALID_ARGUMENT,
                            "%s: expected bytes or a size such as \"64MiB\", got %s",
                            what, luaL_typename(L, 1));
    rle_status status = rle_bytes_parse(lua_tostring(L, 1), &bytes);
    if (status != RLE_OK) return rle_lua_fail(L, status, "%s: %s", what, rle_message());
    return push_bytes(L, bytes);
}

static int memory_format(lua_State *L)
{
    char text[32];
    if (lua_type(L, 1) != LUA_TNUMBER)
        return rle_lua_fail(L, RLE_INVALID_ARGUMENT,
                            "format: expected a number of bytes, got %s",
                            lua_isnone(L, 1) ? "nothing" : luaL_typename(L, 1));
    lua_pushstring(L, rle_bytes_format(lua_tonumber(L, 1), text, sizeof text));
    return 1;
}

static const luaL_Reg memory_functions[] = {
    {"allocated", memory_allocated},
    {"reserved", memory_reserved},
    {"peak", memory_peak},
    {"reset_peak", memory_reset_peak},
    {"empty_cache", memory_empty_cache},
    {"limit", memory_limit},
    {"stats", memory_stats},
    {"usage", memory_usage},
    {"mark", memory_mark},
    {"rows", memory_rows},
    {"report_text", memory_report_text},
    {"parse", memory_parse},
    {"format", memory_format},
    {NULL, NULL},
};

void rle_lua_open_memory(lua_State *L)
{
    rle_lua_open_collector(L);
    lua_newtable(L);
    rle_lua_setfuncs(L, memory_functions);
    rle_lua_add_scopes(L);
}
