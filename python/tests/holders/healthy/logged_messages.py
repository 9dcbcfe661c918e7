import logging
from logging.handlers import MemoryHandler

import torch
import stepmem

log = logging.getLogger("train")
log.propagate = False
log.addHandler(MemoryHandler(20, target=logging.NullHandler()))
for step in range(300):
    try:
        raise ValueError(torch.randn(64, 64).shape)
    except ValueError:
        log.exception("skipped")
    stepmem.step_end(step)
