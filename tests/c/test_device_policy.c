/* test_device_policy.c - chains of layers on a device: the CPU's bits, in one launch and
 * layer by layer, and the classes that the single operations would have drawn. */
#include "device_check.h"

#include "base/mem.h"
#include "nn/mlp.h"

enum { MOST_LAYERS = 4 };

/* Weights of a chain, here and there. */
typedef struct {
    int count;
    rle_mlp_layer here[MOST_LAYERS], there[MOST_LAYERS];
    box w[MOST_LAYERS], b[MOST_LAYERS];
    twin dw[MOST_LAYERS], db[MOST_LAYERS];
} chain;

static box numbers(int64_t rows, int64_t cols)
{
    box b = box_new(RLE_F32, 2, (int64_t[]){rows, cols}, DENSE);
    box_fill(&b);
    for (int64_t i = 0; i < rows * cols; i++) put(&b.a, i, get(&b.a, i) / 8);
    return b;
}

/* widths: count + 1 of them. */
static chain chain_new(int count, const int64_t *widths, const int *functions)
{
    chain c = {.count = count};
    for (int i = 0; i < count; i++) {
        c.w[i] = numbers(widths[i + 1], widths[i]);
        c.b[i] = numbers(1, widths[i + 1]);
        c.dw[i] = twin_of(&c.w[i]);
        c.db[i] = twin_of(&c.b[i]);
        bool biased = below(3) > 0;
        c.here[i] = (rle_mlp_layer){widths[i], widths[i + 1], c.w[i].a.data,
                                    biased ? c.b[i].a.data : NULL, functions[i]};
        c.there[i] = c.here[i];
        c.there[i].weight = c.dw[i].a.data;
        c.there[i].bias = biased ? c.db[i].a.data : NULL;
    }
    return c;
}

static void chain_free(chain *c)
{
    for (int i = 0; i < c->count; i++) {
        twin_free(&c->dw[i]), twin_free(&c->db[i]);
        box_free(&c->w[i]), box_free(&c->b[i]);
    }
}

/* Results are the CPU's within `slack`; 0: its bits. */
static void forward_within(const chain *c, int64_t rows, double slack)
{
    rle_mlp *here = NULL, *there = NULL;
    assert_int_equal(rle_mlp_new(cpu, c->here, c->count, &here), RLE_OK);
    assert_int_equal(rle_mlp_new(dev, c->there, c->count, &there), RLE_OK);
    assert_int_equal(rle_mlp_in(there), rle_mlp_in(here));
    assert_int_equal(rle_mlp_out(there), rle_mlp_out(here));
    box x = numbers(rows, rle_mlp_in(here)), y = numbers(rows, rle_mlp_out(here));
    twin dx = twin_of(&x), dy = twin_of(&y);
    rle_memory_stats before, after;
    rle_device_memory(dev, &before);
    assert_int_equal(rle_mlp_forward(here, x.a.data, rows, y.a.data), RLE_OK);
    if (rle_mlp_forward(there, dx.a.data, rows, dy.a.data) != RLE_OK)
        fail_msg("%s", rle_message());
    rle_mlp_pack(there); /* nothing to do, and harmless */
    twin_check(&dy, slack > 0, slack, "layers");
    rle_device_memory(dev, &after);
    assert_int_equal(after.allocated, before.allocated);
    twin_free(&dx), twin_free(&dy), box_free(&x), box_free(&y);
    rle_mlp_free(here), rle_mlp_free(there);
}

static void forward(const chain *c, int64_t rows)
{
    forward_within(c, rows, 0);
}

static const int functions[] = {RLE_MLP_NONE,       RLE_UNARY_RELU,     RLE_UNARY_TANH,
                                RLE_UNARY_SIGMOID,  RLE_UNARY_SOFTPLUS, RLE_MLP_SOFTMAX,
                                RLE_MLP_LOG_SOFTMAX};

static void few_rows_have_the_bits_of_the_cpu(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1,  2,  3,  4,   6,   15,  16, 17,
                                    30, 64, 65, 100, 128, 257, 300};
    static const int64_t rows[] = {0, 1, 2, 5, 32, 33, 70};
    FOR_EACH_MODE(m)
    {
        for (int round = 0; round < 12; round++) {
            int count = 1 + below(MOST_LAYERS), f[MOST_LAYERS];
            int64_t widths[MOST_LAYERS + 1];
            for (int i = 0; i <= count; i++) widths[i] = sizes[below(15)];
            for (int i = 0; i < count; i++)
                f[i] = functions[below(i + 1 == count ? 7 : 5)];
            chain c = chain_new(count, widths, f);
            assert_true(dev->ops->dense_rows(dev, c.there, count) >= 70);
            forward(&c, rows[(round + m) % 7]);
            chain_free(&c);
        }
    }
}

/* Wide ones take a row at a time, still wider ones none. */
static void wide_layers_go_as_far_as_they_can(void **state)
{
    (void)state;
    int f[] = {RLE_UNARY_RELU, RLE_MLP_NONE, RLE_UNARY_TANH};
    chain c = chain_new(2, (int64_t[]){5, 1500, 3}, f);
    assert_int_equal(dev->ops->dense_rows(dev, c.there, 2), 32);
    size_t blocks = rle_mem_blocks();
    rle_mlp *mlp;
    assert_int_equal(rle_mlp_new(dev, c.there, 2, &mlp), RLE_OK);
    rle_mlp_free(mlp);
    assert_int_equal(rle_mem_blocks(), blocks);
    forward(&c, 3);
    forward(&c, 40);
    chain_free(&c);
    c = chain_new(3, (int64_t[]){3, 5000, 2, 40}, f);
    assert_int_equal(dev->ops->dense_rows(dev, c.there, 3), 0);
    forward(&c, 2);
    chain_free(&c);
}

/* One launch has the bits of the engine's own products: where a library multiplies there
 * is none. */
static void a_library_takes_layers_one_by_one(void **state)
{
    (void)state;
    rle_blas_state now;
    assert_int_equal(rle_device_blas(dev, NULL, &now), RLE_OK);
    rle_blas_settings s = now.settings;
    int f[] = {RLE_UNARY_TANH, RLE_MLP_NONE};
    chain c = chain_new(2, (int64_t[]){4, 20, 3}, f);
    s.threshold = 80;
    assert_int_equal(rle_device_blas(dev, &s, NULL), RLE_OK);
    assert_int_equal(dev->ops->dense_rows(dev, c.there, 2), 0);
    for (int i = 0; i < 7; i++) {
        c.here[0].function = c.there[0].function = functions[i];
        c.here[1].function = c.there[1].function = functions[(i + 3) % 7];
        forward_within(&c, 2, 1e-4);
    }
    s.threshold = 81;
    assert_int_equal(rle_device_blas(dev, &s, NULL), RLE_OK);
    assert_int_equal(dev->ops->dense_rows(dev, c.there, 2), 256);
    s.threshold = 1;
    s.batch_invariant = true;
    assert_int_equal(rle_device_blas(dev, &s, NULL), RLE_OK);
    assert_int_equal(dev->ops->dense_rows(dev, c.there, 2), 256);
    forward(&c, 2);
    assert_int_equal(rle_device_blas(dev, &now.settings, NULL), RLE_OK);
    /* More than one layer is one launch or none. */
    box x = numbers(300, 4);
    twin dx = twin_of(&x);
    assert_int_equal(dev->ops->dense(dev, c.there, 2, dx.a.data, 300, dx.a.data, NULL),
                     RLE_INVALID_ARGUMENT);
    twin_free(&dx), box_free(&x);
    chain_free(&c);
}

static void many_rows_go_layer_by_layer(void **state)
{
    (void)state;
    FOR_EACH_MODE(m)
    {
        int f[] = {functions[m % 5], functions[(m + 1) % 5], functions[(m + 2) % 5],
                   functions[m % 7]};
        chain c = chain_new(4, (int64_t[]){3, 20, 5, 33, 4}, f);
        forward(&c, 300);
        c.count = 1 + m % 3;
        forward(&c, 257);
        c.count = 4;
        chain_free(&c);
    }
}

/* Functions that the one launch does not know. */
static void other_functions_are_called_one_by_one(void **state)
{
    (void)state;
    int f[] = {RLE_UNARY_SQUARE, RLE_UNARY_EXP};
    chain c = chain_new(2, (int64_t[]){3, 20, 5}, f);
    assert_int_equal(dev->ops->dense_rows(dev, c.there, 2), 0);
    forward(&c, 4);
    chain_free(&c);
}

/* ---- draws ---- */

/* What the single operations draw from y [rows, n], probabilities or logits, on the CPU.
 */
static void draw_by_operations(rle_array *y, bool logits, const rle_dense_draw *d,
                               int64_t *action, float *log_prob)
{
    int64_t rows = y->shape[0];
    float *u = malloc((size_t)rows * 4), *total = malloc((size_t)rows * 4);
    rle_array ua = {u, RLE_F32, 2, {rows, 1}, {1, 1}},
              ta = {total, RLE_F32, 2, {rows, 1}, {1, 1}};
    rle_array aa = {action, RLE_I64, 2, {rows, 1}, {1, 1}};
    rle_array la = {log_prob, RLE_F32, 2, {rows, 1}, {1, 1}};
    rle_array keys = {(void *)d->keys, RLE_I64, 1, {rows}, {1}};
    if (d->keys)
        assert_int_equal(cpu->ops->random_keyed(cpu, &ua, d->rng.seed, &keys, d->draw),
                         RLE_OK);
    else
        assert_int_equal(cpu->ops->random(cpu, RLE_RANDOM_UNIFORM, &ua, &d->rng, 0, 1),
                         RLE_OK);
    box p = numbers(rows, y->shape[1]);
    if (logits) assert_int_equal(cpu->ops->softmax(cpu, false, &p.a, y, 1), RLE_OK);
    assert_int_equal(cpu->ops->multinomial(cpu, &aa, logits ? &p.a : y, &ua), RLE_OK);
    box_free(&p);
    if (logits) {
        assert_int_equal(cpu->ops->gather(cpu, &la, y, 1, &aa), RLE_OK);
        assert_int_equal(cpu->ops->reduce(cpu, RLE_REDUCE_LOGSUMEXP, &ta, y, 2), RLE_OK);
        assert_int_equal(cpu->ops->binary(cpu, RLE_BINARY_SUB, &la, &la, &ta), RLE_OK);
    } else {
        box kept = numbers(3, rows);
        rle_array out = {log_prob, RLE_F32, 1, {rows}, {1}};
        rle_array index = {action, RLE_I64, 1, {rows}, {1}};
        assert_int_equal(cpu->ops->log_share(cpu, &out, &kept.a, y, &index), RLE_OK);
        box_free(&kept);
    }
    free(u), free(total);
}

static box classes(rle_dtype t, int64_t rows)
{
    return box_new(t, 1, &rows, DENSE);
}

static void draws_are_those_of_the_operations(void **state)
{
    (void)state;
    static const int64_t outputs[] = {1, 2, 6, 15, 16, 300};
    static const int64_t rows[] = {1, 7, 40};
    FOR_EACH_MODE(m)
    {
        for (int o = 0; o < 6; o++) {
            int64_t n = rows[(o + m) % 3], widths[] = {4, o % 2 ? 64 : 9, outputs[o]};
            static const int ends[] = {RLE_MLP_SOFTMAX, RLE_MLP_NONE,
                                       RLE_MLP_LOG_SOFTMAX};
            int f[] = {RLE_UNARY_RELU, ends[(o + m / 2) % 3]};
            chain c = chain_new(2, widths, f);
            box x = numbers(n, 4), y = numbers(n, outputs[o]), keys = classes(RLE_I64, n);
            box action = classes(RLE_I64, n), log_prob = classes(RLE_F32, n);
            for (int64_t i = 0; i < n; i++) put(&keys.a, i, rnd());
            twin dx = twin_of(&x), dkeys = twin_of(&keys), da = twin_of(&action),
                 dl = twin_of(&log_prob);
            rle_mlp *here, *there;
            assert_int_equal(rle_mlp_new(cpu, c.here, 2, &here), RLE_OK);
            assert_int_equal(rle_mlp_new(dev, c.there, 2, &there), RLE_OK);
            assert_false(rle_mlp_draws(here, n));
            assert_true(rle_mlp_draws(there, n));
            assert_false(rle_mlp_draws(there, 100000));
            rle_mlp_forward(here, x.a.data, n, y.a.data);
            bool keyed = (o + m) % 2;
            rle_dense_draw d = {
                .keys = keyed ? keys.a.data : NULL,
                .draw = 3,
                .rng = {.seed = 77, .stream = 5, .counter = 4 * (uint64_t)o}};
            draw_by_operations(&y.a, f[1] != RLE_MLP_SOFTMAX, &d, action.a.data,
                               log_prob.a.data);
            d.action = da.a.data;
            d.log_prob = dl.a.data;
            d.keys = keyed ? dkeys.a.data : NULL;
            if (rle_mlp_draw(there, dx.a.data, n, &d) != RLE_OK)
                fail_msg("%s", rle_message());
            twin_check(&da, 0, 0, "classes");
            twin_check(&dl, 0, 0, "log-probabilities");
            twin_free(&dx), twin_free(&dkeys), twin_free(&da), twin_free(&dl);
            box_free(&x), box_free(&y), box_free(&keys), box_free(&action),
                box_free(&log_prob);
            rle_mlp_free(here), rle_mlp_free(there);
            chain_free(&c);
        }
    }
}

static void a_row_without_classes_is_named(void **state)
{
    (void)state;
    FOR_EACH_MODE(m)
    {
        int f[] = {m % 2 ? RLE_MLP_SOFTMAX : RLE_MLP_NONE};
        chain c = chain_new(1, (int64_t[]){2, 3}, f);
        box x = numbers(9, 2), action = classes(RLE_I64, 9),
            log_prob = classes(RLE_F32, 9);
        put(&x.a, 2 * 7, NAN);
        put(&x.a, 2 * 4 + 1, INFINITY);
        twin dx = twin_of(&x), da = twin_of(&action), dl = twin_of(&log_prob);
        rle_dense_draw d = {.action = da.a.data, .log_prob = dl.a.data};
        assert_int_equal(dev->ops->dense(dev, c.there, 1, dx.a.data, 9, NULL, &d),
                         RLE_INVALID_ARGUMENT);
        assert_non_null(strstr(rle_message(), "act: row 5:"));
        assert_int_equal(dev->ops->dense(dev, c.there, 1, dx.a.data, 4, NULL, &d),
                         RLE_OK);
        twin_free(&dx), twin_free(&da), twin_free(&dl);
        box_free(&x), box_free(&action), box_free(&log_prob);
        chain_free(&c);
    }
}

/* Memory for what lies between layers is refused: nothing is left behind. */
static void no_memory_between_layers_is_an_error(void **state)
{
    (void)state;
    int f[] = {RLE_UNARY_RELU, RLE_UNARY_RELU, RLE_MLP_NONE};
    chain c = chain_new(3, (int64_t[]){2, 400, 400, 3}, f);
    rle_mlp *mlp;
    assert_int_equal(rle_mlp_new(dev, c.there, 3, &mlp), RLE_OK);
    box x = numbers(2000, 2), y = numbers(2000, 3);
    twin dx = twin_of(&x), dy = twin_of(&y);
    rle_memory_stats before, after;
    for (int room = 0; room < 2; room++) { /* for none, for one of two */
        rle_device_empty_cache(dev);
        rle_device_memory(dev, &before);
        rle_device_set_limit(dev, before.reserved + (size_t)room * (5 << 20));
        assert_int_equal(rle_mlp_forward(mlp, dx.a.data, 2000, dy.a.data),
                         RLE_RESOURCE_EXHAUSTED);
        rle_device_memory(dev, &after);
        assert_int_equal(after.allocated, before.allocated);
    }
    rle_device_set_limit(dev, 0);
    twin_free(&dx), twin_free(&dy), box_free(&x), box_free(&y);
    rle_mlp_free(mlp);
    chain_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_rows_have_the_bits_of_the_cpu),
        cmocka_unit_test(wide_layers_go_as_far_as_they_can),
        cmocka_unit_test(a_library_takes_layers_one_by_one),
        cmocka_unit_test(many_rows_go_layer_by_layer),
        cmocka_unit_test(other_functions_are_called_one_by_one),
        cmocka_unit_test(draws_are_those_of_the_operations),
        cmocka_unit_test(a_row_without_classes_is_named),
        cmocka_unit_test(no_memory_between_layers_is_an_error),
    };
    return cmocka_run_group_tests(tests, device_setup, device_finish);
}
