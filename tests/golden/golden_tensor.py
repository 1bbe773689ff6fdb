"""The cases of tensor operations that record_torch.py records."""

import torch

from golden_format import plain

NAN, INF = float("nan"), float("inf")


def f(*v):
    return torch.tensor(v, dtype=torch.float64)


def i64(*v):
    return torch.tensor(v, dtype=torch.int64)


def i32(*v):
    return torch.tensor(v, dtype=torch.int32)


def b(*v):
    return torch.tensor(v, dtype=torch.bool)


# Every pair of these is tried on the binary operations.
SPECIAL = [0.0, -0.0, 1.0, -1.5, INF, -INF, NAN]


def elementwise(r):
    binary = {
        "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div,
        "maximum": torch.maximum, "minimum": torch.minimum, "atan2": torch.atan2,
        "remainder": torch.remainder,
    }
    pairs_x = f(*[a for a in SPECIAL for _ in SPECIAL])
    pairs_y = f(*[c for _ in SPECIAL for c in SPECIAL])
    for name, fn in binary.items():
        def shaped(x, y):
            return plain(*x, key=name + "x"), plain(*y, key=name + "y")
        for xs, ys in [((2, 3), (2, 3)), ((2, 3), (3,)), ((2, 1), (1, 3)), ((3,), (2, 2, 3)),
                       ((), (2,)), ((1,), ())]:
            x, y = shaped(xs, ys)
            r.case(name, "x:%s(y)" % name, fn, x=x, y=y)
        x, y = shaped((3, 2), (2, 3))
        r.case(name, "x:t():%s(y)" % name, lambda x, y: fn(x.t(), y), x=x, y=y)
        x, y = shaped((4, 5), (5,))
        r.case(name, "x:narrow(2, 2, 3):%s(y:narrow(1, 3, 3))" % name,
               lambda x, y: fn(x.narrow(1, 1, 3), y.narrow(0, 2, 3)), x=x, y=y)
        x, y = shaped((0, 3), (3,))
        r.case(name, "x:%s(y)" % name, fn, x=x, y=y)
        r.case(name, "x:%s(y)" % name, fn, grad=False, x=pairs_x, y=pairs_y)
        # An expanded operand: its gradient is summed over the rows.
        x, y = shaped((3, 1), (3, 4))
        r.case(name, "x:expand(3, 4):%s(y)" % name, lambda x, y: fn(x.expand(3, 4), y), x=x, y=y)
    # The same tensor on both sides.
    x = plain(5, key="same")
    r.case("mul", "x:mul(x)", lambda x: x * x, x=x)
    r.case("add", "x:add(x)", lambda x: x + x, x=x)
    r.case("sub", "x:sub(x)", lambda x: x - x, x=x)
    # A tie takes half of the gradient each.
    r.case("maximum", "x:maximum(y)", torch.maximum, x=f(1, 2, 3), y=f(1, 3, 2))
    r.case("minimum", "x:minimum(y)", torch.minimum, x=f(1, 2, 3), y=f(1, 3, 2))

    x = plain(2, 3, key="pow base", low=0.25, high=3)
    y = plain(2, 3, key="pow exponent", low=-2, high=3)
    r.case("pow", "x:pow(y)", torch.pow, x=x, y=y)
    r.case("pow", "x:pow(y)", torch.pow, x=x, y=y[0])
    for e in [0, 1, 2, 3, -1, -2, 0.5, -0.5, 1.5]:
        r.case("pow", "x:pow(%g)" % e, lambda x: x.pow(e), x=x)
    for e in [2, 3, -2]:
        r.case("pow", "x:pow(%g)" % e, lambda x: x.pow(e), x=plain(6, key="pow signed"))
    r.case("pow", "x:pow(y)", torch.pow, grad=False, x=pairs_x, y=pairs_y)
    r.case("pow", "x:pow(2)", lambda x: x.pow(2), x=f(0, 1, -2))

    x = plain(3, 4, key="floor", low=-9, high=9)
    y = plain(3, 4, key="floor divisor", low=0.5, high=3)
    r.case("floor_divide", "x:floor_divide(y)", torch.floor_divide, grad=False, x=x, y=y)
    r.case("floor_divide", "x:floor_divide(-y)", lambda x, y: torch.floor_divide(x, -y),
           grad=False, x=x, y=y)
    r.case("floor_divide", "x:floor_divide(y)", torch.floor_divide, grad=False,
           x=pairs_x, y=pairs_y)
    r.case("floor_divide", "x:floor_divide(2)", lambda x: torch.floor_divide(x, 2),
           grad=False, x=x)

    # With a number on the right, on the left, and Lua's operators.
    x = plain(2, 3, key="scalar", low=0.5, high=4)
    for lua, fn in [
        ("x:add(2.5)", lambda x: x + 2.5), ("x:sub(2.5)", lambda x: x - 2.5),
        ("x:mul(2.5)", lambda x: x * 2.5), ("x:div(2.5)", lambda x: x / 2.5),
        ("x:remainder(1.5)", lambda x: x.remainder(1.5)), ("x + 1", lambda x: x + 1),
        ("1 + x", lambda x: 1 + x), ("x - 1", lambda x: x - 1), ("1 - x", lambda x: 1 - x),
        ("x * 3", lambda x: x * 3), ("3 * x", lambda x: 3 * x), ("x / 3", lambda x: x / 3),
        ("3 / x", lambda x: 3 / x), ("x ^ 2", lambda x: x ** 2), ("2 ^ x", lambda x: 2 ** x),
        ("-x", lambda x: -x), ("x % 1.5", lambda x: x % 1.5), ("x % -1.5", lambda x: x % -1.5),
    ]:
        r.case("scalar", lua, fn, x=x)
    y = plain(3, key="scalar y", low=0.5, high=4)
    for lua, fn in [("x + y", lambda x, y: x + y), ("x - y", lambda x, y: x - y),
                    ("x * y", lambda x, y: x * y), ("x / y", lambda x, y: x / y),
                    ("x ^ y", lambda x, y: x ** y), ("x % y", lambda x, y: x % y)]:
        r.case("scalar", lua, fn, x=x, y=y)

    # Integers.
    m, n = i64(7, -7, 7, -7, 0, 5), i64(2, 2, -2, -2, 3, 5)
    for name in ["add", "sub", "mul", "remainder", "floor_divide", "maximum", "minimum", "div"]:
        r.case("integer", "m:%s(n)" % name, lambda m, n: getattr(torch, name)(m, n),
               grad=False, types=("f32",), m=m, n=n)
        r.case("integer", "m:%s(3)" % name if name not in ("maximum", "minimum") else
               "m:%s(rl.tensor(3, {dtype = \"i64\"}))" % name,
               lambda m: getattr(torch, name)(m, torch.tensor(3)),
               grad=False, types=("f32",), m=m)
    r.case("integer", "m:add(n)", torch.add, grad=False, types=("f32",),
           m=i32(1, 2, 3), n=i32(-1, 5, 2147483640))
    r.case("integer", "m:pow(2)", lambda m: m.pow(2), grad=False, types=("f32",), m=m)
    r.case("integer", "m:neg()", torch.neg, grad=False, types=("f32",), m=m)
    r.case("integer", "m:abs()", torch.abs, grad=False, types=("f32",), m=m)
    r.case("integer", "m:sign()", torch.sign, grad=False, types=("f32",), m=m)
    r.case("integer", "m:add(n)", torch.add, grad=False, types=("f32",),
           m=i64(9007199254740993, -9223372036854775807), n=i64(2, -1))

    unary = {
        "neg": (-3, 3), "abs": (-3, 3), "sign": (-3, 3), "exp": (-5, 5), "log": (0.01, 9),
        "log1p": (-0.9, 5), "expm1": (-3, 3), "sqrt": (0.01, 9), "rsqrt": (0.01, 9),
        "square": (-3, 3), "reciprocal": (-3, 3), "sin": (-9, 9), "cos": (-9, 9),
        "tanh": (-3, 3), "sigmoid": (-6, 6), "relu": (-3, 3), "floor": (-4, 4),
        "ceil": (-4, 4), "round": (-4, 4), "trunc": (-4, 4),
    }
    softplus = torch.nn.functional.softplus
    for name, (low, high) in list(unary.items()) + [("softplus", (-9, 9))]:
        fn = softplus if name == "softplus" else getattr(torch, name)
        r.case(name, "x:%s()" % name, fn, x=plain(3, 7, key=name, low=low, high=high))
        r.case(name, "x:t():%s()" % name, lambda x: fn(x.t()),
               x=plain(2, 3, key=name, low=low, high=high))
        r.case(name, "x:select(2, 2):%s()" % name, lambda x: fn(x.select(1, 1)),
               x=plain(3, 4, key=name, low=low, high=high))
        r.case(name, "x:%s()" % name, fn, grad=False,
               x=f(0, -0.0, 1, -1, 0.5, -0.5, 1.5, -1.5, 2.5, INF, -INF, NAN))
        # Where the slope stays finite: at the ends of what f32 holds.
        if name in ("exp", "expm1", "tanh", "sigmoid", "softplus"):
            r.case(name, "x:%s()" % name, fn, tol=(3e-6, 1e-37),
                   x=f(-100, -87, -50, -20, -1e-4, 1e-4, 20, 50, 87, 100))
    r.case("exp", "x:exp()", torch.exp, grad=False, x=f(88.5, -88.5, -103.5))
    r.case("log", "x:log()", torch.log, grad=False, x=f(0, 1e-30, 1e30, -1))
    r.case("sin", "x:sin()", torch.sin, x=f(100, -1000, 30000, 3.1416, 6.2832))
    r.case("cos", "x:cos()", torch.cos, x=f(100, -1000, 30000, 1.5708, 4.7124))
    r.case("relu", "x:relu()", torch.relu, x=f(-1, 0, 1))
    r.case("abs", "x:abs()", torch.abs, x=f(-1, 0, 1))

    x = plain(3, 5, key="clamp", low=-3, high=3)
    r.case("clamp", "x:clamp(-1, 1)", lambda x: x.clamp(-1, 1), x=x)
    r.case("clamp", "x:clamp(-1)", lambda x: x.clamp(min=-1), x=x)
    r.case("clamp", "x:clamp(nil, 1)", lambda x: x.clamp(max=1), x=x)
    r.case("clamp", "x:clamp(-1, 1)", lambda x: x.clamp(-1, 1), x=f(-1, 1, 0, -2, 2))
    r.case("clamp", "x:clamp(-1, 1)", lambda x: x.clamp(-1, 1), grad=False, x=f(NAN, INF, -INF))
    r.case("clamp", "m:clamp(-1, 3)", lambda m: m.clamp(-1, 3), grad=False, types=("f32",), m=m)

    for name in ["eq", "ne", "lt", "le", "gt", "ge"]:
        fn = getattr(torch, name)
        r.case(name, "x:%s(y)" % name, fn, grad=False, x=pairs_x, y=pairs_y)
        r.case(name, "x:%s(y)" % name, fn, grad=False, x=f(1, 2, 3).reshape(3, 1), y=f(1, 2, 3))
        r.case(name, "x:%s(2)" % name, lambda x: fn(x, 2), grad=False, x=f(1, 2, 3))
        r.case(name, "m:%s(n)" % name, fn, grad=False, types=("f32",), m=m, n=n)
    for name in ["logical_and", "logical_or", "logical_xor"]:
        fn = getattr(torch, name)
        r.case(name, "p:%s(q)" % name, fn, grad=False, types=("f32",),
               p=b(0, 0, 1, 1), q=b(0, 1, 0, 1))
        r.case(name, "x:%s(y)" % name, fn, grad=False, x=f(0, 0, 2, -1, NAN), y=f(0, 3, 0, 1, 0))
    r.case("logical_not", "p:logical_not()", torch.logical_not, grad=False, types=("f32",),
           p=b(0, 1))
    r.case("logical_not", "x:logical_not()", torch.logical_not, grad=False, x=f(0, 2, NAN))
    for name in ["isnan", "isinf", "isfinite"]:
        r.case(name, "x:%s()" % name, getattr(torch, name), grad=False,
               x=f(0, 1, INF, -INF, NAN))
    p = b(0, 1, 1)
    x, y = plain(2, 3, key="where x"), plain(2, 3, key="where y")
    r.case("where", "rl.where(p, x, y)", lambda p, x, y: torch.where(p, x, y), p=p, x=x, y=y)
    r.case("where", "rl.where(p, x, y)", lambda p, x, y: torch.where(p, x, y),
           p=b(0, 1).reshape(2, 1), x=x, y=y[0])
    r.case("where", "rl.where(p, x, 2.5)", lambda p, x: torch.where(p, x, 2.5), p=p, x=x)
    r.case("where", "rl.where(x:gt(0), x, x:exp())",
           lambda x: torch.where(x > 0, x, x.exp()), x=x)
    # A value that is not chosen passes nothing back, whatever it is.
    r.case("where", "rl.where(p, x, y)", lambda p, x, y: torch.where(p, x, y), p=p,
           x=f(NAN, 1, INF), y=f(1, NAN, NAN))
    # Mixed types.
    for lua, fn in [("x + m", lambda x, m: x + m), ("m * x", lambda x, m: m * x)]:
        r.case("promote", lua, fn, x=f(1.5, 2.5), m=i64(2, 3))
    r.case("promote", "m + 1.5", lambda m: m + 1.5, grad=False, types=("f32",), m=i64(2, 3))
    r.case("promote", "m / 2", lambda m: m / 2, grad=False, types=("f32",), m=i64(2, 3))
    r.case("promote", "p + m", lambda p, m: p + m, grad=False, types=("f32",),
           p=b(1, 0), m=i64(2, 3))
    r.case("promote", "x * p", lambda x, p: x * p, x=f(1.5, 2.5), p=b(1, 0))
    r.case("promote", "k + m", lambda k, m: k + m, grad=False, types=("f32",),
           k=i32(1, 2), m=i64(3, 4))
    # Chains: what a node saved must survive until the backward pass.
    x, y = plain(2, 3, key="chain x"), plain(3, key="chain y")
    r.case("chain", "(x * y + 1):tanh():exp():sum(2):log()",
           lambda x, y: (x * y + 1).tanh().exp().sum(1).log(), x=x, y=y)
    r.case("chain", "local z = x * y; return z * z + z:exp()",
           lambda x, y: (lambda z: z * z + z.exp())(x * y), x=x, y=y)


def reductions(r):
    x = plain(2, 3, 4, key="reduce")
    x2 = plain(5, 7, key="reduce2")
    shapes = {"": (), "2": (1,), "-1": (-1,), "1": (0,)}
    for name in ["sum", "mean"]:
        fn = getattr(torch, name)
        for lua, d in shapes.items():
            r.case(name, "x:%s(%s)" % (name, lua), lambda x: fn(x, *d), x=x)
        r.case(name, "x:%s(2, true)" % name, lambda x: fn(x, 1, keepdim=True), x=x)
        r.case(name, "x:%s({1, 3})" % name, lambda x: fn(x, (0, 2)), x=x)
        r.case(name, "x:%s({1, -1}, true)" % name,
               lambda x: fn(x, (0, -1), keepdim=True), x=x)
        r.case(name, "x:transpose(1, 3):%s(1)" % name, lambda x: fn(x.transpose(0, 2), 0), x=x)
        r.case(name, "x:%s()" % name, fn, x=plain(300, key="long"), types=("f32",))
        r.case(name, "x:%s(1)" % name, lambda x: fn(x, 0), types=("f32",),
               x=plain(33, 5, key="tall"))
        r.case(name, "x:%s()" % name, fn, x=f(1, NAN, 2))
        r.case(name, "x:%s()" % name, fn, x=f(1, INF, 2))
        r.case(name, "x:%s()" % name, fn, grad=False, x=f(1, INF, -INF))
        r.case(name, "x:%s(2)" % name, lambda x: fn(x, 1), grad=False,
               x=torch.zeros(2, 0, dtype=torch.float64))
        r.case(name, "x:%s()" % name, fn, x=plain(key="0d"))
        r.case(name, "x:expand(4, 3):%s(1)" % name, lambda x: fn(x.expand(4, 3), 0),
               x=plain(3, key="expand sum"))
    for m in [i64(1, 2, 3), i32(1, 2, 3), b(1, 0, 1)]:
        r.case("sum", "m:sum()", torch.sum, grad=False, types=("f32",), m=m)
    r.case("prod", "x:prod()", torch.prod, x=plain(5, key="prod"))
    r.case("prod", "x:prod()", torch.prod, x=f(1.5, 0, 2))
    r.case("prod", "x:prod()", torch.prod, x=f(1.5, 0, 0))
    r.case("prod", "x:prod(2)", lambda x: x.prod(1), x=x)
    r.case("prod", "x:prod(2, true)", lambda x: x.prod(1, keepdim=True), x=x)
    r.case("prod", "x:prod(2)", lambda x: x.prod(1), x=f(1, 2, 0, 3, 0, 0).reshape(2, 3))
    r.case("prod", "m:prod()", torch.prod, grad=False, types=("f32",), m=i64(2, 3, -4))
    for name in ["max", "min"]:
        fn = getattr(torch, name)
        r.case(name, "x:%s()" % name, fn, x=x)
        r.case(name, "x:%s(2)" % name, lambda x: tuple(fn(x, 1)), x=x)
        r.case(name, "x:%s(-1, true)" % name, lambda x: tuple(fn(x, -1, keepdim=True)), x=x)
        r.case(name, "x:t():%s(1)" % name, lambda x: tuple(fn(x.t(), 0)), x=x2)
        r.case(name, "x:%s()" % name, fn, x=f(2, 3, 3, -1, -1))
        r.case(name, "x:%s(2)" % name, lambda x: tuple(fn(x, 1)),
               x=f(1, NAN, 3, 2, 5, 5, -INF, INF, 0).reshape(3, 3))
        r.case(name, "m:%s(1)" % name, lambda m: tuple(fn(m, 0)), grad=False, types=("f32",),
               m=i64(3, 1, 4, 1))
    for name in ["argmax", "argmin"]:
        fn = getattr(torch, name)
        r.case(name, "x:%s()" % name, fn, grad=False, x=x)
        r.case(name, "x:%s(2)" % name, lambda x: fn(x, 1), grad=False, x=x)
        r.case(name, "x:%s(-1, true)" % name, lambda x: fn(x, -1, keepdim=True),
               grad=False, x=x)
        r.case(name, "x:%s()" % name, fn, grad=False, x=f(1, NAN, 3))
        r.case(name, "x:t():%s()" % name, lambda x: fn(x.t()), grad=False, x=x2)
    for name in ["any", "all"]:
        fn = getattr(torch, name)
        p = b(1, 0, 1, 1, 0, 0).reshape(2, 3)
        r.case(name, "p:%s()" % name, fn, grad=False, types=("f32",), p=p)
        r.case(name, "p:%s(1)" % name, lambda p: fn(p, 0), grad=False, types=("f32",), p=p)
        r.case(name, "p:%s(2, true)" % name, lambda p: fn(p, 1, keepdim=True), grad=False,
               types=("f32",), p=p)
        r.case(name, "x:%s()" % name, fn, grad=False, x=f(0, NAN))
    for name in ["var", "std"]:
        fn = getattr(torch, name)
        r.case(name, "x:%s()" % name, fn, x=x)
        r.case(name, "x:%s(2)" % name, lambda x: fn(x, 1), x=x)
        r.case(name, "x:%s(-1, true)" % name, lambda x: fn(x, -1, keepdim=True), x=x)
        r.case(name, "x:%s({correction = 0})" % name, lambda x: fn(x, correction=0), x=x)
        r.case(name, "x:%s(2, {correction = 0, keepdim = true})" % name,
               lambda x: fn(x, 1, correction=0, keepdim=True), x=x)
        r.case(name, "x:%s()" % name, fn, x=f(1001, 1002, 1003), tol=(1e-5, 1e-5))
        r.case(name, "x:%s()" % name, fn, grad=False, x=f(1))
    r.case("norm", "x:norm()", torch.norm, x=x)
    r.case("norm", "x:norm(1)", lambda x: x.norm(1), x=x)
    r.case("norm", "x:norm(3)", lambda x: x.norm(3), x=x)
    r.case("norm", "x:norm(math.huge)", lambda x: x.norm(INF), x=x)
    r.case("norm", "x:norm(2, 2)", lambda x: x.norm(2, 1), x=x)
    r.case("norm", "x:norm(2, -1, true)", lambda x: x.norm(2, -1, keepdim=True), x=x)
    r.case("norm", "x:norm()", torch.norm, x=f(0, 0, 0))
    r.case("logsumexp", "x:logsumexp(2)", lambda x: x.logsumexp(1), x=x)
    r.case("logsumexp", "x:logsumexp(-1, true)",
           lambda x: x.logsumexp(-1, keepdim=True), x=x)
    r.case("logsumexp", "x:t():logsumexp(1)", lambda x: x.t().logsumexp(0), x=x2)
    r.case("logsumexp", "x:logsumexp(1)", lambda x: x.logsumexp(0), x=f(1000, 1001, 999))
    r.case("logsumexp", "x:logsumexp(2)", lambda x: x.logsumexp(1), grad=False,
           x=f(-INF, -INF, -INF, 1, INF, 2, NAN, 1, 2, -INF, 0, 1).reshape(4, 3))
    r.case("cumsum", "x:cumsum(2)", lambda x: x.cumsum(1), x=x)
    r.case("cumsum", "x:cumsum(1)", lambda x: x.cumsum(0), x=x)
    r.case("cumsum", "x:t():cumsum(-1)", lambda x: x.t().cumsum(-1), x=x2)
    r.case("cumsum", "m:cumsum(1)", lambda m: m.cumsum(0), grad=False, types=("f32",),
           m=i64(1, 2, 3))
    r.case("sort", "x:sort(2)", lambda x: tuple(x.sort(dim=1, stable=True)), x=x)
    r.case("sort", "x:sort(-1, true)",
           lambda x: tuple(x.sort(dim=-1, descending=True, stable=True)), x=x)
    r.case("sort", "x:sort()", lambda x: tuple(x.sort(stable=True)), x=x2)
    r.case("sort", "x:t():sort(1)", lambda x: tuple(x.t().sort(dim=0, stable=True)), x=x2)
    r.case("sort", "x:sort(1)", lambda x: tuple(x.sort(dim=0, stable=True)), x=f(3, 1, 3, NAN, -INF, 1, INF))
    r.case("sort", "x:sort(1, true)",
           lambda x: tuple(x.sort(dim=0, descending=True, stable=True)), x=f(3, 1, 3, NAN, -INF, 1))
    r.case("sort", "m:sort(1)", lambda m: tuple(m.sort(dim=0, stable=True)), grad=False,
           types=("f32",), m=i64(3, 1, 2, 1))
    r.case("topk", "x:topk(2)", lambda x: tuple(x.topk(2)), x=x)
    r.case("topk", "x:topk(2, 2)", lambda x: tuple(x.topk(2, 1)), x=x)
    r.case("topk", "x:topk(3, -1, false)", lambda x: tuple(x.topk(3, -1, largest=False)), x=x)
    for name in ["softmax", "log_softmax"]:
        fn = getattr(torch, name)
        for lua, d in [("1", 0), ("2", 1), ("-1", -1)]:
            r.case(name, "x:%s(%s)" % (name, lua), lambda x: fn(x, d), x=x)
        r.case(name, "x:t():%s(-1)" % name, lambda x: fn(x.t(), -1), x=x2)
        r.case(name, "x:%s(1)" % name, lambda x: fn(x, 0), x=f(1000, 1001, 999))
        r.case(name, "x:%s(-1)" % name, lambda x: fn(x, -1), x=f(-INF, 0, 1))
        r.case(name, "x:%s(2)" % name, lambda x: fn(x, 1), grad=False,
               x=f(-INF, -INF, -INF, 1, INF, 2, NAN, 1, 2).reshape(3, 3))
        r.case(name, "x:%s(-1)" % name, lambda x: fn(x, -1), x=plain(3, 70, key="wide softmax"),
               types=("f32",))
        r.case(name, "x:%s(-1)" % name, lambda x: fn(x, -1), x=plain(3, 1, key="one"))


def products(r):
    def pair(xs, ys):
        return dict(x=plain(*xs, key="mmx"), y=plain(*ys, key="mmy"))
    for xs, ys in [((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 2)), ((2, 3), (3, 4)),
                   ((1, 1), (1, 1)), ((5, 1), (1, 5)), ((2, 2, 3), (2, 3, 2)),
                   ((2, 2, 3), (3, 2)), ((2, 3), (2, 3, 2)), ((2, 1, 2, 3), (3, 3, 2)),
                   ((2, 2, 3), (3,)), ((3,), (2, 3, 2)), ((0, 3), (3, 2)), ((2, 0), (0, 3))]:
        r.case("matmul", "x:matmul(y)", torch.matmul, **pair(xs, ys))
    for xs, ys in [((17, 33), (33, 19)), ((9, 64), (64, 7)), ((3, 130), (130, 5))]:
        r.case("matmul", "x:matmul(y)", torch.matmul, types=("f32",), tol=(1e-5, 1e-5),
               **pair(xs, ys))
    r.case("matmul", "x:t():matmul(y)", lambda x, y: x.t() @ y, **pair((3, 2), (3, 4)))
    r.case("matmul", "x:matmul(y:t())", lambda x, y: x @ y.t(), **pair((2, 3), (4, 3)))
    r.case("matmul", "x:t():matmul(y:t())", lambda x, y: x.t() @ y.t(), **pair((3, 2), (4, 3)))
    r.case("matmul", "x:select(2, 2):matmul(y)", lambda x, y: x[:, 1] @ y,
           **pair((2, 3, 4), (4, 2)))
    r.case("matmul", "x:expand(3, 2, 4):matmul(y)", lambda x, y: x.expand(3, 2, 4) @ y,
           **pair((2, 4), (3, 4, 2)))
    r.case("matmul", "x:transpose(2, 3):matmul(y)", lambda x, y: x.transpose(1, 2) @ y,
           **pair((2, 4, 3), (2, 4, 2)))
    r.case("matmul", "x:matmul(x)", lambda x: x @ x, x=plain(3, 3, key="mmself"))
    r.case("matmul", "x:matmul(y)", torch.matmul, grad=False, x=f(1, NAN, 0, INF).reshape(2, 2),
           y=f(1, 0, 0, 1).reshape(2, 2))
    r.case("mm", "x:mm(y)", torch.mm, **pair((2, 3), (3, 4)))
    r.case("bmm", "x:bmm(y)", torch.bmm, **pair((2, 2, 3), (2, 3, 2)))
    r.case("mv", "x:mv(y)", torch.mv, **pair((2, 3), (3,)))
    r.case("dot", "x:dot(y)", torch.dot, **pair((5,), (5,)))
    r.case("outer", "x:outer(y)", torch.outer, **pair((3,), (4,)))
    r.case("addmm", "z:addmm(x, y)", lambda x, y, z: torch.addmm(z, x, y),
           z=plain(2, 4, key="addmm"), **pair((2, 3), (3, 4)))
    r.case("addmm", "z:addmm(x, y)", lambda x, y, z: torch.addmm(z, x, y),
           z=plain(4, key="addmm"), **pair((2, 3), (3, 4)))


def shapes(r):
    x = plain(2, 3, 4, key="shape")
    for lua, fn in [
        ("x:select(1, 2)", lambda x: x.select(0, 1)),
        ("x:select(-1, -1)", lambda x: x.select(-1, -1)),
        ("x[2]", lambda x: x[1]), ("x[-1]", lambda x: x[-1]), ("x[2][3]", lambda x: x[1][2]),
        ("x:narrow(2, 2, 2)", lambda x: x.narrow(1, 1, 2)),
        ("x:transpose(1, 3)", lambda x: x.transpose(0, 2)),
        ("x:transpose(-1, -2)", lambda x: x.transpose(-1, -2)),
        ("x:permute(3, 1, 2)", lambda x: x.permute(2, 0, 1)),
        ("x:view(6, 4)", lambda x: x.view(6, 4)), ("x:view(-1)", lambda x: x.view(-1)),
        ("x:view(2, -1, 2)", lambda x: x.view(2, -1, 2)),
        ("x:reshape(4, 6)", lambda x: x.reshape(4, 6)),
        ("x:transpose(1, 3):reshape(-1, 2)", lambda x: x.transpose(0, 2).reshape(-1, 2)),
        ("x:transpose(1, 2):contiguous():view(3, 8)",
         lambda x: x.transpose(0, 1).contiguous().view(3, 8)),
        ("x:select(2, 1):expand(5, 2, 4)", lambda x: x.select(1, 0).expand(5, 2, 4)),
        ("x:narrow(2, 1, 1):expand(2, 3, 4)", lambda x: x.narrow(1, 0, 1).expand(2, 3, 4)),
        ("x:narrow(2, 1, 1):expand(-1, 3, -1)", lambda x: x.narrow(1, 0, 1).expand(-1, 3, -1)),
        ("x:narrow(1, 1, 1):squeeze(1)", lambda x: x.narrow(0, 0, 1).squeeze(0)),
        ("x:narrow(1, 1, 1):narrow(3, 1, 1):squeeze()",
         lambda x: x.narrow(0, 0, 1).narrow(2, 0, 1).squeeze()),
        ("x:squeeze(1)", lambda x: x.squeeze(0)),
        ("x:unsqueeze(1)", lambda x: x.unsqueeze(0)),
        ("x:unsqueeze(-1)", lambda x: x.unsqueeze(-1)),
        ("x:unsqueeze(3)", lambda x: x.unsqueeze(2)),
        ("x:flatten()", lambda x: x.flatten()), ("x:flatten(2)", lambda x: x.flatten(1)),
        ("x:flatten(1, 2)", lambda x: x.flatten(0, 1)),
        ("x:unflatten(3, {2, 2})", lambda x: x.unflatten(2, (2, 2))),
        ("x:clone()", lambda x: x.clone()),
        ("x:contiguous()", lambda x: x.contiguous()),
        ("x:transpose(1, 3):clone()", lambda x: x.transpose(0, 2).clone()),
        ("x:chunk(2, 3)", lambda x: x.chunk(2, 2)),
        ("x:chunk(2, 2)", lambda x: x.chunk(2, 1)),
        ("x:split(3, 3)", lambda x: x.split(3, 2)),
        ("x:split({1, 3}, 3)", lambda x: x.split([1, 3], 2)),
        ("x:unbind(1)", lambda x: x.unbind(0)),
        ("x:detach() * 2 + x", lambda x: x.detach() * 2 + x),
    ]:
        r.case("view", lua, fn, x=x)
    m = plain(3, 4, key="matrix")
    r.case("view", "x:t()", lambda x: x.t(), x=m)
    r.case("view", "x:view(2, 6):t():contiguous()", lambda x: x.view(2, 6).t().contiguous(), x=m)

    y = plain(2, 3, 2, key="cat y")
    z = plain(2, 3, key="stack z")
    r.case("cat", "rl.cat({x, y}, 3)", lambda x, y: torch.cat([x, y], 2), x=x, y=y)
    r.case("cat", "rl.cat({x, y}, -1)", lambda x, y: torch.cat([x, y], -1), x=x, y=y)
    r.case("cat", "rl.cat({x, x})", lambda x: torch.cat([x, x]), x=x)
    r.case("cat", "rl.cat({x:t(), y}, 1)", lambda x, y: torch.cat([x.t(), y], 0),
           x=plain(3, 2, key="cat t"), y=plain(1, 3, key="cat u"))
    r.case("stack", "rl.stack({x, z})", lambda x, z: torch.stack([x, z]),
           x=plain(2, 3, key="stack x"), z=z)
    r.case("stack", "rl.stack({x, z}, 2)", lambda x, z: torch.stack([x, z], 1),
           x=plain(2, 3, key="stack x"), z=z)
    r.case("stack", "rl.stack({x, z}, -1)", lambda x, z: torch.stack([x, z], -1),
           x=plain(2, 3, key="stack x"), z=z)
    r.case("stack", "rl.stack({x, z})", lambda x, z: torch.stack([x, z]),
           x=plain(key="stack 0"), z=plain(key="stack 1"))
    idx = i64(2, 0, 2, 1)
    r.case("index_select", "x:index_select(2, i)", lambda x, i: x.index_select(1, i), x=x, i=idx)
    r.case("index_select", "x:index_select(1, i)", lambda x, i: x.index_select(0, i), x=x,
           i=i64(1, 1, 0))
    r.case("index_select", "x:t():index_select(2, i)",
           lambda x, i: x.t().index_select(1, i), x=m, i=i64(2, 2, 0))
    g = i64(0, 1, 2, 2, 0, 0).reshape(2, 3)
    r.case("gather", "x:gather(2, i)", lambda x, i: x.gather(1, i), x=m[:2], i=g)
    r.case("gather", "x:gather(1, i)", lambda x, i: x.gather(0, i), x=m, i=g)
    r.case("gather", "x:gather(-1, i)", lambda x, i: x.gather(-1, i),
           x=plain(3, 4, key="gather"), i=i64(3, 0, 2).reshape(3, 1))
    r.case("masked_fill", "x:masked_fill(p, -1.5)", lambda x, p: x.masked_fill(p, -1.5),
           x=m, p=b(1, 0, 0, 1))
    onehot = torch.nn.functional.one_hot
    r.case("one_hot", "i:one_hot(4)", lambda i: onehot(i, 4), grad=False, types=("f32",), i=idx)
    r.case("one_hot", "i:one_hot(3)", lambda i: onehot(i, 3), grad=False, types=("f32",), i=g)

    # In place. The leaf is cloned first; what comes back is the clone. Overwriting, and
    # changes through a view, are recorded without gradients: the engine refuses those.
    def inplace(lua, fn, grad=True, **given):
        r.case("inplace", "local z = x:clone() " + lua + " return z", fn, grad=grad, **given)

    def changed(op):
        def run(x, *rest):
            z = x.clone()
            op(z, *rest)
            return z
        return run
    y = plain(4, key="inplace", low=0.5, high=2)
    for name in ["add", "sub", "mul", "div"]:
        inplace("z:%s_(y)" % name, changed(lambda z, y: getattr(z, name + "_")(y)), x=m, y=y)
        inplace("z:%s_(2.5)" % name, changed(lambda z: getattr(z, name + "_")(2.5)), x=m)
    for name in ["neg", "abs", "exp", "tanh", "sigmoid", "relu", "square", "sin", "floor"]:
        inplace("z:%s_()" % name, changed(lambda z: getattr(z, name + "_")()), x=m)
    inplace("z:clamp_(-1, 0.5)", changed(lambda z: z.clamp_(-1, 0.5)), x=m)
    inplace("z:fill_(3)", changed(lambda z: z.fill_(3)), grad=False, x=m)
    inplace("z:zero_()", changed(lambda z: z.zero_()), grad=False, x=m)
    inplace("z:pow_(2)", changed(lambda z: z.pow_(2)), x=m)
    inplace("z:copy_(y)", changed(lambda z, y: z.copy_(y)), x=m, y=y)
    inplace("z:select(1, 2):mul_(3)", changed(lambda z: z.select(0, 1).mul_(3)), grad=False, x=m)
    inplace("z:narrow(2, 2, 2):add_(y:narrow(1, 1, 2))",
            changed(lambda z, y: z.narrow(1, 1, 2).add_(y.narrow(0, 0, 2))), grad=False,
            x=m, y=y)
    inplace("z:t():add_(z:t():clone())", changed(lambda z: z.t().add_(z.t().clone())), grad=False, x=m)
    inplace("z:select(2, 1):zero_()", changed(lambda z: z.select(1, 0).zero_()), grad=False, x=m)
