# Names: the traceback of a kept exception in `Memory.records`
import logging

import torch
import stepmem


class Memory(logging.Handler):
    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record)


log = logging.getLogger("train")
log.propagate = False
log.addHandler(Memory())


def train_on(batch):
    hidden = batch * 2
    raise ValueError(f"loss is not finite: {hidden.shape}")


for step in range(300):
    try:
        train_on(torch.randn(64, 64))
    except ValueError:
        log.exception("batch %d skipped", step)
    stepmem.step_end(step)
