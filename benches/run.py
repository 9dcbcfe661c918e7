"""Measures what `stepmem run` adds to the start of a command, beside the bare command against itself, in one run on one machine, the cases in turn.

`start` is from the shell's start of the line to the first line of the program (`python -I -S`, which takes as long in all cases); on a busy
machine the fastest start says most. What `run` adds to a step is measured by benches/step.py.

    python3 benches/run.py target/dist/stepmem [--quick]
"""

from __future__ import annotations

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent

START_SECONDS_MAX = 0.150

STARTED = "import time; print(time.time())"

BARE, AGAIN, RUN, SNAPSHOTS = "the bare command", "the bare command again", "run", "run --snapshots"


def starts_of(binary):
    """The words before the command whose start is measured, by case."""
    own = [binary, "run", "--no-nvml", "--web.listen-address=127.0.0.1:0"]
    return {BARE: [], AGAIN: [], RUN: [*own, "--"], SNAPSHOTS: [*own, "--snapshots", "--"]}


def execute(before, words, folder):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("STEPMEM_", "PYTHON"))}
    environment = {**kept, "PYTHONPATH": str(ROOT / "python/tests/stub")}
    ended = subprocess.run([*before, *words], env=environment, cwd=folder, capture_output=True, text=True, timeout=600)
    if ended.returncode != 0 or not ended.stdout:
        raise SystemExit(f"{before}: {ended.returncode}\n{ended.stderr}")
    return ended.stdout.splitlines()[-1]


def start_seconds(before, folder):
    began = time.time()
    return float(execute(before, [sys.executable, "-I", "-S", "-c", STARTED], folder)) - began


def row(what, value, target="", verdict=""):
    print(f"{what:<44} {value:>40} {target:>12} {verdict}", flush=True)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("binary", type=lambda path: str(pathlib.Path(path).resolve()))
    arguments.add_argument("--quick", action="store_true")
    options = arguments.parse_args()
    n_starts = 5 if options.quick else 20
    starts = {name: [] for name in starts_of(options.binary)}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(n_starts):
            for name, before in starts_of(options.binary).items():
                starts[name].append(start_seconds(before, folder))
        load = os.getloadavg()[0]
        row(f"start, median of {n_starts}, load {load:.1f} on {os.cpu_count()} cores", "wall time above the bare command", "target")
        bare = statistics.median(starts[BARE])
        for name in (AGAIN, RUN, SNAPSHOTS):
            more = statistics.median(starts[name]) - bare
            target = ("<= 150 ms", "PASS" if more <= START_SECONDS_MAX else "MISS") if name != AGAIN else ()
            row(name, f"{more * 1e3:.1f} ms (fastest: {(min(starts[name]) - min(starts[BARE])) * 1e3:.1f} ms)", *target)


if __name__ == "__main__":
    main()
