"""Leaks on a simulated device through the real client until it is stopped: one line of `evaluate` keeps 8 MiB a step."""

import time

import stepmem
from torch._recorded import free, malloc

kept = []


def evaluate():
    kept.append(malloc())  # the line that leaks


def train():
    activations = [malloc() for _ in range(5)]
    for each in activations:
        free(each)


for step in range(1, 5001):
    train()
    evaluate()
    stepmem.step_end(step)
    time.sleep(0.01)
time.sleep(3600)
