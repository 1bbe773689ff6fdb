/* reduce.c - sums, products, extremes over any dimensions; softmax along one.
 *
 * Order. The elements that fall into one output are numbered row-major over the reduced
 * dimensions, cut into blocks of 256, each block is folded by 16 lanes
 * (isa/reduce_impl.h), and the blocks' results are added up in double precision: 256 of
 * them to a chunk, then the chunks. So the bits depend on the reduced extents alone, not
 * on strides, other dimensions or the instruction set; kernels/fold.h has the same order
 * in parallel.
 *
 * Floats take one of two ways with the same result: along a contiguous run, or over a
 * tile of 16 outputs side by side. Integers and bool go one by one in int64. */
#include "device/cpu/cpu_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* The reduced dimensions as one list of positions. */
typedef struct {
    int ndim;
    int64_t count;
    int64_t shape[RLE_MAX_DIMS], stride[RLE_MAX_DIMS]; /* stride in elements */
} span;

static span span_of(const rle_array *in, uint32_t dims)
{
    span s = {.count = 1};
    for (int d = 0; d < in->ndim; d++) {
        if (!(dims >> d & 1)) continue;
        s.count *= in->shape[d];
        if (in->shape[d] == 1) continue;
        if (s.ndim > 0 && s.stride[s.ndim - 1] == in->stride[d] * in->shape[d]) {
            s.shape[s.ndim - 1] *= in->shape[d];
            s.stride[s.ndim - 1] = in->stride[d];
        } else {
            s.shape[s.ndim] = in->shape[d];
            s.stride[s.ndim++] = in->stride[d];
        }
    }
    if (s.ndim == 0) {
        s.ndim = 1;
        s.shape[0] = s.count;
        s.stride[0] = 1;
    }
    return s;
}

/* Offsets, in elements, of positions first .. first+n-1. */
static void span_offsets(const span *s, int64_t first, int64_t n, int64_t *offset)
{
    if (s->ndim == 1) {
        for (int64_t i = 0; i < n; i++) offset[i] = (first + i) * s->stride[0];
        return;
    }
    int64_t at[RLE_MAX_DIMS], sum = 0;
    for (int d = s->ndim - 1; d >= 0; d--) {
        at[d] = first % s->shape[d];
        first /= s->shape[d];
        sum += at[d] * s->stride[d];
    }
    for (int64_t i = 0; i < n; i++) {
        offset[i] = sum;
        for (int d = s->ndim - 1; d >= 0; d--) {
            sum += s->stride[d];
            if (++at[d] < s->shape[d]) break;
            sum -= at[d] * s->stride[d];
            at[d] = 0;
        }
    }
}

static uint32_t reduced_dims(const rle_array *out, const rle_array *in, uint32_t dims)
{
    for (int d = 0; d < in->ndim; d++)
        if (out->shape[d] != in->shape[d]) dims |= 1u << d;
    return dims;
}

/* ---- floats ---- */

static const rle_cpu_fold fold_of[RLE_REDUCE_COUNT] = {
    [RLE_REDUCE_SUM] = RLE_FOLD_SUM,       [RLE_REDUCE_MEAN] = RLE_FOLD_SUM,
    [RLE_REDUCE_PROD] = RLE_FOLD_PROD,     [RLE_REDUCE_MAX] = RLE_FOLD_MAX,
    [RLE_REDUCE_MIN] = RLE_FOLD_MIN,       [RLE_REDUCE_LOGSUMEXP] = RLE_FOLD_MAX,
    [RLE_REDUCE_SUMSQ] = RLE_FOLD_SUMSQ,
};

static inline double get_float(const void *p, int64_t i, int f)
{
    return f ? ((const double *)p)[i] : (double)((const float *)p)[i];
}

static inline void put_float(void *p, int64_t i, int f, double v)
{
    if (f)
        ((double *)p)[i] = v;
    else
        ((float *)p)[i] = (float)v;
}

static inline double combine(rle_cpu_fold fold, double a, double b)
{
    switch (fold) {
    case RLE_FOLD_PROD: return a * b;
    case RLE_FOLD_MAX: return a != a || a >= b ? a : b;
    case RLE_FOLD_MIN: return a != a || a <= b ? a : b;
    default: return a + b;
    }
}

static double identity(rle_cpu_fold fold)
{
    return fold == RLE_FOLD_PROD ? 1 : fold == RLE_FOLD_MAX ? -INFINITY
           : fold == RLE_FOLD_MIN ? INFINITY : 0;
}

/* Outputs that a tile has at most when their inputs lie side by side. */
#define MOST_WIDE 64

/* A tile: outputs whose inputs start at `base`, `step` elements apart. Up to 16, or a
 * multiple of 16 up to MOST_WIDE when step is 1. */
typedef struct {
    const char *base;
    int64_t step;
    int width;
} tile;

#define STAGE(T)                                                                         \
    for (int64_t k = 0; k < n; k++)                                                      \
        for (int c = 0; c < t->width; c++)                                               \
            ((T *)buf)[k * RLE_LANES + c] = ((const T *)t->base)[offset[k] + c * t->step];

/* exp(x - minus[c]) in place of x. */
static void subtract_and_exp(char *buf, int64_t n, int width, const double *minus, int f)
{
    for (int64_t k = 0; k < n; k++) {
        for (int c = 0; c < width; c++) {
            if (f)
                ((double *)buf)[k * RLE_LANES + c] -= minus[c];
            else
                ((float *)buf)[k * RLE_LANES + c] -= (float)minus[c];
        }
    }
    rle_cpu_active->unary[f][RLE_UNARY_EXP](buf, buf, n * RLE_LANES, 0, 0);
}

/* Fold positions start .. end-1 of the span, within a chunk, for each of the tile's
 * outputs. With `minus`, exp(x - minus) is folded. */
static void fold_tile_chunk(const tile *t, const span *s, int64_t start, int64_t end,
                            int f, rle_cpu_fold fold, const double *minus, double *result)
{
    _Alignas(64) char buf[RLE_REDUCE_BLOCK * RLE_LANES * 8];
    _Alignas(64) char part[MOST_WIDE * 8];
    int64_t offset[RLE_REDUCE_BLOCK];
    int size = f ? 8 : 4, vectors = t->width / RLE_LANES;
    rle_cpu_fold_tile kernel = rle_cpu_active->fold_tile[f][fold];
    bool direct = t->width % RLE_LANES == 0 && t->step == 1 && !minus;
    if (!direct && t->width < RLE_LANES) /* what is beside the tile must be numbers */
        memset(buf, 0, (size_t)(rle_min64(s->count, RLE_REDUCE_BLOCK) * RLE_LANES * size));
    for (int c = 0; c < t->width; c++) result[c] = identity(fold);
    for (int64_t first = start; first < end; first += RLE_REDUCE_BLOCK) {
        int64_t n = rle_min64(end - first, RLE_REDUCE_BLOCK);
        if (direct && s->ndim == 1) {
            kernel(part, t->base + first * s->stride[0] * size, NULL, s->stride[0], n,
                   vectors);
        } else {
            span_offsets(s, first, n, offset);
            if (direct) {
                kernel(part, t->base, offset, 0, n, vectors);
            } else {
                if (f)
                    STAGE(double)
                else
                    STAGE(float)
                if (minus) subtract_and_exp(buf, n, t->width, minus, f);
                kernel(part, buf, NULL, RLE_LANES, n, 1);
            }
        }
        for (int c = 0; c < t->width; c++)
            result[c] = first == start ? get_float(part, c, f)
                                       : combine(fold, result[c], get_float(part, c, f));
    }
}

static void fold_tile(const tile *t, const span *s, int f, rle_cpu_fold fold,
                      const double *minus, double *result)
{
    double more[MOST_WIDE];
    fold_tile_chunk(t, s, 0, rle_min64(s->count, RLE_REDUCE_CHUNK), f, fold, minus,
                    result);
    for (int64_t start = RLE_REDUCE_CHUNK; start < s->count; start += RLE_REDUCE_CHUNK) {
        int64_t end = rle_min64(start + RLE_REDUCE_CHUNK, s->count);
        fold_tile_chunk(t, s, start, end, f, fold, minus, more);
        for (int c = 0; c < t->width; c++) result[c] = combine(fold, result[c], more[c]);
    }
}

/* The same for one output: from a contiguous run, or gathered into one. */
static double fold_run_chunk(const char *in, const span *s, int64_t start, int64_t end,
                             int f, rle_cpu_fold fold, const double *minus)
{
    _Alignas(64) char buf[RLE_REDUCE_BLOCK * 8];
    int64_t offset[RLE_REDUCE_BLOCK];
    double part[1], result = identity(fold);
    int size = f ? 8 : 4;
    bool contiguous = s->ndim == 1 && s->stride[0] == 1;
    for (int64_t first = start; first < end; first += RLE_REDUCE_BLOCK) {
        int64_t n = rle_min64(end - first, RLE_REDUCE_BLOCK);
        const char *x = in + first * size;
        if (!contiguous || minus) {
            double m = minus ? *minus : 0;
            span_offsets(s, first, n, offset);
            for (int64_t k = 0; k < n; k++) {
                if (f)
                    ((double *)buf)[k] = ((const double *)in)[offset[k]] - m;
                else
                    ((float *)buf)[k] = ((const float *)in)[offset[k]] - (float)m;
            }
            if (minus) rle_cpu_active->unary[f][RLE_UNARY_EXP](buf, buf, n, 0, 0);
            x = buf;
        }
        rle_cpu_active->fold_run[f][fold](part, x, n);
        double v = get_float(part, 0, f);
        result = first == start ? v : combine(fold, result, v);
    }
    return result;
}

static double fold_run(const char *in, const span *s, int f, rle_cpu_fold fold,
                       const double *minus)
{
    double result =
        fold_run_chunk(in, s, 0, rle_min64(s->count, RLE_REDUCE_CHUNK), f, fold, minus);
    for (int64_t start = RLE_REDUCE_CHUNK; start < s->count; start += RLE_REDUCE_CHUNK) {
        int64_t end = rle_min64(start + RLE_REDUCE_CHUNK, s->count);
        double more = fold_run_chunk(in, s, start, end, f, fold, minus);
        result = combine(fold, result, more);
    }
    return result;
}

/* m + log(sum), where sum is of exp(x - m). */
static double log_of_sum(double m, double sum, int f)
{
    double result;
    if (f) {
        rle_cpu_active->unary[1][RLE_UNARY_LOG](&result, &sum, 1, 0, 0);
        return m + result;
    }
    float s = (float)sum, log_s;
    rle_cpu_active->unary[0][RLE_UNARY_LOG](&log_s, &s, 1, 0, 0);
    return (float)m + log_s;
}

/* What exp's argument is moved by: infinities would give inf - inf. */
static double finite_or_zero(double m) { return m - m == 0 ? m : 0; }

static void reduce_floats(rle_reduce_kind kind, const rle_array *out, const rle_array *in,
                          uint32_t dims, int f)
{
    rle_cpu_fold fold = fold_of[kind];
    int size = f ? 8 : 4;
    int64_t all = rle_array_numel(in);
    if (all <= RLE_REDUCE_BLOCK && rle_array_numel(out) == 1 && all > 0 &&
        kind != RLE_REDUCE_LOGSUMEXP && rle_array_is_contiguous(in)) {
        double sum[1];
        rle_cpu_active->fold_run[f][fold](sum, in->data, all);
        double v = get_float(sum, 0, f);
        put_float(out->data, 0, f, kind == RLE_REDUCE_MEAN ? v / (double)all : v);
        return;
    }
    span s = span_of(in, dims);
    /* Tiles go along the kept dimension in which the input is densest. Runs are better when
     * they are contiguous and long enough to fill the lanes, or a tile would be too narrow. */
    int along = -1;
    for (int d = 0; d < in->ndim; d++) {
        if (dims >> d & 1 || in->shape[d] == 1) continue;
        if (along < 0 || llabs(in->stride[d]) <= llabs(in->stride[along])) along = d;
    }
    bool run = (s.ndim == 1 && s.stride[0] == 1 && s.count >= RLE_LANES) || along < 0 ||
               in->shape[along] < 4;
    if (run) along = -1;
    const rle_array *both[2] = {out, in};
    rle_walk w;
    rle_walk_init(&w, out, along >= 0 ? dims | 1u << along : dims, 2, both);
    int64_t width = along >= 0 ? in->shape[along] : 1;
    int64_t step = along >= 0 ? in->stride[along] : 0;
    int64_t out_step = along >= 0 ? out->stride[along] : 0;
    for (; w.left > 0; rle_walk_next(&w)) {
        tile t;
        for (int64_t c = 0; c < width; c += t.width) {
            bool wide = step == 1 && kind != RLE_REDUCE_LOGSUMEXP && width - c >= MOST_WIDE;
            t = (tile){w.p[1] + c * step * size, step,
                       wide ? MOST_WIDE : (int)rle_min64(width - c, RLE_LANES)};
            double result[MOST_WIDE], m[RLE_LANES], shift[RLE_LANES];
            if (run)
                result[0] = fold_run(t.base, &s, f, fold, NULL);
            else
                fold_tile(&t, &s, f, fold, NULL, result);
            if (kind == RLE_REDUCE_LOGSUMEXP) {
                for (int i = 0; i < t.width; i++) {
                    m[i] = result[i];
                    shift[i] = finite_or_zero(m[i]);
                }
                if (run)
                    result[0] = fold_run(t.base, &s, f, RLE_FOLD_SUM, shift);
                else
                    fold_tile(&t, &s, f, RLE_FOLD_SUM, shift, result);
                for (int i = 0; i < t.width; i++)
                    result[i] = log_of_sum(shift[i], result[i], f);
            } else if (kind == RLE_REDUCE_MEAN) {
                for (int i = 0; i < t.width; i++) result[i] /= (double)s.count;
            }
            for (int i = 0; i < t.width; i++)
                put_float(w.p[0], (c + i) * out_step, f, result[i]);
        }
    }
}

/* ---- integers, bool, and the questions any and all ---- */

static inline int64_t get_integer(const void *p, int64_t i, rle_dtype t)
{
    switch (t) {
    case RLE_I32: return ((const int32_t *)p)[i];
    case RLE_I64: return ((const int64_t *)p)[i];
    case RLE_F32: return ((const float *)p)[i] != 0;
    case RLE_F64: return ((const double *)p)[i] != 0;
    default: return ((const uint8_t *)p)[i];
    }
}

static void put_integer(void *p, rle_dtype t, int64_t v)
{
    switch (t) {
    case RLE_I32: *(int32_t *)p = (int32_t)v; break;
    case RLE_I64: *(int64_t *)p = v; break;
    case RLE_U8: *(uint8_t *)p = (uint8_t)v; break;
    default: *(uint8_t *)p = v != 0; break;
    }
}

static int64_t fold_integers(rle_reduce_kind kind, const char *base, const span *s,
                             rle_dtype t)
{
    int64_t offset[RLE_REDUCE_BLOCK];
    int64_t acc = kind == RLE_REDUCE_PROD || kind == RLE_REDUCE_ALL;
    for (int64_t first = 0; first < s->count; first += RLE_REDUCE_BLOCK) {
        int64_t n = rle_min64(s->count - first, RLE_REDUCE_BLOCK);
        span_offsets(s, first, n, offset);
        if (first == 0 && (kind == RLE_REDUCE_MAX || kind == RLE_REDUCE_MIN))
            acc = get_integer(base, offset[0], t);
        for (int64_t k = 0; k < n; k++) {
            int64_t v = get_integer(base, offset[k], t);
            switch (kind) {
            case RLE_REDUCE_PROD: acc = (int64_t)((uint64_t)acc * (uint64_t)v); break;
            case RLE_REDUCE_MAX: acc = v > acc ? v : acc; break;
            case RLE_REDUCE_MIN: acc = v < acc ? v : acc; break;
            case RLE_REDUCE_ANY: acc |= v != 0; break;
            case RLE_REDUCE_ALL: acc &= v != 0; break;
            default: acc = (int64_t)((uint64_t)acc + (uint64_t)v); break;
            }
        }
    }
    return acc;
}

rle_status rle_cpu_reduce(rle_device *dev, rle_reduce_kind kind, const rle_array *out,
                          const rle_array *in, uint32_t dims)
{
    int f = rle_cpu_float(in->dtype);
    bool question = kind == RLE_REDUCE_ANY || kind == RLE_REDUCE_ALL;
    if (in->dtype > RLE_BOOL) return rle_cpu_no_dtype("a reduction", in->dtype);
    dims = reduced_dims(out, in, dims);
    if (f >= 0 && !question) {
        reduce_floats(kind, out, in, dims, f);
        return RLE_OK;
    }
    if (kind == RLE_REDUCE_MEAN || kind == RLE_REDUCE_LOGSUMEXP || kind == RLE_REDUCE_SUMSQ)
        return rle_cpu_no_dtype("this reduction", in->dtype);
    span s = span_of(in, dims);
    const rle_array *both[2] = {out, in};
    rle_walk w;
    rle_walk_init(&w, out, dims, 2, both);
    for (; w.left > 0; rle_walk_next(&w))
        put_integer(w.p[0], out->dtype, fold_integers(kind, w.p[1], &s, in->dtype));
    return RLE_OK;
}
