/* lua_rpc.c - rpc.init and rpc.shutdown. One worker a process. */
#include "lua/lua_rpc_batch.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sysexits.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/world.h"
#include "tensor/tensor.h"

RLE_PER_PROCESS rle_lua_rpc rle_lua_rpc_state = {
    .runnable_end = &rle_lua_rpc_state.runnable};

static const char guard_key;

RLE_PER_PROCESS int rle_lua_hook_ref[RLE_HOOK_COUNT];

/* ---- state ---- */

rle_lua_rpc *rle_lua_rpc_check(lua_State *L)
{
    rle_lua_rpc *s = &rle_lua_rpc_state;
    if (s->forked)
        rle_lua_fail(L, RLE_FAILED_PRECONDITION,
                     "this process was forked from one that called rpc.init; start a process of "
                     "its own instead");
    if (!s->rpc) rle_lua_fail(L, RLE_FAILED_PRECONDITION, "call rpc.init first");
    return s;
}

/* hooks{...}: functions and metatables of rpc.lua, in the order of rle_lua_hook. */
static int rpc_hooks(lua_State *L)
{
    luaL_checktype(L, 1, LUA_TTABLE);
    for (int i = 0; i < RLE_HOOK_RUN; i++) {
        lua_rawgeti(L, 1, i + 1);
        rle_lua_hook_ref[i] = luaL_ref(L, LUA_REGISTRYINDEX);
    }
    return 0;
}

static void in_child(void)
{
    if (rle_lua_rpc_state.rpc) rle_lua_rpc_state.forked = true;
}

/* Everything of this worker goes; also when the Lua state closes. */
static void tear_down(lua_State *L)
{
    rle_lua_rpc *s = &rle_lua_rpc_state;
    if (!s->rpc || s->forked) return;
    if (s->result) rle_future_release(s->rpc, s->result);
    s->result = NULL;
    rle_lua_rpc_drop_handlers(L);
    rle_lua_batch_drop_all(L);
    rle_rpc_free(s->rpc);
    rle_encoder_fini(&s->encoder);
    s->rpc = NULL;
    s->generation++;
    s->current = NULL;
    s->depth = 0;
    s->from = NULL;
    s->stop_wanted = false;
}

static int state_closes(lua_State *L)
{
    tear_down(L);
    return 0;
}

/* A device is beyond use and the process about to end: tell the others, so that they need
 * not find out. Nothing of Lua or of a device is touched. What does not leave at once has
 * a tenth of a second; the guard thread sends it meanwhile. */
static void say_goodbye(void *self, const char *message)
{
    (void)message;
    rle_lua_rpc *s = self;
    if (!s->rpc || s->forked) return;
    rle_rpc_stop(s->rpc);
    for (int i = 0; i < 20 && !rle_rpc_flushed(s->rpc); i++)
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
}

void rle_lua_rpc_leave(void)
{
    rle_lua_rpc *s = &rle_lua_rpc_state;
    if (!s->rpc || s->forked) return;
    rle_rpc_stop(s->rpc);
    int64_t end = rle_now() + RLE_SECONDS / 2;
    while (!rle_rpc_flushed(s->rpc) && rle_now() < end) {
        rle_rpc_turn(s->rpc, false);
        if (rle_simulated()) break; /* what can be sent there is */
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

/* ---- init ---- */

static const char *const init_options[] = {
    "name",           "listen",        "connect",
    "token",          "token_fd",      "token_file",
    "max_concurrent", "max_calls",     "heartbeat",
    "timeout",        "call_timeout",  "connect_timeout",
    "max_message",    "allow_uids",    "insecure_network",
    "busy_after",     "reconnect_for", "tls",
    "join_timeout",   "busy_poll",     NULL};

/* Nanoseconds; 0: not given. With `or_not` 0 may be given, stands for "not at all" and is -1. */
static int64_t seconds_option(lua_State *L, const char *key, bool or_not)
{
    lua_getfield(L, 1, key);
    bool given = !lua_isnil(L, -1);
    lua_pop(L, 1);
    if (!given) return 0;
    double v = rle_lua_opt_number(L, 1, key, 0);
    if (!(v >= 0 && v < 1e9) || (v == 0 && !or_not))
        rle_lua_fail(L, RLE_INVALID_ARGUMENT, "option \"%s\" must be a number of seconds %s 0",
                     key, or_not ? ">=" : ">");
    int64_t ns = (int64_t)(v * 1e9);
    return ns ? ns : -1;
}

/* 0: not given. */
static int64_t count_option(lua_State *L, const char *key, int64_t min, int64_t max)
{
    lua_getfield(L, 1, key);
    bool given = !lua_isnil(L, -1);
    lua_pop(L, 1);
    if (!given) return 0;
    int64_t v = rle_lua_opt_integer(L, 1, key, 0);
    if (v < min || v > max)
        rle_lua_fail(L, RLE_INVALID_ARGUMENT,
                     "option \"%s\" must be from %lld to %lld, got %lld", key,
                     (long long)min, (long long)max, (long long)v);
    return v;
}

enum { UIDS_MAX = 32 };

/* allow_uids: a number or a list of them. Returns how many. */
static int uids_option(lua_State *L, uid_t *uids)
{
    lua_getfield(L, 1, "allow_uids");
    int list = lua_gettop(L);
    if (lua_isnil(L, list)) {
        lua_pop(L, 1);
        return 0;
    }
    if (!lua_istable(L, list)) {
        lua_createtable(L, 1, 0);
        lua_insert(L, list);
        lua_rawseti(L, list, 1);
    }
    int n = (int)lua_rawlen(L, list);
    if (n > UIDS_MAX)
        rle_lua_fail(L, RLE_INVALID_ARGUMENT, "option \"allow_uids\" holds at most %d",
                     UIDS_MAX);
    for (int i = 0; i < n; i++) {
        lua_rawgeti(L, list, i + 1);
        double v = lua_type(L, -1) == LUA_TNUMBER ? lua_tonumber(L, -1) : -1;
        /* The largest one stands for "none" in system calls. */
        if (!(v >= 0 && v < 4294967295.0 && v == (double)(uid_t)v))
            rle_lua_fail(
                L, RLE_INVALID_ARGUMENT,
                "option \"allow_uids\" must be a user's number (see id -u) or a list of "
                "them; entry %d is %s",
                i + 1,
                lua_type(L, -1) == LUA_TNUMBER ? lua_tostring(L, -1)
                                               : luaL_typename(L, -1));
        uids[i] = (uid_t)v;
        lua_pop(L, 1);
    }
    lua_pop(L, 1);
    return n;
}

/* A string, or a list of them, of options[key]: calls `each` for every one; on failure what
 * it returned. Leaves the list of results of `each` on the stack when `collect`. */
static int list_option(lua_State *L, const char *key)
{
    lua_getfield(L, 1, key);
    if (lua_isnil(L, -1)) {
        lua_pop(L, 1);
        lua_newtable(L);
    } else if (lua_type(L, -1) == LUA_TSTRING) {
        lua_createtable(L, 1, 0);
        lua_insert(L, -2);
        lua_rawseti(L, -2, 1);
    } else if (!lua_istable(L, -1)) {
        rle_lua_fail(L, RLE_INVALID_ARGUMENT,
                     "option \"%s\" must be an address or a list of addresses", key);
    }
    int n = (int)lua_rawlen(L, -1);
    for (int i = 1; i <= n; i++) {
        lua_rawgeti(L, -1, i);
        if (lua_type(L, -1) != LUA_TSTRING)
            rle_lua_fail(L, RLE_INVALID_ARGUMENT,
                         "option \"%s\" must be an address or a list of addresses", key);
        lua_pop(L, 1);
    }
    return n;
}

/* A tensor of a message that nobody read. */
static void drop_tensor(void *handle)
{
    rle_tensor_release(handle);
}

/* Listen and connect; what fails undoes all. */
static rle_status join(lua_State *L, rle_rpc *rpc, int listen, int connect, int64_t patience)
{
    char bound[RLE_ADDRESS_MAX];
    int n = (int)lua_rawlen(L, listen);
    for (int i = 1; i <= n; i++) {
        lua_rawgeti(L, listen, i);
        RLE_TRY(rle_rpc_listen(rpc, lua_tostring(L, -1), bound));
        lua_pop(L, 1);
        lua_pushstring(L, bound);
        lua_rawseti(L, listen, i);
    }
    n = (int)lua_rawlen(L, connect);
    for (int i = 1; i <= n; i++) {
        rle_peer *peer = NULL;
        lua_rawgeti(L, connect, i);
        RLE_TRY(rle_rpc_connect(rpc, lua_tostring(L, -1), patience, &peer));
        lua_pop(L, 1);
        lua_pushstring(L, rle_peer_name(peer));
        lua_rawseti(L, connect, i);
    }
    return RLE_OK;
}

/* Raise; what is refused because of a setting ends an uncaught script with EX_CONFIG. */
static int setup_failed(lua_State *L, rle_status status)
{
    if (status != RLE_FAILED_PRECONDITION) return rle_lua_raise(L, status);
    char message[1024];
    snprintf(message, sizeof message, "%s", rle_message());
    rle_lua_push_error(L, status, message, 1);
    lua_pushinteger(L, EX_CONFIG);
    lua_setfield(L, -2, "exit_code");
    return lua_error(L);
}

/* init(options) -> bound addresses, names of the workers connected to */
static int rpc_init(lua_State *L)
{
    rle_lua_enter(L);
    rle_lua_rpc *s = &rle_lua_rpc_state;
    if (!rle_lua_options(L, 1, init_options))
        rle_lua_fail(L, RLE_INVALID_ARGUMENT, "rpc.init wants a table of options");
    if (s->forked) rle_lua_rpc_check(L);
    if (s->rpc)
        rle_lua_fail(L, RLE_FAILED_PRECONDITION,
                     "rpc.init was called already: this worker is \"%s\"; rpc.shutdown() first",
                     rle_rpc_name(s->rpc));
    lua_settop(L, 1);
    rle_rpc_options o = {
        .name = rle_lua_opt_string(L, 1, "name", NULL),
        .max_concurrent = (int)count_option(L, "max_concurrent", 1, 1000000),
        .max_credits = (int)count_option(L, "max_calls", 1, 10000),
        .heartbeat = seconds_option(L, "heartbeat", false),
        .peer_timeout = seconds_option(L, "timeout", false),
        .call_timeout = seconds_option(L, "call_timeout", false),
        .busy_after = seconds_option(L, "busy_after", false),
        .join_timeout = seconds_option(L, "join_timeout", false),
        .reconnect_for = seconds_option(L, "reconnect_for", true),
        .busy_poll = seconds_option(L, "busy_poll", true),
        .members = true,
        .insecure_network = rle_lua_opt_boolean(L, 1, "insecure_network", false)};
    if (!o.name) rle_lua_fail(L, RLE_INVALID_ARGUMENT, "rpc.init needs a name");
    o.max_message = (uint64_t)count_option(L, "max_message", 4096, INT64_C(1) << 53);
    int64_t patience = seconds_option(L, "connect_timeout", false);
    if (!patience) patience = 10 * RLE_SECONDS;
    int listeners = list_option(L, "listen"), listen = lua_gettop(L);
    int connects = list_option(L, "connect"), connect = lua_gettop(L);
    if (listeners + connects == 0)
        rle_lua_fail(L, RLE_INVALID_ARGUMENT,
                     "rpc.init needs an address to listen on or to connect to");
    uid_t uids[UIDS_MAX];
    o.allow_uid_count = uids_option(L, uids);
    o.allow_uids = uids;
    rle_token token;
    rle_lua_rpc_token(L, &token);
    o.token = &token;
    rle_tls_options tls;
    o.tls = rle_lua_rpc_tls(L, 1, &tls);
    rle_rpc *rpc;
    rle_status status = rle_rpc_new(&o, &rpc);
    rle_token_forget(&token);
    if (status != RLE_OK) return setup_failed(L, status);
    rle_rpc_set_drop_handle(rpc, drop_tensor);
    s->rpc = rpc;
    rle_device_on_fatal(say_goodbye, s);
    s->generation++;
    rle_encoder_init(&s->encoder);
    lua_pushvalue(L, listen);
    lua_pushvalue(L, connect);
    /* Before anybody is there: others may come to a collective first. */
    status = rle_lua_comm_begin();
    if (status == RLE_OK)
        status = join(L, rpc, lua_gettop(L) - 1, lua_gettop(L), patience);
    if (status != RLE_OK) {
        char message[1024];
        snprintf(message, sizeof message, "%s", rle_message());
        tear_down(L);
        rle_fail(status, "%s", message);
        return setup_failed(L, status);
    }
    rle_interrupt_wake = rle_rpc_wake_all;
    return 2;
}

/* stop(): no new calls, peers are told. */
static int rpc_stop(lua_State *L)
{
    rle_lua_enter(L);
    rle_rpc_stop(rle_lua_rpc_check(L)->rpc);
    return 0;
}

/* want_stop(): serve() returns. */
static int rpc_want_stop(lua_State *L)
{
    rle_lua_rpc_check(L)->stop_wanted = true;
    return 0;
}

/* hold_calls(hold): calls wait to be started until it is called with false. */
static int rpc_hold_calls(lua_State *L)
{
    rle_rpc_hold_calls(rle_lua_rpc_check(L)->rpc, lua_toboolean(L, 1));
    return 0;
}

/* close(): connections are closed at once. */
static int rpc_close(lua_State *L)
{
    rle_lua_rpc *s = rle_lua_rpc_check(L);
    if (s->current || s->depth)
        rle_lua_fail(L, RLE_FAILED_PRECONDITION, "rpc.shutdown inside a handler");
    tear_down(L);
    return 0;
}

static int rpc_active(lua_State *L)
{
    lua_pushboolean(L, rle_lua_rpc_state.rpc && !rle_lua_rpc_state.forked);
    return 1;
}

/* generation() -> changes with every rpc.init and rpc.shutdown. */
static int rpc_generation(lua_State *L)
{
    lua_pushnumber(L, rle_lua_rpc_state.generation);
    return 1;
}

/* make_token(path): a new token file. */
static int rpc_make_token(lua_State *L)
{
    if (lua_type(L, 1) != LUA_TSTRING)
        rle_lua_fail(L, RLE_INVALID_ARGUMENT,
                     "rpc.make_token wants the path of the file, got %s",
                     luaL_typename(L, 1));
    rle_lua_check(L, rle_token_create(lua_tostring(L, 1)));
    return 0;
}

static const luaL_Reg rpc_functions[] = {
    {"hooks", rpc_hooks},
    {"init", rpc_init},
    {"stop", rpc_stop},
    {"want_stop", rpc_want_stop},
    {"hold_calls", rpc_hold_calls},
    {"close", rpc_close},
    {"active", rpc_active},
    {"generation", rpc_generation},
    {"make_token", rpc_make_token},
    {NULL, NULL},
};

void rle_lua_open_rpc(lua_State *L)
{
    static bool fork_handled;
    if (!fork_handled) pthread_atfork(NULL, NULL, in_child);
    fork_handled = true;

    /* Collected when the state closes; then the worker goes. */
    lua_newuserdata(L, 1);
    lua_newtable(L);
    lua_pushcfunction(L, state_closes);
    lua_setfield(L, -2, "__gc");
    lua_setmetatable(L, -2);
    rle_rawsetp(L, LUA_REGISTRYINDEX, &guard_key);

    static const lua_CFunction own[] = {rle_lua_rpc_run_until_ready,
                                        rle_lua_rpc_new_coroutine,
                                        rle_lua_rpc_answer_failure};
    for (int i = RLE_HOOK_RUN; i < RLE_HOOK_COUNT; i++) {
        lua_pushcfunction(L, own[i - RLE_HOOK_RUN]);
        rle_lua_hook_ref[i] = luaL_ref(L, LUA_REGISTRYINDEX);
    }

    lua_newtable(L);
    rle_lua_setfuncs(L, rpc_functions);
    rle_lua_setfuncs(L, rle_lua_rpc_worker_functions);
    rle_lua_setfuncs(L, rle_lua_rpc_call_functions);
    rle_lua_setfuncs(L, rle_lua_rpc_claim_functions);
    rle_lua_setfuncs(L, rle_lua_rpc_run_functions);
    rle_lua_setfuncs(L, rle_lua_rpc_future_functions);
    rle_lua_setfuncs(L, rle_lua_rpc_wait_functions);
    rle_lua_setfuncs(L, rle_lua_rpc_batch_functions);
    rle_lua_setfuncs(L, rle_lua_rpc_flush_functions);
    rle_lua_setfuncs(L, rle_lua_rpc_weights_functions);
    rle_lua_rpc_open_call(L);
    rle_lua_rpc_open_future(L);
    rle_lua_rpc_open_weights(L);
}
