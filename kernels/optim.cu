/* optim.cu - optimizer steps over many parameters in one launch: the CPU's formulas in its
 * order of operations, and so its bits.
 *
 * The list of parameters is an argument of the kernel. A block takes CHUNK elements of one
 * parameter and finds out from the running count of chunks which. */
#include "launch.h"

namespace {

enum { THREADS = 256, CHUNK = RLE_K_CHUNK };

/* The factors of a step of Adam, rounded as on the CPU. */
template <typename T> struct adam_factors {
    T step, root2, beta2, rest1, rest2, eps, keep, decay;
};

template <typename T> struct sgd_factors {
    T lr, decay, keep, rest;
    bool momentum, first, nesterov;
};

/* Which parameter this block works on. */
__device__ int find(const rle_k_params &p, int64_t chunk)
{
    int low = 0, high = p.count - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (p.first[middle] <= chunk)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

__device__ float root(float x) { return sqrtf(x); }
__device__ double root(double x) { return sqrt(x); }

template <typename T>
__global__ void __launch_bounds__(THREADS) adam(rle_k_params p, adam_factors<T> f)
{
    int which = find(p, blockIdx.x);
    T *param = static_cast<T *>(p.data[0][which]);
    const T *grad = static_cast<const T *>(p.data[1][which]);
    T *m = static_cast<T *>(p.data[2][which]), *v = static_cast<T *>(p.data[3][which]);
    int64_t start = (blockIdx.x - p.first[which]) * CHUNK;
    int64_t end = start + CHUNK < p.numel[which] ? start + CHUNK : p.numel[which];
    for (int64_t i = start + threadIdx.x; i < end; i += THREADS) {
        T old = param[i];
        T g = grad[i] + f.decay * old;
        T mean = m[i] + f.rest1 * (g - m[i]);
        T square = v[i] * f.beta2 + f.rest2 * g * g;
        m[i] = mean;
        v[i] = square;
        param[i] = old * f.keep - f.step * (mean / (root(square) / f.root2 + f.eps));
    }
}

template <typename T>
__global__ void __launch_bounds__(THREADS) sgd(rle_k_params p, sgd_factors<T> f)
{
    int which = find(p, blockIdx.x);
    T *param = static_cast<T *>(p.data[0][which]), *momentum = static_cast<T *>(p.data[2][which]);
    const T *grad = static_cast<const T *>(p.data[1][which]);
    int64_t start = (blockIdx.x - p.first[which]) * CHUNK;
    int64_t end = start + CHUNK < p.numel[which] ? start + CHUNK : p.numel[which];
    for (int64_t i = start + threadIdx.x; i < end; i += THREADS) {
        T g = grad[i] + f.decay * param[i];
        T direction = g;
        if (f.momentum) {
            /* The first time the buffer may hold anything, NaN included. */
            T now = f.first ? g : f.keep * momentum[i] + f.rest * g;
            momentum[i] = now;
            direction = f.nesterov ? g + f.keep * now : now;
        }
        param[i] -= f.lr * direction;
    }
}

template <typename T>
cudaError_t run_adam(const rle_k_params *p, const rle_adam_args *a, cudaStream_t stream)
{
    double correction1 = 1 - pow(a->beta1, static_cast<double>(a->step));
    double correction2 = 1 - pow(a->beta2, static_cast<double>(a->step));
    adam_factors<T> f;
    f.step = static_cast<T>(a->lr / correction1);
    f.root2 = static_cast<T>(sqrt(correction2));
    f.beta2 = static_cast<T>(a->beta2);
    f.rest1 = static_cast<T>(1 - a->beta1);
    f.rest2 = static_cast<T>(1 - a->beta2);
    f.eps = static_cast<T>(a->eps);
    f.keep = a->decoupled ? static_cast<T>(1 - a->lr * a->weight_decay) : T(1);
    f.decay = a->decoupled ? T(0) : static_cast<T>(a->weight_decay);
    return RLE_LAUNCH(adam<T>, static_cast<unsigned>(p->chunks), THREADS, 0, stream, *p, f);
}

template <typename T>
cudaError_t run_sgd(const rle_k_params *p, const rle_sgd_args *a, cudaStream_t stream)
{
    sgd_factors<T> f;
    f.lr = static_cast<T>(a->lr);
    f.decay = static_cast<T>(a->weight_decay);
    f.keep = static_cast<T>(a->momentum);
    f.rest = static_cast<T>(1 - a->dampening);
    f.momentum = a->momentum != 0;
    f.first = a->first;
    f.nesterov = a->nesterov;
    return RLE_LAUNCH(sgd<T>, static_cast<unsigned>(p->chunks), THREADS, 0, stream, *p, f);
}

} // namespace

extern "C" cudaError_t rle_k_adam(rle_dtype t, const rle_k_params *p, const rle_adam_args *args,
                                  cudaStream_t stream)
{
    return t == RLE_F64 ? run_adam<double>(p, args, stream) : run_adam<float>(p, args, stream);
}

extern "C" cudaError_t rle_k_sgd(rle_dtype t, const rle_k_params *p, const rle_sgd_args *args,
                                 cudaStream_t stream)
{
    return t == RLE_F64 ? run_sgd<double>(p, args, stream) : run_sgd<float>(p, args, stream);
}
