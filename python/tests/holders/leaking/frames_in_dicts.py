# Names: `Memory.frames`
import numpy as np
import torch
import stepmem


class Memory:
    def __init__(self, limit):
        self.limit, self.frames = limit, []

    def add(self, image):
        self.frames.append({"image": image, "weight": 1.0})


memory = Memory(100)
for step in range(300):
    for _ in range(2):
        memory.add(np.zeros((96, 96), dtype=np.uint8))
    torch.from_numpy(memory.frames[step % len(memory.frames)]["image"]).float().mean()
    stepmem.step_end(step)
