/* kinds.h - the kinds of operations and their settings, by family. The kernels read this
 * too: plain C that is also C++. */
#ifndef RLE_DEVICE_KINDS_H
#define RLE_DEVICE_KINDS_H

#include <stdbool.h>
#include <stdint.h>

typedef enum {
    RLE_UNARY_NEG,
    RLE_UNARY_ABS,
    RLE_UNARY_SIGN,
    RLE_UNARY_EXP,
    RLE_UNARY_LOG,
    RLE_UNARY_LOG1P,
    RLE_UNARY_EXPM1,
    RLE_UNARY_SQRT,
    RLE_UNARY_RSQRT,
    RLE_UNARY_SQUARE,
    RLE_UNARY_RECIPROCAL,
    RLE_UNARY_SIN,
    RLE_UNARY_COS,
    RLE_UNARY_TANH,
    RLE_UNARY_SIGMOID,
    RLE_UNARY_SOFTPLUS, /* log(1 + exp(x)) */
    RLE_UNARY_RELU,
    RLE_UNARY_FLOOR,
    RLE_UNARY_CEIL,
    RLE_UNARY_ROUND, /* half to even, as PyTorch */
    RLE_UNARY_TRUNC,
    RLE_UNARY_CLAMP,    /* p0 = low, p1 = high; NaN stays NaN */
    RLE_UNARY_NOT,      /* -> bool */
    RLE_UNARY_ISNAN,    /* -> bool */
    RLE_UNARY_ISINF,    /* -> bool */
    RLE_UNARY_ISFINITE, /* -> bool */
    RLE_UNARY_COUNT
} rle_unary_kind;

typedef enum {
    RLE_BINARY_ADD,
    RLE_BINARY_SUB,
    RLE_BINARY_MUL,
    RLE_BINARY_DIV, /* floats only; the layer above promotes integers */
    RLE_BINARY_POW,
    RLE_BINARY_MAXIMUM, /* NaN if either is */
    RLE_BINARY_MINIMUM,
    RLE_BINARY_ATAN2,
    RLE_BINARY_REMAINDER, /* sign of the divisor, as Python and PyTorch; integer x % 0 = 0
                           */
    RLE_BINARY_FLOOR_DIV, /* toward minus infinity; integer x / 0 = 0 */
    RLE_BINARY_EQ,        /* from here: -> bool */
    RLE_BINARY_NE,
    RLE_BINARY_LT,
    RLE_BINARY_LE,
    RLE_BINARY_GT,
    RLE_BINARY_GE,
    RLE_BINARY_AND, /* logical: nonzero is true */
    RLE_BINARY_OR,
    RLE_BINARY_XOR,
    RLE_BINARY_COUNT
} rle_binary_kind;

static inline bool rle_binary_gives_bool(rle_binary_kind k)
{
    return k >= RLE_BINARY_EQ;
}
static inline bool rle_unary_gives_bool(rle_unary_kind k)
{
    return k >= RLE_UNARY_NOT;
}

/* Does the gradient come from the function's output (else from its input)? */
static inline bool rle_unary_from_output(rle_unary_kind k)
{
    switch (k) {
    case RLE_UNARY_EXP:
    case RLE_UNARY_EXPM1:
    case RLE_UNARY_SQRT:
    case RLE_UNARY_RSQRT:
    case RLE_UNARY_RECIPROCAL:
    case RLE_UNARY_TANH:
    case RLE_UNARY_SIGMOID:
    case RLE_UNARY_RELU:
        return true;
    default:
        return false;
    }
}

typedef enum {
    RLE_REDUCE_SUM,  /* integers and bool sum into i64, the rest into their own dtype */
    RLE_REDUCE_MEAN, /* floats only */
    RLE_REDUCE_PROD,
    RLE_REDUCE_MAX, /* NaN wins */
    RLE_REDUCE_MIN,
    RLE_REDUCE_LOGSUMEXP, /* floats; -inf for all -inf */
    RLE_REDUCE_SUMSQ,     /* sum of squares, floats */
    RLE_REDUCE_ANY,       /* -> bool */
    RLE_REDUCE_ALL,       /* -> bool */
    RLE_REDUCE_COUNT
} rle_reduce_kind;

typedef enum {
    RLE_RANDOM_UNIFORM, /* p0 + (p1 - p0) * u; f32, f64 */
    RLE_RANDOM_NORMAL,  /* p0 + p1 * n, Box-Muller over pairs of words; f32, f64 */
    RLE_RANDOM_INTEGER  /* p0 <= n < p1; i32, i64, u8. Lemire's multiply-shift on one word
                           when p1 - p0 <= 2^32, on two words otherwise */
} rle_random_kind;

/* What may follow a fully connected layer: an rle_unary_kind, or one of these. */
enum { RLE_DENSE_NONE = -1, RLE_DENSE_SOFTMAX = -2, RLE_DENSE_LOG_SOFTMAX = -3 };

/* Hyperparameters of one optimizer step. PyTorch's formulas and defaults. */
typedef struct rle_adam_args {
    double lr, beta1, beta2, eps, weight_decay;
    int64_t step;   /* 1 for the first */
    bool decoupled; /* AdamW: decay the weight, not the gradient */
} rle_adam_args;

typedef struct rle_sgd_args {
    double lr, momentum, dampening, weight_decay;
    bool nesterov;
    bool first; /* momentum buffer is set to the gradient */
} rle_sgd_args;

#endif
