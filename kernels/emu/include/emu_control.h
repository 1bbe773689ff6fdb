/* control.h - settings of the emulated device, for tests and RLENGINE_EMU. */
#ifndef RLE_KERNELS_EMU_CONTROL_H
#define RLE_KERNELS_EMU_CONTROL_H

#ifdef __cplusplus
extern "C" {
#endif

/* NULL, or what is wrong with the settings (a string that lives until the next call). */
const char *rle_emu_control(const char *settings);

#ifdef __cplusplus
}
#endif

#endif
