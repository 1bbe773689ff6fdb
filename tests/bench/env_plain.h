/* env_plain.h - the plain C loop of bench_env.c, included once for each set of
 * instructions it is compiled for. PLAIN is the name of the function. No include guard:
 * on purpose. */
static double PLAIN(int64_t steps, bool random, tally *sum)
{
    rle_pcg64 rng;
    rle_pcg64_seed(&rng, 1);
    uint64_t bits = 88172645463325252u;
    double x = 0, xd = 0, th = 0, thd = 0;
    float obs[4];
    int64_t length = 500;
    *sum = (tally){0, -1};
    int64_t start = rle_now();
    for (int64_t t = 0; t < steps; t++) {
        if (length == 500 || fabs(x) > 2.4 || fabs(th) > 12 * 2 * M_PI / 360) {
            x = rle_pcg64_uniform(&rng, -0.05, 0.05);
            xd = rle_pcg64_uniform(&rng, -0.05, 0.05);
            th = rle_pcg64_uniform(&rng, -0.05, 0.05);
            thd = rle_pcg64_uniform(&rng, -0.05, 0.05);
            obs[2] = (float)th;
            length = 0;
            sum->episodes++;
        }
        uint64_t action = random ? COIN(bits) : obs[2] > 0;
        double force = action ? 10.0 : -10.0;
        double co = cos(th), si = sin(th);
        double temp = (force + 0.05 * thd * thd * si) / 1.1;
        double ta = (9.8 * si - co * temp) / (0.5 * (4.0 / 3.0 - 0.1 * co * co / 1.1));
        double xa = temp - 0.05 * ta * co / 1.1;
        x += 0.02 * xd;
        xd += 0.02 * xa;
        th += 0.02 * thd;
        thd += 0.02 * ta;
        obs[0] = (float)x, obs[1] = (float)xd, obs[2] = (float)th, obs[3] = (float)thd;
        __asm__ volatile("" : : "r"(obs) : "memory"); /* the caller reads all of them */
        sum->reward += 1;
        length++;
    }
    return (double)(rle_now() - start) / (double)steps;
}
