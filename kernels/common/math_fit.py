#!/usr/bin/env python3
"""Prints the polynomial coefficients of math.h. Needs mpmath.

Each is a near-minimax fit (in 60 digits) of a smooth rest function; the coefficients are rounded to the
target precision one after the other, lowest power first, and the rest is fitted again after each, so that rounding costs next to nothing.
"""
import mpmath as mp
import struct

mp.mp.dps = 60


def to_f32(x):
    return mp.mpf(struct.unpack("f", struct.pack("f", float(x)))[0])


def to_f64(x):
    return mp.mpf(float(x))


def near_minimax(f, weight, a, b, powers):
    """Coefficients c that make the largest |weight * (f - sum c x^p)| on [a, b] small: least
    squares on Chebyshev nodes, the weights raised where the error is large (Lawson)."""
    n, m = len(powers), 12 * len(powers) + 12
    xs = [(a + b) / 2 + (b - a) / 2 * mp.cos(mp.pi * (2 * i + 1) / (2 * m)) for i in range(m)]
    values, weights = [f(x) for x in xs], [weight(x) for x in xs]
    basis = [[x ** p for p in powers] for x in xs]
    lawson = [mp.mpf(1) / m] * m
    best = None
    for _ in range(25):
        normal, right = mp.zeros(n), mp.zeros(n, 1)
        for i in range(m):
            w = lawson[i] * weights[i] ** 2
            for j in range(n):
                right[j] += w * basis[i][j] * values[i]
                for k in range(n):
                    normal[j, k] += w * basis[i][j] * basis[i][k]
        c = mp.lu_solve(normal, right)
        error = [weights[i] * abs(values[i] - sum(c[j] * basis[i][j] for j in range(n)))
                 for i in range(m)]
        if best is None or max(error) < best[0]:
            best = (max(error), [c[j] for j in range(n)])
        total = sum(lawson[i] * error[i] for i in range(m))
        if total == 0:
            break
        lawson = [lawson[i] * error[i] / total for i in range(m)]
    return best[1]


def fit(name, f, weight, a, b, powers, round_to, form):
    a, b = mp.mpf(a), mp.mpf(b)
    done, left = [], list(powers)
    while left:
        rest = lambda x: f(x) - sum(c * x ** p for c, p in done)
        c = near_minimax(rest, weight, a, b, left)
        done.append((round_to(c[0]), left.pop(0)))
    grid = [a + (b - a) * i / 997 for i in range(998)]
    err = max(abs(weight(x) * (f(x) - sum(c * x ** p for c, p in done))) for x in grid)
    print(f"{name}: error 2^{float(mp.log(err, 2)):.1f}")
    for c, p in done:
        print(f"    x^{p}: {form(c)}")


def hexf(c):
    return float(c).hex() + "f"


def hexd(c):
    return float(c).hex()


def safe(f, at_zero):
    return lambda x: at_zero if abs(x) < mp.mpf(10) ** -25 else f(x)


half_ln2 = mp.log(2) / 2 * mp.mpf("1.001")
one = lambda x: mp.mpf(1)

for bits, rnd, form in ((24, to_f32, hexf), (53, to_f64, hexd)):
    f32 = bits == 24
    # e^r = 1 + r + r^2 P(r)
    g = safe(lambda r: (mp.exp(r) - 1 - r) / r**2, mp.mpf(1) / 2)
    fit(f"exp {bits}", g, lambda r: r**2 + mp.mpf(10)**-30, -half_ln2, half_ln2, range(5 if f32 else 11), rnd, form)
    # expm1, small: relative to r
    fit(f"expm1 {bits}", g, lambda r: abs(r) + mp.mpf(10)**-30, -half_ln2, half_ln2, range(6 if f32 else 12), rnd, form)
    # odd and even parts of the circle, in z = r^2
    q = (mp.pi / 4 * mp.mpf("1.001")) ** 2
    fit(f"sin {bits}", safe(lambda z: (mp.sin(mp.sqrt(z)) / mp.sqrt(z) - 1) / z, -mp.mpf(1) / 6), lambda z: z + mp.mpf(10)**-30,
        0, q, range(3 if f32 else 6), rnd, form)
    fit(f"cos {bits}", safe(lambda z: (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2, mp.mpf(1) / 24), lambda z: z**2 + mp.mpf(10)**-30,
        0, q, range(3 if f32 else 6), rnd, form)

# log(1+f) = f + f^2 P(f), f32, m in [2/3, 4/3)
fit("log 24", safe(lambda f: (mp.log(1 + f) - f) / f**2, -mp.mpf(1) / 2), lambda f: abs(f) + mp.mpf(10)**-30,
    mp.mpf(-1) / 3 - 1e-6, mp.mpf(1) / 3 + 1e-6, range(9), to_f32, hexf)
# log(1+f) = 2 s + s^3 Q(s^2), s = f / (2 + f); Q in z = s^2, f64, m in [sqrt 1/2, sqrt 2)
s = (mp.sqrt(2) - 1) / (mp.sqrt(2) + 1) * mp.mpf("1.001")
fit("log 53", safe(lambda z: (mp.log((1 + mp.sqrt(z)) / (1 - mp.sqrt(z))) / mp.sqrt(z) - 2) / z, mp.mpf(2) / 3), lambda z: z + mp.mpf(10)**-30,
    0, s**2, range(7), to_f64, hexd)
# tanh x = x + x^3 P(x^2) for |x| < 0.55
t = mp.mpf("0.56") ** 2
fit("tanh 24", safe(lambda z: (mp.tanh(mp.sqrt(z)) / mp.sqrt(z) - 1) / z, -mp.mpf(1) / 3), lambda z: z + mp.mpf(10)**-30,
    0, t, range(5), to_f32, hexf)
# atan t = t + t^3 P(t^2) on [0, 1], for f32 results computed in f64
fit("atan 30", safe(lambda z: (mp.atan(mp.sqrt(z)) / mp.sqrt(z) - 1) / z, -mp.mpf(1) / 3), lambda z: z + mp.mpf(10)**-30,
    0, 1, range(12), to_f64, hexd)
# sin and cos of a quarter turn, h in [-1/2, 1/2], z = h^2
p2 = mp.pi / 2
fit("quarter sin", safe(lambda z: mp.sin(p2 * mp.sqrt(z)) / mp.sqrt(z) - to_f32(p2), p2 - to_f32(p2)), lambda z: mp.mpf(1),
    0, mp.mpf("0.2501"), range(4), to_f32, hexf)
fit("quarter cos", lambda z: mp.cos(p2 * mp.sqrt(z)) - 1, lambda z: mp.mpf(1), 0, mp.mpf("0.2501"), range(1, 5), to_f32, hexf)
