/* space.c - checks, membership, sampling and printing of spaces. */
#include "env/space.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

double rle_element_get(rle_dtype dtype, const void *values, int64_t i)
{
    switch (dtype) {
    case RLE_F32: return ((const float *)values)[i];
    case RLE_F64: return ((const double *)values)[i];
    case RLE_I32: return ((const int32_t *)values)[i];
    case RLE_I64: return (double)((const int64_t *)values)[i];
    default: return ((const uint8_t *)values)[i];
    }
}

void rle_element_set(rle_dtype dtype, void *values, int64_t i, double v)
{
    switch (dtype) {
    case RLE_F32: ((float *)values)[i] = (float)v; break;
    case RLE_F64: ((double *)values)[i] = v; break;
    case RLE_I32: ((int32_t *)values)[i] = (int32_t)v; break;
    case RLE_I64: ((int64_t *)values)[i] = (int64_t)v; break;
    default: ((uint8_t *)values)[i] = (uint8_t)v; break;
    }
}

/* A bound as the dtype holds it: 0.41887902047863906 is no f32, the nearest f32 is
 * meant. */
static double rounded(rle_dtype dtype, double v)
{
    return dtype == RLE_F32 ? (double)(float)v : v;
}

double rle_space_low(const rle_space *s, int64_t i)
{
    return rounded(s->dtype, s->low ? s->low[i] : s->low_all);
}

double rle_space_high(const rle_space *s, int64_t i)
{
    return rounded(s->dtype, s->high ? s->high[i] : s->high_all);
}

int64_t rle_space_numel(const rle_space *s)
{
    int64_t n = 1;
    for (int i = 0; i < s->ndim; i++) n *= s->shape[i];
    return n;
}

size_t rle_space_bytes(const rle_space *s)
{
    return (size_t)rle_space_numel(s) * rle_dtype_size(s->dtype);
}

/* ---- is it sound? ---- */

static void dtype_range(rle_dtype dtype, double *low, double *high)
{
    switch (dtype) {
    case RLE_I32: *low = INT32_MIN, *high = INT32_MAX; break;
    case RLE_I64: *low = -0x1p53, *high = 0x1p53; break;
    case RLE_U8: *low = 0, *high = 255; break;
    case RLE_BOOL: *low = 0, *high = 1; break;
    default: *low = -INFINITY, *high = INFINITY; break;
    }
}

static rle_status check_box(const rle_space *s)
{
    if (!(RLE_DTYPE_BIT(s->dtype) & RLE_DTYPES_ALL))
        return rle_fail(RLE_INVALID_ARGUMENT,
                        "Box: %s has no arithmetic; use f32, f64, i32, i64, u8 or bool",
                        (unsigned)s->dtype < RLE_DTYPE_COUNT ? rle_dtype_name(s->dtype)
                                                             : "that dtype");
    if (s->ndim < 0 || s->ndim > RLE_MAX_DIMS)
        return rle_fail(RLE_INVALID_ARGUMENT, "Box: %d dimensions; there may be 0 to %d",
                        s->ndim, RLE_MAX_DIMS);
    int64_t numel = 1;
    for (int i = 0; i < s->ndim; i++) {
        if (s->shape[i] < 1)
            return rle_fail(RLE_INVALID_ARGUMENT,
                            "Box: dimension %d has size %lld; sizes are "
                            "positive",
                            i + 1, (long long)s->shape[i]);
        if (__builtin_mul_overflow(numel, s->shape[i], &numel) || numel > INT64_MAX / 8)
            return rle_fail(RLE_INVALID_ARGUMENT, "Box: the shape has more elements than "
                                                  "memory can hold");
    }
    double min, max;
    dtype_range(s->dtype, &min, &max);
    int64_t bounds = s->low || s->high ? numel : 1;
    for (int64_t i = 0; i < bounds; i++) {
        double low = rle_space_low(s, i), high = rle_space_high(s, i);
        if (isnan(low) || isnan(high))
            return rle_fail(RLE_INVALID_ARGUMENT, "Box: a bound of element %lld is NaN",
                            (long long)i + 1);
        if (low > high)
            return rle_fail(RLE_INVALID_ARGUMENT,
                            "Box: element %lld has low %g above high %g",
                            (long long)i + 1, low, high);
        if (low < min || high > max)
            return rle_fail(
                RLE_INVALID_ARGUMENT,
                "Box: bounds %g and %g of element %lld do not fit %s, which goes "
                "from %.17g to %.17g",
                low, high, (long long)i + 1, rle_dtype_name(s->dtype), min, max);
        if (!rle_dtype_is_float(s->dtype) && (low != floor(low) || high != floor(high)))
            return rle_fail(
                RLE_INVALID_ARGUMENT,
                "Box: bounds %g and %g of element %lld are no integers, but the "
                "dtype is %s",
                low, high, (long long)i + 1, rle_dtype_name(s->dtype));
    }
    return RLE_OK;
}

rle_status rle_space_check(const rle_space *s)
{
    if (s->kind == RLE_SPACE_BOX) return check_box(s);
    if (s->kind != RLE_SPACE_DISCRETE)
        return rle_fail(RLE_INVALID_ARGUMENT, "no such kind of space: %d", (int)s->kind);
    int64_t end;
    if (s->n < 1)
        return rle_fail(RLE_INVALID_ARGUMENT,
                        "Discrete: n is %lld; there must be at least one "
                        "choice",
                        (long long)s->n);
    if (__builtin_add_overflow(s->start, s->n, &end))
        return rle_fail(RLE_INVALID_ARGUMENT,
                        "Discrete: start %lld and n %lld go past 64 bits",
                        (long long)s->start, (long long)s->n);
    if (s->dtype != RLE_I64 || s->ndim != 0)
        return rle_fail(RLE_INVALID_ARGUMENT, "Discrete: a value is one i64");
    return RLE_OK;
}

/* ---- membership ---- */

int64_t rle_first_nan(rle_dtype dtype, const void *values, int64_t n)
{
    if (!rle_dtype_is_float(dtype)) return -1;
    for (int64_t i = 0; i < n; i++)
        if (isnan(rle_element_get(dtype, values, i))) return i;
    return -1;
}

int64_t rle_space_outside(const rle_space *s, const void *value)
{
    if (s->kind == RLE_SPACE_DISCRETE) {
        int64_t v = *(const int64_t *)value;
        return v >= s->start && v - s->start < s->n ? -1 : 0;
    }
    int64_t n = rle_space_numel(s);
    for (int64_t i = 0; i < n; i++) {
        double v = rle_element_get(s->dtype, value, i);
        if (!(v >= rle_space_low(s, i) && v <= rle_space_high(s, i))) return i;
    }
    return -1;
}

bool rle_space_equal(const rle_space *a, const rle_space *b)
{
    if (a->kind != b->kind || a->dtype != b->dtype || a->ndim != b->ndim) return false;
    if (a->kind == RLE_SPACE_DISCRETE) return a->n == b->n && a->start == b->start;
    for (int i = 0; i < a->ndim; i++)
        if (a->shape[i] != b->shape[i]) return false;
    int64_t n = rle_space_numel(a);
    for (int64_t i = 0; i < n; i++)
        if (rle_space_low(a, i) != rle_space_low(b, i) ||
            rle_space_high(a, i) != rle_space_high(b, i))
            return false;
    return true;
}

/* ---- sampling ---- */

/* 0: no bound, 1: only a low one, 2: only a high one, 3: both. */
static int bounds_of(double low, double high)
{
    return (low > -INFINITY) | (high < INFINITY) << 1;
}

void rle_space_sample(const rle_space *s, rle_pcg64 *rng, void *value)
{
    if (s->kind == RLE_SPACE_DISCRETE) {
        *(int64_t *)value = s->start + (int64_t)rle_pcg64_integers(rng, (uint64_t)s->n);
        return;
    }
    bool is_float = rle_dtype_is_float(s->dtype);
    int64_t n = rle_space_numel(s);
    for (int kind = 0; kind < 4; kind++) {
        for (int64_t i = 0; i < n; i++) {
            double low = rle_space_low(s, i), high = rle_space_high(s, i), v;
            if (bounds_of(low, high) != kind) continue;
            if (kind == 0)
                v = rle_pcg64_normal(rng);
            else if (kind == 1)
                v = low + rle_pcg64_exponential(rng);
            else if (kind == 2)
                v = high - rle_pcg64_exponential(rng);
            else if (is_float)
                v = rle_pcg64_uniform(rng, low, high);
            else
                v = fmin(floor(rle_pcg64_uniform(rng, low, high + 1)), high);
            rle_element_set(s->dtype, value, i, v);
        }
    }
}

/* ---- printing ---- */

typedef struct text {
    char *out;
    size_t size, used;
} text;

RLE_PRINTF(2, 3) static void add(text *t, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    size_t room = t->size - t->used;
    int n = vsnprintf(t->out + t->used, room, fmt, args);
    va_end(args);
    if (n > 0) t->used += (size_t)n < room ? (size_t)n : room - 1;
}

static void add_bounds(text *t, const rle_space *s,
                       double (*bound)(const rle_space *, int64_t))
{
    enum { SHOWN = 8 };
    int64_t n = rle_space_numel(s);
    bool same = true;
    for (int64_t i = 1; i < n && same; i++) same = bound(s, i) == bound(s, 0);
    if (same) {
        add(t, "%g", bound(s, 0));
        return;
    }
    for (int64_t i = 0; i < n && i < SHOWN; i++)
        add(t, "%s%g", i ? ", " : "[", bound(s, i));
    add(t, n > SHOWN ? ", ...]" : "]");
}

char *rle_space_describe(const rle_space *s, char *out, size_t size)
{
    text t = {out, size, 0};
    if (!size) return out;
    out[0] = 0;
    if (s->kind == RLE_SPACE_DISCRETE) {
        add(&t, "Discrete(%lld", (long long)s->n);
        if (s->start) add(&t, ", start %lld", (long long)s->start);
        add(&t, ")");
        return out;
    }
    add(&t, "Box(");
    add_bounds(&t, s, rle_space_low);
    add(&t, ", ");
    add_bounds(&t, s, rle_space_high);
    add(&t, ", {");
    for (int i = 0; i < s->ndim; i++)
        add(&t, "%s%lld", i ? ", " : "", (long long)s->shape[i]);
    add(&t, "}, %s)", rle_dtype_name(s->dtype));
    return out;
}
