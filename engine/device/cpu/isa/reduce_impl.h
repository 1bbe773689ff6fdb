/* reduce_impl.h - folding blocks of up to 256 elements, and softmax over rows.
 *
 * The order of every fold: element k belongs to lane k mod 16; each lane goes through its
 * elements in order, starting from the identity; then lane i takes in lane i+8, then i+4,
 * i+2, i+1. Vectors of any width can do it, and a tile (16 outputs side by side) does the
 * same with whole vectors for lanes. */
#include "device/cpu/isa/simd.h"

/* Lanes of a tile that are kept in registers together; how many tiles side by side share
 * them where that reads memory in longer pieces. */
#if defined(__AVX512F__) && !defined(RLE_F64_KERNELS)
#define GROUP 16
#define WIDE 4
#elif defined(__AVX512F__)
#define GROUP 8
#define WIDE 4
#elif defined(__AVX2__) && !defined(RLE_F64_KERNELS)
#define GROUP 4
#define WIDE 4
#else
#define GROUP 2
#define WIDE 1
#endif

#define IDENTITY_SUM 0
#define IDENTITY_SUMSQ 0
#define IDENTITY_PROD 1
#define IDENTITY_MAX -LIBM(inf)()
#define IDENTITY_MIN LIBM(inf)()

/* How a lane takes in an element, and how two lanes join. */
#define TAKE_SUM(acc, x) v_add(acc, x)
#define TAKE_SUMSQ(acc, x) v_add(acc, v_mul(x, x))
#define TAKE_PROD(acc, x) v_mul(acc, x)
#define TAKE_MAX(acc, x) v_larger(acc, x)
#define TAKE_MIN(acc, x) v_smaller(acc, x)
#define JOIN_SUM(a, b) ((a) + (b))
#define JOIN_SUMSQ JOIN_SUM
#define JOIN_PROD(a, b) ((a) * (b))
#define JOIN_MAX(a, b) ((((a) >= (b)) | ((a) != (a))) ? (a) : (b))
#define JOIN_MIN(a, b) ((((a) <= (b)) | ((a) != (a))) ? (a) : (b))

/* Elements that fill up a last vector are identities and change nothing: no sum of the
 * engine is ever -0 before its last element. */
#define FOLD(name, KIND)                                                                 \
    RLE_INLINE v16 fold_lanes_##name(const REAL *in, int64_t n)                          \
    {                                                                                    \
        v16 acc = v_set(IDENTITY_##KIND);                                                \
        for (; n >= 16; n -= 16, in += 16) acc = TAKE_##KIND(acc, v_load(in));           \
        if (n > 0) {                                                                     \
            v16 rest = v_load_filled(in, (int)n, IDENTITY_##KIND);                       \
            acc = TAKE_##KIND(acc, rest);                                                \
        }                                                                                \
        return acc;                                                                      \
    }                                                                                    \
    RLE_INLINE REAL join_##name(v16 v)                                                   \
    {                                                                                    \
        REAL lane[16];                                                                   \
        v_store(lane, v);                                                                \
        RLE_UNROLL                                                                       \
        for (int half = 8; half > 0; half /= 2)                                          \
            for (int l = 0; l < half; l++)                                               \
                lane[l] = JOIN_##KIND(lane[l], lane[l + half]);                          \
        return lane[0];                                                                  \
    }                                                                                    \
    RLE_INLINE void fold_rows_##name(const int W, const int G, REAL *out, const REAL *base, \
                                     const int64_t *offset, int64_t step, int64_t n)     \
    {                                                                                    \
        _Alignas(64) REAL lane[16][16 * WIDE];                                           \
        int64_t whole = n / 16 * 16;                                                     \
        for (int g = 0; g < 16; g += G) {                                                \
            v16 acc[GROUP][WIDE];                                                        \
            RLE_UNROLL                                                                   \
            for (int l = 0; l < G; l++) {                                                \
                RLE_UNROLL                                                               \
                for (int w = 0; w < W; w++) acc[l][w] = v_set(IDENTITY_##KIND);          \
            }                                                                            \
            for (int64_t k = g; k < whole; k += 16) {                                    \
                RLE_UNROLL                                                               \
                for (int l = 0; l < G; l++) {                                            \
                    const REAL *x = base + ROW(k + l);                                   \
                    RLE_UNROLL                                                           \
                    for (int w = 0; w < W; w++)                                          \
                        acc[l][w] = TAKE_##KIND(acc[l][w], v_load(x + 16 * w));          \
                }                                                                        \
            }                                                                            \
            RLE_UNROLL                                                                   \
            for (int l = 0; l < G; l++) {                                                \
                RLE_UNROLL                                                               \
                for (int w = 0; w < W; w++) v_store(&lane[g + l][16 * w], acc[l][w]);    \
            }                                                                            \
        }                                                                                \
        for (int64_t k = whole; k < n; k++) {                                            \
            REAL *to = lane[k - whole];                                                  \
            const REAL *x = base + ROW(k);                                               \
            for (int w = 0; w < 16 * W; w += 16)                                         \
                v_store(to + w, TAKE_##KIND(v_load(to + w), v_load(x + w)));             \
        }                                                                                \
        for (int half = 8; half > 0; half /= 2)                                          \
            for (int l = 0; l < half; l++)                                               \
                for (int w = 0; w < 16 * W; w += 16) {                                   \
                    v16 x = v_load(&lane[l + half][w]);                                  \
                    v_store(&lane[l][w], MEET_##KIND(v_load(&lane[l][w]), x));           \
                }                                                                        \
        memcpy(out, lane[0], 16 * (size_t)W * sizeof(REAL));                             \
    }                                                                                    \
    static void fold_tile_##name(void *out_, const void *base_, const int64_t *offset,   \
                                 int64_t step, int64_t n, int vectors)                   \
    {                                                                                    \
        REAL *out = out_;                                                                \
        const REAL *base = base_;                                                        \
        while (vectors > 0) {                                                            \
            int w = WIDE > 1 && !offset && vectors >= WIDE && WIDE_##KIND ? WIDE : 1;    \
            if (WIDE_##KIND && w == WIDE)                                                \
                fold_rows_##name(WIDE, GROUP / WIDE, out, base, NULL, step, n);          \
            else if (offset)                                                             \
                fold_rows_##name(1, GROUP, out, base, offset, 0, n);                     \
            else                                                                         \
                fold_rows_##name(1, GROUP, out, base, NULL, step, n);                    \
            vectors -= w;                                                                \
            out += 16 * w;                                                               \
            base += 16 * w;                                                              \
        }                                                                                \
    }

/* Only sums are common enough to have tiles side by side. */
#define WIDE_SUM 1
#define WIDE_SUMSQ 0
#define WIDE_PROD 0
#define WIDE_MAX 0
#define WIDE_MIN 0
#define ROW(k) (offset ? offset[k] : (k) * step)
#define MEET_SUM TAKE_SUM
#define MEET_SUMSQ TAKE_SUM
#define MEET_PROD TAKE_PROD
#define MEET_MAX TAKE_MAX
#define MEET_MIN TAKE_MIN

FOLD(sum, SUM)
FOLD(sumsq, SUMSQ)
FOLD(prod, PROD)
FOLD(max, MAX)
FOLD(min, MIN)

static void fold_run_sum(void *out, const void *in, int64_t n)
{
    *(REAL *)out = v_sum(fold_lanes_sum(in, n));
}
static void fold_run_sumsq(void *out, const void *in, int64_t n)
{
    *(REAL *)out = v_sum(fold_lanes_sumsq(in, n));
}
static void fold_run_prod(void *out, const void *in, int64_t n)
{
    *(REAL *)out = join_prod(fold_lanes_prod(in, n));
}
static void fold_run_max(void *out, const void *in, int64_t n)
{
    *(REAL *)out = join_max(fold_lanes_max(in, n));
}
static void fold_run_min(void *out, const void *in, int64_t n)
{
    *(REAL *)out = join_min(fold_lanes_min(in, n));
}

const rle_cpu_fold_run K(rle_fold_run)[RLE_FOLD_COUNT] = {
    [RLE_FOLD_SUM] = fold_run_sum,   [RLE_FOLD_SUMSQ] = fold_run_sumsq,
    [RLE_FOLD_PROD] = fold_run_prod, [RLE_FOLD_MAX] = fold_run_max,
    [RLE_FOLD_MIN] = fold_run_min,
};
const rle_cpu_fold_tile K(rle_fold_tile)[RLE_FOLD_COUNT] = {
    [RLE_FOLD_SUM] = fold_tile_sum,   [RLE_FOLD_SUMSQ] = fold_tile_sumsq,
    [RLE_FOLD_PROD] = fold_tile_prod, [RLE_FOLD_MAX] = fold_tile_max,
    [RLE_FOLD_MIN] = fold_tile_min,
};

/* ---- softmax ---- */

/* A row longer than a block adds up its blocks in double, and then its chunks, as
 * reduce.c does. */
typedef struct {
    double chunks, blocks;
} row_sum;

/* The block at k of the row has the sum `part`. */
RLE_INLINE void row_sum_add(row_sum *s, int64_t k, REAL part)
{
    if (k % RLE_REDUCE_CHUNK == 0) {
        s->chunks += s->blocks;
        s->blocks = 0;
    }
    s->blocks += part;
}

RLE_INLINE REAL row_sum_result(const row_sum *s)
{
    return (REAL)(s->chunks + s->blocks);
}

static REAL sum_of(const REAL *x, int64_t n)
{
    REAL part;
    if (n <= RLE_REDUCE_BLOCK) {
        fold_run_sum(&part, x, n);
        return part;
    }
    row_sum sum = {0, 0};
    for (int64_t k = 0; k < n; k += RLE_REDUCE_BLOCK) {
        fold_run_sum(&part, x + k, rle_min64(n - k, RLE_REDUCE_BLOCK));
        row_sum_add(&sum, k, part);
    }
    return row_sum_result(&sum);
}

static REAL max_of(const REAL *x, int64_t n)
{
    REAL best = IDENTITY_MAX, part;
    for (int64_t k = 0; k < n; k += RLE_REDUCE_BLOCK) {
        fold_run_max(&part, x + k, rle_min64(n - k, RLE_REDUCE_BLOCK));
        best = JOIN_MAX(best, part);
    }
    return best;
}

void K(rle_softmax_row)(bool logarithm, void *out_, const void *in_, int64_t n)
{
    REAL *out = out_;
    const REAL *in = in_;
    REAL m = max_of(in, n);
    if (!logarithm) {
        RLE_IVDEP
        for (int64_t i = 0; i < n; i++) out[i] = M(exp)(in[i] - m);
        REAL scale = 1 / sum_of(out, n);
        for (int64_t i = 0; i < n; i++) out[i] *= scale;
        return;
    }
    REAL e[RLE_REDUCE_BLOCK], part = 0;
    row_sum sum = {0, 0};
    for (int64_t k = 0; k < n; k += RLE_REDUCE_BLOCK) {
        int64_t count = rle_min64(n - k, RLE_REDUCE_BLOCK);
        for (int64_t i = 0; i < count; i++) e[i] = M(exp)(in[k + i] - m);
        fold_run_sum(&part, e, count);
        row_sum_add(&sum, k, part);
    }
    REAL log_sum = M(log)(row_sum_result(&sum));
    RLE_IVDEP
    for (int64_t i = 0; i < n; i++) out[i] = in[i] - m - log_sum;
}

void K(rle_softmax_row_backward)(bool logarithm, void *gin_, const void *gout_,
                                 const void *y_, int64_t n)
{
    REAL *gin = gin_;
    const REAL *gout = gout_, *y = y_;
    if (logarithm) {
        REAL sum = sum_of(gout, n);
        RLE_IVDEP
        for (int64_t i = 0; i < n; i++) gin[i] = gout[i] - M(exp)(y[i]) * sum;
        return;
    }
    REAL e[RLE_REDUCE_BLOCK], part = 0;
    row_sum sum = {0, 0};
    for (int64_t k = 0; k < n; k += RLE_REDUCE_BLOCK) {
        int64_t count = rle_min64(n - k, RLE_REDUCE_BLOCK);
        for (int64_t i = 0; i < count; i++) e[i] = gout[k + i] * y[k + i];
        fold_run_sum(&part, e, count);
        row_sum_add(&sum, k, part);
    }
    REAL total = row_sum_result(&sum);
    RLE_IVDEP
    for (int64_t i = 0; i < n; i++) gin[i] = y[i] * (gout[i] - total);
}

void K(rle_softmax_tile)(bool logarithm, void *tile_, int64_t n)
{
    if (n <= 0) return;
    REAL *tile = tile_;
    REAL m[RLE_LANES], sum[RLE_LANES];
    _Alignas(64) REAL e[RLE_REDUCE_BLOCK * RLE_LANES];
    fold_tile_max(m, tile, NULL, RLE_LANES, n, 1);
    for (int64_t k = 0; k < n; k++)
        for (int c = 0; c < RLE_LANES; c++)
            e[k * RLE_LANES + c] = M(exp)(tile[k * RLE_LANES + c] - m[c]);
    fold_tile_sum(sum, e, NULL, RLE_LANES, n, 1);
    if (logarithm) {
        for (int c = 0; c < RLE_LANES; c++) sum[c] = M(log)(sum[c]);
        for (int64_t k = 0; k < n; k++)
            for (int c = 0; c < RLE_LANES; c++)
                tile[k * RLE_LANES + c] = tile[k * RLE_LANES + c] - m[c] - sum[c];
    } else {
        for (int c = 0; c < RLE_LANES; c++) sum[c] = 1 / sum[c];
        for (int64_t k = 0; k < n; k++)
            for (int c = 0; c < RLE_LANES; c++)
                tile[k * RLE_LANES + c] = e[k * RLE_LANES + c] * sum[c];
    }
}

void K(rle_softmax_tile_backward)(bool logarithm, void *tile_, const void *y_, int64_t n)
{
    if (n <= 0) return;
    REAL *g = tile_;
    const REAL *y = y_;
    REAL sum[RLE_LANES];
    if (logarithm) {
        fold_tile_sum(sum, g, NULL, RLE_LANES, n, 1);
        for (int64_t k = 0; k < n; k++)
            for (int c = 0; c < RLE_LANES; c++)
                g[k * RLE_LANES + c] -= M(exp)(y[k * RLE_LANES + c]) * sum[c];
        return;
    }
    _Alignas(64) REAL e[RLE_REDUCE_BLOCK * RLE_LANES];
    for (int64_t k = 0; k < n * RLE_LANES; k++) e[k] = g[k] * y[k];
    fold_tile_sum(sum, e, NULL, RLE_LANES, n, 1);
    for (int64_t k = 0; k < n; k++)
        for (int c = 0; c < RLE_LANES; c++)
            g[k * RLE_LANES + c] = y[k * RLE_LANES + c] * (g[k * RLE_LANES + c] - sum[c]);
}
