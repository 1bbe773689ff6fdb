/* permutation.h - one step of the engine's Fisher-Yates shuffle, for every device. Steps
 * depend on each other, so they run on the host. */
#ifndef RLE_KERNELS_PERMUTATION_H
#define RLE_KERNELS_PERMUTATION_H

#include <stdint.h>

/* Step i of n - 1: `word` decides which of the n - i entries not yet placed goes to place
 * n - 1 - i. Entry k lies at x[k * step]. */
static inline void rle_permute_step(int64_t *x, int64_t step, int64_t n, int64_t i,
                                    uint32_t word)
{
    uint64_t last = (uint64_t)(n - 1 - i), left = last + 1;
    /* The upper part of word * left; left may take more than 32 bits. */
    uint64_t j = (uint64_t)word * (left >> 32) + ((uint64_t)word * (uint32_t)left >> 32);
    int64_t swap = x[(int64_t)j * step];
    x[(int64_t)j * step] = x[(int64_t)last * step];
    x[(int64_t)last * step] = swap;
}

#endif
