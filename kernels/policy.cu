/* policy.cu - a chain of fully connected layers in one launch, for acting: a policy asked for
 * a few rows, where the launches of single operations would cost more than the arithmetic.
 *
 * A block takes ROWS rows through all layers; what passes between two layers stays in its
 * shared memory. Sums have the order of gemm.cu and of fold.h, so results are those of the
 * single operations, bit for bit.
 *
 * Weights [out, in] are read where they lie. In layers with 16 outputs and more a thread has
 * an output, and the weights come through shared memory, STEPS inputs of THREADS outputs at a
 * time: their rows lie side by side in memory, but a sum needs its own row in order. In
 * smaller layers 16 threads, one a lane, have an output. */
#include "fold.h"
#include "function.h"

namespace {

enum { THREADS = 256, STEPS = 16, PITCH = STEPS + 1, LANES = FOLD_LANES };

/* Sum of get(k), k < n, by each 16 threads of a warp. */
template <typename Get> __device__ float sum_of(int n, Get get)
{
    const fold_sum<float> adds;
    fold_total<fold_sum<float>> total(adds);
    int64_t blocks = 0;
    for (int k0 = 0; k0 < n; k0 += FOLD_BLOCK)
        total.add(adds, blocks++,
                  fold_block_by_lanes(adds, fold_part(n, k0), [&](int k) { return get(k0 + k); }));
    return static_cast<float>(total.result(adds, blocks));
}

struct layer {
    int in, out, function;
    const float *weight, *bias;
};

__device__ float finished(const layer &l, int n, float sum)
{
    if (l.bias) sum += l.bias[n];
    return rle_function(l.function, sum);
}

/* Values of a row lie ROWS apart: from[k * ROWS + r]. */
template <int ROWS>
__device__ void wide(const layer &l, const float *from, float *to, float *tile)
{
    enum { EACH = STEPS }; /* THREADS * STEPS weights by THREADS threads */
    int t = static_cast<int>(threadIdx.x), step = t % STEPS, line = t / STEPS;
    for (int n0 = 0; n0 < l.out; n0 += THREADS) {
        float sum[ROWS] = {}, next[EACH];
        int lines = l.out - n0;
        const float *w = l.weight + static_cast<int64_t>(n0 + line) * l.in + step;
        auto fetch = [&](int k0) {
#pragma unroll
            for (int e = 0; e < EACH; e++)
                next[e] = line + e * (THREADS / STEPS) < lines && k0 + step < l.in
                              ? w[static_cast<int64_t>(e) * (THREADS / STEPS) * l.in + k0]
                              : 0.0f;
        };
        fetch(0);
        for (int k0 = 0; k0 < l.in; k0 += STEPS) {
            __syncthreads(); /* the weights before are used up */
#pragma unroll
            for (int e = 0; e < EACH; e++)
                tile[(line + e * (THREADS / STEPS)) * PITCH + step] = next[e];
            __syncthreads();
            if (k0 + STEPS < l.in) fetch(k0 + STEPS);
            if (t >= lines) continue;
            int steps = l.in - k0 < STEPS ? l.in - k0 : static_cast<int>(STEPS);
            const float *x = from + k0 * ROWS, *own = tile + t * PITCH;
#pragma unroll 4
            for (int k = 0; k < steps; k++)
#pragma unroll
                for (int r = 0; r < ROWS; r++)
                    sum[r] = RLE_FMAF(x[k * ROWS + r], own[k], sum[r]);
        }
        if (t < lines)
#pragma unroll
            for (int r = 0; r < ROWS; r++) to[(n0 + t) * ROWS + r] = finished(l, n0 + t, sum[r]);
    }
}

template <int ROWS> __device__ void narrow(const layer &l, const float *from, float *to)
{
    int t = static_cast<int>(threadIdx.x), lane = t % LANES, rest = l.in % LANES;
    int units = l.out * ROWS;
    /* The two units of a warp go round together: both take part in its exchanges. */
    for (int first = t / 32 * 2; first < units; first += THREADS / LANES) {
        int unit = first + t % 32 / LANES;
        bool there = unit < units;
        if (!there) unit = first;
        int r = unit % ROWS, n = unit / ROWS;
        const float *w = l.weight + static_cast<int64_t>(n) * l.in;
        float sum = 0;
#pragma unroll 4
        for (int k = lane; k < l.in; k += LANES) sum = RLE_FMAF(from[k * ROWS + r], w[k], sum);
        if (rest && lane >= rest) sum = RLE_FMAF(0.0f, 0.0f, sum); /* K filled up */
        sum = fold_join(fold_sum<float>(), sum);
        if (there && lane == 0) to[n * ROWS + r] = finished(l, n, sum);
    }
}

/* The largest of y[k * ROWS], k < n, by each 16 threads of a warp. NaN is larger than all. */
template <int ROWS> __device__ float largest_of(const float *y, int n)
{
    const fold_max<float> largest;
    float m = largest.identity();
    for (int k = static_cast<int>(threadIdx.x) % LANES; k < n; k += LANES)
        m = largest.take(m, y[k * ROWS]);
    return fold_join(largest, m);
}

/* In place, one row, by a warp whose two halves do the same; y[k] at y[k * ROWS]. */
template <int ROWS> __device__ void softmax(bool logarithm, float *y, int n)
{
    int lane = static_cast<int>(threadIdx.x) % LANES;
    bool writes = threadIdx.x % 32 < LANES;
    float m = largest_of<ROWS>(y, n);
    float sum = sum_of(n, [&](int k) { return rle_expf(y[k * ROWS] - m); });
    /* All have read y. (not seen emulated: the sum's exchanges part them too) */
    __syncwarp();
    if (!writes) return;
    if (logarithm) {
        float log_sum = rle_logf(sum);
        for (int k = lane; k < n; k += LANES) y[k * ROWS] = y[k * ROWS] - m - log_sum;
    } else {
        float scale = 1 / sum;
        for (int k = lane; k < n; k += LANES) y[k * ROWS] = rle_expf(y[k * ROWS] - m) * scale;
    }
}

/* The class of probabilities p[k * ROWS], k < n, that u falls on, and their sum: as the
 * multinomial operation. -1: nothing can be drawn. */
template <int ROWS> __device__ int64_t drawn(const float *p, int n, float u, double &total)
{
    total = 0;
    for (int k = 0; k < n; k++) {
        double x = static_cast<double>(p[k * ROWS]);
        if (!(x >= 0) || x - x != 0) return -1;
        total += x;
    }
    if (!(total > 0)) return -1;
    double target = static_cast<double>(u) * total, sum = 0;
    int pick = 0;
    for (int k = 0; k < n; k++) {
        double x = static_cast<double>(p[k * ROWS]);
        if (x == 0) continue;
        pick = k; /* the last possible one when rounding leaves none above */
        sum += x;
        if (sum > target) break;
    }
    return pick;
}

/* Uniform number of a row: its own with keys, else its place in the stream. */
__device__ float uniform(const rle_k_policy &p, int64_t row)
{
    uint32_t w;
    if (p.keys) {
        w = rle_philox_keyed(p.seed, static_cast<uint64_t>(p.keys[row]), p.draw, 0).word[0];
    } else {
        uint64_t at = p.position + static_cast<uint64_t>(row);
        w = rle_philox_stream(p.seed, p.stream, at / 4).word[at % 4];
    }
    return rle_uniform_f32(w);
}

/* Class and log-probability of one row, by a warp: p are its probabilities, y what the last
 * layer gave, which may be the same. */
template <int ROWS>
__device__ void sample(const rle_k_policy &c, int64_t row, const float *p, const float *y, int n)
{
    bool draws = threadIdx.x % 32 == 0 && row < c.rows;
    double total = 0;
    int64_t action = draws ? drawn<ROWS>(p, n, uniform(c, row), total) : 0;
    float log_total = 0;
    if (c.logits) { /* logsumexp, which subtracts no infinity */
        float m = largest_of<ROWS>(y, n), shift = m - m == 0 ? m : 0.0f;
        float sum = sum_of(n, [&](int k) { return rle_expf(y[k * ROWS] - shift); });
        log_total = shift + rle_logf(sum);
    }
    if (!draws) return;
    if (action < 0) {
        atomicMin(c.bad, static_cast<unsigned long long>(row));
        return;
    }
    c.action[row] = action;
    if (c.logits) {
        c.log_prob[row] = y[action * ROWS] - log_total;
        return;
    }
    const float low = 0x1p-23f, high = 1 - 0x1p-23f;
    float share = p[action * ROWS] / static_cast<float>(total);
    share = share < low ? low : share;
    share = share > high ? high : share;
    c.log_prob[row] = rle_logf(share);
}

template <int ROWS> __global__ void __launch_bounds__(THREADS) policy(rle_k_policy p)
{
    RLE_DYNAMIC_SHARED(float, shared);
    float *tile = shared, *from = shared + THREADS * PITCH, *to = from + p.widest * ROWS;
    int t = static_cast<int>(threadIdx.x), n = p.layer[0].in;
    int64_t row0 = static_cast<int64_t>(blockIdx.x) * ROWS;
    for (int r = 0; r < ROWS; r++)
        for (int k = t; k < n; k += THREADS)
            from[k * ROWS + r] = row0 + r < p.rows ? p.x[(row0 + r) * n + k] : 0.0f;
    __syncthreads();
    for (int i = 0; i < p.count; i++) {
        layer l = {p.layer[i].in, p.layer[i].out, p.layer[i].function, p.layer[i].weight,
                   p.layer[i].bias};
        n = l.out;
        if (n >= LANES)
            wide<ROWS>(l, from, to, tile);
        else
            narrow<ROWS>(l, from, to);
        __syncthreads();
        if (l.function == RLE_DENSE_SOFTMAX || l.function == RLE_DENSE_LOG_SOFTMAX) {
            if (t / 32 < ROWS) softmax<ROWS>(l.function == RLE_DENSE_LOG_SOFTMAX, to + t / 32, n);
            __syncthreads();
        }
        float *swap = from;
        from = to;
        to = swap;
    }
    for (int r = 0; r < ROWS && p.y; r++)
        for (int k = t; k < n && row0 + r < p.rows; k += THREADS)
            p.y[(row0 + r) * n + k] = from[k * ROWS + r];
    if (!p.action) return;
    const float *probs = from;
    if (p.logits) {
        for (int k = t; k < n * ROWS; k += THREADS) to[k] = from[k];
        __syncthreads();
        if (t / 32 < ROWS) softmax<ROWS>(false, to + t / 32, n);
        __syncthreads();
        probs = to;
    }
    if (t / 32 < ROWS) sample<ROWS>(p, row0 + t / 32, probs + t / 32, from + t / 32, n);
}

size_t shared_bytes(int64_t widest, int rows)
{
    return (THREADS * PITCH + 2 * static_cast<size_t>(widest) * rows) * sizeof(float);
}

/* What every GPU gives a block without asking. */
enum { SHARED_MOST = 48 << 10, FEW_ROWS = 32, MANY_ROWS = 256 };

template <int ROWS> cudaError_t run(const rle_k_policy *p, cudaStream_t stream)
{
    return RLE_LAUNCH(policy<ROWS>, static_cast<unsigned>((p->rows + ROWS - 1) / ROWS), THREADS,
                      shared_bytes(p->widest, ROWS), stream, *p);
}

} // namespace

extern "C" int64_t rle_k_policy_rows(int64_t widest)
{
    if (shared_bytes(widest, 4) <= SHARED_MOST) return MANY_ROWS;
    return shared_bytes(widest, 1) <= SHARED_MOST ? FEW_ROWS : 0;
}

extern "C" bool rle_k_policy_knows(int function)
{
    return rle_function_is_fused(function) || function == RLE_DENSE_SOFTMAX ||
           function == RLE_DENSE_LOG_SOFTMAX;
}

extern "C" cudaError_t rle_k_policy_run(const rle_k_policy *p, cudaStream_t stream)
{
    return p->rows <= FEW_ROWS ? run<1>(p, stream) : run<4>(p, stream);
}
