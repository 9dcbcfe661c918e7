"""Judges every typed statement of a job's surfaces by the job's truth. Shares no code with what it judges."""

import math
import re
import statistics
from typing import Dict, Iterator, List, NamedTuple, Optional

from . import agreement, claimed
from .figures import AMOUNT, CREEPING, FALSE, MISSING, OPENED, RISING, TRUE, UNDECIDABLE, UNSAID, amount, figure, in_words, is_near
from .observed import Observed
from .recordings import OUTCOMES
from .truth import ACCELERATING, GROWS, LEVEL, OF_KERNEL, OPEN, STAIRS, STRAIGHT, Truth

RATE_ERROR, STAIRS_ERROR, TIME_ERROR = 0.10, 0.25, 0.40
ONSET_RATIO, ONSET_STEPS = 0.10, 30
READ_STEPS = 200
"""Read steps of straight growth after which a rate has to be said."""
STAIRS_MIN = 10
"""Stairs that have to be seen before that, too."""
STANDARD_ERRORS = 10.0
"""How clear growth has to be by its known noise before silence about it is a fault; below, it is faint."""
GROWTH_MIN = 64 << 20
"""Bytes of growth before that, too: twice what stepmem calls small."""

UNHEARD_SECONDS = 2.0
"""Time before a kill whose steps may be lost, twice that between two pushes."""
RISEN_MIN = 16 << 20
"""Bytes by which a process has to grow, by its own counter, for that to be a rise: half of what stepmem calls small."""

RECENT_STEPS = 256
PRESSURE_MIN = 0.92

LEVEL_BYTES = 8 << 20
"""What a rate may come to over the steps since memory is level."""


class Statement(NamedTuple):
    """One statement, judged."""

    row: str
    outcome: str
    job: str
    step: int
    rank: int
    said: str = ""
    truth: str = ""
    error: Optional[float] = None
    """Share by which a figure is off."""
    is_covered: Optional[bool] = None
    """Whether its interval covers the truth; None where it has none."""


def judge(name: str, truths: Dict[int, Truth], facts: Dict[int, List[Dict]], observed: Observed) -> List[Statement]:
    """All statements of a job. `facts` are the records that were pushed, by rank; empty for a program."""
    parts = (_live(truths, facts, observed), _summary(truths, facts, observed), _words_of_the_card(truths, facts, observed))
    return [Statement(row, outcome, name, step, rank, *more) for part in parts for row, outcome, step, rank, *more in part]


def judge_program(program, counted: List[Dict], observed: Observed) -> List[Statement]:
    """All statements about a program that ran under `stepmem run`, whose own counters know its last step."""
    last = max((line["step"] for line in counted), default=0)
    paces = [(b["time"] - a["time"]) / (b["step"] - a["step"]) for a, b in zip(counted, counted[1:]) if b["step"] > a["step"]]
    resident = tuple((line["step"], line["resident_bytes"]) for line in counted if "resident_bytes" in line)
    truth = program.truth._replace(last=last, step_seconds=statistics.median(paces) if paces and program.truth.step_seconds else None, resident=resident)
    more = [Statement(row, outcome, program.name, step, 0, *rest) for row, outcome, step, *rest in _program(program, truth, observed)]
    return judge(program.name, {0: truth}, {}, observed) + more


def _program(program, truth, observed) -> Iterator:
    expected = program.exit_code if program.exit_code >= 0 else 128 - program.exit_code
    yield "exit code", (TRUE if observed.exit_code == expected else FALSE), truth.last, str(observed.exit_code), str(expected)
    documents = [(moment.step, moment.status["findings"], "sentence") for moment in observed.moments]
    for step, findings, words in (*documents, (truth.last, observed.summary["issues"], "summary")):
        for finding in findings:
            if finding["kind"] in (*CREEPING, *RISING):
                yield from _cause(finding, finding[words], program, truth, step)
    issues = [issue for issue in observed.summary["issues"] if issue["kind"] in (*CREEPING, *RISING)]
    named = [issue for issue in issues if issue["evidence"].get("holder") or issue["evidence"].get("site")]
    if issues and not named and truth.holders and must_be_said(truth, truth.last):
        yield "holder", MISSING, truth.last, issues[0]["summary"], " or ".join(truth.holders)


def _cause(finding, words, program, truth, step) -> Iterator:
    """What holds the growth, where, and which part of it."""
    evidence = finding["evidence"]
    is_searched = claimed.claim(finding, "no_tensor") and evidence["searched"]["is_complete"]
    if is_searched and truth.holders and recent_state(truth, step) == GROWS:
        holds_tensors = not any(kind in program.name for kind in ("texts", "NumPy"))
        yield "no growing tensor", (FALSE if holds_tensors else TRUE), step, words, " or ".join(truth.holders)
    holder = evidence.get("holder")
    if not holder:
        return
    is_right = any(each in holder["name"] for each in truth.holders)
    yield "holder", (TRUE if is_right else FALSE), step, holder["name"], " or ".join(truth.holders)
    line = (holder.get("at") or {}).get("line")
    if is_right and line is not None:
        yield "line", (TRUE if line in truth.lines else FALSE), step, str(line), str(truth.lines)
    said = claimed.claim(finding, "holder_share")
    if is_right and said and truth.phase(step).shape == STRAIGHT and truth.phase(step).state == GROWS:
        share = said["value"]
        yield "share", (TRUE if share >= 1 - STAIRS_ERROR else FALSE), step, f"{share:.0%} of it", "all of it", 1 - share


def _live(truths, facts, observed) -> Iterator:
    for moment in observed.moments:
        yield from agreement.of_moment(moment)
        yield from _run(truths, facts, moment)
        findings = moment.status["findings"]
        for rank, truth in truths.items():
            of_rank = [finding for finding in findings if finding.get("rank") == rank]
            state = next((each for each in moment.status["ranks"] if each["rank"] == rank), None)
            if state is None:
                yield "rank", MISSING, moment.step, rank
                continue
            step = min(moment.step, truth.last)
            is_by_time = bool(state.get("is_by_time"))
            yield from _verdicts(of_rank, state["creep"], truth, step, rank, is_by_time)
            for finding in of_rank:
                if finding["kind"] in (*CREEPING, *RISING):
                    yield from _growth(finding["evidence"], truth, facts.get(rank), step, rank, moment.has_ended)
                    yield from _sentence(finding, step, rank, moment.has_ended)
            for finding in of_rank:
                yield from claimed.of_finding(finding, f"{finding['sentence']} {finding['advice']}", step, rank)
            yield from _pressure(of_rank, state, truth, facts.get(rank), step, rank)
            yield from _out_of_memory(of_rank, truth, step, rank, moment.has_ended)
            yield from _rank(state, truth, facts.get(rank), step, rank, moment)


def _verdicts(findings, signals, truth, step, rank, is_by_time) -> Iterator:
    kinds = {finding["kind"] for finding in findings}
    is_said = bool(kinds & {*CREEPING, *RISING})
    for row, kinds_of_row in (("creep", CREEPING), ("rising", RISING)):
        for kind in sorted(kinds & set(kinds_of_row)):
            ended = next(each["evidence"] for each in findings if each["kind"] == kind)
            if "level_since_step" in ended:
                yield from _ended_growth(ended, truth, step, rank)
                continue
            state = recent_state(truth, step)
            outcome = {GROWS: TRUE, OPEN: OPENED, LEVEL: FALSE}[state]
            yield row, outcome, step, rank, kind, f"{state} since step {truth.phase(step).first}"
    is_said |= any(is_rate_said(signal, truth, step) for signal in signals if signal["signal"] == truth.signal)
    if not is_by_time and must_be_said(truth, step):
        true = f"{truth.phase(step).rate:.0f} B/step since step {truth.phase(step).first}"
        yield "growth said", (TRUE if is_said else MISSING), step, rank, "", true


def _ended_growth(evidence, truth, step, rank) -> Iterator:
    """Growth that is said to have ended."""
    since = evidence["level_since_step"]
    pairs = zip(truth.phases, truth.phases[1:])
    ends = [(before, phase) for before, phase in pairs if before.state in (GROWS, OPEN) and phase.state == LEVEL]
    meant = [before for before, phase in ends if abs(since - phase.first) <= tolerance_steps(truth)]
    yield "level since", (TRUE if meant else FALSE), step, rank, f"step {since}", str([phase.first for _, phase in ends])
    if meant and evidence.get("slope_bytes_per_step") is not None:
        slope, lower, upper = (evidence[f"slope{end}_bytes_per_step"] for end in ("", "_lower", "_upper"))
        outcome, error, is_covered = figure(slope, lower, upper, (meant[0].rate, meant[0].rate), RATE_ERROR)
        yield "rate", outcome, step, rank, in_words(slope), in_words(meant[0].rate), error, is_covered


def tolerance_steps(truth: Truth) -> float:
    """Steps by which an onset, or the end of growth, may be off."""
    return max(ONSET_STEPS, ONSET_RATIO * truth.last, *(phase.every for phase in truth.phases))


def recent_state(truth: Truth, step: int) -> str:
    """What memory does at a step, or did within the tolerance before it. It is open where nothing is kept, and the process grows nevertheless."""
    since = step - tolerance_steps(truth)
    ends = [each.first - 1 for each in truth.phases[1:]] + [math.inf]
    states = {phase.state for phase, end in zip(truth.phases, ends) if phase.first <= step and end >= since}
    if truth.signal == "host" and _has_risen(truth, step):
        states.add(OPEN)
    return next(state for state in (GROWS, OPEN, LEVEL) if state in states)


def _has_risen(truth: Truth, step: int) -> bool:
    """Whether the process's own counter has risen since the phase of a step began."""
    of_phase = [resident for at, resident in truth.resident if truth.phase(step).first <= at <= step]
    return bool(of_phase) and of_phase[-1] - min(of_phase) >= RISEN_MIN


def is_rate_said(slope: Dict, truth: Truth, step: int) -> bool:
    """Whether figures of a slope say the growth of a step: that it rises in a straight line, or a rate that surely is one, and is right."""
    if slope.get("is_straight"):
        return True
    value, lower, upper = (slope.get(f"slope{end}_bytes_per_step") for end in ("", "_lower", "_upper"))
    if value is None or lower is None or lower <= 0:
        return False
    least, greatest, tolerance = true_rate(truth, step)
    return figure(value, lower, upper, (least, greatest), tolerance)[0] == TRUE


def must_be_said(truth: Truth, step: int) -> bool:
    """Whether silence about the growth at a step is a fault."""
    phase = truth.phase(step)
    if phase.state != GROWS or phase.shape == ACCELERATING:
        return False
    n_steps = step - max(phase.first, 0)
    if n_steps < READ_STEPS * truth.read_every or (phase.shape == STAIRS and n_steps < STAIRS_MIN * phase.every):
        return False
    if phase.kept(n_steps) < GROWTH_MIN:
        return False
    n_read = n_steps / truth.read_every
    standard_error = truth.noise * math.sqrt(12 / n_read**3) / truth.read_every
    return phase.rate > STANDARD_ERRORS * standard_error


def true_rate(truth: Truth, step: int):
    """(least, greatest, tolerance) of the rate that may be said of the growth at a step."""
    phase = truth.phase(step)
    if phase.shape == ACCELERATING:
        return phase.rate, phase.rate + phase.gain * (step - phase.first), RATE_ERROR
    return phase.rate, phase.rate, STAIRS_ERROR if phase.shape == STAIRS else RATE_ERROR


def _growing_phase(truth, step):
    """The phase whose growth may still be told of at a step."""
    phase = truth.phase(step)
    if phase.state == GROWS:
        return phase
    before = [each for each in truth.phases if each.first < phase.first and each.state == GROWS]
    return before[-1] if before and recent_state(truth, step) == GROWS else None


def _growth(evidence, truth, facts, step, rank, has_ended) -> Iterator:
    phase = _growing_phase(truth, step)
    if phase is None:
        return
    yield from _interval(evidence, truth, step, rank)
    if facts and evidence.get("onset_step") is not None:
        yield _onset_time(evidence["onset_step"], evidence["onset_time"], facts, step, rank)
    slope = evidence.get("slope_bytes_per_step")
    at = min(step, _end_of(truth, phase))
    if slope is not None:
        least, greatest, tolerance = true_rate(truth, at)
        outcome, error, is_covered = figure(
            slope, evidence.get("slope_lower_bytes_per_step"), evidence.get("slope_upper_bytes_per_step"), (least, greatest), tolerance
        )
        if phase.shape == ACCELERATING:
            is_covered = None  # it has no one rate that an interval could have in it
        yield "rate", outcome, step, rank, in_words(slope), f"{in_words(least)} to {in_words(greatest)} ({phase.shape})", error, is_covered
    onset = evidence.get("onset_step")
    if onset is not None:
        off = max(0.0, phase.first - onset, onset - _visible_from(truth, phase))
        yield "since", (TRUE if off <= tolerance_steps(truth) else FALSE), step, rank, f"step {onset:.0f}", f"step {phase.first}", off / max(1, truth.last)
    growth = evidence.get("growth_bytes")
    if growth is not None and onset is not None:
        kept = truth.kept(step, since=int(onset))
        room = RATE_ERROR * kept + 3 * truth.noise + (phase.every * phase.rate if phase.shape == STAIRS else 0)
        yield "growth", (TRUE if abs(growth - kept) <= room else FALSE), step, rank, in_words(growth), in_words(kept), abs(growth - kept) / max(1.0, kept)
    left = evidence.get("headroom_bytes")
    if left is not None and truth.capacity is not None:
        if has_ended:
            yield "left after the end", FALSE, step, rank, in_words(left)
        elif truth.base:
            yield _left("left", left, truth, step, rank)
    yield from _time_left(evidence, truth, phase, step, rank, has_ended)


def _visible_from(truth, phase):
    """The first step of a phase at which its growth stands out from the noise; of stairs, the first stair."""
    if phase.shape == STAIRS:
        return phase.first + phase.every
    n_steps = 0
    while phase.kept(n_steps) < 3 * truth.noise and n_steps < truth.last:
        n_steps += 1
    return phase.first + n_steps


def _end_of(truth, phase):
    later = [each.first for each in truth.phases if each.first > phase.first]
    return later[0] - 1 if later else truth.last


def _left(row, left, truth, step, rank):
    """What is left counts from the highest level of late: memory that fell may rise as high again."""
    greatest = truth.capacity - truth.level(step) - truth.transient
    least = truth.capacity - max(truth.level(at) for at in range(max(1, step - RECENT_STEPS), step + 1)) - truth.transient
    room = 0.3 * truth.transient + 3 * truth.noise + 0.02 * truth.capacity
    error = max(0.0, least - left, left - greatest)
    return row, (TRUE if error <= room else FALSE), step, rank, in_words(left), f"{in_words(least)} to {in_words(greatest)}", error / truth.capacity


def _time_left(evidence, truth, phase, step, rank, has_ended) -> Iterator:
    eta = evidence.get("oom_eta_steps")
    if has_ended:
        for key in sorted(key for key in evidence if key.startswith("oom_eta") and evidence[key] is not None):
            yield "time left after the end", FALSE, step, rank, f"{key} {evidence[key]:.0f}"
        return
    deaths = truth.deaths(step) if truth.phase(step).state == GROWS else None
    least = evidence.get("oom_eta_lower_steps")
    if least is not None and deaths is not None and eta is None:
        left = max(0, deaths[1] - 1 - step)
        is_true = least <= (1 + TIME_ERROR) * left + 2 * truth.read_every
        yield "least time left", (TRUE if is_true else FALSE), step, rank, f"at least {least:.0f} steps", f"{left} steps"
    if eta is None:
        if deaths is not None and "slope_bytes_per_step" in evidence and truth.step_seconds:
            yield "time left", UNSAID, step, rank, "", f"{deaths[0] - 1 - step} steps"
        return
    if phase.shape == ACCELERATING or deaths is None:
        yield "time left", UNDECIDABLE, step, rank, f"{eta:.0f} steps"
        return
    least, greatest = (max(0, at - 1 - step) for at in deaths)
    upper = evidence.get("oom_eta_upper_steps")
    outcome, error, is_covered = figure(
        eta, evidence.get("oom_eta_lower_steps"), math.inf if upper is None else upper, (least, greatest), TIME_ERROR
    )
    if least - 2 * truth.read_every <= eta <= greatest + 2 * truth.read_every:
        outcome, error = TRUE, min(error, TIME_ERROR)
    yield "time left", outcome, step, rank, _steps(evidence), f"{least} to {greatest} steps", error, is_covered
    seconds = evidence.get("oom_eta_seconds")
    if seconds is not None and truth.step_seconds:
        off = abs(seconds - eta * truth.step_seconds) / max(truth.step_seconds, eta * truth.step_seconds)
        yield "pace", (TRUE if off <= 0.1 or abs(seconds - eta * truth.step_seconds) <= 1 else FALSE), step, rank, f"{seconds:.0f} s for {eta:.0f} steps", f"{truth.step_seconds} s a step", off


def _steps(evidence):
    lower, upper = (evidence.get(f"oom_eta_{end}_steps") for end in ("lower", "upper"))
    interval = "" if lower is None else f" ({lower:.0f} to {'any' if upper is None else f'{upper:.0f}'})"
    return f"{evidence['oom_eta_steps']:.0f} steps{interval}"


def _pressure(findings, state, truth, facts, step, rank) -> Iterator:
    for finding in findings:
        evidence = finding["evidence"]
        if finding["kind"] == "HIGH_PRESSURE" and truth.capacity is not None:
            capacity = evidence.get("capacity_bytes", truth.capacity)
            yield "capacity", (TRUE if capacity == int(truth.capacity) else FALSE), step, rank, str(capacity), str(truth.capacity)
            if not claimed.statements(finding):
                percent = re.search(r"at (\d+)%", finding["sentence"])
                said = int(percent[1]) / 100 if percent else evidence["pressure_ratio"]
                is_same = is_near(said, evidence["pressure_ratio"], 0.0, 0.0051)
                yield "words and evidence", (TRUE if is_same else FALSE), step, rank, finding["sentence"], f"{evidence['pressure_ratio']:.3f}"
    if not facts or truth.capacity is None:
        return
    peaks = [record["peak_allocated_bytes"] for record in facts if record["step"] <= step]
    newest, ratio = peaks[-1] / truth.capacity, max(peaks[-RECENT_STEPS:]) / truth.capacity
    reserved = next(record["peak_reserved_bytes"] for record in reversed(facts) if record["step"] <= step) / truth.capacity
    said = state["pressures"].get("allocated")
    if said is not None:
        is_true = newest - 0.005 <= said <= max(peaks) / truth.capacity + 0.005
        yield "pressure ratio", (TRUE if is_true else FALSE), step, rank, f"{said:.3f}", f"{newest:.3f} to {ratio:.3f}"
    if any(finding["kind"] == "HIGH_PRESSURE" for finding in findings):
        yield "pressure", (TRUE if max(ratio, reserved) >= PRESSURE_MIN else FALSE), step, rank, "HIGH PRESSURE", f"{ratio:.3f}"
    elif newest >= PRESSURE_MIN:
        yield "pressure", MISSING, step, rank, "", f"{newest:.3f}"


def _out_of_memory(findings, truth, step, rank, has_ended) -> Iterator:
    """An error that is told has come, and one that has come is told, with its figures."""
    died = truth.end in ("oom", "oom_caught")
    told = [finding for finding in findings if finding["kind"] == "OUT_OF_MEMORY"]
    if has_ended and truth.end == "oom" and not told:
        yield "out of memory", MISSING, step, rank, "", truth.end
    for finding in told:
        evidence = finding["evidence"]
        yield "out of memory", (TRUE if died else FALSE), step, rank, finding["sentence"], truth.end
        yield from _figures_of_death(evidence, truth, step, rank)


def _figures_of_death(evidence, truth, step, rank) -> Iterator:
    if truth.end != "oom":
        return
    at = evidence.get("oom_step")
    if at is not None:
        # Of calls not each has a record: it is said after which one.
        is_so = at <= truth.last if evidence.get("unit") == "calls" else at == truth.last
        yield "step of an error", (TRUE if is_so else FALSE), step, rank, str(at), str(truth.last)
    limit = evidence.get("limit")
    # What the kernel limits need not be what did not fit: that may be more than there is.
    if truth.limit != "budget" and (limit or truth.limit not in OF_KERNEL) and (limit or {}).get("origin", "device") != truth.limit:
        yield "limit of an error", FALSE, step, rank, str(limit), truth.limit
    if limit:
        yield "capacity", (TRUE if limit["bytes"] == int(truth.capacity) else FALSE), step, rank, str(limit["bytes"]), str(truth.capacity)
    left = evidence.get("headroom_bytes")
    if left is not None and truth.base:
        yield _left("last headroom", left, truth, truth.last, rank)
    growth, phase = evidence.get("growth_bytes"), truth.phase(truth.last)
    if growth is not None and phase.state == GROWS:
        kept = truth.kept(truth.last, since=phase.first)
        room = max(RATE_ERROR * kept + 3 * truth.noise, kept - truth.kept(truth.last, since=phase.first + tolerance_steps(truth)))
        yield "growth", (TRUE if abs(growth - kept) <= room else FALSE), step, rank, in_words(growth), in_words(kept)


def _run(truths, facts, moment) -> Iterator:
    """The worst rank of a run, and how far its peak is above the median."""
    if len(truths) < 2 or not facts:
        return
    peaks = {rank: max(record["peak_allocated_bytes"] for record in records if record["step"] <= moment.step) for rank, records in facts.items()}
    median = statistics.median(peaks.values())
    for run in moment.status["runs"]:
        if run["worst_rank"] is not None:
            is_true = peaks[run["worst_rank"]] >= 0.98 * max(peaks.values())
            yield "worst rank", (TRUE if is_true else FALSE), moment.step, run["worst_rank"], str(run["worst_rank"]), str(max(peaks, key=peaks.get))
        if run["imbalance_ratio"] is not None:
            true = max(peaks.values()) / median - 1
            is_true = is_near(run["imbalance_ratio"], true, 0.1, 0.03)
            yield "imbalance ratio", (TRUE if is_true else FALSE), moment.step, 0, f"{run['imbalance_ratio']:.3f}", f"{true:.3f}"


def _rank(state, truth, facts, step, rank, moment) -> Iterator:
    capacity = state.get("capacity_bytes")
    if truth.capacity is not None:
        outcome = MISSING if capacity is None else TRUE if capacity == int(truth.capacity) else FALSE
        yield "capacity", outcome, step, rank, str(capacity), str(truth.capacity)
    left = state.get("headroom_bytes")
    if left is not None and facts:
        yield _left("headroom", left, truth, step, rank)
    if facts:
        newest = next(record for record in reversed(facts) if record["step"] <= step)
        for key in ("allocated_bytes", "peak_allocated_bytes", "reserved_bytes", "step"):
            yield "figures pushed", (TRUE if state[key] == newest[key] else FALSE), step, rank, f"{key} {state[key]}", str(newest[key])
        if state.get("step_seconds") is not None:
            outcome = TRUE if state["step_seconds"] == truth.step_seconds else FALSE
            yield "step seconds", outcome, step, rank, str(state["step_seconds"]), str(truth.step_seconds)
    for signal in state["creep"]:
        yield from _interval(signal, truth, step, rank)
        onset = (signal.get("trend") or {}).get("onset_step")
        if onset is not None and facts:
            yield _onset_time(onset, signal["trend"]["onset_time"], facts, step, rank)
    if moment.has_ended:
        said = (state.get("end") or {}).get("outcome")
        expected = OUTCOMES.get(truth.end)
        yield "outcome", (TRUE if said == expected else FALSE), step, rank, str(said), str(expected)
        yield "state at the end", (TRUE if state["state"] == "ended" else FALSE), step, rank, state["state"], "ended"
        forecast = [line for line in moment.metrics.splitlines() if "_oom_eta" in line and f'rank="{rank}"' in line]
        yield "no forecast after the end", (FALSE if forecast else TRUE), step, rank, forecast[0] if forecast else ""


def _interval(figures, truth, step, rank) -> Iterator:
    """A figure lies in its interval, and per second is per step by the pace."""
    lower, slope, upper = (figures.get(f"slope{end}_bytes_per_step") for end in ("_lower", "", "_upper"))
    if None not in (lower, slope, upper):
        yield "interval", (TRUE if lower <= slope <= upper else FALSE), step, rank, in_words(slope), f"{in_words(lower)} to {in_words(upper)}"
    per_second = figures.get("slope_bytes_per_second")
    if per_second and slope and truth.step_seconds and truth.base:
        is_true = is_near(per_second * truth.step_seconds, slope, 0.1, 1.0)
        yield "per second", (TRUE if is_true else FALSE), step, rank, f"{in_words(per_second)}/s", f"{in_words(slope)} of {truth.step_seconds} s"
    ends = [figures.get(f"oom_eta{end}_steps") for end in ("_lower", "", "_upper")]
    known = [end for end in ends if end is not None]
    yield "interval", (TRUE if known == sorted(known) else FALSE), step, rank, str(known), "in order"


def _onset_time(onset, time, facts, step, rank):
    true = min(facts, key=lambda record: abs(record["step"] - onset))["time"]
    room = 2 * facts[0].get("steps", 1) * facts[0]["step_seconds"]
    return "time of the onset", (TRUE if abs(time - true) <= room else FALSE), step, rank, f"{time:.0f}", f"{true:.0f}"


def _sentence(finding, step, rank, has_ended) -> Iterator:
    """Finds what is said to come of growth that is over; of words without statements, compares them with the evidence, too."""
    if not claimed.statements(finding):
        yield from _words(finding, step, rank, has_ended)
    elif has_ended:
        for each in claimed.statements(finding):
            if each["claim"] in claimed.AHEAD:
                yield "left after the end", FALSE, step, rank, each["words"]


def _words(finding, step, rank, has_ended) -> Iterator:
    """Compares the words of a finding with its own evidence."""
    sentence, evidence = finding["sentence"], finding["evidence"]
    pairs = []
    rate = re.search(rf"(?:by|at) (?:about )?{AMOUNT}/step", sentence)
    if rate and evidence.get("slope_bytes_per_step") is not None:
        pairs.append(("rate", amount(rate), evidence["slope_bytes_per_step"]))
    since = re.search(rf"{AMOUNT} since step ([\d,]+)", sentence)
    if since and evidence.get("onset_step") is not None:
        pairs.append(("growth", amount(since), evidence["growth_bytes"]))
        pairs.append(("onset", float(since[3].replace(",", "")), evidence["onset_step"]))
    left = re.search(rf"{AMOUNT} left", sentence)
    if left and evidence.get("headroom_bytes") is not None:
        pairs.append(("left", amount(left), evidence["headroom_bytes"]))
    steps = re.search(r"\(([\d,]+) steps?\)", sentence)
    if steps and evidence.get("oom_eta_steps") is not None:
        pairs.append(("time left", float(steps[1].replace(",", "")), evidence["oom_eta_steps"]))
    for what, said, typed in pairs:
        is_same = abs(said - typed) <= 0.02 * abs(typed) + 1.0
        yield "words and evidence", (TRUE if is_same else FALSE), step, rank, f"{what} {said:.6g}", f"{typed:.6g}"
    if has_ended and re.search(r"\bleft\b|out of memory in", sentence):
        yield "left after the end", FALSE, step, rank, sentence


def _as_heard(truth: Truth, row: Optional[Dict]) -> Truth:
    """The truth up to the last step that was pushed: a process that is killed takes those of its last moments with it."""
    heard = ((row or {}).get("last") or {}).get("step")
    if heard is None or row["state"] != "ended_unannounced" or truth.end != "signal":
        return truth
    is_lately = (truth.last - heard) * (truth.step_seconds or 0.0) <= UNHEARD_SECONDS
    return truth._replace(last=min(truth.last, int(heard))) if is_lately else truth


def _summary(truths, facts, observed) -> Iterator:
    summary = observed.summary
    rows = {row["rank"]: row for row in summary["ranks"]}
    truths = {rank: _as_heard(truth, rows.get(rank)) for rank, truth in truths.items()}
    for rank, truth in truths.items():
        row = rows.get(rank)
        if row is None:
            yield "rank", MISSING, truth.last, rank
            continue
        issues = [issue for issue in summary["issues"] if rank in issue["ranks"]]
        kinds = {issue["kind"] for issue in issues}
        for name, kinds_of_row in (("card: creep", CREEPING), ("card: rising", RISING)):
            for kind in sorted(kinds & set(kinds_of_row)):
                state = recent_state(truth, truth.last)
                yield name, {GROWS: TRUE, OPEN: OPENED, LEVEL: FALSE}[state], truth.last, rank, kind, state
        is_straight = bool((row.get("trend") or {}).get("is_straight"))
        if is_straight:
            is_true = recent_state(truth, truth.last) in (GROWS, OPEN)
            yield "card: rises straight", (TRUE if is_true else FALSE), truth.last, rank, "is_straight", truth.phase(truth.last).state
        is_by_time = not row["steps"]
        if not is_by_time and must_be_said(truth, truth.last):
            is_said = is_rate_said(row.get("trend") or {}, truth, truth.last) or bool(kinds & {*CREEPING, *RISING, "OUT_OF_MEMORY"})
            true = f"{truth.phase(truth.last).rate:.0f} B/step"
            yield "card: growth said", (TRUE if is_said else MISSING), truth.last, rank, summary["diagnosis"]["status"], true
        if truth.end != "cut_off":
            later = [key for key, value in (row.get("trend") or {}).items() if key.startswith("oom_eta") and value is not None]
            yield "no forecast after the end", (FALSE if later else TRUE), truth.last, rank, str(later)
        if facts.get(rank):
            steps = sum(record.get("steps", 1) for record in facts[rank])
            for name, said, true in (("last step", row["last"]["step"], truth.last), ("steps", row["steps"], steps)):
                yield "card: steps", (TRUE if said == true else FALSE), truth.last, rank, f"{name} {said}", str(true)
        died = truth.end in ("oom", "oom_caught")
        if "OUT_OF_MEMORY" in kinds:
            yield "card: out of memory", (TRUE if died else FALSE), truth.last, rank, "OUT_OF_MEMORY", truth.end
        elif truth.end == "oom":
            yield "card: out of memory", MISSING, truth.last, rank, ",".join(sorted(kinds)), truth.end
        yield from _per_step(row, agreement.cells_of(observed.card).get(rank), truth, rank)
        if facts.get(rank):
            yield from _summary_figures(row, facts[rank], truth, rank)
        capacity = row.get("capacity_bytes")
        if truth.capacity is not None and capacity is not None:
            yield "card: capacity", (TRUE if capacity == int(truth.capacity) else FALSE), truth.last, rank, str(capacity), str(truth.capacity)
    for issue in summary["issues"]:
        worst = issue["ranks"][0] if issue["ranks"] else 0
        if issue["kind"] in (*CREEPING, *RISING) and worst in truths:
            yield from _growth(issue["evidence"], truths[worst], facts.get(worst), truths[worst].last, worst, truths[worst].end != "cut_off")
            yield from _sentence({**issue, "sentence": issue["summary"]}, truths[worst].last, worst, truths[worst].end != "cut_off")
        if issue["kind"] == "OUT_OF_MEMORY" and worst in truths:
            yield from _figures_of_death(issue["evidence"], truths[worst], truths[worst].last, worst)
        if isinstance(issue["evidence"], dict):
            last = max(truth.last for truth in truths.values())
            yield from claimed.of_finding(issue, f"{issue['summary']} {issue['action']}", last, worst)
    diagnosis = summary["diagnosis"]
    advice = diagnosis["action"]
    is_nothing = claimed.claim(diagnosis, "nothing_to_do") if claimed.statements(diagnosis) else "Nothing to do" in advice
    if is_nothing:
        growing = [rank for rank, truth in truths.items() if must_be_said(truth, truth.last)]
        last = max(truth.last for truth in truths.values())
        yield "card: nothing to do", (FALSE if growing else TRUE), last, growing[0] if growing else 0, advice


def _summary_figures(row, records, truth, rank) -> Iterator:
    for key, field in (("allocated", "allocated_bytes"), ("peak_allocated", "peak_allocated_bytes"), ("reserved", "reserved_bytes")):
        values = [record[field] for record in records for _ in range(record.get("steps", 1))]
        said = row.get(key)
        if said is None:
            yield "card: figures", MISSING, truth.last, rank, key
            continue
        for name, true in (("max_bytes", max(values)), ("last_bytes", values[-1]), ("mean_bytes", sum(values) / len(values))):
            is_same = abs(said[name] - true) <= (1e-6 * true if name == "mean_bytes" else 0)
            yield "card: figures", (TRUE if is_same else FALSE), truth.last, rank, f"{key}.{name} {said[name]}", str(true)
        at = max(records, key=lambda record: record[field])["step"]
        yield "card: figures", (TRUE if said["max_step"] == at else FALSE), truth.last, rank, f"{key}.max_step {said['max_step']}", str(at)


def _words_of_the_card(truths, facts, observed) -> Iterator:
    yield from agreement.of_card(observed.summary, observed.card)
    if facts:
        yield from _line_of_the_run(facts, observed.card)
    ends = {truth.end for truth in truths.values()}
    last = max(truth.last for truth in truths.values())
    yield from claimed.of_card(observed.summary, observed.card, last)
    said = [each["words"] for each in claimed.statements(observed.summary) if each["claim"] in claimed.AHEAD]
    if not claimed.statements(observed.summary):
        said = re.findall(r"out of memory in about|\d left, |left of", observed.card)
    if "cut_off" not in ends:
        yield "card: no forecast", (FALSE if said else TRUE), last, 0, said[0] if said else ""


def _level_since(truth):
    """(the first step of the level phases up to the end, by how much they differ)."""
    since = truth.last
    for phase in sorted(truth.phases, key=lambda phase: -phase.first):
        if phase.first <= truth.last and phase.state != LEVEL:
            break
        since = min(since, phase.first)
    levels = [truth.level(step) for step in range(max(1, since), truth.last + 1)]
    return since, max(levels) - min(levels)


def _per_step(row, cells, truth, rank) -> Iterator:
    """The rate of the table of ranks: that of now, whatever it was before."""
    trend, phase = row.get("trend"), truth.phase(truth.last)
    if not trend or trend.get("slope_bytes_per_step") is None:
        return
    since, amplitude = _level_since(truth)
    if phase.state == LEVEL and truth.last - since > truth.last / 3:
        cell = cells[agreement.COLUMNS.index("PER STEP")] if cells and len(cells) >= len(agreement.COLUMNS) else "–"
        is_sure = trend["slope_lower_bytes_per_step"] > 0 or trend["slope_upper_bytes_per_step"] < 0
        told = abs(trend["slope_bytes_per_step"]) * (truth.last - since) if is_sure or cell != "–" else 0.0
        room = max(0.1 * truth.kept(since), 3 * truth.noise, 2 * amplitude, LEVEL_BYTES)
        yield "card: per step", (TRUE if told <= room else FALSE), truth.last, rank, in_words(trend["slope_bytes_per_step"]), "level"
        return
    if phase.state != GROWS or phase.shape == ACCELERATING or truth.last - phase.first < truth.last / 3:
        return
    slope, lower, upper = (trend[f"slope{end}_bytes_per_step"] for end in ("", "_lower", "_upper"))
    outcome, error, is_covered = figure(slope, lower, upper, (phase.rate, phase.rate), STAIRS_ERROR if phase.shape == STAIRS else RATE_ERROR)
    yield "card: per step", outcome, truth.last, rank, f"{in_words(slope)} ({in_words(lower)} to {in_words(upper)})", in_words(phase.rate), error, is_covered


SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86400}


def _line_of_the_run(facts, card) -> Iterator:
    """Compares the first and last step, the time between them and the share of steps that were read with the records."""
    records = [record for of_rank in facts.values() for record in of_rank]
    first, last = min(record["step"] for record in records), max(record["step"] for record in records)
    flat = " ".join(card.split())
    steps = re.search(r"steps ([\d,]+) to ([\d,]+) in ((?:\d+ (?:s|min|h|d) ?)+)", flat)
    if not steps:
        return
    is_true = tuple(int(step.replace(",", "")) for step in steps.groups()[:2]) == (first, last)
    yield "card: steps", (TRUE if is_true else FALSE), last, 0, steps[0], f"{first} to {last}"
    said = sum(int(number) * SECONDS[unit] for number, unit in re.findall(r"(\d+) (s|min|h|d)", steps[3]))
    times = [record["time"] for record in records]
    true = max(times) - min(times)
    yield "card: duration", (TRUE if is_near(said, true, 0.05, 3.0) else FALSE), last, 0, steps[3].strip(), f"{true:.0f} s"
    read = re.search(r"(\d+)% of them read", flat)
    share = len(records) / sum(record.get("steps", 1) for record in records)
    is_true = is_near(int(read[1]) / 100 if read else 1.0, share, 0.0, 0.02)
    yield "card: steps", (TRUE if is_true else FALSE), last, 0, read[0] if read else "all read", f"{share:.0%}"
