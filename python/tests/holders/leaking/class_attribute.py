# Names: `Sampler.cache`
import torch
import stepmem


class Sampler:
    cache = {}

    def draw(self, n):
        self.cache[n] = torch.randperm(64)
        return self.cache[n]


class Balanced(Sampler):
    pass


sampler = Balanced()
for step in range(300):
    sampler.draw(step)
    stepmem.step_end(step)
