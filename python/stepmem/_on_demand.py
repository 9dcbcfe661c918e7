"""Snapshots on request of the program: `stepmem.record`, `stepmem.snapshot` and `stepmem.snapshot_on_oom`."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Callable, Optional, Tuple, TypeVar, cast

from ._client import CLIENT
from ._snapshot_file import SnapshotFile
from ._snapshots import MAX_ENTRIES, Plan
from ._signals import raise_if_of_handler
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
    collect: bool = True,
    stacks: str = "all",
) -> None:
    """Records the allocations of steps `first` to `last`, both included, and writes a snapshot after the last.

    The default skips the warm-up. With `pair`, writes another snapshot before the first step, for comparison; before that
    one, with `collect`, collects garbage and empties PyTorch's cache, and logs so. `stacks`: "all" names autograd's nodes
    and what freed each block, "python" costs a third of the time and of the memory.
    """
    try:
        first, last = steps
        if not 0 <= first <= last or max_entries < 1:
            raise ValueError(f"steps {steps!r}, {max_entries} entries")
        if stacks not in ("all", "python"):
            raise ValueError(f"stacks {stacks!r} is neither 'all' nor 'python'")
        snapshots = CLIENT.snapshots
        plan = Plan(snapshots.writer, int(first), int(last) - int(first) + 1, directory)
        plan.is_pair, plan.max_entries = pair, max_entries
        plan.is_clean, plan.is_full = collect, stacks == "all"
        snapshots.add(plan)
        if cuda_torch() is not None:
            snapshots.at_step_end(CLIENT.process.step)
    except Exception as error:
        raise_if_of_handler(error)
        warn_once("record steps", f"stepmem.record failed: {error!r}")


def snapshot(path: Optional[str] = None) -> Optional[str]:
    """Writes a memory snapshot now. Returns its path, or None (and warns) if that failed."""
    try:
        file = SnapshotFile("manual", CLIENT.process.step)
        file.path = path
        return CLIENT.snapshots.writer.write(file)
    except Exception as error:
        raise_if_of_handler(error)
        warn_once("snapshot", f"snapshot failed: {error!r}")
        return None


class OomGuard:
    """Context manager and decorator that writes a snapshot of an out-of-memory error raised inside."""

    def __enter__(self) -> None:
        self._n_errors_before = CLIENT.snapshots.oom.n_errors

    def __exit__(
        self, kind: "Optional[Type[BaseException]]", error: Optional[BaseException], trace: "Optional[TracebackType]"
    ) -> None:
        try:
            watch = CLIENT.snapshots.oom
            # If PyTorch has an observer, it has already seen this error.
            if error is not None and is_out_of_memory(error) and watch.n_errors == self._n_errors_before:
                watch.write()
        except Exception as problem:
            raise_if_of_handler(problem)
            warn_once("oom", f"snapshot of an out-of-memory error failed: {problem!r}")

    def __call__(self, function: Function) -> Function:
        @functools.wraps(function)
        def guarded(*arguments: Any, **named: Any) -> Any:
            with OomGuard():
                return function(*arguments, **named)

        return cast(Function, guarded)


def snapshot_on_oom(directory: Optional[str] = None, max_entries: int = MAX_ENTRIES) -> OomGuard:
    """Writes a snapshot of each of the first three out-of-memory errors, while the memory is still held.

    The snapshot includes the last `max_entries` allocations and frees (0: none). Returns a context manager and decorator
    for errors that PyTorch's observer does not see; you can ignore it.
    """
    try:
        CLIENT.snapshots.arm_oom(directory, max_entries)
    except Exception as error:
        raise_if_of_handler(error)
        warn_once("oom", f"snapshot_on_oom failed: {error!r}")
    return OomGuard()
