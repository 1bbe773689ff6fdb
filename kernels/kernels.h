/* kernels.h - the launchers: C functions that put one operation's kernels on a stream.
 *
 * engine/device/cuda calls them after shapes and dtypes were checked; a launcher picks
 * the kernel by dtype and layout and the shape of its grid. All return CUDA's error code
 * of the launch. dtype and kind are rle_dtype (base/dtype.h) and the enumerations of
 * device/kinds.h. Pointers are device pointers, strides count elements. One section a
 * kernel file. */
#ifndef RLE_KERNELS_H
#define RLE_KERNELS_H

#include <cuda_runtime_api.h>

#include "base/dtype.h"
#include "device/kinds.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RLE_K_OPERANDS 5

/* n / d for n, d < 2^31 is (high word of n * factor + n) >> shift. */
typedef struct rle_k_divisor {
    uint32_t factor, shift;
} rle_k_divisor;

/* For d >= 1: with 2^shift the first power of two from d on, factor is
 * floor(2^32 (2^shift - d) / d) + 1. So (2^32 + factor) d exceeds 2^(32 + shift) by at
 * most 2^shift: too little to change the quotient of an n below 2^32. */
static inline rle_k_divisor rle_divisor(uint32_t d)
{
    rle_k_divisor v = {0, 0};
    while ((UINT64_C(1) << v.shift) < d) v.shift++;
    v.factor = (uint32_t)((((UINT64_C(1) << v.shift) - d) << 32) / d + 1);
    return v;
}

/* Operands of one shape: dimensions of size 1 dropped, the others merged where all
 * operands allow it. ndim is at least 1. `dense`: every operand is one contiguous run, so
 * that position i is at offset i. `narrow`: positions and offsets of every operand fit
 * into 31 bits, and divisor[d] divides by shape[d]. */
typedef struct rle_k_loop {
    int ndim, count;
    bool dense, narrow;
    int64_t numel;
    int64_t shape[RLE_MAX_DIMS];
    int64_t stride[RLE_K_OPERANDS][RLE_MAX_DIMS];
    rle_k_divisor divisor[RLE_MAX_DIMS];
    void *data[RLE_K_OPERANDS];
    int size[RLE_K_OPERANDS]; /* bytes of an element */
    /* Of a loop over packs (batch.h), whose positions are packs of elements: how many the
     * last one has, and which operands are one element for the whole of a pack. */
    int tail;
    bool once[RLE_K_OPERANDS];
} rle_k_loop;

/* ---- fill.cu ---- */

/* [0] = value, cast; integers exactly. */
cudaError_t rle_k_fill(rle_dtype t, const rle_k_loop *l, double value, int64_t integer,
                       cudaStream_t stream);
/* [0] = cast of [1]; bytes are moved as they are where the dtypes are one. */
cudaError_t rle_k_copy(rle_dtype to, rle_dtype from, const rle_k_loop *l,
                       cudaStream_t stream);

/* ---- elementwise.cu: t is the inputs' dtype, what gives bool writes bytes ---- */

/* [0] = kind of [1]. */
cudaError_t rle_k_unary(rle_dtype t, rle_unary_kind kind, const rle_k_loop *l, double p0,
                        double p1, cudaStream_t stream);
/* [0] = [1] times the derivative at [2], the forward pass's input or output. */
cudaError_t rle_k_unary_backward(rle_dtype t, rle_unary_kind kind, const rle_k_loop *l,
                                 double p0, double p1, cudaStream_t stream);
/* [0] = [1] kind [2]; of [1] and [2] one may have no data, and is then the number:
 * `value` for floats, else `integer`. */
cudaError_t rle_k_binary(rle_dtype t, rle_binary_kind kind, const rle_k_loop *l,
                         double value, int64_t integer, cudaStream_t stream);
/* [0] = [1] ? [2] : [3]; t is the dtype of all but [1], which is bool. */
cudaError_t rle_k_where(rle_dtype t, const rle_k_loop *l, cudaStream_t stream);

/* ---- index.cu: indices are i64 and, but for the check, in range ---- */

/* flag = smallest position in the loop at which [0] is not in 0 .. extent-1. */
cudaError_t rle_k_check_index(const rle_k_loop *l, int64_t extent,
                              unsigned long long *flag, cudaStream_t stream);
/* flag = the first row of `columns` positions with an element that is not finite, or
 * negative with `nonnegative`. f32, f64. */
cudaError_t rle_k_find_bad_row(rle_dtype t, const rle_k_loop *l, int64_t columns,
                               bool nonnegative, unsigned long long *flag,
                               cudaStream_t stream);
/* [0] = [1], `step` elements on for every 1 in the index [2]. */
cudaError_t rle_k_gather(rle_dtype t, const rle_k_loop *l, int64_t step,
                         cudaStream_t stream);

/* Lines along the indexed dimension: out [0], src [1] and the index [2] in `lines` at
 * their first elements, then so many steps. */
typedef struct rle_k_scatter {
    rle_k_loop lines;
    int64_t length; /* of the index along the dimension, and of src */
    int64_t extent; /* of out */
    int64_t out_step, src_step, index_step;
    bool shared; /* the index is the same for all lines */
} rle_k_scatter;

/* Of each line, in order: element index[i] of out is set to src[i], or src[i] is added
 * (bool: or). */
cudaError_t rle_k_scatter_run(rle_dtype t, const rle_k_scatter *s, bool assigns,
                              cudaStream_t stream);

/* ---- gemm.cu ---- */

/* out[m,n] (+)= a[m,k] x b[k,n] (+ bias[n]), `batches` times; then the function
 * (RLE_DENSE_NONE, or for f32 one that rle_function of function.h knows). */
typedef struct rle_k_gemm {
    int64_t m, n, k, batches;
    const void *a, *b, *bias; /* bias may be NULL */
    void *out;
    int64_t a_batch, a_row, a_col;
    int64_t b_batch, b_row, b_col;
    int64_t out_batch, out_row, out_col;
    int64_t bias_col;
    bool accumulate;
    int function;
} rle_k_gemm;

/* The CPU's bits: see gemm.cu. f32, f64. */
cudaError_t rle_k_matmul(rle_dtype t, const rle_k_gemm *g, cudaStream_t stream);
/* out = function(out + bias), of a single product. */
cudaError_t rle_k_bias_function(rle_dtype t, const rle_k_gemm *g, cudaStream_t stream);

/* ---- share.cu ---- */

/* As log_share and log_share_backward of device/device.h. *bad takes the smallest of 2 r
 * for a row r whose class is out of range and 2 r + 1 for one without a positive sum. */
typedef struct rle_k_share {
    int64_t rows, classes;
    const void *x;        /* [rows, classes] */
    const int64_t *index; /* [rows] */
    void *out;            /* [rows] */
    void *kept;           /* [3, rows] */
    const void *gout;     /* [rows] */
    void *gx;             /* [rows, classes] */
} rle_k_share;

cudaError_t rle_k_log_share(rle_dtype t, const rle_k_share *s, unsigned long long *bad,
                            cudaStream_t stream);
cudaError_t rle_k_log_share_backward(rle_dtype t, const rle_k_share *s,
                                     cudaStream_t stream);

/* ---- optim.cu ---- */

/* Parameters that a launch steps over, at most RLE_K_PARAMS: together with the rest this
 * stays below the 4 KiB that a kernel's arguments may take. data: parameter, gradient,
 * then Adam's two moments or SGD's momentum; contiguous, of one dtype. Parameter i begins
 * with chunk first[i] of RLE_K_CHUNK elements. */
enum { RLE_K_PARAMS = 72, RLE_K_CHUNK = 1024 };
typedef struct rle_k_params {
    int count;
    int64_t chunks; /* in all */
    int64_t first[RLE_K_PARAMS], numel[RLE_K_PARAMS];
    void *data[4][RLE_K_PARAMS];
} rle_k_params;

/* The CPU's bits. */
cudaError_t rle_k_adam(rle_dtype t, const rle_k_params *p, const rle_adam_args *args,
                       cudaStream_t stream);
cudaError_t rle_k_sgd(rle_dtype t, const rle_k_params *p, const rle_sgd_args *args,
                      cudaStream_t stream);

/* ---- policy.cu ---- */

enum { RLE_K_LAYERS = 16 };

/* y[rows, last out] = the chain of layers of x[rows, first in]; f32, contiguous. */
typedef struct rle_k_policy {
    int count, widest; /* values of a row, of x and of every layer */
    int64_t rows;
    const float *x;
    float *y; /* may be NULL */
    struct {
        int in, out, function;      /* RLE_DENSE_... or one that rle_k_policy_knows */
        const float *weight, *bias; /* [out, in]; [out] or NULL */
    } layer[RLE_K_LAYERS];
    /* With `action`: a class of each row by its probabilities y, or with `logits` by the
     * softmax of y, and the class's log-probability. Uniform numbers by keys[rows] and
     * draw, or, where that is NULL, of the stream from `position` on. A row that nothing
     * can be drawn from goes to *bad.
     */
    bool logits;
    int64_t *action;
    float *log_prob;
    const int64_t *keys;
    uint32_t draw;
    uint64_t seed, stream, position;
    unsigned long long *bad;
} rle_k_policy;

/* How many rows one launch is good for with layers so wide; 0: too wide. */
int64_t rle_k_policy_rows(int64_t widest);
bool rle_k_policy_knows(int function);
/* At most rle_k_policy_rows rows. The bits of the single operations. */
cudaError_t rle_k_policy_run(const rle_k_policy *p, cudaStream_t stream);

/* ---- reduce.cu ---- */

/* Outputs are numbered over the kept dimensions, the elements of one over the reduced
 * ones, row-major; each list has at least one dimension. side_by_side: neighbouring
 * outputs' elements are closer together than those of one output. */
typedef struct rle_k_reduce {
    int kept, reduced;
    bool side_by_side;
    int64_t outputs, count;
    int64_t kept_shape[RLE_MAX_DIMS], in_stride[RLE_MAX_DIMS], out_stride[RLE_MAX_DIMS];
    int64_t shape[RLE_MAX_DIMS], stride[RLE_MAX_DIMS];
    const void *in;
    void *out;
} rle_k_reduce;

/* Bytes of scratch memory that the reduction needs. */
size_t rle_k_reduce_scratch(rle_reduce_kind kind, const rle_k_reduce *r);
cudaError_t rle_k_reduce_run(rle_reduce_kind kind, rle_dtype to, rle_dtype from,
                             const rle_k_reduce *r, void *scratch, cudaStream_t stream);

/* Rows of up to three arrays, with `step` from one element of a row to the next. Rows are
 * numbered over `shape`, ndim >= 1. side_by_side: neighbouring rows are closer together
 * than elements of a row. An output may be an input only in softmax. */
typedef struct rle_k_rows {
    int ndim;
    bool side_by_side;
    int64_t rows, length;
    int64_t shape[RLE_MAX_DIMS];
    int64_t stride[3][RLE_MAX_DIMS], step[3];
    void *data[3];
} rle_k_rows;

/* ---- softmax.cu: [out, in, -], or with `gradient` [gin, gout, y] ---- */

cudaError_t rle_k_softmax(rle_dtype t, bool logarithm, bool gradient, const rle_k_rows *r,
                          cudaStream_t stream);

/* ---- scan.cu ---- */

/* [indices, in, values or NULL]; the outputs have one element a row. Rows have at least
 * one. */
size_t rle_k_extremes_scratch(const rle_k_rows *r);
cudaError_t rle_k_extremes(rle_dtype t, bool largest, const rle_k_rows *r, void *scratch,
                           cudaStream_t stream);
/* [out, in]; backwards by negative steps. */
size_t rle_k_cumsum_scratch(const rle_k_rows *r);
cudaError_t rle_k_cumsum(rle_dtype to, rle_dtype from, const rle_k_rows *r, void *scratch,
                         cudaStream_t stream);

/* ---- sort.cu: [values, indices, in] ---- */

size_t rle_k_sort_scratch(rle_dtype t, const rle_k_rows *r);
cudaError_t rle_k_sort(rle_dtype t, bool descending, const rle_k_rows *r, void *scratch,
                       cudaStream_t stream);

/* ---- random.cu ---- */

typedef struct rle_k_stream {
    uint64_t seed, stream, counter;
} rle_k_stream;

/* n elements, contiguous. */
cudaError_t rle_k_random(rle_dtype t, rle_random_kind kind, void *out, int64_t n,
                         const rle_k_stream *at, double p0, double p1,
                         cudaStream_t stream);

/* Draw `draw` of the rows' keys, for arrays [rows, columns], contiguous. */
typedef struct rle_k_keyed {
    const int64_t *keys;
    int64_t key_step, rows, columns;
    uint64_t seed;
    uint32_t draw;
} rle_k_keyed;

cudaError_t rle_k_random_keyed(float *out, const rle_k_keyed *k, cudaStream_t stream);
cudaError_t rle_k_dropout(rle_dtype t, void *out, const void *in, double p,
                          const rle_k_keyed *k, cudaStream_t stream);

/* probs [rows, classes], u [rows, draws], out [rows, draws]. */
typedef struct rle_k_shares {
    int64_t rows, classes;
    const void *probs;
    int64_t row_step, class_step;
    const float *u;
    int64_t u_row, u_step;
    int64_t *out;
    int64_t out_row, out_step;
} rle_k_shares;

/* Into *bad, by atomicMin, row * (classes + 1) + class of a probability that is none, or
 * row * (classes + 1) + classes where all are 0. */
cudaError_t rle_k_check_shares(rle_dtype t, const rle_k_shares *s,
                               unsigned long long *bad, cudaStream_t stream);
cudaError_t rle_k_sample(rle_dtype t, const rle_k_shares *s, int64_t draws,
                         cudaStream_t stream);

/* ---- returns.cu ---- */

typedef struct rle_k_columns {
    void *data;           /* NULL: none is given */
    int64_t step, column; /* strides in time and between columns */
} rle_k_columns;

typedef struct rle_k_returns {
    int64_t steps, columns;
    double gamma, decay; /* decay: gamma * lambda */
    rle_k_columns out, rewards, values, dones, last;
} rle_k_returns;

cudaError_t rle_k_gae(rle_dtype t, const rle_k_returns *r, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
