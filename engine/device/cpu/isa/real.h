/* real.h - lets one source serve f32 and f64. The includer defines RLE_F64_KERNELS or not;
 * then REAL is the type, M(exp) its exponential, K(name) a kernel's name. */
#ifndef RLE_CPU_ISA_REAL_H
#define RLE_CPU_ISA_REAL_H

#include "common/math.h"
#include "device/cpu/isa/isa.h"

#ifdef RLE_F64_KERNELS
#define REAL double
#define M(fn) rle_##fn
#define LIBM(fn) __builtin_##fn
#define K(name) RLE_NAME(name##_f64)
#else
#define REAL float
#define M(fn) rle_##fn##f
#define LIBM(fn) __builtin_##fn##f
#define K(name) RLE_NAME(name##_f32)
#endif

#endif
