"""Remote calls a second over PyTorch's RPC and over rlengine's, on one machine in one run: an
empty call, and one that sends f32[4] and gets a number; from one client process and from eight.

    python tests/bench/rpc_vs_torch.py [--seconds 3] [--program build/rlengine]

Needs the package torch. Ours runs before and after PyTorch's, so that a machine that is busy for
a while does not decide; the better run counts.
"""
import argparse
import os
import subprocess
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GOALS = {(1, "empty"): 16, (1, "tensor"): 25, (8, "empty"): 30, (8, "tensor"): 30}


def ours(program, clients, seconds):
    text = subprocess.run([program, "tests/bench/rpc_clients.lua", "--clients=%d" % clients,
                           "--seconds=%d" % seconds], cwd=ROOT, check=True, text=True,
                          stdout=subprocess.PIPE).stdout
    return {name: float(rate) for name, rate in (line.split() for line in text.splitlines())}


def empty():
    return None


def action(row):
    return 1


def theirs_process(rank, clients, seconds, folder, results):
    import torch
    import torch.distributed.rpc as rpc

    torch.set_num_threads(1)
    options = rpc.TensorPipeRpcBackendOptions(init_method="file://" + folder + "/store")
    name = "server" if rank == 0 else "client_%d" % rank
    rpc.init_rpc(name, rank=rank, world_size=clients + 1, rpc_backend_options=options)
    if rank > 0:
        row = torch.tensor([1.0, 2.0, 3.0, 4.0])
        for kind in ("empty", "tensor"):
            call = ((lambda: rpc.rpc_sync("server", empty)) if kind == "empty"
                    else (lambda: rpc.rpc_sync("server", action, args=(row,))))
            call()
            count, start = 0, time.monotonic()
            while time.monotonic() - start < seconds:
                for _ in range(20):
                    call()
                count += 20
            results.put((kind, count / (time.monotonic() - start)))
    rpc.shutdown()


def theirs(clients, seconds):
    import torch.multiprocessing as mp

    results = mp.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(theirs_process, (clients, seconds, folder, results), nprocs=clients + 1)
    rates = {"empty": 0.0, "tensor": 0.0}
    while not results.empty():
        kind, rate = results.get()
        rates[kind] += rate
    return rates


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--program", default=os.environ.get("RLENGINE", "build/rlengine"))
    args = parser.parse_args()
    print("%-8s %-7s %12s %12s %8s" % ("clients", "call", "rlengine/s", "PyTorch/s", "ratio"))
    for clients in (1, 8):
        mine = [ours(args.program, clients, args.seconds)]
        other = theirs(clients, args.seconds)
        mine.append(ours(args.program, clients, args.seconds))
        for kind in ("empty", "tensor"):
            best = max(run[kind] for run in mine)
            print("%-8d %-7s %12.0f %12.0f %7.1fx   (goal: %d)"
                  % (clients, kind, best, other[kind], best / other[kind], GOALS[clients, kind]))


if __name__ == "__main__":
    main()
