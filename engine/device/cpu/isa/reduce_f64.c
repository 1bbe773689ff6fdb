/* reduce_f64.c - see reduce_impl.h. */
#define RLE_F64_KERNELS
#include "device/cpu/isa/reduce_impl.h"
