/* softmax.c - softmax and its logarithm along one dimension, and their gradients.
 *
 * Rows that lie contiguous go to the kernel as they are. Others, and very short ones, are
 * staged 16 rows at a time; rows too long for that one by one through a buffer. The order
 * of every sum is that of reduce.c, so all ways give the same bits. */
#include "device/cpu/cpu_internal.h"

#include <string.h>

#include "base/mem.h"

/* Rows shorter than this are worth computing 16 side by side. */
#define SHORT_ROW 32
/* Unless there are less than this many. */
#define FEW_ROWS 4

static void load(char *dst, int64_t dst_step, const char *src, int64_t src_step, int64_t n,
                 int size)
{
    if (size == 4)
        for (int64_t i = 0; i < n; i++)
            ((float *)dst)[i * dst_step] = ((const float *)src)[i * src_step];
    else
        for (int64_t i = 0; i < n; i++)
            ((double *)dst)[i * dst_step] = ((const double *)src)[i * src_step];
}

/* out = f(a) or f(a, b) along dim; b is NULL for the forward pass. */
static rle_status along_rows(bool logarithm, const rle_array *out, const rle_array *a,
                             const rle_array *b, int dim)
{
    int f = rle_cpu_float(a->dtype), size = f ? 8 : 4;
    if (f < 0) return rle_cpu_no_dtype("softmax", a->dtype);
    const rle_cpu_kernels *k = rle_cpu_active;
    int64_t n = a->shape[dim];
    int count = b ? 3 : 2;
    if (rle_array_numel(out) == 0) return RLE_OK;
    const rle_array *arrays[3] = {out, a, b};
    rle_walk w;
    rle_walk_init(&w, out, 1u << dim, count, arrays);
    bool unit = true;
    for (int o = 0; o < count; o++) unit &= arrays[o]->stride[dim] == 1;
    if (unit && (n >= SHORT_ROW || w.left < FEW_ROWS)) {
        for (; w.left > 0; rle_walk_next(&w)) {
            if (b)
                k->softmax_row_backward[f](logarithm, w.p[0], w.p[1], w.p[2], n);
            else
                k->softmax_row[f](logarithm, w.p[0], w.p[1], n);
        }
        return RLE_OK;
    }
    if (n > RLE_REDUCE_BLOCK) {
        char *buf = rle_malloc((size_t)n * (size_t)size * 2);
        if (!buf) return rle_oom((size_t)n * (size_t)size * 2, "rows of softmax");
        char *second = buf + n * size;
        for (; w.left > 0; rle_walk_next(&w)) {
            load(buf, 1, w.p[1], a->stride[dim], n, size);
            if (b) {
                load(second, 1, w.p[2], b->stride[dim], n, size);
                k->softmax_row_backward[f](logarithm, buf, buf, second, n);
            } else {
                k->softmax_row[f](logarithm, buf, buf, n);
            }
            load(w.p[0], out->stride[dim], buf, 1, n, size);
        }
        rle_free(buf);
        return RLE_OK;
    }
    _Alignas(64) char buf[RLE_REDUCE_BLOCK * RLE_LANES * 8];
    _Alignas(64) char second[RLE_REDUCE_BLOCK * RLE_LANES * 8];
    if (w.left < RLE_LANES) {
        memset(buf, 0, (size_t)(n * RLE_LANES * size));
        if (b) memset(second, 0, (size_t)(n * RLE_LANES * size));
    }
    while (w.left > 0) {
        int rows = (int)rle_min64(w.left, RLE_LANES);
        char *to[RLE_LANES];
        for (int r = 0; r < rows; r++, rle_walk_next(&w)) {
            to[r] = w.p[0];
            load(buf + r * size, RLE_LANES, w.p[1], a->stride[dim], n, size);
            if (b) load(second + r * size, RLE_LANES, w.p[2], b->stride[dim], n, size);
        }
        if (b)
            k->softmax_tile_backward[f](logarithm, buf, second, n);
        else
            k->softmax_tile[f](logarithm, buf, n);
        for (int r = 0; r < rows; r++)
            load(to[r], out->stride[dim], buf + r * size, RLE_LANES, n, size);
    }
    return RLE_OK;
}

rle_status rle_cpu_softmax(rle_device *dev, bool logarithm, const rle_array *out,
                           const rle_array *in, int dim)
{
    return along_rows(logarithm, out, in, NULL, dim);
}

rle_status rle_cpu_softmax_backward(rle_device *dev, bool logarithm, const rle_array *gin,
                                    const rle_array *gout, const rle_array *y, int dim)
{
    return along_rows(logarithm, gin, gout, y, dim);
}
