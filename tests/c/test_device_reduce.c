/* test_device_reduce.c - reductions, extremes with positions, softmax, running sums and
 * sort on a device against the CPU: bit for bit, over every dtype, layout and shape
 * class. */
#include "device_check.h"

/* ---- shapes, chosen so that every way through the kernels is taken ---- */

typedef struct {
    int ndim;
    int64_t shape[4];
    uint32_t dims; /* to reduce; the lowest is the one of what goes along one dimension */
    const char *what;
} shape_class;

static const shape_class classes[] = {
    {0, {0}, 0, "a scalar"},
    {1, {1}, 1, "one element"},
    {1, {0}, 1, "nothing, summed"},
    {2, {0, 3}, 2, "no rows"},
    {2, {3, 0}, 2, "empty rows"},
    {1, {5}, 1, "five elements"},
    {1, {16}, 1, "one for each lane"},
    {1, {17}, 1, "one lane more"},
    {1, {256}, 1, "a block"},
    {1, {257}, 1, "a block and one"},
    {1, {3000}, 1, "blocks"},
    {1, {70000}, 1, "a chunk and more"},
    {2, {700, 2}, 2, "many short rows"},
    {2, {33, 16}, 2, "rows of 16"},
    {2, {3, 40}, 2, "few rows"},
    {2, {7, 300}, 2, "rows of more than a block"},
    {2, {2, 66000}, 2, "two rows of more than a chunk"},
    {2, {4100, 20}, 2, "enough rows for whole runs"},
    {2, {4100, 260}, 2, "whole runs of two blocks"},
    {2, {300, 5}, 1, "leading dimension, narrow"},
    {2, {600, 33}, 1, "leading dimension"},
    {2, {9, 64}, 1, "leading dimension, short"},
    {2, {262500, 2}, 1, "leading dimension of chunks, more blocks than a launch has"},
    {2, {257, 1100}, 1, "more columns to gather than a launch has blocks"},
    {2, {20, 33000}, 1, "so many columns that each has a thread"},
    {3, {5, 6, 7}, 2, "the middle"},
    {3, {12, 5, 40}, 5, "first and last"},
    {3, {4, 9, 11}, 6, "the last two"},
    {4, {3, 4, 5, 6}, 10, "every other"},
    {4, {2, 3, 1, 40}, 15, "all"},
    {3, {4, 5, 6}, 0, "no dimension"},
};
#define CLASSES (int)(sizeof classes / sizeof *classes)

static int64_t numel_of(const shape_class *c)
{
    int64_t n = 1;
    for (int d = 0; d < c->ndim; d++) n *= c->shape[d];
    return n;
}

/* Large classes are run in one mode only, random and lazy: what they are there for is the
 * way through the kernels, and they take long. */
static bool is_skipped(const shape_class *c, int mode)
{
    return dev->type == RLE_DEVICE_EMU && numel_of(c) > 20000 && mode != 5;
}

enum { PLAIN, SPECIAL };

/* Numbers for an operation: floats with fractions, or with infinities, NaN and zeros of
 * both signs among them. Products stay within reach. */
static void fill_for(box *b, bool product, int how)
{
    static const double special[] = {NAN, INFINITY, -INFINITY, 0.0, -0.0, 1e-40};
    box_fill(b);
    int64_t n = rle_array_numel(&b->a);
    bool is_float = rle_dtype_is_float(b->a.dtype);
    for (int64_t i = 0; product && i < n; i++)
        put(&b->a, i, is_float ? 0.9 + unit() * 0.2 : 1 + (below(200) == 0));
    if (how == SPECIAL && is_float)
        for (int64_t i = 0; i < n; i++)
            if (below(9) == 0) put(&b->a, i, special[below(6)]);
}

/* ---- reduce ---- */

typedef struct {
    rle_reduce_kind kind;
    const char *name;
    uint32_t dtypes;
    bool empty; /* defined for nothing */
} reduction;

static const reduction reductions[RLE_REDUCE_COUNT] = {
    {RLE_REDUCE_SUM, "sum", RLE_DTYPES_ALL, true},
    {RLE_REDUCE_MEAN, "mean", RLE_DTYPES_FLOAT, false},
    {RLE_REDUCE_PROD, "prod", RLE_DTYPES_ALL, true},
    {RLE_REDUCE_MAX, "max", RLE_DTYPES_ALL, false},
    {RLE_REDUCE_MIN, "min", RLE_DTYPES_ALL, false},
    {RLE_REDUCE_LOGSUMEXP, "logsumexp", RLE_DTYPES_FLOAT, false},
    {RLE_REDUCE_SUMSQ, "sumsq", RLE_DTYPES_FLOAT, true},
    {RLE_REDUCE_ANY, "any", RLE_DTYPES_ALL, true},
    {RLE_REDUCE_ALL, "all", RLE_DTYPES_ALL, true},
};

static rle_dtype result_of(rle_reduce_kind kind, rle_dtype t)
{
    if (kind == RLE_REDUCE_ANY || kind == RLE_REDUCE_ALL) return RLE_BOOL;
    return kind == RLE_REDUCE_SUM && !rle_dtype_is_float(t) ? RLE_I64 : t;
}

static void check_reduction(const reduction *r, const shape_class *c, rle_dtype t,
                            layout in_layout, layout out_layout, int how)
{
    int64_t out_shape[4];
    bool empty = false;
    for (int d = 0; d < c->ndim; d++) {
        out_shape[d] = c->dims >> d & 1 ? 1 : c->shape[d];
        empty = empty || (c->dims >> d & 1 && c->shape[d] == 0);
    }
    if (empty && !r->empty) return;
    box x = box_new(t, c->ndim, c->shape, in_layout);
    box y = box_new(result_of(r->kind, t), c->ndim, out_shape, out_layout);
    fill_for(&x, r->kind == RLE_REDUCE_PROD, how);
    twin dx = twin_of(&x), dy = twin_of(&y);
    assert_int_equal(cpu->ops->reduce(cpu, r->kind, &y.a, &x.a, c->dims), RLE_OK);
    assert_int_equal(dev->ops->reduce(dev, r->kind, &dy.a, &dx.a, c->dims), RLE_OK);
    char what[128];
    snprintf(what, sizeof what, "%s of %s, %s", r->name, rle_dtype_name(t), c->what);
    twin_check(&dy, 0, 0, what);
    if (rle_array_numel(&x.a) <= 20000) twin_check(&dx, 0, 0, what);
    twin_free(&dx), twin_free(&dy), box_free(&x), box_free(&y);
}

static void reductions_are_the_cpus(void **state)
{
    (void)state;
    FOR_EACH_MODE(m)
    {
        for (int i = 0; i < CLASSES; i++) {
            if (is_skipped(&classes[i], m)) continue;
            for (int k = 0; k < RLE_REDUCE_COUNT; k++) {
                for (int t = 0; t <= RLE_BOOL; t++) {
                    if (!(reductions[k].dtypes >> t & 1)) continue;
                    bool large = numel_of(&classes[i]) > 20000;
                    if (large && (t > RLE_I32 || (t != RLE_F32 && k != RLE_REDUCE_SUM)))
                        continue;
                    for (int in = 0; in < LAYOUTS; in += large ? LAYOUTS : 1 + below(3))
                        check_reduction(&reductions[k], &classes[i], (rle_dtype)t,
                                        (layout)in, (layout)below(BROADCAST),
                                        in == DENSE && below(3) == 0 ? SPECIAL : PLAIN);
                }
            }
        }
    }
}

/* ---- along one dimension ---- */

/* The lowest of the class's dimensions, or the last; -1 when there is none. */
static int dim_of(const shape_class *c)
{
    for (int d = 0; d < c->ndim; d++)
        if (c->dims >> d & 1) return d;
    return c->ndim - 1;
}

typedef struct {
    const shape_class *class;
    rle_dtype dtype;
    layout in, out;
    int how, dim;
    bool option; /* largest, logarithm, reverse, descending */
} line_case;

typedef void line_check(const line_case *c);

static const char *name_of(const line_case *c, const char *what)
{
    static char text[128];
    snprintf(text, sizeof text, "%s (%d) of %s along %d, %s", what, c->option,
             rle_dtype_name(c->dtype), c->dim, c->class->what);
    return text;
}

/* For every class of at most `most` elements, dtype of the set, layout and option. */
static void for_each_line(uint32_t dtypes, int64_t most, line_check *check)
{
    FOR_EACH_MODE(m)
    {
        for (int i = 0; i < CLASSES; i++) {
            line_case c = {.class = &classes[i], .dim = dim_of(&classes[i])};
            bool large = numel_of(c.class) > 20000;
            if (c.dim < 0 || numel_of(c.class) > most || is_skipped(c.class, m)) continue;
            for (int t = 0; t <= RLE_BOOL; t++) {
                if (!(dtypes >> t & 1) || (large && t != RLE_F32 && t != RLE_I64))
                    continue;
                c.dtype = (rle_dtype)t;
                c.in = large || below(3) == 0 ? DENSE : (layout)below(LAYOUTS);
                c.out = (layout)below(BROADCAST);
                c.option = below(2);
                c.how = below(2) ? SPECIAL : PLAIN;
                check(&c);
            }
        }
    }
}

static void check_extremes(const line_case *c)
{
    if (c->class->shape[c->dim] == 0) return;
    int64_t shape[4];
    memcpy(shape, c->class->shape, sizeof shape);
    shape[c->dim] = 1;
    box x = box_new(c->dtype, c->class->ndim, c->class->shape, c->in);
    box v = box_new(c->dtype, c->class->ndim, shape, c->out);
    box i = box_new(RLE_I64, c->class->ndim, shape, c->out);
    fill_for(&x, false, c->how);
    twin dx = twin_of(&x), dv = twin_of(&v), di = twin_of(&i);
    bool both = below(3) > 0;
    assert_int_equal(
        cpu->ops->arg_reduce(cpu, c->option, both ? &v.a : NULL, &i.a, &x.a, c->dim),
        RLE_OK);
    assert_int_equal(
        dev->ops->arg_reduce(dev, c->option, both ? &dv.a : NULL, &di.a, &dx.a, c->dim),
        RLE_OK);
    twin_check(&di, 0, 0, name_of(c, "positions of extremes"));
    twin_check(&dv, 0, 0, name_of(c, "extremes"));
    twin_free(&dx), twin_free(&dv), twin_free(&di);
    box_free(&x), box_free(&v), box_free(&i);
}

static void extremes_are_the_cpus(void **state)
{
    (void)state;
    for_each_line(RLE_DTYPES_ALL, 700000, check_extremes);
}

static void check_softmax(const line_case *c)
{
    int n = c->class->ndim;
    box x = box_new(c->dtype, n, c->class->shape, c->in);
    box y = box_new(c->dtype, n, c->class->shape, c->out);
    box g = box_new(c->dtype, n, c->class->shape, c->in);
    fill_for(&x, false, c->how);
    fill_for(&g, false, c->how);
    twin dx = twin_of(&x), dy = twin_of(&y);
    assert_int_equal(cpu->ops->softmax(cpu, c->option, &y.a, &x.a, c->dim), RLE_OK);
    assert_int_equal(dev->ops->softmax(dev, c->option, &dy.a, &dx.a, c->dim), RLE_OK);
    twin_check(&dy, 0, 0, name_of(c, "softmax"));
    twin dg = twin_of(&g), out = twin_of(&y);
    rle_array grad = out.a; /* holds y and is written over below */
    box gin = box_copy(&y);
    twin dgin = twin_of(&gin);
    assert_int_equal(
        cpu->ops->softmax_backward(cpu, c->option, &gin.a, &g.a, &y.a, c->dim), RLE_OK);
    assert_int_equal(
        dev->ops->softmax_backward(dev, c->option, &dgin.a, &dg.a, &dy.a, c->dim),
        RLE_OK);
    twin_check(&dgin, 0, 0, name_of(c, "softmax backward"));
    /* In place: y becomes its own gradient. */
    assert_int_equal(
        dev->ops->softmax_backward(dev, c->option, &grad, &dg.a, &grad, c->dim), RLE_OK);
    out.b = &gin;
    twin_check(&out, 0, 0, name_of(c, "softmax backward in place"));
    twin_free(&dx), twin_free(&dy), twin_free(&dg), twin_free(&out), twin_free(&dgin);
    box_free(&x), box_free(&y), box_free(&g), box_free(&gin);
}

static void softmax_is_the_cpus(void **state)
{
    (void)state;
    for_each_line(RLE_DTYPES_FLOAT, 200000, check_softmax);
}

static void check_cumsum(const line_case *c)
{
    static const rle_dtype to_of[] = {RLE_I32, RLE_I64, RLE_U8};
    rle_dtype to = rle_dtype_is_float(c->dtype) ? c->dtype : to_of[below(3)];
    box x = box_new(c->dtype, c->class->ndim, c->class->shape, c->in);
    box y = box_new(to, c->class->ndim, c->class->shape, c->out);
    fill_for(&x, false, c->how);
    twin dx = twin_of(&x), dy = twin_of(&y);
    assert_int_equal(cpu->ops->cumsum(cpu, &y.a, &x.a, c->dim, c->option), RLE_OK);
    assert_int_equal(dev->ops->cumsum(dev, &dy.a, &dx.a, c->dim, c->option), RLE_OK);
    twin_check(&dy, 0, 0, name_of(c, "cumsum"));
    twin_free(&dx), twin_free(&dy), box_free(&x), box_free(&y);
}

static void running_sums_are_the_cpus(void **state)
{
    (void)state;
    for_each_line(RLE_DTYPES_ALL, 700000, check_cumsum);
}

static void check_sort(const line_case *c)
{
    box x = box_new(c->dtype, c->class->ndim, c->class->shape, c->in);
    box v = box_new(c->dtype, c->class->ndim, c->class->shape, c->out);
    box i = box_new(RLE_I64, c->class->ndim, c->class->shape, c->out);
    fill_for(&x, false, c->how);
    int64_t n = rle_array_numel(&x.a);
    for (int64_t k = 0; k < n; k++) /* ties: sorting is stable */
        if (below(3) == 0) put(&x.a, k, below(3));
    twin dx = twin_of(&x), dv = twin_of(&v), di = twin_of(&i);
    assert_int_equal(cpu->ops->sort(cpu, &v.a, &i.a, &x.a, c->dim, c->option), RLE_OK);
    assert_int_equal(dev->ops->sort(dev, &dv.a, &di.a, &dx.a, c->dim, c->option), RLE_OK);
    twin_check(&di, 0, 0, name_of(c, "positions of a sort"));
    twin_check(&dv, 0, 0, name_of(c, "sort"));
    twin_free(&dx), twin_free(&dv), twin_free(&di);
    box_free(&x), box_free(&v), box_free(&i);
}

static void sorts_are_the_cpus(void **state)
{
    (void)state;
    for_each_line(RLE_DTYPES_ALL, 200000, check_sort);
}

/* ---- what every device promises ---- */

/* A row's result is the same alone, among others, and in any place. */
static void a_row_alone_is_as_in_a_batch(void **state)
{
    (void)state;
    static const int64_t cols[] = {2, 16, 17, 256, 300, 1000};
    FOR_EACH_MODE(m)
    {
        for (size_t c = 0; c < sizeof cols / sizeof *cols; c++) {
            int64_t shape[2] = {4200, cols[c]}, out_shape[2] = {4200, 1};
            if (cols[c] > 300) shape[0] = out_shape[0] = 40;
            box x = box_new(RLE_F32, 2, shape, DENSE),
                y = box_new(RLE_F32, 2, out_shape, DENSE);
            box_fill(&x);
            twin dx = twin_of(&x), dy = twin_of(&y);
            assert_int_equal(dev->ops->reduce(dev, RLE_REDUCE_SUM, &dy.a, &dx.a, 2),
                             RLE_OK);
            box all = box_copy(&y);
            assert_int_equal(dev->copy_out(dev, all.mem, dy.block.data, all.bytes),
                             RLE_OK);
            for (int64_t r = 0; r < shape[0]; r += shape[0] / 7) {
                rle_array row = dx.a, one = dy.a;
                row.data = (float *)dx.a.data + r * cols[c];
                row.shape[0] = one.shape[0] = 1;
                float got;
                assert_int_equal(dev->ops->reduce(dev, RLE_REDUCE_SUM, &one, &row, 2),
                                 RLE_OK);
                assert_int_equal(dev->copy_out(dev, &got, one.data, sizeof got), RLE_OK);
                assert_memory_equal(&got, at(&all.a, r), sizeof got);
            }
            box_free(&all);
            twin_free(&dx), twin_free(&dy), box_free(&x), box_free(&y);
        }
    }
}

static size_t workspace(void)
{
    rle_memory_stats s;
    rle_device_memory(dev, &s);
    return s.workspace;
}

/* First of all, while the workspace is small: a sort that needs a larger one than there
 * is memory for is refused with nothing written; it runs when there is room, and what it
 * took is in the figures and serves the next one. */
static void a_workspace_that_cannot_be_had_is_refused(void **state)
{
    (void)state;
    if (dev->type != RLE_DEVICE_EMU) skip();
    assert_true(check_mode(0));
    int64_t n = 300000;
    box x = box_new(RLE_F32, 1, &n, DENSE), v = box_new(RLE_F32, 1, &n, DENSE);
    box i = box_new(RLE_I64, 1, &n, DENSE);
    box_fill(&x);
    twin dx = twin_of(&x), dv = twin_of(&v), di = twin_of(&i);
    size_t before = workspace();
    rle_device_figures f;
    assert_int_equal(dev->figures(dev, &f), RLE_OK);
    char setting[64];
    snprintf(setting, sizeof setting, "memory=%zu", f.used + (2u << 20));
    assert_int_equal(rle_device_emu_control(setting), RLE_OK);
    assert_int_equal(dev->ops->sort(dev, &dv.a, &di.a, &dx.a, 0, false),
                     RLE_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(rle_message(), "out of device memory"));
    snprintf(setting, sizeof setting, "memory=%zu", f.total);
    assert_int_equal(rle_device_emu_control(setting), RLE_OK);
    twin_check(&dv, 0, 0, "a refused sort");
    twin_check(&di, 0, 0, "a refused sort");
    for (int again = 0; again < 2; again++) {
        assert_int_equal(dev->ops->sort(dev, &dv.a, &di.a, &dx.a, 0, false), RLE_OK);
        assert_true(workspace() - before >= 2 * 8 * (size_t)n);
        assert_true(workspace() - before < 4 * 8 * (size_t)n);
    }
    assert_int_equal(cpu->ops->sort(cpu, &v.a, &i.a, &x.a, 0, false), RLE_OK);
    twin_check(&dv, 0, 0, "a sort after a refusal");
    twin_check(&di, 0, 0, "a sort after a refusal");
    twin_free(&dx), twin_free(&dv), twin_free(&di);
    box_free(&x), box_free(&v), box_free(&i);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_workspace_that_cannot_be_had_is_refused),
        cmocka_unit_test(reductions_are_the_cpus),
        cmocka_unit_test(extremes_are_the_cpus),
        cmocka_unit_test(softmax_is_the_cpus),
        cmocka_unit_test(running_sums_are_the_cpus),
        cmocka_unit_test(sorts_are_the_cpus),
        cmocka_unit_test(a_row_alone_is_as_in_a_batch),
    };
    return cmocka_run_group_tests(tests, device_setup, device_finish);
}
