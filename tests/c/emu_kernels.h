/* emu_kernels.h - kernels that do one thing each, right or wrong, for test_emu.c. All are
 * launched on `stream`; `out` is device memory. */
#ifndef RLE_TESTS_EMU_KERNELS_H
#define RLE_TESTS_EMU_KERNELS_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    unsigned x, y, z;
} dim3_c;

/* What the kernel `wrong` does. */
typedef enum {
    WRONG_DIVERGE,      /* half of the threads wait at another barrier */
    WRONG_RETURN_FIRST, /* thread 0 returns, then the others wait */
    WRONG_RETURN_LAST,  /* the others wait, then the last thread returns */
    WRONG_LANE_AWAY,    /* lane 0 waits at a barrier, the others at a shuffle */
    WRONG_NOT_IN_MASK,  /* a lane names others only */
    WRONG_MASKS,        /* lanes name different masks */
    WRONG_WARP_LINES,   /* lanes vote at different lines */
    WRONG_BEYOND,       /* writes behind out's block */
    WRONG_NULL,         /* writes to NULL */
    WRONG_DIVIDE,       /* an integer by out[0], which is 0 */
    WRONG_STACK,        /* calls itself for ever */
    WRONG_DYNAMIC,      /* writes behind the dynamic shared memory */
    WRONG_COUNT
} wrong_kind;
cudaError_t k_wrong(wrong_kind kind, int *out, int threads, cudaStream_t stream);

/* out[b] = sum of the n numbers of block b, by a tree in shared memory; without barriers
 * when the flag says so. */
cudaError_t k_sum(float *out, const float *in, int blocks, int n, bool barriers,
                  cudaStream_t stream);
/* Each thread takes its neighbour's number from shared memory, `rounds` times; without
 * the second barrier of a round when the flag says so. */
cudaError_t k_rotate(int *data, int n, int rounds, bool second, cudaStream_t stream);
/* As k_rotate within a warp, with __syncwarp. */
cudaError_t k_rotate_warp(int *data, int rounds, bool second, cudaStream_t stream);
/* out[block * threads + thread] = how many threads had started before. *counter is 0. */
cudaError_t k_order(unsigned *out, unsigned *counter, dim3_c blocks, dim3_c threads,
                    cudaStream_t stream);
/* out[4 * b + i]: shared variables of a template, of a plain kernel, and dynamic ones, as
 * block b finds them; each block then writes them. */
cudaError_t k_unwritten(unsigned *out, int blocks, cudaStream_t stream);
/* out[32 * i + lane]: shuffles, votes, matches, barriers with votes; see test_emu.c. */
cudaError_t k_warp(unsigned *out, cudaStream_t stream);
/* What lanes get from lanes that have returned or take no part. */
cudaError_t k_warp_partial(unsigned *out, cudaStream_t stream);
/* 256 threads on the same words. */
cudaError_t k_atomics(void *out, cudaStream_t stream);
/* out[0] = *address. */
cudaError_t k_read(int *out, const int *address, cudaStream_t stream);
/* out[i] += 1, or = value. */
cudaError_t k_add(int *out, int n, int value, cudaStream_t stream);
/* A launch with this shape; sets out[0] = threads of all blocks. */
cudaError_t k_shape(unsigned *out, dim3_c blocks, dim3_c threads, size_t shared,
                    cudaStream_t stream);
/* Intrinsics; out[i] = 1 where the i-th is right. How many there are. */
enum { K_INTRINSICS = 25 };
cudaError_t k_intrinsics(int *out, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
