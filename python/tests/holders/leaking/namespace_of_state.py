# Names: `state.losses`
import types

import torch
import stepmem


def main():
    state = types.SimpleNamespace(step=0, losses=[], best=None)
    while state.step < 300:
        prediction = torch.randn(50, requires_grad=True)
        loss = prediction.square()
        loss.mean().backward()
        state.losses.append(loss.detach())
        state.best = loss.detach() if state.best is None or loss.sum() < state.best.sum() else state.best
        state.step += 1
        stepmem.step_end(state.step)


main()
