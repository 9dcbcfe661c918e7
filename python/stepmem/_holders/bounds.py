"""Bounds of containers: the number of items that one holds at most, if the program shows it. Where that is in doubt, there is none."""

from __future__ import annotations

import gc
import sys
from collections import deque
from itertools import islice
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from .heap import CACHE, DEQUE, DICT, LIST, RECORD, TABLE_BYTES_MAX, TENSOR, Heap, module_dict, table_bytes
from .heap_scan import Growth
from .names import attributes, is_indexed, owner_of_dict
from .probe import Probe

SAMPLE_ITEMS = 8
"""Number of the oldest and of the newest items that are measured."""

KEYS_CHECKED = 64
"""Number of the first and of the last keys of a dictionary that must be indices."""

PARAMETERS_MAX = 4096
"""An optimizer with more parameters is not counted."""

SIBLINGS_MAX = 256
"""Attributes of a cache's owner, and of each data set among these, that are looked at, at most."""

QUEUES = (("queue", "Queue", "queue", "maxsize"), ("asyncio.queues", "Queue", "_queue", "_maxsize"))
"""Module and name of a class of queues, and its attributes for the items and for the most of them."""

ELEMENTS = "optimizer state in elements"
"""Kind of a holder whose items are the elements of parameters: their state is made parameter by parameter."""

_maxlen: Any = vars(deque)["maxlen"].__get__
_is_subclass: Any = type.__subclasscheck__

Chain = List[Tuple[Any, int]]


class Fill(NamedTuple):
    """Items of a container that has a bound."""

    items: int
    items_max: int
    items_per_step: float


class Bound(NamedTuple):
    """The bound of a container, and some of its items to measure."""

    items: int
    items_max: int
    new_items: int
    """Those that it got since the first scan."""
    oldest: List[Any]
    newest: List[Any]
    n_oldest: int
    """The number of items that these count as."""
    n_newest: int
    kind: Optional[str] = None
    """The kind of container, where its type does not show it."""

    def bytes_per_item(self, heap: Heap, is_on_host: bool) -> Optional[Tuple[float, float]]:
        """Returns the bytes of an item and of a new item; None where they are on another device, or not all measured."""
        sizes = []
        for items in (self.oldest, self.newest):
            probe = Probe({}, set(), heap)
            for item in items:
                probe.add(item)
            if probe.is_cut or probe.via or (not is_on_host and any(map(heap.is_on_host, probe.some))):
                return None
            _, of_tensors, of_data = probe.per_item(1)
            sizes.append(of_tensors + (of_data if is_on_host else 0.0))
        n_items = self.n_oldest + self.n_newest
        return sum(sizes) / n_items, sizes[1] / self.n_newest


def bound_of(chain: Chain, growth: Growth, measured: float, heap: Heap) -> Optional[Bound]:
    """Returns the bound of the last object of a chain, of which `measured` is the number of items; None if it has none."""
    thing, kind = chain[-1]
    owner = _owner(chain)
    if table_bytes(thing, kind) > TABLE_BYTES_MAX:
        return None
    state = _of_optimizer(owner, thing, growth, heap) if kind == DICT and heap.is_optimizer(type(owner)) else None
    if state is not None:
        return state
    items, items_max = round(measured), _items_max(thing, kind, owner, growth, heap)
    if not 2 <= items <= items_max:
        return None
    oldest, newest = ends(thing, kind, growth, heap)
    if not oldest or not newest:
        return None
    return Bound(items, items_max, items - round(growth.before), oldest, newest, len(oldest), len(newest))


def _items_max(thing: Any, kind: int, owner: Any, growth: Growth, heap: Heap) -> int:
    """Returns the number of items that a container holds at most; 0 if nothing shows it."""
    found: Any = None
    if kind == DEQUE:
        found = _maxlen(thing)
    elif kind == CACHE:
        found = heap.cache_max(thing)
    elif kind == LIST and growth.capacity:
        found = growth.capacity if heap.size(thing, kind) == growth.capacity else None
    elif kind == DICT and owner is not None:
        found = _length_of_dataset(owner, thing, heap)
    if found is None and kind in (DEQUE, LIST) and owner is not None:
        found = _queue_max(owner, thing)
    return found if type(found) is int and found > 0 else 0


def ends(thing: Any, kind: int, growth: Growth, heap: Heap) -> Tuple[List[Any], List[Any]]:
    """Returns the oldest and the newest items of a container that grew."""
    if kind == CACHE:
        results = heap.results(thing)
        return results[:SAMPLE_ITEMS], results[-SAMPLE_ITEMS:]
    if growth.capacity:
        filled = heap.filled(thing)
        return filled[:SAMPLE_ITEMS], filled[-SAMPLE_ITEMS:]
    if kind == DICT and table_bytes(thing, kind) <= TABLE_BYTES_MAX:
        values = list(islice(reversed(dict.values(thing)), SAMPLE_ITEMS))
        return heap.first(thing, kind, SAMPLE_ITEMS), values
    return heap.first(thing, kind, SAMPLE_ITEMS), heap.last(thing, kind, SAMPLE_ITEMS)


def _owner(chain: Chain) -> Any:
    """Returns the object whose attribute the last object of a chain is; None if there is none."""
    if len(chain) < 2:
        return None
    parent, kind = chain[-2]
    if kind == DICT:
        return owner_of_dict(chain, parent)
    return parent if kind == RECORD else None


def _class(module: str, name: str) -> Any:
    namespace = module_dict(sys.modules.get(module))
    found = None if namespace is None else namespace.get(name)
    return found if _is_subclass(type, type(found)) else None


def _queue_max(owner: Any, thing: Any) -> Any:
    for module, name, items, most in QUEUES:
        class_ = _class(module, name)
        if class_ is not None and _is_subclass(class_, type(owner)):
            held = attributes(owner)
            return held.get(most) if held.get(items) is thing else None
    return None


def _of_optimizer(owner: Any, state: Dict[Any, Any], growth: Growth, heap: Heap) -> Optional[Bound]:
    """Returns the bound of an optimizer's state: its items are the elements of the parameters that have one."""
    held = attributes(owner)
    n_before, keys = round(growth.before), list(islice(dict.keys(state), PARAMETERS_MAX + 1))
    parameters = _parameters(held.get("param_groups"))
    if held.get("state") is not state or max(len(keys), len(parameters)) > PARAMETERS_MAX:
        return None
    if any(heap.kind(type(each)) != TENSOR for each in keys + parameters):
        return None
    sizes = [heap.n_elements(key) for key in keys]
    values = list(islice(dict.values(state), len(keys)))
    items, items_max = sum(sizes), sum(map(heap.n_elements, parameters))
    ends = [slice(0, SAMPLE_ITEMS), slice(-SAMPLE_ITEMS, None)]
    n_oldest, n_newest = (sum(sizes[end]) for end in ends)
    if not n_oldest or not n_newest or not 0 < items <= items_max:
        return None
    oldest, newest = (values[end] for end in ends)
    return Bound(items, items_max, sum(sizes[n_before:]), oldest, newest, n_oldest, n_newest, ELEMENTS)


def _parameters(groups: Any) -> List[Any]:
    found: List[Any] = []
    if type(groups) is not list:
        return found
    for group in groups[: PARAMETERS_MAX + 1]:
        parameters = {key: each for key, each in group.items() if type(key) is str}.get("params") if type(group) is dict else None
        if type(parameters) is list:
            found += parameters[: PARAMETERS_MAX + 1 - len(found)]
    return found


def _length_of_dataset(owner: Any, cache: Any, heap: Heap) -> Optional[int]:
    """Returns the length of the dataset whose indices are the keys of a cache; None unless that is certain.

    Its owner has the dataset's items, or the dataset. Keys in the order of a count may as well be steps, unless the owner
    itself is one that is indexed.
    """
    first = list(islice(dict.keys(cache), KEYS_CHECKED))
    last = list(islice(reversed(dict.keys(cache)), KEYS_CHECKED))[::-1]
    if any(type(key) is not int or key < 0 for key in first + last):
        return None
    siblings = _siblings(owner)
    if not is_indexed(type(owner)):
        if all(key < following for key, following in zip(last, last[1:])):
            return None
        siblings = []
    for each in _siblings(owner):
        if heap.kind(type(each)) == RECORD and is_indexed(type(each)):
            siblings += _siblings(each)
    highest = max(first + last, default=0)
    lengths = {heap.length(each) for each in siblings if each is not cache}
    lengths = {length for length in lengths if length > highest and length >= dict.__len__(cache)}
    return lengths.pop() if len(lengths) == 1 else None


def _siblings(owner: Any) -> List[Any]:
    return list(attributes(owner).values())[:SIBLINGS_MAX] or gc.get_referents(owner)[:SIBLINGS_MAX]
