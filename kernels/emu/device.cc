/* device.cc - the devices, the one that is current, and errors. */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "emu_control.h"
#include "emu_internal.h"

namespace emu
{

Device devices[MOST_DEVICES];
int current_device;

static bool forked; /* this process is a copy of one that has used a device */
static cudaError_t last_error;
static char message[512];

/* ---- errors ---- */

static const struct {
    cudaError_t code;
    const char *name, *text;
    bool ends;
} errors[] = {
    {cudaSuccess, "cudaSuccess", "no error", false},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument", false},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory", false},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error",
     false},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument", false},
    {cudaErrorInvalidDevicePointer, "cudaErrorInvalidDevicePointer",
     "invalid device pointer", false},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection",
     "invalid copy direction for memcpy", false},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version", false},
    {cudaErrorDevicesUnavailable, "cudaErrorDevicesUnavailable",
     "CUDA-capable device(s) is/are busy or unavailable", false},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected", false},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal", false},
    {cudaErrorECCUncorrectable, "cudaErrorECCUncorrectable",
     "uncorrectable ECC error encountered", true},
    {cudaErrorNvlinkUncorrectable, "cudaErrorNvlinkUncorrectable",
     "uncorrectable NVLink error detected during the execution", true},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle",
     "invalid resource handle", false},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready", false},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered", true},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources",
     "too many resources requested for launch", false},
    {cudaErrorLaunchTimeout, "cudaErrorLaunchTimeout",
     "the launch timed out and was terminated", true},
    {cudaErrorAssert, "cudaErrorAssert", "device-side assert triggered", true},
    {cudaErrorHardwareStackError, "cudaErrorHardwareStackError", "hardware stack error",
     true},
    {cudaErrorIllegalInstruction, "cudaErrorIllegalInstruction",
     "an illegal instruction was encountered", true},
    {cudaErrorMisalignedAddress, "cudaErrorMisalignedAddress", "misaligned address",
     true},
    {cudaErrorInvalidAddressSpace, "cudaErrorInvalidAddressSpace",
     "operation not supported on global/shared address space", true},
    {cudaErrorInvalidPc, "cudaErrorInvalidPc", "invalid program counter", true},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure",
     true},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported", false},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error", false},
};

bool ends_device(cudaError_t code)
{
    for (const auto &e : errors)
        if (e.code == code) return e.ends;
    return false;
}

static void say(const char *format, va_list args)
{
    vsnprintf(message, sizeof message, format, args);
}

cudaError_t fail(cudaError_t error, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    /* A device that has ended keeps saying why. */
    if (!ends_device(error)) say(format, args);
    va_end(args);
    return last_error = error;
}

void end_device(Device *device, cudaError_t error, const char *format, ...)
{
    if (device->ended) return;
    va_list args;
    va_start(args, format);
    say(format, args);
    va_end(args);
    device->ended = error;
}

cudaError_t take_last_error()
{
    cudaError_t e = last_error;
    last_error = cudaSuccess;
    return e;
}

void forget_errors()
{
    for (Device &d : devices) d.ended = cudaSuccess;
    last_error = cudaSuccess;
    message[0] = 0;
}

/* ---- the start of every call ---- */

static void in_child()
{
    forked = true;
}

static cudaError_t fail_if_ordered(Failing kind)
{
    cudaError_t e = ordered_failure(kind);
    return e == cudaSuccess ? e : fail(e, "%s", "");
}

static cudaError_t refuse_fork(const char *call)
{
    static bool watching;
    if (!watching) watching = pthread_atfork(nullptr, nullptr, in_child) == 0;
    trace(call);
    if (!forked) return cudaSuccess;
    return fail(cudaErrorInitializationError,
                "%s: this process was forked from one that uses the device; start it by "
                "exec",
                call);
}

cudaError_t enter(const char *call, Failing kind)
{
    cudaError_t e = refuse_fork(call);
    return e == cudaSuccess ? fail_if_ordered(kind) : e;
}

cudaError_t enter(const char *call, Device **out, Failing kind)
{
    cudaError_t e = refuse_fork(call);
    if (e != cudaSuccess) return e;
    Device *d = &devices[current_device];
    d->index = current_device;
    d->open = true;
    *out = d;
    return d->ended ? last_error = d->ended : fail_if_ordered(kind);
}

} // namespace emu

using namespace emu;

extern "C" const char *rle_emu_message(void)
{
    return message;
}

extern "C" cudaError_t cudaGetLastError(void)
{
    trace("cudaGetLastError");
    cudaError_t e =
        devices[current_device].ended ? devices[current_device].ended : last_error;
    last_error = cudaSuccess;
    return e;
}

extern "C" cudaError_t cudaPeekAtLastError(void)
{
    trace("cudaPeekAtLastError");
    return devices[current_device].ended ? devices[current_device].ended : last_error;
}

extern "C" const char *cudaGetErrorString(cudaError_t error)
{
    for (const auto &e : errors)
        if (e.code == error) return e.text;
    return "unrecognized error code";
}

extern "C" const char *cudaGetErrorName(cudaError_t error)
{
    for (const auto &e : errors)
        if (e.code == error) return e.name;
    return "unrecognized error code";
}

/* ---- devices ---- */

extern "C" cudaError_t cudaGetDeviceCount(int *count)
{
    cudaError_t e = enter("cudaGetDeviceCount", FAIL_COUNT);
    if (e != cudaSuccess) return e;
    *count = settings.devices;
    return cudaSuccess;
}

static cudaError_t check_device(const char *call, int device)
{
    cudaError_t e = enter(call, FAIL_DEVICE);
    if (e != cudaSuccess) return e;
    if (device >= 0 && device < settings.devices) return cudaSuccess;
    return fail(cudaErrorInvalidDevice, "%s: device %d of %d", call, device,
                settings.devices);
}

extern "C" cudaError_t cudaSetDevice(int device)
{
    cudaError_t e = check_device("cudaSetDevice", device);
    if (e != cudaSuccess) return e;
    current_device = device;
    Device *d;
    return enter("cudaSetDevice", &d);
}

extern "C" cudaError_t cudaGetDevice(int *device)
{
    cudaError_t e = enter("cudaGetDevice");
    if (e == cudaSuccess) *device = current_device;
    return e;
}

extern "C" cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    cudaError_t e = check_device("cudaGetDeviceProperties", device);
    if (e != cudaSuccess) return e;
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "emulated device");
    p->totalGlobalMem = settings.memory;
    p->sharedMemPerBlock = 48 << 10;
    p->sharedMemPerMultiprocessor = 164 << 10;
    p->major = 8;
    p->minor = 0;
    p->multiProcessorCount = 4;
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsPerMultiProcessor = 2048;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 0x7fffffff;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->pciDeviceID = device;
    return cudaSuccess;
}

extern "C" cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr,
                                              int device)
{
    cudaDeviceProp p;
    cudaError_t e = cudaGetDeviceProperties(&p, device);
    if (e != cudaSuccess) return e;
    switch (attr) {
    case cudaDevAttrMaxThreadsPerBlock:
        *value = p.maxThreadsPerBlock;
        return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlock:
        *value = static_cast<int>(p.sharedMemPerBlock);
        return cudaSuccess;
    case cudaDevAttrWarpSize:
        *value = p.warpSize;
        return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
        *value = p.multiProcessorCount;
        return cudaSuccess;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
        *value = p.maxThreadsPerMultiProcessor;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
        *value = p.major;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
        *value = p.minor;
        return cudaSuccess;
    }
    return fail(cudaErrorInvalidValue, "cudaDeviceGetAttribute: attribute %d",
                static_cast<int>(attr));
}

extern "C" cudaError_t cudaDeviceSynchronize(void)
{
    Device *d;
    cudaError_t e = enter("cudaDeviceSynchronize", &d, FAIL_WAIT);
    if (e != cudaSuccess) return e;
    finish(d);
    return d->ended;
}

extern "C" cudaError_t cudaDriverGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

extern "C" cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}
