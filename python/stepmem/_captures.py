"""Knows while a thread captures a CUDA graph, and which optimizers step in it: those steps are recorded, not taken.

Until the capture ends, other threads may make no call of CUDA that is not safe then, and the client makes none at all, nor any of NVML. What
captures without PyTorch's class of graphs is not seen.
"""

from __future__ import annotations

from _thread import get_ident
from types import FunctionType
from typing import Any, Callable, Dict, List, Optional

from ._foreign import dict_of_type, imported_class
from ._peaks import step_lock
from ._signals import raise_if_of_handler
from ._torch import leave_out, like
from ._warn import warn_once

GRAPH = ("torch.cuda.graphs", "CUDAGraph")
"""PyTorch's class of graphs: its module and name."""


class Capture:
    """A capture that goes on."""

    __slots__ = ("graph", "optimizers")

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self.optimizers: List[Any] = []
        """Optimizers that stepped in it, each once."""

    def note(self, optimizer: Any) -> None:
        """Notes a step of an optimizer."""
        if not any(known is optimizer for known in self.optimizers):
            self.optimizers.append(optimizer)


Captured = Callable[[Any, List[Any]], None]

running: Dict[int, Capture] = {}
"""The captures that go on, by the thread that began each. The client calls neither CUDA nor NVML while there is one."""

_is_installed = False


def install(captured: Captured) -> None:
    """Follows the captures from now on, once PyTorch's class of graphs is imported; may be called again. Raises nothing.

    `captured` gets each graph whose capture has ended, and the optimizers that stepped in it.
    """
    global _is_installed
    class_ = None if _is_installed else imported_class(*GRAPH)
    if class_ is None:
        return
    _is_installed = True
    try:
        begin, end = (dict_of_type(class_).get(name) for name in ("capture_begin", "capture_end"))
        if type(begin) is FunctionType and type(end) is FunctionType:
            replace(class_, "capture_begin", begin, _beginning(begin))
            replace(class_, "capture_end", end, _ending(end, captured))
    except Exception as error:
        raise_if_of_handler(error)
        warn_once("captures", f"captures of CUDA graphs are not noticed: {error!r}")


def _beginning(begin: Any) -> Any:
    def capture_begin(graph: Any, *arguments: Any, **named: Any) -> Any:
        with step_lock():  # no call of the client's goes on any more
            running[get_ident()] = Capture(graph)
        try:
            return begin(graph, *arguments, **named)
        except BaseException:
            _end(graph)
            raise

    return capture_begin


def _ending(end: Any, captured: Captured) -> Any:
    def capture_end(graph: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return end(graph, *arguments, **named)
        finally:
            capture = _end(graph)
            if capture is not None:
                captured(graph, capture.optimizers)

    return capture_end


def _end(graph: Any) -> Optional[Capture]:
    for thread, capture in list(running.items()):
        if capture.graph is graph:
            return running.pop(thread, None)
    return None


def replace(class_: type, name: str, function: Any, wrapper: Any) -> None:
    """Gives a class a function of the client's instead of one that it stands for."""
    leave_out(like(wrapper, function))
    setattr(class_, name, wrapper)  # not as `type` does: PyTorch's class is one of pybind11
