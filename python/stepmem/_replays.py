"""Counts the replays of CUDA graphs in a program whose optimizer steps, if any, are recorded in graphs.

A graph in which optimizers stepped repeats these steps: what is an iteration is decided as with steps. Of other graphs, those of a program that
never steps, an iteration ends where the program's loop is back at the place from which its first graph was replayed.
"""

from __future__ import annotations

import os
import sys
import weakref
from types import FrameType, FunctionType
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from ._captures import GRAPH, replace
from ._foreign import dict_of_type, imported_class
from ._process import Process
from ._signals import raise_if_of_handler
from ._torch import untraced
from ._warn import warn_once

GRAPHS_MAX = 4096
"""Graphs with steps of optimizers, and graphs of an iteration, that are remembered, at most."""

DEPTH_MAX = 64
"""Frames between a replay and the program's own code that are looked at, at most."""

CODES_MAX = 4096
"""Functions of which it is remembered whether they are a library's, at most."""

OTHERS_MIN = 8
OTHERS_RATIO = 2
"""Replays from other places after which the program is in another loop: so many, and so many times the most in an iteration so far."""

Place = Tuple[int, int]
"""Id of a function's code, and the instruction."""


class Captured:
    """Stands for an optimizer that stepped in a capture once the program has dropped it."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer: Callable[[], Any] = weakref.ref(optimizer)


class Replays:
    """What is counted of replays in one process."""

    def __init__(self, process: Process, begin: Callable[[], bool]) -> None:
        """`begin` makes replays the unit that is counted; it returns whether they may be."""
        self._process = process
        self._begin = begin
        self.step: Optional[Callable[[Any, Any, Any], None]] = None
        """Counts the step of an optimizer, if it begins an iteration."""
        self.n_seen = 0
        """Replays that were not counted."""
        self._graphs: Dict[int, Tuple[Any, List[Captured]]] = {}
        """Graphs with steps of optimizers, by id."""
        self._optimizers: Dict[int, Captured] = {}
        self._loop: Optional[Loop] = None
        """Set while graphs without steps count."""
        self._replaced: Optional[Tuple[type, Any, Any]] = None

    @property
    def has_steps(self) -> bool:
        """Returns whether what counts are graphs with steps of optimizers."""
        return self._loop is None

    def captured(self, graph: Any, optimizers: List[Any]) -> None:
        """Notes a graph whose capture has ended, and the optimizers that stepped in it. Raises nothing."""
        try:
            key = id(graph)
            self._graphs.pop(key, None)
            if optimizers and len(self._graphs) < GRAPHS_MAX:
                gone = weakref.ref(graph, lambda _: self._graphs.pop(key, None))
                self._graphs[key] = gone, [self._captured(each) for each in optimizers]
            if self._graphs or self._process.unit or not self._process.n_steps:
                self._install()
        except Exception as error:
            raise_if_of_handler(error)
            warn_once("replays", f"replays of CUDA graphs are not counted: {error!r}")

    def _captured(self, optimizer: Any) -> Captured:
        known = self._optimizers.get(id(optimizer))
        if known is None or known.optimizer() is not optimizer:
            if len(self._optimizers) >= GRAPHS_MAX:
                self._optimizers = {key: each for key, each in self._optimizers.items() if each.optimizer() is not None}
            known = self._optimizers[id(optimizer)] = Captured(optimizer)
        return known

    def begin_loop(self) -> bool:
        """Counts the replays of a program that never steps, from now on. Returns whether it may."""
        if self._graphs or self._loop is not None or not self._begin():
            return False
        self._loop = Loop()
        return True

    def end(self) -> None:
        """Gives PyTorch's class its function back: the program takes steps. Graphs with steps are remembered no more."""
        self._loop = None
        self._graphs.clear()
        self.rest()

    def rest(self) -> None:
        """Gives PyTorch's class its function back, unless what it replays counts."""
        if self._graphs or self._loop is not None or self._replaced is None:
            return
        class_, before, counted = self._replaced
        self._replaced = None
        if dict_of_type(class_).get("replay") is counted:  # else the program has replaced it
            setattr(class_, "replay", before)

    def _install(self) -> None:
        class_ = None if self._replaced is not None else imported_class(*GRAPH)
        function = None if class_ is None else dict_of_type(class_).get("replay")
        if class_ is None or type(function) is not FunctionType:
            return
        graphs, steps, turns, frame_of, replays = self._graphs, untraced(self._steps), untraced(self._turns), sys._getframe, self

        def replay(graph: Any, *arguments: Any, **named: Any) -> Any:
            result = function(graph, *arguments, **named)
            if graphs:
                if id(graph) in graphs:
                    steps(graph)
            elif replays._loop is not None:
                turns(graph, frame_of(1))
            else:
                replays.n_seen += 1
            return result

        replace(class_, "replay", function, replay)
        self._replaced = class_, function, replay

    def _steps(self, graph: Any) -> None:
        """Counts the replay of a graph in which optimizers stepped."""
        try:
            self._loop = None
            step, (_, optimizers) = self.step, self._graphs[id(graph)]
            if step is not None and self._begin():
                for each in optimizers:
                    step(each.optimizer() or each, None, None)
        except Exception as error:
            self._fail(error)

    def _turns(self, graph: Any, frame: Optional[FrameType]) -> None:
        """Counts a replay of a graph without steps, if an iteration begins with it."""
        try:
            loop, step = self._loop, self.step
            if loop is not None and step is not None and loop.begins(id(graph), _place(frame)):
                step(self, None, None)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        raise_if_of_handler(error)
        warn_once("replays", f"a replay of a CUDA graph was not counted: {error!r}")


class Loop:
    """Tells with which replays the iterations of a loop begin that only replays graphs."""

    def __init__(self) -> None:
        self._place: Optional[Place] = None
        """The place in the program from which the first graph of an iteration is replayed."""
        self._first = 0
        self._graphs: Set[int] = set()
        """The first graph of this iteration, and all that were replayed from that place in it, by id."""
        self._is_drawn = False
        """Set once they were seen to come in no fixed order: each is an iteration then."""
        self._n_others = self._n_others_max = 0
        """Replays from other places: in this iteration, and the most of one so far."""

    def begins(self, graph: int, place: Place) -> bool:
        """Returns whether the replay of a graph from a place begins an iteration."""
        if place != self._place:
            self._n_others += 1
            if self._place is not None and self._n_others <= OTHERS_MIN + OTHERS_RATIO * self._n_others_max:
                return False
            self._place, self._graphs, self._is_drawn, self._n_others_max = place, set(), False, 0
        elif self._graphs and not self._is_drawn:
            if graph not in self._graphs and len(self._graphs) < GRAPHS_MAX:  # the next of some that a loop within the loop replays
                self._graphs.add(graph)
                return False
            self._is_drawn = graph != self._first
        self._n_others_max, self._n_others = max(self._n_others_max, self._n_others), 0
        self._first, self._graphs = graph, {graph}
        return True


_librarys: Dict[int, bool] = {}
"""Whether functions are a library's, by the ids of their codes."""


def _place(frame: Optional[FrameType]) -> Place:
    """Returns the place in the program's own code that a frame was called from; the outermost one if all is code of libraries."""
    place = 0, 0
    for _ in range(DEPTH_MAX):
        if frame is None:
            break
        code = frame.f_code
        place = id(code), frame.f_lasti
        is_librarys = _librarys.get(place[0])
        if is_librarys is None:
            if len(_librarys) >= CODES_MAX:
                _librarys.clear()
            is_librarys = _librarys[place[0]] = _is_librarys(code.co_filename)
        if not is_librarys:
            break
        frame = frame.f_back
    return place


def _is_librarys(path: Any) -> bool:
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    roots = [os.path.dirname(each) + os.sep for each in (torch, os.__file__) if type(each) is str]
    return type(path) is not str or path.startswith(("<frozen", *roots)) or "site-packages" in path or "dist-packages" in path
