import numpy as np
import torch
import stepmem

buffer = np.zeros((200, 64, 64), dtype=np.float32)
batches = []
for step in range(300):
    buffer[step % 200] = torch.randn(64, 64).numpy()
    batches.append(buffer[step % 200])
    if len(batches) == 16:
        batches.clear()
    stepmem.step_end(step)
