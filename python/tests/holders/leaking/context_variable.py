# Names: context variable
import contextvars

import torch
import stepmem

trace = contextvars.ContextVar("trace")
trace.set([])


def step_once():
    trace.get().append(torch.randn(32))


for step in range(300):
    step_once()
    stepmem.step_end(step)
