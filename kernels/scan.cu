/* scan.cu - what goes along a dimension in order: extremes with their position, running
 * sums. */
#include "fold.h"
#include "rows.h"

namespace
{

constexpr int THREADS = 256, MOST_BLOCKS = 8192;

/* ---- extremes ---- */

/* Is x at position i better than y at j? NaN is the best of all, then the first wins. So
 * the order in which candidates meet does not matter. */
template <typename T>
__device__ bool is_better(bool largest, T x, int64_t i, T y, int64_t j)
{
    bool x_nan = x != x, y_nan = y != y;
    if (x_nan || y_nan) return x_nan && (!y_nan || i < j);
    if (x == y) return i < j;
    return largest ? x > y : x < y;
}

constexpr int WARP = 32;
/* Rows are cut into pieces of at least this many where there are few. */
constexpr int64_t PIECE = 4096, MANY_ROWS = 4096, MOST_PIECES = 1024;

/* A warp to a row, or to a piece of one: then the position goes to best[row][piece]. With
 * `from`, the candidates are the positions in from[row][0 .. length). Arrays: indices,
 * in, values (may be NULL). */
template <typename T>
__global__ void extremes(rle_k_rows r, bool largest, int64_t pieces, int64_t *best,
                         const int64_t *from)
{
    int lane = threadIdx.x % WARP;
    int64_t length = (r.length + pieces - 1) / pieces;
    for (int64_t item = rle_thread() / WARP; item < r.rows * pieces;
         item += rle_threads() / WARP) {
        int64_t i = item / pieces, start = item % pieces * length;
        int64_t end = start + length < r.length ? start + length : r.length;
        int64_t at[3];
        row_of(r, i, at);
        const T *in = static_cast<const T *>(r.data[1]) + at[1];
        bool none = true;
        T x = 0;
        int64_t where = INT64_MAX;
        for (int64_t k = start + lane; k < end; k += WARP) {
            int64_t candidate = from ? from[i * r.length + k] : k;
            if (from && candidate == INT64_MAX) continue; /* an empty piece */
            T y = in[candidate * r.step[1]];
            if (!none && !is_better(largest, y, candidate, x, where)) continue;
            none = false;
            x = y;
            where = candidate;
        }
        for (int half = WARP / 2; half > 0; half /= 2) {
            T y = __shfl_down_sync(0xffffffffu, x, half);
            int64_t candidate = __shfl_down_sync(0xffffffffu, where, half);
            if (candidate == INT64_MAX) continue;
            if (where == INT64_MAX || is_better(largest, y, candidate, x, where)) {
                x = y;
                where = candidate;
            }
        }
        if (lane != 0) continue;
        if (best) {
            best[item] = where;
            continue;
        }
        static_cast<int64_t *>(r.data[0])[at[0]] = where;
        if (r.data[2]) static_cast<T *>(r.data[2])[at[2]] = in[where * r.step[1]];
    }
}

/* A thread to a row: rows that are short, or lie side by side. */
template <typename T> __global__ void extremes_alone(rle_k_rows r, bool largest)
{
    for (int64_t i = rle_thread(); i < r.rows; i += rle_threads()) {
        int64_t at[3], where = 0;
        row_of(r, i, at);
        const T *in = static_cast<const T *>(r.data[1]) + at[1];
        T x = in[0];
        for (int64_t k = 1; k < r.length; k++) {
            T y = in[k * r.step[1]];
            if (!is_better(largest, y, k, x, where)) continue;
            x = y;
            where = k;
        }
        static_cast<int64_t *>(r.data[0])[at[0]] = where;
        if (r.data[2]) static_cast<T *>(r.data[2])[at[2]] = x;
    }
}

int64_t pieces_of(const rle_k_rows *r)
{
    if (r->rows >= MANY_ROWS || r->length < 2 * PIECE) return 1;
    int64_t pieces = r->length / PIECE;
    return pieces < MOST_PIECES ? pieces : MOST_PIECES;
}

bool is_alone(const rle_k_rows *r)
{
    return r->length <= 8 || (r->side_by_side && r->rows >= MANY_ROWS);
}

template <typename T>
cudaError_t run_extremes(bool largest, const rle_k_rows *r, void *scratch, cudaStream_t s)
{
    if (is_alone(r))
        return RLE_LAUNCH(extremes_alone<T>, rle_blocks(r->rows, THREADS, MOST_BLOCKS),
                          THREADS, 0, s, *r, largest);
    int64_t pieces = pieces_of(r);
    int64_t *best = static_cast<int64_t *>(scratch), *no_best = nullptr;
    const int64_t *from = best, *no_from = nullptr;
    unsigned grid = rle_blocks(r->rows * pieces * WARP, THREADS, MOST_BLOCKS);
    if (pieces == 1)
        return RLE_LAUNCH(extremes<T>, grid, THREADS, 0, s, *r, largest, pieces, no_best,
                          no_from);
    cudaError_t e =
        RLE_LAUNCH(extremes<T>, grid, THREADS, 0, s, *r, largest, pieces, best, no_from);
    if (e != cudaSuccess) return e;
    rle_k_rows again = *r;
    again.length = pieces;
    return RLE_LAUNCH(extremes<T>, rle_blocks(r->rows * WARP, THREADS, MOST_BLOCKS),
                      THREADS, 0, s, again, largest, static_cast<int64_t>(1), no_best,
                      from);
}

/* ---- running sums ----
 *
 * Floats run in double: in order within blocks of 256 elements; a block starts from the
 * sum of the blocks before it, those from the sum of their chunk of 256 blocks, all added
 * in order. The CPU does the same (device/cpu/scan.c). A thread goes through one block of
 * one row; long rows take three more launches for what the blocks start from. Integers
 * wrap, in any order. */

template <typename T> struct sum_in {
    typedef double type;
};
template <> struct sum_in<int32_t> {
    typedef uint64_t type;
};
template <> struct sum_in<int64_t> {
    typedef uint64_t type;
};
template <> struct sum_in<uint8_t> {
    typedef uint64_t type;
};

/* Sign-extends: int32_t goes to uint64_t by way of int64_t. */
__device__ inline double widen(float x)
{
    return x;
}
__device__ inline double widen(double x)
{
    return x;
}
template <typename T> __device__ uint64_t widen(T x)
{
    return static_cast<uint64_t>(static_cast<int64_t>(x));
}

/* starts NULL: rows have one block. totals: only add up, [block][row]. */
template <typename To, typename From, typename Sum>
__global__ void running(rle_k_rows r, int64_t blocks, const Sum *starts,
                        const Sum *chunk_starts, Sum *totals)
{
    for (int64_t item = rle_thread(); item < r.rows * blocks; item += rle_threads()) {
        int64_t i = item % r.rows, b = item / r.rows, at[2];
        row_of(r, i, at);
        int64_t first = b * FOLD_BLOCK;
        int n = fold_part(r.length, first);
        const From *in = static_cast<const From *>(r.data[1]) + at[1] + first * r.step[1];
        To *out = static_cast<To *>(r.data[0]) + at[0] + first * r.step[0];
        Sum sum = 0, start = 0;
        if (totals) {
#pragma unroll 8
            for (int k = 0; k < n; k++) sum += widen(in[k * r.step[1]]);
            totals[item] = sum;
            continue;
        }
        if (starts) start = chunk_starts[b / FOLD_CHUNK * r.rows + i] + starts[item];
#pragma unroll 8
        for (int k = 0; k < n; k++) {
            sum += widen(in[k * r.step[1]]);
            out[k * r.step[0]] = static_cast<To>(start + sum);
        }
    }
}

/* values[count][rows] become the sums of what is before them in their chunk; what a chunk
 * has in all goes to totals[chunk][rows]. One chunk when totals is NULL. */
template <typename Sum>
__global__ void starts_of(Sum *values, int64_t count, int64_t rows, Sum *totals)
{
    int64_t chunks = totals ? (count + FOLD_CHUNK - 1) / FOLD_CHUNK : 1;
    for (int64_t item = rle_thread(); item < rows * chunks; item += rle_threads()) {
        int64_t i = item % rows, first = item / rows * FOLD_CHUNK;
        int64_t n = totals ? fold_part(count, first) : count;
        Sum sum = 0;
#pragma unroll 8
        for (int64_t k = 0; k < n; k++) {
            Sum *v = &values[(first + k) * rows + i], x = *v;
            *v = sum;
            sum += x;
        }
        if (totals) totals[item] = sum;
    }
}

template <typename To, typename From>
cudaError_t run_running(const rle_k_rows *r, void *scratch, cudaStream_t s)
{
    typedef typename sum_in<From>::type Sum;
    int64_t blocks = fold_blocks(r->length),
            chunks = (blocks + FOLD_CHUNK - 1) / FOLD_CHUNK;
    unsigned grid = rle_blocks(r->rows * blocks, THREADS, MOST_BLOCKS);
    Sum *none = nullptr;
    const Sum *no_starts = nullptr;
    if (blocks == 1) /* there is no scratch memory */
        return RLE_LAUNCH((running<To, From, Sum>), grid, THREADS, 0, s, *r, blocks,
                          no_starts, no_starts, none);
    Sum *totals = static_cast<Sum *>(scratch), *chunk_totals = totals + blocks * r->rows;
    const Sum *starts = totals, *chunk_starts = chunk_totals;
    cudaError_t e = RLE_LAUNCH((running<To, From, Sum>), grid, THREADS, 0, s, *r, blocks,
                               no_starts, no_starts, totals);
    if (e == cudaSuccess)
        e = RLE_LAUNCH(starts_of<Sum>, rle_blocks(r->rows * chunks, THREADS, MOST_BLOCKS),
                       THREADS, 0, s, totals, blocks, r->rows, chunk_totals);
    if (e == cudaSuccess)
        e = RLE_LAUNCH(starts_of<Sum>, rle_blocks(r->rows, THREADS, MOST_BLOCKS), THREADS,
                       0, s, chunk_totals, chunks, r->rows, none);
    if (e == cudaSuccess)
        e = RLE_LAUNCH((running<To, From, Sum>), grid, THREADS, 0, s, *r, blocks, starts,
                       chunk_starts, none);
    return e;
}

template <typename From>
cudaError_t run_integers(rle_dtype to, const rle_k_rows *r, void *scratch, cudaStream_t s)
{
    return to == RLE_I32   ? run_running<int32_t, From>(r, scratch, s)
           : to == RLE_I64 ? run_running<int64_t, From>(r, scratch, s)
                           : run_running<uint8_t, From>(r, scratch, s);
}

} // namespace

extern "C" size_t rle_k_extremes_scratch(const rle_k_rows *r)
{
    int64_t pieces = is_alone(r) ? 1 : pieces_of(r);
    return pieces > 1 ? static_cast<size_t>(r->rows * pieces) * sizeof(int64_t) : 0;
}

extern "C" cudaError_t rle_k_extremes(rle_dtype t, bool largest, const rle_k_rows *r,
                                      void *scratch, cudaStream_t stream)
{
    switch (t) {
    case RLE_F32:
        return run_extremes<float>(largest, r, scratch, stream);
    case RLE_F64:
        return run_extremes<double>(largest, r, scratch, stream);
    case RLE_I32:
        return run_extremes<int32_t>(largest, r, scratch, stream);
    case RLE_I64:
        return run_extremes<int64_t>(largest, r, scratch, stream);
    default:
        return run_extremes<uint8_t>(largest, r, scratch, stream);
    }
}

extern "C" size_t rle_k_cumsum_scratch(const rle_k_rows *r)
{
    int64_t blocks = fold_blocks(r->length),
            chunks = (blocks + FOLD_CHUNK - 1) / FOLD_CHUNK;
    return blocks > 1 ? static_cast<size_t>(r->rows * (blocks + chunks)) * 8 : 0;
}

extern "C" cudaError_t rle_k_cumsum(rle_dtype to, rle_dtype from, const rle_k_rows *r,
                                    void *scratch, cudaStream_t stream)
{
    switch (from) {
    case RLE_F32:
        return run_running<float, float>(r, scratch, stream);
    case RLE_F64:
        return run_running<double, double>(r, scratch, stream);
    case RLE_I32:
        return run_integers<int32_t>(to, r, scratch, stream);
    case RLE_I64:
        return run_integers<int64_t>(to, r, scratch, stream);
    default:
        return run_integers<uint8_t>(to, r, scratch, stream);
    }
}
