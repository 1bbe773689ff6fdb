/* body.c - the bytes of long messages: there from the start, or still with whoever sends
 * them.
 *
 * A body that several messages share is filled before it is sent. One that is sent once
 * is written from where its values lie (`parts`), and what is copied, because it could
 * not be written before the sender may change them, counts as `ready`. What was written
 * from there is never copied: below `ready` bytes that are out already may be missing. Of
 * one whose tensor is lent, the values alone are copied, and the rest is written from
 * there to the end.
 *
 * Only the owner copies, and only what lies above `ready`, where nobody looks; so it can
 * do that without the lock (rle_conn_copy_rest in output.c). */
#include <string.h>

#include "rpc/crc32c.h"
#include "rpc/rpc_internal.h"

rle_status rle_body_new(size_t size, rle_body **out)
{
    rle_body *body = rle_malloc(sizeof *body);
    uint8_t *block = body ? rle_malloc(RLE_FRAME_HEADER + size) : NULL;
    if (!block) {
        rle_free(body);
        return rle_oom(size, "message to send");
    }
    *body = (rle_body){.refs = 1,
                       .size = size,
                       .ready = size,
                       .data = block + RLE_FRAME_HEADER,
                       .block = block};
    *out = body;
    return RLE_OK;
}

rle_status rle_body_of(rle_rpc *rpc, const rle_encoder *e, rle_body **out)
{
    RLE_TRY(rle_body_new(rle_encoder_body_size(e), out));
    rle_body *body = *out;
    rle_rest *rest = &rpc->rest;
    bool stays = e->stays && body->size > RLE_CHUNK_SIZE && !rest->body;
    struct iovec here[RLE_ENCODER_PARTS], *parts = stays ? rest->parts : here;
    body->part_count = rle_encoder_parts(e, parts);
    body->parts = parts;
    body->ready = 0;
    size_t now = stays ? rle_encoder_values_size(e) : body->size;
    rle_body_copy(body, 0, now);
    body->ready = now;
    if (stays) {
        body->refs++;
        rest->body = body;
        rest->conn = NULL;
        return RLE_OK;
    }
    body->parts = NULL;
    body->part_count = 0;
    return RLE_OK;
}

rle_status rle_body_lent(const rle_encoder *e, rle_body **out)
{
    size_t values = rle_encoder_values_size(e), at = rle_align64(values);
    size_t size = rle_encoder_body_size(e);
    RLE_TRY(rle_body_new(at, out));
    rle_body *body = *out;
    memcpy(body->data, e->w.data + RLE_FRAME_HEADER, values);
    memset(body->data + values, 0, at - values);
    body->size = size;
    body->lent_parts[0] = (struct iovec){body->data, at};
    body->lent_parts[1] = (struct iovec){(void *)e->tensor[0].data, size - at};
    body->parts = body->lent_parts;
    body->part_count = 2;
    body->lent = e->lent;
    ++*body->lent;
    return RLE_OK;
}

int rle_body_blocks(const rle_body *body, size_t at, size_t n, struct iovec *iov, size_t *got)
{
    size_t end = at + n, begin = at, part_at = 0;
    int count = 0;
    if (at < body->ready) {
        size_t have = body->ready < end ? body->ready - at : n;
        iov[count++] = (struct iovec){body->data + at, have};
        at += have;
    }
    for (int i = 0; i < body->part_count && at < end && count < RLE_BODY_BLOCKS; i++) {
        const struct iovec *part = &body->parts[i];
        if (at < part_at + part->iov_len) {
            size_t skip = at - part_at, have = part->iov_len - skip;
            if (have > end - at) have = end - at;
            iov[count++] = (struct iovec){(uint8_t *)part->iov_base + skip, have};
            at += have;
        }
        part_at += part->iov_len;
    }
    *got = at - begin;
    return count;
}

static uint32_t sum_of(const rle_body *body, size_t at, size_t n)
{
    uint32_t crc = 0;
    while (n) {
        struct iovec iov[RLE_BODY_BLOCKS];
        size_t got;
        int count = rle_body_blocks(body, at, n, iov, &got);
        for (int i = 0; i < count; i++) crc = rle_crc32c(crc, iov[i].iov_base, iov[i].iov_len);
        at += got;
        n -= got;
    }
    return crc;
}

uint32_t rle_body_sum(rle_body *body, size_t at, size_t n)
{
    size_t chunks = (body->size + RLE_CHUNK_SIZE - 1) / RLE_CHUNK_SIZE;
    if (body->home && !body->sums) body->sums = rle_calloc(chunks, sizeof *body->sums);
    uint32_t *known = body->sums ? &body->sums[at / RLE_CHUNK_SIZE] : NULL;
    if (known && *known) return *known;
    uint32_t sum = sum_of(body, at, n);
    if (known) *known = sum;
    return sum;
}

bool rle_body_uncopied(const rle_body *body, size_t sent, size_t n, size_t *at,
                       size_t *end)
{
    *at = body->ready < sent ? sent : body->ready;
    *end = body->size - *at < n ? body->size : *at + n;
    return *at < *end;
}

void rle_body_copy(const rle_body *body, size_t at, size_t end)
{
    while (at < end) {
        struct iovec iov[RLE_BODY_BLOCKS];
        size_t got;
        int count = rle_body_blocks(body, at, end - at, iov, &got);
        for (int i = 0; i < count; i++) {
            memcpy(body->data + at, iov[i].iov_base, iov[i].iov_len);
            at += iov[i].iov_len;
        }
    }
}
