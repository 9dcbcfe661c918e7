import torch
import stepmem

log = {"loss": [], "accuracy": []}
rows = []
for step in range(300):
    loss = torch.rand(1).item()
    log["loss"].append(loss)
    log["accuracy"].append(1 - loss)
    rows.append({"step": step, "loss": loss})
    stepmem.step_end(step)
