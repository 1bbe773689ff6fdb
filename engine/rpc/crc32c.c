/* crc32c.c - eight tables of 256 entries, or SSE4.2's crc32. The reflected polynomial is
 * 0x82f63b78; the register starts and ends inverted. */
#include "rpc/crc32c.h"

#include <stdatomic.h>

#include <pthread.h>
#include <string.h>

#include "base/buf.h"

static uint32_t table[8][256];
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
__attribute__((target("sse4.2"))) static uint32_t crc_sse42(uint32_t crc, const void *bytes,
                                                            size_t n)
{
    const uint8_t *p = bytes;
    uint64_t c = (uint32_t)~crc;
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
