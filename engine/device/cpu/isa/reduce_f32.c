/* reduce_f32.c - see reduce_impl.h. */
#include "device/cpu/isa/reduce_impl.h"
