"""The objects that grew between two heap scans, while they are measured again; which of them explain the growth."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from .bounds import Chain, Fill, bound_of, ends
from .criteria import ALIKE, DATA_BYTES_MIN, EXPLAINED, MORE, NEXT_TO_NOTHING, SHARED, SHARE_OF_RATE, WHOLE
from .heap import BUFFER, LIST, SIZED, TENSOR
from .heap_scan import HOPS_MAX, Growth
from .fills import filled
from .names import Name, name_place
from .places import Key, Place, Slice, places_of, resolve
from .probe import Probe
from .removal import Link, Removal, links_of, removal

BENEATH_OBJECTS_MAX = 2000
"""Objects below one place that are counted, at most."""

COUNTED_OBJECTS_MAX = 4000
"""Objects below a container with unlike items that are counted, at most: some 4 ms."""


class Holder(NamedTuple):
    """An object that holds a growing number of tensors, or ever more memory without tensors."""

    name: Name
    n_tensors: int
    n_bytes: int
    tensors_per_step: float
    bytes_per_step: float
    keeps_more: bool = False
    """Set if it keeps memory alive that was not measured, as a graph and the frames of a traceback do."""
    fill: Optional[Fill] = None
    """Its items and their bound, if it has one."""
    added_per_step: Optional[float] = None
    """Items that it gets with each step; None of another measure."""
    is_measured: bool = False
    """Set if it keeps no other memory than what was measured."""
    links: Tuple[Link, ...] = ()
    """The way to it, for what removes from it."""
    removal: Optional[Removal] = None
    distances: Dict[int, int] = {}
    """Number of references that lead from it to its new tensors and arrays, by the identity of their memory."""

    def is_nearer_than(self, other: "Holder") -> bool:
        """Returns whether both hold the same memory, this one more directly: a model before its optimizer.

        Not if these are a small part of what the other one keeps, as the losses of kept batches are.
        """
        shared = self.distances.keys() & other.distances.keys()
        if not shared or len(shared) < SHARED * min(len(self.distances), len(other.distances)):
            return False
        if not self.keeps_more and self.bytes_per_step < EXPLAINED * other.bytes_per_step:
            return False
        return sum(self.distances[each] for each in shared) < sum(other.distances[each] for each in shared)

    def joined(self, other: "Holder") -> "Holder":
        """Returns this holder with the memory of another one of its name; the bound of one is not that of both, the line that fills both or most of it is."""
        less, most = sorted((self, other), key=lambda holder: holder.bytes_per_step)
        is_most = less.bytes_per_step < EXPLAINED * (less.bytes_per_step + most.bytes_per_step)
        return Holder(
            self.name,
            self.n_tensors + other.n_tensors,
            self.n_bytes + other.n_bytes,
            self.tensors_per_step + other.tensors_per_step,
            self.bytes_per_step + other.bytes_per_step,
            self.keeps_more or other.keeps_more,
            is_measured=self.is_measured and other.is_measured,
            links=most.links if self.links == other.links or is_most and most.links and most.links[-1].keys else (),
            distances={**other.distances, **self.distances},
        )

    def located(self, is_first: bool) -> "Holder":
        """Returns this holder with the line of its spot, and, if it comes first, with what removes from it. Reads source files and code."""
        found = removal(self.links) if is_first else None
        return self._replace(name=self.name._replace(spot=filled(self.name.spot, self.links)), removal=found)


def together(holders: List[Holder]) -> List[Holder]:
    """Returns the holders, the first of which has the memory of another one, too, that holds the same memory and more: both keep it."""
    if not holders or holders[0].fill is not None:
        return holders
    first, *others = holders
    least = MORE * first.bytes_per_step
    found = [each for each in others if each.fill is None and each.bytes_per_step > least and first.is_nearer_than(each)]
    if not found:
        return holders
    other = max(found, key=lambda each: each.bytes_per_step)
    first = first._replace(
        name=first.name._replace(text=f"{first.name.text} and {other.name.text}"),
        n_tensors=max(first.n_tensors, other.n_tensors),
        n_bytes=max(first.n_bytes, other.n_bytes),
        tensors_per_step=max(first.tensors_per_step, other.tensors_per_step),
        bytes_per_step=other.bytes_per_step,
    )
    return [first, *others]


class Whole(NamedTuple):
    """The growth that a search is about."""

    bytes_per_step: Optional[float] = None
    is_on_host: bool = True
    """Set if it is of the host's memory, to which arrays and texts belong, and not of a device's."""
    in_all: Optional[float] = None
    """Its bytes per step with what was freed; None if nothing was subtracted."""

    def without(self, freed_per_step: float) -> "Whole":
        """Returns the growth without memory that was freed and stays with the allocator, which nothing holds."""
        if self.bytes_per_step is None or freed_per_step <= 0.0:
            return self
        held = max(self.bytes_per_step - freed_per_step, DATA_BYTES_MIN / EXPLAINED)
        return self._replace(bytes_per_step=min(self.bytes_per_step, held), in_all=self.bytes_per_step)

    def _is_bystander(self, holder: Holder) -> bool:
        """Returns whether a holder has next to nothing of the host's growth, and keeps nothing else."""
        whole = self.in_all or self.bytes_per_step
        return self.is_on_host and whole is not None and holder.is_measured and 0.0 < holder.bytes_per_step < NEXT_TO_NOTHING * whole

    def explained_by(self, holder: Holder) -> bool:
        """Returns whether a holder has a telling share of the growth, or may have."""
        if holder.keeps_more or self.bytes_per_step is None:
            return True
        return holder.bytes_per_step >= EXPLAINED * self.bytes_per_step

    def may_be(self, growth: Growth) -> bool:
        """Returns whether new items of a container may have a telling share of the growth."""
        if growth.measure != "items" or growth.keeps_more:
            return growth.measure == "items"
        if growth.tensors_per_item and (self.bytes_per_step is None or not self.is_on_host):
            return True
        rate = (growth.after - growth.before) / growth.n_steps * (growth.bytes_per_item + growth.data_per_item)
        return self.is_on_host and rate >= (DATA_BYTES_MIN if self.bytes_per_step is None else EXPLAINED * self.bytes_per_step)

    def is_all_of(self, holder: Holder) -> bool:
        """Returns whether a holder grows about as fast as the whole, as far as both are known."""
        if holder.keeps_more or self.bytes_per_step is None:
            return False
        return WHOLE[0] <= holder.bytes_per_step / self.bytes_per_step <= WHOLE[1]

    def ranked(self, holders: List[Holder]) -> List[Holder]:
        """Returns the holders without small ones that hold no tensors.

        What grows fastest comes first, and before it what holds the same memory more directly.
        """
        least = DATA_BYTES_MIN if self.bytes_per_step is None else EXPLAINED * self.bytes_per_step
        holders = [each for each in holders if not self._is_bystander(each)]
        kept = [each for each in holders if each.n_tensors or each.keeps_more or self.is_on_host and each.bytes_per_step >= least]
        ranked: List[Holder] = []
        for each in sorted(kept, key=lambda each: (self._group(each), -each.bytes_per_step)):
            ranked.insert(next((idx for idx, other in enumerate(ranked) if each.is_nearer_than(other)), len(ranked)), each)
        return ranked

    def _group(self, holder: Holder) -> int:
        if self.bytes_per_step is None:
            return 0 if holder.n_tensors else 1
        if holder.bytes_per_step >= EXPLAINED * self.bytes_per_step:
            return 0
        return 1 if holder.keeps_more else 2


class Candidate:
    """An object that grew between the scans, while it is watched. Plain data."""

    __slots__ = ("beneath", "growth", "has_stopped", "key", "last", "last_step", "links", "middle", "middle_step", "name", "places", "step")

    def __init__(self, growth: Growth, key: Key, places: List[Place], step: int) -> None:
        self.growth = growth
        self.key = key
        self.places = places
        self.last = self.middle = growth.after
        self.step = self.last_step = step
        """Steps of the second scan's measurement, and of the last one."""
        self.middle_step = 0
        self.beneath: Tuple[float, float, bool, bool] = (0.0, 0.0, True, True)
        """Tensors and bytes beneath it when last measured, whether there may be more, and whether C code has memory there."""
        self.name: Optional[Name] = None
        """Its name, as soon as that is known: at the program's end the object may be gone."""
        self.links: Tuple[Link, ...] = ()
        self.has_stopped = False

    def measure(self, now: Slice, newest_number: int) -> Optional[float]:
        """Measures it again; None if it is gone. `newest_number` is the newest node of a graph at the first scan."""
        chain = self.chain(now)
        if len(chain) < len(self.places):
            return None
        thing, kind = chain[-1]
        measure = self.growth.measure
        if self.growth.capacity and kind == LIST:
            return float(now.heap.n_filled(thing))
        if measure == "items":
            return float(now.heap.size(thing, kind) if kind in SIZED else len(now.children(thing, kind, 0)))
        if kind == BUFFER:
            return float(now.heap.sizes.block(thing).n_bytes)
        if kind == TENSOR and measure == "bytes":
            return float(now.heap.storage(thing)[1])
        if kind == TENSOR and measure == "graph":
            root = now.heap.graph_root(thing)
            if root is None:
                return None
            oldest, n_hops = now.heap.oldest(root, newest_number, HOPS_MAX)
            return float(n_hops) if oldest <= newest_number or n_hops >= HOPS_MAX else None
        beneath = _beneath(thing, BENEATH_OBJECTS_MAX, now)
        self.beneath = (*_figures(beneath, 1, now), beneath.is_cut or bool(beneath.via), beneath.is_opaque)
        return float(beneath.n_pieces(now.modules.is_on_host))

    def goes_on(self, measured: float, step: int, second_step: int, is_in_shifts: bool) -> bool:
        """Returns whether it has gone on growing since the second scan, at `second_step`."""
        growth = self.growth
        if growth.measure == "graph":
            return measured > growth.after or measured >= HOPS_MAX
        rate = (growth.after - growth.before) / growth.n_steps
        if measured - growth.after < SHARE_OF_RATE * rate * (step - second_step):
            return False
        n_late = step - self.middle_step
        return is_in_shifts or measured - self.middle >= SHARE_OF_RATE * rate * n_late and measured > self.middle

    def forget_watch(self) -> None:
        """Makes its growth that between the two scans again."""
        self.last, self.last_step = self.growth.after, self.step

    def chain(self, now: Slice) -> Chain:
        """Returns the objects from its root to it; fewer if one is gone."""
        return resolve(self.key, self.places, now)

    def find_name(self, now: Slice) -> None:
        """Names it unless it is gone."""
        chain = self.chain(now)
        if len(chain) >= len(self.places):
            self.name = name_place(self.key, chain, self.growth.measure in ("graph", "bytes"))
            if self.growth.measure == "items":
                self.links = links_of(self.key, chain, now.modules)
            self.places = places_of(chain, now)

    def holder(self, now: Slice, is_on_host: bool) -> Optional[Holder]:
        """Returns the holder with its growth from the first scan to the last measurement; None if it has no name."""
        growth, name = self.growth, self.name
        if name is None:
            return None
        n_steps = max(1, growth.n_steps + self.last_step - self.step)
        rate = (self.last - growth.before) / n_steps
        if growth.measure == "graph":
            name = Name(f"an autograd graph behind {name.text}", "graph", name.spot)
            return Holder(name, 1, 0, 0.0, 0.0, True)
        if growth.measure == "bytes":
            return Holder(name, round(growth.bytes_per_item), round(self.last), 0.0, rate)
        if growth.measure == "beneath":
            n_tensors, n_bytes, keeps_more, is_opaque = self.beneath
            if self.middle_step and self.last > self.middle:  # counted at once, while a scan may miss what moved between its slices
                rate = (self.last - self.middle) / (self.last_step - self.middle_step)
            of_piece = rate / max(1.0, self.last)
            rates = (of_piece * n_tensors, of_piece * n_bytes)
            return Holder(name, round(n_tensors), round(n_bytes), *rates, keeps_more, is_measured=not (keeps_more or is_opaque))
        if growth.via == "traceback":
            name = Name(f"the traceback of a kept exception in {name.text}", "traceback", name.spot)
        bytes_per_item = growth.bytes_per_item + (growth.data_per_item if is_on_host else 0.0)
        holder = Holder(
            name,
            round(self.last * growth.tensors_per_item),
            round(self.last * bytes_per_item),
            rate * growth.tensors_per_item,
            rate * bytes_per_item,
            growth.keeps_more,
            added_per_step=rate,
            is_measured=not (growth.keeps_more or growth.is_opaque),
            links=self.links,
            distances={} if growth.via else growth.distances,
        )
        if holder.keeps_more:
            return holder
        chain = self.chain(now)
        return holder if len(chain) < len(self.places) else self._bounded(holder, chain, now, n_steps, is_on_host)

    def in_all(self, holder: Holder, now: Slice, is_counted: bool) -> Holder:
        """Returns a holder whose older items count as the oldest ones, if these hold less than the new ones.

        If they hold much less, and `is_counted`, what is beneath it is counted, as far as that is followed.
        """
        growth, chain, last = self.growth, self.chain(now), max(1.0, self.last)
        if holder.fill is not None or growth.measure != "items" or len(chain) < len(self.places):
            return holder
        thing, kind = chain[-1]
        oldest = ends(thing, kind, growth, now.heap)[0]
        probe = Probe({}, set(), now.heap)
        for item in oldest:
            probe.add(item)
        whole = (holder.n_tensors, holder.n_bytes)
        of_oldest = _figures(probe, max(1, len(oldest)), now)
        ratio = min(old * last / each for old, each in zip((*of_oldest, 1.0), (*whole, last)) if each)
        least = [each * (1.0 - (1.0 - ratio) * growth.before / last) for each in whole]
        if is_counted and ratio < ALIKE:
            counted = _figures(_beneath(thing, COUNTED_OBJECTS_MAX, now), 1, now)
            least = list(map(max, least, counted))
        n_tensors, n_bytes = map(round, map(min, least, whole))
        return holder._replace(n_tensors=n_tensors, n_bytes=n_bytes)

    def _bounded(self, holder: Holder, chain: Chain, now: Slice, n_steps: int, is_on_host: bool) -> Holder:
        """Returns a holder with its bound, if it has one, and with bytes of old and new items instead of new ones alone."""
        bound = bound_of(chain, self.growth, self.last, now.heap)
        sizes = None if bound is None else bound.bytes_per_item(now.heap, is_on_host)
        if bound is None or sizes is None:
            return holder
        of_all, of_new = sizes
        fill = Fill(bound.items, bound.items_max, bound.new_items / n_steps)
        name = holder.name if bound.kind is None else holder.name._replace(kind=bound.kind)
        n_bytes, rate = round(bound.items * of_all), fill.items_per_step * of_new
        return holder._replace(name=name, n_bytes=n_bytes, bytes_per_step=rate, fill=fill)


def _beneath(thing: Any, objects_max: int, now: Slice) -> Probe:
    """Counts the tensors and other memory below an object."""
    probe = Probe({}, set(), now.heap, objects_max)
    probe.add(thing)
    return probe


def _figures(probe: Probe, n: int, now: Slice) -> Tuple[float, float]:
    """Returns the tensors and bytes of each of `n` items."""
    n_tensors, of_tensors, of_data = probe.per_item(n)
    return n_tensors, of_tensors + (of_data if now.modules.is_on_host else 0.0)
