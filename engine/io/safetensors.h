/* safetensors.h - weights as data: the safetensors file format, read strictly, written whole
 * or not at all.
 *
 * A file is 8 bytes of length (little endian), that many bytes of JSON, and the tensors'
 * bytes. What is accepted is what the format says and nothing else:
 *   - the header is at most 1 MiB, one object, each entry {dtype, shape, data_offsets};
 *   - no name twice, product(shape) x size of dtype is the length of its range;
 *   - ranges lie in the order of the header, without gap or overlap, and end at the end of
 *     the file;
 *   - "sha256" in the metadata, when there, is the digest of the data. Written always.
 * A breach is DATA_LOSS with what and where; sizes are checked before anything is allocated.
 *
 * Host memory only: who calls moves tensors from and to their device. Any thread. */
#ifndef RLE_IO_SAFETENSORS_H
#define RLE_IO_SAFETENSORS_H

#include "base/dtype.h"

#define RLE_SAFETENSORS_MAX_HEADER (1u << 20)

/* An opened file. */
typedef struct rle_safetensors rle_safetensors;

/* One tensor: row-major bytes, owned by whoever gave or opened them. `data` may have any
 * alignment. */
typedef struct rle_st_tensor {
    const char *name; /* UTF-8 without NUL */
    rle_dtype dtype;
    int ndim;
    int64_t shape[RLE_MAX_DIMS];
    const void *data;
    size_t size; /* bytes */
} rle_st_tensor;

typedef struct rle_st_pair {
    const char *key, *value;
} rle_st_pair;

/* Read and check a file. NOT_FOUND, PERMISSION_DENIED, DATA_LOSS (with the path);
 * UNIMPLEMENTED for an element type that the engine does not have. */
rle_status rle_safetensors_open(const char *path, rle_safetensors **out);
/* The same for bytes in memory, which must outlive *out; `what` names them in messages. */
rle_status rle_safetensors_parse(const void *bytes, size_t size, const char *what,
                                 rle_safetensors **out);
void rle_safetensors_close(rle_safetensors *st); /* NULL is fine */

size_t rle_safetensors_count(const rle_safetensors *st);
const rle_st_tensor *rle_safetensors_at(const rle_safetensors *st, size_t i);
/* NULL when there is none of that name. */
const rle_st_tensor *rle_safetensors_find(const rle_safetensors *st, const char *name);
size_t rle_safetensors_metadata_count(const rle_safetensors *st);
rle_st_pair rle_safetensors_metadata_at(const rle_safetensors *st, size_t i);

/* Write `path` atomically: a temporary file beside it, fsync, rename, fsync of the folder.
 * On failure the file that was there is as it was and the temporary file is gone. Tensors
 * are laid out by size of their elements, largest first, then by name, so the same
 * contents give the same bytes. INVALID_ARGUMENT: a name twice, not UTF-8, reserved
 * ("__metadata__", metadata "sha256"), or a header above 1 MiB; RESOURCE_EXHAUSTED: disk
 * full; NOT_FOUND, PERMISSION_DENIED. */
rle_status rle_safetensors_write(const char *path, const rle_st_tensor *tensors, size_t count,
                                 const rle_st_pair *metadata, size_t metadata_count);

#endif
