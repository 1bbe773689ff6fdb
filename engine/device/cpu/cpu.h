/* cpu.h - the CPU filling of the table of operations (device/device.h).
 *
 * The arithmetic is compiled once per instruction set (isa/) and picked at run time; all
 * of them give the same bits. Everything here belongs to the thread that owns the devices. */
#ifndef RLE_DEVICE_CPU_H
#define RLE_DEVICE_CPU_H

#include <stdbool.h>

#include "device/device.h"

/* The table. The first call picks the best instruction set that the machine has;
 * RLENGINE_CPU=baseline, avx2 or avx512 asks for a lesser one. Never NULL. */
const rle_device_ops *rle_cpu_ops(void);

/* "baseline", "avx2" or "avx512": what is in use. */
const char *rle_cpu_isa(void);

/* Use this instruction set from now on; false, and nothing changes, when the machine or
 * the build lacks it. For tests, which compare them. */
bool rle_cpu_use(const char *isa);

#endif
