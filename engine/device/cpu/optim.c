/* optim.c - optimizer steps over lists of parameters, and the check for bad rows. */
#include "device/cpu/cpu_internal.h"

#include <math.h>

rle_status rle_cpu_adam(rle_device *dev, const rle_array *param, const rle_array *grad,
                        const rle_array *m, const rle_array *v, int count,
                        const rle_adam_args *args)
{
    for (int i = 0; i < count; i++)
        if (rle_cpu_float(param[i].dtype) < 0) return rle_cpu_no_dtype("Adam", param[i].dtype);
    for (int i = 0; i < count; i++)
        rle_cpu_active->adam[rle_cpu_float(param[i].dtype)](
            param[i].data, grad[i].data, m[i].data, v[i].data, rle_array_numel(&param[i]),
            args);
    return RLE_OK;
}

rle_status rle_cpu_sgd(rle_device *dev, const rle_array *param, const rle_array *grad,
                       const rle_array *momentum, int count, const rle_sgd_args *args)
{
    for (int i = 0; i < count; i++)
        if (rle_cpu_float(param[i].dtype) < 0) return rle_cpu_no_dtype("SGD", param[i].dtype);
    for (int i = 0; i < count; i++)
        rle_cpu_active->sgd[rle_cpu_float(param[i].dtype)](
            param[i].data, grad[i].data, momentum ? momentum[i].data : NULL,
            rle_array_numel(&param[i]), args);
    return RLE_OK;
}

rle_status rle_cpu_find_bad_row(rle_device *dev, const rle_array *in, bool nonnegative,
                                int64_t *row)
{
    int64_t rows = in->shape[0], cols = in->shape[1];
    if (rle_cpu_float(in->dtype) < 0) return rle_cpu_no_dtype("this check", in->dtype);
    for (int64_t r = 0; r < rows; r++) {
        bool bad = false;
        for (int64_t c = 0; c < cols; c++) {
            int64_t at = r * in->stride[0] + c * in->stride[1];
            double x = in->dtype == RLE_F32 ? (double)((const float *)in->data)[at]
                                            : ((const double *)in->data)[at];
            bad |= !(x - x == 0) || (nonnegative && x < 0);
        }
        if (bad) {
            *row = r;
            return RLE_OK;
        }
    }
    *row = -1;
    return RLE_OK;
}
