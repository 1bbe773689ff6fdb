#!/usr/bin/env python3
"""Compares CartPole step by step with the `gymnasium` package (pip install gymnasium).

    tests/golden/compare_gymnasium.py [--steps 1000000] [--seed 42] [--env CartPole-v1]
                                      [--build build]

The program build/golden/env_trace plays with policies that take turns and writes every
reset and step: state (f64), observation (f32), reward, both ends, action. Here Gymnasium
runs freely from the same seed with the same actions and must agree bit for bit.

One difference is allowed, and counted: numpy may compute sin and cos with vector code that
rounds differently from the C library in the last bit (seen on processors with AVX-512).
A state may differ only where numpy.sin or numpy.cos differs from math.sin or math.cos for
this very angle; given the C library's values instead, Gymnasium's own step must then give
the engine's state bit for bit. Gymnasium goes on from the engine's state. The largest
distance seen at such steps, in units in the last place, is shown.

Exit code 0: equal; 1: a difference, printed; 2: something is missing.
"""

import argparse
import math
import pathlib
import subprocess
import sys

try:
    import gymnasium
    import numpy as np
    from gymnasium.envs.classic_control import cartpole
except ImportError as error:
    print(f"compare_gymnasium: {error}; pip install gymnasium", file=sys.stderr)
    sys.exit(2)

RECORD = np.dtype([
    ("state", "f8", 4), ("obs", "f4", 4), ("reward", "f8"), ("is_reset", "u1"),
    ("action", "u1"), ("terminated", "u1"), ("truncated", "u1"), ("unused", "u1", 4),
])


class LibmNumpy:
    """numpy for the CartPole module, with the C library's sin and cos."""

    def __getattr__(self, name):
        return getattr(np, name)

    @staticmethod
    def sin(x):
        return np.float64(math.sin(x))

    @staticmethod
    def cos(x):
        return np.float64(math.cos(x))


def same_bits(a, b):
    return np.asarray(a).tobytes() == np.asarray(b).tobytes()


def ulps(a, b):
    """Largest distance of two f64 arrays, in representable numbers between them."""
    def order(x):
        i = np.frombuffer(np.asarray(x, "f8").tobytes(), "i8")
        return [int(v) if v >= 0 else -(int(v) & (2**63 - 1)) for v in i]
    return max(abs(x - y) for x, y in zip(order(a), order(b)))


def fail(t, what, ours, theirs):
    print(f"DIFFERENT at step {t}: {what}\n  engine    {ours}\n  gymnasium {theirs}")
    sys.exit(1)


def libm_step(env, state, action):
    """The state after one of Gymnasium's own steps, with the C library's sin and cos."""
    inner = env.unwrapped
    inner.state = np.array(state)
    cartpole.np = LibmNumpy()
    try:
        cartpole.CartPoleEnv.step(inner, action)
    finally:
        cartpole.np = np
    return inner.state


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=1000000)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--build", default="build")
    args = parser.parse_args()

    program = pathlib.Path(args.build) / "golden" / "env_trace"
    if not program.exists():
        print(f"compare_gymnasium: {program} is missing; build first", file=sys.stderr)
        sys.exit(2)
    out = subprocess.run([program, args.env, str(args.seed), str(args.steps)],
                         stdout=subprocess.PIPE, check=True).stdout
    trace = np.frombuffer(out, RECORD)

    env = gymnasium.make(args.env)
    inner = env.unwrapped
    steps = episodes = fell = truncated_count = libm_cases = worst = 0
    libm_angles = 0
    before = None
    for r in trace:
        if r["is_reset"]:
            obs, _ = env.reset(seed=args.seed) if episodes == 0 else env.reset()
            episodes += 1
            if not same_bits(inner.state, r["state"]):
                fail(steps, f"start of episode {episodes}", r["state"], inner.state)
        else:
            theta = float(before[2])
            obs, reward, terminated, truncated, _ = env.step(int(r["action"]))
            steps += 1
            fell += terminated
            truncated_count += truncated
            libm_differs = (np.sin(np.float64(theta)) != math.sin(theta)
                            or np.cos(np.float64(theta)) != math.cos(theta))
            libm_angles += libm_differs
            if not same_bits(inner.state, r["state"]):
                theirs = inner.state
                if not libm_differs:
                    fail(steps, "state", r["state"], theirs)
                again = libm_step(env, before, int(r["action"]))
                if not same_bits(again, r["state"]):
                    fail(steps, "state, also with the C library's sin and cos", r["state"],
                         again)
                libm_cases += 1
                worst = max(worst, ulps(theirs, r["state"]))
                inner.state = np.array(r["state"])
                obs = np.array(r["state"], dtype=np.float32)
            got = (float(r["reward"]), bool(r["terminated"]), bool(r["truncated"]))
            if got != (float(reward), bool(terminated), bool(truncated)):
                fail(steps, "reward, terminated, truncated", got,
                     (reward, terminated, truncated))
        if not same_bits(obs, r["obs"]):
            fail(steps, "observation", r["obs"], obs)
        before = r["state"]

    print(f"{args.env}, seed {args.seed}, gymnasium {gymnasium.__version__}, "
          f"numpy {np.__version__}")
    print(f"  {steps} steps in {episodes} episodes ({fell} terminated, "
          f"{truncated_count} truncated): equal bit for bit"
          + (f" but for {libm_cases}" if libm_cases else ""))
    print(f"  angles for which numpy's sin or cos is not the C library's: {libm_angles}; "
          f"states that differ for it: {libm_cases}, by at most {worst} ulp")


if __name__ == "__main__":
    main()
