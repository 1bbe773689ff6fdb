"""The PyTorch side of nn_lua.lua: the same four measurements, best of several, in seconds.

    python tests/bench/nn_torch.py        # needs the torch package from PyPI
"""

import time

import torch
from torch import nn
from torch.distributions import Categorical

torch.set_num_threads(1)
torch.manual_seed(1)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1 = nn.Linear(4, 128)
        self.dropout = nn.Dropout(0.6)
        self.affine2 = nn.Linear(128, 2)

    def forward(self, x):
        return torch.softmax(self.affine2(torch.relu(self.dropout(self.affine1(x)))), -1)


def best(name, n, fn):
    fn()
    least = float("inf")
    for _ in range(7):
        start = time.perf_counter()
        for _ in range(n):
            fn()
        least = min(least, (time.perf_counter() - start) / n)
    print("torch\t%s\t%.9f" % (name, least))


net = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 2))
one, many, gradient = torch.randn(4), torch.randn(256, 4), torch.randn(256, 2)
policy = Policy()
saved = []
state = torch.tensor([0.01, -0.02, 0.03, 0.04])


def infer():
    with torch.no_grad():
        return net(one)


def select_action():
    dist = Categorical(probs=policy(state))
    action = dist.sample()
    saved.append(dist.log_prob(action))
    if len(saved) == 200:
        saved.clear()
    return action.item()


optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)


def train():
    optimizer.zero_grad()
    net(many).backward(gradient)
    optimizer.step()


best("forward 1", 2000, infer)
best("select_action", 500, select_action)
best("train 256", 200, train)
