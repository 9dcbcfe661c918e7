"""Writes a snapshot of out-of-memory errors, inside the allocator before the error is raised."""

from __future__ import annotations

from typing import Any, Optional

from ._process import Process
from ._signals import raise_if_of_handler
from ._snapshot_file import SnapshotFile, SnapshotWriter
from ._torch import attach_oom_observer, cuda_torch
from ._warn import warn_once

OOM_SNAPSHOTS_MAX = 3
"""Out-of-memory errors of one process that leave a snapshot, at most."""


class OomWatch:
    """Writes a snapshot of each of the first OOM_SNAPSHOTS_MAX out-of-memory errors after it was armed."""

    def __init__(self, process: Process, writer: SnapshotWriter) -> None:
        self.n_errors = 0
        """Number of out-of-memory errors, including those without a snapshot."""
        self._process = process
        self._writer = writer
        self._directory: Optional[str] = None
        self._max_entries = 0
        self._is_armed = False
        self._is_attached = False

    @property
    def is_waiting(self) -> bool:
        """Set while it is armed but not attached yet, because the program does not use CUDA so far."""
        return self._is_armed and not self._is_attached

    def arm(self, directory: Optional[str], max_entries: int) -> None:
        """Starts watching, as soon as the program uses CUDA. The first call sets the size of the history (0: none)."""
        self._directory = directory
        if not self._is_armed:
            self._is_armed = True
            self._max_entries = max_entries
        self.attach()

    def attach(self) -> None:
        """Attaches the observer if the program uses CUDA. Happens once, because it cannot be detached."""
        if not self.is_waiting or cuda_torch() is None:
            return
        self._is_attached = True
        if self._max_entries > 0:
            self._writer.history.start(self._max_entries)
        attach_oom_observer(self._observe)

    def write(self) -> None:
        """Counts an out-of-memory error and writes its snapshot."""
        self.n_errors += 1
        if self.n_errors <= OOM_SNAPSHOTS_MAX:
            self._writer.write(SnapshotFile("oom", self._process.step, self._directory, label="oom"))

    def _observe(self, *_: Any) -> None:
        """Runs inside the allocator: the memory is still held."""
        try:
            self.write()
        except Exception as error:
            raise_if_of_handler(error)
            warn_once("oom", f"snapshot of an out-of-memory error failed: {error!r}")
