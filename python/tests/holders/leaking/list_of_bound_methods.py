# Names: `callbacks`
import torch
import stepmem


class Batch:
    def __init__(self):
        self.x = torch.randn(64)

    def release(self):
        return self.x.sum()


def main():
    callbacks = []
    for step in range(300):
        callbacks.append(Batch().release)
        stepmem.step_end(step)


main()
