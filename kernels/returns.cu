/* returns.cu - advantages and returns, backwards through time: a thread to a column,
 * which keeps what flows back in double. The formulas are in engine/device/device.h. */
#include "launch.h"

namespace
{

/* Small blocks: there are as many threads as environments, and each has a long way. */
constexpr int THREADS = 64, MOST_BLOCKS = 8192;

/* Steps whose inputs are read before the first of them is computed. */
constexpr int AHEAD = 8;

template <typename T> __global__ void gae(rle_k_returns r)
{
    for (int64_t n = rle_thread(); n < r.columns; n += rle_threads()) {
        const T *rewards = static_cast<const T *>(r.rewards.data) + n * r.rewards.column;
        const T *values = static_cast<const T *>(r.values.data);
        const uint8_t *dones = static_cast<const uint8_t *>(r.dones.data);
        const T *last = static_cast<const T *>(r.last.data);
        T *out = static_cast<T *>(r.out.data) + n * r.out.column;
        if (values) values += n * r.values.column;
        if (dones) dones += n * r.dones.column;
        double carry = 0;
        double next = last ? static_cast<double>(last[n * r.last.column]) : 0;
        for (int64_t end = r.steps; end > 0; end -= AHEAD) {
            T reward[AHEAD], value[AHEAD];
            bool done[AHEAD];
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                int64_t t = end - 1 - i;
                reward[i] = t >= 0 ? rewards[t * r.rewards.step] : T(0);
                value[i] = values && t >= 0 ? values[t * r.values.step] : T(0);
                done[i] = dones && t >= 0 && dones[t * r.dones.step] != 0;
            }
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                int64_t t = end - 1 - i;
                if (t < 0) break;
                double v = static_cast<double>(value[i]),
                       x = static_cast<double>(reward[i]);
                if (!done[i]) x += r.gamma * next;
                x -= v;
                if (!done[i]) x += r.decay * carry;
                out[t * r.out.step] = static_cast<T>(x);
                carry = x;
                next = v;
            }
        }
    }
}

} // namespace

extern "C" cudaError_t rle_k_gae(rle_dtype t, const rle_k_returns *r, cudaStream_t stream)
{
    unsigned grid = rle_blocks(r->columns, THREADS, MOST_BLOCKS);
    return t == RLE_F64 ? RLE_LAUNCH(gae<double>, grid, THREADS, 0, stream, *r)
                        : RLE_LAUNCH(gae<float>, grid, THREADS, 0, stream, *r);
}
