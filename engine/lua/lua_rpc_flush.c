/* lua_rpc_flush.c - a batch through its Lua function, and the results back to the
 * callers.
 *
 * The coroutine runs (rlengine/rpc/batch.lua)
 *   return batch_reply(call(batch_args()))
 * Arguments are views of the buffer's rows; when the flush is over their handles are
 * closed, because the rows are written over. */
#include "lua/lua_rpc_batch.h"

#include <stdio.h>

#include "base/mem.h"
#include "device/device.h"
#include "lua/lua_tensor.h"

enum { FLUSH_DRAWS_LOG2 = 28 };

/* ---- rows without gaps ---- */

static void sort_by_row(rle_batch_calls *calls)
{
    for (size_t i = 1; i < calls->count; i++) {
        rle_batch_call c = calls->list[i];
        size_t at = i;
        for (; at > 0 && calls->list[at - 1].first > c.first; at--)
            calls->list[at] = calls->list[at - 1];
        calls->list[at] = c;
    }
}

static void move_rows(const rle_lua_batch *b, const rle_batch_buffer *to,
                      const rle_batch_buffer *from, rle_batch_calls *calls)
{
    size_t row = 0;
    for (size_t k = 0; k < calls->count; k++) {
        rle_batch_call *c = &calls->list[k];
        for (int i = 0; i < b->inputs; i++) {
            size_t bytes = b->input[i].row_bytes;
            if (b->input[i].any) continue;
            memmove((uint8_t *)to->host[i]->a.data + row * bytes,
                    (uint8_t *)from->host[i]->a.data + c->first * bytes, c->rows * bytes);
        }
        c->first = row;
        row += c->rows;
    }
}

/* The calls' rows lie one behind the other from the first row of f->buffer on. Where they
 * do not, and somebody holds rows between them, they go into another buffer. */
static rle_status close_gaps(rle_lua_flush *f)
{
    rle_lua_batch *b = f->batch;
    size_t row = 0;
    bool whole = true;
    sort_by_row(&f->calls);
    for (size_t k = 0; k < f->calls.count; k++) {
        whole = whole && f->calls.list[k].first == row;
        row += f->calls.list[k].rows;
    }
    if (whole) return RLE_OK;
    if (!rle_batch_buffer_held(b, f->buffer)) {
        move_rows(b, f->buffer, f->buffer, &f->calls);
        return RLE_OK;
    }
    rle_batch_buffer *other = rle_batch_buffer_new(b, row);
    if (!other) return RLE_RESOURCE_EXHAUSTED;
    move_rows(b, other, f->buffer, &f->calls);
    rle_writer values = other->values;
    other->values = f->buffer->values;
    f->buffer->values = values;
    rle_batch_buffer_done(b, f->buffer);
    f->buffer = other;
    return RLE_OK;
}

/* ---- life of a flush ---- */

void rle_lua_flush_fail(rle_lua_flush *f, const rle_wire_error *e)
{
    for (size_t k = 0; k < f->calls.count; k++) {
        rle_incoming *in = f->calls.list[k].in;
        f->calls.list[k].in = NULL;
        if (in) rle_incoming_fail(rle_lua_rpc_state.rpc, in, e);
    }
}

static void fail_with_message(rle_lua_flush *f, rle_status code)
{
    char text[1024];
    snprintf(text, sizeof text, "%s", rle_message());
    rle_wire_error e =
        rle_error_of(code, RLE_OUTCOME_NOT_EXECUTED, text,
                     rle_rpc_name(rle_lua_rpc_state.rpc), f->batch->method);
    rle_lua_flush_fail(f, &e);
}

/* What the script may have kept, the inputs' handles and the table that tells of the batch, leads
 * to nothing from now on. */
static void close_inputs(lua_State *L, rle_lua_flush *f)
{
    if (f->info_ref == LUA_NOREF) return;
    lua_rawgeti(L, LUA_REGISTRYINDEX, f->info_ref);
    for (int i = 1; i <= f->batch->inputs; i++) {
        lua_rawgeti(L, -1, i);
        rle_lua_handle *h = rle_lua_to_handle(L, -1);
        lua_pop(L, 1);
        if (!h || !h->t) continue;
        if (h->scope) rle_lua_scope_remove(h);
        rle_tensor *t = h->t;
        h->t = NULL;
        h->by_scope = false;
        h->by_batch = true;
        rle_tensor_release(t);
    }
    lua_pushnil(L);
    lua_setmetatable(L, -2);
    lua_pop(L, 1);
    luaL_unref(L, LUA_REGISTRYINDEX, f->info_ref);
}

void rle_lua_flush_done(lua_State *L, rle_lua_flush *f)
{
    rle_lua_batch *b = f->batch;
    close_inputs(L, f);
    if (f->buffer) rle_batch_buffer_done(b, f->buffer);
    if (f->calls.capacity > b->kept.capacity) {
        rle_free(b->kept.list);
        b->kept = f->calls;
    } else {
        rle_free(f->calls.list);
    }
    rle_free(f);
    b->flights--;
    rle_lua_batch_settle(L, b);
}

void rle_lua_flush_waits(const rle_lua_flush *f, bool waits)
{
    for (size_t k = 0; k < f->calls.count; k++)
        if (f->calls.list[k].in)
            rle_incoming_waits(rle_lua_rpc_state.rpc, f->calls.list[k].in, waits);
}

/* Calls that fn makes have as long as the most patient of its callers. */
static int64_t latest_deadline(const rle_batch_calls *calls)
{
    int64_t latest = 0;
    for (size_t k = 0; k < calls->count; k++) {
        if (!calls->list[k].deadline) return 0;
        if (calls->list[k].deadline > latest) latest = calls->list[k].deadline;
    }
    return latest;
}

void rle_lua_batch_flush(lua_State *L, rle_lua_batch *b, rle_flush_reason reason)
{
    rle_lua_rpc *s = &rle_lua_rpc_state;
    rle_lua_flush *f = rle_calloc(1, sizeof *f), none = {.batch = b};
    rle_lua_flush *use = f ? f : &none;
    use->batch = b;
    use->info_ref = LUA_NOREF;
    use->calls = b->kept;
    b->kept = (rle_batch_calls){0};
    rle_batch_take(s->rpc, b->core, reason, &use->calls);
    rle_lua_handler *h = f && f->calls.count ? rle_lua_handler_take(L) : NULL;
    b->flights++;
    if (use->calls.count) {
        use->buffer = b->filling;
        b->filling = NULL;
    }
    if (h) {
        h->flush = f;
        h->nested = true;
        h->deadline = latest_deadline(&f->calls);
        rle_lua_handler_run(L, h, RLE_HOOK_BATCH_ENTRY);
        return;
    }
    if (use->calls.count) {
        rle_oom(sizeof *f + sizeof *h, "flush of a batch");
        fail_with_message(use, RLE_RESOURCE_EXHAUSTED);
    }
    if (f) {
        rle_lua_flush_done(L, f);
        return;
    }
    if (none.buffer) rle_batch_buffer_done(b, none.buffer);
    rle_free(none.calls.list);
    b->flights--;
    rle_lua_batch_settle(L, b);
}

/* ---- arguments ---- */

/* Of the coroutine that runs, or of the one that resumed it. */
static rle_lua_flush *check_flush(lua_State *L)
{
    rle_lua_handler *h = rle_lua_rpc_state.current;
    if (!h || !h->flush) rle_lua_fail(L, RLE_INTERNAL, "not in a batch");
    return h->flush;
}

/* The rows of an input, where the function runs. */
static void push_rows(lua_State *L, const rle_lua_flush *f, int i)
{
    rle_tensor **slot = rle_lua_new_tensor(L);
    rle_lua_check(L, rle_batch_buffer_rows(f->batch, f->buffer, i, f->calls.rows, slot));
}

/* Lists of the `any` inputs, one value for each call; pushed in the inputs' order, with
 * nil for the others, from stack index `first` on. */
static void read_values(lua_State *L, const rle_lua_flush *f, int first)
{
    const rle_lua_batch *b = f->batch;
    const rle_writer *w = &f->buffer->values;
    for (size_t k = 0; k < f->calls.count; k++) {
        rle_decoder d;
        size_t at = f->calls.list[k].extra;
        if (at >= w->len) continue;
        rle_decoder_init(&d, w->data + at, w->len - at, w->len - at, 0);
        for (int i = 0; i < b->inputs; i++) {
            if (!b->input[i].any) continue;
            rle_lua_decode(L, &d);
            lua_rawseti(L, first + i, (int)k + 1);
        }
    }
}

/* batch_args() -> spec, object, inputs..., info */
static int batch_args(lua_State *L)
{
    rle_lua_flush *f = check_flush(L);
    const rle_lua_batch *b = f->batch;
    rle_lua_handler_context(L, b->method, ++rle_lua_rpc_state.batched.flushes << FLUSH_DRAWS_LOG2);
    lua_settop(L, 0);
    luaL_checkstack(L, b->inputs + 12, "arguments of a batch");
    rle_lua_check(L, close_gaps(f));
    lua_rawgeti(L, LUA_REGISTRYINDEX, b->spec_ref);
    lua_pushnumber(L, (lua_Number)b->object);
    int first = lua_gettop(L) + 1;
    lua_createtable(L, b->inputs, 4);
    int info = first;
    lua_pushvalue(L, info);
    f->info_ref = luaL_ref(L, LUA_REGISTRYINDEX);
    rle_push_count(L, (int64_t)f->calls.rows);
    lua_setfield(L, info, "rows");
    rle_push_count(L, (int64_t)f->calls.count);
    lua_setfield(L, info, "calls");
    for (int i = 0; i < b->inputs; i++) {
        if (b->input[i].any) {
            lua_createtable(L, (int)f->calls.count, 0);
        } else {
            push_rows(L, f, i);
            lua_pushvalue(L, -1);
            lua_rawseti(L, info, i + 1);
        }
    }
    read_values(L, f, info + 1);
    lua_pushvalue(L, info);
    lua_remove(L, info);
    return lua_gettop(L);
}

/* ---- what is told of the callers, when asked ---- */

/* batch_callers() -> names of the callers, numbers of their rows: lists, an entry a call */
static int batch_callers(lua_State *L)
{
    rle_lua_enter(L);
    rle_lua_flush *f = check_flush(L);
    lua_createtable(L, (int)f->calls.count, 0);
    lua_createtable(L, (int)f->calls.count, 0);
    for (size_t k = 0; k < f->calls.count; k++) {
        lua_pushstring(L, rle_peer_name(f->calls.list[k].caller));
        lua_rawseti(L, -3, (int)k + 1);
        rle_push_count(L, (int64_t)f->calls.list[k].rows);
        lua_rawseti(L, -2, (int)k + 1);
    }
    return 2;
}

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* batch_keys() -> i64[rows]: a row key for each row, made of the caller's name, the
 * number of its call and the row's place in that, so they are the same in whatever
 * company it comes. */
static int batch_keys(lua_State *L)
{
    rle_lua_enter(L);
    rle_lua_flush *f = check_flush(L);
    rle_lua_batch *b = f->batch;
    int64_t rows = (int64_t)f->calls.rows;
    int64_t *keys = lua_newuserdata(L, f->calls.rows * sizeof *keys), *at = keys;
    for (size_t k = 0; k < f->calls.count; k++) {
        const rle_batch_call *c = &f->calls.list[k];
        uint64_t base = mix(rle_lua_stream_of(rle_peer_name(c->caller)) ^ mix(c->number));
        for (size_t r = 0; r < c->rows; r++)
            *at++ = (int64_t)(mix(base + (r + 1) * UINT64_C(0x9e3779b97f4a7c15)) >> 2);
    }
    rle_tensor **slot = rle_lua_new_tensor(L);
    rle_lua_check(L, rle_tensor_from_host(b->device, RLE_I64, 1, &rows, keys, slot));
    return 1;
}

/* ---- results ---- */

typedef struct result {
    rle_tensor *tensor; /* borrowed from the stack; NULL: a list, or nil */
    bool list;
    const uint8_t *data; /* of the tensor, in host memory */
    rle_array row;
    size_t row_bytes;
} result;

static void wrong(lua_State *L, const rle_lua_flush *f, const char *why)
{
    rle_lua_fail(L, RLE_UNKNOWN, "\"%s\" on \"%s\" failed: %s", f->batch->method,
                 rle_rpc_name(rle_lua_rpc_state.rpc), why);
}

/* What the function returned at this place; *host: bytes of host memory it needs. */
static void classify(lua_State *L, const rle_lua_flush *f, int idx, result *r,
                     size_t *host)
{
    char why[256];
    size_t rows = f->calls.rows, calls = f->calls.count;
    *r = (result){.tensor = rle_lua_to_tensor(L, idx)};
    if (r->tensor) {
        const rle_array *a = &r->tensor->a;
        if (a->ndim < 1 || (size_t)a->shape[0] != rows) {
            char text[128];
            rle_array_describe(a, text, sizeof text);
            snprintf(why, sizeof why,
                     "result %d is %s, without a dimension for the batch's %zu "
                     "row%s",
                     idx, text, rows, rows == 1 ? "" : "s");
            if (a->ndim)
                snprintf(why, sizeof why,
                         "result %d has %lld row%s (%s), the batch has %zu", idx,
                         (long long)a->shape[0], a->shape[0] == 1 ? "" : "s", text, rows);
            wrong(L, f, why);
        }
        r->row.dtype = a->dtype;
        r->row.ndim = a->ndim - 1;
        memcpy(r->row.shape, a->shape + 1, (size_t)r->row.ndim * sizeof a->shape[0]);
        rle_array_set_contiguous(&r->row);
        r->row_bytes = (size_t)rle_array_numel(&r->row) * rle_dtype_size(a->dtype);
        if (rle_tensor_is_contiguous(r->tensor) &&
            rle_tensor_device(r->tensor) == rle_device_cpu())
            r->data = a->data;
        else
            *host += (r->row_bytes * rows + 63) & ~(size_t)63;
        return;
    }
    if (lua_isnil(L, idx)) return;
    r->list = lua_istable(L, idx) && !lua_getmetatable(L, idx);
    if (!r->list) {
        snprintf(why, sizeof why,
                 "result %d is a %s; a batched function returns tensors with a "
                 "row for each row of the batch, and lists with a value for "
                 "each call",
                 idx, luaL_typename(L, idx));
        wrong(L, f, why);
    }
    if (lua_rawlen(L, idx) != calls) {
        snprintf(why, sizeof why,
                 "result %d is a list of %zu value%s, the batch has %zu call%s", idx,
                 (size_t)lua_rawlen(L, idx), lua_rawlen(L, idx) == 1 ? "" : "s", calls,
                 calls == 1 ? "" : "s");
        wrong(L, f, why);
    }
}

static rle_status fetch(rle_lua_flush *f, result *results, int n, size_t host)
{
    rle_batch_buffer *buffer = f->buffer;
    if (!host) return RLE_OK;
    if (buffer->results_size < host) {
        uint8_t *block = rle_realloc(buffer->results, host);
        if (!block) return rle_oom(host, "results of a batch");
        buffer->results = block;
        buffer->results_size = host;
    }
    uint8_t *at = buffer->results;
    for (int i = 0; i < n; i++) {
        result *r = &results[i];
        if (!r->tensor || r->data) continue;
        size_t size = r->row_bytes * f->calls.rows;
        RLE_TRY(rle_tensor_to_host(r->tensor, at, size));
        r->data = at;
        at += (size + 63) & ~(size_t)63;
    }
    return RLE_OK;
}

/* A row without dimensions, as the number that it is. */
static void encode_scalar(rle_encoder *e, rle_dtype dtype, const uint8_t *p)
{
    union {
        float f;
        double d;
        int32_t i;
        int64_t l;
    } v;
    memcpy(&v, p, rle_dtype_size(dtype));
    switch (dtype) {
    case RLE_F32:
        rle_encode_number(e, (double)v.f);
        break;
    case RLE_F64:
        rle_encode_number(e, v.d);
        break;
    case RLE_I32:
        rle_encode_integer(e, v.i);
        break;
    case RLE_I64:
        if (v.l >= -9007199254740992 && v.l <= 9007199254740992)
            rle_encode_integer(e, v.l);
        else
            rle_encode_i64(e, v.l);
        break;
    case RLE_U8:
        rle_encode_integer(e, *p);
        break;
    default:
        rle_encode_bool(e, *p != 0);
        break;
    }
}

static rle_status encode_rows(rle_encoder *e, const result *r, const rle_batch_call *c)
{
    const uint8_t *p = r->data + c->first * r->row_bytes;
    if (c->single && r->row.ndim == 0 && r->row.dtype <= RLE_BOOL) {
        encode_scalar(e, r->row.dtype, p);
        return RLE_OK;
    }
    rle_array a = r->row;
    if (!c->single) {
        a.ndim++;
        a.shape[0] = (int64_t)c->rows;
        memcpy(a.shape + 1, r->row.shape, (size_t)r->row.ndim * sizeof a.shape[0]);
        rle_array_set_contiguous(&a);
    }
    a.data = (void *)(uintptr_t)p;
    return rle_encode_tensor(e, &a, NULL);
}

static rle_status encode_answer(lua_State *L, rle_encoder *e, const result *results,
                                int n, const rle_batch_call *c, size_t k)
{
    rle_encoder_reset(e);
    rle_encode_result_head(e, (uint16_t)n);
    for (int i = 0; i < n; i++) {
        if (results[i].tensor) {
            RLE_TRY(encode_rows(e, &results[i], c));
        } else if (results[i].list) {
            lua_rawgeti(L, i + 1, (int)k + 1);
            bool ready =
                rle_lua_encode(L, e, lua_gettop(L), lua_gettop(L), c->caller, "result");
            lua_pop(L, 1);
            if (!ready)
                return rle_fail(
                    RLE_UNIMPLEMENTED,
                    "a reference to an object of a third worker cannot be the "
                    "result of a batched function");
        } else {
            rle_encode_nil(e);
        }
    }
    return rle_encoder_status(e);
}

/* batch_reply(results...): each caller gets its rows of tensors and its entry of lists.
 */
static int batch_reply(lua_State *L)
{
    rle_lua_rpc *s = &rle_lua_rpc_state;
    rle_lua_enter(L);
    rle_lua_flush *f = check_flush(L);
    int n = lua_gettop(L);
    result results[RLE_BATCH_RESULTS];
    size_t host = 0;
    if (n > RLE_BATCH_RESULTS) wrong(L, f, "it returned more than 16 results");
    luaL_checkstack(L, 8, "results of a batch");
    for (int i = 0; i < n; i++) classify(L, f, i + 1, &results[i], &host);
    lua_settop(L, n);
    rle_lua_check(L, fetch(f, results, n, host));
    for (size_t k = 0; k < f->calls.count; k++) {
        rle_batch_call *c = &f->calls.list[k];
        rle_lua_check(L, encode_answer(L, &s->encoder, results, n, c, k));
        rle_status status = rle_incoming_reply(s->rpc, c->in, &s->encoder);
        if (status != RLE_OK) {
            /* Too large for this caller; the others get theirs. */
            char text[512];
            snprintf(text, sizeof text, "%s", rle_message());
            rle_wire_error e = rle_error_of(status, RLE_OUTCOME_NONE, text,
                                            rle_rpc_name(s->rpc), f->batch->method);
            rle_incoming_fail(s->rpc, c->in, &e);
        }
        c->in = NULL;
    }
    return 0;
}

const luaL_Reg rle_lua_rpc_flush_functions[] = {
    {"batch_args", batch_args},
    {"batch_callers", batch_callers},
    {"batch_keys", batch_keys},
    {"batch_reply", batch_reply},
    {NULL, NULL},
};
