/* rmsprop.c - RMSprop in PyTorch's form: the mean square starts at 0 and eps stands outside
 * the root (Tieleman and Hinton, "Lecture 6.5", 2012; centered: Graves, 2013).
 *
 * Made of the device's elementwise operations, so it runs wherever they do. */
#include "optim/optim.h"

#include <math.h>

#include "optim/optim_internal.h"
#include "tensor/ops.h"

/* t = t * factor, in place. */
static rle_status scale(rle_tensor *t, double factor)
{
    return rle_op_binary_scalar(RLE_BINARY_MUL, t, factor, false, &t);
}

/* t += factor * other, in place. */
static rle_status add_scaled(rle_tensor *t, rle_tensor *other, double factor)
{
    rle_tensor *scaled = NULL;
    RLE_TRY(rle_op_binary_scalar(RLE_BINARY_MUL, other, factor, false, &scaled));
    rle_status status = rle_op_binary(RLE_BINARY_ADD, t, scaled, &t);
    rle_tensor_release(scaled);
    return status;
}

/* *out = sqrt(mean square [- mean^2]) + eps, a new tensor. */
static rle_status denominator(const rle_optim_slot *s, const rle_rmsprop_args *a,
                              rle_tensor **out)
{
    rle_tensor *d = NULL;
    RLE_TRY(rle_op_clone(s->state[0], &d));
    rle_status status = RLE_OK;
    if (a->centered) {
        rle_tensor *mean = NULL;
        status = rle_op_unary(RLE_UNARY_SQUARE, s->state[2], 0, 0, &mean);
        if (status == RLE_OK) status = add_scaled(d, mean, -1);
        rle_tensor_release(mean);
    }
    if (status == RLE_OK) status = rle_op_unary(RLE_UNARY_SQRT, d, 0, 0, &d);
    if (status == RLE_OK)
        status = rle_op_binary_scalar(RLE_BINARY_ADD, d, a->eps, false, &d);
    if (status != RLE_OK)
        rle_tensor_release(d);
    else
        *out = d;
    return status;
}

static rle_status update(rle_optim_slot *s, rle_tensor *g, const rle_rmsprop_args *a)
{
    rle_tensor *t = NULL;
    RLE_TRY(rle_op_unary(RLE_UNARY_SQUARE, g, 0, 0, &t));
    rle_status status = scale(s->state[0], a->alpha);
    if (status == RLE_OK) status = add_scaled(s->state[0], t, 1 - a->alpha);
    rle_tensor_release(t);
    RLE_TRY(status);
    if (a->centered) {
        RLE_TRY(scale(s->state[2], a->alpha));
        RLE_TRY(add_scaled(s->state[2], g, 1 - a->alpha));
    }
    rle_tensor *d = NULL;
    RLE_TRY(denominator(s, a, &d));
    status = rle_op_binary(RLE_BINARY_DIV, g, d, &d); /* d = g / d */
    if (status == RLE_OK && a->momentum > 0) {
        status = scale(s->state[1], a->momentum);
        if (status == RLE_OK) status = add_scaled(s->state[1], d, 1);
        if (status == RLE_OK) status = add_scaled(s->work, s->state[1], -a->lr);
    } else if (status == RLE_OK) {
        status = add_scaled(s->work, d, -a->lr);
    }
    rle_tensor_release(d);
    return status;
}

static rle_status step_one(rle_optim_slot *s, const rle_rmsprop_args *a)
{
    if (a->weight_decay == 0) return update(s, s->grad, a);
    rle_tensor *g = NULL;
    RLE_TRY(rle_op_clone(s->grad, &g));
    rle_status status = add_scaled(g, s->work, a->weight_decay);
    if (status == RLE_OK) status = update(s, g, a);
    rle_tensor_release(g);
    return status;
}

rle_status rle_optim_rmsprop(rle_optim *o, const rle_rmsprop_args *args)
{
    unsigned states = 1u | (args->momentum > 0 ? 2u : 0) | (args->centered ? 4u : 0);
    RLE_TRY(rle_optim_begin(o, states));
    rle_status status = RLE_OK;
    for (int i = 0; i < o->count && status == RLE_OK; i++) {
        if (o->slot[i].done) continue;
        status = step_one(&o->slot[i], args);
        o->slot[i].done = true;
    }
    return rle_optim_end(o, status);
}
