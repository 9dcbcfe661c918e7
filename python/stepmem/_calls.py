"""Counts the calls of a program that runs a model and no optimizer steps: of its ASGI application, of a library's function, else of the model.

No module has a hook. A model's class gets the function by which PyTorch calls a model that is compiled in place (`_compiled_call_impl`):
here it counts the call, and goes on as without it. `torch.compile` does not look at it where it traces the call of a module, so that there
are no further guards. All is as before once an optimizer steps.
"""

from __future__ import annotations

import sys
from _thread import allocate_lock, get_ident
from itertools import count
from time import monotonic
from types import FrameType, FunctionType
from typing import Any, Callable, List, Optional, Set, Tuple

from ._foreign import dict_of_type, imported_class, mro
from ._holders.frames import read
from ._model_calls import CALL
from ._process import Process
from ._readers import MemorySample
from ._signals import raise_if_of_handler
from ._torch import leave_out, like, untraced
from ._warn import warn_once

FUNCTIONS = (
    ("transformers.generation.utils", "GenerationMixin", "generate"),
    ("transformers.pipelines.base", "Pipeline", "__call__"),
    ("transformers.trainer", "Trainer", "predict"),
)
"""Functions of libraries that a program calls for an answer: module, class and name."""

COMPILED = ("torch._dynamo.eval_frame", "OptimizedModule")
"""The class of a model that `torch.compile` returns."""

CLASSES_MAX = 8
"""Classes of models, and of applications, that are counted, at most."""

APPLICATION = ("self", "scope", "receive", "send")
"""Arguments of an ASGI application."""

COROUTINE = 0x80
"""Flag of the code of a coroutine."""

HAS_LOCK = bool(getattr(sys, "_is_gil_enabled", lambda: True)())
"""Without it, a frame that is read may go on meanwhile."""

READ_EVERY = 0.2, 0.5
"""Shortest and longest time from one reading of memory to the next, in seconds, while calls end…"""

SEARCH_EVERY = 0.05
"""…the same while a search for holders goes on…"""

AGE_PER_READING = 300.0
"""…and else the time since the first, divided by this: growth must last for longer, the later it begins."""

SKIPPED = 0.75
"""Of the calls that come until the next reading is due, at the pace of the last ones, the share at whose ends nobody looks at the clock…"""

SKIPPED_MIN = 32
"""…if it is so many."""

LONG_SECONDS = 0.05
"""Calls that take so long on average, also those that run at once, bear the slices of a search that a step does."""

BUSY_SECONDS = 1.0
"""Where calls overlap for so long, the least of the readings at their ends counts."""


class Calls:
    """What is counted in one process, and the readings at the ends of calls."""

    def __init__(self, process: Process, level: Callable[[], Optional[MemorySample]], record: Callable[[int, MemorySample], None]) -> None:
        """`level` reads the memory; `record` takes the number of calls so far and the reading after them."""
        self._process = process
        self._level = level
        self._record = record
        self.is_on = False
        self._replaced: List[Tuple[type, str, Any, Any]] = []
        """Classes whose functions count calls: what they had, and what they have."""
        self._has_application = False
        self._running: Set[int] = set()
        """Threads that are in a call, and numbers of an application's calls."""
        self._numbers = count(1)
        self._lock = allocate_lock()
        self._due_at = self._busy_due_at = 0.0
        """Times from which the end of a call is read after which no call runs, or some still do."""
        self._look_at = self._n_read = 0
        """The number of the next call at whose end the clock is looked at, and of the one at whose end the memory was read last."""
        self._recorded_at = self._began_at = 0.0
        self._least: Optional[MemorySample] = None
        self._ends = untraced(self._call_ends)

    def begin(self, model: Optional[type], application: Optional[type]) -> None:
        """Counts the calls of these classes from now on, and of the functions of libraries that are imported; may be called again."""
        if not self.is_on:
            self.is_on, self._recorded_at = True, monotonic()
            self._began_at = self._began_at or self._recorded_at
        try:
            if application is not None and self._count_application(application):
                return
            if self._has_application:
                return
            for module, name, function in FUNCTIONS:
                self._count_function(imported_class(module, name), function)
            for each in (imported_class(*COMPILED), model):
                self._count_model(each)
        except Exception as error:
            raise_if_of_handler(error)
            self.end()
            warn_once("calls", f"calls are not counted: {error!r}")

    @property
    def is_running(self) -> bool:
        """Returns whether a call runs that will be counted."""
        return self.is_on and bool(self._running)

    def look(self) -> None:
        """Has the next call's end look at the clock: calls may have become rare."""
        self._look_at = 0

    def finish(self) -> None:
        """Records the calls since the last reading, at the end of the process."""
        if self.is_on:
            n, sample = next(self._numbers) - 1, self._level()
            if sample is not None and n > self._process.n_recorded:
                self._record(n, sample)

    def end(self) -> None:
        """Gives all classes what they had: the process takes steps."""
        self.is_on = False
        for class_, name, before, counted in reversed(self._replaced):
            if dict_of_type(class_).get(name) is not counted:
                continue  # the program has replaced it
            if before is None:
                type.__delattr__(class_, name)
            else:
                type.__setattr__(class_, name, before)
        self._replaced.clear()
        self._least = None

    def _replace(self, class_: type, name: str, counted: Any) -> None:
        leave_out(counted)
        self._replaced.append((class_, name, dict_of_type(class_).get(name), counted))
        type.__setattr__(class_, name, counted)

    def _is_new(self, class_: Optional[type], name: str) -> bool:
        """Returns whether a class has to be counted, and may be."""
        of_name = [known for known, of, _, _ in self._replaced if of == name]
        return class_ is not None and len(of_name) < CLASSES_MAX and not any(known is class_ for known in of_name)

    def _count_model(self, class_: Optional[type]) -> None:
        """Counts the calls of the models of a class, unless it has a function of that name itself."""
        if class_ is None or not self._is_new(class_, CALL):
            return
        owners = [base for base in mro(class_) if CALL in dict_of_type(base)]
        is_below = any(class_ is not known and known in owners for known, of, _, _ in self._replaced if of == CALL)
        if len(owners) != 1 or is_below:
            return  # a PyTorch without it, or a model that has its own; or a class below one that is counted
        running, add, remove, numbers, clock, ends = self._running, self._running.add, self._running.discard, self._numbers, monotonic, self._ends

        def counted(self: Any, *arguments: Any, **named: Any) -> Any:
            thread = get_ident()
            if thread in running:
                return self._call_impl(*arguments, **named)
            add(thread)
            try:
                return self._call_impl(*arguments, **named)
            finally:
                remove(thread)
                n = next(numbers)
                if n >= calls._look_at and clock() >= (calls._busy_due_at if running else calls._due_at):
                    ends(n)

        calls = self
        self._replace(class_, CALL, counted)

    def _count_function(self, class_: Optional[type], name: str) -> None:
        """Counts the calls of a library's function."""
        function = None if class_ is None else dict_of_type(class_).get(name)
        if class_ is None or type(function) is not FunctionType or not self._is_new(class_, name):
            return
        running, add, remove, numbers, ends, calls = self._running, self._running.add, self._running.discard, self._numbers, self._ends, self

        def counted(*arguments: Any, **named: Any) -> Any:
            thread = get_ident()
            if thread in running:
                return function(*arguments, **named)
            add(thread)
            try:
                return function(*arguments, **named)
            finally:
                remove(thread)
                n = next(numbers)
                if n >= calls._look_at and monotonic() >= (calls._busy_due_at if running else calls._due_at):
                    ends(n)

        self._replace(class_, name, like(counted, function))

    def _count_application(self, class_: type) -> bool:
        """Counts the requests to an ASGI application, and nothing else from now on. Returns whether it can."""
        if self._has_application and not self._is_new(class_, "__call__"):
            return True
        function = dict_of_type(class_).get("__call__")
        if type(function) is not FunctionType or function.__code__.co_varnames[: len(APPLICATION)] != APPLICATION:
            return False
        if not self._has_application:
            self.end()
            self._has_application = self.is_on = True
        running, numbers, begun, ends, calls = self._running, self._numbers, count(-1, -1), self._ends, self

        async def counted(self: Any, scope: Any, receive: Any, send: Any) -> Any:
            if type(scope) is not dict or scope.get("type") != "http":  # a connection that lasts is no call
                return await function(self, scope, receive, send)
            number = next(begun)
            running.add(number)
            try:
                return await function(self, scope, receive, send)
            finally:
                running.discard(number)
                n = next(numbers)
                if n >= calls._look_at and monotonic() >= (calls._busy_due_at if running else calls._due_at):
                    ends(n)

        self._replace(class_, "__call__", like(counted, function))
        return True

    def _call_ends(self, n: int) -> None:
        """Reads the memory at the end of the call that is the `n`th: after it no call runs, or it is one of the readings while some always do."""
        if not self.is_on or not self._lock.acquire(False):
            return  # another thread reads
        try:
            now = monotonic()
            shortest, longest = READ_EVERY
            every = SEARCH_EVERY if self._process.is_followed else min(max(shortest, (now - self._began_at) / AGE_PER_READING), longest)
            is_busy = bool(self._running)
            if now < (self._busy_due_at if is_busy else self._due_at):
                return
            self._busy_due_at = now + every
            sample = self._level()
            if sample is None:
                return
            if is_busy:
                least = self._least
                self._least = sample if least is None or sample.allocated < least.allocated else least
                if now - self._recorded_at < BUSY_SECONDS:
                    return
                sample = self._least
            took = now - self._recorded_at
            self._process.has_short_calls = took < LONG_SECONDS * (n - self._process.n_recorded)
            self._due_at = now + every
            skipped = SKIPPED * (n - self._n_read) * min(1.0, every / took) if took > 0.0 else 0.0
            self._look_at = n + int(skipped) if skipped >= SKIPPED_MIN else 0
            self._least, self._recorded_at, self._n_read = None, now, n
            self._record(n, sample)
        except Exception as error:
            raise_if_of_handler(error)
            warn_once("calls", f"the end of a call was not recorded: {error!r}")
        finally:
            self._lock.release()


def class_of_self(frame: FrameType) -> Optional[type]:
    """Returns the class of the object whose method runs in a frame; None where it cannot be read, as without the interpreter's lock."""
    if not HAS_LOCK:
        return None
    for idx, value in read(frame):
        if idx == 0:
            return type(value)
    return None


def application_of(frame: FrameType) -> Optional[type]:
    """Returns the class of the ASGI application that runs in a frame, as the class that defines it; None if none does."""
    code = frame.f_code
    if not code.co_flags & COROUTINE or code.co_name != "__call__" or code.co_varnames[: len(APPLICATION)] != APPLICATION:
        return None
    class_ = class_of_self(frame)
    for base in () if class_ is None else mro(class_):
        function = dict_of_type(base).get("__call__")
        if type(function) is FunctionType and function.__code__ is code:
            return base  # type: ignore[no-any-return]
    return None
