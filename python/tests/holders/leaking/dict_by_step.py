# Names: `Evaluator.outputs`
import torch
import stepmem


class Evaluator:
    def __init__(self, model):
        self.model = model
        self.outputs = {}

    def __call__(self, step, batch):
        with torch.no_grad():
            self.outputs[f"step-{step}"] = {"logits": self.model(batch), "step": step}


def run():
    evaluate = Evaluator(torch.nn.Linear(8, 8))
    for step in range(300):
        evaluate(step, torch.randn(4, 8))
        stepmem.step_end(step)


run()
