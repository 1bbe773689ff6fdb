/* optim_impl.h - optimizer steps, in PyTorch's formulas and order of operations. */
#include <math.h>

#include "device/cpu/isa/real.h"

void K(rle_adam)(void *param_, const void *grad_, void *m_, void *v_, int64_t n,
                 const rle_adam_args *args)
{
    REAL *restrict param = param_, *restrict m = m_, *restrict v = v_;
    const REAL *restrict grad = grad_;
    double correction1 = 1 - pow(args->beta1, (double)args->step);
    double correction2 = 1 - pow(args->beta2, (double)args->step);
    REAL step = (REAL)(args->lr / correction1);
    REAL root2 = (REAL)sqrt(correction2);
    REAL beta2 = (REAL)args->beta2;
    REAL rest1 = (REAL)(1 - args->beta1), rest2 = (REAL)(1 - args->beta2);
    REAL eps = (REAL)args->eps;
    REAL keep = args->decoupled ? (REAL)(1 - args->lr * args->weight_decay) : 1;
    REAL decay = args->decoupled ? 0 : (REAL)args->weight_decay;
    for (int64_t i = 0; i < n; i++) {
        REAL p = param[i] * keep;
        REAL g = grad[i] + decay * param[i];
        REAL mean = m[i] + rest1 * (g - m[i]);
        REAL square = v[i] * beta2 + rest2 * g * g;
        m[i] = mean;
        v[i] = square;
        param[i] = p - step * (mean / (LIBM(sqrt)(square) / root2 + eps));
    }
}

void K(rle_sgd)(void *param_, const void *grad_, void *momentum_, int64_t n,
                const rle_sgd_args *args)
{
    REAL *restrict param = param_, *restrict momentum = momentum_;
    const REAL *restrict grad = grad_;
    REAL lr = (REAL)args->lr, decay = (REAL)args->weight_decay;
    REAL keep = (REAL)args->momentum, rest = (REAL)(1 - args->dampening);
    if (args->momentum == 0) {
        for (int64_t i = 0; i < n; i++) param[i] -= lr * (grad[i] + decay * param[i]);
        return;
    }
    if (args->first) { /* the buffer may hold anything, NaN included */
        for (int64_t i = 0; i < n; i++) momentum[i] = grad[i] + decay * param[i];
    } else {
        for (int64_t i = 0; i < n; i++)
            momentum[i] = keep * momentum[i] + rest * (grad[i] + decay * param[i]);
    }
    if (args->nesterov) {
        for (int64_t i = 0; i < n; i++)
            param[i] -= lr * (grad[i] + decay * param[i] + keep * momentum[i]);
    } else {
        for (int64_t i = 0; i < n; i++) param[i] -= lr * momentum[i];
    }
}
