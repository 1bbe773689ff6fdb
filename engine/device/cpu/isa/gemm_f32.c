/* gemm_f32.c - see gemm_impl.h. */
#include "device/cpu/isa/gemm_impl.h"
