/* optim.c - life and state of optimizers, SGD and Adam.
 *
 * Parameters that have taken the same number of steps go to the device in one call. That is
 * all of them, unless some had no gradient at times. */
#include "optim/optim.h"

#include "base/mem.h"
#include "optim/optim_internal.h"
#include "tensor/ops.h"

rle_status rle_optim_new(rle_tensor *const *params, int count, rle_optim **out)
{
    for (int i = 0; i < count; i++) {
        const rle_tensor *p = params[i];
        if (!rle_dtype_is_float(p->a.dtype))
            return rle_fail(RLE_INVALID_ARGUMENT,
                            "parameter %d is %s: only floats can be optimized", i + 1,
                            rle_dtype_name(p->a.dtype));
        if (p->grad_fn)
            return rle_fail(RLE_INVALID_ARGUMENT,
                            "parameter %d is the result of an operation; an optimizer takes "
                            "leaves (detach it and call requires_grad_)", i + 1);
        for (int j = 0; j < i; j++)
            if (params[j] == p)
                return rle_fail(RLE_INVALID_ARGUMENT, "parameters %d and %d are the same tensor",
                                j + 1, i + 1);
    }
    size_t size = sizeof(rle_optim) + (size_t)count * sizeof(rle_optim_slot);
    rle_optim *o = rle_calloc(1, size);
    if (!o) return rle_oom(size, "optimizer");
    o->arrays = rle_calloc((size_t)count * 4 + 1, sizeof *o->arrays);
    if (!o->arrays) {
        rle_free(o);
        return rle_oom((size_t)count * 4 * sizeof *o->arrays, "optimizer");
    }
    o->count = count;
    for (int i = 0; i < count; i++) o->slot[i].param = rle_tensor_retain(params[i]);
    *out = o;
    return RLE_OK;
}

void rle_optim_free(rle_optim *o)
{
    if (!o) return;
    for (int i = 0; i < o->count; i++) {
        rle_tensor_release(o->slot[i].param);
        for (int k = 0; k < RLE_OPTIM_STATES; k++) rle_tensor_release(o->slot[i].state[k]);
    }
    rle_free(o->arrays);
    rle_free(o);
}

int rle_optim_count(const rle_optim *o) { return o->count; }
rle_tensor *rle_optim_param(const rle_optim *o, int i) { return o->slot[i].param; }
int64_t rle_optim_steps(const rle_optim *o, int i) { return o->slot[i].steps; }
rle_tensor *rle_optim_state(const rle_optim *o, int i, int k) { return o->slot[i].state[k]; }

static bool same_shape(const rle_tensor *a, const rle_tensor *b)
{
    if (a->a.ndim != b->a.ndim) return false;
    for (int i = 0; i < a->a.ndim; i++)
        if (a->a.shape[i] != b->a.shape[i]) return false;
    return true;
}

/* A contiguous copy of t like the parameter, on the optimizer's account. */
static rle_status copy_state(const rle_tensor *param, rle_tensor *t, rle_tensor **out)
{
    rle_context *c = rle_context_current();
    uint8_t owner = c->owner;
    c->owner = RLE_OWNER_OPTIMIZER;
    rle_status status = rle_op_to(t, rle_tensor_device(param), param->a.dtype, out);
    c->owner = owner;
    return status;
}

rle_status rle_optim_set_state(rle_optim *o, int i, int64_t steps, int slot, rle_tensor *t)
{
    rle_optim_slot *s = &o->slot[i];
    rle_tensor *copy = NULL;
    if (t) {
        if (!same_shape(s->param, t)) {
            char want[96], got[96];
            return rle_fail(RLE_INVALID_ARGUMENT, "state of parameter %d is %s, the parameter %s",
                            i + 1, rle_array_describe(&t->a, got, sizeof got),
                            rle_array_describe(&s->param->a, want, sizeof want));
        }
        RLE_TRY(copy_state(s->param, t, &copy));
    }
    rle_tensor_release(s->state[slot]);
    s->state[slot] = copy;
    s->steps = steps;
    return RLE_OK;
}

/* ---- a step ---- */

static void drop_work(rle_optim *o)
{
    for (int i = 0; i < o->count; i++) {
        rle_optim_slot *s = &o->slot[i];
        rle_tensor_release(s->work);
        rle_tensor_release(s->grad);
        s->work = s->grad = NULL;
    }
}

/* State tensor k of a slot: there, and where the parameter is now. */
static rle_status prepare_state(rle_optim_slot *s, int k)
{
    rle_tensor *old = s->state[k], *now = NULL;
    const rle_tensor *p = s->param;
    if (old) {
        if (old->a.dtype == p->a.dtype && rle_tensor_device(old) == rle_tensor_device(p))
            return RLE_OK;
        RLE_TRY(copy_state(p, old, &now));
        rle_tensor_release(old);
    } else {
        rle_context *c = rle_context_current();
        uint8_t owner = c->owner;
        c->owner = RLE_OWNER_OPTIMIZER;
        rle_status status = rle_tensor_zeros(rle_tensor_device(p), p->a.dtype, p->a.ndim,
                                             p->a.shape, &now);
        c->owner = owner;
        RLE_TRY(status);
        s->steps = 0; /* SGD: momentum starts from the gradient, whenever it is turned on */
    }
    s->state[k] = now;
    return RLE_OK;
}

static rle_status prepare(rle_optim_slot *s, int number, unsigned states)
{
    rle_tensor *p = s->param, *g = p->grad;
    if (g->a.dtype != p->a.dtype || !same_shape(p, g)) {
        char want[96], got[96];
        return rle_fail(RLE_INVALID_ARGUMENT,
                        "the gradient of parameter %d is %s, the parameter %s", number,
                        rle_array_describe(&g->a, got, sizeof got),
                        rle_array_describe(&p->a, want, sizeof want));
    }
    RLE_TRY(rle_same_device("optimizer step", p, g));
    for (int k = 0; k < RLE_OPTIM_STATES; k++)
        if (states >> k & 1) RLE_TRY(prepare_state(s, k));
    RLE_TRY(rle_op_contiguous(g, &s->grad));
    return rle_op_contiguous(p, &s->work);
}

rle_status rle_optim_begin(rle_optim *o, unsigned states)
{
    for (int i = 0; i < o->count; i++) {
        rle_optim_slot *s = &o->slot[i];
        s->done = true;
        if (!s->param->grad) continue;
        rle_status status = prepare(s, i + 1, states);
        if (status != RLE_OK) {
            drop_work(o);
            return status;
        }
        s->done = false;
    }
    return RLE_OK;
}

rle_status rle_optim_end(rle_optim *o, rle_status status)
{
    for (int i = 0; i < o->count; i++) {
        rle_optim_slot *s = &o->slot[i];
        if (!s->work || !s->done) continue;
        s->steps++;
        if (rle_tensor_is_contiguous(s->param)) {
            s->param->storage->version++;
        } else if (status == RLE_OK) {
            status = rle_op_copy_into(s->param, s->work);
        }
    }
    drop_work(o);
    return status;
}

/* Collect the pending slots that agree with the first pending one in steps, dtype and
 * device: their arrays into o->arrays, [parameters, gradients, state 0, state 1]. Returns
 * that first slot, or NULL when none is pending. */
static rle_optim_slot *collect(rle_optim *o, int *count)
{
    rle_optim_slot *first = NULL;
    rle_array *arrays = o->arrays;
    int n = 0, max = o->count;
    for (int i = 0; i < max; i++) {
        rle_optim_slot *s = &o->slot[i];
        if (s->done) continue;
        if (!first) first = s;
        if (s->steps != first->steps || s->param->a.dtype != first->param->a.dtype ||
            rle_tensor_device(s->param) != rle_tensor_device(first->param))
            continue;
        arrays[n] = s->work->a;
        arrays[max + n] = s->grad->a;
        if (s->state[0]) arrays[2 * max + n] = s->state[0]->a;
        if (s->state[1]) arrays[3 * max + n] = s->state[1]->a;
        s->done = true;
        n++;
    }
    *count = n;
    return first;
}

rle_status rle_optim_adam(rle_optim *o, const rle_adam_args *args)
{
    RLE_TRY(rle_optim_begin(o, 3));
    rle_status status = RLE_OK;
    rle_optim_slot *first;
    int n, max = o->count;
    while (status == RLE_OK && (first = collect(o, &n))) {
        rle_adam_args now = *args;
        now.step = first->steps + 1;
        status = rle_tensor_ops(first->param)
                     ->adam(rle_tensor_device(first->param), o->arrays, o->arrays + max,
                            o->arrays + 2 * max, o->arrays + 3 * max, n, &now);
    }
    return rle_optim_end(o, status);
}

rle_status rle_optim_sgd(rle_optim *o, const rle_sgd_args *args)
{
    bool momentum = args->momentum != 0;
    RLE_TRY(rle_optim_begin(o, momentum ? 1 : 0));
    rle_status status = RLE_OK;
    rle_optim_slot *first;
    int n, max = o->count;
    while (status == RLE_OK && (first = collect(o, &n))) {
        rle_sgd_args now = *args;
        now.first = first->steps == 0;
        status = rle_tensor_ops(first->param)
                     ->sgd(rle_tensor_device(first->param), o->arrays, o->arrays + max,
                           momentum ? o->arrays + 2 * max : NULL, n, &now);
    }
    return rle_optim_end(o, status);
}

rle_status rle_optim_zero_grad(rle_optim *o, bool keep)
{
    for (int i = 0; i < o->count; i++) {
        rle_tensor *p = o->slot[i].param;
        if (!p->grad) continue;
        if (keep) {
            RLE_TRY(rle_op_fill(p->grad, 0, 0));
        } else {
            rle_tensor_release(p->grad);
            p->grad = NULL;
        }
    }
    return RLE_OK;
}
