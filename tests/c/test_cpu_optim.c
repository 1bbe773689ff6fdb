/* test_cpu_optim.c - optimizer steps of the CPU against PyTorch's formulas in double. */
#include "cpu_check.h"

static void adam_reaches_the_golden_values(void **state)
{
    (void)state;
    const rle_device_ops *ops = rle_cpu_ops();
    static const double grads[3] = {.1, -.2, .3};
    for (FOR_EACH_ISA(isa)) {
        for (int k = 0; k < 2; k++) {
            double p = 1, g, m = 0, v = 0;
            rle_array P = {&p, RLE_F64, 1, {1}, {1}}, G = {&g, RLE_F64, 1, {1}, {1}},
                      M = {&m, RLE_F64, 1, {1}, {1}}, V = {&v, RLE_F64, 1, {1}, {1}};
            rle_adam_args args = {1e-3, .9, .999, k ? 1e-5 : 1e-8, 0, 0, false};
            for (args.step = 1; args.step <= 3; args.step++) {
                g = grads[args.step - 1];
                assert_int_equal(ops->adam(NULL, &P, &G, &M, &V, 1, &args), RLE_OK);
            }
            assert_true(fabs(p - (k ? .9990229552 : .9990228625)) < 1e-10);
        }
    }
}

/* Several parameters at once, several steps; the double-precision formula beside them. */
static void adam_follows_pytorch(void **state)
{
    (void)state;
    const rle_device_ops *ops = rle_cpu_ops();
    static const int64_t sizes[] = {1, 2, 17, 128, 513};
    for (int variant = 0; variant < 6; variant++) {
        rle_dtype t = variant % 2 ? RLE_F64 : RLE_F32;
        rle_adam_args args = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-6,
                              .weight_decay = variant / 2 ? 0.1 : 0, .step = 0,
                              .decoupled = variant / 2 == 2};
        box first[4][5];
        bool started = false;
        for (FOR_EACH_ISA(isa)) {
            check_state = 77;
            box b[4][5];
            rle_array list[4][5];
            double *ref[3][5];
            for (int i = 0; i < 5; i++) {
                for (int k = 0; k < 4; k++) b[k][i] = box_new(t, 1, &sizes[i], DENSE);
                box_fill(&b[0][i]);
                for (int k = 0; k < 3; k++) {
                    ref[k][i] = calloc((size_t)sizes[i], sizeof(double));
                    for (int64_t e = 0; e < sizes[i]; e++) {
                        if (k > 0) put(&b[k + 1][i].a, e, 0);
                        ref[k][i][e] = k ? 0 : get(&b[0][i].a, e);
                    }
                }
            }
            for (args.step = 1; args.step <= 5; args.step++) {
                for (int i = 0; i < 5; i++) {
                    box_fill(&b[1][i]);
                    for (int64_t e = 0; e < sizes[i]; e++) {
                        double *p = &ref[0][i][e], *m = &ref[1][i][e], *v = &ref[2][i][e];
                        double g = get(&b[1][i].a, e);
                        if (args.decoupled)
                            *p *= 1 - args.lr * args.weight_decay;
                        else
                            g += args.weight_decay * *p;
                        *m = args.beta1 * *m + (1 - args.beta1) * g;
                        *v = args.beta2 * *v + (1 - args.beta2) * g * g;
                        double mhat = *m / (1 - pow(args.beta1, (double)args.step));
                        double vhat = *v / (1 - pow(args.beta2, (double)args.step));
                        *p -= args.lr * mhat / (sqrt(vhat) + args.eps);
                    }
                    for (int k = 0; k < 4; k++) list[k][i] = b[k][i].a;
                }
                assert_int_equal(
                    ops->adam(NULL, list[0], list[1], list[2], list[3], 5, &args),
                    RLE_OK);
            }
            for (int i = 0; i < 5; i++) {
                for (int k = 0; k < 4; k++) {
                    box_check(&b[k][i]);
                    if (started) same_bits(&b[k][i].a, &first[k][i].a, check_isas[isa]);
                }
                for (int64_t e = 0; e < sizes[i]; e++)
                    if (!near(t, get(&b[0][i].a, e), ref[0][i][e], 8, t == RLE_F32 ? 1e-6 : 1e-14))
                        fail_msg("Adam: %.9g, not %.9g", get(&b[0][i].a, e), ref[0][i][e]);
                for (int k = 0; k < 3; k++) free(ref[k][i]);
                for (int k = 0; k < 4; k++) {
                    if (started) box_free(&first[k][i]);
                    first[k][i] = b[k][i];
                }
            }
            started = true;
        }
        for (int i = 0; i < 5; i++)
            for (int k = 0; k < 4; k++) box_free(&first[k][i]);
    }
}

static void sgd_follows_pytorch(void **state)
{
    (void)state;
    const rle_device_ops *ops = rle_cpu_ops();
    for (FOR_EACH_ISA(isa)) {
        for (int variant = 0; variant < 16; variant++) {
            rle_dtype t = variant & 1 ? RLE_F64 : RLE_F32;
            rle_sgd_args args = {.lr = 0.1, .momentum = variant & 2 ? 0.9 : 0,
                                 .dampening = variant & 2 && !(variant & 8) ? 0.25 : 0,
                                 .weight_decay = variant & 4 ? 0.05 : 0,
                                 .nesterov = (variant & 8) && (variant & 2)};
            int64_t n = 37;
            box p = box_new(t, 1, &n, DENSE), g = box_new(t, 1, &n, DENSE),
                buf = box_new(t, 1, &n, DENSE);
            double ref[37], mom[37];
            box_fill(&p);
            for (int64_t e = 0; e < n; e++) ref[e] = get(&p.a, e);
            for (int step = 0; step < 4; step++) {
                box_fill(&g);
                args.first = step == 0;
                for (int64_t e = 0; e < n; e++) {
                    double d = get(&g.a, e) + args.weight_decay * ref[e];
                    if (args.momentum != 0) {
                        mom[e] = step ? args.momentum * mom[e] + (1 - args.dampening) * d : d;
                        d = args.nesterov ? d + args.momentum * mom[e] : mom[e];
                    }
                    ref[e] -= args.lr * d;
                }
                assert_int_equal(ops->sgd(NULL, &p.a, &g.a,
                                          args.momentum != 0 ? &buf.a : NULL, 1, &args),
                                 RLE_OK);
            }
            box_check(&p);
            box_check(&buf);
            for (int64_t e = 0; e < n; e++)
                if (!near(t, get(&p.a, e), ref[e], 8, t == RLE_F32 ? 1e-6 : 1e-14))
                    fail_msg("SGD: %.9g, not %.9g", get(&p.a, e), ref[e]);
            box_free(&p);
            box_free(&g);
            box_free(&buf);
        }
    }
}

static void a_wrong_dtype_changes_no_parameter(void **state)
{
    (void)state;
    const rle_device_ops *ops = rle_cpu_ops();
    float p = 1, g = 1;
    int32_t whole = 1;
    rle_array params[2] = {{&p, RLE_F32, 1, {1}, {1}}, {&whole, RLE_I32, 1, {1}, {1}}};
    rle_array grads[2] = {{&g, RLE_F32, 1, {1}, {1}}, {&whole, RLE_I32, 1, {1}, {1}}};
    rle_sgd_args args = {.lr = 1};
    assert_int_equal(ops->sgd(NULL, params, grads, NULL, 2, &args), RLE_UNIMPLEMENTED);
    assert_true(p == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adam_reaches_the_golden_values),
        cmocka_unit_test(adam_follows_pytorch),
        cmocka_unit_test(sgd_follows_pytorch),
        cmocka_unit_test(a_wrong_dtype_changes_no_parameter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
