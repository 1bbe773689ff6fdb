"""Run the seed's program on rlengine and the same work over PyTorch's RPC, on the same machine
in one run, and print steps per second, the time from the start of the program to
its first finished episode, the resident memory of each process, and the ratios.

Both as the program was posted, without a collection of garbage, and with one after each round,
which is what its report came to and what scripts/seed_program.lua does. The same on both sides.

    python tests/bench/seed_vs_torch.py --observers 2 --seconds 10 [--program build/rlengine]

Needs the packages torch and gymnasium (only for PyTorch's side; --skip-torch leaves it out).
"""
import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


def children(pid):
    """Numbers of a process and of all it has started."""
    found = [pid]
    for parent in found:
        try:
            for task in os.listdir("/proc/%d/task" % parent):
                with open("/proc/%d/task/%s/children" % (parent, task)) as f:
                    found += [int(word) for word in f.read().split()]
        except OSError:
            pass
    return found


def resident(pid):
    """(name, bytes) of a process."""
    name, size = "", 0
    try:
        with open("/proc/%d/status" % pid) as f:
            for line in f:
                if line.startswith("Name:"):
                    name = line.split(None, 1)[1].strip()
                elif line.startswith("VmRSS:"):
                    size = int(line.split()[1]) * 1024
    except OSError:
        pass
    return name, size


def measure(command, seconds, env):
    """Start a program, read its lines for `seconds` after the first episode, stop it."""
    errors = tempfile.TemporaryFile("w+")
    start = time.monotonic()
    program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True,
                               env=env, cwd=ROOT)
    first = last = None
    steps_first = steps_last = 0
    for line in program.stdout:
        now = time.monotonic()
        match = re.search(r"steps : (\d+)", line)
        if not match:
            continue
        if first is None:
            first, steps_first = now, int(match.group(1))
        last, steps_last = now, int(match.group(1))
        if now - first > seconds:
            break
    memory = sorted(m for m in map(resident, children(program.pid)) if m[1])
    program.send_signal(signal.SIGINT)
    try:
        program.wait(20)
    except subprocess.TimeoutExpired:
        for pid in children(program.pid):
            os.kill(pid, signal.SIGKILL)
    program.stdout.close()
    if first is None or last == first:
        errors.seek(0)
        sys.exit("%s printed no episodes\n%s" % (" ".join(command), errors.read()))
    return {
        "first": first - start,
        "rate": (steps_last - steps_first) / (last - first),
        "memory": memory,
    }


def show(title, result):
    print("%s" % title)
    print("  environment steps/s        %10.0f" % result["rate"])
    print("  start to first episode     %10.3f s" % result["first"])
    for name, size in result["memory"]:
        print("  resident  %-16s %10.1f MB" % (name, size / 1e6))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--observers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--program", default=os.environ.get("RLENGINE", "build/rlengine"))
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--skip-torch", action="store_true")
    args = parser.parse_args()
    many = "--episodes=100000000"
    env = dict(os.environ, OMP_NUM_THREADS="1")
    shared = [many, "--observers=%d" % args.observers]

    def measure_ours(collect):
        return measure([args.program, "tests/bench/seed_steps.lua"] + shared +
                       ([] if collect else ["--no-collect"]), args.seconds / 2, env)

    def measure_theirs(collect):
        return measure([args.python, os.path.join(HERE, "seed_torch_rpc.py")] + shared +
                       (["--collect"] if collect else []), args.seconds, env)

    kinds = (False, True)
    # Ours before and after, so that a machine that is busy for a while does not decide.
    ours = {c: [measure_ours(c)] for c in kinds}
    if not args.skip_torch:
        theirs = {c: measure_theirs(c) for c in kinds}
    for c in kinds:
        ours[c].append(measure_ours(c))
    best = {c: max(ours[c], key=lambda r: r["rate"]) for c in kinds}
    for c in kinds:
        best[c]["first"] = min(r["first"] for r in ours[c])
        how = "collecting after each round" if c else "without collecting"
        show("rlengine, %d observers, %s (better of two runs)" % (args.observers, how), best[c])
        if not args.skip_torch:
            show("PyTorch RPC, %d observers, %s" % (args.observers, how), theirs[c])
    if args.skip_torch:
        return
    print("ratios")
    goal = 80 if args.observers >= 8 else 50
    for c in kinds:
        print("  steps/s, %-26s %6.1f x   (goal: %d)" % (
            "collecting" if c else "without collecting", best[c]["rate"] / theirs[c]["rate"], goal))
    largest = [max(size for _, size in r["memory"]) for r in (best[True], theirs[True])]
    print("  first episode                       %6.1f x   (goal: at most 0.1 s: %.3f s)"
          % (theirs[True]["first"] / best[True]["first"], best[True]["first"]))
    print("  largest process                     %6.1f x   (goal: at most 20 MB: %.1f MB)"
          % (largest[1] / largest[0], largest[0] / 1e6))


if __name__ == "__main__":
    main()
