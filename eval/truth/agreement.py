"""Holds the surfaces of one moment against each other: metrics against status, the card's text and table against the summary's JSON."""

import re
from typing import Dict, Iterator, List

from .figures import AMOUNT, CREEPING, FALSE, RISING, TRUE, amount, is_near

SEVERITIES = {"info": 1, "warning": 2, "warn": 2, "critical": 3, "crit": 3}

SAMPLE = re.compile(r'^(\w+)\{(.*)\} (\S+)$', re.M)
LABEL = re.compile(r'(\w+)="([^"]*)"')

OF_RANK = {
    "stepmem_rank_step": "step",
    "stepmem_rank_steps_total": "steps_total",
    "stepmem_rank_unread_steps_total": "unread_steps_total",
    "stepmem_rank_memory_allocated_bytes": "allocated_bytes",
    "stepmem_rank_memory_peak_allocated_bytes": "peak_allocated_bytes",
    "stepmem_rank_memory_reserved_bytes": "reserved_bytes",
    "stepmem_rank_interval_peak_allocated_bytes": "interval_peak_allocated_bytes",
    "stepmem_rank_alloc_retries_total": "alloc_retries",
    "stepmem_rank_oom_events_total": "oom_events_total",
    "stepmem_headroom_bytes": "headroom_bytes",
    "stepmem_fragmentation_ratio": "fragmentation_ratio",
    "stepmem_oom_eta_steps": "oom_eta_steps",
    "stepmem_oom_eta_seconds": "oom_eta_seconds",
    "stepmem_oom_eta_lower_seconds": "oom_eta_lower_seconds",
}
"""What a metric of a rank has, by the key of the status."""

OF_CREEP = {
    "stepmem_creep_slope_bytes_per_step": "slope_bytes_per_step",
    "stepmem_creep_slope_lower_bytes_per_step": "slope_lower_bytes_per_step",
    "stepmem_creep_slope_upper_bytes_per_step": "slope_upper_bytes_per_step",
}
OF_TREND = {
    "stepmem_creep_growth_bytes": "growth_bytes",
    "stepmem_creep_onset_step": "onset_step",
    "stepmem_creep_confidence_ratio": "confidence_ratio",
}
OF_EVIDENCE = ("slope_bytes_per_step", "slope_lower_bytes_per_step", "slope_upper_bytes_per_step", "slope_bytes_per_second")
OF_OUTLOOK = ("oom_eta_steps", "oom_eta_seconds", "oom_eta_lower_steps", "oom_eta_lower_seconds")

COLUMNS = ("PEAK", "MEAN", "LAST", "RESERVED", "CAPACITY", "HEADROOM", "PER STEP")


def samples(text: str) -> List:
    """(name, labels, value) of metrics in Prometheus' text."""
    return [(name, dict(LABEL.findall(labels)), float(value)) for name, labels, value in SAMPLE.findall(text)]


def of_moment(moment) -> Iterator:
    """Statements about the agreement of metrics and status, by rank."""
    found = samples(moment.metrics)
    for state in moment.status["ranks"]:
        rank = str(state["rank"])
        own = [(name, labels, value) for name, labels, value in found if labels.get("rank") == rank]
        if any(name == "stepmem_rank_step" and value != state["step"] for name, _, value in own) and not moment.has_ended:
            continue  # A step came between the two answers.
        yield from _of_rank(state, own, moment, state["rank"])
    for run in moment.status["runs"]:
        for name, key in (("stepmem_run_imbalance_ratio", "imbalance_ratio"), ("stepmem_run_worst_rank", "worst_rank")):
            for value in (value for each, labels, value in found if each == name):
                yield _same(f"{name}", value, run[key], moment.step, 0)


def _of_rank(state, own, moment, rank) -> Iterator:
    step = moment.step
    findings = [finding for finding in moment.status["findings"] if finding.get("rank") == state["rank"]]
    for name, key in OF_RANK.items():
        values = [value for each, _, value in own if each == name]
        expected = state.get(key)
        if values and expected is not None:
            yield _same(name, values[0], expected, step, rank)
        elif bool(values) != (expected is not None) and key.startswith("oom_eta"):
            yield "surfaces agree", FALSE, step, rank, f"{name} {values}", f"status {expected}"
    for signal in state["creep"]:
        of_signal = {name: value for name, labels, value in own if labels.get("signal") == signal["signal"]}
        for table, keys in ((OF_CREEP, signal), (OF_TREND, signal.get("trend") or {})):
            for name, key in table.items():
                if name in of_signal and keys.get(key) is not None:
                    yield _same(name, of_signal[name], keys[key], step, rank)
                elif name in of_signal and table is OF_TREND:
                    yield "surfaces agree", FALSE, step, rank, f"{name} {of_signal[name]}", "no trend in the status"
    told = {(labels["kind"], value) for name, labels, value in own if name == "stepmem_diagnosis_severity"}
    known = {(finding["kind"], float(SEVERITIES[finding["severity"]])) for finding in findings}
    yield "verdicts agree", (TRUE if told == known else FALSE), step, rank, f"metrics {sorted(told)}", f"status {sorted(known)}"
    for limit in (value for name, _, value in own if name == "stepmem_rank_limit_bytes"):
        yield _same("stepmem_rank_limit_bytes", limit, state["capacity_bytes"], step, rank)
    for outcome in (labels["outcome"] for name, labels, _ in own if name == "stepmem_rank_ended_timestamp_seconds"):
        end = (state.get("end") or {}).get("outcome")
        yield "surfaces agree", (TRUE if outcome == end else FALSE), step, rank, f"ended {outcome}", f"status {end}"
    for basis, ratio in (state.get("pressures") or {}).items():
        for value in (value for name, labels, value in own if name == "stepmem_pressure_ratio" and labels["basis"] == basis):
            yield _same(f"pressure, {basis}", value, ratio, step, rank)
    yield from _of_findings(state, findings, moment, step, rank)


def _of_findings(state, findings, moment, step, rank) -> Iterator:
    """The evidence of growth, the rank's rates and its outlook are one."""
    growing = [finding for finding in findings if finding["kind"] in (*CREEPING, *RISING)]
    for finding in growing:
        evidence = finding["evidence"]
        signal = next((each for each in state["creep"] if each["signal"] == evidence["signal"]), None)
        if signal is None or "level_since_step" in evidence:
            continue
        for key in OF_EVIDENCE:
            if evidence.get(key) is not None and signal.get(key) is not None:
                yield _same(f"evidence {key}", evidence[key], signal[key], step, rank)
        if signal["signal"] == "allocated" and len(growing) == 1:
            for key in OF_OUTLOOK:
                if evidence.get(key) is not None and state.get(key) is not None:
                    yield _same(f"evidence {key}", evidence[key], state[key], step, rank)
                elif evidence.get(key) is not None or state.get(key) is not None:
                    yield "surfaces agree", FALSE, step, rank, f"evidence {key} {evidence.get(key)}", f"status {state.get(key)}"
    for signal in state["creep"]:
        of_signal = [finding for finding in findings if finding["evidence"].get("signal") == signal["signal"]]
        if signal.get("trend") and not of_signal and not moment.has_ended:
            yield "surfaces agree", FALSE, step, rank, f"a trend of {signal['signal']}", "no finding"
    if not growing and any(state.get(key) is not None for key in OF_OUTLOOK):
        yield "time left of level memory", FALSE, step, rank, str(state.get("oom_eta_steps"))


def of_card(summary: Dict, card: str) -> Iterator:
    """Statements about the agreement of the card with the summary's JSON."""
    last = (summary["coverage"].get("last") or {}).get("step", 0)
    flat = " ".join(card.split())
    headlines = re.findall(r"^([A-Z][A-Z ]+?)(?: \((info|warning|critical)\) on ranks? ([\d, ]+))?$", card, re.M)
    told = [(status, severity, ranks) for status, severity, ranks in headlines]
    known = [
        (issue["status"], "", "") if issue["phase"] is None else (issue["status"], {"warn": "warning", "crit": "critical"}.get(issue["severity"], issue["severity"]),
         ", ".join(map(str, issue["ranks"])))
        for issue in summary["issues"]
    ]
    yield "card and JSON", (TRUE if told == known else FALSE), last, 0, str(told), str(known)
    for issue in summary["issues"]:
        for words in (issue["summary"], issue["action"]):
            is_told = " ".join(words.split()).rstrip(".") in flat
            yield "card and JSON", (TRUE if is_told else FALSE), last, (issue["ranks"] or [0])[0], "", words
    whys = re.findall(r"^  Why: (.*?)(?=^  Next: )", card, re.M | re.S)
    known_whys = [" ".join(issue["summary"].split()) for issue in summary["issues"]]
    for why, known_why in zip(whys, known_whys):
        is_same = " ".join(why.split()).rstrip(".").endswith(known_why.rstrip("."))
        yield "card and JSON", (TRUE if is_same else FALSE), last, 0, " ".join(why.split()), known_why
    yield from _table(summary, card, last)
    ooms = sum(rank["ooms"] or 0 for rank in summary["ranks"])
    counted = re.search(r"^Out-of-memory errors: (\d+)", card, re.M)
    yield "card and JSON", (TRUE if (int(counted[1]) if counted else 0) == ooms else FALSE), last, 0, counted[0] if counted else "", f"{ooms} errors"
    for step in re.findall(r"at step ([\d,]+)", " ".join(re.findall(r"^  Ended with an error.*$", card, re.M))):
        yield "card and JSON", (TRUE if abs(int(step.replace(",", "")) - last) <= 1 else FALSE), last, 0, f"ended at step {step}", f"step {last}"


def cells_of(card: str) -> Dict[int, List[str]]:
    """The cells of the table of ranks, by rank."""
    rows = re.findall(r"^ +(\d+) +((?:[\d.]+ \w+|–).*)$", card, re.M)
    return {int(rank): re.findall(r"-?[\d.,]+ (?:B|[KMGT]iB)\b|–", row) for rank, row in rows}


def _table(summary, card, last) -> Iterator:
    """Compares each cell of the table of ranks with the JSON."""
    rows = cells_of(card)
    for rank in summary["ranks"]:
        cells = rows.get(rank["rank"])
        if cells is None:
            continue
        trend = rank.get("trend") or {}
        known = (
            (rank.get("peak_allocated") or {}).get("max_bytes"), (rank.get("allocated") or {}).get("mean_bytes"),
            (rank.get("allocated") or {}).get("last_bytes"), (rank.get("peak_reserved") or rank.get("reserved") or {}).get("max_bytes"),
            rank["capacity_bytes"], rank["headroom_bytes"] if rank["growth_headroom_bytes"] is None else rank["growth_headroom_bytes"], trend.get("slope_bytes_per_step"),
        )
        for name, cell, expected in zip(COLUMNS, cells, known):
            said = None if cell == "–" else amount(re.match(AMOUNT, cell.lstrip("-"))) * (-1 if cell.startswith("-") else 1)
            if said is None or expected is None:
                continue
            yield "card: table", (TRUE if is_near(said, expected, 0.006, 1.0) else FALSE), last, rank["rank"], f"{name} {cell}", f"{expected:.6g}"


def _same(what, found, expected, step, rank):
    # Both are answers of one moment, but for the milliseconds between two requests.
    least = 1.0 if "seconds" in what else 1e-9 if abs(expected or 0) < 10 else 1.0
    is_same = expected is not None and is_near(found, expected, 0.01, least)
    return "surfaces agree", (TRUE if is_same else FALSE), step, rank, f"{what} {found:.6g}", f"status {expected}"
