"""Samples memory by time while a program runs its model and no optimizer steps.

A daemon thread reads which functions the other threads execute; they do nothing for it, but for one call of a hook between two checks
(see `_model_calls`), without which short calls of a model would be missed: the thread mostly gets its turn between them. Of their variables
it reads only the class of the model or the application that runs, whose calls are then counted (see `_calls`); it keeps no frame.
"""

from __future__ import annotations

import os
import sys
from _thread import get_ident
from time import monotonic
from types import CodeType, FrameType
from typing import Callable, Optional, Tuple

from ._calls import Calls, application_of, class_of_self
from ._captures import running
from ._environment import environment
from ._isolation import library
from ._model_calls import DEPTH_MAX, ModelCalls, codes
from ._peaks import step_lock
from ._process import CALLS, STEPS, Process
from ._replays import Replays
from ._threads import Event, Thread
from ._warn import warn_once
from ._wire import PHASES

SAMPLE, IDLE = PHASES.index("sample"), PHASES.index("idle")

CHECK_SECONDS = (0.1, 1.0)
"""Shortest and longest time between two checks, while the model has not been seen to run."""

STEPS_SECONDS = 5.0
"""Time between two checks of the count of steps, while there are new ones; also the longest time between two samples."""

RUNS_MIN = 3
"""The model must be seen to begin so many runs before memory is sampled, since the first may be that of a long first step."""

LONG_RUN_SECONDS = 30.0
"""Duration of a single run from which memory is sampled, too, but slowly: one call of a library may process all data."""

RAN_WITHIN = 2.0
"""Memory is sampled only if the model ran within so many seconds: data that a program loads or writes is no growth of its loop."""

AGE_PER_SAMPLE = 100.0
"""The time between two samples is at least the time since the first, divided by this: growth must last for longer, the later it
begins."""

QUIET_SECONDS = 30.0
"""A process that stepped has gone on without steps if the last one is so long ago, and…"""

QUIET_GAPS = 10.0
"""…so many times the longest time between two steps so far."""

IDLE_SECONDS = 10.0
"""Time between two records that only show that the process is alive."""

FAILURES_MAX = 10
"""Checks that may fail in a row, as while a library is being imported."""


class ByTime:
    """The thread, and the runs of the model that it has seen."""

    def __init__(self, process: Process, sample: Callable[[int], None], counted: Calls, replays: Replays, watch: Callable[[], None]) -> None:
        """`sample` appends a record of a phase; `counted` counts the calls of classes that are seen to run, `replays` those of graphs.

        `watch` follows the captures of graphs, which PyTorch may have by now.
        """
        self._process = process
        self._counted = counted
        self._replays, self._watch = replays, watch
        self._n_replays = self._n_replayed = 0
        """Replays so far, and checks in a row that saw some, and no run of the model."""
        self._model: Optional[type] = None
        self._application: Optional[type] = None
        """Classes of a model and of an application that are seen to run, until they are counted."""
        self._sample = sample
        self._calls = ModelCalls()
        self._stop = Event()
        now = monotonic()
        self._n_steps = 0
        self._stepped_at = now
        self._longest_gap = 0.0
        self._n_runs = 0
        """Runs of the model that were seen to begin since the last step."""
        self._is_running = False
        self._newest_run = self._seen_run = 0
        """The last run that was seen, and the one of the check before: a program may do nothing else."""
        self._run_since = self._ran_at = self._sampled_at = now
        self._sampling_since: Optional[float] = None
        self._is_slow = False
        """Set if the program also trains, or if it is unknown how often it runs its model."""
        self._allocated = 0
        self._thread = Thread(self._run)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Makes the thread end, and does not wait for it."""
        self._stop.set()

    def _run(self) -> None:
        self._check_until_stopped()
        self._calls.close()

    def _check_until_stopped(self) -> None:
        n_failures = 0
        while not self._thread.pause(self._stop, self._pause(monotonic())):
            try:
                if not self._check(monotonic()):
                    return
                n_failures = 0
            except Exception as error:
                n_failures += 1
                if n_failures >= FAILURES_MAX:
                    warn_once("by time", f"memory is not sampled by time: {error!r}")
                    return

    def _pause(self, now: float) -> float:
        """Returns the seconds until the next check."""
        shortest, longest = CHECK_SECONDS
        if self._sampling_since is not None:
            return STEPS_SECONDS if self._is_slow else self._every(now)
        if self._process.n_steps > 0 and now - self._stepped_at < self._quiet():
            return STEPS_SECONDS
        return min(longest, shortest + (now - self._ran_at) / AGE_PER_SAMPLE)

    def _every(self, now: float) -> float:
        """Returns the seconds from one sample to the next."""
        age = now - (self._sampling_since or now)
        return min(max(CHECK_SECONDS[0], age / AGE_PER_SAMPLE), STEPS_SECONDS)

    def _quiet(self) -> float:
        return IDLE_SECONDS if self._process.unit else max(QUIET_SECONDS, QUIET_GAPS * self._longest_gap)

    def _check(self, now: float) -> bool:
        """Checks what the process does, and samples its memory if that is due. Returns False if it never has to again."""
        process = self._process
        self._counted.look()
        self._watch()
        if running:  # what looks at the memory calls CUDA
            return True
        if process.n_steps != self._n_steps:
            if self._n_steps:
                self._longest_gap = max(self._longest_gap, now - self._stepped_at)
            self._n_steps, self._stepped_at = process.n_steps, now
            self._forget_runs(now)
            self._follow_calls()
            return True
        if process.n_steps and now - self._stepped_at < self._quiet():
            return True
        if self._counted.is_running:  # its end is a reading
            return self._show_alive(now)
        is_running, is_training, is_in_call = self._activity()
        was_called = self._calls.any_since_last()
        if self._count_replays(is_running or was_called):
            return True
        is_new = not self._is_running or self._newest_run != self._seen_run
        self._seen_run = self._newest_run
        if was_called or (is_running and is_new):
            self._n_runs += 1
            self._run_since = now
        self._is_running = is_running = is_running or was_called
        self._is_slow = self._is_slow or is_training
        if is_running:
            self._ran_at = now
        if self._sampling_since is None and not self._begins(now):
            return self._show_alive(now)
        self._count_calls()
        if now - self._ran_at > RAN_WITHIN:
            return self._show_alive(now)
        if not is_in_call or now - self._sampled_at >= STEPS_SECONDS:
            return self._record(SAMPLE, now)
        return True

    def _begins(self, now: float) -> bool:
        """Returns whether sampling begins, because the model runs again and again."""
        is_long = self._is_running and now - self._run_since >= LONG_RUN_SECONDS
        if self._n_runs < RUNS_MIN and not is_long:
            return False
        self._is_slow = self._is_slow or self._n_runs < RUNS_MIN
        if is_helper():
            self._stop.set()
            return False
        self._sampling_since = now
        return True

    def _count_replays(self, has_run: bool) -> bool:
        """Has the replays counted of a program that replays graphs again and again, and runs no model. Returns whether they are from now on."""
        n_before, self._n_replays = self._n_replays, self._replays.n_seen
        if self._n_replays != n_before or has_run:
            self._n_replayed = 0 if has_run else self._n_replayed + 1
        if self._n_replayed < RUNS_MIN or is_helper() or (self._process.n_steps and self._process.unit == STEPS):
            return False
        self._n_replayed = 0
        return self._replays.begin_loop()

    def _count_calls(self) -> None:
        """Has the calls counted of what was seen to run, in a process that never took a step."""
        if self._process.n_steps and self._process.unit != CALLS:
            return
        self._counted.begin(self._model or self._calls.model, self._application)
        self._model = self._application = None

    def _follow_calls(self) -> None:
        """Looks for further classes whose calls count; in a process that takes steps, none count any more."""
        if self._process.unit == CALLS:
            self._activity()
            self._count_calls()
        elif self._counted.is_on:
            self._counted.end()
        if self._process.unit == STEPS:
            self._replays.rest()

    def _show_alive(self, now: float) -> bool:
        """Records that the process is alive, if it was ever recorded and that is due."""
        is_known = self._process.n_steps > 0 or self._sampling_since is not None
        return self._record(IDLE, now) if is_known and now - self._sampled_at >= IDLE_SECONDS else True

    def _record(self, phase_idx: int, now: float) -> bool:
        if self._process.has_lost_rank:
            return False
        self._sampled_at = now
        self._process.is_sampled = True
        self._sample(phase_idx)
        return True

    def _forget_runs(self, now: float) -> None:
        self._sampling_since = None
        self._calls.pause()
        self._n_runs, self._is_running, self._is_slow = 0, False, False
        self._ran_at = self._sampled_at = now

    def _activity(self) -> Tuple[bool, bool, bool]:
        """Returns whether any thread runs the model, whether one trains, and whether one is in a call of a library that frees
        memory only when it returns."""
        modules = sys.modules
        module = getattr(modules.get("torch.nn.modules.module"), "Module", None)
        if module is None:
            return self._has_freed(), False, False
        forward, calling = codes(module, "_call_impl", "_wrapped_call_impl"), codes(module, "_wrapped_call_impl")
        backward = codes(modules.get("torch.autograd"), "backward") | codes(getattr(modules.get("torch._tensor"), "Tensor", None), "backward")
        own = get_ident()
        is_running = is_training = is_in_call = False
        for thread, frame in sys._current_frames().items():
            if thread == own:
                continue
            inner: Optional[CodeType] = None
            current: Optional[FrameType] = frame
            for _ in range(DEPTH_MAX):
                if current is None:
                    break
                code = current.f_code
                is_running = is_running or id(code) in forward
                if id(code) in calling:  # the outermost is the last
                    self._model, self._newest_run = class_of_self(current) or self._model, id(current)
                else:
                    self._application = application_of(current) or self._application
                is_training = is_training or id(code) in backward
                is_in_call = is_in_call or (inner is not None and type(code.co_name) is str and code.co_name == "decorate_context" and _is_of_library(inner))
                inner, current = code, current.f_back
            del frame, current
        return is_running, is_training, is_in_call

    def _has_freed(self) -> bool:
        """Returns whether the allocator has freed memory again, in a program without modules. While a model is loaded it does not."""
        cuda = getattr(sys.modules.get("torch"), "cuda", None)
        if cuda is None or not cuda.is_initialized():
            return False
        stats = sys.modules["torch"]._C._cuda_memoryStats
        with step_lock():
            # Which device is the current one differs by thread.
            n_devices = 0 if running else cuda.device_count()
        devices = [stats(idx)["allocated_bytes"]["all"] for idx in range(n_devices)]
        before, self._allocated = self._allocated, sum(int(each["current"]) for each in devices)
        self._is_running = False  # each check that finds some is a run
        return self._allocated < before or any(each["peak"] > each["current"] for each in devices)


def _is_of_library(code: CodeType) -> bool:
    """Returns whether code is of an installed package other than PyTorch, as `generate` of transformers."""
    path = code.co_filename
    return type(path) is str and ("site-packages" in path or "dist-packages" in path) and f"packages{os.sep}torch{os.sep}" not in path


def is_helper() -> bool:
    """Returns whether this process works for another one of the program, which has the rank: a data loader's worker."""
    processes = library("multiprocessing.process")
    if processes is None or processes.parent_process() is None:
        return False
    return bool(processes.current_process().daemon) or not any(environment().get(name) for name in ("RANK", "LOCAL_RANK"))
