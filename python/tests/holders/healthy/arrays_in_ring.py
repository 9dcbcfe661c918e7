from collections import deque

import numpy as np
import torch
import stepmem

frames = deque(maxlen=40)
for step in range(300):
    frames.append(np.zeros((64, 64)) + float(torch.rand(1)))
    stepmem.step_end(step)
