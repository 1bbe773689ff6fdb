/* lua_scope.c - rl.scope: handles that are closed when a function is over.
 *
 * A scope is a userdata with the list of the handles made in it. The scopes that run in a
 * context are a list too, the innermost first, which the context begins. Who takes a
 * scope off that list is scope_pop, as its first deed and before anything that can raise.
 * A scope that is never popped, because a coroutine was dropped inside it or something
 * raised between fn's end and scope_pop (Ctrl-C, a full stack), is taken off by the scope
 * around it or by its finalizer, so that no list ever leads to freed memory. Contexts and
 * scopes may be collected in either order. */
#include "lua/lua_tensor.h"

typedef struct rle_lua_scope {
    rle_lua_handle *first;
    struct rle_lua_scope *outer, *inner; /* in the list of `context` */
    rle_context *context;                /* NULL: in none any more */
    rle_context *results_to;             /* while it is popped */
    uint32_t site;
} rle_lua_scope;

static const char meta_key, keep_key;

/* ---- lists ---- */

static void add_to(rle_lua_scope *s, rle_lua_handle *h)
{
    h->scope = s;
    h->prev = NULL;
    h->next = s->first;
    if (s->first) s->first->prev = h;
    s->first = h;
}

void rle_lua_scope_add(rle_lua_handle *h)
{
    add_to(rle_context_current()->scope, h);
}

void rle_lua_scope_remove(rle_lua_handle *h)
{
    if (h->prev)
        h->prev->next = h->next;
    else
        h->scope->first = h->next;
    if (h->next) h->next->prev = h->prev;
    h->scope = NULL;
    h->prev = h->next = NULL;
}

static void leave(rle_lua_scope *s)
{
    if (s->outer) s->outer->inner = s->inner;
    if (s->inner)
        s->inner->outer = s->outer;
    else if (s->context && s->context->scope == s)
        s->context->scope = s->outer;
    s->outer = s->inner = NULL;
    s->context = NULL;
}

void rle_lua_scopes_leave(rle_context *c)
{
    while (c->scope) leave(c->scope);
}

static int scope_gc(lua_State *L)
{
    rle_lua_scope *s = lua_touserdata(L, 1);
    leave(s);
    while (s->first) rle_lua_scope_remove(s->first);
    return 0;
}

/* ---- begin and end ---- */

/* scope_push() -> scope, which the caller must hold until it pops it */
static int scope_push(lua_State *L)
{
    rle_context *c = rle_lua_enter(L);
    rle_lua_scope *s = lua_newuserdata(L, sizeof *s);
    *s = (rle_lua_scope){.outer = c->scope, .context = c, .site = rle_context_site(c)};
    rle_rawgetp(L, LUA_REGISTRYINDEX, &meta_key);
    lua_setmetatable(L, -2);
    if (s->outer) s->outer->inner = s;
    c->scope = s;
    return 1;
}

/* A handle of s, which is no longer in its context, goes to the scope that was outside
 * it, where there is one. */
static void keep_handle(rle_lua_scope *s, rle_lua_handle *h)
{
    if (h->scope != s) return;
    rle_lua_scope_remove(h);
    if (s->results_to && s->results_to->scope) add_to(s->results_to->scope, h);
}

/* What a walk through tables knows: indices on the stack, and how many tables wait. */
typedef struct walk {
    rle_lua_scope *scope;
    int seen, waiting;
    int count;
} walk;

/* Keeps the value on top, or has it wait when it is a table not met before, and pops it.
 */
static void meet(lua_State *L, walk *w)
{
    rle_lua_handle *h = rle_lua_to_handle(L, -1);
    if (h) {
        keep_handle(w->scope, h);
    } else if (lua_istable(L, -1)) {
        lua_pushvalue(L, -1);
        lua_rawget(L, w->seen);
        bool known = lua_toboolean(L, -1);
        lua_pop(L, 1);
        if (!known) {
            lua_pushvalue(L, -1);
            lua_pushboolean(L, true);
            lua_rawset(L, w->seen);
            lua_rawseti(L, w->waiting, ++w->count);
            return;
        }
    }
    lua_pop(L, 1);
}

/* Protected: (scope, results...). Keeps the handles in tables, keys and values, however
 * deep. */
static int keep_tables(lua_State *L)
{
    walk w = {.scope = lua_touserdata(L, 1)};
    int top = lua_gettop(L);
    lua_newtable(L);
    lua_newtable(L);
    w.seen = top + 1;
    w.waiting = top + 2;
    for (int i = 2; i <= top; i++) {
        lua_pushvalue(L, i);
        meet(L, &w);
        while (w.count) {
            lua_rawgeti(L, w.waiting, w.count);
            lua_pushnil(L);
            lua_rawseti(L, w.waiting, w.count--);
            lua_pushnil(L);
            while (lua_next(L, -2)) {
                meet(L, &w);
                lua_pushvalue(L, -1);
                meet(L, &w);
            }
            lua_pop(L, 1);
        }
    }
    return 0;
}

/* scope_pop(scope, results...): close what was made in it, but the results. Does not look
 * for Ctrl-C: raises only when there is no memory to walk through tables, and has then
 * closed everything. */
static int scope_pop(lua_State *L)
{
    rle_lua_scope *s = lua_touserdata(L, 1);
    /* What was made in scopes that nobody popped was made in this one. */
    while (s->inner) {
        rle_lua_scope *inner = s->inner;
        leave(inner);
        while (inner->first) {
            rle_lua_handle *h = inner->first;
            rle_lua_scope_remove(h);
            add_to(s, h);
        }
    }
    s->results_to = s->context;
    leave(s);
    int top = lua_gettop(L), status = 0;
    bool tables = false;
    for (int i = 2; i <= top && s->first; i++) {
        rle_lua_handle *h = rle_lua_to_handle(L, i);
        if (h) keep_handle(s, h);
        if (!h && lua_istable(L, i)) tables = true;
    }
    if (tables && s->first) {
        lua_pushvalue(L, 1); /* stays below: nobody collects it meanwhile */
        lua_insert(L, 2);
        rle_rawgetp(L, LUA_REGISTRYINDEX, &keep_key);
        lua_insert(L, 2);
        status = lua_pcall(L, top, 0, 0);
    }
    s->results_to = NULL;
    while (s->first) {
        rle_lua_handle *h = s->first;
        rle_lua_scope_remove(h);
        rle_tensor *t = h->t;
        h->t = NULL;
        h->by_scope = true;
        h->closed_at = s->site;
        rle_tensor_release(t);
    }
    return status ? lua_error(L) : 0;
}

/* keep(values...): out of every scope; -> the values */
static int scope_keep(lua_State *L)
{
    rle_lua_enter(L);
    int top = lua_gettop(L);
    for (int i = 1; i <= top; i++) {
        rle_lua_handle *h = rle_lua_to_handle(L, i);
        if (!h) rle_lua_check_tensor(L, i);
        if (h->scope) rle_lua_scope_remove(h);
    }
    return top;
}

static const luaL_Reg functions[] = {
    {"scope_push", scope_push},
    {"scope_pop", scope_pop},
    {"keep", scope_keep},
    {NULL, NULL},
};

void rle_lua_add_scopes(lua_State *L)
{
    lua_newtable(L);
    lua_pushcfunction(L, scope_gc);
    lua_setfield(L, -2, "__gc");
    rle_rawsetp(L, LUA_REGISTRYINDEX, &meta_key);
    lua_pushcfunction(L, keep_tables);
    rle_rawsetp(L, LUA_REGISTRYINDEX, &keep_key);
    rle_lua_setfuncs(L, functions);
}
