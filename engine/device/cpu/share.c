/* share.c - log-probabilities of chosen classes: see log_share in device/device.h. A
 * plain loop: acting asks for one row of few classes at a time. */
#include "device/cpu/cpu_internal.h"

#include <inttypes.h>

static rle_status bad_class(int64_t value, int64_t classes)
{
    return rle_fail(RLE_OUT_OF_RANGE,
                    "log_prob: action %" PRId64 " is no class; there are %" PRId64
                    ", counted from 0",
                    value, classes);
}

static rle_status no_class(int64_t row)
{
    return rle_fail(RLE_INVALID_ARGUMENT,
                    "log_prob: row %" PRId64 " has no class of positive probability",
                    row + 1);
}

#define DEFINE(T, SHARE, BACKWARD)                                                       \
    static rle_status SHARE(T *kept, const T *x, const int64_t *index, int64_t rows,     \
                            int64_t classes)                                             \
    {                                                                                    \
        for (int64_t r = 0; r < rows; r++, x += classes) {                               \
            if ((uint64_t)index[r] >= (uint64_t)classes)                                 \
                return bad_class(index[r], classes);                                     \
            double sum = 0;                                                              \
            for (int64_t c = 0; c < classes; c++) sum += x[c];                           \
            if (!(sum > 0)) return no_class(r);                                          \
            kept[r] = (T)sum;                                                            \
            kept[rows + r] = x[index[r]];                                                \
            kept[2 * rows + r] = kept[rows + r] / kept[r];                               \
        }                                                                                \
        return RLE_OK;                                                                   \
    }                                                                                    \
    static void BACKWARD(T *gx, const T *gout, const T *kept, const int64_t *index,      \
                         int64_t rows, int64_t classes, T eps)                           \
    {                                                                                    \
        for (int64_t r = 0; r < rows; r++, gx += classes) {                              \
            T share = kept[2 * rows + r], picked = kept[rows + r];                       \
            T g = eps < share && share < 1 - eps ? gout[r] : 0;                          \
            T all = -(g / kept[r]);                                                      \
            for (int64_t c = 0; c < classes; c++) gx[c] = all;                           \
            gx[index[r]] += g / (picked < (T)0x1p-126 ? (T)0x1p-126 : picked);           \
        }                                                                                \
    }
DEFINE(float, share_f32, backward_f32)
DEFINE(double, share_f64, backward_f64)

rle_status rle_cpu_log_share(rle_device *dev, const rle_array *out, const rle_array *kept,
                             const rle_array *x, const rle_array *index)
{
    int64_t rows = x->shape[0], classes = x->shape[1];
    bool wide = x->dtype == RLE_F64;
    if (wide)
        RLE_TRY(share_f64(kept->data, x->data, index->data, rows, classes));
    else
        RLE_TRY(share_f32(kept->data, x->data, index->data, rows, classes));
    rle_array share = *out;
    share.data = (char *)kept->data + (size_t)(2 * rows) * rle_dtype_size(x->dtype);
    double eps = wide ? 0x1p-52 : 0x1p-23;
    RLE_TRY(rle_cpu_unary(dev, RLE_UNARY_CLAMP, out, &share, eps, 1 - eps));
    return rle_cpu_unary(dev, RLE_UNARY_LOG, out, out, 0, 0);
}

rle_status rle_cpu_log_share_backward(rle_device *dev, const rle_array *gx,
                                      const rle_array *gout, const rle_array *kept,
                                      const rle_array *index)
{
    int64_t rows = gx->shape[0], classes = gx->shape[1];
    if (gx->dtype == RLE_F64)
        backward_f64(gx->data, gout->data, kept->data, index->data, rows, classes,
                     0x1p-52);
    else
        backward_f32(gx->data, gout->data, kept->data, index->data, rows, classes,
                     0x1p-23f);
    return RLE_OK;
}
