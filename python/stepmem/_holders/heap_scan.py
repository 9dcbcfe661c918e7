"""One heap scan: finds the containers and tensors of a process, in slices, from running functions and modules on.

Between two slices there are only numbers: ids, sizes, places. An object is found again by its place below its parent.
"""

from __future__ import annotations

import gc
import sys
from collections import deque
from typing import Any, Deque, Dict, List, NamedTuple, Optional, Set, Tuple

from .allowance import clock
from .heap import BUFFER, CACHE, CLASS, DEQUE, DICT, FINALIZERS, GAPS_ITEMS_MAX, LEAF, LIST, RECORD, SET, SIZED, TENSOR, TUPLE, Heap, Modules
from .places import FRAME, LIBRARY, Key, Place, Slice, is_made_anew
from .probe import BUFFER_BYTES_MIN, probe_new

NODES_MAX = 60_000
"""Objects of one heap scan, at most."""

DEPTH_MAX = 400
"""References that lead from a root to an object, at most: what is further away is left out."""

CLOCK_EVERY = 128
CLOCK_COST = 8
"""The clock is read after this many objects; one whose references are followed counts as CLOCK_COST of them."""

SLOTS = 4096
"""Places below one parent that can be told apart."""

PROBES_MAX = 96
"""Containers that grew whose new items are measured, at most."""

DATA_PROBES_MAX = 96
"""The same for containers whose new items hold no tensors."""

PROBE_ITEMS = 8
"""New items of a container that are measured."""

HOPS_MAX = 1500
"""Nodes of one autograd graph that are followed, at most."""

LAST_STAGE = 3
"""Stage of a scan in which libraries come: after the program's roots, functions of PyTorch and of the standard library, and special modules."""

NEW_LINKS_MAX = 64
"""Objects that have come below one since it was followed, of which what they lead to is looked at, at most."""

ROWS, ROWS_MAX = (LIST, DEQUE, SET), 64
"""Containers with more items have rows of data in them, mostly: these come after what others refer to."""

dict_len = dict.__len__
is_tracked = gc.is_tracked


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
    is_opaque: bool = False
    """Set if an item has objects of C code whose memory is not known."""
    distances: Dict[int, int] = {}
    """Distances of the memory in new items, as in `Probe`."""

    @property
    def keeps_more(self) -> bool:
        """Returns whether an item may keep memory that was not measured: more than was followed, or what a graph or a frame has of tensors."""
        return self.is_cut or bool(self.via and self.tensors_per_item)


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
        self.depths: List[int] = []
        """Numbers of references that lead to them from a root."""
        self.kinds: List[int] = []
        self.sizes: List[int] = []
        """Items of a container, referents of a record, bytes of a tensor; -1 before it was measured."""
        self.pieces: Dict[int, float] = {}
        """Tensors and large arrays directly in it, by node; those that share memory count once."""
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
        self._blocks: Set[int] = set()
        """Identities of the memory of large arrays."""
        self.growths: List[Growth] = []
        self._n_data = 0
        """Number of those of containers without tensors."""
        self.is_complete = False
        """Set once everything was scanned but libraries, which come last."""
        self.n_read = 0
        """Objects whose references were followed."""
        self._n_left_out = 0.0
        """Objects that were met and not followed: most items of large containers, and what is too deep."""
        self._n_probed = 0
        """Objects below new items and new links, since the clock was read."""
        self._n_stages = 0
        self._roots: Deque[Tuple[Key, int]] = deque()
        """Roots that are to be added, and their kinds."""
        self._nodes_of_roots: Dict[Key, int] = {}
        self._first: Deque[int] = deque()
        """The node at which the last slice stopped."""
        self._waiting: Deque[int] = deque()
        self._late: Deque[int] = deque()
        """Nodes below the items of long containers, which are most of a heap and alike: they come after all others."""
        self._is_late: Set[int] = set()

    @property
    def n_met(self) -> int:
        """Returns the number of objects that were met: those that were read and those that were not."""
        n_waiting = len(self._roots) + len(self._first) + len(self._waiting) + len(self._late)
        return self.n_read + n_waiting + round(self._n_left_out)

    def advance(self, now: Slice, until: float) -> bool:
        """Follows objects until the time `until` of `clock`. Returns whether the scan is over."""
        if not self.keys:
            for namespace in (sys.modules, sys.path_importer_cache, gc.garbage, gc.callbacks):
                self.seen[id(namespace)] = -1
            self._roots.extend((key, DICT) for key in now.roots.first())
        n_seen = 0
        while True:
            if n_seen >= CLOCK_EVERY:
                n_seen = 0
                if clock() > until:
                    return False
            n_seen += CLOCK_COST
            if self._roots:
                self._add_root(now, *self._roots.popleft())
                continue
            node = self._next()
            if node < 0:
                if self.is_complete:
                    return True
                self._n_stages += 1
                self.is_complete = self._n_stages == LAST_STAGE
                keys = (now.roots.foreign, now.roots.special, now.roots.libraries)[self._n_stages - 1]()
                self._roots.extend((key, LIBRARY if self.is_complete else DICT) for key in keys if key not in self._nodes_of_roots)
                continue
            if len(self.ids) > NODES_MAX:
                self._first.append(node)
                return True
            thing = self._find(node, now)
            if thing is not None:
                n_seen += self._expand(node, thing, now)
            n_probed, self._n_probed = self._n_probed, 0
            n_seen += n_probed

    def _next(self) -> int:
        """Returns the next node to follow; -1 if there is none for now."""
        for waiting in (self._first, self._waiting, self._late if self._n_stages > 1 else ()):
            if waiting:
                return waiting.popleft()
        return -1

    def _add_root(self, now: Slice, key: Key, kind: int) -> None:
        thing = now.roots.thing(key)
        if thing is None:
            return
        node = len(self.ids)
        self.keys.append(key)
        self._append(id(thing), id(type(thing)), -1, len(self.keys) - 1)
        self.kinds.append(FRAME if key[0] == "frame" else kind if key[0] == "module" else RECORD)
        self.matches.append(-1 if self.before is None else self.before._nodes_of_roots.get(key, -1))
        self._nodes_of_roots[key] = node
        self.seen[id(thing)] = node
        now.live[node] = thing

    def _append(self, id_: int, type_id: int, parent: int, slot: int) -> None:
        node = len(self.ids)
        if parent in self._is_late or parent in self.scales or (parent >= 0 and self.kinds[parent] in ROWS and self.sizes[parent] > ROWS_MAX):
            self._is_late.add(node)
            self._late.append(node)
        else:
            self._waiting.append(node)
        self.ids.append(id_)
        self.type_ids.append(type_id)
        self.parents.append(parent)
        self.slots.append(slot)
        self.depths.append(self.depths[parent] + 1 if parent >= 0 else 0)
        self.sizes.append(-1)

    def _find(self, node: int, now: Slice) -> Any:
        """Returns the object of a node, or None if it is gone."""
        live, below = now.live, []
        thing = live.get(node)
        while thing is None and self.parents[node] >= 0:
            below.append(node)
            node = self.parents[node]
            thing = live.get(node)
        if thing is None:
            thing = live[node] = now.roots.thing(self.keys[self.slots[node]])
        while below and thing is not None:
            parent, node = node, below.pop()
            thing = live[node] = self._child(parent, thing, node, now)
        return thing

    def _child(self, parent: int, held: Any, node: int, now: Slice) -> Any:
        family = now.families.get(parent)
        if family is None:
            kind = self.kinds[parent]
            size = now.heap.size(held, kind) if kind in SIZED else 0
            family = now.families[parent] = {id(each): each for each in now.children(held, kind, size)}
        if self.ids[node] not in family and parent not in now.extended:
            now.extended.add(parent)
            self._add_behind_new(family, self.type_ids[node], now)
        thing = family.get(self.ids[node])
        return thing if id(type(thing)) == self.type_ids[node] else None

    def _add_behind_new(self, family: Dict[int, Any], type_id: int, now: Slice) -> None:
        """Adds to the objects below one what new ones among them lead to, those of a type first: a chain's newest link takes the place of
        the one before, and each link may have more beneath it."""
        links: Deque[Any] = deque()
        others: Deque[Any] = deque()
        for each in family.values():
            if id(each) not in self.seen:
                (links if id(type(each)) == type_id else others).append(each)
        n_followed = 0
        while (links or others) and n_followed < NEW_LINKS_MAX:
            thing = (links or others).popleft()
            n_followed += 1
            kind = now.heap.kind(type(thing))
            if kind in (LEAF, BUFFER, CLASS, TENSOR):
                continue
            for child in now.children(thing, kind, now.heap.size(thing, kind) if kind in SIZED else 0):
                if id(child) not in family:
                    family[id(child)] = child
                    if id(child) not in self.seen:
                        (links if id(type(child)) == type_id else others).append(child)
        self._n_probed += n_followed

    def _expand(self, node: int, thing: Any, now: Slice) -> int:
        """Adds the objects to which one refers, and compares it with the scan before. Returns their number."""
        heap, kind = now.heap, self.kinds[node]
        if kind == BUFFER:
            return 0
        size = heap.size(thing, kind) if kind in SIZED else 0
        children = now.children(thing, kind, size)
        self.n_read += 1
        if kind != TENSOR:
            self.sizes[node] = self._filled(node, thing, size, now) if kind == LIST else size if kind in SIZED else len(children)
            self.measured_at[node] = self.step
            if size > len(children) > 0:
                self.scales[node] = size / len(children)
            self._compare(node, thing, now)
        if thing is FINALIZERS:
            return len(children)  # libraries leave many there, and whatever theirs lead to
        if self.depths[node] >= DEPTH_MAX:
            self._n_left_out += len(children)
            return len(children)
        is_small = kind not in SIZED or len(children) <= 64
        n_before = len(self.ids)
        kinds, seen = heap.kinds, self.seen
        slot = -1
        for child in children:
            slot += 1
            type_ = type(child)
            child_kind = kinds.get(id(type_))
            if child_kind is None:
                child_kind = heap.kind(type_)
            if child_kind == DICT and not dict_len(child):
                continue
            if child_kind == TUPLE and not is_tracked(child):
                continue  # a row of numbers or texts: the collector has found nothing in it that could grow
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
        if size > len(children) > 0:
            self._n_left_out += (size / len(children) - 1.0) * (len(self.ids) - n_before)
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
        is_same = match >= 0 and before.type_ids[match] == self.type_ids[node]
        if is_same and not is_made_anew(self.kinds[node], self.kinds[self.parents[node]]):
            return match
        at_place = self._match_at_place(node, before)
        return match if is_same and at_place < 0 else at_place

    def _match_at_place(self, node: int, before: "HeapScan") -> int:
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
            self.pieces[parent] = self.pieces.get(parent, 0.0) + self.scales.get(parent, 1.0)
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
                self._n_probed += n_hops
                if oldest <= before.newest_number or n_hops >= HOPS_MAX:
                    self.growths.append(Growth(node, "graph", 0.0, float(n_hops), self.steps_since(node), 0.0, 0.0, 0.0, "graph"))
        self._compare_bytes(node, n_bytes)

    def _add_buffer(self, parent: int, thing: Any, slot: int, now: Slice) -> None:
        block = now.heap.sizes.block(thing)
        n_bytes = block.n_bytes
        if n_bytes < BUFFER_BYTES_MIN:
            return
        if self.modules.is_on_host and block.owner not in self._blocks:
            self._blocks.add(block.owner)
            self.pieces[parent] = self.pieces.get(parent, 0.0) + self.scales.get(parent, 1.0)
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
            if kind == SET:  # any of its items, of which some are new
                del items[n_items:]
            found, items = probe_new(items, before.seen, before.storages, heap)
            self._n_probed += found.n_visited
            n = min(len(items), n_items)
            if not n:
                continue
            figures = (float(old), float(size), self.steps_since(node), *found.per_item(n))
            growth = Growth(node, "items", *figures, found.via, found.is_cut, self._capacity(node), found.is_opaque, found.distances)
            if found.n_holding * 2 >= n:
                self.growths.append(growth)
                return
            data = data or growth
        if data is not None and data.data_per_item:
            self._n_data += 1
            self.growths.append(data._replace(tensors_per_item=0.0, bytes_per_item=0.0))

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


