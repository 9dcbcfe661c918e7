"""Separates exceptions of the program's own signal handlers, which run inside this client's code too, from this client's."""

from __future__ import annotations

import signal
import threading
from types import CodeType, FrameType
from typing import Any, Optional, Set


def raise_if_of_handler(error: BaseException) -> None:
    """Raises `error` again if a signal handler of the program raised it."""
    if threading.current_thread() is threading.main_thread() and _is_of_handler(error):
        raise error


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
    """Returns the code of all signal handlers."""
    codes: Set[CodeType] = set()
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        while hasattr(handler, "func"):  # functools.partial
            handler = handler.func
        for function in (handler, getattr(handler, "__func__", None), getattr(type(handler), "__call__", None)):
            code = getattr(function, "__code__", None)
            if isinstance(code, CodeType):
                codes.add(code)
    return codes


def _has_frame(frame: FrameType) -> bool:
    """Returns whether one of a function's arguments is a frame, as the second one of a signal handler."""
    code = frame.f_code
    n_arguments = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 0x04)  # *arguments
    values = [frame.f_locals.get(name) for name in code.co_varnames[:n_arguments]]
    return any(isinstance(each, FrameType) for value in values for each in (value if isinstance(value, tuple) else (value,)))
