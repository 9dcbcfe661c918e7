"""The noise of the number of live blocks.

The simulator's allocator counts the blocks of a program that allocates the same tensors in every step. Real programs keep a varying number of tiny ones beside
them, which change the count and no figure in bytes. Two families of five have such noise.
"""
import zlib

import numpy as np
from scipy.signal import lfilter

KINDS = ("history", "routing", "offload", "cycles")

# Layers and experts: of Mixtral 8x7B, of Qwen1.5-MoE-A2.7B, and of two small models.
ROUTED = ((32, 8), (24, 60), (12, 16), (4, 32))
# Of CPython: net new objects that start a collection of the youngest generation, and such collections for one of the middle generation.
OBJECTS_PER_COLLECTION, COLLECTIONS_PER_MIDDLE = 700, 11


def kind_of(family):
    """The kind of noise that a family has by its name, or None."""
    number = zlib.crc32(family.encode())
    return KINDS[number // 8 % len(KINDS)] if number % 5 < 2 else None


def noise_of_counts(kind, n, starts, seed, rank):
    """Blocks of noise at the end of each of a rank's n train steps. `starts`: the first step of each life. The ranks of a job share what `seed` draws.

    history: a list gets an entry in each step and is trimmed to a limit that is drawn anew each time, uniform from 1 to 50 in a GAN that was recorded on a
        real GPU: the count rises by 1 in 81 % of its steps, falls by up to 15, and has a range of 26 in 550 steps. Here the limit's bound is 25 to 100.
    routing: the lists of a mixture of experts, kept until the next step, for each expert that got a token. Layers and experts are those of public
        models; how many experts are idle, and that their share wanders by an autoregression, is assumed.
    offload: copies of activations to the host that have not ended, so that their blocks are freed in the next step. Libraries keep up to 5 activations in
        flight, each of one or a few tensors; that the host is slow for hundreds of steps at a time is assumed.
    cycles: cycles of a few tensors, which Python's collector frees in bunches. As measured in loops of PyTorch 2.15 on CPython 3.11: the youngest generation is
        collected each time that 700 more objects are there (57 to 75 steps with a cycle a step, 380 to 750 with one in ten steps), of which the cycle then in
        use moves on to the middle generation, which is collected every 11th time and in turn leaves one to the oldest. This one was collected once or never
        in 60,000 steps: a floor that rises by a cycle in some 750 steps. Here half of the jobs collect it once in 2,000 to 20,000 steps, the others never.
    """
    figures = np.random.default_rng(seed)
    rng = np.random.default_rng(np.random.SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, rank)))
    series = {"history": _history, "routing": _routing, "offload": _offload, "cycles": _cycles}[kind](figures)
    noise = np.zeros(n, np.int64)
    for start, end in zip(starts, [*starts[1:], n]):
        noise[start:end] = series(rng, end - start)
    return noise


def _history(figures):
    bound, width = int(figures.integers(25, 101)), int(figures.choice([1, 1, 2, 3]))

    def series(rng, n):
        # Its length is the least of its last one plus 1 and the limit.
        limits = rng.integers(1, bound + 1, n) - np.arange(n)
        limits[:1] = 1
        return width * (np.minimum.accumulate(limits) + np.arange(n))
    return series


def _routing(figures):
    layers, experts = ROUTED[int(figures.integers(len(ROUTED)))]
    idle, memory, width = figures.uniform(0.02, 0.3), figures.choice([0.0, 0.9, 0.99, 0.999]), int(figures.choice([1, 2]))

    def series(rng, n):
        load = lfilter([np.sqrt(1 - memory * memory)], [1, -memory], rng.normal(0, 0.3, n))
        return width * rng.binomial(layers * experts, 1 / (1 + idle / (1 - idle) * np.exp(load)))
    return series


def _offload(figures):
    in_flight, dwell = int(figures.integers(2, 6) * figures.integers(1, 5)), figures.uniform(100, 2000)

    def series(rng, n):
        is_slow = np.cumsum(rng.random(n) < 1 / dwell) % 2 == 1
        return rng.binomial(in_flight, np.where(is_slow, 0.6, 0.05))
    return series


def _cycles(figures):
    every, tensors = int(figures.choice([1, 1, 4, 10])), int(figures.integers(1, 5))
    period = OBJECTS_PER_COLLECTION / (np.exp(figures.uniform(np.log(1), np.log(30))) + (tensors + 1) / every)
    full = int(figures.integers(2000, 20_000)) if figures.random() < .5 else None

    def until_full(rng, n):
        step = np.arange(n)
        made = tensors * (step // every)
        times = np.cumsum(period * rng.uniform(0.9, 1.1, int(n / period * 1.2) + 2)).astype(np.int64)
        collections = np.searchsorted(times, step, "right")
        last = np.concatenate([[0], times])[collections]
        # Each collection leaves the cycle that is in use to the next generation.
        middle, old = collections % COLLECTIONS_PER_MIDDLE, collections // COLLECTIONS_PER_MIDDLE
        return made - made[last] + tensors * (middle + old)

    def series(rng, n):
        return np.concatenate([until_full(rng, min(full or n, n - start)) for start in range(0, n, full or n)])
    return series
