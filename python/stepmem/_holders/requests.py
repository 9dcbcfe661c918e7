"""Answers the exporter's questions for what holds the memory: one search at a time, each question once."""

from __future__ import annotations

import threading
from collections import deque
from typing import Callable, Deque, Optional, Tuple

from .._process import Process
from .._wire import HoldersAsk, HoldersResult
from .candidates import Whole
from .search import Outcome, Search

ASK_STEPS_MAX = 1000
"""Steps between the two looks that an ask can want, at most."""

ASK_IDS_MAX = 64
"""Ids of asks that are remembered, to ignore repeated ones."""


class HolderAsks:
    """The searches of this process. Created when the exporter first asks. A new ask ends a search that has had a result."""

    def __init__(self, process: Process, on_result: Callable[[HoldersResult], None]) -> None:
        """`on_result` is called when a search begins and when it ends."""
        self._process = process
        self._on_result = on_result
        self._ids: Deque[str] = deque(maxlen=ASK_IDS_MAX)
        self._lock = threading.Lock()
        """Held by the thread whose step has just ended; another thread's step does not wait for it."""
        self._asked: Optional[Tuple[str, Search]] = None
        """The id of the last ask, and its search while it is under way."""

    @property
    def is_waiting(self) -> bool:
        """Whether `at_step_end` has to be called."""
        return self._asked is not None

    def on_ask(self, ask: HoldersAsk) -> None:
        """Begins the search that the exporter asks for. Ignores repeated asks. Runs on the sender's thread."""
        rank = self._process.identity().rank
        if ask.id in self._ids or str(rank if ask.rank is None else ask.rank) != str(rank):
            return
        self._ids.append(ask.id)
        refusal = self._refusal(ask)
        if refusal is None:
            self._asked = ask.id, Search(ask.n_steps, Whole(ask.bytes_per_step, ask.is_on_host))
            self._process.follow()
            self._on_result(HoldersResult(ask.id, "began"))
        else:
            result = HoldersResult(ask.id, Outcome.FAILED.value)
            result.error = refusal
            self._on_result(result)

    def _refusal(self, ask: HoldersAsk) -> Optional[str]:
        settings = self._process.settings()
        if settings is not None and not settings.names_holders:
            return "STEPMEM_HOLDERS=off"
        if type(ask.n_steps) is not int or not 0 < ask.n_steps <= ASK_STEPS_MAX:
            return f"steps {ask.n_steps!r} is not an integer in 1..={ASK_STEPS_MAX}"
        is_busy = self._asked is not None and self._asked[1].outcome is None
        return "another search is under way" if is_busy else None

    def at_step_end(self, step: int) -> None:
        """Does a slice of the search, and reports what it has come to: once nothing, and then perhaps something."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            asked = self._asked
            if asked is None:
                return
            id_, search = asked
            n_before = search.n_results
            search.at_step_end(step)
            if search.n_results > n_before:
                self._on_result(HoldersResult.of_search(id_, search))
            if search.is_over and self._asked is asked:
                self._asked = None
        finally:
            self._lock.release()

    def at_end(self) -> None:
        """Reports what a search has come to that the program's end cuts short."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            asked, self._asked = self._asked, None
            if asked is None:
                return
            id_, search = asked
            n_before = search.n_results
            search.cut_short(self._process.step)
            if search.n_results > n_before:
                self._on_result(HoldersResult.of_search(id_, search))
        finally:
            self._lock.release()
