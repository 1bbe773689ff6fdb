/* test_device_index.c - gather, scatter, index_select, index_add and find_bad_row on a
 * device against the CPU: bit for bit, whatever meets in one element and in whichever
 * order the device's threads run. A bad index is named as the CPU names it, and nothing
 * is written. */
#include "device_check.h"

/* What is indexed, along which dimension, and how many entries the index has there; in
 * the other dimensions it is at most so large, and smaller here and there. */
static const struct {
    int ndim;
    int64_t shape[RLE_MAX_DIMS];
    int dim;
    int64_t count;
} cases[] = {
    {1, {9}, 0, 5},                       /* less than a warp */
    {1, {1}, 0, 1},                       /* one element */
    {1, {5}, 0, 700},                     /* much meets in one element */
    {1, {3000}, 0, 1500},                 /* many ranges, many tiles */
    {2, {13, 6}, 1, 1},                   /* an action's log-probability of each row */
    {2, {31, 17}, 0, 33},                 /* just not a short line */
    {2, {20, 45}, 0, 100},                /* lines side by side, and some left over */
    {2, {7, 64}, 0, 257},                 /* one entry in the second tile */
    {3, {4, 5, 6}, 1, 9},                 /* a dimension in the middle */
    {3, {3, 50, 40}, 1, 64},              /* the same with long lines */
    {2, {2060, 3}, 1, 33},                /* more lines than blocks */
    {8, {2, 1, 3, 2, 4, 2, 3, 2}, 4, 6},  /* all dimensions */
    {8, {2, 2, 3, 2, 2, 2, 3, 2}, 0, 40}, /* the same with long lines */
    {2, {4, 3}, 0, 0},                    /* no entries */
    {2, {4, 0}, 0, 5},                    /* lines without elements */
};
enum { CASES = sizeof cases / sizeof *cases };

static const rle_dtype dtypes[] = {RLE_F32, RLE_F64, RLE_I32, RLE_I64, RLE_U8, RLE_BOOL};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

/* All dtypes of the small cases, of a large one a dtype a mode. */
static bool has_turn(int c, int t, int m)
{
    int64_t n = cases[c].count;
    for (int d = 0; d < cases[c].ndim; d++)
        if (d != cases[c].dim) n *= cases[c].shape[d];
    return n < 1000 || t == (c + m) % DTYPES;
}

/* Numbers whose sums depend on their order. */
static void fill_unevenly(box *b)
{
    box_fill(b);
    int64_t n = rle_array_numel(&b->a);
    if (rle_dtype_is_float(b->a.dtype))
        for (int64_t i = 0; i < n; i++)
            put(&b->a, i, get(&b->a, i) * ldexp(1, below(30) - 15));
}

/* Entries from 0 to extent - 1; every other time mostly a few of them. */
static void fill_index(box *b, int64_t extent)
{
    int64_t n = rle_array_numel(&b->a);
    int few = below(2) ? (int)extent : 1 + below(3);
    for (int64_t i = 0; i < n && extent > 0; i++) {
        int64_t v = below(below(9) ? few : (int)extent);
        put_int(&b->a, i, v < extent ? v : 0);
    }
}

/* Entries of a dense copy, with some out of range. */
static box spoiled(const box *index, int64_t extent)
{
    box bad = box_new(RLE_I64, index->a.ndim, index->a.shape, DENSE);
    int64_t n = rle_array_numel(&index->a);
    for (int64_t i = 0; i < n; i++) put_int(&bad.a, i, get_int(&index->a, i));
    for (int k = 1 + below(3); k > 0; k--)
        put_int(&bad.a, below((int)n),
                below(2) ? -1 - below(3) : extent + below(2) * INT32_MAX);
    return bad;
}

/* Both refused in the same words. */
static void same_refusal(rle_status want, rle_status on_cpu, const char *message,
                         rle_status on_device)
{
    assert_int_equal(on_cpu, want);
    assert_int_equal(on_device, want);
    assert_string_equal(rle_message(), message);
}
#define REFUSE(want, on_cpu, on_device)                                                  \
    do {                                                                                 \
        char words[512];                                                                 \
        rle_status first_ = on_cpu;                                                      \
        snprintf(words, sizeof words, "%s", rle_message());                              \
        same_refusal(want, first_, words, on_device);                                    \
    } while (0)

/* ---- an index for each element ---- */

static void by_element(int c, rle_dtype t, layout how)
{
    int ndim = cases[c].ndim, dim = cases[c].dim;
    const int64_t *shape = cases[c].shape;
    int64_t part[RLE_MAX_DIMS], extent = shape[dim];
    for (int d = 0; d < ndim; d++)
        part[d] = d == dim       ? cases[c].count
                  : shape[d] > 4 ? shape[d] - below(2)
                                 : shape[d];
    box in = box_new(t, ndim, shape, (layout)below(LAYOUTS));
    box index = box_new(RLE_I64, ndim, part, how);
    box out = box_new(t, ndim, part, (layout)below(BROADCAST));
    box to = box_new(t, ndim, shape, (layout)below(BROADCAST));
    fill_unevenly(&in), fill_unevenly(&to);
    fill_index(&index, extent);
    twin din = twin_of(&in), dindex = twin_of(&index), dout = twin_of(&out),
         dto = twin_of(&to);
    assert_int_equal(cpu->ops->gather(cpu, &out.a, &in.a, dim, &index.a), RLE_OK);
    assert_int_equal(dev->ops->gather(dev, &dout.a, &din.a, dim, &dindex.a), RLE_OK);
    twin_check(&dout, 0, 0, "gather");
    /* What was gathered is now what is scattered; new, since equal numbers tell no order.
     */
    fill_unevenly(&out);
    twin dsrc = twin_of(&out);
    for (int assign = 0; assign < 2; assign++) {
        assert_int_equal(cpu->ops->scatter(cpu, &to.a, dim, &index.a, &out.a, assign),
                         RLE_OK);
        assert_int_equal(dev->ops->scatter(dev, &dto.a, dim, &dindex.a, &dsrc.a, assign),
                         RLE_OK);
        twin_check(&dto, 0, 0, assign ? "scatter" : "scatter_add");
    }
    if (rle_array_numel(&index.a) > 0) {
        box bad = spoiled(&index, extent);
        twin dbad = twin_of(&bad);
        REFUSE(RLE_OUT_OF_RANGE, cpu->ops->gather(cpu, &out.a, &in.a, dim, &bad.a),
               dev->ops->gather(dev, &dsrc.a, &din.a, dim, &dbad.a));
        REFUSE(RLE_OUT_OF_RANGE,
               cpu->ops->scatter(cpu, &to.a, dim, &bad.a, &out.a, false),
               dev->ops->scatter(dev, &dto.a, dim, &dbad.a, &dsrc.a, false));
        twin_check(&dsrc, 0, 0, "gather with a bad index");
        twin_check(&dto, 0, 0, "scatter with a bad index");
        twin_free(&dbad), box_free(&bad);
    }
    twin_free(&din), twin_free(&dindex), twin_free(&dout), twin_free(&dto),
        twin_free(&dsrc);
    box_free(&in), box_free(&index), box_free(&out), box_free(&to);
}

static void gather_and_scatter(void **state)
{
    (void)state;
    FOR_EACH_MODE(m)
    {
        for (int c = 0; c < CASES; c++)
            for (int t = 0; t < DTYPES; t++)
                if (has_turn(c, t, m))
                    by_element(c, dtypes[t], (layout)((c + t + m) % LAYOUTS));
    }
}

/* ---- an index for slices ---- */

static void by_slice(int c, rle_dtype t, layout how)
{
    int ndim = cases[c].ndim, dim = cases[c].dim;
    const int64_t *shape = cases[c].shape;
    int64_t part[RLE_MAX_DIMS], count = cases[c].count, extent = shape[dim];
    memcpy(part, shape, sizeof part);
    part[dim] = count;
    box in = box_new(t, ndim, shape, (layout)below(LAYOUTS));
    box index = box_new(RLE_I64, 1, &count, how);
    box out = box_new(t, ndim, part, (layout)below(BROADCAST));
    box to = box_new(t, ndim, shape, (layout)below(BROADCAST));
    fill_unevenly(&in), fill_unevenly(&to);
    fill_index(&index, extent);
    twin din = twin_of(&in), dindex = twin_of(&index), dout = twin_of(&out),
         dto = twin_of(&to);
    assert_int_equal(cpu->ops->index_select(cpu, &out.a, &in.a, dim, &index.a), RLE_OK);
    assert_int_equal(dev->ops->index_select(dev, &dout.a, &din.a, dim, &dindex.a),
                     RLE_OK);
    twin_check(&dout, 0, 0, "index_select");
    fill_unevenly(&out);
    twin dsrc = twin_of(&out);
    assert_int_equal(cpu->ops->index_add(cpu, &to.a, dim, &index.a, &out.a), RLE_OK);
    assert_int_equal(dev->ops->index_add(dev, &dto.a, dim, &dindex.a, &dsrc.a), RLE_OK);
    twin_check(&dto, 0, 0, "index_add");
    if (count > 0) {
        box bad = spoiled(&index, extent);
        twin dbad = twin_of(&bad);
        REFUSE(RLE_OUT_OF_RANGE, cpu->ops->index_select(cpu, &out.a, &in.a, dim, &bad.a),
               dev->ops->index_select(dev, &dsrc.a, &din.a, dim, &dbad.a));
        REFUSE(RLE_OUT_OF_RANGE, cpu->ops->index_add(cpu, &to.a, dim, &bad.a, &out.a),
               dev->ops->index_add(dev, &dto.a, dim, &dbad.a, &dsrc.a));
        twin_check(&dsrc, 0, 0, "index_select with a bad index");
        twin_check(&dto, 0, 0, "index_add with a bad index");
        twin_free(&dbad), box_free(&bad);
    }
    twin_free(&din), twin_free(&dindex), twin_free(&dout), twin_free(&dto),
        twin_free(&dsrc);
    box_free(&in), box_free(&index), box_free(&out), box_free(&to);
}

static void slices(void **state)
{
    (void)state;
    FOR_EACH_MODE(m)
    {
        for (int c = 0; c < CASES; c++)
            for (int t = 0; t < DTYPES; t++)
                if (has_turn(c, t, m))
                    by_slice(c, dtypes[t], (layout)((c + t + m) % LAYOUTS));
    }
}

/* ---- sizes ---- */

/* More entries than the largest grid takes at once, the bad ones far apart: the first is
 * named. */
static void more_than_the_grid(void **state)
{
    (void)state;
    const int64_t shape[2] = {550003, 4}, part[2] = {550003, 4};
    FOR_EACH_MODE(m)
    {
        if (m % 3 != 2) continue; /* the random order, both kinds of streams */
        box in = box_new(RLE_U8, 2, shape, DENSE), out = box_new(RLE_U8, 2, part, DENSE);
        box index = box_new(RLE_I64, 2, part, DENSE);
        box_fill(&in);
        int64_t n = rle_array_numel(&index.a);
        for (int64_t i = 0; i < n; i++) ((int64_t *)index.a.data)[i] = below(4);
        twin din = twin_of(&in), dindex = twin_of(&index), dout = twin_of(&out);
        cpu->ops->gather(cpu, &out.a, &in.a, 1, &index.a);
        assert_int_equal(dev->ops->gather(dev, &dout.a, &din.a, 1, &dindex.a), RLE_OK);
        twin_check(&dout, 0, 0, "gather");
        cpu->ops->scatter(cpu, &in.a, 1, &index.a, &out.a, false);
        assert_int_equal(dev->ops->scatter(dev, &din.a, 1, &dindex.a, &dout.a, false),
                         RLE_OK);
        twin_check(&din, 0, 0, "scatter_add");
        for (int64_t i = n - 1; i > n - 9; i -= 3) ((int64_t *)index.a.data)[i] = i;
        twin dbad = twin_of(&index);
        REFUSE(RLE_OUT_OF_RANGE, cpu->ops->gather(cpu, &out.a, &in.a, 1, &index.a),
               dev->ops->gather(dev, &dout.a, &din.a, 1, &dbad.a));
        twin_free(&din), twin_free(&dindex), twin_free(&dout), twin_free(&dbad);
        box_free(&in), box_free(&out), box_free(&index);
    }
}

/* ---- refusals ---- */

static void what_the_cpu_refuses(void **state)
{
    (void)state;
    const int64_t n = 3;
    int64_t row = 77;
    box x = box_new(RLE_F32, 1, &n, DENSE), y = box_copy(&x),
        whole = box_new(RLE_I32, 1, &n, DENSE);
    box_fill(&x), box_fill(&whole);
    twin dx = twin_of(&x), dy = twin_of(&y), dwhole = twin_of(&whole);
    REFUSE(RLE_INVALID_ARGUMENT, cpu->ops->gather(cpu, &y.a, &x.a, 0, &whole.a),
           dev->ops->gather(dev, &dy.a, &dx.a, 0, &dwhole.a));
    REFUSE(RLE_INVALID_ARGUMENT, cpu->ops->scatter(cpu, &y.a, 0, &whole.a, &x.a, true),
           dev->ops->scatter(dev, &dy.a, 0, &dwhole.a, &dx.a, true));
    REFUSE(RLE_INVALID_ARGUMENT, cpu->ops->index_select(cpu, &y.a, &x.a, 0, &whole.a),
           dev->ops->index_select(dev, &dy.a, &dx.a, 0, &dwhole.a));
    REFUSE(RLE_INVALID_ARGUMENT, cpu->ops->index_add(cpu, &y.a, 0, &whole.a, &x.a),
           dev->ops->index_add(dev, &dy.a, 0, &dwhole.a, &dx.a));
    REFUSE(RLE_UNIMPLEMENTED, cpu->ops->find_bad_row(cpu, &whole.a, false, &row),
           dev->ops->find_bad_row(dev, &dwhole.a, false, &row));
    assert_int_equal(row, 77);
    twin_check(&dy, 0, 0, "after refusals");
    twin_free(&dx), twin_free(&dy), twin_free(&dwhole);
    box_free(&x), box_free(&y), box_free(&whole);
}

/* ---- the first bad row ---- */

static void bad_rows(void **state)
{
    (void)state;
    static const int64_t sizes[][2] = {{1, 1},    {5, 3},     {300, 7}, {1025, 33},
                                       {2, 3000}, {40000, 1}, {0, 3},   {4, 0}};
    static const double bad[] = {NAN, INFINITY, -INFINITY, -1, -1e-40, -0.0, 1e38};
    FOR_EACH_MODE(m)
    {
        for (int s = 0; s < (int)(sizeof sizes / sizeof *sizes); s++)
            for (int t = RLE_F32; t <= RLE_F64; t++)
                for (int spoil = 0; spoil < 4; spoil++) {
                    box x =
                        box_new((rle_dtype)t, 2, sizes[s], (layout)((s + m) % LAYOUTS));
                    int64_t n = rle_array_numel(&x.a), want = 77, got = 78;
                    for (int64_t i = 0; i < n; i++) put(&x.a, i, unit());
                    for (int k = 0; k < spoil && n > 0; k++)
                        put(&x.a, below((int)n), bad[below(7)]);
                    twin dx = twin_of(&x);
                    bool nonnegative = below(2);
                    assert_int_equal(
                        cpu->ops->find_bad_row(cpu, &x.a, nonnegative, &want), RLE_OK);
                    assert_int_equal(
                        dev->ops->find_bad_row(dev, &dx.a, nonnegative, &got), RLE_OK);
                    assert_int_equal(want, got);
                    twin_free(&dx), box_free(&x);
                }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gather_and_scatter), cmocka_unit_test(slices),
        cmocka_unit_test(more_than_the_grid), cmocka_unit_test(what_the_cpu_refuses),
        cmocka_unit_test(bad_rows),
    };
    return cmocka_run_group_tests(tests, device_setup, device_finish);
}
