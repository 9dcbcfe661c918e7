"""Finds the objects that hold ever more memory: scans the heap twice, some steps apart, and then watches what grew.

It runs on the training thread at the ends of steps, in slices of SLICE_SECONDS. Between slices it keeps numbers and names,
never a reference to an object of the program.
"""

from __future__ import annotations

import enum
import functools
import time
from typing import Any, Callable, Dict, Generator, Iterable, Iterator, List, Optional, Tuple

from .._wire import SCAN_STEPS_DEFAULT
from . import garbage
from .allowance import SLICE_SECONDS, clock
from .candidates import Candidate, Holder, Whole, together
from .criteria import SHARE_OF_RATE
from .heap import SIZED, Modules, is_profiling, raise_if_programs, without_overrides
from .heap_scan import Growth, HeapScan
from .names import NOWHERE, Name
from .places import FRAME, Slice
from .removal import remember_running

SCAN_SECONDS = 0.015
"""Processor time of one heap scan, in all its slices; the rest of the heap is then left out."""

SCAN_SECONDS_MAX = 0.06
"""The same in a process whose searches may take much longer."""

END_SECONDS = 0.01
"""Processor time for the result of a search that the program's end cuts short."""

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
    """One search. `at_step_end` is called at the ends of steps until `is_over`.

    Its stages are one generator, which stops where a slice ends. None of its variables refers to an object of the program then.
    """

    def __init__(
        self,
        n_steps: int,
        whole: Whole = Whole(),
        scan_seconds: float = SCAN_SECONDS,
        malloc_rates: Callable[[], Optional[Tuple[float, float]]] = lambda: None,
        held: Callable[[], Optional[int]] = lambda: None,
    ) -> None:
        """`n_steps` lie between the two scans, at least. `whole` is the growth that is searched for; `held` returns the bytes of that memory."""
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
        self.objects: Optional[Tuple[int, int]] = None
        """Objects that the less complete scan read, and those that it met; None before the first result."""
        self.slice_seconds = self.next_seconds = SLICE_SECONDS
        """Processor time of the next slice, at most."""
        self.pauses: List[float] = []
        """Seconds that each slice took."""
        self.saw_growth: Optional[bool] = None
        """Whether the memory grew about as fast as the whole between the scans and after them, so that a holder could be seen; None if that is unknown."""
        self._held = held
        self._held_at: List[Tuple[int, Optional[int]]] = []
        """The steps of the first and the second scan, and the bytes of that memory then."""
        self._n_steps = n_steps
        self._scan_seconds = scan_seconds
        self._named_whole = self._whole = whole
        self._malloc_rates = malloc_rates
        self._began = time.monotonic()
        self._modules = Modules(whole.is_on_host)
        self._now: Optional[Slice] = None
        self._until = 0.0
        self._step = self._due = 0
        self._first: Optional[HeapScan] = None
        self._second: Optional[HeapScan] = None
        self._second_step = 0
        """Step at which the second scan began."""
        self._n_scans = 0
        self._has_candidates = False
        """Set once those of the last scan are chosen and named."""
        self._candidates: List[Candidate] = []
        self._marks: List[garbage.Mark] = []
        """The youngest generation after the first scan and before the second."""
        self._n_cycles = 0
        self._n_checks = 0
        self._stages: Optional[Iterator[None]] = self._run()

    def slice_by(self, seconds: float) -> None:
        """Makes slices so long from now on, but one that needs a length of its own."""
        if self.next_seconds == self.slice_seconds:
            self.next_seconds = seconds
        self.slice_seconds = seconds

    def is_due(self, step: int) -> bool:
        """Returns whether there is something to do at the end of a step."""
        return not self.is_over and step >= self._due

    def at_step_end(self, step: int) -> None:
        """Does one slice of the search, if one is due."""
        if not self.is_due(step) or self._stages is None:
            return
        began = time.perf_counter()
        self._step, self._until = step, clock() + self.next_seconds
        try:
            with without_overrides():
                next(self._stages)
        except StopIteration:
            self.is_over = True
        except Exception as error:
            self._fail(_describe(error))
            raise_if_programs(error)
        finally:
            self._now = None
            if self.is_over:
                self.close()
        self.pauses.append(time.perf_counter() - began)

    def close(self) -> None:
        """Ends the search and frees what it knows."""
        self.is_over = True
        self._stages = self._first = self._second = self._now = None

    def fail(self, reason: str) -> None:
        """Ends the search without a result, unless it has one."""
        if self.outcome is None:
            self._fail(reason)
        self.close()

    def _fail(self, reason: str) -> None:
        self.outcome, self.error, self.is_over = Outcome.FAILED, reason, True
        self.n_results += 1

    def cut_short(self, step: int) -> None:
        """Makes what grew between the scans, and has gone on since, the result if there is none: the program ends after `step`."""
        second = self._second
        if self.outcome is not None or second is None or self.is_over:
            return
        self._step, self._until = step, clock() + END_SECONDS
        try:
            with without_overrides():
                if not self._has_candidates:
                    self._candidates = [_candidate(growth, second) for growth in second.growths]
                    for _ in self._find_names():
                        break
                if self._n_checks:
                    self._candidates = [each for each in self._candidates if self._may_go_on(each, step)]
                holders = self._holders()
                if holders:
                    self._set_result(holders)
        finally:
            self.close()

    def _may_go_on(self, candidate: Candidate, step: int) -> bool:
        """Returns whether growth goes on, or, if it comes in level shifts, whether the next one has had no time to come."""
        assert self._first is not None
        if candidate.last_step <= self._second_step:  # of what is beneath an object, not each check measures it
            measured = candidate.measure(self._slice(), self._first.newest_number)
            if measured is None:
                return False
            candidate.last, candidate.last_step = measured, step
        if candidate.goes_on(candidate.last, candidate.last_step, self._second_step, True):
            return True
        if self._n_steps <= SCAN_STEPS_DEFAULT:
            return False
        # Between the scans is one level shift, and from then on are parts of them.
        candidate.forget_watch()
        measured = candidate.measure(self._slice(), self._first.newest_number)
        if measured is not None and candidate.goes_on(measured, step, self._second_step, True):
            return True
        holder = candidate.holder(self._slice(), self._whole.is_on_host)
        is_early = step - self._second_step <= self._n_steps
        return is_early and holder is not None and self._whole.is_all_of(holder)

    def _slice(self) -> Slice:
        """Returns what this slice may refer to."""
        if self._now is None:
            self._now = Slice(self._modules)
        return self._now

    def _run(self) -> Iterator[None]:
        """Is the search: yields where a slice ends."""
        remember_running()
        first = self._first = HeapScan(self._modules)
        yield from self._scan(first)
        began_at = self.first_step = self._step
        self._held_at = [(self._step, self._held())]
        self._marks.append(garbage.mark(self._step))
        while not self.is_over:
            yield from self._wait_until(began_at + self._n_steps)
            self._second_step = self.last_step = self._step
            self._held_at[1:] = [(self._step, self._held())]
            self._marks.append(garbage.mark(self._step))  # the scan may not reach what is made while it runs
            rates = self._malloc_rates()
            if rates is not None and self.is_on_host:
                self._whole = self._named_whole.without(rates[1])
            second = self._second = HeapScan(self._modules, first)
            yield from self._scan(second)
            self._look_for_cycles(second)
            for _ in self._choose(first, second):
                if clock() > self._until:
                    yield
            yield from self._find_names()
            self._has_candidates = True
            if self._candidates or garbage.is_growing(self._marks):
                yield from self._watch(first, second)
            yield from self._conclude(second)

    def _wait_until(self, step: int) -> Iterator[None]:
        self._due = step
        if self._step < step:
            yield
        self._due = 0

    def _scan(self, scan: HeapScan) -> Iterator[None]:
        self._n_scans += 1
        seconds = 0.0
        while True:
            began = clock()
            scan.step = self._step
            is_over = scan.advance(self._slice(), min(self._until, began + self._scan_seconds - seconds))
            seconds += clock() - began
            if is_over or seconds >= self._scan_seconds:
                return
            yield

    def _look_for_cycles(self, second: HeapScan) -> None:
        """Counts tensors in cycles of a graph, which few objects show at a time."""
        if second.is_complete:
            self._n_cycles = max(self._n_cycles, garbage.graph_cycles(second, self._slice()))

    def _watched_steps(self) -> int:
        """Returns the number of steps for which what grew is watched."""
        return self._n_steps if self._is_repeated() else 2 * self._n_steps

    def _is_repeated(self) -> bool:
        """Returns whether the second scan is a repeated one, so that growth comes in level shifts or not at all."""
        return self._n_scans > 2

    def _choose(self, before: HeapScan, after: HeapScan) -> Iterator[None]:
        """Chooses the candidates to watch. Works on numbers only, and yields now and then."""
        for growth in after.growths:
            self._candidates.append(_candidate(growth, after))
            yield
        if any(map(self._whole.may_be, after.growths)):
            return
        if not (before.is_complete and after.is_complete):
            return
        sums: List[List[float]] = []
        for scan in (before, after):
            beneath: List[float] = []
            sums.append(beneath)
            for node in range(len(scan.ids)):
                beneath.append(scan.pieces.get(node, 0.0))
                if node % 256 == 0:
                    yield
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

    def _find_names(self) -> Iterator[None]:
        for candidate in self._candidates:
            candidate.find_name(self._slice())
            if clock() > self._until:
                yield

    def _watch(self, first: HeapScan, second: HeapScan) -> Iterator[None]:
        """Measures the candidates some more times. One that shrank, or has stopped growing, is not a holder."""
        every = max(1, (self._watched_steps() + CHECKS - 1) // CHECKS)
        self._n_checks = 0
        while self._n_checks < CHECKS and (self._candidates or garbage.is_growing(self._marks)):
            yield from self._wait_until(self._step + every)
            self._n_checks += 1
            is_last, is_middle = self._n_checks >= CHECKS, self._n_checks == CHECKS // 2
            for candidate in self._candidates:
                if candidate.growth.measure == "beneath" and not (is_last or is_middle):
                    continue
                self._check(candidate, first.newest_number, is_middle, is_last)
                if clock() > self._until:
                    yield
            self._candidates = [each for each in self._candidates if not each.has_stopped]
            self.last_step = self._step
            if is_middle or is_last:
                self._look_for_cycles(second)

    def _check(self, candidate: Candidate, newest_number: int, is_middle: bool, is_last: bool) -> None:
        measured = candidate.measure(self._slice(), newest_number)
        if measured is None or measured < candidate.last:
            candidate.has_stopped = True
        elif is_last and not candidate.goes_on(measured, self._step, self._second_step, self._is_repeated()):
            candidate.has_stopped = True
        else:
            candidate.last, candidate.last_step = measured, self._step
            if is_middle:
                candidate.middle, candidate.middle_step = measured, self._step

    def _named(self) -> "Generator[None, None, List[Holder]]":
        """Returns the holders among the candidates, in the order of `Whole.ranked`."""
        found: Dict[Name, List[Tuple[Candidate, Holder]]] = {}
        for candidate in self._candidates:
            holder = candidate.holder(self._slice(), self._whole.is_on_host)
            if holder is not None:
                found.setdefault(holder.name, []).append((candidate, holder))  # such as all lists in a dictionary
            if clock() > self._until:
                yield
        ranked = self._whole.ranked([_joined(holder for _, holder in same) for same in found.values()])[:HOLDERS_MAX]
        in_all: List[Holder] = []
        for each in ranked:
            parts: List[Holder] = []
            for candidate, holder in found[each.name]:
                is_counted = not in_all and len(found[each.name]) == 1
                parts.append(candidate.in_all(holder, self._slice(), is_counted))
                if clock() > self._until:
                    yield
            in_all.append(_joined(parts))
        return together(in_all)

    def _holders(self) -> List[Holder]:
        """Returns the holders, as far as that is possible at once."""
        named = self._named()
        while True:
            try:
                next(named)
                if clock() > self._until:
                    return []
            except StopIteration as stop:
                holders: List[Holder] = stop.value
                return holders

    def _garbage(self, second: HeapScan) -> "Generator[None, None, List[Holder]]":
        """Names unreachable objects."""
        if not second.is_complete or len(self._marks) < 2:
            return []
        if not garbage.stays_young():
            if not garbage.is_growing([*self._marks, garbage.mark(second.step)]):
                return []
            self.next_seconds = garbage.LISTING_SECONDS
            yield
            self.next_seconds = self.slice_seconds
        first_mark, second_mark = self._marks[-2:]
        n_steps = max(1, second_mark.step - first_mark.step)
        holders = []
        for new, whole in garbage.between(first_mark, second_mark, second, self._slice()):
            rates = (new.n_tensors / n_steps, new.n_bytes / n_steps)
            holders.append(Holder(new.name, round(whole.n_tensors), round(whole.n_bytes), *rates))
        return holders

    def _conclude(self, second: HeapScan) -> Iterator[None]:
        """Sets the result. Ends the search, or lets it wait for another scan if what was found explains nothing."""
        holders = yield from self._named()
        if not any(map(self._whole.explained_by, holders)):
            unreachable = yield from self._garbage(second)
            holders = self._whole.ranked(holders + unreachable)
        is_explained = any(map(self._whole.explained_by, holders))
        if not is_explained and self._n_cycles:
            is_explained, holders = True, [Holder(GRAPH_CYCLES, self._n_cycles, 0, 0.0, 0.0, True), *holders]
        elif not is_explained and is_profiling():
            is_explained, holders = True, [Holder(PROFILER, 0, 0, 0.0, 0.0, True), *holders]
        self.is_explained = is_explained
        has_seen, self.saw_growth = self.saw_growth, self._has_grown()
        if holders or self.outcome is None or self.outcome != Outcome.NAMED and self.saw_growth and not has_seen:
            self._set_result(holders)
        if is_explained or not self._can_repeat():
            self.is_over = True
        else:  # Growth may come in level shifts, of which none lay between the scans.
            self._n_steps = min(FARTHER * self._n_steps, APART_MAX)
        self._second, self._n_checks, self._has_candidates = None, 0, False
        self._candidates, self._marks = [], self._marks[:1]

    def _has_grown(self) -> Optional[bool]:
        rate, have_grown = self._named_whole.bytes_per_step, []
        readings = [*self._held_at, (self._step, self._held())] if self._n_checks else self._held_at
        for (former_step, former), (step, held) in zip(readings, readings[1:]):
            if rate is None or former is None or held is None:
                return None
            have_grown.append(held - former >= SHARE_OF_RATE * rate * (step - former_step))
        return all(have_grown)

    def _can_repeat(self) -> bool:
        is_soon = time.monotonic() - self._began < REPEAT_SECONDS_MAX
        return is_soon and self._n_scans < SCANS_MAX and self._n_steps < APART_MAX

    def _set_result(self, holders: List[Holder]) -> None:
        scans = [scan for scan in (self._first, self._second) if scan is not None]
        self.holders, self.error = holders[:HOLDERS_MAX], None
        least = min(scans, key=lambda scan: scan.n_read / max(1, scan.n_met))
        self.objects = n_read, n_met = least.n_read, least.n_met
        self.n_results += 1
        if holders:
            self.outcome = Outcome.NAMED
        elif all(scan.is_complete for scan in scans):
            self.outcome = Outcome.NONE
        else:
            self.outcome = Outcome.GAVE_UP
            share = 100.0 * n_read / max(1, n_met)
            self.error = f"too many objects: {n_read:,} of at least {n_met:,} were read ({share:.2g} %)"


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
