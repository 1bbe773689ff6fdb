/* tile.h - the inner loops of matrix products: pieces of the output small enough that their
 * sums stay in registers while k runs. gemm_impl.h says in which order a sum is made; the
 * layers of an rle_mlp are built from the same pieces and so give the same bits. */
#ifndef RLE_CPU_ISA_TILE_H
#define RLE_CPU_ISA_TILE_H

#include "device/cpu/isa/simd.h"

/* ---- wide tiles: vectors lie along the columns, each k is taken in by itself ---- */

/* What the tiles of a product have in common. Their own pointers are arguments: copying
 * this for each would cost more than a small tile's arithmetic. */
typedef struct rle_tile {
    int64_t a_row, a_col; /* element (i, k) of a at a[i * a_row + k * a_col] */
    int64_t b_row;        /* row k of b: whole vectors at b + k * b_row */
    int64_t out_row;      /* row i of out at out + i * out_row */
    int64_t k;
    bool resume; /* out holds the sum so far */
    bool add;    /* add the old value of out at the end */
    bool relu;
} rle_tile;

/* bias: whole vectors, or NULL; added to the finished sum. last: columns of the last vector
 * that exist, 1 .. 16. */
typedef void (*rle_tile_fn)(const rle_tile *t, const REAL *a, const REAL *b, REAL *out,
                            const REAL *bias, int last);

/* Rows of the largest tile, and how many vectors wide a tile of r rows can be. */
#if defined(RLE_F64_KERNELS) && defined(__AVX512F__)
#define TILE_ROWS 6
#define TILE_WIDTHS 0, 4, 2, 2, 2, 2, 2
#elif defined(RLE_F64_KERNELS)
#define TILE_ROWS 2
#define TILE_WIDTHS 0, 1, 1
#elif defined(__AVX512F__)
#define TILE_ROWS 6
#define TILE_WIDTHS 0, 4, 4, 4, 4, 4, 4
#else
#define TILE_ROWS 6
#define TILE_WIDTHS 0, 4, 2, 1, 1, 1, 1
#endif

RLE_INLINE void tile_body(const int R, const int NV, const rle_tile *t, const REAL *a,
                          const REAL *b, REAL *out, const REAL *bias, int last)
{
    v16 acc[TILE_ROWS][4];
    int64_t a_row = t->a_row, a_col = t->a_col, b_row = t->b_row, out_row = t->out_row;
    RLE_UNROLL
    for (int i = 0; i < R; i++) {
        RLE_UNROLL
        for (int j = 0; j < NV; j++) acc[i][j] = v_zero();
    }
    if (t->resume) {
        RLE_UNROLL
        for (int i = 0; i < R; i++) {
            RLE_UNROLL
            for (int j = 0; j < NV - 1; j++) acc[i][j] = v_load(out + i * out_row + 16 * j);
            acc[i][NV - 1] = v_load_n(out + i * out_row + 16 * (NV - 1), last);
        }
    }
    for (int64_t k = t->k; k > 0; k--) {
        v16 y[4];
        RLE_UNROLL
        for (int j = 0; j < NV; j++) y[j] = v_load(b + 16 * j);
        RLE_UNROLL
        for (int i = 0; i < R; i++) {
            v16 x = v_set(a[i * a_row]);
            RLE_UNROLL
            for (int j = 0; j < NV; j++) acc[i][j] = v_take(x, y[j], acc[i][j]);
        }
        a += a_col;
        b += b_row;
    }
    if (bias) {
        RLE_UNROLL
        for (int j = 0; j < NV; j++) {
            v16 y = v_load(bias + 16 * j);
            RLE_UNROLL
            for (int i = 0; i < R; i++) acc[i][j] = v_add(acc[i][j], y);
        }
    }
    if (t->add) {
        RLE_UNROLL
        for (int i = 0; i < R; i++) {
            RLE_UNROLL
            for (int j = 0; j < NV - 1; j++)
                acc[i][j] = v_add(acc[i][j], v_load(out + i * out_row + 16 * j));
            v16 old = v_load_n(out + i * out_row + 16 * (NV - 1), last);
            acc[i][NV - 1] = v_add(acc[i][NV - 1], old);
        }
    }
    if (t->relu) {
        RLE_UNROLL
        for (int i = 0; i < R; i++) {
            RLE_UNROLL
            for (int j = 0; j < NV; j++) acc[i][j] = v_relu(acc[i][j]);
        }
    }
    RLE_UNROLL
    for (int i = 0; i < R; i++) {
        RLE_UNROLL
        for (int j = 0; j < NV - 1; j++) v_store(out + i * out_row + 16 * j, acc[i][j]);
        if (last == 16)
            v_store(out + i * out_row + 16 * (NV - 1), acc[i][NV - 1]);
        else
            v_store_n(out + i * out_row + 16 * (NV - 1), acc[i][NV - 1], last);
    }
}

#define TILE(R, NV)                                                                      \
    static void tile_##R##x##NV(const rle_tile *t, const REAL *a, const REAL *b, REAL *out, \
                                const REAL *bias, int last)                              \
    {                                                                                    \
        tile_body(R, NV, t, a, b, out, bias, last);                                      \
    }

#if defined(RLE_F64_KERNELS) && defined(__AVX512F__)
#define TILES(R) TILE(R, 1) TILE(R, 2)
TILES(1) TILES(2) TILES(3) TILES(4) TILES(5) TILES(6) TILE(1, 3) TILE(1, 4)
#define ROW2(R) {NULL, tile_##R##x1, tile_##R##x2, NULL, NULL}
static const rle_tile_fn tiles[TILE_ROWS + 1][5] = {
    {NULL}, {NULL, tile_1x1, tile_1x2, tile_1x3, tile_1x4}, ROW2(2), ROW2(3), ROW2(4),
    ROW2(5), ROW2(6)};
#elif defined(RLE_F64_KERNELS)
TILE(1, 1) TILE(2, 1)
static const rle_tile_fn tiles[TILE_ROWS + 1][5] = {
    {NULL}, {NULL, tile_1x1}, {NULL, tile_2x1}};
#elif defined(__AVX512F__)
#define TILES(R) TILE(R, 1) TILE(R, 2) TILE(R, 3) TILE(R, 4)
TILES(1) TILES(2) TILES(3) TILES(4) TILES(5) TILES(6)
#define ROW4(R) {NULL, tile_##R##x1, tile_##R##x2, tile_##R##x3, tile_##R##x4}
static const rle_tile_fn tiles[TILE_ROWS + 1][5] = {
    {NULL}, ROW4(1), ROW4(2), ROW4(3), ROW4(4), ROW4(5), ROW4(6)};
#else
TILE(1, 1) TILE(1, 2) TILE(1, 3) TILE(1, 4) TILE(2, 1) TILE(2, 2)
TILE(3, 1) TILE(4, 1) TILE(5, 1) TILE(6, 1)
static const rle_tile_fn tiles[TILE_ROWS + 1][5] = {
    {NULL}, {NULL, tile_1x1, tile_1x2, tile_1x3, tile_1x4}, {NULL, tile_2x1, tile_2x2},
    {NULL, tile_3x1}, {NULL, tile_4x1}, {NULL, tile_5x1}, {NULL, tile_6x1}};
#endif

/* All tiles of `rows` rows and `vectors` vectors. */
static void tiles_run(const rle_tile *t, const REAL *a, const REAL *b, REAL *out,
                      const REAL *bias, int last, int64_t rows, int vectors)
{
    static const unsigned char widths[TILE_ROWS + 1] = {TILE_WIDTHS};
    while (rows > 0) {
        int r = rows < TILE_ROWS ? (int)rows : TILE_ROWS;
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

/* ---- narrow tiles: the 16 lanes of a sum are a vector ---- */

typedef struct rle_lanes {
    int64_t a_row;    /* row i of a at a + i * a_row, contiguous in k */
    int64_t b_col;    /* column j of b at b + j * b_col, contiguous in k */
    int64_t k;
    int64_t part_row; /* lanes between two stretches of k: (i, j) at part + i*part_row + j*16 */
    int64_t out_row, out_col;
    const REAL *bias; /* of column 0, or NULL */
    int64_t bias_col;
    bool resume, more; /* take up lanes from part; leave them there, and no result */
    bool add, relu;
} rle_lanes;

typedef void (*rle_lanes_fn)(const rle_lanes *t, const REAL *a, const REAL *b, REAL *part,
                             REAL *out, const REAL *bias);

#if defined(__AVX512F__) && !defined(RLE_F64_KERNELS)
#define LANES_MOST 4
#else
#define LANES_MOST 2
#endif

RLE_INLINE void lanes_body(const int R, const int C, const rle_lanes *t, const REAL *a,
                           const REAL *b, REAL *part, REAL *out, const REAL *bias)
{
    v16 acc[LANES_MOST][LANES_MOST];
    int64_t a_row = t->a_row, b_col = t->b_col, k = t->k;
    RLE_UNROLL
    for (int i = 0; i < R; i++) {
        RLE_UNROLL
        for (int j = 0; j < C; j++)
            acc[i][j] = t->resume ? v_load(part + i * t->part_row + 16 * j) : v_zero();
    }
    for (; k >= 16; k -= 16, a += 16, b += 16) {
        v16 y[LANES_MOST];
        RLE_UNROLL
        for (int j = 0; j < C; j++) y[j] = v_load(b + j * b_col);
        RLE_UNROLL
        for (int i = 0; i < R; i++) {
            v16 x = v_load(a + i * a_row);
            RLE_UNROLL
            for (int j = 0; j < C; j++) acc[i][j] = v_take(x, y[j], acc[i][j]);
        }
    }
    if (k > 0) {
        v16 y[LANES_MOST];
        RLE_UNROLL
        for (int j = 0; j < C; j++) y[j] = v_load_n(b + j * b_col, (int)k);
        RLE_UNROLL
        for (int i = 0; i < R; i++) {
            v16 x = v_load_n(a + i * a_row, (int)k);
            RLE_UNROLL
            for (int j = 0; j < C; j++) acc[i][j] = v_take(x, y[j], acc[i][j]);
        }
    }
    if (t->more) {
        RLE_UNROLL
        for (int i = 0; i < R; i++) {
            RLE_UNROLL
            for (int j = 0; j < C; j++)
                v_store(part + i * t->part_row + 16 * j, acc[i][j]);
        }
        return;
    }
    RLE_UNROLL
    for (int i = 0; i < R; i++) {
        RLE_UNROLL
        for (int j = 0; j < C; j++) {
            REAL *to = out + i * t->out_row + j * t->out_col;
            REAL sum = v_sum(acc[i][j]);
            if (bias) sum += bias[j * t->bias_col];
            if (t->add) sum += *to;
            if (t->relu) sum = 0 > sum ? 0 : sum;
            *to = sum;
        }
    }
}

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

/* All tiles of a rows x columns product, columns < 16. */
static void lanes_run(const rle_lanes *t, const REAL *a, const REAL *b, REAL *part, REAL *out,
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

#endif
