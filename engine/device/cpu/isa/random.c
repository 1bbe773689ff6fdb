/* random.c - words of Philox and what is made of them. */
#include "common/math.h"
#include "common/philox.h"
#include "device/cpu/isa/isa.h"

void RLE_NAME(rle_philox_stream)(uint32_t *out, uint64_t seed, uint64_t stream,
                                 uint64_t block, int64_t blocks)
{
    for (int64_t i = 0; i < blocks; i++) {
        rle_philox_block b = rle_philox_stream(seed, stream, block + (uint64_t)i);
        for (int w = 0; w < 4; w++) out[4 * i + w] = b.word[w];
    }
}

void RLE_NAME(rle_philox_keyed)(uint32_t *out, uint64_t seed, const uint64_t *key,
                                uint32_t draw, const uint32_t *quad, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        rle_philox_block b = rle_philox_keyed(seed, key[i], draw, quad[i]);
        for (int w = 0; w < 4; w++) out[4 * i + w] = b.word[w];
    }
}

void RLE_NAME(rle_dropout_f32)(void *out_, const void *in_, const float *u, int64_t n, double p)
{
    float *out = out_;
    const float *in = in_;
    float threshold = (float)p, scale = (float)(1 / (1 - p));
    for (int64_t i = 0; i < n; i++) out[i] = u[i] >= threshold ? in[i] * scale : 0;
}

void RLE_NAME(rle_dropout_f64)(void *out_, const void *in_, const float *u, int64_t n, double p)
{
    double *out = out_;
    const double *in = in_;
    float threshold = (float)p;
    double scale = 1 / (1 - p);
    for (int64_t i = 0; i < n; i++) out[i] = u[i] >= threshold ? in[i] * scale : 0;
}

void RLE_NAME(rle_uniform_f32)(void *out_, const uint32_t *words, int64_t n, double p0,
                               double p1)
{
    float *out = out_;
    float low = (float)p0, range = (float)(p1 - p0);
    for (int64_t i = 0; i < n; i++) out[i] = low + range * rle_uniform_f32(words[i]);
}

void RLE_NAME(rle_uniform_f64)(void *out_, const uint32_t *words, int64_t n, double p0,
                               double p1)
{
    double *out = out_;
    double range = p1 - p0;
    for (int64_t i = 0; i < n; i++)
        out[i] = p0 + range * rle_uniform_f64(words[2 * i], words[2 * i + 1]);
}

void RLE_NAME(rle_normal_f32)(void *out_, const uint32_t *words, int64_t n, double p0,
                              double p1)
{
    float *out = out_;
    float mean = (float)p0, deviation = (float)p1;
    for (int64_t i = 0; i < n; i += 2) {
        float c, s;
        rle_normal_pair_f32(words[i], words[i + 1], &c, &s);
        out[i] = mean + deviation * c;
        out[i + 1] = mean + deviation * s;
    }
}

void RLE_NAME(rle_normal_f64)(void *out_, const uint32_t *words, int64_t n, double p0,
                              double p1)
{
    double *out = out_;
    for (int64_t i = 0; i < n; i += 2) {
        double c, s;
        const uint32_t *w = words + 2 * i;
        rle_normal_pair_f64(w[0], w[1], w[2], w[3], &c, &s);
        out[i] = p0 + p1 * c;
        out[i + 1] = p0 + p1 * s;
    }
}
