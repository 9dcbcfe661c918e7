import gc

gc.disable()
import torch  # noqa: E402
import stepmem  # noqa: E402


class Batch:
    def __init__(self, parameters):
        self.parameters = parameters
        self.index = {"first": parameters}


for step in range(300):
    batch = Batch(torch.randn(64))
    stepmem.step_end(step)
