/* cuda_internal.h - what the files of device/cuda share. They are compiled twice: by the
 * C compiler against CUDA's headers into rlengine_cuda.so, and against
 * kernels/emu/include into rlengine_emu.so. Nothing here may know which.
 *
 * Everything a device does goes onto its one stream, in order. Errors of the driver
 * become messages that name the operation; an error after which the driver refuses all
 * further work
 * ("sticky") ends the process (rle_cuda_check). One thread owns all devices. */
#ifndef RLE_DEVICE_CUDA_INTERNAL_H
#define RLE_DEVICE_CUDA_INTERNAL_H

#include <cuda_runtime_api.h>

#include "device/plugin.h"
#include "device/stream.h"
#include "kernels.h"

enum {
    RLE_CUDA_FIRST = 2 << 20,    /* device memory that is there from the start, for checks
                                    and    small workspaces: the least that a driver gives */
    RLE_CUDA_PINNED = 512 << 10, /* page-locked memory through which small copies go */
    RLE_CUDA_SLOTS = 8           /* in so many parts */
};

/* A device's side of cuBLAS: blas.c. */
typedef struct rle_cuda_blas {
    rle_blas_settings settings;
    void *handle; /* cublasHandle_t; NULL until a product needs it */
    void *workspace;
    size_t taken, handle_bytes;           /* for the workspace; by cuBLAS itself */
    bool failed;                          /* it was needed and could not be had */
    char text[192];                       /* which it is, or why there is none */
} rle_cuda_blas;

/* A device's side in the plug-in: rle_device.impl. */
typedef struct rle_cuda {
    int index;
    cudaStream_t stream;
    const char *last; /* operation given last: an error that shows later happened there or
                         before */
    size_t context_bytes;
    void *pinned; /* staging.c: RLE_CUDA_PINNED bytes */
    cudaEvent_t slot_read[RLE_CUDA_SLOTS];
    int next_slot;
    char *first; /* scratch.c: RLE_CUDA_FIRST bytes */
    void *large; /* a workspace that does not fit there */
    size_t large_bytes;
    unsigned long long *flag, *flag_host;
    rle_cuda_blas blas;
} rle_cuda;

/* What a driver says (CUDA error 3) that has been used and was then copied by fork. */
#define RLE_CUDA_FORKED                                                                  \
    "this process was forked from one that had used the device, which CUDA does not "    \
    "allow; start it as a program of its own, as rl.launch does"

extern const rle_plugin_host *rle_host;

static inline rle_cuda *rle_cuda_of(const rle_device *dev)
{
    return dev->impl;
}
static inline cudaStream_t rle_cuda_stream(const rle_device *dev)
{
    return rle_cuda_of(dev)->stream;
}

/* Make dev the device of the calls that follow. When the driver refuses, who does not
 * look fails all the same: the calls' stream is of another device. */
rle_status rle_cuda_enter(rle_device *dev);

/* As the plug-in's `properties` (plugin.h). */
rle_status rle_cuda_properties(int index, rle_device_properties *out);

/* RLE_OK for cudaSuccess, else the message "<device>: <op>: <what CUDA says> (CUDA error
 * n)". Out of memory is RESOURCE_EXHAUSTED, a GPU that is busy or that this build has no
 * code for UNAVAILABLE, the rest INTERNAL. A sticky error does not return: it ends the
 * process, naming the operation before, since it shows late. */
rle_status rle_cuda_check(rle_device *dev, const char *op, cudaError_t error);
/* The same for calls that are no operation of the table, as copies and waits are: they
 * are not remembered as the operation that went before. */
rle_status rle_cuda_check_call(rle_device *dev, const char *what, cudaError_t error);
/* More about the last error than its code says; "" (real devices know no more). */
const char *rle_cuda_detail(void);

/* The operands, of operands[0]'s shape, as the kernels take them. The order of positions
 * is free: it follows the strides of the first operand, so that neighbouring threads
 * touch neighbouring elements of it. */
void rle_cuda_loop(rle_k_loop *l, int count, const rle_array *const *operands);
/* The same with positions in the row-major order of the shape. */
void rle_cuda_loop_in_order(rle_k_loop *l, int count, const rle_array *const *operands);

/* What the layers above have checked; what slips through must not become silence. */
rle_status rle_cuda_no_dtype(const char *what, rle_dtype t);

/* ---- working memory (scratch.c) ---- */

/* At least `bytes` of device memory, aligned to 256, contents undefined; they are the
 * caller's until the next call for the same device, since the stream is one and in order.
 * Ask once a slot, for all that it needs. It counts as workspace, within the limit.
 * RESOURCE_EXHAUSTED. */
rle_status rle_cuda_scratch(rle_device *dev, size_t bytes, void **out);

/* A word of device memory for a check: set to ULLONG_MAX here, in the stream; a kernel
 * takes the smallest bad index into it with atomicMin; rle_cuda_flag_read waits for the
 * stream and gives what it holds then, UINT64_MAX when nothing was found. One check at a
 * time. */
rle_status rle_cuda_flag_reset(rle_device *dev, unsigned long long **out);
rle_status rle_cuda_flag_read(rle_device *dev, const char *op, uint64_t *out);

/* The first bytes of it, and what else lives as long as the device; everything goes
 * back. */
rle_status rle_cuda_scratch_open(rle_device *dev);
void rle_cuda_scratch_close(rle_device *dev);

/* ---- copies (staging.c) and streams (stream.c) ---- */

rle_status rle_cuda_staging_open(rle_device *dev);
void rle_cuda_staging_close(rle_device *dev);
rle_status rle_cuda_copy_in(rle_device *dev, void *dst, const void *host, size_t size);
rle_status rle_cuda_copy_out(rle_device *dev, void *host, const void *src, size_t size);

extern const rle_stream_ops rle_cuda_streams;

/* ---- cuBLAS (blas.c) ---- */

/* The default settings; nothing is opened. Everything goes back. */
void rle_cuda_blas_init(rle_device *dev);
void rle_cuda_blas_close(rle_device *dev);
/* rle_device.blas */
rle_status rle_cuda_blas_settings(rle_device *dev, const rle_blas_settings *set,
                                  rle_blas_state *out);
/* Whether products with a K x N right factor go to cuBLAS, layout allowing. */
bool rle_cuda_blas_takes(const rle_device *dev, int64_t k, int64_t n);
/* The product, unless the layout is none of cuBLAS's or there is no cuBLAS: then *done is
 * false and nothing has happened. */
rle_status rle_cuda_blas_gemm(rle_device *dev, rle_dtype t, const rle_k_gemm *g,
                              bool *done);

/* A library of CUDA's that is opened only when needed, and a symbol in it. NULL: not
 * there. plugin.c; the emulated device has its libraries inside. */
void *rle_cuda_library(const char *file);
void *rle_cuda_symbol(void *library, const char *name);

/* ---- slots of the table, by file ---- */

/* ops_elementwise.c */
rle_status rle_cuda_fill(rle_device *dev, const rle_array *out, double value,
                         int64_t integer);
rle_status rle_cuda_copy(rle_device *dev, const rle_array *out, const rle_array *in);
rle_status rle_cuda_unary(rle_device *dev, rle_unary_kind kind, const rle_array *out,
                          const rle_array *in, double p0, double p1);
rle_status rle_cuda_unary_backward(rle_device *dev, rle_unary_kind kind,
                                   const rle_array *gin, const rle_array *gout,
                                   const rle_array *x, const rle_array *y, double p0,
                                   double p1);
rle_status rle_cuda_binary(rle_device *dev, rle_binary_kind kind, const rle_array *out,
                           const rle_array *a, const rle_array *b);
rle_status rle_cuda_binary_scalar(rle_device *dev, rle_binary_kind kind,
                                  const rle_array *out, const rle_array *a, double value,
                                  int64_t integer, bool reversed);
rle_status rle_cuda_where(rle_device *dev, const rle_array *out, const rle_array *cond,
                          const rle_array *a, const rle_array *b);

/* ops_index.c */
rle_status rle_cuda_gather(rle_device *dev, const rle_array *out, const rle_array *in,
                           int dim, const rle_array *index);
rle_status rle_cuda_scatter(rle_device *dev, const rle_array *out, int dim,
                            const rle_array *index, const rle_array *src, bool assign);
rle_status rle_cuda_index_select(rle_device *dev, const rle_array *out,
                                 const rle_array *in, int dim, const rle_array *index);
rle_status rle_cuda_index_add(rle_device *dev, const rle_array *out, int dim,
                              const rle_array *index, const rle_array *src);
rle_status rle_cuda_find_bad_row(rle_device *dev, const rle_array *in, bool nonnegative,
                                 int64_t *row);

/* ops_matmul.c. The first: the product that g describes, by whichever way suits its
 * sizes. */
rle_status rle_cuda_gemm(rle_device *dev, rle_dtype t, const rle_k_gemm *g);
rle_status rle_cuda_matmul(rle_device *dev, const rle_array *out, const rle_array *a,
                           const rle_array *b, const rle_array *bias, bool accumulate);

/* ops_share.c */
rle_status rle_cuda_log_share(rle_device *dev, const rle_array *out,
                              const rle_array *kept, const rle_array *x,
                              const rle_array *index);
rle_status rle_cuda_log_share_backward(rle_device *dev, const rle_array *gx,
                                       const rle_array *gout, const rle_array *kept,
                                       const rle_array *index);

/* ops_optim.c */
rle_status rle_cuda_adam(rle_device *dev, const rle_array *param, const rle_array *grad,
                         const rle_array *m, const rle_array *v, int count,
                         const rle_adam_args *args);
rle_status rle_cuda_sgd(rle_device *dev, const rle_array *param, const rle_array *grad,
                        const rle_array *momentum, int count, const rle_sgd_args *args);

/* ops_policy.c */
int64_t rle_cuda_dense_rows(rle_device *dev, const rle_dense *layers, int count);
rle_status rle_cuda_dense(rle_device *dev, const rle_dense *layers, int count,
                          const float *x, int64_t rows, float *y,
                          const rle_dense_draw *draw);

/* ops_reduce.c */
rle_status rle_cuda_reduce(rle_device *dev, rle_reduce_kind kind, const rle_array *out,
                           const rle_array *in, uint32_t dims);
rle_status rle_cuda_arg_reduce(rle_device *dev, bool largest, const rle_array *values,
                               const rle_array *indices, const rle_array *in, int dim);
rle_status rle_cuda_softmax(rle_device *dev, bool logarithm, const rle_array *out,
                            const rle_array *in, int dim);
rle_status rle_cuda_softmax_backward(rle_device *dev, bool logarithm,
                                     const rle_array *gin, const rle_array *gout,
                                     const rle_array *y, int dim);
rle_status rle_cuda_cumsum(rle_device *dev, const rle_array *out, const rle_array *in,
                           int dim, bool reverse);
rle_status rle_cuda_sort(rle_device *dev, const rle_array *values,
                         const rle_array *indices, const rle_array *in, int dim,
                         bool descending);

/* ops_random.c */
rle_status rle_cuda_random(rle_device *dev, rle_random_kind kind, const rle_array *out,
                           const rle_rng *rng, double p0, double p1);
rle_status rle_cuda_randperm(rle_device *dev, const rle_array *out, const rle_rng *rng);
rle_status rle_cuda_random_keyed(rle_device *dev, const rle_array *out, uint64_t seed,
                                 const rle_array *keys, uint32_t draw);
rle_status rle_cuda_dropout(rle_device *dev, const rle_array *out, const rle_array *in,
                            double p, uint64_t seed, const rle_array *keys,
                            uint32_t draw);
rle_status rle_cuda_multinomial(rle_device *dev, const rle_array *out,
                                const rle_array *probs, const rle_array *u);

/* ops_returns.c */
rle_status rle_cuda_gae(rle_device *dev, const rle_array *out, const rle_array *rewards,
                        const rle_array *values, const rle_array *dones,
                        const rle_array *last, double gamma, double lambda);

/* The table with every slot. */
extern const rle_device_ops rle_cuda_ops;

#endif
