# Healthy: a cache of limited size
import functools

import torch
import stepmem


@functools.lru_cache(maxsize=32)
def table(n):
    return torch.arange(64) * n


for step in range(300):
    table(step)
    stepmem.step_end(step)
