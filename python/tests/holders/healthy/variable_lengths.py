# Healthy: batches of random length
import random

import torch
import stepmem


def main():
    choice = random.Random(0)
    layer = torch.nn.Linear(4, 4)
    for step in range(300):
        batch = torch.randn(choice.randrange(2, 200), 4)
        out = layer(batch)
        out.sum().backward()
        stepmem.step_end(step)


main()
