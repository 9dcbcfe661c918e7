"""The roots of a heap scan, what one slice of it may refer to, and how an object is found again by its place below a root."""

from __future__ import annotations

import contextvars
import gc
import sys
import threading
import types
import weakref
from itertools import islice
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

from .._isolation import library
from . import frames
from .heap import BUFFER, CACHE, DEQUE, DICT, HERE, LIST, RECORD, SET, SIZED, TENSOR, TUPLE, Heap, Modules, is_foreign, module_dict
from .texts import path

Key = Tuple[Any, ...]
"""A root, in plain data: ("frame", thread, id of its code, which of them), ("module", name), ("context",) or ("handlers",)."""

THREADS_MAX = 64
"""Threads whose running functions are roots, at most."""

HANDLERS_MAX = 256
"""Handlers of `logging` that are roots, at most."""

FRAME = 100
"""Kind of a root that is a running function."""

LIBRARY = 101
"""Kind of a root that is a library's namespace: only its containers are followed."""

LIBRARY_KINDS = (LIST, DICT, SET, DEQUE, CACHE)

SPECIAL_MODULES = ("logging", "threading", "weakref", "builtins", "sys", "torch.nn.modules.module")
"""Modules of libraries in which programs leave objects."""


class Place(NamedTuple):
    """Place of an object: its own id and type, and its index among the children of its parent."""

    id: int
    type_id: int
    slot: int


class Roots:
    """The roots of one slice. Each is looked up when it is needed."""

    def __init__(self, modules: Modules) -> None:
        self._modules = modules
        self._frames: Dict[Key, types.FrameType] = {}
        self._of_thread: List[Key] = []
        """Running functions of this thread, the innermost first, and those of the other threads."""
        self._of_others: List[Key] = []
        self._foreign: List[Key] = []
        """Those of PyTorch and of the standard library, of all threads."""
        self._has_frames = False

    def thing(self, key: Key) -> Any:
        """Returns a root; None if it is gone."""
        if key[0] == "module":
            return module_dict(sys.modules.get(key[1]))
        if key[0] == "context":
            return contextvars.copy_context()
        if key[0] == "handlers":
            return _handlers()
        self._find_frames()
        return self._frames.get(key)

    def first(self) -> List[Key]:
        """Returns running functions of this thread, the program's modules, other threads and the context."""
        self._find_frames()
        programs = self._modules_of(self._modules.programs)
        return [*self._of_thread, *programs, *self._of_others, ("context",)]

    def foreign(self) -> List[Key]:
        """Returns running functions of PyTorch and of the standard library. Objects that the program reaches too are named as it names them."""
        self._find_frames()
        return self._foreign

    def special(self) -> List[Key]:
        """Returns the namespaces of libraries whose code is on the stack, those of modules in which programs leave objects, and the handlers
        of loggers: the tree of loggers is an attribute of a class."""
        return [*self._modules_of((*self._modules.running, *SPECIAL_MODULES)), ("handlers",)]

    def libraries(self) -> List[Key]:
        """Returns the namespaces of libraries."""
        return self._modules_of(self._modules.libraries)

    def _modules_of(self, names: Iterable[str]) -> List[Key]:
        keys: List[Key] = [("module", name) for name in names]
        return [key for key in keys if self.thing(key) is not None]

    def _find_frames(self) -> None:
        if self._has_frames:
            return
        self._has_frames = True
        running = sys._current_frames()
        own = threading.get_ident()
        del running[own]  # it would keep this function's own frame alive, and all that it refers to
        self._add_frames(own, sys._getframe(1), self._of_thread)
        for thread, frame in islice(running.items(), THREADS_MAX):
            self._add_frames(thread, frame, self._of_others)
        running.clear()

    def _add_frames(self, thread: int, frame: Optional[types.FrameType], keys: List[Key]) -> None:
        seen: Dict[int, int] = {}
        n_frames = 0
        while frame is not None and n_frames < frames.FRAMES_MAX:
            code = frame.f_code
            file = path(code.co_filename)
            if file is not None and not file.startswith(HERE):
                n_frames += 1
                self._modules.add_of_stack(dict.get(frame.f_globals, "__name__"))
                n = seen[id(code)] = seen.get(id(code), 0) + 1
                key = ("frame", thread, id(code), n)
                self._frames[key] = frame
                (self._foreign if is_foreign(file) else keys).append(key)
            frame = frame.f_back


class Slice:
    """All objects that a slice may refer to. Nothing of it outlives the slice."""

    def __init__(self, modules: Modules) -> None:
        self.modules = modules
        self.heap = Heap(modules)
        self.roots = Roots(modules)
        self.live: Dict[int, Any] = {}
        self.families: Dict[int, Dict[int, Any]] = {}
        self.extended: Set[int] = set()
        """Nodes whose family has what new objects lead to, too."""

    def children(self, thing: Any, kind: int, size: int) -> List[Any]:
        """Returns the objects to which one refers; the index is the place."""
        if kind == FRAME:
            found: List[Any] = []
            for idx, value in frames.read(thing):
                found += [None] * (idx - len(found))
                found.append(_content(value))
            return found
        if kind == TENSOR:
            return gc.get_referents(thing)
        found = self.heap.children(thing, DICT if kind == LIBRARY else kind, size)
        if kind == LIBRARY:
            kinds, kind_of = self.heap.kinds, self.heap.kind
            found = [each for each in found if (kinds.get(id(type(each))) or kind_of(type(each))) in LIBRARY_KINDS]
        return found


def _handlers() -> List[Any]:
    """Returns the handlers of `logging` that exist."""
    references = (module_dict(library("logging")) or {}).get("_handlerList")
    if type(references) is not list:
        return []
    found = [weakref.ReferenceType.__call__(each) for each in references[:HANDLERS_MAX] if type(each) is weakref.ReferenceType]
    return [each for each in found if each is not None]


def _content(value: Any) -> Any:
    """Returns the value in a cell, or the value itself."""
    if type(value) is types.CellType:
        held = gc.get_referents(value)
        return held[0] if held else None
    return value


def is_made_anew(kind: int, parent_kind: int) -> bool:
    """Returns whether an object is found by its place rather than by its id: each step makes tensors and arrays anew, also those of local variables,
    and gives the id of one that is gone to another."""
    return parent_kind == FRAME or kind in (TENSOR, BUFFER)


def resolve(key: Key, places: List[Place], now: Slice) -> List[Tuple[Any, int]]:
    """Returns the objects from a root to a place, each with its kind; fewer if one is gone."""
    thing = now.roots.thing(key)
    if thing is None:
        return []
    kind = FRAME if key[0] == "frame" else DICT if key[0] == "module" else RECORD
    found = [(thing, kind)]
    for place in places[1:]:
        size = now.heap.size(thing, kind) if kind in SIZED else 0
        children = now.children(thing, kind, size)
        following = _choose(children, place, kind, now)
        if following is None and kind not in SIZED:
            namespace, following = _in_dictionary(children, place, now)
            found += [] if following is None else [(namespace, DICT)]
        if following is None:
            return found
        thing, kind = following, now.heap.kind(type(following))
        found.append((thing, kind))
    return found


def _in_dictionary(children: List[Any], place: Place, now: Slice) -> Tuple[Any, Any]:
    """Returns the child that is at a place, and the dictionary that holds it since naming another object gave it to its owner."""
    for each in children:
        if now.heap.kind(type(each)) == DICT:
            following = _same(now.children(each, DICT, now.heap.size(each, DICT)), place)
            if following is not None:
                return each, following
    return None, None


def places_of(chain: List[Tuple[Any, int]], now: Slice) -> List[Place]:
    """Returns the places of a chain. Naming it may have given an object a dictionary, between it and its attributes: that is one of them."""
    places = [Place(id(thing), id(type(thing)), 0) for thing, _ in chain[:1]]
    for (parent, kind), (child, _) in zip(chain, chain[1:]):
        children = now.children(parent, kind, now.heap.size(parent, kind) if kind in SIZED else 0)
        slot = _slot(children, child)
        for idx, each in enumerate(children) if slot < 0 and kind not in SIZED else ():
            if now.heap.kind(type(each)) == DICT:
                slot = _slot(now.children(each, DICT, now.heap.size(each, DICT)), child)
                if slot >= 0:
                    places.append(Place(id(each), id(type(each)), idx))
                    break
        places.append(Place(id(child), id(type(child)), max(slot, 0)))
    return places


def _slot(children: List[Any], child: Any) -> int:
    return next((slot for slot, each in enumerate(children) if each is child), -1)


def _choose(children: List[Any], place: Place, kind: int, now: Slice) -> Any:
    """Returns the child of an object of a kind that is at a place: the same object, or one of its type at the same place."""
    same, at_place = _same(children, place), None
    if (kind not in SIZED or kind in (DICT, TUPLE)) and place.slot < len(children) and id(type(children[place.slot])) == place.type_id:
        at_place = children[place.slot]
    if at_place is not None and (same is None or is_made_anew(now.heap.kind(type(at_place)), kind)):
        return at_place
    return same


def _same(children: List[Any], place: Place) -> Any:
    """Returns the child that has the id and the type of a place; None if there is none."""
    return next((each for each in children if id(each) == place.id and id(type(each)) == place.type_id), None)
