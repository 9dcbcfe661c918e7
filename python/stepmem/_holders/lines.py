"""Finds the lines of Python that allocate ever more host memory: one window of tracemalloc, with one frame an allocation.

A window begins, is read and ends at the ends of steps. It counts what was allocated in it and is still there, by line, in two
halves: what grows in both is a leak, or memory that turns over slowly.
"""

from __future__ import annotations

import os
import time
import tracemalloc
from typing import Any, Callable, Dict, Generator, Iterator, List, NamedTuple, Optional, Tuple

from .._malloc import private_bytes
from .._wire import SCAN_STEPS_DEFAULT
from .allowance import SLICE_SECONDS
from .allowance import clock as processor_time
from .candidates import Holder
from .criteria import DATA_BYTES_MIN, EXPLAINED, HALF_STEPS_MIN, SHARE_OF_RATE, TURNOVER
from .heap import raise_if_programs
from .names import Name, Spot
from .search import HOLDERS_MAX
from .tracing import UNSAFE, is_safe

WINDOW_SECONDS_MAX = 60.0
"""Length of a window, at most."""

TABLES_BYTES_MAX = 2 << 20
"""Memory of tracemalloc's tables at which a window ends: of 40,000 allocations, which one call reads in 10 ms."""

TABLES_SHARES = (0.4, 0.8)
"""Shares of it at which a half of a window ends early, if there are steps enough."""

SLOWER_MAX = 1.05
"""A traced step that takes longer than so many times the median of BASELINE_STEPS ends the window."""

TRACES_PER_LOOK = 256
"""Allocations after which a slice looks at the clock."""

BASELINE_STEPS = 32

ALLOCATING_LINE = "allocating line"
"""Kind of holder: not an object, but the line that allocates what is kept."""

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep

ABSENT = object()

Line = Tuple[str, int]

clock = time.perf_counter


def refusal() -> Optional[str]:
    """Returns the outcome of a window that must not be opened in this process; None if it may be."""
    if not is_safe():
        return UNSAFE
    return "own" if tracemalloc.is_tracing() else None


def sizes_by_line() -> "Generator[None, None, Dict[Line, int]]":
    """Returns the bytes that are traced now, by the line that allocated them, without the client's own. Yields where a slice ends."""
    sizes: Dict[Tuple[Line, ...], int] = {}
    traces: Any = tracemalloc.take_snapshot().traces
    until = processor_time() + SLICE_SECONDS
    for idx, (_domain, n_bytes, frames, _n_frames) in enumerate(traces._traces):  # a Trace for each would take ten times as long
        sizes[frames] = sizes.get(frames, 0) + n_bytes
        if idx % TRACES_PER_LOOK == 0 and processor_time() > until:
            yield
            until = processor_time() + SLICE_SECONDS
    return {frames[0]: n_bytes for frames, n_bytes in sizes.items() if not frames[0][0].startswith((PACKAGE, "<frozen"))}


class Mark(NamedTuple):
    """Memory by line at the middle of a window."""

    step: int
    sizes: Dict[Line, int]


class LineSearch:
    """One window. `at_step_end` is called at the end of every step until there is an outcome."""

    def __init__(
        self,
        n_steps: int,
        bytes_per_step: Optional[float],
        malloc_rates: Callable[[], Optional[Tuple[float, float]]] = lambda: None,
    ) -> None:
        """`n_steps` are in each half, at least, if the growth comes in level shifts: they are then more than SCAN_STEPS_DEFAULT.

        `malloc_rates` is that of a `Malloc`.
        """
        self.outcome: Optional[str] = refusal()
        self.holders: List[Holder] = []
        self.has_begun = False
        """Set once tracing was on."""
        self._n_steps = n_steps
        self._whole = bytes_per_step
        self._malloc_rates = malloc_rates
        self._private = 0
        self._figures: Dict[str, Optional[float]] = {}
        self._pause = 0.0
        self._durations: List[float] = []
        self._ended_at = 0.0
        self._left_at: Optional[float] = None
        """Time at which the last step's end was left."""
        self._first_step = self._half_steps = 0
        self._began_at = 0.0
        self._is_tracing = self._is_probe = False
        self._has_concluded = False
        """Set once all was read that is needed, and tracing has ended."""
        self._is_over_bound = False
        """Set if the guard ended the window within a step."""
        self._programs_start: Any = None
        """`tracemalloc.start`, which another function stands for while the window is open."""
        self._middle: Optional[Mark] = None
        self._reading: Optional[Iterator[None]] = None
        """What is under way at a half's end, over several steps' ends."""

    def fields(self) -> Dict[str, object]:
        """Returns the outcome and what is known of it, as JSON fields."""
        pause = {"pause_seconds": round(self._pause, 6)} if self.has_begun else {}
        return {"outcome": self.outcome, **self._figures, **pause}

    def step_ends(self) -> None:
        """Notes the time of a step's end, before a slice of the search for holders."""
        self._ended_at = clock()

    def at_step_end(self, step: int) -> None:
        """Does what is due between two steps."""
        now = clock()
        try:
            if self._left_at is not None:
                self._advance(step, self._ended_at - self._left_at)
        except Exception as error:
            self._end("failed")
            raise_if_programs(error)
        self._left_at = clock()
        if self.has_begun:
            self._pause = max(self._pause, self._left_at - now)

    def take_holders(self) -> List[Holder]:
        """Returns the lines that were found, once."""
        holders, self.holders = self.holders, []
        return holders

    def guard(self) -> None:
        """Ends a window whose step takes too long or allocates too much. Runs on the sender's thread, between two steps' ends."""
        if self.is_over_bound():
            self._is_over_bound = True
            self._stop()

    def abandon(self) -> None:
        """Ends the window without an outcome: in a forked child, or at the program's end."""
        self._stop()
        self.outcome = self.outcome or "cut"

    def is_over_bound(self) -> bool:
        """Returns whether tracing has gone on for too long, or takes too much memory."""
        if not self._is_tracing:
            return False
        return clock() - self._began_at > WINDOW_SECONDS_MAX or tracemalloc.get_tracemalloc_memory() > TABLES_BYTES_MAX

    def _advance(self, step: int, seconds: float) -> None:
        """Goes on after a step that took so many seconds."""
        if self.has_begun:
            outcome = self._broken_off(seconds)
            if outcome is not None:
                self._end(outcome)
                return
            middle = self._middle
            if self._reading is None and self._is_half_over(step, middle):
                self._reading = self._read_middle(step) if middle is None else self._conclude(step, middle)
            if self._reading is not None and next(self._reading, ABSENT) is ABSENT:
                self._reading = None
            return
        self._durations.append(seconds)
        if len(self._durations) == 1:
            self._first_step = step
        elif len(self._durations) == BASELINE_STEPS:
            self._begin(step)

    def _is_half_over(self, step: int, middle: Optional[Mark]) -> bool:
        n_steps = step - (self._first_step if middle is None else middle.step)
        if n_steps >= self._half_steps:
            return True
        is_steady = self._n_steps <= SCAN_STEPS_DEFAULT  # else a half needs a whole level shift
        share = TABLES_SHARES[middle is not None]
        return is_steady and n_steps >= HALF_STEPS_MIN and tracemalloc.get_tracemalloc_memory() >= share * TABLES_BYTES_MAX

    def _read_middle(self, step: int) -> "Generator[None, None, None]":
        sizes = yield from sizes_by_line()
        self._middle = Mark(step, sizes)

    def _broken_off(self, seconds: float) -> Optional[str]:
        """Returns the outcome of a window that cannot go on; None if it can."""
        if self._is_over_bound:
            return "bound"
        if self._has_concluded:
            return None
        if not self._is_tracing or not tracemalloc.is_tracing():
            return "own"  # the program has started or stopped tracing
        if self._is_probe:
            self._is_probe = False
            median = sorted(self._durations)[BASELINE_STEPS // 2]
            self._figures["slowdown_ratio"] = round(seconds / median, 4) if median > 0 else None
            if seconds > SLOWER_MAX * median:
                return "slow"
        return "bound" if self.is_over_bound() else None

    def _begin(self, step: int) -> None:
        """Begins to trace, unless the window would be too short for the growth."""
        step_seconds = sum(self._durations[1:]) / max(1, step - self._first_step)
        steps_max = WINDOW_SECONDS_MAX / 2 / step_seconds if step_seconds > 0 else float("inf")
        is_steady = self._n_steps <= SCAN_STEPS_DEFAULT
        self._half_steps = int(min(self._n_steps, steps_max)) if is_steady else self._n_steps
        if self._half_steps < HALF_STEPS_MIN or self._half_steps > steps_max:
            self._end("apart")
        elif tracemalloc.is_tracing():
            self._end("own")
        else:
            self._private = private_bytes()
            self.has_begun = self._is_tracing = self._is_probe = True
            self._first_step, self._began_at = step, clock()
            tracemalloc.start(1)
            self._programs_start, tracemalloc.start = tracemalloc.start, self._on_programs_start

    def _on_programs_start(self, *arguments: Any, **named: Any) -> Any:
        """Is `tracemalloc.start` while the window is open: leaves tracing to the program."""
        start = self._programs_start
        self._stop()
        return start(*arguments, **named)

    def _stop(self) -> None:
        if not self._is_tracing:
            return
        self._is_tracing = False
        tracemalloc.start = self._programs_start
        tracemalloc.stop()

    def _end(self, outcome: str) -> None:
        self._stop()
        self._middle = self._reading = None
        self.outcome = outcome

    def _conclude(self, step: int, middle: Mark) -> "Generator[None, None, None]":
        private, reading = private_bytes() - self._private, sizes_by_line()
        is_over = False
        while not is_over:
            try:
                next(reading)
            except StopIteration as stop:
                sizes: Dict[Line, int] = stop.value
                is_over = True
            self._has_concluded = True
            self._stop()
            if not is_over:
                yield
        n_steps = step - self._first_step
        self._end("native")
        used, free = (None if rate is None else max(0.0, rate) for rate in self._malloc_rates() or (None, None))
        self._figures.update(steps=n_steps, malloc_used_bytes_per_step=used, malloc_free_bytes_per_step=free)
        gained = max(0, private) / n_steps
        # Early figures of the exporter are rough, and so is what the process gained in a few steps.
        wholes = [gained] if self._whole is None else [gained, self._whole]
        growing = self._growing(sizes, middle, step, TURNOVER * wholes[-1])
        least = EXPLAINED * max(min(wholes), DATA_BYTES_MIN)
        self.holders = [_holder(line, rate, sizes[line]) for rate, line in growing if rate >= least][:HOLDERS_MAX]
        if self.holders:
            self.outcome = "named"
        elif gained <= max(DATA_BYTES_MIN, EXPLAINED * wholes[-1]):
            self.outcome = "level"
        else:
            shares = {"spread": sum(rate for rate, _ in growing), "arenas": free or 0.0}
            shares["native"] = gained - sum(shares.values())
            self.outcome = max(shares, key=lambda outcome: shares[outcome])

    def _growing(self, sizes: Dict[Line, int], middle: Mark, step: int, rate_max: float) -> List[Tuple[float, Line]]:
        """Returns the lines that grew in both halves, but not too much, and their bytes a step, the fastest first."""
        first_steps, second_steps = middle.step - self._first_step, step - middle.step
        growing = []
        for line, n_bytes in sizes.items():
            before = middle.sizes.get(line, 0)
            first, second = before / first_steps, (n_bytes - before) / second_steps
            rate = min(second, n_bytes / (first_steps + second_steps))
            if 0 < SHARE_OF_RATE * first <= second and rate <= rate_max:
                growing.append((rate, line))
        return sorted(growing, reverse=True)


def _holder(line: Line, rate: float, n_bytes: int) -> Holder:
    name = Name("what one line allocates", ALLOCATING_LINE, Spot(line[0], None, line[1]))
    return Holder(name, 0, n_bytes, 0.0, rate)
