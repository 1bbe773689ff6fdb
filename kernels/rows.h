/* rows.h - where rows and outputs start, for kernels that go along dimensions. */
#ifndef RLE_KERNELS_ROWS_H
#define RLE_KERNELS_ROWS_H

#include "launch.h"

/* *i modulo size; *i becomes the quotient. In 32 bits where they suffice: the division of
 * 64 is a long subroutine. */
__device__ static inline int64_t step_down(int64_t *i, int64_t size)
{
    int64_t next = *i >> 31 == 0 && size >> 31 == 0
                       ? static_cast<int64_t>(static_cast<uint32_t>(*i) /
                                              static_cast<uint32_t>(size))
                       : *i / size;
    int64_t here = *i - next * size;
    *i = next;
    return here;
}

/* Offset of row i's first element in the first N arrays. */
template <int N>
__device__ static inline void row_of(const rle_k_rows &r, int64_t i, int64_t (&at)[N])
{
    for (int k = 0; k < N; k++) at[k] = 0;
    for (int d = r.ndim - 1; d > 0; d--) {
        int64_t here = step_down(&i, r.shape[d]);
        for (int k = 0; k < N; k++) at[k] += here * r.stride[k][d];
    }
    for (int k = 0; k < N; k++) at[k] += i * r.stride[k][0];
}

#endif
