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

/* Rows of the largest tile, and how many vectors wide a tile of 0, 1, ... rows can be. */
#if defined(__AVX512F__) && !defined(RLE_F64_KERNELS)
#define TILE_ROWS 6
#define TILE_WIDTHS 0, 4, 4, 4, 4, 4, 4
#elif defined(__AVX512F__)
#define TILE_ROWS 6
#define TILE_WIDTHS 0, 2, 2, 2, 2, 2, 2
#elif defined(__AVX2__) && !defined(RLE_F64_KERNELS)
#define TILE_ROWS 6
#define TILE_WIDTHS 0, 4, 2, 1, 1, 1, 1
#else
#define TILE_ROWS 2
#define TILE_WIDTHS 0, 1, 1
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

/* Most rows, and most columns, of a narrow tile. */
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

/* All tiles of `rows` rows and `vectors` vectors; of a rows x columns product with less than
 * 16 columns. In gemm_impl.h. */
void K(rle_tiles_run)(const rle_tile *t, const REAL *a, const REAL *b, REAL *out,
                      const REAL *bias, int last, int64_t rows, int vectors);
void K(rle_lanes_run)(const rle_lanes *t, const REAL *a, const REAL *b, REAL *part, REAL *out,
                      int64_t rows, int64_t columns);

#endif
