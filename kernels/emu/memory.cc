/* memory.cc - device memory, page-locked memory, copies.
 *
 * Each device has a range of addresses of its own. A block takes whole pages of it with a
 * page that is no memory behind them, ends where they end (to 256 bytes), and is filled
 * with a pattern. Addresses are used again late. The block's size is what is accounted,
 * as on a real device: up to 1 MiB in steps of 512 bytes, together in steps of 2 MiB;
 * more than that in steps of 2 MiB.
 *
 * Copies are checked when they are given: the sides must be what the kind says, and lie
 * within one block. From pageable memory the bytes are taken at once, from page-locked
 * memory when the copy runs; a copy into pageable memory waits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <vector>

#include "emu_control.h"
#include "emu_internal.h"
#ifdef RLE_EMU_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace emu
{

namespace
{

const size_t RANGE = static_cast<size_t>(64) << 30; /* addresses of a device */
const size_t COARSE = static_cast<size_t>(2) << 20;
const size_t SMALL = static_cast<size_t>(1) << 20;
enum { ALIGN = 256, FILL = 0xff };

struct Block {
    size_t size; /* as asked for */
    char *pages; /* of the block and the page behind */
    size_t room;
};

struct Range {
    char *begin = nullptr;
    std::map<char *, size_t> free; /* by address */
    std::map<char *, Block> blocks;
    char *next = nullptr; /* where the search for room starts */
};

Range ranges[MOST_DEVICES];
std::map<char *, size_t> page_locked;

size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

size_t page_size()
{
    static const size_t size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    return size;
}

void count(Device *d, size_t size, bool add)
{
    bool small = size <= SMALL;
    size_t n = round_up(size, small ? 512 : COARSE);
    size_t *sum = small ? &d->small_bytes : &d->large_bytes;
    *sum = add ? *sum + n : *sum - n;
}

bool open_range(Range *r)
{
    if (r->begin) return true;
    void *m = mmap(nullptr, RANGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (m == MAP_FAILED) return false;
    r->begin = r->next = static_cast<char *>(m);
    r->free[r->begin] = RANGE;
    return true;
}

/* Room for `size` bytes, from `next` on and then from the start. */
char *take_room(Range *r, size_t size)
{
    auto start = r->free.lower_bound(r->next);
    auto i = start;
    for (size_t looked = 0; looked < r->free.size(); looked++, ++i) {
        if (i == r->free.end()) i = r->free.begin();
        if (i->second < size) continue;
        char *p = i->first;
        size_t rest = i->second - size;
        r->free.erase(i);
        if (rest) r->free[p + size] = rest;
        r->next = p + size;
        return p;
    }
    return nullptr;
}

void give_room(Range *r, char *p, size_t size)
{
    auto after = r->free.lower_bound(p);
    if (after != r->free.end() && after->first == p + size) {
        size += after->second;
        after = r->free.erase(after);
    }
    if (after != r->free.begin()) {
        auto before = std::prev(after);
        if (before->first + before->second == p) {
            before->second += size;
            return;
        }
    }
    r->free[p] = size;
}

char *make_block(Device *d, size_t size)
{
    Range *r = &ranges[d->index];
    size_t body = round_up(size, page_size()), room = body + page_size();
    char *pages = open_range(r) ? take_room(r, room) : nullptr;
    if (!pages) return nullptr;
    if (!commit(d, pages, body)) {
        give_room(r, pages, room);
        return nullptr;
    }
    char *p = pages + body - round_up(size, ALIGN);
    {
        Opened open(d);
        memset(pages, FILL, body);
    }
#ifdef RLE_EMU_ASAN
    __asan_poison_memory_region(pages, static_cast<size_t>(p - pages));
    __asan_poison_memory_region(p + size, round_up(size, ALIGN) - size);
#endif
    r->blocks[p] = Block{size, pages, room};
    count(d, size, true);
    return p;
}

void remove_block(Device *d, char *p)
{
    Range *r = &ranges[d->index];
    Block b = r->blocks[p];
    r->blocks.erase(p);
    count(d, b.size, false);
#ifdef RLE_EMU_ASAN
    __asan_unpoison_memory_region(b.pages, b.room);
#endif
    decommit(b.pages, b.room);
    give_room(r, b.pages, b.room);
}

/* ---- what an address is ---- */

enum Kind { PAGEABLE, PAGE_LOCKED, DEVICE };

struct Side {
    Kind kind;
    Device *device;
    bool fits;     /* within one block */
    size_t beyond; /* bytes that do not */
};

Side side_of(const void *at, size_t size)
{
    char *p = static_cast<char *>(const_cast<void *>(at));
    Device *d = device_of_address(at);
    if (d) {
        auto &blocks = ranges[d->index].blocks;
        auto i = blocks.upper_bound(p);
        if (i == blocks.begin()) return Side{DEVICE, d, false, size};
        --i;
        size_t offset = static_cast<size_t>(p - i->first);
        if (offset >= i->second.size) return Side{DEVICE, d, false, size};
        size_t left = i->second.size - offset;
        return Side{DEVICE, d, left >= size, left >= size ? 0 : size - left};
    }
    auto i = page_locked.upper_bound(p);
    if (i != page_locked.begin()) {
        --i;
        if (p < i->first + i->second) return Side{PAGE_LOCKED, nullptr, true, 0};
    }
    return Side{PAGEABLE, nullptr, true, 0};
}

/* Is one side of a copy what the kind says? */
cudaError_t check_side(const char *call, const char *name, const void *p, const Side &s,
                       bool want_device, const Device *device)
{
    if (s.kind == DEVICE && !want_device)
        return fail(cudaErrorInvalidValue,
                    "%s: the %s %p is memory of device %d, the kind says host", call,
                    name, p, s.device->index);
    if (s.kind != DEVICE && want_device)
        return fail(cudaErrorInvalidValue,
                    "%s: the %s %p is host memory, the kind says device", call, name, p);
    if (s.kind == DEVICE && s.device != device)
        return fail(cudaErrorInvalidValue,
                    "%s: the %s %p is memory of device %d, the stream is of device %d: "
                    "cudaMemcpyPeerAsync copies between devices",
                    call, name, p, s.device->index, device->index);
    if (s.fits) return cudaSuccess;
    return fail(cudaErrorInvalidValue,
                "%s: the last %zu bytes of the %s %p are outside its block of memory",
                call, s.beyond, name, p);
}

/* The bytes of a copy as they are now. */
std::shared_ptr<std::vector<char>> taken(const void *p, size_t size)
{
    const char *bytes = static_cast<const char *>(p);
    return std::make_shared<std::vector<char>>(bytes, bytes + size);
}

cudaError_t copy(const char *call, Device *d, void *dst, const void *src, size_t size,
                 enum cudaMemcpyKind kind, cudaStream_t stream)
{
    if (!size) return cudaSuccess;
    if (static_cast<unsigned>(kind) > cudaMemcpyDefault)
        return fail(cudaErrorInvalidMemcpyDirection, "%s: no kind of copy is %d", call,
                    static_cast<int>(kind));
    Side to = side_of(dst, size), from = side_of(src, size);
    bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (kind == cudaMemcpyDefault) {
        to_device = to.kind == DEVICE;
        from_device = from.kind == DEVICE;
    }
    cudaError_t e = check_side(call, "destination", dst, to, to_device, d);
    if (e == cudaSuccess) e = check_side(call, "source", src, from, from_device, d);
    if (e != cudaSuccess) return e;
    cudaError_t ordered = ordered_failure(FAIL_COPY);
    if (ordered && !ends_device(ordered)) return fail(ordered, "%s", "");
    if (ordered) {
        e = push(stream, [ordered](Device *on) { end_device(on, ordered, "%s", ""); });
    } else if (from.kind == PAGEABLE && settings.lazy) {
        auto bytes = taken(src, size);
        e = push(stream, [=](Device *) { memcpy(dst, bytes->data(), size); });
    } else {
        e = push(stream, [=](Device *) { memmove(dst, src, size); });
    }
    if (e == cudaSuccess && to.kind == PAGEABLE) e = finish(stream);
    return e;
}

} // namespace

size_t bytes_used(const Device *d)
{
    if (!d->open) return 0;
    return settings.context + round_up(d->small_bytes, COARSE) + d->large_bytes;
}

Device *device_of_address(const void *at)
{
    const char *p = static_cast<const char *>(at);
    for (int i = 0; i < MOST_DEVICES; i++)
        if (ranges[i].begin && p >= ranges[i].begin && p < ranges[i].begin + RANGE)
            return &devices[i];
    return nullptr;
}

bool within_block(const Device *device, const void *p, size_t size)
{
    Side s = side_of(p, size);
    return s.kind == DEVICE && s.device == device && s.fits;
}

} // namespace emu

using namespace emu;

extern "C" cudaError_t cudaMalloc(void **p, size_t size)
{
    Device *d;
    cudaError_t e = enter("cudaMalloc", &d, FAIL_MALLOC);
    if (e != cudaSuccess) return e;
    *p = nullptr;
    if (!size) return cudaSuccess;
    bool fits = size <= settings.memory;
    if (fits) {
        count(d, size, true);
        fits = bytes_used(d) <= settings.memory;
        count(d, size, false);
    }
    if (fits) *p = make_block(d, size);
    if (*p) return cudaSuccess;
    return fail(cudaErrorMemoryAllocation,
                "cudaMalloc: %zu bytes wanted, %zu of %zu in use on device %d", size,
                bytes_used(d), settings.memory, d->index);
}

extern "C" cudaError_t cudaFree(void *p)
{
    Device *d;
    cudaError_t e = enter("cudaFree", &d, FAIL_FREE);
    if (e != cudaSuccess) return e;
    if (!p) return cudaSuccess;
    Device *owner = device_of_address(p);
    if (!owner || !ranges[owner->index].blocks.count(static_cast<char *>(p)))
        return fail(cudaErrorInvalidValue, "cudaFree: no block of a device starts at %p",
                    p);
    finish(owner);
    remove_block(owner, static_cast<char *>(p));
    return owner->ended;
}

extern "C" cudaError_t cudaHostAlloc(void **p, size_t size, unsigned)
{
    Device *d;
    cudaError_t e = enter("cudaHostAlloc", &d, FAIL_HOST);
    if (e != cudaSuccess) return e;
    void *m = nullptr;
    if (posix_memalign(&m, 4096, size ? size : 1) != 0)
        return fail(cudaErrorMemoryAllocation, "cudaHostAlloc: %zu bytes wanted", size);
    memset(m, FILL, size);
    page_locked[static_cast<char *>(m)] = size;
    *p = m;
    return cudaSuccess;
}

extern "C" cudaError_t cudaMallocHost(void **p, size_t size)
{
    return cudaHostAlloc(p, size, cudaHostAllocDefault);
}

extern "C" cudaError_t cudaFreeHost(void *p)
{
    Device *d;
    cudaError_t e = enter("cudaFreeHost", &d);
    if (e != cudaSuccess || !p) return e;
    if (!page_locked.erase(static_cast<char *>(p)))
        return fail(cudaErrorInvalidValue,
                    "cudaFreeHost: no page-locked block starts at %p", p);
    for (Device &each : devices)
        if (each.open) finish(&each);
    free(p);
    return cudaSuccess;
}

extern "C" cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    Device *d;
    cudaError_t e = enter("cudaMemGetInfo", &d, FAIL_INFO);
    if (e != cudaSuccess) return e;
    size_t used = bytes_used(d);
    *total = settings.memory;
    *free_bytes = used < settings.memory ? settings.memory - used : 0;
    return cudaSuccess;
}

extern "C" cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t size,
                                       enum cudaMemcpyKind kind, cudaStream_t stream)
{
    Device *d;
    cudaError_t e = enter("cudaMemcpyAsync", &d);
    return e == cudaSuccess ? copy("cudaMemcpyAsync", d, dst, src, size, kind, stream)
                            : e;
}

extern "C" cudaError_t cudaMemcpy(void *dst, const void *src, size_t size,
                                  enum cudaMemcpyKind kind)
{
    Device *d;
    cudaError_t e = enter("cudaMemcpy", &d);
    if (e == cudaSuccess) e = copy("cudaMemcpy", d, dst, src, size, kind, nullptr);
    return e == cudaSuccess ? finish(static_cast<cudaStream_t>(nullptr)) : e;
}

extern "C" cudaError_t cudaMemcpyPeerAsync(void *dst, int dst_device, const void *src,
                                           int src_device, size_t size,
                                           cudaStream_t stream)
{
    const char *call = "cudaMemcpyPeerAsync";
    Device *d;
    cudaError_t e = enter(call, &d);
    if (e != cudaSuccess || !size) return e;
    if (dst_device < 0 || src_device < 0 || dst_device >= settings.devices ||
        src_device >= settings.devices)
        return fail(cudaErrorInvalidDevice, "%s: from device %d to %d of %d", call,
                    src_device, dst_device, settings.devices);
    e = check_side(call, "destination", dst, side_of(dst, size), true,
                   &devices[dst_device]);
    if (e == cudaSuccess)
        e = check_side(call, "source", src, side_of(src, size), true,
                       &devices[src_device]);
    if (e != cudaSuccess) return e;
    return push(stream, [=](Device *) {
        std::shared_ptr<std::vector<char>> bytes;
        {
            Opened source(&devices[src_device]);
            bytes = taken(src, size);
        }
        Opened destination(&devices[dst_device]);
        memcpy(dst, bytes->data(), size);
    });
}

extern "C" cudaError_t cudaMemsetAsync(void *p, int value, size_t size,
                                       cudaStream_t stream)
{
    Device *d;
    cudaError_t e = enter("cudaMemsetAsync", &d);
    if (e != cudaSuccess || !size) return e;
    e = check_side("cudaMemsetAsync", "destination", p, side_of(p, size), true, d);
    if (e != cudaSuccess) return e;
    return push(stream, [=](Device *) { memset(p, value, size); });
}

extern "C" cudaError_t cudaMemset(void *p, int value, size_t size)
{
    return cudaMemsetAsync(p, value, size, nullptr);
}

extern "C" size_t rle_emu_bytes_used(int device)
{
    return device >= 0 && device < MOST_DEVICES ? bytes_used(&devices[device]) : 0;
}
