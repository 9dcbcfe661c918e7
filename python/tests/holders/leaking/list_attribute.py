# Names: `Trainer.history`
import torch
import stepmem


class Trainer:
    def __init__(self):
        self.model = torch.nn.Linear(16, 4)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.history = []

    def step(self):
        loss = self.model(torch.randn(8, 16)).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.history.append(loss.detach())


trainer = Trainer()
for step in range(300):
    trainer.step()
    stepmem.step_end(step)
