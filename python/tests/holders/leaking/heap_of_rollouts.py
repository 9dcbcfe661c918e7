# Names: `Agent.rollouts`
import heapq
import typing

import torch
import stepmem


class Rollout(typing.NamedTuple):
    reward: float
    number: int
    states: torch.Tensor


class Agent:
    def __init__(self):
        self.rollouts = []

    def act(self, number):
        states = torch.randn(10, 12)
        heapq.heappush(self.rollouts, Rollout(float(states.sum()), number, states))


class Session:
    __slots__ = ("agent", "n")

    def __init__(self):
        self.agent, self.n = Agent(), 0

    def run(self):
        while self.n < 300:
            self.agent.act(self.n)
            self.n += 1
            stepmem.step_end(self.n)


Session().run()
