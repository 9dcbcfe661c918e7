# Names: `Writer.events`
import queue

import torch
import stepmem


class Writer:
    def __init__(self):
        self.events = queue.Queue()

    def add(self, event):
        self.events.put(event)


writer = Writer()
for step in range(300):
    writer.add(bytes(torch.randint(0, 255, (10_000,)).tolist()))
    stepmem.step_end(step)
