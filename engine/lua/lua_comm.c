/* lua_comm.c - collectives, for lua/rlengine/comm.lua.
 *
 * A work is a userdata; when it is collected before it is over, the collective goes on
 * for the other ranks. Groups live until they are closed or the worker stops. */
#include "lua/lua_rpc.h"

#include "base/mem.h"
#include "base/world.h"
#include "comm/comm.h"

#define GROUP_MAGIC 0x726c652e47726f75u
#define WORK_MAGIC 0x726c652e576f726bu

typedef struct handle {
    uint64_t magic;
    uint32_t generation;
    void *p; /* rle_comm_group or rle_comm_work; NULL: closed */
} handle;

static const char work_meta_key;

static RLE_PER_PROCESS rle_comm *own; /* the running worker's */

rle_status rle_lua_comm_begin(void)
{
    return rle_comm_open(rle_lua_rpc_state.rpc, &own);
}

static rle_comm *check_comm(lua_State *L)
{
    rle_lua_rpc_check(L);
    return own;
}

static handle *new_handle(lua_State *L, uint64_t magic)
{
    handle *h = lua_newuserdata(L, sizeof *h);
    *h = (handle){.magic = magic, .generation = rle_lua_rpc_state.generation};
    return h;
}

static void *check_handle(lua_State *L, uint64_t magic, const char *what)
{
    rle_lua_rpc_check(L);
    handle *h = lua_type(L, 1) == LUA_TUSERDATA && lua_rawlen(L, 1) == sizeof *h
                    ? lua_touserdata(L, 1)
                    : NULL;
    if (!h || h->magic != magic)
        rle_lua_fail(L, RLE_INTERNAL, "argument 1: expected a %s", what);
    if (h->generation != rle_lua_rpc_state.generation)
        rle_lua_fail(L, RLE_FAILED_PRECONDITION, "this %s is from before rpc.shutdown",
                     what);
    if (!h->p) rle_lua_fail(L, RLE_FAILED_PRECONDITION, "this %s was closed", what);
    return h->p;
}

/* ---- groups ---- */

/* group(names, tag) -> group, rank */
static int comm_group(lua_State *L)
{
    rle_lua_enter(L);
    rle_comm *comm = check_comm(L);
    luaL_checktype(L, 1, LUA_TTABLE);
    const char *tag = luaL_checkstring(L, 2);
    int n = (int)lua_rawlen(L, 1);
    const char **names = lua_newuserdata(L, ((size_t)n + 1) * sizeof *names);
    for (int i = 0; i < n; i++) {
        lua_rawgeti(L, 1, i + 1);
        names[i] = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : NULL;
        if (!names[i])
            rle_lua_fail(L, RLE_INVALID_ARGUMENT,
                         "a group is a list of workers' names; entry %d "
                         "is a %s",
                         i + 1, luaL_typename(L, -1));
        lua_pop(L, 1);
    }
    handle *h = new_handle(L, GROUP_MAGIC);
    rle_comm_group *g;
    rle_lua_check(L, rle_comm_group_new(comm, names, n, tag, &g));
    h->p = g;
    lua_pushinteger(L, rle_comm_group_rank(g));
    return 2;
}

/* close(group) */
static int comm_close(lua_State *L)
{
    rle_lua_enter(L);
    rle_comm_group *g = check_handle(L, GROUP_MAGIC, "group");
    ((handle *)lua_touserdata(L, 1))->p = NULL;
    rle_comm_group_free(g);
    return 0;
}

/* connect(address, seconds) -> name of the worker there */
static int comm_connect(lua_State *L)
{
    rle_lua_enter(L);
    rle_lua_rpc *s = rle_lua_rpc_check(L);
    rle_peer *peer;
    int64_t patience = (int64_t)(luaL_checknumber(L, 2) * 1e9);
    rle_lua_check(L, rle_rpc_connect(s->rpc, luaL_checkstring(L, 1), patience, &peer));
    lua_pushstring(L, rle_peer_name(peer));
    return 1;
}

/* ---- collectives ---- */

static int work_gc(lua_State *L)
{
    handle *h = lua_touserdata(L, 1);
    const rle_lua_rpc *s = &rle_lua_rpc_state;
    if (h->p && h->generation == s->generation && s->rpc && !s->forked)
        rle_comm_work_free(h->p);
    h->p = NULL;
    h->magic = 0;
    return 0;
}

enum { ARG_GROUP = 1, ARG_KIND, ARG_TENSORS, ARG_OP, ARG_ROOT, ARG_NAME, ARG_TIMEOUT };

static rle_comm_kind check_kind(lua_State *L)
{
    static const char *const kinds[] = {"all_reduce", "reduce",  "broadcast",
                                        "all_gather", "barrier", NULL};
    return (rle_comm_kind)luaL_checkoption(L, ARG_KIND, NULL, kinds);
}

/* begin(group, kind, tensors, op, root, name or nil, seconds) -> work */
static int comm_begin(lua_State *L)
{
    rle_context *c = rle_lua_enter(L);
    rle_comm_group *g = check_handle(L, GROUP_MAGIC, "group");
    double seconds = luaL_checknumber(L, ARG_TIMEOUT);
    rle_comm_call call = {.kind = check_kind(L),
                          .root = (int)luaL_checknumber(L, ARG_ROOT),
                          .name = luaL_optstring(L, ARG_NAME, NULL),
                          .timeout = (int64_t)((seconds < 1e9 ? seconds : 1e9) * 1e9),
                          .grad_enabled = c->grad_enabled,
                          .site = rle_context_site(c)};
    rle_lua_check(L, rle_comm_op_parse(luaL_checkstring(L, ARG_OP), &call.op));
    luaL_checktype(L, ARG_TENSORS, LUA_TTABLE);
    call.count = (int)lua_rawlen(L, ARG_TENSORS);
    rle_tensor **list = lua_newuserdata(L, ((size_t)call.count + 1) * sizeof *list);
    for (int i = 0; i < call.count; i++) {
        lua_rawgeti(L, ARG_TENSORS, i + 1);
        list[i] = rle_lua_to_tensor(L, -1);
        if (!list[i])
            rle_lua_fail(L, RLE_INVALID_ARGUMENT,
                         "entry %d of the list is no tensor but a %s", i + 1,
                         luaL_typename(L, -1));
        lua_pop(L, 1);
    }
    call.tensors = list;
    handle *h = new_handle(L, WORK_MAGIC);
    rle_rawgetp(L, LUA_REGISTRYINDEX, &work_meta_key);
    lua_setmetatable(L, -2);
    rle_comm_work *w;
    rle_lua_check(L, rle_comm_begin(g, &call, &w));
    h->p = w;
    return 1;
}

/* wait(work): until it is over. Then core.rpc.waited() must be called. */
static int comm_wait(lua_State *L)
{
    rle_lua_enter(L);
    rle_comm_work *w = check_handle(L, WORK_MAGIC, "collective");
    rle_future *f = rle_comm_work_future(w);
    if (rle_future_status(rle_lua_rpc_state.rpc, f) != RLE_FUTURE_PENDING) return 0;
    rle_lua_check_wait(L, "a collective");
    return rle_lua_wait(L, &f, 1, RLE_WAIT_ALL, 0);
}

/* finish(work) -> what was gathered, or nothing; raises what failed */
static int comm_finish(lua_State *L)
{
    rle_lua_enter(L);
    rle_comm_work *w = check_handle(L, WORK_MAGIC, "collective");
    rle_tensor **slot = rle_lua_new_tensor(L);
    rle_status s = rle_comm_finish(w, slot);
    ((handle *)lua_touserdata(L, 1))->p = NULL;
    rle_comm_work_free(w);
    rle_lua_check(L, s);
    (void)rle_comm_works(own); /* what it held is free at once, not with the next one */
    return *slot ? 1 : 0;
}

/* works() -> collectives that are not over, or not collected yet */
static int comm_works(lua_State *L)
{
    lua_pushinteger(L, (lua_Integer)rle_comm_works(check_comm(L)));
    return 1;
}

static const luaL_Reg comm_functions[] = {
    {"group", comm_group}, {"close", comm_close}, {"connect", comm_connect},
    {"begin", comm_begin}, {"wait", comm_wait},   {"finish", comm_finish},
    {"works", comm_works}, {NULL, NULL},
};

void rle_lua_open_comm(lua_State *L)
{
    lua_newtable(L);
    lua_pushcfunction(L, work_gc);
    lua_setfield(L, -2, "__gc");
    lua_pushliteral(L, "rlengine.Collective");
    lua_setfield(L, -2, "__name");
    rle_rawsetp(L, LUA_REGISTRYINDEX, &work_meta_key);
    lua_newtable(L);
    rle_lua_setfuncs(L, comm_functions);
}
