"""Measures new items of a container that grows: the tensors and the other memory beneath them."""

from __future__ import annotations

import types
from typing import Any, Container, Dict, List, Set, Tuple

from .heap import BUFFER, CLASS, ITEMS_MAX, LEAF, RECORD, SIZED, TENSOR, Heap

PROBE_OBJECTS = 160
"""Objects below one item that are followed, at most, unless a probe is given another number."""

ITEMS_OBJECTS_MAX = 640
"""Objects after which no further item of a container is measured."""

BUFFER_BYTES_MIN = 1 << 14
"""A smaller array by itself is left out: a program has many, and one that grows much soon passes this."""

DISTANCES_MAX = 256
"""Tensors and arrays of one container whose distance is remembered, at most."""

VIA_OPTIMIZER = 1 << 16
"""Distance of tensors to which an optimizer refers: it lists the parameters of a model, which holds them."""

_TRANSPARENT = frozenset("builtins collections datetime decimal fractions functools numpy torch types uuid weakref".split())
"""Packages whose leaves have no other memory."""


class Probe:
    """Counts the tensors and other memory below the new items of a container."""

    def __init__(self, seen: Container[int], storages: Set[int], heap: Heap, objects_max: int = PROBE_OBJECTS) -> None:
        """`seen` are ids of objects and `storages` those of tensors that are not counted: the scan before met them."""
        self.n_holding = 0
        """Items with a tensor."""
        self.n_tensors = 0
        self.via = ""
        self.is_cut = False
        """Set if an item has more beneath it than is followed."""
        self.is_opaque = False
        """Set if an item has objects of C code whose memory is not known."""
        self.distances: Dict[int, int] = {}
        """Number of references that lead from an item to a tensor or array, the fewest; by the identity of the memory."""
        self.some: List[Any] = []
        """The first tensor of each storage."""
        self._seen = seen
        self._storages = storages
        self._heap = heap
        self._objects_max = objects_max
        self.n_visited = 0
        """Objects that were looked at, some of them more than once."""
        self._n_data = 0
        self._n_met = 0
        """Tensors that the scan before did not meet."""
        self._n_old = 0
        """Objects, tensors and arrays at an address where it met one."""
        self._tensors: Dict[int, List[int]] = {}
        """Of each storage: its bytes, the number of tensors that share it, and the bytes that these show."""
        self._blocks: Dict[int, List[int]] = {}
        """The same of arrays."""

    def add(self, item: Any) -> bool:
        """Counts the memory below one item that the scan before did not meet; returns whether some of it lies where that met some."""
        heap, seen = self._heap, {id(item)}
        waiting = [(item, "", 0)]
        n_before, n_old_before = self._n_met, self._n_old
        n_children = 0
        for thing, via, distance in waiting:
            kind = heap.kind(type(thing))
            if kind == TENSOR:
                if heap.is_elsewhere(thing):
                    continue
                self._add_tensor(thing, via, distance)
                gradient = heap.gradient(thing)
                if gradient is not None and heap.kind(type(gradient)) == TENSOR:
                    self._add_tensor(gradient, via, distance + 1)
            elif kind == BUFFER:
                self._add_buffer(thing, via, distance)
            elif kind == LEAF:
                self._n_data += heap.sizes.of_leaf(thing)
                self.is_opaque |= heap.module(type(thing)).partition(".")[0] not in _TRANSPARENT
            elif kind != CLASS:
                self._n_data += heap.sizes.of(thing)
            if kind in (CLASS, BUFFER) or (kind == LEAF and type(thing) is not types.BuiltinFunctionType):
                continue
            if len(waiting) > self._objects_max or n_children > 2 * self._objects_max:
                self.is_cut = True
                continue
            if type(thing) is types.TracebackType:
                via = "traceback"
            if kind == RECORD and heap.is_optimizer(type(thing)):
                distance = VIA_OPTIMIZER
            size = heap.size(thing, kind) if kind in SIZED else 0
            self.is_cut |= size > ITEMS_MAX
            children = heap.children(thing, kind, size)
            n_children += len(children)
            for child in children:
                if id(child) in seen or heap.kind(type(child)) == CLASS:
                    continue
                seen.add(id(child))
                if id(child) in self._seen:
                    self._n_old += 1
                else:
                    waiting.append((child, via, distance + 1))
        self.n_holding += self._n_met > n_before
        self.n_visited += len(waiting) + n_children
        return self._n_old > n_old_before

    def per_item(self, n: int) -> Tuple[float, float, float]:
        """Returns the tensors of each of `n` items, their bytes, and the bytes of all else."""
        data = self._n_data + sum(map(_part, self._blocks.values()))
        return self.n_tensors / n, sum(map(_part, self._tensors.values())) / n, data / n

    def n_pieces(self, is_on_host: bool) -> int:
        """Returns the number of tensors and, in a search about the host's memory, of large arrays."""
        return self.n_tensors + sum(is_on_host and part[0] >= BUFFER_BYTES_MIN for part in self._blocks.values())

    def _add_tensor(self, tensor: Any, via: str, distance: int) -> None:
        heap = self._heap
        storage, n_bytes = heap.storage(tensor)
        self.is_opaque |= not storage
        if storage and storage in self._storages:
            self._n_old += 1
            return
        part = self._tensors.setdefault(storage or -len(self._tensors), [n_bytes, 0, 0])
        part[1] += 1
        if part[1] == 1:
            self.some.append(tensor)
        if storage:
            self._add_distance(storage, distance)
        part[2] += heap.own_bytes(tensor)
        self._n_met += 1
        self.n_tensors += part[1] == 1
        if not self.via:
            self.via = via or ("graph" if heap.graph_root(tensor) is not None else "")

    def _add_buffer(self, thing: Any, via: str, distance: int) -> None:
        sizes = self._heap.sizes
        owner = sizes.base(thing)
        if owner is not None and self._heap.kind(type(owner)) == TENSOR:
            self._add_tensor(owner, via, distance)
            return
        self.via = self.via or via
        block = sizes.block(thing)
        if block.owner in self._seen:
            self._n_old += 1
            return
        part = self._blocks.setdefault(block.owner, [block.n_bytes, 0, 0])
        part[1] += 1
        part[2] += block.n_own_bytes
        self._add_distance(block.owner, distance)

    def _add_distance(self, memory: int, distance: int) -> None:
        if memory in self.distances or len(self.distances) < DISTANCES_MAX:
            self.distances[memory] = min(distance, self.distances.get(memory, distance))


def probe_new(items: List[Any], seen: Container[int], storages: Set[int], heap: Heap) -> Tuple[Probe, List[Any]]:
    """Measures new items; returns also which of them were measured.

    A new object may have the address of one that is gone since the scan before, and then looks old. Items with such objects
    are left out where they are a minority.
    """
    found = Probe(seen, storages, heap)
    new = []
    for n, item in enumerate(items):
        if found.n_visited > ITEMS_OBJECTS_MAX:
            items = items[:n]
            break
        if not found.add(item):
            new.append(item)
    if len(items) / 2 < len(new) < len(items):
        return probe_new(new, seen, storages, heap)
    return found, items


def _part(part: List[int]) -> int:
    """Returns the bytes that some objects keep of one piece of memory: those that they show of it where they share it."""
    n_bytes, n_objects, n_shown = part
    return n_bytes if n_objects < 2 else min(n_bytes, n_shown)
