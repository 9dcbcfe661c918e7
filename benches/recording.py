"""Measures what recording a memory snapshot costs the training thread, with the stub of PyTorch in the place of a GPU.

The stub records as PyTorch does, stacks included, but in Python: its own part is measured without the client and subtracted.
Rows: the client's work for 1,000 allocations while it records; its part of the pause at the step's end at which a snapshot is
taken, without PyTorch's own `_snapshot()`; and how long a training thread is held up at most while the file is written beside
it. Processor time of the training thread beside wall time: on a busy machine, only the former is the client's.

    python3 benches/recording.py [--events 200000]
"""

from __future__ import annotations

import argparse
import gc
import os
import pathlib
import statistics
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "python/tests/stub")]

STEP_MS_MAX = 1.0
"""The client's part of a step that records, at most."""
PAUSE_MS_MAX = 5.0
"""The client's part of the pause at which a snapshot is taken, and what holds up the training thread while it is written."""
ALLOCATIONS_A_STEP = 100
STEPS = 400
ROUNDS = 5


def step_of_training(malloc, free):
    blocks = [malloc() for _ in range(ALLOCATIONS_A_STEP)]
    for block in blocks:
        free(block)


def recorded(directory):
    """Milliseconds of processor time of the client for a step of 100 allocations that it records, the median of all steps."""
    import torch
    from torch._recorded import free, malloc

    from stepmem._process import Process
    from stepmem._snapshot_file import SnapshotWriter
    from stepmem._snapshots import Plan

    os.environ["STEPMEM_SNAPSHOT_DIRECTORY"] = directory
    results = []
    plan = Plan(SnapshotWriter(Process(), results.append), 2, STEPS, directory)
    plan.request_id, plan.reason, plan.max_entries = "1-1", "creep", 1_000_000
    costs = []
    for step in range(1, STEPS):
        step_of_training(malloc, free)
        began = time.thread_time()
        plan.advance(step)
        costs.append(time.thread_time() - began)
    assert torch._C.history is not None, "it does not record"
    return statistics.median(costs[2:]) * 1e3


def events(n):
    frames = [{"filename": f"/app/train/module{k}.py", "name": f"forward{k}", "line": k} for k in range(12)]
    return [{"action": "alloc", "addr": k << 9, "size": 512, "stream": 0, "time_us": k, "frames": list(frames)} for k in range(n)]


def dumped(directory, n_events):
    """Milliseconds of the client's pause when it takes a snapshot, by the processor and by the clock, and the longest time that a
    training thread was held up while the file was written, beyond what it is held up without."""
    from stepmem import _snapshot_file, _torch
    from stepmem._process import Process

    state = {"segments": [], "device_traces": [events(n_events)]}
    _torch.require_cuda().cuda.memory._snapshot = lambda: state
    written = threading.Event()
    writer = _snapshot_file.SnapshotWriter(Process(), lambda _: written.set())
    alone = longest_gap(lambda: False, 1.0)
    file = _snapshot_file.SnapshotFile("creep", 1, directory)
    file.request_id, file.is_beneath = "1-1", True
    gc.collect()
    began, worked = time.perf_counter(), time.thread_time()
    writer.write_in_background(file)
    pause = (time.thread_time() - worked) * 1e3, (time.perf_counter() - began) * 1e3
    beside = longest_gap(written.is_set, 120.0)
    assert written.is_set(), "it was not written"
    return (*pause, beside, alone)


def longest_gap(is_over, seconds):
    """The longest time in milliseconds from one short piece of a thread's work to the next."""
    longest, end = 0.0, time.perf_counter() + seconds
    last = time.perf_counter()
    while last < end and not is_over():
        sum(range(200))
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    return longest * 1e3


def main():
    parser = argparse.ArgumentParser(description="measures the cost of recording a memory snapshot")
    parser.add_argument("--events", type=int, default=200_000, help="events of the snapshot that is written")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stepmem-recording-") as directory:
        per_step = recorded(directory)
        rounds = [dumped(directory, arguments.events) for _ in range(ROUNDS)]
    processor, clock, beside, alone = (statistics.median(column) for column in zip(*rounds))
    verdicts = [per_step <= STEP_MS_MAX, processor <= PAUSE_MS_MAX]
    print(f"recording, the client's processor time for 1,000 allocations   {per_step * 1000 / ALLOCATIONS_A_STEP:8.3f} ms  {verdict(verdicts[0])}")
    print(f"taking a snapshot, the client's part, processor time (clock)    {processor:8.3f} ms ({clock:.1f})  {verdict(verdicts[1])}")
    print(f"writing {arguments.events:,} events beside training, longest gap (without)  {beside:8.1f} ms ({alone:.1f})")
    sys.exit(not all(verdicts))


def verdict(is_met):
    return "PASS" if is_met else "MISS"


if __name__ == "__main__":
    main()
