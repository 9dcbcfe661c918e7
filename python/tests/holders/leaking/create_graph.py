# Names: tensors that Python does not reach: cycles of the autograd graph
import warnings

import torch
import stepmem

warnings.filterwarnings("ignore")


def penalty(weight):
    fast = weight.detach().clone().requires_grad_()
    (fast * fast).sum().backward(create_graph=True)
    return fast.grad.square().sum().detach()


weight = torch.randn(64, 64)
for step in range(300):
    penalty(weight)
    stepmem.step_end(step)
