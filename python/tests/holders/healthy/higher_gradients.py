import torch
import stepmem

weight = torch.randn(64, 64)
for step in range(300):
    fast = weight.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad((fast * fast).sum(), fast, create_graph=True)
    gradient.square().sum().backward()
    stepmem.step_end(step)
