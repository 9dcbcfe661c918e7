"""`CLIENT`, through which the program, a callback or a hook reports steps. It raises no exceptions."""

from __future__ import annotations

import atexit
import os
import sys
import time
from _operator import index
from _thread import RLock
from typing import TYPE_CHECKING, Any, Callable, Optional

from ._by_time import ByTime
from ._calls import Calls
from ._captures import install as watch_captures
from ._captures import running
from ._descriptors import in_child as close_files
from ._ending import Ending
from ._environment import environment
from ._holders.requests import HeapScanRequests
from ._malloc import Malloc
from ._peaks import in_child, step_lock
from ._iterations import Iterations
from ._process import CALLS, REPLAYS, STEPS, Process
from ._readers import MemorySample
from ._recorder import UNPACKED_MAX, Recorder
from ._replays import Replays
from ._sender import Sender
from ._signals import raise_if_of_handler
from ._snapshots import Snapshots
from ._threads import in_child as forget_threads
from ._total_steps import NEVER
from ._trainer import Training
from ._warn import announce_once, note_once, warn_once
from ._wire import (
    CHECKPOINT,
    EVENT_MARKERS,
    OF_REPLAYS,
    OUTCOMES,
    PHASE_BYTES_MAX,
    PHASE_CHARACTERS,
    PHASE_NAMES_MAX,
    PHASES,
    STEP_MAX,
    TIMED_PHASES,
    CheckpointRequest,
    End,
    HeapScanRequest,
    HoldersResult,
    MallocRequest,
    SnapshotRequest,
    SnapshotResult,
)

if TYPE_CHECKING:
    from types import TracebackType
    from typing import List, Type

    from ._deadline import Deadlines


FAILURES_MAX = 16
"""Steps in a row that could not be recorded, after which recording stops."""

START_SECONDS = (1.0, 60.0)
"""First and longest pause, in seconds, before recording is started again after that failed; it doubles each time."""

FLUSH_SECONDS = 1.0
"""Time for which the interpreter's exit waits until the remaining records are pushed."""

TRAIN = PHASES.index("train")


class Client:
    """Starts the recorder and the sender at the first step. A forked child that takes a step starts its own."""

    def __init__(self) -> None:
        self._reset()
        self.ending = Ending(self.process)

    def _reset(self) -> None:
        self.process = Process()
        self.is_explicit = False
        """Set if the program or a callback reports steps, so that the optimizer hook must not count them."""
        self._training: Optional[Training] = None
        """The training whose callback reports them, while it goes on."""
        self.expects_steps = False
        """Makes the exit warn if no step was counted."""
        self._is_off = False
        """Set if recording is disabled, misconfigured, or failed too often. There is then no recorder."""
        self._n_failures = 0
        self._start_lock = RLock()
        self._is_starting = False
        self._starts_at = 0.0
        """Time from which recording may be started again after that failed, on the monotonic clock."""
        self._recorder: Optional[Recorder] = None
        self._sender: Optional[Sender] = None
        self._has_requests = False
        """Set once there is one of these two, which then may have work at a step's end."""
        self._by_time: Optional[ByTime] = None
        self._calls: Optional[Calls] = None
        self._replays = Replays(self.process, self._replays_begin)
        self._snapshots: Optional[Snapshots] = None
        self._heap_scans: Optional[HeapScanRequests] = None
        self._malloc = Malloc()
        self._deadlines: Optional[Deadlines] = None
        """Asks to checkpoint, of a program that opted in."""

    def in_child(self) -> None:
        """Runs in each forked child, which has no sender: forgets the parent's state, closes its files."""
        sender, recorder, heap_scans, calls, replays = self._sender, self._recorder, self._heap_scans, self._calls, self._replays
        forget_threads()
        running.clear()
        self._reset()
        self.process.is_forked = True
        self._replays.step = replays.step
        replays.end()
        if calls is not None:
            calls.end()
        if heap_scans is not None:
            heap_scans.in_child()
        self.ending.in_child(self.process)
        in_child()
        close_files()
        if recorder is not None:
            recorder.close()
        try:
            if sender is not None:
                sender.abandon()
        except OSError as error:
            raise_if_of_handler(error)

    def step_end(self, n: Optional[int] = None) -> None:
        """Records the end of an optimizer step that the program or a callback reports."""
        self.is_explicit = True
        if self.process.unit:
            self._begin_unit(STEPS)
        self.record(n, TRAIN)

    def training_begins(self, package: str) -> None:
        """Turns automatic step counting off until the training ends that calls this through a callback; `package` has its trainer."""
        before = self._training  # one that failed, or one that this is a part of
        self._training = Training(package, self.is_explicit if before is None else before.was_explicit)
        self.is_explicit = True

    def training_ends(self) -> None:
        """Lets a loop of the program's own be counted."""
        training, self._training = self._training, None
        if training is not None:
            self.is_explicit = training.was_explicit

    def counts_steps(self) -> bool:
        """Returns whether the optimizer hook has to count a step. Notices that a training was left by an error."""
        if self.is_explicit and self._training is not None and self._training.is_over():
            self.training_ends()
        return not self.is_explicit

    def set_total_steps(self, n: Optional[int]) -> None:
        """Names the step with which training ends, from the next push on; None if it is unknown."""
        try:
            total = None if n is None else index(n) + 0  # no bool
            if total is not None and not 0 < total <= STEP_MAX:
                raise ValueError
            self.process.total_steps, self.process.looks_at = total, NEVER
        except Exception as error:
            raise_if_of_handler(error)
            warn_once("total steps", "total_steps was not given a number of steps from 1 to 2^53, or None")

    def on_memory_deadline(self, function: "Optional[Callable[[Any], None]]") -> None:
        """Calls a function of the program, as a checkpoint, when memory runs out soon; None: no longer."""
        from ._deadline import calling

        if function is None:
            self.process.on_deadline = None
        elif callable(function):
            self.on_deadline(calling(function, self.begin, self.phase_end), self.process.step)
        else:
            warn_once("deadline function", "on_memory_deadline was not given a function, or None")

    def on_deadline(self, act: "Callable[[Any], Optional[bool]]", base: int) -> None:
        """Calls `act` at a step's end when memory runs out soon. `base` is a step that is the same in all ranks at this moment."""
        from ._deadline import Deadlines

        if self._deadlines is None:
            self._deadlines = Deadlines(self.process, act)
        self._deadlines.replace(act, base)
        self._has_requests = True
        self.process.on_deadline = CHECKPOINT

    def deadline_served(self, is_written: bool) -> None:
        """Ends the program for a planned restart, if it is to be: the checkpoint is written, or failed, for which `act` was called."""
        if self._deadlines is not None:
            self._deadlines.finish(is_written)

    def _signal_on_deadline(self, number: int) -> None:
        """Sends a signal of the operator's when memory runs out soon, if this is the only rank and the program did not opt in itself."""
        from ._deadline import signaling

        if (self.process.identity().world_size or 1) > 1:
            warn_once("deadline signal", "STEPMEM_DEADLINE_SIGNAL is for programs of one rank: ranks would get the signal at different steps")
        elif self._deadlines is None:
            self.on_deadline(signaling(number), self.process.step)

    def phase_end(self, name: str, n: Optional[int] = None) -> None:
        """Records the end of an evaluation, a checkpoint or a phase that the program names, at step `n` or the last one."""
        idx = self._phase_index(name)
        if idx is None:
            return
        self.record(self.process.step if n is None else n, idx)
        recorder = self._recorder
        if idx >= len(PHASES) and recorder is not None:
            recorder.ask_process_memory()

    def _phase_index(self, name: str) -> Optional[int]:
        """Returns the index of a phase in records; None (and warns) if it cannot have one."""
        if name in TIMED_PHASES:
            return PHASES.index(name)
        names = self.process.phase_names
        if name in names:
            return len(PHASES) + names.index(name)
        if not isinstance(name, str) or name in PHASES or not 0 < len(name) <= PHASE_BYTES_MAX or not PHASE_CHARACTERS.issuperset(name):
            warn_once(f"phase {name}", f"phase {name!r} is not recorded: a name has 1 to 32 letters, digits, '.', '_' and '-', and is none of {', '.join(PHASES)}")
            return None
        if len(names) >= PHASE_NAMES_MAX:
            warn_once("phases", f"phase {name!r} counts as 'eval': there are {PHASE_NAMES_MAX} names of phases already")
            return PHASES.index(TIMED_PHASES[0])
        names.append(name)
        return len(PHASES) + len(names) - 1

    def mark(self, name: str) -> None:
        """Adds an event marker to the next step's record: an evaluation, a checkpoint or a new epoch came before it."""
        if name in EVENT_MARKERS:
            self.process.noted_calls |= 1 << EVENT_MARKERS.index(name)
        else:
            warn_once(f"mark {name}", f"mark {name!r} is not one of {', '.join(EVENT_MARKERS)}")

    def watch_time(self, step: "Callable[[Any, Any, Any], None]") -> None:
        """Begins to sample memory by time while the program runs a model without steps, and to count what it does then.

        `step` counts the step of an optimizer.
        """
        try:
            settings = self.process.settings()
            if self._by_time is None and settings is not None and not settings.is_disabled:
                self._calls = Calls(self.process, self._level, self._record_calls)
                self._replays.step = step
                self.watch_captures()
                self._by_time = ByTime(self.process, self._sample, self._calls, self._replays, self.watch_captures)
                self._by_time.start()
        except Exception as error:
            raise_if_of_handler(error)
            warn_once("by time", f"memory is not sampled by time: {error!r}")

    def watch_captures(self) -> None:
        """Follows the captures of graphs, once PyTorch has them."""
        watch_captures(self._captured)

    def _captured(self, graph: Any, optimizers: "List[Any]") -> None:
        self._replays.captured(graph, optimizers)

    def _sample(self, phase_idx: int) -> None:
        """Appends a record by time. Runs on a thread of its own."""
        recorder = self._recorder or self._start_once()
        if recorder is not None:
            recorder.sample(phase_idx)

    def _level(self) -> Optional[MemorySample]:
        """Returns the memory as it is; None if nothing is recorded, or a graph is captured. Runs on the program's threads."""
        recorder = self._recorder or self._start_once()
        return None if recorder is None else recorder.level()

    def _record_calls(self, n: int, sample: MemorySample) -> None:
        """Records the memory after `n` calls of a program without steps, and does the part of requests that is due."""
        recorder, process, calls = self._recorder, self.process, self._calls
        if recorder is None or calls is None or not calls.is_on or (process.n_steps and process.unit != CALLS):
            return
        process.unit = CALLS
        recorder.calls(n, sample)
        if self._has_requests:
            self._serve_requests()

    def _begin_unit(self, unit: int) -> None:
        """Counts another unit, from 1 on."""
        process = self.process
        with step_lock():
            if self._calls is not None:
                self._calls.end()
            if unit == STEPS:
                self._replays.end()
            process.unit, process.iterations = unit, Iterations()
            process.step = process.n_steps = process.n_recorded = process.noted_calls = 0
            self._heap_scans = None  # it counts in the other unit

    def _replays_begin(self) -> bool:
        """Counts replays of graphs from now on; returns False in a program that reports steps itself."""
        if self.is_explicit and not self.counts_steps():
            return False
        if self.process.unit != REPLAYS:
            self._begin_unit(REPLAYS)
        return True

    def steps_beside(self, optimizer: Any) -> None:
        """Takes a step while another unit is counted: begins to count steps, but where graphs repeat steps and this one is an iteration, too."""
        replays = self._replays
        if self.process.unit == REPLAYS and (optimizer is replays or replays.has_steps):
            self.process.noted_calls |= OF_REPLAYS
        else:
            self._begin_unit(STEPS)

    def begin(self) -> None:
        """Marks the beginning of the next step or phase, from which its duration counts."""
        self.process.step_began_at = time.monotonic()

    def record(self, n: Optional[int] = None, phase_idx: int = TRAIN) -> None:
        """Records the end of step `n` (None: the one after the last), or of a phase at step `n`."""
        try:
            recorder = self._recorder
            if recorder is None:
                recorder = self._start_once()
                if recorder is None:
                    return
            recorder.record(n, phase_idx)
            self._n_failures = 0
        except Exception as error:
            raise_if_of_handler(error)
            self._on_failure(error)
        if self._has_requests and phase_idx == TRAIN:
            self._serve_requests()

    def _serve_requests(self) -> None:
        """Does the part of snapshots and of searches for holders that is due at a step's end."""
        if running:
            return  # at the end of the next step
        snapshots, heap_scans = self._snapshots, self._heap_scans
        self.process.is_followed = False  # first: another thread may plan a snapshot or begin a search meanwhile
        try:
            if snapshots is not None and snapshots.is_waiting:
                snapshots.at_step_end(self.process.step)
        except Exception as error:
            raise_if_of_handler(error)
            warn_once("snapshots", f"snapshots failed: {error!r}")
        try:
            if heap_scans is not None and heap_scans.is_waiting:
                heap_scans.at_step_end(self.process.step)
        except Exception as error:
            raise_if_of_handler(error)
            warn_once("holders", f"the search for holders failed: {error!r}")
        if (snapshots is not None and snapshots.has_plans) or (heap_scans is not None and heap_scans.needs_next_step):
            self.process.follow()
        if self._deadlines is not None and self.process.on_deadline is not None:
            try:
                self._deadlines.at_step_end(not self.is_explicit)
            except Exception as error:
                raise_if_of_handler(error)
                warn_once("deadline", f"the ask to checkpoint failed: {error!r}")
            if self._deadlines.needs_next_step:
                self.process.follow()

    def _start_once(self) -> Optional[Recorder]:
        """Starts recording, or returns the recorder that another thread has started; None if it is off or failed lately."""
        if self._is_off or running or time.monotonic() < self._starts_at:
            return None
        with self._start_lock:
            if self._recorder is None and not self._is_starting and time.monotonic() >= self._starts_at:
                self._is_starting = True  # a signal handler may take a step meanwhile
                try:
                    self._start()
                finally:
                    self._is_starting = False
            return self._recorder

    def _start(self) -> None:
        """Starts the sender and the recorder, unless recording is off."""
        settings = self.process.settings()
        if settings is None or settings.is_disabled:
            self._is_off = True
            return
        sender = Sender(settings, self.process, self._on_action)
        recorder = Recorder(self.process, sender, settings, self._malloc)
        sender.start(lambda: self._pack(recorder), UNPACKED_MAX)
        self._sender, self._recorder, self._n_failures = sender, recorder, 0
        self.ending.install(self.at_exit)
        if settings.writes_on_oom:
            self.snapshots.watch_oom()
        if settings.deadline_signal is not None:
            self._signal_on_deadline(settings.deadline_signal)
        identity = self.process.identity()
        size = identity.world_size or 1
        place = f"rank {identity.rank}" + (f" of {size}" if size > 1 else "")
        # Once a launch; `stepmem run` reports for all processes that it watches.
        is_first = identity.rank == 0 and identity.attempt == 0 and settings.may_push(sender.target)
        is_first = is_first and not environment().get("STEPMEM_TRACES")
        log_once = announce_once if is_first else note_once
        log_once("identity", f"run {identity.run!r}, {place}, pushes to {sender.target}")

    def _pack(self, recorder: Recorder) -> int:
        """Packs the steps so far. Runs on the sender's thread, at least once a second while there are steps."""
        if self._heap_scans is not None:
            self._heap_scans.guard()
        return recorder.pack()

    def _on_failure(self, error: Exception) -> None:
        self._n_failures += 1
        recorder = self._recorder
        if recorder is None:
            first, longest = START_SECONDS
            self._starts_at = time.monotonic() + min(longest, first * 2.0 ** min(self._n_failures - 1, 16))
            warn_once("start", f"recording cannot start, and will be tried again: {error!r}")
        elif self._n_failures >= FAILURES_MAX:
            self._is_off = True
            self._recorder = None
            recorder.close()
            warn_once("off", f"recording stopped: {error!r}")
        else:
            warn_once("record", f"a step was not recorded: {error!r}")

    @property
    def snapshots(self) -> Snapshots:
        """Snapshots of this process; created on first use, so that a step without any costs nothing."""
        if self._snapshots is None:
            self._snapshots = Snapshots(self.process, self._on_result)
            self._has_requests = True
        return self._snapshots

    def _on_action(self, action: "SnapshotRequest | HeapScanRequest | MallocRequest | CheckpointRequest") -> None:
        """Plans the snapshot or the search that the exporter requests, reads the allocator, or has the program checkpoint. Runs on the sender's thread."""
        if isinstance(action, CheckpointRequest):
            if self._deadlines is not None:
                self._deadlines.on_ask(action)
            return
        if isinstance(action, SnapshotRequest):
            self.snapshots.on_request(action)
            return
        if isinstance(action, MallocRequest):
            settings, rank = self.process.settings(), self.process.identity().rank
            if settings is not None and settings.names_holders and str(action.rank) == str(rank):
                self._malloc.read(self.process.step)
            return
        if self._heap_scans is None:
            self._heap_scans = HeapScanRequests(self.process, self._on_result, self._malloc, self._held)
            self._has_requests = True
        self._heap_scans.on_request(action)

    def _held(self, is_on_host: bool) -> Optional[int]:
        recorder = self._recorder
        return None if recorder is None else recorder.held(is_on_host)

    def _on_result(self, result: "SnapshotResult | HoldersResult") -> None:
        """Reports the result of a request to the exporter. Does nothing before the first step."""
        if self._sender is not None:
            self._sender.add_control(result)

    def end(self, outcome: str) -> None:
        """Reports that this rank has ended. Does nothing before the first step."""
        if outcome not in OUTCOMES:
            warn_once(f"outcome {outcome}", f"outcome {outcome!r} is not one of {', '.join(OUTCOMES)}")
        elif self._sender is not None:
            self._report_end(self._sender, self.ending.report(outcome))

    def _report_end(self, sender: Sender, end: End) -> None:
        """Reports an end, with the errors that the program caught and the peaks of the steps that were not read, where they are known.

        Reports the result so far of a search for holders before it.
        """
        try:
            if self._heap_scans is not None:
                self._heap_scans.at_end()
        except Exception as error:
            raise_if_of_handler(error)
            warn_once("holders", f"the search for holders failed: {error!r}")
        try:
            if self._recorder is not None:
                end.ooms = self._recorder.n_ooms() or end.ooms
                if end.unread_steps:
                    end.peaks = self._recorder.peaks_since_read()
        except Exception as error:
            raise_if_of_handler(error)
            warn_once("last peaks", f"the peaks of the last steps are unknown: {error!r}")
        finally:
            sender.add_control(end)

    def flush(self, seconds: float) -> bool:
        """Waits up to `seconds` until all records are pushed. Returns whether they are."""
        return self._sender is None or self._sender.flush(seconds)

    def at_exit(self) -> None:
        """Pushes the remaining records and the end within FLUSH_SECONDS. Runs at the exit of the interpreter, or of a process of
        `multiprocessing`."""
        try:
            if self._by_time is not None:
                self._by_time.stop()
            if self._calls is not None:
                self._calls.finish()
            if self._sender is not None:
                end = self.ending.at_exit()
                if end is not None:
                    self._report_end(self._sender, end)
                self._sender.stop(FLUSH_SECONDS)
            elif self.expects_steps:
                self._warn_of_no_step()
        except BaseException:  # including Ctrl-C: the exit code is the program's
            pass


    def _warn_of_no_step(self) -> None:
        settings = self.process.settings()
        if settings is None or settings.is_disabled or self._n_failures > 0:
            return
        has_torch = "torch" in sys.modules
        reason = "no optimizer of PyTorch stepped in this process" if has_torch else "the program did not import PyTorch"
        warn_once("no step", f"no step was counted, so nothing is pushed: {reason}; stepmem.step() reports steps of any kind")


class Step:
    """Context manager for one optimizer step. A step that raises is not recorded."""

    __slots__ = ("_n",)

    def __init__(self, n: Optional[int] = None) -> None:
        self._n = n

    def __enter__(self) -> None:
        CLIENT.is_explicit = True
        CLIENT.begin()

    def __exit__(
        self, kind: "Optional[Type[BaseException]]", error: Optional[BaseException], trace: "Optional[TracebackType]"
    ) -> None:
        if kind is None:
            CLIENT.step_end(self._n)


class Phase:
    """Context manager for an evaluation, a checkpoint or a phase of the program's own, and decorator of a function, `async` or not,
    each call of which is one. It is recorded even if it raises."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        CLIENT.begin()

    def __exit__(
        self, kind: "Optional[Type[BaseException]]", error: Optional[BaseException], trace: "Optional[TracebackType]"
    ) -> None:
        CLIENT.phase_end(self._name)

    def __call__(self, function: "Callable[..., Any]") -> "Callable[..., Any]":
        from functools import wraps
        from inspect import iscoroutinefunction

        @wraps(function)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            with self:
                return await function(*args, **kwargs)

        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return awaited if iscoroutinefunction(function) else called


if environment().get("STEPMEM_TRACEMALLOC"):
    from ._holders import lines as _  # noqa: F401  # before the program can replace or lose what it needs

CLIENT = Client()
"""The client of this process."""

atexit.register(CLIENT.at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=CLIENT.in_child)
