"""Has `stepmem compare` tell of a job against itself and against its own first half, and judges what it says."""

import itertools
import json
import pathlib
import subprocess
from typing import Dict, Iterator, List, Tuple

from . import claimed
from .figures import FALSE, TRUE, is_near
from .recording_runs import SECONDS_MAX
from .truth import GROWS, LEVEL, STRAIGHT

EVERY = 4
"""One job in so many is compared: each takes eight commands."""

CODES = (0, 1, 2)
"""The exit codes of a comparison."""

CHANGES = frozenset((
    "issue_new", "issue_gone", "issue_changed", "end_changed", "live_changed", "peak_allocated_changed", "peak_reserved_changed", "headroom_changed",
    "host_headroom_changed", "rate_changed", "skew_changed", "lost_changed", "ooms_changed",
))
"""Claims that something differs."""

FIGURES = {
    "live_changed": "allocated_bytes", "peak_allocated_changed": "peak_allocated_bytes", "peak_reserved_changed": "peak_reserved_bytes",
    "headroom_changed": "headroom_bytes", "rate_changed": "slope_bytes_per_step", "skew_changed": "skew_pct",
}
"""The figure of the JSON that a claim repeats."""

GROWTH = ("MEMORY CREEP", "MEMORY RISING")


def of_recording(stepmem: pathlib.Path, folder: pathlib.Path, recording) -> Iterator[Tuple]:
    """Statements about a job against itself, and against its first half in both directions."""
    folder.mkdir(parents=True, exist_ok=True)
    half = recording.last // 2
    whole, short = (_summary(stepmem, folder / name, recording, until) for name, until in (("whole.json", recording.last), ("half.json", half)))
    for what, old, new in (("itself", whole, whole), ("shorter", whole, short), ("longer", short, whole)):
        asked = [stepmem, "compare", old, new]
        found = json.loads(_ask([*asked, "--json"], CODES))
        text = " ".join(_ask(asked, CODES).split())
        yield from judged(what, recording.truths, found, text, recording.last)


def _summary(stepmem, path, recording, until) -> pathlib.Path:
    """The summary of the steps up to one, in a file."""
    records = itertools.chain.from_iterable(rank.records for rank in recording.ranks)
    lines = sorted((record for record in records if record["step"] <= until), key=lambda record: (record["step"], record["rank"]))
    path.write_text(_ask([stepmem, "summary", "-", "--json"], (0,), "".join(f"{json.dumps(line)}\n" for line in lines)))
    return path


def _ask(command: List, codes, given: str = "") -> str:
    ended = subprocess.run(command, input=given, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    if ended.returncode not in codes:
        raise SystemExit(f"{' '.join(map(str, command))}: {ended.returncode}: {ended.stderr[-500:]}")
    return ended.stdout


def judged(what: str, truths: Dict, found: Dict, text: str, step: int) -> Iterator[Tuple]:
    """Judges one comparison; `text` is in one line."""
    said = claimed.statements(found)
    claims = {each["claim"] for each in said}
    told = f"{found['verdict']}: {'; '.join(each['words'] for each in said)}"
    for each in said:
        yield "compare: statement and words", (TRUE if " ".join(each["words"].split()) in text else FALSE), step, 0, each["words"], text[:500]
        for _, *rest in claimed.of_words(each, step, 0):
            yield ("compare: figure and words", *rest)
        metric = found["metrics"].get(FIGURES.get(each["claim"]))
        if metric is not None:
            is_same = is_near(each["value"], metric["new"], 1e-9, 1e-9)
            yield "compare: statement and JSON", (TRUE if is_same else FALSE), step, 0, f"{each['claim']} {each['value']}", str(metric["new"])
    reasons = [reason["sentence"] for reason in found["reasons"]]
    is_told = set(reasons) <= {each["words"] for each in said}
    yield "compare: reasons are stated", (TRUE if is_told else FALSE), step, 0, str(reasons), told
    is_apart = bool(claims & CHANGES) or any(metric["direction"] in ("worse", "better") for metric in found["metrics"].values())
    yield "compare: nothing differs alone", (FALSE if "nothing_differs" in claims and is_apart else TRUE), step, 0, told
    if what == "itself":
        has_data = found["diagnosis"]["old"]["status"] != "NO DATA"
        expected = "EQUIVALENT" if has_data else "INCONCLUSIVE"
        is_level = found["verdict"] == expected and not claims & CHANGES
        yield "compare: itself", (TRUE if is_level else FALSE), step, 0, told, expected
    elif _is_one_law(truths):
        # One law in both, whatever a half and a whole can show of it.
        about_growth = [each for each in said if each["claim"] in CHANGES and any(status in each["words"] for status in GROWTH)]
        yield f"compare: {what}", (FALSE if about_growth or "line_gone" in claims else TRUE), step, 0, told, "the same job"
        yield "compare: rate", (FALSE if "rate_changed" in claims else TRUE), step, 0, told, "the same rate"


def _is_one_law(truths) -> bool:
    """Whether the memory of each rank follows one law from the first step to the last, which a half of the job shows as well."""
    phases = [truth.phases for truth in truths.values()]
    return all(len(of) == 1 and of[0].state in (GROWS, LEVEL) and of[0].shape == STRAIGHT for of in phases)
