/* buf.c - growth of writers, variable-length integers. */
#include "base/buf.h"

#include "base/mem.h"

void rle_writer_fini(rle_writer *w)
{
    rle_free(w->data);
    rle_writer_init(w);
}

void rle_writer_reset(rle_writer *w, size_t keep)
{
    if (w->cap > keep) {
        rle_free(w->data);
        w->data = NULL;
        w->cap = 0;
    }
    w->len = 0;
    w->failed = false;
}

uint8_t *rle_writer_grow(rle_writer *w, size_t n)
{
    size_t need;
    if (w->failed) return NULL;
    if (__builtin_add_overflow(w->len, n, &need)) {
        w->failed = true;
        return NULL;
    }
    size_t cap = w->cap ? w->cap : 256;
    while (cap < need) cap = cap > SIZE_MAX / 2 ? need : cap * 2;
    if (cap != w->cap) {
        uint8_t *data = rle_realloc(w->data, cap);
        if (!data) {
            w->failed = true;
            return NULL;
        }
        w->data = data;
        w->cap = cap;
    }
    uint8_t *p = w->data + w->len;
    w->len = need;
    return p;
}

void rle_write_varint(rle_writer *w, uint64_t v)
{
    uint8_t bytes[10];
    size_t n = 0;
    while (v >= 0x80) {
        bytes[n++] = (uint8_t)(v | 0x80);
        v >>= 7;
    }
    bytes[n++] = (uint8_t)v;
    rle_write_bytes(w, bytes, n);
}

rle_status rle_writer_status(const rle_writer *w, const char *what)
{
    return w->failed ? rle_oom(w->cap ? w->cap * 2 : 256, what) : RLE_OK;
}

uint64_t rle_read_varint(rle_reader *r)
{
    uint64_t v = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        uint8_t byte = rle_read_u8(r);
        if (r->failed) return 0;
        bool last = !(byte & 0x80);
        /* The tenth byte has room for one bit; a last byte of 0 says nothing. */
        if ((shift == 63 && byte > 1) || (last && byte == 0 && shift > 0)) break;
        v |= (uint64_t)(byte & 0x7f) << shift;
        if (last) return v;
    }
    r->failed = true;
    return 0;
}
