/* lua_plan.c - chains of layers evaluated in one call: the fast path of
 * lua/rlengine/nn/container.lua.
 *
 * Where a graph is wanted the layers are recorded one by one, without handles for what lies
 * between them: it goes as soon as the graph lets go of it. Where none is, a plan (nn/mlp.h)
 * runs, which holds a copy of the weights laid out for the machine. It is kept in step with
 * the tensors that it was made from: their version counters say when to lay them out again,
 * their addresses when to make the plan anew. */
#include "lua/lua_tensor.h"

#include "base/world.h"
#include "nn/mlp.h"

enum { MAX_LAYERS = 16 };

typedef struct plan_layer {
    rle_tensor *weight, *bias; /* retained; bias may be NULL */
    const void *weight_data, *bias_data;
    uint32_t weight_version, bias_version;
    int function;
} plan_layer;

#define PLAN_MAGIC 0x726c652e706c616eu

typedef struct plan {
    uint64_t magic;
    rle_mlp *mlp; /* NULL while it is being made */
    int count;
    plan_layer layer[MAX_LAYERS];
} plan;

static const char meta_key;
static RLE_PER_PROCESS uint64_t runs; /* calls that went through a plan */

static int plan_gc(lua_State *L)
{
    plan *p = lua_touserdata(L, 1);
    rle_mlp_free(p->mlp);
    p->mlp = NULL;
    for (int i = 0; i < p->count; i++) {
        rle_tensor_release(p->layer[i].weight);
        rle_tensor_release(p->layer[i].bias);
    }
    p->count = 0;
    return 0;
}

static plan *check_plan(lua_State *L, int arg)
{
    if (lua_type(L, arg) == LUA_TUSERDATA && lua_rawlen(L, arg) == sizeof(plan)) {
        plan *p = lua_touserdata(L, arg);
        if (p->magic == PLAN_MAGIC && p->mlp) return p;
    }
    rle_lua_fail(L, RLE_INVALID_ARGUMENT, "argument %d: expected a plan", arg);
    return NULL;
}

static int function_named(const char *name)
{
    if (strcmp(name, "none") == 0) return RLE_MLP_NONE;
    if (strcmp(name, "softmax") == 0) return RLE_MLP_SOFTMAX;
    if (strcmp(name, "log_softmax") == 0) return RLE_MLP_LOG_SOFTMAX;
    for (int k = 0; k < RLE_UNARY_COUNT; k++)
        if (strcmp(name, rle_unary_name((rle_unary_kind)k)) == 0) return k;
    return RLE_UNARY_COUNT;
}

/* A weight or bias that a plan can take over: f32 as it lies, all on one device. */
static bool usable(const rle_tensor *t, int ndim, const rle_device *dev)
{
    return t->a.dtype == RLE_F32 && t->a.ndim == ndim && rle_tensor_is_contiguous(t) &&
           rle_tensor_device(t) == dev;
}

static rle_device *device_of(const plan *p)
{
    return rle_tensor_device(p->layer[0].weight);
}

static bool usable_layer(const plan *p, const plan_layer *l)
{
    const rle_device *dev = device_of(p);
    if (!usable(l->weight, 2, dev)) return false;
    return !l->bias ||
           (usable(l->bias, 1, dev) && l->bias->a.shape[0] == l->weight->a.shape[0]);
}

/* Remember what the plan was laid out from. */
static void note_state(plan *p)
{
    for (int i = 0; i < p->count; i++) {
        plan_layer *l = &p->layer[i];
        l->weight_data = l->weight->a.data;
        l->weight_version = l->weight->storage->version;
        if (!l->bias) continue;
        l->bias_data = l->bias->a.data;
        l->bias_version = l->bias->storage->version;
    }
}

static rle_status make(plan *p)
{
    rle_mlp_layer layers[MAX_LAYERS];
    for (int i = 0; i < p->count; i++) {
        const plan_layer *l = &p->layer[i];
        layers[i] = (rle_mlp_layer){
            .in = l->weight->a.shape[1],
            .out = l->weight->a.shape[0],
            .weight = l->weight->a.data,
            .bias = l->bias ? l->bias->a.data : NULL,
            .function = l->function,
        };
    }
    rle_mlp *mlp;
    RLE_TRY(rle_mlp_new(device_of(p), layers, p->count, &mlp));
    rle_mlp_free(p->mlp);
    p->mlp = mlp;
    note_state(p);
    return RLE_OK;
}

/* plan({weight, bias or false, "function", ...}) -> plan, or nil when these layers cannot be
 * one */
static int plan_new(lua_State *L)
{
    rle_lua_enter(L);
    luaL_checktype(L, 1, LUA_TTABLE);
    int n = (int)lua_rawlen(L, 1), count = n / 3;
    if (n % 3 || count < 1 || count > MAX_LAYERS) return 0;
    plan *p = lua_newuserdata(L, sizeof *p);
    p->magic = PLAN_MAGIC;
    p->mlp = NULL;
    p->count = 0;
    rle_rawgetp(L, LUA_REGISTRYINDEX, &meta_key);
    lua_setmetatable(L, -2);
    for (int i = 0; i < count; i++) {
        plan_layer *l = &p->layer[i];
        memset(l, 0, sizeof *l);
        lua_rawgeti(L, 1, 3 * i + 1);
        lua_rawgeti(L, 1, 3 * i + 2);
        lua_rawgeti(L, 1, 3 * i + 3);
        rle_tensor *weight = rle_lua_check_tensor(L, lua_gettop(L) - 2);
        rle_tensor *bias = rle_lua_to_tensor(L, lua_gettop(L) - 1);
        l->function = function_named(luaL_checkstring(L, lua_gettop(L)));
        lua_pop(L, 3); /* the list holds them */
        l->weight = rle_tensor_retain(weight);
        if (bias) l->bias = rle_tensor_retain(bias);
        p->count++;
        if (!usable_layer(p, l)) return 0;
    }
    return make(p) == RLE_OK ? 1 : 0;
}

/* False when the tensors are no longer what a plan can be made of. */
static bool refresh(plan *p)
{
    bool changed = false;
    for (int i = 0; i < p->count; i++) {
        const plan_layer *l = &p->layer[i];
        if (l->weight->a.data != l->weight_data ||
            (l->bias && l->bias->a.data != l->bias_data)) {
            for (int j = 0; j < p->count; j++)
                if (!usable_layer(p, &p->layer[j])) return false;
            return make(p) == RLE_OK;
        }
        changed = changed || l->weight->storage->version != l->weight_version ||
                  (l->bias && l->bias->storage->version != l->bias_version);
    }
    if (changed) {
        rle_mlp_pack(p->mlp);
        note_state(p);
    }
    return true;
}

static bool wants_graph(const plan *p, const rle_tensor *x)
{
    if (x->requires_grad) return true;
    for (int i = 0; i < p->count; i++)
        if (p->layer[i].weight->requires_grad ||
            (p->layer[i].bias && p->layer[i].bias->requires_grad))
            return true;
    return false;
}

/* The operation of the table that computes a unary function; RLE_OP_COUNT: none does. */
static rle_op_id op_of(int function)
{
    for (int id = 0; id < RLE_OP_COUNT; id++)
        if (rle_ops[id].family == RLE_FAMILY_UNARY && rle_ops[id].kind == function)
            return (rle_op_id)id;
    return RLE_OP_COUNT;
}

/* *t = function(*t), recorded. *t is nobody else's: functions whose gradient needs their
 * result alone work in place. */
static rle_status record_function(int function, rle_tensor **t)
{
    rle_op_args args;
    rle_op_id id;
    rle_tensor *out = NULL;
    memset(&args, 0, sizeof args);
    if (function == RLE_MLP_NONE) return RLE_OK;
    if (function < 0) {
        id = function == RLE_MLP_SOFTMAX ? RLE_OP_SOFTMAX : RLE_OP_LOG_SOFTMAX;
        args.dim = (*t)->a.ndim - 1;
    } else {
        id = op_of(function);
        if (!(rle_ops[id].saves & RLE_SAVE_IN0)) return rle_apply_inplace(id, t, 1, &args);
    }
    RLE_TRY(rle_apply(id, t, 1, &args, &out));
    rle_tensor_release(*t);
    *t = out;
    return RLE_OK;
}

static rle_status record_chain(const plan *p, rle_tensor *x, rle_tensor **out)
{
    rle_tensor *t = rle_tensor_retain(x);
    for (int i = 0; i < p->count; i++) {
        rle_tensor *in[3] = {t, p->layer[i].weight, p->layer[i].bias}, *next;
        rle_status status = rle_apply(RLE_OP_LINEAR, in, in[2] ? 3 : 2, NULL, &next);
        rle_tensor_release(t);
        RLE_TRY(status);
        t = next;
        status = record_function(p->layer[i].function, &t);
        if (status != RLE_OK) {
            rle_tensor_release(t);
            return status;
        }
    }
    *out = t;
    return RLE_OK;
}

/* x's shape without its last size; rows in *rows. */
static int batch_of(const rle_tensor *x, int64_t *shape, int64_t *rows)
{
    int last = x->a.ndim - 1;
    *rows = 1;
    for (int i = 0; i < last; i++) {
        shape[i] = x->a.shape[i];
        *rows *= shape[i];
    }
    return last;
}

static bool fits(const plan *p, const rle_tensor *x)
{
    return x && x->a.dtype == RLE_F32 && x->a.ndim >= 1 &&
           rle_tensor_device(x) == device_of(p) && rle_tensor_is_contiguous(x) &&
           x->a.shape[x->a.ndim - 1] == rle_mlp_in(p->mlp);
}

/* plan_forward(plan, x) -> the chain's result, or nil where the layers must run one by one: x
 * or the weights are of another kind, or shapes are wrong. */
static int plan_forward(lua_State *L)
{
    rle_context *c = rle_lua_enter(L);
    plan *p = check_plan(L, 1);
    rle_tensor *x = rle_lua_to_tensor(L, 2);
    if (!fits(p, x)) return 0;
    if (c->grad_enabled && wants_graph(p, x)) {
        for (int i = 0; i < p->count; i++)
            if (!usable_layer(p, &p->layer[i])) return 0;
        rle_tensor **out = rle_lua_new_tensor(L);
        rle_lua_check(L, record_chain(p, x, out));
        runs++;
        return 1;
    }
    if (!refresh(p)) return 0;
    int64_t shape[RLE_MAX_DIMS], rows;
    int last = batch_of(x, shape, &rows);
    shape[last] = rle_mlp_out(p->mlp);
    rle_tensor **out = rle_lua_new_tensor(L);
    rle_lua_check(L, rle_tensor_new(rle_tensor_device(x), RLE_F32, x->a.ndim, shape, out));
    if (rows) rle_lua_check(L, rle_mlp_forward(p->mlp, x->a.data, rows, (*out)->a.data));
    runs++;
    return 1;
}

/* plan_act(plan, x, keys or nil, draw) -> classes drawn by the chain's results, as
 * probabilities or logits, and their log-probabilities; or nothing where this must go
 * another way: as in plan_forward, where the device does not take it at once, or where a
 * row cannot be drawn from. Records nothing. */
static int plan_act(lua_State *L)
{
    rle_context *c = rle_lua_enter(L);
    plan *p = check_plan(L, 1);
    rle_tensor *x = rle_lua_to_tensor(L, 2), *keys = rle_lua_to_tensor(L, 3);
    int64_t shape[RLE_MAX_DIMS], rows;
    if (!fits(p, x) || !refresh(p)) return 0;
    int ndim = batch_of(x, shape, &rows);
    if (!rows || !rle_mlp_draws(p->mlp, rows)) return 0;
    if (keys &&
        (keys->a.dtype != RLE_I64 || rle_tensor_numel(keys) != rows ||
         !rle_tensor_is_contiguous(keys) || rle_tensor_device(keys) != device_of(p)))
        return 0;
    rle_tensor **action = rle_lua_new_tensor(L), **log_prob = rle_lua_new_tensor(L);
    rle_lua_check(L, rle_tensor_new(device_of(p), RLE_I64, ndim, shape, action));
    rle_lua_check(L, rle_tensor_new(device_of(p), RLE_F32, ndim, shape, log_prob));
    rle_dense_draw draw = {.action = (*action)->a.data,
                           .log_prob = (*log_prob)->a.data,
                           .keys = keys ? keys->a.data : NULL,
                           .draw = (uint32_t)luaL_checknumber(L, 4),
                           .rng = *c->rng};
    rle_status status = rle_mlp_draw(p->mlp, x->a.data, rows, &draw);
    if (status == RLE_INVALID_ARGUMENT) return 0;
    rle_lua_check(L, status);
    if (!keys) (void)rle_random_words((uint64_t)rows);
    runs++;
    return 2;
}

/* plan_runs() -> how often a plan was evaluated in this process */
static int plan_runs(lua_State *L)
{
    lua_pushnumber(L, (lua_Number)runs);
    return 1;
}

void rle_lua_add_plans(lua_State *L)
{
    lua_newtable(L);
    lua_pushcfunction(L, plan_gc);
    lua_setfield(L, -2, "__gc");
    rle_rawsetp(L, LUA_REGISTRYINDEX, &meta_key);
    lua_pushcfunction(L, plan_new);
    lua_setfield(L, -2, "plan");
    lua_pushcfunction(L, plan_forward);
    lua_setfield(L, -2, "plan_forward");
    lua_pushcfunction(L, plan_act);
    lua_setfield(L, -2, "plan_act");
    lua_pushcfunction(L, plan_runs);
    lua_setfield(L, -2, "plan_runs");
}
