"""The seed's program over PyTorch's RPC, as the other side of seed_vs_torch.py.

One trainer and N observers; for every step of CartPole an observer makes two synchronous calls
to the trainer: select_action, report_reward. The trainer starts an episode on all observers,
waits for them and prints one line per episode:

    episode : 3 steps : 118      (steps of all observers since the start)

Needs the packages torch and gymnasium.
"""
import argparse
import gc
import os
import tempfile

import gymnasium
import torch
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp
from torch.distributions import Categorical
from torch.distributed.rpc import RRef, remote, rpc_async


class Policy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1 = torch.nn.Linear(4, 128)
        self.dropout = torch.nn.Dropout(p=0.6)
        self.affine2 = torch.nn.Linear(128, 2)

    def forward(self, x):
        x = torch.relu(self.dropout(self.affine1(x)))
        return torch.softmax(self.affine2(x), dim=-1)


class Observer:
    def __init__(self, index):
        self.index = index
        self.env = gymnasium.make("CartPole-v1")

    def run_episode(self, agent):
        state, _ = self.env.reset()
        steps = 0
        while True:
            action = agent.rpc_sync().select_action(self.index, torch.from_numpy(state))
            state, reward, terminated, truncated, _ = self.env.step(action)
            agent.rpc_sync().report_reward(self.index, reward)
            steps += 1
            if terminated or truncated:
                return steps


class Agent:
    def __init__(self, observers):
        self.policy = Policy()
        self.rewards = [[] for _ in observers]
        self.log_probs = [[] for _ in observers]
        self.observers = [remote(name, Observer, args=(i,)) for i, name in enumerate(observers)]

    def select_action(self, index, state):
        distribution = Categorical(self.policy(state.unsqueeze(0)))
        action = distribution.sample()
        self.log_probs[index].append(distribution.log_prob(action))
        return action.item()

    def report_reward(self, index, reward):
        self.rewards[index].append(reward)

    def run_episode(self):
        me = RRef(self)
        futures = [
            rpc_async(o.owner(), run_remote_episode, args=(o, me)) for o in self.observers
        ]
        return sum(f.wait() for f in futures)

    def finish_episode(self, collect):
        for index in range(len(self.observers)):
            self.rewards[index].clear()
            self.log_probs[index].clear()
        if collect:
            gc.collect()


def run_remote_episode(observer, agent):
    return observer.local_value().run_episode(agent)


def work(rank, observers, episodes, threads, folder, collect):
    torch.set_num_threads(1)
    options = rpc.TensorPipeRpcBackendOptions(
        num_worker_threads=threads, init_method="file://" + os.path.join(folder, "rendezvous"))
    names = ["obs_%d_for_0" % i for i in range(observers)]
    name = "agent_0" if rank == 0 else names[rank - 1]
    rpc.init_rpc(name, rank=rank, world_size=observers + 1, rpc_backend_options=options)
    if rank == 0:
        agent = Agent(names)
        steps = 0
        for episode in range(1, episodes + 1):
            steps += agent.run_episode()
            agent.finish_episode(collect)
            print("episode : %d steps : %d" % (episode, steps), flush=True)
    rpc.shutdown()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--observers", type=int, default=2)
    parser.add_argument("--episodes", type=int, default=500)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--collect", action="store_true",
                        help="collect garbage after each episode, as the report's fix does")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, args=(args.observers, args.episodes, args.threads, folder, args.collect),
                 nprocs=args.observers + 1)


if __name__ == "__main__":
    main()
