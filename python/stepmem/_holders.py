"""Finds what holds a growing number of tensors: looks at the process twice, some steps apart, and then watches what grew.

It runs on the training thread at the ends of steps, in slices of SLICE_SECONDS. Between slices it keeps numbers and names,
never a reference to an object of the program.
"""

from __future__ import annotations

import enum
import time
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from ._garbage import Garbage, count
from ._heap import CLASS, LEAF, SIZED, TENSOR, Modules, raise_if_programs
from ._heap_names import Name, line_of, name_place, spot_of_class
from ._walk import FRAME, HOPS_MAX, Growth, Key, Place, Slice, Walk, clock, resolve

SLICE_SECONDS = 0.0025
"""Length of a slice, at which the work of one step's end stops."""

LOOK_SECONDS = 0.015
"""Time of one look, in all its slices; the rest of the heap is then left out."""

CHECKS = 6
"""How often what grew is measured again after the second look."""

HOLDERS_MAX = 8
"""Holders that are reported, at most."""

BENEATH_OBJECTS_MAX = 2000
"""Objects below one place that are counted, at most."""

SHARE_OF_RATE = 0.4
"""What grew goes on growing at this share of its rate, or is not a holder."""


class Outcome(enum.Enum):
    """How a search ended."""

    NAMED = "named"
    NONE = "none"
    GAVE_UP = "gave_up"
    FAILED = "failed"


class Holder(NamedTuple):
    """What holds a growing number of tensors."""

    name: Name
    n_tensors: int
    n_bytes: int
    tensors_per_step: float
    bytes_per_step: float

    def joined(self, other: "Holder") -> "Holder":
        """Returns this holder with the tensors of another one of its name."""
        return Holder(
            self.name,
            self.n_tensors + other.n_tensors,
            self.n_bytes + other.n_bytes,
            self.tensors_per_step + other.tensors_per_step,
            self.bytes_per_step + other.bytes_per_step,
        )

    def located(self) -> "Holder":
        """Returns this holder with the line of its spot. Reads a source file."""
        return self._replace(name=self.name._replace(spot=line_of(self.name.spot)))


class Candidate:
    """Something that grew between the looks, while it is watched. Plain data."""

    __slots__ = ("after", "before", "growth", "has_stopped", "key", "last", "middle", "middle_step", "n_bytes", "places")

    def __init__(self, growth: Growth, key: Key, places: List[Place]) -> None:
        self.growth = growth
        self.key = key
        self.places = places
        self.before = growth.before
        self.after = growth.after
        self.last = self.middle = growth.after
        self.middle_step = 0
        self.n_bytes = 0
        self.has_stopped = False


class Search:
    """One search. `at_step_end` is called at the end of every step until `outcome` is set."""

    def __init__(self, n_steps: int) -> None:
        """`n_steps` lie between the two looks, at the least."""
        self.outcome: Optional[Outcome] = None
        self.error: Optional[str] = None
        self.holders: List[Holder] = []
        self.first_step: Optional[int] = None
        """Step at which the first look ended."""
        self.last_step: Optional[int] = None
        """Step at which the second look began."""
        self.pauses: List[float] = []
        """Seconds that each step's end took."""
        self._n_steps = n_steps
        self._modules: Optional[Modules] = None
        self._looks: List[Walk] = []
        self._look_seconds = 0.0
        self._is_looking = False
        self._compare: Optional[Iterator[None]] = None
        self._candidates: List[Candidate] = []
        self._garbage: List[Dict[int, Garbage]] = []
        """Unreachable objects after each look, and at the last check."""
        self._check_due = 0
        self._n_checks = 0
        self._checked_at = 0

    def at_step_end(self, step: int) -> None:
        """Does one slice of the search."""
        began = time.perf_counter()
        try:
            self._advance(step, clock() + SLICE_SECONDS)
        except Exception as error:
            raise_if_programs(error)
            self.outcome, self.error = Outcome.FAILED, _describe(error)
        self.pauses.append(time.perf_counter() - began)

    def _advance(self, step: int, until: float) -> None:
        if self._modules is None:
            self._modules = Modules()
        elif not self._looks:
            if self._modules.advance():
                self._begin_look()
        elif self._is_looking:
            self._look(step, until)
        elif len(self._looks) == 1:
            if self.first_step is not None and step - self.first_step >= self._n_steps:
                self.last_step = step
                self._begin_look()
                self._look(step, until)
        elif self._compare is not None:
            self._go_on_comparing(step, until)
        elif step >= self._check_due:
            self._check(step)

    def _begin_look(self) -> None:
        assert self._modules is not None
        self._looks.append(Walk(self._modules, self._looks[0] if self._looks else None))
        self._look_seconds = 0.0
        self._is_looking = True

    def _look(self, step: int, until: float) -> None:
        began = clock()
        self._looks[-1].step = step
        is_over = self._looks[-1].advance(min(until, began + LOOK_SECONDS - self._look_seconds))
        self._look_seconds += clock() - began
        if not is_over and self._look_seconds < LOOK_SECONDS:
            return
        self._is_looking = False
        if self._looks[-1].is_complete:
            self._count_garbage()
        if len(self._looks) == 1:
            self.first_step = step
        else:
            self._compare = self._comparison()

    def _count_garbage(self) -> None:
        assert self._modules is not None
        now = Slice(self._modules)
        with now.heap.without_overrides():
            self._garbage.append(count(self._looks[-1], now))

    def _go_on_comparing(self, step: int, until: float) -> None:
        assert self._compare is not None
        for _ in self._compare:
            if clock() > until:
                return
        self._compare = None
        if not self._candidates and not self._growing_garbage(2):
            self._end([])
            return
        self._check_due = step + self._check_every()
        self._checked_at = step

    def _check_every(self) -> int:
        return max(1, (2 * self._n_steps + CHECKS - 1) // CHECKS)

    def _comparison(self) -> Iterator[None]:
        """Chooses what to watch. Works on numbers only, and yields now and then."""
        before, after = self._looks
        for growth in after.growths:
            self._candidates.append(Candidate(growth, after.root_key(growth.node), after.path(growth.node)))
            yield
        if any(each.measure == "items" for each in after.growths):
            return
        if not (before.is_complete and after.is_complete):
            return
        sums: List[List[float]] = []
        for walk in (before, after):
            beneath = [walk.tensors.get(node, 0.0) for node in range(len(walk.ids))]
            sums.append(beneath)
            for node in range(len(beneath) - 1, -1, -1):
                parent = walk.parents[node]
                if parent >= 0:
                    beneath[parent] += beneath[node] * walk.scales.get(parent, 1.0)
                if node % 256 == 0:
                    yield
        found = self._most_grown(before, after, sums)
        node = -1
        while True:
            try:
                node = next(found)
                yield
            except StopIteration as stop:
                node = stop.value
                break
        if node >= 0:
            sizes = (sums[0][after.matches[node]], sums[1][node])
            growth = Growth(node, "beneath", *sizes, after.steps_since(node), 1.0, 0.0, "")
            self._candidates.append(Candidate(growth, after.root_key(node), after.path(node)))

    def _most_grown(self, before: Walk, after: Walk, sums: List[List[float]]) -> "Any":
        """Returns the deepest place with most of the growth; -1 if there is none."""
        gains: List[float] = []
        for node, parent in enumerate(after.parents):
            match = after.matches[node]
            gains.append(sums[1][node] - sums[0][match] if match >= 0 else 0.0)
            if node % 256 == 0:
                yield -1
        best_child: Dict[int, int] = {}
        for node, parent in enumerate(after.parents):
            if gains[node] > gains[best_child.get(parent, -1)] if parent in best_child else gains[node] > 0:
                best_child[parent] = node
            if node % 256 == 0:
                yield -1
        node = best_child.get(-1, -1)
        if node < 0 or gains[node] < 2:
            return -1
        types_above: List[int] = []
        while True:
            child = best_child.get(node, -1)
            if child < 0 or gains[child] < 0.6 * gains[node]:
                break
            if after.type_ids[child] in types_above and after.kinds[child] not in SIZED:
                break
            if after.kinds[child] not in SIZED and after.kinds[node] != FRAME:
                types_above.append(after.type_ids[child])
            is_replaced = before.ids[after.matches[child]] != after.ids[child]
            node = child
            if is_replaced:
                break
        return node if after.parents[node] >= 0 else -1

    def _check(self, step: int) -> None:
        """Measures again what grew. What shrank, or has stopped growing, is not a holder."""
        assert self._modules is not None
        self._n_checks += 1
        is_last, is_middle = self._n_checks >= CHECKS, self._n_checks == CHECKS // 2
        now = Slice(self._modules)
        with now.heap.without_overrides():
            for candidate in self._candidates:
                if candidate.has_stopped or (candidate.growth.measure == "beneath" and not (is_last or is_middle)):
                    continue
                measured = self._measure(candidate, now)
                if measured is None or measured < candidate.last:
                    candidate.has_stopped = True
                elif is_last and not self._goes_on(candidate, measured, step):
                    candidate.has_stopped = True
                else:
                    candidate.last = measured
                    if is_middle:
                        candidate.middle, candidate.middle_step = measured, step
            self._candidates = [each for each in self._candidates if not each.has_stopped]
            if is_last and self._looks[-1].is_complete:
                self._garbage.append(count(self._looks[-1], now))
            if is_last or not (self._candidates or self._growing_garbage(2)):
                self._end(self._chosen(now) or self._chosen_garbage())
        self._check_due = step + self._check_every()

    def _goes_on(self, candidate: Candidate, measured: float, step: int) -> bool:
        growth = candidate.growth
        if growth.measure == "graph":
            return measured > growth.after or measured >= HOPS_MAX
        assert self.last_step is not None
        rate = (growth.after - growth.before) / growth.n_steps
        n_steps = step - self.last_step
        n_late = step - candidate.middle_step
        return (
            measured - growth.after >= SHARE_OF_RATE * rate * n_steps
            and measured - candidate.middle >= SHARE_OF_RATE * rate * n_late
            and measured > candidate.middle
        )

    def _measure(self, candidate: Candidate, now: Slice) -> Optional[float]:
        chain = resolve(candidate.key, candidate.places, now)
        if len(chain) < len(candidate.places):
            return None
        thing, kind = chain[-1]
        measure = candidate.growth.measure
        if measure == "items":
            return float(now.heap.size(thing, kind) if kind in SIZED else len(now.children(thing, kind, 0)))
        if kind == TENSOR and measure == "bytes":
            return float(now.heap.storage(thing)[1])
        if kind == TENSOR and measure == "graph":
            root = now.heap.graph_root(thing)
            if root is None:
                return None
            oldest, n_hops = now.heap.oldest(root, self._looks[0].newest_number, HOPS_MAX)
            return float(n_hops) if oldest <= self._looks[0].newest_number or n_hops >= HOPS_MAX else None
        n_tensors, candidate.n_bytes = _beneath(thing, now)
        return float(n_tensors)

    def _chosen(self, now: Slice) -> List[Holder]:
        """Names what is left, what grows fastest first."""
        found: Dict[Name, Holder] = {}
        for candidate in self._candidates:
            chain = resolve(candidate.key, candidate.places, now)
            if len(chain) == len(candidate.places):
                holder = self._holder(candidate, chain)
                same = found.get(holder.name)  # such as all lists in a dictionary
                found[holder.name] = holder if same is None else same.joined(holder)
        return sorted(found.values(), key=lambda each: -each.bytes_per_step)

    def _growing_garbage(self, n_counts: int) -> List[int]:
        """Returns the types of which ever more unreachable objects were counted, `n_counts` times."""
        if len(self._garbage) < n_counts:
            return []
        counts = self._garbage[:n_counts]
        last = counts[-1]
        found = []
        for type_id in last:
            row = [each[type_id].n_objects if type_id in each else 0.0 for each in counts]
            if all(more >= less + 2 for less, more in zip(row, row[1:])):
                found.append(type_id)
        return found

    def _chosen_garbage(self) -> List[Holder]:
        """Names unreachable objects, if nothing else explains the growth."""
        if self.first_step is None or self.last_step is None:
            return []
        found: List[Holder] = []
        for type_id in self._growing_garbage(3):
            first, second, _ = (each.get(type_id) for each in self._garbage)
            if second is None:
                continue
            n_steps = max(1, self.last_step - self.first_step)
            more = second.n_objects - (0.0 if first is None else first.n_objects)
            share = more / second.n_objects / n_steps
            name = Name(f"a reference cycle of `{second.type_name}` objects", "cycle", spot_of_class(second.module, second.type_name))
            found.append(
                Holder(name, round(second.n_tensors), round(second.n_bytes), second.n_tensors * share, second.n_bytes * share)
            )
        return sorted(found, key=lambda each: -each.bytes_per_step)

    def _holder(self, candidate: Candidate, chain: List[Tuple[Any, int]]) -> Holder:
        growth = candidate.growth
        name = name_place(candidate.key, chain)
        rate = (growth.after - growth.before) / growth.n_steps
        if growth.measure == "graph":
            name = Name(f"an autograd graph behind {name.text}", "graph", name.spot)
            return Holder(name, 1, 0, 0.0, 0.0)
        if growth.measure == "bytes":
            return Holder(name, 1, round(growth.after), 0.0, rate)
        if growth.measure == "beneath":
            n_tensors, n_bytes = candidate.last, float(candidate.n_bytes)
            return Holder(name, round(n_tensors), round(n_bytes), rate, rate * n_bytes / max(1.0, n_tensors))
        if growth.via == "traceback":
            name = Name(f"the traceback of a kept exception in {name.text}", "traceback", name.spot)
        n_tensors = growth.after * growth.tensors_per_item
        n_bytes = growth.after * growth.bytes_per_item
        return Holder(name, round(n_tensors), round(n_bytes), rate * growth.tensors_per_item, rate * growth.bytes_per_item)

    def _end(self, holders: List[Holder]) -> None:
        is_complete = all(look.is_complete for look in self._looks)
        self.holders = holders[:HOLDERS_MAX]
        self._looks, self._candidates = [], []
        if holders:
            self.outcome = Outcome.NAMED
        elif is_complete:
            self.outcome = Outcome.NONE
        else:
            self.outcome = Outcome.GAVE_UP
            self.error = f"too many objects: a look at all of them would take longer than {round(LOOK_SECONDS * 1e3)} ms"


def _describe(error: BaseException) -> str:
    """Returns the type of an error and its place in this package; its message may hold a value of the program."""
    trace, place = error.__traceback__, "an unknown place"
    while trace is not None:
        place = f"{trace.tb_frame.f_code.co_name}, line {trace.tb_lineno}"
        trace = trace.tb_next
    return f"{type(error).__name__} in {place}"


def _beneath(thing: Any, now: Slice) -> Tuple[int, int]:
    """Counts the tensors below an object, and their bytes; those that share a storage once."""
    heap, seen = now.heap, {id(thing)}
    waiting = [thing]
    storages: Dict[int, int] = {}
    for each in waiting:
        kind = heap.kind(type(each))
        if kind == TENSOR:
            storage, n_bytes = heap.storage(each)
            storages[storage or -len(storages)] = n_bytes
        if kind in (LEAF, CLASS) or len(seen) > BENEATH_OBJECTS_MAX:
            continue
        for child in heap.children(each, kind, heap.size(each, kind) if kind in SIZED else 0):
            if id(child) not in seen and heap.kind(type(child)) not in (LEAF, CLASS):
                seen.add(id(child))
                waiting.append(child)
    return len(storages), sum(storages.values())
