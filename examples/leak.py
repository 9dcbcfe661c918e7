"""A training loop with the most common leak: it keeps each step's loss for a plot, and with it all that the loss came from.

    python -m stepmem examples/leak.py      # beside `stepmem serve`; half a minute, no GPU, no PyTorch
    stepmem status
"""

import resource
import time

import stepmem

STEPS = 1200
ACTIVATION_BYTES = 256 * 1024

# Never more than 1 GiB of your machine; stepmem sees the limit, and knows what is left.
resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, resource.getrlimit(resource.RLIMIT_DATA)[1]))


class Loss:
    """A number that knows what it was computed from, as a PyTorch tensor with its graph does."""

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
        losses.append(loss)  # the leak: the graph is kept as well

print(f"mean loss {sum(loss.value for loss in losses) / len(losses):.4f}")
