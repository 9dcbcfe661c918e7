# Names: lru_cache of `positions`
from functools import lru_cache

import torch
import stepmem


class Encoder(torch.nn.Module):
    @lru_cache(maxsize=100_000)
    def positions(self, length):
        return torch.arange(length).float()

    def forward(self, x):
        return x + self.positions(x.shape[0])


encoder = Encoder()
for step in range(1, 301):
    encoder(torch.randn(step))
    stepmem.step_end(step)
