/* device.h - a device: memory that is accounted for, and one table of operations.
 *
 * Layers above hand the device strided arrays (base/dtype.h); shapes and dtypes have been
 * checked before, so the operations only fail for want of memory. Every filling of the
 * table (cpu, emu, cuda) computes the same thing:
 *   - outputs never overlap inputs, except where an operation says "may alias": then an
 *     input that is the very same array (data, shape, strides) as the output is fine;
 *   - each output row depends only on its own input row and on shapes of weights, never on
 *     how many rows there are or where in the batch it stands (batch-invariance), unless
 *     the sum runs over the rows;
 *   - random numbers are the same bits on every device.
 *
 * One thread owns all devices. Counters may be read from others. */
#ifndef RLE_DEVICE_DEVICE_H
#define RLE_DEVICE_DEVICE_H

#include "base/context.h"
#include "base/dtype.h"
#include "base/status.h"
#include "device/kinds.h"

typedef enum { RLE_DEVICE_CPU, RLE_DEVICE_CUDA, RLE_DEVICE_EMU } rle_device_type;

typedef struct rle_device rle_device;

/* A fully connected layer with what follows it: f32, contiguous. */
typedef struct rle_dense {
    int64_t in, out;     /* at least 1 */
    const float *weight; /* [out, in], row-major */
    const float *bias;   /* [out], or NULL */
    int function;        /* an rle_unary_kind without parameters, or RLE_DENSE_... */
} rle_dense;

/* Classes drawn by a chain of layers, [rows] each: by its results as probabilities where
 * it ends in a softmax, else as logits. Uniform numbers by row keys (i64[rows]), or the
 * stream's words from rng.counter on when keys is NULL.
 */
typedef struct rle_dense_draw {
    int64_t *action;
    float *log_prob; /* of the action: log(p / sum of p), p/sum kept 2^-23 from 0 and 1;
                        or logit - logsumexp of the logits */
    const int64_t *keys;
    uint32_t draw;
    rle_rng rng; /* with keys only the seed counts */
} rle_dense_draw;

/* ---- the table ----
 *
 * All arrays of a call lie on the device. "same shape" is exact: broadcasting was resolved
 * into strides of 0 by the caller. Dimension arguments count from 0. */
typedef struct rle_device_ops {
    /* out[...] = value, cast to out's dtype (i64 values exact through `integer`). */
    rle_status (*fill)(rle_device *dev, const rle_array *out, double value,
                       int64_t integer);
    /* Same shape, any dtypes: casts as C does, floats to integers by truncation (NaN and
     * out of range give 0 and the nearest end), anything to bool by != 0. */
    rle_status (*copy)(rle_device *dev, const rle_array *out, const rle_array *in);
    /* out same shape and dtype as in (bool for the predicates). May alias. */
    rle_status (*unary)(rle_device *dev, rle_unary_kind kind, const rle_array *out,
                        const rle_array *in, double p0, double p1);
    /* gin = gout * d unary(x)/dx with x = input, y = output of the forward pass; either may
     * be NULL when the kind does not need it (exp, sqrt, rsqrt, reciprocal, tanh, sigmoid,
     * expm1 and relu need y only; the others x). At a kink: relu'(0) = 0, abs'(0) = 0;
     * clamp passes the gradient for low < x < high. May alias gout. */
    rle_status (*unary_backward)(rle_device *dev, rle_unary_kind kind,
                                 const rle_array *gin, const rle_array *gout,
                                 const rle_array *x, const rle_array *y, double p0,
                                 double p1);
    /* out, a, b same shape; a and b of one dtype; out that dtype, or bool. May alias a or b. */
    rle_status (*binary)(rle_device *dev, rle_binary_kind kind, const rle_array *out,
                         const rle_array *a, const rle_array *b);
    /* As binary with a number for b; `reversed`: the number is the left operand. For
     * integer arrays the number is an integer (in `integer`). May alias. */
    rle_status (*binary_scalar)(rle_device *dev, rle_binary_kind kind,
                                const rle_array *out, const rle_array *a, double value,
                                int64_t integer, bool reversed);
    /* out = cond ? a : b; cond bool; all same shape, a, b, out one dtype. */
    rle_status (*where)(rle_device *dev, const rle_array *out, const rle_array *cond,
                        const rle_array *a, const rle_array *b);
    /* out has in's ndim, size 1 in each reduced dimension (those where out's shape differs
     * or whose bit is set in `dims`). Sums use a fixed order that depends only on the
     * reduced extents. Empty: sum 0, prod 1, any false, all true; the layer above refuses
     * the others. */
    rle_status (*reduce)(rle_device *dev, rle_reduce_kind kind, const rle_array *out,
                         const rle_array *in, uint32_t dims);
    /* Largest (or smallest) along `dim`: values (may be NULL) of in's dtype and indices
     * i64, first occurrence wins, NaN beats all. Both of size 1 in dim. */
    rle_status (*arg_reduce)(rle_device *dev, bool largest, const rle_array *values,
                             const rle_array *indices, const rle_array *in, int dim);
    /* Along dim, floats. May alias. A row of -inf only gives NaN, as PyTorch. */
    rle_status (*softmax)(rle_device *dev, bool logarithm, const rle_array *out,
                          const rle_array *in, int dim);
    /* gin from gout and the forward output y. */
    rle_status (*softmax_backward)(rle_device *dev, bool logarithm, const rle_array *gin,
                                   const rle_array *gout, const rle_array *y, int dim);
    rle_status (*cumsum)(rle_device *dev, const rle_array *out, const rle_array *in,
                         int dim, bool reverse);
    /* Stable sort along dim; values (in's dtype) and indices (i64), same shape as in.
     * NaN counts as largest. */
    rle_status (*sort)(rle_device *dev, const rle_array *values, const rle_array *indices,
                       const rle_array *in, int dim, bool descending);

    /* out[M,N] (+)= a[M,K] x b[K,N] (+ bias[N]); f32, f64; any strides. With a leading
     * batch dimension (all 3-d) for batched products; bias only 2-d. `accumulate` adds to
     * what is in out. Order of summation: a function of (K, N) alone. */
    rle_status (*matmul)(rle_device *dev, const rle_array *out, const rle_array *a,
                         const rle_array *b, const rle_array *bias, bool accumulate);

    /* Index arrays are i64, values from 0, checked here: a bad one is OUT_OF_RANGE naming
     * it, with nothing written. out same shape as index; out[..i..] = in[..index..]. */
    rle_status (*gather)(rle_device *dev, const rle_array *out, const rle_array *in,
                         int dim, const rle_array *index);
    /* out[..index[i]..] += src[..i..] (or = with `assign`), in index order. */
    rle_status (*scatter)(rle_device *dev, const rle_array *out, int dim,
                          const rle_array *index, const rle_array *src, bool assign);
    /* index is 1-d: out[.., i, ..] = in[.., index[i], ..]. */
    rle_status (*index_select)(rle_device *dev, const rle_array *out, const rle_array *in,
                               int dim, const rle_array *index);
    /* out[.., index[i], ..] += src[.., i, ..], in order. */
    rle_status (*index_add)(rle_device *dev, const rle_array *out, int dim,
                            const rle_array *index, const rle_array *src);

    /* Element i (row-major) is drawn at position rng->counter + i*w, w words an element
     * (f32 uniform 1, f64 uniform 2, normal f32 1 (pairs share two words: elements 2k and
     * 2k+1 are the cosine and sine of words 2k, 2k+1 counted from the start of the draw),
     * normal f64 as f32 with two words a uniform). The caller advances the counter, to a
     * multiple of 4 past the words used. out contiguous. */
    rle_status (*random)(rle_device *dev, rle_random_kind kind, const rle_array *out,
                         const rle_rng *rng, double p0, double p1);
    /* Random permutation of 0 .. n-1, out i64[n]. Fisher-Yates from the end: word i of the draw
     * times n - i, the upper half, says which entry changes places with entry n - 1 - i. */
    rle_status (*randperm)(rle_device *dev, const rle_array *out, const rle_rng *rng);
    /* u[r,j] in [0,1), f32: element j of keyed draw `draw` of row key keys[r] (i64[rows]);
     * out [rows, cols] contiguous. */
    rle_status (*random_keyed)(rle_device *dev, const rle_array *out, uint64_t seed,
                               const rle_array *keys, uint32_t draw);
    /* Inverted dropout by rows: out[r,j] = u(r,j) >= p ? in[r,j] * (1/(1-p)) : 0, with u as in
     * random_keyed and 1/(1-p) rounded to out's dtype. The same call on a gradient is the
     * backward pass. Contiguous 2-d. May alias. */
    rle_status (*dropout)(rle_device *dev, const rle_array *out, const rle_array *in,
                          double p, uint64_t seed, const rle_array *keys, uint32_t draw);
    /* Inverse-CDF sampling: probs [rows, classes] (need not sum to 1), u f32 [rows, draws],
     * out i64 [rows, draws]: first class whose cumulative share exceeds u. A row with a
     * negative, non-finite or all-zero entry: INVALID_ARGUMENT naming the row. */
    rle_status (*multinomial)(rle_device *dev, const rle_array *out,
                              const rle_array *probs, const rle_array *u);

    /* Generalized advantage estimation (Schulman et al., "High-dimensional continuous
     * control using generalized advantage estimation", 2016, eq. 11-16), backwards
     * through time: delta[t] = r[t] + gamma * v[t+1] - v[t],  A[t] = delta[t] + gamma *
     * lambda * A[t+1] out, rewards, values [T, N], f32 or f64 of one dtype; v[T] is last
     * [1, N], A[T] is 0. dones [T, N] (bool): the episode ended with step t, so nothing
     * of step t+1 enters step t: both terms with t+1 are left out. NULL: values and last
     * are 0, dones false. Without values and with lambda 1 these are discounted returns:
     * R[t] = r[t] + gamma * R[t+1], R[T] = last. Sums in double, rounded for each
     * element. */
    rle_status (*gae)(rle_device *dev, const rle_array *out, const rle_array *rewards,
                      const rle_array *values, const rle_array *dones,
                      const rle_array *last, double gamma, double lambda);

    /* Row of the first entry that is not finite, or negative with `nonnegative`: -1 if none.
     * in [rows, cols]. */
    rle_status (*find_bad_row)(rle_device *dev, const rle_array *in, bool nonnegative,
                               int64_t *row);

    /* Log-probabilities of chosen classes, for nn/distribution.c: all contiguous, index
     * i64[rows], the rest of one dtype, f32 or f64. With s the sum of row r of
     * x[rows, classes], in double and in order: out[r] = log(x[r, index[r]] / s), that
     * quotient kept one eps from 0 and 1 (2^-23, 2^-52). kept[3, rows] takes s,
     * x[r, index[r]] and their quotient, for the gradient. A class out of range is
     * OUT_OF_RANGE naming it, a row without a positive sum INVALID_ARGUMENT naming that;
     * out and kept may be half written then. */
    rle_status (*log_share)(rle_device *dev, const rle_array *out, const rle_array *kept,
                            const rle_array *x, const rle_array *index);
    /* gx[rows, classes] from gout[rows] and what log_share kept: -gout / s in the row,
     * gout / x[r, index[r]] more at the class, with gout 0 where the quotient was
     * bounded. */
    rle_status (*log_share_backward)(rle_device *dev, const rle_array *gx,
                                     const rle_array *gout, const rle_array *kept,
                                     const rle_array *index);

    /* Optimizers, in place over `count` parameters in one call; contiguous f32 or f64. */
    rle_status (*adam)(rle_device *dev, const rle_array *param, const rle_array *grad,
                       const rle_array *m, const rle_array *v, int count,
                       const rle_adam_args *args);
    /* momentum may be NULL when args->momentum is 0. */
    rle_status (*sgd)(rle_device *dev, const rle_array *param, const rle_array *grad,
                      const rle_array *momentum, int count, const rle_sgd_args *args);

    /* Chains of fully connected layers, for nn/mlp.h. The CPU has a plan of its own and
     * leaves both NULL.
     * Most rows that `dense` takes through all these layers at once; 0: none, they go one
     * by one. */
    int64_t (*dense_rows)(rle_device *dev, const rle_dense *layers, int count);
    /* y[rows, last out] = the chain of x[rows, first in], with the bits of matmul and the
     * functions. At most dense_rows rows; a single layer takes any number. draw: NULL, or
     * draws a class in each of at most dense_rows rows, as random, multinomial and the
     * rest of log_prob would; y may then be NULL. Waits for them; a row that nothing can
     * be drawn from is INVALID_ARGUMENT naming it. */
    rle_status (*dense)(rle_device *dev, const rle_dense *layers, int count,
                        const float *x, int64_t rows, float *y,
                        const rle_dense_draw *draw);
} rle_device_ops;

/* ---- memory ---- */

struct rle_piece;

/* A block of tensor memory and what the accounting knows of it. */
typedef struct rle_block {
    void *data;
    size_t size;             /* bytes asked for */
    size_t reserved;         /* bytes it takes: `size` rounded up */
    struct rle_piece *piece; /* of a segment; NULL on the CPU */
    rle_device *pinned;      /* page-locked for that device; NULL: not */
    uint32_t row;            /* where the accounting keeps its bytes */
    uint8_t owner;           /* rle_owner */
} rle_block;

typedef struct rle_memory_stats {
    size_t allocated; /* bytes in live blocks, as asked for */
    /* Bytes taken from the driver: live blocks as rounded, cached, and workspaces. */
    size_t reserved;
    size_t cached;    /* of these, free for the next blocks */
    size_t workspace; /* of these, the device's own: of libraries and kernels */
    size_t peak;     /* highest `allocated` since the last reset */
    size_t limit;    /* of `reserved`; 0 = none */
    size_t blocks;   /* live */
    /* Counters since start. */
    uint64_t allocations, frees, from_cache;
    uint64_t from_driver; /* allocations asked of the driver; none in the steady state */
    uint64_t
        retries; /* allocations asked for again after everything dead was let go of */
    uint64_t refused; /* allocations that failed all the same */
} rle_memory_stats;

/* What one owner holds from one script line. */
typedef struct rle_memory_row {
    rle_owner owner;
    uint32_t site;
    size_t bytes;
    size_t blocks;
    int64_t growth; /* bytes since rle_device_mark */
} rle_memory_row;

/* A device's memory in parts: allocated + rounding + cached + workspace + context +
 * unaccounted = used. Without figures of the driver's, used is what was reserved. */
typedef struct rle_memory_usage {
    size_t allocated;    /* live blocks, as asked for */
    size_t rounding;     /* what they take beyond that */
    size_t cached;       /* free for the next blocks */
    size_t workspace;    /* of libraries and kernels */
    size_t context;      /* in use when it was opened: driver, kernels, other processes */
    int64_t unaccounted; /* what came since that nobody here took */
    size_t used, total;  /* what the driver says; total 0: it says nothing */
} rle_memory_usage;

/* Is the work over that may still use a block? With `wait`: wait for it, and true. After
 * true it is not asked again and has let go of what `arg` held. */
typedef bool rle_ready_fn(void *arg, bool wait);

/* What a device is. Sizes in bytes, versions as 1000 * major + 10 * minor. */
typedef struct rle_device_properties {
    char name[96];        /* "NVIDIA H200", "Intel(R) Xeon(R) ..." */
    int major, minor;     /* compute capability; 0 for the CPU */
    int multiprocessors;  /* or cores */
    size_t memory;        /* in all */
    size_t shared_memory; /* a block may ask for */
    int driver, runtime;  /* versions; 0 where there is none */
} rle_device_properties;

/* What the device's own accounting says, for the report. */
typedef struct rle_device_figures {
    size_t total;   /* bytes the device has */
    size_t used;    /* bytes in use, by whomever */
    size_t context; /* in use when it was opened: the driver's context, the kernels,
                       others */
} rle_device_figures;

/* How a device multiplies matrices. What a library computes is the same bits each time,
 * but may differ in the last ones with the number of rows. */
typedef struct rle_blas_settings {
    bool batch_invariant; /* never by a library: no row's product depends on the others */
    bool tf32;            /* f32 factors may be rounded to 10 bits behind the point */
    size_t workspace;     /* bytes on the device for the library; counted as reserved */
    int64_t
        threshold; /* a library gets products whose right factor has that many values */
} rle_blas_settings;

typedef struct rle_blas_state {
    rle_blas_settings settings;
    bool open;      /* a library is at work */
    char text[192]; /* which, or why there is none; "" while none was needed */
} rle_blas_state;

struct rle_device {
    rle_device_type type;
    int index;
    char name[16]; /* "cpu", "cuda:1" */
    const rle_device_ops *ops;
    /* Raw memory, for the allocator. NULL when there is none. Aligned to 64 bytes (cpu)
     * or 256. */
    void *(*raw_alloc)(rle_device *dev, size_t size);
    void (*raw_free)(rle_device *dev, void *p, size_t size);
    /* Between host memory and a block. When copy_in returns the host memory may be
     * changed; when copy_out returns it is filled. */
    rle_status (*copy_in)(rle_device *dev, void *dst, const void *host, size_t size);
    rle_status (*copy_out)(rle_device *dev, void *host, const void *src, size_t size);
    /* Wait for all work given to the device so far; an error of that work is returned
     * here. NULL: there is nothing to wait for. */
    rle_status (*synchronize)(rle_device *dev);
    /* NULL: the device keeps no figures of its own. */
    rle_status (*figures)(rle_device *dev, rle_device_figures *out);
    const struct rle_stream_ops *streams; /* device/stream.h; NULL: none but its own */
    /* Change the settings of products (set may be NULL) and say how they are now (out may
     * be NULL). NULL: there are none. */
    rle_status (*blas)(rle_device *dev, const rle_blas_settings *set,
                       rle_blas_state *out);
    void *impl; /* the plug-in's */
    struct rle_allocator *allocator;
};

/* "cpu", "cuda", "cuda:1", "emu", "auto" -> a device that lives as long as the process.
 * `rank` picks a device by rank modulo the number there are when no index is given.
 * UNAVAILABLE says in one line why there is none and how to get it. */
rle_status rle_device_get(const char *name, int rank, rle_device **out);
rle_device *rle_device_cpu(void);
/* Devices opened so far. */
int rle_device_count(void);
rle_device *rle_device_at(int i);
/* How many devices of a type this machine has. UNAVAILABLE: none, with the reason and
 * what to do about it in one line. */
rle_status rle_device_available(rle_device_type type, int *out);
rle_status rle_device_get_properties(rle_device *dev, rle_device_properties *out);
/* The same of a device that need not be open; index below what there are. */
rle_status rle_device_describe(rle_device_type type, int index,
                               rle_device_properties *out);
/* Wait until everything given to the device is done, and return its error if one failed.
 */
rle_status rle_device_synchronize(rle_device *dev);
/* Settings of products of matrices: change them, when set is not NULL, and say how they
 * are now, when out is not NULL. INVALID_ARGUMENT: a workspace below 64 KiB or no
 * multiple of 256; UNIMPLEMENTED: the device has none, as the CPU, whose products are
 * batch-invariant. */
rle_status rle_device_blas(rle_device *dev, const rle_blas_settings *set,
                           rle_blas_state *out);
/* Settings of the emulated device, as in RLENGINE_EMU. For tests. */
rle_status rle_device_emu_control(const char *settings);

/* A block of `size` bytes, contents undefined, owner and site from the current context.
 * When the limit or the driver refuses: what is dead is released, the device waited for,
 * the collector run (rle_device_on_pressure), the cache trimmed, and the driver asked
 * once more (counted as a retry). Then RESOURCE_EXHAUSTED (see rle_device_oom_report). */
rle_status rle_device_alloc(rle_device *dev, size_t size, rle_block *out);
/* A block of the CPU's, and in its account, that `dev` reads and writes itself
 * (rle_pinned_alloc). It goes back at once when it is freed. Where page-locked memory is
 * not to be had it is a block like any other. RESOURCE_EXHAUSTED. */
rle_status rle_device_alloc_pinned(rle_device *dev, size_t size, rle_block *out);
void rle_device_free(rle_device *dev, rle_block *block);
/* The block is used by work on another stream than the device's own: once freed it is
 * reused only after ready(arg) (takes over arg; a device without streams waits at once).
 */
rle_status rle_device_guard(rle_device *dev, rle_block *block, rle_ready_fn *ready,
                            void *arg);
/* Move the block's bytes to another owner's account. */
void rle_device_reown(rle_device *dev, rle_block *block, rle_owner owner);

void rle_device_memory(rle_device *dev, rle_memory_stats *out);
void rle_device_reset_peak(rle_device *dev);
/* Of what is taken from the driver; 0 = no limit. One below what is taken already holds
 * for the next taking. Devices other than the CPU take 2 MiB at least. */
void rle_device_set_limit(rle_device *dev, size_t bytes);
/* Give what is free back to the driver; bytes given back. */
size_t rle_device_empty_cache(rle_device *dev);
/* Rows with live bytes, largest first; at most `max`; returns how many there are. */
size_t rle_device_report(rle_device *dev, rle_memory_row *rows, size_t max);
/* Everything the device's memory is used for. Fails when the driver does not answer. */
rle_status rle_device_usage(rle_device *dev, rle_memory_usage *out);
/* Remember what every row holds now, under a name ("episode 2"): an out-of-memory report
 * says what grew since. */
void rle_device_mark(rle_device *dev, const char *name);
/* The report as text: totals, holders by owner and script line, and what makes the sum
 * what the driver says. A string from rle_malloc in *out. */
rle_status rle_device_report_text(rle_device *dev, char **out);
/* What was known when the last allocation was refused: the figures, who holds most, what
 * grew, what to try, and the report. NULL if none was refused. */
const char *rle_device_oom_report(void);

/* Called before an allocation is refused: free what is dead, and say whether anything may
 * have changed. The lua layer sets it to run the collector. */
void rle_device_on_pressure(bool (*fn)(void *self, rle_device *dev, size_t wanted),
                            void *self);

/* A device that fails so that no further work is possible ends the process with status
 * 70, after `fn` had the chance to say goodbye to others. fn must not call any device. */
void rle_device_on_fatal(void (*fn)(void *self, const char *message), void *self);

/* For tests: the nth raw allocation of device memory from now fails once, as
 * RL_FAULT=cuda:n in the environment orders it from the start; 0: none. The CPU is no
 * device here. */
void rle_device_fault(uint64_t nth);

/* Bytes allocated since it was last set to 0, over all devices: the debt that the lua layer
 * pays to its collector. */
extern size_t rle_device_debt;

/* Bytes in live blocks of all devices together. */
size_t rle_device_live_bytes(void);

/* "64MiB", "1.5 GB", "4096" -> bytes; INVALID_ARGUMENT names what is understood. */
rle_status rle_bytes_parse(const char *text, size_t *out);
/* "1.6 GiB" into `out`; returns `out`. */
char *rle_bytes_format(double bytes, char *out, size_t size);

#endif
