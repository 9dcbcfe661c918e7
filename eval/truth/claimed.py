"""What stepmem states one by one: claims (docs/claims.md) with a figure, beside their words. Knows names of claims only."""

import re
from typing import Dict, Iterator, List, Optional

from .figures import AMOUNT, FALSE, TRUE, UNITS, amount, is_near

COPIED = {
    "rate_per_step": "slope_bytes_per_step", "rate_per_hour": "slope_bytes_per_second", "growth": "growth_bytes", "since": "onset_step",
    "level_since": "level_since_step", "level_since_time": "level_since_time", "left": "headroom_bytes", "nothing_left": "headroom_bytes",
    "time_left": "oom_eta_seconds", "steps_left": "oom_eta_steps", "least_time_left": "oom_eta_lower_seconds", "least_steps_left": "oom_eta_lower_steps",
    "pressure": "pressure_ratio", "stalled": "stalled_seconds",
}
"""The figure of the evidence that a claim repeats."""

AHEAD = frozenset(("left", "nothing_left", "time_left", "steps_left", "least_time_left", "least_steps_left", "run_ends"))
"""Claims about what is to come, which nothing has that is over."""

RISES = frozenset(("rate_per_step", "rate_per_hour", "accelerates", "grows", "rises_straight", "rises_on_average", "rises_unfound"))
"""Claims of a line that rises."""


def statements(document: Dict) -> List[Dict]:
    """The statements of a finding, an issue or a card; none where a version that had only words said it."""
    return document.get("statements") or []


def claim(document: Dict, name: str) -> Optional[Dict]:
    """The first statement of a claim."""
    return next((each for each in statements(document) if each["claim"] == name), None)


def of_finding(finding: Dict, words: str, step: int, rank: int) -> Iterator:
    """Compares what a finding or an issue states with its words, `words`, and with its evidence."""
    flat = " ".join(words.split())
    evidence = finding["evidence"]
    for each in statements(finding):
        name, value = each["claim"], each.get("value")
        told = " ".join(each["words"].split())
        yield "statement and words", (TRUE if told in flat else FALSE), step, rank, told, words
        yield from of_words(each, step, rank)
        typed = evidence.get(COPIED.get(name))
        if value is not None and typed is not None:
            yield "statement and evidence", (TRUE if is_near(value, typed, 1e-9, 1e-6) else FALSE), step, rank, f"{name} {value:.9g}", f"{typed:.9g}"
        known = [end for end in (each.get("lower"), value, each.get("upper")) if end is not None]
        if len(known) > 1:
            yield "statement's interval", (TRUE if known == sorted(known) else FALSE), step, rank, f"{name} {known}", "in order"


def of_words(each: Dict, step: int, rank: int) -> Iterator:
    """Compares the figure of a statement with that in its own words."""
    name, value, unit, words = each["claim"], each.get("value"), each.get("unit"), each["words"]
    said = None
    if value is None:
        return
    if unit in ("B", "B/step", "B/s"):
        amounts = [amount(found) * (3600 ** -1 if unit == "B/s" else 1) for found in re.finditer(AMOUNT, words)]
        # Of several amounts, one is the figure.
        said = min(amounts, key=lambda found: abs(found - abs(value)), default=None)
        least = 1.0 if unit != "B/s" else min(UNITS.values()) / 3600
    elif unit in ("steps", "step", "count"):
        # Bytes are no steps, and what is full by now is so in none.
        numbers = [float(found.replace(",", "")) for found in re.findall(r"\d[\d,]*", re.sub(AMOUNT, "", words))]
        numbers += [0.0] if "by now" in words else []
        said, least = min(numbers, key=lambda found: abs(found - value), default=None), 1.0
    elif unit == "1":
        shares = [float(found) / 100 for found in re.findall(r"(\d+(?:\.\d+)?)%", words)]
        said, least = min(shares, key=lambda found: abs(found - value), default=None), 0.0051
    if said is not None:
        is_same = is_near(said, abs(value), 0.0 if unit == "1" else 0.02, least)
        yield "figure and words", (TRUE if is_same else FALSE), step, rank, f"{name}: {words}", f"{value:.6g} {unit}"


def of_card(summary: Dict, card: str, last: int) -> Iterator:
    """Compares what a card states with its text, and with itself."""
    flat = " ".join(card.split())
    said = {each["claim"] for each in statements(summary)}
    for each in statements(summary):
        told = " ".join(each["words"].split())
        yield "statement and words", (TRUE if told in flat else FALSE), last, 0, told, "the card"
    if "nothing_to_do" in said:
        beside = sorted(said & RISES)
        yield "nothing to do alone", (FALSE if beside else TRUE), last, 0, ", ".join(beside)
