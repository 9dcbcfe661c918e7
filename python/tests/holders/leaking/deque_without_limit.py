# Names: `Queue.items`
from collections import deque

import torch
import stepmem


class Queue:
    def __init__(self):
        self.items = deque()

    def push(self, item):
        self.items.appendleft(item)


def train(queue):
    for step in range(300):
        queue.push((step, torch.zeros(256)))
        stepmem.step_end(step)


train(Queue())
