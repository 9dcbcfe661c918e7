#!/usr/bin/env python3
"""The detector on kept jobs of known truth, each figure beside its bar, by family; and two builds against each other.

    PYTHONPATH=../shared/data/creep tests/creep/bars.py FOLDER SET SEEDS [FAMILY,...] [--jobs N] [--out ROWS] -- stepmem replay -
    tests/creep/bars.py table ROWS              the tables again
    tests/creep/bars.py against OFF ON          what a rule gained and cost: rows of a build without it and of one with it, by family

Jobs that are not there are made first (cache.py). Every job is judged twice: by its pushes, and by its device's readings alone, as a
process that does not push. ROWS has one JSON object a job; `process` in it is the second judgement.
"""
import json
import os
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor

import score

# Figure, how it is held against its bar, the bar.
BARS = (
    ("healthy jobs paged", "<=", 1 / 260),
    ("found", ">=", 0.97),
    ("jobs paged before onset", "<=", 0.0),
    ("jobs with a wrong rank", "<=", 0.0),
    ("delay p50", "<=", 0.08),
    ("delay p90", "<=", 0.30),
    ("slope error p50", "<=", 0.015),
    ("slope error p90", "<=", 0.10),
    ("interval covers", ">=", 0.94),
    ("interval half-width p50", "<=", 0.15),
    ("time left error p50", "<=", 0.15),
    ("time left error p90", "<=", 0.60),
    ("process: healthy jobs paged", "<=", 2 / 260),
    ("process: found", ">=", 0.60),
)


def judged(job):
    """The row of one kept job."""
    import cache
    import creepjobs

    folder, which, family, seed, command = job
    run = cache.load(folder, which, family, seed)
    rows = []
    for kind in ("jsonl", "nvml"):
        events, status = cache.events(f"{cache.base(folder, which, family, seed)}.{kind}.gz", command)
        if status:
            return dict(family=family, seed=seed, error=f"exit {status}")
        events = score.by_rank(events)
        row = creepjobs.judge(run, events)
        row.update(interval(run, events) or {})
        row["findings"] = score.findings(run, events)
        rows.append(row)
    whole, process = rows
    return {**whole, "process": process}


def interval(run, events):
    """Half the width of the first true page's interval, as a share of its slope, and where that page came from."""
    import creepjobs

    truth = run.truth
    pages = [e for e in events if e["kind"] in creepjobs.PAGING and e["state"] == "raised" and e["severity"] in ("warning", "critical")]
    true = [e for e in pages if truth["leak"] and e["rank"] in truth["leak_ranks"] and e["time"] >= truth["onset_time"]]
    if not true:
        return None
    first = min(true, key=lambda event: event["time"])
    evidence = first.get("evidence", {})
    kind = dict(first_kind=first["kind"], first_step=first.get("step"))
    slope, low, high = (evidence.get(f"slope_{name}bytes_per_step") for name in ("", "lower_", "upper_"))
    return dict(kind, half_width=(high - low) / 2 / slope) if slope else kind


def quantile(values, share):
    import numpy as np

    return float(np.quantile(values, share)) if len(values) else None


def figures(rows):
    """Each figure of the table: its value, and of how many."""
    healthy = [row for row in rows if row["cls"] == "healthy"]
    leaks = [row for row in rows if row["leak"] and row["cls"] == "leak"]
    fatal = [row for row in leaks if row["oom"]]
    hit = [row for row in fatal if row["hit"]]

    def of(name):
        return [abs(row[name]) for row in hit if row.get(name) is not None]

    def share(values):
        return sum(values) / len(values) if values else None

    delays, slopes, times = of("delay"), of("slope_error"), of("eta_error")
    inside = [row["slope_in_interval"] for row in hit if "slope_in_interval" in row]
    widths = of("half_width")
    found = {
        "healthy jobs paged": (share([row["pages"] > 0 for row in healthy]), len(healthy)),
        "found": (share([row["hit"] for row in fatal]), len(fatal)),
        "jobs paged before onset": (share([row["before_onset"] > 0 for row in leaks]), len(leaks)),
        "jobs with a wrong rank": (share([row["wrong_rank"] > 0 for row in leaks]), len(leaks)),
        "interval covers": (share(inside), len(inside)),
        "interval half-width p50": (quantile(widths, 0.5), len(widths)),
    }
    for name, values in (("delay", delays), ("slope error", slopes), ("time left error", times)):
        for part in (50, 90):
            found[f"{name} p{part}"] = quantile(values, part / 100), len(values)
    return found


def all_figures(rows):
    found = figures(rows)
    of_processes = figures([row["process"] for row in rows if "process" in row])
    return {**found, **{f"process: {name}": figure for name, figure in of_processes.items()}}


def mark(name, value):
    """Whether a figure keeps its bar, as a word."""
    for bar, side, limit in BARS:
        if bar == name and value is not None:
            return "" if (value <= limit + 1e-9 if side == "<=" else value >= limit - 1e-9) else "missed"
    return ""


def text(name, value, n):
    if value is None:
        return "-"
    if "paged" in name or "found" in name or "wrong" in name:
        return f"{round(value * n)} of {n}"
    return f"{value:.3f}"


def table(rows):
    rows = [row for row in rows if "error" not in row]
    found = all_figures(rows)
    print(f"\n{'':30}{'here':>12}{'bar':>14}")
    for name, side, limit in BARS:
        value, n = found[name]
        bar = f"{side} {limit * n:.0f} of {n}" if "paged" in name or "wrong" in name else f"{side} {limit:g}"
        print(f"{name:30}{text(name, value, n):>12}{bar:>14}  {mark(name, value)}")
    by_family(rows)


def by_family(rows):
    print(f"\n{'family':24}{'found':>9}  {'delay p50':>9}{'max':>7}{'slope p50':>10}{'max':>7}{'left p50':>9}{'max':>7}{'covers':>7}{'process':>9}{'delay':>7}")
    for family in dict.fromkeys(row["family"] for row in rows):
        mine = [row for row in rows if row["family"] == family]
        if not mine[0]["leak"]:
            paged = [f"{row['seed']}" for row in mine if row["pages"]]
            silent = [f"{row['seed']}" for row in mine if row["process"]["pages"]]
            if paged or silent:
                print(f"{family:24} {mine[0]['cls']}, paged: seeds {','.join(paged) or 'none'}; as processes: {','.join(silent) or 'none'}")
            continue
        fatal = [row for row in mine if row["oom"]]
        hit = [row for row in fatal if row["hit"]]
        cells = []
        for name in ("delay", "slope_error", "eta_error"):
            values = [abs(row[name]) for row in hit if row.get(name) is not None]
            cells += [f"{statistics.median(values):.3f}", f"{max(values):.2f}"] if values else ["-", "-"]
        inside = [row["slope_in_interval"] for row in hit if "slope_in_interval" in row]
        process = [row["process"] for row in fatal if row["process"]["hit"]]
        late = f"{statistics.median(row['delay'] for row in process):.2f}" if process else "-"
        print(f"{family:24}{len(hit):>4}/{len(fatal):<4}  {cells[0]:>9}{cells[1]:>7}{cells[2]:>10}{cells[3]:>7}{cells[4]:>9}{cells[5]:>7}{sum(inside):>4}/{len(inside):<2}{len(process):>5}/{len(fatal):<3}{late:>7}")


def against(off, on):
    """A rule's gain and cost, family by family; families that it leaves as they are, are left out."""
    print(f"{'family':24}{'found':>12}{'delay mean':>16}{'slope mean':>16}{'left mean':>16}{'pages':>10}{'process found':>15}{'process pages':>15}")

    def mean(rows, name):
        values = [abs(row[name]) for row in rows if row.get(name) is not None]
        return f"{sum(values) / len(values):.3f}" if values else "-"

    def cells(rows):
        fatal = [row for row in rows if row["oom"] and row["cls"] == "leak"]
        process = [row["process"] for row in rows]
        return (
            sum(row["hit"] for row in fatal), *(mean(fatal, name) for name in ("delay", "slope_error", "eta_error")),
            sum(row["pages"] > 0 for row in rows), sum(row["hit"] for row in process if row["oom"]), sum(row["pages"] > 0 for row in process),
        )  # fmt: skip

    off = [row for row in off if "error" not in row]
    on = [row for row in on if "error" not in row]
    common = {(row["family"], row["seed"]) for row in off} & {(row["family"], row["seed"]) for row in on}
    off, on = ([row for row in rows if (row["family"], row["seed"]) in common] for rows in (off, on))
    for family in [*dict.fromkeys(row["family"] for row in off), None]:
        before, after = (cells([row for row in rows if family in (row["family"], None)]) for rows in (off, on))
        if before != after:
            print(f"{family or 'all':24}" + "".join(f"{f'{a} > {b}' if a != b else f'{a}':>{width}}" for a, b, width in zip(before, after, (12, 16, 16, 16, 10, 15, 15))))
    for rows in (off, on):
        found = all_figures(rows)
        print("  ".join(f"{name} {text(name, *found[name])}" for name, _, _ in BARS))


def read(path):
    with open(path) as file:
        return [json.loads(line) for line in file]


def asked(arguments):
    """The folder, jobs, command and options that FOLDER SET SEEDS [FAMILY,...] [OPTION VALUE] -- COMMAND names."""
    import families

    cut = arguments.index("--")
    arguments, command = arguments[:cut], arguments[cut + 1 :]
    options = {"--jobs": str(os.cpu_count() or 1), "--out": "", "--write": ""}
    for name in options:
        if name in arguments:
            at = arguments.index(name)
            options[name] = arguments[at + 1]
            del arguments[at : at + 2]
    folder, which, seeds, *names = arguments
    names = names[0].split(",") if names else families.families(which)
    low, _, high = seeds.partition("-")
    jobs = [(which, name, seed) for name in names for seed in range(int(low), int(high or low) + 1)]
    return folder, jobs, command, options


def main():
    arguments = sys.argv[1:]
    if arguments[:1] == ["table"]:
        return table(read(arguments[1]))
    if arguments[:1] == ["against"]:
        return against(read(arguments[1]), read(arguments[2]))
    import cache

    folder, jobs, command, options = asked(arguments)
    if os.environ.get("CREEP_ONLY_KEPT"):
        jobs = [job for job in jobs if os.path.exists(cache.base(folder, *job) + ".npz")]
    n_workers = int(options["--jobs"])
    cache.fill(folder, jobs, n_workers)
    rows = []
    with ThreadPoolExecutor(n_workers) as pool:
        for row in pool.map(judged, [(folder, *job, command) for job in jobs]):
            if "error" in row:
                print(row["family"], row["seed"], row["error"])
            rows.append(row)
    if options["--out"]:
        with open(options["--out"], "w") as out:
            out.writelines(json.dumps(row) + "\n" for row in rows)
    table(rows)
    score.tables([row for row in rows if "error" not in row])


if __name__ == "__main__":
    main()
