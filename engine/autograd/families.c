/* families.c - the families of the table, in one place. */
#include "autograd/autograd_internal.h"

#define FAMILIES(X)                                                                      \
    X(UNARY, unary)                                                                      \
    X(BINARY, binary)                                                                    \
    X(REDUCE, reduce)                                                                    \
    X(SOFTMAX, softmax)                                                                  \
    X(CUMSUM, cumsum)                                                                    \
    X(WHERE, where)                                                                      \
    X(MATMUL, matmul)                                                                    \
    X(LINEAR, linear)                                                                    \
    X(SELECT, select)                                                                    \
    X(NARROW, narrow)                                                                    \
    X(PERMUTE, permute)                                                                  \
    X(VIEW, view)                                                                        \
    X(EXPAND, expand)                                                                    \
    X(COPY, copy)                                                                        \
    X(TO, to)                                                                            \
    X(GATHER, gather)                                                                    \
    X(INDEX_SELECT, index_select)                                                        \
    X(CAT, cat)                                                                          \
    X(DROPOUT, dropout)                                                                  \
    X(COPY_INTO, copy_into)                                                              \
    X(CUSTOM, custom)

#define FUNCTIONS(ID, name)                                                              \
    [RLE_FAMILY_##ID] = {rle_##name##_forward, rle_##name##_backward},
#define NAME(ID, name) [RLE_FAMILY_##ID] = #ID,

const rle_family rle_families[RLE_FAMILY_COUNT] = {FAMILIES(FUNCTIONS)};
const char *const rle_family_names[RLE_FAMILY_COUNT] = {FAMILIES(NAME)};
