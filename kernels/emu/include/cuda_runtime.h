/* cuda_runtime.h - the CUDA language for a C++ compiler: kernel files are compiled
 * against this header and run on the emulated device.
 *
 *   emu_types.h    qualifiers, vector types
 *   emu_launch.h   threadIdx and the like, RLE_LAUNCH, RLE_DYNAMIC_SHARED
 *   emu_threads.h  __syncthreads, warp operations, atomics
 *   emu_math.h     intrinsics, min and max */
#ifndef RLE_EMU_CUDA_RUNTIME_H
#define RLE_EMU_CUDA_RUNTIME_H

#include <math.h>
#include <string.h>

#include "cuda_runtime_api.h"

#include "emu_types.h"

#include "emu_launch.h"

#include "emu_threads.h"

#include "emu_math.h"

#endif
