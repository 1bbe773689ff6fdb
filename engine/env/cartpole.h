/* cartpole.h - the state of CartPole, for those who look into it (tests, comparisons). */
#ifndef RLE_ENV_CARTPOLE_H
#define RLE_ENV_CARTPOLE_H

typedef struct rle_cartpole {
    double x, x_dot;         /* cart: metres, metres per second */
    double theta, theta_dot; /* pole: radians from upright, radians per second */
} rle_cartpole;

#endif
