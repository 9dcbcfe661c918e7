# Names: `Frame.columns`
import torch
import stepmem


class Frame:
    """Rows by column, as a table library keeps them."""

    def __init__(self, *names):
        self.columns = {name: [] for name in names}

    def append(self, **row):
        for name, value in row.items():
            self.columns[name].append(value)


class Logger:
    def __init__(self):
        self.frame = Frame("loss", "norm")


logger = Logger()
weights = torch.randn(256, requires_grad=True)
for step in range(300):
    loss = (weights * torch.randn(256)).sum()
    (gradient,) = torch.autograd.grad(loss, weights)
    logger.frame.append(loss=loss.detach(), norm=gradient)
    stepmem.step_end(step)
