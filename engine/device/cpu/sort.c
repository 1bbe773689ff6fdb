/* sort.c - stable sort along a dimension: insertion for short runs, then merging.
 *
 * A line is copied with its positions into a buffer twice its size, sorted there and
 * written out, so nothing is lost when the buffer cannot be had. */
#include "device/cpu/cpu_internal.h"

#include <string.h>

#include "base/mem.h"

#define INSERTION_RUN 16

/* before(a, b): a must stand ahead of b. NaN is the largest of all. */
#define SORT(name, T)                                                                    \
    typedef struct {                                                                     \
        T key;                                                                           \
        int64_t at;                                                                      \
    } item_##name;                                                                       \
    static inline bool before_##name(T a, T b, bool descending)                          \
    {                                                                                    \
        if (descending) return a > b || (a != a && b == b);                              \
        return a < b || (b != b && a == a);                                              \
    }                                                                                    \
    static void sort_##name(char *values, int64_t value_step, int64_t *indices,          \
                            int64_t index_step, const char *in, int64_t in_step,         \
                            int64_t n, bool descending, void *scratch)                   \
    {                                                                                    \
        item_##name *from = scratch, *to = from + n;                                     \
        for (int64_t i = 0; i < n; i++) {                                                \
            from[i].key = ((const T *)in)[i * in_step];                                  \
            from[i].at = i;                                                              \
        }                                                                                \
        for (int64_t start = 0; start < n; start += INSERTION_RUN) {                     \
            int64_t end = rle_min64(start + INSERTION_RUN, n);                           \
            for (int64_t i = start + 1; i < end; i++) {                                  \
                item_##name x = from[i];                                                 \
                int64_t j = i;                                                           \
                for (; j > start && before_##name(x.key, from[j - 1].key, descending);   \
                     j--)                                                                \
                    from[j] = from[j - 1];                                               \
                from[j] = x;                                                             \
            }                                                                            \
        }                                                                                \
        for (int64_t run = INSERTION_RUN; run < n; run *= 2) {                           \
            for (int64_t start = 0; start < n; start += 2 * run) {                       \
                int64_t a = start, a_end = rle_min64(start + run, n);                    \
                int64_t b = a_end, b_end = rle_min64(start + 2 * run, n);                \
                for (int64_t o = start; o < b_end; o++) {                                \
                    bool second = b < b_end &&                                           \
                                  (a == a_end ||                                         \
                                   before_##name(from[b].key, from[a].key, descending)); \
                    to[o] = second ? from[b++] : from[a++];                              \
                }                                                                        \
            }                                                                            \
            item_##name *swap = from;                                                    \
            from = to;                                                                   \
            to = swap;                                                                   \
        }                                                                                \
        for (int64_t i = 0; i < n; i++) {                                                \
            ((T *)values)[i * value_step] = from[i].key;                                 \
            indices[i * index_step] = from[i].at;                                        \
        }                                                                                \
    }
SORT(f32, float)
SORT(f64, double)
SORT(i32, int32_t)
SORT(i64, int64_t)
SORT(u8, uint8_t)

rle_status rle_cpu_sort(rle_device *dev, const rle_array *values,
                        const rle_array *indices, const rle_array *in, int dim,
                        bool descending)
{
    static void (*const sort[6])(char *, int64_t, int64_t *, int64_t, const char *, int64_t,
                                 int64_t, bool, void *) = {sort_f32, sort_f64, sort_i32,
                                                           sort_i64, sort_u8,  sort_u8};
    if (in->dtype > RLE_BOOL) return rle_cpu_no_dtype("sort", in->dtype);
    int64_t n = in->shape[dim];
    const rle_array *arrays[3] = {values, indices, in};
    rle_walk w;
    rle_walk_init(&w, in, 1u << dim, 3, arrays);
    if (n == 0 || w.left == 0) return RLE_OK;
    size_t bytes = (size_t)n * 2 * sizeof(item_f64);
    _Alignas(16) char small[2048];
    void *scratch = bytes <= sizeof(small) ? small : rle_malloc(bytes);
    if (!scratch) return rle_oom(bytes, "sorting");
    for (; w.left > 0; rle_walk_next(&w))
        sort[in->dtype](w.p[0], values->stride[dim], (int64_t *)w.p[1], indices->stride[dim],
                        w.p[2], in->stride[dim], n, descending, scratch);
    if (scratch != small) rle_free(scratch);
    return RLE_OK;
}
