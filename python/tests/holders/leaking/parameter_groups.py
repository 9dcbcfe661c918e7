# Names: param_groups
import torch
import stepmem

model = torch.nn.Linear(8, 8)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

for step in range(300):
    # Meant once for each layer that is unfrozen; called each step.
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(64))], "lr": 1e-4})
    loss = model(torch.randn(4, 8)).pow(2).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    stepmem.step_end(step)
