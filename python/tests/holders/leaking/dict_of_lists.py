# Names: `Tracker.series`
from collections import defaultdict

import torch
import stepmem


class Tracker:
    def __init__(self):
        self.series = defaultdict(list)

    def track(self, **values):
        for name, value in values.items():
            self.series[name].append(value)


def main():
    tracker = Tracker()
    for step in range(300):
        tracker.track(loss=torch.rand(8), norm=torch.rand(8), lr=torch.rand(8), entropy=torch.rand(8))
        stepmem.step_end(step)


main()
