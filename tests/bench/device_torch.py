"""The PyTorch side of device_lua.lua: the same measurements on a GPU, in seconds.

    python tests/bench/device_torch.py     # needs the torch package, built with CUDA
"""

import sys
import time

try:
    import torch
    from torch import nn
    from torch.distributions import Categorical
except ImportError:
    sys.exit("PyTorch is not installed")

if not torch.cuda.is_available():
    sys.exit("PyTorch sees no GPU")

torch.manual_seed(1)
device = torch.device("cuda")
print("PyTorch %s, eager, f32" % torch.__version__)


def best(name, n, fn):
    least = float("inf")
    for round in range(6):
        start = time.perf_counter()
        for _ in range(n):
            fn()
        torch.cuda.synchronize()
        if round > 0:
            least = min(least, (time.perf_counter() - start) / n)
    print("torch\t%s\t%.9f" % (name, least))


def measure(title, sizes):
    layers = []
    for i in range(len(sizes) - 1):
        layers.append(nn.Linear(sizes[i], sizes[i + 1]))
        if i < len(sizes) - 2:
            layers.append(nn.Tanh())
    net = nn.Sequential(*layers).to(device)

    def forward(x):
        with torch.no_grad():
            net(x)

    for batch in (1, 64, 1024, 8192):
        x = torch.randn(batch, sizes[0], device=device)
        best("%s forward %d" % (title, batch), 20 if batch > 64 else 200, lambda: forward(x))

    state = torch.randn(sizes[0], device=device)
    saved = []

    def select_action():
        policy = Categorical(logits=net(state))
        action = policy.sample()
        saved.append(policy.log_prob(action))
        if len(saved) == 100:
            saved.clear()
        return action.item()

    best(title + " select_action", 100, select_action)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for batch in (256, 4096):
        x = torch.randn(batch, sizes[0], device=device)
        gradient = torch.randn(batch, sizes[-1], device=device)

        def train():
            optimizer.zero_grad()
            net(x).backward(gradient)
            optimizer.step()

        best("%s train %d" % (title, batch), 20, train)


measure("4-128-2", (4, 128, 2))
measure("64-256-256-18", (64, 256, 256, 18))
