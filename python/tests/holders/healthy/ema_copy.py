# Healthy: a second set of weights
import copy

import torch
import stepmem


class Ema:
    def __init__(self, model):
        self.shadow = copy.deepcopy(model)

    def update(self, model):
        with torch.no_grad():
            for ours, theirs in zip(self.shadow.parameters(), model.parameters()):
                ours.lerp_(theirs, 0.01)


model = torch.nn.Linear(8, 8)
ema = Ema(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(300):
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    ema.update(model)
    stepmem.step_end(step)
