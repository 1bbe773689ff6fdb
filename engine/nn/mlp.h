/* mlp.h - a plan for evaluating a fixed chain of layers: Linear, a function, Linear, ...
 *
 * For acting, where a policy is asked for one or a few rows at a time and nothing is
 * recorded. f32. Results are, bit for bit, those of matmul with bias and the functions of
 * the table of operations.
 *
 * On the CPU the plan holds its own copy of the weights, laid out for the machine;
 * whoever changes the weights calls rle_mlp_pack. Evaluation allocates nothing there. On
 * other devices the weights are read where they lie; a few rows take one launch, many go
 * layer by layer and take memory of the device in between.
 *
 * A plan belongs to one thread at a time: evaluation uses scratch inside it. */
#ifndef RLE_NN_MLP_H
#define RLE_NN_MLP_H

#include "device/cpu/dense.h"

/* What follows a Linear: any elementwise function of the table without parameters, as its
 * rle_unary_kind, or one of these. */
enum {
    RLE_MLP_NONE = RLE_DENSE_NONE,
    RLE_MLP_SOFTMAX = RLE_DENSE_SOFTMAX, /* over the outputs */
    RLE_MLP_LOG_SOFTMAX = RLE_DENSE_LOG_SOFTMAX
};

typedef rle_dense rle_mlp_layer;

typedef struct rle_mlp rle_mlp;

/* A plan for `count` layers, packed. The arrays lie on dev; they are borrowed and must
 * live as long as the plan. INVALID_ARGUMENT: no layers, sizes that do not follow each
 * other, a function that gives bools or needs parameters. RESOURCE_EXHAUSTED: no memory.
 */
rle_status rle_mlp_new(rle_device *dev, const rle_mlp_layer *layers, int count,
                       rle_mlp **out);
void rle_mlp_free(rle_mlp *mlp); /* NULL is fine */

/* Take over the weights as they are now. */
void rle_mlp_pack(rle_mlp *mlp);

/* y[rows, last layer's out] from x[rows, first layer's in]; both contiguous, apart, on
 * the plan's device. On the CPU it cannot fail. */
rle_status rle_mlp_forward(const rle_mlp *mlp, const float *x, int64_t rows, float *y);

/* Whether rle_mlp_draw can be asked for so many rows now: the device takes the plan in
 * one launch. */
bool rle_mlp_draws(const rle_mlp *mlp, int64_t rows);
/* A class for each row by the plan's results, in the same launch; see rle_dense_draw.
 * INVALID_ARGUMENT names a row that nothing can be drawn from. */
rle_status rle_mlp_draw(const rle_mlp *mlp, const float *x, int64_t rows,
                        const rle_dense_draw *draw);

/* Values in a row of the first layer's input, and of the last layer's output. */
int64_t rle_mlp_in(const rle_mlp *mlp);
/* See above. */
int64_t rle_mlp_out(const rle_mlp *mlp);

#endif
