/* ops_shape.c - shapes and views, broadcasting, copies and casts. */
#include "tensor/ops.h"

#include <inttypes.h>
#include <string.h>

static const char *describe(const rle_tensor *t, char *text)
{
    return rle_array_describe(&t->a, text, 128);
}

rle_status rle_same_device(const char *what, const rle_tensor *a, const rle_tensor *b)
{
    if (a->storage->device == b->storage->device) return RLE_OK;
    return rle_fail(RLE_INVALID_ARGUMENT,
                    "%s: tensors on two devices, %s and %s; move one with :to()", what,
                    a->storage->device->name, b->storage->device->name);
}

int64_t rle_row_count(const rle_array *a)
{
    int64_t n = 1;
    for (int i = 0; i < a->ndim - 1; i++) n *= a->shape[i];
    return n;
}

/* ---- views ---- */

rle_status rle_op_select(rle_tensor *t, int dim, int64_t index, rle_tensor **out)
{
    char text[128];
    if (dim < 0 || dim >= t->a.ndim)
        return rle_fail(RLE_INVALID_ARGUMENT, "select: %s has no dimension %d",
                        describe(t, text), dim + 1);
    if (index < 0 || index >= t->a.shape[dim])
        return rle_fail(RLE_OUT_OF_RANGE,
                        "select: position %" PRId64 " is outside 1..%" PRId64
                        " of dimension %d of %s",
                        index + 1, t->a.shape[dim], dim + 1, describe(t, text));
    rle_array a = {.dtype = t->a.dtype, .ndim = t->a.ndim - 1};
    a.data =
        (char *)t->a.data + index * t->a.stride[dim] * (int64_t)rle_dtype_size(a.dtype);
    for (int i = 0, j = 0; i < t->a.ndim; i++) {
        if (i == dim) continue;
        a.shape[j] = t->a.shape[i];
        a.stride[j++] = t->a.stride[i];
    }
    return rle_tensor_view(t, &a, out);
}

rle_status rle_op_narrow(rle_tensor *t, int dim, int64_t start, int64_t length,
                         rle_tensor **out)
{
    char text[128];
    if (dim < 0 || dim >= t->a.ndim)
        return rle_fail(RLE_INVALID_ARGUMENT, "narrow: %s has no dimension %d",
                        describe(t, text), dim + 1);
    if (start < 0 || length < 0 || start > t->a.shape[dim] - length)
        return rle_fail(RLE_OUT_OF_RANGE,
                        "narrow: %" PRId64 " positions from %" PRId64
                        " do not fit dimension %d of %s",
                        length, start + 1, dim + 1, describe(t, text));
    rle_array a = t->a;
    a.data = (char *)a.data + start * a.stride[dim] * (int64_t)rle_dtype_size(a.dtype);
    a.shape[dim] = length;
    return rle_tensor_view(t, &a, out);
}

rle_status rle_op_permute(rle_tensor *t, const int64_t *order, rle_tensor **out)
{
    rle_array a = t->a;
    uint32_t seen = 0;
    for (int i = 0; i < a.ndim; i++) {
        char text[128];
        if (order[i] < 0 || order[i] >= a.ndim || (seen >> order[i] & 1))
            return rle_fail(RLE_INVALID_ARGUMENT,
                            "permute: each dimension of %s must be named once",
                            describe(t, text));
        seen |= 1u << order[i];
        a.shape[i] = t->a.shape[order[i]];
        a.stride[i] = t->a.stride[order[i]];
    }
    return rle_tensor_view(t, &a, out);
}

/* Fill in a size of -1 and check the product. */
static rle_status complete_shape(const char *what, rle_tensor *t, int ndim,
                                 const int64_t *shape, int64_t *full)
{
    char text[128];
    if (ndim > RLE_MAX_DIMS)
        return rle_fail(RLE_INVALID_ARGUMENT, "%s: at most %d dimensions, got %d", what,
                        RLE_MAX_DIMS, ndim);
    int64_t known = 1, numel = rle_tensor_numel(t);
    int open = -1;
    for (int i = 0; i < ndim; i++) {
        full[i] = shape[i];
        if (shape[i] == -1 && open < 0) {
            open = i;
        } else if (shape[i] < 0) {
            return rle_fail(RLE_INVALID_ARGUMENT,
                            "%s: one size may be -1, the others not negative", what);
        } else if (__builtin_mul_overflow(known, shape[i], &known)) {
            return rle_fail(RLE_INVALID_ARGUMENT, "%s: the sizes multiply beyond 2^63",
                            what);
        }
    }
    if (open >= 0 && known > 0) {
        full[open] = numel / known;
        known *= full[open];
    }
    if (known != numel || (open >= 0 && full[open] < 0)) {
        rle_array want = {.dtype = t->a.dtype, .ndim = ndim};
        memcpy(want.shape, shape, (size_t)ndim * sizeof *shape);
        char other[128];
        return rle_fail(RLE_INVALID_ARGUMENT,
                        "%s: %s has %" PRId64 " elements and does not fit %s", what,
                        describe(t, text), numel,
                        rle_array_describe(&want, other, sizeof other));
    }
    return RLE_OK;
}

/* Strides that show `a` with the new shape without a copy; false when there are none.
 * Runs of old dimensions that lie densely one in the other are cut anew. */
static bool view_strides(const rle_array *a, int ndim, const int64_t *shape,
                         int64_t *stride)
{
    int64_t numel = rle_array_numel(a);
    if (numel == 0) {
        rle_array dense = {.ndim = ndim};
        memcpy(dense.shape, shape, (size_t)ndim * sizeof *shape);
        rle_array_set_contiguous(&dense);
        memcpy(stride, dense.stride, (size_t)ndim * sizeof *stride);
        return true;
    }
    int j = ndim - 1;
    for (int i = a->ndim - 1; i >= 0;) {
        /* The run of old dimensions [k, i] that is dense with the stride of i. */
        int64_t base = a->stride[i], run = a->shape[i];
        int k = i - 1;
        while (k >= 0 && (a->shape[k] == 1 || a->stride[k] == base * run)) {
            run *= a->shape[k];
            k--;
        }
        int64_t taken = 1;
        while (j >= 0 && (taken < run || shape[j] == 1)) {
            stride[j] = base * taken;
            taken *= shape[j];
            j--;
        }
        if (taken != run) return false;
        i = k;
    }
    for (; j >= 0; j--) stride[j] = 1; /* leading sizes of 1 */
    return true;
}

rle_status rle_op_view(rle_tensor *t, int ndim, const int64_t *shape, rle_tensor **out)
{
    rle_array a = {.data = t->a.data, .dtype = t->a.dtype, .ndim = ndim};
    RLE_TRY(complete_shape("view", t, ndim, shape, a.shape));
    if (!view_strides(&t->a, ndim, a.shape, a.stride)) {
        char text[128];
        return rle_fail(
            RLE_FAILED_PRECONDITION,
            "view: the strides of %s do not allow it; use :reshape(), which copies",
            describe(t, text));
    }
    return rle_tensor_view(t, &a, out);
}

rle_status rle_op_reshape(rle_tensor *t, int ndim, const int64_t *shape, rle_tensor **out)
{
    rle_array a = {.data = t->a.data, .dtype = t->a.dtype, .ndim = ndim};
    RLE_TRY(complete_shape("reshape", t, ndim, shape, a.shape));
    if (view_strides(&t->a, ndim, a.shape, a.stride)) return rle_tensor_view(t, &a, out);
    rle_tensor *copy;
    RLE_TRY(rle_op_clone(t, &copy));
    copy->a.ndim = ndim;
    memcpy(copy->a.shape, a.shape, sizeof a.shape);
    rle_array_set_contiguous(&copy->a);
    *out = copy;
    return RLE_OK;
}

rle_status rle_op_expand(rle_tensor *t, int ndim, const int64_t *shape, rle_tensor **out)
{
    char text[128], other[128];
    rle_array a = {.data = t->a.data, .dtype = t->a.dtype, .ndim = ndim};
    int lead = ndim - t->a.ndim;
    bool fits = lead >= 0 && ndim <= RLE_MAX_DIMS;
    for (int i = 0; fits && i < ndim; i++) {
        int64_t have = i < lead ? 1 : t->a.shape[i - lead];
        a.shape[i] = shape[i] == -1 && i >= lead ? have : shape[i];
        a.stride[i] = i < lead || have == 1 ? 0 : t->a.stride[i - lead];
        if (have == 1 && a.shape[i] == 1 && i >= lead)
            a.stride[i] = t->a.stride[i - lead];
        fits = a.shape[i] >= 0 && (have == 1 || have == a.shape[i]);
    }
    if (!fits) {
        rle_array want = {.dtype = t->a.dtype,
                          .ndim = ndim < RLE_MAX_DIMS ? ndim : RLE_MAX_DIMS};
        memcpy(want.shape, shape, (size_t)want.ndim * sizeof *shape);
        return rle_fail(RLE_INVALID_ARGUMENT, "expand: %s cannot become %s",
                        describe(t, text),
                        rle_array_describe(&want, other, sizeof other));
    }
    return rle_tensor_view(t, &a, out);
}

/* ---- broadcasting ---- */

rle_status rle_broadcast(const rle_array *a, const rle_array *b, int *ndim,
                         int64_t *shape)
{
    int n = a->ndim > b->ndim ? a->ndim : b->ndim;
    for (int i = 1; i <= n; i++) {
        int64_t x = i <= a->ndim ? a->shape[a->ndim - i] : 1;
        int64_t y = i <= b->ndim ? b->shape[b->ndim - i] : 1;
        if (x != y && x != 1 && y != 1) {
            char left[128], right[128];
            return rle_fail(RLE_INVALID_ARGUMENT, "shapes %s and %s do not broadcast",
                            rle_array_describe(a, left, sizeof left),
                            rle_array_describe(b, right, sizeof right));
        }
        shape[n - i] = x == 1 ? y : x;
    }
    *ndim = n;
    return RLE_OK;
}

rle_array rle_array_expanded(const rle_array *a, int ndim, const int64_t *shape)
{
    rle_array e = {.data = a->data, .dtype = a->dtype, .ndim = ndim};
    int lead = ndim - a->ndim;
    for (int i = 0; i < ndim; i++) {
        e.shape[i] = shape[i];
        bool spread = i < lead || (a->shape[i - lead] == 1 && shape[i] != 1);
        e.stride[i] = spread ? 0 : a->stride[i - lead];
    }
    return e;
}

rle_status rle_op_sum_to(rle_tensor *t, int ndim, const int64_t *shape, rle_tensor **out)
{
    uint32_t dims = 0;
    int lead = t->a.ndim - ndim;
    for (int i = 0; i < t->a.ndim; i++)
        if (i < lead || (shape[i - lead] == 1 && t->a.shape[i] != 1)) dims |= 1u << i;
    if (!dims) {
        *out = rle_tensor_retain(t);
        return RLE_OK;
    }
    rle_tensor *sum;
    RLE_TRY(rle_op_reduce(RLE_REDUCE_SUM, t, dims, true, &sum));
    sum->a.ndim = ndim; /* contiguous: leading sizes of 1 just go */
    memmove(sum->a.shape, sum->a.shape + lead, (size_t)ndim * sizeof *shape);
    rle_array_set_contiguous(&sum->a);
    *out = sum;
    return RLE_OK;
}

/* ---- copies ---- */

rle_status rle_op_clone(rle_tensor *t, rle_tensor **out)
{
    rle_tensor *c;
    RLE_TRY(rle_tensor_new(rle_tensor_device(t), t->a.dtype, t->a.ndim, t->a.shape, &c));
    rle_status status = rle_tensor_ops(t)->copy(rle_tensor_device(t), &c->a, &t->a);
    if (status != RLE_OK) {
        rle_tensor_release(c);
        return status;
    }
    *out = c;
    return RLE_OK;
}

rle_status rle_op_contiguous(rle_tensor *t, rle_tensor **out)
{
    if (!rle_tensor_is_contiguous(t)) return rle_op_clone(t, out);
    *out = rle_tensor_retain(t);
    return RLE_OK;
}

/* t cast, contiguous, on its device: t itself where it is that already. */
static rle_status cast(rle_tensor *t, rle_dtype dtype, rle_tensor **out)
{
    if (dtype == t->a.dtype) return rle_op_contiguous(t, out);
    return rle_op_to(t, rle_tensor_device(t), dtype, out);
}

/* A contiguous tensor on another device. Between two that are not the CPU the bytes go
 * through the host. */
static rle_status carry(rle_tensor *t, rle_device *dev, rle_tensor **out)
{
    rle_device *from = rle_tensor_device(t);
    const rle_array *a = &t->a;
    if (from->type == RLE_DEVICE_CPU)
        return rle_tensor_from_host(dev, a->dtype, a->ndim, a->shape, a->data, out);
    rle_tensor *host;
    RLE_TRY(rle_tensor_new(rle_device_cpu(), a->dtype, a->ndim, a->shape, &host));
    rle_status status =
        from->copy_out(from, host->a.data, a->data, host->storage->block.size);
    if (status == RLE_OK && dev->type == RLE_DEVICE_CPU) {
        *out = host;
        return RLE_OK;
    }
    if (status == RLE_OK) status = carry(host, dev, out);
    rle_tensor_release(host);
    return status;
}

rle_status rle_op_to(rle_tensor *t, rle_device *dev, rle_dtype dtype, rle_tensor **out)
{
    rle_device *from = rle_tensor_device(t);
    rle_tensor *c;
    if (dev != from) {
        RLE_TRY(cast(t, dtype, &c));
        rle_status status = carry(c, dev, out);
        rle_tensor_release(c);
        return status;
    }
    RLE_TRY(rle_tensor_new(from, dtype, t->a.ndim, t->a.shape, &c));
    rle_status status = from->ops->copy(from, &c->a, &t->a);
    if (status != RLE_OK) {
        rle_tensor_release(c);
        return status;
    }
    *out = c;
    return RLE_OK;
}

rle_status rle_op_copy_into(rle_tensor *dst, rle_tensor *src)
{
    int ndim;
    int64_t shape[RLE_MAX_DIMS];
    RLE_TRY(rle_broadcast(&dst->a, &src->a, &ndim, shape));
    if (ndim != dst->a.ndim ||
        memcmp(shape, dst->a.shape, (size_t)ndim * sizeof *shape)) {
        char to[128], from[128];
        return rle_fail(RLE_INVALID_ARGUMENT, "copy_: %s does not broadcast into %s",
                        describe(src, from), describe(dst, to));
    }
    rle_tensor *moved = NULL, *apart = NULL;
    if (rle_tensor_device(src) != rle_tensor_device(dst)) {
        RLE_TRY(rle_op_to(src, rle_tensor_device(dst), src->a.dtype, &moved));
        src = moved;
    } else if (src->storage == dst->storage && src->a.data != dst->a.data) {
        RLE_TRY(rle_op_clone(src, &apart)); /* they may overlap */
        src = apart;
    }
    rle_array e = rle_array_expanded(&src->a, ndim, shape);
    rle_status status = rle_tensor_ops(dst)->copy(rle_tensor_device(dst), &dst->a, &e);
    rle_tensor_release(moved);
    rle_tensor_release(apart);
    if (status == RLE_OK) dst->storage->version++;
    return status;
}

rle_status rle_op_fill(rle_tensor *t, double value, int64_t integer)
{
    RLE_TRY(rle_tensor_ops(t)->fill(rle_tensor_device(t), &t->a, value, integer));
    t->storage->version++;
    return RLE_OK;
}

rle_status rle_op_cat(rle_tensor *const *parts, int count, int dim, bool stack,
                      rle_tensor **out)
{
    const char *what = stack ? "stack" : "cat";
    if (count == 0) return rle_fail(RLE_INVALID_ARGUMENT, "%s: no tensors given", what);
    const rle_tensor *first = parts[0];
    rle_array a = first->a;
    if (stack && a.ndim == RLE_MAX_DIMS)
        return rle_fail(RLE_INVALID_ARGUMENT,
                        "stack: the tensors have %d dimensions already", RLE_MAX_DIMS);
    if (dim < 0 || dim >= a.ndim + stack)
        return rle_fail(RLE_INVALID_ARGUMENT,
                        "%s: no dimension %d in tensors of %d dimensions", what, dim + 1,
                        a.ndim);
    int64_t along = 0;
    for (int i = 0; i < count; i++) {
        const rle_array *p = &parts[i]->a;
        RLE_TRY(rle_same_device(what, first, parts[i]));
        bool fits = p->ndim == a.ndim;
        for (int d = 0; fits && d < a.ndim; d++)
            fits = (d == dim && !stack) || p->shape[d] == first->a.shape[d];
        if (!fits) {
            char left[128], right[128];
            return rle_fail(RLE_INVALID_ARGUMENT,
                            "%s along dimension %d: tensor %d is %s, the first is %s",
                            what, dim + 1, i + 1, describe(parts[i], right),
                            describe(first, left));
        }
        along += stack ? 1 : p->shape[dim];
        a.dtype = rle_promote(a.dtype, p->dtype);
    }
    if (stack) {
        memmove(a.shape + dim + 1, a.shape + dim,
                (size_t)(a.ndim - dim) * sizeof *a.shape);
        a.ndim++;
    }
    a.shape[dim] = along;
    rle_tensor *t;
    RLE_TRY(rle_tensor_new(first->storage->device, a.dtype, a.ndim, a.shape, &t));
    int64_t at = 0, size = (int64_t)rle_dtype_size(a.dtype);
    for (int i = 0; i < count; i++) {
        /* The slice of the result that this part fills, with the part's own dimensions.
         */
        rle_array slot = {.dtype = a.dtype, .ndim = parts[i]->a.ndim};
        memcpy(slot.shape, parts[i]->a.shape, sizeof slot.shape);
        for (int d = 0; d < slot.ndim; d++)
            slot.stride[d] = t->a.stride[d + (stack && d >= dim)];
        slot.data = (char *)t->a.data + at * t->a.stride[dim] * size;
        rle_status status =
            rle_tensor_ops(t)->copy(rle_tensor_device(t), &slot, &parts[i]->a);
        if (status != RLE_OK) {
            rle_tensor_release(t);
            return status;
        }
        at += stack ? 1 : slot.shape[dim];
    }
    *out = t;
    return RLE_OK;
}
