"""Scores a runner and prints each figure next to its limit. `make eval` calls it.

Exit code: 0 where every limit is kept, 1 where one is missed, 2 where something is missing or fails.
"""
import argparse
import json
import os
import shlex
import sys
from pathlib import Path

from . import bars, jobs, judge, report, runner

SETS = ("dev", "seen", "real", "null", "test", "witness", "peers")
# `peers` takes long, and no change of the detector changes it.
USUAL_SETS = "dev,seen,real,null,test"
ALL_SEEDS = "0-9"
NULL_MODELS = ("random_walk", "heavy_tailed_walk", "jump_walk", "exponential_cache", "logarithmic_cache", "power_cache", "level_shifts", "sawtooth")
NULL_DAYS = 3000
# One run of the program for each part of a model's days.
NULL_PARTS = 10


def progress(what, n, of):
    if sys.stderr.isatty():
        print(f"\r{what}: {n}/{of}\033[K", end="" if n < of else "\n", file=sys.stderr, flush=True)


def seeds_of(text):
    low, _, high = text.partition("-")
    return range(int(low), int(high or low) + 1)


def score_simulated(which, options):
    """The results of `dev`, `seen`, `test` or `witness`, and the rows behind them."""
    names = jobs.families_of(which).names()
    if options.families:
        unknown = set(options.families) - set(names)
        if unknown and which == "dev":
            raise FileNotFoundError(f"no family {', '.join(sorted(unknown))}")
        names = [name for name in names if name in options.families]
    paths = jobs.simulated(options.jobs, which, names, seeds_of(options.seeds), options.workers, progress)
    truths = {path: jobs.load(path) for path in paths}
    judged = []
    for command in (options.runner, [*options.runner, "--process"]):
        events = runner.transitions(command, paths, options.workers, progress)
        judged.append([judge.judge(truths[path], events[str(path)]) for path in paths])
    results = dict(seeds=options.seeds, ranks=judge.figures(judged[0]), processes=judge.figures(judged[1]))
    if which == "dev":
        results["families"] = judge.by_family(judged[0])
    return results, judged


def score_real(options):
    series, drawn = jobs.real(options.jobs)
    events = runner.transitions([*options.runner, "--process"], [path for path, _ in series + drawn], options.workers, progress)
    return judge.real_figures(series, drawn, events)


def score_null(options):
    days = options.null_days // NULL_PARTS
    tasks = [(model, days, seed) for model in NULL_MODELS for seed in range(NULL_PARTS)]
    counts = runner.null_counts(options.runner, tasks, options.workers, progress)
    by_model = {model: [one for task, one in zip(tasks, counts) if task[0] == model] for model in NULL_MODELS}
    return dict(models={model: judge.null_figures(of_model) for model, of_model in by_model.items()}, all=judge.null_figures(counts))


def score_peers(options):
    """Other detectors on the jobs of `dev`, one after the other."""
    from .peers import PEERS

    paths = jobs.simulated(options.jobs, "dev", jobs.families_of("dev").names(), seeds_of(options.seeds), options.workers, progress)
    truths = {path: jobs.load(path) for path in paths}
    results = {}
    for name in PEERS:
        events = runner.transitions([sys.executable, "-m", "score.peers", name], paths, options.workers, progress)
        results[name] = judge.figures([judge.judge(truths[path], events[str(path)]) for path in paths])
        print(bars.peer_line(name, results[name]))
    return results


def score(which, options):
    """Scores a set and prints its table; returns its results and whether its limits are kept."""
    named = dict(runner=options.name)
    if which == "null":
        results = named | score_null(options)
        bars.print_null(results)
        return results, True
    if which == "peers":
        return score_peers(options), True
    if which == "real":
        results = named | score_real(options)
        return results, bars.print_table(which, results)
    figures, judged = score_simulated(which, options)
    results = named | figures
    kept = bars.print_table(which, results)
    # Whoever works on the detector sees only sums of `test`.
    if options.verbose and which == "dev":
        bars.print_families(judged)
    if options.rows and which == "dev":
        options.rows.write_text("".join(json.dumps(dict(ranks=rank, processes=process)) + "\n" for rank, process in zip(*judged)))
    return results, kept


def parse():
    parser = argparse.ArgumentParser(prog="eval", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runner", type=shlex.split, required=True, help="the command that judges job files")
    parser.add_argument("--name", help="what results.json calls the runner")
    parser.add_argument("--jobs", type=Path, required=True, help="where job files are kept")
    parser.add_argument("--sets", default=USUAL_SETS, type=lambda text: text.split(","), help="of dev, seen, real, null, test, witness, peers")
    parser.add_argument("--seeds", default=ALL_SEEDS)
    parser.add_argument("--families", default=[], type=lambda text: [name for name in text.split(",") if name])
    parser.add_argument("--null-days", type=int, default=NULL_DAYS)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--verbose", action="store_true", help="a line for each family of dev")
    parser.add_argument("--rows", type=Path, help="write what was judged of each job of dev")
    parser.add_argument("--dry", action="store_true", help="leave results.json as it is")
    options = parser.parse_args()
    options.name = options.name or Path(options.runner[0]).name
    if unknown := set(options.sets) - set(SETS):
        parser.error(f"no set {', '.join(sorted(unknown))}")
    return options


def main():
    options = parse()
    kept_results = report.load()
    is_whole = not options.families and options.seeds == ALL_SEEDS and options.null_days >= NULL_DAYS and not options.dry
    all_kept = True
    try:
        for which in SETS:
            if which not in options.sets:
                continue
            results, kept = score(which, options)
            all_kept = all_kept and kept
            if is_whole:
                kept_results[which] = results
                report.save(kept_results)
                report.write_documents(kept_results)
        if is_whole:
            print(f"\nwritten: {report.RESULTS}, {report.PAGE}")
        else:
            print("\nresults.json is left as it is: this is a part")
    except (OSError, runner.RunnerFailed, ValueError, KeyError) as error:
        print(f"eval: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    return 0 if all_kept else 1


if __name__ == "__main__":
    sys.exit(main())
