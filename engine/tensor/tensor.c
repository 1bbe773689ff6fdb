/* tensor.c - life of tensors and storages, and moving data between host and tensor.
 *
 * Tensor and storage structs come from two small pools: a training step makes and drops
 * hundreds of them. The pools hand back to malloc what exceeds POOL_MAX. */
#include "tensor/tensor.h"

#include <inttypes.h>
#include <string.h>

#include "base/mem.h"

#if defined(__SANITIZE_ADDRESS__)
enum { POOL_MAX = 0 }; /* let the sanitizer see every use after release */
#else
enum { POOL_MAX = 4096 };
#endif

typedef struct pool {
    void *block[POOL_MAX + 1];
    int count;
} pool;

static pool tensor_pool, storage_pool;
static size_t live_tensors;

void (*rle_tensor_release_node)(struct rle_node *node);

static void *pool_take(pool *p, size_t size)
{
    return p->count ? p->block[--p->count] : rle_malloc(size);
}

static void pool_give(pool *p, void *block)
{
    if (p->count < POOL_MAX)
        p->block[p->count++] = block;
    else
        rle_free(block);
}

/* ---- storage ---- */

static void storage_release(rle_storage *s)
{
    if (--s->refs) return;
    rle_device_free(s->device, &s->block);
    pool_give(&storage_pool, s);
}

/* `pinned`: of the CPU, but read by `dev` itself. */
static rle_status storage_new(rle_device *dev, bool pinned, size_t size,
                              rle_storage **out)
{
    rle_storage *s = pool_take(&storage_pool, sizeof *s);
    if (!s) return rle_oom(sizeof *s, "storage");
    rle_status status = pinned ? rle_device_alloc_pinned(dev, size, &s->block)
                               : rle_device_alloc(dev, size, &s->block);
    if (status != RLE_OK) {
        pool_give(&storage_pool, s);
        return status;
    }
    s->refs = 1;
    s->version = 0;
    s->graph_holds = 0;
    s->pointed = false;
    s->device = pinned ? rle_device_cpu() : dev;
    *out = s;
    return RLE_OK;
}

/* ---- tensors ---- */

static rle_status tensor_blank(rle_tensor **out)
{
    rle_tensor *t = pool_take(&tensor_pool, sizeof *t);
    if (!t) return rle_oom(sizeof *t, "tensor");
    t->refs = 1;
    t->requires_grad = false;
    t->is_view = false;
    t->grad_version = 0;
    t->storage = NULL;
    t->grad_fn = NULL;
    t->grad = NULL;
    live_tensors++;
    *out = t;
    return RLE_OK;
}

void rle_tensor_destroy(rle_tensor *t)
{
    if (t->grad_fn) rle_tensor_release_node(t->grad_fn);
    if (t->grad) rle_tensor_release(t->grad);
    if (t->storage) storage_release(t->storage);
    live_tensors--;
    pool_give(&tensor_pool, t);
}

size_t rle_tensor_count(void)
{
    return live_tensors;
}

static rle_status tensor_new(rle_device *dev, bool pinned, rle_dtype dtype, int ndim,
                             const int64_t *shape, rle_tensor **out)
{
    if (ndim < 0 || ndim > RLE_MAX_DIMS)
        return rle_fail(RLE_INVALID_ARGUMENT,
                        "a tensor has at most %d dimensions, got %d", RLE_MAX_DIMS, ndim);
    int64_t numel = 1;
    int64_t spanned = 1; /* as if no size were 0, for the strides */
    size_t bytes;
    for (int i = 0; i < ndim; i++) {
        if (shape[i] < 0)
            return rle_fail(RLE_INVALID_ARGUMENT, "size %d is negative: %" PRId64, i + 1,
                            shape[i]);
        if (__builtin_mul_overflow(spanned, shape[i] ? shape[i] : 1, &spanned))
            return rle_fail(RLE_INVALID_ARGUMENT, "the sizes multiply beyond 2^63");
        numel *= shape[i];
    }
    if (__builtin_mul_overflow((size_t)numel, rle_dtype_size(dtype), &bytes))
        return rle_fail(RLE_INVALID_ARGUMENT, "the sizes multiply beyond 2^63 bytes");
    rle_tensor *t;
    RLE_TRY(tensor_blank(&t));
    rle_status status = storage_new(dev, pinned, bytes, &t->storage);
    if (status != RLE_OK) {
        rle_tensor_release(t);
        return status;
    }
    t->a.data = t->storage->block.data;
    t->a.dtype = dtype;
    t->a.ndim = ndim;
    for (int i = 0; i < ndim; i++) t->a.shape[i] = shape[i];
    rle_array_set_contiguous(&t->a);
    *out = t;
    return RLE_OK;
}

rle_status rle_tensor_new(rle_device *dev, rle_dtype dtype, int ndim,
                          const int64_t *shape, rle_tensor **out)
{
    return tensor_new(dev, false, dtype, ndim, shape, out);
}

rle_status rle_tensor_new_pinned(rle_device *dev, rle_dtype dtype, int ndim,
                                 const int64_t *shape, rle_tensor **out)
{
    return tensor_new(dev, true, dtype, ndim, shape, out);
}

rle_status rle_tensor_zeros(rle_device *dev, rle_dtype dtype, int ndim,
                            const int64_t *shape, rle_tensor **out)
{
    rle_tensor *t;
    RLE_TRY(rle_tensor_new(dev, dtype, ndim, shape, &t));
    rle_status status = dev->ops->fill(dev, &t->a, 0, 0);
    if (status != RLE_OK) {
        rle_tensor_release(t);
        return status;
    }
    *out = t;
    return RLE_OK;
}

rle_status rle_tensor_from_host(rle_device *dev, rle_dtype dtype, int ndim,
                                const int64_t *shape, const void *data, rle_tensor **out)
{
    rle_tensor *t;
    RLE_TRY(rle_tensor_new(dev, dtype, ndim, shape, &t));
    rle_status status = dev->copy_in(dev, t->a.data, data, t->storage->block.size);
    if (status != RLE_OK) {
        rle_tensor_release(t);
        return status;
    }
    *out = t;
    return RLE_OK;
}

rle_status rle_tensor_view(rle_tensor *base, const rle_array *array, rle_tensor **out)
{
    rle_tensor *t;
    RLE_TRY(tensor_blank(&t));
    t->a = *array;
    t->storage = base->storage;
    t->storage->refs++;
    t->is_view = true;
    *out = t;
    return RLE_OK;
}

rle_status rle_tensor_detach(rle_tensor *t, rle_tensor **out)
{
    return rle_tensor_view(t, &t->a, out);
}

/* ---- host data ---- */

/* t as contiguous memory on its device: itself, or a temporary copy in *copy. */
static rle_status contiguous_data(rle_tensor *t, rle_tensor **copy, void **data)
{
    *copy = NULL;
    if (rle_tensor_is_contiguous(t)) {
        *data = t->a.data;
        return RLE_OK;
    }
    RLE_TRY(
        rle_tensor_new(rle_tensor_device(t), t->a.dtype, t->a.ndim, t->a.shape, copy));
    rle_status status = rle_tensor_ops(t)->copy(rle_tensor_device(t), &(*copy)->a, &t->a);
    if (status != RLE_OK) {
        rle_tensor_release(*copy);
        *copy = NULL;
        return status;
    }
    *data = (*copy)->a.data;
    return RLE_OK;
}

rle_status rle_tensor_to_host(rle_tensor *t, void *host, size_t size)
{
    size_t want = (size_t)rle_tensor_numel(t) * rle_dtype_size(t->a.dtype);
    if (size != want)
        return rle_fail(RLE_INVALID_ARGUMENT, "the tensor has %zu bytes, the buffer %zu",
                        want, size);
    rle_tensor *copy;
    void *data;
    RLE_TRY(contiguous_data(t, &copy, &data));
    rle_device *dev = rle_tensor_device(t);
    rle_status status = dev->copy_out(dev, host, data, size);
    if (copy) rle_tensor_release(copy);
    return status;
}

rle_status rle_tensor_write_host(rle_tensor *t, rle_dtype dtype, const void *host)
{
    rle_device *dev = rle_tensor_device(t);
    if (dtype == t->a.dtype && rle_tensor_is_contiguous(t)) {
        RLE_TRY(dev->copy_in(dev, t->a.data, host,
                             (size_t)rle_tensor_numel(t) * rle_dtype_size(dtype)));
    } else {
        rle_tensor *source;
        RLE_TRY(rle_tensor_from_host(dev, dtype, t->a.ndim, t->a.shape, host, &source));
        rle_status status = dev->ops->copy(dev, &t->a, &source->a);
        rle_tensor_release(source);
        if (status != RLE_OK) return status;
    }
    t->storage->version++;
    return RLE_OK;
}

bool rle_tensor_may_move(const rle_tensor *t)
{
    const rle_storage *s = t->storage;
    return s->refs == 1 && !s->graph_holds && !s->pointed && !s->block.pinned &&
           s->device == rle_device_cpu() && t->a.data == s->block.data &&
           rle_tensor_is_contiguous(t) &&
           (size_t)rle_tensor_numel(t) * rle_dtype_size(t->a.dtype) == s->block.size;
}

void rle_tensor_exchange(rle_tensor *a, rle_tensor *b)
{
    rle_storage *sa = a->storage, *sb = b->storage;
    rle_block block = sa->block;
    rle_owner owner_a = (rle_owner)sa->block.owner, owner_b = (rle_owner)sb->block.owner;
    sa->block = sb->block;
    sb->block = block;
    a->a.data = sa->block.data;
    b->a.data = sb->block.data;
    rle_device_reown(sa->device, &sa->block, owner_a);
    rle_device_reown(sb->device, &sb->block, owner_b);
    sa->version++;
    sb->version++;
}

rle_status rle_tensor_item(rle_tensor *t, double *value, int64_t *integer)
{
    if (rle_tensor_numel(t) != 1) {
        char text[128];
        return rle_fail(RLE_INVALID_ARGUMENT,
                        "item needs a tensor of one element, this one is %s",
                        rle_array_describe(&t->a, text, sizeof text));
    }
    union {
        float f;
        double d;
        int32_t i;
        int64_t l;
        uint8_t b;
    } u;
    rle_device *dev = rle_tensor_device(t);
    if (dev->type == RLE_DEVICE_CPU)
        memcpy(&u, t->a.data, rle_dtype_size(t->a.dtype));
    else
        RLE_TRY(dev->copy_out(dev, &u, t->a.data, rle_dtype_size(t->a.dtype)));
    switch (t->a.dtype) {
    case RLE_F32:
        *value = u.f;
        *integer = 0;
        break;
    case RLE_F64:
        *value = u.d;
        *integer = 0;
        break;
    case RLE_I32:
        *integer = u.i;
        *value = u.i;
        break;
    case RLE_I64:
        *integer = u.l;
        *value = (double)u.l;
        break;
    case RLE_U8:
    case RLE_BOOL:
        *integer = u.b;
        *value = u.b;
        break;
    default:
        return rle_fail(RLE_UNIMPLEMENTED, "item of %s", rle_dtype_name(t->a.dtype));
    }
    return RLE_OK;
}
