# Names: `Evaluation.rows`
import torch
import stepmem


class Evaluation:
    def __init__(self):
        self.rows = []


evaluation = Evaluation()
for step in range(300):
    evaluation.rows.extend(torch.randn(32, 100))
    stepmem.step_end(step)
