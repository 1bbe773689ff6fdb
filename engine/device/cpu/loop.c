/* loop.c - walking strided arrays.
 *
 * rle_loop is for elementwise operations, where the order of visits does not matter: it
 * makes the innermost run as long as it can. rle_walk keeps the row-major order. */
#include "device/cpu/cpu_internal.h"

#include <string.h>

rle_status rle_cpu_no_dtype(const char *what, rle_dtype t)
{
    return rle_fail(RLE_UNIMPLEMENTED, "%s is not defined for %s", what, rle_dtype_name(t));
}

static int64_t magnitude(int64_t v) { return v < 0 ? -v : v; }

void rle_loop_init(rle_loop *l, int count, const rle_array *const *operands)
{
    l->count = count;
    int size[RLE_LOOP_MAX];
    for (int o = 0; o < count; o++) {
        l->base[o] = operands[o]->data;
        l->size[o] = size[o] = (int)rle_dtype_size(operands[o]->dtype);
    }
    /* Insert each dimension behind those with larger strides of operand 0. */
    const rle_array *first = operands[0];
    int ndim = 0;
    l->numel = 1;
    for (int d = 0; d < first->ndim; d++) {
        int64_t extent = first->shape[d];
        l->numel *= extent;
        if (extent == 1) continue;
        int at = ndim++;
        int64_t key = magnitude(first->stride[d]) * size[0];
        while (at > 0 && magnitude(l->stride[0][at - 1]) < key) {
            l->shape[at] = l->shape[at - 1];
            for (int o = 0; o < count; o++) l->stride[o][at] = l->stride[o][at - 1];
            at--;
        }
        l->shape[at] = extent;
        for (int o = 0; o < count; o++) l->stride[o][at] = operands[o]->stride[d] * size[o];
    }
    /* Merge a dimension with the next when one step of it is a full run of the next. */
    int kept = 0;
    for (int d = 1; d < ndim; d++) {
        bool merges = true;
        for (int o = 0; o < count && merges; o++)
            merges = l->stride[o][kept] == l->stride[o][d] * l->shape[d];
        if (merges) {
            l->shape[kept] *= l->shape[d];
        } else {
            kept++;
            l->shape[kept] = l->shape[d];
        }
        for (int o = 0; o < count; o++) l->stride[o][kept] = l->stride[o][d];
    }
    l->ndim = kept + 1;
    if (ndim == 0) {
        l->shape[0] = 1;
        for (int o = 0; o < count; o++) l->stride[o][0] = size[o];
    }
}

static void copy_run(char *dst, int64_t dst_step, const char *src, int64_t src_step, int size,
                     int64_t n)
{
    if (dst_step == size && src_step == size && n >= 16) { /* else the call costs more */
        memcpy(dst, src, (size_t)n * (size_t)size);
        return;
    }
    switch (size) {
    case 4:
        for (int64_t i = 0; i < n; i++)
            memcpy(dst + i * dst_step, src + i * src_step, 4);
        break;
    case 8:
        for (int64_t i = 0; i < n; i++)
            memcpy(dst + i * dst_step, src + i * src_step, 8);
        break;
    default:
        for (int64_t i = 0; i < n; i++) dst[i * dst_step] = src[i * src_step];
    }
}

static void move(const rle_loop *l, int operand, rle_loop_pos *pos, int64_t n, char *buf,
                 bool gather)
{
    int last = l->ndim - 1, size = l->size[operand];
    const int64_t *stride = l->stride[operand];
    char *p = l->base[operand];
    for (int d = 0; d <= last; d++) p += pos->at[d] * stride[d];
    while (n > 0) {
        int64_t run = rle_min64(n, l->shape[last] - pos->at[last]);
        if (gather)
            copy_run(buf, size, p, stride[last], size, run);
        else
            copy_run(p, stride[last], buf, size, size, run);
        buf += run * size;
        n -= run;
        pos->at[last] += run;
        p += run * stride[last];
        for (int d = last; d > 0 && pos->at[d] == l->shape[d]; d--) {
            p += stride[d - 1] - pos->at[d] * stride[d];
            pos->at[d] = 0;
            pos->at[d - 1]++;
        }
    }
}

void rle_loop_gather(const rle_loop *l, int operand, rle_loop_pos *pos, int64_t n, void *buf)
{
    move(l, operand, pos, n, buf, true);
}

void rle_loop_scatter(const rle_loop *l, int operand, rle_loop_pos *pos, int64_t n,
                      const void *buf)
{
    move(l, operand, pos, n, (char *)buf, false);
}

void rle_walk_init(rle_walk *w, const rle_array *shape_of, uint32_t skip, int count,
                   const rle_array *const *arrays)
{
    w->ndim = 0;
    w->count = count;
    w->left = 1;
    int64_t size[3];
    for (int o = 0; o < count; o++) {
        w->p[o] = arrays[o]->data;
        size[o] = (int64_t)rle_dtype_size(arrays[o]->dtype);
    }
    for (int d = 0; d < shape_of->ndim; d++) {
        if (skip >> d & 1) continue;
        w->left *= shape_of->shape[d];
        if (shape_of->shape[d] == 1) continue;
        w->shape[w->ndim] = shape_of->shape[d];
        w->at[w->ndim] = 0;
        for (int o = 0; o < count; o++)
            w->stride[o][w->ndim] = arrays[o]->stride[d] * size[o];
        w->ndim++;
    }
}

void rle_walk_next(rle_walk *w)
{
    w->left--;
    for (int d = w->ndim - 1; d >= 0; d--) {
        for (int o = 0; o < w->count; o++) w->p[o] += w->stride[o][d];
        if (++w->at[d] < w->shape[d]) return;
        for (int o = 0; o < w->count; o++) w->p[o] -= w->stride[o][d] * w->shape[d];
        w->at[d] = 0;
    }
}
