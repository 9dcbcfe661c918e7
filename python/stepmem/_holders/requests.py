"""Serves the exporter's heap-scan requests: one search at a time, each request once."""

from __future__ import annotations

import threading
from collections import deque
from typing import Callable, Deque, Optional, Tuple

from .._process import Process
from .._wire import HeapScanRequest, HoldersResult
from .candidates import Whole
from .search import Outcome, Search

REQUEST_STEPS_MAX = 1000
"""Steps between two heap scans that a request can name, at most."""

REQUEST_IDS_MAX = 64
"""Ids of requests that are remembered, to ignore repeated ones."""


class HeapScanRequests:
    """The searches of this process. Created at the first request. A new one ends a search that has had a result."""

    def __init__(self, process: Process, on_result: Callable[[HoldersResult], None]) -> None:
        """`on_result` is called when a search begins and when it ends."""
        self._process = process
        self._on_result = on_result
        self._ids: Deque[str] = deque(maxlen=REQUEST_IDS_MAX)
        self._lock = threading.Lock()
        """Held by the thread whose step has just ended; another thread's step does not wait for it."""
        self._current: Optional[Tuple[str, Search]] = None
        """The id of the last request, and its search while it is under way."""

    @property
    def is_waiting(self) -> bool:
        """Returns whether `at_step_end` has to be called."""
        return self._current is not None

    def on_request(self, request: HeapScanRequest) -> None:
        """Begins the search that the exporter requests. Ignores repeated requests. Runs on the sender's thread."""
        rank = self._process.identity().rank
        if request.id in self._ids or str(rank if request.rank is None else request.rank) != str(rank):
            return
        self._ids.append(request.id)
        refusal = self._refusal(request)
        if refusal is None:
            self._current = request.id, Search(request.n_steps, Whole(request.bytes_per_step, request.is_on_host))
            self._process.follow()
            self._on_result(HoldersResult(request.id, "began"))
        else:
            result = HoldersResult(request.id, Outcome.FAILED.value)
            result.error = refusal
            self._on_result(result)

    def _refusal(self, request: HeapScanRequest) -> Optional[str]:
        settings = self._process.settings()
        if settings is not None and not settings.names_holders:
            return "STEPMEM_HOLDERS=off"
        if type(request.n_steps) is not int or not 0 < request.n_steps <= REQUEST_STEPS_MAX:
            return f"steps {request.n_steps!r} is not an integer in 1..={REQUEST_STEPS_MAX}"
        is_busy = self._current is not None and self._current[1].outcome is None
        return "another search is under way" if is_busy else None

    def at_step_end(self, step: int) -> None:
        """Does a slice of the search, and reports its results: the first may be that nothing was found."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            current = self._current
            if current is None:
                return
            id_, search = current
            n_before = search.n_results
            search.at_step_end(step)
            if search.n_results > n_before:
                self._on_result(HoldersResult.of_search(id_, search))
            if search.is_over and self._current is current:
                self._current = None
        finally:
            self._lock.release()

    def at_end(self) -> None:
        """Reports the result of a search that the program's end cuts short."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            current, self._current = self._current, None
            if current is None:
                return
            id_, search = current
            n_before = search.n_results
            search.cut_short(self._process.step)
            if search.n_results > n_before:
                self._on_result(HoldersResult.of_search(id_, search))
        finally:
            self._lock.release()
