/* emu_internal.h - what the files of the emulation share.
 *
 *   device.cc   devices, the one that is current, errors and their texts
 *   memory.cc   device memory, page-locked memory, copies and their checks
 *   guard.cc    who may touch device memory; signals become CUDA's errors
 *   stream.cc   streams, events, the order of work
 *   launch.cc   one launch: limits, blocks in order, shared memory
 *   block.cc    the threads of a block: fibers, barriers, warp operations, deadlock
 *   fiber.cc    stacks and the switch between them
 *   cublas.cc   cuBLAS
 *   control.cc  settings, failures that tests order
 *
 * One thread calls into all of this. */
#ifndef RLE_EMU_INTERNAL_H
#define RLE_EMU_INTERNAL_H

#include <stddef.h>
#include <stdint.h>

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "cuda_runtime_api.h"
#include "emu_launch.h"
#include "emu_threads.h"

#if defined(__SANITIZE_ADDRESS__)
#define RLE_EMU_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define RLE_EMU_ASAN 1
#endif
#endif

namespace emu
{

struct Stream;

/* ---- settings (control.cc) ---- */

enum Order { FORWARD, REVERSE, RANDOM };

struct Settings {
    int devices = 1;
    size_t memory = static_cast<size_t>(1) << 30;
    size_t context = static_cast<size_t>(4) << 20;
    Order order = FORWARD;
    uint64_t random = 1; /* state of the generator */
    bool lazy = false;
    bool cublas = true; /* there is one */
    bool guard = true; /* close device memory to the host, where that is possible */
};
extern Settings settings;

uint64_t random_number();
/* 0 .. n-1 */
static inline size_t random_below(size_t n)
{
    return static_cast<size_t>(random_number() % n);
}

enum Failing {
    FAIL_NEVER,
    FAIL_COUNT,
    FAIL_DEVICE,
    FAIL_MALLOC,
    FAIL_FREE,
    FAIL_HOST,
    FAIL_INFO,
    FAIL_COPY,
    FAIL_LAUNCH,
    FAIL_STREAM,
    FAIL_EVENT,
    FAIL_WAIT,
    FAIL_CUBLAS,
    FAIL_KINDS
};

/* Has a test ordered that this call fails? With what, or cudaSuccess. FAIL_NEVER: no. */
cudaError_t ordered_failure(Failing kind);

/* A line in the trace file, when there is one. */
void trace(const char *call);

/* ---- devices and errors (device.cc) ---- */

enum { MOST_DEVICES = 8 };

struct Device {
    int index = 0;
    bool open = false;               /* has its context */
    cudaError_t ended = cudaSuccess; /* the error after which nothing works any more */
    size_t small_bytes = 0, large_bytes = 0;
    std::shared_ptr<Stream> default_stream;
    std::vector<std::shared_ptr<Stream>> streams; /* in order of creation */
};

extern Device devices[MOST_DEVICES];
extern int current_device;

/* The start of every call that works on the current device: notes its name, refuses
 * forked processes and ended devices, opens the device, fails if that was ordered. */
cudaError_t enter(const char *call, Device **out, Failing kind = FAIL_NEVER);
/* The same for calls that need no device. */
cudaError_t enter(const char *call, Failing kind = FAIL_NEVER);

/* Give back a call's error: it becomes the last one, with more words for
 * rle_emu_message. */
cudaError_t fail(cudaError_t error, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* The device ends: everything on it fails with `error` from now on. */
void end_device(Device *device, cudaError_t error, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
bool ends_device(cudaError_t error);
/* The last error of a call, which is forgotten. */
cudaError_t take_last_error();
/* Forget errors, last and final. For tests. */
void forget_errors();

/* ---- memory (memory.cc) ---- */

size_t bytes_used(const Device *device);
/* The device that `p` belongs to by its address; NULL: none. */
Device *device_of_address(const void *p);
/* Whether these bytes lie in one block of the device's memory. */
bool within_block(const Device *device, const void *p, size_t size);

/* ---- guard (guard.cc) ---- */

/* Make [p, p + size), whole pages, memory of the device, or no memory again. */
bool commit(Device *device, char *p, size_t size);
void decommit(char *p, size_t size);
bool guarded();

/* While it lives, device memory is open to the code that runs: work of `device`. */
class Opened
{
  public:
    explicit Opened(const Device *device);
    ~Opened();
    Opened(const Opened &) = delete;
    Opened &operator=(const Opened &) = delete;

  private:
    const Device *before;
};

/* What a signal inside a kernel is: before each launch. */
void catch_signals();

/* ---- streams (stream.cc) ---- */

cudaError_t push(cudaStream_t stream, const std::function<void(Device *)> &run);
/* Run all that was given to the device, or to one stream. */
void finish(Device *device);
cudaError_t finish(cudaStream_t stream);

/* ---- launches (launch.cc) and blocks (block.cc) ---- */

extern Launch *running; /* NULL: no kernel is running */
extern Device *running_on;

/* "kernel move<T>, block (0,0,0)" of what is running. */
const char *running_where();
/* All threads of one block of `running`. false: the device has ended. */
bool run_block();
/* From a thread: the running kernel ends here, with the device. Does not return. */
void abandon_thread() __attribute__((noreturn));

extern uint64_t launches_run, threads_run;

} // namespace emu

#endif
