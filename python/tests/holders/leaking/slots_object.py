# Names: `Tape.entries`
import torch
import stepmem


class Tape:
    __slots__ = ("entries", "__weakref__")

    def __init__(self):
        self.entries = {}


class Runner:
    tape: Tape

    def __init__(self):
        self.tape = Tape()

    def run(self):
        for step in range(300):
            self.tape.entries[step] = torch.randn(16)
            stepmem.step_end(step)


Runner().run()
