/* plugin.h - what a device plug-in and the program say to each other.
 *
 * A plug-in is a shared object beside the program that brings devices of one type:
 * rlengine_cuda.so (nvcc) and rlengine_emu.so (the same kernels, compiled by the C++
 * compiler against the emulation in kernels/emu). It is opened with dlopen when a device
 * of its type is first asked for; the program never links CUDA. A plug-in resolves
 * nothing in the program: what it needs comes through rle_plugin_host, because the engine
 * may itself be a module that was loaded with local symbols.
 *
 * Both sides are built together from one source; the number below catches a mixture of
 * two. */
#ifndef RLE_DEVICE_PLUGIN_H
#define RLE_DEVICE_PLUGIN_H

#include "device/device.h"

#define RLE_PLUGIN_ABI 3u

/* What a workspace is for, in words for the message when there is no room for it. */
typedef struct rle_workspace {
    const char *what; /* "the workspace of cuBLAS" */
    const char *help; /* "rl.cuda.matmul{workspace = ...} makes it smaller" */
} rle_workspace;

/* The program's side. */
typedef struct rle_plugin_host {
    /* The message of this thread (base/status.h). */
    void (*set_message)(rle_status code, const char *message);
    const char *(*message)(void);
    /* Counted host memory (base/mem.h). */
    void *(*alloc)(size_t size);
    void (*release)(void *p);
    /* Does the fault that the tests ordered happen now? (rle_device_fault) */
    bool (*fault)(const char *what);
    /* Memory for the plug-in itself: `size` bytes or, where these cannot be had, `least`,
     * in steps of 2 MiB (*taken), in the account of reserved bytes and within their
     * limit. When there is none, what can be let go of is let go of, in the order of
     * rle_device_alloc, and then it is RESOURCE_EXHAUSTED with the report of a refused
     * block. Finalizers of a script may run meanwhile and use the device. give: back,
     * with what was taken. */
    rle_status (*take)(rle_device *dev, const rle_workspace *use, size_t size,
                       size_t least, void **out, size_t *taken);
    void (*give)(rle_device *dev, void *p, size_t taken);
    /* The same for bytes that are there already, because a library took them by itself:
     * RESOURCE_EXHAUSTED when they pass the limit; the library is to give them back then.
     * `use` NULL: they only count. Back with give(dev, NULL, size). */
    rle_status (*count)(rle_device *dev, const rle_workspace *use, size_t size);
    /* The driver refused something to a library: let go of what can be let go of, so that
     * it may ask once more. */
    void (*make_room)(rle_device *dev, size_t size);
    /* A line for the log. */
    void (*warn)(const char *message);
    /* The device is beyond use: says so and ends the process. Does not return. */
    void (*fatal)(const char *message);
} rle_plugin_host;

/* The plug-in's side. */
typedef struct rle_plugin {
    uint32_t abi;
    size_t size;      /* of this struct */
    const char *type; /* "cuda", "emu" */
    /* How many devices there are, at least 1. The first call into the driver.
     * UNAVAILABLE: there is none, with the reason and what to do about it in one line. */
    rle_status (*count)(int *out);
    rle_status (*properties)(int index, rle_device_properties *out);
    /* Fill `dev`: ops, hooks, impl. type, index and name are set already. */
    rle_status (*open)(rle_device *dev);
    /* Everything that open took. No tensor of the device is alive. */
    void (*close)(rle_device *dev);
    /* The emulation's settings, as in RLENGINE_EMU ("order=reverse streams=lazy"). NULL
     * for real devices. INVALID_ARGUMENT names what is understood. */
    rle_status (*control)(const char *settings);
} rle_plugin;

/* The one symbol a plug-in exports; NULL when `abi` is not its own. */
#define RLE_PLUGIN_ENTRY "rle_plugin_entry"
typedef const rle_plugin *rle_plugin_entry_fn(uint32_t abi, const rle_plugin_host *host);

/* The plug-in for that type of device, opened at the first call. UNAVAILABLE: it is not
 * there or does not fit this program; the message says where it was looked for. */
rle_status rle_plugin_get(rle_device_type type, const rle_plugin **out);

#endif
