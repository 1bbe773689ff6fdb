/* tensor.h - tensors: a strided view on reference-counted storage of a device.
 *
 * Invariants
 *   1. a tensor's array lies within its storage's block; strides may be 0 (expand) but are
 *      never negative;
 *   2. views share the storage, and with it the version counter that every in-place
 *      operation advances: autograd sees a change of a saved tensor through any view;
 *   3. `grad_fn` and `requires_grad` are autograd's; the tensor layer only releases them.
 *
 * Ownership: functions with an `out` parameter hand the caller one reference. Tensors,
 * storages and the autograd graph belong to the thread that owns the devices; reference
 * counts are plain integers. */
#ifndef RLE_TENSOR_TENSOR_H
#define RLE_TENSOR_TENSOR_H

#include "base/dtype.h"
#include "device/device.h"

struct rle_node;

typedef struct rle_storage {
    int32_t refs;
    uint32_t version;     /* advanced by every in-place change */
    uint32_t graph_holds; /* autograd nodes that saved a tensor of this storage */
    bool pointed;         /* somebody outside has its address: it stays where it is */
    rle_device *device;
    rle_block block;
} rle_storage;

typedef struct rle_tensor {
    rle_array a; /* first: &t->a is the array to hand to the device */
    int32_t refs;
    bool requires_grad;       /* a leaf that wants .grad, or the result of recording */
    bool is_view;             /* made as a view of another tensor */
    uint32_t grad_version;    /* storage version when grad_fn was set */
    rle_storage *storage;
    struct rle_node *grad_fn; /* NULL for leaves */
    struct rle_tensor *grad;  /* of leaves, after backward */
} rle_tensor;

/* ---- life ---- */

/* Contiguous, contents undefined. shape: `ndim` sizes >= 0. INVALID_ARGUMENT for more than
 * RLE_MAX_DIMS dimensions, negative sizes, or a byte count that overflows;
 * RESOURCE_EXHAUSTED from the device. ndim 0 is a scalar. */
rle_status rle_tensor_new(rle_device *dev, rle_dtype dtype, int ndim, const int64_t *shape,
                          rle_tensor **out);
/* As above, with every element 0. */
rle_status rle_tensor_zeros(rle_device *dev, rle_dtype dtype, int ndim, const int64_t *shape,
                            rle_tensor **out);
/* As rle_tensor_new on the CPU, in memory that `dev` reads and writes itself
 * (rle_device_alloc_pinned). */
rle_status rle_tensor_new_pinned(rle_device *dev, rle_dtype dtype, int ndim,
                                 const int64_t *shape, rle_tensor **out);
/* A copy of `data`, row-major in host memory. */
rle_status rle_tensor_from_host(rle_device *dev, rle_dtype dtype, int ndim,
                                const int64_t *shape, const void *data, rle_tensor **out);
/* New tensor on the storage of `base` with the given array (data, shape, strides). */
rle_status rle_tensor_view(rle_tensor *base, const rle_array *array, rle_tensor **out);
/* The same array without any history: shares storage, requires no grad. */
rle_status rle_tensor_detach(rle_tensor *t, rle_tensor **out);

static inline rle_tensor *rle_tensor_retain(rle_tensor *t)
{
    t->refs++;
    return t;
}
void rle_tensor_destroy(rle_tensor *t); /* only for the function below */
static inline void rle_tensor_release(rle_tensor *t)
{
    if (t && --t->refs == 0) rle_tensor_destroy(t);
}

/* Set by autograd: releases a node that a dying tensor held. */
extern void (*rle_tensor_release_node)(struct rle_node *node);

/* ---- facts ---- */

static inline int64_t rle_tensor_numel(const rle_tensor *t)
{
    return rle_array_numel(&t->a);
}
static inline bool rle_tensor_is_contiguous(const rle_tensor *t)
{
    return rle_array_is_contiguous(&t->a);
}
static inline rle_device *rle_tensor_device(const rle_tensor *t)
{
    return t->storage->device;
}
static inline const rle_device_ops *rle_tensor_ops(const rle_tensor *t)
{
    return t->storage->device->ops;
}
/* Live tensor objects of this process. */
size_t rle_tensor_count(void);

/* ---- data ---- */

/* Row-major copy of the elements to host memory; `size` must be numel * dtype size. */
rle_status rle_tensor_to_host(rle_tensor *t, void *host, size_t size);
/* Row-major host data of `dtype` into t (any strides), cast. Advances the version. */
rle_status rle_tensor_write_host(rle_tensor *t, rle_dtype dtype, const void *host);
/* Nothing but t has this storage, all of it, in ordinary memory of the CPU: it may get
 * other memory. */
bool rle_tensor_may_move(const rle_tensor *t);
/* Two such tensors of the same number of bytes exchange their memory, and with it what is
 * in it. Whom it is accounted to stays. Advances both versions. */
void rle_tensor_exchange(rle_tensor *a, rle_tensor *b);
/* The single element as a double, and for integers and bool exactly as an int64.
 * INVALID_ARGUMENT unless numel is 1. */
rle_status rle_tensor_item(rle_tensor *t, double *value, int64_t *integer);

/* ---- text: "tensor([[1., 2.],\n        [3., 4.]], f32[2,2], cpu)" ---- */

/* A string from rle_malloc, in *out. */
rle_status rle_tensor_format(rle_tensor *t, char **out);

#endif
