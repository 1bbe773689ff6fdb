/* fill.cu - constants and copies: any dtype to any, any strides. */
#include "launch.h"

namespace {

enum { THREADS = 256, MOST_BLOCKS = 4096 };

template <typename T> __global__ void fill(rle_k_loop l, T value)
{
    T *out = static_cast<T *>(l.data[0]);
    for (int64_t i = rle_thread(); i < l.numel; i += rle_threads()) {
        int64_t at[1] = {i};
        if (!l.dense) rle_offsets(l, i, at);
        out[at[0]] = value;
    }
}

template <typename T> cudaError_t run_fill(const rle_k_loop *l, T value, cudaStream_t stream)
{
    return RLE_LAUNCH(fill<T>, rle_blocks(l->numel, THREADS, MOST_BLOCKS), THREADS, 0, stream,
                      *l, value);
}

/* Bytes as they are. */
template <typename T> __global__ void move(rle_k_loop l)
{
    T *out = static_cast<T *>(l.data[0]);
    const T *in = static_cast<const T *>(l.data[1]);
    for (int64_t i = rle_thread(); i < l.numel; i += rle_threads()) {
        int64_t at[2] = {i, i};
        if (!l.dense) rle_offsets(l, i, at);
        out[at[0]] = in[at[1]];
    }
}

/* As C casts, but defined everywhere: NaN gives 0, what is out of range the nearest end. The
 * ends are powers of two (one below, for the upper), so exact in f64 but for 2^63 - 1, whose
 * double is 2^63: from there on the result is the largest integer. */
template <typename To, typename From> __device__ To cast_to_integer(From x, To low, To high)
{
    if (x != x) return 0;
    if (static_cast<double>(x) <= static_cast<double>(low)) return low;
    if (static_cast<double>(x) >= static_cast<double>(high)) return high;
    return static_cast<To>(x);
}

template <typename To> struct cast {
    template <typename From> __device__ static To of(From x) { return static_cast<To>(x); }
};
template <> struct cast<int32_t> {
    template <typename From> __device__ static int32_t of(From x)
    {
        return static_cast<int32_t>(x);
    }
    __device__ static int32_t of(float x) { return cast_to_integer(x, INT32_MIN, INT32_MAX); }
    __device__ static int32_t of(double x) { return cast_to_integer(x, INT32_MIN, INT32_MAX); }
};
template <> struct cast<int64_t> {
    template <typename From> __device__ static int64_t of(From x)
    {
        return static_cast<int64_t>(x);
    }
    __device__ static int64_t of(float x) { return cast_to_integer<int64_t>(x, INT64_MIN, INT64_MAX); }
    __device__ static int64_t of(double x) { return cast_to_integer<int64_t>(x, INT64_MIN, INT64_MAX); }
};
template <> struct cast<uint8_t> {
    template <typename From> __device__ static uint8_t of(From x)
    {
        return static_cast<uint8_t>(x);
    }
    __device__ static uint8_t of(float x) { return cast_to_integer<uint8_t>(x, 0, UINT8_MAX); }
    __device__ static uint8_t of(double x) { return cast_to_integer<uint8_t>(x, 0, UINT8_MAX); }
};
/* A bool's byte, a type of its own only here. */
enum class truth : uint8_t { no, yes };
template <> struct cast<truth> {
    template <typename From> __device__ static truth of(From x)
    {
        return x != 0 ? truth::yes : truth::no;
    }
};

template <typename To> __global__ void convert(rle_k_loop l, rle_dtype from)
{
    To *out = static_cast<To *>(l.data[0]);
    for (int64_t i = rle_thread(); i < l.numel; i += rle_threads()) {
        int64_t at[2] = {i, i};
        if (!l.dense) rle_offsets(l, i, at);
        switch (from) {
        case RLE_F32:
            out[at[0]] = cast<To>::of(static_cast<const float *>(l.data[1])[at[1]]);
            break;
        case RLE_F64:
            out[at[0]] = cast<To>::of(static_cast<const double *>(l.data[1])[at[1]]);
            break;
        case RLE_I32:
            out[at[0]] = cast<To>::of(static_cast<const int32_t *>(l.data[1])[at[1]]);
            break;
        case RLE_I64:
            out[at[0]] = cast<To>::of(static_cast<const int64_t *>(l.data[1])[at[1]]);
            break;
        default:
            out[at[0]] = cast<To>::of(static_cast<const uint8_t *>(l.data[1])[at[1]]);
            break;
        }
    }
}

template <typename T> cudaError_t run_move(const rle_k_loop *l, cudaStream_t stream)
{
    return RLE_LAUNCH(move<T>, rle_blocks(l->numel, THREADS, MOST_BLOCKS), THREADS, 0, stream, *l);
}
template <typename To>
cudaError_t run_convert(const rle_k_loop *l, rle_dtype from, cudaStream_t stream)
{
    return RLE_LAUNCH(convert<To>, rle_blocks(l->numel, THREADS, MOST_BLOCKS), THREADS, 0,
                      stream, *l, from);
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
        return run_fill(l, static_cast<uint8_t>(value != 0 || integer != 0), stream);
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
            return cudaMemcpyAsync(l->data[0], l->data[1], static_cast<size_t>(l->numel) * size,
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
