/* format.c - tensors as text, the way PyTorch prints them.
 *
 * Floats share one format: whole numbers as "3.", otherwise four digits, in scientific
 * notation when magnitudes differ by more than a thousand or leave 1e-4 .. 1e8. More than
 * a thousand elements are summarised to three at each end: only those leave the device.
 * Complex shapes nest brackets. */
#include "tensor/ops.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

enum { SUMMARY_ABOVE = 1000, EDGE = 3, LINE_WIDTH = 80 };

typedef struct text {
    char *s;
    size_t used, capacity;
    bool failed;
} text;

static void put(text *out, const char *fmt, ...) RLE_PRINTF(2, 3);
static void put(text *out, const char *fmt, ...)
{
    if (out->failed) return;
    va_list args;
    va_start(args, fmt);
    char piece[512];
    int n = vsnprintf(piece, sizeof piece, fmt, args);
    va_end(args);
    if (n >= (int)sizeof piece) n = sizeof piece - 1;
    if (out->used + (size_t)n + 1 > out->capacity) {
        size_t capacity = (out->capacity + (size_t)n + 64) * 2;
        char *grown = rle_realloc(out->s, capacity);
        if (!grown) {
            out->failed = true;
            return;
        }
        out->s = grown;
        out->capacity = capacity;
    }
    memcpy(out->s + out->used, piece, (size_t)n + 1);
    out->used += (size_t)n;
}

typedef struct printer {
    const rle_array *a;     /* what is shown: contiguous, on the host */
    bool cut[RLE_MAX_DIMS]; /* more lies between element EDGE - 1 and the next */
    bool whole, scientific; /* of float formats */
    int width;
    text *out;
} printer;

static double element(const rle_array *a, int64_t i)
{
    switch (a->dtype) {
    case RLE_F32:
        return ((const float *)a->data)[i];
    case RLE_F64:
        return ((const double *)a->data)[i];
    case RLE_I32:
        return ((const int32_t *)a->data)[i];
    case RLE_I64:
        return (double)((const int64_t *)a->data)[i];
    default:
        return ((const uint8_t *)a->data)[i];
    }
}

static int format_element(const printer *p, int64_t i, char *piece, size_t size)
{
    if (p->a->dtype == RLE_BOOL)
        return snprintf(piece, size, "%s", element(p->a, i) != 0 ? "true" : "false");
    if (p->a->dtype == RLE_I64)
        return snprintf(piece, size, "%" PRId64, ((const int64_t *)p->a->data)[i]);
    double v = element(p->a, i);
    if (!rle_dtype_is_float(p->a->dtype)) return snprintf(piece, size, "%.0f", v);
    if (isnan(v)) return snprintf(piece, size, "nan");
    if (isinf(v)) return snprintf(piece, size, v < 0 ? "-inf" : "inf");
    if (p->scientific) return snprintf(piece, size, "%.4e", v);
    return snprintf(piece, size, p->whole ? "%.0f." : "%.4f", v);
}

typedef struct float_range {
    double low, high; /* of finite nonzero magnitudes */
    bool whole;
} float_range;

static void look(const printer *p, int64_t i, float_range *r)
{
    double v = fabs(element(p->a, i));
    if (!isfinite(v)) return;
    if (v != ceil(v)) r->whole = false;
    if (v == 0) return;
    if (v > r->high) r->high = v;
    if (v < r->low) r->low = v;
}

static void choose_format(printer *p)
{
    int64_t n = rle_array_numel(p->a);
    if (rle_dtype_is_float(p->a->dtype)) {
        float_range r = {INFINITY, 0, true};
        for (int64_t i = 0; i < n; i++) look(p, i, &r);
        bool any = r.high > 0;
        p->whole = r.whole;
        if (r.whole)
            p->scientific = any && (r.high / r.low > 1e3 || r.high > 1e8) && r.high > 1e8;
        else
            p->scientific = any && (r.high / r.low > 1e3 || r.high > 1e8 || r.low < 1e-4);
    }
    for (int64_t i = 0; i < n; i++) {
        char piece[64];
        int width = format_element(p, i, piece, sizeof piece);
        if (width > p->width) p->width = width;
    }
}

static void print_row(printer *p, int64_t offset, int indent)
{
    int last = p->a->ndim - 1;
    int column = indent + 1;
    int64_t n = p->a->shape[last];
    put(p->out, "[");
    for (int64_t i = 0; i < n; i++) {
        if (p->cut[last] && i == EDGE) {
            put(p->out, ",  ...");
            column += 6;
        }
        if (i > 0) {
            put(p->out, ",");
            column++;
            if (column + 1 + p->width > LINE_WIDTH) {
                put(p->out, "\n%*s", indent + 1, "");
                column = indent + 1;
            } else {
                put(p->out, " ");
                column++;
            }
        }
        char piece[64];
        format_element(p, offset + i * p->a->stride[last], piece, sizeof piece);
        put(p->out, "%*s", p->width, piece);
        column += p->width;
    }
    put(p->out, "]");
}

static void print_level(printer *p, int dim, int64_t offset, int indent)
{
    if (dim == p->a->ndim - 1) {
        print_row(p, offset, indent);
        return;
    }
    int64_t n = p->a->shape[dim];
    put(p->out, "[");
    for (int64_t i = 0; i < n; i++) {
        if (p->cut[dim] && i == EDGE) put(p->out, ",\n%*s...", indent + 1, "");
        if (i > 0) {
            put(p->out, ",");
            for (int k = dim; k < p->a->ndim - 1; k++) put(p->out, "\n");
            put(p->out, "%*s", indent + 1, "");
        }
        print_level(p, dim + 1, offset + i * p->a->stride[dim], indent + 1);
    }
    put(p->out, "]");
}

/* t without what lies between the first and the last EDGE of its long dimensions, the
 * longest first, so that little is copied. */
static rle_status corners(rle_tensor *t, bool *cut, rle_tensor **out)
{
    rle_tensor *now = rle_tensor_retain(t);
    for (;;) {
        int dim = 0;
        const rle_array *a = &now->a;
        for (int d = 1; d < a->ndim; d++)
            if (a->shape[d] > a->shape[dim]) dim = d;
        if (!a->ndim || a->shape[dim] <= 2 * EDGE) break;
        rle_tensor *ends[2] = {NULL, NULL}, *joined = NULL;
        rle_status status = rle_op_narrow(now, dim, 0, EDGE, &ends[0]);
        if (status == RLE_OK)
            status = rle_op_narrow(now, dim, a->shape[dim] - EDGE, EDGE, &ends[1]);
        if (status == RLE_OK) status = rle_op_cat(ends, 2, dim, false, &joined);
        rle_tensor_release(ends[0]);
        rle_tensor_release(ends[1]);
        rle_tensor_release(now);
        RLE_TRY(status);
        now = joined;
        cut[dim] = true;
    }
    *out = now;
    return RLE_OK;
}

rle_status rle_tensor_format(rle_tensor *t, char **out)
{
    rle_tensor *part;
    printer p = {0};
    if (rle_tensor_numel(t) > SUMMARY_ABOVE)
        RLE_TRY(corners(t, p.cut, &part));
    else
        part = rle_tensor_retain(t);
    rle_array a = part->a;
    size_t bytes = (size_t)rle_array_numel(&a) * rle_dtype_size(a.dtype);
    void *host = rle_malloc(bytes);
    rle_status status = host ? rle_tensor_to_host(part, host, bytes)
                             : rle_oom(bytes, "printing a tensor");
    rle_tensor_release(part);
    if (status != RLE_OK) {
        rle_free(host);
        return status;
    }
    a.data = host;
    rle_array_set_contiguous(&a);
    text result = {0};
    p.a = &a;
    p.out = &result;
    put(&result, "tensor(");
    if (rle_array_numel(&a) == 0) {
        put(&result, "[]");
    } else if (a.ndim == 0) {
        choose_format(&p);
        char piece[64];
        format_element(&p, 0, piece, sizeof piece);
        put(&result, "%s", piece);
    } else {
        choose_format(&p);
        print_level(&p, 0, 0, 7);
    }
    char shape[128];
    put(&result, ", %s, %s%s)", rle_array_describe(&t->a, shape, sizeof shape),
        rle_tensor_device(t)->name,
        t->requires_grad && !t->grad_fn ? ", requires_grad" : "");
    rle_free(host);
    if (result.failed) {
        rle_free(result.s);
        return rle_oom(result.capacity, "printing a tensor");
    }
    *out = result.s;
    return RLE_OK;
}
