/* elementwise_f32.c - see elementwise_impl.h. */
#include "device/cpu/isa/elementwise_impl.h"
