/* reduce_impl.h - folding blocks of up to 256 elements, and softmax over rows.
 *
 * The order of every fold: element k belongs to lane k mod 16; each lane goes through its
 * elements in order, starting from the identity; then lane i takes in lane i+8, then i+4,
 * i+2, i+1. Vectors of any width can do it, and a tile (16 outputs side by side) does the
 * same with whole vectors for lanes. */
#include "device/cpu/isa/real.h"

#define IDENTITY_SUM 0
#define IDENTITY_SUMSQ 0
#define IDENTITY_PROD 1
#define IDENTITY_MAX -LIBM(inf)()
#define IDENTITY_MIN LIBM(inf)()

/* How a lane takes in an element, and how two lanes join. */
#define TAKE_SUM(acc, x) ((acc) + (x))
#define TAKE_SUMSQ(acc, x) ((acc) + (x) * (x))
#define TAKE_PROD(acc, x) ((acc) * (x))
#define TAKE_MAX(acc, x) ((((acc) >= (x)) | ((acc) != (acc))) ? (acc) : (x))
#define TAKE_MIN(acc, x) ((((acc) <= (x)) | ((acc) != (acc))) ? (acc) : (x))
#define JOIN_SUM TAKE_SUM
#define JOIN_SUMSQ TAKE_SUM
#define JOIN_PROD TAKE_PROD
#define JOIN_MAX TAKE_MAX
#define JOIN_MIN TAKE_MIN

#define FOLD(name, KIND)                                                                 \
    static void fold_run_##name(void *out, const void *in_, int64_t n)                   \
    {                                                                                    \
        const REAL *in = in_;                                                            \
        REAL acc[RLE_LANES];                                                             \
        for (int l = 0; l < RLE_LANES; l++) acc[l] = IDENTITY_##KIND;                    \
        int64_t k = 0;                                                                   \
        for (; k + RLE_LANES <= n; k += RLE_LANES)                                       \
            for (int l = 0; l < RLE_LANES; l++)                                          \
                acc[l] = TAKE_##KIND(acc[l], in[k + l]);                                 \
        for (int l = 0; k + l < n; l++) acc[l] = TAKE_##KIND(acc[l], in[k + l]);         \
        for (int half = RLE_LANES / 2; half > 0; half /= 2)                              \
            for (int l = 0; l < half; l++) acc[l] = JOIN_##KIND(acc[l], acc[l + half]);  \
        *(REAL *)out = acc[0];                                                           \
    }                                                                                    \
    static void fold_tile_##name(void *out_, const void *base_, const int64_t *offset,   \
                                 int64_t n)                                              \
    {                                                                                    \
        const REAL *base = base_;                                                        \
        REAL *out = out_;                                                                \
        _Alignas(64) REAL acc[RLE_LANES][RLE_LANES];                                     \
        for (int l = 0; l < RLE_LANES; l++)                                              \
            for (int c = 0; c < RLE_LANES; c++) acc[l][c] = IDENTITY_##KIND;             \
        for (int64_t k = 0; k < n; k++) {                                                \
            const REAL *x = base + (offset ? offset[k] : k * RLE_LANES);                 \
            REAL *lane = acc[k % RLE_LANES];                                             \
            for (int c = 0; c < RLE_LANES; c++) lane[c] = TAKE_##KIND(lane[c], x[c]);    \
        }                                                                                \
        for (int half = RLE_LANES / 2; half > 0; half /= 2)                              \
            for (int l = 0; l < half; l++)                                               \
                for (int c = 0; c < RLE_LANES; c++)                                      \
                    acc[l][c] = JOIN_##KIND(acc[l][c], acc[l + half][c]);                \
        for (int c = 0; c < RLE_LANES; c++) out[c] = acc[0][c];                          \
    }

FOLD(sum, SUM)
FOLD(sumsq, SUMSQ)
FOLD(prod, PROD)
FOLD(max, MAX)
FOLD(min, MIN)

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

/* A row longer than a block adds up its blocks in double, as reduce.c does. */
static REAL sum_of(const REAL *x, int64_t n)
{
    REAL part;
    if (n <= RLE_REDUCE_BLOCK) {
        fold_run_sum(&part, x, n);
        return part;
    }
    double sum = 0;
    for (int64_t k = 0; k < n; k += RLE_REDUCE_BLOCK) {
        fold_run_sum(&part, x + k, rle_min64(n - k, RLE_REDUCE_BLOCK));
        sum += part;
    }
    return (REAL)sum;
}

static REAL max_of(const REAL *x, int64_t n)
{
    REAL best = IDENTITY_MAX, part;
    for (int64_t k = 0; k < n; k += RLE_REDUCE_BLOCK) {
        fold_run_max(&part, x + k, rle_min64(n - k, RLE_REDUCE_BLOCK));
        best = TAKE_MAX(best, part);
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
        REAL sum = sum_of(out, n);
        for (int64_t i = 0; i < n; i++) out[i] /= sum;
        return;
    }
    REAL e[RLE_REDUCE_BLOCK], part = 0;
    double sum = 0;
    for (int64_t k = 0; k < n; k += RLE_REDUCE_BLOCK) {
        int64_t count = rle_min64(n - k, RLE_REDUCE_BLOCK);
        for (int64_t i = 0; i < count; i++) e[i] = M(exp)(in[k + i] - m);
        fold_run_sum(&part, e, count);
        sum += part;
    }
    REAL log_sum = M(log)((REAL)sum);
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
    double sum = 0;
    for (int64_t k = 0; k < n; k += RLE_REDUCE_BLOCK) {
        int64_t count = rle_min64(n - k, RLE_REDUCE_BLOCK);
        for (int64_t i = 0; i < count; i++) e[i] = gout[k + i] * y[k + i];
        fold_run_sum(&part, e, count);
        sum += part;
    }
    RLE_IVDEP
    for (int64_t i = 0; i < n; i++) gin[i] = y[i] * (gout[i] - (REAL)sum);
}

void K(rle_softmax_tile)(bool logarithm, void *tile_, int64_t n)
{
    if (n <= 0) return;
    REAL *tile = tile_;
    REAL m[RLE_LANES], sum[RLE_LANES];
    _Alignas(64) REAL e[RLE_REDUCE_BLOCK * RLE_LANES];
    fold_tile_max(m, tile, NULL, n);
    for (int64_t k = 0; k < n; k++)
        for (int c = 0; c < RLE_LANES; c++)
            e[k * RLE_LANES + c] = M(exp)(tile[k * RLE_LANES + c] - m[c]);
    fold_tile_sum(sum, e, NULL, n);
    if (logarithm) {
        for (int c = 0; c < RLE_LANES; c++) sum[c] = M(log)(sum[c]);
        for (int64_t k = 0; k < n; k++)
            for (int c = 0; c < RLE_LANES; c++)
                tile[k * RLE_LANES + c] = tile[k * RLE_LANES + c] - m[c] - sum[c];
    } else {
        for (int64_t k = 0; k < n; k++)
            for (int c = 0; c < RLE_LANES; c++)
                tile[k * RLE_LANES + c] = e[k * RLE_LANES + c] / sum[c];
    }
}

void K(rle_softmax_tile_backward)(bool logarithm, void *tile_, const void *y_, int64_t n)
{
    if (n <= 0) return;
    REAL *g = tile_;
    const REAL *y = y_;
    REAL sum[RLE_LANES];
    if (logarithm) {
        fold_tile_sum(sum, g, NULL, n);
        for (int64_t k = 0; k < n; k++)
            for (int c = 0; c < RLE_LANES; c++)
                g[k * RLE_LANES + c] -= M(exp)(y[k * RLE_LANES + c]) * sum[c];
        return;
    }
    _Alignas(64) REAL e[RLE_REDUCE_BLOCK * RLE_LANES];
    for (int64_t k = 0; k < n * RLE_LANES; k++) e[k] = g[k] * y[k];
    fold_tile_sum(sum, e, NULL, n);
    for (int64_t k = 0; k < n; k++)
        for (int c = 0; c < RLE_LANES; c++)
            g[k * RLE_LANES + c] = y[k * RLE_LANES + c] * (g[k * RLE_LANES + c] - sum[c]);
}
