# Names: graph behind `hidden`
import torch
import stepmem


def train(n_steps):
    cell = torch.nn.GRUCell(8, 8)
    hidden = torch.zeros(4, 8)
    for step in range(n_steps):
        hidden = cell(torch.randn(4, 8), hidden)
        hidden.mean().item()
        stepmem.step_end(step)


train(300)
