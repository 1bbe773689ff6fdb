/* cpu.c - the CPU's table of operations, and the choice of instruction set. */
#include "device/cpu/cpu.h"

#include <stdlib.h>
#include <string.h>

#include "device/cpu/cpu_internal.h"

extern const rle_cpu_kernels rle_cpu_kernels_baseline;
#if RLE_CPU_X86
extern const rle_cpu_kernels rle_cpu_kernels_avx2, rle_cpu_kernels_avx512;
#endif

const rle_cpu_kernels *rle_cpu_active = &rle_cpu_kernels_baseline;

static const rle_device_ops cpu_ops = {
    .fill = rle_cpu_fill,
    .copy = rle_cpu_copy,
    .unary = rle_cpu_unary,
    .unary_backward = rle_cpu_unary_backward,
    .binary = rle_cpu_binary,
    .binary_scalar = rle_cpu_binary_scalar,
    .where = rle_cpu_where,
    .reduce = rle_cpu_reduce,
    .arg_reduce = rle_cpu_arg_reduce,
    .softmax = rle_cpu_softmax,
    .softmax_backward = rle_cpu_softmax_backward,
    .cumsum = rle_cpu_cumsum,
    .sort = rle_cpu_sort,
    .matmul = rle_cpu_matmul,
    .gather = rle_cpu_gather,
    .scatter = rle_cpu_scatter,
    .index_select = rle_cpu_index_select,
    .index_add = rle_cpu_index_add,
    .random = rle_cpu_random,
    .randperm = rle_cpu_randperm,
    .random_keyed = rle_cpu_random_keyed,
    .dropout = rle_cpu_dropout,
    .multinomial = rle_cpu_multinomial,
    .gae = rle_cpu_gae,
    .find_bad_row = rle_cpu_find_bad_row,
    .log_share = rle_cpu_log_share,
    .log_share_backward = rle_cpu_log_share_backward,
    .adam = rle_cpu_adam,
    .sgd = rle_cpu_sgd,
};

/* The set of that name if this machine can run it. */
static const rle_cpu_kernels *usable(const char *isa)
{
    if (strcmp(isa, "baseline") == 0) return &rle_cpu_kernels_baseline;
#if RLE_CPU_X86
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
    if (strcmp(isa, "avx2") == 0 && avx2) return &rle_cpu_kernels_avx2;
    if (strcmp(isa, "avx512") == 0 && avx2 && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return &rle_cpu_kernels_avx512;
#endif
    return NULL;
}

bool rle_cpu_use(const char *isa)
{
    const rle_cpu_kernels *set = usable(isa);
    if (set) rle_cpu_active = set;
    return set != NULL;
}

const char *rle_cpu_isa(void)
{
    rle_cpu_ops();
    return rle_cpu_active->name;
}

const rle_device_ops *rle_cpu_ops(void)
{
    static bool chosen;
    if (!chosen) {
        chosen = true;
        const char *wish = getenv("RLENGINE_CPU");
        /* A wish that this machine cannot fulfil gets the best there is below it. */
        if (wish && strcmp(wish, "baseline") == 0)
            rle_cpu_use("baseline");
        else if (wish && strcmp(wish, "avx2") == 0)
            rle_cpu_use("avx2");
        else if (!rle_cpu_use("avx512"))
            rle_cpu_use("avx2");
    }
    return &cpu_ops;
}
