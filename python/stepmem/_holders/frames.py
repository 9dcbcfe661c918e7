"""Reads the local variables of running functions without keeping them alive.

Before Python 3.13, reading `frame.f_locals` copies all local variables into a dictionary that exists as long as the frame: the
copy would keep tensors alive. So they are read where the interpreter has them, after a check that it has them there.
"""

from __future__ import annotations

import gc
import sys
import types
from typing import Any, List, Tuple

WORD = 8
IS_CPYTHON = sys.implementation.name == "cpython" and sys.maxsize > 1 << 32 and not getattr(sys, "abiflags", "")
VERSION = sys.version_info[:2]

Local = Tuple[int, Any]
"""A local variable: its index among the names of `local_names`, and its value."""

OPTIMIZED = 1
"""Flag of code whose local variables are not in a dictionary."""

FRAMES_MAX = 128
"""Frames of one thread that are read, at most; those nearest to the step's end."""

LOCALS_MAX = 4096
"""A function with more local variables is not read."""


def local_names(code: types.CodeType) -> List[str]:
    """Returns the names of a function's local variables, then of its cells and free variables."""
    names = list(code.co_varnames)
    arguments = set(names) if VERSION >= (3, 11) else ()
    names += [name for name in code.co_cellvars if name not in arguments]
    return names + list(code.co_freevars)


def can_read() -> bool:
    """Returns whether this interpreter's local variables can be read."""
    return VERSION >= (3, 13) or (IS_CPYTHON and (3, 9) <= VERSION)


def read(frame: types.FrameType) -> List[Local]:
    """Returns the local variables of a running function; empty if they cannot be read."""
    code = frame.f_code
    if not code.co_flags & OPTIMIZED:
        return []  # a module or class body, whose variables are in a namespace
    if code.co_nlocals + len(code.co_cellvars) + len(code.co_freevars) > LOCALS_MAX:
        return []
    if VERSION >= (3, 13):
        return _from_proxy(frame)
    if not IS_CPYTHON:
        return []
    if VERSION == (3, 12):
        return _from_function(frame)
    return _from_words(frame)


def _from_proxy(frame: types.FrameType) -> List[Local]:
    names = {name: idx for idx, name in enumerate(local_names(frame.f_code))}
    return [(names[name], value) for name, value in frame.f_locals.items() if name in names]


def _from_function(frame: types.FrameType) -> List[Local]:
    """Reads by PyFrame_GetVar, which copies nothing. It is new in Python 3.12."""
    import ctypes

    get_variable = ctypes.pythonapi.PyFrame_GetVar
    get_variable.restype = ctypes.py_object
    get_variable.argtypes = (ctypes.py_object, ctypes.py_object)
    found: List[Local] = []
    for idx, name in enumerate(local_names(frame.f_code)):
        try:
            found.append((idx, get_variable(frame, name)))
        except NameError:
            pass
    return found


def _from_words(frame: types.FrameType) -> List[Local]:
    """Reads the words of the frame. Returns nothing unless the words around them are those that must be there."""
    import ctypes

    word = ctypes.c_size_t
    code = frame.f_code
    n_words = len(local_names(code))
    if VERSION == (3, 11):
        if type(frame).__basicsize__ < 5 * WORD:
            return []
        # PyFrameObject: head, f_back, f_frame.  _PyInterpreterFrame: f_func, f_globals, f_builtins, f_locals, f_code,
        # frame_obj, previous, prev_instr, stacktop and flags, localsplus.
        inner = word.from_address(id(frame) + 3 * WORD).value
        if not inner or inner % WORD:
            return []
        words = (word * 9).from_address(inner)
        if (words[1], words[4], words[5]) != (id(frame.f_globals), id(code), id(frame)):
            return []
        start = inner + 9 * WORD
    else:
        # PyFrameObject ends with f_localsplus, of which its basic size counts one word.
        start = id(frame) + type(frame).__basicsize__ - WORD
        referents = {id(each) for each in gc.get_referents(frame)}
        if not referents.issuperset(filter(None, (word * n_words).from_address(start))):
            return []
    found: List[Local] = []
    for idx, address in enumerate((word * n_words).from_address(start)):
        if address:
            found.append((idx, ctypes.cast(address, ctypes.py_object).value))
    return found
