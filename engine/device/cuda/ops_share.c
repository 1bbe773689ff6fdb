/* ops_share.c - log-probabilities of chosen classes. */
#include <inttypes.h>

#include "device/cuda/cuda_internal.h"

static rle_k_share shares_of(const rle_array *wide, const rle_array *kept,
                             const rle_array *index)
{
    return (rle_k_share){.rows = wide->shape[0],
                         .classes = wide->shape[1],
                         .kept = kept->data,
                         .index = index->data};
}

/* What the kernel found in row found / 2: a class that is none, or no positive sum. */
static rle_status refuse(rle_device *dev, const rle_k_share *s, uint64_t found)
{
    int64_t row = (int64_t)(found / 2), action;
    if (found % 2)
        return rle_fail(RLE_INVALID_ARGUMENT,
                        "log_prob: row %" PRId64 " has no class of positive probability",
                        row + 1);
    RLE_TRY(dev->copy_out(dev, &action, s->index + row, sizeof action));
    return rle_fail(RLE_OUT_OF_RANGE,
                    "log_prob: action %" PRId64 " is no class; there are %" PRId64
                    ", counted from 0",
                    action, s->classes);
}

rle_status rle_cuda_log_share(rle_device *dev, const rle_array *out,
                              const rle_array *kept, const rle_array *x,
                              const rle_array *index)
{
    rle_k_share s = shares_of(x, kept, index);
    s.x = x->data;
    s.out = out->data;
    if (!s.rows) return RLE_OK;
    unsigned long long *bad;
    uint64_t found;
    RLE_TRY(rle_cuda_flag_reset(dev, &bad));
    RLE_TRY(rle_cuda_check(dev, "log_prob",
                           rle_k_log_share(x->dtype, &s, bad, rle_cuda_stream(dev))));
    RLE_TRY(rle_cuda_flag_read(dev, "log_prob", &found));
    return found == UINT64_MAX ? RLE_OK : refuse(dev, &s, found);
}

rle_status rle_cuda_log_share_backward(rle_device *dev, const rle_array *gx,
                                       const rle_array *gout, const rle_array *kept,
                                       const rle_array *index)
{
    rle_k_share s = shares_of(gx, kept, index);
    s.gout = gout->data;
    s.gx = gx->data;
    if (!s.rows || !s.classes) return RLE_OK;
    rle_cuda_enter(dev);
    return rle_cuda_check(dev, "log_prob backward",
                          rle_k_log_share_backward(gx->dtype, &s, rle_cuda_stream(dev)));
}
