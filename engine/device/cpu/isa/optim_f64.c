/* optim_f64.c - see optim_impl.h. */
#define RLE_F64_KERNELS
#include "device/cpu/isa/optim_impl.h"
