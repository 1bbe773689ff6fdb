/* fill.cu - constants and copies: any dtype to any, any strides. */
#include "batch.h"

namespace
{

/* ---- one value ---- */

template <typename T, bool PACKED>
__global__ void __launch_bounds__(RLE_BATCH_THREADS) fill(rle_k_loop l, T value)
{
    typedef rle_batch<1, PACKED> batch;
    const T values[RLE_BATCH] = {value, value, value, value};
    for (int64_t i = batch::first(); i < l.numel; i += batch::step())
        batch(l, i).store(l, values);
}

/* What is the same in all its bytes is the driver's to set. */
template <typename T>
cudaError_t run_fill(const rle_k_loop *l, T value, cudaStream_t stream)
{
    unsigned char bytes[sizeof(T)];
    memcpy(bytes, &value, sizeof(T));
    bool even = l->dense;
    for (unsigned char byte : bytes) even = even && byte == bytes[0];
    if (even)
        return cudaMemsetAsync(l->data[0], bytes[0],
                               static_cast<size_t>(l->numel) * sizeof(T), stream);
    return RLE_LAUNCH_BATCHES(fill, T, l, stream, value);
}

/* ---- bytes as they are ---- */

template <typename T, bool PACKED>
__global__ void __launch_bounds__(RLE_BATCH_THREADS) move(rle_k_loop l)
{
    typedef rle_batch<2, PACKED> batch;
    for (int64_t i = batch::first(); i < l.numel; i += batch::step()) {
        batch items(l, i);
        T x[RLE_BATCH];
        items.load(l, 1, x);
        items.store(l, x);
    }
}

/* Matrices whose columns are contiguous in the input and whose rows are in the output. */
struct turn {
    rle_k_loop rest;       /* the other dimensions */
    int64_t rows, columns; /* of the output */
    int64_t out_row, in_column;
};

enum { TILE = 32, TILE_ROWS = 8 };

/* A block carries a tile over through shared memory, so that it reads and writes whole
 * lines. The extra column keeps a warp's reads of one column in different banks. */
template <typename T>
__global__ void __launch_bounds__(TILE *TILE_ROWS) move_turned(turn m)
{
    __shared__ T tile[TILE][TILE + 1];
    int64_t across = (m.columns + TILE - 1) / TILE, down = (m.rows + TILE - 1) / TILE;
    for (int64_t t = blockIdx.x; t < m.rest.numel * down * across; t += gridDim.x) {
        int64_t at[2], matrix = t / (down * across), part = t - matrix * (down * across);
        int64_t row = part / across * TILE,
                column = (part - part / across * across) * TILE;
        rle_offsets(m.rest, matrix, at);
        T *out = static_cast<T *>(m.rest.data[0]) + at[0];
        const T *in = static_cast<const T *>(m.rest.data[1]) + at[1];
        for (int k = threadIdx.y; k < TILE; k += TILE_ROWS)
            if (column + k < m.columns && row + threadIdx.x < m.rows)
                tile[k][threadIdx.x] = in[(column + k) * m.in_column + row + threadIdx.x];
        __syncthreads();
        for (int k = threadIdx.y; k < TILE; k += TILE_ROWS)
            if (row + k < m.rows && column + threadIdx.x < m.columns)
                out[(row + k) * m.out_row + column + threadIdx.x] = tile[threadIdx.x][k];
        __syncthreads();
    }
}

/* The loop's last dimension, contiguous in the output, and the one that is contiguous in
 * the input become the matrix. False: it is no such copy, or too small for tiles. */
bool turned(const rle_k_loop *l, turn *m)
{
    int last = l->ndim - 1, other = -1;
    for (int d = 0; d < last; d++)
        if (l->stride[1][d] == 1) other = d;
    if (other < 0 || l->stride[0][last] != 1 || l->shape[other] < TILE / 2 ||
        l->shape[last] < TILE / 2)
        return false;
    m->rest = *l;
    m->rows = l->shape[other];
    m->columns = l->shape[last];
    m->out_row = l->stride[0][other];
    m->in_column = l->stride[1][last];
    m->rest.ndim = 0;
    m->rest.numel = 1;
    for (int d = 0; d < last; d++) {
        if (d == other) continue;
        int at = m->rest.ndim++;
        m->rest.shape[at] = l->shape[d];
        m->rest.divisor[at] = l->divisor[d];
        m->rest.stride[0][at] = l->stride[0][d];
        m->rest.stride[1][at] = l->stride[1][d];
        m->rest.numel *= l->shape[d];
    }
    if (m->rest.ndim == 0) {
        m->rest.ndim = 1;
        m->rest.shape[0] = 1;
    }
    return true;
}

template <typename T> cudaError_t run_move(const rle_k_loop *l, cudaStream_t stream)
{
    turn m;
    if (turned(l, &m)) {
        int64_t tiles =
            m.rest.numel * ((m.rows + TILE - 1) / TILE) * ((m.columns + TILE - 1) / TILE);
        return RLE_LAUNCH(move_turned<T>, rle_blocks(tiles, 1, RLE_BATCH_MOST_BLOCKS),
                          dim3(TILE, TILE_ROWS), 0, stream, m);
    }
    return RLE_LAUNCH_BATCHES(move, T, l, stream);
}

/* ---- from dtype to dtype ---- */

/* As C casts, but defined everywhere: NaN gives 0, what is out of range the nearest end.
 * The ends are powers of two (one below, for the upper), so exact in f64 but for 2^63 -
 * 1, whose double is 2^63: from there on the result is the largest integer. */
template <typename To, typename From>
__device__ To cast_to_integer(From x, To low, To high)
{
    if (x != x) return 0;
    if (static_cast<double>(x) <= static_cast<double>(low)) return low;
    if (static_cast<double>(x) >= static_cast<double>(high)) return high;
    return static_cast<To>(x);
}

template <typename To> struct cast {
    template <typename From> __device__ static To of(From x)
    {
        return static_cast<To>(x);
    }
};
template <> struct cast<int32_t> {
    template <typename From> __device__ static int32_t of(From x)
    {
        return static_cast<int32_t>(x);
    }
    __device__ static int32_t of(float x)
    {
        return cast_to_integer(x, INT32_MIN, INT32_MAX);
    }
    __device__ static int32_t of(double x)
    {
        return cast_to_integer(x, INT32_MIN, INT32_MAX);
    }
};
template <> struct cast<int64_t> {
    template <typename From> __device__ static int64_t of(From x)
    {
        return static_cast<int64_t>(x);
    }
    __device__ static int64_t of(float x)
    {
        return cast_to_integer<int64_t>(x, INT64_MIN, INT64_MAX);
    }
    __device__ static int64_t of(double x)
    {
        return cast_to_integer<int64_t>(x, INT64_MIN, INT64_MAX);
    }
};
template <> struct cast<uint8_t> {
    template <typename From> __device__ static uint8_t of(From x)
    {
        return static_cast<uint8_t>(x);
    }
    __device__ static uint8_t of(float x)
    {
        return cast_to_integer<uint8_t>(x, 0, UINT8_MAX);
    }
    __device__ static uint8_t of(double x)
    {
        return cast_to_integer<uint8_t>(x, 0, UINT8_MAX);
    }
};
/* A bool's byte, a type of its own only here. */
enum class truth : uint8_t { no, yes };
template <> struct cast<truth> {
    template <typename From> __device__ static truth of(From x)
    {
        return x != 0 ? truth::yes : truth::no;
    }
};

template <typename To, typename From, bool PACKED>
__device__ inline void convert_all(const rle_k_loop &l)
{
    typedef rle_batch<2, PACKED> batch;
    for (int64_t i = batch::first(); i < l.numel; i += batch::step()) {
        batch items(l, i);
        From x[RLE_BATCH];
        To y[RLE_BATCH];
        items.load(l, 1, x);
        for (int k = 0; k < RLE_BATCH; k++) y[k] = cast<To>::of(x[k]);
        items.store(l, y);
    }
}

template <typename To, bool PACKED>
__global__ void __launch_bounds__(RLE_BATCH_THREADS) convert(rle_k_loop l, rle_dtype from)
{
    switch (from) {
    case RLE_F32:
        return convert_all<To, float, PACKED>(l);
    case RLE_F64:
        return convert_all<To, double, PACKED>(l);
    case RLE_I32:
        return convert_all<To, int32_t, PACKED>(l);
    case RLE_I64:
        return convert_all<To, int64_t, PACKED>(l);
    default:
        return convert_all<To, uint8_t, PACKED>(l);
    }
}

template <typename To>
cudaError_t run_convert(const rle_k_loop *l, rle_dtype from, cudaStream_t stream)
{
    return RLE_LAUNCH_BATCHES(convert, To, l, stream, from);
}

} // namespace

extern "C" cudaError_t rle_k_fill(rle_dtype t, const rle_k_loop *l, double value,
                                  int64_t integer, cudaStream_t stream)
{
    switch (t) {
    case RLE_F32:
        return run_fill(l, static_cast<float>(value), stream);
    case RLE_F64:
        return run_fill(l, value, stream);
    case RLE_I32:
        return run_fill(l, static_cast<int32_t>(integer), stream);
    case RLE_I64:
        return run_fill(l, integer, stream);
    case RLE_U8:
        return run_fill(l, static_cast<uint8_t>(integer), stream);
    case RLE_BOOL:
        return run_fill(l, static_cast<uint8_t>(integer != 0), stream);
    default:
        return cudaErrorInvalidValue;
    }
}

extern "C" cudaError_t rle_k_copy(rle_dtype to, rle_dtype from, const rle_k_loop *l,
                                  cudaStream_t stream)
{
    if (to == from) {
        size_t size = rle_dtype_size(to);
        if (l->dense)
            return cudaMemcpyAsync(l->data[0], l->data[1],
                                   static_cast<size_t>(l->numel) * size,
                                   cudaMemcpyDeviceToDevice, stream);
        return size == 8   ? run_move<uint64_t>(l, stream)
               : size == 4 ? run_move<uint32_t>(l, stream)
                           : run_move<uint8_t>(l, stream);
    }
    switch (to) {
    case RLE_F32:
        return run_convert<float>(l, from, stream);
    case RLE_F64:
        return run_convert<double>(l, from, stream);
    case RLE_I32:
        return run_convert<int32_t>(l, from, stream);
    case RLE_I64:
        return run_convert<int64_t>(l, from, stream);
    case RLE_U8:
        return run_convert<uint8_t>(l, from, stream);
    case RLE_BOOL:
        return run_convert<truth>(l, from, stream);
    default:
        return cudaErrorInvalidValue;
    }
}
