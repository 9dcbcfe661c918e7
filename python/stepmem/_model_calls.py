"""Notes that the program called a model since the last look, however short the call was, with a function that removes itself.

Asks no object of the program: a model may have `parameters`, attributes and a metaclass of its own. Otherwise PyTorch's calls cost what they did.
The function is the one by which PyTorch calls a model that is compiled in place, here of all modules: `torch.compile` does not look at it. A PyTorch
without that (before 2.2) gets a hook; `torch.compile` would guard on the hook and warn of it, so there is none from the compiler's import on.
"""

from __future__ import annotations

import sys
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, Dict, List, Optional

from ._foreign import attribute, dict_of_module, dict_of_type, is_subclass, mro, values
from ._signals import raise_if_of_handler
from ._torch import leave_out, untraced

COMPILER = "torch._dynamo"

CALL = "_compiled_call_impl"
"""The function of a class of modules that PyTorch calls instead of `_call_impl`, where there is one."""

CALLS_MAX = 8
"""Calls after which the hook removes itself even if none was of a model: parts of one, or transforms of data."""

DEPTH_MAX = 500
"""Frames of a thread that are read, at most."""

PARTS_MAX = 512
"""Modules of a model that are looked at for parameters, at most; with more, it is taken for one without."""


class ModelCalls:
    """The hook of one process, and an import finder that waits for the compiler. Finds no module itself."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._module: Optional[type] = None
        """The class of all modules, while it has the function."""
        self._n_left = 0
        self._is_called = False
        self.model: Optional[type] = None
        """The class of the last model that was seen to be called."""
        self._is_waiting = False
        """Set once the finder is installed."""
        # Without the interpreter's lock, another thread may be reading the hooks while one is added or removed.
        self._is_closed = not getattr(sys, "_is_gil_enabled", lambda: True)()

    def any_since_last(self) -> bool:
        """Returns whether a model was called since this was called last, and waits for the next call."""
        is_called, self._is_called = self._is_called, False
        if self._handle is None and self._module is None and not self._is_closed:
            module = _names_of_torch().get("Module")
            if is_subclass(type, type(module)) and dict_of_type(module).get(CALL, False) is None:
                self._wait_in(module)
            elif COMPILER in sys.modules:
                self.close()
            else:
                self._wait()
        return is_called

    def pause(self) -> None:
        """Removes the hook until the next look."""
        module, self._module = self._module, None
        if module is not None:
            type.__setattr__(module, CALL, None)
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

    def _wait_in(self, module: Any) -> None:
        """Has the next call of any module noted."""
        note = untraced(self._on_call)

        def noted(self: Any, *arguments: Any, **named: Any) -> Any:
            note(self, None)
            return self._call_impl(*arguments, **named)

        leave_out(noted)
        self._n_left = CALLS_MAX
        self._module = module
        type.__setattr__(module, CALL, noted)
        if self._is_called or self._is_closed:  # meanwhile
            self.pause()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Removes the hook before the compiler is imported; returns None for all modules."""
        if name == COMPILER:
            self.close()
            if self in sys.meta_path:
                sys.meta_path.remove(self)

    def _wait(self) -> None:
        register = _names_of_torch().get("register_module_forward_pre_hook")
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
        """Runs before the forward of a module, on the thread that calls it; in the hook with its arguments, else before PyTorch's function runs."""
        try:
            self._n_left -= 1
            is_model = _has_parameters(module) and not _is_part(module, 0 if arguments is None else 1)
            if is_model or self._n_left <= 0:
                self.pause()
            self._is_called = self._is_called or is_model
            if is_model:
                self.model = type(module)
        except Exception as error:
            self.close()
            raise_if_of_handler(error)


def codes(owner: Any, *names: str) -> "frozenset[int]":
    """Returns the ids of the code of those functions of a class or module that exist: code is compared by all its constants."""
    of = dict_of_type(owner) if is_subclass(type, type(owner)) else dict_of_module(owner) if type(owner) is ModuleType else {}
    found = (of.get(name) for name in names)
    return frozenset(id(function.__code__) for function in found if type(function) is FunctionType)


def _names_of_torch() -> Dict[str, Any]:
    """Returns the namespace in which PyTorch defines its modules; empty if it is not imported."""
    module = sys.modules.get("torch.nn.modules.module")
    return dict_of_module(module) if type(module) is ModuleType else {}


def _has_parameters(module: Any) -> bool:
    """Returns whether a module or a part of it has parameters."""
    waiting: List[Any] = [module]
    seen = {id(module)}
    for each in waiting:
        if any(parameter is not None for parameter in values(attribute(each, "_parameters"))):
            return True
        for part in values(attribute(each, "_modules")):
            if id(part) not in seen and len(waiting) < PARTS_MAX:
                seen.add(id(part))
                waiting.append(part)
    return False


def _call_impl(class_: Any) -> Optional[CodeType]:
    """Returns the code that calls the modules of a class."""
    for base in mro(class_):
        if "_call_impl" in dict_of_type(base):
            function = dict_of_type(base)["_call_impl"]
            return function.__code__ if type(function) is FunctionType else None
    return None


def _is_part(module: Any, n_own: int) -> bool:
    """Returns whether the call of a module that calls this is inside the call of another one; `n_own` calls of its own are running."""
    code = _call_impl(type(module))
    n_calls = 0
    frame: Optional[FrameType] = sys._getframe(1)
    for _ in range(DEPTH_MAX):
        if frame is None:
            break
        n_calls += frame.f_code is code
        frame = frame.f_back
    return n_calls > n_own
