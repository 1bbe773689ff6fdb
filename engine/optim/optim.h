/* optim.h - optimizers: a list of parameters, the state kept for each, and steps over all of
 * them in one device call.
 *
 * An optimizer holds one set of hyperparameters at a time: they come with every step, so
 * that a script may change them; groups of parameters with settings of their own are
 * several optimizers. Formulas, defaults and the order in which things happen are
 * PyTorch's: a parameter without gradient is left alone and does not count a step.
 *
 * Ownership: an optimizer retains its parameters and owns its state, which is accounted to
 * RLE_OWNER_OPTIMIZER. A step advances the version of every parameter it changes. Belongs
 * to the thread that owns the devices. */
#ifndef RLE_OPTIM_OPTIM_H
#define RLE_OPTIM_OPTIM_H

#include "tensor/tensor.h"

/* What is kept for one parameter: SGD the momentum; Adam the first and second moment;
 * RMSprop the mean square, the momentum and the mean. */
enum { RLE_OPTIM_STATES = 3 };

typedef struct rle_optim rle_optim;

typedef struct rle_rmsprop_args {
    double lr, alpha, eps, weight_decay, momentum;
    bool centered;
} rle_rmsprop_args;

/* INVALID_ARGUMENT: a parameter that is no float, no leaf, or stands twice. */
rle_status rle_optim_new(rle_tensor *const *params, int count, rle_optim **out);
void rle_optim_free(rle_optim *o); /* NULL is fine */

int rle_optim_count(const rle_optim *o);
rle_tensor *rle_optim_param(const rle_optim *o, int i); /* borrowed */

/* One step over the parameters that have a gradient. `step`, and SGD's `first`, are kept
 * for each parameter and ignored in args. When memory for new state is refused
 * (RESOURCE_EXHAUSTED) no parameter has changed. */
rle_status rle_optim_sgd(rle_optim *o, const rle_sgd_args *args);
rle_status rle_optim_adam(rle_optim *o, const rle_adam_args *args);
rle_status rle_optim_rmsprop(rle_optim *o, const rle_rmsprop_args *args);

/* Let go of the gradients, or with `keep` set them to zero. */
rle_status rle_optim_zero_grad(rle_optim *o, bool keep);

/* State of parameter i: steps taken, and tensor `slot` (borrowed; NULL when not there). */
int64_t rle_optim_steps(const rle_optim *o, int i);
rle_tensor *rle_optim_state(const rle_optim *o, int i, int slot);
/* Set it: a copy of the tensor, or none. INVALID_ARGUMENT when its shape is not the
 * parameter's. */
rle_status rle_optim_set_state(rle_optim *o, int i, int64_t steps, int slot, rle_tensor *t);

/* ---- gradients of a list of tensors ---- */

/* Scale the gradients so that their common norm is at most max_norm; *norm: what it was.
 * norm_type: p >= 1, INFINITY for the largest absolute value. The coefficient is
 * max_norm / (norm + 1e-6) as in PyTorch. Tensors without gradient do not count. */
rle_status rle_clip_grad_norm(rle_tensor *const *params, int count, double max_norm,
                              double norm_type, double *norm);
/* Clamp every element of the gradients to [-limit, limit]. */
rle_status rle_clip_grad_value(rle_tensor *const *params, int count, double limit);

#endif
