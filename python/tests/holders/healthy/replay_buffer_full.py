# Healthy: a ring of fixed size
from collections import deque

import torch
import stepmem


class Replay:
    def __init__(self, n):
        self.memory = deque(maxlen=n)

    def add(self, state, action):
        self.memory.append((state, action))


def main():
    replay = Replay(40)
    for step in range(300):
        replay.add(torch.randn(8), torch.randint(0, 4, (1,)))
        stepmem.step_end(step)


main()
