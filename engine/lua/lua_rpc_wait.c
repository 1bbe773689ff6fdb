/* lua_rpc_wait.c - waiting: a handler's coroutine is suspended, everybody else turns the loop.
 *
 * A script's own coroutine inside a handler cannot be suspended by us, because it would come
 * back to the script that resumed it. It turns the loop itself, inside the handler, like the
 * script's main coroutine; how deep such waits may lie inside each other is bounded. */
#include "lua/lua_rpc_batch.h"

#include "base/clock.h"
#include "base/log.h"

#if LUA_VERSION_NUM >= 503 || defined(LUA_JITLIBNAME)
#define CAN_YIELD(L) lua_isyieldable(L)
#define HANDLERS_WAIT 1
#else
#define CAN_YIELD(L) 0
#define HANDLERS_WAIT 0
#endif

/* ---- may it wait? ---- */

static bool hook_ran;

static void note_hook(lua_State *L, lua_Debug *ar)
{
    (void)L;
    (void)ar;
    hook_ran = true;
}

/* Finalizers and hooks run with hooks switched off: set one and see whether it is called.
 * There is no other way to know in LuaJIT. */
static bool in_finalizer(lua_State *L)
{
    lua_Hook hook = lua_gethook(L);
    int mask = lua_gethookmask(L), count = lua_gethookcount(L);
    hook_ran = false;
    lua_sethook(L, note_hook, LUA_MASKCALL, 0);
    rle_lua_push_hook(L, RLE_HOOK_DROPPED); /* any Lua function that returns at once for 0 */
    lua_pushnumber(L, 0);
    lua_call(L, 1, 0);
    lua_sethook(L, hook, mask, count);
    return !hook_ran;
}

void rle_lua_check_wait(lua_State *L, const char *what)
{
    if (rle_lua_handler_of(L)) {
        if (CAN_YIELD(L)) return;
        if (!HANDLERS_WAIT)
            rle_lua_fail(L, RLE_FAILED_PRECONDITION,
                         "%s inside a handler: this Lua cannot suspend it there; LuaJIT and Lua "
                         "from 5.3 on can",
                         what);
        if (in_finalizer(L))
            rle_lua_fail(L, RLE_FAILED_PRECONDITION, "%s inside a finalizer", what);
        rle_lua_fail(L, RLE_FAILED_PRECONDITION,
                     "%s inside a function that a C function calls (table.sort, string.gsub, an "
                     "iterator): the handler cannot be suspended there",
                     what);
    }
    if (in_finalizer(L))
        rle_lua_fail(L, RLE_FAILED_PRECONDITION, "%s inside a finalizer", what);
    if (rle_lua_rpc_state.depth >= RLE_LUA_RPC_DEPTH)
        rle_lua_fail(L, RLE_FAILED_PRECONDITION,
                     "%s: %d coroutines of scripts wait inside each other; wait in the handler "
                     "itself",
                     what, RLE_LUA_RPC_DEPTH);
}

/* ---- waiting ---- */

typedef struct nested_wait {
    rle_waiter waiter;
    bool interrupted;
    bool serving; /* also end when a worker comes or goes, or rpc.shutdown is wanted */
    uint64_t membership;
} nested_wait;

static bool serving_over(const rle_lua_rpc *s, const nested_wait *n)
{
    return n->serving && (s->stop_wanted || rle_rpc_membership(s->rpc) != n->membership);
}

/* Run everything that is ready until this waiter is. */
int rle_lua_rpc_run_until_ready(lua_State *L)
{
    rle_lua_rpc *s = &rle_lua_rpc_state;
    nested_wait *n = lua_touserdata(L, 1);
    while (!n->waiter.ready) {
        if (rle_interrupted) {
            n->interrupted = true;
            return 0;
        }
        if (serving_over(s, n))
            return 0; /* the next step may wait for something to happen */
        rle_lua_rpc_step(L);
    }
    return 0;
}

static int wait_nested(lua_State *L, nested_wait *n, rle_future *const *futures, size_t count,
                       rle_wait_mode mode, int64_t deadline)
{
    rle_lua_rpc *s = &rle_lua_rpc_state;
    rle_lua_check(L, rle_wait_begin(s->rpc, &n->waiter, futures, count, mode, deadline));
    rle_lua_handler *before = s->current;
    rle_context *context = rle_context_current();
    s->depth++;
    rle_lua_push_hook(L, RLE_HOOK_RUN);
    lua_pushlightuserdata(L, n);
    int failure = lua_pcall(L, 1, 0, 0);
    s->depth--;
    s->current = before;
    rle_context_switch(context);
    rle_wait_end(s->rpc, &n->waiter);
    if (failure != 0) return lua_error(L);
    if (n->interrupted) rle_lua_interrupted(L);
    return 0;
}

/* The waits of a handler that nobody wants any more end at once with CANCELLED: the first
 * few, with which it cleans up. One that catches the error and tries again for ever then
 * waits for a moment each time, and others are served meanwhile. */
enum { REFUSED_AT_ONCE = 16 };
#define REFUSED_PAUSE (RLE_SECONDS / 100)

static int wait_refused(lua_State *L, rle_lua_handler *h)
{
    rle_lua_rpc *s = &rle_lua_rpc_state;
    bool at_once = h->refused < REFUSED_AT_ONCE;
    int64_t until = at_once ? 0 : rle_now() + REFUSED_PAUSE;
    rle_lua_check(L, rle_wait_begin(s->rpc, &h->waiter, NULL, 0, RLE_WAIT_ALL, until));
    h->waiter.cancelled = true;
    h->parked = true;
    h->refused += at_once;
    if (at_once && h->refused == REFUSED_AT_ONCE)
        rle_log(RLE_LOG_WARN,
                "\"%s\" for \"%s\" goes on waiting though nobody wants it any more: it "
                "should "
                "end with the error CANCELLED, or where rpc.cancelled() is true",
                h->info.head.method, rle_peer_name(h->info.caller));
    return lua_yield(L, 0);
}

int rle_lua_wait(lua_State *L, rle_future *const *futures, size_t count, rle_wait_mode mode,
                 int64_t deadline)
{
    rle_lua_rpc *s = &rle_lua_rpc_state;
    rle_lua_handler *h = rle_lua_handler_of(L);
    if (!h) {
        nested_wait n = {.waiter = {.owner = NULL}};
        return wait_nested(L, &n, futures, count, mode, deadline);
    }
    h->waiter.owner = h;
    if (h->cancelled) return wait_refused(L, h);
    rle_lua_check(L, rle_wait_begin(s->rpc, &h->waiter, futures, count, mode, deadline));
    h->parked = true;
    if (h->in && h->waiter.remote) rle_incoming_waits(s->rpc, h->in, true);
    if (h->flush && h->waiter.remote) rle_lua_flush_waits(h->flush, true);
    return lua_yield(L, 0);
}

/* ---- bound functions ---- */

static int64_t seconds_from_now(lua_State *L, int arg)
{
    double seconds = luaL_checknumber(L, arg);
    if (!(seconds >= 0))
        rle_lua_fail(L, RLE_INVALID_ARGUMENT, "a time must be a number of seconds >= 0");
    if (seconds > 1e9) seconds = 1e9;
    int64_t at = rle_now() + (int64_t)(seconds * 1e9);
    return at;
}

/* sleep(seconds): others run meanwhile. Then slept() must be called. */
static int run_sleep(lua_State *L)
{
    rle_lua_enter(L);
    rle_lua_rpc_check(L);
    int64_t until = seconds_from_now(L, 1);
    rle_lua_check_wait(L, "sleep");
    return rle_lua_wait(L, NULL, 0, RLE_WAIT_ALL, until);
}

/* clock() -> seconds, of the clock that deadlines go by */
static int run_clock(lua_State *L)
{
    lua_pushnumber(L, (double)rle_now() / 1e9);
    return 1;
}

static void raise_cancelled(lua_State *L, rle_lua_handler *h)
{
    if (h->in)
        rle_lua_fail(L, RLE_CANCELLED, "\"%s\" is no longer wanted by \"%s\"",
                     h->info.head.method, rle_peer_name(h->info.caller));
    rle_lua_fail(L, RLE_CANCELLED, "cancelled");
}

/* waited(): after a wait: raises CANCELLED when the call being served is not wanted any
 * more. Returns whether time ran out. */
static int run_waited(lua_State *L)
{
    rle_lua_enter(L);
    rle_lua_handler *h = rle_lua_handler_of(L);
    if (!h) {
        lua_pushboolean(L, false);
        return 1;
    }
    if (h->waiter.cancelled) raise_cancelled(L, h);
    lua_pushboolean(L, h->waiter.timed_out);
    return 1;
}

/* serve(seconds): run the loop until a worker comes or goes, rpc.shutdown is wanted, or the
 * time is over. Returns whether shutdown is wanted. */
static int run_serve(lua_State *L)
{
    rle_lua_enter(L);
    rle_lua_rpc *s = rle_lua_rpc_check(L);
    if (s->current)
        rle_lua_fail(L, RLE_FAILED_PRECONDITION, "serve inside a handler: calls are served "
                                                 "already");
    int64_t until = seconds_from_now(L, 1);
    rle_lua_check_wait(L, "serve");
    nested_wait n = {.serving = true, .membership = (uint64_t)luaL_checknumber(L, 2)};
    wait_nested(L, &n, NULL, 0, RLE_WAIT_ALL, until);
    lua_pushboolean(L, s->stop_wanted);
    return 1;
}

/* ---- for the prompt ---- */

typedef struct pump_wait {
    bool readable;
    uint64_t wakes;
} pump_wait;

static int pump_loop(lua_State *L)
{
    rle_lua_rpc *s = &rle_lua_rpc_state;
    pump_wait *p = lua_touserdata(L, 1);
    while (!p->readable && !rle_interrupted && rle_rpc_wakes(s->rpc) == p->wakes) {
        rle_lua_rpc_step(L);
    }
    return 0;
}

bool rle_lua_rpc_pump(lua_State *L, int fd)
{
    rle_lua_rpc *s = &rle_lua_rpc_state;
    if (!s->rpc || s->forked) return false;
    pump_wait p = {.readable = false, .wakes = rle_rpc_wakes(s->rpc)};
    rle_lua_check(L, rle_rpc_watch(s->rpc, fd, &p.readable));
    lua_pushcfunction(L, pump_loop);
    lua_pushlightuserdata(L, &p);
    int failure = lua_pcall(L, 1, 0, 0);
    if (s->rpc) rle_rpc_watch(s->rpc, -1, NULL);
    if (failure != 0) lua_error(L);
    return true;
}

const luaL_Reg rle_lua_rpc_wait_functions[] = {
    {"sleep", run_sleep}, {"clock", run_clock}, {"waited", run_waited},
    {"serve", run_serve}, {NULL, NULL},
};
