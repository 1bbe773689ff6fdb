/* device_internal.h - what the files of device/ share.
 *
 * Memory of a device: allocator.c decides where a block comes from and keeps the totals,
 * ledger.c knows who holds what, and free memory is kept by classes.c (the CPU) or
 * segments.c (devices of plug-ins). oom.c says what can be said when there is no more. */
#ifndef RLE_DEVICE_INTERNAL_H
#define RLE_DEVICE_INTERNAL_H

#include "device/plugin.h"

/* With `segments` memory is taken in large pieces and cut up (devices where the driver's
 * allocation is slow and coarse), else block by block. */
rle_status rle_allocator_new(bool segments, struct rle_allocator **out);
/* Gives everything cached back; blocks still live are the caller's mistake. */
void rle_allocator_free(rle_device *dev);

/* ---- who holds what: ledger.c ---- */

typedef struct rle_ledger_row {
    uint32_t site;
    uint8_t owner;
    size_t bytes, blocks;
    size_t marked; /* bytes at the last rle_device_mark */
} rle_ledger_row;

typedef struct rle_ledger {
    rle_ledger_row *row;
    uint32_t count, capacity;
    uint32_t *slot; /* open addressing: row index + 1 */
    uint32_t slot_count;
    uint32_t last; /* the row found last: lines allocate in bursts */
} rle_ledger;

rle_status rle_ledger_init(rle_ledger *l);
void rle_ledger_fini(rle_ledger *l);
/* The row of (owner, site); without memory for a new one, row 0, which is "?". */
uint32_t rle_ledger_row_of(rle_ledger *l, uint32_t site, uint8_t owner);
/* Rows with live bytes, largest first, or with `growth` those that grew since the mark,
 * most first; at most `max`; returns how many there are. */
size_t rle_ledger_rows(const rle_ledger *l, bool growth, rle_memory_row *rows,
                       size_t max);
void rle_ledger_mark(rle_ledger *l);

/* ---- free blocks of the CPU: classes.c ---- */

typedef struct rle_classes rle_classes;

rle_classes *rle_classes_new(void); /* NULL without memory; rle_free after a trim */
/* A cached block for `size` bytes, or NULL; *rounded is the size of its class. */
void *rle_classes_take(rle_classes *c, size_t size, size_t *rounded);
size_t rle_classes_want(size_t size); /* the size of its class */
/* False: no memory to remember it. */
bool rle_classes_give(rle_classes *c, void *p, size_t rounded);
/* One block of the largest size, if it is larger than that, back to the system; bytes. */
size_t rle_classes_evict(rle_classes *c, rle_device *dev, size_t larger_than);
/* Everything back to the system; bytes. */
size_t rle_classes_trim(rle_classes *c, rle_device *dev);
size_t rle_classes_largest(const rle_classes *c);

/* ---- memory in segments and pieces: segments.c ---- */

typedef struct rle_segments rle_segments;
typedef struct rle_piece rle_piece;

rle_segments *rle_segments_new(void); /* NULL without memory */
void rle_segments_drop(rle_segments *s);
/* A free piece of at least `size` bytes, or NULL. Small and large blocks have segments of
 * their own; `from_any` looks into the others' too. */
rle_piece *rle_segments_take(rle_segments *s, size_t size, bool from_any);
void rle_segments_give(rle_segments *s, rle_piece *x);
void *rle_piece_data(const rle_piece *x);
size_t rle_piece_size(const rle_piece *x);
/* How large a segment to take from the driver for a block of `size`; `least`: no larger
 * than needed. */
size_t rle_segments_want(size_t size, bool least);
/* A segment that was taken for a block of `size` bytes. False: no memory to remember it.
 */
bool rle_segments_add(rle_segments *s, void *base, size_t bytes, size_t size);
/* Segments that are wholly free back to the driver; bytes. */
size_t rle_segments_trim(rle_segments *s, rle_device *dev);
rle_status rle_segments_guard(rle_piece *x, rle_ready_fn *ready, void *arg);
/* Free held pieces whose guards are ready, or with `wait` all; true if there was one. */
bool rle_segments_settle(rle_segments *s, bool wait);
size_t rle_segments_largest(const rle_segments *s);

/* ---- out of memory: oom.c ---- */

/* RESOURCE_EXHAUSTED for `size` bytes that could not be had, with everything that helps
 * in rle_device_oom_report. `use`: they were for a workspace; NULL: for a tensor. */
rle_status rle_device_refuse(rle_device *dev, size_t size, const rle_workspace *use);
void rle_device_count_refusal(rle_device *dev);
/* Largest block that the cache could give at once. */
size_t rle_device_largest_free(rle_device *dev);
/* Rows that grew since the mark, most first; *since is the mark's name, NULL without. */
size_t rle_device_growth(rle_device *dev, rle_memory_row *rows, size_t max,
                         const char **since);

/* ---- text: report.c ---- */

/* Append to `text` of `size` bytes, of which *used are used; cuts at the end. */
void rle_text_add(char *text, size_t size, size_t *used, const char *fmt, ...)
    RLE_PRINTF(4, 5);

/* What plug-ins ask the program (plugin.h). */
rle_status rle_device_take_workspace(rle_device *dev, const rle_workspace *use,
                                     size_t size, size_t least, void **out, size_t *got);
rle_status rle_device_count_workspace(rle_device *dev, const rle_workspace *use,
                                      size_t size);
void rle_device_give_workspace(rle_device *dev, void *p, size_t got);
void rle_device_make_room(rle_device *dev, size_t size);
void rle_device_fatal(const char *message) __attribute__((noreturn));
bool rle_device_fault_hits(const char *what);

#endif
