/* test_cpu_index.c - gather, scatter, index_select, index_add on the CPU against plain C;
 * a bad index changes nothing and is named. */
#include "cpu_check.h"

static const rle_dtype all_dtypes[] = {RLE_F32, RLE_F64, RLE_I32,
                                       RLE_I64, RLE_U8,  RLE_BOOL};

static void a_shape(int *ndim, int64_t *shape)
{
    *ndim = 1 + below(4);
    for (int d = 0; d < *ndim; d++) shape[d] = 1 + below(9);
}

/* Number in `a` of element i of `index`, with coordinate `dim` replaced by `value`. */
static int64_t moved(const rle_array *a, const rle_array *index, int dim, int64_t i,
                     int64_t value)
{
    int64_t at_dim[RLE_MAX_DIMS], n = 0;
    for (int d = index->ndim - 1; d >= 0; d--) {
        at_dim[d] = i % index->shape[d];
        i /= index->shape[d];
    }
    at_dim[dim] = value;
    for (int d = 0; d < a->ndim; d++) n = n * a->shape[d] + at_dim[d];
    return n;
}

static void gather_and_scatter_match_plain_c(void **state)
{
    (void)state;
    const rle_device_ops *ops = rle_cpu_ops();
    for (int round = 0; round < 400; round++) {
        rle_dtype t = all_dtypes[below(6)];
        int ndim;
        int64_t shape[RLE_MAX_DIMS], part[RLE_MAX_DIMS];
        a_shape(&ndim, shape);
        int dim = below(ndim);
        for (int d = 0; d < ndim; d++)
            part[d] = d == dim ? 1 + below(12) : 1 + below((int)shape[d]);
        box in = box_new(t, ndim, shape, (layout)below(LAYOUTS));
        box index = box_new(RLE_I64, ndim, part, (layout)below(LAYOUTS));
        box out = box_new(t, ndim, part, (layout)below(BROADCAST));
        box_fill(&in);
        int64_t n = rle_array_numel(&index.a);
        for (int64_t i = 0; i < n; i++) put(&index.a, i, below((int)shape[dim]));
        assert_int_equal(ops->gather(NULL, &out.a, &in.a, dim, &index.a), RLE_OK);
        box_check(&out);
        for (int64_t i = 0; i < n; i++) {
            int64_t from = moved(&in.a, &index.a, dim, i, get_int(&index.a, i));
            assert_true(get(&out.a, i) == get(&in.a, from));
        }
        /* Back again, adding or assigning. */
        bool assign = below(2);
        box to = box_new(t, ndim, shape, (layout)below(BROADCAST));
        box_fill(&to);
        box expect = box_copy(&to);
        for (int64_t i = 0; i < n; i++) {
            int64_t o = moved(&to.a, &index.a, dim, i, get_int(&index.a, i));
            double v = get(&out.a, i);
            if (!assign && t == RLE_F32)
                put(&expect.a, o, (double)((float)get(&expect.a, o) + (float)v));
            else
                put(&expect.a, o, assign ? v : get(&expect.a, o) + v);
        }
        assert_int_equal(ops->scatter(NULL, &to.a, dim, &index.a, &out.a, assign),
                         RLE_OK);
        box_check(&to);
        same_bits(&to.a, &expect.a, "scatter");
        /* One bad index: named, and nothing written. */
        rle_array dense = index.a;
        int64_t *bad = malloc((size_t)n * 8);
        for (int64_t i = 0; i < n; i++) bad[i] = get_int(&index.a, i);
        dense.data = bad;
        rle_array_set_contiguous(&dense);
        bad[below((int)n)] = below(2) ? shape[dim] : -1;
        assert_int_equal(ops->scatter(NULL, &to.a, dim, &dense, &out.a, assign),
                         RLE_OUT_OF_RANGE);
        assert_non_null(strstr(rle_message(), "out of range for dimension"));
        same_bits(&to.a, &expect.a, "after a bad index");
        box kept = box_copy(&out);
        assert_int_equal(ops->gather(NULL, &out.a, &in.a, dim, &dense), RLE_OUT_OF_RANGE);
        same_bits(&out.a, &kept.a, "after a bad index");
        free(bad);
        box_free(&kept);
        box_free(&expect);
        box_free(&to);
        box_free(&in);
        box_free(&index);
        box_free(&out);
    }
}

static void slices_by_index_match_plain_c(void **state)
{
    (void)state;
    const rle_device_ops *ops = rle_cpu_ops();
    for (int round = 0; round < 400; round++) {
        rle_dtype t = all_dtypes[below(6)];
        int ndim;
        int64_t shape[RLE_MAX_DIMS], part[RLE_MAX_DIMS];
        a_shape(&ndim, shape);
        int dim = below(ndim);
        memcpy(part, shape, sizeof(part));
        int64_t count = part[dim] = 1 + below(12);
        box in = box_new(t, ndim, shape, (layout)below(LAYOUTS));
        box index = box_new(RLE_I64, 1, &count, (layout)below(LAYOUTS));
        box out = box_new(t, ndim, part, (layout)below(BROADCAST));
        box_fill(&in);
        for (int64_t i = 0; i < count; i++) put(&index.a, i, below((int)shape[dim]));
        assert_int_equal(ops->index_select(NULL, &out.a, &in.a, dim, &index.a), RLE_OK);
        box_check(&out);
        int64_t n = rle_array_numel(&out.a), inner = 1;
        for (int d = dim + 1; d < ndim; d++) inner *= shape[d];
        box to = box_new(t, ndim, shape, (layout)below(BROADCAST));
        box_fill(&to);
        box expect = box_copy(&to);
        for (int64_t i = 0; i < n; i++) {
            int64_t k = i / inner % count, from = get_int(&index.a, k);
            int64_t o = moved(&in.a, &out.a, dim, i, from);
            assert_true(get(&out.a, i) == get(&in.a, o));
            double v = get(&out.a, i);
            if (t == RLE_F32)
                put(&expect.a, o, (double)((float)get(&expect.a, o) + (float)v));
            else
                put(&expect.a, o, get(&expect.a, o) + v);
        }
        assert_int_equal(ops->index_add(NULL, &to.a, dim, &index.a, &out.a), RLE_OK);
        box_check(&to);
        same_bits(&to.a, &expect.a, "index_add");
        int64_t wrong = shape[dim];
        rle_array bad = {&wrong, RLE_I64, 1, {1}, {1}};
        rle_array one = out.a;
        one.shape[dim] = 1;
        assert_int_equal(ops->index_add(NULL, &to.a, dim, &bad, &one), RLE_OUT_OF_RANGE);
        assert_int_equal(ops->index_select(NULL, &one, &in.a, dim, &bad),
                         RLE_OUT_OF_RANGE);
        same_bits(&to.a, &expect.a, "after a bad index");
        box_free(&expect);
        box_free(&to);
        box_free(&in);
        box_free(&index);
        box_free(&out);
    }
}

static void indices_must_be_i64(void **state)
{
    (void)state;
    const rle_device_ops *ops = rle_cpu_ops();
    float x[3] = {1, 2, 3}, y[1] = {9};
    int32_t i = 1;
    rle_array in = {x, RLE_F32, 1, {3}, {1}}, out = {y, RLE_F32, 1, {1}, {1}},
              index = {&i, RLE_I32, 1, {1}, {1}};
    assert_int_equal(ops->gather(NULL, &out, &in, 0, &index), RLE_INVALID_ARGUMENT);
    assert_true(y[0] == 9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gather_and_scatter_match_plain_c),
        cmocka_unit_test(slices_by_index_match_plain_c),
        cmocka_unit_test(indices_must_be_i64),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
