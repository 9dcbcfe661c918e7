# Names: the hooks of `weight`
import torch
import stepmem

weight = torch.nn.Parameter(torch.randn(16))
for step in range(300):
    scale = torch.rand(16)
    weight.register_hook(lambda gradient, scale=scale: gradient * scale)
    stepmem.step_end(step)
