/* function.h - the functions that may follow a layer inside the kernel that computed it:
 * the same expressions as the elementwise operations. */
#ifndef RLE_KERNELS_FUNCTION_H
#define RLE_KERNELS_FUNCTION_H

#include "launch.h"

/* Those that rle_function knows; the launchers are given no others. */
static inline bool rle_function_is_fused(int function)
{
    return function == RLE_DENSE_NONE || function == RLE_UNARY_RELU ||
           function == RLE_UNARY_TANH || function == RLE_UNARY_SIGMOID ||
           function == RLE_UNARY_SOFTPLUS;
}

__device__ static inline float rle_function(int function, float x)
{
    switch (function) {
    case RLE_UNARY_RELU:
        return 0 > x ? 0 : x;
    case RLE_UNARY_TANH:
        return rle_tanhf(x);
    case RLE_UNARY_SIGMOID:
        return rle_sigmoidf(x);
    case RLE_UNARY_SOFTPLUS:
        return rle_softplusf(x);
    default:
        return x;
    }
}

#endif
