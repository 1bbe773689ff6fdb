/* lua_collector.c - Lua's collector, driven by the bytes that devices hold.
 *
 * Lua does not see the bytes behind a userdata. So every allocation is charged as debt,
 * and the debt is paid in collector steps: for each external MB a step of heap * 1.5 /
 * live MB, so that by the time as much has been allocated as is live, one and a half
 * collections have run. When a device refuses an allocation, a full collection runs
 * before the refusal becomes an error.
 *
 * A step is paid before anything is owned: a finalizer that raises raises there, as it
 * does wherever a script allocates. The full collection runs in the midst of C work, an
 * optimizer's step or a backward pass, which must not be jumped over. So it is protected,
 * and the functions that it calls lie ready, because making them may raise. What a
 * finalizer raises is told in the log, and the collection goes on behind it. Finalizers
 * that use the engine have a context of their own: modes are at their defaults, not those
 * of the work that is under way. */
#include "lua/lua_internal.h"

#include <stdio.h>

#include "base/log.h"
#include "base/world.h"
#include "device/device.h"

static const double DEBT_FLOOR_MB = 32; /* live memory counts as at least this much */

void rle_lua_pay_debt(lua_State *L)
{
    double debt = (double)rle_device_debt / 0x1p20;
    double live = (double)rle_device_live_bytes() / 0x1p20;
    rle_device_debt = 0;
    double heap_kb = lua_gc(L, LUA_GCCOUNT, 0);
    double step = heap_kb * 1.5 * debt / (live > DEBT_FLOOR_MB ? live : DEBT_FLOOR_MB);
    lua_gc(L, LUA_GCSTEP, step < 1 ? 1 : step > 1e8 ? (int)1e8 : (int)step);
}

/* ---- a full collection, in the midst of anything ---- */

enum { HOOK_TRIES = 3 };

typedef struct collection {
    bool begun;     /* what was called last came to run */
    int raised;     /* finalizers */
    char text[256]; /* of the first of them */
} collection;

static RLE_PER_PROCESS collection *under_way; /* NULL: none is */

static int collect_all(lua_State *L)
{
    under_way->begun = true;
    lua_gc(L, LUA_GCCOLLECT, 0);
    return 0;
}

/* The finalizers behind one that raised. */
static int collect_rest(lua_State *L)
{
    under_way->begun = true;
    while (!lua_gc(L, LUA_GCSTEP, 0)) {
    }
    return 0;
}

/* (error value): its text. */
static int note_text(lua_State *L)
{
    under_way->begun = true;
    if (!lua_isstring(L, 1) && !luaL_callmeta(L, 1, "__tostring"))
        lua_pushfstring(L, "(error object is a %s value)", luaL_typename(L, 1));
    const char *text = lua_tostring(L, -1);
    snprintf(under_way->text, sizeof under_way->text, "%s", text ? text : "?");
    return 0;
}

/* In the registry, under their own addresses. */
static const struct function {
    lua_CFunction f;
} all = {collect_all}, rest = {collect_rest}, text = {note_text};

/* Call what is on top, without hooks: a script's could raise, and that of Ctrl-C is for
 * the script. False: the error is on top. */
static bool call(lua_State *L, int arguments)
{
    lua_Hook hook = lua_gethook(L);
    int mask = lua_gethookmask(L), count = lua_gethookcount(L);
    if (hook) lua_sethook(L, NULL, 0, 0);
    under_way->begun = false;
    bool good = lua_pcall(L, arguments, 0, 0) == 0;
    if (hook && !lua_gethook(L)) lua_sethook(L, hook, mask, count);
    if (!under_way->begun) rle_interrupted = 1; /* Ctrl-C, just now */
    return good;
}

static void note_error(lua_State *L)
{
    if (under_way->raised++ == 0) {
        rle_rawgetp(L, LUA_REGISTRYINDEX, &text);
        lua_insert(L, -2);
        if (call(L, 1)) return;
        snprintf(under_way->text, sizeof under_way->text, "(it has no text)");
    }
    lua_pop(L, 1);
}

/* False: a finalizer raised, and there may be others behind it. */
static bool collect(lua_State *L, const struct function *f)
{
    for (int i = 0; i < HOOK_TRIES; i++) {
        rle_rawgetp(L, LUA_REGISTRYINDEX, f);
        if (call(L, 0)) return true;
        if (under_way->begun) {
            note_error(L);
            return false;
        }
        lua_pop(L, 1);
    }
    return true;
}

static void tell(const rle_device *dev, const collection *c)
{
    char more[48] = "";
    if (c->raised > 1)
        snprintf(more, sizeof more, " (and %d more finalizers raised)", c->raised - 1);
    if (c->raised)
        rle_log(RLE_LOG_WARN,
                "a finalizer raised while %s was full and garbage was collected: %s%s",
                dev->name, c->text, more);
}

/* What rle_device_on_pressure asks for. The coroutine that entered the engine last is the
 * one that runs: whoever resumes another puts its context back. */
static bool on_pressure(void *self, rle_device *dev, size_t wanted)
{
    (void)self, (void)wanted;
    rle_context aside, *context = rle_context_current();
    lua_State *L = context->lua;
    if (!L || under_way) return false;
    rle_context_init(&aside);
    aside.resolve = context->resolve;
    aside.lua = L;
    rle_context_switch(&aside);
    collection c = {0};
    under_way = &c;
    /* Twice: the first runs the finalizers of handles, and what those held may in turn be
     * garbage. */
    for (int i = 0; i < 2; i++)
        for (const struct function *f = &all; !collect(L, f);) f = &rest;
    under_way = NULL;
    rle_lua_scopes_leave(&aside);
    rle_context_switch(context);
    rle_lua_hold(L); /* a finalizer may have resumed others */
    rle_device_debt = 0;
    tell(dev, &c);
    return true;
}

void rle_lua_open_collector(lua_State *L)
{
    const struct function *const functions[] = {&all, &rest, &text};
    for (int i = 0; i < 3; i++) {
        lua_pushcfunction(L, functions[i]->f);
        rle_rawsetp(L, LUA_REGISTRYINDEX, functions[i]);
    }
    rle_device_on_pressure(on_pressure, NULL);
}
