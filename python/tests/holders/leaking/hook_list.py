# Names: closure cell of `hook`
import torch
import stepmem


def watch(layer):
    activations = []

    def hook(module, inputs, output):
        activations.append(output.detach())

    layer.register_forward_hook(hook)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(8, 8)
        self.head = torch.nn.Linear(8, 1)

    def forward(self, x):
        return self.head(self.body(x).relu())


def main():
    net = Net()
    watch(net.body)
    for step in range(300):
        net(torch.randn(4, 8)).sum().backward()
        stepmem.step_end(step)


main()
