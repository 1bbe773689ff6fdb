/* philox.h - Philox4x32-10, a counter-based random generator (Salmon et al., "Parallel
 * random numbers: as easy as 1, 2, 3", SC'11). Shared by the CPU and CUDA.
 *
 * A number is a pure function of (seed, stream, position): the same on every machine,
 * whatever the number of threads, and any position can be drawn again later.
 *
 * How the engine uses it
 *   sequential draws: counter = (block lo, block hi, stream lo, stream hi), key = seed;
 *     element i of a draw that starts at position p is word (p+i) % 4 of block (p+i) / 4;
 *   keyed draws (dropout masks, samples of a row): counter = (j / 4, draw, key lo, key hi),
 *     key = seed; element j of the row is word j % 4. `draw` numbers the keyed draws within
 *     one forward pass. The stream word of sequential draws and the row key come from the
 *     same space, so row keys have bit 63 set and streams have it clear. */
#ifndef RLE_KERNELS_PHILOX_H
#define RLE_KERNELS_PHILOX_H

#include <stdint.h>

#ifdef __CUDACC__
#define RLE_HD __host__ __device__
#else
#define RLE_HD
#endif

typedef struct rle_philox_block {
    uint32_t word[4];
} rle_philox_block;

RLE_HD static inline rle_philox_block rle_philox(uint32_t c0, uint32_t c1, uint32_t c2,
                                                 uint32_t c3, uint32_t k0, uint32_t k1)
{
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0;
        uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        uint32_t n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    rle_philox_block out = {{c0, c1, c2, c3}};
    return out;
}

/* Block `block` of a sequential stream. */
RLE_HD static inline rle_philox_block rle_philox_stream(uint64_t seed, uint64_t stream,
                                                        uint64_t block)
{
    return rle_philox((uint32_t)block, (uint32_t)(block >> 32), (uint32_t)stream,
                      (uint32_t)(stream >> 32) & 0x7fffffffu, (uint32_t)seed,
                      (uint32_t)(seed >> 32));
}

/* Words 4*quad .. 4*quad+3 of the keyed draw number `draw` of a row. */
RLE_HD static inline rle_philox_block rle_philox_keyed(uint64_t seed, uint64_t key,
                                                       uint32_t draw, uint32_t quad)
{
    return rle_philox(quad, draw, (uint32_t)key, (uint32_t)(key >> 32) | 0x80000000u,
                      (uint32_t)seed, (uint32_t)(seed >> 32));
}

/* Uniform in [0, 1): the upper 24 bits, exact in f32. */
RLE_HD static inline float rle_uniform_f32(uint32_t w)
{
    return (float)(int32_t)(w >> 8) * 0x1p-24f;
}

/* Uniform in [0, 1) with 53 bits from two words. */
RLE_HD static inline double rle_uniform_f64(uint32_t lo, uint32_t hi)
{
    return (double)((((uint64_t)hi << 32) | lo) >> 11) * 0x1p-53;
}

#endif
