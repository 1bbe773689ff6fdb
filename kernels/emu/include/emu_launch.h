/* emu_launch.h - launching a kernel, and what a kernel knows of its place in the grid.
 *
 * The threads of a block run one after another on the calling thread. Each runs until it
 * ends or has to wait for others (emu_threads.h); blocks run one after another too. */
#ifndef RLE_EMU_LAUNCH_H
#define RLE_EMU_LAUNCH_H

#include <stddef.h>

#include <tuple>

#include "cuda_runtime_api.h"
#include "emu_types.h"

namespace emu
{

/* The running thread's coordinates, and the dynamic shared memory of its block. */
extern uint3 thread_index, block_index;
extern dim3 block_size, grid_size;
extern unsigned thread_number; /* in its block, x fastest */
extern char *dynamic_shared;

/* Which part of the shared variables a kernel has been seen to write. */
struct Shared_use {
    size_t begin, end;
    bool known;
    unsigned launches = 0;
};

/* One launch: what RLE_LAUNCH hands over. */
struct Launch {
    const char *kernel; /* as written in the launch */
    dim3 grid, block;
    size_t shared;
    cudaError_t injected; /* the failure that a test ordered */

    virtual ~Launch() {}
    /* Run threads until none is left to be started. */
    virtual void run_threads() = 0;
    virtual Shared_use *shared_use() = 0;
};

/* Start on the next thread of the block; false: all have been started. */
bool next_thread();
void end_thread();

/* Owns `launch` from here on. */
cudaError_t submit(Launch *launch, cudaStream_t stream);
/* fn(arg) in the stream's order, with the device's memory open to it: for libraries. */
cudaError_t enqueue(cudaStream_t stream, void (*fn)(void *), void *arg);

template <class Body> struct Launch_of : Launch {
    Body body;
    explicit Launch_of(const Body &b) : body(b) {}
    void run_threads() override
    {
        while (next_thread()) {
            body();
            end_thread();
        }
    }
    Shared_use *shared_use() override
    {
        static Shared_use use;
        return &use;
    }
};

template <class Body>
cudaError_t launch(const char *kernel, dim3 grid, dim3 block, size_t shared,
                   cudaStream_t stream, const Body &body)
{
    Launch *l = new Launch_of<Body>(body);
    l->kernel = kernel;
    l->grid = grid;
    l->block = block;
    l->shared = shared;
    l->injected = cudaSuccess;
    return submit(l, stream);
}

} // namespace emu

#define threadIdx (emu::thread_index)
#define blockIdx (emu::block_index)
#define blockDim (emu::block_size)
#define gridDim (emu::grid_size)
static constexpr int warpSize = 32;

#define RLE_DYNAMIC_SHARED(type, name)                                                   \
    type *name = reinterpret_cast<type *>(emu::dynamic_shared)

/* The arguments are copied when the launch is given to the stream, as a real one does. */
#define RLE_LAUNCH(kernel, grid, block, shared, stream, ...)                             \
    ([&]() -> cudaError_t {                                                              \
        auto arguments_ = std::make_tuple(__VA_ARGS__);                                  \
        return emu::launch(#kernel, (grid), (block), (shared), (stream), [=]() {         \
            std::apply([](auto... given_) { kernel(given_...); }, arguments_);           \
        });                                                                              \
    }())

#endif
