/* ops_matmul.c - products of vectors, matrices and batches of them. */
#include "tensor/ops.h"

#include <string.h>

static rle_status check_operands(const char *what, const rle_tensor *a,
                                 const rle_tensor *b)
{
    RLE_TRY(rle_same_device(what, a, b));
    if (a->a.dtype == b->a.dtype && rle_dtype_is_float(a->a.dtype)) return RLE_OK;
    return rle_fail(RLE_INVALID_ARGUMENT,
                    "%s: needs two float tensors of one dtype, got %s and %s", what,
                    rle_dtype_name(a->a.dtype), rle_dtype_name(b->a.dtype));
}

static rle_status no_fit(const char *what, const rle_tensor *a, const rle_tensor *b)
{
    char left[128], right[128];
    return rle_fail(RLE_INVALID_ARGUMENT, "%s: %s and %s do not fit", what,
                    rle_array_describe(&a->a, left, sizeof left),
                    rle_array_describe(&b->a, right, sizeof right));
}

/* The array with a dimension of 1 put in at `at`. */
static rle_array with_unit(const rle_array *a, int at)
{
    rle_array u = *a;
    memmove(u.shape + at + 1, u.shape + at, (size_t)(u.ndim - at) * sizeof *u.shape);
    memmove(u.stride + at + 1, u.stride + at, (size_t)(u.ndim - at) * sizeof *u.stride);
    u.shape[at] = 1;
    u.stride[at] = 0;
    u.ndim++;
    return u;
}

/* Leading dimensions of a as one, where strides allow; false otherwise. */
static bool fold_leading(const rle_array *a, rle_array *folded)
{
    int lead = a->ndim - 2;
    int64_t count = 1, stride = 0;
    for (int i = lead - 1; i >= 0; i--) {
        if (a->shape[i] == 1) continue;
        if (count == 1)
            stride = a->stride[i];
        else if (a->stride[i] != stride * count)
            return false;
        count *= a->shape[i];
    }
    *folded = (rle_array){.data = a->data, .dtype = a->dtype, .ndim = 3};
    folded->shape[0] = count;
    folded->stride[0] = stride;
    for (int i = 0; i < 2; i++) {
        folded->shape[i + 1] = a->shape[lead + i];
        folded->stride[i + 1] = a->stride[lead + i];
    }
    return true;
}

/* Batched product of arrays of the same leading shape (by strides of 0 where broadcast).
 */
static rle_status batched(rle_device *dev, const rle_array *out, const rle_array *a,
                          const rle_array *b)
{
    rle_array fo, fa, fb;
    if (fold_leading(out, &fo) && fold_leading(a, &fa) && fold_leading(b, &fb))
        return dev->ops->matmul(dev, &fo, &fa, &fb, NULL, false);
    /* Peel the first dimension off until the rest folds. */
    rle_array so = *out, sa = *a, sb = *b;
    so.ndim--, sa.ndim--, sb.ndim--;
    size_t n = RLE_MAX_DIMS - 1;
    memmove(so.shape, so.shape + 1, n * sizeof *so.shape);
    memmove(so.stride, so.stride + 1, n * sizeof *so.stride);
    memmove(sa.shape, sa.shape + 1, n * sizeof *sa.shape);
    memmove(sa.stride, sa.stride + 1, n * sizeof *sa.stride);
    memmove(sb.shape, sb.shape + 1, n * sizeof *sb.shape);
    memmove(sb.stride, sb.stride + 1, n * sizeof *sb.stride);
    int64_t size = (int64_t)rle_dtype_size(out->dtype);
    for (int64_t i = 0; i < out->shape[0]; i++) {
        so.data = (char *)out->data + i * out->stride[0] * size;
        sa.data = (char *)a->data + i * a->stride[0] * size;
        sb.data = (char *)b->data + i * b->stride[0] * size;
        RLE_TRY(batched(dev, &so, &sa, &sb));
    }
    return RLE_OK;
}

rle_status rle_op_matmul(rle_tensor *ta, rle_tensor *tb, rle_tensor **out)
{
    RLE_TRY(check_operands("matmul", ta, tb));
    if (!ta->a.ndim || !tb->a.ndim)
        return rle_fail(RLE_INVALID_ARGUMENT,
                        "matmul: both operands need a dimension; multiply "
                        "by a number with *");
    bool row = ta->a.ndim == 1, column = tb->a.ndim == 1;
    rle_array a = row ? with_unit(&ta->a, 0) : ta->a;
    rle_array b = column ? with_unit(&tb->a, 1) : tb->a;
    if (a.shape[a.ndim - 1] != b.shape[b.ndim - 2]) return no_fit("matmul", ta, tb);

    /* Broadcast what leads the last two dimensions. */
    rle_array lead_a = {.dtype = a.dtype, .ndim = a.ndim - 2};
    rle_array lead_b = {.dtype = b.dtype, .ndim = b.ndim - 2};
    memcpy(lead_a.shape, a.shape, sizeof a.shape);
    memcpy(lead_b.shape, b.shape, sizeof b.shape);
    int lead;
    int64_t shape[RLE_MAX_DIMS + 2];
    if (rle_broadcast(&lead_a, &lead_b, &lead, shape) != RLE_OK ||
        lead + 2 > RLE_MAX_DIMS)
        return no_fit("matmul", ta, tb);
    shape[lead] = a.shape[a.ndim - 2];
    shape[lead + 1] = b.shape[b.ndim - 1];

    rle_tensor *r;
    RLE_TRY(rle_tensor_new(rle_tensor_device(ta), a.dtype, lead + 2, shape, &r));
    rle_device *dev = rle_tensor_device(ta);
    rle_status status;
    if (lead == 0) {
        status = dev->ops->matmul(dev, &r->a, &a, &b, NULL, false);
    } else {
        int64_t full[RLE_MAX_DIMS];
        memcpy(full, shape, sizeof full);
        full[lead] = a.shape[a.ndim - 2];
        full[lead + 1] = a.shape[a.ndim - 1];
        rle_array ea = rle_array_expanded(&a, lead + 2, full);
        full[lead] = b.shape[b.ndim - 2];
        full[lead + 1] = b.shape[b.ndim - 1];
        rle_array eb = rle_array_expanded(&b, lead + 2, full);
        status = batched(dev, &r->a, &ea, &eb);
    }
    if (status != RLE_OK) {
        rle_tensor_release(r);
        return status;
    }
    /* Take out the dimensions that stood in for vectors. */
    int n = 0;
    for (int i = 0; i < r->a.ndim; i++) {
        if ((row && i == lead) || (column && i == lead + 1)) continue;
        r->a.shape[n++] = r->a.shape[i];
    }
    r->a.ndim = n;
    rle_array_set_contiguous(&r->a);
    *out = r;
    return RLE_OK;
}

rle_status rle_op_linear(rle_tensor *x, rle_tensor *weight, rle_tensor *bias,
                         rle_tensor **out)
{
    RLE_TRY(check_operands("linear", x, weight));
    if (bias) RLE_TRY(check_operands("linear", x, bias));
    int last = x->a.ndim - 1;
    if (weight->a.ndim != 2 || last < 0 || x->a.shape[last] != weight->a.shape[1])
        return no_fit("linear", x, weight);
    if (bias && (bias->a.ndim != 1 || bias->a.shape[0] != weight->a.shape[0]))
        return no_fit("linear", weight, bias);

    rle_tensor *rows = NULL, *r;
    rle_array a = {.data = x->a.data, .dtype = x->a.dtype, .ndim = 2};
    a.shape[0] = rle_row_count(&x->a);
    a.shape[1] = x->a.shape[last];
    a.stride[1] = x->a.stride[last];
    if (last == 0) {
        a.stride[0] = 0;
    } else if (last == 1) {
        a.stride[0] = x->a.stride[0];
    } else {
        RLE_TRY(rle_op_contiguous(x, &rows));
        a.data = rows->a.data;
        a.stride[0] = a.shape[1];
        a.stride[1] = 1;
    }
    int64_t shape[RLE_MAX_DIMS];
    memcpy(shape, x->a.shape, sizeof shape);
    shape[last] = weight->a.shape[0];
    rle_status status =
        rle_tensor_new(rle_tensor_device(x), x->a.dtype, x->a.ndim, shape, &r);
    if (status == RLE_OK) {
        rle_array o = {.data = r->a.data, .dtype = x->a.dtype, .ndim = 2};
        o.shape[0] = a.shape[0];
        o.shape[1] = shape[last];
        rle_array_set_contiguous(&o);
        rle_array w = {.data = weight->a.data, .dtype = x->a.dtype, .ndim = 2};
        w.shape[0] = weight->a.shape[1];
        w.shape[1] = weight->a.shape[0];
        w.stride[0] = weight->a.stride[1];
        w.stride[1] = weight->a.stride[0];
        status = rle_tensor_ops(x)->matmul(rle_tensor_device(x), &o, &a, &w,
                                           bias ? &bias->a : NULL, false);
        if (status != RLE_OK)
            rle_tensor_release(r);
        else
            *out = r;
    }
    rle_tensor_release(rows);
    return status;
}
