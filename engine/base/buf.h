/* buf.h - bounds-checked reading and writing of little-endian bytes.
 *
 * A writer grows its own block; a reader walks over bytes somebody else owns. Both keep
 * going after a mistake and remember it: a reader past its end returns zeros, a writer
 * without memory writes nothing, and `failed` tells at the end. So a sequence of puts or
 * gets needs one check. No thread safety; no structure here outlives its owner. */
#ifndef RLE_BASE_BUF_H
#define RLE_BASE_BUF_H

#include <endian.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/status.h"

/* ---- fixed places, the caller vouches for the room ---- */

static inline void rle_put16(uint8_t *p, uint16_t v)
{
    v = htole16(v);
    memcpy(p, &v, sizeof v);
}

static inline void rle_put32(uint8_t *p, uint32_t v)
{
    v = htole32(v);
    memcpy(p, &v, sizeof v);
}

static inline void rle_put64(uint8_t *p, uint64_t v)
{
    v = htole64(v);
    memcpy(p, &v, sizeof v);
}

static inline uint16_t rle_get16(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return le16toh(v);
}

static inline uint32_t rle_get32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return le32toh(v);
}

static inline uint64_t rle_get64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return le64toh(v);
}

/* ---- writer ---- */

typedef struct rle_writer {
    uint8_t *data; /* owned; NULL until the first byte */
    size_t len, cap;
    bool failed; /* memory ran out; what was written before is intact */
} rle_writer;

static inline void rle_writer_init(rle_writer *w)
{
    *w = (rle_writer){NULL, 0, 0, false};
}
void rle_writer_fini(rle_writer *w); /* frees the block; then as after rle_writer_init */

/* Forget the content, keep the block (given back when it is larger than `keep` bytes). */
void rle_writer_reset(rle_writer *w, size_t keep);

/* Room for `n` more bytes at w->data + w->len, or NULL (and w->failed). The bytes count as
 * written. */
uint8_t *rle_writer_grow(rle_writer *w, size_t n);
static inline uint8_t *rle_writer_room(rle_writer *w, size_t n)
{
    if (w->cap - w->len >= n) {
        uint8_t *p = w->data + w->len;
        w->len += n;
        return p;
    }
    return rle_writer_grow(w, n);
}

static inline void rle_write_u8(rle_writer *w, uint8_t v)
{
    uint8_t *p = rle_writer_room(w, 1);
    if (p) *p = v;
}

static inline void rle_write_u16(rle_writer *w, uint16_t v)
{
    uint8_t *p = rle_writer_room(w, 2);
    if (p) rle_put16(p, v);
}

static inline void rle_write_u32(rle_writer *w, uint32_t v)
{
    uint8_t *p = rle_writer_room(w, 4);
    if (p) rle_put32(p, v);
}

static inline void rle_write_u64(rle_writer *w, uint64_t v)
{
    uint8_t *p = rle_writer_room(w, 8);
    if (p) rle_put64(p, v);
}

static inline void rle_write_f64(rle_writer *w, double v)
{
    uint64_t bits;
    memcpy(&bits, &v, 8);
    rle_write_u64(w, bits);
}

static inline void rle_write_bytes(rle_writer *w, const void *bytes, size_t n)
{
    uint8_t *p = rle_writer_room(w, n);
    if (p && n) memcpy(p, bytes, n);
}

/* Seven bits a byte, low first, the top bit says that more follow: 1 to 10 bytes. */
void rle_write_varint(rle_writer *w, uint64_t v);

/* OK, or RESOURCE_EXHAUSTED naming `what` when the writer ran out of memory. */
rle_status rle_writer_status(const rle_writer *w, const char *what);

/* ---- reader ---- */

typedef struct rle_reader {
    const uint8_t *p, *end;
    bool failed; /* something was read that is not there, or is malformed */
} rle_reader;

static inline void rle_reader_init(rle_reader *r, const void *bytes, size_t n)
{
    r->p = bytes;
    r->end = r->p + n;
    r->failed = false;
}

static inline size_t rle_reader_left(const rle_reader *r)
{
    return (size_t)(r->end - r->p);
}

/* The next n bytes in place, or NULL (and r->failed). */
static inline const uint8_t *rle_read_bytes(rle_reader *r, size_t n)
{
    if (rle_reader_left(r) < n) {
        r->failed = true;
        r->p = r->end;
        return NULL;
    }
    const uint8_t *p = r->p;
    r->p += n;
    return p;
}

static inline uint8_t rle_read_u8(rle_reader *r)
{
    const uint8_t *p = rle_read_bytes(r, 1);
    return p ? *p : 0;
}

static inline uint16_t rle_read_u16(rle_reader *r)
{
    const uint8_t *p = rle_read_bytes(r, 2);
    return p ? rle_get16(p) : 0;
}

static inline uint32_t rle_read_u32(rle_reader *r)
{
    const uint8_t *p = rle_read_bytes(r, 4);
    return p ? rle_get32(p) : 0;
}

static inline uint64_t rle_read_u64(rle_reader *r)
{
    const uint8_t *p = rle_read_bytes(r, 8);
    return p ? rle_get64(p) : 0;
}

static inline double rle_read_f64(rle_reader *r)
{
    uint64_t bits = rle_read_u64(r);
    double v;
    memcpy(&v, &bits, 8);
    return v;
}

/* Refuses more than 64 bits and encodings longer than needed. */
uint64_t rle_read_varint(rle_reader *r);

#endif
