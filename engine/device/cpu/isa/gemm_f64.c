/* gemm_f64.c - see gemm_impl.h. */
#define RLE_F64_KERNELS
#include "device/cpu/isa/gemm_impl.h"
