/* init.c - orthogonal matrices, by Gram-Schmidt in double precision on the host. */
#include "nn/init.h"

#include <math.h>

#include "base/mem.h"
#include "tensor/ops.h"

static double dot(const double *a, const double *b, int64_t n)
{
    double s = 0;
    for (int64_t i = 0; i < n; i++) s += a[i] * b[i];
    return s;
}

/* Make the `count` rows of v, of length n >= count, orthonormal. Each is cleaned twice: once
 * leaves an error that grows with the condition of the matrix, twice none to speak of. */
static void orthonormalize(double *v, int64_t count, int64_t n)
{
    for (int64_t i = 0; i < count; i++) {
        double *row = v + i * n;
        for (int pass = 0; pass < 2; pass++) {
            for (int64_t j = 0; j < i; j++) {
                const double *q = v + j * n;
                double share = dot(q, row, n);
                for (int64_t k = 0; k < n; k++) row[k] -= share * q[k];
            }
        }
        double length = sqrt(dot(row, row, n));
        for (int64_t k = 0; k < n; k++) row[k] /= length;
    }
}

rle_status rle_init_orthogonal(rle_tensor *t, double gain)
{
    char text[128];
    if (!rle_dtype_is_float(t->a.dtype) || t->a.ndim < 2)
        return rle_fail(RLE_INVALID_ARGUMENT,
                        "orthogonal_: needs a float tensor of two dimensions or more, got %s",
                        rle_array_describe(&t->a, text, sizeof text));
    int64_t numel = rle_tensor_numel(t);
    if (numel == 0) return RLE_OK;
    int64_t rows = t->a.shape[0], cols = numel / rows;
    bool wide = rows <= cols;
    int64_t shape[2] = {wide ? rows : cols, wide ? cols : rows};
    rle_tensor *normal;
    RLE_TRY(rle_tensor_new(rle_device_cpu(), RLE_F64, 2, shape, &normal));
    rle_status status = rle_op_random(RLE_RANDOM_NORMAL, normal, 0, 1);
    double *v = normal->a.data;
    double *out = v, *turned = NULL;
    if (status == RLE_OK) {
        orthonormalize(v, shape[0], shape[1]);
        for (int64_t i = 0; i < numel; i++) v[i] *= gain;
        if (!wide) {
            turned = rle_malloc((size_t)numel * sizeof *turned);
            if (!turned) status = rle_oom((size_t)numel * sizeof *turned, "orthogonal_");
        }
    }
    if (turned) {
        for (int64_t c = 0; c < cols; c++)
            for (int64_t r = 0; r < rows; r++) turned[r * cols + c] = v[c * rows + r];
        out = turned;
    }
    if (status == RLE_OK) status = rle_tensor_write_host(t, RLE_F64, out);
    rle_free(turned);
    rle_tensor_release(normal);
    return status;
}
