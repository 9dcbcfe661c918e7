# Healthy: a list of numbers grows, no tensor is in it
import torch
import stepmem

losses = []
model = torch.nn.Linear(8, 1)
for step in range(300):
    loss = model(torch.randn(4, 8)).mean()
    loss.backward()
    losses.append(loss.item())
    stepmem.step_end(step)
