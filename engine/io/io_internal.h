/* io_internal.h - what the reader and the writer of safetensors share. */
#ifndef RLE_IO_INTERNAL_H
#define RLE_IO_INTERNAL_H

#include "base/dtype.h"

enum { RLE_SHA256_HEX = 64 };

/* Hex digest of the bytes into out[65]. */
rle_status rle_sha256_hex(const void *data, size_t size, char *out);

/* The format's name for a dtype ("F32"); NULL for one it lacks. */
const char *rle_st_dtype_name(rle_dtype dtype);

/* Length in bytes (1-4) of the UTF-8 character at s, of which `left` bytes are there; 0 when
 * it is malformed: overlong, a surrogate, above U+10FFFF, or cut off. */
int rle_utf8_length(const unsigned char *s, size_t left);

/* The status that an errno of a file operation means. */
rle_status rle_io_status(int error);

#endif
