/* mem.h - host memory for the engine's own structures: counted, and able to fail on demand.
 *
 * Tensor data does not come from here but from its device (device/device.h), which
 * attributes every block. What comes from here is counted as one number, so that tests
 * can see that a loop gives back what it took.
 *
 * Thread-safe. */
#ifndef RLE_BASE_MEM_H
#define RLE_BASE_MEM_H

#include <stddef.h>
#include <stdint.h>
#include <stdbool.h>

#include "base/status.h"

/* NULL on failure, with the message "out of memory: wanted N bytes for ..." set by the
 * caller through rle_oom(). A size of 0 returns a unique pointer. */
void *rle_malloc(size_t size);
void *rle_calloc(size_t count, size_t size); /* NULL also when count*size overflows */
void *rle_realloc(void *p, size_t size);     /* on failure p stays valid */
void rle_free(void *p);                      /* NULL is fine */
char *rle_strdup(const char *s);

/* For libraries that are given an allocator: as malloc and realloc, but failing when the
 * functions above would. Not counted; freed with free(). */
void *rle_malloc_for_others(size_t size);
void *rle_realloc_for_others(void *p, size_t size);

/* RESOURCE_EXHAUSTED with: out of memory: wanted N bytes for "what". */
rle_status rle_oom(size_t size, const char *what);

/* Bytes that the machine, or the control group this process is in, can still give;
 * SIZE_MAX when nobody says. */
size_t rle_mem_available(void);
/* Before `count` things of `size` bytes each are made: RESOURCE_EXHAUSTED, with the sum,
 * when they are more than is available. Sums below RLE_MEM_LARGE are not looked at. */
enum { RLE_MEM_LARGE = 64 << 20 };
rle_status rle_mem_check(size_t count, size_t size, const char *what);

/* Bytes and blocks now allocated through the functions above. */
size_t rle_mem_bytes(void);
size_t rle_mem_blocks(void);

/* Bytes of the largest block asked for since this was last called, granted or not. */
size_t rle_mem_largest(void);

/* The nth allocation from now fails, with `persistent` all after it too; 0: none.
 * (fault.h) */
void rle_mem_fault(uint64_t nth, bool persistent);

#endif
