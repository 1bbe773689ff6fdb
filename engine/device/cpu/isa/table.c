/* table.c - the kernels of one instruction set. */
#include "device/cpu/isa/isa.h"

#define BOTH(x)                                                                          \
    {                                                                                    \
        RLE_NAME(rle_##x##_f32), RLE_NAME(rle_##x##_f64)                                 \
    }

const rle_cpu_kernels RLE_NAME(rle_cpu_kernels) = {
    .name = RLE_STRING(RLE_ISA),
    .unary = BOTH(unary),
    .grad = BOTH(grad),
    .binary = BOTH(binary),
    .fold_run = BOTH(fold_run),
    .fold_tile = BOTH(fold_tile),
    .softmax_row = BOTH(softmax_row),
    .softmax_row_backward = BOTH(softmax_row_backward),
    .softmax_tile = BOTH(softmax_tile),
    .softmax_tile_backward = BOTH(softmax_tile_backward),
    .gemm = BOTH(gemm),
    .chain = RLE_NAME(rle_chain),
    .philox_stream = RLE_NAME(rle_philox_stream),
    .philox_keyed = RLE_NAME(rle_philox_keyed),
    .uniform = BOTH(uniform),
    .normal = BOTH(normal),
    .dropout = BOTH(dropout),
    .adam = BOTH(adam),
    .sgd = BOTH(sgd),
};
