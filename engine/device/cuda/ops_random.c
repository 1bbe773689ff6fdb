/* ops_random.c - slots that draw random numbers. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "common/permutation.h"
#include "common/philox.h"
#include "device/cuda/cuda_internal.h"

rle_status rle_cuda_random(rle_device *dev, rle_random_kind kind, const rle_array *out,
                           const rle_rng *rng, double p0, double p1)
{
    int64_t n = rle_array_numel(out);
    if (!n) return RLE_OK;
    rle_k_stream at = {rng->seed, rng->stream, rng->counter};
    rle_cuda_enter(dev);
    return rle_cuda_check(
        dev, "random",
        rle_k_random(out->dtype, kind, out->data, n, &at, p0, p1, rle_cuda_stream(dev)));
}

/* Made on the host and copied. */
rle_status rle_cuda_randperm(rle_device *dev, const rle_array *out, const rle_rng *rng)
{
    int64_t n = out->shape[0];
    size_t bytes = (size_t)n * sizeof(int64_t);
    if (!n) return RLE_OK;
    rle_array to = *out;
    bool dense = rle_array_is_contiguous(out);
    if (!dense) {
        RLE_TRY(rle_cuda_scratch(dev, bytes, &to.data));
        rle_array_set_contiguous(&to);
    }
    int64_t *x = rle_malloc(bytes);
    if (!x) return rle_oom(bytes, "a permutation");
    for (int64_t i = 0; i < n; i++) x[i] = i;
    rle_philox_block b = {{0}};
    for (int64_t i = 0; i + 1 < n; i++) {
        uint64_t position = rng->counter + (uint64_t)i;
        if (i == 0 || position % 4 == 0)
            b = rle_philox_stream(rng->seed, rng->stream, position / 4);
        rle_permute_step(x, 1, n, i, b.word[position % 4]);
    }
    rle_status status = dev->copy_in(dev, to.data, x, bytes);
    rle_free(x);
    return status == RLE_OK && !dense ? rle_cuda_copy(dev, out, &to) : status;
}

/* ---- keyed draws ---- */

static rle_k_keyed keyed(const rle_array *out, uint64_t seed, const rle_array *keys,
                         uint32_t draw)
{
    return (rle_k_keyed){keys->data, keys->stride[0], out->shape[0], out->shape[1], seed,
                         draw};
}

rle_status rle_cuda_random_keyed(rle_device *dev, const rle_array *out, uint64_t seed,
                                 const rle_array *keys, uint32_t draw)
{
    if (!rle_array_numel(out)) return RLE_OK;
    rle_k_keyed k = keyed(out, seed, keys, draw);
    rle_cuda_enter(dev);
    return rle_cuda_check(dev, "random_keyed",
                          rle_k_random_keyed(out->data, &k, rle_cuda_stream(dev)));
}

rle_status rle_cuda_dropout(rle_device *dev, const rle_array *out, const rle_array *in,
                            double p, uint64_t seed, const rle_array *keys, uint32_t draw)
{
    if (!rle_array_numel(out)) return RLE_OK;
    rle_k_keyed k = keyed(out, seed, keys, draw);
    rle_cuda_enter(dev);
    return rle_cuda_check(
        dev, "dropout",
        rle_k_dropout(out->dtype, out->data, in->data, p, &k, rle_cuda_stream(dev)));
}

/* ---- sampling ---- */

/* What the check found, as the CPU says it. */
static rle_status refuse(rle_device *dev, const rle_array *probs, uint64_t found)
{
    uint64_t classes = (uint64_t)probs->shape[1];
    int64_t row = (int64_t)(found / (classes + 1)), c = (int64_t)(found % (classes + 1));
    if (c == probs->shape[1])
        return rle_fail(RLE_INVALID_ARGUMENT,
                        "multinomial: row %" PRId64
                        ": all probabilities are 0, nothing can be drawn",
                        row + 1);
    double p = 0;
    size_t size = rle_dtype_size(probs->dtype);
    char bytes[8];
    int64_t at = row * probs->stride[0] + c * probs->stride[1];
    RLE_TRY(dev->copy_out(dev, bytes, (char *)probs->data + at * (int64_t)size, size));
    if (probs->dtype == RLE_F32) {
        float single;
        memcpy(&single, bytes, sizeof single);
        p = (double)single;
    } else {
        memcpy(&p, bytes, sizeof p);
    }
    return rle_fail(RLE_INVALID_ARGUMENT,
                    "multinomial: row %" PRId64 ": the probability of class %" PRId64
                    " is %g; it must be finite and not negative",
                    row + 1, c, p != p ? NAN : p);
}

rle_status rle_cuda_multinomial(rle_device *dev, const rle_array *out,
                                const rle_array *probs, const rle_array *u)
{
    rle_k_shares s = {.rows = probs->shape[0],
                      .classes = probs->shape[1],
                      .probs = probs->data,
                      .row_step = probs->stride[0],
                      .class_step = probs->stride[1],
                      .u = u->data,
                      .u_row = u->stride[0],
                      .u_step = u->stride[1],
                      .out = out->data,
                      .out_row = out->stride[0],
                      .out_step = out->stride[1]};
    if (!s.rows) return RLE_OK;
    unsigned long long *bad;
    uint64_t found;
    RLE_TRY(rle_cuda_flag_reset(dev, &bad));
    RLE_TRY(
        rle_cuda_check(dev, "multinomial",
                       rle_k_check_shares(probs->dtype, &s, bad, rle_cuda_stream(dev))));
    RLE_TRY(rle_cuda_flag_read(dev, "multinomial", &found));
    if (found != UINT64_MAX) return refuse(dev, probs, found);
    if (!out->shape[1]) return RLE_OK;
    return rle_cuda_check(
        dev, "multinomial",
        rle_k_sample(probs->dtype, &s, out->shape[1], rle_cuda_stream(dev)));
}
