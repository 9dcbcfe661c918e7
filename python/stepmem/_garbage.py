"""Counts objects of the program that nothing reaches but the garbage collector: reference cycles that hold tensors.

Looks only at the youngest generation, where all new objects stay while the program has the collector switched off.
"""

from __future__ import annotations

import gc
from typing import Any, Dict, NamedTuple

from ._heap import DICT, RECORD, TENSOR
from ._walk import Slice, Walk

YOUNG_MAX = 30_000
"""With more objects in the youngest generation none is looked at; that many are listed in a millisecond."""

SAMPLE = 1500
"""The newest objects, which are looked at; the rest is taken to be like them."""


class Garbage(NamedTuple):
    """Unreachable objects of one type that hold tensors, in plain data. Counts are for the whole generation."""

    type_name: str
    module: str
    n_objects: float
    n_tensors: float
    n_bytes: float


def count(walk: Walk, now: Slice) -> Dict[int, Garbage]:
    """Returns what is unreachable, by the id of its type. `walk` is complete and has just ended."""
    if not 0 < gc.get_count()[0] <= YOUNG_MAX:
        return {}
    heap = now.heap
    found: Dict[int, Garbage] = {}
    young = gc.get_objects(generation=0)
    sample = young[-SAMPLE:]
    scale = len(young) / max(1, len(sample))
    del young
    for thing in sample:
        type_ = type(thing)
        if id(thing) in walk.seen or heap.kind(type_) != RECORD or not heap.is_programs_class(type_):
            continue
        tensors = [each for each in _held(thing, heap) if id(each) not in walk.seen]
        if tensors:
            old: Any = found.get(id(type_), Garbage(heap.name(type_), heap.module(type_), 0.0, 0.0, 0.0))
            n_bytes = sum(heap.storage(each)[1] for each in tensors)
            found[id(type_)] = Garbage(
                old.type_name,
                old.module,
                old.n_objects + scale,
                old.n_tensors + scale * len(tensors),
                old.n_bytes + scale * n_bytes,
            )
    return found


def _held(thing: Any, heap: Any) -> "list[Any]":
    """Returns the tensors that an object's attributes refer to."""
    held = gc.get_referents(thing)
    for each in list(held):
        if heap.kind(type(each)) == DICT and dict.__len__(each) <= 64:
            held += gc.get_referents(each)
    return [each for each in held if heap.kind(type(each)) == TENSOR]
