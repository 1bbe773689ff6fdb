/* families.c - the families of the table, in one place. */
#include "autograd/autograd_internal.h"

#define FAMILY(ID, name)                                                                 \
    [RLE_FAMILY_##ID] = {rle_##name##_forward, rle_##name##_backward}

const rle_family rle_families[RLE_FAMILY_COUNT] = {
    FAMILY(UNARY, unary),
    FAMILY(BINARY, binary),
    FAMILY(REDUCE, reduce),
    FAMILY(SOFTMAX, softmax),
    FAMILY(CUMSUM, cumsum),
    FAMILY(WHERE, where),
    FAMILY(MATMUL, matmul),
    FAMILY(LINEAR, linear),
    FAMILY(SELECT, select),
    FAMILY(NARROW, narrow),
    FAMILY(PERMUTE, permute),
    FAMILY(VIEW, view),
    FAMILY(EXPAND, expand),
    FAMILY(COPY, copy),
    FAMILY(TO, to),
    FAMILY(GATHER, gather),
    FAMILY(INDEX_SELECT, index_select),
    FAMILY(CAT, cat),
    FAMILY(DROPOUT, dropout),
    FAMILY(COPY_INTO, copy_into),
    FAMILY(CUSTOM, custom),
};
