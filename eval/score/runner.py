"""Runs a detector on job files: paths go in on standard input, transitions come out as JSON lines."""
import json
import subprocess
from concurrent.futures import ThreadPoolExecutor

# Jobs that one process of the runner judges.
BATCH = 8


class RunnerFailed(Exception):
    """The runner stopped early, or left a job out."""


def judge_batch(command, paths):
    run = subprocess.run(command, input="".join(f"{path}\n" for path in paths), capture_output=True, text=True)
    if run.returncode:
        raise RunnerFailed(f"{' '.join(command)}: exit {run.returncode}: {run.stderr.strip()[-300:]}")
    events, done = {str(path): [] for path in paths}, set()
    for line in run.stdout.splitlines():
        event = json.loads(line)
        if "done" in event:
            done.add(event["job"])
        else:
            events[event["job"]].append(event)
    if missing := events.keys() - done:
        raise RunnerFailed(f"{' '.join(command)}: no word of {min(missing)}")
    return events


def transitions(command, paths, n_workers, progress):
    """The transitions of each job, by its path."""
    batches = [paths[i : i + BATCH] for i in range(0, len(paths), BATCH)]
    events = {}
    with ThreadPoolExecutor(n_workers) as pool:
        for batch in pool.map(lambda batch: judge_batch(command, batch), batches):
            events.update(batch)
            progress("judged", len(events), len(paths))
    return events


def null_counts(command, tasks, n_workers, progress):
    """The counts of each (model, days, seed), as the runner prints them."""
    def count(task):
        model, days, seed = task
        run = subprocess.run([*command, "--null", model, "--days", str(days), "--seed", str(seed)], capture_output=True, text=True)
        if run.returncode:
            raise RunnerFailed(f"{' '.join(command)} --null {model}: exit {run.returncode}: {run.stderr.strip()[-300:]}")
        return json.loads(run.stdout)

    counts = []
    with ThreadPoolExecutor(n_workers) as pool:
        for one in pool.map(count, tasks):
            counts.append(one)
            progress("null models", len(counts), len(tasks))
    return counts
