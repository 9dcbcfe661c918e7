# Healthy: finalizers go with what they are for
import weakref

import torch
import stepmem


class Request:
    pass


for step in range(300):
    request = Request()
    weakref.finalize(request, torch.Tensor.zero_, torch.randn(200))
    stepmem.step_end(step)
