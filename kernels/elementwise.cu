/* elementwise.cu - one element at a time: functions of one tensor and their gradients, of
 * two, of a tensor and a number, and the choice between two. Any strides.
 *
 * The bits are the CPU's (device/cpu/isa/elementwise_impl.h, device/cpu/integer.c): the
 * same expressions over common/math.h. Only what that header leaves to libm may differ
 * from the CPU's libm: pow and atan2 in double precision, and its sine and cosine from
 * 2^20 on. CUDA's are within 2 units in the last place of the exact result, so within 3
 * of the CPU's.
 *
 * The kind is the same for all threads and is looked at once a batch (batch.h). */
#include <type_traits>

#include "batch.h"

namespace {

/* Of a thread's batch. */
template <typename T> using values = T[RLE_BATCH];

/* ---- the functions of common/math.h, by type ---- */

#define BY_TYPE(name)                                                                    \
    __device__ inline float m_##name(float x) { return rle_##name##f(x); }               \
    __device__ inline double m_##name(double x) { return rle_##name(x); }
BY_TYPE(exp)
BY_TYPE(log)
BY_TYPE(log1p)
BY_TYPE(expm1)
BY_TYPE(tanh)
BY_TYPE(sigmoid)
BY_TYPE(softplus)
BY_TYPE(sin)
BY_TYPE(cos)
#undef BY_TYPE
#define BY_TYPE(name)                                                                    \
    __device__ inline float m_##name(float x, float y) { return rle_##name##f(x, y); }   \
    __device__ inline double m_##name(double x, double y) { return rle_##name(x, y); }
BY_TYPE(pow)
BY_TYPE(atan2)
#undef BY_TYPE
#define BY_TYPE(name)                                                                    \
    __device__ inline float m_##name(float x) { return name##f(x); }                     \
    __device__ inline double m_##name(double x) { return name(x); }
BY_TYPE(fabs)
BY_TYPE(sqrt)
BY_TYPE(floor)
BY_TYPE(ceil)
BY_TYPE(rint)
BY_TYPE(trunc)
#undef BY_TYPE
__device__ inline float m_fmod(float a, float b) { return fmodf(a, b); }
__device__ inline double m_fmod(double a, double b) { return fmod(a, b); }
__device__ inline float m_copysign(float a, float b) { return copysignf(a, b); }
__device__ inline double m_copysign(double a, double b) { return copysign(a, b); }

/* As Python: the result has the divisor's sign. */
template <typename T> __device__ inline T remainder_of(T a, T b)
{
    T r = m_fmod(a, b);
    return r != 0 && (b < 0) != (r < 0) ? r + b : r;
}

/* floor(a / b), but consistent with the remainder where the division rounds up. */
template <typename T> __device__ inline T floor_div_of(T a, T b)
{
    if (b == 0) return a / b;
    T r = m_fmod(a, b);
    T q = (a - r) / b;
    if (r != 0 && (b < 0) != (r < 0)) q -= 1;
    if (q == 0) return m_copysign(T(0), a / b);
    T floored = m_floor(q);
    return q - floored > T(0.5) ? floored + 1 : floored;
}

/* ---- integers, with defined overflow ---- */

template <typename T> struct whole {
    typedef typename std::make_unsigned<T>::type U;
    /* Narrow types are promoted to int, where their products fit. */
    typedef typename std::conditional<sizeof(T) == 8, uint64_t, uint32_t>::type W;
    enum { IS_SIGNED = std::is_signed<T>::value };

    __device__ static T neg(T x) { return T(W(0) - W(x)); }
    __device__ static T add(T a, T b) { return T(W(a) + W(b)); }
    __device__ static T sub(T a, T b) { return T(W(a) - W(b)); }
    __device__ static T mul(T a, T b) { return T(W(a) * W(b)); }
    __device__ static bool negative(T x) { return IS_SIGNED && U(x) >> (sizeof(T) * 8 - 1); }
    __device__ static T rem(T a, T b)
    {
        if (b == 0 || (IS_SIGNED && b == T(-1))) return 0;
        T r = T(a % b);
        return r != 0 && negative(T(r ^ b)) ? T(r + b) : r;
    }
    __device__ static T floor_div(T a, T b)
    {
        if (b == 0) return 0;
        if (IS_SIGNED && b == T(-1)) return neg(a);
        T q = T(a / b);
        return negative(T(a ^ b)) && T(a % b) != 0 ? T(q - 1) : q;
    }
    /* A negative exponent gives the integer part of 1 / base^|b|. */
    __device__ static T pow(T base, T b)
    {
        if (negative(b)) {
            if (base == 1) return 1;
            if (base == T(-1)) return b % 2 == 0 ? T(1) : T(-1);
            return 0;
        }
        T result = 1;
        for (U e = U(b); e; e >>= 1) {
            if (e & 1) result = mul(result, base);
            base = mul(base, base);
        }
        return result;
    }
};

/* ---- one tensor ---- */

/* y[k] = expr of x = v[k]; ends the case. */
#define EACH(expr)                                                                       \
    _Pragma("unroll") for (int k = 0; k < RLE_BATCH; k++)                                \
    {                                                                                    \
        T x = v[k];                                                                      \
        y[k] = static_cast<T>(expr);                                                     \
        (void)x;                                                                         \
    }                                                                                    \
    break

template <typename T>
__device__ inline void real_unary(rle_unary_kind kind, const values<T> &v, values<T> &y, T lo,
                                  T hi)
{
    switch (kind) {
    case RLE_UNARY_NEG: EACH(-x);
    case RLE_UNARY_ABS: EACH(m_fabs(x));
    case RLE_UNARY_SIGN: EACH((x > 0 ? T(1) : T(0)) - (x < 0 ? T(1) : T(0)));
    case RLE_UNARY_EXP: EACH(m_exp(x));
    case RLE_UNARY_LOG: EACH(m_log(x));
    case RLE_UNARY_LOG1P: EACH(m_log1p(x));
    case RLE_UNARY_EXPM1: EACH(m_expm1(x));
    case RLE_UNARY_SQRT: EACH(m_sqrt(x));
    case RLE_UNARY_RSQRT: EACH(1 / m_sqrt(x));
    case RLE_UNARY_SQUARE: EACH(x * x);
    case RLE_UNARY_RECIPROCAL: EACH(1 / x);
    case RLE_UNARY_SIN: EACH(m_sin(x));
    case RLE_UNARY_COS: EACH(m_cos(x));
    case RLE_UNARY_TANH: EACH(m_tanh(x));
    case RLE_UNARY_SIGMOID: EACH(m_sigmoid(x));
    case RLE_UNARY_SOFTPLUS: EACH(m_softplus(x));
    case RLE_UNARY_RELU: EACH(0 > x ? T(0) : x);
    case RLE_UNARY_FLOOR: EACH(m_floor(x));
    case RLE_UNARY_CEIL: EACH(m_ceil(x));
    case RLE_UNARY_ROUND: EACH(m_rint(x));
    case RLE_UNARY_TRUNC: EACH(m_trunc(x));
    case RLE_UNARY_CLAMP: EACH((x < lo ? lo : x) > hi ? hi : (x < lo ? lo : x));
    case RLE_UNARY_NOT: EACH(x == 0);
    case RLE_UNARY_ISNAN: EACH(x != x);
    case RLE_UNARY_ISINF: EACH(m_fabs(x) == T(INFINITY));
    default: EACH(x - x == 0); /* isfinite */
    }
}

/* Bool counts as 0 and 1, and its arithmetic gives 0 or 1 again: `truth`. */
template <typename T>
__device__ inline void whole_unary(rle_unary_kind kind, const values<T> &v, values<T> &y, T lo,
                                   T hi, bool truth)
{
    typedef whole<T> W;
    switch (kind) {
    case RLE_UNARY_NEG: EACH(truth ? T(x != 0) : W::neg(x));
    case RLE_UNARY_ABS: EACH(x > 0 ? x : W::neg(x));
    case RLE_UNARY_SIGN: EACH(x > 0 ? 1 : x == 0 ? 0 : -1);
    case RLE_UNARY_SQUARE: EACH(truth ? T(x != 0) : W::mul(x, x));
    case RLE_UNARY_RELU: EACH(x > 0 ? x : 0);
    case RLE_UNARY_CLAMP: EACH((x < lo ? lo : x) > hi ? hi : (x < lo ? lo : x));
    case RLE_UNARY_NOT: EACH(x == 0);
    case RLE_UNARY_ISNAN:
    case RLE_UNARY_ISINF: EACH(0);
    case RLE_UNARY_ISFINITE: EACH(1);
    default: EACH(x); /* floor, ceil, round, trunc */
    }
}

template <typename T, bool PACKED>
__global__ void __launch_bounds__(RLE_BATCH_THREADS)
    unary(rle_k_loop l, rle_unary_kind kind, T lo, T hi, bool truth)
{
    typedef rle_batch<2, PACKED> batch;
    for (int64_t i = batch::first(); i < l.numel; i += batch::step()) {
        batch items(l, i);
        T x[RLE_BATCH], y[RLE_BATCH];
        items.load(l, 1, x);
        if constexpr (std::is_floating_point<T>::value)
            real_unary(kind, x, y, lo, hi);
        else
            whole_unary(kind, x, y, lo, hi, truth);
        if (kind >= RLE_UNARY_NOT)
            rle_store_bool(items, l, y);
        else
            items.store(l, y);
    }
}

template <typename T>
cudaError_t run_unary(rle_unary_kind kind, const rle_k_loop *l, T lo, T hi, bool truth,
                      cudaStream_t stream)
{
    return RLE_LAUNCH_BATCHES(unary, T, l, stream, kind, lo, hi, truth);
}

/* An integer clamp has the ends that lie nearest to p inside; NaN is no bound. */
template <typename T>
cudaError_t run_whole_unary(rle_unary_kind kind, const rle_k_loop *l, double p0, double p1,
                            int64_t lowest, int64_t highest, cudaStream_t stream)
{
    double low = static_cast<double>(lowest), high = static_cast<double>(highest);
    int64_t lo = !(p0 > low) ? lowest : p0 >= high ? highest : static_cast<int64_t>(ceil(p0));
    int64_t hi = !(p1 < high) ? highest : p1 <= low ? lowest : static_cast<int64_t>(floor(p1));
    return run_unary(kind, l, static_cast<T>(lo), static_cast<T>(hi), highest == 1, stream);
}

/* ---- gradients: g is what comes from above, x the saved input or output ---- */

#undef EACH
#define EACH(expr)                                                                       \
    _Pragma("unroll") for (int k = 0; k < RLE_BATCH; k++)                                \
    {                                                                                    \
        T g = up[k], x = v[k];                                                           \
        y[k] = expr;                                                                     \
        (void)g;                                                                         \
        (void)x;                                                                         \
    }                                                                                    \
    break

template <typename T, bool PACKED>
__global__ void __launch_bounds__(RLE_BATCH_THREADS)
    gradient(rle_k_loop l, rle_unary_kind kind, T lo, T hi)
{
    typedef rle_batch<3, PACKED> batch;
    for (int64_t i = batch::first(); i < l.numel; i += batch::step()) {
        batch items(l, i);
        T up[RLE_BATCH], v[RLE_BATCH], y[RLE_BATCH];
        items.load(l, 1, up);
        items.load(l, 2, v);
        switch (kind) {
        case RLE_UNARY_NEG: EACH(-g);
        case RLE_UNARY_ABS: EACH(g * ((x > 0 ? T(1) : T(0)) - (x < 0 ? T(1) : T(0))));
        case RLE_UNARY_EXP: EACH(g * x);
        case RLE_UNARY_LOG: EACH(g / x);
        case RLE_UNARY_LOG1P: EACH(g / (x + 1));
        case RLE_UNARY_EXPM1: EACH(g * (x + 1));
        case RLE_UNARY_SQRT: EACH(g / (2 * x));
        case RLE_UNARY_RSQRT: EACH(T(-0.5) * g * (x * x * x));
        case RLE_UNARY_SQUARE: EACH(g * (2 * x));
        case RLE_UNARY_RECIPROCAL: EACH(-g * (x * x));
        case RLE_UNARY_SIN: EACH(g * m_cos(x));
        case RLE_UNARY_COS: EACH(g * -m_sin(x));
        case RLE_UNARY_TANH: EACH(g * (1 - x * x));
        case RLE_UNARY_SIGMOID: EACH(g * (1 - x) * x);
        case RLE_UNARY_SOFTPLUS: EACH(g * m_sigmoid(x));
        case RLE_UNARY_RELU: EACH(x <= 0 ? T(0) : g);
        case RLE_UNARY_CLAMP: EACH(((x > lo) & (x < hi)) ? g : T(0));
        default: EACH(T(0)); /* sign, floor, ceil, round, trunc */
        }
        items.store(l, y);
    }
}

template <typename T>
cudaError_t run_gradient(rle_unary_kind kind, const rle_k_loop *l, double p0, double p1,
                         cudaStream_t stream)
{
    return RLE_LAUNCH_BATCHES(gradient, T, l, stream, kind, static_cast<T>(p0),
                              static_cast<T>(p1));
}

/* ---- two tensors, or a tensor and a number ---- */

#undef EACH
#define EACH(expr)                                                                       \
    _Pragma("unroll") for (int k = 0; k < RLE_BATCH; k++)                                \
    {                                                                                    \
        T a = u[k], b = v[k];                                                            \
        y[k] = static_cast<T>(expr);                                                     \
    }                                                                                    \
    break

/* The kinds that give bool: the same for all types. */
template <typename T>
__device__ inline void compare(rle_binary_kind kind, const values<T> &u, const values<T> &v,
                               values<T> &y)
{
    switch (kind) {
    case RLE_BINARY_EQ: EACH(a == b);
    case RLE_BINARY_NE: EACH(a != b);
    case RLE_BINARY_LT: EACH(a < b);
    case RLE_BINARY_LE: EACH(a <= b);
    case RLE_BINARY_GT: EACH(a > b);
    case RLE_BINARY_GE: EACH(a >= b);
    case RLE_BINARY_AND: EACH((a != 0) & (b != 0));
    case RLE_BINARY_OR: EACH((a != 0) | (b != 0));
    default: EACH((a != 0) ^ (b != 0)); /* xor */
    }
}

template <typename T>
__device__ inline void real_binary(rle_binary_kind kind, const values<T> &u, const values<T> &v,
                                   values<T> &y)
{
    switch (kind) {
    case RLE_BINARY_ADD: EACH(a + b);
    case RLE_BINARY_SUB: EACH(a - b);
    case RLE_BINARY_MUL: EACH(a * b);
    case RLE_BINARY_DIV: EACH(a / b);
    case RLE_BINARY_POW: EACH(m_pow(a, b));
    case RLE_BINARY_MAXIMUM: EACH(((a >= b) | (a != a)) ? a : b);
    case RLE_BINARY_MINIMUM: EACH(((a <= b) | (a != a)) ? a : b);
    case RLE_BINARY_ATAN2: EACH(m_atan2(a, b));
    case RLE_BINARY_REMAINDER: EACH(remainder_of(a, b));
    case RLE_BINARY_FLOOR_DIV: EACH(floor_div_of(a, b));
    default: compare(kind, u, v, y);
    }
}

template <typename T>
__device__ inline void whole_binary(rle_binary_kind kind, const values<T> &u,
                                    const values<T> &v, values<T> &y, bool truth)
{
    typedef whole<T> W;
    switch (kind) {
    case RLE_BINARY_ADD: EACH(W::add(a, b));
    case RLE_BINARY_SUB: EACH(W::sub(a, b));
    case RLE_BINARY_MUL: EACH(W::mul(a, b));
    case RLE_BINARY_POW: EACH(W::pow(a, b));
    case RLE_BINARY_REMAINDER: EACH(W::rem(a, b));
    case RLE_BINARY_FLOOR_DIV: EACH(W::floor_div(a, b));
    case RLE_BINARY_MAXIMUM: EACH(a > b ? a : b);
    case RLE_BINARY_MINIMUM: EACH(a < b ? a : b);
    default: compare(kind, u, v, y);
    }
    if (truth)
        for (int k = 0; k < RLE_BATCH; k++) y[k] = y[k] != 0;
}

/* An operand without data is `number`. */
template <typename T, bool PACKED>
__global__ void __launch_bounds__(RLE_BATCH_THREADS)
    binary(rle_k_loop l, rle_binary_kind kind, T number, bool truth)
{
    typedef rle_batch<3, PACKED> batch;
    for (int64_t i = batch::first(); i < l.numel; i += batch::step()) {
        batch items(l, i);
        T a[RLE_BATCH] = {number, number, number, number};
        T b[RLE_BATCH] = {number, number, number, number};
        T y[RLE_BATCH];
        if (l.data[1]) items.load(l, 1, a);
        if (l.data[2]) items.load(l, 2, b);
        if constexpr (std::is_floating_point<T>::value)
            real_binary(kind, a, b, y);
        else
            whole_binary(kind, a, b, y, truth);
        if (kind >= RLE_BINARY_EQ)
            rle_store_bool(items, l, y);
        else
            items.store(l, y);
    }
}

template <typename T>
cudaError_t run_binary(rle_binary_kind kind, const rle_k_loop *l, T number, bool truth,
                       cudaStream_t stream)
{
    return RLE_LAUNCH_BATCHES(binary, T, l, stream, kind, number, truth);
}

/* ---- where ---- */

template <typename T, bool PACKED>
__global__ void __launch_bounds__(RLE_BATCH_THREADS) choose(rle_k_loop l)
{
    typedef rle_batch<4, PACKED> batch;
    for (int64_t i = batch::first(); i < l.numel; i += batch::step()) {
        batch items(l, i);
        uint8_t condition[RLE_BATCH];
        T a[RLE_BATCH], b[RLE_BATCH];
        items.load(l, 1, condition);
        items.load(l, 2, a);
        items.load(l, 3, b);
        for (int k = 0; k < RLE_BATCH; k++) a[k] = condition[k] ? a[k] : b[k];
        items.store(l, a);
    }
}

template <typename T> cudaError_t run_choose(const rle_k_loop *l, cudaStream_t stream)
{
    return RLE_LAUNCH_BATCHES(choose, T, l, stream);
}

} // namespace

extern "C" cudaError_t rle_k_unary(rle_dtype t, rle_unary_kind kind, const rle_k_loop *l,
                                   double p0, double p1, cudaStream_t stream)
{
    switch (t) {
    case RLE_F32:
        return run_unary(kind, l, static_cast<float>(p0), static_cast<float>(p1), false, stream);
    case RLE_F64:
        return run_unary(kind, l, p0, p1, false, stream);
    case RLE_I32:
        return run_whole_unary<int32_t>(kind, l, p0, p1, INT32_MIN, INT32_MAX, stream);
    case RLE_I64:
        return run_whole_unary<int64_t>(kind, l, p0, p1, INT64_MIN, INT64_MAX, stream);
    case RLE_U8:
        return run_whole_unary<uint8_t>(kind, l, p0, p1, 0, UINT8_MAX, stream);
    case RLE_BOOL:
        return run_whole_unary<uint8_t>(kind, l, p0, p1, 0, 1, stream);
    default:
        return cudaErrorInvalidValue;
    }
}

extern "C" cudaError_t rle_k_unary_backward(rle_dtype t, rle_unary_kind kind,
                                            const rle_k_loop *l, double p0, double p1,
                                            cudaStream_t stream)
{
    switch (t) {
    case RLE_F32:
        return run_gradient<float>(kind, l, p0, p1, stream);
    case RLE_F64:
        return run_gradient<double>(kind, l, p0, p1, stream);
    default:
        return cudaErrorInvalidValue;
    }
}

extern "C" cudaError_t rle_k_binary(rle_dtype t, rle_binary_kind kind, const rle_k_loop *l,
                                    double value, int64_t integer, cudaStream_t stream)
{
    switch (t) {
    case RLE_F32:
        return run_binary(kind, l, static_cast<float>(value), false, stream);
    case RLE_F64:
        return run_binary(kind, l, value, false, stream);
    case RLE_I32:
        return run_binary(kind, l, static_cast<int32_t>(integer), false, stream);
    case RLE_I64:
        return run_binary(kind, l, integer, false, stream);
    case RLE_U8:
        return run_binary(kind, l, static_cast<uint8_t>(integer), false, stream);
    case RLE_BOOL:
        return run_binary(kind, l, static_cast<uint8_t>(integer != 0), true, stream);
    default:
        return cudaErrorInvalidValue;
    }
}

extern "C" cudaError_t rle_k_where(rle_dtype t, const rle_k_loop *l, cudaStream_t stream)
{
    switch (rle_dtype_size(t)) {
    case 1:
        return run_choose<uint8_t>(l, stream);
    case 4:
        return run_choose<uint32_t>(l, stream);
    case 8:
        return run_choose<uint64_t>(l, stream);
    default:
        return cudaErrorInvalidValue;
    }
}
