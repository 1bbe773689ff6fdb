/* pcg64.h - the random stream of environments: numpy's, bit for bit.
 *
 * A seed gives the numbers that numpy.random.Generator(PCG64(SeedSequence(seed))) gives,
 * so that an environment reset here and in Gymnasium with one seed starts in one state.
 * Everything else in the engine draws from counter-based streams (base/context.h); this
 * one belongs to an environment or a space and is advanced by it alone.
 *
 * A plain value: copy it to save the position. Not shared between threads. */
#ifndef RLE_ENV_PCG64_H
#define RLE_ENV_PCG64_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct rle_pcg64 {
    uint64_t state_hi, state_lo;
    uint64_t inc_hi, inc_lo;
    bool has_half; /* the upper half of the last word drawn is still to be used ... */
    uint32_t half; /* ... by the next 32-bit draw: numpy keeps it apart */
} rle_pcg64;

/* numpy's SeedSequence(seed) -> PCG64. Any seed is good, also 0. */
void rle_pcg64_seed(rle_pcg64 *rng, uint64_t seed);

/* Seed of 128 bits from the operating system. UNAVAILABLE when it gives none. */
rle_status rle_pcg64_seed_system(rle_pcg64 *rng);

uint64_t rle_pcg64_next(rle_pcg64 *rng);   /* Generator's 64-bit word */
uint32_t rle_pcg64_next32(rle_pcg64 *rng); /* two of them a word, the lower half first */

/* Generator.random(): [0, 1) in steps of 2^-53. */
double rle_pcg64_double(rle_pcg64 *rng);
/* Generator.uniform(low, high): low + (high - low) * double. */
double rle_pcg64_uniform(rle_pcg64 *rng, double low, double high);
/* Generator.integers(n): 0 <= result < n, without bias (Lemire's multiply-shift). n = 0
 * stands for 2^64. n = 1 draws nothing, as numpy. */
uint64_t rle_pcg64_integers(rle_pcg64 *rng, uint64_t n);
/* Standard normal and exponential, by Box-Muller and by inversion: the distributions of
 * numpy's standard_normal and standard_exponential, not their bits (a ziggurat there). */
double rle_pcg64_normal(rle_pcg64 *rng);
double rle_pcg64_exponential(rle_pcg64 *rng);

#endif
