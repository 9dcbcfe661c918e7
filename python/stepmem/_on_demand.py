"""Snapshots that the program asks for: `stepmem.record`, `stepmem.snapshot` and `stepmem.snapshot_on_oom`."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Callable, Optional, Tuple, TypeVar, cast

from ._client import CLIENT
from ._snapshot_file import SnapshotFile
from ._snapshots import MAX_ENTRIES, Plan
from ._torch import cuda_torch, is_out_of_memory
from ._warn import warn_once

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Type

Function = TypeVar("Function", bound=Callable[..., Any])


def record(
    steps: Tuple[int, int] = (10, 15),
    directory: Optional[str] = None,
    pair: bool = False,
    max_entries: int = MAX_ENTRIES,
) -> None:
    """Records the allocations of steps `first` to `last`, both included, and writes a snapshot after the last.

    The default skips the warm-up. With `pair`, writes another snapshot before the first step, for comparison.
    """
    try:
        first, last = steps
        if not 0 <= first <= last or max_entries < 1:
            raise ValueError(f"steps {steps!r}, {max_entries} entries")
        snapshots = CLIENT.snapshots
        plan = Plan(snapshots.writer, int(first), int(last) - int(first) + 1, directory)
        plan.is_pair, plan.max_entries = pair, max_entries
        snapshots.add(plan)
        if cuda_torch() is not None:
            snapshots.at_step_end(CLIENT.process.step)
    except Exception as error:
        warn_once("record steps", f"nothing is recorded: {error!r}")


def snapshot(path: Optional[str] = None) -> Optional[str]:
    """Writes a memory snapshot now; returns its path, or None (and warns) if that failed."""
    try:
        file = SnapshotFile("manual", CLIENT.process.step)
        file.path = path
        return CLIENT.snapshots.writer.write(file)
    except Exception as error:
        warn_once("snapshot", f"no snapshot: {error!r}")
        return None


class OomGuard:
    """Writes a snapshot of an out-of-memory error that passes through it; a context manager and a decorator."""

    def __enter__(self) -> None:
        self._n_errors_before = CLIENT.snapshots.oom.n_errors

    def __exit__(
        self, kind: "Optional[Type[BaseException]]", error: Optional[BaseException], trace: "Optional[TracebackType]"
    ) -> None:
        try:
            watch = CLIENT.snapshots.oom
            # Where PyTorch has an observer, it has seen this error already.
            if error is not None and is_out_of_memory(error) and watch.n_errors == self._n_errors_before:
                watch.write()
        except Exception as problem:
            warn_once("oom", f"no snapshot of an out-of-memory error: {problem!r}")

    def __call__(self, function: Function) -> Function:
        @functools.wraps(function)
        def guarded(*arguments: Any, **named: Any) -> Any:
            with OomGuard():
                return function(*arguments, **named)

        return cast(Function, guarded)


def snapshot_on_oom(directory: Optional[str] = None, max_entries: int = MAX_ENTRIES) -> OomGuard:
    """Writes a snapshot of every out-of-memory error of this process, up to the third, while the memory is still held.

    Records the last `max_entries` allocations and frees for it (0: none). Returns a context manager and decorator for
    errors that PyTorch's observer does not see; it can be ignored.
    """
    try:
        CLIENT.snapshots.oom.arm(directory, max_entries)
    except Exception as error:
        warn_once("oom", f"out-of-memory errors leave no snapshot: {error!r}")
    return OomGuard()
