/* rpc_greeting.h - the greeting of HELLO, as clients made of a bare socket send it. */
#ifndef TESTS_RPC_GREETING_H
#define TESTS_RPC_GREETING_H

#include <string.h>

#include "base/buf.h"

static inline void write_greeting(rle_writer *w, uint64_t incarnation, const char *name,
                                  int min, int max)
{
    rle_write_u16(w, 0);
    rle_write_u16(w, (uint16_t)min);
    rle_write_u16(w, (uint16_t)max);
    rle_write_u8(w, 1);
    rle_write_u8(w, 0);
    for (int i = 0; i < 6; i++) rle_write_u32(w, 1000);
    rle_write_u64(w, 64 << 20);
    rle_write_u64(w, incarnation);
    for (int i = 0; i < 4; i++) rle_write_u64(w, 7);
    rle_write_u8(w, (uint8_t)strlen(name));
    rle_write_bytes(w, name, strlen(name));
    rle_write_u8(w, 0);
}

#endif
