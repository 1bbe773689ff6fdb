/* ops.h - the checked entry points: shapes, dtypes and devices first, then the device's
 * table. Nothing here knows of gradients; autograd records around these.
 *
 * Conventions: dimensions count from 0 and are already non-negative. `out` receives a new
 * reference. Functions marked "into" write to *out when it is a tensor on entry: that is
 * the in-place form. Errors name both shapes, dtypes or devices. */
#ifndef RLE_TENSOR_OPS_H
#define RLE_TENSOR_OPS_H

#include "tensor/tensor.h"

/* ---- shapes (ops_shape.c): views, no copies unless said ---- */

rle_status rle_op_select(rle_tensor *t, int dim, int64_t index, rle_tensor **out);
rle_status rle_op_narrow(rle_tensor *t, int dim, int64_t start, int64_t length,
                         rle_tensor **out);
rle_status rle_op_permute(rle_tensor *t, const int64_t *order, rle_tensor **out);
/* One size may be -1. View only: FAILED_PRECONDITION when strides forbid it. */
rle_status rle_op_view(rle_tensor *t, int ndim, const int64_t *shape, rle_tensor **out);
/* A view where possible, else a copy. */
rle_status rle_op_reshape(rle_tensor *t, int ndim, const int64_t *shape, rle_tensor **out);
/* -1 keeps a size. */
rle_status rle_op_expand(rle_tensor *t, int ndim, const int64_t *shape, rle_tensor **out);
/* t itself when contiguous, else a copy. */
rle_status rle_op_contiguous(rle_tensor *t, rle_tensor **out);
/* A contiguous copy, cast and moved. */
rle_status rle_op_to(rle_tensor *t, rle_device *dev, rle_dtype dtype, rle_tensor **out);
rle_status rle_op_clone(rle_tensor *t, rle_tensor **out);
/* dst = src broadcast to dst's shape, cast. Advances dst's version. */
rle_status rle_op_copy_into(rle_tensor *dst, rle_tensor *src);
rle_status rle_op_fill(rle_tensor *t, double value, int64_t integer);
/* Joined along an existing dimension, or with `stack` along a new one at `dim`. */
rle_status rle_op_cat(rle_tensor *const *parts, int count, int dim, bool stack,
                      rle_tensor **out);

/* Shape that both broadcast to; INVALID_ARGUMENT names both. */
rle_status rle_broadcast(const rle_array *a, const rle_array *b, int *ndim, int64_t *shape);
/* `a` seen with `shape` by strides of 0; the caller knows that it broadcasts. */
rle_array rle_array_expanded(const rle_array *a, int ndim, const int64_t *shape);
/* t summed over what broadcasting had expanded, so that it has the given shape. */
rle_status rle_op_sum_to(rle_tensor *t, int ndim, const int64_t *shape, rle_tensor **out);
/* INVALID_ARGUMENT naming both devices unless they are one. */
rle_status rle_same_device(const char *what, const rle_tensor *a, const rle_tensor *b);

/* ---- elementwise (ops_elementwise.c) ---- */

/* The dtype both go to: bool < u8 < i32 < i64 < f32 < f64. */
rle_dtype rle_promote(rle_dtype a, rle_dtype b);
rle_status rle_op_unary(rle_unary_kind kind, rle_tensor *t, double p0, double p1,
                        rle_tensor **out); /* into */
rle_status rle_op_unary_backward(rle_unary_kind kind, rle_tensor *gout, rle_tensor *x,
                                 rle_tensor *y, double p0, double p1, rle_tensor **out);
rle_status rle_op_binary(rle_binary_kind kind, rle_tensor *a, rle_tensor *b,
                         rle_tensor **out); /* into */
/* t kind value, or value kind t when reversed. */
rle_status rle_op_binary_scalar(rle_binary_kind kind, rle_tensor *t, double value,
                                bool reversed, rle_tensor **out); /* into */
rle_status rle_op_where(rle_tensor *cond, rle_tensor *a, rle_tensor *b, rle_tensor **out);
const char *rle_unary_name(rle_unary_kind kind);
const char *rle_binary_name(rle_binary_kind kind);

/* ---- reductions (ops_reduce.c) ---- */

/* dims: bit set of dimensions; 0 = all. */
rle_status rle_op_reduce(rle_reduce_kind kind, rle_tensor *t, uint32_t dims, bool keepdim,
                         rle_tensor **out);
/* values may be NULL. */
rle_status rle_op_arg_reduce(bool largest, rle_tensor *t, int dim, bool keepdim,
                             rle_tensor **values, rle_tensor **indices);
rle_status rle_op_softmax(bool logarithm, rle_tensor *t, int dim, rle_tensor **out);
rle_status rle_op_softmax_backward(bool logarithm, rle_tensor *gout, rle_tensor *y, int dim,
                                   rle_tensor **out);
rle_status rle_op_cumsum(rle_tensor *t, int dim, bool reverse, rle_tensor **out);
rle_status rle_op_sort(rle_tensor *t, int dim, bool descending, rle_tensor **values,
                       rle_tensor **indices);
const char *rle_reduce_name(rle_reduce_kind kind);

/* ---- products (ops_matmul.c) ---- */

/* PyTorch's matmul: vectors, matrices, batches with broadcasting. */
rle_status rle_op_matmul(rle_tensor *a, rle_tensor *b, rle_tensor **out);
/* x[..., K] times weight[N, K] transposed, plus bias[N] (may be NULL) -> [..., N]. */
rle_status rle_op_linear(rle_tensor *x, rle_tensor *weight, rle_tensor *bias,
                         rle_tensor **out);

/* ---- indexing (ops_index.c) ---- */

rle_status rle_op_gather(rle_tensor *t, int dim, rle_tensor *index, rle_tensor **out);
/* into[..index[i]..] += src[..i..], or = with `assign`. Advances the version. */
rle_status rle_op_scatter(rle_tensor *into, int dim, rle_tensor *index, rle_tensor *src,
                          bool assign);
rle_status rle_op_index_select(rle_tensor *t, int dim, rle_tensor *index, rle_tensor **out);
rle_status rle_op_index_add(rle_tensor *into, int dim, rle_tensor *index, rle_tensor *src);
/* classes 0: one more than the largest index. i64 result. */
rle_status rle_op_one_hot(rle_tensor *index, int64_t classes, rle_tensor **out);

/* ---- time (ops_returns.c): no history ---- */

/* Generalized advantages of rewards [T] or [T, N], f32 or f64, as device.h has them.
 * values: as rewards; NULL gives, with lambda 1, discounted returns. dones: bool, as
 * rewards, or NULL. last: what comes after the last step, a value a column ([N]; [] or
 * [1] for [T]), or NULL. gamma and lambda in 0..1. */
rle_status rle_op_gae(rle_tensor *rewards, rle_tensor *values, rle_tensor *dones,
                      rle_tensor *last, double gamma, double lambda, rle_tensor **out);

/* ---- random (ops_random.c): from the current context's stream ---- */

/* Seed the process's stream and start it from the beginning. */
void rle_random_seed(uint64_t seed);
/* Where in the context's stream a draw of so many words stands; moves the stream past it.
 */
rle_rng rle_random_words(uint64_t words);
/* Fill t. Advances the version and the stream. */
rle_status rle_op_random(rle_random_kind kind, rle_tensor *t, double p0, double p1);
/* 0 or 1 in probs' dtype, 1 with probability probs[i]. */
rle_status rle_op_bernoulli(rle_tensor *probs, rle_tensor **out);
rle_status rle_op_randperm(rle_device *dev, int64_t n, rle_tensor **out);
/* `rows` fresh row keys, i64[rows]: what keyed draws are repeated with. */
rle_status rle_op_row_keys(rle_device *dev, int64_t rows, rle_tensor **out);
/* Classes of probs[..., C] by inverse CDF: i64[..., draws], or i64[...] when draws is 0
 * (one draw, no dimension for it). keys: i64, one a row, or NULL for fresh numbers;
 * `draw` numbers the keyed draw within the row. */
rle_status rle_op_multinomial(rle_tensor *probs, int64_t draws, rle_tensor *keys,
                              uint32_t draw, rle_tensor **out);
/* Inverted dropout of t[..., C] by row keys; the same call on a gradient is its backward. */
rle_status rle_op_dropout(rle_tensor *t, double p, rle_tensor *keys, uint32_t draw,
                          uint64_t seed, rle_tensor **out);
/* Rows of [..., C]: the product of all sizes but the last; 1 for a vector or scalar. */
int64_t rle_row_count(const rle_array *a);

#endif
