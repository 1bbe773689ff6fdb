/* crc32c.h - CRC-32C (Castagnoli, RFC 3720 appendix B.4): checksum of headers and bodies.
 *
 * Uses the processor's instruction where there is one. Thread-safe. */
#ifndef RLE_RPC_CRC32C_H
#define RLE_RPC_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Checksum of `n` bytes appended to bytes whose checksum is `crc` (0 for none). */
uint32_t rle_crc32c(uint32_t crc, const void *bytes, size_t n);

/* The same without the instruction, for tests. */
uint32_t rle_crc32c_portable(uint32_t crc, const void *bytes, size_t n);

#endif
