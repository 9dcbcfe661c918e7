"""A training loop with the most common leak: it keeps each step's loss for a plot, and the loss keeps its graph alive.

    stepmem run -- python3 examples/leak.py      # half a minute; no GPU, no PyTorch, nothing to install
"""

import resource
import time

import stepmem

STEPS = 1200
ACTIVATION_BYTES = 256 * 1024

# Uses at most 1 GiB of your machine. stepmem reads this limit and predicts when the leak reaches it.
resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, resource.getrlimit(resource.RLIMIT_DATA)[1]))


class Loss:
    """A number that keeps what it was computed from, like a PyTorch tensor with its autograd graph."""

    def __init__(self, value, activations):
        self.value = value
        self.activations = activations


def forward(step):
    activations = bytearray(b"\1") * ACTIVATION_BYTES
    return Loss(1.0 / step, activations)


losses = []
for step in range(1, STEPS + 1):
    with stepmem.step(step):
        loss = forward(step)
        time.sleep(0.02)
        losses.append(loss)  # the leak: keeps the graph as well

print(f"mean loss {sum(loss.value for loss in losses) / len(losses):.4f}")
