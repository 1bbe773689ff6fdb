/* random.c - words of Philox and what is made of them. */
#include "common/math.h"
#include "common/philox.h"
#include "device/cpu/isa/isa.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

/* ---- GROUP blocks at once: word w of block i to out[4*i + w] ---- */

#define GROUP 16

#if defined(__clang__)
#define RLE_ROUNDS _Pragma("clang loop unroll(full)")
#else
#define RLE_ROUNDS _Pragma("GCC unroll 10")
#endif

/* The two key words of each round. */
static void round_keys(uint64_t seed, uint32_t *keys)
{
    for (int round = 0; round < 10; round++) {
        keys[2 * round] = (uint32_t)seed + (uint32_t)round * 0x9E3779B9u;
        keys[2 * round + 1] = (uint32_t)(seed >> 32) + (uint32_t)round * 0xBB67AE85u;
    }
}

#if defined(__AVX512F__)

/* Low and high halves of 16 products by m. */
static inline void multiply(__m512i x, __m512i m, __m512i *low, __m512i *high)
{
    __m512i even = _mm512_mul_epu32(x, m);
    __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), m);
    *low = _mm512_mask_shuffle_epi32(even, 0xaaaa, odd, 0xa0);
    *high = _mm512_mask_shuffle_epi32(odd, 0x5555, even, 0xf5);
}

static void group(const uint32_t *c0, const uint32_t *c1, const uint32_t *c2,
                  const uint32_t *c3, const uint32_t *keys, uint32_t *out)
{
    __m512i a = _mm512_loadu_si512(c0), b = _mm512_loadu_si512(c1);
    __m512i c = _mm512_loadu_si512(c2), d = _mm512_loadu_si512(c3);
    __m512i m0 = _mm512_set1_epi32((int)0xD2511F53u), m1 = _mm512_set1_epi32((int)0xCD9E8D57u);
    RLE_ROUNDS
    for (int round = 0; round < 10; round++) {
        __m512i low0, high0, low1, high1;
        multiply(a, m0, &low0, &high0);
        multiply(c, m1, &low1, &high1);
        a = _mm512_ternarylogic_epi32(high1, b, _mm512_set1_epi32((int)keys[2 * round]), 0x96);
        c = _mm512_ternarylogic_epi32(high0, d, _mm512_set1_epi32((int)keys[2 * round + 1]), 0x96);
        b = low1;
        d = low0;
    }
    /* 4 x 4 inside each quarter, then the quarters. */
    __m512i ab0 = _mm512_unpacklo_epi32(a, b), ab1 = _mm512_unpackhi_epi32(a, b);
    __m512i cd0 = _mm512_unpacklo_epi32(c, d), cd1 = _mm512_unpackhi_epi32(c, d);
    __m512i q0 = _mm512_unpacklo_epi64(ab0, cd0), q1 = _mm512_unpackhi_epi64(ab0, cd0);
    __m512i q2 = _mm512_unpacklo_epi64(ab1, cd1), q3 = _mm512_unpackhi_epi64(ab1, cd1);
    __m512i x0 = _mm512_shuffle_i32x4(q0, q1, 0x44), x1 = _mm512_shuffle_i32x4(q2, q3, 0x44);
    __m512i x2 = _mm512_shuffle_i32x4(q0, q1, 0xee), x3 = _mm512_shuffle_i32x4(q2, q3, 0xee);
    _mm512_storeu_si512(out, _mm512_shuffle_i32x4(x0, x1, 0x88));
    _mm512_storeu_si512(out + 16, _mm512_shuffle_i32x4(x0, x1, 0xdd));
    _mm512_storeu_si512(out + 32, _mm512_shuffle_i32x4(x2, x3, 0x88));
    _mm512_storeu_si512(out + 48, _mm512_shuffle_i32x4(x2, x3, 0xdd));
}

#elif defined(__AVX2__)

static inline void multiply(__m256i x, __m256i m, __m256i *low, __m256i *high)
{
    __m256i even = _mm256_mul_epu32(x, m);
    __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), m);
    *low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
    *high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
}

static void half_group(const uint32_t *c0, const uint32_t *c1, const uint32_t *c2,
                       const uint32_t *c3, const uint32_t *keys, uint32_t *out)
{
    __m256i a = _mm256_loadu_si256((const __m256i *)c0);
    __m256i b = _mm256_loadu_si256((const __m256i *)c1);
    __m256i c = _mm256_loadu_si256((const __m256i *)c2);
    __m256i d = _mm256_loadu_si256((const __m256i *)c3);
    __m256i m0 = _mm256_set1_epi32((int)0xD2511F53u), m1 = _mm256_set1_epi32((int)0xCD9E8D57u);
    RLE_ROUNDS
    for (int round = 0; round < 10; round++) {
        __m256i low0, high0, low1, high1;
        multiply(a, m0, &low0, &high0);
        multiply(c, m1, &low1, &high1);
        const __m256i key0 = _mm256_set1_epi32((int)keys[2 * round]);
        const __m256i key1 = _mm256_set1_epi32((int)keys[2 * round + 1]);
        a = _mm256_xor_si256(_mm256_xor_si256(high1, b), key0);
        c = _mm256_xor_si256(_mm256_xor_si256(high0, d), key1);
        b = low1;
        d = low0;
    }
    __m256i ab0 = _mm256_unpacklo_epi32(a, b), ab1 = _mm256_unpackhi_epi32(a, b);
    __m256i cd0 = _mm256_unpacklo_epi32(c, d), cd1 = _mm256_unpackhi_epi32(c, d);
    __m256i q0 = _mm256_unpacklo_epi64(ab0, cd0), q1 = _mm256_unpackhi_epi64(ab0, cd0);
    __m256i q2 = _mm256_unpacklo_epi64(ab1, cd1), q3 = _mm256_unpackhi_epi64(ab1, cd1);
    __m256i *to = (__m256i *)out;
    _mm256_storeu_si256(to, _mm256_permute2x128_si256(q0, q1, 0x20));
    _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(q2, q3, 0x20));
    _mm256_storeu_si256(to + 2, _mm256_permute2x128_si256(q0, q1, 0x31));
    _mm256_storeu_si256(to + 3, _mm256_permute2x128_si256(q2, q3, 0x31));
}

static void group(const uint32_t *c0, const uint32_t *c1, const uint32_t *c2,
                  const uint32_t *c3, const uint32_t *keys, uint32_t *out)
{
    half_group(c0, c1, c2, c3, keys, out);
    half_group(c0 + 8, c1 + 8, c2 + 8, c3 + 8, keys, out + 32);
}

#else

static void group(const uint32_t *c0, const uint32_t *c1, const uint32_t *c2,
                  const uint32_t *c3, const uint32_t *keys, uint32_t *out)
{
    for (int i = 0; i < GROUP; i++) {
        rle_philox_block b = rle_philox(c0[i], c1[i], c2[i], c3[i], keys[0], keys[1]);
        memcpy(out + 4 * i, b.word, sizeof(b.word));
    }
}

#endif

/* Few blocks are cheaper one by one. */
#define ALONE 3

void RLE_NAME(rle_philox_stream)(uint32_t *out, uint64_t seed, uint64_t stream,
                                 uint64_t block, int64_t blocks)
{
    uint32_t c0[GROUP], c1[GROUP], c2[GROUP], c3[GROUP], keys[20];
    if (blocks > ALONE) round_keys(seed, keys);
    for (int i = 0; i < GROUP; i++) {
        c2[i] = (uint32_t)stream;
        c3[i] = (uint32_t)(stream >> 32) & 0x7fffffffu;
    }
    while (blocks > ALONE) {
        uint32_t low = (uint32_t)block, high = (uint32_t)(block >> 32);
        for (int i = 0; i < GROUP; i++) c0[i] = low + (uint32_t)i;
        for (int i = 0; i < GROUP; i++) c1[i] = high + (c0[i] < low);
        uint32_t rest[4 * GROUP];
        bool whole = blocks >= GROUP;
        group(c0, c1, c2, c3, keys, whole ? out : rest);
        if (!whole) {
            memcpy(out, rest, (size_t)blocks * 16);
            return;
        }
        out += 4 * GROUP;
        block += GROUP;
        blocks -= GROUP;
    }
    for (int64_t i = 0; i < blocks; i++) {
        rle_philox_block b = rle_philox_stream(seed, stream, block + (uint64_t)i);
        memcpy(out + 4 * i, b.word, sizeof(b.word));
    }
}

void RLE_NAME(rle_philox_keyed)(uint32_t *out, uint64_t seed, const uint64_t *key,
                                uint32_t draw, const uint32_t *quad, int64_t n)
{
    uint32_t c0[GROUP], c1[GROUP], c2[GROUP], c3[GROUP], keys[20];
    if (n > ALONE) round_keys(seed, keys);
    for (int i = 0; i < GROUP; i++) c1[i] = draw;
    for (; n >= GROUP; n -= GROUP, out += 4 * GROUP, key += GROUP, quad += GROUP) {
        for (int i = 0; i < GROUP; i++) {
            c2[i] = (uint32_t)key[i];
            c3[i] = (uint32_t)(key[i] >> 32) | 0x80000000u;
        }
        group(quad, c1, c2, c3, keys, out);
    }
    if (n > ALONE) {
        uint32_t rest[4 * GROUP];
        for (int i = 0; i < GROUP; i++) {
            int64_t from = i < n ? i : n - 1;
            c0[i] = quad[from];
            c2[i] = (uint32_t)key[from];
            c3[i] = (uint32_t)(key[from] >> 32) | 0x80000000u;
        }
        group(c0, c1, c2, c3, keys, rest);
        memcpy(out, rest, (size_t)n * 16);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        rle_philox_block b = rle_philox_keyed(seed, key[i], draw, quad[i]);
        memcpy(out + 4 * i, b.word, sizeof(b.word));
    }
}

/* ---- elements from words ---- */

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

/* With u in [0, 1); out may be in. */
void RLE_NAME(rle_dropout_f32)(void *out_, const void *in_, const float *u, int64_t n, double p)
{
    float *out = out_;
    const float *in = in_;
    float threshold = (float)p, scale = (float)(1 / (1 - p));
    RLE_IVDEP
    for (int64_t i = 0; i < n; i++) out[i] = u[i] >= threshold ? in[i] * scale : 0;
}

void RLE_NAME(rle_dropout_f64)(void *out_, const void *in_, const float *u, int64_t n, double p)
{
    double *out = out_;
    const double *in = in_;
    float threshold = (float)p;
    double scale = 1 / (1 - p);
    RLE_IVDEP
    for (int64_t i = 0; i < n; i++) out[i] = u[i] >= threshold ? in[i] * scale : 0;
}
