# Names: `Memory.records`
import logging

import torch
import stepmem


class Memory(logging.Handler):
    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record)


log = logging.getLogger("training")
log.setLevel(logging.INFO)
log.propagate = False
log.addHandler(Memory())
for step in range(300):
    loss = torch.randn(200)
    log.info("loss %s", loss)
    stepmem.step_end(step)
