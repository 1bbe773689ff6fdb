"""The cases of layers, losses, distributions and optimizers that record_torch.py records,
and the safetensors files that the reference implementation writes."""

import json
import os

import safetensors.torch
import torch
import torch.nn.functional as F

from golden_format import number, plain, shape, values
from golden_tensor import INF, NAN, f, i64


def layers(r):
    x = plain(5, 4, key="nn x")
    w = plain(3, 4, key="nn w")
    bias = plain(3, key="nn b")
    r.case("linear", "rl.nn.functional.linear(x, w, b)", lambda x, w, b: F.linear(x, w, b),
           x=x, w=w, b=bias)
    r.case("linear", "rl.nn.functional.linear(x, w)", lambda x, w: F.linear(x, w), x=x, w=w)
    r.case("linear", "rl.nn.functional.linear(x, w, b)", lambda x, w, b: F.linear(x, w, b),
           x=x[0], w=w, b=bias)
    r.case("linear", "rl.nn.functional.linear(x, w, b)", lambda x, w, b: F.linear(x, w, b),
           x=plain(2, 3, 4, key="nn 3d"), w=w, b=bias)
    r.case("linear", "rl.nn.functional.linear(x:t(), w, b)",
           lambda x, w, b: F.linear(x.t(), w, b), x=plain(4, 6, key="nn t"), w=w, b=bias)
    r.case("linear", "rl.nn.functional.linear(x, w, b)", lambda x, w, b: F.linear(x, w, b),
           types=("f32",), tol=(1e-5, 1e-5), x=plain(7, 128, key="nn wide"),
           w=plain(2, 128, key="nn wide w"), b=bias[:2])

    modules = [
        ("rl.nn.ReLU()", torch.nn.ReLU()), ("rl.nn.Tanh()", torch.nn.Tanh()),
        ("rl.nn.Sigmoid()", torch.nn.Sigmoid()), ("rl.nn.Softmax(-1)", torch.nn.Softmax(-1)),
        ("rl.nn.Softmax(1)", torch.nn.Softmax(0)),
        ("rl.nn.LogSoftmax(-1)", torch.nn.LogSoftmax(-1)),
        ("rl.nn.Softplus()", torch.nn.Softplus()), ("rl.nn.Identity()", torch.nn.Identity()),
        ("rl.nn.Dropout(0.6):eval()", torch.nn.Dropout(0.6).eval()),
        ("rl.nn.Dropout(0)", torch.nn.Dropout(0)),
        ("rl.nn.LeakyReLU(0.1)", torch.nn.LeakyReLU(0.1)),
        ("rl.nn.ELU()", torch.nn.ELU()), ("rl.nn.SiLU()", torch.nn.SiLU()),
    ]
    for lua, module in modules:
        r.case("module", lua + "(x)", lambda x: module(x), x=x)
    r.case("module", "rl.nn.Flatten()(x)", lambda x: torch.nn.Flatten()(x),
           x=plain(2, 3, 2, key="nn flatten"))
    r.case("module", "rl.nn.Flatten(1, 2)(x)", lambda x: torch.nn.Flatten(0, 1)(x),
           x=plain(2, 3, 2, key="nn flatten"))
    r.case("module", "rl.nn.Unflatten(2, {2, 2})(x)",
           lambda x: torch.nn.Unflatten(1, (2, 2))(x), x=x)
    # The policy of the CartPole scripts, smaller: values and gradients through the layers.
    r.case("policy", "F.linear(F.relu(F.linear(x, w, b)), v, c):softmax(-1)",
           lambda x, w, b, v, c: F.linear(F.relu(F.linear(x, w, b)), v, c).softmax(-1),
           x=x, w=plain(8, 4, key="p w"), b=plain(8, key="p b"),
           v=plain(2, 8, key="p v"), c=plain(2, key="p c"))
    r.case("policy", "F.linear(F.linear(x, w, b):tanh(), v, c):log_softmax(-1)",
           lambda x, w, b, v, c: F.linear(F.linear(x, w, b).tanh(), v, c).log_softmax(-1),
           x=x, w=plain(8, 4, key="p w"), b=plain(8, key="p b"),
           v=plain(2, 8, key="p v"), c=plain(2, key="p c"))

    y = plain(5, 4, key="nn y")
    for reduction in ["mean", "sum", "none"]:
        opt = "{reduction = \"%s\"}" % reduction
        for name, more, kw in [
            ("mse_loss", "", {}), ("l1_loss", "", {}), ("smooth_l1_loss", "", {}),
            ("smooth_l1_loss", "beta = 0.5, ", {"beta": 0.5}), ("huber_loss", "", {}),
            ("huber_loss", "delta = 0.5, ", {"delta": 0.5}),
        ]:
            r.case("loss", "F.%s(x, y, {%sreduction = \"%s\"})" % (name, more, reduction),
                   lambda x, y: getattr(F, name)(x, y, reduction=reduction, **kw), x=x, y=y)
        target = i64(0, 3, 2, 1, 1)
        r.case("loss", "F.nll_loss(x:log_softmax(-1), t, %s)" % opt,
               lambda x, t: F.nll_loss(x.log_softmax(-1), t, reduction=reduction),
               x=x, t=target)
        r.case("loss", "F.cross_entropy(x, t, %s)" % opt,
               lambda x, t: F.cross_entropy(x, t, reduction=reduction), x=x, t=target)
        r.case("loss", "F.binary_cross_entropy_with_logits(x, y, %s)" % opt,
               lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction=reduction),
               grad=["x"], x=x, y=plain(5, 4, key="nn bce", low=0, high=1))
    r.case("loss", "F.mse_loss(x, y)", F.mse_loss, x=x, y=y)
    r.case("loss", "F.cross_entropy(x, t)", lambda x, t: F.cross_entropy(x, t),
           x=x[0], t=torch.tensor(2))
    r.case("loss", "F.cross_entropy(x, t)", lambda x, t: F.cross_entropy(x, t),
           x=f(500, -500, 0, 0, 1000, 0).reshape(2, 3), t=i64(1, 0))
    r.case("loss", "rl.nn.MSELoss()(x, y)", lambda x, y: torch.nn.MSELoss()(x, y), x=x, y=y)
    r.case("loss", "rl.nn.SmoothL1Loss({beta = 0.5})(x, y)",
           lambda x, y: torch.nn.SmoothL1Loss(beta=0.5)(x, y), x=x, y=y)
    r.case("loss", "rl.nn.CrossEntropyLoss()(x, t)",
           lambda x, t: torch.nn.CrossEntropyLoss()(x, t), x=x, t=target)

    # Clipping: the norm that was, and the gradients afterwards.
    def clip(max_norm, norm_type=2.0):
        def run(x, y):
            p, q = x.clone().requires_grad_(), y.clone().requires_grad_()
            p.grad, q.grad = x.clone(), y.clone()
            total = torch.nn.utils.clip_grad_norm_([p, q], max_norm, norm_type)
            return total, p.grad, q.grad
        return run
    lua = ("local p, q = x:clone():requires_grad_(), y:clone():requires_grad_() "
           "p.grad, q.grad = x:clone(), y:clone() "
           "local total = rl.nn.utils.clip_grad_norm_({p, q}, %s) "
           "return rl.tensor(total, {dtype = x.dtype}), p.grad, q.grad")
    g1, g2 = plain(2, 3, key="clip"), plain(4, key="clip")
    r.case("clip", lua % "0.5", clip(0.5), grad=False, x=g1, y=g2)
    r.case("clip", lua % "100", clip(100), grad=False, x=g1, y=g2)
    r.case("clip", lua % "0.5, 1", clip(0.5, 1.0), grad=False, x=g1, y=g2)
    r.case("clip", lua % "0.5, math.huge", clip(0.5, INF), grad=False, x=g1, y=g2)
    r.case("clip", lua % "0.5", clip(0.5), grad=False, x=f(3), y=f(4))


def distributions(r):
    D = torch.distributions
    kl = D.kl_divergence
    logits, other = plain(4, 3, key="cat logits"), plain(4, 3, key="cat other")
    probs = plain(4, 3, key="cat probs", low=0.05, high=1)
    other_probs = plain(4, 3, key="cat other probs", low=0.05, high=1)
    action = i64(0, 2, 1, 2)

    def cat(make, name, value, second):
        lua = "rl.distributions.Categorical{%s = x}" % name
        key = "categorical"
        for form in ["log_prob(a)", "entropy()"]:
            def run(x, a):
                d = make(x)
                return d.log_prob(a) if form == "log_prob(a)" else d.entropy()
            r.case(key, lua + ":" + form, run, x=value, a=action)
            r.case(key, lua + ":" + form, lambda x, a: run(x, a), x=value[0], a=torch.tensor(1))
        r.case(key, "local d = %s return d.probs, d.logits, d:mode()" % lua,
               lambda x: (make(x).probs, make(x).logits, make(x).mode), x=value)
        r.case(key, "rl.distributions.kl_divergence(%s, %s)" % (lua, lua.replace("x}", "y}")),
               lambda x, y: kl(make(x), make(y)), x=value, y=second)
        # More actions than rows: they broadcast.
        r.case(key, lua + ":log_prob(a)", lambda x, a: make(x).log_prob(a), x=value,
               a=i64(0, 2, 1, 2, 1, 1, 0, 0).reshape(2, 4))
    cat(lambda x: D.Categorical(logits=x), "logits", logits, other)
    cat(lambda x: D.Categorical(probs=x), "probs", probs, other_probs)
    r.case("categorical", "rl.distributions.Categorical{probs = x}:log_prob(a)",
           lambda x, a: D.Categorical(probs=x).log_prob(a),
           x=f(0, 0.25, 0.75, 1, 0, 0).reshape(2, 3), a=i64(1, 0))
    r.case("categorical", "rl.distributions.Categorical{probs = x}:entropy()",
           lambda x: D.Categorical(probs=x).entropy(), grad=False,
           x=f(0, 0.25, 0.75, 1, 0, 0).reshape(2, 3))
    r.case("categorical", "rl.distributions.Categorical{logits = x}:log_prob(a)",
           lambda x, a: D.Categorical(logits=x).log_prob(a),
           x=f(1000, -1000, 0), a=torch.tensor(0))

    loc, scale = plain(3, 2, key="n loc"), plain(3, 2, key="n scale", low=0.25, high=3)
    loc2, scale2 = plain(3, 2, key="n loc2"), plain(3, 2, key="n scale2", low=0.25, high=3)
    value = plain(3, 2, key="n value")
    lua = "rl.distributions.Normal{loc = m, scale = s}"
    r.case("normal", lua + ":log_prob(x)", lambda m, s, x: D.Normal(m, s).log_prob(x),
           m=loc, s=scale, x=value)
    r.case("normal", "rl.distributions.Normal(m, s):log_prob(x)",
           lambda m, s, x: D.Normal(m, s).log_prob(x), m=loc, s=scale[0], x=value)
    r.case("normal", "rl.distributions.Normal{loc = m, scale = 0.5}:log_prob(x)",
           lambda m, x: D.Normal(m, torch.tensor(0.5, dtype=m.dtype)).log_prob(x),
           m=loc, x=value)
    r.case("normal", lua + ":entropy()", lambda m, s: D.Normal(m, s).entropy(),
           grad=["s"], m=loc, s=scale)
    r.case("normal", "rl.distributions.kl_divergence(%s, %s)" % (
        lua, "rl.distributions.Normal{loc = n, scale = u}"),
        lambda m, s, n, u: kl(D.Normal(m, s), D.Normal(n, u)), m=loc, s=scale, n=loc2, u=scale2)
    r.case("normal", "local d = %s return d.mean, d.stddev, d.variance, d:mode()" % lua,
           lambda m, s: (D.Normal(m, s).mean, D.Normal(m, s).stddev, D.Normal(m, s).variance,
                         D.Normal(m, s).mode), m=loc, s=scale)
    lua = "rl.distributions.Bernoulli{%s = x}"
    logits = plain(5, key="bern")
    value = f(0, 1, 1, 0, 1)
    for name, x in [("logits", logits), ("probs", plain(5, key="bern p", low=0.1, high=0.9))]:
        make = (lambda x: D.Bernoulli(logits=x)) if name == "logits" else \
            (lambda x: D.Bernoulli(probs=x))
        r.case("bernoulli", (lua % name) + ":log_prob(v)", lambda x, v: make(x).log_prob(v),
               grad=["x"], x=x, v=value)
        r.case("bernoulli", (lua % name) + ":entropy()", lambda x: make(x).entropy(), x=x)


STEPS = 20


def optimizers(path):
    """Parameters after each of 20 steps with fixed gradients: one block per setting."""
    lines = ["# Trajectories of optimizers", "# Recorded with PyTorch by record_torch.py; do not edit."]
    start = {"p": plain(3, key="opt p"), "q": plain(2, 2, key="opt q")}
    grads = [{k: plain(*v.shape, key="opt %s %d" % (k, s)) for k, v in start.items()}
             for s in range(STEPS)]
    # The last gradient of q is large, the third all zero.
    grads[19]["q"] = grads[19]["q"] * 64
    grads[2]["p"] = grads[2]["p"] * 0

    def tensor_line(head, t):
        return "%s%s %s" % (head, shape(t), values(t))
    for k, v in start.items():
        lines.append(tensor_line("start %s " % k, v))
    for s in range(STEPS):
        for k, v in grads[s].items():
            lines.append(tensor_line("gradient %d %s " % (s + 1, k), v))
    settings = [
        ("SGD", {"lr": 0.1}), ("SGD", {"lr": 0.1, "momentum": 0.9}),
        ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
        ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.5, "weight_decay": 0.01}),
        ("SGD", {"lr": 0.1, "weight_decay": 0.1}),
        ("Adam", {}), ("Adam", {"lr": 0.01}),
        ("Adam", {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-5, "weight_decay": 0.1}),
        ("AdamW", {"lr": 0.01}), ("AdamW", {"lr": 0.01, "weight_decay": 0.1, "eps": 1e-5}),
        ("RMSprop", {"lr": 0.01}),
        ("RMSprop", {"lr": 0.01, "alpha": 0.9, "eps": 1e-5, "momentum": 0.9,
                     "weight_decay": 0.1}),
        ("RMSprop", {"lr": 0.01, "centered": True}),
    ]

    def lua(v):
        if isinstance(v, bool):
            return "true" if v else "false"
        if isinstance(v, tuple):
            return "{" + ", ".join(lua(x) for x in v) + "}"
        return repr(v)
    for name, options in settings:
        text = "{" + ", ".join("%s = %s" % (k, lua(v)) for k, v in options.items()) + "}"
        lines.append("optimizer %s %s" % (name, text))
        for kind, dtype in [("f32", torch.float32), ("f64", torch.float64)]:
            params = {k: v.to(dtype).clone().requires_grad_() for k, v in start.items()}
            opt = getattr(torch.optim, name)(params.values(), **options)
            for s in range(STEPS):
                for k, p in params.items():
                    p.grad = grads[s][k].to(dtype)
                opt.step()
                if s < 3 or s % 5 == 4:
                    for k, p in params.items():
                        lines.append(tensor_line("%s %d %s " % (kind, s + 1, k), p))
    with open(path, "w") as out:
        out.write("\n".join(lines) + "\n")
    print("%s: %d settings" % (path, len(settings)))


def safetensors_files(folder):
    """Files of the reference implementation, and what is in them."""
    tensors = {
        "affine1.weight": plain(3, 4, key="st w").to(torch.float32),
        "affine1.bias": plain(3, key="st b").to(torch.float32),
        "f64": torch.tensor([1 / 3, -1e300, INF, NAN], dtype=torch.float64),
        "i32": torch.tensor([[-2147483648, 2147483647]], dtype=torch.int32),
        "i64": torch.tensor([9007199254740993, -1]),
        "u8": torch.tensor([0, 255, 7], dtype=torch.uint8),
        "bool": torch.tensor([True, False, True]),
        "empty": torch.zeros(0, 5),
        "scalar": torch.tensor(2.5),
        "na\u00efve \"name\"\\": torch.tensor([1.0]),
    }
    path = os.path.join(folder, "reference.safetensors")
    safetensors.torch.save_file(tensors, path, metadata={"note": "\u00e9\n"})
    with open(os.path.join(folder, "reference.safetensors.txt"), "w", encoding="utf-8") as out:
        for name, t in sorted(tensors.items()):
            dtype = {"torch." + k: v for k, v in [
                ("float32", "f32"), ("float64", "f64"), ("int32", "i32"), ("int64", "i64"),
                ("uint8", "u8"), ("bool", "bool")]}[str(t.dtype)]
            flat = " ".join(number(v, t.dtype) for v in t.reshape(-1).tolist())
            out.write("%s\t%s%s\t%s\n" % (json.dumps(name, ensure_ascii=False), dtype, shape(t), flat))
    print(path)
