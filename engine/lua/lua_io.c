/* lua_io.c - weights to and from files, for lua/rlengine/io.lua. */
#include "lua/lua_internal.h"

#include "io/safetensors.h"
#include "tensor/ops.h"

/* ---- saving ---- */

/* Names and tensors of the table at `idx` (whose size is `n`) into items, and contiguous
 * host copies, where need be, into held. Raises nothing; the caller releases held. */
static rle_status collect_tensors(lua_State *L, int idx, size_t n, rle_st_tensor *items,
                                  rle_tensor **held)
{
    size_t i = 0;
    lua_pushnil(L);
    while (lua_next(L, idx) && i < n) {
        size_t length;
        const char *name = lua_type(L, -2) == LUA_TSTRING ? lua_tolstring(L, -2, &length) : NULL;
        if (!name)
            return rle_fail(RLE_INVALID_ARGUMENT, "save: names are strings, got a %s",
                            luaL_typename(L, -2));
        if (strlen(name) != length)
            return rle_fail(RLE_INVALID_ARGUMENT, "save: a name with a NUL byte: \"%.64s\"", name);
        rle_tensor *t = rle_lua_to_tensor(L, -1);
        if (!t)
            return rle_fail(RLE_INVALID_ARGUMENT, "save: \"%.64s\" must be a tensor, got %s", name,
                            luaL_typename(L, -1));
        if (rle_tensor_device(t) == rle_device_cpu())
            RLE_TRY(rle_op_contiguous(t, &held[i]));
        else
            RLE_TRY(rle_op_to(t, rle_device_cpu(), t->a.dtype, &held[i]));
        const rle_array *a = &held[i]->a;
        items[i] = (rle_st_tensor){.name = name, .dtype = a->dtype, .ndim = a->ndim,
                                   .data = a->data};
        memcpy(items[i].shape, a->shape, sizeof items[i].shape);
        items[i].size = (size_t)rle_array_numel(a) * rle_dtype_size(a->dtype);
        i++;
        lua_pop(L, 1);
    }
    return RLE_OK;
}

static size_t table_size(lua_State *L, int idx)
{
    size_t n = 0;
    lua_pushnil(L);
    while (lua_next(L, idx)) {
        lua_pop(L, 1);
        n++;
    }
    return n;
}

/* Pairs of strings of the table at idx; the table keeps them alive. */
static rle_st_pair *check_metadata(lua_State *L, int idx, size_t *count)
{
    *count = 0;
    if (lua_isnoneornil(L, idx)) return NULL;
    luaL_checktype(L, idx, LUA_TTABLE);
    size_t n = table_size(L, idx), length[2], i = 0;
    rle_st_pair *pairs = lua_newuserdata(L, (n + 1) * sizeof *pairs);
    lua_pushnil(L);
    while (lua_next(L, idx)) {
        if (lua_type(L, -2) != LUA_TSTRING || lua_type(L, -1) != LUA_TSTRING)
            rle_lua_fail(L, RLE_INVALID_ARGUMENT, "save: metadata is strings, got %s = %s",
                         luaL_typename(L, -2), luaL_typename(L, -1));
        pairs[i].key = lua_tolstring(L, -2, &length[0]);
        pairs[i].value = lua_tolstring(L, -1, &length[1]);
        if (strlen(pairs[i].key) != length[0] || strlen(pairs[i].value) != length[1])
            rle_lua_fail(L, RLE_INVALID_ARGUMENT, "save: metadata \"%.64s\" has a NUL byte",
                         pairs[i].key);
        lua_pop(L, 1);
        i++;
    }
    *count = n;
    return pairs;
}

/* io.save(path, name -> tensor, metadata or nil) */
static int io_save(lua_State *L)
{
    rle_lua_enter(L);
    const char *path = luaL_checkstring(L, 1);
    luaL_checktype(L, 2, LUA_TTABLE);
    lua_settop(L, 3);
    size_t pairs_count, n = table_size(L, 2);
    rle_st_pair *pairs = check_metadata(L, 3, &pairs_count);
    rle_st_tensor *items = lua_newuserdata(L, (n + 1) * sizeof *items);
    rle_tensor **held = lua_newuserdata(L, (n + 1) * sizeof *held);
    memset(held, 0, (n + 1) * sizeof *held);
    rle_status status = collect_tensors(L, 2, n, items, held);
    if (status == RLE_OK) status = rle_safetensors_write(path, items, n, pairs, pairs_count);
    for (size_t i = 0; i < n; i++) rle_tensor_release(held[i]);
    rle_lua_check(L, status);
    return 0;
}

/* ---- loading ---- */

static int file_gc(lua_State *L)
{
    rle_safetensors **file = lua_touserdata(L, 1);
    rle_safetensors_close(*file);
    *file = NULL;
    return 0;
}

static void push_tensors(lua_State *L, const rle_safetensors *file, rle_device *dev)
{
    size_t n = rle_safetensors_count(file);
    lua_createtable(L, 0, (int)n);
    for (size_t i = 0; i < n; i++) {
        const rle_st_tensor *s = rle_safetensors_at(file, i);
        rle_tensor **slot = rle_lua_new_tensor(L);
        rle_lua_check(
            L, rle_tensor_from_host(dev, s->dtype, s->ndim, s->shape, s->data, slot));
        lua_setfield(L, -2, s->name);
    }
}

/* io.load(path, device or nil) -> name -> tensor, metadata */
static int io_load(lua_State *L)
{
    rle_lua_enter(L);
    const char *path = luaL_checkstring(L, 1);
    rle_device *dev =
        lua_isnoneornil(L, 2) ? rle_lua_default_device(L) : rle_lua_check_device(L, 2);
    rle_safetensors **file = lua_newuserdata(L, sizeof *file);
    *file = NULL;
    lua_newtable(L);
    lua_pushcfunction(L, file_gc);
    lua_setfield(L, -2, "__gc");
    lua_setmetatable(L, -2);
    rle_lua_check(L, rle_safetensors_open(path, file));
    push_tensors(L, *file, dev);
    size_t n = rle_safetensors_metadata_count(*file);
    lua_createtable(L, 0, (int)n);
    for (size_t i = 0; i < n; i++) {
        rle_st_pair pair = rle_safetensors_metadata_at(*file, i);
        lua_pushstring(L, pair.value);
        lua_setfield(L, -2, pair.key);
    }
    rle_safetensors_close(*file);
    *file = NULL;
    return 2;
}

static const luaL_Reg functions[] = {
    {"save", io_save},
    {"load", io_load},
    {NULL, NULL},
};

void rle_lua_open_io(lua_State *L)
{
    lua_newtable(L);
    rle_lua_setfuncs(L, functions);
}
