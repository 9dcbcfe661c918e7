"""Takes a memory snapshot, writes its file and reports the result."""

from __future__ import annotations

import os
from typing import Any, Callable, Optional, Set

from ._descriptors import opened
from ._process import Process
from ._signals import raise_if_of_handler
from ._threads import Thread
from ._torch import AllocatorHistory, allocator_snapshot
from ._warn import warn_once
from ._wire import SnapshotResult


class SnapshotFile:
    """A snapshot to take at the end of `step`, and its destination."""

    __slots__ = ("directory", "is_beneath", "label", "path", "reason", "request_id", "step")

    def __init__(self, reason: str, step: Optional[int], directory: Optional[str] = None, label: str = "") -> None:
        self.reason = reason
        """`creep` (the exporter requested it), `oom` or `manual`."""
        self.step = step
        """None if it failed before any step."""
        self.directory = directory
        """If None or empty: `STEPMEM_SNAPSHOT_DIRECTORY`, or else the current directory."""
        self.label = label
        """Part of the file name; may be empty."""
        self.path: Optional[str] = None
        """If None or empty: a file in `directory`, named after run, label, attempt, rank and step."""
        self.request_id: Optional[str] = None
        """The exporter's id of its request; None if the program asked."""
        self.is_beneath = False
        """Requires its real path to be below `directory`, because the exporter requested it."""


class SnapshotWriter:
    """Takes snapshots and writes them. A failure is only a warning."""

    def __init__(self, process: Process, on_result: Callable[[SnapshotResult], None]) -> None:
        """`on_result` is called once for each snapshot, on the thread that writes it."""
        self.history = AllocatorHistory()
        """Shared by all snapshots."""
        self._process = process
        self._on_result = on_result
        self._paths: Set[str] = set()
        """Paths of snapshots that the exporter requested, so that no two have one name."""

    def begin(self, file: SnapshotFile, events_per_step: Optional[int] = None) -> None:
        """Reports that a snapshot which the exporter requested is being recorded."""
        result = SnapshotResult(file.reason, file.step, file.request_id)
        result.has_begun, result.events_per_step = True, events_per_step
        self._on_result(result)

    def write(self, file: SnapshotFile) -> Optional[str]:
        """Takes and writes a snapshot. Returns its path, or None if it failed."""
        try:
            path, state = self._path(file), allocator_snapshot()
        except Exception as error:
            self.fail(file, error)
            return None
        return self._save(file, path, state)

    def write_in_background(self, file: SnapshotFile) -> None:
        """Takes a snapshot now and writes it on a new thread. Raises if it cannot be taken."""
        path, state = self._path(file), allocator_snapshot()
        Thread(lambda: self._save(file, path, state)).start()

    def fail(self, file: SnapshotFile, error: Exception, path: Optional[str] = None) -> None:
        """Warns and reports that the snapshot failed. Raises the error if it is of a signal handler of the program."""
        raise_if_of_handler(error)
        warn_once(f"snapshot {file.reason}", f"snapshot failed: {error!r}")
        result = SnapshotResult(file.reason, file.step, file.request_id)
        result.path = None if path is None else os.path.abspath(path)
        result.error = str(error) or repr(error)
        self._on_result(result)

    def _path(self, file: SnapshotFile) -> str:
        """Returns where to write: `run_rank3_step100.pickle` in the directory, unless a path is given."""
        if file.path:
            return file.path
        identity = self._process.identity()
        run = "".join(each if each.isalnum() or each in "_.-" else "_" for each in identity.run[:64])
        attempt = f"attempt{identity.attempt}" if identity.attempt else ""
        parts = [*filter(None, (run, file.label, attempt)), f"rank{identity.rank}", f"step{file.step}"]
        directory = file.directory or self._process.snapshot_directory() or "."
        path = os.path.join(directory, "_".join(parts) + ".pickle")
        if not file.is_beneath:
            return path
        n = 1
        while path in self._paths or os.path.lexists(path):
            n += 1
            path = os.path.join(directory, "_".join([*parts, str(n)]) + ".pickle")
        if _below(directory, path) is None:
            raise ValueError(f"{path} is not below {directory}")
        self._paths.add(path)
        return path

    def _save(self, file: SnapshotFile, path: str, state: Any) -> Optional[str]:
        result = SnapshotResult(file.reason, file.step, file.request_id)
        try:
            result.n_bytes = _dump(path, state)
            result.path = os.path.abspath(path)
            directory = self._process.snapshot_directory()
            result.relative_path = None if directory is None else _below(directory, path)
        except Exception as error:
            self.fail(file, error, path)
            return None
        self._on_result(result)
        return path


def _below(directory: str, path: str) -> Optional[str]:
    """Returns the real path relative to the real path of `directory`; None if it is not below it."""
    relative = os.path.relpath(os.path.realpath(path), os.path.realpath(directory))
    return None if relative == os.pardir or relative.startswith(os.pardir + os.sep) else relative


def _dump(path: str, state: Any) -> int:
    """Pickles `state` to `path`, completely or not at all. Returns the file size in bytes."""
    import pickle  # importing it takes memory

    unfinished = f"{path}.{os.getpid()}.unfinished"
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    try:
        # Unbuffered, so that each frame of the pickle is one system call, during which training runs.
        with opened(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as file:
            pickle.dump(state, _FullWrites(file), protocol=4)
        n_bytes = os.path.getsize(unfinished)
        os.replace(unfinished, path)
        return n_bytes
    except BaseException:
        if os.path.exists(unfinished):
            os.unlink(unfinished)
        raise


class _FullWrites:
    """Wraps a raw file, whose `write` may write less than it is given."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, data: Any) -> int:
        """Writes all of `data`. Raises OSError, for example if the disk is full."""
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) :]
        return len(data)
