"""PyTorch memory snapshots: scheduled, on demand, within an out-of-memory error, and when the exporter asks. Best effort:
whatever fails is a warning."""

from __future__ import annotations

import functools
import os
import re
import sys
import threading
from typing import TYPE_CHECKING, Any, Callable, List, Optional, Tuple, TypeVar

from ._client import CLIENT
from ._readers import cuda_torch
from ._warn import warn_once
from ._wire import Capture, SnapshotResult

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Type

    from ._client import Client

MAX_ENTRIES = 100_000
"""How many allocations and frees a history holds unless it is said otherwise; each takes some KiB."""

OOM_SNAPSHOTS_MAX = 3
"""How many out-of-memory errors of one process are written."""

ASKED_STEPS_MAX = 1000
"""For how many steps the exporter may have the history recorded."""

PLANS_MAX = 8
"""How many recordings wait or run at once."""

Function = TypeVar("Function", bound=Callable[..., Any])


class Plan:
    """One recording: from before step `first` to the end of step `last`, then a snapshot."""

    def __init__(self, first: Optional[int], last: int, directory: Optional[str]) -> None:
        self.first = first
        self.last = last
        self.directory = directory
        self.max_entries = MAX_ENTRIES
        self.is_pair = False
        self.is_recording = False
        self.id: Optional[str] = None


class Snapshots:
    """What takes the snapshots of this process."""

    def __init__(self, client: "Client") -> None:
        self._client = client
        self._plans: List[Plan] = []
        self._ids: List[str] = []
        self._n_recording = 0
        self._is_foreign = False
        self._oom_directory: Optional[str] = None
        self._is_oom_wanted = False
        self._is_attached = False
        self.n_ooms = 0
        self._oom_entries = 0

    @property
    def is_waiting(self) -> bool:
        """Whether the end of a step has to be looked at."""
        return bool(self._plans) or (self._is_oom_wanted and not self._is_attached)

    def plan(self, plan: Plan) -> None:
        """Has a recording done; too many at once are refused."""
        if len(self._plans) >= PLANS_MAX:
            raise ValueError(f"{PLANS_MAX} recordings wait already")
        self._plans.append(plan)

    def on_capture(self, capture: Capture) -> None:
        """The exporter asks for a snapshot; it may ask for the same several times."""
        name, steps, rank = capture.id, capture.n_steps, self._client.process.identity().rank
        if name in self._ids or (capture.rank is not None and str(capture.rank) != str(rank)):
            return
        self._ids = [*self._ids[-63:], name]
        try:
            if not isinstance(steps, int) or not 0 < steps <= ASKED_STEPS_MAX:
                raise ValueError(f"steps {steps!r} is no integer of 1..={ASKED_STEPS_MAX}")
            if cuda_torch() is None:
                raise ValueError("this process uses no CUDA device")
            own = self._client.process.snapshot_directory()
            plan = Plan(None, steps, own or str(capture.directory or ""))
            plan.id = name
            self.plan(plan)
        except Exception as error:
            self._report("creep", None, None, error, name)

    def at_step_end(self, step: int) -> None:
        """Begins and ends recordings at the end of a step."""
        if self._is_oom_wanted and not self._is_attached:
            self.attach()
        for plan in list(self._plans):
            if plan.first is None:
                plan.first, plan.last = step + 1, step + plan.last
            if plan.is_recording and step >= plan.last:
                self._plans.remove(plan)
                self._end(plan, step)
            elif not plan.is_recording and step >= plan.last:
                self._plans.remove(plan)
                warn_once("missed", f"steps {plan.first} to {plan.last} were over before they could be recorded")
            elif not plan.is_recording and step >= plan.first - 1:
                self._begin(plan, step)

    def _begin(self, plan: Plan, step: int) -> None:
        try:
            self.start_history(plan.max_entries)
            plan.is_recording = True
            if plan.is_pair:
                self.write(None, plan.directory, "before", step)
        except Exception as error:
            self._plans.remove(plan)
            self._failed(plan, step, error)

    def _end(self, plan: Plan, step: int) -> None:
        try:
            if plan.id is None:
                self.write(None, plan.directory, "after" if plan.is_pair else "", step)
                return
            # The state is of this step's end; pickling and the disk are not waited for.
            path, state = self._path(plan.directory, "creep", step), take()
            arguments = (path, state, "creep", step, plan.id)
            threading.Thread(target=self._save, args=arguments, name="stepmem-snapshot", daemon=True).start()
        except Exception as error:
            self._failed(plan, step, error)
        finally:
            self.stop_history()

    def _failed(self, plan: Plan, step: int, error: Exception) -> None:
        if plan.id is None:
            warn_once("snapshot", f"no snapshot of step {step}: {error!r}")
        else:
            self._report("creep", step, None, error, plan.id)

    def start_history(self, max_entries: int) -> None:
        """Has allocations recorded, unless the program does so itself."""
        torch = cuda_torch()
        if torch is None:
            raise RuntimeError("this process uses no CUDA device")
        is_enabled = getattr(torch._C, "_cuda_isHistoryEnabled", None)
        if self._n_recording == 0:
            self._is_foreign = bool(is_enabled is not None and is_enabled())
        if self._n_recording == 0 and not self._is_foreign:
            torch.cuda.memory._record_memory_history(
                enabled="all", context="alloc", stacks="python", max_entries=max_entries
            )
        self._n_recording += 1

    def stop_history(self) -> None:
        """Ends what `start_history` began."""
        torch = cuda_torch()
        self._n_recording -= 1
        if torch is not None and self._n_recording == 0 and not self._is_foreign:
            try:
                torch.cuda.memory._record_memory_history(enabled=None)
            except Exception as error:
                warn_once("history", f"the recording of allocations goes on: {error!r}")

    def write(self, path: Optional[str], directory: Optional[str], what: str, step: int) -> Optional[str]:
        """Writes a snapshot now; its path, or None when that failed."""
        reason = what if what == "oom" else "manual"
        try:
            path = path or self._path(directory, what, step)
            state = take()
        except Exception as error:
            self._report(reason, step, None, error, None)
            return None
        return self._save(path, state, reason, step, None)

    def _path(self, directory: Optional[str], what: str, step: int) -> str:
        """One file a rank and step: `run_rank3_step100.pickle`."""
        who = self._client.process.identity()
        directory = directory or self._client.process.snapshot_directory() or "."
        parts = [re.sub(r"[^\w.-]", "_", who.run)[:64], what, f"attempt{who.attempt}" if who.attempt else ""]
        name = "_".join([*filter(None, parts), f"rank{who.rank}", f"step{step}.pickle"])
        return os.path.join(directory, name)

    def _save(self, path: str, state: Any, reason: str, step: int, asked: Optional[str]) -> Optional[str]:
        import pickle  # only who writes a snapshot pays for it

        unfinished = f"{path}.{os.getpid()}.unfinished"
        try:
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            try:
                # Unbuffered: each frame of the pickle is a write, during which training goes on.
                with open(unfinished, "wb", buffering=0) as file:
                    pickle.dump(state, _Whole(file), protocol=4)
                os.replace(unfinished, path)
            except BaseException:
                if os.path.exists(unfinished):
                    os.unlink(unfinished)
                raise
        except Exception as error:
            self._report(reason, step, path, error, asked)
            return None
        self._report(reason, step, path, None, asked)
        return path

    def _report(
        self, reason: str, step: Optional[int], path: Optional[str], error: Optional[Exception], asked: Optional[str]
    ) -> None:
        if error is not None:
            warn_once(f"snapshot {reason}", f"no snapshot: {error!r}")
        result = SnapshotResult(reason, step, asked)
        result.path = None if path is None else os.path.abspath(path)
        result.n_bytes = os.path.getsize(path) if error is None and path is not None else None
        result.error = None if error is None else str(error) or repr(error)
        self._client.report_snapshot(result)

    def want_oom(self, directory: Optional[str], max_entries: int) -> None:
        """Has out-of-memory errors written, from now on or once CUDA is in use."""
        self._oom_directory = directory
        if not self._is_oom_wanted:
            self._is_oom_wanted = True
            self._oom_entries = max_entries
        if not self._is_attached and cuda_torch() is not None:
            self.attach()

    def attach(self) -> None:
        """Attaches the observer, of which PyTorch knows no detaching; one is enough."""
        torch = cuda_torch()
        if torch is None:
            return
        self._is_attached = True
        if self._oom_entries > 0:
            self.start_history(self._oom_entries)
        torch._C._cuda_attach_out_of_memory_observer(self._observe)

    def _observe(self, *_: Any) -> None:
        """Runs within the allocator, before the error is raised: what fills the device is still there."""
        try:
            self.write_oom()
        except Exception as error:
            warn_once("oom", f"no snapshot of an out-of-memory error: {error!r}")

    def write_oom(self) -> None:
        """Writes a snapshot of an out-of-memory error, of the first few of this process."""
        self.n_ooms += 1
        if self.n_ooms <= OOM_SNAPSHOTS_MAX:
            self.write(None, self._oom_directory, "oom", self._client.process.step)


class _Whole:
    """A raw file whose writes are whole."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, data: Any) -> int:
        """Writes all of it; raises OSError, as when the disk is full."""
        left = memoryview(data)
        while left:
            left = left[self._file.write(left) :]
        return len(data)


def take() -> Any:
    """The allocator's state and history."""
    torch = cuda_torch()
    if torch is None:
        raise RuntimeError("this process uses no CUDA device")
    return torch.cuda.memory._snapshot()


def record(
    steps: Tuple[int, int] = (10, 15),
    directory: Optional[str] = None,
    pair: bool = False,
    max_entries: int = MAX_ENTRIES,
) -> None:
    """Records the allocations of the steps `first..=last` and writes a snapshot after the last.

    The default skips what warms up. With `pair`, another one is written before the first step, to be compared with.
    """
    try:
        first, last = steps
        if not 0 <= first <= last or max_entries < 1:
            raise ValueError(f"steps {steps!r}, {max_entries} entries")
        plan = Plan(int(first), int(last), directory)
        plan.is_pair, plan.max_entries = pair, max_entries
        snapshots = CLIENT.use_snapshots()
        snapshots.plan(plan)
        if cuda_torch() is not None:
            snapshots.at_step_end(CLIENT.process.step)
    except Exception as error:
        warn_once("record steps", f"nothing is recorded: {error!r}")


def snapshot(path: Optional[str] = None) -> Optional[str]:
    """Writes a memory snapshot now; its path, or None (and a warning) when that failed."""
    try:
        return CLIENT.use_snapshots().write(path, None, "", CLIENT.process.step)
    except Exception as error:
        warn_once("snapshot", f"no snapshot: {error!r}")
        return None


class OomGuard:
    """Writes a snapshot of an out-of-memory error that passes through it; for `with`, and as a decorator."""

    def __enter__(self) -> None:
        self._n_before = CLIENT.use_snapshots().n_ooms

    def __exit__(
        self, kind: "Optional[Type[BaseException]]", error: Optional[BaseException], trace: "Optional[TracebackType]"
    ) -> None:
        try:
            # The observer comes first where PyTorch has one.
            if error is not None and is_out_of_memory(error) and CLIENT.use_snapshots().n_ooms == self._n_before:
                CLIENT.use_snapshots().write_oom()
        except Exception as problem:
            warn_once("oom", f"no snapshot of an out-of-memory error: {problem!r}")

    def __call__(self, function: Function) -> Function:
        @functools.wraps(function)
        def guarded(*arguments: Any, **named: Any) -> Any:
            with OomGuard():
                return function(*arguments, **named)

        return guarded  # type: ignore[return-value]


def snapshot_on_oom(directory: Optional[str] = None, max_entries: int = MAX_ENTRIES) -> OomGuard:
    """Has every out-of-memory error of this process leave a snapshot, written while the memory is still held.

    Records the last `max_entries` allocations and frees for it (0: none). What it returns is a context and a decorator
    for where PyTorch's observer does not reach; it may be thrown away.
    """
    try:
        CLIENT.use_snapshots().want_oom(directory, max_entries)
    except Exception as error:
        warn_once("oom", f"out-of-memory errors leave no snapshot: {error!r}")
    return OomGuard()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this is PyTorch's error of a full device."""
    torch = sys.modules.get("torch")
    kinds = (getattr(torch, "OutOfMemoryError", None), getattr(getattr(torch, "cuda", None), "OutOfMemoryError", None))
    return isinstance(error, tuple(kind for kind in kinds if isinstance(kind, type)))
