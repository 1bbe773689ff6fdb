// cuda_emu.h - compile a .cu with g++/clang++ and run its kernels on one CPU thread.  No CUDA toolkit needed.
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <stddef.h>
#include <string.h>
#include <math.h>
#ifdef __cplusplus
extern "C" {
#endif
// ---- runtime API subset (values = CUDA's own) --------------------------------------------
typedef enum { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorMemoryAllocation = 2, cudaErrorInvalidConfiguration = 9,
  cudaErrorInvalidDevicePointer = 17, cudaErrorInsufficientDriver = 35, cudaErrorNoDevice = 100, cudaErrorIllegalAddress = 700,
  cudaErrorNotReady = 600, cudaErrorLaunchFailure = 719 } cudaError_t;
typedef enum cudaMemcpyKind { cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice, cudaMemcpyDefault } cudaMemcpyKind;
typedef struct emuStream *cudaStream_t;
typedef struct emuEvent *cudaEvent_t;
#define cudaStreamNonBlocking 1
#define cudaEventDisableTiming 2
cudaError_t cudaGetDeviceCount(int *);
cudaError_t cudaMalloc(void **, size_t);
cudaError_t cudaFree(void *);
cudaError_t cudaMallocHost(void **, size_t);
cudaError_t cudaFreeHost(void *);
cudaError_t cudaMemGetInfo(size_t *, size_t *);
cudaError_t cudaMemcpyAsync(void *, const void *, size_t, cudaMemcpyKind, cudaStream_t);
cudaError_t cudaMemcpy(void *, const void *, size_t, cudaMemcpyKind);
cudaError_t cudaMemsetAsync(void *, int, size_t, cudaStream_t);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *, unsigned);
cudaError_t cudaStreamDestroy(cudaStream_t);
cudaError_t cudaStreamSynchronize(cudaStream_t);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *, unsigned);
cudaError_t cudaEventDestroy(cudaEvent_t);
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t);
cudaError_t cudaEventQuery(cudaEvent_t);
cudaError_t cudaEventSynchronize(cudaEvent_t);
cudaError_t cudaGetLastError(void);
const char *cudaGetErrorString(cudaError_t);
// ---- test controls ----------------------------------------------------------------------
enum { EMU_FWD, EMU_REV, EMU_RAND };   // order in which threads of a block (and blocks) are started
enum { EMU_EAGER, EMU_LAZY };          // run ops at enqueue, or only when something synchronises
void emu_set_order(int order, uint64_t seed);
void emu_set_mode(int mode);
void emu_set_mem_limit(size_t bytes);
void emu_fail_malloc_after(long n);    // fault injection: n-th cudaMalloc from now fails once (-1 off)
const char *emu_last_message(void);
void emu_reset_error(void);
void emu_stats(uint64_t *launches, uint64_t *threads, uint64_t *switches);
typedef struct cudaDeviceProp { char name[256]; size_t totalGlobalMem, sharedMemPerBlock; int major, minor, multiProcessorCount; } cudaDeviceProp;
#define CUDART_VERSION 13000
cudaError_t cudaSetDevice(int);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *, int);
cudaError_t cudaDriverGetVersion(int *);
cudaError_t cudaRuntimeGetVersion(int *);
#ifdef __cplusplus
}
#endif
