"""Scores the ask to checkpoint on simulated jobs: do fatal leaks get it in time, and healthy jobs none?

`make deadline` calls it. The jobs are those of `make eval`: the families `test` and `seen`, made before the rule and without a look at it, and
`dev`, on which the detector was tuned. The engine runs on each, as if every program would checkpoint (eval/deadline.rs). A program that is asked begins its
checkpoint at the end of a step: a rank alone at the next, several once they have agreed on one. A checkpoint takes a time that is drawn for each job.

Exit code: 0 where every limit is kept, 1 where one is missed, 2 where something is missing or fails.
"""
import argparse
import json
import os
import random
import shlex
import sys
from collections import Counter
from pathlib import Path

import numpy as np

from score import jobs, runner

SETS = ("test", "seen", "dev")
LIMITS = dict(fatal_jobs=100, healthy_jobs=300, in_time=0.95, lost_steps=1, healthy_asked=0.01)
"""At least so many jobs, the least share of fatal leaks that is asked in time, the most steps lost (median), the largest share of healthy jobs asked."""

CHECKPOINT_SECONDS = (3.0, 120.0)
"""How long a checkpoint takes, at least and at most; drawn evenly by its logarithm."""

AGREEMENT_SECONDS, AGREEMENT_STEPS = 4.0, 4
"""Several ranks begin so long, and so many steps, after the ask: the larger of both (python/stepmem/_agreement.py)."""


def checkpoint_seconds(path):
    draw = random.Random(path.name)
    low, high = np.log(CHECKPOINT_SECONDS)
    return float(np.exp(draw.uniform(low, high)))


def begins_at(truth, n_ranks, at):
    """Returns when the ranks begin the checkpoint of an ask: the end of a step; None if there is none."""
    first = int(np.searchsorted(truth.time, at, side="left"))
    if n_ranks > 1:
        first = max(first + AGREEMENT_STEPS, int(np.searchsorted(truth.time, at + AGREEMENT_SECONDS, side="left")))
    return float(truth.time[first]) if first < len(truth.time) else None


def judge(path, truth, asks):
    """The row of a job: whether it was asked, and of a fatal leak whether in time, and how many steps it loses."""
    n_ranks = int(path.open("rb").readline().split()[1])
    row = dict(job=path.stem, family=truth.family, n_ranks=n_ranks, asks=len({ask["time"] for ask in asks}))
    if not (truth.truth["leak"] and truth.truth["oom"]):
        return row
    end, seconds = truth.truth["oom_time"], checkpoint_seconds(path)
    written = []
    for ask in asks:
        begun = begins_at(truth, n_ranks, ask["time"])
        if begun is not None and begun + seconds <= end:
            written.append(begun)
    row.update(in_time=bool(written), life=end - truth.truth["onset_time"], seconds=seconds)
    steps = truth.time[truth.time <= end]
    # With a restart the run ends with its first checkpoint; without, it goes on from its last one.
    row["lost_with_restart"] = 0 if written else len(steps)
    row["lost_without"] = int((steps > max(written)).sum()) if written else len(steps)
    return row


def share(n, of):
    return f"{n} of {of} ({n / max(1, of):.1%})"


def score(rows_of_sets):
    """Prints the figures, and returns whether each limit is kept."""
    fatal, healthy = [], []
    for which, (leaks, others) in rows_of_sets.items():
        n_in_time = sum(row["in_time"] for row in leaks)
        n_asked = sum(row["asks"] > 0 for row in others)
        print(f"{which}: fatal leaks asked in time {share(n_in_time, len(leaks))}; healthy jobs asked {share(n_asked, len(others))}")
        fatal += leaks
        healthy += others
    in_time = sum(row["in_time"] for row in fatal) / max(1, len(fatal))
    lost = float(np.median([row["lost_with_restart"] for row in fatal])) if fatal else 0.0
    lost_without = float(np.median([row["lost_without"] for row in fatal])) if fatal else 0.0
    asked = sum(row["asks"] > 0 for row in healthy) / max(1, len(healthy))
    checks = (
        ("fatal leaks", len(fatal), ">=", LIMITS["fatal_jobs"]),
        ("healthy jobs", len(healthy), ">=", LIMITS["healthy_jobs"]),
        ("fatal leaks asked with time for the checkpoint", in_time, ">=", LIMITS["in_time"]),
        ("steps lost with a restart after the checkpoint, median", lost, "<=", LIMITS["lost_steps"]),
        ("healthy jobs asked", asked, "<=", LIMITS["healthy_asked"]),
    )
    kept = True
    for name, value, order, limit in checks:
        is_kept = value >= limit if order == ">=" else value <= limit
        kept &= is_kept
        print(f"{'ok    ' if is_kept else 'MISSED'} {name}: {value:.4g} ({order} {limit})")
    print(f"       steps lost without a restart, median: {lost_without:.4g}")
    for what, rows in (("missed", [row for row in fatal if not row["in_time"]]), ("healthy, asked", [row for row in healthy if row["asks"]])):
        print(f"{what}:", ", ".join(f"{family} {n}" for family, n in Counter(row["family"] for row in rows).most_common()) or "none")
    return kept


def progress(what, n, of):
    if sys.stderr.isatty():
        print(f"\r{what}: {n}/{of}\033[K", end="" if n < of else "\n", file=sys.stderr, flush=True)


def main():
    parser = argparse.ArgumentParser(prog="deadline", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runner", type=shlex.split, required=True, help="the command that judges job files")
    parser.add_argument("--jobs", type=Path, required=True, help="where job files are kept")
    parser.add_argument("--sets", default=",".join(SETS), type=lambda text: text.split(","))
    parser.add_argument("--seeds", default="0-9")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--rows", type=Path, help="write what was judged of each job")
    options = parser.parse_args()
    low, _, high = options.seeds.partition("-")
    seeds = range(int(low), int(high or low) + 1)
    rows_of_sets, all_rows = {}, []
    try:
        for which in options.sets:
            families = jobs.families_of(which)
            names = [name for name in families.names() if families.members[name][1] != "ambiguous"]
            paths = jobs.simulated(options.jobs, which, names, seeds, options.workers, progress)
            asks = runner.transitions(options.runner, paths, options.workers, progress)
            truths = {path: jobs.load(path) for path in paths}
            rows = {path: judge(path, truths[path], asks[str(path)]) for path in paths}
            leaks = [row for row in rows.values() if "in_time" in row]
            healthy = [row for path, row in rows.items() if not truths[path].truth["leak"]]
            rows_of_sets[which] = (leaks, healthy)
            all_rows += rows.values()
    except (OSError, runner.RunnerFailed, ValueError, KeyError) as error:
        print(f"deadline: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    if options.rows:
        options.rows.write_text("".join(json.dumps(row) + "\n" for row in all_rows))
    return 0 if score(rows_of_sets) else 1


if __name__ == "__main__":
    sys.exit(main())
