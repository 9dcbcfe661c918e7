"""Finds the objects that hold ever more memory: scans the heap twice, some steps apart, and then watches what grew.

It runs on the training thread at the ends of steps, in slices of SLICE_SECONDS. Between slices it keeps numbers and names,
never a reference to an object of the program.
"""

from __future__ import annotations

import enum
import functools
import time
from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple

from .._wire import SCAN_STEPS_DEFAULT
from . import garbage
from .arenas import Arenas
from .candidates import Candidate, Holder, Whole
from .heap import SIZED, Modules, is_profiling, raise_if_programs
from .heap_scan import FRAME, Growth, HeapScan, Slice, clock
from .names import NOWHERE, Name

SLICE_SECONDS = 0.0025
"""Length of a slice, at which the work of one step's end stops."""

SCAN_SECONDS = 0.015
"""Processor time of one heap scan, in all its slices; the rest of the heap is then left out."""

SCANS_MAX = 4
"""Heap scans of a search, at most. The second is repeated where nothing grew since the first: growth may come in level shifts."""

FARTHER = 5
"""Each scan after the second is so many times as far from the first as the one before it."""

APART_MAX = 1000
"""Steps between the first scan and a repeated one, at most."""

REPEAT_SECONDS_MAX = 300.0
"""So long after its beginning a search does not wait for another scan."""

CHECKS = 6
"""Number of times that what grew is measured again after the second scan."""

HOLDERS_MAX = 8
"""Holders that are reported, at most."""


class Outcome(enum.Enum):
    """The outcome of a search."""

    NAMED = "named"
    NONE = "none"
    GAVE_UP = "gave_up"
    FAILED = "failed"


class Search:
    """One search. `at_step_end` is called at the end of every step until `is_over`."""

    def __init__(self, n_steps: int, whole: Whole = Whole()) -> None:
        """`n_steps` lie between the two scans, at least. `whole` is the growth that is searched for."""
        self.outcome: Optional[Outcome] = None
        """The result so far; a search that found nothing may go on."""
        self.is_over = False
        self.is_on_host = whole.is_on_host
        """Set if it is about the host's memory."""
        self.is_explained = False
        """Set if what was found explains the growth."""
        self.n_results = 0
        """Number of results so far."""
        self.error: Optional[str] = None
        self.holders: List[Holder] = []
        self.first_step: Optional[int] = None
        """Step at which the first scan ended."""
        self.last_step: Optional[int] = None
        """Step of the last measurement."""
        self.pauses: List[float] = []
        """Seconds that each step's end took."""
        self._n_steps = n_steps
        self._named_whole = self._whole = whole
        self._arenas: Optional[Arenas] = Arenas() if whole.is_on_host else None
        self._began = time.monotonic()
        self._modules: Optional[Modules] = None
        self._first: Optional[HeapScan] = None
        self._second: Optional[HeapScan] = None
        self._second_step = 0
        """Step at which the second scan began."""
        self._n_scans = 0
        self._scan_seconds = 0.0
        self._is_scanning = False
        self._compare: Optional[Iterator[None]] = None
        self._candidates: List[Candidate] = []
        self._marks: List[garbage.Mark] = []
        """The youngest generation after the first scan and before the second."""
        self._n_cycles = 0
        self._check_due = 0
        self._n_checks = 0

    def at_step_end(self, step: int) -> None:
        """Does one slice of the search."""
        began = time.perf_counter()
        try:
            self._advance(step, clock() + SLICE_SECONDS)
        except Exception as error:
            raise_if_programs(error)
            self.outcome, self.error, self.is_over = Outcome.FAILED, _describe(error), True
            self.n_results += 1
        self.pauses.append(time.perf_counter() - began)

    def cut_short(self, step: int) -> None:
        """Makes what grew between the scans, and has gone on since, the result if there is none: the program ends after `step`."""
        second = self._second
        if self.outcome is not None or second is None:
            return
        now = self._slice()
        with now.heap.without_overrides():
            if self._is_scanning or self._compare is not None:
                self._candidates = [_candidate(growth, second) for growth in second.growths]
                self._find_names(now)
            if self._n_checks:
                self._candidates = [each for each in self._candidates if self._may_go_on(each, step, now)]
            holders = self._named(now)
        if holders:
            self._set_result(holders)
        self.is_over = True

    def _may_go_on(self, candidate: Candidate, step: int, now: Slice) -> bool:
        """Returns whether growth goes on, or, if it comes in level shifts, whether the next one has had no time to come."""
        assert self._first is not None
        if candidate.goes_on(candidate.last, candidate.last_step, self._second_step, True):
            return True
        if self._n_steps <= SCAN_STEPS_DEFAULT:
            return False
        # Between the scans is one level shift, and from then on are parts of them.
        candidate.forget_watch()
        measured = candidate.measure(now, self._first.newest_number)
        if measured is not None and candidate.goes_on(measured, step, self._second_step, True):
            return True
        holder = candidate.holder(now, self._whole.is_on_host)
        is_early = step - self._second_step <= self._n_steps
        return is_early and holder is not None and self._whole.is_all_of(holder)

    def _advance(self, step: int, until: float) -> None:
        if self._modules is None:
            self._modules = Modules(self._whole.is_on_host)
        elif self._first is None:
            if self._modules.advance():
                self._first = self._scan_after(None)
        elif self._is_scanning:
            self._scan(step, until)
        elif self._second is None:
            if self.first_step is not None and step - self.first_step >= self._n_steps:
                self._second_step = self.last_step = step
                self._marks.append(garbage.mark(step))  # the scan may not reach what is made while it runs
                if self._arenas is not None:
                    self._whole = self._named_whole.without(self._arenas.gains().free, step - self.first_step)
                self._second = self._scan_after(self._first)
                self._scan(step, until)
        elif self._compare is not None:
            self._go_on_comparing(step, until)
        elif step >= self._check_due:
            self._check(step)

    def _scan_after(self, before: Optional[HeapScan]) -> HeapScan:
        assert self._modules is not None
        self._scan_seconds = 0.0
        self._is_scanning = True
        self._n_scans += 1
        return HeapScan(self._modules, before)

    def _scan(self, step: int, until: float) -> None:
        scan = self._second or self._first
        assert scan is not None
        began = clock()
        scan.step = step
        is_over = scan.advance(min(until, began + SCAN_SECONDS - self._scan_seconds))
        self._scan_seconds += clock() - began
        if not is_over and self._scan_seconds < SCAN_SECONDS:
            return
        self._is_scanning = False
        if self._second is None:
            self.first_step = step
            self._marks.append(garbage.mark(step))
            self._mark_arenas()
            return
        if scan.is_complete:
            now = self._slice()
            with now.heap.without_overrides():
                self._n_cycles = garbage.graph_cycles(scan, now)
        self._compare = self._comparison()

    def _mark_arenas(self) -> None:
        if self._arenas is None:
            return
        began = clock()
        self._arenas.mark()
        if clock() - began > SLICE_SECONDS:  # glibc walks over 20,000 free pieces or more
            self._arenas = None

    def _slice(self) -> Slice:
        assert self._modules is not None
        return Slice(self._modules)

    def _go_on_comparing(self, step: int, until: float) -> None:
        assert self._compare is not None
        for _ in self._compare:
            if clock() > until:
                return
        self._compare = None
        now = self._slice()
        with now.heap.without_overrides():
            self._find_names(now)
        if self._candidates or garbage.is_growing(self._marks):
            self._check_due = step + self._check_every()
        else:
            self._finish([])

    def _check_every(self) -> int:
        return max(1, (self._n_watched() + CHECKS - 1) // CHECKS)

    def _n_watched(self) -> int:
        """Returns the number of steps for which what grew is watched."""
        return self._n_steps if self._is_repeated() else 2 * self._n_steps

    def _is_repeated(self) -> bool:
        """Returns whether the second scan is a repeated one, so that growth comes in level shifts or not at all."""
        return self._n_scans > 2

    def _comparison(self) -> Iterator[None]:
        """Chooses the candidates to watch. Works on numbers only, and yields now and then."""
        before, after = self._first, self._second
        assert before is not None and after is not None
        for growth in after.growths:
            self._candidates.append(_candidate(growth, after))
            yield
        if any(each.measure == "items" and each.tensors_per_item for each in after.growths):
            return
        if not (before.is_complete and after.is_complete):
            return
        sums: List[List[float]] = []
        for scan in (before, after):
            beneath = [scan.tensors.get(node, 0.0) for node in range(len(scan.ids))]
            sums.append(beneath)
            for node in range(len(beneath) - 1, -1, -1):
                parent = scan.parents[node]
                if parent >= 0:
                    beneath[parent] += beneath[node] * scan.scales.get(parent, 1.0)
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
            growth = Growth(node, "beneath", *sizes, after.steps_since(node), 1.0, 0.0, 0.0, "")
            self._candidates.append(_candidate(growth, after))

    def _most_grown(self, before: HeapScan, after: HeapScan, sums: List[List[float]]) -> "Any":
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
        """Measures the candidates again. One that shrank, or has stopped growing, is not a holder."""
        assert self._first is not None
        self._n_checks += 1
        is_last, is_middle = self._n_checks >= CHECKS, self._n_checks == CHECKS // 2
        now = self._slice()
        with now.heap.without_overrides():
            for candidate in self._candidates:
                if candidate.has_stopped or (candidate.growth.measure == "beneath" and not (is_last or is_middle)):
                    continue
                measured = candidate.measure(now, self._first.newest_number)
                if measured is None or measured < candidate.last:
                    candidate.has_stopped = True
                elif is_last and not candidate.goes_on(measured, step, self._second_step, self._is_repeated()):
                    candidate.has_stopped = True
                else:
                    candidate.last, candidate.last_step = measured, step
                    if is_middle:
                        candidate.middle, candidate.middle_step = measured, step
            self._candidates = [each for each in self._candidates if not each.has_stopped]
            self.last_step = step
            if is_last or not (self._candidates or garbage.is_growing(self._marks)):
                self._finish(self._chosen(now))
        self._check_due = step + self._check_every()

    def _find_names(self, now: Slice) -> None:
        chains = [each.chain(now) for each in self._candidates]  # first: naming one may change the places of another
        for candidate, chain in zip(self._candidates, chains):
            candidate.find_name(chain, now)

    def _named(self, now: Slice) -> List[Holder]:
        """Returns the holders among the candidates, in the order of `Whole.ranked`."""
        found: Dict[Name, List[Tuple[Candidate, Holder]]] = {}
        for candidate in self._candidates:
            holder = candidate.holder(now, self._whole.is_on_host)
            if holder is not None:
                found.setdefault(holder.name, []).append((candidate, holder))  # such as all lists in a dictionary
        ranked = self._whole.ranked([_joined(holder for _, holder in same) for same in found.values()])[:HOLDERS_MAX]
        in_all: List[Holder] = []
        for each in ranked:
            is_counted = not in_all and len(found[each.name]) == 1
            in_all.append(_joined(candidate.in_all(holder, now, is_counted) for candidate, holder in found[each.name]))
        return in_all

    def _chosen(self, now: Slice) -> List[Holder]:
        """Returns the holders; if they do not explain the growth, also unreachable objects."""
        holders = self._named(now)
        if not any(map(self._whole.explained_by, holders)):
            holders = self._whole.ranked(holders + self._garbage(now))
        return holders

    def _garbage(self, now: Slice) -> List[Holder]:
        """Names unreachable objects."""
        second = self._second
        if second is None or not second.is_complete or len(self._marks) < 2:
            return []
        if not garbage.is_growing([*self._marks, garbage.mark(second.step)]):
            return []
        first_mark, second_mark = self._marks[-2:]
        n_steps = max(1, second_mark.step - first_mark.step)
        holders = []
        for new, whole in garbage.between(first_mark, second_mark, second, now):
            rates = (new.n_tensors / n_steps, new.n_bytes / n_steps)
            holders.append(Holder(new.name, round(whole.n_tensors), round(whole.n_bytes), *rates))
        return holders

    def _finish(self, holders: List[Holder]) -> None:
        """Sets the result. Ends the search, or waits for another scan if what was found explains nothing."""
        is_explained = any(map(self._whole.explained_by, holders))
        if not is_explained and self._n_cycles:
            is_explained, holders = True, [Holder(GRAPH_CYCLES, self._n_cycles, 0, 0.0, 0.0, True), *holders]
        elif not is_explained and is_profiling():
            is_explained, holders = True, [Holder(PROFILER, 0, 0, 0.0, 0.0, True), *holders]
        self.is_explained = is_explained
        if holders or self.outcome is None:
            self._set_result(holders)
        if is_explained or not self._can_repeat():
            self.is_over = True
            self._first = None
        else:  # Growth may come in level shifts, of which none lay between the scans.
            self._n_steps = min(FARTHER * self._n_steps, APART_MAX)
        self._second, self._n_checks = None, 0
        self._candidates, self._marks = [], self._marks[:1]

    def _can_repeat(self) -> bool:
        is_soon = time.monotonic() - self._began < REPEAT_SECONDS_MAX
        return is_soon and self._n_scans < SCANS_MAX and self._n_steps < APART_MAX

    def _set_result(self, holders: List[Holder]) -> None:
        is_complete = all(scan is not None and scan.is_complete for scan in (self._first, self._second))
        self.holders, self.error = holders[:HOLDERS_MAX], None
        self.n_results += 1
        if holders:
            self.outcome = Outcome.NAMED
        elif is_complete:
            self.outcome = Outcome.NONE
        else:
            self.outcome = Outcome.GAVE_UP
            self.error = f"too many objects: a scan of all of them would take longer than {round(SCAN_SECONDS * 1e3)} ms"


GRAPH_CYCLES = Name("tensors that Python does not reach: cycles of the autograd graph, as of `create_graph=True`", "graph cycle", NOWHERE)

PROFILER = Name("PyTorch's profiler, which keeps all events until it stops", "profiler", NOWHERE)


def _joined(holders: Iterable[Holder]) -> Holder:
    return functools.reduce(lambda former, holder: former.joined(holder), holders)


def _candidate(growth: Growth, after: HeapScan) -> Candidate:
    step = after.measured_at.get(growth.node, after.step)
    return Candidate(growth, after.root_key(growth.node), after.path(growth.node), step)


def _describe(error: BaseException) -> str:
    """Returns the type of an error and its place in this package; its message may hold a value of the program."""
    trace, place = error.__traceback__, "an unknown place"
    while trace is not None:
        place = f"{trace.tb_frame.f_code.co_name}, line {trace.tb_lineno}"
        trace = trace.tb_next
    return f"{type(error).__name__} in {place}"
