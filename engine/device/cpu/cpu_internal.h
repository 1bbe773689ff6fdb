/* cpu_internal.h - what the files of device/cpu share.
 *
 * Two halves. The drivers (elementwise.c, reduce.c, ...) are compiled once: they deal with
 * shapes, strides, staging and checks. The kernels (isa/) are compiled per instruction set
 * and only see contiguous runs; they are reached through rle_cpu_kernels. */
#ifndef RLE_DEVICE_CPU_INTERNAL_H
#define RLE_DEVICE_CPU_INTERNAL_H

#include "device/cpu/dense.h"
#include "device/device.h"

/* ---- kernels, one set per instruction set ---- */

/* Sums have 16 lanes whatever the width of a vector: see isa/reduce.c and isa/gemm.c. */
#define RLE_LANES 16
/* A reduction goes by blocks of this many elements, and by chunks of this many. */
#define RLE_REDUCE_BLOCK 256
#define RLE_REDUCE_CHUNK (256 * RLE_REDUCE_BLOCK)

/* Which of two operands is one value for the whole run. */
typedef enum { RLE_ONE_NONE, RLE_ONE_A, RLE_ONE_B } rle_cpu_one;

typedef void (*rle_cpu_map)(void *out, const void *in, int64_t n, double p0, double p1);
/* `saved` is the input or the output of the forward pass, as unary_backward says. */
typedef void (*rle_cpu_grad)(void *gin, const void *gout, const void *saved, int64_t n,
                             double p0, double p1);
typedef void (*rle_cpu_zip)(void *out, const void *a, const void *b, int64_t n,
                            rle_cpu_one one);

/* One block (n <= RLE_REDUCE_BLOCK) of a reduction: of a contiguous run, to one value... */
typedef void (*rle_cpu_fold_run)(void *out, const void *in, int64_t n);
/* ...or of n rows of `vectors` * 16 values, row k at base + offset[k] or, without offsets,
 * at base + k * step (in elements), to as many values. */
typedef void (*rle_cpu_fold_tile)(void *out, const void *base, const int64_t *offset,
                                  int64_t step, int64_t n, int vectors);
typedef enum {
    RLE_FOLD_SUM,
    RLE_FOLD_SUMSQ,
    RLE_FOLD_PROD,
    RLE_FOLD_MAX,
    RLE_FOLD_MIN,
    RLE_FOLD_COUNT
} rle_cpu_fold;

/* A product of matrices, or of one matrix of a batch. Strides count elements. */
typedef struct rle_cpu_gemm {
    int64_t m, n, k;
    const void *a, *b, *bias; /* bias[n] or NULL */
    void *out;
    int64_t a_row, a_col, b_row, b_col, out_row, out_col, bias_stride;
    bool accumulate;
} rle_cpu_gemm;

typedef struct rle_cpu_kernels {
    const char *name;
    /* [0] is f32, [1] f64, throughout; then by kind. NULL: there is no such function. */
    const rle_cpu_map *unary[2];
    const rle_cpu_grad *grad[2];
    const rle_cpu_zip *binary[2];
    const rle_cpu_fold_run *fold_run[2];
    const rle_cpu_fold_tile *fold_tile[2];
    /* A contiguous row of n; out may be in. */
    void (*softmax_row[2])(bool logarithm, void *out, const void *in, int64_t n);
    void (*softmax_row_backward[2])(bool logarithm, void *gin, const void *gout,
                                    const void *y, int64_t n);
    /* 16 rows at once, n <= RLE_REDUCE_BLOCK: element k of row r lies at [k*16 + r]. */
    void (*softmax_tile[2])(bool logarithm, void *tile, int64_t n);
    void (*softmax_tile_backward[2])(bool logarithm, void *gout_and_gin, const void *y,
                                     int64_t n);
    void (*gemm[2])(const rle_cpu_gemm *g);
    void (*chain)(const rle_cpu_chain *chain, const float *x, int64_t rows, float *y);
    /* Words of `blocks` blocks of a sequential stream, from `block` on. */
    void (*philox_stream)(uint32_t *out, uint64_t seed, uint64_t stream, uint64_t block,
                          int64_t blocks);
    /* Words of n keyed blocks: block i is quad[i] of draw `draw` of row key[i]. */
    void (*philox_keyed)(uint32_t *out, uint64_t seed, const uint64_t *key, uint32_t draw,
                         const uint32_t *quad, int64_t n);
    /* n elements from their words; normals: n is even. */
    void (*uniform[2])(void *out, const uint32_t *words, int64_t n, double p0, double p1);
    void (*normal[2])(void *out, const uint32_t *words, int64_t n, double p0, double p1);
    /* out = u >= p ? in / (1 - p) : 0, without a branch on u. May alias. */
    void (*dropout[2])(void *out, const void *in, const float *u, int64_t n, double p);
    void (*adam[2])(void *param, const void *grad, void *m, void *v, int64_t n,
                    const rle_adam_args *args);
    void (*sgd[2])(void *param, const void *grad, void *momentum, int64_t n,
                   const rle_sgd_args *args);
} rle_cpu_kernels;

/* The set in use. */
extern const rle_cpu_kernels *rle_cpu_active;

/* ---- strided loops ---- */

#define RLE_LOOP_MAX 4
#define RLE_STAGE 512 /* elements staged at a time when strides do not suit a kernel */

/* Up to four operands of one shape, dimensions of size 1 dropped, the others ordered by
 * the first operand's strides and merged where all operands allow it. */
typedef struct rle_loop {
    int ndim; /* at least 1 */
    int count;
    int64_t numel;
    int64_t shape[RLE_MAX_DIMS];
    int64_t stride[RLE_LOOP_MAX][RLE_MAX_DIMS]; /* in bytes */
    char *base[RLE_LOOP_MAX];
    int size[RLE_LOOP_MAX]; /* of an element */
} rle_loop;

void rle_loop_init(rle_loop *l, int count, const rle_array *const *operands);

/* A position in the loop, in elements counted row-major. */
typedef struct rle_loop_pos {
    int64_t at[RLE_MAX_DIMS];
} rle_loop_pos;

/* Copy `n` elements of an operand, from `pos` on, into or out of a buffer. pos moves. */
void rle_loop_gather(const rle_loop *l, int operand, rle_loop_pos *pos, int64_t n, void *buf);
void rle_loop_scatter(const rle_loop *l, int operand, rle_loop_pos *pos, int64_t n,
                      const void *buf);

/* Row-major walk over all of an array's dimensions but those of `skip` (a bit mask): byte
 * offsets of up to 3 arrays are kept up to date. */
typedef struct rle_walk {
    int ndim, count;
    int64_t left; /* positions still to visit, this one included */
    int64_t shape[RLE_MAX_DIMS], at[RLE_MAX_DIMS];
    int64_t stride[3][RLE_MAX_DIMS]; /* in bytes */
    char *p[3];
} rle_walk;

void rle_walk_init(rle_walk *w, const rle_array *shape_of, uint32_t skip, int count,
                   const rle_array *const *arrays);
void rle_walk_next(rle_walk *w);

/* dtype -> 0 for f32, 1 for f64; -1 for the rest. */
static inline int rle_cpu_float(rle_dtype t)
{
    return t == RLE_F32 ? 0 : t == RLE_F64 ? 1 : -1;
}

/* The layers above have checked dtypes; what slips through must not become silence. */
rle_status rle_cpu_no_dtype(const char *what, rle_dtype t);

static inline int64_t rle_min64(int64_t a, int64_t b) { return a < b ? a : b; }

/* ---- integer kernels (integer.c) ---- */
rle_cpu_map rle_cpu_integer_unary(rle_unary_kind kind, rle_dtype t);
rle_cpu_zip rle_cpu_integer_binary(rle_binary_kind kind, rle_dtype t);
/* Conversion of a run; NULL when a dtype has no arithmetic. */
typedef void (*rle_cpu_cast)(void *out, const void *in, int64_t n);
rle_cpu_cast rle_cpu_caster(rle_dtype to, rle_dtype from);

/* ---- slots of the table ---- */
rle_status rle_cpu_fill(rle_device *dev, const rle_array *out, double value,
                        int64_t integer);
rle_status rle_cpu_copy(rle_device *dev, const rle_array *out, const rle_array *in);
rle_status rle_cpu_unary(rle_device *dev, rle_unary_kind kind, const rle_array *out,
                         const rle_array *in, double p0, double p1);
rle_status rle_cpu_unary_backward(rle_device *dev, rle_unary_kind kind,
                                  const rle_array *gin, const rle_array *gout,
                                  const rle_array *x, const rle_array *y, double p0,
                                  double p1);
rle_status rle_cpu_binary(rle_device *dev, rle_binary_kind kind, const rle_array *out,
                          const rle_array *a, const rle_array *b);
rle_status rle_cpu_binary_scalar(rle_device *dev, rle_binary_kind kind,
                                 const rle_array *out, const rle_array *a, double value,
                                 int64_t integer, bool reversed);
rle_status rle_cpu_where(rle_device *dev, const rle_array *out, const rle_array *cond,
                         const rle_array *a, const rle_array *b);
rle_status rle_cpu_reduce(rle_device *dev, rle_reduce_kind kind, const rle_array *out,
                          const rle_array *in, uint32_t dims);
rle_status rle_cpu_arg_reduce(rle_device *dev, bool largest, const rle_array *values,
                              const rle_array *indices, const rle_array *in, int dim);
rle_status rle_cpu_softmax(rle_device *dev, bool logarithm, const rle_array *out,
                           const rle_array *in, int dim);
rle_status rle_cpu_softmax_backward(rle_device *dev, bool logarithm, const rle_array *gin,
                                    const rle_array *gout, const rle_array *y, int dim);
rle_status rle_cpu_cumsum(rle_device *dev, const rle_array *out, const rle_array *in,
                          int dim, bool reverse);
rle_status rle_cpu_sort(rle_device *dev, const rle_array *values,
                        const rle_array *indices, const rle_array *in, int dim,
                        bool descending);
rle_status rle_cpu_matmul(rle_device *dev, const rle_array *out, const rle_array *a,
                          const rle_array *b, const rle_array *bias, bool accumulate);
rle_status rle_cpu_gather(rle_device *dev, const rle_array *out, const rle_array *in,
                          int dim, const rle_array *index);
rle_status rle_cpu_scatter(rle_device *dev, const rle_array *out, int dim,
                           const rle_array *index, const rle_array *src, bool assign);
rle_status rle_cpu_index_select(rle_device *dev, const rle_array *out,
                                const rle_array *in, int dim, const rle_array *index);
rle_status rle_cpu_index_add(rle_device *dev, const rle_array *out, int dim,
                             const rle_array *index, const rle_array *src);
rle_status rle_cpu_random(rle_device *dev, rle_random_kind kind, const rle_array *out,
                          const rle_rng *rng, double p0, double p1);
rle_status rle_cpu_randperm(rle_device *dev, const rle_array *out, const rle_rng *rng);
rle_status rle_cpu_random_keyed(rle_device *dev, const rle_array *out, uint64_t seed,
                                const rle_array *keys, uint32_t draw);
rle_status rle_cpu_dropout(rle_device *dev, const rle_array *out, const rle_array *in,
                           double p, uint64_t seed, const rle_array *keys, uint32_t draw);
rle_status rle_cpu_multinomial(rle_device *dev, const rle_array *out,
                               const rle_array *probs, const rle_array *u);
rle_status rle_cpu_gae(rle_device *dev, const rle_array *out, const rle_array *rewards,
                       const rle_array *values, const rle_array *dones,
                       const rle_array *last, double gamma, double lambda);
rle_status rle_cpu_find_bad_row(rle_device *dev, const rle_array *in, bool nonnegative,
                                int64_t *row);
rle_status rle_cpu_log_share(rle_device *dev, const rle_array *out, const rle_array *kept,
                             const rle_array *x, const rle_array *index);
rle_status rle_cpu_log_share_backward(rle_device *dev, const rle_array *gx,
                                      const rle_array *gout, const rle_array *kept,
                                      const rle_array *index);
rle_status rle_cpu_adam(rle_device *dev, const rle_array *param, const rle_array *grad,
                        const rle_array *m, const rle_array *v, int count,
                        const rle_adam_args *args);
rle_status rle_cpu_sgd(rle_device *dev, const rle_array *param, const rle_array *grad,
                       const rle_array *momentum, int count, const rle_sgd_args *args);

#endif
