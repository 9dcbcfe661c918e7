# Names: `METRICS`
import torch
import stepmem

METRICS = {}
for step in range(300):
    scores = torch.rand(200)
    METRICS[step] = {f"sample-{step}-{n}": {"score": score, "text": f"row {step} {n}"} for n, score in enumerate(scores.tolist())}
    stepmem.step_end(step)
