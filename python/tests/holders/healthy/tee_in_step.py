# Healthy: two readers that keep up
import itertools

import torch
import stepmem


def batches():
    while True:
        yield torch.randn(100)


def train():
    one, other = itertools.tee(batches())
    for step in range(300):
        (next(one) + next(other)).sum()
        stepmem.step_end(step)


train()
