/* ops.c - CUDA's table of operations. */
#include "device/cuda/cuda_internal.h"

const rle_device_ops rle_cuda_ops = {
    .fill = rle_cuda_fill,
    .copy = rle_cuda_copy,
    .unary = rle_cuda_unary,
    .unary_backward = rle_cuda_unary_backward,
    .binary = rle_cuda_binary,
    .binary_scalar = rle_cuda_binary_scalar,
    .where = rle_cuda_where,
    .gather = rle_cuda_gather,
    .scatter = rle_cuda_scatter,
    .index_select = rle_cuda_index_select,
    .index_add = rle_cuda_index_add,
    .find_bad_row = rle_cuda_find_bad_row,
    .matmul = rle_cuda_matmul,
    .log_share = rle_cuda_log_share,
    .log_share_backward = rle_cuda_log_share_backward,
    .adam = rle_cuda_adam,
    .sgd = rle_cuda_sgd,
    .dense_rows = rle_cuda_dense_rows,
    .dense = rle_cuda_dense,
};
