# Names: a reference cycle of `Trial`
import gc

gc.disable()
import torch  # noqa: E402
import stepmem  # noqa: E402


class Trial:
    def __init__(self, parameters):
        self.parameters = parameters
        self.parent = self


for step in range(300):
    Trial(torch.randn(64))
    stepmem.step_end(step)
