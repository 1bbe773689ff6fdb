/* device_internal.h - what the files of device/ share. */
#ifndef RLE_DEVICE_INTERNAL_H
#define RLE_DEVICE_INTERNAL_H

#include "device/device.h"

rle_status rle_allocator_new(struct rle_allocator **out);
/* Gives everything cached back; blocks still live are the caller's mistake. */
void rle_allocator_free(rle_device *dev);

/* Remember the report of a refused allocation (rle_device_oom_report). */
void rle_device_note_oom(rle_device *dev);

/* What plug-ins ask the program (plugin.h). */
void rle_device_fatal(const char *message) __attribute__((noreturn));
bool rle_device_fault_hits(const char *what);

#endif
