# Names: `Logger.values`
import torch
import stepmem


class Logger:
    def __init__(self):
        self.values = []

    def log(self, value):
        self.values = self.values + [value]


logger = Logger()
for step in range(300):
    logger.log(torch.tensor([float(step)] * 32))
    stepmem.step_end(step)
