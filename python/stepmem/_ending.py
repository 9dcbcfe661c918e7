"""Notes the end of the program: completed, by an exception, or out of memory. Changes neither its output nor its exit code."""

from __future__ import annotations

import atexit
import sys
import time
from types import FrameType, FunctionType
from typing import Any, Callable, Iterator, Optional, Tuple

from ._isolation import library
from ._process import Process
from ._torch import is_out_of_memory
from ._wire import ERROR_TYPE_BYTES_MAX, MESSAGE_BYTES_MAX, End, cut

CAUSES_MAX = 8
"""Exceptions in a chain of causes that are followed, at most."""

HOST_OUT_OF_MEMORY = ("DefaultCPUAllocator", "allocate memory")
"""Parts of the message of the error that PyTorch raises when the host has no memory left; its type is RuntimeError."""

REQUESTS = ("tried to allocate ", "unable to allocate ")
"""Words before the size of a request in the message of an out-of-memory error, in lower case."""

ALLOWED = " allowed;"
"""Words after the most that PyTorch's allocator may reserve."""

UNITS = ("bytes", "kib", "mib", "gib", "tib")

MESSAGE_CHARACTERS_MAX = 4096
"""Characters of a message in which the size is searched for."""

OUTERMOST = ("<module>", "_run_module_as_main")
"""Names of the outermost function of a program: its own, and that of `python -m`."""

# Read what exceptions and types of the program hold without running what these define.
MRO = type.__dict__["__mro__"].__get__
TYPE_NAME = type.__dict__["__qualname__"].__get__
TYPE_MODULE = type.__dict__["__module__"].__get__
TYPE_NAMES = type.__dict__["__dict__"].__get__
ARGUMENTS = BaseException.__dict__["args"].__get__
TRACEBACK = BaseException.__dict__["__traceback__"].__get__
CAUSE = BaseException.__dict__["__cause__"].__get__
CONTEXT = BaseException.__dict__["__context__"].__get__
SUPPRESSES_CONTEXT = BaseException.__dict__["__suppress_context__"].__get__
FILE = OSError.__dict__["filename"].__get__
OTHER_FILE = OSError.__dict__["filename2"].__get__
EXIT_CODE = SystemExit.__dict__["code"].__get__

PLAIN = (str, bytes, int, float, bool, type(None))
"""Types of arguments that say what they are without code of the program."""

LIBRARIES = ("numpy", "torch")
"""Packages whose exceptions may say by their own code what they are: how much memory was to be allocated."""

FORKS = ("multiprocessing.popen_fork", "multiprocessing.forkserver")
"""Modules whose functions fork, and keep the child's exit code in their variable `code`."""


class Ending:
    """Derives the outcome of the program from its uncaught exception or its exit code."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._is_installed = False
        self._noted: Optional[End] = None
        self._noted_at = 0
        """Steps that were counted when the end was noted: it did not happen if the program went on stepping."""
        self._reported_at = -1

    def install(self, at_exit: Callable[[], None]) -> None:
        """Wraps `sys.exit`, once in a process. Makes a process of `multiprocessing` call `at_exit` at its end."""
        self._install_in_worker(at_exit)
        if self._is_installed:
            return
        self._is_installed = True
        leave = sys.exit

        def exit(*status: Any) -> None:
            error = SystemExit(*status)
            error.__context__ = sys.exc_info()[1]  # the error that is being handled, as it is once `leave` raises
            self.note(error)
            leave(*status)

        exit.__doc__ = leave.__doc__
        sys.exit = exit  # type: ignore[assignment]

    def _install_in_worker(self, at_exit: Callable[[], None]) -> None:
        """Calls `at_exit` with the finalizers of a process of `multiprocessing`: a forked one does not reach the interpreter's exit."""
        processes = library("multiprocessing.process")
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
        error = self._uncaught()
        if error is not None:
            return self._failure(error)
        if self._noted is not None and self._noted_at == n_steps:
            return self._noted
        return self._end("completed")

    def _uncaught(self) -> Optional[BaseException]:
        """Returns the exception that ended the program. Python keeps it before it calls `sys.excepthook`, which stays the program's."""
        error: Any = vars(sys).get("last_exc") or vars(sys).get("last_value")
        if "ps1" in vars(sys) or "IPython" in sys.modules or not _is_a(error, BaseException):
            return None
        trace = TRACEBACK(error)
        code = None if trace is None else trace.tb_frame.f_code
        # A test runner or debugger keeps those that it caught there, too.
        return error if code is not None and code.co_name in OUTERMOST else None

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
        end.error_type = cut(_type_name(type(cause)), ERROR_TYPE_BYTES_MAX)
        message = _message(cause)
        end.error_message = cut(message.strip().partition("\n")[0], MESSAGE_BYTES_MAX) or None
        if memory_error is not None:
            end.requested_bytes = _requested_bytes(message)
            end.reserved_limit_bytes = _allowed_bytes(message)
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
    if not _is_a(error, SystemExit):
        return False
    code = EXIT_CODE(error)
    return code is None or (_is_a(code, int) and int.__eq__(code, 0) is True)


def _is_a(value: Any, kind: type) -> bool:
    """Is `isinstance`, which asks an object of the program for its class, without that."""
    return issubclass(type(value), kind)


def _type_name(kind: type) -> str:
    module, name = TYPE_MODULE(kind), TYPE_NAME(kind)
    return f"{module}.{name}" if type(module) is str and module != "builtins" else f"{name}"


def _message(error: BaseException) -> str:
    """Returns what an exception says; the first of its arguments that is a text if it says so by code of the program."""
    values: Tuple[Any, ...] = ARGUMENTS(error)
    if _is_a(error, OSError):
        values += (FILE(error), OTHER_FILE(error))
    written = next(TYPE_NAMES(base)["__str__"] for base in MRO(type(error)) if "__str__" in TYPE_NAMES(base))
    is_library = type(written) is FunctionType and str(written.__module__).partition(".")[0] in LIBRARIES
    if is_library or (type(written) is type(BaseException.__str__) and all(type(each) in PLAIN for each in values)):
        text: str = written(error)
        return text
    return next((str(each) for each in values if type(each) is str), "")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yields an exception and those that led to it, the newest first."""
    cause: Optional[BaseException] = error
    for _ in range(CAUSES_MAX):
        if cause is None:
            return
        yield cause
        before = CAUSE(cause)
        if before is None and not SUPPRESSES_CONTEXT(cause):
            before = CONTEXT(cause)
        cause = before


def _memory_error(error: BaseException) -> Optional[BaseException]:
    """Returns the out-of-memory error among the causes of an exception; None if there is none."""
    return next((each for each in _causes(error) if _is_out_of_memory(each)), None)


def _is_out_of_memory(error: BaseException) -> bool:
    is_of_host = _is_a(error, RuntimeError) and all(words in _message(error) for words in HOST_OUT_OF_MEMORY)
    return is_of_host or _is_a(error, MemoryError) or is_out_of_memory(error)


def _requested_bytes(message: str) -> Optional[int]:
    """Returns the request that an out-of-memory error names, to the digits that it gives; None if it names none."""
    message = message[:MESSAGE_CHARACTERS_MAX].lower()
    for words in REQUESTS:
        number, _, rest = message.partition(words)[2][:64].partition(" ")
        size = _size(number, next((unit for unit in UNITS if rest.startswith(unit)), ""))
        if size is not None:
            return size
    return None


def _allowed_bytes(message: str) -> Optional[int]:
    """Returns the most that the allocator may reserve, where an error names that (`11.18 GiB allowed; …`), to the digits that it gives."""
    before, words, _ = message[:MESSAGE_CHARACTERS_MAX].lower().partition(ALLOWED)
    number, _, unit = before[-64:].rpartition(" ")
    return _size(number.rpartition(" ")[2], unit) if words else None


def _size(number: str, unit: str) -> Optional[int]:
    """Returns a number of bytes; None of anything else."""
    if unit not in UNITS or not number.replace(".", "", 1).isdecimal():
        return None
    return int(round(float(number) * 1024 ** UNITS.index(unit)))
