/* softmax.cu - softmax and its logarithm along one dimension, and their gradients. Sums
 * have the order of fold.h, so rows give the CPU's bits wherever they stand.
 *
 *   short_rows   a thread to a row of at most 16: policies with a handful of actions
 *   rows         16 threads to a row of at most 256, which stays in registers
 *   long_rows    a block to a row, read three times
 *
 * An output may be the very array of an input: each element is written by the thread that
 * read it last. */
#include "fold.h"
#include "rows.h"

namespace
{

constexpr int THREADS = 256, MOST_BLOCKS = 8192, TEAMS = THREADS / FOLD_LANES;

/* What is folded of each element, and what comes of an element and the row's figures:
 * `first` is the largest element (forward only), `sum` the sum over the row. */
template <typename T> struct forward {
    static constexpr bool needs_max = true, needs_b = false;
    __device__ static T term(T x, T, T m) { return real_exp(x - m); }
    __device__ static T scale(T sum) { return 1 / sum; }
    __device__ static T result(T x, T, T m, T scale) { return real_exp(x - m) * scale; }
};
template <typename T> struct log_forward {
    static constexpr bool needs_max = true, needs_b = false;
    __device__ static T term(T x, T, T m) { return real_exp(x - m); }
    __device__ static T scale(T sum) { return real_log(sum); }
    __device__ static T result(T x, T, T m, T log_sum) { return x - m - log_sum; }
};
/* Of gout and y. */
template <typename T> struct backward {
    static constexpr bool needs_max = false, needs_b = true;
    __device__ static T term(T g, T y, T) { return g * y; }
    __device__ static T scale(T sum) { return sum; }
    __device__ static T result(T g, T y, T, T sum) { return y * (g - sum); }
};
template <typename T> struct log_backward {
    static constexpr bool needs_max = false, needs_b = true;
    __device__ static T term(T g, T, T) { return g; }
    __device__ static T scale(T sum) { return sum; }
    __device__ static T result(T g, T y, T, T sum) { return g - real_exp(y) * sum; }
};

template <typename T, typename F> __global__ void short_rows(rle_k_rows r)
{
    const fold_sum<T> adds;
    const fold_max<T> largest;
    int n = static_cast<int>(r.length);
    for (int64_t i = rle_thread(); i < r.rows; i += rle_threads()) {
        int64_t at[3];
        row_of(r, i, at);
        T *out = static_cast<T *>(r.data[0]) + at[0];
        const T *a = static_cast<const T *>(r.data[1]) + at[1];
        const T *b = static_cast<const T *>(r.data[2]) + at[2];
        T x[FOLD_LANES], y[FOLD_LANES], m = 0;
#pragma unroll
        for (int k = 0; k < FOLD_LANES; k++) {
            x[k] = k < n ? a[k * r.step[1]] : T(0);
            y[k] = F::needs_b && k < n ? b[k * r.step[2]] : T(0);
        }
        if (F::needs_max) {
            m = largest.identity();
#pragma unroll
            for (int k = 0; k < FOLD_LANES; k++)
                if (k < n) m = largest.take(m, x[k]);
        }
        T sum = fold_block_alone(adds, n, [&](int k) { return F::term(x[k], y[k], m); });
        T scale = F::scale(sum);
#pragma unroll
        for (int k = 0; k < FOLD_LANES; k++)
            if (k < n) out[k * r.step[0]] = F::result(x[k], y[k], m, scale);
    }
}

template <typename T, typename F> __global__ void rows(rle_k_rows r)
{
    constexpr int EACH = FOLD_BLOCK / FOLD_LANES;
    const fold_sum<T> adds;
    const fold_max<T> largest;
    int n = static_cast<int>(r.length), lane = threadIdx.x % FOLD_LANES;
    /* The halves of a warp stay together, for the shuffles: one without a row computes
     * the last row and stores nothing. */
    for (int64_t pair = rle_thread() / 32 * 2; pair < r.rows;
         pair += rle_threads() / FOLD_LANES) {
        int64_t i = pair + threadIdx.x / FOLD_LANES % 2;
        bool here = i < r.rows;
        int64_t at[3];
        row_of(r, here ? i : r.rows - 1, at);
        T *out = static_cast<T *>(r.data[0]) + at[0];
        const T *a = static_cast<const T *>(r.data[1]) + at[1];
        const T *b = static_cast<const T *>(r.data[2]) + at[2];
        T x[EACH], y[EACH], m = largest.identity(), sum = adds.identity();
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            int k = j * FOLD_LANES + lane;
            x[j] = k < n ? a[k * r.step[1]] : T(0);
            y[j] = F::needs_b && k < n ? b[k * r.step[2]] : T(0);
            if (F::needs_max && k < n) m = largest.take(m, x[j]);
        }
        if (F::needs_max) m = fold_join(largest, m);
#pragma unroll
        for (int j = 0; j < EACH; j++)
            if (j * FOLD_LANES + lane < n) sum = adds.take(sum, F::term(x[j], y[j], m));
        T scale = F::scale(fold_join(adds, sum));
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            int k = j * FOLD_LANES + lane;
            if (here && k < n) out[k * r.step[0]] = F::result(x[j], y[j], m, scale);
        }
    }
}

/* Blocks are folded by the teams of 16 threads, a chunk of them at a time, and put
 * together by the first thread. Returns the same to all. */
template <typename T, typename Op, typename Get>
__device__ double fold_long(const Op &op, int64_t length, T *part, Get get)
{
    __shared__ double result;
    double total = 0;
    int64_t blocks = fold_blocks(length);
    for (int64_t first = 0; first < blocks; first += FOLD_CHUNK) {
        int here = fold_part(blocks, first);
        for (int b = threadIdx.x / 32 * 2; b < here; b += TEAMS) {
            /* A team without a block goes along with its warp. */
            int mine = b + threadIdx.x / FOLD_LANES % 2;
            int64_t start = (first + (mine < here ? mine : here - 1)) * FOLD_BLOCK;
            T v = fold_block_by_lanes(op, fold_part(length, start),
                                      [&](int k) { return get(start + k); });
            if (mine < here && threadIdx.x % FOLD_LANES == 0) part[mine] = v;
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            double chunk = part[0];
            for (int b = 1; b < here; b++) chunk = op.combine(chunk, part[b]);
            total = first ? op.combine(total, chunk) : chunk;
            result = total;
        }
        __syncthreads();
    }
    return result; /* not written before all have been at the next barrier */
}

template <typename T, typename F> __global__ void long_rows(rle_k_rows r)
{
    __shared__ T part[FOLD_CHUNK];
    for (int64_t i = blockIdx.x; i < r.rows; i += gridDim.x) {
        int64_t at[3];
        row_of(r, i, at);
        T *out = static_cast<T *>(r.data[0]) + at[0];
        const T *a = static_cast<const T *>(r.data[1]) + at[1];
        const T *b = static_cast<const T *>(r.data[2]) + at[2];
        T m = 0;
        if (F::needs_max)
            m = static_cast<T>(fold_long(fold_max<T>(), r.length, part,
                                         [&](int64_t k) { return a[k * r.step[1]]; }));
        double sum = fold_long(fold_sum<T>(), r.length, part, [&](int64_t k) {
            return F::term(a[k * r.step[1]], F::needs_b ? b[k * r.step[2]] : T(0), m);
        });
        T scale = F::scale(static_cast<T>(sum));
        for (int64_t k = threadIdx.x; k < r.length; k += blockDim.x)
            out[k * r.step[0]] = F::result(
                a[k * r.step[1]], F::needs_b ? b[k * r.step[2]] : T(0), m, scale);
    }
}

template <typename T, typename F>
cudaError_t run(const rle_k_rows *r, cudaStream_t stream)
{
    if (r->length <= FOLD_LANES)
        return RLE_LAUNCH((short_rows<T, F>), rle_blocks(r->rows, THREADS, MOST_BLOCKS),
                          rle_few(r->rows, THREADS), 0, stream, *r);
    if (r->length <= FOLD_BLOCK)
        return RLE_LAUNCH((rows<T, F>), rle_blocks(r->rows, TEAMS, MOST_BLOCKS), THREADS,
                          0, stream, *r);
    return RLE_LAUNCH((long_rows<T, F>), rle_blocks(r->rows, 1, MOST_BLOCKS), THREADS, 0,
                      stream, *r);
}

template <typename T>
cudaError_t run_typed(bool logarithm, bool gradient, const rle_k_rows *r,
                      cudaStream_t stream)
{
    if (gradient)
        return logarithm ? run<T, log_backward<T>>(r, stream)
                         : run<T, backward<T>>(r, stream);
    return logarithm ? run<T, log_forward<T>>(r, stream) : run<T, forward<T>>(r, stream);
}

} // namespace

extern "C" cudaError_t rle_k_softmax(rle_dtype t, bool logarithm, bool gradient,
                                     const rle_k_rows *r, cudaStream_t stream)
{
    return t == RLE_F64 ? run_typed<double>(logarithm, gradient, r, stream)
                        : run_typed<float>(logarithm, gradient, r, stream);
}
