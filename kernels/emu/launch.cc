/* launch.cc - one launch: the limits of a device, the blocks in order, shared memory that
 * holds nothing when a block starts.
 *
 * Shared variables are the thread-local variables of this shared object (emu_types.h).
 * All of them are filled before a kernel's first block; what that block wrote is what is
 * filled before the next ones, and after the launch it is checked that no block wrote
 * elsewhere. */
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>

#include "emu_control.h"
#include "emu_internal.h"
#include "fiber.h"

namespace emu
{

uint3 block_index;
dim3 block_size, grid_size;
char *dynamic_shared;
Launch *running;
Device *running_on;
uint64_t launches_run;

namespace
{

enum { MOST_THREADS = 1024, MOST_DYNAMIC_SHARED = 48 << 10, FILL = 0xff };

/* ---- shared variables ---- */

__shared__ char first_shared[16]; /* so that there is a thread-local block */

struct Shared_variables {
    unsigned char *begin;
    size_t size;
};

int find_thread_local(dl_phdr_info *info, size_t, void *out)
{
    Shared_variables *found = static_cast<Shared_variables *>(out);
    const char *inside = first_shared;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *h = &info->dlpi_phdr[i];
        char *data = static_cast<char *>(info->dlpi_tls_data);
        if (h->p_type == PT_TLS && data && inside >= data && inside < data + h->p_memsz) {
            found->begin = reinterpret_cast<unsigned char *>(data);
            found->size = h->p_memsz;
            return 1;
        }
    }
    return 0;
}

const Shared_variables &shared_variables()
{
    static Shared_variables all;
    if (!all.begin) dl_iterate_phdr(find_thread_local, &all);
    return all;
}

/* Fill what the kernel is known to use, or everything. */
void fill_shared(const Shared_use *use)
{
    const Shared_variables &all = shared_variables();
    if (use->known)
        memset(all.begin + use->begin, FILL, use->end - use->begin);
    else
        memset(all.begin, FILL, all.size);
    if (running->shared) memset(dynamic_shared, FILL, running->shared);
}

/* The range that is not as it was filled joins what the kernel uses. */
void note_use(Shared_use *use)
{
    const Shared_variables &all = shared_variables();
    size_t begin = 0, end = all.size;
    bool untouched =
        all.begin[0] == FILL && memcmp(all.begin, all.begin + 1, all.size - 1) == 0;
    if (untouched) begin = end;
    while (begin < end && all.begin[begin] == FILL) begin++;
    while (end > begin && all.begin[end - 1] == FILL) end--;
    if (begin < end) {
        use->begin = use->end ? std::min(use->begin, begin) : begin;
        use->end = std::max(use->end, end);
    }
    use->known = true;
}

/* `size` bytes that end where a page does, so that what lies behind them is no memory.
 * Aligned to 16 bytes, which is all that a device promises. */
char *place_dynamic_shared(size_t size)
{
    static char *end;
    if (!end) {
        size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
        size_t room = (MOST_DYNAMIC_SHARED + page - 1) / page * page;
        void *m = mmap(nullptr, room + page, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (m == MAP_FAILED) return nullptr;
        end = static_cast<char *>(m) + room;
        if (mprotect(end, page, PROT_NONE) != 0) return end = nullptr;
    }
    return end - (size + 15) / 16 * 16;
}

/* ---- blocks ---- */

void place_block(uint64_t b)
{
    block_index.x = static_cast<unsigned>(b % grid_size.x);
    block_index.y = static_cast<unsigned>(b / grid_size.x % grid_size.y);
    block_index.z = static_cast<unsigned>(b / grid_size.x / grid_size.y);
}

void run_blocks()
{
    uint64_t n = static_cast<uint64_t>(grid_size.x) * grid_size.y * grid_size.z;
    /* At random: steps of a number that shares no factor with n reach every block. */
    uint64_t step = 1, at = 0;
    if (settings.order == RANDOM && n > 2) {
        at = random_below(n);
        do step = 1 + random_below(n - 1);
        while (std::gcd(step, n) != 1);
    }
    Shared_use *use = running->shared_use();
    for (uint64_t i = 0; i < n; i++, at = (at + step) % n) {
        place_block(settings.order == REVERSE ? n - 1 - at : at);
        fill_shared(use);
        if (!run_block()) return;
        if (!use->known) note_use(use);
    }
    fill_shared(use);
    /* Nothing new, unless a later block wrote more than the first. It takes longer than a
     * small kernel: often at first, then from time to time. */
    if (use->launches++ < 16 || use->launches % 64 == 0) note_use(use);
}

void run(Launch *launch, Device *device)
{
    launches_run++;
    if (launch->injected) {
        end_device(device, launch->injected, "%s", "");
        return;
    }
    running = launch;
    running_on = device;
    block_size = launch->block;
    grid_size = launch->grid;
    dynamic_shared = place_dynamic_shared(launch->shared);
    catch_signals();
    run_blocks();
    running = nullptr;
}

} // namespace

const char *running_where()
{
    static char text[200];
    snprintf(text, sizeof text, "kernel %.100s, block (%u,%u,%u)", running->kernel,
             block_index.x, block_index.y, block_index.z);
    return text;
}

static cudaError_t check_limits(const Launch *l)
{
    const dim3 &g = l->grid, &b = l->block;
    uint64_t threads = static_cast<uint64_t>(b.x) * b.y * b.z;
    if (!threads || b.x > 1024 || b.y > 1024 || b.z > 64 || threads > MOST_THREADS)
        return fail(cudaErrorInvalidConfiguration,
                    "kernel %s: a block of %ux%ux%u threads; there may be 1 to %d",
                    l->kernel, b.x, b.y, b.z, MOST_THREADS);
    if (!g.x || !g.y || !g.z || g.x > 0x7fffffffu || g.y > 65535 || g.z > 65535)
        return fail(cudaErrorInvalidConfiguration,
                    "kernel %s: a grid of %ux%ux%u blocks; there may be 1 to 2147483647, "
                    "65535 and 65535",
                    l->kernel, g.x, g.y, g.z);
    if (l->shared > MOST_DYNAMIC_SHARED)
        return fail(cudaErrorInvalidValue,
                    "kernel %s: %zu bytes of shared memory; a block may have %d",
                    l->kernel, l->shared, MOST_DYNAMIC_SHARED);
    return cudaSuccess;
}

static cudaError_t hand_over(Launch *launch, cudaStream_t stream)
{
    std::shared_ptr<Launch> owned(launch);
    Device *device;
    cudaError_t e = enter("launch", &device);
    if (e == cudaSuccess) e = check_limits(launch);
    if (e != cudaSuccess) return e;
    cudaError_t ordered = ordered_failure(FAIL_LAUNCH);
    if (ordered && !ends_device(ordered)) return fail(ordered, "%s", "");
    launch->injected = ordered;
    return push(stream, [owned](Device *d) { run(owned.get(), d); });
}

/* A real launch says nothing itself: the last error is asked for, which may be what an
 * earlier call left there. */
cudaError_t submit(Launch *launch, cudaStream_t stream)
{
    cudaError_t e = hand_over(launch, stream);
    return e == cudaSuccess ? take_last_error() : e;
}

cudaError_t enqueue(cudaStream_t stream, void (*fn)(void *), void *arg)
{
    Device *device;
    cudaError_t e = enter("library call", &device);
    if (e != cudaSuccess) return e;
    return push(stream, [fn, arg](Device *) { fn(arg); });
}

} // namespace emu

extern "C" void rle_emu_get_stats(rle_emu_stats *out)
{
    *out = rle_emu_stats{emu::launches_run, emu::threads_run, emu::fiber_switches};
}
