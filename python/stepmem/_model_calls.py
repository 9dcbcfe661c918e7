"""Notes that the program called a model since the last look, however short the call was, with a hook that removes itself.

While no module has a hook, PyTorch's calls cost what they did. `torch.compile` would guard on the hook and warn of it, so there is
none from the compiler's import on.
"""

from __future__ import annotations

import sys
from types import CodeType, FrameType
from typing import Any, Optional

from ._signals import raise_if_of_handler

COMPILER = "torch._dynamo"

CALLS_MAX = 8
"""Calls after which the hook removes itself even if none was of a model: parts of one, or transforms of data."""

DEPTH_MAX = 500
"""Frames of a thread that are read, at most."""


class ModelCalls:
    """The hook of one process, and an import finder that waits for the compiler. Finds no module itself."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._n_left = 0
        self._is_called = False
        self._is_waiting = False
        """Set once the finder is installed."""
        # Without the interpreter's lock, another thread may be reading the hooks while one is added or removed.
        self._is_closed = not getattr(sys, "_is_gil_enabled", lambda: True)()

    def any_since_last(self) -> bool:
        """Returns whether a model was called since this was called last, and waits for the next call."""
        is_called, self._is_called = self._is_called, False
        if COMPILER in sys.modules:
            self.close()
        elif self._handle is None and not self._is_closed:
            self._wait()
        return is_called

    def pause(self) -> None:
        """Removes the hook until the next look."""
        handle, self._handle = self._handle, None
        if handle is not None:
            try:
                handle.remove()
            except KeyError:  # another thread has removed it
                pass

    def close(self) -> None:
        """Removes the hook for good."""
        self._is_closed = True
        self.pause()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Removes the hook before the compiler is imported; returns None for all modules."""
        if name == COMPILER:
            self.close()
            if self in sys.meta_path:
                sys.meta_path.remove(self)

    def _wait(self) -> None:
        register = getattr(sys.modules.get("torch.nn.modules.module"), "register_module_forward_pre_hook", None)
        if register is None:
            return
        if not self._is_waiting:
            self._is_waiting = True
            sys.meta_path.insert(0, self)
        self._n_left = CALLS_MAX
        self._handle = register(self._on_call)
        if self._is_called or self._is_closed:  # meanwhile
            self.pause()

    def _on_call(self, module: Any, arguments: Any) -> None:
        """Runs before the forward of a module, on the thread that calls it."""
        try:
            self._n_left -= 1
            is_model = next(iter(module.parameters()), None) is not None and not _is_part(module)
            if is_model or self._n_left <= 0:
                self.pause()
            self._is_called = self._is_called or is_model
        except Exception as error:
            self.close()
            raise_if_of_handler(error)


def codes(owner: Any, *names: str) -> "frozenset[CodeType]":
    """Returns the code of those of the owner's functions that exist."""
    found = (getattr(getattr(owner, name, None), "__code__", None) for name in names)
    return frozenset(code for code in found if isinstance(code, CodeType))


def _is_part(module: Any) -> bool:
    """Returns whether the call of a module that calls this is inside the call of another one."""
    calls = codes(type(module), "_call_impl")
    n_calls = 0
    frame: Optional[FrameType] = sys._getframe(1)
    for _ in range(DEPTH_MAX):
        if frame is None:
            break
        n_calls += frame.f_code in calls
        frame = frame.f_back
    return n_calls > 1
