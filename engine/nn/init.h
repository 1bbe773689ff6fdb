/* init.h - initial values that take more than filling a tensor with random numbers. */
#ifndef RLE_NN_INIT_H
#define RLE_NN_INIT_H

#include "tensor/tensor.h"

/* Fill t, seen as the matrix [shape[0], product of the rest], with `gain` times an orthogonal
 * matrix: its rows, or its columns where there are fewer, are at right angles and of length
 * `gain`. Uniform among such matrices (Saxe et al., 2014): the Q of a normal matrix whose R
 * has a positive diagonal. Draws from the current context's stream; advances t's version.
 * INVALID_ARGUMENT: not a float, or fewer than two dimensions. */
rle_status rle_init_orthogonal(rle_tensor *t, double gain);

#endif
