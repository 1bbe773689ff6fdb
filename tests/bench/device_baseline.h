/* device_baseline.h - what bench_device measures the engine against, on the same device
 * in the same run: CUDA's own calls and cuBLAS (cuda_baseline.cu, loaded when it is
 * named), or the C library and the CPU's operations where there is no GPU. */
#ifndef RLE_BENCH_DEVICE_BASELINE_H
#define RLE_BENCH_DEVICE_BASELINE_H

#include <stdint.h>

typedef enum {
    BASELINE_LAUNCH,   /* a kernel that does nothing, put on a stream */
    BASELINE_WAIT,     /* ... and waited for */
    BASELINE_COPY,     /* sizes[0] bytes to another place of the device */
    BASELINE_COPY_IN,  /* sizes[0] bytes of host memory to the device, waited for */
    BASELINE_COPY_OUT, /* ... back */
    BASELINE_PINNED,   /* ... from page-locked memory to the device, waited for */
    BASELINE_POOL,     /* sizes[0] bytes from the driver's pool and back */
    BASELINE_ALLOC,    /* sizes[0] bytes from the driver and back */
    BASELINE_PRODUCT,  /* f32 [sizes[0], sizes[1]] x [sizes[1], sizes[2]] */
    BASELINE_COUNT
} baseline_kind;

typedef struct device_baseline {
    /* What is called; NULL when this baseline has none of that kind. */
    const char *(*name)(baseline_kind kind);
    /* Seconds of `calls` of them one after the other, the last one waited for. Negative:
     * it failed. */
    double (*run)(baseline_kind kind, const int64_t *sizes, int calls);
} device_baseline;

/* The one symbol of cuda_baseline.so. */
#define DEVICE_BASELINE_ENTRY "device_baseline_entry"
typedef const device_baseline *device_baseline_fn(void);

#endif
