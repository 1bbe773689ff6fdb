/* bench_policy.c - forward pass of Linear(4,128) -> ReLU -> Linear(128,2) called from C,
 * against a plain C loop compiled for this machine, in the same run on one core. Prints
 * both and their ratio for 1, 64 and 1024 rows; the aim is a ratio of at most 1.5. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "device/cpu/cpu.h"
#include "nn/mlp.h"

enum { IN = 4, HIDDEN = 128, OUT = 2, MOST = 1024 };

static float w1t[IN][HIDDEN], b1[HIDDEN], w2[OUT][HIDDEN], b2[OUT];
static float w1[HIDDEN][IN], x[MOST][IN], y[MOST][OUT], z[MOST][OUT];

/* What one writes by hand: the first weights transposed, the second as they are; the
 * compiler may fuse and reorder as it likes. */
#if defined(__clang__)
#define FREELY
#else
#define FREELY , optimize("O3,fast-math")
#endif
__attribute__((noinline FREELY)) static void plain(const float (*in)[IN], int rows,
                                                   float (*out)[OUT])
{
#if defined(__clang__)
#pragma clang fp reassociate(on)
#endif
    for (int r = 0; r < rows; r++) {
        float h[HIDDEN];
        for (int j = 0; j < HIDDEN; j++) {
            float s = b1[j];
            for (int k = 0; k < IN; k++) s += in[r][k] * w1t[k][j];
            h[j] = s > 0 ? s : 0;
        }
        for (int o = 0; o < OUT; o++) {
            float s = 0;
            for (int j = 0; j < HIDDEN; j++) s += h[j] * w2[o][j];
            out[r][o] = s + b2[o];
        }
    }
}

static double least(void (*run)(int rows), int rows)
{
    double best = 1e300;
    int calls = rows == 1 ? 20000 : rows == 64 ? 1000 : 60;
    for (int round = 0; round < 60; round++) {
        int64_t start = rle_now();
        for (int i = 0; i < calls; i++) run(rows);
        double ns = (double)(rle_now() - start) / calls;
        if (ns < best) best = ns;
    }
    return best;
}

static const rle_mlp *plan;
static void run_plain(int rows) { plain((const float(*)[IN])x, rows, y); }
static void run_plan(int rows) { rle_mlp_forward(plan, x[0], rows, z[0]); }

int main(void)
{
    rle_array a = {.dtype = RLE_F32, .ndim = 1, .stride = {1}};
    rle_rng rng = {1, 0, 0};
    float *fill[] = {w1[0], b1, w2[0], b2, x[0]};
    int64_t sizes[] = {HIDDEN * IN, HIDDEN, OUT * HIDDEN, OUT, MOST * IN};
    for (int i = 0; i < 5; i++) {
        a.data = fill[i];
        a.shape[0] = sizes[i];
        rng.stream = (uint64_t)i;
        rle_cpu_ops()->random(NULL, RLE_RANDOM_NORMAL, &a, &rng, 0, 0.5);
    }
    for (int j = 0; j < HIDDEN; j++)
        for (int k = 0; k < IN; k++) w1t[k][j] = w1[j][k];
    rle_mlp_layer layers[2] = {{IN, HIDDEN, w1[0], b1, RLE_UNARY_RELU},
                               {HIDDEN, OUT, w2[0], b2, RLE_MLP_NONE}};
    rle_mlp *mlp;
    if (rle_mlp_new(rle_device_cpu(), layers, 2, &mlp) != RLE_OK) {
        fprintf(stderr, "%s\n", rle_message());
        return 1;
    }
    plan = mlp;
    printf("4-128-2 forward, %s\n", rle_cpu_isa());
    static const int batches[] = {1, 64, 1024};
    for (int i = 0; i < 3; i++) {
        double loop = least(run_plain, batches[i]), mine = least(run_plan, batches[i]);
        for (int r = 0; r < batches[i]; r++)
            for (int o = 0; o < OUT; o++)
                if (!(y[r][o] - z[r][o] < 1e-4f && z[r][o] - y[r][o] < 1e-4f)) {
                    fprintf(stderr, "row %d differs: %g and %g\n", r, y[r][o], z[r][o]);
                    return 1;
                }
        printf("  batch %4d: plain loop %8.1f ns, rle_mlp %8.1f ns, ratio %.2f\n", batches[i],
               loop, mine, mine / loop);
    }
    rle_mlp_free(mlp);
    return 0;
}
