/* gemm_impl.h - products of matrices.
 *
 * The order of the sums, a function of (K, N) alone:
 *   N >= 16: acc starts at 0 and takes in k = 0, 1, 2, ...;
 *   N <  16: 16 lanes, lane l takes in k = l, l+16, ... (K is filled up with zeros to a
 *            multiple of 16), then lane i takes in lane i+8, i+4, i+2, i+1.
 * f32 takes a product in with one fused multiply-add, f64 with a multiplication and an
 * addition (a fused one in double cannot be had everywhere). The bias, then the old value
 * of out, are added to the finished sum.
 *
 * Wide products (N >= 16) go by panels of 64 columns of b and, in them, tiles of a few rows
 * by a few vectors, which stay in registers while k runs. A panel is used where it lies
 * when its rows are contiguous and it is small or little used; otherwise it is copied,
 * PANEL_K rows at a time. Narrow products (N < 16) keep the 16 lanes in a vector while k
 * runs, or, when a is contiguous down its columns, hold 16 rows in a vector, lane after
 * lane.
 *
 * All scratch is on the stack, at most 200 KiB. */
#include "device/cpu/isa/tile.h"

#define PANEL 64
#define PANEL_K 128
#define BLOCK_M (960 / (int64_t)sizeof(REAL)) /* rows that share a copied panel */

/* ---- wide ---- */

#define TILE(R, NV)                                                                      \
    static void tile_##R##x##NV(const rle_tile *t, const REAL *a, const REAL *b, REAL *out, \
                                const REAL *bias, int last)                              \
    {                                                                                    \
        tile_body(R, NV, t, a, b, out, bias, last);                                      \
    }

#define TILE_ROW1(R) {NULL, tile_##R##x1}
#define TILE_ROW2(R) {NULL, tile_##R##x1, tile_##R##x2}
#define TILE_ROW4(R) {NULL, tile_##R##x1, tile_##R##x2, tile_##R##x3, tile_##R##x4}
#define TILES2(R) TILE(R, 1) TILE(R, 2)
#define TILES4(R) TILES2(R) TILE(R, 3) TILE(R, 4)
#if defined(__AVX512F__) && !defined(RLE_F64_KERNELS)
TILES4(1) TILES4(2) TILES4(3) TILES4(4) TILES4(5) TILES4(6)
static const rle_tile_fn tiles[TILE_ROWS + 1][5] = {
    {NULL},       TILE_ROW4(1), TILE_ROW4(2), TILE_ROW4(3),
    TILE_ROW4(4), TILE_ROW4(5), TILE_ROW4(6)};
#elif defined(__AVX512F__)
TILES2(1) TILES2(2) TILES2(3) TILES2(4) TILES2(5) TILES2(6)
static const rle_tile_fn tiles[TILE_ROWS + 1][5] = {
    {NULL},       TILE_ROW2(1), TILE_ROW2(2), TILE_ROW2(3),
    TILE_ROW2(4), TILE_ROW2(5), TILE_ROW2(6)};
#elif defined(__AVX2__) && !defined(RLE_F64_KERNELS)
TILES4(1) TILES2(2) TILE(3, 1) TILE(4, 1) TILE(5, 1) TILE(6, 1)
static const rle_tile_fn tiles[TILE_ROWS + 1][5] = {
    {NULL},       TILE_ROW4(1), TILE_ROW2(2), TILE_ROW1(3),
    TILE_ROW1(4), TILE_ROW1(5), TILE_ROW1(6)};
#else
TILE(1, 1) TILE(2, 1)
static const rle_tile_fn tiles[TILE_ROWS + 1][5] = {{NULL}, TILE_ROW1(1), TILE_ROW1(2)};
#endif

void K(rle_tiles_run)(const rle_tile *t, const REAL *a, const REAL *b, REAL *out,
                      const REAL *bias, int last, int64_t rows, int vectors)
{
    static const unsigned char widths[TILE_ROWS + 1] = {TILE_WIDTHS};
    while (rows > 0) {
        int r = rows < TILE_ROWS ? (int)rows : TILE_ROWS;
        /* The next tile's output will be stored to lines that may be far away. */
        if (rows > r)
            for (int i = r; i < 2 * r; i++)
                for (int v = 0; v < vectors; v++)
                    __builtin_prefetch(out + i * t->out_row + 16 * v, 1);
        for (int v = 0; v < vectors;) {
            int nv = vectors - v < widths[r] ? vectors - v : widths[r];
            tiles[r][nv](t, a, b + 16 * v, out + 16 * v, bias ? bias + 16 * v : NULL,
                         v + nv == vectors ? last : 16);
            v += nv;
        }
        a += r * t->a_row;
        out += r * t->out_row;
        rows -= r;
    }
}

/* dst[k][c] = src[c][k] for 4 k and TURN columns c: a piece of a transposed panel. */
#if defined(__AVX512F__) && !defined(RLE_F64_KERNELS)
#define TURN 16
RLE_INLINE __m512 quads(const float *src, int64_t src_row)
{
    __m512 v = _mm512_castps128_ps512(_mm_loadu_ps(src));
    v = _mm512_insertf32x4(v, _mm_loadu_ps(src + 4 * src_row), 1);
    v = _mm512_insertf32x4(v, _mm_loadu_ps(src + 8 * src_row), 2);
    return _mm512_insertf32x4(v, _mm_loadu_ps(src + 12 * src_row), 3);
}

RLE_INLINE void turn(float *dst, int64_t dst_row, const float *src, int64_t src_row)
{
    __m512 r0 = quads(src, src_row), r1 = quads(src + src_row, src_row);
    __m512 r2 = quads(src + 2 * src_row, src_row), r3 = quads(src + 3 * src_row, src_row);
    __m512 a = _mm512_unpacklo_ps(r0, r1), b = _mm512_unpackhi_ps(r0, r1);
    __m512 c = _mm512_unpacklo_ps(r2, r3), d = _mm512_unpackhi_ps(r2, r3);
    _mm512_storeu_ps(dst, _mm512_shuffle_ps(a, c, 0x44));
    _mm512_storeu_ps(dst + dst_row, _mm512_shuffle_ps(a, c, 0xee));
    _mm512_storeu_ps(dst + 2 * dst_row, _mm512_shuffle_ps(b, d, 0x44));
    _mm512_storeu_ps(dst + 3 * dst_row, _mm512_shuffle_ps(b, d, 0xee));
}
#elif defined(__AVX2__) && !defined(RLE_F64_KERNELS)
#define TURN 8
RLE_INLINE __m256 quads(const float *src, int64_t src_row)
{
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(src)),
                                _mm_loadu_ps(src + 4 * src_row), 1);
}

RLE_INLINE void turn(float *dst, int64_t dst_row, const float *src, int64_t src_row)
{
    __m256 r0 = quads(src, src_row), r1 = quads(src + src_row, src_row);
    __m256 r2 = quads(src + 2 * src_row, src_row), r3 = quads(src + 3 * src_row, src_row);
    __m256 a = _mm256_unpacklo_ps(r0, r1), b = _mm256_unpackhi_ps(r0, r1);
    __m256 c = _mm256_unpacklo_ps(r2, r3), d = _mm256_unpackhi_ps(r2, r3);
    _mm256_storeu_ps(dst, _mm256_shuffle_ps(a, c, 0x44));
    _mm256_storeu_ps(dst + dst_row, _mm256_shuffle_ps(a, c, 0xee));
    _mm256_storeu_ps(dst + 2 * dst_row, _mm256_shuffle_ps(b, d, 0x44));
    _mm256_storeu_ps(dst + 3 * dst_row, _mm256_shuffle_ps(b, d, 0xee));
}
#else
#define TURN 4
RLE_INLINE void turn(REAL *dst, int64_t dst_row, const REAL *src, int64_t src_row)
{
    for (int k = 0; k < 4; k++)
        for (int c = 0; c < 4; c++) dst[k * dst_row + c] = src[c * src_row + k];
}
#endif

/* Rows k of a panel, `width` = 16 * vectors apart, columns beyond `columns` 0. */
static void pack_panel(REAL *dst, const REAL *b, int64_t b_row, int64_t b_col, int64_t k,
                       int columns, int width)
{
    if (columns < width)
        for (int64_t i = 0; i < k; i++)
            for (int c = columns; c < width; c++) dst[i * width + c] = 0;
    if (b_col == 1) {
        for (int64_t i = 0; i < k; i++)
            memcpy(dst + i * width, b + i * b_row, (size_t)columns * sizeof(REAL));
        return;
    }
    int c = 0;
    if (b_row == 1) {
        for (; c + TURN <= columns; c += TURN) {
            int64_t i = 0;
            for (; i + 4 <= k; i += 4)
                turn(dst + i * width + c, width, b + c * b_col + i, b_col);
            for (; i < k; i++)
                for (int e = c; e < c + TURN; e++) dst[i * width + e] = b[e * b_col + i];
        }
    }
    for (; c < columns; c++)
        for (int64_t i = 0; i < k; i++) dst[i * width + c] = b[i * b_row + c * b_col];
}

/* out's rows are contiguous; no old value when k takes more than one panel. */
static void wide(const rle_cpu_gemm *g)
{
    _Alignas(64) REAL panel[PANEL_K * PANEL];
    _Alignas(64) REAL bias[PANEL];
    const REAL *a = g->a, *b = g->b, *bias_in = g->bias;
    REAL *out = g->out;
    /* A copy pays when the panel is used often and does not lie in a few cache lines. */
    bool in_place = g->b_col == 1 &&
                    (g->m <= 2 * TILE_ROWS || g->k * g->b_row * (int64_t)sizeof(REAL) <= 16384);
    for (int64_t m0 = 0; m0 < g->m; m0 += BLOCK_M) {
        int64_t rows = rle_min64(g->m - m0, BLOCK_M);
        for (int64_t n0 = 0; n0 < g->n; n0 += PANEL) {
            int columns = (int)rle_min64(g->n - n0, PANEL), vectors = (columns + 15) / 16;
            bool direct = in_place && columns % 16 == 0;
            rle_tile t = {.a_row = g->a_row, .a_col = g->a_col, .out_row = g->out_row};
            int last = columns - 16 * (vectors - 1);
            const REAL *panel_bias = NULL;
            if (bias_in) {
                panel_bias = bias;
                for (int c = 0; c < 16 * vectors; c++)
                    bias[c] = c < columns ? bias_in[(n0 + c) * g->bias_stride] : 0;
            }
            int64_t k0 = 0;
            do {
                t.k = direct ? g->k : rle_min64(g->k - k0, PANEL_K);
                const REAL *rows_of_b = b + k0 * g->b_row + n0 * g->b_col;
                if (direct) {
                    t.b_row = g->b_row;
                } else {
                    pack_panel(panel, rows_of_b, g->b_row, g->b_col, t.k, columns,
                               16 * vectors);
                    rows_of_b = panel;
                    t.b_row = 16 * vectors;
                }
                bool done = k0 + t.k >= g->k;
                t.resume = k0 > 0;
                t.add = done && g->accumulate;
                K(rle_tiles_run)(&t, a + m0 * g->a_row + k0 * g->a_col, rows_of_b,
                          out + m0 * g->out_row + n0, done ? panel_bias : NULL, last, rows,
                          vectors);
                k0 += t.k;
            } while (k0 < g->k);
        }
    }
}

/* The product into a buffer first, where out cannot hold the sums as they grow: its rows
 * are not contiguous, or its old value is still needed. */
static void wide_buffered(const rle_cpu_gemm *g)
{
    enum { ROWS = 48 };
    _Alignas(64) REAL sums[ROWS * PANEL];
    for (int64_t m0 = 0; m0 < g->m; m0 += ROWS) {
        for (int64_t n0 = 0; n0 < g->n; n0 += PANEL) {
            rle_cpu_gemm part = *g;
            part.m = rle_min64(g->m - m0, ROWS);
            part.n = rle_min64(g->n - n0, PANEL);
            part.a = (const REAL *)g->a + m0 * g->a_row;
            part.b = (const REAL *)g->b + n0 * g->b_col;
            if (g->bias) part.bias = (const REAL *)g->bias + n0 * g->bias_stride;
            part.out = sums;
            part.out_row = PANEL;
            part.out_col = 1;
            part.accumulate = false;
            wide(&part);
            REAL *out = (REAL *)g->out + m0 * g->out_row + n0 * g->out_col;
            for (int64_t i = 0; i < part.m; i++) {
                for (int64_t j = 0; j < part.n; j++) {
                    REAL *to = out + i * g->out_row + j * g->out_col;
                    *to = g->accumulate ? sums[i * PANEL + j] + *to : sums[i * PANEL + j];
                }
            }
        }
    }
}

/* ---- narrow, the lanes in a vector ---- */

#define LANES(R, C)                                                                      \
    static void lanes_##R##x##C(const rle_lanes *t, const REAL *a, const REAL *b,        \
                                REAL *part, REAL *out, const REAL *bias)                 \
    {                                                                                    \
        lanes_body(R, C, t, a, b, part, out, bias);                                      \
    }
LANES(1, 1) LANES(1, 2) LANES(2, 1) LANES(2, 2)
#if LANES_MOST == 4
LANES(1, 3) LANES(1, 4) LANES(2, 3) LANES(2, 4)
LANES(3, 1) LANES(3, 2) LANES(3, 3) LANES(3, 4) LANES(4, 1) LANES(4, 2) LANES(4, 3) LANES(4, 4)
static const rle_lanes_fn lanes[5][5] = {
    {NULL},
    {NULL, lanes_1x1, lanes_1x2, lanes_1x3, lanes_1x4},
    {NULL, lanes_2x1, lanes_2x2, lanes_2x3, lanes_2x4},
    {NULL, lanes_3x1, lanes_3x2, lanes_3x3, lanes_3x4},
    {NULL, lanes_4x1, lanes_4x2, lanes_4x3, lanes_4x4},
};
#else
static const rle_lanes_fn lanes[3][3] = {
    {NULL}, {NULL, lanes_1x1, lanes_1x2}, {NULL, lanes_2x1, lanes_2x2}};
#endif

void K(rle_lanes_run)(const rle_lanes *t, const REAL *a, const REAL *b, REAL *part, REAL *out,
                      int64_t rows, int64_t columns)
{
    for (int64_t i = 0; i < rows;) {
        int r = (int)rle_min64(rows - i, LANES_MOST);
        for (int64_t j = 0; j < columns;) {
            int c = (int)rle_min64(columns - j, LANES_MOST);
            lanes[r][c](t, a + i * t->a_row, b + j * t->b_col,
                        part ? part + i * t->part_row + 16 * j : NULL,
                        out + i * t->out_row + j * t->out_col,
                        t->bias ? t->bias + j * t->bias_col : NULL);
            j += c;
        }
        i += r;
    }
}

#define STRETCH_K (2048 / (int64_t)sizeof(REAL))

static void pack_lines(REAL *dst, const REAL *src, int64_t line, int64_t step, int64_t lines,
                       int64_t k)
{
    for (int64_t i = 0; i < lines; i++)
        for (int64_t e = 0; e < k; e++) dst[i * STRETCH_K + e] = src[i * line + e * step];
}

static void narrow(const rle_cpu_gemm *g)
{
    enum { ROWS = 16 };
    _Alignas(64) REAL packed_a[ROWS * STRETCH_K];
    _Alignas(64) REAL packed_b[15 * STRETCH_K];
    _Alignas(64) REAL part[ROWS * 16 * 16];
    bool pack_a = g->a_col != 1 && g->k > 1, pack_b = g->b_row != 1 && g->k > 1;
    bool whole = g->k <= STRETCH_K || !(pack_a || pack_b);
    int64_t stretch = whole ? g->k : STRETCH_K;
    rle_lanes t = {.bias = g->bias,
                   .bias_col = g->bias_stride,
                   .out_row = g->out_row,
                   .out_col = g->out_col,
                   .part_row = 16 * 16,
                   .add = g->accumulate};
    if (pack_b && whole) pack_lines(packed_b, g->b, g->b_col, g->b_row, g->n, g->k);
    int64_t most = pack_a || !whole ? ROWS : g->m;
    for (int64_t m0 = 0; m0 < g->m; m0 += most) {
        int64_t rows = rle_min64(g->m - m0, most);
        int64_t k0 = 0;
        do {
            t.k = rle_min64(g->k - k0, stretch);
            const REAL *a = (const REAL *)g->a + m0 * g->a_row + k0 * g->a_col;
            const REAL *b = (const REAL *)g->b + k0 * g->b_row;
            t.a_row = g->a_row;
            t.b_col = g->b_col;
            if (pack_a) {
                pack_lines(packed_a, a, g->a_row, g->a_col, rows, t.k);
                a = packed_a;
                t.a_row = STRETCH_K;
            }
            if (pack_b) {
                if (!whole) pack_lines(packed_b, b, g->b_col, g->b_row, g->n, t.k);
                b = packed_b;
                t.b_col = STRETCH_K;
            }
            t.resume = k0 > 0;
            t.more = k0 + t.k < g->k;
            K(rle_lanes_run)(&t, a, b, whole ? NULL : part, (REAL *)g->out + m0 * g->out_row, rows,
                      g->n);
            k0 += t.k;
        } while (k0 < g->k);
    }
}

/* ---- narrow, 16 rows in a vector: for a that is contiguous down its columns ---- */

#if defined(__AVX512F__) && !defined(RLE_F64_KERNELS)
#define DOWN_VECTORS 4
#define DOWN_COLUMNS 4
#elif defined(__AVX512F__)
#define DOWN_VECTORS 2
#define DOWN_COLUMNS 4
#elif defined(__AVX2__) && !defined(RLE_F64_KERNELS)
#define DOWN_VECTORS 1
#define DOWN_COLUMNS 4
#else
#define DOWN_VECTORS 1
#define DOWN_COLUMNS 2
#endif
#define DOWN_ROWS (16 * DOWN_VECTORS)

/* Lane `lane` of `columns` <= DOWN_COLUMNS sums for 16 * NV rows, of which `last` of the
 * last vector exist: to part, columns DOWN_ROWS apart. */
RLE_INLINE void down_lane(const int NV, const int C, const rle_cpu_gemm *g, const REAL *a,
                          const REAL *b, int lane, int last, REAL *part)
{
    v16 acc[DOWN_VECTORS][DOWN_COLUMNS];
    RLE_UNROLL
    for (int i = 0; i < NV; i++) {
        RLE_UNROLL
        for (int j = 0; j < C; j++) acc[i][j] = v_zero();
    }
    int64_t a_step = 16 * g->a_col, b_step = 16 * g->b_row, b_col = g->b_col;
    a += lane * g->a_col;
    b += lane * g->b_row;
    for (int64_t k = lane; k < g->k; k += 16, a += a_step, b += b_step) {
        v16 x[DOWN_VECTORS];
        RLE_UNROLL
        for (int i = 0; i < NV - 1; i++) x[i] = v_load(a + 16 * i);
        x[NV - 1] = last == 16 ? v_load(a + 16 * (NV - 1)) : v_load_n(a + 16 * (NV - 1), last);
        RLE_UNROLL
        for (int j = 0; j < C; j++) {
            v16 y = v_set(b[j * b_col]);
            RLE_UNROLL
            for (int i = 0; i < NV; i++) acc[i][j] = v_take(x[i], y, acc[i][j]);
        }
    }
    /* The zeros that fill up K. */
    bool filled = g->k % 16 != 0 && lane >= g->k % 16;
    RLE_UNROLL
    for (int j = 0; j < C; j++) {
        RLE_UNROLL
        for (int i = 0; i < NV; i++) {
            if (filled) acc[i][j] = v_take(v_zero(), v_zero(), acc[i][j]);
            v_store(part + j * DOWN_ROWS + 16 * i, acc[i][j]);
        }
    }
}

#define DOWN(NV, C)                                                                      \
    static void down_##NV##x##C(const rle_cpu_gemm *g, const REAL *a, const REAL *b,     \
                                int lane, int last, REAL *part)                          \
    {                                                                                    \
        down_lane(NV, C, g, a, b, lane, last, part);                                     \
    }
typedef void (*down_fn)(const rle_cpu_gemm *, const REAL *, const REAL *, int, int, REAL *);
#define DOWNS2(NV) DOWN(NV, 1) DOWN(NV, 2)
#define DOWNS4(NV) DOWNS2(NV) DOWN(NV, 3) DOWN(NV, 4)
#define DOWN_ROW2(NV) {down_##NV##x1, down_##NV##x2}
#define DOWN_ROW4(NV) {down_##NV##x1, down_##NV##x2, down_##NV##x3, down_##NV##x4}
#if DOWN_VECTORS == 4
DOWNS4(1) DOWNS4(2) DOWNS4(3) DOWNS4(4)
static const down_fn downs[4][4] = {DOWN_ROW4(1), DOWN_ROW4(2), DOWN_ROW4(3), DOWN_ROW4(4)};
#elif DOWN_VECTORS == 2
DOWNS4(1) DOWNS4(2)
static const down_fn downs[2][4] = {DOWN_ROW4(1), DOWN_ROW4(2)};
#elif DOWN_COLUMNS == 4
DOWNS4(1)
static const down_fn downs[1][4] = {DOWN_ROW4(1)};
#else
DOWNS2(1)
static const down_fn downs[1][2] = {DOWN_ROW2(1)};
#endif

static void narrow_down(const rle_cpu_gemm *g)
{
    _Alignas(64) REAL part[16][DOWN_COLUMNS * DOWN_ROWS];
    for (int64_t m0 = 0; m0 < g->m; m0 += DOWN_ROWS) {
        int rows = (int)rle_min64(g->m - m0, DOWN_ROWS), vectors = (rows + 15) / 16;
        for (int64_t n0 = 0; n0 < g->n; n0 += DOWN_COLUMNS) {
            int columns = (int)rle_min64(g->n - n0, DOWN_COLUMNS);
            down_fn down = downs[vectors - 1][columns - 1];
            for (int l = 0; l < 16; l++)
                down(g, (const REAL *)g->a + m0, (const REAL *)g->b + n0 * g->b_col, l,
                     rows - 16 * (vectors - 1), part[l]);
            for (int j = 0; j < columns; j++)
                for (int v = 0; v < vectors; v++) {
                    v16 lane[16];
                    for (int l = 0; l < 16; l++)
                        lane[l] = v_load(part[l] + j * DOWN_ROWS + 16 * v);
                    RLE_UNROLL
                    for (int half = 8; half > 0; half /= 2) {
                        RLE_UNROLL
                        for (int l = 0; l < half; l++) lane[l] = v_add(lane[l], lane[l + half]);
                    }
                    v_store(part[0] + j * DOWN_ROWS + 16 * v, lane[0]);
                }
            for (int i = 0; i < rows; i++) {
                REAL *out = (REAL *)g->out + (m0 + i) * g->out_row + n0 * g->out_col;
                for (int j = 0; j < columns; j++, out += g->out_col) {
                    REAL sum = part[0][j * DOWN_ROWS + i];
                    if (g->bias) sum += ((const REAL *)g->bias)[(n0 + j) * g->bias_stride];
                    if (g->accumulate) sum += *out;
                    *out = sum;
                }
            }
        }
    }
}

void K(rle_gemm)(const rle_cpu_gemm *g)
{
    if (g->n >= RLE_LANES) {
        if (g->out_col != 1 || (g->accumulate && g->k > PANEL_K))
            wide_buffered(g);
        else
            wide(g);
    } else if (g->a_row == 1 && g->a_col != 1 && g->m >= 8 && g->k > 1) {
        narrow_down(g);
    } else {
        narrow(g);
    }
}
