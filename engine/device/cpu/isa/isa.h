/* isa.h - names for what is compiled once per instruction set. RLE_ISA is the set's name;
 * RLE_NAME(x) is x with that name behind it. */
#ifndef RLE_CPU_ISA_H
#define RLE_CPU_ISA_H

#include "device/cpu/cpu_internal.h"

#define RLE_PASTE_(a, b) a##_##b
#define RLE_PASTE(a, b) RLE_PASTE_(a, b)
#define RLE_NAME(x) RLE_PASTE(x, RLE_ISA)
#define RLE_STRING_(x) #x
#define RLE_STRING(x) RLE_STRING_(x)

/* What the files of isa/ add to the table, which table.c puts together. */
#define RLE_DECLARE_KERNELS(T)                                                           \
    extern const rle_cpu_map RLE_NAME(rle_unary_##T)[RLE_UNARY_COUNT];                   \
    extern const rle_cpu_grad RLE_NAME(rle_grad_##T)[RLE_UNARY_COUNT];                   \
    extern const rle_cpu_zip RLE_NAME(rle_binary_##T)[RLE_BINARY_COUNT];                 \
    extern const rle_cpu_fold_run RLE_NAME(rle_fold_run_##T)[RLE_FOLD_COUNT];            \
    extern const rle_cpu_fold_tile RLE_NAME(rle_fold_tile_##T)[RLE_FOLD_COUNT];          \
    void RLE_NAME(rle_softmax_row_##T)(bool logarithm, void *out, const void *in,        \
                                       int64_t n);                                       \
    void RLE_NAME(rle_softmax_row_backward_##T)(bool logarithm, void *gin,               \
                                                const void *gout, const void *y,         \
                                                int64_t n);                              \
    void RLE_NAME(rle_softmax_tile_##T)(bool logarithm, void *tile, int64_t n);          \
    void RLE_NAME(rle_softmax_tile_backward_##T)(bool logarithm, void *tile,             \
                                                 const void *y, int64_t n);              \
    void RLE_NAME(rle_gemm_##T)(const rle_cpu_gemm *g);                                  \
    void RLE_NAME(rle_uniform_##T)(void *out, const uint32_t *words, int64_t n,          \
                                   double p0, double p1);                                \
    void RLE_NAME(rle_normal_##T)(void *out, const uint32_t *words, int64_t n,           \
                                  double p0, double p1);                                 \
    void RLE_NAME(rle_dropout_##T)(void *out, const void *in, const float *u, int64_t n, \
                                   double p);                                            \
    void RLE_NAME(rle_adam_##T)(void *param, const void *grad, void *m, void *v,         \
                                int64_t n, const rle_adam_args *args);                   \
    void RLE_NAME(rle_sgd_##T)(void *param, const void *grad, void *momentum, int64_t n, \
                               const rle_sgd_args *args);
RLE_DECLARE_KERNELS(f32)
RLE_DECLARE_KERNELS(f64)

void RLE_NAME(rle_chain)(const rle_cpu_chain *chain, const float *x, int64_t rows, float *y);
void RLE_NAME(rle_philox_stream)(uint32_t *out, uint64_t seed, uint64_t stream,
                                 uint64_t block, int64_t blocks);
void RLE_NAME(rle_philox_keyed)(uint32_t *out, uint64_t seed, const uint64_t *key,
                                uint32_t draw, const uint32_t *quad, int64_t n);

extern const rle_cpu_kernels RLE_NAME(rle_cpu_kernels);

#endif
