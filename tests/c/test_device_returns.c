/* test_device_returns.c - advantages and returns: the CPU against a plain loop, a device
 * against the CPU, bit for bit. */
#include "device_check.h"

/* The definition, one column at a time, in long double. */
static long double advantage(const rle_array *r, const rle_array *v, const rle_array *d,
                             const rle_array *last, double gamma, double lambda,
                             int64_t t, int64_t n)
{
    int64_t steps = r->shape[0], columns = r->shape[1], i = t * columns + n;
    if (t == steps) return 0;
    bool done = d && get(d, i) != 0;
    long double value = v ? get(v, i) : 0, next = 0;
    if (t + 1 < steps)
        next = v ? get(v, i + columns) : 0;
    else if (last)
        next = get(last, n);
    long double delta = get(r, i) + (done ? 0 : gamma * next) - value;
    if (done) return delta;
    return delta + (long double)gamma * lambda *
                       advantage(r, v, d, last, gamma, lambda, t + 1, n);
}

typedef struct {
    box r, v, d, last, out;
    bool has_values, has_dones, has_last;
    double gamma, lambda;
} returns_case;

static returns_case some_case(rle_dtype t, int64_t steps, int64_t columns, int which)
{
    int64_t shape[2] = {steps, columns}, row[2] = {1, columns};
    returns_case c = {.r = box_new(t, 2, shape, (layout)below(LAYOUTS)),
                      .v = box_new(t, 2, shape, (layout)below(LAYOUTS)),
                      .d = box_new(RLE_BOOL, 2, shape, (layout)below(LAYOUTS)),
                      .last = box_new(t, 2, row, (layout)below(LAYOUTS)),
                      .out = box_new(t, 2, shape, (layout)below(BROADCAST)),
                      .has_values = which & 1,
                      .has_dones = which & 2,
                      .has_last = which & 4,
                      .gamma = below(4) ? 0.9 + unit() * 0.1 : below(2),
                      .lambda = which & 1 ? unit() : 1};
    box_fill(&c.r), box_fill(&c.v), box_fill(&c.last);
    for (int64_t i = 0; i < steps * columns; i++) put(&c.d.a, i, below(5) == 0);
    return c;
}

static void free_case(returns_case *c)
{
    box_free(&c->r), box_free(&c->v), box_free(&c->d), box_free(&c->last),
        box_free(&c->out);
}

static rle_status run_case(rle_device *on, const returns_case *c, const rle_array *out,
                           const rle_array *r, const rle_array *v, const rle_array *d,
                           const rle_array *last)
{
    return on->ops->gae(on, out, r, c->has_values ? v : NULL, c->has_dones ? d : NULL,
                        c->has_last ? last : NULL, c->gamma, c->lambda);
}

static const int64_t shapes[][2] = {{0, 3}, {3, 0},  {1, 1},    {5, 1},   {7, 1},  {8, 2},
                                    {9, 5}, {1, 70}, {20, 130}, {129, 3}, {300, 1}};
#define SHAPES (int)(sizeof shapes / sizeof *shapes)

static void the_cpu_computes_the_definition(void **state)
{
    (void)state;
    for (int i = 0; i < SHAPES; i++) {
        for (int which = 0; which < 8; which++) {
            rle_dtype t = below(2) ? RLE_F32 : RLE_F64;
            returns_case c = some_case(t, shapes[i][0], shapes[i][1], which);
            assert_int_equal(
                run_case(cpu, &c, &c.out.a, &c.r.a, &c.v.a, &c.d.a, &c.last.a), RLE_OK);
            box_check(&c.out);
            int64_t n = rle_array_numel(&c.out.a), columns = shapes[i][1];
            for (int64_t k = 0; k < n && k < 400; k++) {
                double want = (double)advantage(&c.r.a, c.has_values ? &c.v.a : NULL,
                                                c.has_dones ? &c.d.a : NULL,
                                                c.has_last ? &c.last.a : NULL, c.gamma,
                                                c.lambda, k / columns, k % columns);
                if (!near(t, get(&c.out.a, k), want, 1, t == RLE_F64 ? 1e-12 : 1e-13))
                    fail_msg("case %d,%d: element %lld is %.17g, not %.17g", i, which,
                             (long long)k, get(&c.out.a, k), want);
            }
            free_case(&c);
        }
    }
}

static void devices_are_the_cpu(void **state)
{
    (void)state;
    FOR_EACH_MODE(m)
    {
        for (int i = 0; i < SHAPES; i++) {
            for (int which = 0; which < 8; which++) {
                returns_case c = some_case(below(2) ? RLE_F32 : RLE_F64, shapes[i][0],
                                           shapes[i][1], which);
                twin r = twin_of(&c.r), v = twin_of(&c.v), d = twin_of(&c.d);
                twin last = twin_of(&c.last), out = twin_of(&c.out);
                assert_int_equal(
                    run_case(cpu, &c, &c.out.a, &c.r.a, &c.v.a, &c.d.a, &c.last.a),
                    RLE_OK);
                assert_int_equal(run_case(dev, &c, &out.a, &r.a, &v.a, &d.a, &last.a),
                                 RLE_OK);
                twin_check(&out, 0, 0, "gae");
                twin_free(&r), twin_free(&v), twin_free(&d), twin_free(&last),
                    twin_free(&out);
                free_case(&c);
            }
        }
    }
}

/* What comes after the end of an episode does not get in, not even NaN. */
static void nothing_crosses_the_end_of_an_episode(void **state)
{
    (void)state;
    FOR_EACH_MODE(m)
    {
        int64_t shape[2] = {4, 1}, row[2] = {1, 1};
        box r = box_new(RLE_F32, 2, shape, DENSE), v = box_new(RLE_F32, 2, shape, DENSE);
        box d = box_new(RLE_BOOL, 2, shape, DENSE),
            out = box_new(RLE_F32, 2, shape, DENSE);
        box last = box_new(RLE_F32, 2, row, DENSE);
        for (int i = 0; i < 4; i++) {
            put(&r.a, i, i == 2 ? NAN : 1);
            put(&v.a, i, i == 2 ? INFINITY : 0.5);
            put(&d.a, i, i == 1);
        }
        put(&last.a, 0, 2);
        twin dr = twin_of(&r), dv = twin_of(&v), dd = twin_of(&d), dl = twin_of(&last);
        twin dout = twin_of(&out);
        assert_int_equal(
            dev->ops->gae(dev, &dout.a, &dr.a, &dv.a, &dd.a, &dl.a, 0.5, 0.5), RLE_OK);
        put(&out.a, 3, 1 + 0.5 * 2 - 0.5);
        put(&out.a, 2, NAN);
        put(&out.a, 1, 1 - 0.5);
        put(&out.a, 0, 1 + 0.5 * 0.5 - 0.5 + 0.25 * 0.5);
        twin_check(&dout, 0, 0, "gae across an end");
        twin_free(&dr), twin_free(&dv), twin_free(&dd), twin_free(&dl), twin_free(&dout);
        box_free(&r), box_free(&v), box_free(&d), box_free(&last), box_free(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cpu_computes_the_definition),
        cmocka_unit_test(devices_are_the_cpu),
        cmocka_unit_test(nothing_crosses_the_end_of_an_episode),
    };
    return cmocka_run_group_tests(tests, device_setup, device_finish);
}
