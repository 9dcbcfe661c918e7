"""Tables of judged statements, each row next to its limits."""

import collections
import random

from .figures import FALSE, MISSING, OPENED, TRUE, UNDECIDABLE, UNSAID

FALSE_MAX = {
    **dict.fromkeys(("rate", "per second", "since", "growth", "left", "headroom", "last headroom", "pace", "share", "card: per step", "compare: rate"), 0.01),
    **dict.fromkeys(("time left", "least time left", "no growing tensor", "line"), 0.01),
}
"""The share of a row that may be false: of figures and of what a search found. Of every other row none may be."""
MISSING_MAX, UNDECIDABLE_MAX = 0.03, 0.05
COVERED = (0.92, 0.98)
"""The share of intervals that has the truth, where at least COVERED_MIN of them are said."""
COVERED_MIN = 200
RESAMPLES = 1000

COUNTED = (FALSE, MISSING, UNDECIDABLE, OPENED, UNSAID)


def rows_of(statements):
    """Statements by row."""
    rows = collections.defaultdict(list)
    for statement in statements:
        rows[statement.row].append(statement)
    return dict(sorted(rows.items()))


def missed(statements, is_whole):
    """The limits that are not kept, in words. Coverage is judged of whole sets only."""
    found = []
    for name, of_row in rows_of(statements).items():
        n = collections.Counter(statement.outcome for statement in of_row)
        for outcome, limit in ((FALSE, FALSE_MAX.get(name, 0.0)), (MISSING, MISSING_MAX), (UNDECIDABLE, UNDECIDABLE_MAX)):
            # One among few is no more than chance.
            if n[outcome] > max(limit * len(of_row), 1 if limit else 0):
                found.append(f"{name}: {n[outcome]} of {len(of_row)} {outcome}, at most {limit:.0%}")
        covered = [statement.is_covered for statement in of_row if statement.is_covered is not None]
        if is_whole and len(covered) >= COVERED_MIN and not COVERED[0] <= sum(covered) / len(covered) <= COVERED[1]:
            found.append(f"{name}: {sum(covered) / len(covered):.1%} of {len(covered)} intervals have the truth, {COVERED[0]:.0%} to {COVERED[1]:.0%}")
    return found


def table(statements):
    """A line for each row, in Markdown."""
    lines = ["| row | said | false | missing | undecidable | open | left out | error, p50 | p90 | covered |", "|---|---|---|---|---|---|---|---|---|---|"]
    for name, of_row in rows_of(statements).items():
        n = collections.Counter(statement.outcome for statement in of_row)
        errors = sorted(statement.error for statement in of_row if statement.error is not None and statement.outcome in (TRUE, FALSE))
        covered = [statement.is_covered for statement in of_row if statement.is_covered is not None]
        counts = " | ".join(str(n[outcome] or "") for outcome in COUNTED)
        share = f"{sum(covered) / len(covered):.1%}" if covered else ""
        lines.append(f"| {name} | {len(of_row):,} | {counts} | {_quantile(errors, 0.5)} | {_quantile(errors, 0.9)} | {share} |")
    return "\n".join(lines)


def sums(statements):
    """What all rows come to, with the 95 % intervals of a bootstrap by job."""
    by_job = collections.defaultdict(lambda: [0, 0, 0])
    for statement in statements:
        counts = by_job[statement.job]
        counts[0] += 1
        counts[1] += statement.outcome == FALSE
        counts[2] += statement.outcome == MISSING
    jobs = list(by_job.values())
    n_false_jobs = sum(counts[1] > 0 for counts in jobs)
    words = [f"{len(jobs):,} jobs, {sum(counts[0] for counts in jobs):,} statements"]
    for idx, name in ((1, "false"), (2, "missing")):
        n = sum(counts[idx] for counts in jobs)
        words.append(f"{n} {name} ({_interval(jobs, lambda drawn, idx=idx: sum(c[idx] for c in drawn) / sum(c[0] for c in drawn))})")
    words.append(f"{n_false_jobs} jobs with a false statement ({_interval(jobs, lambda drawn: sum(c[1] > 0 for c in drawn) / len(drawn))})")
    return "; ".join(words)


def _interval(jobs, share):
    rng = random.Random(1)
    drawn = sorted(share(rng.choices(jobs, k=len(jobs))) for _ in range(RESAMPLES))
    return f"{drawn[int(0.025 * RESAMPLES)]:.3%} to {drawn[int(0.975 * RESAMPLES)]:.3%}"


def examples(statements, only=""):
    """The first false and missing statements of each row, or all of one."""
    told = collections.Counter()
    lines = []
    for statement in statements:
        if statement.outcome not in (FALSE, MISSING) or (only and statement.row != only):
            continue
        told[statement.row] += 1
        if only or told[statement.row] <= 6:
            lines.append(
                f"{statement.outcome} {statement.row}: {statement.job}; step {statement.step}, rank {statement.rank}: "
                f"said {statement.said or '-'}; true {statement.truth or '-'}"
            )
    return "\n".join(lines)


def _quantile(errors, share):
    return f"{errors[min(len(errors) - 1, int(share * len(errors)))]:.1%}" if errors else ""
