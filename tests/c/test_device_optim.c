/* test_device_optim.c - optimizer steps on a device against the CPU: its bits, over few
 * parameters and over more than one launch can name. */
#include "device_check.h"

#include "optim/optim.h"
#include "tensor/ops.h"

enum { MOST = 100, STATES = 4 };

/* Parameters with their gradients and state, here and there. */
typedef struct {
    int count;
    box host[STATES][MOST];
    twin there[STATES][MOST];
    rle_array on_cpu[STATES][MOST], on_dev[STATES][MOST];
} params;

static params p; /* large */

static void make(int count, bool mixed, rle_dtype dtype)
{
    static const int64_t sizes[] = {1,   2,    5,    64,   255,  256,
                                    257, 1023, 1024, 1025, 2100, 0};
    p.count = count;
    for (int i = 0; i < count; i++) {
        int64_t n = sizes[below(12)];
        int64_t shape[2] = {n < 300 ? 1 + below(2) : 1, n};
        if (mixed) dtype = below(2) ? RLE_F32 : RLE_F64;
        for (int k = 0; k < STATES; k++) {
            p.host[k][i] = box_new(dtype, 2, shape, DENSE);
            box_fill(&p.host[k][i]);
            for (int64_t e = 0; k == 3 && e < shape[0] * n; e++)
                put(&p.host[k][i].a, e, fabs(get(&p.host[k][i].a, e)));
            p.there[k][i] = twin_of(&p.host[k][i]);
            p.on_cpu[k][i] = p.host[k][i].a;
            p.on_dev[k][i] = p.there[k][i].a;
        }
    }
}

static void check_and_free(const char *what)
{
    for (int i = 0; i < p.count; i++)
        for (int k = 0; k < STATES; k++) {
            twin_check(&p.there[k][i], 0, 0, what);
            twin_free(&p.there[k][i]);
            box_free(&p.host[k][i]);
        }
}

static const int counts[] = {0, 1, 7, 72, 73, 100};

static void adam_has_the_bits_of_the_cpu(void **state)
{
    (void)state;
    static const rle_adam_args settings[] = {
        {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .step = 1},
        {.lr = 3e-2,
         .beta1 = 0.8,
         .beta2 = 0.99,
         .eps = 1e-5,
         .weight_decay = 0.1,
         .step = 7},
        {.lr = 1e-2,
         .beta1 = 0.9,
         .beta2 = 0.999,
         .eps = 1e-8,
         .weight_decay = 0.02,
         .step = 100000,
         .decoupled = true},
    };
    FOR_EACH_MODE(m)
    {
        for (int c = 0; c < 6; c++)
            for (int s = 0; s < 3; s++) {
                if ((c + s + m) % 3) continue;
                make(counts[c], below(2), below(2) ? RLE_F32 : RLE_F64);
                for (int round = 0; round < 2; round++) {
                    assert_int_equal(cpu->ops->adam(cpu, p.on_cpu[0], p.on_cpu[1],
                                                    p.on_cpu[2], p.on_cpu[3], p.count,
                                                    &settings[s]),
                                     RLE_OK);
                    assert_int_equal(dev->ops->adam(dev, p.on_dev[0], p.on_dev[1],
                                                    p.on_dev[2], p.on_dev[3], p.count,
                                                    &settings[s]),
                                     RLE_OK);
                }
                check_and_free("Adam");
            }
    }
}

static void sgd_has_the_bits_of_the_cpu(void **state)
{
    (void)state;
    static const rle_sgd_args settings[] = {
        {.lr = 0.1},
        {.lr = 0.1, .weight_decay = 0.3},
        {.lr = 0.1, .momentum = 0.9, .first = true},
        {.lr = 0.1, .momentum = 0.9, .dampening = 0.2, .weight_decay = 0.01},
        {.lr = 0.1, .momentum = 0.8, .weight_decay = 0.01, .nesterov = true},
        {.lr = 0.1, .momentum = 0.8, .nesterov = true, .first = true},
    };
    FOR_EACH_MODE(m)
    {
        for (int c = 0; c < 6; c++)
            for (int s = 0; s < 6; s++) {
                const rle_sgd_args *args = &settings[s];
                if ((c + s + m) % 3) continue;
                make(counts[c], below(2), below(2) ? RLE_F32 : RLE_F64);
                if (args->first) /* what was in the buffers must not matter */
                    for (int i = 0; i < p.count; i++) {
                        int64_t n = rle_array_numel(&p.on_cpu[2][i]);
                        for (int64_t e = 0; e < n; e++) put(&p.on_cpu[2][i], e, NAN);
                        twin_free(&p.there[2][i]);
                        p.there[2][i] = twin_of(&p.host[2][i]);
                        p.on_dev[2][i] = p.there[2][i].a;
                    }
                bool momentum = args->momentum != 0;
                assert_int_equal(cpu->ops->sgd(cpu, p.on_cpu[0], p.on_cpu[1],
                                               momentum ? p.on_cpu[2] : NULL, p.count,
                                               args),
                                 RLE_OK);
                assert_int_equal(dev->ops->sgd(dev, p.on_dev[0], p.on_dev[1],
                                               momentum ? p.on_dev[2] : NULL, p.count,
                                               args),
                                 RLE_OK);
                check_and_free("SGD");
            }
    }
}

static void integers_are_refused(void **state)
{
    (void)state;
    rle_array a = {.dtype = RLE_I32, .ndim = 1, .shape = {4}, .stride = {1}};
    rle_adam_args adam = {.lr = 1, .step = 1};
    rle_sgd_args sgd = {.lr = 1};
    assert_int_equal(dev->ops->adam(dev, &a, &a, &a, &a, 1, &adam), RLE_UNIMPLEMENTED);
    assert_int_equal(dev->ops->sgd(dev, &a, &a, NULL, 1, &sgd), RLE_UNIMPLEMENTED);
    assert_non_null(strstr(rle_message(), "i32"));
}

/* ---- optimizers over tensors: the same list here and there ---- */

enum { TENSORS = 5 };

typedef struct {
    rle_tensor *p[TENSORS];
    rle_optim *optim;
} list;

/* Parameters of several sizes, one a transposed view, one without gradient, in turn f32
 * and f64. The same numbers for the same start of the generator. */
static list list_new(rle_device *on, uint64_t start)
{
    static const int64_t shapes[TENSORS][2] = {
        {3, 4}, {1, 1}, {40, 33}, {7, 2}, {1, 257}};
    list l = {0};
    check_state = start;
    for (int i = 0; i < TENSORS; i++) {
        double v[40 * 33];
        rle_dtype t = i % 2 ? RLE_F64 : RLE_F32;
        rle_tensor *made;
        for (int side = 0; side < 2; side++) {
            for (int e = 0; e < 40 * 33; e++) v[e] = (unit() - 0.5) * 4;
            assert_int_equal(rle_tensor_new(on, t, 2, shapes[i], &made), RLE_OK);
            assert_int_equal(rle_tensor_write_host(made, RLE_F64, v), RLE_OK);
            if (i == 3) {
                rle_tensor *view;
                assert_int_equal(rle_op_permute(made, (int64_t[]){1, 0}, &view), RLE_OK);
                rle_tensor_release(made);
                made = view;
            }
            if (side == 0)
                l.p[i] = made;
            else if (i == 1)
                rle_tensor_release(made);
            else
                l.p[i]->grad = made;
        }
    }
    assert_int_equal(rle_optim_new(l.p, TENSORS, &l.optim), RLE_OK);
    return l;
}

static void list_free(list *l)
{
    rle_optim_free(l->optim);
    for (int i = 0; i < TENSORS; i++) rle_tensor_release(l->p[i]);
}

static void same_tensor(rle_tensor *here, rle_tensor *there, const char *what)
{
    rle_tensor *back, *flat;
    assert_int_equal(here != NULL, there != NULL);
    if (!here) return;
    assert_ptr_equal(rle_tensor_device(there), dev);
    assert_int_equal(rle_op_to(there, cpu, there->a.dtype, &back), RLE_OK);
    assert_int_equal(rle_op_contiguous(here, &flat), RLE_OK);
    same_bits(&flat->a, &back->a, what);
    rle_tensor_release(back);
    rle_tensor_release(flat);
}

static void same_lists(const list *here, const list *there, const char *what)
{
    for (int i = 0; i < TENSORS; i++) {
        same_tensor(here->p[i], there->p[i], what);
        same_tensor(here->p[i]->grad, there->p[i]->grad, what);
        for (int k = 0; k < RLE_OPTIM_STATES; k++)
            same_tensor(rle_optim_state(here->optim, i, k),
                        rle_optim_state(there->optim, i, k), what);
    }
}

static rle_status step(rle_optim *o, int kind)
{
    rle_adam_args adam = {.lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8};
    rle_sgd_args sgd = {.lr = 0.1, .momentum = 0.9, .nesterov = true};
    rle_rmsprop_args rms = {.lr = 0.01,
                            .alpha = 0.9,
                            .eps = 1e-8,
                            .weight_decay = 0.1,
                            .momentum = 0.5,
                            .centered = true};
    return kind == 0   ? rle_optim_adam(o, &adam)
           : kind == 1 ? rle_optim_sgd(o, &sgd)
           : kind == 2 ? rle_optim_rmsprop(o, &rms)
                       : rle_optim_zero_grad(o, true);
}

static void optimizers_take_the_same_steps(void **state)
{
    (void)state;
    static const char *const names[] = {"Adam", "SGD", "RMSprop", "zero_grad"};
    FOR_EACH_MODE(m)
    {
        for (int kind = 0; kind < 4; kind++) {
            uint64_t start = 100 + (uint64_t)(10 * m + kind);
            list here = list_new(cpu, start), there = list_new(dev, start);
            for (int i = 0; i < 3; i++) {
                assert_int_equal(step(here.optim, kind), RLE_OK);
                if (step(there.optim, kind) != RLE_OK) fail_msg("%s", rle_message());
            }
            same_lists(&here, &there, names[kind]);
            list_free(&here), list_free(&there);
        }
    }
}

/* The norm, and what it bounds, to the last bit: sums have the CPU's order. */
static void gradients_are_clipped_alike(void **state)
{
    (void)state;
    static const double types[] = {1, 2, 3, INFINITY};
    FOR_EACH_MODE(m)
    {
        for (int i = 0; i < 5; i++) {
            /* pow in double is the C library's, and a GPU has another. */
            if (i == 2 && dev->type != RLE_DEVICE_EMU) continue;
            list here = list_new(cpu, (uint64_t)i), there = list_new(dev, (uint64_t)i);
            double norm = -1, same = -2;
            if (i < 4) {
                assert_int_equal(
                    rle_clip_grad_norm(here.p, TENSORS, 0.5, types[i], &norm), RLE_OK);
                assert_int_equal(
                    rle_clip_grad_norm(there.p, TENSORS, 0.5, types[i], &same), RLE_OK);
                assert_true(norm == same && norm > 0.5);
            } else {
                assert_int_equal(rle_clip_grad_value(here.p, TENSORS, 0.7), RLE_OK);
                assert_int_equal(rle_clip_grad_value(there.p, TENSORS, 0.7), RLE_OK);
            }
            same_lists(&here, &there, "clipped gradients");
            list_free(&here), list_free(&there);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adam_has_the_bits_of_the_cpu),
        cmocka_unit_test(sgd_has_the_bits_of_the_cpu),
        cmocka_unit_test(integers_are_refused),
        cmocka_unit_test(optimizers_take_the_same_steps),
        cmocka_unit_test(gradients_are_clipped_alike),
    };
    return cmocka_run_group_tests(tests, device_setup, device_finish);
}
