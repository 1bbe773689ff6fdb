/* pcg64.c - SeedSequence, PCG64 (XSL-RR 128/64) and the draws numpy makes from it.
 *
 * Sources of the formulas: M. E. O'Neill, "PCG: A Family of Simple Fast Space-Efficient
 * Statistically Good Algorithms for Random Number Generation" (2014); her seed_seq_fe for
 * the mixing of seeds; D. Lemire, "Fast Random Integer Generation in an Interval" (2019).
 * The constants are those numpy documents for SeedSequence and PCG64. */
#include "env/pcg64.h"

#include <math.h>
#include <string.h>

#include "base/world.h"

__extension__ typedef unsigned __int128 u128;

enum { POOL = 4, XSHIFT = 16 };

static const uint32_t INIT_A = 0x43b0d7e5u, MULT_A = 0x931e8875u;
static const uint32_t INIT_B = 0x8b51f9ddu, MULT_B = 0x58f38dedu;
static const uint32_t MIX_L = 0xca01f9ddu, MIX_R = 0x4973f715u;

static u128 join(uint64_t hi, uint64_t lo)
{
    return (u128)hi << 64 | lo;
}

/* ---- SeedSequence ---- */

static uint32_t hash_in(uint32_t value, uint32_t *constant)
{
    value ^= *constant;
    *constant *= MULT_A;
    value *= *constant;
    return value ^ value >> XSHIFT;
}

static uint32_t mix(uint32_t x, uint32_t y)
{
    uint32_t r = MIX_L * x - MIX_R * y;
    return r ^ r >> XSHIFT;
}

/* Four words of entropy are as many as the pool has: a shorter seed counts as padded with
 * zeros, so there is nothing left over to mix in afterwards. */
static void seed_words(rle_pcg64 *rng, const uint32_t entropy[POOL])
{
    uint32_t pool[POOL], constant = INIT_A;
    for (int i = 0; i < POOL; i++) pool[i] = hash_in(entropy[i], &constant);
    for (int from = 0; from < POOL; from++)
        for (int to = 0; to < POOL; to++)
            if (from != to) pool[to] = mix(pool[to], hash_in(pool[from], &constant));

    uint64_t out[4];
    uint32_t low = 0;
    constant = INIT_B;
    for (int i = 0; i < 8; i++) {
        uint32_t value = pool[i % POOL] ^ constant;
        constant *= MULT_B;
        value *= constant;
        value ^= value >> XSHIFT;
        if (i % 2)
            out[i / 2] = (uint64_t)value << 32 | low;
        else
            low = value;
    }

    u128 start = join(out[0], out[1]), inc = join(out[2], out[3]) << 1 | 1;
    rng->inc_hi = (uint64_t)(inc >> 64);
    rng->inc_lo = (uint64_t)inc;
    rng->state_hi = rng->state_lo = 0;
    rng->has_half = false;
    rng->half = 0;
    rle_pcg64_next(rng);
    u128 state = join(rng->state_hi, rng->state_lo) + start;
    rng->state_hi = (uint64_t)(state >> 64);
    rng->state_lo = (uint64_t)state;
    rle_pcg64_next(rng);
}

void rle_pcg64_seed(rle_pcg64 *rng, uint64_t seed)
{
    seed_words(rng, (uint32_t[POOL]){(uint32_t)seed, (uint32_t)(seed >> 32), 0, 0});
}

rle_status rle_pcg64_seed_system(rle_pcg64 *rng)
{
    uint32_t entropy[POOL];
    RLE_TRY(rle_entropy(entropy, sizeof entropy));
    seed_words(rng, entropy);
    return RLE_OK;
}

/* ---- words ---- */

uint64_t rle_pcg64_next(rle_pcg64 *rng)
{
    const u128 multiplier = join(0x2360ed051fc65da4u, 0x4385df649fccf645u);
    u128 state =
        join(rng->state_hi, rng->state_lo) * multiplier + join(rng->inc_hi, rng->inc_lo);
    rng->state_hi = (uint64_t)(state >> 64);
    rng->state_lo = (uint64_t)state;
    uint64_t folded = rng->state_hi ^ rng->state_lo;
    unsigned turn = (unsigned)(rng->state_hi >> 58);
    return folded >> turn | folded << (-turn & 63);
}

uint32_t rle_pcg64_next32(rle_pcg64 *rng)
{
    if (rng->has_half) {
        rng->has_half = false;
        return rng->half;
    }
    uint64_t word = rle_pcg64_next(rng);
    rng->has_half = true;
    rng->half = (uint32_t)(word >> 32);
    return (uint32_t)word;
}

/* ---- draws ---- */

double rle_pcg64_double(rle_pcg64 *rng)
{
    return (double)(rle_pcg64_next(rng) >> 11) * 0x1p-53;
}

double rle_pcg64_uniform(rle_pcg64 *rng, double low, double high)
{
    double range = high - low;
    return low + range * rle_pcg64_double(rng);
}

uint64_t rle_pcg64_integers(rle_pcg64 *rng, uint64_t n)
{
    if (n == 1) return 0;
    if (n == 0) return rle_pcg64_next(rng);
    if (n == UINT64_C(1) << 32) return rle_pcg64_next32(rng);
    if (n < UINT64_C(1) << 32) {
        uint32_t n32 = (uint32_t)n;
        uint64_t m = (uint64_t)rle_pcg64_next32(rng) * n32;
        if ((uint32_t)m < n32) {
            uint32_t threshold = -n32 % n32;
            while ((uint32_t)m < threshold) m = (uint64_t)rle_pcg64_next32(rng) * n32;
        }
        return m >> 32;
    }
    u128 m = (u128)rle_pcg64_next(rng) * n;
    if ((uint64_t)m < n) {
        uint64_t threshold = -n % n;
        while ((uint64_t)m < threshold) m = (u128)rle_pcg64_next(rng) * n;
    }
    return (uint64_t)(m >> 64);
}

double rle_pcg64_normal(rle_pcg64 *rng)
{
    /* 1 - u lies in (0, 1]: the logarithm is finite. */
    double radius = sqrt(-2.0 * log(1.0 - rle_pcg64_double(rng)));
    return radius * cos(2.0 * M_PI * rle_pcg64_double(rng));
}

double rle_pcg64_exponential(rle_pcg64 *rng)
{
    return -log(1.0 - rle_pcg64_double(rng));
}
