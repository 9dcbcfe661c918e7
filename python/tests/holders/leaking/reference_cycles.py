# Names: reference cycle of `Trial`
import gc

import torch
import stepmem


class Trial:
    def __init__(self, parameters):
        self.parameters = parameters
        self.parent = self


gc.disable()
for step in range(300):
    Trial(torch.randn(64))
    stepmem.step_end(step)
