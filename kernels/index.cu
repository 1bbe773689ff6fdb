/* index.cu - elements by index: gather, scatter, and the checks that come before them.
 *
 * Indices have been checked when an element is moved. Scatter keeps the CPU's order: along
 * the indexed dimension, which is all that can meet in one element of the output, the
 * entries of the index are taken one after the other, and each element of the output has
 * one thread that writes it. So sums have the CPU's bits and the last assignment wins. */
#include "batch.h"

namespace {

/* ---- checks: the flag takes the smallest position that is wrong ---- */

__global__ void __launch_bounds__(RLE_BATCH_THREADS)
    check_index(rle_k_loop l, int64_t extent, unsigned long long *flag)
{
    typedef rle_batch<1, false> batch;
    for (int64_t i = batch::first(); i < l.numel; i += batch::step()) {
        batch items(l, i);
        int64_t index[RLE_BATCH];
        items.load(l, 0, index);
        for (int k = 0; k < items.n; k++)
            if (static_cast<uint64_t>(index[k]) >= static_cast<uint64_t>(extent)) {
                atomicMin(flag, static_cast<unsigned long long>(batch::position(i, k)));
                return; /* what this thread would see next lies behind it */
            }
    }
}

template <typename T>
__global__ void __launch_bounds__(RLE_BATCH_THREADS)
    find_bad_row(rle_k_loop l, int64_t columns, bool nonnegative, unsigned long long *flag)
{
    typedef rle_batch<1, false> batch;
    for (int64_t i = batch::first(); i < l.numel; i += batch::step()) {
        batch items(l, i);
        T x[RLE_BATCH];
        items.load(l, 0, x);
        for (int k = 0; k < items.n; k++)
            if (!(x[k] - x[k] == 0) || (nonnegative && x[k] < 0)) {
                int64_t row = batch::position(i, k) / columns;
                atomicMin(flag, static_cast<unsigned long long>(row));
                return;
            }
    }
}

/* ---- gather ---- */

template <typename T>
__global__ void __launch_bounds__(RLE_BATCH_THREADS) gather(rle_k_loop l, int64_t step)
{
    typedef rle_batch<3, false> batch;
    for (int64_t i = batch::first(); i < l.numel; i += batch::step()) {
        batch items(l, i);
        int64_t index[RLE_BATCH];
        T x[RLE_BATCH];
        items.load(l, 2, index);
        for (int k = 0; k < items.n; k++) items.at[k][1] += index[k] * step;
        items.load(l, 1, x);
        items.store(l, x);
    }
}

template <typename T>
cudaError_t run_gather(const rle_k_loop *l, int64_t step, cudaStream_t stream)
{
    return RLE_LAUNCH(gather<T>, rle_batch_blocks(l->numel),
                      rle_few(l->numel, RLE_BATCH_THREADS), 0, stream, *l, step);
}

/* ---- scatter ---- */

struct assign {
    template <typename T> __device__ static void put(T *out, T x) { *out = x; }
};
struct add {
    template <typename T> __device__ static void put(T *out, T x) { *out = T(*out + x); }
};
struct unite { /* sums of bool */
    template <typename T> __device__ static void put(T *out, T x) { *out = T(*out | x); }
};

enum { THREADS = 256, WARPS = THREADS / 32, MOST_BLOCKS = 2048 };
/* Up to so many entries a thread takes a line on its own. */
enum { SHORT_LINE = 32 };

/* A thread a line: for many short ones. */
template <typename T, typename How>
__global__ void __launch_bounds__(THREADS) scatter_lines(rle_k_scatter s)
{
    for (int64_t line = rle_thread(); line < s.lines.numel; line += rle_threads()) {
        int64_t at[3];
        rle_offsets(s.lines, line, at);
        T *out = static_cast<T *>(s.lines.data[0]) + at[0];
        const T *__restrict__ src = static_cast<const T *>(s.lines.data[1]) + at[1];
        const int64_t *__restrict__ index = static_cast<const int64_t *>(s.lines.data[2]) + at[2];
        for (int64_t i = 0; i < s.length; i++)
            How::put(out + index[i * s.index_step] * s.out_step, src[i * s.src_step]);
    }
}

/* A block takes a part of the output: blockDim.x lines, which have one index in common
 * (or one line), and a range of their elements. It goes through the whole index, THREADS
 * entries at a time, lists those that point into its range, in order, and then each thread
 * picks from the list what is for its line and its elements: every blockDim.y-th. */
template <typename T, typename How>
__global__ void __launch_bounds__(THREADS)
    scatter_parts(rle_k_scatter s, int64_t groups, int64_t ranges)
{
    __shared__ int64_t element[THREADS];
    __shared__ int entry[THREADS], found[WARPS];
    int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
    int lane = thread & 31, warp = thread >> 5;
    int64_t mine = threadIdx.y, every = blockDim.y - 1; /* blockDim.y is a power of 2 */
    int64_t size = (s.extent + ranges - 1) / ranges;
    for (int64_t part = blockIdx.x; part < groups * ranges; part += gridDim.x) {
        int64_t group = part / ranges, low = (part - group * ranges) * size, at[3];
        int64_t high = low + size < s.extent ? low + size : s.extent;
        int64_t line = group * blockDim.x + threadIdx.x;
        bool here = line < s.lines.numel;
        rle_offsets(s.lines, here ? line : group * blockDim.x, at);
        T *out = static_cast<T *>(s.lines.data[0]) + at[0];
        const T *__restrict__ src = static_cast<const T *>(s.lines.data[1]) + at[1];
        const int64_t *__restrict__ index = static_cast<const int64_t *>(s.lines.data[2]) + at[2];
        int64_t next = thread < s.length ? index[thread * s.index_step] : -1;
        for (int64_t start = 0; start < s.length; start += THREADS) {
            int64_t e = next, ahead = start + THREADS + thread;
            next = ahead < s.length ? index[ahead * s.index_step] : -1;
            bool inside = e >= low && e < high;
            unsigned votes = __ballot_sync(0xffffffffu, inside);
            if (lane == 0) found[warp] = __popc(votes);
            __syncthreads();
            int before = __popc(votes & ((1u << lane) - 1)), count = 0;
            for (int w = 0; w < WARPS; w++) {
                if (w < warp) before += found[w];
                count += found[w];
            }
            if (inside) {
                element[before] = e;
                entry[before] = thread;
            }
            __syncthreads();
            for (int k = 0; k < count; k++)
                if (here && (element[k] & every) == mine)
                    How::put(out + element[k] * s.out_step,
                             src[(start + entry[k]) * s.src_step]);
        }
    }
}

template <typename T, typename How>
cudaError_t run_scatter(const rle_k_scatter *s, cudaStream_t stream)
{
    if (s->length <= SHORT_LINE)
        return RLE_LAUNCH((scatter_lines<T, How>), rle_blocks(s->lines.numel, THREADS, MOST_BLOCKS),
                          THREADS, 0, stream, *s);
    /* Lines side by side where the index is one for all; as many ranges as it takes to
     * give every multiprocessor some blocks. */
    unsigned wide = s->shared && s->lines.numel >= 32 ? 32 : 1;
    int64_t groups = (s->lines.numel + wide - 1) / wide, ranges = MOST_BLOCKS / 2 / groups;
    int64_t most = (s->extent + 31) / 32;
    ranges = ranges > most ? most : ranges;
    ranges = ranges < 1 ? 1 : ranges;
    return RLE_LAUNCH((scatter_parts<T, How>), rle_blocks(groups * ranges, 1, MOST_BLOCKS),
                      dim3(wide, THREADS / wide), 0, stream, *s, groups, ranges);
}

} // namespace

extern "C" cudaError_t rle_k_check_index(const rle_k_loop *l, int64_t extent,
                                         unsigned long long *flag, cudaStream_t stream)
{
    return RLE_LAUNCH(check_index, rle_batch_blocks(l->numel),
                      rle_few(l->numel, RLE_BATCH_THREADS), 0, stream, *l, extent, flag);
}

extern "C" cudaError_t rle_k_find_bad_row(rle_dtype t, const rle_k_loop *l, int64_t columns,
                                          bool nonnegative, unsigned long long *flag,
                                          cudaStream_t stream)
{
    unsigned blocks = rle_batch_blocks(l->numel), threads = rle_few(l->numel, RLE_BATCH_THREADS);
    if (t == RLE_F32)
        return RLE_LAUNCH(find_bad_row<float>, blocks, threads, 0, stream, *l, columns, nonnegative,
                          flag);
    if (t == RLE_F64)
        return RLE_LAUNCH(find_bad_row<double>, blocks, threads, 0, stream, *l, columns,
                          nonnegative, flag);
    return cudaErrorInvalidValue;
}

extern "C" cudaError_t rle_k_gather(rle_dtype t, const rle_k_loop *l, int64_t step,
                                    cudaStream_t stream)
{
    switch (rle_dtype_size(t)) {
    case 1:
        return run_gather<uint8_t>(l, step, stream);
    case 4:
        return run_gather<uint32_t>(l, step, stream);
    case 8:
        return run_gather<uint64_t>(l, step, stream);
    default:
        return cudaErrorInvalidValue;
    }
}

extern "C" cudaError_t rle_k_scatter_run(rle_dtype t, const rle_k_scatter *s, bool assigns,
                                         cudaStream_t stream)
{
    if (assigns) {
        switch (rle_dtype_size(t)) {
        case 1:
            return run_scatter<uint8_t, assign>(s, stream);
        case 4:
            return run_scatter<uint32_t, assign>(s, stream);
        case 8:
            return run_scatter<uint64_t, assign>(s, stream);
        default:
            return cudaErrorInvalidValue;
        }
    }
    switch (t) {
    case RLE_F32:
        return run_scatter<float, add>(s, stream);
    case RLE_F64:
        return run_scatter<double, add>(s, stream);
    case RLE_I32:
        return run_scatter<uint32_t, add>(s, stream);
    case RLE_I64:
        return run_scatter<uint64_t, add>(s, stream);
    case RLE_U8:
        return run_scatter<uint8_t, add>(s, stream);
    case RLE_BOOL:
        return run_scatter<uint8_t, unite>(s, stream);
    default:
        return cudaErrorInvalidValue;
    }
}
