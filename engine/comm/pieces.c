/* pieces.c - what a collective's bytes are cut into, and whose each part is: the same at
 * every rank, for it depends on the size, the kind and the number of ranks only. */
#include "comm/comm_internal.h"

enum {
    SHORT = 64 << 10, /* of a collective of so many bytes rank 0 is the owner of all */
    PIECE = 1 << 20   /* of longer ones, at most so much is a part */
};

/* All bytes of it are rank 0's part. */
static bool is_short(const rle_collective *c, int ranks)
{
    return c->kind == RLE_COMM_BARRIER ||
           (c->kind == RLE_COMM_ALL_REDUCE && c->size <= SHORT) ||
           (c->kind == RLE_COMM_ALL_GATHER && c->size <= SHORT / (size_t)ranks);
}

static size_t part_size(const rle_collective *c, int ranks)
{
    size_t size = c->size;
    if (is_short(c, ranks)) return size;
    if (c->kind == RLE_COMM_ALL_REDUCE)
        size = rle_align64((size + (size_t)ranks - 1) / (size_t)ranks);
    return size < PIECE ? size : PIECE;
}

uint32_t rle_comm_count_parts(const rle_collective *c, int ranks)
{
    size_t size = part_size(c, ranks);
    if (is_short(c, ranks) || !size) return 1;
    uint32_t n = (uint32_t)((c->size + size - 1) / size);
    return c->kind == RLE_COMM_ALL_GATHER ? n * (uint32_t)ranks : n;
}

rle_comm_piece rle_comm_piece_of(const rle_comm_round *round, uint32_t part)
{
    const rle_collective *c = &round->c;
    const rle_comm_group *g = round->group;
    uint32_t ranks = (uint32_t)g->size;
    size_t size = part_size(c, g->size), at = size * part;
    rle_comm_piece p = {.owner = c->root};
    if (c->kind == RLE_COMM_ALL_GATHER) {
        size_t own = (size_t)g->rank * c->size;
        if (is_short(c, g->size))
            return (rle_comm_piece){
                .put = own, .put_size = c->size, .get_size = ranks * c->size};
        p.owner = (int)(part % ranks);
        at = size * (part / ranks);
        p.get = (size_t)p.owner * c->size + at;
        p.get_size = c->size - at < size ? c->size - at : size;
        return p;
    }
    if (c->kind == RLE_COMM_ALL_REDUCE || c->kind == RLE_COMM_BARRIER)
        p.owner = (int)(part % ranks);
    if (size > c->size - at) size = c->size - at;
    p.put = p.get = at;
    if (c->kind == RLE_COMM_ALL_REDUCE || c->kind == RLE_COMM_REDUCE) p.put_size = size;
    if (c->kind == RLE_COMM_ALL_REDUCE || c->kind == RLE_COMM_BROADCAST)
        p.get_size = size;
    return p;
}
