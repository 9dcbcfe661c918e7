# Names: `Journal.data`
import collections

import torch
import stepmem


class Journal(collections.UserList):
    def note(self, kind, value):
        self.append((kind, value))


journal = Journal()


def train(step):
    activations = torch.relu(torch.randn(8, 32))
    journal.note("mean", activations.mean(0))
    journal.note("step", step)


for step in range(300):
    train(step)
    stepmem.step_end(step)
