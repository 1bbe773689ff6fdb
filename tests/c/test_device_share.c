/* test_device_share.c - log-probabilities of chosen classes and their gradient on a
 * device against the CPU: its bits; and what is refused, by both in the same words. */
#include "device_check.h"

typedef struct {
    int64_t rows, classes;
    rle_dtype dtype;
} sizes;

static const sizes cases[] = {
    {1, 2, RLE_F32},    {1, 1, RLE_F64},    {5, 2, RLE_F32},     {128, 3, RLE_F64},
    {129, 16, RLE_F32}, {300, 17, RLE_F32}, {40, 1000, RLE_F32}, {3, 33, RLE_F64},
    {1000, 2, RLE_F32}, {0, 4, RLE_F32},
};
enum { CASES = sizeof cases / sizeof *cases };

/* x, the classes, and room for what is computed. */
enum { X, INDEX, OUT, KEPT, GOUT, GX, BOXES };
typedef struct {
    box host[BOXES];
    twin there[BOXES];
} set;

static set set_new(const sizes *s)
{
    set t;
    int64_t wide[2] = {s->rows, s->classes}, one[2] = {s->rows, 1},
            three[2] = {3, s->rows};
    t.host[X] = box_new(s->dtype, 2, wide, DENSE);
    t.host[INDEX] = box_new(RLE_I64, 2, one, DENSE);
    t.host[OUT] = box_new(s->dtype, 2, one, DENSE);
    t.host[KEPT] = box_new(s->dtype, 2, three, DENSE);
    t.host[GOUT] = box_new(s->dtype, 2, one, DENSE);
    t.host[GX] = box_new(s->dtype, 2, wide, DENSE);
    box_fill(&t.host[GOUT]);
    for (int64_t i = 0; i < s->rows * s->classes; i++)
        put(&t.host[X].a, i, below(5) ? unit() * (below(9) ? 1 : 1e-30) : 0);
    for (int64_t r = 0; r < s->rows; r++) {
        int64_t chosen = below((int)s->classes);
        put_int(&t.host[INDEX].a, r, chosen);
        /* Something is possible; the chosen one may be impossible, or all there is. */
        int kind = below(4);
        for (int64_t c = 0; c < s->classes && kind == 0; c++)
            put(&t.host[X].a, r * s->classes + c, c == chosen);
        if (kind == 1 && s->classes > 1) put(&t.host[X].a, r * s->classes + chosen, 0);
        put(&t.host[X].a,
            r * s->classes + (s->classes > 1 ? (chosen + (kind == 1)) % s->classes : 0),
            0.25);
    }
    return t;
}

static void set_there(set *t)
{
    for (int i = 0; i < BOXES; i++) t->there[i] = twin_of(&t->host[i]);
}

static void set_free(set *t)
{
    for (int i = 0; i < BOXES; i++) {
        twin_free(&t->there[i]);
        box_free(&t->host[i]);
    }
}

static rle_status forward(rle_device *d, const set *t)
{
    if (d == cpu)
        return cpu->ops->log_share(cpu, &t->host[OUT].a, &t->host[KEPT].a, &t->host[X].a,
                                   &t->host[INDEX].a);
    return dev->ops->log_share(dev, &t->there[OUT].a, &t->there[KEPT].a, &t->there[X].a,
                               &t->there[INDEX].a);
}

static void log_probabilities_have_the_bits_of_the_cpu(void **state)
{
    (void)state;
    FOR_EACH_MODE(m)
    {
        for (int i = 0; i < CASES; i++) {
            set t = set_new(&cases[i]);
            set_there(&t);
            assert_int_equal(forward(cpu, &t), RLE_OK);
            assert_int_equal(forward(dev, &t), RLE_OK);
            assert_int_equal(
                cpu->ops->log_share_backward(cpu, &t.host[GX].a, &t.host[GOUT].a,
                                             &t.host[KEPT].a, &t.host[INDEX].a),
                RLE_OK);
            assert_int_equal(
                dev->ops->log_share_backward(dev, &t.there[GX].a, &t.there[GOUT].a,
                                             &t.there[KEPT].a, &t.there[INDEX].a),
                RLE_OK);
            for (int b = OUT; b < BOXES; b++) twin_check(&t.there[b], 0, 0, "log_prob");
            set_free(&t);
        }
    }
}

/* log(p / s) and its gradient by the book, in plain double precision. */
static void the_cpu_computes_what_the_formula_says(void **state)
{
    (void)state;
    static const sizes s = {50, 4, RLE_F64};
    set t = set_new(&s);
    set_there(&t);
    assert_int_equal(forward(cpu, &t), RLE_OK);
    assert_int_equal(cpu->ops->log_share_backward(cpu, &t.host[GX].a, &t.host[GOUT].a,
                                                  &t.host[KEPT].a, &t.host[INDEX].a),
                     RLE_OK);
    for (int64_t r = 0; r < s.rows; r++) {
        double sum = 0,
               p = get(&t.host[X].a, r * s.classes + get_int(&t.host[INDEX].a, r));
        for (int64_t c = 0; c < s.classes; c++)
            sum += get(&t.host[X].a, r * s.classes + c);
        double share = fmin(fmax(p / sum, 0x1p-52), 1 - 0x1p-52);
        double g = share == p / sum && p < sum ? get(&t.host[GOUT].a, r) : 0;
        assert_true(near(RLE_F64, get(&t.host[OUT].a, r), log(share), 4, 0));
        for (int64_t c = 0; c < s.classes; c++) {
            double want = -g / sum;
            if (g != 0 && c == get_int(&t.host[INDEX].a, r)) want += g / p;
            assert_true(
                near(RLE_F64, get(&t.host[GX].a, r * s.classes + c), want, 4, 1e-300));
        }
    }
    set_free(&t);
}

static void what_is_wrong_is_named_alike(void **state)
{
    (void)state;
    static const sizes s = {200, 3, RLE_F32};
    static const struct {
        int64_t row, index; /* index -1000: the row gets no positive number instead */
        rle_status status;
    } wrong[] = {{170, 3, RLE_OUT_OF_RANGE},
                 {60, -1, RLE_OUT_OF_RANGE},
                 {60, INT64_MIN, RLE_OUT_OF_RANGE},
                 {199, -1000, RLE_INVALID_ARGUMENT}};
    FOR_EACH_MODE(m)
    {
        for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
            set t = set_new(&s);
            if (wrong[i].index != -1000)
                put_int(&t.host[INDEX].a, wrong[i].row, wrong[i].index);
            for (int64_t c = 0; c < s.classes && wrong[i].index == -1000; c++)
                put(&t.host[X].a, wrong[i].row * s.classes + c, c == 1 ? NAN : 0);
            put_int(&t.host[INDEX].a, 180, 77); /* the first one counts */
            if (wrong[i].row == 199) put_int(&t.host[INDEX].a, 180, 0);
            set_there(&t);
            char said[256];
            assert_int_equal(forward(cpu, &t), wrong[i].status);
            snprintf(said, sizeof said, "%s", rle_message());
            assert_int_equal(forward(dev, &t), wrong[i].status);
            assert_string_equal(rle_message(), said);
            for (int b = OUT; b < BOXES; b++) { /* what was written may differ */
                twin_free(&t.there[b]);
                t.there[b] = twin_of(&t.host[b]);
            }
            twin_check(&t.there[X], 0, 0, "log_prob");
            twin_check(&t.there[INDEX], 0, 0, "log_prob");
            set_free(&t);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(log_probabilities_have_the_bits_of_the_cpu),
        cmocka_unit_test(the_cpu_computes_what_the_formula_says),
        cmocka_unit_test(what_is_wrong_is_named_alike),
    };
    return cmocka_run_group_tests(tests, device_setup, device_finish);
}
