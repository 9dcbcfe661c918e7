"""Ranks agree on the step of a checkpoint without waiting for each other: all of them act at the same step's end, or none."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, Dict, List, Optional

import pytest

from stepmem import _agreement, _deadline
from stepmem._wire import CheckpointRequest

EVERY = 600.0
"""Seconds in which a program checkpoints at most once."""


class Store:
    """The store of `torch.distributed`, as far as it waits for nobody. Between two of its operations other ranks may take steps."""

    def __init__(self, between: Any) -> None:
        self._values: Dict[str, Any] = {}
        self._between = between

    def check(self, keys: "List[str]") -> bool:
        self._between()
        return all(key in self._values for key in keys)

    def get(self, key: str) -> bytes:
        self._between()
        assert key in self._values, "this would wait for another rank"
        return self._values[key].encode()

    def add(self, key: str, n: int) -> int:
        self._between()
        self._values[key] = self._values.get(key, 0) + n
        return self._values[key]

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        self._between()
        assert expected == ""
        return self._values.setdefault(key, desired).encode()


class Rank:
    """One rank that takes steps, and may have opted in."""

    def __init__(self, number: int, base: int, store: Store, *, is_in: bool = True) -> None:
        self.process = SimpleNamespace(step=base, identity=lambda: SimpleNamespace(rank=number), follow=lambda: None)
        self.begun = base
        """The step that it has begun."""
        self.acted: "List[tuple[int, float]]" = []
        """The steps at whose ends it acted, and when."""
        self.is_busy = False
        self.inbox: "List[tuple[float, CheckpointRequest]]" = []
        self.deadlines: "Optional[_deadline.Deadlines]" = None
        if is_in:
            self.deadlines = _deadline.Deadlines(self.process, lambda _: self.acted.append((self.process.step, clock.now)))
            self.deadlines._agreement = _agreement.Agreement(base, lambda: store)

    def take_step(self) -> None:
        self.is_busy = True
        self.process.step += 1
        due = [request for at, request in self.inbox if at <= clock.now]
        self.inbox = [each for each in self.inbox if each[0] > clock.now]
        if self.deadlines is not None:
            for request in due:
                self.deadlines.on_ask(request)
            self.deadlines.at_step_end(False)
        self.is_busy = False


clock = SimpleNamespace(now=0.0)


class Schedule:
    """A program of ranks, drawn by a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        draw = self.random
        clock.now = 1000.0
        self.n_ranks = draw.randint(2, 8)
        self.is_in_lockstep = draw.random() < 0.7
        """Set if each step has a collective of the program, so that no rank is more than a step ahead."""
        self.seconds_per_step, self.seconds = draw.choice([(0.3, 130.0), (1.0, 200.0), (7.0, 1500.0)])
        self.store = Store(self._between)
        odd = draw.random()
        self.has_other_base, self.has_abstainer = odd < 0.1, 0.1 <= odd < 0.2
        self.ranks = []
        for number in range(self.n_ranks):
            is_odd = number == self.n_ranks - 1
            base = 100 + (self.has_other_base and is_odd)
            self.ranks.append(Rank(number, base, self.store, is_in=not (self.has_abstainer and is_odd)))
        self.weights = [draw.choice([1.0, 1.0, 0.9, 0.5]) for _ in self.ranks]
        self.late_rank = draw.randrange(self.n_ranks)
        self.starts_late = 60.0 if draw.random() < 0.3 and not self.is_in_lockstep else 0.0
        self.n_delivered = 0
        self._ask()

    def _ask(self) -> None:
        """Draws the answers of the exporter: late, lost and double ones, and those of an exporter that was restarted and forgot."""
        draw = self.random
        for n_due, due in enumerate(draw.sample([20.0, 60.0, 640.0, 1300.0], 3)):
            for restart in range(draw.choice([1, 1, 2])):
                for number, rank in enumerate(self.ranks):
                    if draw.random() < 0.3:
                        continue  # lost
                    late = 60.0 if number == self.late_rank else draw.expovariate(0.5)
                    request = CheckpointRequest({"id": f"{n_due}-{restart}", "rank": number, "reason": "it grows", "every_seconds": EVERY})
                    for _ in range(draw.choice([1, 2, 5])):
                        at = clock.now + due + 5.0 * restart + late
                        rank.inbox.append((at, request))
                        self.n_delivered += at < 1000.0 + self.seconds - 60.0

    def _may_run(self, rank: Rank) -> bool:
        if rank.is_busy or (rank is self.ranks[self.late_rank] and clock.now < 1000.0 + self.starts_late):
            return False
        # Its step ends only after all have begun it, which is after they have ended the one before.
        taken = [other.process.step - 100 for other in self.ranks]
        offset = rank.process.step - 100
        return not self.is_in_lockstep or offset <= min(taken) + (self.has_other_base and rank is self.ranks[-1])

    def _between(self) -> None:
        """Lets another rank take a whole step between two operations of this one."""
        if self.random.random() < 0.5:
            ready = [rank for rank in self.ranks if self._may_run(rank)]
            if ready:
                self.random.choice(ready).take_step()

    def run(self) -> None:
        end = clock.now + self.seconds
        per_step = self.seconds_per_step / self.n_ranks
        while clock.now < end:
            clock.now += per_step
            ready = [(rank, weight) for rank, weight in zip(self.ranks, self.weights) if self._may_run(rank)]
            if ready:
                self.random.choices([rank for rank, _ in ready], [weight for _, weight in ready])[0].take_step()


@pytest.fixture
def simulated(monkeypatch):
    """Gives the modules the clock of the schedule."""
    monkeypatch.setattr(_deadline, "time", SimpleNamespace(monotonic=lambda: clock.now, time=lambda: clock.now))
    monkeypatch.setattr(_deadline, "log", lambda *_: None)

    def run(seed: int) -> Schedule:
        schedule = Schedule(seed)
        monkeypatch.setattr(_agreement, "world_size", lambda: schedule.n_ranks)
        schedule.run()
        return schedule

    return run


@pytest.mark.parametrize("part", range(10))
def test_all_ranks_of_a_thousand_schedules_act_at_the_same_steps_or_none_does(simulated, part):
    n_acted = n_expected = 0
    for seed in range(100 * part, 100 * (part + 1)):
        schedule = simulated(seed)
        last = min(rank.process.step for rank in schedule.ranks)
        steps = [[step for step, _ in rank.acted if step <= last] for rank in schedule.ranks]
        assert all(each == steps[0] for each in steps), (seed, steps)
        for rank in schedule.ranks:
            times = [at for _, at in rank.acted]
            assert all(b - a >= EVERY - 60.0 - 8 * schedule.seconds_per_step for a, b in zip(times, times[1:])), (seed, times)
        can_agree = not (schedule.has_other_base or schedule.has_abstainer)
        assert can_agree or steps == [[]] * schedule.n_ranks, seed
        if can_agree and schedule.is_in_lockstep and schedule.n_delivered:
            n_expected += 1
            n_acted += bool(steps[0])
    assert n_expected > 20
    assert n_acted >= 0.95 * n_expected, (n_acted, n_expected)


def test_rank_alone_with_the_others_ahead_of_it_never_agrees_to_a_step_that_one_is_past():
    store = Store(lambda: None)
    one, other = _agreement.Agreement(0, lambda: store), _agreement.Agreement(0, lambda: store)
    assert one.at_step_end(2, 10, {"reason": ""}, 100.0) is None  # proposes a step soon
    assert other.at_step_end(2, 1000, None, 100.0) is None  # is past it
    for step in range(11, 200):
        assert one.at_step_end(2, step, None, 100.0) is None
    assert not one.is_under_way and not other.is_under_way
