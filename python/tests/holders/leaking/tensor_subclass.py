# Names: `Recorder.kept`
import torch
import stepmem


class Named(torch.Tensor):
    calls = 0

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        Named.calls += 1
        return super().__torch_function__(function, types, args, kwargs or {})


class Recorder:
    def __init__(self):
        self.kept = {}


def main():
    recorder = Recorder()
    for step in range(300):
        recorder.kept[step] = torch.randn(24).as_subclass(Named)
        stepmem.step_end(step)


main()
