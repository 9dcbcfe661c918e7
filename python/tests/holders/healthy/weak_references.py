# Healthy: only weak references are kept
import weakref

import torch
import stepmem

watched = []
for step in range(300):
    batch = torch.randn(16)
    watched.append(weakref.ref(batch))
    stepmem.step_end(step)
