/* optim_internal.h - what the optimizers share. */
#ifndef RLE_OPTIM_INTERNAL_H
#define RLE_OPTIM_INTERNAL_H

#include "optim/optim.h"

/* One parameter and what is kept for it. */
typedef struct rle_optim_slot {
    rle_tensor *param;
    rle_tensor *state[RLE_OPTIM_STATES];
    int64_t steps;
    /* of the running step: contiguous parameter and gradient, NULL when it has none */
    rle_tensor *work, *grad;
    bool done;
} rle_optim_slot;

struct rle_optim {
    int count;
    rle_array *arrays; /* [4 * count]: what the device call is given */
    rle_optim_slot slot[];
};

/* Prepare a step: contiguous views or copies of parameters and gradients, and state tensors
 * of zeros for the bits of `states`, of the parameter's dtype and device. On failure nothing
 * is left pending and no parameter has changed. */
rle_status rle_optim_begin(rle_optim *o, unsigned states);
/* Write copies of non-contiguous parameters back, let go of what begin made, advance
 * versions. `status`: how the step went; returned, or the failure of the write back. */
rle_status rle_optim_end(rle_optim *o, rle_status status);

#endif
