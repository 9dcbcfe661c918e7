# Healthy: gradients are collected and applied every 8 steps
import torch
import stepmem


def main():
    weight = torch.nn.Parameter(torch.randn(32))
    pending = []
    for step in range(300):
        (weight * torch.randn(32)).sum().backward()
        pending.append(weight.grad)
        weight.grad = None
        if len(pending) == 8:
            with torch.no_grad():
                weight -= 0.01 * torch.stack(pending).mean(0)
            pending = []
        stepmem.step_end(step)


main()
