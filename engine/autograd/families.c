/* families.c - the families of the table, in one place. */
#include "autograd/autograd_internal.h"

#define FAMILY(ID, name, is_view)                                                        \
    [RLE_FAMILY_##ID] = {rle_##name##_forward, rle_##name##_backward, is_view}

const rle_family rle_families[RLE_FAMILY_COUNT] = {
    FAMILY(UNARY, unary, false),
    FAMILY(BINARY, binary, false),
    FAMILY(REDUCE, reduce, false),
    FAMILY(SOFTMAX, softmax, false),
    FAMILY(CUMSUM, cumsum, false),
    FAMILY(WHERE, where, false),
    FAMILY(MATMUL, matmul, false),
    FAMILY(LINEAR, linear, false),
    FAMILY(SELECT, select, true),
    FAMILY(NARROW, narrow, true),
    FAMILY(PERMUTE, permute, true),
    FAMILY(VIEW, view, true),
    FAMILY(EXPAND, expand, true),
    FAMILY(COPY, copy, false),
    FAMILY(TO, to, false),
    FAMILY(GATHER, gather, false),
    FAMILY(INDEX_SELECT, index_select, false),
    FAMILY(CAT, cat, false),
    FAMILY(DROPOUT, dropout, false),
    FAMILY(COPY_INTO, copy_into, false),
    FAMILY(CUSTOM, custom, false),
};
