#!/usr/bin/env python3
"""Compares the transitions of `stepmem replay` with those of the design's push-by-push reference on 30 jobs.

    tests/creep/score.sh --agree                          a line a job, every deviation with its reason, and the sums
    tests/creep/score.sh --agree fast-0 external-3        of some jobs

A transition is a series of a rank (allocated, reserved, outside_allocator) that begins to rise, begins to creep, or stops
doing so. Two agree when they lead to the same stage and are at most a block apart: 16 train pushes, or two readings. When
a transition raises a finding, slope and interval agree if they are within 1e-6 of the reference's slope. Rising reserved
memory and memory outside the allocator are not findings of stepmem and are left out.

Where stepmem departs from the reference on purpose (docs/decisions/0013), `Departed` is the reference with those changes and
nothing else. A transition that agrees only with it is a deviation with a reason:

    same push   several windows show the trend at one push: the slope is the longest one's, which the reference follows
                from then on as well, not the shortest one's, which its event names
    bend        the window is level at first: the slope is that of the rest, and staleness is judged by it
    urgent      urgent_share_ratio of rules.rs lets a window below 256 pushes creep earlier
    equal x     two blocks of readings at one step, while pushes were lost: they do not have a slope
    silent      a rank without a push for ten minutes leaves the outputs; readings of its device are ignored
    restart     the push that restarts clears the finding, not the first block of the new life
    stairs      a flight of stairs is cleared when no further stair follows
    first steps the surge of a life's first steps, which the reference does not have (docs/decisions/0024), shows it earlier, or
                showed it before and ends or gives way to a window

Anything else is "unexplained", and the exit status is 1.
"""
import bisect
import collections
import dataclasses
import itertools
import json
import math
import pathlib
import re
import statistics
import subprocess
import sys

import creepjobs
import reference
import simulate

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# creepjobs.py numbers the processes from here.
FIRST_PID = 1000
# estimate.rs: the share of one line's squared error that a bend may leave.
BEND_ERROR_RATIO = 0.5
SLOPE_TOLERANCE = 1e-6
# rules.rs: how long a life's first steps are judged, and the warm-up of windows.
SURGE_STEPS, WARMUP_STEPS = 1024, 96
PUSHES_PER_BLOCK, READINGS_PER_BLOCK = 16, 2
SERIES = "allocated", "reserved", "outside_allocator"
STAGES = "nothing", "rising", "creeping"
# Of each of 30 families a short job that has transitions; the last three must not have any.
JOBS = """
    fast-0 fast_late-3 graph_linear-0 eval_append-0 small_scalar-2 cache_sqrt-0 cache_pow-0 one_rank-2 late_onset-4 intermittent-4
    masked_noise-2 reserved_only-3 external-3 with_gc_sawtooth-2 with_restarts-0 with_stages-2 with_dirty_pushes-0 per_checkpoint-0
    with_cache-4 with_kitchen_sink-1 log_unbounded-0 replay_fill-1 epoch_accumulate_big-1 cache_big_slow-1 cache_exp-2 cache_log-3
    kitchen_sink-4 curriculum_linear-3 other_process-2 recompiles-3
""".split()


class Pyramid(reference.Pyramid):
    """The reference's pyramid; remembers the last finding of each level."""

    def reset(self):
        super().reset()
        self.shown = {}

    def test(self, level, total, ext, beta):
        found = super().test(level, total, ext, beta)
        if found: self.shown[level] = found[1]
        return found


class Reference(reference.RankCreep):
    """The reference as it is."""

    pyramid = Pyramid
    silence_seconds = math.inf

    def __init__(self, total):
        super().__init__(total)
        self.live, self.res, self.out = (self.pyramid(p.signal, p.p, p.b0) for p in (self.live, self.res, self.out))

    def stages(self):
        """The stage of each series: 0 nothing, 1 rising, 2 creeping."""
        return max(self.live.state, 2 * self.stairs.paged), 2 * (self.res.state == 2), 2 * (self.out.state == 2)


class BendingPyramid(Pyramid):
    def test(self, level, total, ext, beta):
        with_equal_x, reference.theil = reference.theil, theil_sen
        found = super().test(level, total, ext, beta)
        reference.theil = with_equal_x
        if found: follow_bend(found[1], self.rings[level])
        return found


class QuietStairs(reference.Stairs):
    QUIET_DISTANCES = 4.0

    def add(self, block, total, ext):
        events = super().add(block, total, ext)
        if events: self.n_flight = sum(jump[0] >= events[0].since for jump in self.jumps)
        if self.paged and not self.acc:
            flight = self.jumps[-self.n_flight:]
            distance = (flight[-1][0] - flight[0][0]) / (len(flight) - 1)
            if block.x - flight[-1][0] > self.QUIET_DISTANCES * distance: self.jumps, self.paged = [], False
        return events


class Departed(Reference):
    """The reference with stepmem's changes."""

    pyramid = BendingPyramid
    # The usual --rank.ttl.
    silence_seconds = 600.0

    def __init__(self, total):
        super().__init__(total)
        self.live.p = dataclasses.replace(self.live.p, big=urgent_share_ratio())
        self.stairs = QuietStairs()

    def _restart(self):
        super()._restart()
        if not self.life: return
        for kept in (self.live, self.res, self.out, self.stairs): kept.reset()
        self.xlife, self.own, self.nx, self.xcur = self.life, [], 0, None


def urgent_share_ratio():
    rules = (ROOT / "src/analysis/creep/rules.rs").read_text()
    return float(re.search(r"const ALLOCATED: Self = Self \{.*?urgent_share_ratio: ([\d.]+)", rules, re.S)[1])


def theil_sen(xs, ys):
    """As reference.theil, without the pairs of equal x: the median slope, rising minus falling pairs, all pairs."""
    pairs = list(itertools.combinations(zip(xs, ys), 2))
    slopes = [(later_y - y) / (later_x - x) for (x, y), (later_x, later_y) in pairs if later_x > x]
    return statistics.median(slopes) if slopes else 0.0, sum((later_y > y) - (later_y < y) for (_, y), (_, later_y) in pairs), pairs


def follow_bend(event, blocks):
    """The event's slope becomes that of the blocks from where a level turns into a line, by least squares."""
    xs, ys = [b.x for b in blocks], [b.y for b in blocks]
    n, errors = len(xs), []
    y_mean = math.fsum(ys) / n
    for idx in range(n - n // 4):
        zs = [max(0.0, x - xs[idx]) for x in xs]
        z_mean = math.fsum(zs) / n
        zz = math.fsum((z - z_mean) ** 2 for z in zs)
        zy = math.fsum((z - z_mean) * (y - y_mean) for z, y in zip(zs, ys))
        errors.append(math.fsum((y - y_mean) ** 2 for y in ys) - zy * zy / zz if zz > 0 else math.inf)
    start = min(range(len(errors)), key=errors.__getitem__)
    if start == 0 or errors[start] >= BEND_ERROR_RATIO * errors[0]: return
    xs, ys = xs[start:], ys[start:]
    slope = theil_sen(xs, ys)[0]
    moves = sum((later - y) ** 2 for y, later in zip(ys, ys[1:]))
    if slope <= 0 or moves == 0: return
    width = 1.96 * math.sqrt(moves) / abs(ys[-1] - ys[0])
    event.slope, event.lo, event.hi, event.since = slope, slope * (1 - width), slope * (1 + width), xs[0]


@dataclasses.dataclass
class Transition:
    rank: int
    series: str
    stage: int
    step: int
    # Train pushes of the rank so far, or readings for memory outside the allocator.
    place: int
    # (slope, lower, upper) when raised: as reported, and for the reference also as followed from this push on.
    reported: tuple = None
    followed: tuple = None
    # The reason, if only the departed reference has it.
    reason: str = "bend"
    # The step at which the growth began, of stepmem's raised ones.
    onset: int = None

    def is_same(self, other):
        return (self.rank, self.series, self.stage) == (other.rank, other.series, other.stage)

    def is_near(self, other):
        block = READINGS_PER_BLOCK if self.series == "outside_allocator" else PUSHES_PER_BLOCK
        return self.is_same(other) and abs(self.place - other.place) <= block

    def __str__(self):
        slope = f", {self.reported[0]:,.0f} bytes per step" if self.reported else ""
        return f"rank {self.rank} {self.series}: {STAGES[self.stage]} from step {self.step}{slope}"


class Places:
    """Counts the train pushes and readings of each rank, by time and step."""

    def __init__(self):
        self.pushes, self.readings, self.at = collections.defaultdict(list), collections.defaultdict(list), {}

    def push(self, rank, clock, step):
        self.pushes[rank].append(clock)
        self.at[rank, round(clock, 3), step] = len(self.pushes[rank])

    def of(self, rank, series, time, step):
        if series == "outside_allocator": return bisect.bisect_right(self.readings[rank], time + 0.0005)
        return self.at.get((rank, round(time, 3), step)) or bisect.bisect_right(self.pushes[rank], time + 0.0005)


def run_reference(records, kind, places):
    """The transitions of all ranks; fills in `places`."""
    ranks, stages, rank_on, last_push, silent, found, clock = {}, {}, {}, {}, set(), [], -math.inf
    for record in records:
        clock = max(clock, record["time"])
        rank = rank_on.get(record["device"]) if "nvml" in record else record["rank"]
        if rank is None: continue
        if rank not in ranks:
            ranks[rank], stages[rank], rank_on[record["device"]] = kind(record["total_bytes"]), (0, 0, 0), rank
        creep = ranks[rank]
        is_silent = "nvml" in record and clock - last_push[rank] > kind.silence_seconds
        if is_silent:
            places.readings[rank].append(clock)
            events = []
        elif "nvml" in record:
            places.readings[rank].append(clock)
            used = next(process["used_bytes"] for process in record["processes"] if process["pid"] == FIRST_PID + rank)
            events = creep.nvml(record["time"], record["used_bytes"], used)
        else:
            last_push[rank], is_train = clock, "phase" not in record
            if is_train: places.push(rank, clock, record["step"])
            events = creep.push(record["step"], record["time"], 1 - is_train, record["allocated_bytes"],
                                record["peak_allocated_bytes"], record["reserved_bytes"], record["peak_reserved_bytes"])
        now = (0, 0, 0) if is_silent else creep.stages()
        for idx, (before, stage) in enumerate(zip(stages[rank], now)):
            if stage == before: continue
            place = places.of(rank, SERIES[idx], clock, creep.smax)
            transition = Transition(rank, SERIES[idx], stage, creep.smax, place)
            explain(transition, creep, events, is_silent or rank in silent)
            found.append(transition)
        stages[rank] = now
        (silent.add if is_silent else silent.discard)(rank)
    return found


def explain(transition, creep, events, is_by_silence):
    """Fills in the slopes, and the change to the reference that would explain the transition."""
    pyramid = (creep.live, creep.res, creep.out)[SERIES.index(transition.series)]
    flight = next((event for event in events if event.signal == "stairs"), None)
    event = next((event for event in events if event.signal == pyramid.signal and event.kind == transition.stage), None)
    steps = [block.x for block in pyramid.rings[pyramid.det_level]]
    if is_by_silence: transition.reason = "silent"
    elif transition.stage == 0 and len(pyramid.rings[0]) <= 1: transition.reason = "restart"
    elif len(set(steps)) < len(steps): transition.reason = "equal x"
    elif transition.stage < 2 and pyramid.signal == "live" and not event: transition.reason = "stairs"
    elif event and event.kind == reference.CREEP:
        n_pushes = (len(pyramid.rings[event.level]) - 1) * pyramid.b0 * 2**event.level
        if n_pushes < pyramid.p.minspan: transition.reason = "urgent"
    if transition.stage == 0: return
    figures = lambda event: (event.slope, event.lo, event.hi)
    if event: transition.reported, transition.followed = figures(event), figures(pyramid.shown[pyramid.det_level])
    elif flight: transition.reported = transition.followed = figures(flight)
    else: transition.reported = transition.followed = figures(pyramid.shown[pyramid.det_level])


def run_stepmem(text, binary, places):
    """The transitions of all ranks as `stepmem replay` reports them."""
    done = subprocess.run([binary, "replay", "-"], input=text, capture_output=True, text=True, check=True)
    series_of = dict(CREEP_EARLY=(0, 1), CREEP_CONFIRMED=(0, 2), FRAGMENTATION=(1, 2), OUTSIDE_ALLOCATOR=(2, 2))
    held, stages, found = {}, {}, []
    events = map(json.loads, done.stdout.splitlines())
    # The reference does not judge processes that do not push: they have uuid and pid in place of run and rank.
    findings = [event for event in events if event.get("kind") in series_of and "rank" in event]
    for (rank, time, step), events in itertools.groupby(findings, lambda event: (event["rank"], event["time"], event["step"])):
        touched = set()
        for event in events:
            idx, stage = series_of[event["kind"]]
            touched.add(idx)
            # Skip findings without growth, which have no slope; a finding raised again at another severity is not a transition.
            is_held = event["state"] == "raised" and "slope_bytes_per_step" in event["evidence"]
            held[rank, idx, stage] = event["evidence"] if is_held else None
        for idx in sorted(touched):
            stage = next((stage for stage in (2, 1) if held.get((rank, idx, stage))), 0)
            if stage == stages.get((rank, idx), 0): continue
            stages[rank, idx] = stage
            transition = Transition(rank, SERIES[idx], stage, step, places.of(rank, SERIES[idx], time, step))
            if stage:
                evidence = held[rank, idx, stage]
                transition.reported = tuple(evidence[f"slope_{end}bytes_per_step"] for end in ("", "lower_", "upper_"))
                transition.onset = evidence["onset_step"]
            found.append(transition)
    return found


def is_same_slope(reported, expected):
    """The slope alone: stepmem's interval follows the blocks' scatter (docs/decisions/0060), the reference's is a random walk's."""
    if reported is None or expected is None: return reported is expected
    return abs(reported[0] - expected[0]) <= SLOPE_TOLERANCE * expected[0]


def taken(transition, others):
    """Removes and returns the one of the others that is near."""
    near = next((other for other in others if transition.is_near(other)), None)
    if near: others.remove(near)
    return near


def is_of_first_steps(transition):
    """A surge is counted from a life's first steps and judged for SURGE_STEPS of them; windows begin after the warm-up."""
    is_early = transition.onset is not None and transition.step - transition.onset <= SURGE_STEPS
    return transition.series == "allocated" and is_early and transition.place <= SURGE_STEPS + WARMUP_STEPS


def compare(ours, as_is, departed):
    """The number of transitions that agree, and (reason, stepmem's, the reference's) for the rest."""
    n_agreed, deviations, reasons = 0, [], {}
    as_is, departed = list(as_is), list(departed)
    for transition in ours:
        theirs, expected = taken(transition, as_is), taken(transition, departed)
        if theirs and expected and is_same_slope(transition.reported, theirs.reported):
            n_agreed += 1
            continue
        series = transition.rank, transition.series
        is_surge = is_of_first_steps(transition) or reasons.get(series) == "first steps"
        if expected is None and is_surge: reason = "first steps"
        elif expected is None or not is_same_slope(transition.reported, expected.followed): reason = "unexplained"
        elif theirs is None: reason = expected.reason
        elif is_same_slope(transition.reported, theirs.followed): reason = "same push"
        else: reason = "equal x" if expected.reason == "equal x" else "bend"
        deviations.append((reason, transition, theirs))
        if theirs is None: reasons.setdefault(series, reason)
    # The same transition at another time, or only in the reference: owed to an earlier deviation of the series.
    for idx, (reason, transition, theirs) in enumerate(deviations):
        if theirs: continue
        later = next((other for other in as_is if transition.is_same(other)), None)
        if later: as_is.remove(later)
        deviations[idx] = reason, transition, later
    deviations += [(reasons.get((theirs.rank, theirs.series), "unexplained"), None, theirs) for theirs in as_is]
    missing = ((reasons.get((expected.rank, expected.series)), expected) for expected in departed)
    deviations += [("unexplained", None, expected) for reason, expected in missing if reason != "first steps"]
    return n_agreed, deviations


def main():
    binary, *names = sys.argv[1:]
    sums = collections.Counter()
    for name in names or JOBS:
        family, _, seed = name.rpartition("-")
        lines = list(creepjobs.lines(simulate.make_run("public", family, int(seed))))
        records, places = [json.loads(line) for line in lines], Places()
        as_is = run_reference(records, Reference, places)
        departed = run_reference(records, Departed, Places())
        ours = run_stepmem("".join(lines), binary, places)
        n_agreed, deviations = compare(ours, as_is, departed)
        print(f"{name:24} {len(records):9,} records {len(ours):4} transitions {n_agreed:4} agree", flush=True)
        for reason, transition, theirs in deviations: print(f"    {reason:12} {transition or '-'}; reference: {theirs or '-'}")
        sums["jobs"] += 1
        sums["records"] += len(records)
        sums["transitions"] += len(ours)
        sums["of the reference"] += len(as_is)
        sums["same kind and place"] += n_agreed + sum(bool(t and theirs and t.is_near(theirs)) for _, t, theirs in deviations)
        sums["agree"] += n_agreed
        sums.update(reason for reason, _, _ in deviations)
    print("\n" + "\n".join(f"{name:20} {count:10,}" for name, count in sums.items()))
    sys.exit(sums["unexplained"] > 0)


if __name__ == "__main__":
    main()
