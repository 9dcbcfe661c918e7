#!/usr/bin/env python3
"""Simulated jobs, each made once and kept: what a detector reads, what the judge needs.

    PYTHONPATH=../shared/data/creep tests/creep/cache.py FOLDER SET SEEDS [FAMILY,...] [--jobs N]

A job is FOLDER/SET-FAMILY-SEED.jsonl.gz (pushes and readings in order of arrival), .nvml.gz (the readings alone) and .npz (the
truth, and the steps, times and bytes of its leak). An existing job is left as it is.
"""
import gzip
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ProcessPoolExecutor
from types import SimpleNamespace

import numpy as np

import families

LINES_A_WRITE = 4096


def base(folder, which, family, seed):
    return os.path.join(folder, f"{which}-{family}-{seed}")


def make(job):
    """Makes a job unless it is there; its .npz comes last and says that it is whole."""
    import creepjobs

    folder, which, family, seed = job
    name = base(*job)
    if os.path.exists(name + ".npz"):
        return family, seed
    run = families.make_run(which, family, seed)
    with gzip.open(name + ".jsonl.gz", "wt", compresslevel=1) as whole, gzip.open(name + ".nvml.gz", "wt", compresslevel=1) as readings:
        held, read = [], []
        for line in creepjobs.lines(run):
            held.append(line)
            if line.startswith('{"nvml"'):
                read.append(line)
            if len(held) == LINES_A_WRITE:
                whole.write("".join(held))
                held.clear()
        whole.write("".join(held))
        readings.write("".join(read))
    leaks = run.truth["leak_ranks"] if run.truth["leak"] else []
    cum = run.ranks[leaks[0]]["leak_cum"] if leaks else np.zeros(0)
    with open(f"{name}.{os.getpid()}.part", "wb") as part:
        np.savez_compressed(part, truth=json.dumps(run.truth), step=run.step, time=run.time, cum=cum, world=run.world)
    os.replace(part.name, name + ".npz")
    return family, seed


def load(folder, which, family, seed):
    """The run as the judge wants it: truth, steps, times and the leak of its first leaking rank."""
    with np.load(base(folder, which, family, seed) + ".npz") as kept:
        truth, cum = json.loads(str(kept["truth"])), kept["cum"]
        ranks = {truth["leak_ranks"][0]: dict(leak_cum=cum)} if truth["leak"] else {}
        return SimpleNamespace(family=family, seed=seed, truth=truth, ranks=ranks, step=kept["step"], time=kept["time"], world=int(kept["world"]))


def events(path, command):
    """The transitions that a command prints about a kept job, and its exit status."""
    unpack = subprocess.Popen(["gzip", "-dc", path], stdout=subprocess.PIPE)
    run = subprocess.run(command, stdin=unpack.stdout, capture_output=True, text=True)
    unpack.stdout.close()
    unpack.wait()
    found = [json.loads(line) for line in run.stdout.splitlines()]
    return [event for event in found if "kind" in event and "state" in event], run.returncode


def fill(folder, jobs, n_workers):
    os.makedirs(folder, exist_ok=True)
    with ProcessPoolExecutor(n_workers) as pool:
        for n_done, (family, seed) in enumerate(pool.map(make, [(folder, *job) for job in jobs]), 1):
            if sys.stderr.isatty():
                print(f"\r{n_done}/{len(jobs)} {family:<24}", end="", file=sys.stderr)


def main():
    arguments = sys.argv[1:]
    n_workers = 2
    if "--jobs" in arguments:
        at = arguments.index("--jobs")
        n_workers = int(arguments[at + 1])
        del arguments[at : at + 2]
    folder, which, seeds, *names = arguments
    low, _, high = seeds.partition("-")
    names = names[0].split(",") if names else families.families(which)
    fill(folder, [(which, name, seed) for seed in range(int(low), int(high or low) + 1) for name in names], n_workers)


if __name__ == "__main__":
    main()
