/* classes.c - the CPU's cache of free blocks: one stack for each size class.
 *
 * Sizes are rounded to classes: multiples of 64 bytes up to 1 KiB, then four classes to
 * each power of two, so a block is at most a quarter larger than asked. Memory that is
 * reused stays warm; the system's allocator does the splitting and merging. */
#include "device/device_internal.h"

#include "base/mem.h"

typedef struct free_stack {
    void **block;
    uint32_t count, capacity;
} free_stack;

enum {
    CLASS_SMALL = 16,                   /* 64, 128, ... 1024 */
    CLASS_COUNT = CLASS_SMALL + 4 * 38, /* up to 2^48 */
};

struct rle_classes {
    free_stack free[CLASS_COUNT];
};

static int class_of(size_t size, size_t *rounded)
{
    if (size <= 1024) {
        int c = size ? (int)((size + 63) / 64) - 1 : 0;
        *rounded = ((size_t)c + 1) * 64;
        return c;
    }
    int top = 63 - __builtin_clzll((unsigned long long)(size - 1)); /* 2^top < size */
    size_t step = (size_t)1 << (top - 2);
    size_t quarters = (size - 1 - ((size_t)1 << top)) / step + 1; /* 1..4 */
    *rounded = ((size_t)1 << top) + quarters * step;
    return CLASS_SMALL + (top - 10) * 4 + (int)quarters - 1;
}

static size_t class_size(int class)
{
    if (class < CLASS_SMALL) return ((size_t) class + 1) * 64;
    int top = 10 + (class - CLASS_SMALL) / 4;
    size_t quarters = (size_t)((class - CLASS_SMALL) % 4) + 1;
    return ((size_t)1 << top) + quarters * ((size_t)1 << (top - 2));
}

size_t rle_classes_want(size_t size)
{
    size_t rounded;
    class_of(size, &rounded);
    return rounded;
}

rle_classes *rle_classes_new(void)
{
    return rle_calloc(1, sizeof(rle_classes));
}

void *rle_classes_take(rle_classes *c, size_t size, size_t *rounded)
{
    free_stack *s = &c->free[class_of(size, rounded)];
    return s->count ? s->block[--s->count] : NULL;
}

bool rle_classes_give(rle_classes *c, void *p, size_t rounded)
{
    free_stack *s = &c->free[class_of(rounded, &rounded)];
    if (s->count == s->capacity) {
        uint32_t capacity = s->capacity ? s->capacity * 2 : 8;
        void **block = rle_realloc(s->block, capacity * sizeof *block);
        if (!block) return false;
        s->block = block;
        s->capacity = capacity;
    }
    s->block[s->count++] = p;
    return true;
}

size_t rle_classes_evict(rle_classes *c, rle_device *dev, size_t larger_than)
{
    for (int class = CLASS_COUNT - 1; class >= 0; class --) {
        size_t size = class_size(class);
        if (size <= larger_than) return 0;
        free_stack *s = &c->free[class];
        if (!s->count) continue;
        dev->raw_free(dev, s->block[--s->count], size);
        return size;
    }
    return 0;
}

size_t rle_classes_trim(rle_classes *c, rle_device *dev)
{
    size_t given = 0;
    for (int class = 0; class < CLASS_COUNT; class ++) {
        free_stack *s = &c->free[class];
        given += s->count * class_size(class);
        while (s->count) dev->raw_free(dev, s->block[--s->count], class_size(class));
        rle_free(s->block);
        *s = (free_stack){0};
    }
    return given;
}

size_t rle_classes_largest(const rle_classes *c)
{
    int class = CLASS_COUNT - 1;
    while (class >= 0 && !c->free[class].count) class --;
    return class >= 0 ? class_size(class) : 0;
}
