/* random.c - random numbers from counters: which words a draw uses, and sampling.
 * kernels/common/philox.h says what a word is; the conversions are in isa/random.c. */
#include "device/cpu/cpu_internal.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/permutation.h"
#include "common/philox.h"

#define CHUNK 1024 /* words at a time */

/* Words position .. position+n-1 of a stream, n <= CHUNK. They start at the returned
 * pointer, somewhere in buf[CHUNK + 8]. */
static const uint32_t *stream_words(const rle_rng *rng, uint64_t position, int64_t n,
                                    uint32_t *buf)
{
    uint64_t skip = position & 3;
    rle_cpu_active->philox_stream(buf, rng->seed, rng->stream, position >> 2,
                                  (int64_t)((skip + (uint64_t)n + 3) >> 2));
    return buf + skip;
}

static void integers(const rle_array *out, const rle_rng *rng, int64_t low, uint64_t range)
{
    uint32_t buf[CHUNK + 8];
    int64_t n = rle_array_numel(out);
    int width = range > UINT64_C(1) << 32 ? 2 : 1;
    for (int64_t done = 0; done < n;) {
        int64_t count = rle_min64(n - done, CHUNK / width);
        const uint32_t *w =
            stream_words(rng, rng->counter + (uint64_t)(done * width), count * width, buf);
        for (int64_t i = 0; i < count; i++) {
            uint64_t x;
            if (width == 1) {
                x = (uint64_t)w[i] * range >> 32;
            } else {
                uint64_t word = (uint64_t)w[2 * i + 1] << 32 | w[2 * i];
                x = (uint64_t)((unsigned __int128)word * range >> 64);
            }
            x += (uint64_t)low;
            if (out->dtype == RLE_I64)
                ((int64_t *)out->data)[done + i] = (int64_t)x;
            else if (out->dtype == RLE_I32)
                ((int32_t *)out->data)[done + i] = (int32_t)x;
            else
                ((uint8_t *)out->data)[done + i] = (uint8_t)x;
        }
        done += count;
    }
}

rle_status rle_cpu_random(rle_device *dev, rle_random_kind kind, const rle_array *out,
                          const rle_rng *rng, double p0, double p1)
{
    int f = rle_cpu_float(out->dtype);
    if (kind == RLE_RANDOM_INTEGER) {
        if (f >= 0 || out->dtype >= RLE_BOOL)
            return rle_cpu_no_dtype("a random integer", out->dtype);
        int64_t low = (int64_t)p0;
        integers(out, rng, low, (uint64_t)(int64_t)p1 - (uint64_t)low);
        return RLE_OK;
    }
    if (f < 0) return rle_cpu_no_dtype("a random float", out->dtype);
    _Alignas(64) uint32_t buf[CHUNK + 8];
    int width = f ? 2 : 1, size = f ? 8 : 4;
    int64_t n = rle_array_numel(out);
    for (int64_t done = 0; done < n;) {
        int64_t count = rle_min64(n - done, CHUNK / width);
        char *to = (char *)out->data + done * size;
        uint64_t position = rng->counter + (uint64_t)(done * width);
        if (kind == RLE_RANDOM_UNIFORM) {
            const uint32_t *w = stream_words(rng, position, count * width, buf);
            rle_cpu_active->uniform[f](to, w, count, p0, p1);
        } else {
            int64_t even = count & ~INT64_C(1);
            const uint32_t *w = stream_words(rng, position, (count + 1) * width,
                                             buf);
            rle_cpu_active->normal[f](to, w, even, p0, p1);
            if (count > even) {
                double pair[2];
                rle_cpu_active->normal[f](pair, w + even * width, 2, p0, p1);
                memcpy(to + even * size, pair, (size_t)size);
            }
        }
        done += count;
    }
    return RLE_OK;
}

rle_status rle_cpu_randperm(rle_device *dev, const rle_array *out, const rle_rng *rng)
{
    int64_t n = out->shape[0], step = out->stride[0];
    int64_t *x = out->data;
    uint32_t buf[CHUNK + 8];
    const uint32_t *w = NULL;
    for (int64_t i = 0; i < n; i++) x[i * step] = i;
    for (int64_t i = 0; i + 1 < n; i++) {
        if (i % CHUNK == 0)
            w = stream_words(rng, rng->counter + (uint64_t)i, rle_min64(n - i, CHUNK), buf);
        rle_permute_step(x, step, n, i, w[i % CHUNK]);
    }
    return RLE_OK;
}

/* ---- keyed draws ---- */

/* Uniforms of a [rows, cols] array in row-major order, a stretch of whole blocks at a time. */
typedef struct {
    const rle_array *keys;
    uint64_t seed;
    uint32_t draw;
    int64_t cols, row, quad, rows;
} keyed;

static int64_t keyed_next(keyed *s, float *u /* [CHUNK] */)
{
    _Alignas(64) uint32_t word[CHUNK];
    _Alignas(64) float all[CHUNK];
    uint64_t key[CHUNK / 4];
    uint32_t quad[CHUNK / 4];
    int64_t quads = (s->cols + 3) / 4, first = s->quad;
    int n = 0;
    while (n < CHUNK / 4 && s->row < s->rows) {
        int count = (int)rle_min64(CHUNK / 4 - n, quads - s->quad);
        uint64_t k = (uint64_t)((const int64_t *)s->keys->data)[s->row * s->keys->stride[0]];
        for (int i = 0; i < count; i++) {
            key[n + i] = k;
            quad[n + i] = (uint32_t)(s->quad + i);
        }
        n += count;
        s->quad += count;
        if (s->quad == quads) {
            s->quad = 0;
            s->row++;
        }
    }
    rle_cpu_active->philox_keyed(word, s->seed, key, s->draw, quad, n);
    if (s->cols % 4 == 0) {
        rle_cpu_active->uniform[0](u, word, n * 4, 0, 1);
        return n * 4;
    }
    /* The last block of a row is not used up. */
    rle_cpu_active->uniform[0](all, word, n * 4, 0, 1);
    int64_t made = 0;
    for (int b = 0; b < n; b++) {
        int used = (int)rle_min64(4, s->cols - first * 4);
        for (int i = 0; i < used; i++) u[made++] = all[b * 4 + i];
        if (++first == quads) first = 0;
    }
    return made;
}

rle_status rle_cpu_random_keyed(rle_device *dev, const rle_array *out, uint64_t seed,
                                const rle_array *keys, uint32_t draw)
{
    if (out->dtype != RLE_F32) return rle_cpu_no_dtype("a keyed draw", out->dtype);
    keyed s = {keys, seed, draw, out->shape[1], 0, 0, out->shape[0]};
    if (s.cols == 0) return RLE_OK;
    float u[CHUNK], *to = out->data;
    while (s.row < s.rows) {
        int64_t n = keyed_next(&s, u);
        memcpy(to, u, (size_t)n * sizeof(float));
        to += n;
    }
    return RLE_OK;
}

rle_status rle_cpu_dropout(rle_device *dev, const rle_array *out, const rle_array *in,
                           double p, uint64_t seed, const rle_array *keys, uint32_t draw)
{
    int f = rle_cpu_float(out->dtype);
    if (f < 0) return rle_cpu_no_dtype("dropout", out->dtype);
    keyed s = {keys, seed, draw, out->shape[1], 0, 0, out->shape[0]};
    if (s.cols == 0) return RLE_OK;
    _Alignas(64) float u[CHUNK];
    size_t size = rle_dtype_size(out->dtype);
    int64_t done = 0;
    while (s.row < s.rows) {
        int64_t n = keyed_next(&s, u);
        rle_cpu_active->dropout[f]((char *)out->data + (size_t)done * size,
                                   (const char *)in->data + (size_t)done * size, u, n, p);
        done += n;
    }
    return RLE_OK;
}

/* ---- sampling ---- */

static inline double probability(const rle_array *probs, int64_t row, int64_t c)
{
    int64_t at = row * probs->stride[0] + c * probs->stride[1];
    return probs->dtype == RLE_F32 ? (double)((const float *)probs->data)[at]
                                   : ((const double *)probs->data)[at];
}

/* The shares are added up in double, in order; a class of probability 0 is never drawn. */
rle_status rle_cpu_multinomial(rle_device *dev, const rle_array *out,
                               const rle_array *probs, const rle_array *u)
{
    if (rle_cpu_float(probs->dtype) < 0) return rle_cpu_no_dtype("multinomial", probs->dtype);
    int64_t rows = probs->shape[0], classes = probs->shape[1], draws = out->shape[1];
    for (int64_t r = 0; r < rows; r++) {
        double total = 0;
        for (int64_t c = 0; c < classes; c++) {
            double p = probability(probs, r, c);
            if (!(p >= 0) || p - p != 0)
                return rle_fail(RLE_INVALID_ARGUMENT,
                                "multinomial: row %" PRId64
                                ": the probability of class %" PRId64
                                " is %g; it must be finite and not negative",
                                r + 1, c, p != p ? NAN : p);
            total += p;
        }
        if (!(total > 0))
            return rle_fail(RLE_INVALID_ARGUMENT,
                            "multinomial: row %" PRId64
                            ": all probabilities are 0, nothing can be drawn",
                            r + 1);
    }
    for (int64_t r = 0; r < rows; r++) {
        double total = 0;
        for (int64_t c = 0; c < classes; c++) total += probability(probs, r, c);
        for (int64_t j = 0; j < draws; j++) {
            float x = ((const float *)u->data)[r * u->stride[0] + j * u->stride[1]];
            double target = (double)x * total, sum = 0;
            int64_t pick = 0;
            for (int64_t c = 0; c < classes; c++) {
                double p = probability(probs, r, c);
                if (p == 0) continue;
                pick = c; /* the last possible one when rounding leaves none above */
                sum += p;
                if (sum > target) break;
            }
            ((int64_t *)out->data)[r * out->stride[0] + j * out->stride[1]] = pick;
        }
    }
    return RLE_OK;
}
