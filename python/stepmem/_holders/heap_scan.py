"""One heap scan: finds the containers and tensors of a process, in slices, from running functions and modules on.

Between two slices there are only numbers: ids, sizes, places. An object is found again by its place below its parent.
"""

from __future__ import annotations

import contextvars
import gc
import sys
import threading
import time
import types
from collections import deque
from typing import Any, Deque, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from . import frames
from .heap import (
    BUFFER,
    CACHE,
    CLASS,
    DEQUE,
    DICT,
    FINALIZERS,
    GAPS_ITEMS_MAX,
    HERE,
    LEAF,
    LIST,
    RECORD,
    SET,
    SIZED,
    TENSOR,
    TUPLE,
    Heap,
    Modules,
    is_foreign,
    module_dict,
)
from .probe import probe_new

Key = Tuple[Any, ...]
"""A root, in plain data: ("frame", thread, id of its code, which of them), ("module", name) or ("context",)."""

NODES_MAX = 60_000
"""Objects of one heap scan, at most."""

CLOCK_EVERY = 128
CLOCK_COST = 8
"""The clock is read after this many objects; one whose references are followed counts as CLOCK_COST of them."""

SLOTS = 4096
"""Places below one parent that can be told apart."""

FRAME = 100
"""Kind of a root that is a running function."""

LIBRARY = 101
"""Kind of a root that is a library's namespace: only its containers are followed."""

LIBRARY_KINDS = (LIST, DICT, SET, DEQUE, CACHE)

SPECIAL_MODULES = ("logging", "threading", "weakref", "builtins", "sys", "torch.nn.modules.module")
"""Modules of libraries in which programs leave objects."""

BUFFER_BYTES_MIN = 1 << 14
"""A smaller array by itself is left out: a program has many, and one that grows much soon passes this."""

PROBES_MAX = 96
"""Containers that grew whose new items are measured, at most."""

DATA_PROBES_MAX = 96
"""The same for containers whose new items hold no tensors."""

PROBE_ITEMS = 8
"""New items of a container that are measured."""

HOPS_MAX = 1500
"""Nodes of one autograd graph that are followed, at most."""

dict_len = dict.__len__

clock = time.thread_time
"""Processor time of this thread, in seconds: a busy machine shortens no scan."""


class Place(NamedTuple):
    """Place of an object: its own id and type, and its index among the children of its parent."""

    id: int
    type_id: int
    slot: int


class Growth(NamedTuple):
    """Growth of an object between two heap scans, in plain data."""

    node: int
    measure: str
    """`items`, `bytes`, `graph` or `beneath`."""
    before: float
    after: float
    n_steps: int
    """Steps between the two measurements."""
    tensors_per_item: float
    bytes_per_item: float
    """Bytes of tensors."""
    data_per_item: float
    """Bytes of arrays, texts and objects."""
    via: str
    """The way in which an item holds its tensors: `graph`, `traceback` or empty."""
    is_cut: bool = False
    """Set if an item has more beneath it than was followed."""
    capacity: int = 0
    """Length of a list that was made for its items in advance, of which only those count that are not None; -1 if the
    list grows itself, 0 of all others."""
    distances: Dict[int, int] = {}
    """Distances of the memory in new items, as in `Probe`."""


class Roots:
    """The roots of one slice."""

    def __init__(self, modules: Modules) -> None:
        self.things: Dict[Key, Any] = {}
        self.first: List[Key] = []
        """Running functions of this thread, the program's modules, other threads, the context, functions of PyTorch and of the
        standard library: objects that the program reaches too are named as it names them."""
        self._foreign: List[Key] = []
        running = sys._current_frames()
        own = threading.get_ident()
        del running[own]  # it would keep this function's own frame alive, and all that it refers to
        self._add_frames(own, sys._getframe(1), modules)
        for name in list(modules.programs):
            namespace = module_dict(sys.modules.get(name))
            if namespace is not None:
                self._add(("module", name), namespace)
        for thread, frame in running.items():
            self._add_frames(thread, frame, modules)
        running.clear()
        self._add(("context",), contextvars.copy_context())
        self.first += self._foreign
        self._running, self._libraries = modules.running, modules.libraries

    def thing(self, key: Key) -> Any:
        """Returns a root; None if it is gone."""
        thing = self.things.get(key)
        if thing is None and key[0] == "module":  # of a library; there may be thousands, so they are found singly
            thing = module_dict(sys.modules.get(key[1]))
        return thing

    def special(self) -> List[Key]:
        """Returns the namespaces of libraries whose code is on the stack, and of modules in which programs leave objects."""
        return self._others((*self._running, *SPECIAL_MODULES))

    def libraries(self) -> List[Key]:
        """Returns the namespaces of libraries."""
        return self._others(self._libraries)

    def _others(self, names: Sequence[str]) -> List[Key]:
        keys: List[Key] = [("module", name) for name in names]
        return [key for key in keys if key not in self.things and self.thing(key) is not None]

    def _add(self, key: Key, thing: Any) -> None:
        self.things[key] = thing
        self.first.append(key)

    def _add_frames(self, thread: int, frame: Optional[types.FrameType], modules: Modules) -> None:
        seen: Dict[int, int] = {}
        n_frames = 0
        while frame is not None and n_frames < frames.FRAMES_MAX:
            code = frame.f_code
            if not code.co_filename.startswith(HERE):
                n_frames += 1
                modules.add_of_stack(frame.f_globals.get("__name__"))
                n = seen[id(code)] = seen.get(id(code), 0) + 1
                key = ("frame", thread, id(code), n)
                self.things[key] = frame
                (self._foreign if is_foreign(code.co_filename) else self.first).append(key)
            frame = frame.f_back


class Slice:
    """All objects that a slice may refer to. Nothing of it outlives the slice."""

    def __init__(self, modules: Modules) -> None:
        self.modules = modules
        self.heap = Heap(modules)
        self.roots = Roots(modules)
        self.live: Dict[int, Any] = {}
        self.families: Dict[int, Dict[int, Any]] = {}

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
            found = [each for each in found if self.heap.kind(type(each)) in LIBRARY_KINDS]
        return found


def _content(value: Any) -> Any:
    """Returns the value in a cell, or the value itself."""
    if type(value) is types.CellType:
        held = gc.get_referents(value)
        return held[0] if held else None
    return value


class HeapScan:
    """The objects that one heap scan found: a row of numbers each."""

    def __init__(self, modules: Modules, before: "Optional[HeapScan]" = None) -> None:
        self.modules = modules
        self.before = before
        self.step = 0
        """The step at whose end the current slice runs."""
        self.measured_at: Dict[int, int] = {}
        """The step at whose end each node got its size."""
        self.keys: List[Key] = []
        self.ids: List[int] = []
        self.type_ids: List[int] = []
        self.parents: List[int] = []
        """For a root -1."""
        self.slots: List[int] = []
        """For a root its index in `keys`."""
        self.kinds: List[int] = []
        self.sizes: List[int] = []
        """Items of a container, referents of a record, bytes of a tensor; -1 before it was measured."""
        self.tensors: Dict[int, float] = {}
        """Tensors directly in it, by node; those that share a storage count once."""
        self.capacities: Dict[int, int] = {}
        """Lengths of lists that have places for items to come, by node; their size is the number of items that are there."""
        self.scales: Dict[int, float] = {}
        """Number of items that each one stands for that was followed, by node, if more than one."""
        self.matches: List[int] = []
        """The same object, or the one at the same place, in the scan before; -1 if there was none."""
        self.numbers: Dict[int, int] = {}
        """Number of the last node of the autograd graph behind a tensor."""
        self.newest_number = -1
        self.seen: Dict[int, int] = {}
        self.by_slot: Dict[int, int] = {}
        self.storages: Set[int] = set()
        self.growths: List[Growth] = []
        self._n_data = 0
        """Number of those of containers without tensors."""
        self.is_complete = False
        """Set once everything was scanned but libraries, which come last."""
        self._n_stages = 0
        self._first: Deque[int] = deque()
        """The node at which the last slice stopped."""
        self._waiting: Deque[int] = deque()
        self._late: Deque[int] = deque()
        """Nodes below the items of large containers, which are most of a heap and alike: they come after all others."""
        self._is_late: Set[int] = set()

    def advance(self, until: float) -> bool:
        """Follows objects until the time `until` of `clock`. Returns whether the scan is over."""
        now = Slice(self.modules)
        with now.heap.without_overrides():
            if not self.keys:
                for module_dict_id in self.modules.dict_ids:
                    self.seen[module_dict_id] = -1
                for namespace in (sys.modules, sys.path_importer_cache, gc.garbage, gc.callbacks):
                    self.seen[id(namespace)] = -1
                self._add_roots(now, now.roots.first, DICT)
            n_seen = 0
            while True:
                node = self._next()
                if node < 0:
                    if self._n_stages == 2:
                        return True
                    self._n_stages += 1
                    self.is_complete = self._n_stages == 2
                    roots = (now.roots.libraries(), LIBRARY) if self.is_complete else (now.roots.special(), DICT)
                    self._add_roots(now, *roots)
                    continue
                if n_seen >= CLOCK_EVERY:
                    n_seen = 0
                    if clock() > until:
                        self._first.append(node)
                        return False
                if len(self.ids) > NODES_MAX:
                    return True
                thing = self._find(node, now)
                n_seen += CLOCK_COST
                if thing is not None:
                    n_seen += self._expand(node, thing, now)

    def _next(self) -> int:
        """Returns the next node to follow; -1 if there is none for now."""
        for waiting in (self._first, self._waiting, self._late if self._n_stages else ()):
            if waiting:
                return waiting.popleft()
        return -1

    def _add_roots(self, now: Slice, keys: List[Key], kind: int) -> None:
        known = {} if self.before is None else {key: node for node, key in enumerate(self.before.keys)}
        matches = {} if self.before is None else self.before.root_nodes()
        for key in keys:
            thing = now.roots.thing(key)
            is_frame = key[0] == "frame"
            node = len(self.ids)
            self.keys.append(key)
            self._append(id(thing), id(type(thing)), -1, len(self.keys) - 1)
            self.kinds.append(FRAME if is_frame else kind if key[0] == "module" else RECORD)
            self.matches.append(matches.get(known.get(key, -1), -1))
            self.seen[id(thing)] = node
            now.live[node] = thing

    def root_nodes(self) -> Dict[int, int]:
        """Returns the node of each root, by its index in `keys`."""
        return {slot: node for node, (parent, slot) in enumerate(zip(self.parents, self.slots)) if parent < 0}

    def _append(self, id_: int, type_id: int, parent: int, slot: int) -> None:
        node = len(self.ids)
        if parent in self._is_late or parent in self.scales:
            self._is_late.add(node)
            self._late.append(node)
        else:
            self._waiting.append(node)
        self.ids.append(id_)
        self.type_ids.append(type_id)
        self.parents.append(parent)
        self.slots.append(slot)
        self.sizes.append(-1)

    def _find(self, node: int, now: Slice) -> Any:
        """Returns the object of a node, or None if it is gone."""
        thing = now.live.get(node)
        if thing is not None:
            return thing
        parent = self.parents[node]
        if parent < 0:
            thing = now.roots.thing(self.keys[self.slots[node]])
        else:
            family = now.families.get(parent)
            if family is None:
                held = self._find(parent, now)
                family = {}
                if held is not None:
                    kind = self.kinds[parent]
                    size = now.heap.size(held, kind) if kind in SIZED else 0
                    family = {id(each): each for each in now.children(held, kind, size)}
                now.families[parent] = family
            thing = family.get(self.ids[node])
            if thing is not None and id(type(thing)) != self.type_ids[node]:
                thing = None
        if thing is not None:
            now.live[node] = thing
        return thing

    def _expand(self, node: int, thing: Any, now: Slice) -> int:
        """Adds the objects to which one refers, and compares it with the scan before. Returns their number."""
        heap, kind = now.heap, self.kinds[node]
        if kind == BUFFER:
            return 0
        size = heap.size(thing, kind) if kind in SIZED else 0
        children = now.children(thing, kind, size)
        if kind != TENSOR:
            self.sizes[node] = self._filled(node, thing, size, now) if kind == LIST else size if kind in SIZED else len(children)
            self.measured_at[node] = self.step
            if size > len(children) > 0:
                self.scales[node] = size / len(children)
            self._compare(node, thing, now)
        if thing is FINALIZERS:
            return len(children)  # libraries leave many there, and whatever theirs lead to
        is_small = kind not in SIZED or len(children) <= 64
        kinds, seen = heap._kinds, self.seen
        slot = -1
        for child in children:
            slot += 1
            type_ = type(child)
            child_kind = kinds.get(id(type_))
            if child_kind is None:
                child_kind = heap.kind(type_)
            if child_kind == DICT and not dict_len(child):
                continue
            if child_kind == LEAF or id(child) in seen or (child_kind == CLASS and not heap.is_programs_class(child)):
                continue
            if child_kind == TENSOR:
                if not heap.is_elsewhere(child):
                    self._add_tensor(node, child, slot, now, is_small)
                continue
            if child_kind == BUFFER:
                if is_small:
                    self._add_buffer(node, child, slot, now)
                continue
            self._add(node, child, slot, child_kind, now)
        return len(children)

    def _filled(self, node: int, thing: Any, size: int, now: Slice) -> int:
        """Returns the items of a list; of one that had places for items to come at the first scan, those that are there."""
        before, match = self.before, self.matches[node]
        has_places = now.heap.has_gaps(thing, size) if before is None else match in before.capacities and size <= GAPS_ITEMS_MAX
        if not has_places:
            return size
        self.capacities[node] = size
        return now.heap.n_filled(thing)

    def _add(self, parent: int, thing: Any, slot: int, kind: int, now: Slice) -> int:
        node = len(self.ids)
        self._append(id(thing), id(type(thing)), parent, slot)
        self.kinds.append(kind)
        self.seen[id(thing)] = node
        self.matches.append(self._match(node))
        if slot < SLOTS:
            self.by_slot[parent * SLOTS + slot] = node
        now.live[node] = thing
        return node

    def _match(self, node: int) -> int:
        before = self.before
        if before is None:
            return -1
        match = before.seen.get(self.ids[node], -1)
        if match >= 0 and before.type_ids[match] == self.type_ids[node]:
            return match
        parent = self.parents[node]
        above = self.matches[parent]
        slot = self.slots[node]
        if above < 0 or slot >= SLOTS or (self.kinds[parent] in SIZED and self.kinds[parent] not in (DICT, TUPLE)):
            return -1
        match = before.by_slot.get(above * SLOTS + slot, -1)
        return match if match >= 0 and before.type_ids[match] == self.type_ids[node] else -1

    def _add_tensor(self, parent: int, tensor: Any, slot: int, now: Slice, is_small: bool) -> None:
        storage, n_bytes = now.heap.storage(tensor)
        if not storage or storage not in self.storages:
            self.storages.add(storage)
            self.tensors[parent] = self.tensors.get(parent, 0.0) + self.scales.get(parent, 1.0)
        if not is_small:
            self.seen[id(tensor)] = -1
            return
        node = self._add(parent, tensor, slot, TENSOR, now)
        self.sizes[node] = n_bytes
        self.measured_at[node] = self.step
        root = now.heap.graph_root(tensor)
        match = self.matches[node]
        if root is not None:
            number = self.numbers[node] = now.heap.number(root)
            self.newest_number = max(self.newest_number, number)
            before = self.before
            if before is not None and match >= 0 and number > before.newest_number >= 0 and match in before.numbers:
                oldest, n_hops = now.heap.oldest(root, before.newest_number, HOPS_MAX)
                if oldest <= before.newest_number or n_hops >= HOPS_MAX:
                    self.growths.append(Growth(node, "graph", 0.0, float(n_hops), self.steps_since(node), 0.0, 0.0, 0.0, "graph"))
        self._compare_bytes(node, n_bytes)

    def _add_buffer(self, parent: int, thing: Any, slot: int, now: Slice) -> None:
        n_bytes = now.heap.sizes.block(thing).n_bytes
        if n_bytes < BUFFER_BYTES_MIN:
            return
        node = self._add(parent, thing, slot, BUFFER, now)
        self.sizes[node] = n_bytes
        self.measured_at[node] = self.step
        self._compare_bytes(node, n_bytes)

    def _compare_bytes(self, node: int, n_bytes: int) -> None:
        """Notes that a tensor or buffer has grown since the scan before."""
        match = self.matches[node]
        if self.before is not None and match >= 0 and n_bytes > self.before.sizes[match] >= 0:
            before, n_steps = float(self.before.sizes[match]), self.steps_since(node)
            is_data = self.kinds[node] == BUFFER
            self.growths.append(Growth(node, "bytes", before, float(n_bytes), n_steps, 0.0, float(not is_data), float(is_data), ""))

    def _compare(self, node: int, thing: Any, now: Slice) -> None:
        """Measures the new items of a container that has grown since the scan before."""
        match = self.matches[node]
        before = self.before
        if before is None or match < 0 or self.kinds[node] in (FRAME, CLASS) or self.parents[node] < 0 and self.kinds[node] != DICT:
            return
        size, old = self.sizes[node], before.sizes[match]
        if not size > old >= 0 or len(self.growths) - self._n_data >= PROBES_MAX or self._n_data >= DATA_PROBES_MAX:
            return
        heap, kind = now.heap, self.kinds[node]
        n_new = size - old
        n_items = min(n_new, PROBE_ITEMS)
        data: Optional[Growth] = None
        for items in self._ends(node, thing, n_items, heap):
            items = [each for each in items if before.seen.get(id(each), -1) < 0]
            found, items = probe_new(items, before.seen, before.storages, heap)
            n = min(len(items), n_items)
            if not n:
                continue
            figures = (float(old), float(size), self.steps_since(node), *found.per_item(n))
            growth = Growth(node, "items", *figures, found.via, found.is_cut, self._capacity(node), found.distances)
            if found.n_holding * 2 >= n:
                self.growths.append(growth)
                return
            data = data or growth
        if data is not None and data.data_per_item:
            self._n_data += 1
            self.growths.append(data._replace(tensors_per_item=0.0, bytes_per_item=0.0, via=""))

    def _ends(self, node: int, thing: Any, n_items: int, heap: Heap) -> Tuple[List[Any], List[Any]]:
        """Returns items of a container among which new ones are."""
        kind, before = self.kinds[node], self.before
        if before is not None and kind == CACHE:  # a result that was used again has become the newest
            items = [each for each in heap.results(thing) if id(each[1]) not in before.seen]
        elif before is not None and node in self.capacities:
            items = [each for each in heap.filled(thing) if id(each) not in before.seen]
        else:
            return heap.last(thing, kind, n_items), heap.first(thing, kind, n_items)
        return items[-n_items:], items[:n_items]

    def _capacity(self, node: int) -> int:
        """Returns the length of a list that had places for items to come, 0 of another one, and -1 if it grows itself."""
        capacity = self.capacities.get(node, 0)
        before = 0 if self.before is None else self.before.capacities.get(self.matches[node], 0)
        return capacity if capacity == before else -1

    def steps_since(self, node: int) -> int:
        """Returns the steps between the measurement of a node and that of its match in the scan before."""
        before = self.before
        match = self.matches[node]
        if before is None or match < 0:
            return 1
        return max(1, self.measured_at.get(node, self.step) - before.measured_at.get(match, self.step))

    def path(self, node: int) -> List[Place]:
        """Returns the places from a root to a node."""
        places: List[Place] = []
        while node >= 0:
            places.append(Place(self.ids[node], self.type_ids[node], self.slots[node]))
            node = self.parents[node]
        return places[::-1]

    def root_key(self, node: int) -> Key:
        """Returns the root above a node."""
        while self.parents[node] >= 0:
            node = self.parents[node]
        return self.keys[self.slots[node]]


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
        following = _choose(children, place, kind not in SIZED or kind in (DICT, TUPLE))
        if following is None:
            return found
        thing, kind = following, now.heap.kind(type(following))
        found.append((thing, kind))
    return found


def led_through_dictionaries(chain: List[Tuple[Any, int]], places: List[Place], now: Slice) -> List[Place]:
    """Returns the places of a chain once it is named: that gives an object a dictionary, between it and its attributes."""
    led = places[:1]
    for place, (parent, kind), (child, _) in zip(places[1:], chain, chain[1:]):
        children = [] if kind in SIZED else now.children(parent, kind, 0)
        if not any(each is child for each in children):
            for slot, each in enumerate(children):
                if now.heap.kind(type(each)) != DICT:
                    continue
                items = now.children(each, DICT, now.heap.size(each, DICT))
                idx = next((idx for idx, item in enumerate(items) if item is child), None)
                if idx is not None:
                    led.append(Place(id(each), id(type(each)), slot))
                    place = place._replace(slot=idx)
                    break
        led.append(place)
    return led


def _choose(children: List[Any], place: Place, has_places: bool) -> Any:
    """Returns the child that is at a place: the same object, or one of its type at the same place."""
    for child in children:
        if id(child) == place.id and id(type(child)) == place.type_id:
            return child
    if has_places and place.slot < len(children) and id(type(children[place.slot])) == place.type_id:
        return children[place.slot]
    return None
