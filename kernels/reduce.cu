/* reduce.cu - sums, products, extremes over any dimensions, in the order of fold.h.
 *
 * Three ways to spread the work, with one result:
 *   runs      16 threads to an output: the reduced elements lie side by side;
 *   columns   32 outputs by 16 lanes to a block: the outputs lie side by side;
 *   alone     a thread to an output: very short rows, or a great many outputs side by
 * side. Where outputs are too few to fill a device, "runs" and "columns" fold each block
 * of 256 elements to a value in scratch memory, partial[block][output], and `gather` puts
 * those together, to chunks and then to the result. Integers and bool go the same ways in
 * int64, where the order does not matter. */
#include "fold.h"
#include "rows.h"

namespace
{

constexpr int THREADS = 256, FEW_THREADS = 128, COLUMNS = 32;
/* Blocks of a launch at most; the second, of blocks whose threads wait for each other: a
 * few for every multiprocessor. */
constexpr int MOST_BLOCKS = 8192, MOST_TEAMS = 1024;
/* Outputs from which on the device is full without splitting them. */
constexpr int64_t MANY_RUNS = 4096, MANY_COLUMNS = 32768;

/* ---- places ---- */

/* Where output o's elements start, and where it goes itself. */
struct place {
    int64_t in, out;
};
__device__ inline place place_of(const rle_k_reduce &r, int64_t o)
{
    place p = {0, 0};
    for (int d = r.kept - 1; d > 0; d--) {
        int64_t here = step_down(&o, r.kept_shape[d]);
        p.in += here * r.in_stride[d];
        p.out += here * r.out_stride[d];
    }
    p.in += o * r.in_stride[0];
    p.out += o * r.out_stride[0];
    return p;
}

/* Offset of element k of an output. Reduced dimensions that are not one run are rare, and
 * all that code in every unrolled loop is slow to compile: so it is a call. */
__device__ RLE_NOINLINE int64_t element_far(const rle_k_reduce &r, int64_t k)
{
    int64_t offset = 0;
    for (int d = r.reduced - 1; d > 0; d--)
        offset += step_down(&k, r.shape[d]) * r.stride[d];
    return offset + k * r.stride[0];
}
__device__ inline int64_t element_of(const rle_k_reduce &r, int64_t k)
{
    return r.reduced == 1 ? k * r.stride[0] : element_far(r, k);
}

/* ---- operations: fold.h's, with how elements are read and results written ----
 *
 * shift(o): what the operation keeps for output o; load(offset, shift): the element;
 * store(offset, shift, result). */

template <typename T, typename Fold> struct plain : Fold {
    const T *in;
    T *out;
    double divisor; /* of a mean; else 1 */
    __device__ T shift(int64_t) const { return 0; }
    __device__ T load(int64_t offset, T) const { return in[offset]; }
    __device__ void store(int64_t offset, T, double v) const
    {
        out[offset] = static_cast<T>(v / divisor);
    }
};

/* The sum of exp(x - max), then its logarithm. Infinities are not subtracted: they would
 * give inf - inf. */
template <typename T> struct exp_sum : fold_sum<T> {
    const T *in, *max;
    T *out;
    __device__ T shift(int64_t o) const { return max[o] - max[o] == 0 ? max[o] : 0; }
    __device__ T load(int64_t offset, T shift) const
    {
        return real_exp(in[offset] - shift);
    }
    __device__ void store(int64_t offset, T shift, double v) const
    {
        out[offset] = shift + real_log(static_cast<T>(v));
    }
};

/* Integers, bool, and the questions any and all of any dtype. */
struct integers {
    typedef int64_t lane;
    typedef int64_t wide;
    static constexpr int at_once = 1;
    rle_reduce_kind kind;
    rle_dtype from, to;
    const void *in;
    void *out;
    __device__ int64_t identity() const
    {
        switch (kind) {
        case RLE_REDUCE_PROD:
        case RLE_REDUCE_ALL:
            return 1;
        case RLE_REDUCE_MAX:
            return INT64_MIN;
        case RLE_REDUCE_MIN:
            return INT64_MAX;
        default:
            return 0;
        }
    }
    __device__ int64_t take(int64_t a, int64_t x) const
    {
        switch (kind) {
        case RLE_REDUCE_PROD:
            return static_cast<int64_t>(static_cast<uint64_t>(a) *
                                        static_cast<uint64_t>(x));
        case RLE_REDUCE_MAX:
            return a > x ? a : x;
        case RLE_REDUCE_MIN:
            return a < x ? a : x;
        case RLE_REDUCE_ANY:
            return a | (x != 0);
        case RLE_REDUCE_ALL:
            return a & (x != 0);
        default:
            return static_cast<int64_t>(static_cast<uint64_t>(a) +
                                        static_cast<uint64_t>(x));
        }
    }
    __device__ int64_t join(int64_t a, int64_t b) const { return take(a, b); }
    __device__ int64_t combine(int64_t a, int64_t b) const { return take(a, b); }
    __device__ int64_t shift(int64_t) const { return 0; }
    __device__ int64_t load(int64_t offset, int64_t) const
    {
        switch (from) {
        case RLE_F32:
            return static_cast<const float *>(in)[offset] != 0;
        case RLE_F64:
            return static_cast<const double *>(in)[offset] != 0;
        case RLE_I32:
            return static_cast<const int32_t *>(in)[offset];
        case RLE_I64:
            return static_cast<const int64_t *>(in)[offset];
        default:
            return static_cast<const uint8_t *>(in)[offset];
        }
    }
    __device__ void store(int64_t offset, int64_t, int64_t v) const
    {
        switch (to) {
        case RLE_I32:
            static_cast<int32_t *>(out)[offset] = static_cast<int32_t>(v);
            break;
        case RLE_I64:
            static_cast<int64_t *>(out)[offset] = v;
            break;
        case RLE_U8:
            static_cast<uint8_t *>(out)[offset] = static_cast<uint8_t>(v);
            break;
        default:
            static_cast<uint8_t *>(out)[offset] = v != 0;
            break;
        }
    }
};

/* ---- kernels ----
 *
 * partial NULL: outputs are folded whole and stored. Else each (output, block) gives one
 * value. */

template <typename Op>
__global__ void runs(Op op, const __grid_constant__ rle_k_reduce r, int64_t blocks,
                     typename Op::lane *partial)
{
    int64_t items = partial ? r.outputs * blocks : r.outputs;
    /* The halves of a warp stay together, for the shuffles: a half without work repeats
     * the last item and stores nothing. */
    for (int64_t pair = rle_thread() / 32 * 2; pair < items; pair += rle_threads() / 16) {
        int64_t item = pair + threadIdx.x / 16 % 2;
        bool mine = item < items && threadIdx.x % 16 == 0;
        if (item >= items) item = items - 1;
        int64_t o = partial ? item / blocks : item, first = partial ? item % blocks : 0;
        int64_t end = partial ? first + 1 : blocks;
        place p = place_of(r, o);
        auto shift = op.shift(o);
        fold_total<Op> total(op);
        for (int64_t b = first; b < end; b++) {
            int64_t start = b * FOLD_BLOCK;
            int n = fold_part(r.count, start);
            auto v = fold_block_by_lanes(op, n, [&](int k) {
                return op.load(p.in + element_of(r, start + k), shift);
            });
            if (!partial)
                total.add(op, b, v);
            else if (mine)
                partial[b * r.outputs + o] = v;
        }
        if (!partial && mine) op.store(p.out, shift, total.result(op, blocks));
    }
}

/* threadIdx.x: the column; threadIdx.y: the lane. partial NULL: there is one block. */
template <typename Op>
__global__ void columns(Op op, const __grid_constant__ rle_k_reduce r, int64_t blocks,
                        typename Op::lane *partial)
{
    __shared__ typename Op::lane part[FOLD_LANES][COLUMNS];
    typename Op::lane *mine = &part[threadIdx.y][threadIdx.x];
    int64_t groups = (r.outputs + blockDim.x - 1) / blockDim.x;
    for (int64_t item = blockIdx.x; item < groups * blocks; item += gridDim.x) {
        int64_t o = item % groups * blockDim.x + threadIdx.x, b = item / groups;
        bool here = o < r.outputs;
        place p = place_of(r, here ? o : 0);
        auto shift = op.shift(here ? o : 0);
        auto acc = op.identity();
        int64_t k = b * FOLD_BLOCK + threadIdx.y;
        if (here) {
#pragma unroll Op::at_once
            for (int j = 0; j < FOLD_BLOCK / FOLD_LANES; j++, k += FOLD_LANES)
                if (k < r.count)
                    acc = op.take(acc, op.load(p.in + element_of(r, k), shift));
        }
        *mine = acc;
        __syncthreads();
        for (int half = FOLD_LANES / 2; half > 0; half /= 2) {
            if (static_cast<int>(threadIdx.y) < half)
                *mine = op.join(*mine, part[threadIdx.y + half][threadIdx.x]);
            __syncthreads();
        }
        if (threadIdx.y == 0 && here) {
            if (partial)
                partial[b * r.outputs + o] = *mine;
            else
                op.store(p.out, shift, *mine);
        }
    }
}

template <typename Op>
__global__ void alone(Op op, const __grid_constant__ rle_k_reduce r, int64_t blocks)
{
    for (int64_t o = rle_thread(); o < r.outputs; o += rle_threads()) {
        place p = place_of(r, o);
        auto shift = op.shift(o);
        fold_total<Op> total(op);
        for (int64_t b = 0; b < blocks; b++) {
            int64_t start = b * FOLD_BLOCK;
            int n = fold_part(r.count, start);
            total.add(op, b, fold_block_alone(op, n, [&](int k) {
                          return op.load(p.in + element_of(r, start + k), shift);
                      }));
        }
        op.store(p.out, shift, total.result(op, blocks));
    }
}

/* Values [count][outputs] to one of a chunk, [chunks][outputs], or to the output when
 * `chunked` is NULL. A block to an item: all threads read, one adds up. */
template <typename Op, typename Value>
__global__ void gather(Op op, const __grid_constant__ rle_k_reduce r, const Value *values,
                       int64_t count, typename Op::wide *chunked)
{
    __shared__ Value staged[FOLD_CHUNK];
    int64_t chunks = (count + FOLD_CHUNK - 1) / FOLD_CHUNK;
    int64_t items = chunked ? chunks * r.outputs : r.outputs;
    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
        int64_t o = item % r.outputs, first = item / r.outputs * FOLD_CHUNK;
        int64_t end = chunked && first + FOLD_CHUNK < count ? first + FOLD_CHUNK : count;
        typename Op::wide total = 0;
        for (int64_t start = first; start < end; start += FOLD_CHUNK) {
            int n = fold_part(end, start);
            for (int i = threadIdx.x; i < n; i += blockDim.x)
                staged[i] = values[(start + i) * r.outputs + o];
            __syncthreads();
            if (threadIdx.x == 0) {
                total = start == first ? static_cast<typename Op::wide>(staged[0])
                                       : op.combine(total, staged[0]);
                for (int i = 1; i < n; i++) total = op.combine(total, staged[i]);
            }
            __syncthreads();
        }
        if (threadIdx.x != 0) continue;
        if (chunked)
            chunked[item] = total;
        else
            op.store(place_of(r, o).out, op.shift(o), total);
    }
}

/* ---- launchers ---- */

enum way { ALONE, RUNS, COLUMNWISE };

way way_of(const rle_k_reduce *r)
{
    if (r->side_by_side)
        return r->outputs >= MANY_COLUMNS || r->count <= FOLD_LANES ? ALONE : COLUMNWISE;
    return r->count <= FOLD_LANES ? ALONE : RUNS;
}

bool is_split(const rle_k_reduce *r)
{
    way w = way_of(r);
    return fold_blocks(r->count) > 1 &&
           ((w == RUNS && r->outputs < MANY_RUNS) || w == COLUMNWISE);
}

int64_t chunks_of(int64_t blocks)
{
    return (blocks + FOLD_CHUNK - 1) / FOLD_CHUNK;
}

/* Scratch: chunks' values first (8 bytes each), then the blocks'. */
template <typename Op>
cudaError_t run(Op op, const rle_k_reduce *r, void *scratch, cudaStream_t s)
{
    typedef typename Op::lane lane;
    typedef typename Op::wide wide;
    int64_t blocks = fold_blocks(r->count), chunks = chunks_of(blocks);
    bool split = is_split(r);
    wide *chunked = static_cast<wide *>(scratch);
    lane *partial =
        split ? reinterpret_cast<lane *>(chunked + (chunks > 1 ? chunks * r->outputs : 0))
              : nullptr;
    int64_t items = split ? r->outputs * blocks : r->outputs;
    cudaError_t e;
    switch (way_of(r)) {
    case ALONE:
        e = RLE_LAUNCH(alone<Op>, rle_blocks(items, FEW_THREADS, MOST_BLOCKS),
                       FEW_THREADS, 0, s, op, *r, blocks);
        break;
    case RUNS:
        e = RLE_LAUNCH(runs<Op>, rle_blocks(items * FOLD_LANES, THREADS, MOST_BLOCKS),
                       THREADS, 0, s, op, *r, blocks, partial);
        break;
    default: {
        unsigned width = 1;
        while (width < COLUMNS && width < r->outputs) width *= 2;
        int64_t groups = (r->outputs + width - 1) / width;
        e = RLE_LAUNCH(columns<Op>,
                       rle_blocks(groups * (split ? blocks : 1), 1, MOST_TEAMS),
                       dim3(width, FOLD_LANES), 0, s, op, *r, blocks, partial);
    }
    }
    if (e != cudaSuccess || !split) return e;
    const lane *parts = partial;
    if (chunks == 1)
        return RLE_LAUNCH((gather<Op, lane>), rle_blocks(r->outputs, 1, MOST_TEAMS),
                          FEW_THREADS, 0, s, op, *r, parts, blocks,
                          static_cast<wide *>(nullptr));
    e = RLE_LAUNCH((gather<Op, lane>), rle_blocks(chunks * r->outputs, 1, MOST_TEAMS),
                   FEW_THREADS, 0, s, op, *r, parts, blocks, chunked);
    if (e != cudaSuccess) return e;
    const wide *all = chunked;
    return RLE_LAUNCH((gather<Op, wide>), rle_blocks(r->outputs, 1, MOST_TEAMS),
                      FEW_THREADS, 0, s, op, *r, all, chunks,
                      static_cast<wide *>(nullptr));
}

template <typename T, typename Fold>
cudaError_t run_plain(const rle_k_reduce *r, double divisor, void *scratch,
                      cudaStream_t stream)
{
    plain<T, Fold> op;
    op.in = static_cast<const T *>(r->in);
    op.out = static_cast<T *>(r->out);
    op.divisor = divisor;
    return run(op, r, scratch, stream);
}

/* The largest elements go to the front of the scratch memory, one an output. */
template <typename T>
cudaError_t run_logsumexp(const rle_k_reduce *r, void *scratch, cudaStream_t stream)
{
    T *max = static_cast<T *>(scratch);
    void *rest = static_cast<char *>(scratch) + (r->outputs * sizeof(T) + 7) / 8 * 8;
    rle_k_reduce first = *r;
    int64_t stride = 1;
    for (int d = r->kept - 1; d >= 0; d--) {
        first.out_stride[d] = stride;
        stride *= r->kept_shape[d];
    }
    first.out = max;
    cudaError_t e = run_plain<T, fold_max<T>>(&first, 1, rest, stream);
    if (e != cudaSuccess) return e;
    exp_sum<T> op;
    op.in = static_cast<const T *>(r->in);
    op.max = max;
    op.out = static_cast<T *>(r->out);
    return run(op, r, rest, stream);
}

template <typename T>
cudaError_t run_floats(rle_reduce_kind kind, const rle_k_reduce *r, void *scratch,
                       cudaStream_t stream)
{
    switch (kind) {
    case RLE_REDUCE_SUM:
        return run_plain<T, fold_sum<T>>(r, 1, scratch, stream);
    case RLE_REDUCE_MEAN:
        return run_plain<T, fold_sum<T>>(r, static_cast<double>(r->count), scratch,
                                         stream);
    case RLE_REDUCE_SUMSQ:
        return run_plain<T, fold_sumsq<T>>(r, 1, scratch, stream);
    case RLE_REDUCE_PROD:
        return run_plain<T, fold_prod<T>>(r, 1, scratch, stream);
    case RLE_REDUCE_MAX:
        return run_plain<T, fold_max<T>>(r, 1, scratch, stream);
    case RLE_REDUCE_MIN:
        return run_plain<T, fold_min<T>>(r, 1, scratch, stream);
    case RLE_REDUCE_LOGSUMEXP:
        return run_logsumexp<T>(r, scratch, stream);
    default:
        return cudaErrorInvalidValue;
    }
}

} // namespace

extern "C" size_t rle_k_reduce_scratch(rle_reduce_kind kind, const rle_k_reduce *r)
{
    int64_t blocks = fold_blocks(r->count), chunks = chunks_of(blocks), words = 0;
    if (is_split(r)) words += r->outputs * (blocks + (chunks > 1 ? chunks : 0));
    if (kind == RLE_REDUCE_LOGSUMEXP) words += r->outputs + 1;
    return static_cast<size_t>(words) * 8;
}

extern "C" cudaError_t rle_k_reduce_run(rle_reduce_kind kind, rle_dtype to,
                                        rle_dtype from, const rle_k_reduce *r,
                                        void *scratch, cudaStream_t stream)
{
    bool question = kind == RLE_REDUCE_ANY || kind == RLE_REDUCE_ALL;
    if (from == RLE_F32 && !question) return run_floats<float>(kind, r, scratch, stream);
    if (from == RLE_F64 && !question) return run_floats<double>(kind, r, scratch, stream);
    integers op = {kind, from, to, r->in, r->out};
    return run(op, r, scratch, stream);
}
