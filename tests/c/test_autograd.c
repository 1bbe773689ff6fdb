/* test_autograd.c - every differentiable row of the table against finite differences; the
 * rules of the tape: accumulation, freed graphs, in-place changes, depth, nothing left
 * over. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "autograd/autograd.h"
#include "base/mem.h"

static rle_device *cpu(void)
{
    return rle_device_cpu();
}

#define OK(call) assert_int_equal_or_say((call), __FILE__, __LINE__)
static void assert_int_equal_or_say(rle_status status, const char *file, int line)
{
    if (status == RLE_OK) return;
    print_error("%s:%d: %s: %s\n", file, line, rle_status_name(status), rle_message());
    fail();
}

/* f64 tensor of values in [low, high), away from the kinks of relu, abs and rounding. */
static rle_tensor *sample(int ndim, const int64_t *shape, double low, double high)
{
    rle_tensor *t;
    OK(rle_tensor_new(cpu(), RLE_F64, ndim, shape, &t));
    OK(rle_op_random(RLE_RANDOM_UNIFORM, t, low, high));
    double *v = t->a.data;
    for (int64_t i = 0; i < rle_tensor_numel(t); i++) {
        double fraction = v[i] - floor(v[i]);
        if (fraction < 0.02 || fraction > 0.98 || fabs(fraction - 0.5) < 0.02)
            v[i] += 0.05;
    }
    return t;
}

static rle_tensor *index_of(int ndim, const int64_t *shape, int64_t below)
{
    rle_tensor *t;
    OK(rle_tensor_new(cpu(), RLE_I64, ndim, shape, &t));
    OK(rle_op_random(RLE_RANDOM_INTEGER, t, 0, (double)below));
    return t;
}

static void check(rle_op_id id, rle_tensor **in, int nin, uint32_t wrt,
                  const rle_op_args *args)
{
    double worst;
    OK(rle_gradcheck(id, in, nin, wrt, args, &worst));
    if (!(worst < 1e-6)) {
        print_error("%s: gradient off by %g\n", rle_ops[id].name, worst);
        fail();
    }
}

static void release_all(rle_tensor **in, int nin)
{
    for (int i = 0; i < nin; i++) rle_tensor_release(in[i]);
}

static const int64_t s23[] = {2, 3}, s3[] = {3}, s234[] = {2, 3, 4}, s43[] = {4, 3},
                     s34[] = {3, 4}, s1[] = {1}, s21[] = {2, 1};

/* Inputs a family wants; returns how many checks ran. */
static int check_row(rle_op_id id)
{
    const rle_op *op = &rle_ops[id];
    rle_op_args args;
    memset(&args, 0, sizeof args);
    rle_tensor *in[4] = {0};
    int checks = 0;
    switch (op->family) {
    case RLE_FAMILY_UNARY: {
        bool positive = id == RLE_OP_LOG || id == RLE_OP_SQRT || id == RLE_OP_RSQRT ||
                        id == RLE_OP_LOG1P || id == RLE_OP_RECIPROCAL;
        args.p0 = -0.7;
        args.p1 = 0.9;
        in[0] = sample(3, s234, positive ? 0.3 : -1.8, 2.2);
        check(id, in, 1, 1, &args);
        checks = 1;
        break;
    }
    case RLE_FAMILY_BINARY: {
        bool positive = id == RLE_OP_POW || id == RLE_OP_DIV || id == RLE_OP_REMAINDER;
        static const struct {
            int na, nb;
            const int64_t *a, *b;
        } shapes[] = {
            {2, 2, s23, s23}, {2, 1, s23, s3}, {1, 2, s3, s21}, {0, 2, NULL, s23}};
        for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
            in[0] = sample(shapes[k].na, shapes[k].a, positive ? 0.3 : -1.6, 2.4);
            in[1] = sample(shapes[k].nb, shapes[k].b, positive ? 0.3 : -1.6, 1.9);
            check(id, in, 2, 3, NULL);
            release_all(in, 2);
            checks++;
        }
        args.scalar = true;
        args.p0 = 1.3;
        for (int reversed = 0; reversed < 2; reversed++) {
            args.reversed = reversed;
            in[0] = sample(2, s23, 0.3, 2.4);
            check(id, in, 1, 1, &args);
            release_all(in, 1);
            checks++;
        }
        return checks;
    }
    case RLE_FAMILY_REDUCE: {
        static const uint32_t dims[] = {0, 1, 2, 4, 5, 7};
        for (size_t k = 0; k < sizeof dims / sizeof *dims; k++) {
            for (int keep = 0; keep < 2; keep++) {
                in[0] = sample(3, s234, -1.5, 2);
                if (id == RLE_OP_PROD) ((double *)in[0]->a.data)[5] = 0; /* zeros count */
                args.dims = dims[k];
                args.keepdim = keep;
                check(id, in, 1, 1, &args);
                release_all(in, 1);
                checks++;
            }
        }
        return checks;
    }
    case RLE_FAMILY_SOFTMAX:
    case RLE_FAMILY_CUMSUM:
        for (args.dim = 0; args.dim < 3; args.dim++) {
            in[0] = sample(3, s234, -2, 2);
            check(id, in, 1, 1, &args);
            release_all(in, 1);
            checks++;
        }
        return checks;
    case RLE_FAMILY_WHERE: {
        rle_tensor *r = sample(2, s23, -1, 1);
        OK(rle_op_binary_scalar(RLE_BINARY_GT, r, 0, false, &in[0]));
        rle_tensor_release(r);
        in[1] = sample(2, s23, -1, 1);
        in[2] = sample(1, s3, -1, 1);
        check(id, in, 3, 6, NULL);
        checks = 1;
        break;
    }
    case RLE_FAMILY_MATMUL: {
        static const struct {
            int na, nb;
            int64_t a[4], b[4];
        } shapes[] = {{1, 1, {4}, {4}},
                      {2, 1, {3, 4}, {4}},
                      {1, 2, {3}, {3, 5}},
                      {2, 2, {3, 4}, {4, 2}},
                      {3, 3, {2, 3, 4}, {2, 4, 2}},
                      {3, 2, {2, 3, 4}, {4, 2}},
                      {2, 3, {3, 4}, {2, 4, 2}},
                      {1, 3, {4}, {2, 4, 3}},
                      {3, 1, {2, 3, 4}, {4}},
                      {4, 3, {2, 1, 3, 4}, {3, 4, 2}}};
        for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
            in[0] = sample(shapes[k].na, shapes[k].a, -1, 1);
            in[1] = sample(shapes[k].nb, shapes[k].b, -1, 1);
            check(id, in, 2, 3, NULL);
            release_all(in, 2);
            checks++;
        }
        return checks;
    }
    case RLE_FAMILY_LINEAR:
        for (int bias = 0; bias < 2; bias++) {
            for (int ndim = 1; ndim <= 3; ndim++) {
                const int64_t *shape = ndim == 1   ? s3
                                       : ndim == 2 ? s43
                                                   : (const int64_t[]){2, 2, 3};
                in[0] = sample(ndim, shape, -1, 1);
                in[1] = sample(2, (const int64_t[]){5, 3}, -1, 1);
                in[2] = sample(1, (const int64_t[]){5}, -1, 1);
                check(id, in, bias ? 3 : 2, bias ? 7 : 3, NULL);
                release_all(in, 3);
                checks++;
            }
        }
        return checks;
    case RLE_FAMILY_SELECT:
    case RLE_FAMILY_NARROW:
        for (args.dim = 0; args.dim < 3; args.dim++) {
            args.i0 = 1;
            args.i1 = 1;
            in[0] = sample(3, s234, -1, 1);
            check(id, in, 1, 1, &args);
            release_all(in, 1);
            checks++;
        }
        return checks;
    case RLE_FAMILY_PERMUTE:
        in[0] = sample(3, s234, -1, 1);
        args.shape[0] = 2;
        args.shape[1] = 0;
        args.shape[2] = 1;
        check(id, in, 1, 1, &args);
        checks = 1;
        break;
    case RLE_FAMILY_VIEW:
        in[0] = sample(3, s234, -1, 1);
        args.ndim = 2;
        args.shape[0] = -1;
        args.shape[1] = 6;
        check(id, in, 1, 1, &args);
        checks = 1;
        break;
    case RLE_FAMILY_EXPAND:
        in[0] = sample(2, s21, -1, 1);
        args.ndim = 3;
        args.shape[0] = 3;
        args.shape[1] = -1;
        args.shape[2] = 4;
        check(id, in, 1, 1, &args);
        checks = 1;
        break;
    case RLE_FAMILY_COPY:
        in[0] = sample(2, s23, -1, 1);
        check(id, in, 1, 1, NULL);
        checks = 1;
        break;
    case RLE_FAMILY_TO:
        in[0] = sample(2, s23, -1, 1);
        args.dtype = RLE_F64;
        args.device = cpu();
        check(id, in, 1, 1, &args);
        checks = 1;
        break;
    case RLE_FAMILY_GATHER:
        in[0] = sample(2, s34, -1, 1);
        in[1] = index_of(2, s23, 3); /* repeats: gradients add */
        args.dim = 1;
        check(id, in, 2, 1, &args);
        checks = 1;
        break;
    case RLE_FAMILY_INDEX_SELECT:
        in[0] = sample(2, s34, -1, 1);
        in[1] = index_of(1, (const int64_t[]){6}, 3);
        check(id, in, 2, 1, &args);
        checks = 1;
        break;
    case RLE_FAMILY_CAT:
        for (int i = 0; i < 4; i++) in[i] = sample(2, s23, -1, 1);
        args.dim = 1;
        check(id, in, 4, 15, &args);
        release_all(in, 4);
        return 1;
    case RLE_FAMILY_DROPOUT:
        in[0] = sample(2, s34, 0.5, 1);
        OK(rle_op_row_keys(cpu(), 3, &in[1]));
        args.p0 = 0.4;
        args.seed = 5;
        check(id, in, 2, 1, &args);
        checks = 1;
        break;
    case RLE_FAMILY_COPY_INTO: { /* in place only: x.clone().copy_(y) */
        rle_tensor *target, *x = sample(2, s23, -1, 1), *y = sample(1, s3, -1, 1);
        OK(rle_set_requires_grad(x, true));
        OK(rle_set_requires_grad(y, true));
        OK(rle_apply(RLE_OP_CLONE, &x, 1, NULL, &target));
        rle_tensor *pair[2] = {target, y}, *sum;
        OK(rle_apply_inplace(id, pair, 2, NULL));
        OK(rle_apply(RLE_OP_SUM, &target, 1, NULL, &sum));
        OK(rle_backward(sum, NULL, false));
        for (int i = 0; i < 6; i++) assert_true(((double *)x->grad->a.data)[i] == 0);
        for (int i = 0; i < 3; i++) assert_true(((double *)y->grad->a.data)[i] == 2);
        rle_tensor_release(sum);
        rle_tensor_release(target);
        rle_tensor_release(x);
        rle_tensor_release(y);
        return 1;
    }
    case RLE_FAMILY_CUSTOM: /* has no formula of its own: test_custom below */
        return 1;
    default:
        return 0;
    }
    release_all(in, 3);
    return checks;
}

static void every_row_agrees_with_finite_differences(void **state)
{
    (void)state;
    rle_random_seed(3);
    for (int id = 0; id < RLE_OP_COUNT; id++) {
        if (!rle_ops[id].differentiable) continue;
        if (check_row((rle_op_id)id) == 0) {
            print_error("%s is differentiable and has no check\n", rle_ops[id].name);
            fail();
        }
    }
}

static rle_tensor *leaf(double value)
{
    rle_tensor *t = NULL;
    OK(rle_tensor_from_host(cpu(), RLE_F64, 1, s1, &value, &t));
    OK(rle_set_requires_grad(t, true));
    return t;
}

static double first(const rle_tensor *t)
{
    return *(double *)t->a.data;
}

static void gradients_accumulate_and_graphs_are_freed(void **state)
{
    (void)state;
    rle_tensor *x = leaf(3), *y = NULL;
    OK(rle_apply(RLE_OP_SQUARE, &x, 1, NULL, &y));
    OK(rle_backward(y, NULL, true));
    assert_true(first(x->grad) == 6);
    OK(rle_backward(y, NULL, false));
    assert_true(first(x->grad) == 12);
    assert_int_equal(rle_backward(y, NULL, false), RLE_FAILED_PRECONDITION);
    assert_non_null(strstr(rle_message(), "freed by an earlier backward"));
    rle_tensor_release(y);
    rle_tensor_release(x);
}

static void in_place_change_of_a_saved_tensor_is_seen_through_views(void **state)
{
    (void)state;
    rle_tensor *x = leaf(3), *c = NULL, *y = NULL, *view = NULL;
    OK(rle_apply(RLE_OP_CLONE, &x, 1, NULL, &c));
    OK(rle_apply(RLE_OP_SQUARE, &c, 1, NULL, &y));
    OK(rle_op_narrow(c, 0, 0, 1, &view));
    OK(rle_op_fill(view, 5, 5));
    assert_int_equal(rle_backward(y, NULL, false), RLE_FAILED_PRECONDITION);
    assert_non_null(strstr(rle_message(), "changed in place"));
    rle_tensor_release(view);
    rle_tensor_release(y);
    rle_tensor_release(c);
    rle_tensor_release(x);
}

static void in_place_operations_extend_the_graph(void **state)
{
    (void)state;
    rle_tensor *x = leaf(3), *y = NULL;
    rle_op_args two = {.scalar = true, .p0 = 2};
    OK(rle_apply(RLE_OP_CLONE, &x, 1, NULL, &y));
    OK(rle_apply_inplace(RLE_OP_MUL, &y, 1, &two));
    OK(rle_apply_inplace(RLE_OP_ADD, &y, 1, &two));
    OK(rle_apply_inplace(RLE_OP_RELU, &y, 1, NULL));
    OK(rle_backward(y, NULL, false));
    assert_true(first(x->grad) == 2);
    assert_int_equal(rle_apply_inplace(RLE_OP_MUL, &x, 1, &two), RLE_FAILED_PRECONDITION);
    rle_tensor_release(y);
    rle_tensor_release(x);
}

static void a_chain_of_100000_runs_and_dies_without_recursion(void **state)
{
    (void)state;
    rle_tensor *x = leaf(0), *y = rle_tensor_retain(x);
    rle_op_args one = {.scalar = true, .p0 = 1};
    size_t before = rle_node_count();
    for (int i = 0; i < 100000; i++) {
        rle_tensor *next = NULL;
        OK(rle_apply(RLE_OP_ADD, &y, 1, &one, &next));
        rle_tensor_release(y);
        y = next;
    }
    assert_int_equal(rle_node_count(), before + 100000);
    assert_true(first(y) == 100000);
    OK(rle_backward(y, NULL, false));
    assert_true(first(x->grad) == 1);
    rle_tensor_release(y);
    assert_int_equal(rle_node_count(), before);
    /* and one that saves its inputs, dropped without a backward pass */
    rle_tensor *z = rle_tensor_retain(x);
    for (int i = 0; i < 100000; i++) {
        rle_tensor *next = NULL;
        OK(rle_apply(RLE_OP_SQUARE, &z, 1, NULL, &next));
        rle_tensor_release(z);
        z = next;
    }
    rle_tensor_release(z);
    assert_int_equal(rle_node_count(), before);
    rle_tensor_release(x);
}

static void without_recording_nothing_is_kept(void **state)
{
    (void)state;
    rle_tensor *x = leaf(1), *y = NULL;
    size_t before = rle_node_count();
    rle_context_current()->grad_enabled = false;
    OK(rle_apply(RLE_OP_EXP, &x, 1, NULL, &y));
    rle_context_current()->grad_enabled = true;
    assert_false(y->requires_grad);
    assert_int_equal(rle_node_count(), before);
    assert_int_equal(rle_backward(y, NULL, false), RLE_FAILED_PRECONDITION);
    rle_tensor_release(y);
    rle_tensor_release(x);
}

typedef struct doubling {
    rle_custom base;
    int calls, frees;
} doubling;

static rle_status doubling_backward(rle_custom *self, rle_tensor *gout, int nin,
                                    rle_tensor **gin)
{
    (void)nin;
    ((doubling *)self)->calls++;
    return rle_op_binary_scalar(RLE_BINARY_MUL, gout, 2, false, &gin[0]);
}

static void doubling_free(rle_custom *self)
{
    ((doubling *)self)->frees++;
}

static void a_custom_operation_is_called_once_and_freed_once(void **state)
{
    (void)state;
    doubling d = {{"doubling", doubling_backward, doubling_free}, 0, 0};
    rle_tensor *x = leaf(4), *y = NULL;
    OK(rle_op_binary_scalar(RLE_BINARY_MUL, x, 2, false, &y));
    OK(rle_record_custom(&d.base, &x, 1, y));
    OK(rle_backward(y, NULL, false));
    assert_true(first(x->grad) == 2);
    rle_tensor_release(y);
    assert_int_equal(d.calls, 1);
    assert_int_equal(d.frees, 1);
    rle_tensor_release(x);
}

/* After all of the above nothing may be left: bytes, tensors, nodes. */
static int nothing_is_left(void **state)
{
    (void)state;
    rle_memory_stats s;
    rle_device_memory(cpu(), &s);
    if (s.allocated || rle_tensor_count() || rle_node_count()) {
        print_error("left over: %zu bytes, %zu tensors, %zu nodes\n", s.allocated,
                    rle_tensor_count(), rle_node_count());
        return -1;
    }
    return 0;
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, NULL, nothing_is_left)
    const struct CMUnitTest tests[] = {
        TEST(every_row_agrees_with_finite_differences),
        TEST(gradients_accumulate_and_graphs_are_freed),
        TEST(in_place_change_of_a_saved_tensor_is_seen_through_views),
        TEST(in_place_operations_extend_the_graph),
        TEST(a_chain_of_100000_runs_and_dies_without_recursion),
        TEST(without_recording_nothing_is_kept),
        TEST(a_custom_operation_is_called_once_and_freed_once),
    };
    return cmocka_run_group_tests_name("autograd", tests, NULL, NULL);
}
