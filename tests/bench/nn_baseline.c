/* nn_baseline.c - what nn_lua.lua measures against: the same arithmetic for this one network,
 * Linear(4,128) - ReLU - Linear(128,2), as plain loops blocked for registers.
 *
 * nn_lua.lua compiles it for the machine it runs on (-O3 -march=native -ffast-math) and
 * calls it through FFI. A vec is 16 floats in the compiler's vector extension. */
#include <math.h>
#include <string.h>

typedef float vec __attribute__((vector_size(64), aligned(4)));

enum { IN = 4, HIDDEN = 128, OUT = 2, LANES = 16 };

/* Weights are stored input-major, so that the inner loops run over the hidden units. */
typedef struct net {
    float w1[IN][HIDDEN], b1[HIDDEN], w2[OUT][HIDDEN], b2[OUT];
} net;

enum { PARAMETERS = sizeof(net) / sizeof(float) };

static vec load(const float *p) { return *(const vec *)p; }
static void store(float *p, vec v) { *(vec *)p = v; }

static float total(vec v)
{
    float s = 0;
    for (int l = 0; l < LANES; l++) s += v[l];
    return s;
}

typedef int mask __attribute__((vector_size(64), aligned(4)));

static vec positive(vec v, vec where)
{
    return (vec)((mask)(where > 0) & (mask)v);
}

void forward(const net *n, const float *x, float *h, float *y, int rows)
{
    for (int r = 0; r < rows; r++) {
        const float *row = x + r * IN;
        vec s0 = {0}, s1 = {0};
        for (int j = 0; j < HIDDEN; j += LANES) {
            vec v = load(n->b1 + j);
            for (int k = 0; k < IN; k++) v += row[k] * load(n->w1[k] + j);
            v = positive(v, v);
            store(h + r * HIDDEN + j, v);
            s0 += v * load(n->w2[0] + j);
            s1 += v * load(n->w2[1] + j);
        }
        y[r * OUT] = total(s0) + n->b2[0];
        y[r * OUT + 1] = total(s1) + n->b2[1];
    }
}

/* Gradients of sum(y * gy); sixteen hidden units keep their sums in registers while the rows
 * go by. */
void backward(const net *n, const float *x, const float *h, const float *gy, net *g, int rows)
{
    for (int j = 0; j < HIDDEN; j += LANES) {
        vec w0 = load(n->w2[0] + j), w1 = load(n->w2[1] + j);
        vec gw20 = {0}, gw21 = {0}, gb = {0}, a = {0}, b = {0}, c = {0}, d = {0};
        for (int r = 0; r < rows; r++) {
            const float *row = x + r * IN;
            vec v = load(h + r * HIDDEN + j);
            float g0 = gy[r * OUT], g1 = gy[r * OUT + 1];
            vec gh = positive(g0 * w0 + g1 * w1, v);
            gw20 += g0 * v;
            gw21 += g1 * v;
            gb += gh;
            a += row[0] * gh;
            b += row[1] * gh;
            c += row[2] * gh;
            d += row[3] * gh;
        }
        store(g->w2[0] + j, gw20);
        store(g->w2[1] + j, gw21);
        store(g->b1 + j, gb);
        store(g->w1[0] + j, a);
        store(g->w1[1] + j, b);
        store(g->w1[2] + j, c);
        store(g->w1[3] + j, d);
    }
    float s0 = 0, s1 = 0;
    for (int r = 0; r < rows; r++) {
        s0 += gy[r * OUT];
        s1 += gy[r * OUT + 1];
    }
    g->b2[0] = s0;
    g->b2[1] = s1;
}

void adam(net *n, const net *g, net *m, net *v, int step)
{
    float *p = (float *)n, *pm = (float *)m, *pv = (float *)v;
    const float *pg = (const float *)g;
    const float b1 = 0.9f, b2 = 0.999f, eps = 1e-8f;
    float size = 1e-3f / (1 - powf(b1, (float)step));
    float root = 1 / sqrtf(1 - powf(b2, (float)step));
    for (int i = 0; i < PARAMETERS; i++) {
        pm[i] = b1 * pm[i] + (1 - b1) * pg[i];
        pv[i] = b2 * pv[i] + (1 - b2) * pg[i] * pg[i];
        p[i] -= size * pm[i] / (sqrtf(pv[i]) * root + eps);
    }
}

void train(net *n, const float *x, const float *gy, float *h, float *y, net *g, net *m, net *v,
           int rows, int step)
{
    forward(n, x, h, y, rows);
    backward(n, x, h, gy, g, rows);
    adam(n, g, m, v, step);
}
