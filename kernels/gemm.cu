/* gemm.cu - products of matrices, in the CPU's order of summation and so with its bits.
 *
 * The order, a function of (K, N) alone:
 *   N >= 16: the sum starts at 0 and takes in k = 0, 1, 2, ...;
 *   N <  16: 16 lanes, lane l takes in k = l, l+16, ... (K filled up with zeros to a
 *            multiple of 16), then lane i takes in lane i+8, i+4, i+2, i+1.
 * f32 takes a product in with one fused multiply-add, f64 with a multiplication and an
 * addition. The bias, then the old value of out, are added to the finished sum.
 *
 * Wide products (N >= 16) go by tiles of BM x BN outputs; a block stages BK columns of a
 * and rows of b in shared memory, and a thread keeps the sums of TM x TN outputs in
 * registers while k runs through. How large the tiles are depends on how many rows there
 * are and shows in the speed only: a sum is always one thread's, and always in order. */
#include "function.h"

namespace {

enum { THREADS = 256, LANES = 16 };

__device__ float take(float x, float y, float sum) { return RLE_FMAF(x, y, sum); }
__device__ double take(double x, double y, double sum) { return sum + x * y; }

/* Of the functions only the cheapest is here: the others would stand once for each of a
 * thread's sums. */
template <typename T>
__device__ void finish(const rle_k_gemm &g, int64_t batch, int64_t i, int64_t j, T sum)
{
    T *out = static_cast<T *>(g.out) + batch * g.out_batch + i * g.out_row + j * g.out_col;
    if (g.bias) sum += static_cast<const T *>(g.bias)[j * g.bias_col];
    if (g.accumulate) sum += *out;
    if (g.function == RLE_UNARY_RELU) sum = 0 > sum ? 0 : sum;
    *out = sum;
}

/* ---- wide ---- */

/* As much of n as a piece of `most` holds. */
__device__ int part(int64_t n, int most) { return n < most ? static_cast<int>(n) : most; }

/* A piece of ROWS lines by BK steps on its way from memory to shared memory: in registers
 * while the piece before is still in use. Threads that follow each other read along the
 * direction in which memory is contiguous: `along` the steps or across the lines. */
template <typename T, int ROWS, int BK> struct piece {
    enum { EACH = ROWS * BK / THREADS, PITCH = ROWS + 4 };
    T value[EACH];
    int i, k, more_i, more_k; /* the first element, and from one to the next */
    bool along;

    __device__ explicit piece(bool along_) : along(along_)
    {
        int t = static_cast<int>(threadIdx.x);
        i = along ? t / BK : t % ROWS;
        k = along ? t % BK : t / ROWS;
        more_i = along ? THREADS / BK : 0;
        more_k = along ? 0 : THREADS / ROWS;
    }
    /* Elements beyond `lines` and `steps` are 0. */
    __device__ void fetch(const T *p, int lines, int64_t line, int steps, int64_t step)
    {
        p += i * line + k * step;
        int64_t more = more_i * line + more_k * step;
#pragma unroll
        for (int e = 0; e < EACH; e++, p += more)
            value[e] = i + e * more_i < lines && k + e * more_k < steps ? *p : T(0);
    }
    __device__ void store(T *shared) const
    {
        shared += k * PITCH + i;
        int more = more_k * PITCH + more_i;
#pragma unroll
        for (int e = 0; e < EACH; e++) shared[e * more] = value[e];
    }
};

/* Neighbours that a thread reads from shared memory at once. */
template <typename T, int N> struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) group {
    T v[N];
};

/* A thread's TM lines out of BM: groups of up to 4 neighbours, spread so that threads that
 * follow each other read groups that do. */
template <int BM, int TM> struct lines {
    enum { GROUP = TM < 4 ? TM : 4, GROUPS = TM / GROUP, STEP = BM / GROUPS };
    __device__ static int at(int thread, int i)
    {
        return i / GROUP * STEP + thread * GROUP + i % GROUP;
    }
    template <typename T> __device__ static void read(T (&to)[TM], const T *from, int thread)
    {
#pragma unroll
        for (int i = 0; i < GROUPS; i++) {
            auto v = *reinterpret_cast<const group<T, GROUP> *>(from + at(thread, i * GROUP));
#pragma unroll
            for (int j = 0; j < GROUP; j++) to[i * GROUP + j] = v.v[j];
        }
    }
};

/* Left to itself ptxas spills where doubles are many, to place two blocks at a time. */
template <typename T, int BM, int BN, int TM, int TN, int BK>
__global__ void __launch_bounds__(THREADS, (sizeof(T) == 8 && TM > 2) ? 1 : 0) wide(rle_k_gemm g)
{
    typedef piece<T, BM, BK> piece_a;
    typedef piece<T, BN, BK> piece_b;
    static_assert(BM / TM * (BN / TN) == THREADS, "every thread has its own outputs");
    RLE_DYNAMIC_SHARED(T, shared);
    T *as = shared, *bs = shared + BK * piece_a::PITCH;
    int tx = static_cast<int>(threadIdx.x) % (BN / TN);
    int ty = static_cast<int>(threadIdx.x) / (BN / TN);
    int64_t across = (g.n + BN - 1) / BN;
    int64_t m0 = blockIdx.x / across * BM, n0 = blockIdx.x % across * BN;
    bool used = m0 + lines<BM, TM>::at(ty, 0) < g.m && n0 + lines<BN, TN>::at(tx, 0) < g.n;
    int rows = part(g.m - m0, BM), columns = part(g.n - n0, BN);
    piece_a pa(g.a_col == 1);
    piece_b pb(g.b_row == 1);
    for (int64_t batch = blockIdx.y; batch < g.batches; batch += gridDim.y) {
        const T *a = static_cast<const T *>(g.a) + batch * g.a_batch + m0 * g.a_row;
        const T *b = static_cast<const T *>(g.b) + batch * g.b_batch + n0 * g.b_col;
        T sum[TM][TN] = {};
        pa.fetch(a, rows, g.a_row, part(g.k, BK), g.a_col);
        pb.fetch(b, columns, g.b_col, part(g.k, BK), g.b_row);
        for (int64_t k0 = 0; k0 < g.k; k0 += BK) {
            __syncthreads(); /* the pieces before are used up */
            pa.store(as);
            pb.store(bs);
            __syncthreads();
            a += BK * g.a_col;
            b += BK * g.b_row;
            if (k0 + BK < g.k) {
                int next = part(g.k - k0 - BK, BK);
                pa.fetch(a, rows, g.a_row, next, g.a_col);
                pb.fetch(b, columns, g.b_col, next, g.b_row);
            }
            if (!used) continue;
            int steps = part(g.k - k0, BK);
#pragma unroll 4
            for (int k = 0; k < steps; k++) {
                T x[TM], y[TN];
                lines<BM, TM>::read(x, as + k * piece_a::PITCH, ty);
                lines<BN, TN>::read(y, bs + k * piece_b::PITCH, tx);
#pragma unroll
                for (int i = 0; i < TM; i++)
#pragma unroll
                    for (int j = 0; j < TN; j++) sum[i][j] = take(x[i], y[j], sum[i][j]);
            }
        }
#pragma unroll
        for (int i = 0; i < TM; i++)
#pragma unroll
            for (int j = 0; j < TN; j++) {
                int64_t row = m0 + lines<BM, TM>::at(ty, i), col = n0 + lines<BN, TN>::at(tx, j);
                if (row < g.m && col < g.n) finish(g, batch, row, col, sum[i][j]);
            }
    }
}

template <typename T, int BM, int BN, int TM, int TN, int BK>
cudaError_t run_wide(const rle_k_gemm *g, cudaStream_t stream)
{
    int64_t tiles = ((g->m + BM - 1) / BM) * ((g->n + BN - 1) / BN);
    size_t shared = (BM + BN + 8) * BK * sizeof(T);
    dim3 grid(static_cast<unsigned>(tiles), rle_blocks(g->batches, 1, 65535));
    return RLE_LAUNCH((wide<T, BM, BN, TM, TN, BK>), grid, THREADS, shared, stream, *g);
}

/* ---- narrow: 16 threads, one a lane, share a row and up to COLUMNS columns ---- */

enum { COLUMNS = 4 };

template <typename T> __global__ void __launch_bounds__(THREADS) narrow(rle_k_gemm g)
{
    int lane = static_cast<int>(threadIdx.x) % LANES, k_rest = static_cast<int>(g.k % LANES);
    int64_t across = (g.n + COLUMNS - 1) / COLUMNS, units = g.batches * g.m * across;
    int most = part(g.n, COLUMNS); /* columns any unit has */
    /* The two units of a warp go round together: both take part in its exchanges. */
    int64_t first = static_cast<int64_t>(blockIdx.x) * (blockDim.x / LANES) + threadIdx.x / 32 * 2;
    int64_t step = static_cast<int64_t>(gridDim.x) * (blockDim.x / LANES);
    for (; first < units; first += step) {
        int64_t unit = first + threadIdx.x % 32 / LANES;
        bool there = unit < units;
        if (!there) unit = first;
        int64_t n0 = unit % across * COLUMNS;
        int64_t row = unit / across % g.m, batch = unit / across / g.m;
        const T *a = static_cast<const T *>(g.a) + batch * g.a_batch + row * g.a_row;
        const T *b = static_cast<const T *>(g.b) + batch * g.b_batch + n0 * g.b_col;
        int columns = part(g.n - n0, COLUMNS);
        T sum[COLUMNS] = {};
#pragma unroll 4
        for (int64_t k = lane; k < g.k; k += LANES) {
            T x = a[k * g.a_col];
#pragma unroll
            for (int c = 0; c < COLUMNS; c++)
                sum[c] = take(x, c < columns ? b[k * g.b_row + c * g.b_col] : T(0), sum[c]);
        }
#pragma unroll
        for (int c = 0; c < COLUMNS && c < most; c++) {
            if (k_rest && lane >= k_rest) sum[c] = take(T(0), T(0), sum[c]);
            for (int half = LANES / 2; half > 0; half /= 2)
                sum[c] += __shfl_down_sync(0xffffffffu, sum[c], half, LANES);
            if (there && lane == 0 && c < columns) finish(g, batch, row, n0 + c, sum[c]);
        }
    }
}

/* ---- shallow: few rows and few steps, as of a policy's first layer. A thread has one output
 * and reads what it needs: staging would take longer. The order is that of wide. ---- */

enum { SHALLOW = 16 };

template <typename T> __global__ void __launch_bounds__(THREADS) shallow(rle_k_gemm g)
{
    for (int64_t at = rle_thread(); at < g.batches * g.m * g.n; at += rle_threads()) {
        int64_t col = at % g.n, row = at / g.n % g.m, batch = at / g.n / g.m;
        const T *a = static_cast<const T *>(g.a) + batch * g.a_batch + row * g.a_row;
        const T *b = static_cast<const T *>(g.b) + batch * g.b_batch + col * g.b_col;
        T sum = 0;
        for (int64_t k = 0; k < g.k; k++) sum = take(a[k * g.a_col], b[k * g.b_row], sum);
        finish(g, batch, row, col, sum);
    }
}

/* Blocks from which on larger tiles do not leave parts of a GPU idle. */
enum { ENOUGH_BLOCKS = 128 };

int64_t blocks_of(const rle_k_gemm *g, int64_t tile)
{
    return (g->m + tile - 1) / tile * ((g->n + tile - 1) / tile) * g->batches;
}

/* Tiles of 128 x 128, for the type that has the registers for them. */
cudaError_t run_large(const rle_k_gemm *g, cudaStream_t stream, float)
{
    if (blocks_of(g, 128) >= ENOUGH_BLOCKS)
        return run_wide<float, 128, 128, 8, 8, 16>(g, stream);
    return run_wide<float, 64, 64, 4, 4, 16>(g, stream);
}
cudaError_t run_large(const rle_k_gemm *g, cudaStream_t stream, double)
{
    return run_wide<double, 64, 64, 4, 4, 16>(g, stream);
}

template <typename T> cudaError_t run(const rle_k_gemm *g, cudaStream_t stream)
{
    if (g->n < LANES) {
        int64_t units = g->batches * g->m * ((g->n + COLUMNS - 1) / COLUMNS);
        unsigned blocks = rle_blocks(units, THREADS / LANES, 1 << 16);
        return RLE_LAUNCH(narrow<T>, blocks, rle_few(units * LANES, THREADS), 0, stream, *g);
    }
    if (g->m <= 8 && g->k <= SHALLOW) {
        int64_t outputs = g->batches * g->m * g->n;
        return RLE_LAUNCH(shallow<T>, rle_blocks(outputs, THREADS, 1 << 16),
                          rle_few(outputs, THREADS), 0, stream, *g);
    }
    if (g->m <= 8) return run_wide<T, 8, 32, 1, 1, 32>(g, stream);
    if (blocks_of(g, 64) < ENOUGH_BLOCKS) return run_wide<T, 32, 32, 2, 2, 16>(g, stream);
    return run_large(g, stream, T(0));
}

/* ---- what follows a product that could not add it itself ---- */

__device__ float follow(int function, float x) { return rle_function(function, x); }
__device__ double follow(int, double x) { return x; }

template <typename T> __global__ void bias_function(rle_k_gemm g)
{
    for (int64_t at = rle_thread(); at < g.m * g.n; at += rle_threads()) {
        int64_t i = at / g.n, j = at - i * g.n;
        T *out = static_cast<T *>(g.out) + i * g.out_row + j * g.out_col;
        T sum = *out;
        if (g.bias) sum += static_cast<const T *>(g.bias)[j * g.bias_col];
        *out = follow(g.function, sum);
    }
}

} // namespace

extern "C" cudaError_t rle_k_matmul(rle_dtype t, const rle_k_gemm *g, cudaStream_t stream)
{
    if (!g->m || !g->n || !g->batches) return cudaSuccess;
    if (t == RLE_F64) return run<double>(g, stream);
    if (g->function == RLE_DENSE_NONE || g->function == RLE_UNARY_RELU)
        return run<float>(g, stream);
    rle_k_gemm product = *g;
    product.bias = nullptr;
    product.function = RLE_DENSE_NONE;
    cudaError_t e = run<float>(&product, stream);
    return e == cudaSuccess ? rle_k_bias_function(t, g, stream) : e;
}

extern "C" cudaError_t rle_k_bias_function(rle_dtype t, const rle_k_gemm *g, cudaStream_t stream)
{
    if (!g->m || !g->n) return cudaSuccess;
    unsigned blocks = rle_blocks(g->m * g->n, THREADS, 4096);
    if (t == RLE_F64) return RLE_LAUNCH(bias_function<double>, blocks, THREADS, 0, stream, *g);
    return RLE_LAUNCH(bias_function<float>, blocks, THREADS, 0, stream, *g);
}
