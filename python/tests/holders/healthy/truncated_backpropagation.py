# Healthy: the hidden state is detached every 10 steps
import torch
import stepmem


def main():
    cell = torch.nn.GRUCell(4, 4)
    hidden = torch.zeros(2, 4)
    for step in range(300):
        hidden = cell(torch.randn(2, 4), hidden)
        if step % 10 == 9:
            hidden.sum().backward()
            hidden = hidden.detach()
        stepmem.step_end(step)


main()
