# Healthy: a stack of callbacks for each step
import contextlib

import torch
import stepmem

for step in range(300):
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            scratch = torch.empty(500)
            stack.callback(scratch.zero_)
        stepmem.step_end(step)
