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

/* Each of two ranks sends the other all that it has and computes the same result: no byte
 * more moves than if each computed half of it and sent that back, and nobody waits for an
 * answer. Then every piece is a part of each. */
static bool is_swap(const rle_collective *c, int ranks)
{
    return c->kind == RLE_COMM_ALL_REDUCE && ranks == 2 && !is_short(c, ranks);
}

static size_t part_size(const rle_collective *c, int ranks)
{
    size_t size = c->size;
    if (is_short(c, ranks)) return size;
    if (c->kind == RLE_COMM_ALL_REDUCE && !is_swap(c, ranks))
        size = rle_align64((size + (size_t)ranks - 1) / (size_t)ranks);
    return size < PIECE ? size : PIECE;
}

uint32_t rle_comm_count_parts(const rle_collective *c, int ranks)
{
    size_t size = part_size(c, ranks);
    if (is_short(c, ranks) || !size) return 1;
    uint32_t n = (uint32_t)((c->size + size - 1) / size);
    return c->kind == RLE_COMM_ALL_GATHER || is_swap(c, ranks) ? n * (uint32_t)ranks : n;
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
    bool swaps = is_swap(c, g->size);
    if (c->kind == RLE_COMM_ALL_REDUCE || c->kind == RLE_COMM_BARRIER)
        p.owner = (int)(part % ranks);
    if (swaps) at = size * (part / ranks);
    if (size > c->size - at) size = c->size - at;
    p.put = p.get = at;
    if (c->kind == RLE_COMM_ALL_REDUCE || c->kind == RLE_COMM_REDUCE) p.put_size = size;
    if ((c->kind == RLE_COMM_ALL_REDUCE && !swaps) || c->kind == RLE_COMM_BROADCAST)
        p.get_size = size;
    return p;
}

/* Of two that swap, one may have the other's piece before it has sent its own. */
bool rle_comm_lies_apart(const rle_comm_group *g, const rle_collective *c)
{
    return is_swap(c, g->size);
}

size_t rle_comm_own_at(const rle_comm_round *round, uint32_t part)
{
    int ranks = round->group->size;
    return part / (uint32_t)ranks * part_size(&round->c, ranks);
}

size_t rle_comm_own_size(const rle_comm_group *g, const rle_collective *c)
{
    uint32_t ranks = (uint32_t)g->size;
    if (is_swap(c, g->size)) return 0; /* nothing of the result is sent */
    return (rle_comm_count_parts(c, g->size) + ranks - 1) / ranks * part_size(c, g->size);
}
