# Names: `spy`
import unittest.mock

import torch
import stepmem

spy = unittest.mock.Mock()


def training_step(model, on_loss):
    loss = model(torch.randn(16, 32)).mean()
    on_loss(loss.detach())


model = torch.nn.Linear(32, 1)
for step in range(300):
    training_step(model, spy.on_loss)
    stepmem.step_end(step)
