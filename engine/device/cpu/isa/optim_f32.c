/* optim_f32.c - see optim_impl.h. */
#include "device/cpu/isa/optim_impl.h"
