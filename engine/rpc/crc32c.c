/* crc32c.c - eight tables of 256 entries, or SSE4.2's crc32. The reflected polynomial is
 * 0x82f63b78; the register starts and ends inverted.
 *
 * The instruction gives its result after three cycles and can begin every cycle: long
 * blocks are read in three lanes at once. What a lane adds is put together by what the
 * register becomes when as many zeros pass, which is linear in it: four more tables. */
#include "rpc/crc32c.h"

#include <stdatomic.h>

#include <pthread.h>
#include <string.h>

#include "base/buf.h"

enum { LANE = 1024 }; /* bytes */

static uint32_t table[8][256],
    zeros[4][256]; /* zeros: a byte of the register after LANE of them */
static pthread_once_t table_once = PTHREAD_ONCE_INIT;

static void make_table(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
        table[0][i] = crc;
    }
    for (int t = 1; t < 8; t++)
        for (uint32_t i = 0; i < 256; i++)
            table[t][i] = table[t - 1][i] >> 8 ^ table[0][table[t - 1][i] & 0xff];
    for (int t = 0; t < 4; t++)
        for (uint32_t i = 1; i < 256; i++) {
            uint32_t rest = i & (i - 1), crc = (i ^ rest) << 8 * t; /* its lowest bit */
            for (int k = 0; !rest && k < LANE; k++) crc = crc >> 8 ^ table[0][crc & 0xff];
            zeros[t][i] = rest ? zeros[t][rest] ^ zeros[t][i ^ rest] : crc;
        }
}

uint32_t rle_crc32c_portable(uint32_t crc, const void *bytes, size_t n)
{
    pthread_once(&table_once, make_table);
    const uint8_t *p = bytes;
    crc = ~crc;
    for (; n >= 8; n -= 8, p += 8) {
        uint32_t lo = rle_get32(p) ^ crc, hi = rle_get32(p + 4);
        crc = table[7][lo & 0xff] ^ table[6][lo >> 8 & 0xff] ^ table[5][lo >> 16 & 0xff] ^
              table[4][lo >> 24] ^ table[3][hi & 0xff] ^ table[2][hi >> 8 & 0xff] ^
              table[1][hi >> 16 & 0xff] ^ table[0][hi >> 24];
    }
    for (; n; n--, p++) crc = crc >> 8 ^ table[0][(crc ^ *p) & 0xff];
    return ~crc;
}

#if defined(__x86_64__)
static uint32_t pass_zeros(uint32_t crc)
{
    return zeros[0][crc & 0xff] ^ zeros[1][crc >> 8 & 0xff] ^ zeros[2][crc >> 16 & 0xff] ^
           zeros[3][crc >> 24];
}

__attribute__((target("sse4.2"))) static uint32_t crc_sse42(uint32_t crc, const void *bytes,
                                                            size_t n)
{
    const uint8_t *p = bytes;
    uint64_t c = (uint32_t)~crc;
    if (n >= 3 * LANE) pthread_once(&table_once, make_table);
    for (; n >= 3 * LANE; n -= 3 * LANE, p += 3 * LANE) {
        uint64_t second = 0, third = 0;
        for (size_t i = 0; i < LANE; i += 8) {
            uint64_t word[3];
            for (size_t k = 0; k < 3; k++) memcpy(&word[k], p + i + k * LANE, 8);
            c = __builtin_ia32_crc32di(c, word[0]);
            second = __builtin_ia32_crc32di(second, word[1]);
            third = __builtin_ia32_crc32di(third, word[2]);
        }
        c = pass_zeros(pass_zeros((uint32_t)c) ^ (uint32_t)second) ^ (uint32_t)third;
    }
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        c = __builtin_ia32_crc32di(c, word);
    }
    uint32_t c32 = (uint32_t)c;
    for (; n; n--, p++) c32 = __builtin_ia32_crc32qi(c32, *p);
    return ~c32;
}

uint32_t rle_crc32c(uint32_t crc, const void *bytes, size_t n)
{
    static _Atomic int known; /* 1: there is none, 2: there is */
    int have = atomic_load_explicit(&known, memory_order_relaxed);
    if (!have) {
        have = __builtin_cpu_supports("sse4.2") ? 2 : 1;
        atomic_store_explicit(&known, have, memory_order_relaxed);
    }
    return have == 2 ? crc_sse42(crc, bytes, n) : rle_crc32c_portable(crc, bytes, n);
}
#else
uint32_t rle_crc32c(uint32_t crc, const void *bytes, size_t n)
{
    return rle_crc32c_portable(crc, bytes, n);
}
#endif
