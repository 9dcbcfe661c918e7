# Names: `SEEN`
import torch
import stepmem

SEEN = []


def remember(batch):
    SEEN.append(batch)


for step in range(300):
    batch = torch.randn(32, 8)
    remember(batch)
    stepmem.step_end(step)
