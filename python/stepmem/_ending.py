"""Notes the end of the program: completed, by an exception, or out of memory. Changes neither its output nor its exit code."""

from __future__ import annotations

import atexit
import sys
import time
from types import FrameType
from typing import Any, Callable, Iterator, Optional

from ._process import Process
from ._torch import is_out_of_memory
from ._wire import ERROR_TYPE_BYTES_MAX, MESSAGE_BYTES_MAX, End, cut

CAUSES_MAX = 8
"""Exceptions in a chain of causes that are followed, at most."""

HOST_OUT_OF_MEMORY = ("DefaultCPUAllocator", "allocate memory")
"""Parts of the message of the error that PyTorch raises when the host has no memory left; its type is RuntimeError."""

REQUESTS = ("tried to allocate ", "unable to allocate ")
"""Words before the size of a request in the message of an out-of-memory error, in lower case."""

UNITS = ("bytes", "kib", "mib", "gib", "tib")

MESSAGE_CHARACTERS_MAX = 4096
"""Characters of a message in which the size is searched for."""

FORKS = ("multiprocessing.popen_fork", "multiprocessing.forkserver")
"""Modules whose functions fork, and keep the child's exit code in their variable `code`."""


class Ending:
    """Derives the outcome of the program from its uncaught exception or its exit code."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._is_installed = False
        self._hook: Any = None
        self._noted: Optional[End] = None
        self._noted_at = 0
        """Steps that were counted when the end was noted: it did not happen if the program went on stepping."""
        self._reported_at = -1

    def install(self, at_exit: Callable[[], None]) -> None:
        """Wraps `sys.excepthook` and `sys.exit`, once in a process. Makes a process of `multiprocessing` call `at_exit` at its end."""
        self._install_in_worker(at_exit)
        if self._is_installed:
            return
        self._is_installed = True
        hook, leave = sys.excepthook, sys.exit

        def excepthook(kind: Any, error: Any, trace: Any) -> None:
            self.note(error)
            hook(kind, error, trace)

        def exit(*status: Any) -> None:
            error = SystemExit(*status)
            error.__context__ = sys.exc_info()[1]  # the error that is being handled, as it is once `leave` raises
            self.note(error)
            leave(*status)

        exit.__doc__ = leave.__doc__
        self._hook = sys.excepthook = excepthook
        sys.exit = exit  # type: ignore[assignment]

    def _install_in_worker(self, at_exit: Callable[[], None]) -> None:
        """Calls `at_exit` with the finalizers of a process of `multiprocessing`: a forked one does not reach the interpreter's exit."""
        processes = sys.modules.get("multiprocessing.process")
        if processes is None or processes.parent_process() is None:
            return

        def end() -> None:
            error = _workers_error()
            if error is not None:
                self.note(error)
            at_exit()

        atexit.unregister(at_exit)
        sys.modules["multiprocessing.util"].Finalize(None, end, exitpriority=0)

    def in_child(self, process: Process) -> None:
        """Starts over in a forked child."""
        self._process = process
        self._noted = None
        self._reported_at = -1

    def note(self, error: BaseException) -> None:
        """Notes an exception that ends the program unless the program goes on stepping. Raises nothing."""
        try:
            self._noted = self._success(error) if _is_success(error) else self._failure(error)
            self._noted_at = self._process.n_steps
        except Exception:
            self._noted = None

    def report(self, outcome: str) -> End:
        """Returns the end that the program itself reports."""
        end = self._end(outcome, is_automatic=False)
        self._reported_at = self._process.n_recorded = self._process.n_steps  # if it goes on, they are not counted twice
        return end

    def at_exit(self) -> Optional[End]:
        """Returns how the program ended; None if it has reported that since its last step."""
        n_steps = self._process.n_steps
        if self._reported_at == n_steps:
            return None
        if self._noted is not None and self._noted_at == n_steps:
            return self._noted
        error = self._uncaught()
        return self._end("completed") if error is None else self._failure(error)

    def _uncaught(self) -> Optional[BaseException]:
        """Returns the exception that Python reported last if the program replaced our hook, as `rich` does."""
        if sys.excepthook is self._hook or hasattr(sys, "ps1") or "IPython" in sys.modules:
            return None
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        return error if isinstance(error, BaseException) else None

    def _success(self, error: BaseException) -> Optional[End]:
        """Returns the end of a program that exits with 0 while it handles an out-of-memory error; None for any other."""
        if _memory_error(error) is None:
            return None
        end = self._end("completed")
        end.ooms = 1
        return end

    def _failure(self, error: BaseException) -> End:
        memory_error = _memory_error(error)
        end = self._end("failed" if memory_error is None else "oom")
        cause = memory_error or error
        kind = type(cause)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        end.error_type = cut(name, ERROR_TYPE_BYTES_MAX)
        message = str(cause)
        end.error_message = cut(message.strip().partition("\n")[0], MESSAGE_BYTES_MAX) or None
        if memory_error is not None:
            end.requested_bytes = _requested_bytes(message)
        return end

    def _end(self, outcome: str, is_automatic: bool = True) -> End:
        end = End(outcome, is_automatic)
        end.time = time.time()
        end.step = self._process.step
        end.unread_steps = (self._process.n_steps - self._process.n_recorded) or None
        return end


def _workers_error() -> Optional[BaseException]:
    """Returns the exception by which this process of `multiprocessing` ends, `SystemExit(0)` if by none; None where that is unknown.

    Its finalizers run while the exception is on its way through `_bootstrap`. From Python 3.13 on it is handled by then, and its
    exit code is known in a forked process only; a spawned one then calls `sys.exit`.
    """
    bootstrap = sys.modules["multiprocessing.process"].BaseProcess._bootstrap.__code__
    error = sys.exc_info()[1]
    frame: Optional[FrameType] = sys._getframe()
    while frame is not None:
        if frame.f_code is bootstrap:
            trace = None if error is None else error.__traceback__  # of another one if it was forked while that was handled
            return error if trace is not None and trace.tb_frame is frame else SystemExit(0)
        if frame.f_globals.get("__name__") in FORKS and "code" in frame.f_locals:
            return SystemExit(frame.f_locals["code"])
        frame = frame.f_back
    return None


def _is_success(error: BaseException) -> bool:
    """Returns whether an exception is an exit with code 0."""
    return isinstance(error, SystemExit) and (error.code is None or error.code == 0)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yields an exception and those that led to it, the newest first."""
    cause: Optional[BaseException] = error
    for _ in range(CAUSES_MAX):
        if cause is None:
            return
        yield cause
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)


def _memory_error(error: BaseException) -> Optional[BaseException]:
    """Returns the out-of-memory error among the causes of an exception; None if there is none."""
    return next((each for each in _causes(error) if _is_out_of_memory(each)), None)


def _is_out_of_memory(error: BaseException) -> bool:
    is_of_host = isinstance(error, RuntimeError) and all(words in str(error) for words in HOST_OUT_OF_MEMORY)
    return is_of_host or isinstance(error, MemoryError) or is_out_of_memory(error)


def _requested_bytes(message: str) -> Optional[int]:
    """Returns the request that an out-of-memory error names, to the digits that it gives; None if it names none."""
    message = message[:MESSAGE_CHARACTERS_MAX].lower()
    for words in REQUESTS:
        number, _, rest = message.partition(words)[2][:64].partition(" ")
        exponent = next((idx for idx, unit in enumerate(UNITS) if rest.startswith(unit)), -1)
        if exponent >= 0 and number.replace(".", "", 1).isdecimal():
            return int(round(float(number) * 1024**exponent))
    return None
