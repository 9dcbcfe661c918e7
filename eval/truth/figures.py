"""Outcomes of statements, and figures in words and their comparison."""

import math

TRUE, FALSE, MISSING, UNDECIDABLE, OPENED, UNSAID = "TRUE", "FALSE", "MISSING", "UNDECIDABLE", "OPEN", "UNSAID"
"""OPEN: nobody can know yet. UNSAID: stepmem left the figure out, because it was too uncertain."""

CREEPING, RISING = ("CREEP_CONFIRMED", "HOST_CREEP_CONFIRMED"), ("CREEP_EARLY", "HOST_CREEP_EARLY")
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
AMOUNT = r"([\d.,]+) (B|KiB|MiB|GiB|TiB)"


def figure(said, lower, upper, truth, tolerance):
    """(outcome, error, is covered) of a figure: FALSE beyond twice its interval, or without one beyond its tolerance."""
    least, greatest = truth
    nearest = min(max(said, least), greatest)
    error = abs(said - nearest) / abs(nearest) if nearest else math.inf
    if lower is None or upper is None:
        return (TRUE if error <= tolerance else FALSE), error, None
    is_covered = lower <= greatest and least <= upper
    within_twice = said - 2 * (said - lower) <= greatest and least <= said + 2 * (upper - said)
    return (TRUE if within_twice or error <= tolerance else FALSE), error, is_covered


def is_near(said, true, ratio, least):
    """Whether a figure is the same but for rounding."""
    return abs(said - true) <= max(ratio * abs(true), least)


def amount(match) -> float:
    """Bytes of an amount in words."""
    return float(match[1].replace(",", "")) * UNITS[match[2]]


def in_words(value) -> str:
    """Bytes in words."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024 or unit == "GiB":
            return f"{value:.4g} {unit}"
        value /= 1024
    raise AssertionError
