"""The processor time that searches may take of the training thread: of each second, of the run, and in one piece."""

from __future__ import annotations

import time
from collections import deque
from typing import Deque, Tuple

SLICE_SECONDS = 0.0025
"""Length of a slice of a search, at which the work of one step's end stops, unless it names another one."""

CALL_SLICE_SECONDS = 0.0005
"""Length of a slice at the end of a short call of a program without steps."""

WINDOW_SECONDS = 1.0
SHARE_OF_WINDOW = 0.02
"""All slices within so many seconds take this share of them, at most."""

SHARE_OF_RUN = 0.00095
CREDIT_SECONDS = 0.05
"""All slices of a process take this share of its time, at most, or so much as one search takes. With what is done between them, searches stay
below a thousandth."""

OVERRUN = 4
OVERRUNS_MAX = 2
"""A slice that takes so many times its length, so many times in a row, ends all searches of the process."""

clock = time.thread_time
"""Processor time of this thread, in seconds: a busy machine shortens no slice."""


class Allowance:
    """What the searches of one process have taken."""

    def __init__(self, began_at: float) -> None:
        """`began_at`: the time from which the run counts, on the monotonic clock."""
        self._began_at = began_at
        self.taken = 0.0
        """All seconds so far."""
        self._recent: Deque[Tuple[float, float]] = deque()
        self._n_overruns = 0

    @property
    def is_over(self) -> bool:
        """Returns whether slices took too long, so that no other one may begin."""
        return self._n_overruns >= OVERRUNS_MAX

    def left(self, now: float) -> float:
        """Returns the seconds that slices may take at `now`, on the monotonic clock."""
        while self._recent and self._recent[0][0] <= now - WINDOW_SECONDS:
            self._recent.popleft()
        of_window = SHARE_OF_WINDOW * WINDOW_SECONDS - sum(seconds for _, seconds in self._recent)
        return min(of_window, self.left_of_run(now))

    def left_of_run(self, now: float) -> float:
        """Returns the seconds that slices may take of the run at `now`, however many in one second."""
        return max(CREDIT_SECONDS, SHARE_OF_RUN * (now - self._began_at)) - self.taken

    def add(self, now: float, seconds: float) -> None:
        """Notes `seconds` that were taken beside slices."""
        self.taken += seconds
        self._recent.append((now, seconds))

    def take(self, now: float, seconds: float, slice_seconds: float) -> None:
        """Notes that a slice of `slice_seconds` took `seconds`."""
        self.add(now, seconds)
        if not self.is_over:
            self._n_overruns = self._n_overruns + 1 if seconds > OVERRUN * slice_seconds else 0
