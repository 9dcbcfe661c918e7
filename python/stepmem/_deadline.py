"""What the program does when the exporter reports that memory runs out soon: only if it has said that it would.

The exporter's ask comes on the sender's thread. The program's function runs on the training thread, at the end of a step; in a
program of several ranks only once all have agreed on that step.
"""

from __future__ import annotations

import os
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, Optional, Tuple

from ._agreement import Agreement
from ._descriptors import read_file
from ._environment import environment
from ._process import Process
from ._restart import PlannedRestart
from ._settings import world_size
from ._signals import getsignal, raise_if_of_handler
from ._warn import log, printable, warn_once
from ._wire import CHECKPOINT, CheckpointRequest

REQUEST_IDS_MAX = 8
"""Asks that are remembered, so that a repeated one is ignored."""

STATUS_BYTES_MAX = 1 << 14
"""Bytes of `/proc/self/status` that are read, at most."""


class MemoryDeadline:
    """What the exporter reports of memory that runs out soon; given to the function of `stepmem.on_memory_deadline`."""

    __slots__ = ("reason", "seconds_left", "steps_left")

    def __init__(self, fields: "Dict[str, Any]") -> None:
        self.reason: str = str(fields.get("reason", ""))
        """The rank whose memory grows, and how, in words."""
        self.seconds_left: Optional[float] = fields.get("seconds_left")
        """The least time that is left, in seconds; None if unknown."""
        self.steps_left: Optional[float] = fields.get("steps_left")
        """The same in steps."""

    def __repr__(self) -> str:
        return f"MemoryDeadline(seconds_left={self.seconds_left}, steps_left={self.steps_left}, reason={self.reason!r})"


Act = Callable[[MemoryDeadline], Optional[bool]]
"""Returns whether the checkpoint is written; None if that shows later, or never."""


class Deadlines:
    """Waits for asks of the exporter, and calls `act` at a step's end: at most once in the time that an ask names."""

    def __init__(self, process: Process, act: Act) -> None:
        self._process = process
        self._act = act
        self._ask: "Optional[Tuple[CheckpointRequest, float]]" = None
        """The ask to follow, and when it came."""
        self._ids: Deque[str] = deque(maxlen=REQUEST_IDS_MAX)
        self._acted_at: Optional[float] = None
        self._agreement = Agreement(process.step)
        self._is_acting = False
        self._restart = PlannedRestart(process)
        self._acted_time = 0.0
        """Unix time of the last call."""

    def replace(self, act: Act, base: int) -> None:
        """Calls another function from now on. `base` is a step that is the same in all ranks at this moment."""
        self._act, self._agreement.base = act, base

    @property
    def needs_next_step(self) -> bool:
        """Returns whether `at_step_end` has to be called at the next step's end."""
        return self._ask is not None or self._agreement.is_under_way or self._restart.needs_next_step

    def on_ask(self, request: CheckpointRequest) -> None:
        """Takes an ask of the exporter, unless it is a repeated one, or comes too soon. Runs on the sender's thread."""
        rank, now = self._process.identity().rank, time.monotonic()
        if request.id in self._ids or str(request.rank) != str(rank):
            return
        self._ids.append(request.id)
        if self._acted_at is None or now - self._acted_at >= request.every_seconds:
            self._ask = (request, now)
            self._process.follow()

    def at_step_end(self, is_counted: bool) -> None:
        """Calls the function if it is time. Runs on the training thread. `is_counted` is set if the client counts the steps."""
        if self._is_acting:
            return
        self._restart.at_step_end(is_counted)
        now = time.monotonic()
        if self._ask is not None and now - self._ask[1] >= self._ask[0].every_seconds:
            self._ask = None
        wish = None if self._ask is None else self._ask[0].fields()
        try:
            n_ranks = self._agreement.world_size()
            if n_ranks > 1:
                wish = self._agreement.at_step_end(n_ranks, self._process.step, wish, now)
            elif wish is not None and self._has_other_ranks():
                raise ValueError("torch.distributed is not initialized")
        except Exception as error:
            raise_if_of_handler(error)
            self._ask = wish = None
            warn_once("deadline ranks", f"no checkpoint before memory runs out, because the ranks cannot agree on a step: {error!r}")
        if wish is not None:
            self._call(wish, now)

    def _has_other_ranks(self) -> bool:
        return (world_size(environment()) or 1) > 1 or self._process.identity().rank > 0

    def _call(self, fields: "Dict[str, object]", now: float) -> None:
        deadline = MemoryDeadline(fields)
        self._ask, self._acted_at, self._is_acting = None, now, True
        self._acted_time = time.time()
        try:
            log(f"[step {self._process.step}] memory may run out soon: {printable(deadline.reason)}", "info")
            is_written = self._act(deadline)
        finally:
            self._is_acting = False
        if is_written is not None:
            self.finish(is_written)

    def finish(self, is_written: bool) -> None:
        """Ends the program by SystemExit if it is started again then, and the checkpoint is written, by all ranks. Runs on the training thread."""
        try:
            n_ranks = self._agreement.world_size()
            may_end = is_written and self._restart.is_wanted
            if n_ranks > 1:
                may_end = self._agreement.all_may(n_ranks, self._process.identity().rank == 0, may_end)
        except Exception as error:
            raise_if_of_handler(error)
            may_end = False
            warn_once("deadline end", f"no planned restart, because the ranks cannot agree on it: {error!r}")
        if may_end:
            self._restart.end(self._acted_time)


def calling(function: Act, begin: Callable[[], None], end: Callable[[str], None]) -> Act:
    """Returns what calls the program's function as a checkpoint, which counts for peaks and not as a step.

    An error of it is logged: the training is worth more than a checkpoint that it would not have had without the ask.
    """

    def act(deadline: MemoryDeadline) -> bool:
        begin()
        is_written = False
        try:
            function(deadline)
            is_written = True
        except Exception as error:
            raise_if_of_handler(error)
            warn_once(f"deadline error {type(error).__name__}", f"the function of on_memory_deadline failed, and training goes on: {error!r}")
        end(CHECKPOINT)
        return is_written

    return act


def signaling(number: int) -> Act:
    """Returns what sends this process a signal, if the program has a handler for it at that moment."""

    def act(deadline: MemoryDeadline) -> None:
        if has_handler(number):
            os.kill(os.getpid(), number)
        else:
            warn_once("deadline signal", f"memory may run out soon; no signal {number} is sent, because the program has no handler for it")

    return act


def has_handler(number: int) -> bool:
    """Returns whether the program handles a signal, by Python and by the kernel: otherwise it might be ended by it."""
    if not callable(getsignal(number)):
        return False
    for line in (read_file("/proc/self/status", STATUS_BYTES_MAX) or b"").splitlines():
        if line.startswith(b"SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False
