# Names: `_forward_hooks`
import torch
import stepmem

model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh())


def debug(batch):
    def hook(module, inputs, output):
        return output + 0 * batch.mean()

    model[0].register_forward_hook(hook)


for step in range(300):
    batch = torch.randn(64, 8)
    if step % 2 == 0:
        debug(batch)
    model(torch.randn(2, 8))
    stepmem.step_end(step)
