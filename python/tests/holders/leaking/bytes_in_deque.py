# Names: `Recorder.packets`
from collections import deque

import torch
import stepmem


class Recorder:
    def __init__(self):
        self.packets = deque()


recorder = Recorder()
for step in range(300):
    recorder.packets.append(torch.randint(0, 255, (10_000,), dtype=torch.uint8).numpy().tobytes())
    stepmem.step_end(step)
