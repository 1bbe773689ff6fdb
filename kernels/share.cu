/* share.cu - log-probabilities of chosen classes from probabilities that need not sum to
 * 1, and their gradient.
 *
 * A thread adds up one row, in order and in double as the CPU does. Rows come in through
 * shared memory, a tile of ROWS rows by TILE columns at a time, so that neighbouring
 * threads read neighbouring numbers. */
#include "launch.h"

namespace
{

constexpr int ROWS = 128, TILE = 16, THREADS = 256, MOST_BLOCKS = 8192;

__device__ inline float log_of(float x)
{
    return rle_logf(x);
}
__device__ inline double log_of(double x)
{
    return rle_log(x);
}
template <typename T> __device__ inline T eps();
template <> __device__ inline float eps<float>()
{
    return 0x1p-23f;
}
template <> __device__ inline double eps<double>()
{
    return 0x1p-52;
}

/* The thread's row of the sum; all threads of the block take part. `first`: the block's.
 */
template <typename T> __device__ double row_sum(const rle_k_share &s, int64_t first)
{
    __shared__ T tile[ROWS][TILE + 1];
    const T *x = static_cast<const T *>(s.x);
    double sum = 0;
    for (int64_t start = 0; start < s.classes; start += TILE) {
        int columns =
            s.classes - start < TILE ? static_cast<int>(s.classes - start) : TILE;
        int threads = static_cast<int>(blockDim.x), count = threads * columns;
        for (int i = threadIdx.x; i < count; i += threads) {
            int64_t row = first + i / columns;
            if (row < s.rows)
                tile[i / columns][i % columns] = x[row * s.classes + start + i % columns];
        }
        __syncthreads();
        if (first + threadIdx.x < s.rows)
            for (int c = 0; c < columns; c++) sum += tile[threadIdx.x][c];
        __syncthreads();
    }
    return sum;
}

template <typename T>
__global__ void __launch_bounds__(ROWS) log_share(rle_k_share s, unsigned long long *bad)
{
    T *kept = static_cast<T *>(s.kept);
    for (int64_t first = static_cast<int64_t>(blockIdx.x) * ROWS; first < s.rows;
         first += static_cast<int64_t>(gridDim.x) * ROWS) {
        double sum = row_sum<T>(s, first);
        int64_t r = first + threadIdx.x;
        if (r >= s.rows) continue;
        int64_t chosen = s.index[r];
        bool none = chosen < 0 || chosen >= s.classes;
        if (none || !(sum > 0)) {
            atomicMin(bad, 2 * static_cast<unsigned long long>(r) + !none);
            continue;
        }
        T total = static_cast<T>(sum);
        T picked = static_cast<const T *>(s.x)[r * s.classes + chosen];
        T share = picked / total, low = eps<T>(), high = 1 - eps<T>();
        kept[r] = total;
        kept[s.rows + r] = picked;
        kept[2 * s.rows + r] = share;
        static_cast<T *>(s.out)[r] = log_of(share < low    ? low
                                            : share > high ? high
                                                           : share);
    }
}

template <typename T> __global__ void log_share_backward(rle_k_share s)
{
    const T *kept = static_cast<const T *>(s.kept),
            *gout = static_cast<const T *>(s.gout);
    for (int64_t i = rle_thread(); i < s.rows * s.classes; i += rle_threads()) {
        int64_t r = i / s.classes;
        T share = kept[2 * s.rows + r], picked = kept[s.rows + r];
        T g = eps<T>() < share && share < 1 - eps<T>() ? gout[r] : 0;
        T value = -(g / kept[r]);
        if (i - r * s.classes == s.index[r])
            value += g / (picked < static_cast<T>(0x1p-126) ? static_cast<T>(0x1p-126)
                                                            : picked);
        static_cast<T *>(s.gx)[i] = value;
    }
}

} // namespace

extern "C" cudaError_t rle_k_log_share(rle_dtype t, const rle_k_share *s,
                                       unsigned long long *bad, cudaStream_t stream)
{
    unsigned blocks = rle_blocks(s->rows, ROWS, MOST_BLOCKS);
    unsigned threads = rle_few(s->rows, ROWS);
    if (t == RLE_F64)
        return RLE_LAUNCH(log_share<double>, blocks, threads, 0, stream, *s, bad);
    return RLE_LAUNCH(log_share<float>, blocks, threads, 0, stream, *s, bad);
}

extern "C" cudaError_t rle_k_log_share_backward(rle_dtype t, const rle_k_share *s,
                                                cudaStream_t stream)
{
    unsigned blocks = rle_blocks(s->rows * s->classes, THREADS, MOST_BLOCKS);
    unsigned threads = rle_few(s->rows * s->classes, THREADS);
    if (t == RLE_F64)
        return RLE_LAUNCH(log_share_backward<double>, blocks, threads, 0, stream, *s);
    return RLE_LAUNCH(log_share_backward<float>, blocks, threads, 0, stream, *s);
}
