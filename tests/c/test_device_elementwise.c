/* test_device_elementwise.c - fill, copy and the elementwise operations on a device
 * against the CPU: every kind, dtype, layout and class of shapes, bit for bit. What the
 * CPU refuses the device refuses in the same words. */
#include <sys/mman.h>

#include "device_check.h"

/* ---- shapes, layouts, values ---- */

static const struct {
    int ndim;
    int64_t shape[RLE_MAX_DIMS];
} shapes[] = {
    {2, {0, 3}},                   /* empty */
    {0, {0}},                      /* a scalar */
    {3, {1, 1, 1}},                /* one element */
    {1, {7}},                      /* less than a warp */
    {2, {37, 19}},                 /* odd */
    {2, {36, 20}},                 /* rows of whole packs */
    {3, {5, 3, 64}},               /* the same */
    {1, {1031}},                   /* more than one batch */
    {3, {6, 1, 130}},              /* a dimension to drop */
    {8, {2, 1, 3, 2, 1, 2, 3, 2}}, /* all dimensions */
    {8, {2, 3, 2, 2, 3, 2, 2, 2}}, /* nothing to drop */
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static const rle_dtype dtypes[] = {RLE_F32, RLE_F64,  RLE_I32, RLE_I64,
                                   RLE_U8,  RLE_BOOL, RLE_F16};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

static const double float_specials[] = {
    0.0,   -0.0,  INFINITY, -INFINITY, NAN,  1,  -1,  0.5,   1e-40,  -1e-40, 1e38,
    -1e38, 2.5,   -2.5,     88.9,      -104, 20, -20, 1e-8,  3e-320, 1e300,  1.5e6,
    -4e9,  709.8, 5e-45,    0.5001,    3,    -3, 2,   -1e-9, 0.75};
static const int64_t whole_specials[] = {0,         1,         -1,        2,         -2,
                                         INT32_MIN, INT32_MAX, INT64_MIN, INT64_MAX, 127,
                                         128,       255,       63,        64,        -3};

/* Small numbers, every third one special. */
static void fill_with_specials(box *b)
{
    box_fill(b);
    int64_t n = rle_array_numel(&b->a);
    for (int64_t i = 0; i < n; i++) {
        if (below(3)) continue;
        if (rle_dtype_is_float(b->a.dtype)) {
            put(&b->a, i, float_specials[below(sizeof float_specials / 8)]);
        } else {
            int64_t v = whole_specials[below(sizeof whole_specials / 8)];
            if (b->a.dtype == RLE_I32) v = (int32_t)v;
            if (b->a.dtype == RLE_U8) v = (uint8_t)v;
            put_int(&b->a, i, v);
        }
    }
}

/* One element further on than the memory begins: nothing that an access of several
 * elements could start at. */
static void shift(box *b)
{
    b->a.data = (char *)b->a.data + rle_dtype_size(b->a.dtype);
}

/* As box_new, now and then shifted. BROADCAST of two dimensions is mostly a row for all
 * rows or a column for all columns. */
static box input(rle_dtype t, int s, layout how)
{
    box b = box_new(t, shapes[s].ndim, shapes[s].shape, how);
    int which = below(3);
    if (how == BROADCAST && shapes[s].ndim == 2 && which < 2) {
        int64_t run = b.a.shape[!which];
        b.a.stride[which] = 0;
        b.a.stride[!which] = 1;
        free(b.mem);
        b.bytes = (size_t)run * rle_dtype_size(t) + 2 * MARGIN;
        b.mem = malloc(b.bytes);
        memset(b.mem, SENTINEL, b.bytes);
        b.a.data = b.mem + MARGIN;
    }
    if (below(5) == 0) shift(&b);
    if (t != RLE_F16) fill_with_specials(&b);
    return b;
}

static box output(rle_dtype t, int s)
{
    box b = box_new(t, shapes[s].ndim, shapes[s].shape, (layout)below(BROADCAST));
    if (below(5) == 0) shift(&b);
    return b;
}

/* Both did it, or both refused in the same words. */
static bool same_status(rle_status want, const char *message, rle_status got,
                        const char *what)
{
    if (want != got)
        fail_msg("%s: the CPU's status is %d, the device's %d: %s", what, want, got,
                 rle_message());
    if (want != RLE_OK) assert_string_equal(rle_message(), message);
    return want == RLE_OK;
}

static void keep_message(char *out)
{
    snprintf(out, 512, "%s", rle_message());
}

/* pow, atan2 and large arguments of sin and cos are libm's in double precision: the
 * device's within 3 units in the last place of the CPU's. The emulation has the CPU's
 * libm. */
static double units(rle_dtype t, bool libm)
{
    return t == RLE_F64 && libm && dev->type == RLE_DEVICE_CUDA ? 3 : 0;
}

/* ---- one tensor ---- */

static void unary_case(int kind, rle_dtype t, int s, layout how)
{
    char what[64], message[512];
    snprintf(what, sizeof what, "unary %d", kind);
    double lo = below(4) ? -1.5 : NAN, hi = below(3) ? 2.25 : INFINITY;
    bool libm = kind == RLE_UNARY_SIN || kind == RLE_UNARY_COS;
    rle_dtype to = rle_unary_gives_bool(kind) ? RLE_BOOL : t;
    box x = input(t, s, how), y = output(to, s);
    twin dx = twin_of(&x), dy = twin_of(&y);
    rle_status status = cpu->ops->unary(cpu, kind, &y.a, &x.a, lo, hi);
    keep_message(message);
    if (same_status(status, message, dev->ops->unary(dev, kind, &dy.a, &dx.a, lo, hi),
                    what)) {
        twin_check(&dy, units(t, libm), 0, what);
        twin_check(&dx, 0, 0, what);
        if (to == t && how != BROADCAST) { /* in place */
            assert_int_equal(cpu->ops->unary(cpu, kind, &x.a, &x.a, lo, hi), RLE_OK);
            assert_int_equal(dev->ops->unary(dev, kind, &dx.a, &dx.a, lo, hi), RLE_OK);
            twin_check(&dx, units(t, libm), 0, what);
        }
    }
    twin_free(&dx), twin_free(&dy), box_free(&x), box_free(&y);
}

static void unary_kinds(void **state)
{
    (void)state;
    FOR_EACH_MODE(m)
    {
        for (int kind = 0; kind < RLE_UNARY_COUNT; kind++)
            for (int t = 0; t < DTYPES; t++)
                for (int s = 0; s < SHAPES; s++)
                    unary_case(kind, dtypes[t], s, (layout)((s + kind + m) % LAYOUTS));
    }
}

static void gradient_case(int kind, rle_dtype t, int s, layout how)
{
    char what[64], message[512];
    snprintf(what, sizeof what, "gradient %d", kind);
    bool libm = kind == RLE_UNARY_SIN || kind == RLE_UNARY_COS;
    double ulps = units(t, libm) > 0 ? units(t, libm) + 1 : 0; /* a product behind it */
    box g = input(t, s, how), x = input(t, s, (layout)below(LAYOUTS)),
        y = input(t, s, (layout)below(LAYOUTS)), gin = output(t, s);
    twin dg = twin_of(&g), dx = twin_of(&x), dy = twin_of(&y), dgin = twin_of(&gin);
    rle_status status =
        cpu->ops->unary_backward(cpu, kind, &gin.a, &g.a, &x.a, &y.a, -1.5, 2.25);
    keep_message(message);
    if (same_status(
            status, message,
            dev->ops->unary_backward(dev, kind, &dgin.a, &dg.a, &dx.a, &dy.a, -1.5, 2.25),
            what)) {
        twin_check(&dgin, ulps, 0, what);
        if (how != BROADCAST) { /* in place of the gradient from above */
            cpu->ops->unary_backward(cpu, kind, &g.a, &g.a, &x.a, &y.a, -1.5, 2.25);
            dev->ops->unary_backward(dev, kind, &dg.a, &dg.a, &dx.a, &dy.a, -1.5, 2.25);
            twin_check(&dg, ulps, 0, what);
        }
        if (kind == RLE_UNARY_NEG) { /* needs neither */
            cpu->ops->unary_backward(cpu, kind, &gin.a, &g.a, NULL, NULL, 0, 0);
            dev->ops->unary_backward(dev, kind, &dgin.a, &dg.a, NULL, NULL, 0, 0);
            twin_check(&dgin, 0, 0, what);
        }
    }
    twin_free(&dg), twin_free(&dx), twin_free(&dy), twin_free(&dgin);
    box_free(&g), box_free(&x), box_free(&y), box_free(&gin);
}

static void gradients(void **state)
{
    (void)state;
    FOR_EACH_MODE(m)
    {
        for (int kind = 0; kind < RLE_UNARY_COUNT; kind++)
            for (int t = 0; t < 3; t++)
                for (int s = 0; s < SHAPES; s++)
                    gradient_case(kind, dtypes[t], s, (layout)((s + kind + m) % LAYOUTS));
    }
}

/* ---- two tensors, and a tensor and a number ---- */

static void binary_case(int kind, rle_dtype t, int s, layout how)
{
    char what[64], message[512];
    snprintf(what, sizeof what, "binary %d", kind);
    double ulps = units(t, kind == RLE_BINARY_POW || kind == RLE_BINARY_ATAN2);
    rle_dtype to = rle_binary_gives_bool(kind) ? RLE_BOOL : t;
    box a = input(t, s, how), b = input(t, s, (layout)below(LAYOUTS)), y = output(to, s);
    twin da = twin_of(&a), db = twin_of(&b), dy = twin_of(&y);
    rle_status status = cpu->ops->binary(cpu, kind, &y.a, &a.a, &b.a);
    keep_message(message);
    if (same_status(status, message, dev->ops->binary(dev, kind, &dy.a, &da.a, &db.a),
                    what)) {
        twin_check(&dy, ulps, 0, what);
        if (to == t && how != BROADCAST) { /* in place of the first, then of the second */
            assert_int_equal(cpu->ops->binary(cpu, kind, &a.a, &a.a, &b.a), RLE_OK);
            assert_int_equal(dev->ops->binary(dev, kind, &da.a, &da.a, &db.a), RLE_OK);
            twin_check(&da, ulps, 0, what);
            if (ulps == 0) {
                assert_int_equal(cpu->ops->binary(cpu, kind, &a.a, &b.a, &a.a), RLE_OK);
                assert_int_equal(dev->ops->binary(dev, kind, &da.a, &db.a, &da.a),
                                 RLE_OK);
                twin_check(&da, 0, 0, what);
            }
        }
    }
    twin_free(&da), twin_free(&db), twin_free(&dy);
    box_free(&a), box_free(&b), box_free(&y);
}

static void scalar_case(int kind, rle_dtype t, int s, layout how, bool reversed)
{
    char what[64], message[512];
    snprintf(what, sizeof what, "number %d%s", kind, reversed ? " reversed" : "");
    double ulps = units(t, kind == RLE_BINARY_POW || kind == RLE_BINARY_ATAN2);
    double value = below(2) ? float_specials[below(sizeof float_specials / 8)] : 1.25;
    int64_t whole = whole_specials[below(sizeof whole_specials / 8)];
    rle_dtype to = rle_binary_gives_bool(kind) ? RLE_BOOL : t;
    box a = input(t, s, how), y = output(to, s);
    twin da = twin_of(&a), dy = twin_of(&y);
    rle_status status =
        cpu->ops->binary_scalar(cpu, kind, &y.a, &a.a, value, whole, reversed);
    keep_message(message);
    if (same_status(
            status, message,
            dev->ops->binary_scalar(dev, kind, &dy.a, &da.a, value, whole, reversed),
            what)) {
        twin_check(&dy, ulps, 0, what);
        if (to == t && how != BROADCAST) { /* in place */
            cpu->ops->binary_scalar(cpu, kind, &a.a, &a.a, value, whole, reversed);
            dev->ops->binary_scalar(dev, kind, &da.a, &da.a, value, whole, reversed);
            twin_check(&da, ulps, 0, what);
        }
    }
    twin_free(&da), twin_free(&dy), box_free(&a), box_free(&y);
}

static void binary_kinds(void **state)
{
    (void)state;
    FOR_EACH_MODE(m)
    {
        for (int kind = 0; kind < RLE_BINARY_COUNT; kind++)
            for (int t = 0; t < DTYPES; t++)
                for (int s = 0; s < SHAPES; s++) {
                    layout how = (layout)((s + kind + m) % LAYOUTS);
                    binary_case(kind, dtypes[t], s, how);
                    scalar_case(kind, dtypes[t], s, how, (m + s) % 2);
                }
    }
}

static void where_picks(void **state)
{
    (void)state;
    FOR_EACH_MODE(m)
    {
        for (int t = 0; t < DTYPES - 1; t++)
            for (int s = 0; s < SHAPES; s++) {
                box c = input(RLE_BOOL, s, (layout)((s + m) % LAYOUTS));
                box a = input(dtypes[t], s, (layout)below(LAYOUTS));
                box b = input(dtypes[t], s, (layout)below(LAYOUTS)),
                    y = output(dtypes[t], s);
                twin dc = twin_of(&c), da = twin_of(&a), db = twin_of(&b),
                     dy = twin_of(&y);
                assert_int_equal(cpu->ops->where(cpu, &y.a, &c.a, &a.a, &b.a), RLE_OK);
                assert_int_equal(dev->ops->where(dev, &dy.a, &dc.a, &da.a, &db.a),
                                 RLE_OK);
                twin_check(&dy, 0, 0, "where");
                twin_free(&dc), twin_free(&da), twin_free(&db), twin_free(&dy);
                box_free(&c), box_free(&a), box_free(&b), box_free(&y);
            }
    }
}

/* ---- fill and copy ---- */

static void copy_case(rle_dtype to, rle_dtype from, int s, layout how)
{
    char message[512];
    box x = input(from, s, how), y = output(to, s);
    twin dx = twin_of(&x), dy = twin_of(&y);
    rle_status status = cpu->ops->copy(cpu, &y.a, &x.a);
    keep_message(message);
    if (same_status(status, message, dev->ops->copy(dev, &dy.a, &dx.a), "copy"))
        twin_check(&dy, 0, 0, "copy");
    double value = float_specials[below(sizeof float_specials / 8)];
    int64_t whole = below(2) ? whole_specials[below(sizeof whole_specials / 8)] : 0;
    status = cpu->ops->fill(cpu, &y.a, value, whole);
    keep_message(message);
    if (same_status(status, message, dev->ops->fill(dev, &dy.a, value, whole), "fill"))
        twin_check(&dy, 0, 0, "fill");
    twin_free(&dx), twin_free(&dy), box_free(&x), box_free(&y);
}

static void fills_and_casts(void **state)
{
    (void)state;
    FOR_EACH_MODE(m)
    {
        for (int to = 0; to < DTYPES; to++)
            for (int from = 0; from < DTYPES; from++)
                for (int s = 0; s < SHAPES; s++)
                    copy_case(dtypes[to], dtypes[from], s,
                              (layout)((s + to + m) % LAYOUTS));
    }
}

/* Matrices turned over, alone and in a batch, whose sides are no multiple of anything. */
static void copies_turn_matrices(void **state)
{
    (void)state;
    static const int64_t sides[][3] = {
        {1, 33, 70}, {3, 129, 31}, {2, 64, 64}, {5, 3, 200}};
    FOR_EACH_MODE(m)
    {
        for (int t = 0; t < DTYPES - 1; t++)
            for (int s = 0; s < 4; s++) {
                const int64_t *shape = sides[s],
                              turned[3] = {shape[0], shape[2], shape[1]};
                box x = box_new(dtypes[t], 3, turned, DENSE);
                box y = box_new(dtypes[t], 3, shape, DENSE);
                fill_with_specials(&x);
                twin dx = twin_of(&x), dy = twin_of(&y);
                rle_array from = x.a, dfrom = dx.a;
                memcpy(from.shape, shape, sizeof sides[s]);
                from.stride[1] = x.a.stride[2], from.stride[2] = x.a.stride[1];
                dfrom = from;
                dfrom.data = dx.a.data;
                assert_int_equal(cpu->ops->copy(cpu, &y.a, &from), RLE_OK);
                assert_int_equal(dev->ops->copy(dev, &dy.a, &dfrom), RLE_OK);
                twin_check(&dy, 0, 0, "copy");
                twin_free(&dx), twin_free(&dy), box_free(&x), box_free(&y);
            }
    }
}

/* ---- sizes ---- */

/* More elements, and more tiles, than the largest grid takes at once: a matrix turned
 * over in every mode, and in turns a row added to all rows, a function and a constant. */
static void more_than_the_grid(void **state)
{
    (void)state;
    const int64_t shape[2] = {1501, 1451};
    FOR_EACH_MODE(m)
    {
        box a = box_new(RLE_F32, 2, shape, DENSE), b = box_new(RLE_F32, 2, shape, DENSE);
        box y = box_new(RLE_F32, 2, shape, DENSE);
        b.a.stride[0] = 0;
        box_fill(&a), box_fill(&b);
        twin da = twin_of(&a), db = twin_of(&b), dy = twin_of(&y);
        if (m % 3 == 0) {
            cpu->ops->binary(cpu, RLE_BINARY_ADD, &y.a, &a.a, &b.a);
            assert_int_equal(dev->ops->binary(dev, RLE_BINARY_ADD, &dy.a, &da.a, &db.a),
                             RLE_OK);
        } else if (m % 3 == 1) {
            cpu->ops->unary(cpu, RLE_UNARY_SQUARE, &y.a, &a.a, 0, 0);
            assert_int_equal(dev->ops->unary(dev, RLE_UNARY_SQUARE, &dy.a, &da.a, 0, 0),
                             RLE_OK);
        } else {
            cpu->ops->fill(cpu, &y.a, 7, 7);
            assert_int_equal(dev->ops->fill(dev, &dy.a, 7, 7), RLE_OK);
        }
        twin_check(&dy, 0, 0, "large");
        a.a.stride[0] = da.a.stride[0] = 1;
        a.a.stride[1] = da.a.stride[1] = shape[0];
        cpu->ops->copy(cpu, &y.a, &a.a);
        assert_int_equal(dev->ops->copy(dev, &dy.a, &da.a), RLE_OK);
        twin_check(&dy, 0, 0, "large and turned over");
        twin_free(&da), twin_free(&db), twin_free(&dy);
        box_free(&a), box_free(&b), box_free(&y);
    }
}

/* Elements further apart than 31 bits can say. Their memory is never touched in between,
 * so on the emulation, which reads what the host reads, it need not be there. */
static void offsets_beyond_31_bits(void **state)
{
    (void)state;
    enum { ROWS = 2, COLUMNS = 3, DEPTH = 5 };
    const int64_t row = (INT64_C(1) << 31) + 3;
    size_t bytes = (size_t)row + 64;
    rle_block block = {0};
    unsigned char *far;
    if (dev->type == RLE_DEVICE_EMU) {
        far = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        assert_true(far != MAP_FAILED);
    } else {
        if (rle_device_alloc(dev, bytes, &block) != RLE_OK) skip(); /* a small one */
        far = block.data;
    }
    rle_array wide = {far, RLE_U8, 3, {ROWS, COLUMNS, DEPTH}, {row, 1, COLUMNS}};
    box a = box_new(RLE_U8, 3, wide.shape, PERMUTED), y = box_copy(&a);
    box_fill(&a);
    twin da = twin_of(&a), dy = twin_of(&y);
    cpu->ops->binary_scalar(cpu, RLE_BINARY_MUL, &y.a, &a.a, 0, 3, false);
    assert_int_equal(
        dev->ops->binary_scalar(dev, RLE_BINARY_MUL, &wide, &da.a, 0, 3, false), RLE_OK);
    assert_int_equal(dev->ops->copy(dev, &dy.a, &wide), RLE_OK);
    twin_check(&dy, 0, 0, "far apart");
    twin_free(&da), twin_free(&dy), box_free(&a), box_free(&y);
    if (dev->type == RLE_DEVICE_EMU)
        munmap(far, bytes);
    else
        rle_device_free(dev, &block);
}

/* More elements than 31 bits can count: on a GPU, where that takes a moment, or wherever
 * RLENGINE_TEST_LARGE is set (the emulation wants memory=8GiB and a minute). */
static void positions_beyond_31_bits(void **state)
{
    (void)state;
    if (dev->type != RLE_DEVICE_CUDA && !getenv("RLENGINE_TEST_LARGE")) skip();
    enum { LAST = 4096 };
    const int64_t n = (INT64_C(1) << 31) + 1031;
    rle_block block;
    unsigned char last[LAST];
    if (rle_device_alloc(dev, (size_t)n + 1, &block) != RLE_OK) skip();
    for (int shifted = 0; shifted < 2; shifted++) { /* by packs, and one by one */
        rle_array a = {(char *)block.data + shifted, RLE_U8, 1, {n}, {1}};
        assert_int_equal(dev->ops->fill(dev, &a, 0, 0), RLE_OK);
        a.shape[0] -= 3;
        assert_int_equal(dev->ops->binary_scalar(dev, RLE_BINARY_ADD, &a, &a, 0, 7, false),
                         RLE_OK);
        const char *from = (char *)a.data + n - LAST;
        assert_int_equal(dev->copy_out(dev, last, from, LAST), RLE_OK);
        for (int i = 0; i < LAST; i++) assert_int_equal(last[i], i < LAST - 3 ? 7 : 0);
    }
    rle_device_free(dev, &block);
    rle_device_empty_cache(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unary_kinds),        cmocka_unit_test(gradients),
        cmocka_unit_test(binary_kinds),       cmocka_unit_test(where_picks),
        cmocka_unit_test(fills_and_casts),    cmocka_unit_test(copies_turn_matrices),
        cmocka_unit_test(more_than_the_grid), cmocka_unit_test(offsets_beyond_31_bits),
        cmocka_unit_test(positions_beyond_31_bits),
    };
    return cmocka_run_group_tests(tests, device_setup, device_finish);
}
