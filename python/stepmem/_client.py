"""The training thread's side: one cheap reading a step into a bounded ring. It waits for nothing and raises nothing."""

from __future__ import annotations

import atexit
import os
import time
from typing import TYPE_CHECKING, Optional

from ._readers import NO_CAPACITY, CudaReader, HostReader, cuda_torch, find_reader
from ._sender import Ring, Sender
from ._settings import Identity, Settings
from ._warn import warn_once
from ._wire import OUTCOMES, PHASES, RECORD, STEP_MAX, UNKNOWN_SECONDS, Capture, SnapshotResult, end_request, snapshot_request

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Type

    from ._snapshots import Snapshots

CAPACITY_EVERY = 10.0
"""The device's total and free memory are read at most this often, in seconds."""

FAILURES_MAX = 16
"""After so many failed readings one after the other, nothing is read any more."""

FLUSH_SECONDS = 1.0
"""How long the interpreter's exit waits at most for what is still to be pushed."""



class Client:
    """What this process records. It starts with the first step, and anew in a forked child that takes a step itself."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        """The state of a process that has not taken a step; also that of a forked child, which has no sender thread."""
        self.settings: Optional[Settings] = None
        self.identity: Optional[Identity] = None
        self.is_explicit = False
        self.step = 0
        self._reader: Optional[CudaReader | HostReader] = None
        self._is_host = False
        self._device_idx = 0
        self._ring: Optional[Ring] = None
        self._sender: Optional[Sender] = None
        self._is_off = False
        self._n_records = 0
        self._n_failures = 0
        self._capacity = NO_CAPACITY
        self._capacity_at = 0.0
        self._marked: Optional[float] = None
        self.snapshots: Optional[Snapshots] = None

    def in_child(self) -> None:
        """Runs in a forked child: what it inherited belongs to its parent."""
        sender, reader = self._sender, self._reader
        self._forget()
        try:
            if sender is not None:
                sender.abandon()
            if reader is not None:
                reader.close()
        except OSError:
            pass

    def step_end(self, n: Optional[int] = None) -> None:
        """Records the end of an optimizer step that the program itself reports."""
        self.is_explicit = True
        self._take(n, 0)

    def optimizer_step(self) -> None:
        """Records an optimizer step that a hook saw, unless the program reports its steps itself."""
        if not self.is_explicit:
            self._take(None, 0)

    def phase_end(self, name: str, n: Optional[int] = None) -> None:
        """Records that an evaluation or a checkpoint ran since the last record."""
        if name not in PHASES[1:]:
            warn_once(f"phase {name}", f"phase {name!r} is neither 'eval' nor 'checkpoint'; it is not recorded")
            return
        self._take(self.step if n is None else n, PHASES.index(name))

    def mark(self) -> None:
        """The step that is recorded next begins now."""
        self._marked = time.monotonic()

    def _take(self, n: Optional[int], phase: int) -> None:
        try:
            if self._is_off:
                return
            if self._ring is None and not self._begin():
                return
            self._record(n, phase)
            self._n_failures = 0
        except Exception as error:
            self._failed(error)
        try:
            if self.snapshots is not None and phase == 0 and self.snapshots.is_waiting:
                self.snapshots.at_step_end(self.step)
        except Exception as error:
            warn_once("snapshots", f"snapshots do not work: {error!r}")

    def _record(self, n: Optional[int], phase: int) -> None:
        if n is None:
            n = self.step + 1
        elif not isinstance(n, int):
            n = int(n)  # numpy's and torch's integers too
        if not 0 <= n <= STEP_MAX:
            raise ValueError(f"step {n} is outside 0..={STEP_MAX}")
        self.step = n
        now = time.monotonic()
        began, self._marked = self._marked, now
        if self._is_host and cuda_torch() is not None:
            self._read_from(find_reader(self.settings is not None and self.settings.resets_peak))
        if now >= self._capacity_at:
            self._capacity_at = now + CAPACITY_EVERY
            self._capacity = self._reader.capacity()  # type: ignore[union-attr]
        record = RECORD.pack(
            time.time(),
            UNKNOWN_SECONDS if began is None else now - began,
            self._n_records,
            n,
            self._device_idx,
            phase,
            *self._reader.read(),  # type: ignore[union-attr]
            *self._capacity,
        )
        self._n_records += 1
        self._ring.append(record)  # type: ignore[union-attr]

    def _begin(self) -> bool:
        """Starts at the first step of this process; whether there is anything to do from now on."""
        self.settings = settings = self.read_settings()
        if settings is None or settings.is_disabled:
            self._is_off = True
            return False
        identity = self.who()
        sender = Sender(settings, identity, self._on_capture)
        self._sender = sender
        self._read_from(find_reader(settings.resets_peak))
        sender.start()
        self._ring = sender.ring
        return True

    def _read_from(self, reader: "CudaReader | HostReader") -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader = reader
        self._is_host = isinstance(reader, HostReader)
        self._capacity_at = 0.0
        if self._sender is not None:
            self._device_idx = self._sender.add_device(reader.device)

    def _failed(self, error: Exception) -> None:
        self._n_failures += 1
        if self._ring is None or self._n_failures >= FAILURES_MAX:
            self._is_off = True
            warn_once("off", f"nothing is recorded from now on: {error!r}")
        else:
            warn_once("record", f"a step was not recorded: {error!r}")

    def read_settings(self) -> Optional[Settings]:
        """The settings of this process; None, and a warning, when they make no sense."""
        if self.settings is None:
            try:
                self.settings = Settings.read(os.environ)
            except (OSError, ValueError) as error:
                warn_once("settings", f"nothing is pushed: {error}")
        return self.settings

    def who(self) -> Identity:
        """Who this process is in its run."""
        if self.identity is None:
            self.identity = Identity.read(os.environ)
        return self.identity

    def use_snapshots(self) -> "Snapshots":
        """What takes the snapshots of this process."""
        if self.snapshots is None:
            from ._snapshots import Snapshots

            self.snapshots = Snapshots(self)
        return self.snapshots

    def _on_capture(self, capture: Capture) -> None:
        """Runs on the sender's thread: the exporter asks for a snapshot."""
        self.use_snapshots().on_capture(capture)

    def report_snapshot(self, result: SnapshotResult) -> None:
        """Pushes what became of a snapshot; does nothing before the first step."""
        if self._sender is not None:
            self._sender.add_control(snapshot_request(self.who(), result))

    def end(self, outcome: str) -> None:
        """Says that this rank's work is over."""
        if outcome not in OUTCOMES:
            warn_once(f"outcome {outcome}", f"outcome {outcome!r} is none of {', '.join(OUTCOMES)}")
        elif self._sender is not None:
            self._sender.add_control(end_request(self.who(), outcome))

    def flush(self, seconds: float) -> bool:
        """Waits until all is pushed, at most so long; whether it was."""
        return self._sender is None or self._sender.flush(seconds)

    def at_exit(self) -> None:
        """Runs at the interpreter's exit: what is still in the ring is pushed, within FLUSH_SECONDS."""
        try:
            if self._sender is not None:
                self._sender.stop(FLUSH_SECONDS)
        except BaseException:  # an impatient Ctrl-C included: the exit code is the program's
            pass


class Step:
    """One optimizer step as a context; one that raises is not recorded."""

    __slots__ = ("_n",)

    def __init__(self, n: Optional[int] = None) -> None:
        self._n = n

    def __enter__(self) -> None:
        CLIENT.is_explicit = True
        CLIENT.mark()

    def __exit__(
        self, kind: "Optional[Type[BaseException]]", error: Optional[BaseException], trace: "Optional[TracebackType]"
    ) -> None:
        if kind is None:
            CLIENT.step_end(self._n)


class Phase:
    """An evaluation or a checkpoint as a context; it is recorded also when it raises."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        CLIENT.mark()

    def __exit__(
        self, kind: "Optional[Type[BaseException]]", error: Optional[BaseException], trace: "Optional[TracebackType]"
    ) -> None:
        CLIENT.phase_end(self._name)


CLIENT = Client()
"""The one client of this process."""

atexit.register(CLIENT.at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=CLIENT.in_child)
