/* ops_random.c - random tensors from the current context's stream, and draws keyed by
 * row.
 *
 * Numbers are pure functions of (seed, stream, position) or (seed, key, draw, element);
 * see kernels/common/philox.h. Here positions are handed out: each draw starts at a
 * multiple of four words, so that whole blocks are generated. */
#include "tensor/ops.h"

#include <string.h>

void rle_random_seed(uint64_t seed)
{
    rle_default_rng = (rle_rng){.seed = seed};
}

rle_rng rle_random_words(uint64_t words)
{
    rle_rng *rng = rle_context_current()->rng;
    rle_rng at = *rng;
    rng->counter += (words + 3) & ~(uint64_t)3;
    return at;
}

rle_status rle_op_random(rle_random_kind kind, rle_tensor *t, double p0, double p1)
{
    rle_dtype d = t->a.dtype;
    bool floats = kind != RLE_RANDOM_INTEGER;
    if (floats ? !rle_dtype_is_float(d) : (rle_dtype_is_float(d) || d == RLE_BOOL))
        return rle_fail(RLE_INVALID_ARGUMENT, "random %s do not go into a %s tensor",
                        floats ? "floats" : "integers", rle_dtype_name(d));
    if (kind == RLE_RANDOM_INTEGER && !(p0 < p1))
        return rle_fail(RLE_INVALID_ARGUMENT, "no integer lies in [%.0f, %.0f)", p0, p1);
    rle_tensor *apart = NULL, *target = t;
    if (!rle_tensor_is_contiguous(t)) {
        RLE_TRY(rle_tensor_new(rle_tensor_device(t), d, t->a.ndim, t->a.shape, &apart));
        target = apart;
    }
    uint64_t words = (uint64_t)rle_tensor_numel(t);
    if (kind == RLE_RANDOM_NORMAL) words += words & 1; /* they come in pairs */
    rle_rng at = rle_random_words(words * (d == RLE_F64 || p1 - p0 > 0x1p32 ? 2 : 1));
    rle_status status =
        rle_tensor_ops(t)->random(rle_tensor_device(t), kind, &target->a, &at, p0, p1);
    if (status == RLE_OK && apart)
        status = rle_tensor_ops(t)->copy(rle_tensor_device(t), &t->a, &apart->a);
    rle_tensor_release(apart);
    if (status == RLE_OK) t->storage->version++;
    return status;
}

rle_status rle_op_bernoulli(rle_tensor *probs, rle_tensor **out)
{
    if (!rle_dtype_is_float(probs->a.dtype))
        return rle_fail(RLE_INVALID_ARGUMENT,
                        "bernoulli: probabilities must be floats, got %s",
                        rle_dtype_name(probs->a.dtype));
    rle_tensor *u = NULL, *hit = NULL, *r = NULL;
    rle_device *dev = rle_tensor_device(probs);
    RLE_TRY(rle_tensor_new(dev, probs->a.dtype, probs->a.ndim, probs->a.shape, &u));
    rle_status status = rle_op_random(RLE_RANDOM_UNIFORM, u, 0, 1);
    if (status == RLE_OK) status = rle_op_binary(RLE_BINARY_LT, u, probs, &hit);
    if (status == RLE_OK) status = rle_op_to(hit, dev, probs->a.dtype, &r);
    rle_tensor_release(u);
    rle_tensor_release(hit);
    if (status == RLE_OK) *out = r;
    return status;
}

rle_status rle_op_randperm(rle_device *dev, int64_t n, rle_tensor **out)
{
    rle_tensor *t;
    RLE_TRY(rle_tensor_new(dev, RLE_I64, 1, &n, &t));
    rle_rng at = rle_random_words((uint64_t)n * 2);
    rle_status status = dev->ops->randperm(dev, &t->a, &at);
    if (status != RLE_OK) {
        rle_tensor_release(t);
        return status;
    }
    *out = t;
    return RLE_OK;
}

rle_status rle_op_row_keys(rle_device *dev, int64_t rows, rle_tensor **out)
{
    rle_tensor *t;
    RLE_TRY(rle_tensor_new(dev, RLE_I64, 1, &rows, &t));
    rle_rng at = rle_random_words((uint64_t)rows * 2);
    rle_status status = dev->ops->random(dev, RLE_RANDOM_INTEGER, &t->a, &at, 0, 0x1p62);
    if (status != RLE_OK) {
        rle_tensor_release(t);
        return status;
    }
    *out = t;
    return RLE_OK;
}

static rle_status check_keys(const char *what, rle_tensor *t, rle_tensor *keys,
                             int64_t rows)
{
    RLE_TRY(rle_same_device(what, t, keys));
    if (keys->a.dtype == RLE_I64 && rle_tensor_numel(keys) == rows) return RLE_OK;
    char text[128], other[128];
    return rle_fail(RLE_INVALID_ARGUMENT,
                    "%s: keys must be i64, one for each row of %s, got %s", what,
                    rle_array_describe(&t->a, text, sizeof text),
                    rle_array_describe(&keys->a, other, sizeof other));
}

/* Row-major data as a matrix. Only the fields that count are written: arrays are large, and
 * these calls are made for single rows. */
static void as_matrix(rle_array *m, void *data, rle_dtype dtype, int64_t rows, int64_t columns)
{
    m->data = data;
    m->dtype = dtype;
    m->ndim = 2;
    m->shape[0] = rows;
    m->shape[1] = columns;
    m->stride[0] = columns;
    m->stride[1] = 1;
}

/* A contiguous tensor seen as [rows, last size]. */
static void as_rows(rle_array *m, const rle_array *a)
{
    as_matrix(m, a->data, a->dtype, rle_row_count(a), a->ndim ? a->shape[a->ndim - 1] : 1);
}

/* Keys that were checked as one contiguous row: *held is their tensor or a copy. */
static rle_status flat_keys(rle_tensor *keys, rle_tensor **held, rle_array *flat)
{
    RLE_TRY(rle_op_contiguous(keys, held));
    flat->data = (*held)->a.data;
    flat->dtype = RLE_I64;
    flat->ndim = 1;
    flat->shape[0] = rle_tensor_numel(keys);
    flat->stride[0] = 1;
    return RLE_OK;
}

/* Uniforms in [0, 1) into u, [rows, columns] of f32: fresh ones, or those of the keys. */
static rle_status fill_uniforms(rle_device *dev, const rle_array *u, rle_tensor *keys,
                                uint32_t draw)
{
    if (keys) {
        rle_tensor *held;
        rle_array flat;
        RLE_TRY(flat_keys(keys, &held, &flat));
        rle_status status =
            dev->ops->random_keyed(dev, u, rle_context_current()->rng->seed, &flat, draw);
        rle_tensor_release(held);
        return status;
    }
    rle_rng at = rle_random_words((uint64_t)rle_array_numel(u));
    return dev->ops->random(dev, RLE_RANDOM_UNIFORM, u, &at, 0, 1);
}

rle_status rle_op_multinomial(rle_tensor *probs, int64_t draws, rle_tensor *keys,
                              uint32_t draw, rle_tensor **out)
{
    char text[128];
    if (!rle_dtype_is_float(probs->a.dtype) || probs->a.ndim < 1)
        return rle_fail(RLE_INVALID_ARGUMENT,
                        "multinomial: needs a float tensor of [..., classes], got %s",
                        rle_array_describe(&probs->a, text, sizeof text));
    if (draws < 0)
        return rle_fail(RLE_INVALID_ARGUMENT, "multinomial: negative number of draws");
    int64_t rows = rle_row_count(&probs->a), columns = draws ? draws : 1;
    rle_device *dev = rle_tensor_device(probs);
    if (keys) RLE_TRY(check_keys("multinomial", probs, keys, rows));
    rle_tensor *p = NULL, *u = NULL, *r = NULL;
    int64_t shape[RLE_MAX_DIMS];
    memcpy(shape, probs->a.shape, sizeof shape);
    int ndim = draws ? probs->a.ndim : probs->a.ndim - 1;
    if (draws) shape[ndim - 1] = draws;
    float few[16]; /* the host's numbers, where it may hand them over */
    bool small = dev->type == RLE_DEVICE_CPU && rows * columns <= 16;
    rle_status status = rle_op_contiguous(probs, &p);
    if (status == RLE_OK && !small)
        status = rle_tensor_new(dev, RLE_F32, 2, (int64_t[]){rows, columns}, &u);
    if (status == RLE_OK) status = rle_tensor_new(dev, RLE_I64, ndim, shape, &r);
    if (status == RLE_OK) {
        rle_array pm, um, rm;
        as_rows(&pm, &p->a);
        as_matrix(&um, small ? few : u->a.data, RLE_F32, rows, columns);
        as_matrix(&rm, r->a.data, RLE_I64, rows, columns);
        status = fill_uniforms(dev, &um, keys, draw);
        if (status == RLE_OK) status = dev->ops->multinomial(dev, &rm, &pm, &um);
    }
    rle_tensor_release(p);
    rle_tensor_release(u);
    if (status != RLE_OK) {
        rle_tensor_release(r);
        return status;
    }
    *out = r;
    return RLE_OK;
}

rle_status rle_op_dropout(rle_tensor *t, double p, rle_tensor *keys, uint32_t draw,
                          uint64_t seed, rle_tensor **out)
{
    if (!(p >= 0 && p <= 1))
        return rle_fail(RLE_INVALID_ARGUMENT,
                        "dropout: the probability must be in 0..1, got %g", p);
    if (!rle_dtype_is_float(t->a.dtype))
        return rle_fail(RLE_INVALID_ARGUMENT, "dropout: needs a float tensor, got %s",
                        rle_dtype_name(t->a.dtype));
    RLE_TRY(check_keys("dropout", t, keys, rle_row_count(&t->a)));
    rle_tensor *in, *r = NULL, *held = NULL;
    rle_array flat;
    RLE_TRY(rle_op_contiguous(t, &in));
    rle_status status = flat_keys(keys, &held, &flat);
    if (status == RLE_OK)
        status =
            rle_tensor_new(rle_tensor_device(t), t->a.dtype, t->a.ndim, t->a.shape, &r);
    if (status == RLE_OK) {
        rle_array ri, ro;
        as_rows(&ri, &in->a);
        as_rows(&ro, &r->a);
        status = rle_tensor_ops(t)->dropout(rle_tensor_device(t), &ro, &ri, p, seed,
                                            &flat, draw);
    }
    rle_tensor_release(in);
    rle_tensor_release(held);
    if (status != RLE_OK) {
        rle_tensor_release(r);
        return status;
    }
    *out = r;
    return RLE_OK;
}
