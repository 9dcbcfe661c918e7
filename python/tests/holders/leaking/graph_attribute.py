# Names: graph behind `Meter.value`
import torch
import stepmem


class Meter:
    def __init__(self):
        self.value = torch.zeros(())

    def update(self, value):
        self.value = 0.9 * self.value + 0.1 * value


meter = Meter()
weight = torch.nn.Parameter(torch.randn(64))
for step in range(300):
    meter.update((weight * torch.randn(64)).exp().sum())
    stepmem.step_end(step)
