/* test_optim.c - steps of the optimizers over odd lists: missing gradients, views, other
 * types, no memory. Trajectories against PyTorch are in tests/unit/optim. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "optim/optim.h"
#include "tensor/ops.h"

static rle_tensor *vector(rle_dtype dtype, int64_t n, const double *values)
{
    rle_tensor *t;
    assert_int_equal(rle_tensor_new(rle_device_cpu(), dtype, 1, &n, &t), RLE_OK);
    assert_int_equal(rle_tensor_write_host(t, RLE_F64, values), RLE_OK);
    return t;
}

static double at(const rle_tensor *t, int i)
{
    return t->a.dtype == RLE_F32 ? ((float *)t->a.data)[i * t->a.stride[0]]
                                 : ((double *)t->a.data)[i * t->a.stride[0]];
}

static void set_grad(rle_tensor *t, const double *values)
{
    rle_tensor_release(t->grad);
    t->grad = vector(t->a.dtype, t->a.shape[0], values);
}

static const double ones[3] = {1, 1, 1};
static const double grads[3] = {.1, -.2, .3};

static void adam_moves_by_the_rate_at_first(void **state)
{
    (void)state;
    for (int decoupled = 0; decoupled < 2; decoupled++) {
        rle_tensor *p = vector(RLE_F64, 3, ones);
        set_grad(p, grads);
        rle_optim *o;
        assert_int_equal(rle_optim_new(&p, 1, &o), RLE_OK);
        rle_adam_args args = {.lr = 1e-3, .beta1 = .9, .beta2 = .999, .eps = 1e-8,
                              .decoupled = decoupled};
        assert_int_equal(rle_optim_adam(o, &args), RLE_OK);
        assert_true(fabs(at(p, 0) - .999) < 1e-9);
        assert_true(fabs(at(p, 1) - 1.001) < 1e-9);
        assert_int_equal(rle_optim_steps(o, 0), 1);
        assert_int_equal(rle_optim_state(o, 0, 0)->storage->block.owner, RLE_OWNER_OPTIMIZER);
        rle_optim_free(o);
        rle_tensor_release(p);
    }
}

static void a_parameter_without_gradient_is_left_alone(void **state)
{
    (void)state;
    size_t tensors = rle_tensor_count();
    for (int repeat = 0; repeat < 20; repeat++) {
        rle_tensor *p[3] = {vector(RLE_F32, 3, ones), vector(RLE_F32, 3, ones),
                            vector(RLE_F64, 3, ones)};
        rle_optim *o;
        assert_int_equal(rle_optim_new(p, 3, &o), RLE_OK);
        rle_adam_args args = {.lr = .1, .beta1 = .9, .beta2 = .999, .eps = 1e-8};
        set_grad(p[0], grads);
        uint32_t before = p[1]->storage->version;
        assert_int_equal(rle_optim_adam(o, &args), RLE_OK);
        assert_int_equal(rle_optim_steps(o, 1), 0);
        assert_null(rle_optim_state(o, 1, 0));
        assert_int_equal(p[1]->storage->version, before);
        assert_true(at(p[1], 0) == 1);
        /* Now all three: the first takes its second step, the others their first. */
        set_grad(p[1], grads);
        set_grad(p[2], grads);
        assert_int_equal(rle_optim_adam(o, &args), RLE_OK);
        assert_int_equal(rle_optim_steps(o, 0), 2);
        assert_int_equal(rle_optim_steps(o, 1), 1);
        assert_true(fabs(at(p[1], 0) - .9) < 1e-6);
        assert_true(fabs(at(p[2], 0) - .9) < 1e-6);
        assert_true(fabs(at(p[0], 0) - .8) < 1e-6);
        assert_int_equal(p[1]->storage->version, before + 1);
        assert_int_equal(rle_optim_zero_grad(o, true), RLE_OK);
        assert_true(p[0]->grad && at(p[0]->grad, 0) == 0);
        assert_int_equal(rle_optim_zero_grad(o, false), RLE_OK);
        assert_null(p[0]->grad);
        rle_optim_free(o);
        for (int i = 0; i < 3; i++) rle_tensor_release(p[i]);
    }
    assert_int_equal(rle_tensor_count(), tensors);
}

static void views_are_updated_where_they_lie(void **state)
{
    (void)state;
    double six[6] = {1, 1, 1, 1, 1, 1};
    rle_tensor *base = vector(RLE_F32, 6, six), *view;
    rle_array every_second = base->a;
    every_second.shape[0] = 3;
    every_second.stride[0] = 2;
    assert_int_equal(rle_tensor_view(base, &every_second, &view), RLE_OK);
    /* An expanded gradient, as a sum gives it. */
    rle_tensor *one = vector(RLE_F32, 1, ones), *wide;
    assert_int_equal(rle_op_expand(one, 1, (int64_t[]){3}, &wide), RLE_OK);
    view->grad = wide;
    rle_optim *o;
    assert_int_equal(rle_optim_new(&view, 1, &o), RLE_OK);
    rle_sgd_args args = {.lr = .5};
    assert_int_equal(rle_optim_sgd(o, &args), RLE_OK);
    for (int i = 0; i < 6; i++) assert_true(at(base, i) == (i % 2 ? 1 : .5));
    rle_optim_free(o);
    rle_tensor_release(view);
    rle_tensor_release(base);
    rle_tensor_release(one);
}

static void what_cannot_be_optimized_is_refused(void **state)
{
    (void)state;
    rle_optim *o = NULL;
    rle_tensor *p = vector(RLE_I64, 3, ones), *twice[2];
    assert_int_equal(rle_optim_new(&p, 1, &o), RLE_INVALID_ARGUMENT);
    rle_tensor_release(p);
    twice[0] = twice[1] = vector(RLE_F32, 3, ones);
    assert_int_equal(rle_optim_new(twice, 2, &o), RLE_INVALID_ARGUMENT);
    assert_non_null(strstr(rle_message(), "1 and 2"));
    assert_int_equal(rle_optim_new(twice, 1, &o), RLE_OK);
    /* A gradient of another shape: nothing changes. */
    twice[0]->grad = vector(RLE_F32, 2, ones);
    rle_sgd_args args = {.lr = .5};
    assert_int_equal(rle_optim_sgd(o, &args), RLE_INVALID_ARGUMENT);
    assert_true(at(twice[0], 0) == 1);
    assert_int_equal(rle_optim_set_state(o, 0, 1, 0, twice[0]->grad), RLE_INVALID_ARGUMENT);
    rle_optim_free(o);
    rle_tensor_release(twice[0]);
}

static void without_memory_no_parameter_changes(void **state)
{
    (void)state;
    enum { N = 1 << 18 }; /* 1 MiB each */
    rle_device *cpu = rle_device_cpu();
    rle_tensor *p[2];
    for (int i = 0; i < 2; i++) {
        int64_t n = N;
        assert_int_equal(rle_tensor_new(cpu, RLE_F32, 1, &n, &p[i]), RLE_OK);
        assert_int_equal(rle_tensor_new(cpu, RLE_F32, 1, &n, &p[i]->grad), RLE_OK);
        assert_int_equal(rle_op_fill(p[i], 1, 1), RLE_OK);
        assert_int_equal(rle_op_fill(p[i]->grad, 1, 1), RLE_OK);
    }
    rle_optim *o;
    assert_int_equal(rle_optim_new(p, 2, &o), RLE_OK);
    rle_device_empty_cache(cpu);
    rle_memory_stats stats;
    rle_device_memory(cpu, &stats);
    rle_device_set_limit(cpu, stats.reserved + (5 << 19)); /* room for two of four states */
    rle_adam_args args = {.lr = .1, .beta1 = .9, .beta2 = .999, .eps = 1e-8};
    assert_int_equal(rle_optim_adam(o, &args), RLE_RESOURCE_EXHAUSTED);
    assert_true(at(p[0], 0) == 1 && at(p[1], N - 1) == 1);
    assert_int_equal(rle_optim_steps(o, 0), 0);
    rle_device_set_limit(cpu, 0);
    assert_int_equal(rle_optim_adam(o, &args), RLE_OK);
    assert_true(at(p[0], 0) < 1 && at(p[1], N - 1) < 1);
    assert_int_equal(rle_optim_steps(o, 0), 1);
    rle_optim_free(o);
    rle_tensor_release(p[0]);
    rle_tensor_release(p[1]);
    rle_device_empty_cache(cpu);
    rle_device_memory(cpu, &stats);
    assert_int_equal(stats.allocated, 0);
}

static void clipping(void **state)
{
    (void)state;
    rle_tensor *p[3] = {vector(RLE_F32, 1, ones), vector(RLE_F64, 1, ones),
                        vector(RLE_F32, 1, ones)};
    double norm;
    set_grad(p[0], (double[]){3});
    set_grad(p[1], (double[]){4});
    assert_int_equal(rle_clip_grad_norm(p, 3, .5, 2, &norm), RLE_OK);
    assert_true(norm == 5);
    assert_true(fabs(at(p[0]->grad, 0) - .3) < 1e-6);
    assert_true(fabs(at(p[1]->grad, 0) - .4) < 1e-6);
    assert_int_equal(rle_clip_grad_norm(p, 3, 10, INFINITY, &norm), RLE_OK);
    assert_true(fabs(norm - .4) < 1e-6);
    set_grad(p[0], (double[]){NAN});
    assert_int_equal(rle_clip_grad_norm(p, 3, 10, 2, &norm), RLE_OK);
    assert_true(isnan(norm) && isnan(at(p[1]->grad, 0)));
    set_grad(p[0], (double[]){-7});
    assert_int_equal(rle_clip_grad_value(p, 1, 2), RLE_OK);
    assert_true(at(p[0]->grad, 0) == -2);
    assert_int_equal(rle_clip_grad_norm(p, 3, -1, 2, &norm), RLE_INVALID_ARGUMENT);
    assert_int_equal(rle_clip_grad_norm(p, 3, 1, .5, &norm), RLE_INVALID_ARGUMENT);
    for (int i = 0; i < 3; i++) rle_tensor_release(p[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adam_moves_by_the_rate_at_first),
        cmocka_unit_test(a_parameter_without_gradient_is_left_alone),
        cmocka_unit_test(views_are_updated_where_they_lie),
        cmocka_unit_test(what_cannot_be_optimized_is_refused),
        cmocka_unit_test(without_memory_no_parameter_changes),
        cmocka_unit_test(clipping),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
