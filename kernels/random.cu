/* random.cu - random numbers from counters, bit for bit the CPU's, and sampling. Which
 * words a draw uses is said in engine/device/device.h and common/philox.h. */
#include "rows.h"

namespace
{

constexpr int THREADS = 256, MOST_BLOCKS = 8192;

/* ---- sequential draws: a thread makes what four words give ---- */

__device__ inline uint32_t pick(const rle_philox_block &b, int i)
{
    return i == 0 ? b.word[0] : i == 1 ? b.word[1] : i == 2 ? b.word[2] : b.word[3];
}

/* Words position .. position+3 of the stream. */
__device__ inline rle_philox_block words_at(uint64_t seed, uint64_t stream,
                                            uint64_t position)
{
    rle_philox_block a = rle_philox_stream(seed, stream, position >> 2);
    int skip = static_cast<int>(position & 3);
    if (skip == 0) return a;
    rle_philox_block b = rle_philox_stream(seed, stream, (position >> 2) + 1), w;
    for (int i = 0; i < 4; i++)
        w.word[i] = skip + i < 4 ? pick(a, skip + i) : pick(b, skip + i - 4);
    return w;
}

struct uniform_f32 {
    typedef float type;
    static constexpr int each = 4; /* elements of four words */
    float low, range;
    __device__ void make(const uint32_t *w, float *out) const
    {
        for (int i = 0; i < 4; i++) out[i] = low + range * rle_uniform_f32(w[i]);
    }
};
struct uniform_f64 {
    typedef double type;
    static constexpr int each = 2;
    double low, range;
    __device__ void make(const uint32_t *w, double *out) const
    {
        out[0] = low + range * rle_uniform_f64(w[0], w[1]);
        out[1] = low + range * rle_uniform_f64(w[2], w[3]);
    }
};
struct normal_f32 {
    typedef float type;
    static constexpr int each = 4;
    float mean, deviation;
    __device__ void make(const uint32_t *w, float *out) const
    {
        rle_normal_pair_f32(w[0], w[1], &out[0], &out[1]);
        rle_normal_pair_f32(w[2], w[3], &out[2], &out[3]);
        for (int i = 0; i < 4; i++) out[i] = mean + deviation * out[i];
    }
};
struct normal_f64 {
    typedef double type;
    static constexpr int each = 2;
    double mean, deviation;
    __device__ void make(const uint32_t *w, double *out) const
    {
        rle_normal_pair_f64(w[0], w[1], w[2], w[3], &out[0], &out[1]);
        for (int i = 0; i < 2; i++) out[i] = mean + deviation * out[i];
    }
};
/* A word times the range, the upper half; two words where the range has more than 32
 * bits. */
template <typename T> struct integers {
    typedef T type;
    static constexpr int each = 4;
    uint64_t low, range;
    __device__ void make(const uint32_t *w, T *out) const
    {
        for (int i = 0; i < 4; i++)
            out[i] = static_cast<T>(low + (static_cast<uint64_t>(w[i]) * range >> 32));
    }
};
struct wide_integers {
    typedef int64_t type;
    static constexpr int each = 2;
    uint64_t low, range;
    __device__ void make(const uint32_t *w, int64_t *out) const
    {
        for (int i = 0; i < 2; i++) {
            uint64_t word = static_cast<uint64_t>(w[2 * i + 1]) << 32 | w[2 * i];
            out[i] = static_cast<int64_t>(low + __umul64hi(word, range));
        }
    }
};

template <typename T, int N> struct alignas(sizeof(T) * N) pack {
    T x[N];
};

template <typename Make>
__global__ void numbers(Make m, typename Make::type *out, int64_t n, uint64_t seed,
                        uint64_t stream, uint64_t counter)
{
    typedef pack<typename Make::type, Make::each> some;
    bool aligned = reinterpret_cast<uintptr_t>(out) % alignof(some) == 0;
    int64_t groups = (n + Make::each - 1) / Make::each;
    for (int64_t g = rle_thread(); g < groups; g += rle_threads()) {
        rle_philox_block w =
            words_at(seed, stream, counter + static_cast<uint64_t>(g) * 4);
        int64_t first = g * Make::each;
        some s;
        m.make(w.word, s.x);
        if (aligned && first + Make::each <= n) {
            *reinterpret_cast<some *>(out + first) = s;
            continue;
        }
        for (int i = 0; i < Make::each; i++)
            if (first + i < n) out[first + i] = s.x[i];
    }
}

template <typename Make>
cudaError_t run_numbers(Make m, void *out, int64_t n, const rle_k_stream *at,
                        cudaStream_t s)
{
    return RLE_LAUNCH(numbers<Make>, rle_blocks((n + 3) / Make::each, THREADS, MOST_BLOCKS),
                      rle_few((n + 3) / Make::each, THREADS), 0, s, m,
                      static_cast<typename Make::type *>(out), n, at->seed,
                      at->stream, at->counter);
}

/* ---- keyed draws: a thread to four neighbouring elements of a row ---- */

struct as_uniform {
    float *out;
    __device__ void put(int64_t at, float u) const { out[at] = u; }
};
template <typename T> struct as_dropout {
    T *out;
    const T *in;
    float threshold;
    T scale;
    __device__ void put(int64_t at, float u) const
    {
        out[at] = u >= threshold ? in[at] * scale : T(0);
    }
};

template <typename Use>
__global__ void keyed(Use use, const int64_t *keys, int64_t key_step, int64_t rows,
                      int64_t columns, uint64_t seed, uint32_t draw)
{
    int64_t quads = (columns + 3) / 4;
    for (int64_t item = rle_thread(); item < rows * quads; item += rle_threads()) {
        int64_t row = item, quad = step_down(&row, quads);
        uint64_t key = static_cast<uint64_t>(keys[row * key_step]);
        rle_philox_block w =
            rle_philox_keyed(seed, key, draw, static_cast<uint32_t>(quad));
        for (int i = 0; i < 4; i++)
            if (quad * 4 + i < columns)
                use.put(row * columns + quad * 4 + i, rle_uniform_f32(w.word[i]));
    }
}

template <typename Use>
cudaError_t run_keyed(Use use, const rle_k_keyed *k, cudaStream_t s)
{
    return RLE_LAUNCH(keyed<Use>,
                      rle_blocks(k->rows * ((k->columns + 3) / 4), THREADS, MOST_BLOCKS),
                      rle_few(k->rows * ((k->columns + 3) / 4), THREADS), 0, s, use,
                      k->keys, k->key_step, k->rows, k->columns, k->seed, k->draw);
}

template <typename T>
cudaError_t run_dropout(void *out, const void *in, double p, const rle_k_keyed *k,
                        cudaStream_t s)
{
    as_dropout<T> use = {static_cast<T *>(out), static_cast<const T *>(in),
                         static_cast<float>(p), static_cast<T>(1 / (1 - p))};
    return run_keyed(use, k, s);
}

/* ---- sampling ---- */

/* A warp to a row. The smallest of row * (classes + 1) + c goes to *bad, with c a class
 * whose probability is none, or `classes` where all are 0. */
template <typename T>
__global__ void check_shares(const T *p, rle_k_shares s, unsigned long long *bad)
{
    int lane = threadIdx.x % 32;
    for (int64_t row = rle_thread() / 32; row < s.rows; row += rle_threads() / 32) {
        const T *x = p + row * s.row_step;
        int64_t first = s.classes + 1;
        bool some = false;
        for (int64_t c = lane; c < s.classes; c += 32) {
            T v = x[c * s.class_step];
            if (first > s.classes && (!(v >= 0) || v - v != 0)) first = c;
            some = some || v > 0;
        }
        some = __any_sync(0xffffffffu, some);
        if (!some && lane == 0 && first > s.classes) first = s.classes;
        if (first <= s.classes)
            atomicMin(bad,
                      static_cast<unsigned long long>(row * (s.classes + 1) + first));
    }
}

/* A thread to a draw. The shares are added up in double, in order, as on the CPU: the
 * walk of neighbouring draws over their row is the same. */
template <typename T> __global__ void sample(const T *p, rle_k_shares s, int64_t draws)
{
    for (int64_t item = rle_thread(); item < s.rows * draws; item += rle_threads()) {
        int64_t row = item, j = step_down(&row, draws);
        const T *x = p + row * s.row_step;
        double total = 0, sum = 0;
#pragma unroll 4
        for (int64_t c = 0; c < s.classes; c++)
            total += static_cast<double>(x[c * s.class_step]);
        double target = static_cast<double>(s.u[row * s.u_row + j * s.u_step]) * total;
        int64_t found = 0;
        for (int64_t c = 0; c < s.classes; c++) {
            double v = static_cast<double>(x[c * s.class_step]);
            if (v == 0) continue;
            found = c; /* the last possible one when rounding leaves none above */
            sum += v;
            if (sum > target) break;
        }
        s.out[row * s.out_row + j * s.out_step] = found;
    }
}

} // namespace

extern "C" cudaError_t rle_k_random(rle_dtype t, rle_random_kind kind, void *out,
                                    int64_t n, const rle_k_stream *at, double p0,
                                    double p1, cudaStream_t stream)
{
    if (kind == RLE_RANDOM_INTEGER) {
        int64_t first = static_cast<int64_t>(p0);
        uint64_t low = static_cast<uint64_t>(first);
        uint64_t range = static_cast<uint64_t>(static_cast<int64_t>(p1)) - low;
        if (range > UINT64_C(1) << 32)
            return t == RLE_I64
                       ? run_numbers(wide_integers{low, range}, out, n, at, stream)
                       : cudaErrorInvalidValue;
        return t == RLE_I64
                   ? run_numbers(integers<int64_t>{low, range}, out, n, at, stream)
               : t == RLE_I32
                   ? run_numbers(integers<int32_t>{low, range}, out, n, at, stream)
                   : run_numbers(integers<uint8_t>{low, range}, out, n, at, stream);
    }
    float f0 = static_cast<float>(p0);
    if (kind == RLE_RANDOM_UNIFORM)
        return t == RLE_F64 ? run_numbers(uniform_f64{p0, p1 - p0}, out, n, at, stream)
                            : run_numbers(uniform_f32{f0, static_cast<float>(p1 - p0)},
                                          out, n, at, stream);
    return t == RLE_F64
               ? run_numbers(normal_f64{p0, p1}, out, n, at, stream)
               : run_numbers(normal_f32{f0, static_cast<float>(p1)}, out, n, at, stream);
}

extern "C" cudaError_t rle_k_random_keyed(float *out, const rle_k_keyed *k,
                                          cudaStream_t stream)
{
    return run_keyed(as_uniform{out}, k, stream);
}

extern "C" cudaError_t rle_k_dropout(rle_dtype t, void *out, const void *in, double p,
                                     const rle_k_keyed *k, cudaStream_t stream)
{
    return t == RLE_F64 ? run_dropout<double>(out, in, p, k, stream)
                        : run_dropout<float>(out, in, p, k, stream);
}

extern "C" cudaError_t rle_k_check_shares(rle_dtype t, const rle_k_shares *s,
                                          unsigned long long *bad, cudaStream_t stream)
{
    unsigned grid = rle_blocks(s->rows * 32, THREADS, MOST_BLOCKS);
    unsigned threads = rle_few(s->rows * 32, THREADS);
    return t == RLE_F64 ? RLE_LAUNCH(check_shares<double>, grid, threads, 0, stream,
                                     static_cast<const double *>(s->probs), *s, bad)
                        : RLE_LAUNCH(check_shares<float>, grid, threads, 0, stream,
                                     static_cast<const float *>(s->probs), *s, bad);
}

extern "C" cudaError_t rle_k_sample(rle_dtype t, const rle_k_shares *s, int64_t draws,
                                    cudaStream_t stream)
{
    unsigned grid = rle_blocks(s->rows * draws, THREADS, MOST_BLOCKS);
    unsigned threads = rle_few(s->rows * draws, THREADS);
    return t == RLE_F64 ? RLE_LAUNCH(sample<double>, grid, threads, 0, stream,
                                     static_cast<const double *>(s->probs), *s, draws)
                        : RLE_LAUNCH(sample<float>, grid, threads, 0, stream,
                                     static_cast<const float *>(s->probs), *s, draws);
}
