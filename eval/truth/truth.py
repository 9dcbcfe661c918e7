"""What is true of a job: known by construction, or counted by the job itself. Nothing here knows what stepmem says."""

import math
from typing import NamedTuple, Optional, Tuple

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

STRAIGHT, STAIRS, ACCELERATING = "straight", "stairs", "accelerating"

LEVEL, GROWS, OPEN = "level", "grows", "open"
"""What memory does at a step. A cache, a list before its first clearing or a ring that is not half full yet is open: nobody
can know whether it goes on."""


OF_KERNEL = ("data", "cgroup")
"""Limits that the kernel sets: `ulimit -d`, and that of a control group."""


class Phase(NamedTuple):
    """Steps from `first` on, until the next phase, during which memory follows one law."""

    first: int
    state: str = LEVEL
    rate: float = 0.0
    """Bytes a step; on stairs over many of them, where it accelerates at the phase's first step."""
    shape: str = STRAIGHT
    every: int = 1
    """Steps from one stair to the next."""
    gain: float = 0.0
    """By how much the rate rises each step, where it accelerates."""

    def kept(self, n_steps):
        """Bytes that so many steps of this phase add."""
        if self.shape == STAIRS:
            return n_steps // self.every * self.every * self.rate
        return self.rate * n_steps + self.gain * n_steps * (n_steps - 1) / 2


class Truth(NamedTuple):
    """One rank's truth."""

    phases: Tuple[Phase, ...]
    """The first begins at step 0; steps count from 1."""
    base: float
    """Bytes of live memory that the phases add to."""
    transient: float
    """Bytes above live memory that a step of the greatest length needs for a moment."""
    capacity: Optional[float]
    """What the process may take; None where nothing says so."""
    limit: str = "device"
    """Whose limit that is: device, program (a fraction that it set), budget (declared), data (`ulimit -d`), cgroup."""
    last: int = 0
    """The last step that was completed."""
    end: str = "completed"
    """completed, oom, oom_caught, error, signal, cut_off (nothing tells of it)."""
    step_seconds: Optional[float] = None
    """How long a step takes; None where that is not constant."""
    read_every: int = 1
    """Steps from one read to the next."""
    spread: float = 0.0
    """By how much the need of a step varies, downwards from level and transient."""
    died: Optional[int] = None
    """The step that did not fit, of a rank that ran out of memory."""
    noise: float = 0.0
    """Standard deviation of live memory at the ends of steps around the law."""
    holders: Tuple[str, ...] = ()
    """Parts of names, any of which is right for what holds the growth; empty where nothing is to be named."""
    lines: Tuple[int, ...] = ()
    """Lines of the program, any of which is right."""
    signal: str = "allocated"
    """Whose growth the phases are: allocated, reserved, host."""
    resident: Tuple[Tuple[int, float], ...] = ()
    """Steps and the bytes that the process had in memory at them, without those of files, by its own counter."""

    def phase(self, step):
        """The phase that a step belongs to."""
        return max((phase for phase in self.phases if phase.first <= step), key=lambda phase: phase.first)

    def level(self, step):
        """Live memory at the end of a step, without noise."""
        return self.base + self.kept(step)

    def kept(self, step, since=0):
        """Bytes that the phases added from the end of one step to the end of another."""
        return self._sum(step) - self._sum(since)

    def _sum(self, step):
        total = 0.0
        for idx, phase in enumerate(self.phases):
            until = self.phases[idx + 1].first - 1 if idx + 1 < len(self.phases) else math.inf
            total += phase.kept(max(0, min(step, until) - max(0, phase.first - 1)))
        return total

    def deaths(self, at):
        """(first, last) step that may be the first not to fit if the phase of a step went on for ever; None where none ever is."""
        first = self._death(at, self.transient)
        if first is None:
            return None if self.died is None else (self.died, self.died)
        last = self._death(at, self.transient - self.spread)
        return (first, last) if self.died is None else (min(first, self.died), max(last, self.died))

    def _death(self, at, need):
        phase = self.phase(at)
        if self.capacity is None or phase.state != GROWS or phase.rate <= 0:
            return None
        before = self.level(max(0, phase.first - 1)) + need
        if before > self.capacity:
            return max(0, phase.first - 1)
        low, high = 0, 1
        while before + phase.kept(high) <= self.capacity:
            low, high = high, high * 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if before + phase.kept(middle) <= self.capacity else (low, middle)
        return max(0, phase.first - 1) + high
