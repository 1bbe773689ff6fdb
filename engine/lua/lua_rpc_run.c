/* lua_rpc_run.c - coroutines of handlers and of spawned functions.
 *
 * A handler's coroutine comes from a pool and goes back to it when its function returned;
 * after an error it is thrown away. Its engine context is set anew for each call: modes at
 * their defaults, the call's deadline, and a random stream of its own that depends only on
 * the caller's name and the number of its call, so results do not depend on the order in
 * which calls of several workers arrive. */
#include "lua/lua_rpc_batch.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/mem.h"
#include "device/device.h"
#include "tensor/tensor.h"

enum { POOL_MAX = 1024, CALL_DRAWS_LOG2 = 28 };

/* ---- life of handlers ---- */

/* Protected: (light userdata rle_lua_handler) */
int rle_lua_rpc_new_coroutine(lua_State *L)
{
    rle_lua_handler *h = lua_touserdata(L, 1);
    h->co = lua_newthread(L);
    h->co_ref = luaL_ref(L, LUA_REGISTRYINDEX);
    return 0;
}

static rle_lua_handler *new_handler(lua_State *L)
{
    rle_lua_handler *h = rle_calloc(1, sizeof *h);
    if (!h) return NULL;
    h->spawn_ref = LUA_NOREF;
    rle_lua_push_hook(L, RLE_HOOK_COROUTINE);
    lua_pushlightuserdata(L, h);
    if (lua_pcall(L, 1, 0, 0) == 0) return h;
    lua_pop(L, 1);
    rle_free(h);
    return NULL;
}

rle_lua_handler *rle_lua_handler_take(lua_State *L)
{
    rle_lua_rpc *s = &rle_lua_rpc_state;
    rle_lua_handler *h = s->pool;
    if (h) {
        s->pool = h->next;
        s->pooled--;
    } else {
        h = new_handler(L);
        if (!h) return NULL;
    }
    h->next = NULL;
    h->all_next = s->all;
    h->all_at = &s->all;
    if (s->all) s->all->all_at = &h->all_next;
    s->all = h;
    return h;
}

static void drop_future(rle_lua_handler *h)
{
    if (!h->future) return;
    rle_future_release(rle_lua_rpc_state.rpc, h->future);
    h->future = NULL;
}

/* Its function is over. `dead`: by an error, so the coroutine is of no more use. */
static void handler_done(lua_State *L, rle_lua_handler *h, bool dead)
{
    rle_lua_rpc *s = &rle_lua_rpc_state;
    drop_future(h);
    if (h->spawned) {
        rle_future_release(s->rpc, h->spawned);
        h->spawned = NULL;
    }
    if (h->spawn_ref != LUA_NOREF) {
        luaL_unref(L, LUA_REGISTRYINDEX, h->spawn_ref);
        h->spawn_ref = LUA_NOREF;
    }
    *h->all_at = h->all_next;
    if (h->all_next) h->all_next->all_at = h->all_at;
    struct rle_lua_flush *flush = h->flush;
    h->flush = NULL;
    h->in = NULL;
    h->cancelled = h->parked = h->nested = h->begun = false;
    h->deadline = 0;
    h->refused = 0;
    if (dead || s->pooled >= POOL_MAX) {
        luaL_unref(L, LUA_REGISTRYINDEX, h->co_ref);
        rle_free(h);
    } else {
        lua_settop(h->co, 0);
        h->next = s->pool;
        s->pool = h;
        s->pooled++;
    }
    if (flush) rle_lua_flush_done(L, flush);
}

/* The worker goes while this call is being served. */
static void abandon_call(rle_lua_handler *h)
{
    if (!h->in && !h->flush) return;
    char text[2 * RLE_NAME_MAX + 64];
    const char *name = rle_rpc_name(rle_lua_rpc_state.rpc);
    const char *method = h->in ? h->info.head.method : h->flush->batch->method;
    snprintf(text, sizeof text, "\"%s\" stopped while it ran \"%s\" (outcome: unknown)",
             name, method);
    rle_wire_error e =
        rle_error_of(RLE_UNAVAILABLE, RLE_OUTCOME_UNKNOWN, text, name, method);
    if (h->flush) rle_lua_flush_fail(h->flush, &e);
    if (h->in) rle_incoming_fail(rle_lua_rpc_state.rpc, h->in, &e);
    h->in = NULL;
}

void rle_lua_rpc_drop_handlers(lua_State *L)
{
    rle_lua_rpc *s = &rle_lua_rpc_state;
    while (s->all) {
        rle_lua_handler *h = s->all;
        if (h->parked) rle_wait_end(s->rpc, &h->waiter);
        abandon_call(h);
        handler_done(L, h, true);
    }
    while (s->pool) {
        rle_lua_handler *h = s->pool;
        s->pool = h->next;
        luaL_unref(L, LUA_REGISTRYINDEX, h->co_ref);
        rle_free(h);
    }
    s->pooled = 0;
    s->runnable = NULL;
    s->runnable_end = &s->runnable;
}

static void make_runnable(rle_lua_handler *h)
{
    rle_lua_rpc *s = &rle_lua_rpc_state;
    h->next = NULL;
    *s->runnable_end = h;
    s->runnable_end = &h->next;
}

/* ---- running ---- */

uint64_t rle_lua_stream_of(const char *name)
{
    uint64_t h = 14695981039346656037u;
    for (; *name; name++) h = (h ^ (unsigned char)*name) * 1099511628211u;
    return h >> 1; /* bit 63 is for row keys */
}

void rle_lua_handler_context(lua_State *L, const char *stream, uint64_t counter)
{
    rle_lua_handler *h = rle_lua_handler_of(L);
    rle_context *c = rle_lua_enter(L);
    h->ctx = c;
    rle_context fresh;
    rle_context_init(&fresh);
    fresh.resolve = c->resolve;
    fresh.lua = c->lua;
    fresh.deadline = h->deadline;
    fresh.call = h;
    *c = fresh;
    if (!stream) return;
    c->own_rng.seed = rle_default_rng.seed;
    c->own_rng.stream = rle_lua_stream_of(stream);
    c->own_rng.counter = counter;
    c->rng = &c->own_rng;
}

/* Protected: (light userdata rle_lua_handler, error value). Answer the call with it. */
int rle_lua_rpc_answer_failure(lua_State *L)
{
    rle_lua_rpc *s = &rle_lua_rpc_state;
    rle_lua_handler *h = lua_touserdata(L, 1);
    rle_encoder data;
    rle_encoder_init(&data);
    rle_wire_error e;
    lua_settop(L, 2);
    const char *method = h->flush ? h->flush->batch->method : h->info.head.method;
    rle_lua_error_to_wire(L, h->co, method, &e, &data);
    rle_incoming *in = h->in;
    h->in = NULL;
    if (in) rle_incoming_fail(s->rpc, in, &e);
    if (h->flush) rle_lua_flush_fail(h->flush, &e);
    rle_encoder_fini(&data);
    return 0;
}

static void answer_out_of_memory(rle_lua_handler *h)
{
    static const char text[] = "out of memory";
    rle_wire_error e = {.code = RLE_RESOURCE_EXHAUSTED, .message = {text, sizeof text - 1}};
    rle_incoming *in = h->in;
    h->in = NULL;
    if (in) rle_incoming_fail(rle_lua_rpc_state.rpc, in, &e);
    if (h->flush) rle_lua_flush_fail(h->flush, &e);
}

static bool is_interrupt(lua_State *L)
{
    bool yes = false;
    if (rle_lua_is_error(L, -1)) {
        lua_getfield(L, -1, "message");
        const char *m = lua_tostring(L, -1);
        yes = m && strcmp(m, "interrupted") == 0;
        lua_pop(L, 1);
    }
    return yes;
}

/* A spawned function failed: its future holds the error. */
static void fail_spawned(lua_State *L, rle_lua_handler *h)
{
    rle_lua_rpc *s = &rle_lua_rpc_state;
    int error = lua_gettop(L);
    lua_rawgeti(L, LUA_REGISTRYINDEX, h->spawn_ref);
    if (lua_isuserdata(L, -1)) rle_getuservalue(L, -1);
    lua_pushvalue(L, error);
    lua_setfield(L, -2, "error");
    lua_settop(L, error);
    rle_future_complete_local(s->rpc, h->spawned, true);
}

static void failed(lua_State *L, rle_lua_handler *h)
{
    luaL_checkstack(L, 8, "error of a handler");
    lua_xmove(h->co, L, 1);
    /* Ctrl-C was noticed by a handler, but it is meant for the script. */
    if (is_interrupt(L)) rle_interrupted = 1;
    if (h->spawned) {
        fail_spawned(L, h);
    } else if (h->in || h->flush) {
        rle_lua_push_hook(L, RLE_HOOK_FAILURE);
        lua_pushlightuserdata(L, h);
        lua_pushvalue(L, -3);
        if (lua_pcall(L, 2, 0, 0) != 0) {
            lua_pop(L, 1);
            answer_out_of_memory(h);
        }
    }
    lua_pop(L, 1);
    handler_done(L, h, true);
    rle_lua_hold(L);
}

/* Run it until it waits or is over. */
static void resume(lua_State *L, rle_lua_handler *h)
{
    rle_lua_rpc *s = &rle_lua_rpc_state;
    rle_lua_handler *before = s->current;
    rle_context *context = rle_context_current();
    s->current = h;
    if (h->ctx) rle_context_switch(h->ctx);
    if (h->parked) {
        h->parked = false;
        if (h->in) rle_incoming_waits(s->rpc, h->in, false);
        if (h->flush) rle_lua_flush_waits(h->flush, false);
    }
    int results = 0, arguments = h->begun ? 0 : lua_gettop(h->co) - 1;
    h->begun = true;
    int status = rle_resume(h->co, L, arguments, &results);
    s->current = before;
    rle_context_switch(context);
    if (status == 0) {
        handler_done(L, h, false);
    } else if (status == LUA_YIELD) {
        lua_pop(h->co, results);
        /* A yield of the script's own means: let others go first. */
        if (!h->parked) make_runnable(h);
    } else {
        failed(L, h);
    }
}

void rle_lua_handler_run(lua_State *L, rle_lua_handler *h, rle_lua_hook entry)
{
    rle_lua_push_hook(L, entry);
    lua_xmove(L, h->co, 1);
    resume(L, h);
}

static void start_call(lua_State *L, rle_incoming *in, const rle_incoming_info *info,
                       const rle_decoder *decoder)
{
    if (rle_lua_batch_call(L, in, info, decoder)) return;
    rle_lua_handler *h = rle_lua_handler_take(L);
    if (!h) {
        rle_lua_handler none = {.in = in};
        answer_out_of_memory(&none);
        return;
    }
    h->in = in;
    h->info = *info;
    h->decoder = *decoder;
    h->deadline = info->deadline;
    h->nested = true;
    rle_incoming_set_owner(in, h);
    rle_lua_handler_run(L, h, RLE_HOOK_ENTRY);
}

static void drop_object(lua_State *L, uint64_t object)
{
    rle_lua_batch_drop_object(L, object);
    rle_lua_push_hook(L, RLE_HOOK_DROPPED);
    lua_pushnumber(L, (lua_Number)object);
    if (lua_pcall(L, 1, 0, 0) != 0) lua_pop(L, 1); /* memory; it stays alive */
}

/* Tensors for the bytes of a long message, which are read straight into them. */
static bool place_tensors(rle_rpc *rpc)
{
    rle_placement p;
    void *data[RLE_WIRE_TENSORS], *handles[RLE_WIRE_TENSORS];
    if (!rle_rpc_next_placement(rpc, &p)) return false;
    if (rle_lua_batch_place(&p, data, handles)) {
        if (!rle_rpc_place(rpc, &p, data, handles))
            for (int i = 0; i < p.count; i++) rle_tensor_release(handles[i]);
        return true;
    }
    rle_context *c = rle_context_current();
    uint8_t owner = c->owner;
    c->owner = RLE_OWNER_RPC;
    for (int i = 0; i < p.count; i++) {
        rle_tensor *t;
        const rle_wire_tensor *w = &p.tensor[i];
        bool made = rle_tensor_new(rle_device_cpu(), w->dtype, w->ndim, w->shape, &t) == RLE_OK;
        handles[i] = made ? t : NULL;
        data[i] = made ? t->a.data : NULL;
    }
    c->owner = owner;
    if (!rle_rpc_place(rpc, &p, data, handles))
        for (int i = 0; i < p.count; i++) rle_tensor_release(handles[i]);
    return true;
}

/* The next of one kind that waits; false: there is none (any more). */
static bool take_work(lua_State *L, unsigned kind)
{
    rle_lua_rpc *s = &rle_lua_rpc_state;
    switch (kind) {
    case RLE_WORK_READY: {
        rle_waiter *w = rle_rpc_next_ready(s->rpc);
        if (!w) return false;
        if (w->owner) resume(L, w->owner);
        return true;
    }
    case RLE_WORK_CANCELLED: {
        rle_lua_handler *h = rle_rpc_next_cancelled(s->rpc);
        if (!h) return false;
        h->cancelled = true;
        if (h->parked) rle_wait_cancel(s->rpc, &h->waiter);
        s->work |= RLE_WORK_READY; /* before calls that came after it */
        return true;
    }
    case RLE_WORK_CALL: {
        rle_incoming_info info;
        rle_decoder decoder;
        rle_incoming *in = rle_rpc_next_call(s->rpc, &info, &decoder);
        if (!in) return false;
        start_call(L, in, &info, &decoder);
        return true;
    }
    case RLE_WORK_MEMBER: {
        rle_member_change change;
        if (!rle_rpc_next_member(s->rpc, &change)) return false;
        rle_lua_tell_member(L, &change);
        return true;
    }
    case RLE_WORK_PLACE:
        return place_tensors(s->rpc);
    case RLE_WORK_BATCH: {
        rle_batch *b = rle_rpc_next_batch(s->rpc);
        if (!b) return false;
        rle_lua_batch_flush(L, rle_batch_owner(b), RLE_FLUSH_DELAY);
        return true;
    }
    default: {
        uint64_t object = rle_rpc_next_dropped(s->rpc);
        if (!object) return false;
        drop_object(L, object);
        return true;
    }
    }
}

enum { STEPS_PER_LOOK = 64, STEPS_PER_BATCH = 16 };

void rle_lua_rpc_step(lua_State *L)
{
    rle_lua_rpc *s = &rle_lua_rpc_state;
    luaL_checkstack(L, 8, "remote calls");
    s->from = NULL; /* a decoding that raised may have left it */
    /* Calls that keep each other going must not keep the sockets from being looked at,
     * nor those of one worker others from being served. */
    if (s->steps++ >= STEPS_PER_LOOK || rle_rpc_look_due(s->rpc)) {
        s->steps = 0;
        s->work |= rle_rpc_turn(s->rpc, false);
    }
    while (s->work) {
        unsigned kind = s->work & -s->work;
        /* Calls that keep coming must not keep a batch that is due. */
        if ((s->work & RLE_WORK_BATCH) && s->steps % STEPS_PER_BATCH == 0)
            kind = RLE_WORK_BATCH;
        if (take_work(L, kind)) return;
        s->work &= ~kind;
    }
    rle_lua_handler *h = s->runnable;
    s->steps = 0;
    if (!h && rle_lua_batch_idle(s)) return;
    s->work = rle_rpc_turn(s->rpc, !h);
    if (!h) return;
    s->runnable = h->next;
    if (!s->runnable) s->runnable_end = &s->runnable;
    resume(L, h);
}

/* ---- bound functions ---- */

static rle_lua_handler *check_handler(lua_State *L)
{
    rle_lua_handler *h = rle_lua_handler_of(L);
    if (!h) rle_lua_fail(L, RLE_INTERNAL, "not in a handler");
    return h;
}

/* args() -> construct, object, method, caller, arguments... of the call being started. */
static int run_args(lua_State *L)
{
    rle_lua_rpc *s = &rle_lua_rpc_state;
    rle_lua_handler *h = check_handler(L);
    rle_lua_handler_context(L, rle_peer_name(h->info.caller),
                            h->info.number << CALL_DRAWS_LOG2);
    const rle_call_head *head = &h->info.head;
    luaL_checkstack(L, head->args + 8, "arguments of a call");
    lua_pushboolean(L, head->construct);
    lua_pushnumber(L, (lua_Number)head->object);
    lua_pushlstring(L, head->method, head->method_len);
    lua_pushstring(L, rle_peer_name(h->info.caller));
    s->from = h->info.caller;
    s->from_session = h->info.session;
    for (int i = 0; i < head->args; i++) rle_lua_decode(L, &h->decoder);
    s->from = NULL;
    rle_lua_check(L, rle_decode_end(&h->decoder));
    rle_incoming_read(s->rpc, h->in);
    return head->args + 4;
}

/* reply(results...): the handler's function returned. True: a result has to be prepared. */
static int run_reply(lua_State *L)
{
    rle_lua_rpc *s = &rle_lua_rpc_state;
    rle_lua_handler *h = check_handler(L);
    rle_lua_enter(L);
    int n = lua_gettop(L);
    rle_encoder_reset(&s->encoder);
    rle_encode_result_head(&s->encoder, (uint16_t)n);
    if (!rle_lua_encode(L, &s->encoder, 1, n, h->info.caller, "result")) {
        lua_pushboolean(L, true);
        return 1;
    }
    rle_lua_check(L, rle_incoming_reply(s->rpc, h->in, &s->encoder));
    h->in = NULL;
    return 0;
}

/* spawn(values, function, ...) -> local future; the function runs with the next turn.
 * `values` gets the results: [1..n] and n, or `error`. */
static int run_spawn(lua_State *L)
{
    rle_context *c = rle_lua_enter(L);
    rle_lua_rpc *s = rle_lua_rpc_check(L);
    luaL_checktype(L, 1, LUA_TTABLE);
    luaL_checktype(L, 2, LUA_TFUNCTION);
    rle_lua_handler *h = rle_lua_handler_take(L);
    if (!h) rle_lua_check(L, rle_oom(sizeof *h, "coroutine"));
    rle_lua_handler *parent = s->current;
    h->deadline = parent ? parent->deadline : 0;
    h->nested = parent ? parent->nested : false;
    rle_status status = rle_future_new_local(s->rpc, "function", rle_context_site(c), &h->spawned);
    if (status != RLE_OK) {
        handler_done(L, h, true);
        rle_lua_raise(L, status);
    }
    rle_future_retain(s->rpc, h->spawned);
    rle_future *f = h->spawned;
    int n = lua_gettop(L);
    luaL_checkstack(L, n + 4, "arguments");
    lua_pushvalue(L, 1);
    h->spawn_ref = luaL_ref(L, LUA_REGISTRYINDEX);
    if (!lua_checkstack(h->co, n + 2)) {
        rle_future_release(s->rpc, f);
        handler_done(L, h, true);
        rle_lua_fail(L, RLE_RESOURCE_EXHAUSTED, "too many arguments");
    }
    rle_lua_push_hook(L, RLE_HOOK_SPAWN);
    for (int i = 1; i <= n; i++) lua_pushvalue(L, i);
    lua_xmove(L, h->co, n + 1);
    make_runnable(h);
    rle_lua_push_future(L, f, 1);
    /* The script may let go of it: an error that nobody asks for is told of all the same. */
    lua_pushvalue(L, -1);
    lua_rawseti(L, LUA_REGISTRYINDEX, h->spawn_ref);
    return 1;
}

/* begin(): first thing a spawned coroutine does. */
static int run_begin(lua_State *L)
{
    check_handler(L);
    rle_lua_handler_context(L, NULL, 0);
    return 0;
}

/* done(): a spawned function returned; its values are in its table. */
static int run_done(lua_State *L)
{
    rle_lua_handler *h = check_handler(L);
    rle_future_complete_local(rle_lua_rpc_state.rpc, h->spawned, false);
    return 0;
}

/* cancelled() -> true when nobody waits for the call being served any more. */
static int run_cancelled(lua_State *L)
{
    rle_lua_enter(L);
    rle_lua_handler *h = rle_lua_rpc_state.current;
    lua_pushboolean(L, h && h->in && rle_incoming_cancelled(rle_lua_rpc_state.rpc, h->in));
    return 1;
}

/* time_left() -> seconds until the deadline of the call being served, also in what it
 * spawned; nil: there is none */
static int run_time_left(lua_State *L)
{
    const rle_lua_handler *h = rle_lua_rpc_state.current;
    if (!h || !h->deadline) return 0;
    lua_pushnumber(L, (double)(h->deadline - rle_now()) / 1e9);
    return 1;
}

/* caller() -> name of the worker whose call is being served, seconds left, incarnation of
 * the worker; nil outside. */
static int run_caller(lua_State *L)
{
    rle_lua_enter(L);
    rle_lua_handler *h = rle_lua_rpc_state.current;
    if (!h || !h->info.caller || !h->in) {
        lua_pushnil(L);
        return 1;
    }
    lua_pushstring(L, rle_peer_name(h->info.caller));
    if (h->deadline)
        lua_pushnumber(L, (double)(h->deadline - rle_now()) / 1e9);
    else
        lua_pushnil(L);
    rle_lua_push_incarnation(L, h->info.incarnation);
    return 3;
}

/* in_handler() -> whether the scheduler runs this. */
static int run_in_handler(lua_State *L)
{
    lua_pushboolean(L, rle_lua_rpc_state.current != NULL);
    return 1;
}

const luaL_Reg rle_lua_rpc_run_functions[] = {
    {"args", run_args},
    {"reply", run_reply},
    {"spawn", run_spawn},
    {"begin", run_begin},
    {"done", run_done},
    {"cancelled", run_cancelled},
    {"caller", run_caller},
    {"time_left", run_time_left},
    {"in_handler", run_in_handler},
    {NULL, NULL},
};
