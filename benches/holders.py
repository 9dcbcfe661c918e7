"""Measures the pause of the training thread while the Python client looks for what holds the memory.

Each row is the pauses of several processes of its own, that train a small model, leak a tensor a step into an attribute and
keep a heap of some shape; a search runs at the ends of their steps as if the exporter had asked. `in all` is the sum of all
slices of one search, `in one piece` the longest of them. Processor time beside wall time: on a busy machine, only the former
is the client's. The last column counts the searches that named the leak. In the rows of a buffer it has a bound, which is reported.

A healthy run is asked nothing: the last line counts the searches that an exporter asks of one for.

Needs PyTorch, as `python/tests/install.sh torch` installs it:

    target/tools/torch-venv/bin/python benches/holders.py [--processes 20] [--exporter target/release/stepmem]
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import subprocess
import sys
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent

IN_ALL_SECONDS_MAX = 50e-3
IN_ONE_PIECE_SECONDS_MAX = 5e-3

HEAPS = {
    "a small model": "None",
    "a small model, 10,000 lists made in advance": "[[None] * 63 + [n] for n in range(10_000)]",
    "a model of 800 modules": "torch.nn.Sequential(*[torch.nn.TransformerEncoderLayer(16, 2, 32) for _ in range(100)])",
    "3 million lists in 3,000 lists": "[[[n] for n in range(1000)] for _ in range(3000)]",
    "3 million tuples and lists in one list": "[(n, []) for n in range(1_500_000)]",
    "2 million dictionaries and lists in one dictionary": "{n: {'a': [n]} for n in range(1_000_000)}",
    "a million instances in 3,000 dictionaries": "[{str(n): Sample(n) for n in range(333)} for _ in range(3000)]",
}

BUFFERS = {
    "a small model, a deque of 1,000 fills": ("None", "collections.deque(maxlen=1000)"),
    "a model of 800 modules, a deque of 1,000 fills": (HEAPS["a model of 800 modules"], "collections.deque(maxlen=1000)"),
}
"""Programs whose leak is a buffer with a bound."""

CHILD = """
import collections, json, sys, time
import torch
from stepmem._holders.search import Search

class Sample:
    def __init__(self, n):
        self.n, self.tags = n, [n]

class Trainer:
    def __init__(self):
        self.history = {history}

def main():
    heap = {heap}
    torch.set_num_threads(1)
    trainer, model = Trainer(), torch.nn.Linear(16, 4)
    optimizer = torch.optim.Adam(model.parameters())
    search, works = Search(20), []
    for step in range(600):
        loss = model(torch.randn(8, 16)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        trainer.history.append(loss.detach())
        if step >= 60 and search.outcome is None:
            worked = time.thread_time()
            search.at_step_end(step)
            works.append(time.thread_time() - worked)
    names = [holder.name.text for holder in search.holders]
    is_bounded = any(getattr(holder, "fill", None) for holder in search.holders)
    print(json.dumps([sum(works), max(works), sum(search.pauses), max(search.pauses), "`Trainer.history`" in names, is_bounded]))

main()
"""


HEALTHY_STEPS = 4000

HEALTHY = """
import torch, stepmem
torch.set_num_threads(1)
model = torch.nn.Linear(256, 256)
optimizer = torch.optim.Adam(model.parameters())
for step in range({steps}):
    loss = model(torch.randn(64, 256)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    stepmem.step_end(step)
assert stepmem.flush(30)
"""


def searches_of_a_healthy_run(exporter: str) -> int:
    """Returns how many searches an exporter asked a healthy run for that pushes to it."""
    anywhere = "127.0.0.1:0"
    arguments = ["--no-nvml", "--holders.on-creep", "--web.listen-address", anywhere, "--push.listen-address", anywhere]
    command = [exporter, "serve", *arguments, "--log.format", "json"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as serving:
        assert serving.stderr is not None
        try:
            found = {}
            while len(found) < 2:
                fields = json.loads(serving.stderr.readline()).get("fields", {})
                if fields.get("message") == "listening":
                    found[fields["what"]] = fields["address"]
            environment = {"PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1", "STEPMEM_PUSH_URL": f"http://{found['push']}"}
            subprocess.run([sys.executable, "-c", HEALTHY.format(steps=HEALTHY_STEPS)], env=environment, check=True)
            with urllib.request.urlopen(f"http://{found['web']}/metrics") as answer:
                metrics = answer.read().decode()
        finally:
            serving.terminate()
    steps = sum(map(float, re.findall(r"^stepmem_rank_steps_total{.*} (.*)$", metrics, re.MULTILINE)))
    assert steps == HEALTHY_STEPS, f"{steps} steps arrived"
    return round(sum(map(float, re.findall(r"^stepmem_holders_total{.*} (.*)$", metrics, re.MULTILINE))))


def measure(heap: str, history: str) -> "list[float]":
    """Runs one process and returns its four times, in seconds, whether it named the leak, and whether that has a bound."""
    arguments = [sys.executable, "-W", "ignore", "-c", CHILD.format(heap=heap, history=history)]
    environment = {"PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1"}
    answer: "list[float]" = json.loads(subprocess.run(arguments, env=environment, capture_output=True, text=True, check=True).stdout)
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description="measures the pause of a search for holders")
    parser.add_argument("--processes", type=int, default=20, help="processes of each row")
    parser.add_argument("--exporter", default=str(ROOT / "target/release/stepmem"), help="what a healthy run pushes to")
    parser.add_argument("--rows", default="", help="only the rows whose name has this in it")
    options = parser.parse_args()
    n_processes = options.processes
    print(f"{n_processes} processes a row; the p99 of them in milliseconds of processor time (wall time)")
    print(f"{'heap':52} {'in all':>16} {'in one piece':>16} {'named':>8}")
    has_missed = False
    programs = {**{name: (heap, "[]") for name, heap in HEAPS.items()}, **BUFFERS}
    for name, (heap, history) in programs.items():
        if options.rows not in name:
            continue
        rows = [measure(heap, history) for _ in range(n_processes)]
        in_all, piece, wall, wall_piece = (sorted(row[i] for row in rows)[(n_processes - 1) * 99 // 100] for i in range(4))
        verdict = "PASS" if in_all <= IN_ALL_SECONDS_MAX and piece <= IN_ONE_PIECE_SECONDS_MAX else "MISS"
        has_missed |= verdict == "MISS"
        n_named = sum(bool(row[4]) and row[5] == (name in BUFFERS) for row in rows)
        print(
            f"{name:52} {in_all * 1e3:6.1f} ({wall * 1e3:6.1f}) {piece * 1e3:7.2f} ({wall_piece * 1e3:5.1f}) "
            f"{n_named:4}/{n_processes} {verdict}",
            flush=True,
        )
    print(f"searches of a healthy run of {HEALTHY_STEPS:,} steps: {searches_of_a_healthy_run(options.exporter)}")
    sys.exit(has_missed)


if __name__ == "__main__":
    main()
