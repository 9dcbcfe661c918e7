# Names: `Experiment.records`
import torch
import stepmem


class Record(dict):
    pass


class Report:
    def __init__(self, step):
        self.step = step
        self.data = Record(gradients=[torch.randn(4) for _ in range(3)], meta={"inner": (torch.randn(4),)})


class Experiment:
    def __init__(self):
        self.records = []


class App:
    def __init__(self):
        self.experiment = Experiment()

    def main(self):
        for step in range(300):
            self.experiment.records.append(Report(step))
            stepmem.step_end(step)


App().main()
