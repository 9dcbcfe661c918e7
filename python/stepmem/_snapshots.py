"""Plans memory snapshots and follows each plan to its end."""

from __future__ import annotations

import gc
from collections import deque
from typing import Callable, Deque, List, Optional

from ._oom import OomWatch
from ._process import Process
from ._readers import HostReader
from ._signals import raise_if_of_handler
from ._snapshot_file import SnapshotFile, SnapshotWriter
from ._torch import count_events, empty_cache, mark_step, require_cuda
from ._warn import log, warn_once
from ._wire import UNKNOWN, SnapshotRequest, SnapshotResult

MAX_ENTRIES = 100_000
"""Allocations and frees in a history, by default. Each takes a few KiB."""

REQUEST_STEPS_MAX = 1000
"""Steps that one request can record, at most."""

REQUESTS_MAX = 5
"""Snapshots that a process writes because the exporter requests them, at most."""

ENTRY_BYTES = 4096
"""Host memory of one allocation or free in a history, with its stack, while a snapshot of it is taken."""

MEMORY_SHARE = 4
"""A history may take one part in so many of the host memory that is left."""

ENTRIES_MIN = 1000
"""Entries below which a history is not begun."""

STEPS_MIN = 6
"""Steps that a recording must hold to show which memory leaks."""

NO_DIRECTORY = "no directory: set STEPMEM_SNAPSHOT_DIRECTORY in the environment of the training process"

REQUEST_IDS_MAX = 64
"""Ids of requests that are remembered, to ignore repeated ones."""

PLANS_MAX = 8
"""Plans that are waiting or recording, at most."""


class Plan:
    """One planned snapshot: waits for its first step, records allocations through its last, then writes the file."""

    def __init__(self, writer: SnapshotWriter, first: Optional[int], n_steps: int, directory: Optional[str]) -> None:
        """`first` is None for the next step. `directory` is that of SnapshotFile."""
        self.max_entries = MAX_ENTRIES
        self.is_pair = False
        """Makes it write a snapshot before the first step, too."""
        self.is_clean = False
        """Makes it collect garbage and empty the allocator's cache before that one."""
        self.is_full = False
        """Makes it record C++ frames and the stacks of frees."""
        self.request_id: Optional[str] = None
        """The exporter's id of its request; None if the program asked."""
        self.is_over = False
        """Set once the snapshot was written or failed, or its steps have passed."""
        self.reason = "manual"
        """`creep` if the exporter requests it because memory grows."""
        self._writer = writer
        self._first = first
        self._n_steps = n_steps
        self._directory = directory
        self._is_recording = False
        self._n_events = 0
        """Allocations and frees of this process when the recording began."""

    def advance(self, step: int) -> None:
        """Starts or ends the recording if it is due at the end of `step`. A failure is only a warning."""
        if self._first is None:
            self._first = step + 1
        last = self._first + self._n_steps - 1
        if self.is_over:
            return
        if step >= last:
            self.is_over = True
            if self._is_recording:
                self._finish(step)
            else:
                warn_once("missed", f"steps {self._first} to {last} were not recorded: they had already ended")
        elif step >= self._first - 1 and not self._is_recording:
            self._start(step)
        elif self._is_recording and self.request_id is not None:
            self._follow(step)

    def _start(self, step: int) -> None:
        try:
            if self.is_pair and self.is_clean:
                _clean(step)
            self._writer.history.start(self.max_entries, self.is_full)
            self._is_recording = True
            if self.request_id is not None:
                self._n_events = count_events()
                self._mark(step + 1)
                self._writer.begin(self._file(step))
            if self.is_pair:
                self._writer.write(self._file(step, "before"))
        except Exception as error:
            self._fail(step, error)

    def _follow(self, step: int) -> None:
        """Marks the next step and, after the first, shortens the recording to what the ring holds."""
        try:
            self._mark(step + 1)
            if step == self._first:
                n_events = max(1, count_events() - self._n_events)
                self._writer.begin(self._file(step), n_events)
                n_steps = self.max_entries // n_events
                if n_steps < min(STEPS_MIN, self._n_steps):
                    mib = STEPS_MIN * n_events * ENTRY_BYTES >> 20
                    raise MemoryError(f"a step has {n_events} allocations and frees; {STEPS_MIN} steps of them take {mib} MiB")
                self._n_steps = min(self._n_steps, n_steps)
        except Exception as error:
            try:
                self._fail(step, error)
            finally:
                self._stop()

    def _mark(self, step: Optional[int]) -> None:
        if not self._writer.history.is_programs:
            mark_step(step)

    def _stop(self) -> None:
        self._writer.history.stop(self.max_entries, self.is_full)
        if self.request_id is not None:
            self._mark(None)

    def _finish(self, step: int) -> None:
        try:
            if self.request_id is None:
                self._writer.write(self._file(step, "after" if self.is_pair else ""))
            else:
                # Training must not wait for pickling and the disk.
                self._writer.write_in_background(self._file(step, self.reason))
        except Exception as error:
            self._fail(step, error)
        finally:
            self._stop()

    def _fail(self, step: int, error: Exception) -> None:
        """Warns and reports that it failed. Raises the error if it is of a signal handler of the program."""
        self.is_over = True
        raise_if_of_handler(error)
        if self.request_id is None:
            warn_once("snapshot", f"snapshot of step {step} failed: {error!r}")
        else:
            self._writer.fail(self._file(step), error)

    def _file(self, step: int, label: str = "") -> SnapshotFile:
        file = SnapshotFile(self.reason, step, self._directory, label)
        file.request_id = self.request_id
        file.is_beneath = self.request_id is not None
        return file


class Snapshots:
    """All snapshots of this process. Created when the first one is requested."""

    def __init__(self, process: Process, on_result: Callable[[SnapshotResult], None]) -> None:
        """`on_result` is called once for each snapshot, with its path or its error."""
        self._process = process
        self._plans: List[Plan] = []
        self._request_ids: Deque[str] = deque(maxlen=REQUEST_IDS_MAX)
        self._n_requests = 0
        """Requests for which a snapshot was planned."""
        self.is_waiting = False
        """Set while `at_step_end` has to be called."""
        self.writer = SnapshotWriter(process, on_result)
        self.oom = OomWatch(process, self.writer)

    def watch_oom(self) -> None:
        """Writes a snapshot of out-of-memory errors from now on, with as long a history as the host has memory for."""
        try:
            n_entries = _entries(MAX_ENTRIES)
        except MemoryError as error:
            raise_if_of_handler(error)
            n_entries = 0
        self.arm_oom(None, n_entries)

    def arm_oom(self, directory: Optional[str], max_entries: int) -> None:
        """Writes a snapshot of out-of-memory errors from now on, as `OomWatch.arm`."""
        self.oom.arm(directory, max_entries)
        self._update()

    def add(self, plan: Plan) -> None:
        """Adds a plan; raises ValueError if there are PLANS_MAX already."""
        if len(self._plans) >= PLANS_MAX:
            raise ValueError(f"there are {PLANS_MAX} planned snapshots already")
        self._plans.append(plan)
        self.is_waiting = True
        self._process.follow()

    @property
    def has_plans(self) -> bool:
        """Returns whether `at_step_end` has to be called for each step."""
        return bool(self._plans)

    def at_step_end(self, step: int) -> None:
        """Advances all plans at the end of `step`."""
        self.is_waiting = False  # first: another thread may add a plan meanwhile
        try:
            self.oom.attach()
            for plan in list(self._plans):
                plan.advance(step)
                if plan.is_over:
                    self._plans.remove(plan)
        finally:
            self._update()

    def _update(self) -> None:
        if self._plans or self.oom.is_waiting:
            self.is_waiting = True

    def on_request(self, request: SnapshotRequest) -> None:
        """Plans a snapshot that the exporter requests. Ignores repeated requests. Runs on the sender's thread."""
        rank = self._process.identity().rank
        if request.id in self._request_ids or str(rank if request.rank is None else request.rank) != str(rank):
            return
        self._request_ids.append(request.id)
        try:
            self.add(self._plan(request))
            self._n_requests += 1
        except Exception as error:
            file = SnapshotFile(request.reason, None)
            file.request_id = request.id
            self.writer.fail(file, error)

    def _plan(self, request: SnapshotRequest) -> Plan:
        n_steps = request.n_steps
        if not isinstance(n_steps, int) or not 0 < n_steps <= REQUEST_STEPS_MAX:
            raise ValueError(f"steps {n_steps!r} is not an integer in 1..={REQUEST_STEPS_MAX}")
        require_cuda()
        directory = self._process.snapshot_directory()
        if directory is None:
            raise ValueError(NO_DIRECTORY)
        if self._n_requests >= REQUESTS_MAX:
            raise ValueError(f"this process has written {REQUESTS_MAX} snapshots on request already")
        plan = Plan(self.writer, None, n_steps, directory)
        plan.request_id, plan.reason = request.id, request.reason
        plan.max_entries = _entries(request.max_entries or MAX_ENTRIES)
        return plan


def _clean(step: int) -> None:
    """Frees what only a cycle or the allocator's cache holds, so that a pair of snapshots differs by what the steps keep."""
    n_objects = gc.collect()
    empty_cache()
    log(f"[step {step}] before the first of two snapshots: collected {n_objects} objects, emptied PyTorch's cache", "info")


def _entries(wanted: int) -> int:
    """Returns how many entries a history may have. Raises MemoryError if the host has memory for too few."""
    reader = HostReader()
    free = reader.capacity().free
    reader.close()
    if free == UNKNOWN:
        return wanted
    fits = free // MEMORY_SHARE // ENTRY_BYTES
    if fits < ENTRIES_MIN:
        raise MemoryError(f"{free >> 20} MiB of host memory remain, too little for a history of allocations")
    return min(wanted, fits)
