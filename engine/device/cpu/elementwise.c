/* elementwise.c - operations on one element at a time: strides here, arithmetic in isa/.
 *
 * A kernel wants contiguous runs; of a binary operation one side may be a single value.
 * The ways there: everything is contiguous (one call); the innermost run suits the kernel
 * (one call a run); or the operands are staged through small buffers on the stack, in the
 * loop's order or by blocks. The bits are the same in all of them, as each element is
 * computed for itself. */
#include "device/cpu/cpu_internal.h"

#include <math.h>
#include <string.h>

/* A kernel with its fixed arguments. Exactly one of the functions is set. */
typedef struct {
    rle_cpu_map map;
    rle_cpu_grad grad;
    rle_cpu_zip zip;
    double p0, p1;
} elementwise;

static inline void apply(const elementwise *e, void *out, const void *a, const void *b,
                         int64_t n, rle_cpu_one one)
{
    if (e->map)
        e->map(out, a, n, e->p0, e->p1);
    else if (e->zip)
        e->zip(out, a, b, n, one);
    else
        e->grad(out, a, b, n, e->p0, e->p1);
}

/* Runs shorter than this are cheaper staged than called one by one. */
#define SHORTEST_RUN 24
#define BLOCK_ROWS 16

static void run_rows(const elementwise *e, const rle_loop *l, rle_cpu_one one)
{
    int last = l->ndim - 1;
    int64_t n = l->shape[last], at[RLE_MAX_DIMS] = {0};
    char *p[3] = {l->base[0], l->base[1], l->count > 2 ? l->base[2] : NULL};
    for (int64_t left = l->numel / n; left > 0; left--) {
        apply(e, p[0], p[1], p[2], n, one);
        for (int d = last - 1; d >= 0; d--) {
            for (int o = 0; o < l->count; o++) p[o] += l->stride[o][d];
            if (++at[d] < l->shape[d]) break;
            for (int o = 0; o < l->count; o++) p[o] -= l->stride[o][d] * l->shape[d];
            at[d] = 0;
        }
    }
}

/* A block of rows x columns elements from one layout to another, steps in bytes. */
static void move_block(char *to, int64_t to_row, int64_t to_col, const char *from,
                       int64_t from_row, int64_t from_col, int64_t rows, int64_t columns,
                       int size)
{
    for (int64_t r = 0; r < rows; r++, to += to_row, from += from_row) {
        if (to_col == size && from_col == size)
            memcpy(to, from, (size_t)(columns * size));
        else if (size == 4)
            for (int64_t c = 0; c < columns; c++) memcpy(to + c * to_col, from + c * from_col, 4);
        else if (size == 8)
            for (int64_t c = 0; c < columns; c++) memcpy(to + c * to_col, from + c * from_col, 8);
        else
            for (int64_t c = 0; c < columns; c++) to[c * to_col] = from[c * from_col];
    }
}

/* How an operand is staged: not at all, as it lies in the order of the loop; once, as it
 * repeats itself; or anew for each piece. */
typedef enum { IN_PLACE, ONCE, EACH_TIME } staging;

static staging staging_of(const rle_loop *l, int operand)
{
    int64_t run = l->size[operand];
    bool in_order = true, repeats = l->ndim > 1;
    for (int d = l->ndim - 1; d >= 0; d--) {
        in_order &= l->stride[operand][d] == run;
        repeats &= d == l->ndim - 1 || l->stride[operand][d] == 0;
        run *= l->shape[d];
    }
    return in_order ? IN_PLACE : repeats ? ONCE : EACH_TIME;
}

static void run_staged(const elementwise *e, const rle_loop *l)
{
    _Alignas(64) char buf[3][RLE_STAGE * 8];
    rle_loop_pos pos[3];
    staging how[3];
    char *at[3] = {buf[0], buf[1], buf[2]};
    memset(pos, 0, sizeof(pos));
    for (int o = 0; o < l->count; o++) {
        how[o] = staging_of(l, o);
        if (how[o] == IN_PLACE) at[o] = l->base[o];
    }
    /* Whole runs, so that what repeats itself begins anew in each piece. */
    int64_t run = l->shape[l->ndim - 1];
    int64_t most = run <= RLE_STAGE ? RLE_STAGE / run * run : RLE_STAGE;
    for (int64_t left = l->numel; left > 0;) {
        int64_t n = rle_min64(left, most);
        for (int o = 1; o < l->count; o++)
            if (how[o] == EACH_TIME || (how[o] == ONCE && (left == l->numel || run > RLE_STAGE)))
                rle_loop_gather(l, o, &pos[o], n, buf[o]);
        apply(e, at[0], at[1], at[2], n, RLE_ONE_NONE);
        if (how[0] != IN_PLACE) rle_loop_scatter(l, 0, &pos[0], n, buf[0]);
        for (int o = 0; o < l->count; o++)
            if (how[o] == IN_PLACE) at[o] += n * l->size[o];
        left -= n;
    }
}

/* Two dimensions, some input contiguous along the other one than the output: staged by
 * blocks that touch few cache lines on both sides. */
static bool wants_blocks(const rle_loop *l)
{
    if (l->ndim != 2 || l->shape[0] < BLOCK_ROWS || l->shape[1] < BLOCK_ROWS) return false;
    for (int o = 1; o < l->count; o++)
        if (l->stride[o][0] == l->size[o] && l->stride[o][1] != 0) return true;
    return false;
}

static void run_blocks(const elementwise *e, const rle_loop *l)
{
    enum { COLUMNS = RLE_STAGE / BLOCK_ROWS };
    _Alignas(64) char buf[3][RLE_STAGE * 8];
    for (int64_t r = 0; r < l->shape[0]; r += BLOCK_ROWS) {
        for (int64_t c = 0; c < l->shape[1]; c += COLUMNS) {
            int64_t rows = rle_min64(l->shape[0] - r, BLOCK_ROWS);
            int64_t columns = rle_min64(l->shape[1] - c, COLUMNS);
            char *at[3] = {NULL};
            for (int o = 0; o < l->count; o++) {
                const int64_t *stride = l->stride[o];
                int size = l->size[o];
                at[o] = l->base[o] + r * stride[0] + c * stride[1];
                if (o > 0)
                    move_block(buf[o], columns * size, size, at[o], stride[0], stride[1], rows,
                               columns, size);
            }
            apply(e, buf[0], buf[1], buf[2], rows * columns, RLE_ONE_NONE);
            move_block(at[0], l->stride[0][0], l->stride[0][1], buf[0], columns * l->size[0],
                       l->size[0], rows, columns, l->size[0]);
        }
    }
}

static void run(const elementwise *e, int count, const rle_array *const *operands)
{
    bool contiguous = true;
    for (int o = 0; o < count; o++) contiguous &= rle_array_is_contiguous(operands[o]);
    if (contiguous) {
        apply(e, operands[0]->data, operands[1]->data, count > 2 ? operands[2]->data : NULL,
              rle_array_numel(operands[0]), RLE_ONE_NONE);
        return;
    }
    rle_loop l;
    rle_loop_init(&l, count, operands);
    if (l.numel == 0) return;
    int last = l.ndim - 1;
    bool unit[3] = {0}, zero[3] = {0};
    for (int o = 0; o < count; o++) {
        unit[o] = l.stride[o][last] == l.size[o];
        zero[o] = l.stride[o][last] == 0;
    }
    bool suits = unit[0] && (l.shape[last] >= SHORTEST_RUN || l.ndim == 1);
    rle_cpu_one one = RLE_ONE_NONE;
    if (count == 2) {
        suits = suits && unit[1];
    } else if (e->zip) {
        if (unit[1] && zero[2])
            one = RLE_ONE_B;
        else if (zero[1] && unit[2])
            one = RLE_ONE_A;
        else
            suits = suits && unit[1] && unit[2];
    } else {
        suits = suits && unit[1] && unit[2];
    }
    if (suits)
        run_rows(e, &l, one);
    else if (wants_blocks(&l))
        run_blocks(e, &l);
    else
        run_staged(e, &l);
}

/* `value` as one element of dtype t; floats to integers as copy does it. */
static void one_value(rle_dtype t, double value, int64_t integer, void *out)
{
    switch (t) {
    case RLE_F32: *(float *)out = (float)value; break;
    case RLE_F64: *(double *)out = value; break;
    case RLE_I32: *(int32_t *)out = (int32_t)integer; break;
    case RLE_I64: *(int64_t *)out = integer; break;
    case RLE_U8: *(uint8_t *)out = (uint8_t)integer; break;
    default: *(uint8_t *)out = integer != 0; break;
    }
}

static void fill_run(char *dst, int size, int64_t n, const void *value)
{
    if (size == 1) {
        memset(dst, *(const unsigned char *)value, (size_t)n);
    } else if (size == 4) {
        uint32_t v;
        memcpy(&v, value, 4);
        for (int64_t i = 0; i < n; i++) ((uint32_t *)dst)[i] = v;
    } else {
        uint64_t v;
        memcpy(&v, value, 8);
        for (int64_t i = 0; i < n; i++) ((uint64_t *)dst)[i] = v;
    }
}

rle_status rle_cpu_fill(rle_device *dev, const rle_array *out, double value,
                        int64_t integer)
{
    if (out->dtype > RLE_BOOL) return rle_cpu_no_dtype("fill", out->dtype);
    uint64_t one = 0;
    one_value(out->dtype, value, integer, &one);
    int size = (int)rle_dtype_size(out->dtype);
    if (rle_array_is_contiguous(out)) {
        fill_run(out->data, size, rle_array_numel(out), &one);
        return RLE_OK;
    }
    rle_loop l;
    rle_loop_init(&l, 1, &out);
    _Alignas(64) char buf[RLE_STAGE * 8];
    fill_run(buf, size, rle_min64(l.numel, RLE_STAGE), &one);
    rle_loop_pos pos = {{0}};
    for (int64_t left = l.numel; left > 0;) {
        int64_t n = rle_min64(left, RLE_STAGE);
        rle_loop_scatter(&l, 0, &pos, n, buf);
        left -= n;
    }
    return RLE_OK;
}

/* Copies whose output is contiguous along the last dimension and whose input along another
 * go by blocks that stay in the cache on both sides. False: these are not such arrays. */
static bool copy_turned(const rle_loop *l)
{
    enum { BLOCK = 32 };
    int last = l->ndim - 1, size = l->size[0], across = -1;
    for (int d = 0; d < last; d++)
        if (l->stride[1][d] == size) across = d;
    if (across < 0 || l->stride[0][last] != size || l->shape[across] < 8 || l->shape[last] < 8)
        return false;
    int64_t rows = l->shape[across], columns = l->shape[last], at[RLE_MAX_DIMS] = {0};
    int64_t to_row = l->stride[0][across], step = l->stride[1][last];
    char *to = l->base[0], *from = l->base[1];
    for (int64_t left = l->numel / rows / columns; left > 0; left--) {
        for (int64_t r = 0; r < rows; r += BLOCK)
            for (int64_t c = 0; c < columns; c += BLOCK)
                move_block(to + r * to_row + c * size, to_row, size,
                           from + r * size + c * step, size, step,
                           rle_min64(rows - r, BLOCK), rle_min64(columns - c, BLOCK), size);
        for (int d = last - 1; d >= 0; d--) {
            if (d == across) continue;
            to += l->stride[0][d];
            from += l->stride[1][d];
            if (++at[d] < l->shape[d]) break;
            to -= l->stride[0][d] * l->shape[d];
            from -= l->stride[1][d] * l->shape[d];
            at[d] = 0;
        }
    }
    return true;
}

rle_status rle_cpu_copy(rle_device *dev, const rle_array *out, const rle_array *in)
{
    rle_cpu_cast cast = rle_cpu_caster(out->dtype, in->dtype);
    if (!cast)
        return rle_cpu_no_dtype("copy", in->dtype > RLE_BOOL ? in->dtype : out->dtype);
    bool same = out->dtype == in->dtype;
    if (rle_array_is_contiguous(out) && rle_array_is_contiguous(in)) {
        int64_t n = rle_array_numel(out);
        if (!same)
            cast(out->data, in->data, n);
        else if (out->data != in->data && n > 0)
            memcpy(out->data, in->data, (size_t)n * rle_dtype_size(out->dtype));
        return RLE_OK;
    }
    const rle_array *both[2] = {out, in};
    rle_loop l;
    rle_loop_init(&l, 2, both);
    if (l.numel == 0 || (same && copy_turned(&l))) return RLE_OK;
    _Alignas(64) char from[RLE_STAGE * 8], to[RLE_STAGE * 8];
    rle_loop_pos from_pos = {{0}}, to_pos = {{0}};
    for (int64_t left = l.numel; left > 0;) {
        int64_t n = rle_min64(left, RLE_STAGE);
        rle_loop_gather(&l, 1, &from_pos, n, from);
        if (!same) cast(to, from, n);
        rle_loop_scatter(&l, 0, &to_pos, n, same ? from : to);
        left -= n;
    }
    return RLE_OK;
}

rle_status rle_cpu_unary(rle_device *dev, rle_unary_kind kind, const rle_array *out,
                         const rle_array *in, double p0, double p1)
{
    int f = rle_cpu_float(in->dtype);
    elementwise e = {.p0 = p0, .p1 = p1};
    e.map = f >= 0 ? rle_cpu_active->unary[f][kind] : rle_cpu_integer_unary(kind, in->dtype);
    if (!e.map) return rle_cpu_no_dtype("this function of one tensor", in->dtype);
    const rle_array *operands[2] = {out, in};
    run(&e, 2, operands);
    return RLE_OK;
}

rle_status rle_cpu_unary_backward(rle_device *dev, rle_unary_kind kind,
                                  const rle_array *gin, const rle_array *gout,
                                  const rle_array *x, const rle_array *y, double p0,
                                  double p1)
{
    int f = rle_cpu_float(gin->dtype);
    elementwise e = {.p0 = p0, .p1 = p1};
    if (f >= 0) e.grad = rle_cpu_active->grad[f][kind];
    if (!e.grad) return rle_cpu_no_dtype("the gradient of this function", gin->dtype);
    const rle_array *saved = rle_unary_from_output(kind) ? y : x;
    if (!saved) saved = gout; /* the kind needs neither */
    const rle_array *operands[3] = {gin, gout, saved};
    run(&e, 3, operands);
    return RLE_OK;
}

rle_status rle_cpu_binary(rle_device *dev, rle_binary_kind kind, const rle_array *out,
                          const rle_array *a, const rle_array *b)
{
    int f = rle_cpu_float(a->dtype);
    elementwise e = {0};
    e.zip = f >= 0 ? rle_cpu_active->binary[f][kind] : rle_cpu_integer_binary(kind, a->dtype);
    if (!e.zip) return rle_cpu_no_dtype("this function of two tensors", a->dtype);
    const rle_array *operands[3] = {out, a, b};
    run(&e, 3, operands);
    return RLE_OK;
}

rle_status rle_cpu_binary_scalar(rle_device *dev, rle_binary_kind kind,
                                 const rle_array *out, const rle_array *a, double value,
                                 int64_t integer, bool reversed)
{
    int f = rle_cpu_float(a->dtype);
    rle_cpu_zip zip =
        f >= 0 ? rle_cpu_active->binary[f][kind] : rle_cpu_integer_binary(kind, a->dtype);
    if (!zip) return rle_cpu_no_dtype("this function of a tensor and a number", a->dtype);
    uint64_t one = 0;
    one_value(a->dtype, value, integer, &one);
    if (rle_array_is_contiguous(out) && rle_array_is_contiguous(a)) {
        if (reversed)
            zip(out->data, &one, a->data, rle_array_numel(out), RLE_ONE_A);
        else
            zip(out->data, a->data, &one, rle_array_numel(out), RLE_ONE_B);
        return RLE_OK;
    }
    rle_array scalar = *a;
    scalar.data = &one;
    for (int d = 0; d < scalar.ndim; d++) scalar.stride[d] = 0;
    elementwise e = {.zip = zip};
    const rle_array *operands[3] = {out, reversed ? &scalar : a, reversed ? a : &scalar};
    run(&e, 3, operands);
    return RLE_OK;
}

static void select_run(void *out, const unsigned char *cond, const void *a, const void *b,
                       int64_t n, int size)
{
    if (size == 4) {
        uint32_t *o = out;
        const uint32_t *x = a, *y = b;
        for (int64_t i = 0; i < n; i++) o[i] = cond[i] ? x[i] : y[i];
    } else if (size == 8) {
        uint64_t *o = out;
        const uint64_t *x = a, *y = b;
        for (int64_t i = 0; i < n; i++) o[i] = cond[i] ? x[i] : y[i];
    } else {
        uint8_t *o = out;
        const uint8_t *x = a, *y = b;
        for (int64_t i = 0; i < n; i++) o[i] = cond[i] ? x[i] : y[i];
    }
}

rle_status rle_cpu_where(rle_device *dev, const rle_array *out, const rle_array *cond,
                         const rle_array *a, const rle_array *b)
{
    const rle_array *operands[4] = {out, cond, a, b};
    int size = (int)rle_dtype_size(out->dtype);
    bool contiguous = true;
    for (int o = 0; o < 4; o++) contiguous &= rle_array_is_contiguous(operands[o]);
    if (contiguous) {
        select_run(out->data, cond->data, a->data, b->data, rle_array_numel(out), size);
        return RLE_OK;
    }
    rle_loop l;
    rle_loop_init(&l, 4, operands);
    if (l.numel == 0) return RLE_OK;
    _Alignas(64) char buf[4][RLE_STAGE * 8];
    rle_loop_pos pos[4];
    memset(pos, 0, sizeof(pos));
    for (int64_t left = l.numel; left > 0;) {
        int64_t n = rle_min64(left, RLE_STAGE);
        for (int o = 1; o < 4; o++) rle_loop_gather(&l, o, &pos[o], n, buf[o]);
        select_run(buf[0], (unsigned char *)buf[1], buf[2], buf[3], n, size);
        rle_loop_scatter(&l, 0, &pos[0], n, buf[0]);
        left -= n;
    }
    return RLE_OK;
}
