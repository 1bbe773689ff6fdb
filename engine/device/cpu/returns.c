/* returns.c - advantages and returns, backwards through time. Sums are in double,
 * whatever the arrays are; columns are independent and go a few at a time, so that a
 * step's are read together. */
#include "device/cpu/cpu_internal.h"

#define COLUMNS 64

static inline double get(const rle_array *a, int64_t t, int64_t n)
{
    int64_t at = t * a->stride[0] + n * a->stride[1];
    return a->dtype == RLE_F32 ? (double)((const float *)a->data)[at]
                               : ((const double *)a->data)[at];
}

static inline bool is_done(const rle_array *dones, int64_t t, int64_t n)
{
    return dones &&
           ((const uint8_t *)dones->data)[t * dones->stride[0] + n * dones->stride[1]];
}

rle_status rle_cpu_gae(rle_device *dev, const rle_array *out, const rle_array *rewards,
                       const rle_array *values, const rle_array *dones,
                       const rle_array *last, double gamma, double lambda)
{
    if (rle_cpu_float(out->dtype) < 0) return rle_cpu_no_dtype("returns", out->dtype);
    int64_t steps = out->shape[0], columns = out->shape[1];
    double decay = gamma * lambda;
    for (int64_t first = 0; first < columns; first += COLUMNS) {
        int64_t count = rle_min64(columns - first, COLUMNS);
        double carry[COLUMNS] = {0}, next[COLUMNS] = {0};
        for (int64_t i = 0; last && i < count; i++) next[i] = get(last, 0, first + i);
        for (int64_t t = steps - 1; t >= 0; t--) {
            for (int64_t i = 0; i < count; i++) {
                int64_t n = first + i, at = t * out->stride[0] + n * out->stride[1];
                double v = values ? get(values, t, n) : 0, x = get(rewards, t, n);
                bool done = is_done(dones, t, n);
                if (!done) x += gamma * next[i];
                x -= v;
                if (!done) x += decay * carry[i];
                if (out->dtype == RLE_F32)
                    ((float *)out->data)[at] = (float)x;
                else
                    ((double *)out->data)[at] = x;
                carry[i] = x;
                next[i] = v;
            }
        }
    }
    return RLE_OK;
}
