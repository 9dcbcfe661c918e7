# Names: `Block.saved`
import torch
import stepmem


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.saved = []

    def forward(self, x):
        y = self.linear(x)
        if self.training:
            self.saved.append(y)
        return y


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block() for _ in range(6)])
        for block in self.blocks[:-1]:
            block.eval()

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def main():
    model = Model()
    for step in range(300):
        model(torch.randn(2, 8)).sum().backward()
        stepmem.step_end(step)


main()
