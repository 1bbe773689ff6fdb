/* sort.cu - stable sort along a dimension, with positions.
 *
 * Elements become items: a key whose unsigned order is the order asked for (NaN largest,
 * both zeros equal, descending by complement), and their position behind it. So no two
 * items are equal, any sorting network is stable, and results do not depend on how the
 * work is spread.
 *
 *   tiles   1024 items in shared memory, sorted by a bitonic network: several short rows,
 * one row, or a piece of one, which goes to scratch memory merge   runs in pairs, from
 * one half of the scratch memory to the other: each item finds its place by a search in
 * the other run of its pair emit    values are fetched from the input by position, so -0
 * and NaN keep their bits */
#include "rows.h"

namespace
{

constexpr int TILE = 1024, THREADS = 256, MOST_BLOCKS = 8192;

/* ---- keys ---- */

__device__ inline uint32_t key_of(float x)
{
    if (x != x) return UINT32_MAX;
    uint32_t b = x == 0 ? 0 : rle_bits32(x);
    return b >> 31 ? ~b : b | UINT32_C(1) << 31;
}
__device__ inline uint64_t key_of(double x)
{
    if (x != x) return UINT64_MAX;
    uint64_t b = x == 0 ? 0 : rle_bits64(x);
    return b >> 63 ? ~b : b | UINT64_C(1) << 63;
}
__device__ inline uint32_t key_of(int32_t x)
{
    return static_cast<uint32_t>(x) ^ UINT32_C(1) << 31;
}
__device__ inline uint64_t key_of(int64_t x)
{
    return static_cast<uint64_t>(x) ^ UINT64_C(1) << 63;
}
__device__ inline uint32_t key_of(uint8_t x)
{
    return x;
}

/* ---- items: keys of 4 bytes share a word with their position; the largest item is no
 * real one and fills up tiles ---- */

struct packed {
    typedef uint64_t item;
    __device__ static item make(uint32_t key, bool descending, int64_t at)
    {
        return static_cast<uint64_t>(descending ? ~key : key) << 32 |
               static_cast<uint64_t>(at);
    }
    __device__ static item largest() { return UINT64_MAX; }
    __device__ static bool less(item a, item b) { return a < b; }
    __device__ static int64_t position(item a)
    {
        return static_cast<int64_t>(a & UINT32_MAX);
    }
};
struct wide {
    struct item {
        uint64_t key, at;
    };
    __device__ static item make(uint64_t key, bool descending, int64_t at)
    {
        return {descending ? ~key : key, static_cast<uint64_t>(at)};
    }
    __device__ static item make(uint32_t key, bool descending, int64_t at)
    {
        return make(static_cast<uint64_t>(descending ? ~key : key), false, at);
    }
    __device__ static item largest() { return {UINT64_MAX, UINT64_MAX}; }
    __device__ static bool less(item a, item b)
    {
        return a.key < b.key || (a.key == b.key && a.at < b.at);
    }
    __device__ static int64_t position(item a) { return static_cast<int64_t>(a.at); }
};

/* ---- kernels. Arrays of rows: values, indices, in ---- */

/* Element k of row i of the sorted rows is the input's at `from`. */
template <typename T>
__device__ void put(const rle_k_rows &r, int64_t i, int64_t k, int64_t from)
{
    int64_t at[3];
    row_of(r, i, at);
    static_cast<T *>(r.data[0])[at[0] + k * r.step[0]] =
        static_cast<const T *>(r.data[2])[at[2] + from * r.step[2]];
    static_cast<int64_t *>(r.data[1])[at[1] + k * r.step[1]] = from;
}

/* `part`, a power of two, is what is sorted together: at least a row's length, or all of
 * a tile. The rows are first .. first+rows-1; `runs` NULL: they are whole, and are put
 * out. */
template <typename T, typename Order>
__global__ void tiles(rle_k_rows r, bool descending, int64_t first, int64_t rows,
                      int part, typename Order::item *runs)
{
    __shared__ typename Order::item items[TILE];
    int64_t pieces = (r.length + part - 1) / part; /* of a row */
    int64_t parts = rows * pieces, at_once = TILE / part;
    for (int64_t tile = blockIdx.x; tile * at_once < parts; tile += gridDim.x) {
        for (int s = threadIdx.x; s < TILE; s += blockDim.x) {
            int64_t p = tile * at_once + s / part, i = p / pieces;
            int64_t k = p % pieces * part + s % part;
            if (p < parts && k < r.length) {
                int64_t at[3];
                row_of(r, first + i, at);
                T x = static_cast<const T *>(r.data[2])[at[2] + k * r.step[2]];
                items[s] = Order::make(key_of(x), descending, k);
            } else {
                items[s] = Order::largest();
            }
        }
        __syncthreads();
        for (int size = 2; size <= part; size *= 2) {
            for (int stride = size / 2; stride > 0; stride /= 2) {
                for (int pair = threadIdx.x; pair < TILE / 2; pair += blockDim.x) {
                    int a = 2 * pair - (pair & (stride - 1)), b = a + stride;
                    bool up = (a & (part - 1) & size) == 0;
                    typename Order::item x = items[a], y = items[b];
                    if (Order::less(y, x) == up) {
                        items[a] = y;
                        items[b] = x;
                    }
                }
                /* Up to a stride of 32 the 64 items of a warp are its own. */
                int next = stride > 1 ? stride / 2 : size < part ? size : TILE;
                if (stride <= 32 && next <= 32)
                    __syncwarp();
                else
                    __syncthreads();
            }
        }
        /* A thread puts out what it loads again in the next tile. */
        for (int s = threadIdx.x; s < TILE; s += blockDim.x) {
            int64_t p = tile * at_once + s / part, i = p / pieces;
            int64_t k = p % pieces * part + s % part;
            if (p >= parts || k >= r.length) continue;
            if (runs)
                runs[i * r.length + k] = items[s];
            else
                put<T>(r, first + i, k, Order::position(items[s]));
        }
    }
}

template <typename Order>
__global__ void merge(const typename Order::item *from, typename Order::item *to,
                      int64_t rows, int64_t length, int64_t run)
{
    for (int64_t e = rle_thread(); e < rows * length; e += rle_threads()) {
        int64_t row = e / length * length, k = e - row;
        int64_t start = k / (2 * run) * (2 * run), middle = start + run;
        typename Order::item x = from[e];
        /* What is less than x in the other run. */
        int64_t low = k < middle ? middle : start, base = low;
        int64_t high = k < middle ? middle + run : middle;
        if (low > length) low = base = length;
        if (high > length) high = length;
        while (low < high) {
            int64_t half = low + (high - low) / 2;
            if (Order::less(from[row + half], x))
                low = half + 1;
            else
                high = half;
        }
        int64_t own = k < middle ? k - start : k - middle;
        to[row + start + own + (low - base)] = x;
    }
}

template <typename T, typename Order>
__global__ void emit(rle_k_rows r, int64_t first, int64_t rows,
                     const typename Order::item *items)
{
    for (int64_t e = rle_thread(); e < rows * r.length; e += rle_threads()) {
        int64_t i = e / r.length;
        put<T>(r, first + i, e - i * r.length, Order::position(items[e]));
    }
}

/* ---- launchers ---- */

/* Rows whose items lie in scratch memory together, so that it stays within bounds. */
constexpr int64_t ITEMS_AT_ONCE = 1 << 20;
int64_t rows_at_once(const rle_k_rows *r)
{
    int64_t n = ITEMS_AT_ONCE / r->length;
    return n < 1 ? 1 : n < r->rows ? n : r->rows;
}

template <typename T, typename Order>
cudaError_t run(bool descending, const rle_k_rows *r, void *scratch, cudaStream_t s)
{
    typedef typename Order::item item;
    if (r->length <= TILE) {
        int part = 2;
        while (part < r->length) part *= 2;
        return RLE_LAUNCH((tiles<T, Order>),
                          rle_blocks(r->rows * part, TILE, MOST_BLOCKS), THREADS, 0, s,
                          *r, descending, static_cast<int64_t>(0), r->rows, part,
                          static_cast<item *>(nullptr));
    }
    int64_t most = rows_at_once(r);
    for (int64_t first = 0; first < r->rows; first += most) {
        int64_t rows = r->rows - first < most ? r->rows - first : most;
        int64_t count = rows * r->length,
                tile_count = rows * ((r->length + TILE - 1) / TILE);
        item *from = static_cast<item *>(scratch), *to = from + count;
        unsigned grid = rle_blocks(count, THREADS, MOST_BLOCKS);
        cudaError_t e =
            RLE_LAUNCH((tiles<T, Order>), rle_blocks(tile_count, 1, MOST_BLOCKS), THREADS,
                       0, s, *r, descending, first, rows, int(TILE), from);
        for (int64_t run = TILE; run < r->length && e == cudaSuccess; run *= 2) {
            const item *runs = from;
            e = RLE_LAUNCH(merge<Order>, grid, THREADS, 0, s, runs, to, rows, r->length,
                           run);
            item *swap = from;
            from = to;
            to = swap;
        }
        const item *sorted = from;
        if (e == cudaSuccess)
            e = RLE_LAUNCH((emit<T, Order>), grid, THREADS, 0, s, *r, first, rows,
                           sorted);
        if (e != cudaSuccess) return e;
    }
    return cudaSuccess;
}

bool is_packed(rle_dtype t, const rle_k_rows *r)
{
    return rle_dtype_size(t) <= 4 && r->length < UINT32_MAX;
}

template <typename T>
cudaError_t run_small(bool descending, const rle_k_rows *r, void *scratch, cudaStream_t s)
{
    return r->length < UINT32_MAX ? run<T, packed>(descending, r, scratch, s)
                                  : run<T, wide>(descending, r, scratch, s);
}

} // namespace

extern "C" size_t rle_k_sort_scratch(rle_dtype t, const rle_k_rows *r)
{
    if (r->length <= TILE) return 0;
    size_t size = is_packed(t, r) ? sizeof(packed::item) : sizeof(wide::item);
    return 2 * size * static_cast<size_t>(rows_at_once(r) * r->length);
}

extern "C" cudaError_t rle_k_sort(rle_dtype t, bool descending, const rle_k_rows *r,
                                  void *scratch, cudaStream_t stream)
{
    switch (t) {
    case RLE_F32:
        return run_small<float>(descending, r, scratch, stream);
    case RLE_F64:
        return run<double, wide>(descending, r, scratch, stream);
    case RLE_I32:
        return run_small<int32_t>(descending, r, scratch, stream);
    case RLE_I64:
        return run<int64_t, wide>(descending, r, scratch, stream);
    default:
        return run_small<uint8_t>(descending, r, scratch, stream);
    }
}
