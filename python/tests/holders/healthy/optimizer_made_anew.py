# Healthy: an optimizer for each phase
import torch
import stepmem

model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
for step in range(300):
    if step % 70 == 0:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3 / (1 + step // 70))
    loss = model(torch.randn(8, 16)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    stepmem.step_end(step)
