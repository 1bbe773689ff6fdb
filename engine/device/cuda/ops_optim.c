/* ops_optim.c - optimizer steps: as many parameters in a launch as a kernel's arguments
 * can name. */
#include "device/cuda/cuda_internal.h"

typedef struct step {
    const rle_array *state[4]; /* parameter, gradient, two of state; NULL: not kept */
    const rle_adam_args *adam; /* NULL: it is sgd */
    const rle_sgd_args *sgd;
} step;

static rle_status launch(rle_device *dev, const step *s, rle_dtype t,
                         const rle_k_params *p)
{
    cudaStream_t stream = rle_cuda_stream(dev);
    if (!p->count) return RLE_OK;
    if (s->adam) return rle_cuda_check(dev, "Adam", rle_k_adam(t, p, s->adam, stream));
    return rle_cuda_check(dev, "SGD", rle_k_sgd(t, p, s->sgd, stream));
}

static rle_status steps_of(rle_device *dev, const step *s, int count, rle_dtype t)
{
    rle_k_params p = {.count = 0};
    for (int i = 0; i < count; i++) {
        const rle_array *param = &s->state[0][i];
        int64_t numel = rle_array_numel(param);
        if (param->dtype != t || !numel) continue;
        int64_t chunks = (numel + RLE_K_CHUNK - 1) / RLE_K_CHUNK;
        if (p.count == RLE_K_PARAMS || p.chunks + chunks > INT32_MAX) {
            RLE_TRY(launch(dev, s, t, &p));
            p.count = 0;
            p.chunks = 0;
        }
        for (int k = 0; k < 4; k++)
            p.data[k][p.count] = s->state[k] ? s->state[k][i].data : NULL;
        p.numel[p.count] = numel;
        p.first[p.count++] = p.chunks;
        p.chunks += chunks;
    }
    return launch(dev, s, t, &p);
}

static rle_status steps(rle_device *dev, const char *what, const step *s, int count)
{
    bool doubles = false;
    for (int i = 0; i < count; i++) {
        rle_dtype t = s->state[0][i].dtype;
        if (!rle_dtype_is_float(t))
            return rle_fail(RLE_UNIMPLEMENTED, "%s: not for %s", what, rle_dtype_name(t));
        doubles = doubles || t == RLE_F64;
    }
    rle_cuda_enter(dev);
    RLE_TRY(steps_of(dev, s, count, RLE_F32));
    return doubles ? steps_of(dev, s, count, RLE_F64) : RLE_OK;
}

rle_status rle_cuda_adam(rle_device *dev, const rle_array *param, const rle_array *grad,
                         const rle_array *m, const rle_array *v, int count,
                         const rle_adam_args *args)
{
    step s = {{param, grad, m, v}, args, NULL};
    return steps(dev, "Adam", &s, count);
}

rle_status rle_cuda_sgd(rle_device *dev, const rle_array *param, const rle_array *grad,
                        const rle_array *momentum, int count, const rle_sgd_args *args)
{
    step s = {{param, grad, momentum, NULL}, NULL, args};
    return steps(dev, "SGD", &s, count);
}
