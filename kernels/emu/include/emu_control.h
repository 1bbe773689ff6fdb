/* emu_control.h - settings of the emulated device, and what it can tell of itself.
 * kernels/emu/README.md lists the settings. */
#ifndef RLE_EMU_CONTROL_H
#define RLE_EMU_CONTROL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Settings as in RLENGINE_EMU: "order=reverse seed=7 memory=64MiB". NULL, or what is
 * wrong with them, a string that lives until the next call; nothing was set then. */
const char *rle_emu_control(const char *settings);

/* More about the last failed call or the error that ended the device than its code says;
 * "" when there is no more. */
const char *rle_emu_message(void);

/* Bytes in use on a device, which is not opened by asking. */
size_t rle_emu_bytes_used(int device);

/* Is device memory closed to host code, and one device's to another's kernels? Depends on
 * the processor (memory protection keys). */
bool rle_emu_guarded(void);

/* Libraries of CUDA's that the emulation has inside, in the place of dlopen and dlsym:
 * cuBLAS, unless the settings say cublas=off. */
void *rle_emu_library(const char *file);
void *rle_emu_symbol(void *library, const char *name);

typedef struct rle_emu_stats {
    uint64_t launches, threads, switches;
} rle_emu_stats;
void rle_emu_get_stats(rle_emu_stats *out);

#ifdef __cplusplus
}
#endif

#endif
