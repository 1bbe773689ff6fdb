/* op.h - the table of operations: one row says how an operation computes, what it keeps
 * and how its gradient flows. Checked entry points, gradient checks and comparisons
 * between devices all walk this table; a new operation is a new row. */
#ifndef RLE_AUTOGRAD_OP_H
#define RLE_AUTOGRAD_OP_H

#include "tensor/ops.h"

struct rle_node;

/* Everything an operation may need beside its tensors. Unused fields are 0. */
typedef struct rle_op_args {
    int dim;       /* from 0, non-negative */
    uint32_t dims; /* bit set; 0 = all */
    bool keepdim;
    bool scalar;   /* binary operations: the second operand is p0 */
    bool reversed; /* ... and stands on the left */
    rle_dtype dtype;
    int ndim;
    uint32_t draw;
    double p0, p1;
    int64_t i0, i1;
    uint64_t seed;
    rle_device *device;
    int64_t shape[RLE_MAX_DIMS]; /* a shape, or the order of permute */
} rle_op_args;

typedef enum {
    RLE_FAMILY_UNARY,
    RLE_FAMILY_BINARY,
    RLE_FAMILY_REDUCE,
    RLE_FAMILY_SOFTMAX,
    RLE_FAMILY_CUMSUM,
    RLE_FAMILY_WHERE,
    RLE_FAMILY_MATMUL,
    RLE_FAMILY_LINEAR,
    RLE_FAMILY_SELECT,
    RLE_FAMILY_NARROW,
    RLE_FAMILY_PERMUTE,
    RLE_FAMILY_VIEW,
    RLE_FAMILY_EXPAND,
    RLE_FAMILY_COPY,
    RLE_FAMILY_TO,
    RLE_FAMILY_GATHER,
    RLE_FAMILY_INDEX_SELECT,
    RLE_FAMILY_CAT,
    RLE_FAMILY_DROPOUT,
    RLE_FAMILY_COPY_INTO,
    RLE_FAMILY_CUSTOM,
    RLE_FAMILY_COUNT
} rle_op_family;

/* What a node keeps for backward. */
enum {
    RLE_SAVE_NOTHING = 0,
    RLE_SAVE_IN0 = 1,
    RLE_SAVE_IN1 = 2,
    RLE_SAVE_IN2 = 4,
    RLE_SAVE_OUT = 8
};

/* The rows: id, name, family, kind within the family, differentiable, what is saved. */
#define RLE_OPS(X)                                                                       \
    X(NEG, "neg", UNARY, RLE_UNARY_NEG, true, 0)                                         \
    X(ABS, "abs", UNARY, RLE_UNARY_ABS, true, RLE_SAVE_IN0)                              \
    X(SIGN, "sign", UNARY, RLE_UNARY_SIGN, true, 0)                                      \
    X(EXP, "exp", UNARY, RLE_UNARY_EXP, true, RLE_SAVE_OUT)                              \
    X(LOG, "log", UNARY, RLE_UNARY_LOG, true, RLE_SAVE_IN0)                              \
    X(LOG1P, "log1p", UNARY, RLE_UNARY_LOG1P, true, RLE_SAVE_IN0)                        \
    X(EXPM1, "expm1", UNARY, RLE_UNARY_EXPM1, true, RLE_SAVE_OUT)                        \
    X(SQRT, "sqrt", UNARY, RLE_UNARY_SQRT, true, RLE_SAVE_OUT)                           \
    X(RSQRT, "rsqrt", UNARY, RLE_UNARY_RSQRT, true, RLE_SAVE_OUT)                        \
    X(SQUARE, "square", UNARY, RLE_UNARY_SQUARE, true, RLE_SAVE_IN0)                     \
    X(RECIPROCAL, "reciprocal", UNARY, RLE_UNARY_RECIPROCAL, true, RLE_SAVE_OUT)         \
    X(SIN, "sin", UNARY, RLE_UNARY_SIN, true, RLE_SAVE_IN0)                              \
    X(COS, "cos", UNARY, RLE_UNARY_COS, true, RLE_SAVE_IN0)                              \
    X(TANH, "tanh", UNARY, RLE_UNARY_TANH, true, RLE_SAVE_OUT)                           \
    X(SIGMOID, "sigmoid", UNARY, RLE_UNARY_SIGMOID, true, RLE_SAVE_OUT)                  \
    X(SOFTPLUS, "softplus", UNARY, RLE_UNARY_SOFTPLUS, true, RLE_SAVE_IN0)               \
    X(RELU, "relu", UNARY, RLE_UNARY_RELU, true, RLE_SAVE_OUT)                           \
    X(FLOOR, "floor", UNARY, RLE_UNARY_FLOOR, true, 0)                                   \
    X(CEIL, "ceil", UNARY, RLE_UNARY_CEIL, true, 0)                                      \
    X(ROUND, "round", UNARY, RLE_UNARY_ROUND, true, 0)                                   \
    X(TRUNC, "trunc", UNARY, RLE_UNARY_TRUNC, true, 0)                                   \
    X(CLAMP, "clamp", UNARY, RLE_UNARY_CLAMP, true, RLE_SAVE_IN0)                        \
    X(LOGICAL_NOT, "logical_not", UNARY, RLE_UNARY_NOT, false, 0)                        \
    X(ISNAN, "isnan", UNARY, RLE_UNARY_ISNAN, false, 0)                                  \
    X(ISINF, "isinf", UNARY, RLE_UNARY_ISINF, false, 0)                                  \
    X(ISFINITE, "isfinite", UNARY, RLE_UNARY_ISFINITE, false, 0)                         \
    X(ADD, "add", BINARY, RLE_BINARY_ADD, true, 0)                                       \
    X(SUB, "sub", BINARY, RLE_BINARY_SUB, true, 0)                                       \
    X(MUL, "mul", BINARY, RLE_BINARY_MUL, true, RLE_SAVE_IN0 | RLE_SAVE_IN1)             \
    X(DIV, "div", BINARY, RLE_BINARY_DIV, true, RLE_SAVE_IN0 | RLE_SAVE_IN1)             \
    X(POW, "pow", BINARY, RLE_BINARY_POW, true,                                          \
      RLE_SAVE_IN0 | RLE_SAVE_IN1 | RLE_SAVE_OUT)                                        \
    X(MAXIMUM, "maximum", BINARY, RLE_BINARY_MAXIMUM, true, RLE_SAVE_IN0 | RLE_SAVE_IN1) \
    X(MINIMUM, "minimum", BINARY, RLE_BINARY_MINIMUM, true, RLE_SAVE_IN0 | RLE_SAVE_IN1) \
    X(ATAN2, "atan2", BINARY, RLE_BINARY_ATAN2, true, RLE_SAVE_IN0 | RLE_SAVE_IN1)       \
    X(REMAINDER, "remainder", BINARY, RLE_BINARY_REMAINDER, true,                        \
      RLE_SAVE_IN0 | RLE_SAVE_IN1)                                                       \
    X(FLOOR_DIVIDE, "floor_divide", BINARY, RLE_BINARY_FLOOR_DIV, false, 0)              \
    X(EQ, "eq", BINARY, RLE_BINARY_EQ, false, 0)                                         \
    X(NE, "ne", BINARY, RLE_BINARY_NE, false, 0)                                         \
    X(LT, "lt", BINARY, RLE_BINARY_LT, false, 0)                                         \
    X(LE, "le", BINARY, RLE_BINARY_LE, false, 0)                                         \
    X(GT, "gt", BINARY, RLE_BINARY_GT, false, 0)                                         \
    X(GE, "ge", BINARY, RLE_BINARY_GE, false, 0)                                         \
    X(LOGICAL_AND, "logical_and", BINARY, RLE_BINARY_AND, false, 0)                      \
    X(LOGICAL_OR, "logical_or", BINARY, RLE_BINARY_OR, false, 0)                         \
    X(LOGICAL_XOR, "logical_xor", BINARY, RLE_BINARY_XOR, false, 0)                      \
    X(SUM, "sum", REDUCE, RLE_REDUCE_SUM, true, 0)                                       \
    X(MEAN, "mean", REDUCE, RLE_REDUCE_MEAN, true, 0)                                    \
    X(PROD, "prod", REDUCE, RLE_REDUCE_PROD, true, RLE_SAVE_IN0)                         \
    X(AMAX, "amax", REDUCE, RLE_REDUCE_MAX, true, RLE_SAVE_IN0 | RLE_SAVE_OUT)           \
    X(AMIN, "amin", REDUCE, RLE_REDUCE_MIN, true, RLE_SAVE_IN0 | RLE_SAVE_OUT)           \
    X(LOGSUMEXP, "logsumexp", REDUCE, RLE_REDUCE_LOGSUMEXP, true,                        \
      RLE_SAVE_IN0 | RLE_SAVE_OUT)                                                       \
    X(SUMSQ, "sumsq", REDUCE, RLE_REDUCE_SUMSQ, true, RLE_SAVE_IN0)                      \
    X(ANY, "any", REDUCE, RLE_REDUCE_ANY, false, 0)                                      \
    X(ALL, "all", REDUCE, RLE_REDUCE_ALL, false, 0)                                      \
    X(SOFTMAX, "softmax", SOFTMAX, 0, true, RLE_SAVE_OUT)                                \
    X(LOG_SOFTMAX, "log_softmax", SOFTMAX, 1, true, RLE_SAVE_OUT)                        \
    X(CUMSUM, "cumsum", CUMSUM, 0, true, 0)                                              \
    X(WHERE, "where", WHERE, 0, true, RLE_SAVE_IN0)                                      \
    X(MATMUL, "matmul", MATMUL, 0, true, RLE_SAVE_IN0 | RLE_SAVE_IN1)                    \
    X(LINEAR, "linear", LINEAR, 0, true, RLE_SAVE_IN0 | RLE_SAVE_IN1)                    \
    X(SELECT, "select", SELECT, 0, true, 0)                                              \
    X(NARROW, "narrow", NARROW, 0, true, 0)                                              \
    X(PERMUTE, "permute", PERMUTE, 0, true, 0)                                           \
    X(VIEW, "view", VIEW, 0, true, 0)                                                    \
    X(RESHAPE, "reshape", VIEW, 1, true, 0)                                              \
    X(EXPAND, "expand", EXPAND, 0, true, 0)                                              \
    X(CLONE, "clone", COPY, 0, true, 0)                                                  \
    X(TO, "to", TO, 0, true, 0)                                                          \
    X(GATHER, "gather", GATHER, 0, true, RLE_SAVE_IN1)                                   \
    X(INDEX_SELECT, "index_select", INDEX_SELECT, 0, true, RLE_SAVE_IN1)                 \
    X(CAT, "cat", CAT, 0, true, 0)                                                       \
    X(STACK, "stack", CAT, 1, true, 0)                                                   \
    X(DROPOUT, "dropout", DROPOUT, 0, true, RLE_SAVE_IN1)                                \
    X(COPY, "copy", COPY_INTO, 0, true, 0)                                               \
    X(CUSTOM, "custom", CUSTOM, 0, true, 0)

typedef enum {
#define RLE_OP_ID(id, name, family, kind, diff, saves) RLE_OP_##id,
    RLE_OPS(RLE_OP_ID)
#undef RLE_OP_ID
    RLE_OP_COUNT
} rle_op_id;

/* How a family computes. */
typedef struct rle_family {
    /* *out NULL: make it; else (in-place) write there. */
    rle_status (*forward)(int kind, rle_tensor *const *in, int nin, const rle_op_args *args,
                          rle_tensor **out);
    /* gin[i] for those inputs whose edge wants a gradient, each a new reference. */
    rle_status (*backward)(const struct rle_node *n, rle_tensor *gout, rle_tensor **gin);
} rle_family;

typedef struct rle_op {
    const char *name;
    rle_op_family family;
    int kind;
    bool differentiable;
    uint8_t saves; /* RLE_SAVE_* */
} rle_op;

extern const rle_op rle_ops[RLE_OP_COUNT];
extern const rle_family rle_families[RLE_FAMILY_COUNT];
/* "UNARY", "MATMUL", ... */
extern const char *const rle_family_names[RLE_FAMILY_COUNT];

#endif
