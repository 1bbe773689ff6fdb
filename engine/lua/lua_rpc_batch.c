/* lua_rpc_batch.c - which calls are batched, and whose rows of a buffer their arguments
 * become. */
#include "lua/lua_rpc_batch.h"

#include <stdio.h>

#include "base/mem.h"
#include "device/device.h"
#include "device/stream.h"

/* All of them, and what is known of their names. */
static rle_lua_batches *all(void)
{
    return &rle_lua_rpc_state.batched;
}

static uint64_t key_of(uint64_t object, uint64_t name)
{
    return (name ^ object * UINT64_C(0x9e3779b97f4a7c15)) | 1;
}

static rle_lua_batch *find(uint64_t object, const char *method, uint64_t name)
{
    rle_map_slot *slot = rle_map_get(&all()->by_key, key_of(object, name));
    for (rle_lua_batch *b = slot ? slot->v.pointer : NULL; b; b = b->next_same)
        if (b->object == object && !b->retired && strcmp(b->method, method) == 0)
            return b;
    return NULL;
}

/* ---- batches ---- */

static void unlink_batch(rle_lua_batch *b)
{
    rle_lua_batch **at = &all()->first;
    while (*at != b) at = &(*at)->next;
    *at = b->next;
    rle_map_slot *slot = rle_map_get(&all()->by_key, b->key);
    at = (rle_lua_batch **)&slot->v.pointer;
    while (*at != b) at = &(*at)->next_same;
    *at = b->next_same;
    if (!slot->v.pointer) rle_map_delete(&all()->by_key, b->key);
    if (b->when_idle) all()->eager--;
}

static void batch_free(lua_State *L, rle_lua_batch *b)
{
    unlink_batch(b);
    rle_batch_free(rle_lua_rpc_state.rpc, b->core);
    if (b->filling) rle_batch_buffer_free(b->filling);
    while (b->spare) {
        rle_batch_buffer *buffer = b->spare;
        b->spare = buffer->next;
        rle_batch_buffer_free(buffer);
    }
    luaL_unref(L, LUA_REGISTRYINDEX, b->spec_ref);
    rle_free(b->kept.list);
    rle_free(b);
}

void rle_lua_batch_settle(lua_State *L, rle_lua_batch *b)
{
    if (b->retired && !b->flights && !rle_batch_waiting(rle_lua_rpc_state.rpc, b->core))
        batch_free(L, b);
}

void rle_lua_batch_drop_object(lua_State *L, uint64_t object)
{
    for (rle_lua_batch *b = all()->first, *next; b; b = next) {
        next = b->next;
        if (b->object != object) continue;
        b->retired = true;
        rle_lua_batch_settle(L, b);
    }
}

void rle_lua_batch_drop_all(lua_State *L)
{
    while (all()->first) batch_free(L, all()->first);
    rle_map_fini(&all()->by_key);
}

bool rle_lua_batch_idle(rle_lua_rpc *s)
{
    rle_rpc *rpc = s->rpc;
    if (!s->batched.eager || !rle_rpc_batches_eager(rpc)) return false;
    s->work = rle_rpc_turn(rpc, false);
    if (s->work) return true;
    for (const rle_lua_batch *b = all()->first; b; b = b->next) {
        bool done = true;
        const rle_device *device = b->device;
        if (b->when_idle && device->streams &&
            (device->streams->stream_query(b->device, NULL, &done) != RLE_OK || !done))
            return false;
    }
    if (!rle_rpc_batches_idle(rpc)) return false;
    s->work = RLE_WORK_BATCH;
    return true;
}

/* ---- what Lua says of a batched function ---- */

/* Table on top: {name =, dtype =, shape = {...}}, without dtype for any value. */
static void read_input(lua_State *L, rle_batch_input *in)
{
    lua_getfield(L, -1, "name");
    snprintf(in->name, sizeof in->name, "%s", luaL_checkstring(L, -1));
    lua_pop(L, 1);
    lua_getfield(L, -1, "dtype");
    in->any = lua_isnil(L, -1);
    if (!in->any) {
        rle_lua_check(L, rle_dtype_parse(luaL_checkstring(L, -1), &in->row.dtype));
        lua_getfield(L, -2, "shape");
        in->row.ndim = (int)lua_rawlen(L, -1);
        for (int i = 0; i < in->row.ndim; i++) {
            lua_rawgeti(L, -1, i + 1);
            in->row.shape[i] = (int64_t)luaL_checknumber(L, -1);
            lua_pop(L, 1);
        }
        lua_pop(L, 1);
        rle_array_set_contiguous(&in->row);
        in->row_bytes = (size_t)rle_array_numel(&in->row) * rle_dtype_size(in->row.dtype);
        rle_array_describe(&in->row, in->wants, sizeof in->wants);
    }
    lua_pop(L, 1);
}

/* Protected: (light userdata rle_lua_batch, spec table) fills the batch in. */
static int read_spec(lua_State *L)
{
    rle_lua_batch *b = lua_touserdata(L, 1);
    lua_getfield(L, 2, "inputs");
    b->inputs = (int)lua_rawlen(L, -1);
    for (int i = 0; i < b->inputs; i++) {
        lua_rawgeti(L, -1, i + 1);
        read_input(L, &b->input[i]);
        lua_pop(L, 1);
    }
    snprintf(b->who, sizeof b->who, "%s", rle_lua_opt_string(L, 2, "name", b->method));
    b->when_idle = rle_lua_opt_boolean(L, 2, "when_idle", false);
    b->size = b->capacity = (size_t)rle_lua_opt_integer(L, 2, "size", 64);
    lua_getfield(L, 2, "device");
    b->device =
        lua_isnil(L, -1) ? rle_lua_default_device(L) : rle_lua_check_device(L, -1);
    rle_batch_options o = {.size = b->size,
                           .delay = (int64_t)(rle_lua_opt_number(L, 2, "delay", 0) * 1e9),
                           .when_idle = b->when_idle,
                           .owner = b};
    rle_lua_check(L, rle_batch_new(rle_lua_rpc_state.rpc, &o, &b->core));
    return 0;
}

/* The spec, and above it read_spec, are on top of L and are taken from it. NULL: it
 * failed; the error is lost. */
static rle_lua_batch *batch_new(lua_State *L, uint64_t object, const char *method,
                                uint64_t name)
{
    rle_lua_batch *b = rle_calloc(1, sizeof *b);
    rle_map_slot *slot = b ? rle_map_put(&all()->by_key, key_of(object, name)) : NULL;
    if (!slot) {
        rle_free(b);
        lua_pop(L, 2);
        return NULL;
    }
    b->key = slot->key;
    b->object = object;
    snprintf(b->method, sizeof b->method, "%s", method);
    b->next = all()->first;
    all()->first = b;
    b->next_same = slot->v.pointer;
    slot->v.pointer = b;
    lua_pushlightuserdata(L, b);
    lua_pushvalue(L, -3);
    if (lua_pcall(L, 2, 0, 0) != 0) {
        lua_pop(L, 2);
        b->when_idle = false;
        unlink_batch(b);
        rle_free(b);
        return NULL;
    }
    if (b->when_idle) all()->eager++;
    b->spec_ref = luaL_ref(L, LUA_REGISTRYINDEX);
    return b;
}

typedef struct search {
    const rle_incoming_info *info;
    uint64_t name;
    rle_lua_batch *found;
} search;

/* Protected: (light userdata search) */
static int run_search(lua_State *L)
{
    search *s = lua_touserdata(L, 1);
    const rle_call_head *head = &s->info->head;
    rle_lua_push_hook(L, RLE_HOOK_BATCH_FIND);
    lua_pushnumber(L, (lua_Number)head->object);
    lua_pushstring(L, head->method);
    lua_pushstring(L, rle_peer_name(s->info->caller));
    lua_call(L, 3, 1);
    if (!lua_istable(L, -1)) return 0;
    s->found = find(head->object, head->method, s->name);
    if (s->found) return 0;
    lua_pushcfunction(L, read_spec);
    s->found = batch_new(L, head->object, head->method, s->name);
    return 0;
}

/* Is it a batched function that this worker may call? Lua knows; asked once for each. */
static rle_lua_batch *resolve(lua_State *L, const rle_incoming_info *info, uint64_t name)
{
    search s = {.info = info, .name = name};
    if (rle_cpcall(L, run_search, &s) != 0) {
        lua_pop(L, 1); /* a handler will find the same and say so */
        return NULL;
    }
    if (s.found &&
        rle_batch_admit(rle_lua_rpc_state.rpc, s.found->core, info->caller) != RLE_OK)
        return NULL;
    return s.found;
}

/* ---- rows ---- */

/* Is there room for so many rows in the buffer that is being filled? */
static bool has_room(const rle_lua_batch *b, size_t rows)
{
    rle_batch_buffer *buffer = b->filling;
    if (!buffer) return false;
    if (buffer->end && !rle_batch_waiting(rle_lua_rpc_state.rpc, b->core) &&
        !rle_batch_buffer_held(b, buffer)) {
        buffer->end = 0; /* all who were there have left */
        rle_writer_reset(&buffer->values, 64 << 10);
    }
    return buffer->end + rows <= buffer->capacity;
}

/* Nobody waits in the buffer that is being filled: another one. */
static rle_status new_room(rle_lua_batch *b, size_t rows)
{
    rle_batch_buffer *old = b->filling;
    b->filling = NULL;
    /* It is too small, or messages are still being received into it. */
    if (old) rle_batch_buffer_free(old);
    b->filling = rle_batch_buffer_new(b, rows > b->size ? rows : b->size);
    return b->filling ? RLE_OK : RLE_RESOURCE_EXHAUSTED;
}

/* Where the tensors of this call were received in rows that were kept for it: the first
 * of them; else SIZE_MAX. */
static size_t placed_at(const rle_lua_batch *b, const rle_decoder *d,
                        const rle_batch_arguments *a)
{
    size_t at = SIZE_MAX;
    if (!d->placed || !b->filling) return SIZE_MAX;
    for (int i = 0; i < b->inputs; i++) {
        const rle_batch_input *input = &b->input[i];
        if (input->any) continue;
        const rle_value *v = &a->value[i];
        if (v->kind != RLE_VALUE_TENSOR || v->u.tensor.number >= d->placed->count)
            return SIZE_MAX;
        const rle_tensor *t = d->placed->tensor[v->u.tensor.number].handle;
        const rle_tensor *host = b->filling->host[i];
        if (!t || t->storage != host->storage) return SIZE_MAX;
        size_t row =
            (size_t)((char *)t->a.data - (char *)host->a.data) / input->row_bytes;
        if (at != SIZE_MAX && row != at) return SIZE_MAX;
        at = row;
    }
    return at;
}

static void copy_rows(const rle_lua_batch *b, rle_decoder *d,
                      const rle_batch_arguments *a, size_t first)
{
    for (int i = 0; i < b->inputs; i++) {
        const rle_batch_input *input = &b->input[i];
        if (input->any) continue;
        uint8_t *to = (uint8_t *)b->filling->host[i]->a.data + first * input->row_bytes;
        const rle_value *v = &a->value[i];
        if (v->kind == RLE_VALUE_TENSOR) {
            if (v->u.tensor.size && v->u.tensor.data != to)
                memcpy(to, v->u.tensor.data, v->u.tensor.size);
            rle_tensor_release(rle_take_handle(d, &v->u.tensor));
        } else {
            rle_batch_store_number(v, input->row.dtype, to);
        }
    }
}

static rle_status collect(lua_State *L, rle_lua_batch *b, rle_incoming *in,
                          const rle_incoming_info *info, rle_decoder *d)
{
    rle_rpc *rpc = rle_lua_rpc_state.rpc;
    rle_batch_arguments a;
    RLE_TRY(rle_batch_read(b, info, d, &a));
    size_t first = placed_at(b, d, &a);
    while (first == SIZE_MAX && !has_room(b, a.rows)) {
        if (!rle_batch_waiting(rpc, b->core)) {
            RLE_TRY(new_room(b, a.rows));
            break;
        }
        rle_lua_batch_flush(L, b, RLE_FLUSH_FULL);
        /* The function ran, and may have turned the loop: the message may have moved, and
         * others may wait in the rows that are filled now. */
        rle_incoming_decoder(rpc, in, d);
        RLE_TRY(rle_batch_read(b, info, d, &a));
    }
    if (first == SIZE_MAX) first = b->filling->end;
    rle_batch_buffer *buffer = b->filling;
    size_t values = buffer->values.len;
    for (int i = 0; i < b->inputs; i++)
        if (b->input[i].any) rle_write_bytes(&buffer->values, a.any[i].p, a.any[i].n);
    if (buffer->values.failed) {
        buffer->values.len = values;
        buffer->values.failed = false;
        return rle_oom(buffer->values.cap, "arguments of a batch");
    }
    copy_rows(b, d, &a, first);
    rle_incoming_read(rpc, in);
    rle_batch_call call = {
        .first = first, .rows = a.rows, .extra = values, .single = a.single};
    if (buffer->end < first + a.rows) buffer->end = first + a.rows;
    return rle_batch_add(rpc, b->core, in, &call);
}

static void refuse(rle_incoming *in, const rle_call_head *head, rle_status code)
{
    char text[1024];
    snprintf(text, sizeof text, "%s", rle_message());
    rle_wire_error e = rle_error_of(code, RLE_OUTCOME_NOT_EXECUTED, text,
                                    rle_rpc_name(rle_lua_rpc_state.rpc), head->method);
    rle_incoming_fail(rle_lua_rpc_state.rpc, in, &e);
}

bool rle_lua_batch_call(lua_State *L, rle_incoming *in, const rle_incoming_info *info,
                        const rle_decoder *decoder)
{
    const rle_call_head *head = &info->head;
    if (!all()->names.used || head->construct) return false;
    uint64_t name = rle_hash_name(head->method);
    if (!rle_map_get(&all()->names, name)) return false;
    rle_lua_batch *b = find(head->object, head->method, name);
    if (!b || !rle_batch_knows(rle_lua_rpc_state.rpc, b->core, info->caller))
        b = resolve(L, info, name);
    if (!b) return false;
    rle_decoder d = *decoder;
    b->flights++; /* should a flush make place for it, the batch stays */
    rle_status s = collect(L, b, in, info, &d);
    b->flights--;
    if (s != RLE_OK) refuse(in, head, s);
    rle_lua_batch_settle(L, b);
    return true;
}

bool rle_lua_batch_place(const rle_placement *p, void **data, void **handles)
{
    if (!all()->names.used || !p->is_call || p->head.construct) return false;
    rle_lua_batch *b =
        find(p->head.object, p->head.method, rle_hash_name(p->head.method));
    if (!b || !rle_batch_knows(rle_lua_rpc_state.rpc, b->core, p->caller)) return false;
    size_t rows = 0;
    int n = 0;
    for (int i = 0; i < b->inputs; i++) {
        if (b->input[i].any) continue;
        if (n == p->count) return false;
        rle_value v = {.kind = RLE_VALUE_TENSOR, .u.tensor = p->tensor[n]};
        size_t its;
        bool single;
        if (rle_batch_count_rows(b, &b->input[i], p->caller, &v, &its, &single) != RLE_OK)
            return false;
        if (n++ && its != rows) return false;
        rows = its;
    }
    if (n != p->count || !n) return false;
    if (!has_room(b, rows)) {
        if (b->filling && b->filling->end) return false; /* it is flushed before long */
        if (new_room(b, rows) != RLE_OK) return false;
    }
    n = 0;
    for (int i = 0; i < b->inputs; i++) {
        if (b->input[i].any) continue;
        rle_tensor *host = b->filling->host[i], *view;
        rle_array a = host->a;
        a.data = (uint8_t *)a.data + b->filling->end * b->input[i].row_bytes;
        a.shape[0] = (int64_t)rows;
        if (rle_tensor_view(host, &a, &view) != RLE_OK) {
            while (n) rle_tensor_release(handles[--n]);
            return false;
        }
        data[n] = a.data;
        handles[n++] = view;
    }
    b->filling->end += rows;
    return true;
}

void rle_lua_batch_counters(lua_State *L, const rle_rpc_counters *c)
{
    static const char *const names_of[RLE_FLUSH_REASONS] = {"flushed_full", "flushed_delay",
                                                            "flushed_all", "flushed_idle"};
    const struct {
        const char *name;
        uint64_t count;
    } sums[] = {{"batches", c->batches},
                {"batched_calls", c->batch_calls},
                {"batched_rows", c->batch_rows}};
    for (int i = 0; i < 3; i++) {
        rle_push_count(L, (int64_t)sums[i].count);
        lua_setfield(L, -2, sums[i].name);
    }
    for (int i = 0; i < RLE_FLUSH_REASONS; i++) {
        rle_push_count(L, (int64_t)c->batch_reasons[i]);
        lua_setfield(L, -2, names_of[i]);
    }
}

/* ---- bound functions ---- */

/* batched(name): functions or methods of that name may be batched ones. Those that were
 * called before are looked up anew. */
static int batch_declare(lua_State *L)
{
    const char *name = luaL_checkstring(L, 1);
    rle_map_slot *slot = rle_map_put(&all()->names, rle_hash_name(name));
    if (!slot) rle_lua_check(L, rle_oom(sizeof *slot, "batched function"));
    slot->v.count = 1;
    for (rle_lua_batch *b = all()->first, *next; b; b = next) {
        next = b->next;
        if (strcmp(b->method, name) != 0) continue;
        b->retired = true;
        rle_lua_batch_settle(L, b);
    }
    return 0;
}

const luaL_Reg rle_lua_rpc_batch_functions[] = {
    {"batch_declare", batch_declare},
    {NULL, NULL},
};
