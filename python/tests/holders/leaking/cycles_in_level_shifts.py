# Names: a reference cycle of `Monitor`
import gc

import torch
import stepmem

gc.set_threshold(1_000_000)


class Monitor:
    def __init__(self, sample):
        self.sample = sample
        self.parent = self


recent = []
for step in range(300):
    recent = [[step] for _ in range(40 if step % 25 < 12 else 10)]  # the youngest generation comes and goes
    if step % 25 == 20:
        Monitor(torch.randn(25 * 64))
    stepmem.step_end(step)
