/* test_cpu_reduce.c - reductions, softmax, extremes with positions, running sums and sort of
 * the CPU against plain C; the same bits whatever the strides and the instruction set. */
#include "cpu_check.h"

static const rle_dtype all_dtypes[] = {RLE_F32, RLE_F64, RLE_I32, RLE_I64, RLE_U8, RLE_BOOL};

/* Number of the output element that input element i falls into. */
static int64_t target_of(const rle_array *in, uint32_t dims, int64_t i)
{
    int64_t index[RLE_MAX_DIMS], o = 0;
    for (int d = in->ndim - 1; d >= 0; d--) {
        index[d] = i % in->shape[d];
        i /= in->shape[d];
    }
    for (int d = 0; d < in->ndim; d++)
        o = o * (dims >> d & 1 ? 1 : in->shape[d]) + (dims >> d & 1 ? 0 : index[d]);
    return o;
}

static double reduce_reference(rle_reduce_kind kind, const rle_array *in, uint32_t dims,
                               int64_t o)
{
    int64_t n = rle_array_numel(in), count = 0;
    long double sum = 0, prod = 1, best = 0, squares = 0, exps = 0;
    bool any = false, all = true;
    for (int64_t i = 0; i < n; i++) {
        if (target_of(in, dims, i) != o) continue;
        double v = get(in, i);
        sum += v;
        prod *= v;
        squares += (long double)v * v;
        exps += expl(v);
        any |= v != 0;
        all &= v != 0;
        if (count == 0 || v != v)
            best = v;
        else if (best == best && (kind == RLE_REDUCE_MAX ? v > best : v < best))
            best = v;
        count++;
    }
    switch (kind) {
    case RLE_REDUCE_SUM: return (double)sum;
    case RLE_REDUCE_MEAN: return (double)(sum / count);
    case RLE_REDUCE_PROD: return (double)prod;
    case RLE_REDUCE_MAX:
    case RLE_REDUCE_MIN: return (double)best;
    case RLE_REDUCE_LOGSUMEXP: return (double)logl(exps);
    case RLE_REDUCE_SUMSQ: return (double)squares;
    case RLE_REDUCE_ANY: return any;
    default: return all;
    }
}

static void reduce_shape(int *ndim, int64_t *shape)
{
    static const int64_t sizes[] = {1, 2, 3, 5, 8, 16, 17, 31, 64, 300};
    *ndim = below(4) + 1;
    for (;;) {
        int64_t n = 1;
        for (int d = 0; d < *ndim; d++) n *= shape[d] = sizes[below(10)];
        if (n <= 3000) return;
    }
}

static void reductions_match_plain_c(void **state)
{
    (void)state;
    const rle_device_ops *ops = rle_cpu_ops();
    for (int round = 0; round < 300; round++) {
        rle_reduce_kind kind = below(RLE_REDUCE_COUNT);
        rle_dtype t = all_dtypes[below(6)];
        bool floats_only = kind == RLE_REDUCE_MEAN || kind == RLE_REDUCE_LOGSUMEXP ||
                           kind == RLE_REDUCE_SUMSQ;
        if (floats_only) t = below(2) ? RLE_F32 : RLE_F64;
        int ndim;
        int64_t shape[RLE_MAX_DIMS], out_shape[RLE_MAX_DIMS];
        reduce_shape(&ndim, shape);
        uint32_t dims = rnd() & ((1u << ndim) - 1);
        for (int d = 0; d < ndim; d++) out_shape[d] = dims >> d & 1 ? 1 : shape[d];
        rle_dtype to = kind == RLE_REDUCE_ANY || kind == RLE_REDUCE_ALL ? RLE_BOOL
                       : kind == RLE_REDUCE_SUM && !rle_dtype_is_float(t) ? RLE_I64
                                                                          : t;
        box in = box_new(t, ndim, shape, (layout)below(LAYOUTS));
        box_fill(&in);
        bool prod = kind == RLE_REDUCE_PROD;
        int64_t n = rle_array_numel(&in.a), outs = 1;
        for (int d = 0; d < ndim; d++) outs *= out_shape[d];
        for (int64_t i = 0; prod && i < n; i++) /* keep products within reach */
            put(&in.a, i, rle_dtype_is_float(t) ? 0.9 + unit() * 0.2 : below(200) ? 1 : 2);
        box first = box_new(to, ndim, out_shape, (layout)below(BROADCAST));
        bool started = false;
        for (FOR_EACH_ISA(i)) {
            box out = box_copy(&first);
            assert_int_equal(ops->reduce(NULL, kind, &out.a, &in.a, dims), RLE_OK);
            box_check(&out);
            if (started) {
                same_bits(&out.a, &first.a, check_isas[i]);
                box_free(&out);
                continue;
            }
            started = true;
            box_free(&first);
            first = out;
            for (int64_t o = 0; o < outs && o < 40; o++) {
                double want = reduce_reference(kind, &in.a, dims, o);
                double got = get(&out.a, o);
                double slack = t == RLE_F32 ? 3e-4 : 1e-11;
                if (prod) slack *= fabs(want);
                if (!rle_dtype_is_float(to)) slack = 0;
                if (prod && !rle_dtype_is_float(t)) {
                    int64_t modulus = t == RLE_U8 ? 256 : t == RLE_BOOL ? 2 : 0;
                    if (modulus || want > 1e9) continue;
                }
                if (!near(to, got, want, 4, slack))
                    fail_msg("reduction %d of %s: %.9g, not %.9g", kind, rle_dtype_name(t),
                             got, want);
            }
        }
        /* The same values in another layout. */
        box other = box_new(t, ndim, shape, SPREAD);
        for (int64_t i = 0; i < n; i++)
            memcpy(at(&other.a, i), at(&in.a, i), rle_dtype_size(t));
        box again = box_new(to, ndim, out_shape, PERMUTED);
        assert_int_equal(ops->reduce(NULL, kind, &again.a, &other.a, dims), RLE_OK);
        same_bits(&again.a, &first.a, "other strides");
        box_free(&again);
        box_free(&other);
        box_free(&first);
        box_free(&in);
    }
}

static void a_row_alone_sums_as_in_a_batch(void **state)
{
    (void)state;
    const rle_device_ops *ops = rle_cpu_ops();
    static const int64_t cols[] = {1, 2, 5, 15, 16, 17, 100, 255, 256, 257, 1000};
    for (size_t c = 0; c < sizeof(cols) / sizeof(cols[0]); c++) {
        int64_t shape[2] = {37, cols[c]}, out_shape[2] = {37, 1};
        for (int kind = 0; kind <= RLE_REDUCE_SUMSQ; kind++) {
            box in = box_new(RLE_F32, 2, shape, DENSE), out = box_new(RLE_F32, 2, out_shape, DENSE);
            box_fill(&in);
            assert_int_equal(ops->reduce(NULL, kind, &out.a, &in.a, 2), RLE_OK);
            for (int64_t r = 0; r < 37; r++) {
                rle_array row = in.a;
                row.data = (float *)in.a.data + r * cols[c];
                row.shape[0] = 1;
                float one;
                rle_array o = {&one, RLE_F32, 2, {1, 1}, {1, 1}};
                assert_int_equal(ops->reduce(NULL, kind, &o, &row, 2), RLE_OK);
                assert_memory_equal(&one, (float *)out.a.data + r, 4);
            }
            box_free(&in);
            box_free(&out);
        }
    }
}

/* The order that kernels/fold.h states, for f32, in plain C. */
static double ordered_sum(const float *x, int64_t n, int64_t step)
{
    double chunks = 0, blocks = 0;
    for (int64_t b = 0; b < n; b += 256) {
        float lane[16] = {0};
        for (int64_t k = b; k < n && k < b + 256; k++) lane[k % 16] += x[k * step];
        for (int half = 8; half > 0; half /= 2)
            for (int l = 0; l < half; l++) lane[l] += lane[l + half];
        if (b % 65536 == 0) {
            chunks += blocks;
            blocks = 0;
        }
        blocks += (double)lane[0];
    }
    return chunks + blocks;
}

/* Sums longer than a chunk along a run, side by side and in softmax; running sums, which
 * are in order within blocks. */
static void long_sums_have_the_stated_order(void **state)
{
    (void)state;
    const rle_device_ops *ops = rle_cpu_ops();
    int64_t n = 3 * 65536 + 700, wide = 5;
    int64_t shape[2] = {n, wide}, out_shape[2] = {1, wide};
    box x = box_new(RLE_F32, 2, shape, DENSE), sums = box_new(RLE_F32, 2, shape, DENSE);
    box_fill(&x);
    const float *in = x.a.data;
    for (FOR_EACH_ISA(isa)) {
        box out = box_new(RLE_F32, 2, out_shape, DENSE);
        assert_int_equal(ops->reduce(NULL, RLE_REDUCE_SUM, &out.a, &x.a, 1), RLE_OK);
        for (int c = 0; c < wide; c++)
            assert_true(((float *)out.a.data)[c] == (float)ordered_sum(in + c, n, wide));
        float one, want, *y = malloc((size_t)n * sizeof *y);
        rle_array line = {x.a.data, RLE_F32, 1, {n}, {1}},
                  to = {&one, RLE_F32, 1, {1}, {1}};
        assert_int_equal(ops->reduce(NULL, RLE_REDUCE_SUM, &to, &line, 1), RLE_OK);
        assert_true(one == (float)ordered_sum(in, n, 1));
        /* The gradient of log_softmax where y is 0 is gout less the sum of gout. */
        float *zero = calloc((size_t)n, sizeof *zero);
        rle_array gin = line, out_y = line;
        gin.data = y;
        out_y.data = zero;
        assert_int_equal(ops->softmax_backward(NULL, true, &gin, &line, &out_y, 0),
                         RLE_OK);
        want = in[7] - (float)ordered_sum(in, n, 1);
        assert_true(y[7] == want);
        free(y);
        free(zero);
        box_free(&out);
    }
    assert_int_equal(ops->cumsum(NULL, &sums.a, &x.a, 0, false), RLE_OK);
    for (int c = 0; c < wide; c++) {
        double chunks = 0, blocks = 0, sum = 0;
        for (int64_t k = 0; k < n; k++) {
            if (k > 0 && k % 256 == 0) {
                blocks += sum;
                sum = 0;
            }
            if (k > 0 && k % 65536 == 0) {
                chunks += blocks;
                blocks = 0;
            }
            sum += (double)in[k * wide + c];
            assert_true(((float *)sums.a.data)[k * wide + c] ==
                        (float)(chunks + blocks + sum));
        }
    }
    box_free(&x);
    box_free(&sums);
}

static void infinities_and_nan_reduce_as_in_pytorch(void **state)
{
    (void)state;
    const rle_device_ops *ops = rle_cpu_ops();
    for (FOR_EACH_ISA(isa)) {
        for (int n = 1; n <= 40; n += 13) {
            float x[40], y;
            rle_array in = {x, RLE_F32, 1, {n}, {1}}, out = {&y, RLE_F32, 1, {1}, {1}};
            for (int i = 0; i < n; i++) x[i] = -INFINITY;
            ops->reduce(NULL, RLE_REDUCE_LOGSUMEXP, &out, &in, 1);
            assert_true(y == -INFINITY);
            ops->reduce(NULL, RLE_REDUCE_MAX, &out, &in, 1);
            assert_true(y == -INFINITY);
            x[n / 2] = INFINITY;
            ops->reduce(NULL, RLE_REDUCE_LOGSUMEXP, &out, &in, 1);
            assert_true(y == INFINITY);
            x[n - 1] = NAN;
            ops->reduce(NULL, RLE_REDUCE_MAX, &out, &in, 1);
            assert_true(y != y);
            ops->reduce(NULL, RLE_REDUCE_MIN, &out, &in, 1);
            assert_true(y != y);
            ops->reduce(NULL, RLE_REDUCE_LOGSUMEXP, &out, &in, 1);
            assert_true(y != y);
            ops->reduce(NULL, RLE_REDUCE_SUM, &out, &in, 1);
            assert_true(y != y);
        }
        float none;
        rle_array empty = {&none, RLE_F32, 1, {0}, {1}}, out = {&none, RLE_F32, 1, {1}, {1}};
        bool flag;
        rle_array yes = {&flag, RLE_BOOL, 1, {1}, {1}};
        ops->reduce(NULL, RLE_REDUCE_SUM, &out, &empty, 1);
        assert_true(none == 0);
        ops->reduce(NULL, RLE_REDUCE_PROD, &out, &empty, 1);
        assert_true(none == 1);
        ops->reduce(NULL, RLE_REDUCE_ANY, &yes, &empty, 1);
        assert_false(flag);
        ops->reduce(NULL, RLE_REDUCE_ALL, &yes, &empty, 1);
        assert_true(flag);
    }
}

static void softmax_matches_plain_c(void **state)
{
    (void)state;
    const rle_device_ops *ops = rle_cpu_ops();
    for (int round = 0; round < 200; round++) {
        rle_dtype t = below(2) ? RLE_F32 : RLE_F64;
        bool logarithm = below(2);
        int ndim;
        int64_t shape[RLE_MAX_DIMS];
        reduce_shape(&ndim, shape);
        int dim = below(ndim);
        box in = box_new(t, ndim, shape, (layout)below(LAYOUTS));
        box g = box_new(t, ndim, shape, (layout)below(LAYOUTS));
        box_fill(&in);
        box_fill(&g);
        box first = box_new(t, ndim, shape, (layout)below(BROADCAST));
        box grad = box_new(t, ndim, shape, (layout)below(BROADCAST));
        int64_t n = rle_array_numel(&in.a);
        bool started = false;
        for (FOR_EACH_ISA(i)) {
            box out = box_copy(&first), gin = box_copy(&grad);
            assert_int_equal(ops->softmax(NULL, logarithm, &out.a, &in.a, dim), RLE_OK);
            assert_int_equal(
                ops->softmax_backward(NULL, logarithm, &gin.a, &g.a, &out.a, dim),
                RLE_OK);
            box_check(&out);
            box_check(&gin);
            if (started) {
                same_bits(&out.a, &first.a, check_isas[i]);
                same_bits(&gin.a, &grad.a, check_isas[i]);
                box_free(&out);
                box_free(&gin);
                continue;
            }
            started = true;
            box_free(&first);
            box_free(&grad);
            first = out;
            grad = gin;
            double *sums = calloc((size_t)n, sizeof(double));
            double *dots = calloc((size_t)n, sizeof(double));
            for (int64_t e = 0; e < n; e++) {
                int64_t o = target_of(&in.a, 1u << dim, e);
                sums[o] += exp(get(&in.a, e));
                dots[o] += get(&g.a, e) * (logarithm ? 1 : get(&out.a, e));
            }
            for (int64_t e = 0; e < n; e++) {
                int64_t o = target_of(&in.a, 1u << dim, e);
                double x = get(&in.a, e), y = get(&out.a, e);
                double want = logarithm ? x - log(sums[o]) : exp(x) / sums[o];
                double slack = t == RLE_F32 ? 2e-6 : 1e-13;
                if (!near(t, y, want, 8, slack)) fail_msg("softmax %.9g, not %.9g", y, want);
                want = logarithm ? get(&g.a, e) - exp(y) * dots[o]
                                 : y * (get(&g.a, e) - dots[o]);
                if (!near(t, get(&gin.a, e), want, 8, slack * 100))
                    fail_msg("softmax gradient %.9g, not %.9g", get(&gin.a, e), want);
            }
            free(sums);
            free(dots);
        }
        /* In place, and other strides. */
        box same = box_copy(&first);
        for (int64_t e = 0; e < n; e++)
            memcpy(at(&same.a, e), at(&in.a, e), rle_dtype_size(t));
        assert_int_equal(ops->softmax(NULL, logarithm, &same.a, &same.a, dim), RLE_OK);
        same_bits(&same.a, &first.a, "in place");
        box_free(&same);
        same = box_new(t, ndim, shape, SPREAD);
        assert_int_equal(ops->softmax(NULL, logarithm, &same.a, &in.a, dim), RLE_OK);
        same_bits(&same.a, &first.a, "other strides");
        box_free(&same);
        box_free(&first);
        box_free(&grad);
        box_free(&in);
        box_free(&g);
    }
    for (int n = 2; n <= 600; n += 299) {
        float x[601];
        rle_array a = {x, RLE_F32, 1, {n}, {1}};
        for (int i = 0; i < n; i++) x[i] = -INFINITY;
        ops->softmax(NULL, false, &a, &a, 0);
        assert_true(x[0] != x[0] && x[n - 1] != x[n - 1]);
        for (int i = 0; i < n; i++) x[i] = i ? -INFINITY : 3;
        ops->softmax(NULL, true, &a, &a, 0);
        assert_true(x[0] == 0 && x[n - 1] == -INFINITY);
        for (int i = 0; i < n; i++) x[i] = i ? 0 : NAN;
        ops->softmax(NULL, false, &a, &a, 0);
        assert_true(x[n - 1] != x[n - 1]);
    }
}

static void extremes_and_running_sums_match_plain_c(void **state)
{
    (void)state;
    const rle_device_ops *ops = rle_cpu_ops();
    for (int round = 0; round < 300; round++) {
        rle_dtype t = all_dtypes[below(6)];
        int ndim;
        int64_t shape[RLE_MAX_DIMS], out_shape[RLE_MAX_DIMS];
        reduce_shape(&ndim, shape);
        int dim = below(ndim);
        memcpy(out_shape, shape, sizeof(shape));
        out_shape[dim] = 1;
        box in = box_new(t, ndim, shape, (layout)below(LAYOUTS));
        box_fill(&in);
        int64_t n = rle_array_numel(&in.a), len = shape[dim];
        if (rle_dtype_is_float(t) && below(2))
            for (int64_t i = 0; i < n; i++)
                if (below(20) == 0) put(&in.a, i, NAN);
        box index = box_new(RLE_I64, ndim, out_shape, (layout)below(BROADCAST));
        box value = box_new(t, ndim, out_shape, (layout)below(BROADCAST));
        bool largest = below(2), reverse = below(2);
        assert_int_equal(ops->arg_reduce(NULL, largest, &value.a, &index.a, &in.a, dim),
                         RLE_OK);
        box_check(&index);
        box_check(&value);
        rle_dtype to = rle_dtype_is_float(t) ? t : RLE_I64;
        box sums = box_new(to, ndim, shape, (layout)below(BROADCAST));
        assert_int_equal(ops->cumsum(NULL, &sums.a, &in.a, dim, reverse), RLE_OK);
        box_check(&sums);
        for (int64_t i = 0; i < n; i++) {
            int64_t o = target_of(&in.a, 1u << dim, i), inner = 1;
            for (int d = dim + 1; d < ndim; d++) inner *= shape[d];
            int64_t k = i / inner % len, start = i - k * inner;
            if (k == 0) {
                int64_t best = 0;
                for (int64_t j = 1; j < len; j++) {
                    double v = get(&in.a, start + j * inner), b = get(&in.a, start + best * inner);
                    if (b != b) break;
                    if (v != v || (largest ? v > b : v < b)) best = j;
                }
                assert_int_equal(get_int(&index.a, o), best);
                double v = get(&value.a, o), b = get(&in.a, start + best * inner);
                assert_true(v == b || (v != v && b != b));
            }
            double sum = 0;
            for (int64_t j = 0; j < len; j++)
                if (reverse ? j >= k : j <= k) sum += get(&in.a, start + j * inner);
            if (!near(to, get(&sums.a, i), sum, 1, t == RLE_F64 ? 1e-10 : 0))
                fail_msg("running sum %.9g, not %.9g", get(&sums.a, i), sum);
        }
        box_free(&in);
        box_free(&index);
        box_free(&value);
        box_free(&sums);
    }
}

static void sort_is_stable_and_puts_nan_last(void **state)
{
    (void)state;
    const rle_device_ops *ops = rle_cpu_ops();
    for (int round = 0; round < 200; round++) {
        rle_dtype t = all_dtypes[below(6)];
        int ndim;
        int64_t shape[RLE_MAX_DIMS];
        reduce_shape(&ndim, shape);
        int dim = below(ndim);
        bool descending = below(2);
        box in = box_new(t, ndim, shape, (layout)below(LAYOUTS));
        int64_t n = rle_array_numel(&in.a), len = shape[dim], inner = 1;
        for (int64_t i = 0; i < n; i++) put(&in.a, i, below(20)); /* many ties */
        if (rle_dtype_is_float(t))
            for (int64_t i = 0; i < n; i++)
                if (below(10) == 0) put(&in.a, i, below(2) ? NAN : -INFINITY);
        box value = box_new(t, ndim, shape, (layout)below(BROADCAST));
        box index = box_new(RLE_I64, ndim, shape, (layout)below(BROADCAST));
        assert_int_equal(ops->sort(NULL, &value.a, &index.a, &in.a, dim, descending),
                         RLE_OK);
        box_check(&value);
        box_check(&index);
        for (int d = dim + 1; d < ndim; d++) inner *= shape[d];
        char *seen = malloc((size_t)len);
        for (int64_t start = 0; start < n; start++) {
            if (start / inner % len != 0) continue;
            memset(seen, 0, (size_t)len);
            for (int64_t i = start; i < start + len * inner; i += inner) {
                int64_t from = get_int(&index.a, i);
                assert_true(from >= 0 && from < len && !seen[from]);
                seen[from] = 1;
                double v = get(&value.a, i), w = get(&in.a, start + from * inner);
                assert_true(v == w || (v != v && w != w));
                if (i == start) continue;
                double before = get(&value.a, i - inner);
                if (before == v || (before != before && v != v))
                    assert_true(get_int(&index.a, i - inner) < from);
                else if (descending)
                    assert_true(before != before || before > v);
                else
                    assert_true(v != v || before < v);
            }
        }
        free(seen);
        box_free(&in);
        box_free(&value);
        box_free(&index);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reductions_match_plain_c),
        cmocka_unit_test(a_row_alone_sums_as_in_a_batch),
        cmocka_unit_test(long_sums_have_the_stated_order),
        cmocka_unit_test(infinities_and_nan_reduce_as_in_pytorch),
        cmocka_unit_test(softmax_matches_plain_c),
        cmocka_unit_test(extremes_and_running_sums_match_plain_c),
        cmocka_unit_test(sort_is_stable_and_puts_nan_last),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
