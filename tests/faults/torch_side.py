"""A worker of tests/faults/beside_torch.py over PyTorch's RPC; ours_side.lua is the other side.

    python torch_side.py ROLE NAME INDEX WORLD ADDRESS SECONDS

Prints lines "EVENT time text"; what they are is told in beside_torch.py.
"""
import os
import sys
import time

import torch.distributed.rpc as rpc

role, name, index, world, address, seconds = sys.argv[1:]
index, world, seconds = int(index), int(world), float(seconds)
CALL_TIMEOUT = 20


def say(event, *what):
    text = " ".join(str(each) for each in what).strip().split("\n")[0]
    print(event, "%.6f" % time.time(), text, flush=True)


def run_episode(span):
    time.sleep(span)
    return 1


def slow(span):
    say("BEGUN")
    time.sleep(span)
    say("FINISHED", "the handler ran to its end")


def nested(depth, other, me):
    if depth == 0:
        return 0
    return 1 + rpc.rpc_sync(other, nested, args=(depth - 1, me, other))


def join():
    options = rpc.TensorPipeRpcBackendOptions(init_method=address, _transports=["uv"])
    say("STARTING")
    # Whoever is not of the group joins a group that is open; so do all when one is to come.
    size = {"world_size": world} if world > 0 else {}
    rpc.init_rpc(name, rank=index, rpc_backend_options=options, **size)
    say("JOINED")


def rounds(observers):
    ends, number, away, asked = time.time() + seconds, 0, set(), {}
    while time.time() < ends:
        futures = {each: rpc.rpc_async(each, run_episode, args=(0.2,), timeout=CALL_TIMEOUT)
                   for each in observers if each not in away}
        for each, future in reversed(futures.items()):  # the one it happens to is heard first
            try:
                future.wait()
            except Exception as error:
                say("ERROR", each, error)
                away.add(each)
        for each in list(away):
            # Is it there again? One call at a time, which is not waited for.
            if each not in asked:
                asked[each] = rpc.rpc_async(each, run_episode, args=(0,), timeout=2)
            elif asked[each].done():
                try:
                    asked.pop(each).wait()
                    away.discard(each)
                    say("BACK", each)
                except Exception:
                    pass
        number += 1
        say("ROUND", number, len(futures))
        if not futures:
            time.sleep(0.2)


def deadline(observers):
    try:
        rpc.rpc_async(observers[-1], slow, args=(5,), timeout=0.2).wait()
    except Exception as error:
        say("ERROR", observers[-1], error)
    time.sleep(6)


def call_nested(observers):
    futures = [rpc.rpc_async(observers[0], nested, args=(8, "trainer", observers[0]),
                             timeout=seconds) for _ in range(1000)]
    done, error = 0, None
    for future in futures:
        try:
            done += future.wait() == 8
        except Exception as failure:
            error = failure
    say("NESTED", done, error or "")


def main():
    if role == "intruder":
        join()
        say("RAN", "os.getpid() of the trainer gives", rpc.rpc_sync("trainer", os.getpid, timeout=5))
        os._exit(0)
    join()
    if role == "trainer":
        observers = ["obs_%d" % i for i in range(1, abs(world))]
        while world < 0:  # an open group: those who are to come
            try:
                for each in observers:
                    rpc.rpc_sync(each, run_episode, args=(0,), timeout=5)
                break
            except Exception:
                time.sleep(0.1)
        for each in observers:
            rpc.rpc_sync(each, run_episode, args=(0,))
        say("READY")
        which = os.environ.get("SCENARIO", "rounds")
        {"rounds": rounds, "deadline": deadline, "nested": call_nested}[which](observers)
        say("END")
    else:
        time.sleep(3600)
    os._exit(0)


main()
