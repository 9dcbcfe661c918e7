"""Finds objects of the program that nothing reaches but the garbage collector, and that hold tensors: reference cycles.

While the program has the collector switched off, all new objects stay in the youngest generation, in the order in which they
were made. A mark of this package at the end of each heap scan separates those that were made between the two.
"""

from __future__ import annotations

import gc
import random
import sys
import types
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

from .criteria import CYCLES_MIN, GROWTH_MIN
from .heap import BUFFER, CLASS, DICT, LEAF, LIST, RECORD, SET, TENSOR, TUPLE, Heap
from .heap_scan import HeapScan
from .names import NOWHERE, Name, spot_of_class, spot_of_code
from .places import Slice
from .texts import plain

YOUNG_MAX = 300_000
"""With more objects in the youngest generation none is read. Importing PyTorch makes 280,000, listed in some 10 ms."""

NEWEST_MAX = 50_000
"""Of these objects the newest among which the marks are searched for, at most."""

ALIKE_MAX = 20_000
"""Objects of which those of the same types are picked, at most. Only the rate of growth assumes that the rest is like them."""

OBJECTS_MAX = 300
"""Objects of a list that are read, at most, with the same assumption."""

LISTING_SECONDS = 0.016
"""Processor time of `between`, at most."""

RECENT_MAX = 4000
"""With more objects in the youngest generation, no tensors in cycles of a graph are searched for among them."""

ITEMS_MAX = 64
"""A larger dictionary is not an object's attributes."""


CYCLE_OBJECTS_MAX = 500
"""Objects that are followed to find the way back to the first of them, at most."""


HAS_GENERATIONS = "t" not in getattr(sys, "abiflags", "")
"""Without the interpreter's lock, a list of one generation would be one of all objects."""


class Mark(NamedTuple):
    """The youngest generation at the end of a heap scan."""

    object: List[None]
    """The newest object then. It is this package's own, and keeps nothing alive."""
    n_objects: int
    step: int


class Found(NamedTuple):
    """Unreachable objects of one type, made between two marks."""

    name: Name
    type: type
    n_tensors: float
    n_bytes: float

    def times(self, scale: float) -> "Found":
        """Returns so many times as many objects."""
        return self._replace(n_tensors=scale * self.n_tensors, n_bytes=scale * self.n_bytes)


def mark(step: int) -> Mark:
    """Marks the end of a heap scan."""
    return Mark([], gc.get_count()[0], step)


def is_growing(marks: List[Mark]) -> bool:
    """Returns whether the youngest generation has grown from each mark to the next. Costs nothing."""
    counts = [each.n_objects for each in marks]
    return len(counts) > 1 and all(more >= less + GROWTH_MIN for less, more in zip(counts, counts[1:]))


def stays_young() -> bool:
    """Returns whether the collector leaves few objects in the youngest generation: they are listed soon, however few of them are new."""
    is_resting = not gc.isenabled() or not 0 < gc.get_threshold()[0] <= RECENT_MAX
    return is_resting and gc.get_count()[0] <= RECENT_MAX


def between(first: Mark, second: Mark, reached: HeapScan, now: Slice) -> "List[Tuple[Found, Found]]":
    """Returns the objects made between two marks that the scan at the second has not `reached`; with them, as many as are
    read of all.

    It lists the youngest generation once: it is for a search that has found nothing else, of which the marks have grown, or that is small.
    """
    if not HAS_GENERATIONS or gc.get_count()[0] > YOUNG_MAX:
        return []
    young = gc.get_objects(generation=0)
    del young[: max(0, len(young) - NEWEST_MAX)]
    ids = list(map(id, young))
    begin, end = _place(ids, first.object), _place(ids, second.object)
    if begin is None or end is None or end <= begin:
        return []  # the collector has run, or there are too many objects
    new = young[begin:end]
    sample = new if len(new) <= OBJECTS_MAX else random.Random(0).sample(new, OBJECTS_MAX)
    type_ids = {id(found.type) for found in _cycles(sample, reached, now).values()}
    scale = max(1.0, len(new) / ALIKE_MAX)
    new = _alike(new[-ALIKE_MAX:], type_ids)
    scale *= max(1.0, len(new) / OBJECTS_MAX)
    growing = _cycles(new[-OBJECTS_MAX:], reached, now)
    in_all = _cycles(_alike(young[max(0, end - ALIKE_MAX) : end], type_ids)[-OBJECTS_MAX:], reached, now) if growing else {}
    del young, new, sample
    return [(found.times(scale), in_all.get(key, found)) for key, found in growing.items()]


def _alike(things: Iterable[Any], type_ids: Set[int]) -> List[Any]:
    """Returns the objects of some types."""
    return [each for each in things if id(type(each)) in type_ids]


def _place(ids: List[int], thing: Any) -> Optional[int]:
    return ids.index(id(thing)) if id(thing) in ids else None


def _cycles(things: List[Any], reached: HeapScan, now: Slice) -> Dict[Any, Found]:
    """Returns the unreachable objects among these by their type; each tensor is counted once."""
    heap = now.heap
    counted: Set[int] = set()
    found: Dict[Any, Found] = {}
    for is_wanted in (_is_programs, _is_frame, _is_container):
        for thing in things:
            if id(thing) in reached.seen or not is_wanted(thing, heap):
                continue
            n_tensors, n_bytes = _held(thing, reached, counted, heap)
            if n_bytes:
                key, name = _name(thing, heap)
                if key not in found and not _is_in_cycle(thing, reached, heap):
                    continue
                old = found.get(key, Found(name, type(thing), 0, 0))
                found[key] = old._replace(n_tensors=old.n_tensors + n_tensors, n_bytes=old.n_bytes + n_bytes)
    return found


def _is_in_cycle(thing: Any, reached: HeapScan, heap: Heap) -> bool:
    """Returns whether references lead from an object back to it, through others that are not reached."""
    seen, waiting = {id(thing)}, [thing]
    for each in waiting:
        if heap.kind(type(each)) in (TENSOR, LEAF, CLASS):
            continue
        for child in gc.get_referents(each):
            if child is thing:
                return True
            if id(child) not in seen and id(child) not in reached.seen and len(waiting) < CYCLE_OBJECTS_MAX:
                seen.add(id(child))
                waiting.append(child)
    return False


def _is_programs(thing: Any, heap: Heap) -> bool:
    return heap.kind(type(thing)) == RECORD and heap.is_programs_class(type(thing))


def _is_frame(thing: Any, _: Heap) -> bool:
    return type(thing) is types.FrameType or type(thing) is types.CellType


def _is_container(thing: Any, heap: Heap) -> bool:
    return heap.kind(type(thing)) in (DICT, LIST, SET, TUPLE)


def _name(thing: Any, heap: Heap) -> "Tuple[Any, Name]":
    type_ = type(thing)
    if type_ is types.FrameType:
        code = thing.f_code
        return id(code), Name(f"a reference cycle through a call of `{plain(code.co_name)}`", "cycle", spot_of_code(code))
    is_programs = _is_programs(thing, heap)
    spot = spot_of_class(heap.module(type_), heap.name(type_)) if is_programs else NOWHERE
    return id(type_), Name(f"a reference cycle of `{heap.name(type_)}` objects", "cycle", spot)


def _held(thing: Any, reached: HeapScan, counted: Set[int], heap: Heap) -> Tuple[int, int]:
    """Returns how many tensors an object refers to, itself or in the dictionary of its attributes, and the bytes of these and of arrays."""
    held = gc.get_referents(thing)
    for each in list(held):
        if heap.kind(type(each)) == DICT and dict.__len__(each) <= ITEMS_MAX and id(each) not in reached.seen:
            held += gc.get_referents(each)
    n_tensors = n_bytes = 0
    for each in held:
        kind = heap.kind(type(each))
        if kind not in (TENSOR, BUFFER) or id(each) in counted or id(each) in reached.seen or kind == TENSOR and heap.is_elsewhere(each):
            continue
        counted.add(id(each))
        n_tensors += kind == TENSOR
        n_bytes += heap.storage(each)[1] if kind == TENSOR else heap.sizes.block(each).n_bytes
    return n_tensors, n_bytes


def graph_cycles(reached: HeapScan, now: Slice) -> int:
    """Counts tensors in cycles of the autograd graph among the newest objects that are not `reached`.

    Neither Python nor its collector sees these cycles, since they lead through C++. Only the youngest generation is listed,
    and only while it is small: nothing tells the size of an older one beforehand.
    """
    if not HAS_GENERATIONS or gc.get_count()[0] > RECENT_MAX:
        return 0
    n_found = 0
    for thing in gc.get_objects(generation=0)[-RECENT_MAX // 2 :]:
        if now.heap.is_tensor(type(thing)) and now.heap.kind(type(thing)) == TENSOR and reached.seen.get(id(thing), -1) < 0 and now.heap.is_cycle(thing):
            n_found += 1
    return n_found if n_found >= CYCLES_MIN else 0
