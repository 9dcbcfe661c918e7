"""Separates exceptions of the program's own signal handlers, which run inside this client's code too, from this client's."""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]
import _thread
import os
from functools import partial
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any, Optional, Set

PARTIALS_MAX = 8
"""Partials of partials that are followed to a handler."""

ARGUMENTS_MAX = 16
"""Of a function's `*arguments`, so many are looked at."""


def raise_if_of_handler(error: BaseException) -> None:
    """Raises `error` again if a signal handler of the program raised it. For the function that has just caught it."""
    trace = error.__traceback__
    if trace is not None and trace.tb_next is not None and is_main() and _is_of_handler(error):
        try:
            raise error
        finally:
            del error, trace  # its traceback has this frame now: a cycle would keep the client's open files


def getsignal(number: int) -> Any:
    """Returns the handler of a signal as the interpreter has it: a callable, 0 (default), 1 (ignored) or None (not Python's)."""
    return signal.getsignal(number)


def is_main() -> bool:
    """Returns whether this is the main thread, in which signal handlers run."""
    return _thread.get_native_id() == os.getpid()


def _is_of_handler(error: BaseException) -> bool:
    """Returns whether a frame of the traceback is a handler: one by its code, or one that got a frame as argument."""
    codes: Optional[Set[CodeType]] = None
    trace = error.__traceback__
    while trace is not None:
        if codes is None:
            codes = _handlers()
        frame = trace.tb_frame
        if frame.f_code in codes or _has_frame(frame):
            return True
        trace = trace.tb_next
    return False


def _handlers() -> Set[CodeType]:
    """Returns the code of all signal handlers, without running any of the program's: an attribute of its objects may be a property."""
    codes: Set[CodeType] = set()
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        for _ in range(PARTIALS_MAX):
            if type(handler) is not partial:
                break
            handler = handler.func
        if type(handler) is MethodType:
            handler = handler.__func__
        elif type(handler) is not FunctionType:
            handler = _call_of(type(handler))
        if type(handler) is FunctionType:
            codes.add(handler.__code__)
    return codes


def _call_of(class_: Any) -> Any:
    """Returns the `__call__` of a class, wherever it inherits it from; None if it has none."""
    bases = (type.__dict__["__dict__"].__get__(base) for base in type.__dict__["__mro__"].__get__(class_))
    return next((names["__call__"] for names in bases if "__call__" in names), None)


def _has_frame(frame: FrameType) -> bool:
    """Returns whether one of a function's arguments is a frame, as the second one of a signal handler."""
    code = frame.f_code
    n_arguments = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 0x04)  # *arguments
    names = frame.f_locals
    values = [names.get(name) for name in code.co_varnames[:n_arguments]]
    return any(type(each) is FrameType for value in values for each in (value[:ARGUMENTS_MAX] if type(value) is tuple else (value,)))
