"""Draws jobs as records of steps: what a client would push, and what is true of them by construction."""

import math
import random
from typing import Dict, List, NamedTuple, Tuple

from .truth import ACCELERATING, GIB, GROWS, LEVEL, MIB, OPEN, STAIRS, Phase, Truth

BEGAN = 1_750_000_000.0
READ_FIRST = 64
"""Steps that are read one by one."""

BLOCK = 2 * MIB
"""What the allocator takes from the driver at once."""


class Rank(NamedTuple):
    """What one rank pushes, and its truth."""

    truth: Truth
    records: Tuple[Dict, ...]


class Recording(NamedTuple):
    """A job by seed."""

    name: str
    words: str
    """Its axes."""
    ranks: Tuple[Rank, ...]

    @property
    def truths(self):
        """The truth of each rank."""
        return {idx: rank.truth for idx, rank in enumerate(self.ranks)}

    @property
    def facts(self):
        """The records of each rank."""
        return {idx: rank.records for idx, rank in enumerate(self.ranks)}

    @property
    def last(self):
        """The last step of any rank."""
        return max(rank.truth.last for rank in self.ranks)


OUTCOMES = {"completed": "completed", "error": "failed", "oom": "oom"}
"""What a rank reports at its end; a job that was cut off reports nothing."""


class _Step(NamedTuple):
    """One step as it went."""

    number: int
    time: float
    live: float
    peak: float


class _Job(NamedTuple):
    """What all ranks of a job have in common."""

    length: int
    read_every: int
    step_seconds: float
    capacity: int
    limit: str
    base: float
    transient: float
    noise_kind: str
    end: str
    """As it was drawn."""


def draw(seed: int, prefix: str = "dev") -> Recording:
    """Draws the job of a seed."""
    rng = random.Random(f"{prefix}-{seed}")
    name = f"{prefix}-{seed}"
    total = rng.choice((16, 24, 40, 80, 141)) * GIB
    limit = rng.choice(("device", "device", "device", "program"))
    capacity = total if limit == "device" else int(total * rng.uniform(0.15, 0.9)) // BLOCK * BLOCK
    length = int(math.exp(rng.uniform(math.log(20), math.log(3000))))
    end = rng.choice(("completed", "completed", "completed", "oom", "oom", "error", "cut_off"))
    job = _Job(
        length,
        rng.choice((1, 1, 1, 4)) if length >= 400 else 1,
        round(math.exp(rng.uniform(math.log(0.5), math.log(20))), 3),
        capacity,
        limit,
        capacity * rng.uniform(0.1, 0.6),
        capacity * rng.uniform(0.02, 0.2),
        rng.choice(("none", "lengths", "lengths", "evaluation", "checkpoints", "collection")),
        end,
    )
    kind = rng.choice(("grows", "grows", "later", "stairs", "accelerating", "stops", "bound", "cleared")) if end == "oom" or rng.random() < 0.6 else "nothing"
    if end == "oom" and kind in ("stops", "bound", "cleared"):
        kind = "later"
    world = rng.choice((1, 1, 1, 2, 4, 8))
    leaking = set(range(world)) if rng.random() < 0.3 else {rng.randrange(world)}
    phases = _phases(rng, kind, job)
    law = Truth(phases, job.base, job.transient, capacity, limit, job.length, end, job.step_seconds, job.read_every, _spread(job), noise=_noise(job))
    steps = [list(_steps(rng, job, law if rank in leaking else law._replace(phases=(Phase(0),)))) for rank in range(world)]
    died = {}
    last = job.length
    if end == "oom":
        died = {rank: next((step.number for step in of_rank if step.peak > capacity), None) for rank, of_rank in enumerate(steps)}
        last = min((at for at in died.values() if at is not None), default=len(steps[0]) + 1) - 1
        if not any(died.values()):
            end, last = "completed", job.length
    ranks = []
    for rank in range(world):
        of_rank = phases if rank in leaking else (Phase(0),)
        has_died = died.get(rank) == last + 1
        truth = law._replace(phases=of_rank, last=last, end=end if has_died or end != "oom" else "error", died=last + 1 if has_died else None)
        ranks.append(Rank(truth, tuple(_records(name, rank, world, total, job, truth, steps[rank]))))
    words = f"{kind}, {world} ranks of which {len(leaking)}, {job.noise_kind}, {limit}, {end}, {last} steps, every {job.read_every}"
    return Recording(name, words, tuple(ranks))


def _phases(rng, kind, job) -> Tuple[Phase, ...]:
    """The law of the ranks that keep something."""
    if kind == "nothing":
        return (Phase(0),)
    room = job.capacity - job.base - job.transient
    first = int(job.length * rng.uniform(0.1, 0.5)) if kind in ("later", "stops") or rng.random() < 0.2 else 0
    steps = job.length - first
    # Of the room, what the growth takes by the end; all of it where the job dies.
    taken = room if job.end == "oom" else room * math.exp(rng.uniform(math.log(0.02), math.log(0.9)))
    rate = taken / steps
    onset = (Phase(0),) if first else ()
    if kind == "stairs":
        every = rng.choice((5, 10, 25, 50))
        return (*onset, Phase(first, GROWS, rate, STAIRS, min(every, max(1, steps // 8))))
    if kind == "accelerating":
        return (*onset, Phase(first, GROWS, rate * 0.2, ACCELERATING, 1, 1.6 * rate / steps))
    if kind == "stops":
        stop = first + max(1, int(steps * rng.uniform(0.3, 0.6)))
        return (*onset, Phase(first, GROWS, rate), Phase(stop))
    if kind == "bound":
        n_items = max(4, int(job.length * rng.uniform(0.05, 0.4)))
        of_item = min(rate, room * 0.5 / n_items)
        # Nothing in records tells of the bound: it is open until it is full.
        return (Phase(0, OPEN, of_item), Phase(n_items))
    if kind == "cleared":
        every = max(4, int(job.length * rng.uniform(0.02, 0.3)))
        of_item = min(rate, room * 0.5 / every)
        phases: List[Phase] = []
        for n in range(0, 2 + job.length // every):
            phases += [Phase(n * every, LEVEL if n else OPEN, of_item), Phase((n + 1) * every - 1, LEVEL, -of_item * (every - 1))]
        return tuple(phases[: 2 * (1 + job.length // every)])
    return (*onset, Phase(first, GROWS, rate))


def _noise(job) -> float:
    """Standard deviation of the noise that live memory has at the ends of steps."""
    share = {"none": 0.0, "lengths": 0.03, "evaluation": 0.005, "checkpoints": 0.005, "collection": 0.03}[job.noise_kind]
    return share * job.transient


def _spread(job) -> float:
    """By how much the need of a step varies."""
    return (0.4 if job.noise_kind == "lengths" else 0.03) * job.transient


def _steps(rng, job, truth):
    """The steps of a rank; of a job that is to die, those beyond its end too."""
    garbage_every = rng.randrange(3, 30)
    time = BEGAN
    n_steps = job.length if job.end != "oom" else 2 * job.length + 200
    for step in range(1, n_steps + 1):
        time += job.step_seconds * rng.uniform(0.95, 1.05)
        live = truth.level(step)
        length = rng.uniform(0.97, 1.0)
        if job.noise_kind == "lengths":
            length = rng.uniform(0.6, 1.0)
            live += 0.26 * truth.transient * (length - 0.8)
        elif job.noise_kind == "collection":
            live += 0.1 * truth.transient * ((step % garbage_every) / garbage_every - 0.5)
        else:
            live += rng.gauss(0.0, truth.noise)
        peak = max(live, truth.level(step) + truth.transient * length)
        yield _Step(step, time, max(0.0, live), peak)
        if peak > truth.capacity:
            return


def _records(name, rank, world, total, job, truth, steps):
    """What a rank pushes, a record for each step that is read."""
    reserved = most = 0.0
    before = 0
    event_every = 30 + sum(name.encode()) % 120
    for step in steps[: truth.last]:
        most = max(most, step.peak)
        reserved = max(reserved, min(truth.capacity, math.ceil(step.peak / BLOCK) * BLOCK))
        # A client reads every step until it knows what a read costs.
        if step.number > READ_FIRST and step.number % job.read_every and step.number != truth.last:
            continue
        record = {
            "run": name, "rank": rank, "world_size": world, "step": step.number, "time": round(step.time, 3), "step_seconds": job.step_seconds,
            "device": f"GPU-{name}-{rank}", "total_bytes": total, "allocated_bytes": int(step.live), "peak_allocated_bytes": int(most),
            "reserved_bytes": int(reserved), "peak_reserved_bytes": int(reserved), "alloc_retries": 0, "ooms": 0,
        }
        if step.number - before > 1:
            record["steps"] = step.number - before
        before = step.number
        if truth.limit == "program":
            record["reserved_limit_bytes"] = job.capacity
        if job.noise_kind in ("evaluation", "checkpoints") and step.number % event_every < job.read_every and step.number > event_every:
            record["marks"] = ["eval" if job.noise_kind == "evaluation" else "checkpoint"]
        yield record
        most = 0.0
