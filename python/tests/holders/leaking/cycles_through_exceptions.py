# Names: a reference cycle through a call of `attempt`
import gc

import torch
import stepmem

gc.disable()


def attempt():
    batch = torch.randn(64)
    try:
        raise ValueError(batch.shape)
    except ValueError as error:
        kept = error
    return kept is not None


for step in range(300):
    attempt()
    stepmem.step_end(step)
