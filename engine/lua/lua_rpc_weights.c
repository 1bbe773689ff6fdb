/* lua_rpc_weights.c - weights of a net, published a version at a time, and followed.
 *
 * A version is a message of three values: its number, a list of names and of what each is
 * ("f32[128,4]"), in turns, and one tensor of bytes that holds them all in that order, each at a
 * multiple of 64. So their number is not bounded by that of tensors in a message. They are copied
 * once on either side, between device and message; lua/rlengine/rpc/weights.lua has the rest. */
#include "lua/lua_rpc.h"

#include <stdio.h>

#include "base/mem.h"
#include "device/device.h"
#include "tensor/tensor.h"

#define PUBLICATION_MAGIC 0x726c652e5075626cu
#define FOLLOWER_MAGIC 0x726c652e466f6c6cu

enum { WHAT_MAX = 256 };

typedef struct handle {
    uint64_t magic;
    uint32_t generation;
    void *p; /* rle_publication or rle_follower; NULL: closed */
} handle;

static const char follower_meta_key;

static handle *new_handle(lua_State *L, uint64_t magic)
{
    handle *h = lua_newuserdata(L, sizeof *h);
    *h = (handle){.magic = magic, .generation = rle_lua_rpc_state.generation};
    return h;
}

static void *check_handle(lua_State *L, uint64_t magic)
{
    rle_lua_rpc_check(L);
    handle *h = lua_type(L, 1) == LUA_TUSERDATA && lua_rawlen(L, 1) == sizeof *h
                    ? lua_touserdata(L, 1) : NULL;
    if (!h || h->magic != magic) rle_lua_fail(L, RLE_INTERNAL, "argument 1: expected weights");
    if (h->generation != rle_lua_rpc_state.generation)
        rle_lua_fail(L, RLE_FAILED_PRECONDITION, "these weights are from before rpc.shutdown");
    if (!h->p) rle_lua_fail(L, RLE_FAILED_PRECONDITION, "these weights were closed");
    return h->p;
}

/* ---- tensors in a message ---- */

static size_t bytes_of(const rle_tensor *t)
{
    return (size_t)rle_tensor_numel(t) * rle_dtype_size(t->a.dtype);
}

static rle_tensor *tensor_at(lua_State *L, int list, size_t i)
{
    lua_rawgeti(L, list, (int)i + 1);
    rle_tensor *t = rle_lua_to_tensor(L, -1);
    lua_pop(L, 1);
    if (!t) rle_lua_fail(L, RLE_INVALID_ARGUMENT, "weights hold something that is no tensor");
    return t;
}

/* Borrowed: the list keeps it. */
static const char *name_at(lua_State *L, int list, size_t i, size_t *len)
{
    lua_rawgeti(L, list, (int)i + 1);
    const char *name = lua_tolstring(L, -1, len);
    lua_pop(L, 1);
    if (!name) rle_lua_fail(L, RLE_INTERNAL, "weights without a name");
    return name;
}

/* ---- publishing ---- */

/* weights_open(name, from, version) -> publication; `version`: one less than the next. */
static int weights_open(lua_State *L)
{
    rle_lua_enter(L);
    rle_lua_rpc *s = rle_lua_rpc_check(L);
    const char *name = luaL_checkstring(L, 1), *from = luaL_checkstring(L, 2);
    uint64_t version = (uint64_t)rle_lua_check_integer(L, 3);
    handle *h = new_handle(L, PUBLICATION_MAGIC);
    rle_publication *p;
    rle_lua_check(L, rle_publication_new(s->rpc, name, from, version, &p));
    h->p = p;
    return 1;
}

/* weights_close(publication) */
static int weights_close(lua_State *L)
{
    rle_publication *p = check_handle(L, PUBLICATION_MAGIC);
    rle_publication_close(p);
    ((handle *)lua_touserdata(L, 1))->p = NULL;
    return 0;
}

/* weights_look(publication) -> version, sent, bytes, waiting, bodies */
static int weights_look(lua_State *L)
{
    rle_publication_info info;
    rle_publication_look(check_handle(L, PUBLICATION_MAGIC), &info);
    lua_pushnumber(L, (lua_Number)info.version);
    lua_pushnumber(L, (lua_Number)info.sent);
    lua_pushnumber(L, (lua_Number)info.bytes);
    lua_pushnumber(L, (lua_Number)info.waiting);
    lua_pushnumber(L, (lua_Number)info.bodies);
    return 5;
}

/* The values of a version; its tensor's bytes follow. */
static rle_status encode_version(lua_State *L, rle_encoder *e, uint64_t version, size_t count,
                                 size_t total)
{
    uint8_t none;
    rle_array all = {.data = &none, .dtype = RLE_U8, .ndim = 1, .shape = {(int64_t)total}};
    rle_array_set_contiguous(&all);
    rle_encoder_reset(e);
    rle_encode_result_head(e, 3);
    rle_encode_integer(e, (int64_t)version);
    RLE_TRY(rle_encode_table(e, (uint32_t)(2 * count), 0));
    for (size_t i = 0; i < count; i++) {
        char what[WHAT_MAX];
        size_t len;
        const char *name = name_at(L, 2, i, &len);
        RLE_TRY(rle_encode_string(e, name, len));
        rle_array_describe(&tensor_at(L, 3, i)->a, what, sizeof what);
        RLE_TRY(rle_encode_string(e, what, strlen(what)));
    }
    rle_encode_leave(e);
    RLE_TRY(rle_encode_tensor(e, &all, NULL));
    return rle_encoder_status(e);
}

/* Bytes of the list of tensors at 3, with the padding between them. */
static size_t bytes_of_all(lua_State *L, size_t count)
{
    size_t total = 0;
    for (size_t i = 0; i < count; i++) total += rle_align64(bytes_of(tensor_at(L, 3, i)));
    return total;
}

/* weights_publish(publication, names, tensors) -> version */
static int weights_publish(lua_State *L)
{
    rle_lua_enter(L);
    rle_publication *p = check_handle(L, PUBLICATION_MAGIC);
    rle_lua_rpc *s = &rle_lua_rpc_state;
    if (s->encoding) rle_lua_fail(L, RLE_FAILED_PRECONDITION, "publish inside a finalizer");
    size_t count = lua_rawlen(L, 3), total = bytes_of_all(L, count);
    bool plain = true; /* nothing can go wrong with copying them */
    for (size_t i = 0; i < count; i++) {
        const rle_tensor *t = tensor_at(L, 3, i);
        plain = plain && rle_tensor_is_contiguous(t) &&
                rle_tensor_device(t)->type == RLE_DEVICE_CPU;
    }
    if (!total) rle_lua_fail(L, RLE_INVALID_ARGUMENT, "there is nothing in these weights");
    rle_publication_info info;
    rle_publication_look(p, &info);
    uint8_t *to;
    rle_lua_check(L, encode_version(L, &s->encoder, info.version + 1, count, total));
    rle_lua_check(L, rle_publication_stage(p, &s->encoder, plain, &to));
    for (size_t i = 0; i < count; i++) {
        rle_tensor *t = tensor_at(L, 3, i);
        size_t size = bytes_of(t);
        if (size) rle_lua_check(L, rle_tensor_to_host(t, to, size));
        memset(to + size, 0, rle_align64(size) - size);
        to += rle_align64(size);
    }
    lua_pushnumber(L, (lua_Number)rle_publication_commit(p));
    return 1;
}

/* ---- following ---- */

static int follower_gc(lua_State *L)
{
    handle *h = lua_touserdata(L, 1);
    rle_lua_rpc *s = &rle_lua_rpc_state;
    if (h->p && h->generation == s->generation && s->rpc && !s->forked)
        rle_follower_discard(h->p);
    h->p = NULL;
    h->magic = 0;
    return 0;
}

/* follow_open(worker, name) -> follower */
static int follow_open(lua_State *L)
{
    rle_lua_enter(L);
    rle_lua_rpc *s = rle_lua_rpc_check(L);
    size_t len;
    const char *worker = luaL_checklstring(L, 1, &len), *name = luaL_checkstring(L, 2);
    if (!rle_name_ok(worker, len))
        rle_lua_fail(L, RLE_INVALID_ARGUMENT, "\"%.80s\" is no worker's name", worker);
    rle_peer *peer = rle_rpc_peer(s->rpc, worker);
    if (!peer) rle_lua_check(L, rle_oom(len, "worker"));
    handle *h = new_handle(L, FOLLOWER_MAGIC);
    rle_rawgetp(L, LUA_REGISTRYINDEX, &follower_meta_key);
    lua_setmetatable(L, -2);
    rle_follower *fo;
    rle_lua_check(L, rle_follower_new(s->rpc, peer, name, &fo));
    h->p = fo;
    return 1;
}

/* follow_close(follower) */
static int follow_close(lua_State *L)
{
    rle_follower_discard(check_handle(L, FOLLOWER_MAGIC));
    ((handle *)lua_touserdata(L, 1))->p = NULL;
    return 0;
}

/* follow_look(follower) -> how many versions have arrived, or 0 when there is none to take;
 * whether an error has; whether its worker is connected */
static int follow_look(lua_State *L)
{
    bool failed, connected;
    uint64_t serial = rle_follower_look(check_handle(L, FOLLOWER_MAGIC), &failed, &connected);
    lua_pushnumber(L, (lua_Number)serial);
    lua_pushboolean(L, failed);
    lua_pushboolean(L, connected);
    return 3;
}

/* follow_error(follower): raises what the publisher answered instead of a version. */
static int follow_error(lua_State *L)
{
    rle_lua_enter(L);
    rle_follower *fo = check_handle(L, FOLLOWER_MAGIC);
    rle_msg m;
    if (!rle_follower_error(fo, &m)) return 0;
    /* Anchored, so that it goes when pushing the error raises. */
    void *copy = lua_newuserdata(L, m.size);
    memcpy(copy, m.data, m.size);
    rle_free(m.block);
    m.data = copy;
    m.block = NULL;
    rle_lua_push_remote_error(L, &m, 1);
    return lua_error(L);
}

/* follow_done(follower): what was taken may be overwritten. */
static int follow_done(lua_State *L)
{
    rle_follower_done(check_handle(L, FOLLOWER_MAGIC));
    return 0;
}

static bool same(const rle_value *v, const char *text, size_t len)
{
    return v->u.string.len == len && memcmp(v->u.string.data, text, len) == 0;
}

static rle_status malformed(void)
{
    return rle_fail(RLE_INVALID_ARGUMENT, "malformed weights");
}

/* What they sent is not what stands here at place i: in words. */
static rle_status refuse(lua_State *L, size_t i, size_t count, const rle_value *name,
                         const rle_value *what)
{
    size_t len;
    int n = (int)name->u.string.len, w = (int)what->u.string.len;
    for (size_t k = 0; k < count; k++) {
        const char *own = name_at(L, 2, k, &len);
        if (!same(name, own, len)) continue;
        char here[WHAT_MAX];
        rle_array_describe(&tensor_at(L, 3, k)->a, here, sizeof here);
        if (!same(what, here, strlen(here)))
            return rle_fail(RLE_INVALID_ARGUMENT, "\"%.*s\" is %.*s there and %s here", n,
                            name->u.string.data, w, what->u.string.data, here);
        return rle_fail(RLE_INVALID_ARGUMENT, "they have no \"%s\", which is in the net here",
                        name_at(L, 2, i, &len));
    }
    return rle_fail(RLE_INVALID_ARGUMENT,
                    "they have \"%.*s\" of %.*s, which is not in the net here", n,
                    name->u.string.data, w, what->u.string.data);
}

/* Names, types and shapes as they are here? Then `d` stands at the tensor. */
static rle_status check_version(lua_State *L, rle_decoder *d, size_t count)
{
    uint16_t values;
    rle_value v, name, what;
    RLE_TRY(rle_decode_result_head(d, &values));
    if (values != 3) return malformed();
    RLE_TRY(rle_decode(d, &v)); /* its number */
    RLE_TRY(rle_decode(d, &v));
    if (v.kind != RLE_VALUE_TABLE || v.u.table.pairs || v.u.table.list % 2) return malformed();
    size_t theirs = v.u.table.list / 2;
    for (size_t i = 0; i < theirs; i++) {
        RLE_TRY(rle_decode(d, &name));
        RLE_TRY(rle_decode(d, &what));
        if (name.kind != RLE_VALUE_STRING || what.kind != RLE_VALUE_STRING) return malformed();
        char here[WHAT_MAX] = "";
        size_t len = 0;
        const char *own = i < count ? name_at(L, 2, i, &len) : "";
        if (i < count) rle_array_describe(&tensor_at(L, 3, i)->a, here, sizeof here);
        if (i >= count || !same(&name, own, len) || !same(&what, here, strlen(here)))
            return refuse(L, i, count, &name, &what);
    }
    size_t len;
    if (theirs < count)
        return rle_fail(RLE_INVALID_ARGUMENT, "they have no \"%s\", which is in the net here",
                        name_at(L, 2, theirs, &len));
    rle_decode_leave(d);
    return RLE_OK;
}

/* follow_take(follower, names, tensors, what) -> version: the newest one's elements into the
 * tensors; all of them, or none when it does not fit. `what` begins the message that says so. */
static int follow_take(lua_State *L)
{
    rle_lua_enter(L);
    rle_follower *fo = check_handle(L, FOLLOWER_MAGIC);
    size_t count = lua_rawlen(L, 3), total = bytes_of_all(L, count);
    rle_msg m;
    rle_decoder d;
    rle_value v;
    uint64_t version = rle_follower_take(fo, &m);
    if (!version) return 0;
    rle_msg_decoder(&m, &d);
    rle_status status = check_version(L, &d, count);
    if (status == RLE_OK) status = rle_decode(&d, &v);
    if (status == RLE_OK)
        status = v.kind == RLE_VALUE_TENSOR && v.u.tensor.dtype == RLE_U8 &&
                         v.u.tensor.size == total
                     ? rle_decode_end(&d) : malformed();
    if (status != RLE_OK) {
        char message[512];
        snprintf(message, sizeof message, "%s", rle_message());
        rle_lua_fail(L, status, "%s: %s", luaL_checkstring(L, 4), message);
    }
    const uint8_t *from = v.u.tensor.data;
    for (size_t i = 0; i < count; i++) {
        rle_tensor *t = tensor_at(L, 3, i);
        size_t size = bytes_of(t);
        if (size) rle_lua_check(L, rle_tensor_write_host(t, t->a.dtype, from));
        from += rle_align64(size);
    }
    lua_pushnumber(L, (lua_Number)version);
    return 1;
}

const luaL_Reg rle_lua_rpc_weights_functions[] = {
    {"weights_open", weights_open},
    {"weights_close", weights_close},
    {"weights_look", weights_look},
    {"weights_publish", weights_publish},
    {"follow_open", follow_open},
    {"follow_close", follow_close},
    {"follow_look", follow_look},
    {"follow_error", follow_error},
    {"follow_done", follow_done},
    {"follow_take", follow_take},
    {NULL, NULL},
};

void rle_lua_rpc_open_weights(lua_State *L)
{
    lua_newtable(L);
    lua_pushcfunction(L, follower_gc);
    lua_setfield(L, -2, "__gc");
    lua_pushliteral(L, "rlengine.Follower");
    lua_setfield(L, -2, "__name");
    rle_rawsetp(L, LUA_REGISTRYINDEX, &follower_meta_key);
}
