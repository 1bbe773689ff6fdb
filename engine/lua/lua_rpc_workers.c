/* lua_rpc_workers.c - what is known about this worker and others: who they are, where, whether
 * they are there, what they hold. */
#include "lua/lua_rpc_batch.h"

#include <stdio.h>

#include "base/log.h"

/* ---- who comes and goes ---- */

typedef struct member_news {
    const rle_member_change *change;
    char name[RLE_NAME_MAX + 1]; /* who is gone may be forgotten meanwhile */
} member_news;

/* Protected: (light userdata member_news) */
static int run_member(lua_State *L)
{
    const member_news *n = lua_touserdata(L, 1);
    rle_lua_push_hook(L, RLE_HOOK_MEMBER);
    lua_pushstring(L, n->name);
    rle_lua_push_incarnation(L, n->change->left);
    lua_pushboolean(L, n->change->goodbye);
    rle_lua_push_incarnation(L, n->change->joined);
    lua_call(L, 4, 0);
    return 0;
}

void rle_lua_tell_member(lua_State *L, const rle_member_change *change)
{
    member_news n = {.change = change};
    snprintf(n.name, sizeof n.name, "%s", rle_peer_name(change->peer));
    if (rle_cpcall(L, run_member, &n) != 0) {
        rle_log(RLE_LOG_ERROR, "nobody was told of worker \"%s\": %s", n.name,
                lua_tostring(L, -1));
        lua_pop(L, 1);
    }
}

/* ---- bound functions ---- */

static int rpc_name(lua_State *L)
{
    lua_pushstring(L, rle_rpc_name(rle_lua_rpc_check(L)->rpc));
    return 1;
}

static int rpc_addresses(lua_State *L)
{
    rle_lua_rpc *s = rle_lua_rpc_check(L);
    char list[RLE_REF_ADDRESSES][RLE_ADDRESS_MAX];
    int n = rle_rpc_own_addresses(s->rpc, list);
    lua_createtable(L, n, 0);
    for (int i = 0; i < n; i++) {
        lua_pushstring(L, list[i]);
        lua_rawseti(L, -2, i + 1);
    }
    return 1;
}

/* hint(name, addresses): where a worker not met yet can be reached. */
static int rpc_hint(lua_State *L)
{
    rle_lua_rpc *s = rle_lua_rpc_check(L);
    const char *list[RLE_REF_ADDRESSES];
    rle_peer *peer = rle_rpc_peer(s->rpc, luaL_checkstring(L, 1));
    luaL_checktype(L, 2, LUA_TTABLE);
    int n = 0;
    for (int i = 1; i <= (int)lua_rawlen(L, 2) && n < RLE_REF_ADDRESSES; i++) {
        lua_rawgeti(L, 2, i);
        list[n++] = luaL_checkstring(L, -1); /* the table keeps it */
        lua_pop(L, 1);
    }
    if (peer) rle_peer_hint(s->rpc, peer, list, n);
    return 0;
}

void rle_lua_push_incarnation(lua_State *L, uint64_t incarnation)
{
    char text[20];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)incarnation);
    if (incarnation)
        lua_pushstring(L, text);
    else
        lua_pushnil(L);
}

/* incarnation() -> of this worker */
static int rpc_incarnation(lua_State *L)
{
    rle_lua_push_incarnation(L, rle_rpc_incarnation(rle_lua_rpc_check(L)->rpc));
    return 1;
}

/* random() -> number from 0 to below 1, for pauses */
static int rpc_random(lua_State *L)
{
    lua_pushnumber(L, rle_rpc_random(rle_lua_rpc_check(L)->rpc));
    return 1;
}

static void set_number(lua_State *L, const char *key, double v)
{
    lua_pushnumber(L, v);
    lua_setfield(L, -2, key);
}

static void set_count(lua_State *L, const char *key, uint64_t v)
{
#if LUA_VERSION_NUM >= 503
    lua_pushinteger(L, (lua_Integer)v);
#else
    lua_pushnumber(L, (lua_Number)v);
#endif
    lua_setfield(L, -2, key);
}

static void set_flag(lua_State *L, const char *key, bool v)
{
    lua_pushboolean(L, v);
    lua_setfield(L, -2, key);
}

/* workers() -> list of tables */
static int rpc_workers(lua_State *L)
{
    rle_lua_enter(L);
    rle_lua_rpc *s = rle_lua_rpc_check(L);
    size_t max = rle_rpc_peers(s->rpc, NULL, 0) + 8;
    rle_peer_info *list = lua_newuserdata(L, max * sizeof *list);
    size_t n = rle_rpc_peers(s->rpc, list, max);
    if (n > max) n = max;
    lua_createtable(L, (int)n, 0);
    for (size_t i = 0; i < n; i++) {
        const rle_peer_info *p = &list[i];
        lua_createtable(L, 0, 10);
        lua_pushstring(L, p->name);
        lua_setfield(L, -2, "name");
        lua_pushstring(L, p->address);
        lua_setfield(L, -2, "address");
        rle_lua_push_incarnation(L, p->incarnation);
        lua_setfield(L, -2, "incarnation");
        set_flag(L, "connected", p->connected);
        set_flag(L, "reconnecting", p->sought);
        set_flag(L, "left", p->left);
        set_count(L, "pid", (uint64_t)p->pid);
        set_number(L, "silent", (double)p->silent / 1e9);
        lua_pushstring(L, p->note);
        lua_setfield(L, -2, "doing");
        set_count(L, "calls_to", (uint64_t)p->calls_to);
        set_count(L, "calls_from", (uint64_t)p->calls_from);
        set_count(L, "references", (uint64_t)p->references);
        set_count(L, "bytes_in", (uint64_t)p->bytes_in);
        set_count(L, "bytes_out", (uint64_t)p->bytes_out);
        lua_rawseti(L, -2, (int)i + 1);
    }
    return 1;
}

/* note(words) */
static int rpc_note(lua_State *L)
{
    if (!lua_isnoneornil(L, 1) && lua_type(L, 1) != LUA_TSTRING)
        rle_lua_fail(L, RLE_INVALID_ARGUMENT, "rpc.note wants a text, or nil, got a %s",
                     luaL_typename(L, 1));
    rle_note_say(luaL_optstring(L, 1, ""));
    return 0;
}

/* connected(name) -> whether that worker can be called, has said goodbye, is still there,
 * is looked for */
static int rpc_connected(lua_State *L)
{
    rle_lua_rpc *s = rle_lua_rpc_check(L);
    rle_peer *peer = rle_rpc_peer(s->rpc, luaL_checkstring(L, 1));
    rle_status code;
    lua_pushboolean(L, peer && rle_peer_connected(s->rpc, peer));
    lua_pushboolean(L, peer && rle_peer_left(s->rpc, peer));
    lua_pushboolean(L, peer && rle_peer_present(s->rpc, peer));
    lua_pushboolean(L, peer && rle_peer_link(s->rpc, peer, &code) == RLE_LINK_SEEKING);
    return 4;
}

static void raise_given_up(lua_State *L, rle_peer *peer)
{
    rle_status code;
    if (peer && rle_peer_link(rle_lua_rpc_state.rpc, peer, &code) == RLE_LINK_GIVEN_UP)
        rle_lua_raise(L, code);
}

/* found(name): raises when that worker was looked for and not found. */
static int rpc_found(lua_State *L)
{
    rle_lua_enter(L);
    rle_lua_rpc *s = rle_lua_rpc_check(L);
    raise_given_up(L, rle_rpc_peer(s->rpc, luaL_checkstring(L, 1)));
    return 0;
}

/* lost(name): raises why that worker is not connected and not looked for. */
static int rpc_lost(lua_State *L)
{
    rle_lua_enter(L);
    rle_lua_rpc *s = rle_lua_rpc_check(L);
    const char *name = luaL_checkstring(L, 1);
    raise_given_up(L, rle_rpc_peer(s->rpc, name));
    return rle_lua_fail(L, RLE_UNAVAILABLE, "worker \"%s\" disconnected", name);
}

/* who_is_here(wanted) -> words to put behind a message that this worker is not */
static int rpc_who_is_here(lua_State *L)
{
    char here[1024];
    rle_rpc_who_is_here(rle_lua_rpc_check(L)->rpc, luaL_checkstring(L, 1), here,
                        sizeof here);
    lua_pushstring(L, here);
    return 1;
}

static int rpc_membership(lua_State *L)
{
    lua_pushnumber(L, (lua_Number)rle_rpc_membership(rle_lua_rpc_check(L)->rpc));
    return 1;
}

/* open_calls() -> being served or queued here, made by us; and whether all is written */
static int rpc_open_calls(lua_State *L)
{
    rle_lua_rpc *s = rle_lua_rpc_check(L);
    size_t serving, calling;
    rle_rpc_open_calls(s->rpc, &serving, &calling);
    lua_pushnumber(L, (lua_Number)serving);
    lua_pushnumber(L, (lua_Number)calling);
    lua_pushboolean(L, rle_rpc_flushed(s->rpc));
    return 3;
}

static int rpc_counters(lua_State *L)
{
    rle_lua_rpc *s = rle_lua_rpc_check(L);
    rle_rpc_counters c;
    rle_rpc_count(s->rpc, &c);
    lua_newtable(L);
    set_count(L, "calls_made", (uint64_t)c.calls_made);
    set_count(L, "calls_served", (uint64_t)c.calls_served);
    set_count(L, "late_results", (uint64_t)c.late_results);
    set_count(L, "unsent_results", (uint64_t)c.unsent_results);
    set_count(L, "expired_unstarted", (uint64_t)c.expired_unstarted);
    set_count(L, "refused_peers", (uint64_t)c.refused_peers);
    set_count(L, "futures", (uint64_t)c.live_futures);
    set_count(L, "calls", (uint64_t)c.live_incoming);
    set_count(L, "objects", (uint64_t)c.exported_objects);
    set_count(L, "timers", (uint64_t)c.timers);
    set_count(L, "coroutines", (uint64_t)s->pooled);
    rle_lua_batch_counters(L, &c);
    return 1;
}

/* dump() -> text; and the coroutines that serve calls or were spawned */
static int rpc_dump(lua_State *L)
{
    rle_lua_enter(L);
    rle_lua_rpc *s = rle_lua_rpc_check(L);
    rle_writer w;
    rle_writer_init(&w);
    rle_rpc_dump(s->rpc, &w);
    lua_pushlstring(L, w.data ? (const char *)w.data : "", w.len);
    rle_writer_fini(&w);
    lua_newtable(L);
    int n = 0;
    for (rle_lua_handler *h = s->all; h; h = h->all_next) {
        lua_createtable(L, 0, 2);
        lua_rawgeti(L, LUA_REGISTRYINDEX, h->co_ref);
        lua_setfield(L, -2, "coroutine");
        lua_pushstring(L, h->in ? h->info.head.method : "");
        lua_setfield(L, -2, "method");
        lua_rawseti(L, -2, ++n);
    }
    return 2;
}

/* exports() -> list of {object=, holder=, count=, age=, line=} */
static int rpc_exports(lua_State *L)
{
    rle_lua_enter(L);
    rle_lua_rpc *s = rle_lua_rpc_check(L);
    size_t max = rle_rpc_exports(s->rpc, NULL, 0) + 8;
    rle_export_info *list = lua_newuserdata(L, max * sizeof *list);
    size_t n = rle_rpc_exports(s->rpc, list, max);
    if (n > max) n = max;
    lua_createtable(L, (int)n, 0);
    for (size_t i = 0; i < n; i++) {
        lua_createtable(L, 0, 7);
        set_number(L, "age", (double)list[i].age / 1e9);
        lua_pushstring(L, rle_site_name(list[i].site));
        lua_setfield(L, -2, "line");
        set_count(L, "object", (uint64_t)list[i].object);
        set_count(L, "count", (uint64_t)list[i].count);
        lua_pushstring(L, list[i].holder);
        lua_setfield(L, -2, "holder");
        lua_rawseti(L, -2, (int)i + 1);
    }
    return 1;
}

const luaL_Reg rle_lua_rpc_worker_functions[] = {
    {"name", rpc_name},
    {"incarnation", rpc_incarnation},
    {"random", rpc_random},
    {"addresses", rpc_addresses},
    {"hint", rpc_hint},
    {"workers", rpc_workers},
    {"connected", rpc_connected},
    {"note", rpc_note},
    {"found", rpc_found},
    {"lost", rpc_lost},
    {"who_is_here", rpc_who_is_here},
    {"membership", rpc_membership},
    {"open_calls", rpc_open_calls},
    {"counters", rpc_counters},
    {"dump", rpc_dump},
    {"exports", rpc_exports},
    {NULL, NULL},
};
