"""Chooses the steps that are read among those that the optimizer hook counts.

If steps are so short that reading would take more than SHARE_MAX of their time, only one in two, four, eight … steps is read.
The others are counted, and their peaks on a GPU are not lost. Ranks that read the same share read the same steps, at irregular
distances, because memory may have a period. While memory grows, all steps are read: it takes a number of readings to find a leak, which may be fast.
"""

from __future__ import annotations

from typing import List, Tuple

from ._process import SCATTERED, Process

SHARE_MAX = 0.0008
"""Share of the training thread's time that the client may plan to take; with all that cannot be foreseen it is 0.001."""

READ_FACTOR, HOOK_FACTOR = 1.6, 0.25
"""Time that the client takes of a step that is read, and of one that is not, as multiples of the time between the two clock readings around
the reading of memory. They include the call of the hook."""

STEPS_READ_FIRST = 256
"""The first steps of a process, which are all read."""

STEPS_WARM = 128
"""Growth in the first steps is that of a program that starts."""

STEPS_READ_AFTER_GROWTH = 1024
"""Steps that are all read after memory has grown."""

GROWTH_SHARE = 0.001
"""Memory has grown if it exceeds that at the last growth by this share of itself, and of the remaining bytes. Growth that takes longer than
STEPS_READ_AFTER_GROWTH for that leaves a million steps."""

STEPS_PER_READ_MAX = 32
"""One in so many steps is read, at least. With more, the hook's own time in each step would be nearly all of the cost, and remain."""

READ_EVERY_MAX = 0.5
"""Seconds from one step that is read to the next, at most, on average, unless a step takes longer."""

COSTS_MIN = 8
"""Costs that have to be known before the number of steps is chosen again."""

COSTS_KEPT_MAX = 1024
"""Costs that are kept, at most."""

OUTLIER = 4.0
"""A cost counts as at most this many times the median: another process may have run meanwhile."""

MARGIN = 0.8
"""Steps are read more often again if the client would take less than this share of the time that it may take."""


Usage = Tuple[int, int, int]
"""Bytes allocated and reserved, and the remaining ones; a negative number where one is unknown."""


class Growth:
    """Follows a process's memory, and sets the step until which all steps are read because of it."""

    def __init__(self) -> None:
        self._allocated = self._reserved = 0
        self.reads_all_until = STEPS_READ_FIRST
        """The first step that need not be read."""

    def note(self, n_steps: int, usage: Usage) -> None:
        """Notes the memory that was left by a step of a process that has taken `n_steps`."""
        allocated, reserved, remaining = usage
        if has_grown(self._allocated, allocated, remaining) or has_grown(self._reserved, reserved, remaining):
            self._allocated, self._reserved = max(allocated, self._allocated), max(reserved, self._reserved)
            if n_steps > STEPS_WARM:
                self.reads_all_until = n_steps + STEPS_READ_AFTER_GROWTH


class Pacing:
    """Sets `Process.read_below`."""

    def __init__(self, process: Process, reads_every_step: bool) -> None:
        self._process = process
        self._reads_every_step = reads_every_step
        self._costs: List[float] = []
        self._durations: List[float] = []
        self._steps_per_read = 1
        self._growth = Growth()
        self._n_steps = 0
        self._settled_at = 0.0

    def add(self, seconds: float, cost: float, usage: Usage) -> None:
        """Notes the duration of a step and of the reading at its end, in seconds, and the memory that it left."""
        self._growth.note(self._process.n_steps, usage)
        if len(self._costs) < COSTS_KEPT_MAX:
            self._durations.append(seconds)
            self._costs.append(cost)

    def settle(self, now: float) -> None:
        """Chooses the steps that are read from `now` on, on the monotonic clock. Runs on the sender's thread."""
        process = self._process
        n_steps = process.n_steps
        if n_steps < self._n_steps:  # another unit is counted now
            self._n_steps, self._growth = 0, Growth()
        n_new, elapsed = n_steps - self._n_steps, now - self._settled_at
        if n_new <= 0 or elapsed <= 0.0:
            return
        self._n_steps, self._settled_at = n_steps, now
        if self._reads_every_step or n_steps < STEPS_READ_FIRST:
            return
        costs, durations = self._costs, self._durations
        if len(costs) >= COSTS_MIN:
            self._costs, self._durations = [], []
            ceiling = OUTLIER * _median(costs)
            cost = sum(min(each, ceiling) for each in costs) / len(costs)
            self._steps_per_read = steps_per_read(cost, _median(durations), self._steps_per_read)
        while self._steps_per_read > 1 and self._steps_per_read * elapsed > READ_EVERY_MAX * n_new:
            self._steps_per_read //= 2  # steps have become longer
        process.read_below = SCATTERED if n_steps < self._growth.reads_all_until else SCATTERED // self._steps_per_read
        if process.is_followed:  # read last: another thread may have begun to follow the steps meanwhile
            process.read_below = SCATTERED


def has_grown(before: int, now: int, remaining: int) -> bool:
    """Returns whether memory of `now` bytes is noticeably more than the `before` when it had grown last, and `remaining` bytes are free."""
    return now - before > GROWTH_SHARE * max(before, remaining)


def steps_per_read(cost: float, seconds: float, before: int) -> int:
    """Returns of how many steps one is read: a power of two.

    `cost` and `seconds`: of reading and of a step, in seconds. `before`: what it was so far; it falls only by a margin.
    """
    n = before
    while n < STEPS_PER_READ_MAX and _taken(cost, n) > SHARE_MAX * seconds and 2 * n * seconds <= READ_EVERY_MAX:
        n *= 2
    while n > 1 and _taken(cost, n // 2) <= MARGIN * SHARE_MAX * seconds:
        n //= 2
    return n


def _taken(cost: float, n: int) -> float:
    """Returns the seconds that the client takes of a step, if one of `n` is read."""
    return cost * (READ_FACTOR / n + (HOOK_FACTOR if n > 1 else 0.0))


def _median(values: List[float]) -> float:
    return sorted(values)[len(values) // 2]  # importing `statistics` takes 10 ms
