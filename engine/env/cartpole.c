/* cartpole.c - a pole on a cart that is pushed left (0) or right (1); keep it upright.
 *
 * Equal to Gymnasium's CartPole bit for bit from the same seed: the state is in double
 * precision, every operation is in its order, sine and cosine are the C library's, and
 * the build has contraction into fused multiply-adds switched off. Observations are the
 * state rounded to f32: x, x', theta, theta'.
 *
 * Dynamics: A. G. Barto, R. S. Sutton, C. W. Anderson, "Neuronlike adaptive elements that
 * can solve difficult learning control problems" (1983), without friction as corrected by
 * R. V. Florian, "Correct equations for the dynamics of the cart-pole system" (2005). */
#include "env/cartpole.h"
#include "env/env.h"

#include <math.h>

#define GRAVITY 9.8
#define MASS_POLE 0.1
#define MASS_TOTAL (MASS_POLE + 1.0)
#define HALF_LENGTH 0.5
#define POLE_MOMENT (MASS_POLE * HALF_LENGTH)
#define FORCE 10.0
#define TAU 0.02 /* seconds a step */
#define X_LIMIT 2.4
#define THETA_LIMIT (12 * 2 * M_PI / 360)

static void observe(const rle_cartpole *s, float *obs)
{
    obs[0] = (float)s->x;
    obs[1] = (float)s->x_dot;
    obs[2] = (float)s->theta;
    obs[3] = (float)s->theta_dot;
}

static rle_status cartpole_reset(void *state, rle_pcg64 *rng, void *obs)
{
    rle_cartpole *s = state;
    s->x = rle_pcg64_uniform(rng, -0.05, 0.05);
    s->x_dot = rle_pcg64_uniform(rng, -0.05, 0.05);
    s->theta = rle_pcg64_uniform(rng, -0.05, 0.05);
    s->theta_dot = rle_pcg64_uniform(rng, -0.05, 0.05);
    observe(s, obs);
    return RLE_OK;
}

static rle_status cartpole_step(void *state, rle_pcg64 *rng, const void *action,
                                void *obs, rle_step *out)
{
    (void)rng;
    rle_cartpole *s = state;
    /* From a table: a branch on a random action is mispredicted every second time. */
    static const double forces[2] = {-FORCE, FORCE};
    double force = forces[*(const int64_t *)action];
    double cosine = cos(s->theta), sine = sin(s->theta);

    double push =
        (force + POLE_MOMENT * (s->theta_dot * s->theta_dot) * sine) / MASS_TOTAL;
    double theta_acc =
        (GRAVITY * sine - cosine * push) /
        (HALF_LENGTH * (4.0 / 3.0 - MASS_POLE * (cosine * cosine) / MASS_TOTAL));
    double x_acc = push - POLE_MOMENT * theta_acc * cosine / MASS_TOTAL;

    /* Explicit Euler: positions move with the velocities of before. */
    s->x = s->x + TAU * s->x_dot;
    s->x_dot = s->x_dot + TAU * x_acc;
    s->theta = s->theta + TAU * s->theta_dot;
    s->theta_dot = s->theta_dot + TAU * theta_acc;
    observe(s, obs);

    out->reward = 1.0; /* also for the step that ends it */
    out->terminated = s->x < -X_LIMIT || s->x > X_LIMIT || s->theta < -THETA_LIMIT ||
                      s->theta > THETA_LIMIT;
    return RLE_OK;
}

/* Twice the limits, so that the observation that ends an episode is still inside. */
static const double low[4] = {-2 * X_LIMIT, -INFINITY, -2 * THETA_LIMIT, -INFINITY};
static const double high[4] = {2 * X_LIMIT, INFINITY, 2 * THETA_LIMIT, INFINITY};
static const rle_space observations = RLE_BOX_1D(RLE_F32, 4, low, high);
static const rle_space actions = RLE_DISCRETE(2);

#define CARTPOLE(name, limit, threshold) \
    { \
        .id = (name), .observation_space = &observations, .action_space = &actions, \
        .max_episode_steps = (limit), .has_reward_threshold = true, \
        .reward_threshold = (threshold), .finite = true, \
        .state_size = sizeof(rle_cartpole), .reset = cartpole_reset, \
        .step = cartpole_step, \
    }

const rle_env_ops rle_env_cartpole_v1 = CARTPOLE("CartPole-v1", 500, 475.0);
const rle_env_ops rle_env_cartpole_v0 = CARTPOLE("CartPole-v0", 200, 195.0);
