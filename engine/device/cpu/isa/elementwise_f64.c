/* elementwise_f64.c - see elementwise_impl.h. */
#define RLE_F64_KERNELS
#include "device/cpu/isa/elementwise_impl.h"
