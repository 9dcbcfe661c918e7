"""Trains on a simulated device until it is stopped; its driver lists more memory than PyTorch's allocator holds."""

import time

import stepmem
import torch

torch.malloc(1000)
for step in range(1, 100_001):
    stepmem.step_end(step)
    time.sleep(0.05)
