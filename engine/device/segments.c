/* segments.c - a device's memory in pieces: few large takings from the driver, cut up
 * here.
 *
 * The driver's allocation is slow (it waits for the device) and coarse (2 MiB), so memory
 * is taken in segments and handed out in pieces, multiples of 512 bytes. Blocks up to 1
 * MiB come from segments of 2 MiB, larger ones from segments of 20 MiB or of their own
 * size: small blocks that live long then never pin a large segment. The smallest piece
 * that is large enough is taken and the rest of it stays free; a freed piece merges with
 * its free neighbours. A segment that is one free piece can go back to the driver.
 *
 * The driver offers pools of its own (cudaMallocAsync). They would do this job, but what
 * they hold belongs to the pool: nothing says which part of it is free, in what pieces,
 * or how much goes back when it is trimmed, and so the report could not add up. They do
 * not spare the accounting either, which needs a word for each block.
 *
 * Invariants
 *   1. the pieces of a segment, in the order of `before` and `after`, cover it; two free
 *      ones are never neighbours;
 *   2. a free piece is in the list of its size, a held one in the list of the held.
 *
 * A piece that another stream may still use carries guards. When it is freed it is held:
 * counted as cached, but reused only after every guard was ready. The guards own their
 * argument until they said so.
 *
 * Time: taking and giving are constant but for sizes above 2 MiB, whose lists (32 to each
 * power of two) are searched. */
#include "device/device_internal.h"

#include "base/mem.h"

enum {
    UNIT = 512,
    EXACT = 4096, /* units up to which each size has a list of its own: 2 MiB */
    EXACT_LOG = 12,
    PER_OCTAVE = 32,
    PER_OCTAVE_LOG = 5,
    LISTS = EXACT + (39 - EXACT_LOG) * PER_OCTAVE, /* sizes below 2^48 */
    WORDS = (LISTS + 63) / 64,
};
static const size_t SMALL_MAX = (size_t)1 << 20;
static const size_t STEP = (size_t)2 << 20;
static const size_t LARGE_SEGMENT = (size_t)20 << 20;

typedef struct guard {
    struct guard *next;
    rle_ready_fn *ready;
    void *arg;
} guard;

typedef enum { PIECE_LIVE, PIECE_FREE, PIECE_HELD } piece_state;

struct rle_piece {
    char *data;
    size_t units;
    rle_piece *before, *after; /* neighbours in the segment */
    rle_piece *prev, *next;    /* in the list it is in */
    guard *guards;
    uint8_t state; /* piece_state */
    bool large;    /* which pool its segment is of */
};

/* Free pieces of one kind of segment, by size, and which lists have any. */
typedef struct pool {
    rle_piece *list[LISTS];
    uint64_t used[WORDS];
    uint64_t used_words[(WORDS + 63) / 64];
} pool;

struct rle_segments {
    pool pool[2]; /* small, large */
    rle_piece *held;
    rle_piece *spare; /* structs without memory, by `next` */
};

/* ---- lists ---- */

static int list_of(size_t units)
{
    if (units <= EXACT) return (int)units - 1;
    int top = 63 - __builtin_clzll((unsigned long long)units);
    return EXACT + (top - EXACT_LOG) * PER_OCTAVE +
           (int)(units >> (top - PER_OCTAVE_LOG) & (PER_OCTAVE - 1));
}

/* The first list from `from` on that has a piece; LISTS when none has. */
static int next_list(const pool *p, int from)
{
    int word = from / 64;
    if (word >= WORDS) return LISTS;
    uint64_t bits = p->used[word] & ~(uint64_t)0 << from % 64;
    if (bits) return word * 64 + __builtin_ctzll(bits);
    word++;
    for (int w = word / 64; w < (WORDS + 63) / 64; w++, word = w * 64) {
        bits = p->used_words[w] & ~(uint64_t)0 << word % 64;
        if (!bits) continue;
        word = w * 64 + __builtin_ctzll(bits);
        return word * 64 + __builtin_ctzll(p->used[word]);
    }
    return LISTS;
}

static void link_free(rle_segments *s, rle_piece *x)
{
    pool *p = &s->pool[x->large];
    int l = list_of(x->units);
    x->state = PIECE_FREE;
    x->prev = NULL;
    x->next = p->list[l];
    if (x->next) x->next->prev = x;
    p->list[l] = x;
    p->used[l / 64] |= (uint64_t)1 << l % 64;
    p->used_words[l / 64 / 64] |= (uint64_t)1 << l / 64 % 64;
}

static void unlink_free(rle_segments *s, rle_piece *x)
{
    pool *p = &s->pool[x->large];
    int l = list_of(x->units);
    if (x->next) x->next->prev = x->prev;
    if (x->prev) {
        x->prev->next = x->next;
        return;
    }
    p->list[l] = x->next;
    if (x->next) return;
    p->used[l / 64] &= ~((uint64_t)1 << l % 64);
    if (!p->used[l / 64]) p->used_words[l / 64 / 64] &= ~((uint64_t)1 << l / 64 % 64);
}

/* The smallest free piece of at least `units`. */
static rle_piece *best_fit(const pool *p, size_t units)
{
    for (int l = next_list(p, list_of(units)); l < LISTS; l = next_list(p, l + 1)) {
        if (l < EXACT) return p->list[l];
        rle_piece *best = NULL;
        for (rle_piece *x = p->list[l]; x; x = x->next)
            if (x->units >= units && (!best || x->units < best->units)) best = x;
        if (best) return best;
    }
    return NULL;
}

/* ---- structs of pieces ---- */

static rle_piece *piece_new(rle_segments *s)
{
    rle_piece *x = s->spare;
    if (x)
        s->spare = x->next;
    else if ((x = rle_malloc(sizeof *x)) == NULL)
        return NULL;
    *x = (rle_piece){0};
    return x;
}

static void piece_drop(rle_segments *s, rle_piece *x)
{
    x->next = s->spare;
    s->spare = x;
}

static void drop_spares(rle_segments *s)
{
    while (s->spare) {
        rle_piece *x = s->spare;
        s->spare = x->next;
        rle_free(x);
    }
}

/* ---- taking and giving ---- */

static size_t units_of(size_t size)
{
    return size ? (size + UNIT - 1) / UNIT : 1;
}

static rle_piece *take_from(rle_segments *s, bool large, size_t units)
{
    rle_piece *x = best_fit(&s->pool[large], units);
    if (!x) return NULL;
    unlink_free(s, x);
    rle_piece *rest = x->units > units ? piece_new(s) : NULL; /* without: all of it */
    if (rest) {
        rest->data = x->data + units * UNIT;
        rest->units = x->units - units;
        rest->large = large;
        rest->before = x;
        rest->after = x->after;
        if (rest->after) rest->after->before = rest;
        x->after = rest;
        x->units = units;
        link_free(s, rest);
    }
    x->state = PIECE_LIVE;
    return x;
}

rle_piece *rle_segments_take(rle_segments *s, size_t size, bool from_any)
{
    size_t units = units_of(size);
    bool large = size > SMALL_MAX;
    rle_piece *x = take_from(s, large, units);
    if (!x && s->held && rle_segments_settle(s, false)) x = take_from(s, large, units);
    if (!x && from_any) x = take_from(s, !large, units);
    return x;
}

/* x takes in its right neighbour. */
static void absorb(rle_segments *s, rle_piece *x)
{
    rle_piece *y = x->after;
    x->units += y->units;
    x->after = y->after;
    if (x->after) x->after->before = x;
    piece_drop(s, y);
}

static void make_free(rle_segments *s, rle_piece *x)
{
    if (x->after && x->after->state == PIECE_FREE) {
        unlink_free(s, x->after);
        absorb(s, x);
    }
    if (x->before && x->before->state == PIECE_FREE) {
        x = x->before;
        unlink_free(s, x);
        absorb(s, x);
    }
    link_free(s, x);
}

void rle_segments_give(rle_segments *s, rle_piece *x)
{
    if (!x->guards) {
        make_free(s, x);
        return;
    }
    x->state = PIECE_HELD;
    x->prev = NULL;
    x->next = s->held;
    if (x->next) x->next->prev = x;
    s->held = x;
}

void *rle_piece_data(const rle_piece *x)
{
    return x->data;
}

size_t rle_piece_size(const rle_piece *x)
{
    return x->units * UNIT;
}

/* ---- guards ---- */

/* Drop the guards that are ready; true when none is left. */
static bool guards_done(rle_piece *x, bool wait)
{
    for (guard **g = &x->guards; *g;) {
        if (!(*g)->ready((*g)->arg, wait)) {
            g = &(*g)->next;
            continue;
        }
        guard *done = *g;
        *g = done->next;
        rle_free(done);
    }
    return !x->guards;
}

rle_status rle_segments_guard(rle_piece *x, rle_ready_fn *ready, void *arg)
{
    guards_done(x, false); /* so that a block used again and again keeps few */
    guard *g = rle_malloc(sizeof *g);
    if (!g) return rle_oom(sizeof *g, "a guard of device memory");
    *g = (guard){x->guards, ready, arg};
    x->guards = g;
    return RLE_OK;
}

bool rle_segments_settle(rle_segments *s, bool wait)
{
    bool any = false;
    for (rle_piece *x = s->held, *next; x; x = next) {
        next = x->next;
        if (!guards_done(x, wait)) continue;
        if (x->next) x->next->prev = x->prev;
        if (x->prev)
            x->prev->next = x->next;
        else
            s->held = x->next;
        make_free(s, x);
        any = true;
    }
    return any;
}

/* ---- segments ---- */

size_t rle_segments_want(size_t size, bool least)
{
    if (size <= SMALL_MAX) return STEP;
    if (!least && size <= LARGE_SEGMENT / 2) return LARGE_SEGMENT;
    return (size + STEP - 1) / STEP * STEP;
}

bool rle_segments_add(rle_segments *s, void *base, size_t bytes, size_t size)
{
    rle_piece *x = piece_new(s);
    if (!x) return false;
    x->data = base;
    x->units = bytes / UNIT;
    x->large = size > SMALL_MAX;
    link_free(s, x);
    return true;
}

size_t rle_segments_trim(rle_segments *s, rle_device *dev)
{
    size_t given = 0;
    rle_segments_settle(s, false);
    for (int large = 0; large < 2; large++) {
        pool *p = &s->pool[large];
        for (int l = next_list(p, 0); l < LISTS; l = next_list(p, l + 1))
            for (rle_piece *x = p->list[l], *next; x; x = next) {
                next = x->next;
                if (x->before || x->after) continue;
                unlink_free(s, x);
                dev->raw_free(dev, x->data, x->units * UNIT);
                given += x->units * UNIT;
                piece_drop(s, x);
            }
    }
    drop_spares(s);
    return given;
}

size_t rle_segments_largest(const rle_segments *s)
{
    size_t largest = 0;
    for (int large = 0; large < 2; large++) {
        const pool *p = &s->pool[large];
        for (int l = next_list(p, 0); l < LISTS; l = next_list(p, l + 1))
            for (const rle_piece *x = p->list[l]; x; x = x->next)
                if (x->units > largest) largest = x->units;
    }
    return largest * UNIT;
}

rle_segments *rle_segments_new(void)
{
    return rle_calloc(1, sizeof(rle_segments));
}

void rle_segments_drop(rle_segments *s)
{
    drop_spares(s);
    rle_free(s);
}
