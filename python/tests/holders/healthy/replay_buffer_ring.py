# Healthy: a list that is overwritten in turn
import torch
import stepmem


class Ring:
    def __init__(self, n):
        self.items = []
        self.n = n
        self.at = 0

    def add(self, item):
        if len(self.items) < self.n:
            self.items.append(item)
        else:
            self.items[self.at] = item
        self.at = (self.at + 1) % self.n


ring = Ring(50)
for step in range(300):
    ring.add(torch.randn(16))
    stepmem.step_end(step)
