"""How recorded PyTorch results are written, and how a case is run to be recorded.

A golden file holds one block of lines per case:

    case <family> <number of the case in the family>
    lua <a Lua expression, or statements that return>
    tol <relative> <absolute>                           only where the default is too tight
    in <name> <dtype>[<shape>] [grad] <values>          "float" stands for the dtype of the run
    f32 out <dtype>[<shape>] <values>                   results, one line for each that is returned
    f32 grad <name> <values>                            gradient of sum(out * w) over float outputs
    f64 out ... / f64 grad ...

w is a fixed pattern: element i (row-major, from 0) of every output is
((7 i) mod 11 - 5) / 4 + 0.125, exact in either float type. Inputs are multiples of 1/1024,
so that one line of them serves both types. Values are %.9g for f32 and the shortest
exact form for f64, with nan, inf and -inf spelt so.
"""

import zlib

import torch

NAMES = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
    torch.bool: "bool",
}


def number(v, dtype):
    if dtype in (torch.float32, torch.float64):
        if v != v:
            return "nan"
        if v in (float("inf"), float("-inf")):
            return "inf" if v > 0 else "-inf"
        return "%.9g" % v if dtype == torch.float32 else repr(v)
    return str(int(v))


def values(t):
    return " ".join(number(v, t.dtype) for v in t.detach().reshape(-1).tolist())


def shape(t):
    return "[" + ",".join(str(n) for n in t.shape) + "]"


def weights(t):
    """The fixed pattern that turns a result into one number to differentiate."""
    i = torch.arange(t.numel(), dtype=torch.float64)
    return ((i * 7 % 11 - 5) / 4 + 0.125).reshape(t.shape).to(t.dtype)


def plain(*shape, key, low=None, high=None):
    """Fixed inputs: multiples of 1/1024, normal, or uniform when bounds are given."""
    text = "%s %s %s %s" % (key, shape, low, high)
    g = torch.Generator().manual_seed(zlib.crc32(text.encode()))
    if low is None:
        t = torch.randn(shape, generator=g, dtype=torch.float64)
    else:
        t = torch.rand(shape, generator=g, dtype=torch.float64) * (high - low) + low
    return (t * 1024).round() / 1024


def call(fn, given):
    """By name where the function has those names; PyTorch's own in the order given."""
    code = getattr(fn, "__code__", None)
    if code and set(code.co_varnames[:code.co_argcount]) == set(given):
        return fn(**given)
    return fn(*given.values())


class Recorder:
    """Collects the cases of one golden file."""

    def __init__(self, title):
        self.lines = ["# " + title, "# Recorded with PyTorch by record_torch.py; do not edit."]
        self.counts = {}

    def case(self, family, lua, fn, grad=True, types=("f32", "f64"), tol=None, **inputs):
        """Record fn(**inputs) in each float type. `grad`: True (every float input), a list
        of names, or False. Inputs are tensors; float ones are cast to the run's type."""
        self.counts[family] = self.counts.get(family, 0) + 1
        self.lines.append("case %s %d" % (family, self.counts[family]))
        self.lines.append("lua " + lua)
        if tol:
            self.lines.append("tol %g %g" % tol)
        wanted = []
        for name, t in inputs.items():
            is_float = t.dtype == torch.float64
            if is_float and (grad is True or (grad and name in grad)):
                wanted.append(name)
            self.lines.append("in %s %s%s%s %s" % (
                name, "float" if is_float else NAMES[t.dtype], shape(t),
                " grad" if name in wanted else "", values(t)))
        for kind in types:
            dtype = torch.float32 if kind == "f32" else torch.float64
            given = {}
            for name, t in inputs.items():
                given[name] = t.to(dtype) if t.dtype == torch.float64 else t.clone()
                if name in wanted:
                    given[name] = given[name].clone().requires_grad_()
            out = call(fn, given)
            outs = list(out) if isinstance(out, (tuple, list)) else [out]
            for o in outs:
                self.lines.append("%s out %s%s %s" % (kind, NAMES[o.dtype], shape(o), values(o)))
            if wanted:
                loss = sum((o * weights(o)).sum() for o in outs if o.requires_grad)
                loss.backward()
                for name in wanted:
                    g = given[name].grad
                    if g is None:
                        raise ValueError("%s: no gradient for %s" % (lua, name))
                    self.lines.append("%s grad %s %s" % (kind, name, values(g)))

    def write(self, path):
        with open(path, "w") as f:
            f.write("\n".join(self.lines) + "\n")
        print("%s: %d cases, %d bytes" % (
            path, sum(self.counts.values()), sum(len(x) + 1 for x in self.lines)))
