"""Writes the event files of this folder: a device that leaks 2.4 GiB an hour next to one that does not, read every 30 s."""
import random

import numpy
from tensorboard.summary import Writer
from torch.utils.tensorboard import SummaryWriter

START = 1795158000.0
SECONDS_EACH = 30
STEPS = 300


def gib(step, leaks):
    return 20.0 + (0.02 * step if leaks else 0.0) + random.random() / 64


random.seed(7)
with SummaryWriter("torch") as writer:
    for step in range(STEPS):
        time = START + SECONDS_EACH * step
        writer.add_scalar("train/loss", 1.0 / (1 + step), step, walltime=time)
        writer.add_scalar("gpu0/memory_allocated_gib", gib(step, True), step, walltime=time)
        writer.add_scalar("gpu1/memory_allocated_gib", gib(step, False), step, walltime=time)
        if step % 100 == 0:
            writer.add_histogram("weights", numpy.zeros(4), step, walltime=time)
writer = Writer("tensors")
for step in range(STEPS):
    writer.add_scalar("gpu0/memory_allocated_bytes", gib(step, True) * 2**30, step, wall_time=START + SECONDS_EACH * step)
writer.close()
