"""Serves the exporter's heap-scan requests: one search at a time, each request once. Where no object explains growth of the host's
memory, a search for the line that allocates it may follow."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Callable, Deque, Optional, Tuple

from .._malloc import Malloc
from .._process import CALLS, Process
from .._warn import warn_once
from .._wire import HeapScanRequest, HoldersResult
from .allowance import CALL_SLICE_SECONDS, OVERRUN, SLICE_SECONDS, Allowance, clock
from .candidates import Whole
from .search import HOLDERS_MAX, SCAN_SECONDS, SCAN_SECONDS_MAX, Outcome, Search
from .tracing import UNSAFE, is_safe

if TYPE_CHECKING:
    from .lines import LineSearch

REQUEST_STEPS_MAX = 1000
"""Steps between two heap scans that a request can name, at most."""

REQUEST_IDS_MAX = 64
"""Ids of requests that are remembered, to ignore repeated ones."""

SCAN_SHARE = 0.25
"""Part of the processor time that searches may take now, which one scan takes at most."""

WAIT_SECONDS = 0.1
"""Where all time is taken, it is asked for again after so many seconds."""

OFF = f"slices of a search took more than {OVERRUN * SLICE_SECONDS * 1e3:g} ms of processor time, so this process is not searched again"

PROBES_MAX = 3
"""Windows that a process opens because its memory grows, at most: another one follows only after a probe that was too slow."""


class HeapScanRequests:
    """The searches of this process. Created at the first request. A new one ends a search that has had a result."""

    def __init__(self, process: Process, on_result: Callable[[HoldersResult], None], malloc: Malloc, held: Callable[[bool], Optional[int]]) -> None:
        """`on_result` is called when a search begins and when it ends. `malloc` has the readings of the allocator; `held` returns the
        bytes that the process has, on the host or on its device."""
        self._process = process
        self._held = held
        self._malloc = malloc
        self._on_result = on_result
        self._ids: Deque[str] = deque(maxlen=REQUEST_IDS_MAX)
        self._allowance = Allowance(process.began_at)
        self._waits_until = 0.0
        """Time before which no slice begins, on the monotonic clock."""
        self._lock = threading.Lock()
        """Held by the thread whose step has just ended; another thread's step does not wait for it."""
        self._current: Optional[Tuple[str, Search]] = None
        """The id of the last request, and its search while it is under way."""
        self._lines: Optional[LineSearch] = None
        """The last search for lines, which goes on while it has no outcome."""
        self._is_wanted = False
        """Set if an operator wants it, even if an object explains the growth."""
        self._n_probes = 0

    @property
    def is_waiting(self) -> bool:
        """Returns whether `at_step_end` has to be called."""
        return self._current is not None

    @property
    def needs_next_step(self) -> bool:
        """Returns whether the end of the next step is needed, even if it is one that would not be read."""
        current = self._current
        if current is None:
            return False
        return self._may_search(current[1], self._process.step + 1) or (self._lines is not None and self._lines.outcome is None)

    def _may_search(self, search: Search, step: int) -> bool:
        """Returns whether a slice is due at a step's end, and whether there is time for it."""
        if not search.is_due(step):
            return False
        now = time.monotonic()
        if now < self._waits_until:
            return False
        if self._allowance.left(now) >= search.next_seconds + SLICE_SECONDS:
            return True
        self._waits_until = now + WAIT_SECONDS
        return False

    def on_request(self, request: HeapScanRequest) -> None:
        """Begins the search that the exporter requests. Ignores repeated requests. Runs on the sender's thread."""
        rank = self._process.identity().rank
        if request.id in self._ids or str(rank if request.rank is None else request.rank) != str(rank):
            return
        self._ids.append(request.id)
        refusal = self._refusal(request)
        if refusal is None:
            self._plan_lines(request)
            self._begin(request)
            self._on_result(HoldersResult(request.id, "began"))
        else:
            result = HoldersResult(request.id, Outcome.FAILED.value)
            result.error = refusal
            self._on_result(result)

    def _begin(self, request: HeapScanRequest) -> None:
        seconds = min(SCAN_SECONDS_MAX, max(SCAN_SECONDS, SCAN_SHARE * self._allowance.left_of_run(time.monotonic())))
        whole = Whole(request.bytes_per_step, request.is_on_host)
        self._current = request.id, Search(request.n_steps, whole, seconds, self._malloc.rates, lambda: self._held(whole.is_on_host))
        self._process.follow()

    def _refusal(self, request: HeapScanRequest) -> Optional[str]:
        settings = self._process.settings()
        if settings is not None and not settings.names_holders:
            return "STEPMEM_HOLDERS=off"
        if type(request.n_steps) is not int or not 0 < request.n_steps <= REQUEST_STEPS_MAX:
            return f"steps {request.n_steps!r} is not an integer in 1..={REQUEST_STEPS_MAX}"
        if request.wants_lines and settings is not None and settings.traces_lines is False:
            return "STEPMEM_TRACEMALLOC=off"
        if self._allowance.is_over:
            return OFF
        is_searching = self._current is not None and self._current[1].outcome is None and not request.wants_lines
        return "another search is under way" if is_searching or self._is_tracing() else None

    def _plan_lines(self, request: HeapScanRequest) -> None:
        """Plans a search for lines if the settings or an operator want one. A process has one window, if its probe is not too slow."""
        settings, lines = self._process.settings(), self._lines
        self._is_wanted = request.wants_lines
        is_automatic = settings is not None and settings.traces_lines is True and request.is_on_host
        if lines is not None and lines.has_begun:
            self._n_probes += 1
            is_automatic &= lines.outcome == "slow" and self._n_probes < PROBES_MAX
        if self._is_wanted or is_automatic:
            from .lines import LineSearch  # importing it takes memory

            self._lines = LineSearch(request.n_steps, request.bytes_per_step, self._malloc.rates)

    def _is_tracing(self) -> bool:
        return self._lines is not None and self._lines.outcome is None and self._lines.has_begun

    def guard(self) -> None:
        """Ends a window of a search for lines that is beyond its bounds. Runs on the sender's thread."""
        lines = self._lines
        if lines is not None and lines.is_over_bound() and self._lock.acquire(blocking=False):  # else it is a step's end, which sees to it
            try:
                lines.guard()
            finally:
                self._lock.release()

    def in_child(self) -> None:
        """Stops tracing in a forked child."""
        if self._lines is not None:
            self._lines.abandon()

    def at_step_end(self, step: int) -> None:
        """Does a slice of the search, and reports its results: the first may be that nothing was found."""
        current = self._current
        if current is None or self._lines is None and not (current[1].is_over or self._may_search(current[1], step)):
            return
        if not self._lock.acquire(blocking=False):
            return
        began, taken = clock(), self._allowance.taken
        try:
            current = self._current
            if current is None:
                return
            id_, search = current
            n_before = search.n_results
            if self._lines is not None:
                self._lines.step_ends()
            self._search(search, step)
            has_lines = self._search_lines(search, step)
            if search.n_results > n_before or has_lines:
                self._on_result(self._result(id_, search))
            if search.is_over and not self._is_searching_lines(search) and self._current is current:
                self._current = None
        finally:
            self._allowance.add(time.monotonic(), max(0.0, clock() - began - (self._allowance.taken - taken)))
            self._lock.release()

    def _search(self, search: Search, step: int) -> None:
        """Does one slice of a search, if one is due and there is time for it."""
        if not self._may_search(search, step):
            return
        process = self._process
        search.slice_by(CALL_SLICE_SECONDS if process.unit == CALLS and process.has_short_calls else SLICE_SECONDS)
        limit, began = max(search.next_seconds, SLICE_SECONDS), clock()
        try:
            search.at_step_end(step)
        finally:
            self._allowance.take(time.monotonic(), clock() - began, limit)
        if self._allowance.is_over:
            search.fail(OFF)
            warn_once("slices", OFF)

    def at_end(self) -> None:
        """Reports the result of a search that the program's end cuts short."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            current, self._current = self._current, None
            if current is None:
                return
            id_, search = current
            if self._lines is not None:
                self._lines.abandon()
            n_before = search.n_results
            search.cut_short(self._process.step)
            if search.n_results > n_before:
                self._on_result(self._result(id_, search))
        finally:
            self._lock.release()

    def _is_searching_lines(self, search: Search) -> bool:
        """Returns whether a search for lines is to go on: one without an outcome, where no object explains the growth."""
        if self._lines is None or self._lines.outcome is not None or search.outcome is None:
            return False
        return self._lines.has_begun or self._is_wanted or not search.is_explained

    def _search_lines(self, search: Search, step: int) -> bool:
        """Does the part of a search for lines that is due at a step's end. Returns whether it has just had its outcome."""
        lines = self._lines
        if lines is None or not self._is_searching_lines(search):
            return False
        lines.at_step_end(step)
        return lines.outcome is not None

    def _result(self, id_: str, search: Search) -> HoldersResult:
        """Returns the result so far, with that of the last search for lines where it adds something."""
        result, lines = HoldersResult.of_search(id_, search), self._lines
        if lines is None and not search.is_explained and search.is_on_host and not is_safe():
            result.lines = {"outcome": UNSAFE}  # or the advice would suggest that search
        if lines is None or lines.outcome in (None, "cut") or search.is_explained and not self._is_wanted:
            return result
        result.lines = lines.fields()
        result.holders = (lines.take_holders() + result.holders)[:HOLDERS_MAX]
        if result.holders:
            result.outcome = Outcome.NAMED.value
        elif lines.outcome == "named":  # reported before
            result.lines = None
        return result
