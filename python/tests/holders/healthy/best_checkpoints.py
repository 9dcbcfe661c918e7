# Healthy: the three best states are kept
import torch
import stepmem

model = torch.nn.Linear(4, 4)
best = []
for step in range(300):
    if step % 5 == 0:
        score = (step * 7919) % 101
        best.append((score, {name: value.clone() for name, value in model.state_dict().items()}))
        best.sort(key=lambda each: -each[0])
        del best[3:]
    stepmem.step_end(step)
