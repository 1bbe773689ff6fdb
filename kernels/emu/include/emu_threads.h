/* emu_threads.h - what threads of a block do together: barriers, warp operations,
 * atomics.
 *
 * Only at a barrier or a warp operation does a thread wait for others; between two of
 * them it runs alone, so an atomic is a plain read and write. Every one of these calls
 * passes the line it stands on: threads that meet must meet at the same line, and a
 * report of threads that did not names the lines. */
#ifndef RLE_EMU_THREADS_H
#define RLE_EMU_THREADS_H

#include <stdint.h>
#include <string.h>

#include "emu_launch.h"

namespace emu
{

struct Place {
    const char *file;
    int line;
};

/* Parameters of their own: a braced default would say where it was written. */
#define RLE_EMU_HERE const char *file_ = __builtin_FILE(), int line_ = __builtin_LINE()
#define RLE_EMU_PLACE (emu::Place{file_, line_})

/* Wait for every thread of the block; how many passed true. */
unsigned barrier(bool predicate, Place here);

enum Warp_operation { WARP_SYNC, WARP_SHUFFLE, WARP_VOTE, WARP_MATCH };

/* What a lane gets: the value of lane `source`, and which lanes passed an odd value; for
 * a match, which passed the same as this one. */
struct Exchanged {
    uint64_t value;
    unsigned ballot;
};

/* Wait for the lanes of `mask` that have not ended; `source` < 0: the lane's own value. A
 * value from a lane that takes no part is a pattern. */
Exchanged exchange(Warp_operation operation, unsigned mask, uint64_t value, int source,
                   Place here);

static inline int lane()
{
    return static_cast<int>(thread_number & 31);
}

template <class T> static inline uint64_t to_bits(T v)
{
    static_assert(sizeof(T) <= 8, "warp operations move up to 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &v, sizeof v);
    return bits;
}

template <class T> static inline T shuffle(unsigned mask, T v, int source, Place here)
{
    uint64_t bits = exchange(WARP_SHUFFLE, mask, to_bits(v), source, here).value;
    T out;
    memcpy(&out, &bits, sizeof out);
    return out;
}

} // namespace emu

/* ---- barriers ---- */

static inline void __syncthreads(RLE_EMU_HERE)
{
    emu::barrier(false, RLE_EMU_PLACE);
}
static inline int __syncthreads_count(int predicate, RLE_EMU_HERE)
{
    return static_cast<int>(emu::barrier(predicate != 0, RLE_EMU_PLACE));
}
static inline int __syncthreads_or(int predicate, RLE_EMU_HERE)
{
    return emu::barrier(predicate != 0, RLE_EMU_PLACE) != 0;
}
static inline int __syncthreads_and(int predicate, RLE_EMU_HERE)
{
    return emu::barrier(predicate == 0, RLE_EMU_PLACE) == 0;
}
static inline void __syncwarp(unsigned mask = 0xffffffffu, RLE_EMU_HERE)
{
    emu::exchange(emu::WARP_SYNC, mask, 0, -1, RLE_EMU_PLACE);
}
static inline void __threadfence() {}
static inline void __threadfence_block() {}

/* ---- warps ---- */

template <class T>
static inline T __shfl_sync(unsigned mask, T v, int source, int width = 32, RLE_EMU_HERE)
{
    int first = emu::lane() & ~(width - 1);
    return emu::shuffle(mask, v, first + (source & (width - 1)), RLE_EMU_PLACE);
}
template <class T>
static inline T __shfl_down_sync(unsigned mask, T v, unsigned delta, int width = 32,
                                 RLE_EMU_HERE)
{
    int l = emu::lane(), d = static_cast<int>(delta);
    return emu::shuffle(mask, v, (l & (width - 1)) + d < width ? l + d : l,
                        RLE_EMU_PLACE);
}
template <class T>
static inline T __shfl_up_sync(unsigned mask, T v, unsigned delta, int width = 32,
                               RLE_EMU_HERE)
{
    int l = emu::lane(), d = static_cast<int>(delta);
    return emu::shuffle(mask, v, (l & (width - 1)) >= d ? l - d : l, RLE_EMU_PLACE);
}
template <class T>
static inline T __shfl_xor_sync(unsigned mask, T v, int lanes, int width = 32,
                                RLE_EMU_HERE)
{
    int l = emu::lane(), from = l ^ lanes;
    bool reachable = (from & ~(width - 1)) <= (l & ~(width - 1));
    return emu::shuffle(mask, v, reachable ? from : l, RLE_EMU_PLACE);
}
static inline unsigned __ballot_sync(unsigned mask, int predicate, RLE_EMU_HERE)
{
    return emu::exchange(emu::WARP_VOTE, mask, predicate != 0, -1, RLE_EMU_PLACE).ballot;
}
static inline int __any_sync(unsigned mask, int predicate, RLE_EMU_HERE)
{
    return emu::exchange(emu::WARP_VOTE, mask, predicate != 0, -1, RLE_EMU_PLACE)
               .ballot != 0;
}
static inline int __all_sync(unsigned mask, int predicate, RLE_EMU_HERE)
{
    return emu::exchange(emu::WARP_VOTE, mask, predicate == 0, -1, RLE_EMU_PLACE)
               .ballot == 0;
}
template <class T>
static inline unsigned __match_any_sync(unsigned mask, T v, RLE_EMU_HERE)
{
    return emu::exchange(emu::WARP_MATCH, mask, emu::to_bits(v), -1, RLE_EMU_PLACE)
        .ballot;
}

#undef RLE_EMU_HERE
#undef RLE_EMU_PLACE

/* ---- atomics: the value that was there before ---- */

template <class T, class F> static inline T rle_emu_update(T *p, F next)
{
    T old = *p;
    *p = next(old);
    return old;
}
#define RLE_EMU_ATOMIC(name, type, expression)                                           \
    static inline type name(type *p, type v)                                             \
    {                                                                                    \
        return rle_emu_update(p, [v](type old) -> type { return expression; });          \
    }
#define RLE_EMU_ATOMIC_INTEGER(type)                                                     \
    RLE_EMU_ATOMIC(atomicMin, type, v < old ? v : old)                                   \
    RLE_EMU_ATOMIC(atomicMax, type, v > old ? v : old)                                   \
    RLE_EMU_ATOMIC(atomicAnd, type, old &v)                                              \
    RLE_EMU_ATOMIC(atomicOr, type, old | v)                                              \
    RLE_EMU_ATOMIC(atomicXor, type, old ^ v)                                             \
    RLE_EMU_ATOMIC(atomicExch, type, (static_cast<void>(old), v))                        \
    static inline type atomicCAS(type *p, type expected, type v)                         \
    {                                                                                    \
        return rle_emu_update(p, [=](type old) { return old == expected ? v : old; });   \
    }

RLE_EMU_ATOMIC(atomicAdd, int,
               static_cast<int>(static_cast<unsigned>(old) + static_cast<unsigned>(v)))
RLE_EMU_ATOMIC(atomicAdd, unsigned, old + v)
RLE_EMU_ATOMIC(atomicAdd, unsigned long long, old + v)
RLE_EMU_ATOMIC(atomicAdd, float, old + v)
RLE_EMU_ATOMIC(atomicAdd, double, old + v)
RLE_EMU_ATOMIC(atomicExch, float, (static_cast<void>(old), v))
RLE_EMU_ATOMIC_INTEGER(int)
RLE_EMU_ATOMIC_INTEGER(unsigned)
RLE_EMU_ATOMIC_INTEGER(unsigned long long)
RLE_EMU_ATOMIC(atomicMin, long long, v < old ? v : old)
RLE_EMU_ATOMIC(atomicMax, long long, v > old ? v : old)

#undef RLE_EMU_ATOMIC_INTEGER
#undef RLE_EMU_ATOMIC

#endif
