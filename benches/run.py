"""Measures what `stepmem run` adds to a command: to its start, and to the processor time of its training thread.

Every row stands beside the bare command against itself, in one run on one machine, the cases in turn. `start` is from the
shell's start of the line to the first line of the program (`python -I -S`, which takes as long in all cases); on a busy machine the
fastest start says most. The loop takes a step every 10 ms over the stubbed counters of python/tests/stub, in two kinds: a thread that
works for these 10 ms, as one that launches kernels does, and one that sleeps, after which the processor's caches are cold. A figure is the
processor time of the training thread in a round above the bare command's in the same round, the median of all rounds, with their
quartiles; the share is that of 10 ms. A process reads its first 256 steps, then fewer of such short ones where reading is dear: what is
measured begins after those, and the row says how many are read. `run, every step` reads all (STEPMEM_EVERY_STEP=1). Where the quartiles
of the bare command against itself are further apart than the target, the verdict is NOISE. What PyTorch itself takes to note stacks of
allocations with `--snapshots` is not in it: the stub notes none.

The stub's counters are Python, PyTorch's are C++ that builds such dictionaries. `the counters alone` is the bare command with an
optimizer hook that reads and resets them and does nothing else: that much of `run` is the stub's. What PyTorch's own take is not
measured. `run, no GPU` reads resident memory instead.

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
SHARE_MAX = 0.001
STEP_SECONDS = 0.010

STARTED = "import time; print(time.time())"

LOOP = """
import sys, time, torch
from torch.optim import optimizer as optimizers
optimizer = optimizers.Optimizer()
torch.cuda.is_up = sys.argv[2] != "no GPU"
torch.malloc(1 << 20)
if sys.argv[2] == "counters":
    def read(*_):
        torch._C._cuda_memoryStats(0)
        torch._C._cuda_resetPeakMemoryStats(0)
    optimizers.register_optimizer_step_post_hook(read)
chain = [{"next": i * 7919 % 4096} for i in range(4096)]
def work(seconds):
    until, place = time.thread_time() + seconds, 0
    while time.thread_time() < until:
        for _ in range(10):
            place = chain[place]["next"]
between = work if sys.argv[3] == "that works" else time.sleep
def steps(n):
    for _ in range(n):
        optimizer.step()
        between(0.01)
steps(400)  # of which 256 are all read; a second after them the client has chosen which are
began = time.thread_time()
steps(int(sys.argv[1]))
took = time.thread_time() - began
client = sys.modules.get("stepmem._client")
print(took, (1 << 32) // client.CLIENT.process.read_below if client else 0)
"""

BARE, AGAIN, RUN, SNAPSHOTS = "the bare command", "the bare command again", "run", "run --snapshots"
COUNTERS, NO_GPU, EVERY = "the counters alone", "run, no GPU", "run, every step"
KINDS = {COUNTERS: "counters", NO_GPU: "no GPU"}


def starts_of(binary):
    """The words before the command whose start is measured, by case."""
    own = [binary, "run", "--no-nvml", "--web.listen-address=127.0.0.1:0"]
    return {BARE: [], AGAIN: [], RUN: [*own, "--"], SNAPSHOTS: [*own, "--snapshots", "--"]}


def loops_of(binary):
    """The words before the loop, by case."""
    lines = starts_of(binary)
    return {**lines, COUNTERS: [], NO_GPU: lines[RUN], EVERY: ["env", "STEPMEM_EVERY_STEP=1", *lines[RUN]]}


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


def verdict(is_held, is_known=True):
    return ("PASS" if is_held else "MISS") if is_known else "NOISE"


def measured_loops(binary, n_rounds, n_steps, between, folder):
    """Processor seconds of the training thread, and how many steps there were for each that was read, by case and round."""
    works = {name: [] for name in loops_of(binary)}
    strides = {name: [] for name in loops_of(binary)}
    for at in range(n_rounds):
        cases = list(loops_of(binary).items())
        for name, before in cases if at % 2 == 0 else reversed(cases):
            words = [sys.executable, "-c", LOOP, str(n_steps), KINDS.get(name, ""), between]
            work, stride = execute(before, words, folder).split()
            works[name].append(float(work))
            strides[name].append(int(stride))
    return works, strides


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("binary", type=lambda path: str(pathlib.Path(path).resolve()))
    arguments.add_argument("--quick", action="store_true")
    options = arguments.parse_args()
    n_starts, n_rounds, n_steps = (5, 4, 300) if options.quick else (20, 7, 500)
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
            target = ("<= 150 ms", verdict(more <= START_SECONDS_MAX)) if name != AGAIN else ()
            row(name, f"{more * 1e3:.1f} ms (fastest: {(min(starts[name]) - min(starts[BARE])) * 1e3:.1f} ms)", *target)
        for between in ("that works", "that sleeps"):
            works, strides = measured_loops(options.binary, n_rounds, n_steps, between, folder)
            row(f"10 ms steps of a thread {between}, {n_rounds} rounds", "processor time a step, quartiles", "target")
            for name in (AGAIN, COUNTERS, RUN, SNAPSHOTS, NO_GPU, EVERY):
                more = [(work - bare) / n_steps for work, bare in zip(works[name], works[BARE], strict=True)]
                low, middle, high = statistics.quantiles(more, n=4)
                if name == AGAIN:
                    is_known = high - low <= SHARE_MAX * STEP_SECONDS
                share = middle / STEP_SECONDS
                target = ("<= 0.1 %", verdict(share <= SHARE_MAX, is_known)) if name == RUN else ()
                stride = round(statistics.median(strides[name]))
                what = f"{name}, 1 step of {stride} read" if stride > 1 else name
                row(what, f"{middle * 1e6:+.1f} us ({low * 1e6:+.1f} to {high * 1e6:+.1f}), {share:+.3%}", *target)


if __name__ == "__main__":
    main()
