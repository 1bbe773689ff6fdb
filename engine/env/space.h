/* space.h - what an observation or an action may be: a box of numbers, or one of n
 * choices.
 *
 * A space is plain data that whoever declares it owns; the `low` and `high` arrays it
 * points at must live as long as it does. Values of a space are contiguous elements of
 * its dtype, in row-major order; a value of a Discrete space is one int64_t.
 *
 * A space has no random stream of its own: sampling takes one. Thread-safe (read
 * only). */
#ifndef RLE_ENV_SPACE_H
#define RLE_ENV_SPACE_H

#include "base/dtype.h"
#include "env/pcg64.h"

typedef enum { RLE_SPACE_DISCRETE, RLE_SPACE_BOX } rle_space_kind;

typedef struct rle_space {
    rle_space_kind kind;
    rle_dtype dtype; /* of a value; Discrete: RLE_I64 */
    int ndim;        /* Discrete: 0 */
    int64_t shape[RLE_MAX_DIMS];

    int64_t n, start; /* Discrete: start, start + 1, ..., start + n - 1 */

    /* Box: bounds of each element, both included and possibly infinite; NULL stands for
     * one bound for all. Bounds are meant as rounded to dtype: use rle_space_low and
     * _high. */
    const double *low, *high;
    double low_all, high_all;
} rle_space;

/* Initialisers: `static const rle_space s = RLE_DISCRETE(2);`
 * `static const rle_space o = RLE_BOX_1D(RLE_F32, 4, low, high);` */
#define RLE_DISCRETE(count) \
    { \
        .kind = RLE_SPACE_DISCRETE, .dtype = RLE_I64, .n = (count) \
    }
#define RLE_BOX_1D(type, count, low_array, high_array) \
    { \
        .kind = RLE_SPACE_BOX, .dtype = (type), .ndim = 1, .shape = {(count)}, \
        .low = (low_array), .high = (high_array) \
    }

/* Is the definition sound? n > 0; dtype one with arithmetic; dimensions not negative and
 * their product small enough for memory; no NaN bound; low <= high; bounds that dtype can
 * hold (infinities only where it is a float; i64 within +-2^53). INVALID_ARGUMENT. */
rle_status rle_space_check(const rle_space *s);

int64_t rle_space_numel(const rle_space *s);
size_t rle_space_bytes(const rle_space *s); /* of one value */

/* Bounds of element i, rounded to the dtype. */
double rle_space_low(const rle_space *s, int64_t i);
double rle_space_high(const rle_space *s, int64_t i);

/* The first element of `value` that is outside (NaN is outside every Box), or -1 when the
 * value belongs to the space. */
int64_t rle_space_outside(const rle_space *s, const void *value);
/* First NaN among n elements of `dtype`, or -1. Integers have none. */
int64_t rle_first_nan(rle_dtype dtype, const void *values, int64_t n);

/* One value drawn uniformly (Discrete, bounded elements), from an exponential shifted to
 * the one finite bound, or from a standard normal where there is none. Bounded elements
 * and choices are Gymnasium's, bit for bit: elements without any bound are drawn first,
 * then those with one, then the bounded. */
void rle_space_sample(const rle_space *s, rle_pcg64 *rng, void *value);

/* The same kind, shape, dtype and bounds. */
bool rle_space_equal(const rle_space *a, const rle_space *b);

/* "Discrete(2)", "Box(-1, 1, {3}, f32)", "Box([-4.8, -inf], [4.8, inf], {2}, f32)"; long
 * lists of bounds are cut. Returns `out`. */
char *rle_space_describe(const rle_space *s, char *out, size_t size);

/* Element i of an array of dtype, as a double; and back (must be in range). */
double rle_element_get(rle_dtype dtype, const void *values, int64_t i);
void rle_element_set(rle_dtype dtype, void *values, int64_t i, double v);

#endif
