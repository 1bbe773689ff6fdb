"""Seven faults happen to a training of rlengine and to one over PyTorch's RPC, with one stopwatch.

    python tests/faults/beside_torch.py [F02 F04 ...] [--write docs/faults.md]

Prints a table: what a user sees, after how long, and whether training goes on. A trainer has an
episode of 0.2 s played by two observers at once, waits for both, and begins the next round; the
fault happens to obs_2 within an episode. Calls may take 20 s on both sides (PyTorch's default and
ours is 60 s); ours has a peer timeout of 1 s (default 10 s), PyTorch has none to set. For F31 and F33 PyTorch's group is one
that others may join (no world size); F40 has its default of 16 threads.

The sides are ours_side.lua and torch_side.py. They print "EVENT time text": READY all have joined;
ROUND number observers; ERROR observer message; BACK observer, it plays again. F10 needs network
namespaces (CAP_NET_ADMIN) and is skipped without. Needs the package torch.
"""
import argparse
import datetime
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PROGRAM = os.environ.get("RLENGINE", os.path.join(ROOT, "build", "rlengine"))


class Worker:
    """A process of a side; its events as they come."""

    def __init__(self, side, role, name, index, world, seconds, scenario="rounds", token=None,
                 prefix=()):
        here = {"rlengine": [PROGRAM, os.path.join(HERE, "ours_side.lua")],
                "PyTorch": [sys.executable, os.path.join(HERE, "torch_side.py")]}[side.kind]
        env = dict(os.environ, SCENARIO=scenario, TOKEN=token or side.token,
                   TP_SOCKET_IFNAME=side.interface, GLOO_SOCKET_IFNAME=side.interface,
                   OMP_NUM_THREADS="1")
        self.name, self.events, self.output = name, [], []
        self.process = subprocess.Popen(
            list(prefix) + here + [role, name, str(index), str(world), side.address, str(seconds)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
            env=env, errors="replace")
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        for line in self.process.stdout:
            self.output.append(line.rstrip("\n"))
            event = re.match(r"([A-Z]+) (\d+\.\d{6}) ?(.*)$", line)
            if event:
                self.events.append((event[1], float(event[2]), event[3]))

    def first(self, event, after=0.0, patience=0.0):
        """(time, text) of the first such event; None when it does not come."""
        ends = time.time() + patience
        while True:
            for kind, at, text in list(self.events):
                if kind == event and at >= after:
                    return at, text
            if time.time() >= ends or (self.process.poll() is not None and not self.thread.is_alive()):
                return None
            time.sleep(0.01)

    def rounds(self, begin, end):
        """Rounds that ended in that time."""
        return sum(1 for kind, at, _ in list(self.events) if kind == "ROUND" and begin <= at < end)

    def signal(self, number):
        os.kill(self.process.pid, number)
        return time.time()


class Side:
    """The workers of one run; ends them all."""

    def __init__(self, kind, network=None):
        self.kind, self.network, self.workers = kind, network, []
        self.token = secrets.token_hex(32)
        port = 20000 + secrets.randbelow(10000)
        self.interface = "eth0" if network else "lo"
        self.address = "tcp://%s:%d" % ("10.77.0.1" if network else "127.0.0.1", port)

    def start(self, role, name, index, world=3, seconds=6.0, **more):
        prefix = self.network.prefix(index) if self.network else ()
        worker = Worker(self, role, name, index, world, seconds, prefix=prefix, **more)
        self.workers.append(worker)
        return worker

    def team(self, seconds, scenario="rounds", world=3):
        """A trainer and its observers, when all have joined."""
        team = [self.start("trainer", "trainer", 0, world, seconds, scenario=scenario)]
        for i in range(1, abs(world)):
            team.append(self.start("observer", "obs_%d" % i, i, world, seconds))
        if not team[0].first("READY", patience=300):
            raise RuntimeError("%s did not start: %s" % (
                self.kind, " / ".join(line for w in team for line in w.output[-2:])))
        return team

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.process.kill()
            worker.process.wait()
            worker.thread.join(2)


class Network:
    """Three networks of their own, joined by a bridge in a fourth."""

    def __init__(self):
        self.spaces = [subprocess.Popen(["unshare", "-n", "sleep", "900"]) for _ in range(4)]
        mine = os.readlink("/proc/self/ns/net")
        for space in self.spaces:
            while space.poll() is None and os.readlink("/proc/%d/ns/net" % space.pid) == mine:
                time.sleep(0.01)
        self.run(3, "ip link add br0 type bridge && ip link set br0 up")
        for i in range(3):
            self.run(3, "ip link add port%d type veth peer name eth0 netns %d && "
                        "ip link set port%d master br0 up" % (i, self.spaces[i].pid, i))
            self.run(i, "ip link set lo up && ip addr add 10.77.0.%d/24 dev eth0 && "
                        "ip link set eth0 up" % (i + 1))

    def prefix(self, i):
        return ["nsenter", "-t", str(self.spaces[i].pid), "-n", "--"]

    def run(self, i, command):
        subprocess.run(self.prefix(i) + ["sh", "-c", command], check=True)

    def close(self):
        for space in self.spaces:
            space.kill()
            space.wait()


def shown(text, limit=150):
    text = text.replace("|", "/")
    return text if len(text) <= limit else text[:limit] + "..."


def goes_on(trainer, since, span):
    rounds = trainer.rounds(since, since + span)
    return "yes: %d rounds in the %g s after it" % (rounds, span) if rounds else "no"


def error_after(trainer, since, patience):
    error = trainer.first("ERROR", since, patience)
    if not error:
        return "nothing in %g s" % patience, None
    return "%s" % shown(error[1].split(" ", 1)[1]), error[0] - since


def either(worker, one, other, patience):
    """The first of two events, and None for the one that has not happened."""
    ends = time.time() + patience
    while time.time() < ends and not (worker.first(one) or worker.first(other)):
        time.sleep(0.01)
    return worker.first(one), worker.first(other)


def f02(side):
    """an observer is killed (kill -9) within its episode"""
    trainer, _, obs = side.team(12)
    time.sleep(0.5)
    killed = obs.signal(signal.SIGKILL)
    words, took = error_after(trainer, killed, 25)
    time.sleep(3)
    return words, took, goes_on(trainer, killed + (took or 0), 3)


def f04(side):
    """an observer is stopped for 5 s (SIGSTOP), then goes on"""
    trainer, _, obs = side.team(35)
    time.sleep(0.5)
    stopped = obs.signal(signal.SIGSTOP)
    time.sleep(5)
    continued = obs.signal(signal.SIGCONT)
    words, took = error_after(trainer, stopped, 22)
    back = trainer.first("BACK", continued, 5)
    during = trainer.rounds(stopped + 0.3, continued)
    went = "%d rounds while it was stopped" % during
    if not took:
        next_round = trainer.first("ROUND", continued)
        went += ", the next one %.2f s after it went on" % (next_round[0] - continued)
    else:
        went += ", back %.2f s after it went on" % (back[0] - continued) if back else ", not back"
    return words, took, went


def f06(side):
    """a call has 0.2 s and its handler takes 5 s"""
    trainer, _, obs = side.team(8, "deadline")
    begun = obs.first("BEGUN", patience=5)
    words, took = error_after(trainer, 0, 8)
    took = trainer.first("ERROR")[0] - begun[0] if took else None
    end = obs.first("FINISHED", patience=7)
    heard = "%s, %.2f s after it began" % (shown(end[1], 90), end[0] - begun[0]) if end else "?"
    return words, took, heard


def f10(side):
    """the network to an observer goes down without a word"""
    trainer, _, _ = side.team(40)
    time.sleep(0.5)
    down = time.time()
    side.network.run(3, "ip link set port2 down")
    words, took = error_after(trainer, down, 30)
    time.sleep(3)
    during = trainer.rounds(down + 0.3, down + 6)
    return words, took, "%d rounds in the 6 s after it went down" % during


def f31(side):
    """a second process joins as obs_2"""
    trainer, _, _ = side.team(60, world=-3)
    second = side.start("observer", "obs_2", 3, -3, 5)
    began = second.first("STARTING", patience=300)[0]
    refused, joined = either(second, "REFUSED", "JOINED", 20)
    time.sleep(max(0, began + 3 - time.time()))
    error = trainer.first("ERROR", began)
    if refused:
        words, took = shown(refused[1]), refused[0] - began
    elif joined:
        words, took = "nothing: both are obs_2 now", joined[0] - began
    else:
        words, took = "nothing in 20 s", None
    rounds = trainer.rounds(began, began + 3)
    first = "the first one is not disturbed" if not error else "the first one fails: " + shown(
        error[1])
    return words, took, "%d rounds in 3 s; %s" % (rounds, first)


def f33(side):
    """somebody without the token joins and calls os.getpid of the trainer"""
    trainer, _, _ = side.team(60, world=-3)
    intruder = side.start("intruder", "intruder", 3, -3, 5, token="0" * 64)
    began = intruder.first("STARTING", patience=300)[0]
    refused, ran = either(intruder, "REFUSED", "RAN", 20)
    time.sleep(max(0, began + 3 - time.time()))
    if ran:
        words, took = shown(ran[1]), ran[0] - began
    elif refused:
        words, took = shown(refused[1]), refused[0] - began
    else:
        words, took = "nothing in 20 s", None
    said = [line for line in trainer.output if "refused" in line]
    return words, took, "%d rounds in 3 s; the trainer says: %s" % (
        trainer.rounds(began, began + 3), shown(said[0]) if said else "nothing")


def f40(side):
    """1,000 calls at once, each of which calls back and forth 8 deep"""
    trainer, _, _ = side.team(20, "nested")
    ready = trainer.first("READY")[0]
    end = trainer.first("NESTED", patience=60)
    if not end:
        return "nothing in 60 s", None, "no"
    done, _, failure = end[1].partition(" ")
    return "%s of 1,000 come home%s" % (done, "; " + shown(failure) if failure else ""), \
        end[0] - ready, "yes" if done == "1000" else "no: %s did" % done


FAULTS = {"F02": f02, "F04": f04, "F06": f06, "F10": f10, "F31": f31, "F33": f33, "F40": f40}


def run(fault, kind):
    network = None
    if fault == "F10":
        try:
            network = Network()
        except (OSError, subprocess.CalledProcessError) as error:
            return "skipped: needs CAP_NET_ADMIN (%s)" % error, None, ""
    try:
        with Side(kind, network) as side:
            return FAULTS[fault](side)
    except RuntimeError as error:
        return "the run did not start: %s" % shown(str(error).split("\n")[0]), None, ""
    finally:
        if network:
            network.close()


def write(path, lines):
    with open(path) as f:
        text = f.read()
    begin, end = "<!-- beside -->\n", "<!-- /beside -->"
    a, b = text.index(begin) + len(begin), text.index(end)
    with open(path, "w") as f:
        f.write(text[:a] + "\n".join(lines) + "\n" + text[b:])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("faults", nargs="*", default=list(FAULTS), metavar="FAULT")
    parser.add_argument("--write", metavar="DOCUMENT")
    args = parser.parse_args()
    import torch

    lines = ["Run on %s, PyTorch %s, %d cores." % (datetime.date.today(), torch.__version__,
                                                  os.cpu_count()), "",
             "| fault | side | what the user sees | after | does training go on |",
             "|---|---|---|---|---|"]
    for fault in args.faults:
        what = FAULTS[fault].__doc__
        for kind in ("rlengine", "PyTorch"):
            words, took, went = run(fault, kind)
            lines.append("| %s | %s | `%s` | %s | %s |" % (
                "%s: %s" % (fault, what) if kind == "rlengine" else "", kind, words,
                "-" if took is None else "< 0.01 s" if took < 0.01 else "%.2f s" % took, went))
            print(lines[-1], flush=True)
    if args.write:
        write(args.write, lines)


main()
