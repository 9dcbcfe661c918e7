# Names: `State.gradients`
from dataclasses import dataclass, field
from typing import List

import torch
import stepmem


@dataclass
class State:
    lr: float = 0.1
    gradients: List[torch.Tensor] = field(default_factory=list)


def fit(state: State):
    weight = torch.nn.Parameter(torch.randn(32))
    for step in range(300):
        (weight ** 2).sum().backward()
        state.gradients.append(weight.grad)
        weight.grad = None
        stepmem.step_end(step)


fit(State())
