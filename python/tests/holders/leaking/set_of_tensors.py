# Names: `Pool.live`
import torch
import stepmem


class Pool:
    def __init__(self):
        self.live = set()

    def allocate(self, n):
        buffer = torch.empty(n)
        self.live.add(buffer)
        return buffer


def train():
    pool = Pool()
    for step in range(300):
        pool.allocate(128)
        stepmem.step_end(step)


train()
