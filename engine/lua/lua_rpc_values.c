/* lua_rpc_values.c - Lua values to bytes and back, straight between stack and message.
 *
 * Tables are read raw: metamethods do not run, and a table with a metatable is refused,
 * because what it means would be lost (references and error objects are known). */
#include "lua/lua_rpc.h"

#include <stdio.h>

#include "base/mem.h"
#include "device/device.h"
#include "tensor/tensor.h"

enum { TYPE_CDATA = 10 }; /* LuaJIT's */

typedef struct writer {
    lua_State *L;
    rle_encoder *e;
    rle_peer *to;
    const char *what; /* "argument" or "result" */
    int number;
    bool spent;       /* tickets were used; the references stand in RLE_HOOK_SPENT */
    bool unprepared;  /* a reference has to be waited for, or needs a ticket */
    char key[64]; /* of the innermost table field being written */
} writer;

/* ---- writing ---- */

static void write_value(writer *w, int idx);

static void refuse(writer *w, const char *why)
{
    char text[256];
    snprintf(text, sizeof text, "%s", why);
    if (w->key[0])
        rle_lua_fail(w->L, RLE_INVALID_ARGUMENT, "%s %d, field %s: %s", w->what, w->number,
                     w->key, text);
    rle_lua_fail(w->L, RLE_INVALID_ARGUMENT, "%s %d: %s", w->what, w->number, text);
}

static void check(writer *w, rle_status s)
{
    if (s == RLE_OK) return;
    if (s != RLE_INVALID_ARGUMENT) rle_lua_raise(w->L, s);
    refuse(w, rle_message());
}

static void write_tensor(writer *w, rle_tensor *t)
{
    rle_array a = t->a;
    void *own = NULL;
    bool in_place = rle_tensor_is_contiguous(t) &&
                    rle_tensor_device(t) == rle_device_cpu();
    if (!in_place) {
        size_t size = (size_t)rle_tensor_numel(t) * rle_dtype_size(a.dtype);
        own = rle_malloc(size);
        if (!own) check(w, rle_oom(size, "tensor to send"));
        rle_status s = rle_tensor_to_host(t, own, size);
        if (s != RLE_OK) {
            rle_free(own);
            check(w, s);
        }
        a.data = own;
    }
    rle_array_set_contiguous(&a);
    rle_status s = rle_encode_tensor(w->e, &a, own);
    if (s != RLE_OK) {
        rle_free(own);
        check(w, s);
    }
}

/* A reference is a table whose first element is its target. */
static void write_ref(writer *w, int idx)
{
    lua_State *L = w->L;
    rle_lua_rpc *s = &rle_lua_rpc_state;
    lua_rawgeti(L, idx, 1);
    rle_lua_target *t = rle_lua_to_target(L, -1);
    if (!t || t->generation != s->generation) refuse(w, "a reference from before rpc.shutdown");
    if (t->released) refuse(w, "this reference was released");
    if (rle_lua_target_pending(s, t)) {
        w->unprepared = true;
        lua_pop(L, 1);
        return;
    }
    if (!t->object && t->claim) {
        w->unprepared = true; /* it may be there with the next attempt */
        lua_pop(L, 1);
        return;
    }
    if (!t->object) refuse(w, "this object could not be made; its wait() says why");
    if (rle_lua_target_gone(s, t)) rle_lua_raise_gone(L, t);
    rle_wire_ref ref = {.object = t->object};
    memcpy(ref.class_name, t->class_name, sizeof ref.class_name);
    if (t->own) {
        ref.kind = RLE_REF_SENDERS;
    } else if (t->peer == w->to) {
        ref.kind = RLE_REF_RECEIVERS;
        s->home_session = t->session;
    } else {
        /* rpc.lua asks the owner for a ticket and puts it into the reference. */
        lua_rawgeti(L, idx, 2);
        size_t n = 0;
        const char *ticket = lua_type(L, -1) == LUA_TSTRING ? lua_tolstring(L, -1, &n) : NULL;
        if (!ticket || n != RLE_TICKET_SIZE) {
            w->unprepared = true;
            lua_pop(L, 2);
            return;
        }
        w->spent = true;
        rle_lua_push_hook(L, RLE_HOOK_SPENT);
        lua_pushvalue(L, idx);
        lua_rawseti(L, -2, (int)lua_rawlen(L, -2) + 1);
        lua_pop(L, 1);
        ref.kind = RLE_REF_THIRD;
        memcpy(ref.ticket, ticket, RLE_TICKET_SIZE);
        snprintf(ref.owner, sizeof ref.owner, "%s", rle_peer_name(t->peer));
        ref.incarnation = rle_peer_incarnation(s->rpc, t->peer);
        ref.addresses = rle_peer_addresses(s->rpc, t->peer, ref.address);
        lua_pop(L, 1);
    }
    rle_encode_ref(w->e, &ref);
    lua_pop(L, 1);
}

static void note_key(writer *w, int idx)
{
    if (lua_type(w->L, idx) == LUA_TSTRING)
        snprintf(w->key, sizeof w->key, "\"%.40s\"", lua_tostring(w->L, idx));
    else if (lua_type(w->L, idx) == LUA_TNUMBER)
        snprintf(w->key, sizeof w->key, "%.14g", lua_tonumber(w->L, idx));
}

static bool list_key(lua_State *L, int idx, uint32_t list)
{
    if (lua_type(L, idx) != LUA_TNUMBER) return false;
    double k = lua_tonumber(L, idx);
    return k >= 1 && k <= list && k == (double)(uint32_t)k;
}

static void write_table(writer *w, int idx)
{
    lua_State *L = w->L;
    if (lua_getmetatable(L, idx)) {
        rle_lua_push_hook(L, RLE_HOOK_REF_META);
        bool is_ref = lua_rawequal(L, -1, -2);
        lua_pop(L, 2);
        if (is_ref) {
            write_ref(w, idx);
            return;
        }
        if (!rle_lua_is_error(L, idx))
            refuse(w, "a table with a metatable cannot be sent; send a plain one, or "
                      "rpc.rref(object)");
        check(w, rle_encode_error_mark(w->e));
    }
    luaL_checkstack(L, 6, "values of a message");
    size_t length = lua_rawlen(L, idx), pairs = 0, listed = 0;
    uint32_t list = length > RLE_WIRE_VALUES ? RLE_WIRE_VALUES + 1 : (uint32_t)length;
    for (lua_pushnil(L); lua_next(L, idx); lua_pop(L, 1)) {
        if (list_key(L, -2, list))
            listed++;
        else
            pairs++;
        if (listed + pairs > RLE_WIRE_VALUES) {
            lua_pop(L, 2);
            refuse(w, "a table of more than 65536 values; send numbers as a tensor");
        }
    }
    check(w, rle_encode_table(w->e, list, (uint32_t)pairs));
    for (uint32_t i = 1; i <= list; i++) {
        lua_rawgeti(L, idx, (int)i);
        write_value(w, lua_gettop(L));
        lua_pop(L, 1);
    }
    if (pairs) {
        for (lua_pushnil(L); lua_next(L, idx); lua_pop(L, 1)) {
            if (list_key(L, -2, list)) continue;
            int type = lua_type(L, -2);
            if (type != LUA_TSTRING && type != LUA_TNUMBER && type != LUA_TBOOLEAN)
                refuse(w, "a key of a table must be a string, number or boolean");
            int top = lua_gettop(L);
            write_value(w, top - 1);
            char outer[sizeof w->key];
            memcpy(outer, w->key, sizeof outer);
            note_key(w, top - 1);
            write_value(w, top);
            memcpy(w->key, outer, sizeof outer);
        }
    }
    rle_encode_leave(w->e);
}

static void write_number(writer *w, int idx)
{
#if LUA_VERSION_NUM >= 503
    if (!lua_isinteger(w->L, idx)) {
        rle_encode_f64(w->e, lua_tonumber(w->L, idx));
        return;
    }
    lua_Integer v = lua_tointeger(w->L, idx);
    if (v >= -9007199254740992 && v <= 9007199254740992)
        rle_encode_integer(w->e, v);
    else
        rle_encode_i64(w->e, v);
#else
    rle_encode_number(w->e, lua_tonumber(w->L, idx));
#endif
}

/* int64_t and uint64_t of LuaJIT's FFI. */
static void write_cdata(writer *w, int idx)
{
    lua_State *L = w->L;
    rle_lua_push_hook(L, RLE_HOOK_INT64_KIND);
    lua_pushvalue(L, idx);
    /* A finalizer may run now; it must not use the encoder. It may raise, too. */
    rle_lua_rpc_state.encoding = true;
    int failure = lua_pcall(L, 1, 1, 0);
    rle_lua_rpc_state.encoding = false;
    if (failure != 0) lua_error(L);
    int kind = (int)lua_tonumber(L, -1);
    lua_pop(L, 1);
    if (!kind) refuse(w, "cdata other than int64_t and uint64_t cannot be sent");
    uint64_t v;
    memcpy(&v, lua_topointer(L, idx), sizeof v);
    if (kind == 1)
        rle_encode_i64(w->e, (int64_t)v);
    else
        rle_encode_u64(w->e, v);
}

static void write_value(writer *w, int idx)
{
    lua_State *L = w->L;
    switch (lua_type(L, idx)) {
    case LUA_TNIL:
        rle_encode_nil(w->e);
        return;
    case LUA_TBOOLEAN:
        rle_encode_bool(w->e, lua_toboolean(L, idx));
        return;
    case LUA_TNUMBER:
        write_number(w, idx);
        return;
    case LUA_TSTRING: {
        size_t n;
        const char *s = lua_tolstring(L, idx, &n);
        check(w, rle_encode_string(w->e, s, n));
        return;
    }
    case LUA_TTABLE:
        write_table(w, idx);
        return;
    case LUA_TUSERDATA: {
        rle_tensor *t = rle_lua_to_tensor(L, idx);
        if (t) {
            write_tensor(w, t);
            return;
        }
        break;
    }
    case TYPE_CDATA:
        write_cdata(w, idx);
        return;
    default:
        break;
    }
    if (rle_lua_is_device(L, idx))
        refuse(w, "a device cannot be sent; send its name, and rl.device(name) there");
    char why[64];
    snprintf(why, sizeof why, "a %s cannot be sent", luaL_typename(L, idx));
    refuse(w, why);
}

/* A ticket is good for one message. */
static void drop_tickets(lua_State *L)
{
    rle_lua_push_hook(L, RLE_HOOK_SPENT);
    int spent = lua_gettop(L);
    for (int i = (int)lua_rawlen(L, spent); i > 0; i--) {
        lua_rawgeti(L, spent, i);
        lua_pushboolean(L, false);
        lua_rawseti(L, -2, 2);
        lua_pop(L, 1);
        lua_pushnil(L);
        lua_rawseti(L, spent, i);
    }
    lua_pop(L, 1);
}

bool rle_lua_encode(lua_State *L, rle_encoder *e, int first, int top, rle_peer *to,
                    const char *what)
{
    writer w = {.L = L, .e = e, .to = to, .what = what};
    rle_lua_rpc_state.home_session = 0;
    luaL_checkstack(L, 8, "values of a message");
    for (int i = first; i <= top; i++) {
        w.number = i - first + 1;
        write_value(&w, i);
    }
    if (w.spent && !w.unprepared) drop_tickets(L);
    rle_lua_check(L, rle_encoder_status(e));
    return !w.unprepared;
}

/* ---- reading ---- */

static void push_integer(lua_State *L, int64_t v)
{
#if LUA_VERSION_NUM >= 503
    lua_pushinteger(L, (lua_Integer)v);
#else
    lua_pushnumber(L, (lua_Number)v);
#endif
}

static void push_wide(lua_State *L, uint64_t v, bool is_unsigned)
{
#if LUA_VERSION_NUM >= 503
    (void)is_unsigned;
    lua_pushinteger(L, (lua_Integer)v);
#else
    rle_lua_push_hook(L, RLE_HOOK_INT64);
    lua_pushnumber(L, (lua_Number)(uint32_t)(v >> 32));
    lua_pushnumber(L, (lua_Number)(uint32_t)v);
    lua_pushboolean(L, is_unsigned);
    lua_call(L, 3, 1);
#endif
}

static void push_tensor(lua_State *L, rle_decoder *d, const rle_wire_tensor *t)
{
    rle_tensor **slot = rle_lua_new_tensor(L);
    *slot = rle_take_handle(d, t);
    if (*slot) {
        rle_lua_to_default(L, -1, 1);
        return;
    }
    rle_device *dev = rle_lua_default_device(L);
    rle_context *c = rle_context_current();
    uint8_t owner = c->owner;
    c->owner = RLE_OWNER_RPC;
    rle_status s = rle_tensor_from_host(dev, t->dtype, t->ndim, t->shape, t->data, slot);
    c->owner = owner;
    rle_lua_check(L, s);
}

static void push_ref(lua_State *L, const rle_wire_ref *ref)
{
    rle_lua_push_hook(L, RLE_HOOK_MAKE_REF);
    lua_pushinteger(L, (lua_Integer)ref->kind);
    lua_pushnumber(L, (lua_Number)ref->object);
    lua_pushstring(L, ref->class_name);
    if (ref->kind != RLE_REF_THIRD) {
        lua_call(L, 3, 1);
        return;
    }
    lua_pushstring(L, ref->owner);
    lua_pushlstring(L, (const char *)ref->ticket, RLE_TICKET_SIZE);
    lua_createtable(L, ref->addresses, 0);
    for (int i = 0; i < ref->addresses; i++) {
        lua_pushstring(L, ref->address[i]);
        lua_rawseti(L, -2, i + 1);
    }
    lua_pushlstring(L, (const char *)&ref->incarnation, sizeof ref->incarnation);
    lua_call(L, 7, 1);
}

static void read_table(lua_State *L, rle_decoder *d, const rle_value *v)
{
    uint32_t list = v->u.table.list, pairs = v->u.table.pairs;
    luaL_checkstack(L, 6, "values of a message");
    lua_createtable(L, (int)list, (int)pairs);
    for (uint32_t i = 1; i <= list; i++) {
        rle_lua_decode(L, d);
        lua_rawseti(L, -2, (int)i);
    }
    for (; pairs; pairs--) {
        rle_value key;
        rle_lua_check(L, rle_decode_key(d, &key));
        switch (key.kind) {
        case RLE_VALUE_STRING:
            lua_pushlstring(L, key.u.string.data, key.u.string.len);
            break;
        case RLE_VALUE_BOOL:
            lua_pushboolean(L, key.u.boolean);
            break;
        case RLE_VALUE_NUMBER:
            lua_pushnumber(L, key.u.number);
            break;
        default:
            push_integer(L, key.u.integer);
            break;
        }
        rle_lua_decode(L, d);
        lua_rawset(L, -3);
    }
    rle_decode_leave(d);
}

void rle_lua_decode(lua_State *L, rle_decoder *d)
{
    rle_value v;
    rle_lua_check(L, rle_decode(d, &v));
    switch (v.kind) {
    case RLE_VALUE_NIL:
        lua_pushnil(L);
        break;
    case RLE_VALUE_BOOL:
        lua_pushboolean(L, v.u.boolean);
        break;
    case RLE_VALUE_NUMBER:
        lua_pushnumber(L, v.u.number);
        break;
    case RLE_VALUE_INTEGER:
        push_integer(L, v.u.integer);
        break;
    case RLE_VALUE_I64:
        push_wide(L, (uint64_t)v.u.integer, false);
        break;
    case RLE_VALUE_U64:
        push_wide(L, v.u.u64, true);
        break;
    case RLE_VALUE_STRING:
        lua_pushlstring(L, v.u.string.data, v.u.string.len);
        break;
    case RLE_VALUE_TABLE:
        read_table(L, d, &v);
        break;
    case RLE_VALUE_TENSOR:
        push_tensor(L, d, &v.u.tensor);
        break;
    case RLE_VALUE_REF:
        push_ref(L, &v.u.ref);
        break;
    case RLE_VALUE_ERROR:
        rle_lua_check(L, rle_decode(d, &v));
        if (v.kind != RLE_VALUE_TABLE)
            rle_lua_fail(L, RLE_INVALID_ARGUMENT, "malformed values: no error object");
        read_table(L, d, &v);
        rle_lua_set_error_meta(L);
        break;
    }
}
