"""all_reduce among 2 and 4 processes on one machine: rlengine's, and torch.distributed's with
gloo, in one run: 4 bytes to 64 MiB of f32.

    python tests/bench/comm_vs_torch.py [--seconds 2] [--program build/rlengine] [--ranks 2,4]
                                        [--rounds 3]

Needs the package torch. Both run in turns, so that a machine that is busy for a while does not
decide; of each the best run counts. PyTorch computes with one thread here, as we do.
"""
import argparse
import os
import subprocess
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SIZES = (("4 bytes", 1), ("64 KiB", 16 << 10), ("1 MiB", 256 << 10), ("4 MiB", 1 << 20),
         ("16 MiB", 4 << 20), ("64 MiB", 16 << 20))


def ours(program, ranks, seconds):
    text = subprocess.run([program, "tests/bench/comm_lua.lua", "--ranks=%d" % ranks,
                           "--seconds=%g" % seconds,
                           "--elements=" + " ".join(str(n) for _, n in SIZES)], cwd=ROOT, check=True, text=True,
                          stdout=subprocess.PIPE).stdout
    times = {}
    for line in text.splitlines():
        elements, each = line.split("|")[-1].split()
        times[int(elements)] = float(each)
    return times


def theirs_process(rank, ranks, seconds, folder, results):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + folder + "/store", rank=rank,
                            world_size=ranks)
    for _, elements in SIZES:
        x = torch.zeros(elements)
        for _ in range(3):
            dist.all_reduce(x)
        start = time.monotonic()
        dist.all_reduce(x)
        # So many in the given time, and the same number at every rank.
        count = torch.tensor([max(5, int(seconds / (time.monotonic() - start)))])
        dist.broadcast(count, 0)
        best = float("inf")
        for _ in range(3):
            dist.barrier()
            start = time.monotonic()
            for _ in range(max(1, int(count) // 3)):
                dist.all_reduce(x)
            best = min(best, (time.monotonic() - start) / max(1, int(count) // 3))
        if rank == 0:
            results.put((elements, best))
    dist.barrier()
    dist.destroy_process_group()


def theirs(ranks, seconds):
    import torch.multiprocessing as mp

    results = mp.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(theirs_process, args=(ranks, seconds, folder, results), nprocs=ranks)
    times = {}
    while not results.empty():
        elements, each = results.get()
        times[elements] = each
    return times


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--program", default="build/rlengine")
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    print("%-6s %-8s %12s %12s %8s" % ("ranks", "size", "rlengine", "gloo", "ratio"))
    for ranks in map(int, given.ranks.split(",")):
        own, gloo = {}, {}
        for _ in range(given.rounds):
            for best, times in ((own, ours(given.program, ranks, given.seconds)),
                                (gloo, theirs(ranks, given.seconds))):
                for elements, each in times.items():
                    best[elements] = min(each, best.get(elements, each))
        for name, elements in SIZES:
            print("%-6d %-8s %9.1f us %9.1f us %7.2fx" % (ranks, name, own[elements] * 1e6,
                                                           gloo[elements] * 1e6,
                                                           gloo[elements] / own[elements]))


if __name__ == "__main__":
    main()
