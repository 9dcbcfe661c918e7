# Healthy: a deep model with many buffers
import torch
import stepmem


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(8)
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x):
        return x + self.linear(self.norm(x)).relu()


def main():
    model = torch.nn.Sequential(*[Block() for _ in range(60)])
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(200):
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        stepmem.step_end(step)


main()
