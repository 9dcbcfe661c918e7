#!/usr/bin/env python3
"""Each rule on and off at unchanged constants: what it gains and costs on the families that it was made for, and on all others.

    PYTHONPATH=../shared/data/creep tests/creep/rules.py FOLDER SET SEEDS [FAMILY,...] [--jobs N] [--out ROWS] [--write DOC] -- stepmem
    tests/creep/rules.py table ROWS [--write DOC]       the table again

`stepmem` is a build with the feature `without`. Every job is read once for all variants. ROWS has one JSON object for each job and
variant, as bars.py has for each job; --write puts the table between the marks in a page.
"""
import json
import pathlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import bars

# A rule of src/analysis/creep/without.rs: the families of jobs that it was made for (none: growth of any of them), and its decision
# records. "process": it acts on processes that do not push alone.
RULES = {
    "first-steps": dict(families=("fast",), decisions=(24, 30)),
    "scatter": dict(families=(), decisions=(60,)),
    "by-time": dict(families=(), decisions=(61,), only="process"),
    "marked-stairs": dict(families=("per_checkpoint", "eval_append"), decisions=(62,)),
    "steady-line": dict(families=(), decisions=(63,)),
    "batch-noise": dict(families=(), decisions=(64,)),
    "cache-left": dict(families=(), decisions=(65,)),
    "bends": dict(families=("cache_sqrt", "cache_pow"), decisions=(66,)),
    "climbs": dict(families=("curriculum_linear", "sorted_by_length"), decisions=(67,), only="process"),
    "first-jump": dict(families=(), decisions=(68,)),
    "record-noise": dict(families=("cache_pow",), decisions=(70,)),
    "level-first": dict(families=("cache_pow",), decisions=(71,)),
    "full-device": dict(families=("epoch_accumulate",), decisions=(72,), only="process"),
    "net-slope": dict(families=(), decisions=(73,)),
    "unsplit": dict(families=(), decisions=(74, 80)),
    "stairs-slope": dict(families=("eval_append", "per_checkpoint"), decisions=(75,)),
    "later-steps": dict(families=("fast_late",), decisions=(82,)),
    "net-stairs": dict(families=("per_checkpoint", "eval_append"), decisions=(83,)),
    "pair-of-stairs": dict(families=("per_checkpoint", "eval_append"), decisions=(85,)),
    "few-climbs": dict(families=("curriculum_linear",), decisions=(86,), only="process"),
    "known-level": dict(families=("kitchen_sink",), decisions=(87,)),
}
ALL_ON = ""
MARKS = "<!-- rules -->\n", "<!-- end of rules -->"


def played(path, binary, variants):
    """The transitions of a kept recording, by variant."""
    unpack = subprocess.Popen(["gzip", "-dc", path], stdout=subprocess.PIPE)
    command = [*binary, "variants", "-", *(f"--of={name}" for name in variants)]
    run = subprocess.run(command, stdin=unpack.stdout, capture_output=True, text=True)
    unpack.stdout.close()
    if unpack.wait() or run.returncode:
        raise RuntimeError(f"{path}: {run.stderr[-300:]}")
    found = {name: [] for name in variants}
    for line in run.stdout.splitlines():
        event = json.loads(line)
        found[event.pop("variant")].append(event)
    return found


def judged(job):
    """The rows of one job: one for each variant."""
    import cache
    import creepjobs
    import score

    folder, which, family, seed, binary, variants = job
    run = cache.load(folder, which, family, seed)
    base = cache.base(folder, which, family, seed)

    def row(events):
        events = score.by_rank(events)
        return {**creepjobs.judge(run, events), **(bars.interval(run, events) or {})}

    pushed = [name for name, only in variants.items() if only != "process"]
    pushes = {name: row(events) for name, events in played(f"{base}.jsonl.gz", binary, pushed).items()}
    processes = {name: row(events) for name, events in played(f"{base}.nvml.gz", binary, list(variants)).items()}
    return [{**pushes.get(name, pushes[ALL_ON]), "process": processes[name], "variant": name} for name in variants]


def scored(arguments, variants):
    """The rows of kept jobs, which are made if they are not there; `variants` are names, each with what it acts on alone."""
    import cache

    folder, jobs, binary, options = bars.asked(arguments)
    cache.fill(folder, jobs, int(options["--jobs"]))
    variants = {ALL_ON: None, **variants}
    with ThreadPoolExecutor(int(options["--jobs"])) as pool:
        found = list(pool.map(judged, [(folder, *job, binary, variants) for job in jobs]))
    rows = [row for of_job in found for row in of_job]
    if options["--out"]:
        with open(options["--out"], "w") as out:
            out.writelines(json.dumps(row) + "\n" for row in rows)
    return rows, options["--write"]


def cells(rows):
    """The figures of some jobs under one variant, as text."""
    found = bars.all_figures(rows)

    def share(name):
        value, n = found[name]
        return f"{round(value * n)}/{n}" if n else ""

    def figure(name, unit=1.0, places=3):
        value, _ = found[name]
        return "" if value is None else f"{value * unit:.{places}f}"

    def mean(rows):
        delays = [row["delay"] for row in rows if row["cls"] == "leak" and row.get("delay") is not None]
        return f"{sum(delays) / len(delays):.3f}" if delays else ""

    return [
        share("healthy jobs paged"), share("found"), mean(rows), figure("delay p50"), figure("delay p90"), figure("slope error p50", 100, 1),
        figure("slope error p90", 100, 1), share("interval covers"), figure("interval half-width p50", 100, 1), figure("time left error p50", 100, 0),
        figure("time left error p90", 100, 0), share("process: healthy jobs paged"), share("process: found"),
        mean([row["process"] for row in rows]),
    ]  # fmt: skip


HEAD = (
    "rule off → on", "families", "healthy paged", "found", "delay mean", "p50", "p90", "slope error p50, %", "p90, %", "interval covers", "half its width, %",
    "time left p50, %", "p90, %", "processes: healthy paged", "found", "delay mean",
)  # fmt: skip


def table(rows):
    """The lines of the table; a figure that is the same with and without is given once."""
    by_variant = {}
    for row in rows:
        by_variant.setdefault(row["variant"], []).append(row)
    lines = ["| " + " | ".join(HEAD) + " |", "|---" * len(HEAD) + "|"]
    lines.append("| all on | all | " + " | ".join(cells(by_variant[ALL_ON])) + " |")
    for rule, of in RULES.items():
        if rule not in by_variant:
            continue
        decisions = " (" + ", ".join(f"[{number}]({link(number)})" for number in of["decisions"]) + ")"
        parts = [(", ".join(f"`{name}`" for name in of["families"]), lambda row: row["family"] in of["families"])] if of["families"] else []
        parts.append(("all others" if parts else "all", lambda row: row["family"] not in of["families"]))
        for name, holds in parts:
            off, on = (cells([row for row in by_variant[variant] if holds(row)]) for variant in (rule, ALL_ON))
            both = (a if a == b else f"{a} → {b}" for a, b in zip(off, on))
            lines.append(f"| `{rule}`{decisions} | {name} | " + " | ".join(both) + " |")
            decisions = ""
    return lines


def caption(rows):
    """Which jobs the rows are of, and an empty line."""
    seeds = sorted({row["seed"] for row in rows})
    n_jobs = len({(row["family"], row["seed"]) for row in rows})
    return [f"Of {n_jobs} jobs, seeds {seeds[0]} to {seeds[-1]}:", ""]


def link(number):
    root = pathlib.Path(__file__).resolve().parents[2] / "docs/decisions"
    return "decisions/" + next(root.glob(f"{number:04}-*.md")).name


def write(page, marks, lines):
    """Puts lines between two marks of a page."""
    text = pathlib.Path(page).read_text()
    before, found, rest = text.partition(marks[0])
    if not found or marks[1] not in rest:
        sys.exit(f"{page} has no {marks[0].strip()} … {marks[1]}")
    after = rest.partition(marks[1])[2]
    pathlib.Path(page).write_text(before + marks[0] + "\n".join(lines) + "\n" + marks[1] + after)


def main():
    arguments = sys.argv[1:]
    if arguments[:1] == ["names"]:
        return print("\n".join(RULES))
    if arguments[:1] == ["table"]:
        rows, page = bars.read(arguments[1]), arguments[3] if arguments[2:3] == ["--write"] else ""
    else:
        rows, page = scored(arguments, {name: of.get("only") for name, of in RULES.items()})
    lines = caption(rows) + table(rows)
    print("\n".join(lines))
    if page:
        write(page, MARKS, lines)


if __name__ == "__main__":
    main()
