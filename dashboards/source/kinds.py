"""The diagnoses as dashboards show them, from `docs/diagnoses.md`, which the table in Rust writes.

A new diagnosis needs nothing here.
"""

import pathlib
import re
from dataclasses import dataclass
from typing import List

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/diagnoses.md"

# From the mildest diagnosis up, the worse the redder. Neither green, which is healthy elsewhere, nor blue, which is info.
COLORS = [
    "super-light-yellow",
    "light-yellow",
    "yellow",
    "semi-dark-yellow",
    "dark-yellow",
    "light-orange",
    "orange",
    "dark-orange",
    "light-red",
    "red",
    "dark-red",
    "dark-purple",
]


@dataclass
class Kind:
    """A diagnosis: its value of the label `kind`, its title, and its color."""

    label: str
    title: str
    color: str


def read(page: str) -> List[Kind]:
    """The diagnoses of the page, the worst first."""
    found = re.findall(r"^## (.+)\n\n`(\w+)`\. ", page, re.MULTILINE)
    if not found or len(found) != page.count("\n## "):
        raise ValueError(f"{PAGE}: a heading without a diagnosis")
    # With more diagnoses than colors, the worst share those of the mildest.
    colors = [COLORS[rank % len(COLORS)] for rank in range(len(found))]
    return [Kind(label, title, color) for (title, label), color in zip(found, reversed(colors))]


KINDS = read(PAGE.read_text())


def worst_kind(by, selector):
    """A query for the worst diagnosis of each `by`: 1 for the mildest kind, and so on."""
    ranked = [
        f'{rank} * (stepmem_diagnosis_severity{{{selector},kind="{kind.label}"}} > bool 0)'
        for rank, kind in enumerate(reversed(KINDS), 1)
    ]
    return f"max by ({by}) ({' or '.join(ranked)})"


def verdict(findings, ranks):
    """A query for the worst diagnosis of some findings, by name; without one, why there is none."""
    worst = titled(f"topk(1, max by (kind) ({findings}))")
    unjudged = f'label_replace(-1 * max(stepmem_rank_unjudged{{{ranks}}}), "kind", "too few steps", "", "")'
    none = f'label_replace(0 * max(stepmem_rank_info{{{ranks}}}), "kind", "no finding", "", "")'
    # Of these the first that has a value: without labels to match, each is weighed against the others.
    return f"{worst} or on () {unjudged} or on () {none}"


def plain(holders):
    """A query whose label `holder` has no backticks, which a table would show; a name has at most two pairs."""
    for _ in range(2):
        holders = f'label_replace({holders}, "holder", "$1$2$3", "holder", "([^`]*)`([^`]*)`(.*)")'
    return holders


def titled(of_kinds):
    """A query whose label `kind` is the title that people read, such as MEMORY CREEP."""
    for kind in KINDS:
        of_kinds = f'label_replace({of_kinds}, "kind", "{kind.title}", "kind", "{kind.label}")'
    return of_kinds
